"""Numbers, times and digests as a reader wants them. Pure functions from values to short text."""

import math
from datetime import UTC, datetime
from html import escape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(value: int) -> str:
    """An exact whole number with thin spaces between thousands: 1 234 567."""
    return f"{value:,}".replace(",", "\u202f")


def short_count(value: float) -> str:
    """A large number to three figures: 987, 12.3 k, 4.56 M, 7.89 B."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            scaled = value / power
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f} {unit}"
    return f"{value:.0f}"


def size(num_bytes: int) -> str:
    """Bytes in binary units to three figures: 512 B, 12.3 MiB."""
    scaled, unit = float(num_bytes), 0
    while scaled >= 1024 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    digits = 0 if unit == 0 or scaled >= 100 or scaled == int(scaled) else 1
    return f"{scaled:.{digits}f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Wall time: 0.42 s, 12.3 s, 4 min 05 s, 3 h 07 min, 2 d 04 h."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def moment(time_s: float) -> str:
    """A Unix time as UTC: 2026-01-31 12:34:56."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{time_s}"


def number(value: float | None, digits: int = 4) -> str:
    """A measured value to some figures; an en dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}g}"


def code(digest: str, length: int = 12) -> str:
    """A digest as HTML: its beginning, with the whole of it in the tooltip."""
    return f'<code title="{escape(digest)}">{escape(digest[:length])}</code>'
