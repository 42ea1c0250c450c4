"""What there is to compute with: cores, memory, devices. In no digest.

Noun: `Machine`, a value that a TOML file may hold (`--machine FILE`) or that is read from the
system this process runs on (`this_machine`). It is read without torch, so a device is believed to
be usable when its driver and a torch build for it are both present; the run itself asks torch.
Refuses unknown keys and guesses no speed: a machine without `flops_per_s` yields no time estimate.
"""

import os
import sys
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from elinvar.errors import InvalidInput

Positive = Annotated[int, Meta(ge=1)]


class Machine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine.

    `cores` and `memory_bytes` are what this process may use (affinity and cgroup limits applied).
    `devices` counts accelerators, each with `device_memory_bytes` (None: not known, so not checked).
    `flops_per_s` is what one rank really reaches in matrix products (None: no time estimate).
    """

    name: str
    device: Literal["cpu", "cuda"] = "cpu"
    cores: Positive
    memory_bytes: Positive
    devices: Annotated[int, Meta(ge=0)] = 0
    device_memory_bytes: Positive | None = None
    flops_per_s: Annotated[float, Meta(gt=0)] | None = None

    @property
    def words(self) -> str:
        """How a sentence calls it."""
        return "this machine" if self.name == THIS else self.name


THIS = "this"

KNOWN: Mapping[str, Machine] = {
    "cpu-2": Machine(name="cpu-2", cores=2, memory_bytes=4 * 2**30),
    "cpu-4": Machine(name="cpu-4", cores=4, memory_bytes=16 * 2**30),
    "cpu-16": Machine(name="cpu-16", cores=16, memory_bytes=64 * 2**30),
    "gpu-80": Machine(
        name="gpu-80",
        device="cuda",
        cores=16,
        memory_bytes=128 * 2**30,
        devices=1,
        device_memory_bytes=79 * 2**30,
    ),
}
"""Sizes to plan for without a file. `this` is the machine that the command runs on."""


NAMES = f"{', '.join([THIS, *KNOWN])}, or a TOML file"
"""What may stand where a machine is named, for helps and errors."""


def read_machine(source: str, folder: Path = Path()) -> Machine:
    """A machine by name (`this` or one of KNOWN) or from a TOML file, looked up from `folder`.

    The file holds the keys of `Machine`, or is a run file with a table [machine].

    Raises InvalidInput for an unknown name, and for a file that does not parse or holds another
    key or type than `Machine` has.
    """
    if source == THIS:
        return this_machine()
    if source in KNOWN:
        return KNOWN[source]
    path = folder / source
    if path.suffix != ".toml" and not path.is_file():
        names = [THIS, *KNOWN]
        near = get_close_matches(source, names, n=1)
        raise InvalidInput(
            f"no machine is named {source!r}",
            [
                *(f"a similar name exists: {name}" for name in near),
                f"allowed: {NAMES} with name, cores, memory_bytes, …",
            ],
        )
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"no such machine file: {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"cannot read the machine file {path}: {error}") from None
    if isinstance(table.get("machine"), dict):  # a run file that describes its machine
        table = table["machine"]
    try:
        return msgspec.convert(table, Machine)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: {error}", [f"keys: {' · '.join(Machine.__struct_fields__)}"]) from None


def this_machine() -> Machine:
    """The machine that this process runs on, within the limits set on the process."""
    devices = usable_devices(Path("/"), os.environ)
    return Machine(
        name=THIS,
        device="cuda" if devices else "cpu",
        cores=usable_cores(Path("/")),
        memory_bytes=usable_memory(Path("/")),
        devices=devices,
    )


def usable_cores(root: Path) -> int:
    """Cores that this process may run on: its affinity, or fewer where a cgroup limits CPU time."""
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroups(root, "cpu"):
        quota, period = _quota(folder)
        if quota is not None:
            cores = min(cores, max(1, -(-quota // period)))
    return cores


def usable_memory(root: Path) -> int:
    """Bytes of memory of the machine, or fewer where a cgroup limits this process."""
    limits = [_physical(root)]
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(folder / name)
            if limit is not None:
                limits.append(limit)
    return min(limits)


def usable_devices(root: Path, environ: Mapping[str, str]) -> int:
    """CUDA devices with a driver, visible to this process, and with a torch build that knows CUDA."""
    present = _present_devices(root)
    if not present or not _torch_has_cuda():
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def _present_devices(root: Path) -> int:
    """CUDA devices with a driver; in containers the driver may show only their device files."""
    listed = root / "proc/driver/nvidia/gpus"
    if listed.is_dir():
        return sum(1 for _ in listed.iterdir())
    numbered = sum(path.name.removeprefix("nvidia").isdigit() for path in (root / "dev").glob("nvidia*"))
    # Windows' subsystem for Linux shows one file for all of them.
    return numbered or int((root / "dev/dxg").exists())


def _torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA, told from its files: importing it takes seconds."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    return (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists()


def _physical(root: Path) -> int:
    info = root / "proc/meminfo"
    if not info.exists():
        assert sys.platform != "linux", "Linux has /proc/meminfo"
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in info.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    raise InvalidInput(f"{info} does not say MemTotal", ["name a machine: --machine FILE"])


def _cgroups(root: Path, controller: str) -> list[Path]:
    """The control groups of this process for `controller`, from its own up to the top: each may limit."""
    listing = root / "proc/self/cgroup"
    if not listing.exists():
        return []
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in listing.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one tree
            base = mount
        elif controller in controllers.split(","):  # version 1: one tree a controller
            base = mount / controller
        else:
            continue
        own = base / path.lstrip("/")
        # Inside a container the listed path may lie outside of what is mounted; the mount itself then counts.
        folders += [
            folder for folder in (own, *own.parents) if folder.is_relative_to(base) and folder.is_dir()
        ]
    return folders


def _quota(folder: Path) -> tuple[int | None, int]:
    """CPU time and period in microseconds; no time means no limit."""
    both = folder / "cpu.max"
    if both.exists():
        quota, period = both.read_text().split()
        return (None if quota == "max" else int(quota)), int(period)
    quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if quota_us is None or period_us is None or quota_us <= 0:
        return None, 1
    return quota_us, period_us


def _number(file: Path) -> int | None:
    """The number in a control file; None where the file is absent or says `max`."""
    if not file.exists():
        return None
    text = file.read_text().strip()
    return None if text == "max" else int(text)
