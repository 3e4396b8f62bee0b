"""Arguments that are quantities: numbers, or texts with units as people write them."""

from __future__ import annotations

import math

from memsched.support import checks
from memsched.support.formats import Bytes, unit_written
from memsched.support.units import parse_bandwidth, parse_bytes, parse_chunk, parse_seconds


def size(name: str, value: object) -> int:
    """Bytes: a whole number from 0 to 2^53, or a text such as "6GiB".

    Examples
    --------
    >>> size("capacity", "4KiB"), size("capacity", 4096)
    (4096, 4096)
    """
    if isinstance(value, str):
        plain = value.isascii() and value.isdigit() and len(value) < 16  # much faster; a file may have a million
        return int(value) if plain else checks.size(name, parse_bytes(value, name))
    return checks.size(name, value if checks.is_number(value) else parse_bytes(value, name))


def alignment(value: object, most: int = 2**40) -> int:
    """Bytes of which offsets are multiples: a whole number from 1 to `most`, or a text such as "4KiB".

    Examples
    --------
    >>> alignment("4KiB"), alignment(4096)
    (4096, 4096)
    """
    given = parse_bytes(value, "alignment") if isinstance(value, str) else value
    return checks.count("alignment", given, 1, most)


def limit(name: str, value: object) -> Bytes:
    """The same for a size that errors compare with others: it keeps the unit that it was written in.

    Examples
    --------
    >>> limit("capacity", "4KiB").unit, limit("capacity", 4096).unit
    ('KiB', '')
    """
    given = value if checks.is_number(value) else parse_bytes(value, name)
    return Bytes(checks.size(name, given), unit_written(given))


def bandwidth(name: str, value: object) -> float:
    """Bytes per second: a number, or a text such as "12GB/s"; 0 means no link, inf a free one.

    Examples
    --------
    >>> bandwidth("beta", "12GB/s"), bandwidth("beta", 12e9), bandwidth("beta", "inf")
    (12000000000.0, 12000000000.0, inf)
    """
    return checks.bandwidth(name, value if checks.is_number(value) else parse_bandwidth(value, name))


def seconds(name: str, value: object) -> float:
    """Seconds: a finite number >= 0, or a text such as "2 ms".

    Examples
    --------
    >>> seconds("time_limit", "2 ms"), seconds("time_limit", 0.002)
    (0.002, 0.002)
    """
    if isinstance(value, str):
        try:
            number = float(value) if value.isascii() else -1.0  # much faster, as above
        except ValueError:
            number = -1.0
        return number if 0 <= number < math.inf else parse_seconds(value, name)
    return checks.non_negative(name, value, "seconds")


def time_limit(value: object) -> float | None:
    """Seconds, or None for no limit."""
    return None if value is None else seconds("time_limit", value)


def chunk(value: int | str | None) -> int | str | None:
    """How tensors travel: None, the largest piece in bytes or as a text such as "16MiB", or "storage"."""
    if isinstance(value, str):
        return parse_chunk(value)
    number = checks.as_float(value)
    return int(number) if number.is_integer() and abs(number) < checks.EXACT_BYTES else value
