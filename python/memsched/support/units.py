"""Sizes, bandwidths and durations as people write them: "8GiB", "40%", "12GB/s", "10us"; `formats` writes them."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Rational
from typing import Any

from memsched.errors import InvalidInputError, shown
from memsched.support.checks import EXACT_BYTES, is_number
from memsched.support.formats import BINARY, DECIMAL, Bytes

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {"": 0, "s": 0, "ms": -3, "us": -6, "\u00b5s": -6, "\u03bcs": -6, "ns": -9}  # the micro sign, and Greek mu
_NUMBER = re.compile(
    r"\s*([+-]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+(?:_\d+)*)\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*([a-z\u00b5\u03bc/%]*)\s*",
    re.IGNORECASE | re.ASCII,
)
_LONGEST = 100  # characters of a number with its unit

_UNITS = "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
BYTES_FORMS = "8GiB (1024^3), 12GB (1000^3), 500MB, 1e9 or plain bytes"
PERCENT_ENDS = "0%: min_memory, 100%: peak of the plain run"
MEMORY_FORMS = f"{BYTES_FORMS}, or 40% ({PERCENT_ENDS})"
_BANDWIDTH_FORMS = "12GB/s, 12.2e9 (bytes per second), inf (a free link) or 0 (no link)"
_SECONDS_FORMS = "1, 0.5, 10ms or 10us"
_CHUNK_FORMS = f"16MiB (or another size: {BYTES_FORMS}), storage or none"


def _refuse(what: str, value: object, why: str, forms: str) -> InvalidInputError:
    return InvalidInputError(f"{what} is {shown(value)}, {why}; write {forms}")


def _split(text: str, what: str, forms: str, *, of_bytes: bool = False) -> tuple[Fraction, str]:
    """The number, whose thousands may have commas between them, and the unit. A single comma may be a decimal point."""
    text = text.replace("\u00a0", " ").replace("\u202f", " ")  # as spreadsheets write between a number and its unit
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None  # matching takes time quadratic in the length
    if match is None:
        comma = re.fullmatch(r"\s*\d+,\d+\s*[a-z/%]*\s*", text[:_LONGEST], re.IGNORECASE | re.ASCII)
        why = "with a comma for the decimal point" if comma else "which is not a number with a unit"
        raise _refuse(what, text, why, forms)
    if re.fullmatch(r"[+-]?\d+,\d+", match[1]) and not (of_bytes and _scale(match[2]) == 1):
        read = match[1].replace(",", ""), match[1].replace(",", ".")
        raise _refuse(what, text, f"which may mean {read[0]} and {read[1]}", forms)
    try:
        return Fraction(Decimal(re.sub("[_,]", "", match[1]))), match[2]
    except (InvalidOperation, ValueError) as error:
        raise _refuse(what, text, "which is not a number with a unit", forms) from error


def _scale(unit: str) -> int | None:
    """Bytes in one B, kB, KiB, MB, ...; None for other units."""
    match = re.fullmatch(r"(?:([kmgtp])(i?))?b|bytes?", unit, re.IGNORECASE) if unit else None
    if match is None:
        return None if unit else 1
    base: int = 1024 if match[2] else 1000
    scale: int = base ** _POWERS[(match[1] or "").lower()]
    return scale


def _reads_as_bits(unit: str) -> bool:
    """Whether a unit is one of bits, as in Gbit, Gb, kb and b; all in small letters, as in gb, it is one of bytes."""
    return re.fullmatch(r"([KMGTP]i?|k)?b|[kKmMgGtTpP]?i?bits?", unit) is not None


def _as_float(amount: float | Fraction, what: str, value: object, forms: str) -> float:
    """A number >= 0 as a float."""
    if amount < 0:
        raise _refuse(what, value, "which is negative", forms)
    try:
        return float(amount)
    except OverflowError as error:
        raise _refuse(what, value, "which is too large", forms) from error


def whole_bytes(amount: Fraction, what: str, value: object, forms: str, unit: str = "") -> Bytes:
    """Bytes that were written in this unit, without the fraction of one."""
    count = math.floor(amount)
    if amount < 0:
        raise _refuse(what, value, "which is negative", forms)
    if count > EXACT_BYTES:
        raise _refuse(what, value, "which is more than 2^53", forms)
    return Bytes(count, unit)


def _of_bytes(unit: str) -> str:
    """A unit without its B, as it is listed."""
    return next(one for one in (*DECIMAL, *BINARY) if one.lower() == f"{unit}b".lower())


def _bytes_of(text: str, what: str, forms: str) -> Bytes:
    amount, unit = _split(text, what, forms, of_bytes=True)
    scale = _scale(unit)
    if _reads_as_bits(unit):
        raise _refuse(what, text, "which reads as bits", forms)
    if unit == "%":
        raise _refuse(what, text, "a percentage, of which nothing is known here to be a share", forms)
    if scale is None:
        meant = f" (did you mean {text.strip()[: -len(unit)]}{_of_bytes(unit)}?)" if _scale(f"{unit}B") else ""
        raise _refuse(what, text, f"whose unit {unit!r} is not one of {_UNITS}{meant}", forms)
    if scale == 1 and amount.denominator != 1:
        raise _refuse(what, text, "which is not a whole number of bytes", forms)
    units = BINARY if "i" in unit.lower() else DECIMAL
    return whole_bytes(amount * scale, what, text, forms, units[_POWERS[unit[0].lower()]] if scale > 1 else "")


def parse_bytes(value: Any, what: str = "the size", forms: str = BYTES_FORMS) -> Bytes:
    """Bytes, from a text such as "8GiB" or a whole number. Fractions of a byte are dropped.

    kB, MB, GB, TB, PB are powers of 1000, KiB to PiB powers of 1024; case is ignored, but Gb is bits. Thousands may
    have commas between them, where they cannot be taken for decimal points. Errors call the value `what` and list the
    accepted `forms`; what is neither text nor number is refused, too.

    Examples
    --------
    >>> parse_bytes("8GiB"), parse_bytes("1.5 kB"), parse_bytes("1e9"), parse_bytes(4096)
    (8589934592, 1500, 1000000000, 4096)
    >>> parse_bytes("1.5")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    memsched.errors.InvalidInputError: the size is '1.5', which is not a whole number of bytes; write 8GiB ...
    """
    if isinstance(value, str):
        return _bytes_of(value, what, forms)
    if isinstance(value, Rational):
        whole = is_number(value) and value.denominator == 1
    else:
        whole = is_number(value) and math.isfinite(value) and not value % 1
    if not whole:
        raise _refuse(what, value, "which is not a whole number of bytes", forms)
    return whole_bytes(Fraction(int(value)), what, value, forms)


def parse_share(value: str, what: str = "the memory") -> Fraction:
    """A share >= 0 of a memory, from a text such as "40%".

    Examples
    --------
    >>> parse_share("40%")
    Fraction(2, 5)
    """
    percent, unit = _split(value, what, MEMORY_FORMS)
    if unit != "%":
        raise _refuse(what, value, "which is not a number with a unit", MEMORY_FORMS)
    if percent < 0:
        raise _refuse(what, value, "which is negative", MEMORY_FORMS)
    return percent / 100


def parse_bandwidth(value: Any, what: str = "the bandwidth") -> float:
    """Bytes per second, from a text such as "12GB/s" or a number; "inf" is a free link, 0 no link.

    Examples
    --------
    >>> parse_bandwidth("12GB/s"), parse_bandwidth("12.2e9"), parse_bandwidth("inf"), parse_bandwidth("0")
    (12000000000.0, 12200000000.0, inf, 0.0)
    """
    if not isinstance(value, str):
        if not is_number(value) or not value >= 0:
            raise _refuse(what, value, "which is not a number >= 0", _BANDWIDTH_FORMS)
        return _as_float(value, what, value, _BANDWIDTH_FORMS)
    if value.strip().lower() in ("inf", "infinity"):
        return math.inf
    amount, unit = _split(value, what, _BANDWIDTH_FORMS)
    if unit.endswith("bps"):  # as networks are sold
        unit = f"{unit[:-3]}bit/s"
    per_second = unit[-2:].lower() == "/s"
    if per_second and _reads_as_bits(unit[:-2]):
        raise _refuse(what, value, "which reads as bits per second", _BANDWIDTH_FORMS)
    scale = _scale(unit[:-2] if per_second else unit)
    if scale is None or unit == "/s" or (unit and not per_second):
        raise _refuse(what, value, f"whose unit {unit!r} is not bytes per second", _BANDWIDTH_FORMS)
    return _as_float(amount * scale, what, value, _BANDWIDTH_FORMS)


def parse_seconds(value: str, what: str = "the duration") -> float:
    """Seconds >= 0, from a text such as "0.5" or "10us".

    Examples
    --------
    >>> parse_seconds("0.5"), parse_seconds("10 us")
    (0.5, 1e-05)
    """
    amount, unit = _split(value, what, _SECONDS_FORMS)
    if unit.lower() not in _SECONDS:
        raise _refuse(what, value, f"whose unit {unit!r} is not one of s, ms, us, ns", _SECONDS_FORMS)
    return _as_float(amount * Fraction(10) ** _SECONDS[unit.lower()], what, value, _SECONDS_FORMS)


def parse_chunk(value: str, what: str = "chunk") -> int | str | None:
    """How tensors travel: the largest piece in bytes, "storage", or None for whole tensors.

    Examples
    --------
    >>> parse_chunk("16MiB"), parse_chunk("storage"), parse_chunk("none")
    (16777216, 'storage', None)
    """
    word = value.strip().lower()
    if word in ("storage", "none"):
        return "storage" if word == "storage" else None
    size = _bytes_of(value, what, _CHUNK_FORMS)
    if size == 0:
        raise _refuse(what, value, "but a piece has at least one byte", _CHUNK_FORMS)
    return size
