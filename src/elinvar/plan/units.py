"""Bytes and seconds as the plan's pages and errors show them. Pure functions from numbers to short text."""


def size(num_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    number, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds as one or two of days, hours, minutes and seconds."""
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s"
    return f"{rest} s" if whole else "less than 1 s"
