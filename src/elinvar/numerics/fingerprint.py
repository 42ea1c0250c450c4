"""What may move bits though the experiment is equal: devices, kernels, threads, library builds.

Noun: the fingerprint, a flat mapping from names to texts. Two runs promise the same bits only with
equal fingerprints; rank counts, hosts, paths and drivers' clocks are no part of it.
"""

import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch
from blake3 import blake3

from elinvar.identity import Digest
from elinvar.spec.numerics import Numerics


def fingerprint(numerics: Numerics, device: str) -> dict[str, str]:
    """The fingerprint of this process for `device` ("cpu" or "cuda")."""
    parts = {
        "torch": str(torch.__version__),
        "torch_build": blake3(torch.__config__.show().encode()).hexdigest()[:16],
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(numerics.threads),
        "deterministic": str(numerics.deterministic).lower(),
        "optimizer": "foreach",
        "device": device,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        parts["device_name"] = properties.name
        parts["device_capability"] = f"{properties.major}.{properties.minor}"
        parts["cuda"] = str(torch.version.cuda)
        parts["cudnn"] = str(torch.backends.cudnn.version())
    return parts


def fingerprint_digest(parts: Mapping[str, str]) -> Digest:
    """The digest of a fingerprint."""
    return Digest(blake3(json.dumps(dict(sorted(parts.items()))).encode()).hexdigest())


def _cpu() -> str:
    """Vendor, family, model and stepping of the processor: math libraries choose kernels by them."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    fields: dict[str, str] = {}
    for line in info.read_text().splitlines():
        name, _, value = line.partition(":")
        if not name.strip():
            break
        fields[name.strip()] = value.strip()
    return "/".join(fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping"))
