"""Commands: one file each, which imports its code when it is called."""
