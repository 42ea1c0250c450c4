"""`elinvar doctor`: whether this machine has what a run needs, and the fingerprint of its arithmetic.

Nouns: `Check` (one thing looked at: found, and needed or not) and `Examination` (all of them). It
writes one temporary folder into the working directory and removes it, and keeps the fingerprint in
the cache, where `elinvar plan` finds it without loading torch; it changes nothing else.
"""

import fcntl
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import msgspec
from msgspec import Struct

import elinvar
from elinvar.cli.terminal import print_json, print_lines
from elinvar.data.cache import cache_root
from elinvar.errors import EXIT_DOES_NOT_FIT, ElinvarError
from elinvar.identity import Digest
from elinvar.plan.machine import Machine, this_machine
from elinvar.plan.units import size
from elinvar.record.durable import write_whole
from elinvar.spec.explain import counted
from elinvar.spec.numerics import Numerics

PACKAGES = ("torch", "numpy", "msgspec", "click", "rich", "blake3", "safetensors", "tokenizers", "plotly")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LEAST_DISK_BYTES = 2**30
FINGERPRINT_FILE = "fingerprint.json"


class Check(Struct, frozen=True, kw_only=True):
    """One thing looked at. `ok` is false where it is absent or does not work; only `needed` ones fail."""

    name: str
    ok: bool
    found: str
    needed: bool = True


class Examination(Struct, frozen=True, kw_only=True):
    """What `elinvar doctor --json` prints. `fingerprint` is empty where torch cannot be imported."""

    ok: bool
    machine: Machine
    checks: tuple[Check, ...]
    fingerprint: dict[str, str]
    fingerprint_digest: Digest | None


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """What this machine has, whether it suffices, and the fingerprint that its bits depend on.

    Exit 3 where something that a run needs is missing.
    """
    examination = examine(Path.cwd())
    if as_json:
        print_json(msgspec.to_builtins(examination))
    else:
        print_lines(*lines(examination))
    if not examination.ok:
        sys.exit(EXIT_DOES_NOT_FIT)


def examine(folder: Path) -> Examination:
    """Look at everything; `folder` is where runs would be written."""
    machine = this_machine()
    checks = [
        Check(name="elinvar", ok=True, found=elinvar.__version__),
        Check(name="python", ok=sys.version_info >= (3, 11), found=platform.python_version()),
        *map(_package, PACKAGES),
        Check(name="cores", ok=True, found=str(machine.cores)),
        Check(name="memory", ok=True, found=size(machine.memory_bytes)),
        *_disk(folder),
        _browser(),
    ]
    arithmetic, fingerprint, digest = _arithmetic(machine)
    checks += [*arithmetic, _keep(fingerprint)]
    return Examination(
        ok=all(check.ok for check in checks if check.needed),
        machine=machine,
        checks=tuple(checks),
        fingerprint=fingerprint,
        fingerprint_digest=digest,
    )


def lines(examination: Examination) -> list[str]:
    """The examination as a page of text."""
    words = {(True, True): "ok", (True, False): "ok", (False, True): "MISSING", (False, False): "absent"}
    found = [
        f"{words[check.ok, check.needed]:<9}{check.name:<16}{check.found}" for check in examination.checks
    ]
    if examination.fingerprint_digest is not None:
        found += ["", f"fingerprint   {examination.fingerprint_digest}"]
        found += [f"  {name:<20}{value}" for name, value in examination.fingerprint.items()]
    missing = [check.name for check in examination.checks if check.needed and not check.ok]
    verdict = f"not ready: {', '.join(missing)}" if missing else "ready"
    return [*found, "", verdict]


def kept_fingerprint() -> dict[str, str] | None:
    """The fingerprint that the last `elinvar doctor` kept; None where there is none."""
    try:
        return msgspec.json.decode((cache_root() / FINGERPRINT_FILE).read_bytes(), type=dict[str, str])
    except (OSError, ElinvarError, msgspec.DecodeError):
        return None


def _keep(fingerprint: dict[str, str]) -> Check:
    """Whether the cache, where data stores are built too, can be written."""
    try:
        root = cache_root()
        root.mkdir(parents=True, exist_ok=True)
        if fingerprint:
            write_whole(root / FINGERPRINT_FILE, msgspec.json.encode(fingerprint))
    except (OSError, ElinvarError) as error:
        return Check(name="cache", ok=False, found=str(error))
    return Check(name="cache", ok=True, found=str(root))


def _package(name: str) -> Check:
    try:
        return Check(name=name, ok=True, found=version(name))
    except PackageNotFoundError:
        return Check(name=name, ok=False, found=f"not installed: pip install {name}")


def _arithmetic(machine: Machine) -> tuple[list[Check], dict[str, str], Digest | None]:
    """Whether torch imports and can reach other ranks; and the fingerprint of the default numerics."""
    try:
        import torch
        from torch import distributed
    except ImportError as error:
        return [Check(name="torch imports", ok=False, found=str(error))], {}, None

    from elinvar.numerics.fingerprint import fingerprint, fingerprint_digest

    device = "cuda" if torch.cuda.is_available() else "cpu"
    gloo = distributed.is_available() and distributed.is_gloo_available()
    checks = [
        Check(
            name="gloo",
            ok=gloo,
            found="ranks can exchange data" if gloo else "this build of torch cannot run several ranks",
        ),
        Check(
            name="device",
            ok=True,
            found=f"cuda, {counted(torch.cuda.device_count(), 'device')}" if device == "cuda" else device,
        ),
    ]
    if machine.device != device:
        checks.append(
            Check(
                name="device driver",
                ok=False,
                found=f"a driver for {machine.device} is there, torch uses {device}",
                needed=False,
            )
        )
    parts = fingerprint(Numerics(), device)
    return checks, parts, fingerprint_digest(parts)


def _disk(folder: Path) -> list[Check]:
    """Free space, and the three things that committed generations and run folders rely on."""
    free = shutil.disk_usage(folder).free
    space = Check(
        name="disk",
        ok=free >= LEAST_DISK_BYTES,
        found=f"{size(free)} free in {folder}" + ("" if free >= LEAST_DISK_BYTES else ", less than 1 GiB"),
        needed=False,
    )
    try:
        with tempfile.TemporaryDirectory(prefix=".elinvar-doctor-", dir=folder) as name:
            _try_rename(Path(name))
            _try_lock(Path(name))
    except OSError as error:
        return [space, Check(name="writing", ok=False, found=f"{folder}: {error}")]
    return [space, Check(name="writing", ok=True, found="fsync, atomic rename and exclusive lock work here")]


def _try_rename(folder: Path) -> None:
    """Write, sync and move a file over another, as every commit does."""
    target, temporary = folder / "target", folder / "temporary"
    target.write_bytes(b"old")
    with temporary.open("wb") as file:
        file.write(b"new")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if target.read_bytes() != b"new" or temporary.exists():
        raise OSError("a renamed file did not replace the other")


def _try_lock(folder: Path) -> None:
    """A second open file must not get a lock that the first holds: some network disks grant both."""
    path = folder / "lock"
    with path.open("w") as first, path.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError("two processes can hold one lock here")


def _browser() -> Check:
    """Only to look at reports and to test them."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return Check(name="browser", ok=found is not None, found=found or "no Chromium on PATH", needed=False)
