"""Arguments that are quantities: numbers, or texts with units as people write them."""

from __future__ import annotations

from memsched.support import checks
from memsched.support.units import Bytes, parse_bandwidth, parse_bytes, parse_chunk, parse_seconds, unit_written


def size(name: str, value: object, least: int = 0) -> int:
    """Bytes: a whole number from `least` to 2^53, or a text such as "6GiB".

    Examples
    --------
    >>> size("capacity", "4KiB"), size("capacity", 4096)
    (4096, 4096)
    """
    return checks.size(name, parse_bytes(value, name) if isinstance(value, str) else value, least)


def limit(name: str, value: object) -> Bytes:
    """The same for a size that errors compare with others: it keeps the unit that it was written in.

    Examples
    --------
    >>> limit("capacity", "4KiB").unit, limit("capacity", 4096).unit
    ('KiB', '')
    """
    given = parse_bytes(value, name) if isinstance(value, str) else value
    return Bytes(checks.size(name, given), unit_written(given))


def bandwidth(name: str, value: object) -> float:
    """Bytes per second: a number, or a text such as "12GB/s"; 0 means no link, inf a free one.

    Examples
    --------
    >>> bandwidth("beta", "12GB/s"), bandwidth("beta", 12e9), bandwidth("beta", "inf")
    (12000000000.0, 12000000000.0, inf)
    """
    return checks.bandwidth(name, parse_bandwidth(value, name) if isinstance(value, str) else value)


def seconds(name: str, value: object) -> float:
    """Seconds: a finite number >= 0, or a text such as "2 ms".

    Examples
    --------
    >>> seconds("time_limit", "2 ms"), seconds("time_limit", 0.002)
    (0.002, 0.002)
    """
    return checks.non_negative(name, parse_seconds(value, name) if isinstance(value, str) else value, "seconds")


def time_limit(value: object) -> float | None:
    """Seconds, or None for no limit."""
    return None if value is None else seconds("time_limit", value)


def chunk(value: int | str | None) -> int | str | None:
    """How tensors travel: None, the largest piece in bytes or as a text such as "16MiB", or "storage"."""
    return parse_chunk(value) if isinstance(value, str) else value
