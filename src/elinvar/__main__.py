"""`python -m elinvar`: the same as the `elinvar` command, for launchers that start modules."""

from elinvar.cli.main import main

if __name__ == "__main__":
    main()
