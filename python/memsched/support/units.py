"""Sizes, bandwidths and durations as people write them: "8GiB", "40%", "12GB/s", "10us"; and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Rational
from typing import Any

from memsched._core import Device
from memsched.errors import InvalidInputError, shown
from memsched.support.checks import EXACT_BYTES, is_number
from memsched.support.memo import Notes

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {"": 0, "s": 0, "ms": -3, "us": -6, "\u00b5s": -6, "\u03bcs": -6, "ns": -9}  # the micro sign, and Greek mu
_NUMBER = re.compile(
    r"\s*([+-]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+(?:_\d+)*)\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*([a-z\u00b5\u03bc/%]*)\s*",
    re.IGNORECASE | re.ASCII,
)
_LONGEST = 100  # characters of a number with its unit

_UNITS = "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
BYTES_FORMS = "8GiB (1024^3), 12GB (1000^3), 500MB, 1e9 or plain bytes"
PERCENT_ENDS = "0%: min_memory, 100%: peak of the plain run"
MEMORY_FORMS = f"{BYTES_FORMS}, or 40% ({PERCENT_ENDS})"
_BANDWIDTH_FORMS = "12GB/s, 12.2e9 (bytes per second), inf (a free link) or 0 (no link)"
_SECONDS_FORMS = "1, 0.5, 10ms or 10us"
_CHUNK_FORMS = f"16MiB (or another size: {BYTES_FORMS}), storage or none"


class Bytes(int):
    """A number of bytes that knows the unit it was written in: "MB", "GiB", "%", ..; "" where it was written in bytes.

    It is an int in all else, and arithmetic gives plain ones.

    Examples
    --------
    >>> parse_bytes("500 mb") == 500_000_000, parse_bytes("500 mb").unit, parse_bytes(500).unit
    (True, 'MB', '')
    """

    unit: str

    def __new__(cls, count: int, unit: str = "") -> Bytes:
        """The unit is one of those that `exact_bytes` writes, or "%"."""
        made = super().__new__(cls, count)
        made.unit = unit
        return made


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


def _bytes_of(text: str, what: str, forms: str) -> Bytes:
    amount, unit = _split(text, what, forms, of_bytes=True)
    scale = _scale(unit)
    if _reads_as_bits(unit):
        raise _refuse(what, text, "which reads as bits", forms)
    if scale is None:
        raise _refuse(what, text, f"whose unit {unit!r} is not one of {_UNITS}", forms)
    if scale == 1 and amount.denominator != 1:
        raise _refuse(what, text, "which is not a whole number of bytes", forms)
    units = _BINARY if "i" in unit.lower() else _DECIMAL
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


def _rounded(value: float | Fraction, digits: int) -> str:
    """A number >= 0 with this many digits, or fewer if that is exact, and no exponent."""
    if value == 0:
        return "0"
    value = float(value)
    nearest = Decimal(f"{value:.{digits - 1}e}")  # not float: there is none above the largest
    text = f"{nearest:.{max(0, digits - 1 - nearest.adjusted())}f}"
    exact = "." in text and math.isclose(float(text), value, rel_tol=1e-12)
    return text.rstrip("0").rstrip(".") if exact else text


def _scaled(value: float, digits: int, base: int, *units: str) -> str:
    """A number >= 0 in the first of the units that leaves fewer than `base`; each is `base` times the one before."""
    power = 0
    while power + 1 < len(units) and float(_rounded(value / base**power, 4)) >= base:
        power += 1
    amount = value / base**power
    return f"{_rounded(amount, 4 if amount >= 1000 else digits)} {units[power]}"


def format_bytes(count: float, like: str = "") -> str:
    """A size in a suitable unit: in powers of 1024, or of 1000 as the unit that it is to be like.

    Examples
    --------
    >>> format_bytes(512), format_bytes(8589934592), format_bytes(2495698035), format_bytes(1024**3 - 1)
    ('512 B', '8 GiB', '2.32 GiB', '1.00 GiB')
    >>> format_bytes(2495698035, "MB"), format_bytes(2495698035, "MiB"), format_bytes(2495698035, "%")
    ('2.50 GB', '2.32 GiB', '2.32 GiB')
    """
    sign, count = ("-", -count) if count < 0 else ("", count)
    base, units = (1000, _DECIMAL) if like in _DECIMAL[1:] else (1024, _BINARY)
    return sign + _scaled(count, 3, base, *units)


def exact_bytes(count: int, unit: str = "", *, up: bool = False) -> str:
    """A size in a unit, by default a suitable one, with the bytes where they differ.

    A unit that leaves less than 0.1 or 10,000 or more gives way to the nearest that does not. `up`: the size is for
    typing, and so it is not rounded down.

    Examples
    --------
    >>> exact_bytes(512), exact_bytes(2495698035)
    ('512 B', '2.32 GiB (2,495,698,035 bytes)')
    >>> exact_bytes(612_300_001, "MB"), exact_bytes(612_300_001, "MB", up=True), exact_bytes(612_300_001, "kB")
    ('612.3 MB (612,300,001 bytes)', '612.4 MB (612,300,001 bytes)', '612.3 MB (612,300,001 bytes)')
    """
    text, known = format_bytes(count), unit in (*_DECIMAL[1:], *_BINARY[1:])
    if known or (up and count >= 1024):
        base, units = (1000, _DECIMAL) if unit in _DECIMAL[1:] else (1024, _BINARY)
        power = units.index(unit if known else text.split()[1])
        while power and 10 * count < base**power:
            power -= 1
        rounded = _rounded_up if up else _rounded
        while power + 1 < len(units) and float(rounded(count / Fraction(base**power), 4)) >= 10_000:
            power += 1
        text = f"{rounded(count / Fraction(base**power), 4)} {units[power]}"
    return text if text == f"{count} B" else f"{text} ({count:,} bytes)"


def _rounded_up(amount: Fraction, digits: int) -> str:
    """The least number of this many digits that is not below an amount, or more digits before the point."""
    places = digits
    while places and amount >= 10 ** (digits - places):
        places -= 1
    text = f"{Decimal(math.ceil(amount * 10**places)).scaleb(-places):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


WRITTEN = Notes[str]()  # the unit in which the memory of a device was written


def unit_written(count: object) -> str:
    """The unit that a number of bytes, or the memory of a device, was written in; else the one in which it is round.

    Of a number in a file nobody knows what was typed; 700,000,000 was 700 MB. "" of what is not round in MB, GB, ..

    Examples
    --------
    >>> unit_written(parse_bytes("700 MB")), unit_written(Device(700_000_000)), unit_written(2**30)
    ('MB', 'MB', '')
    """
    known = count.unit if isinstance(count, Bytes) else WRITTEN.get(count)
    size = count.memory if isinstance(count, Device) else count
    if known or not isinstance(size, int) or size < 1000 or size % 1000 or len(str(size).rstrip("0")) > 4:
        return known or ""
    return format_bytes(size, "MB").split()[1]


def format_bandwidth(bandwidth: float) -> str:
    """A bandwidth in powers of 1000, as links are sold.

    Examples
    --------
    >>> format_bandwidth(12.2e9), format_bandwidth(2), format_bandwidth(0), format_bandwidth(float("inf"))
    ('12.2 GB/s', '2 B/s', 'no link', 'a free link')
    """
    if bandwidth == 0:
        return "no link"
    if math.isinf(bandwidth):
        return "a free link"
    return _scaled(bandwidth, 4, 1000, "B/s", "kB/s", "MB/s", "GB/s", "TB/s")


def format_seconds(seconds: float, digits: int = 4) -> str:
    """A duration in a suitable unit.

    Examples
    --------
    >>> format_seconds(0.3352384), format_seconds(18.0), format_seconds(4e-6), format_seconds(0)
    ('335.2 ms', '18 s', '4 us', '0 s')
    """
    if math.isinf(seconds):
        return "inf"
    if seconds < 0:
        return f"-{format_seconds(-seconds, digits)}"
    if seconds == 0:
        return "0 s"
    for power, unit in ((0, "s"), (3, "ms"), (6, "us")):
        amount = seconds * 10.0**power
        if float(_rounded(amount, digits)) >= 1:
            return f"{_rounded(amount, digits)} {unit}"
    return f"{_rounded(seconds * 1e9, digits)} ns"


def format_percent(fraction: float) -> str:
    """A fraction as a percentage.

    Examples
    --------
    >>> format_percent(0.0080123), format_percent(0.0), format_percent(1e-6), format_percent(float("inf"))
    ('0.80 %', '0.00 %', '< 0.01 %', 'inf %')
    """
    if 0 < fraction < 0.00005:
        return "< 0.01 %"
    return f"{100 * fraction:.2f} %"


def counted(count: int, what: str, several: str = "") -> str:
    """A number of things, in words.

    Examples
    --------
    >>> counted(1, "op"), counted(2, "op"), counted(0, "memory", "memories")
    ('1 op', '2 ops', '0 memories')
    """
    return f"{count} {what if count == 1 else several or what + 's'}"


def format_number(kind: str, value: float, like: str = "") -> str:
    """A bandwidth, seconds, or bytes in a unit like this one."""
    if kind == "bandwidth":
        return format_bandwidth(value)
    return format_seconds(value) if kind == "seconds" else format_bytes(value, like)


def format_link(device: Device, number: Callable[[str, float], str] = format_number) -> str:
    """The link and host memory of a device; `number` formats a value of kind "bandwidth", "seconds" or "bytes".

    What has no meaning without a link, or with a free one, is left out.
    """
    text, alike = number("bandwidth", device.d2h), device.d2h == device.h2d
    if alike and device.d2h == 0:
        return text
    if not alike:
        text += f" to the host, {number('bandwidth', device.h2d)} back"
    if not alike or math.isfinite(device.d2h) or device.latency:
        at_once = " in both directions at once" if alike else ", both directions at once"
        text += at_once if device.duplex else ", one direction at a time"
    if device.latency:
        text += f", latency {number('seconds', device.latency)}"
    if device.host_memory is not None:
        text += f", host memory {number('bytes', device.host_memory)}"
    return text
