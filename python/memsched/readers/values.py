"""Single values of files and tables: seconds and bytes, as numbers or as texts with a unit; and whole binary files."""

from __future__ import annotations

import math
from collections.abc import Iterable

from memsched.support import checks
from memsched.support.units import parse_bytes, parse_seconds


def is_empty(value: object) -> bool:
    """Whether a cell is empty: None, NaN, the marks of pandas for what is missing, or a blank text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return not value.strip()
    return checks.is_number(value) and value != value


def seconds_of(value: object, what: str) -> float:
    """Seconds from a number or from a text such as "3 ms"; errors call the value `what`.

    Examples
    --------
    >>> seconds_of(0.5, "time"), seconds_of("0.5", "time"), seconds_of("3 ms", "time")
    (0.5, 0.5, 0.003)
    """
    if not isinstance(value, str):
        return checks.non_negative(what, value, "seconds")
    try:
        number = float(value) if value.isascii() else -1.0  # much faster, and there may be a million of them
    except ValueError:
        number = -1.0
    return number if 0 <= number < math.inf else parse_seconds(value, what)


def bytes_of(value: object, what: str) -> int:
    """Bytes from a whole number or from a text such as "12MiB"; errors call the value `what`.

    Examples
    --------
    >>> bytes_of(4096, "size"), bytes_of("4096", "size"), bytes_of("4 KiB", "size")
    (4096, 4096, 4096)
    """
    if not isinstance(value, str):
        return checks.size(what, value)
    if value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return parse_bytes(value, what)


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names in quotes, to be shown in an error; no more than `most` of them.

    Examples
    --------
    >>> listed(["time", "size"])
    "'time', 'size'"
    """
    texts = [f"'{name}'" for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
