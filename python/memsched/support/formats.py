"""Sizes, bandwidths and durations in readable form; `units` reads them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction

from memsched._core import Device
from memsched.support.memo import Notes

DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LIKE = ContextVar("_LIKE", default="")


@contextlib.contextmanager
def written_like(unit: str) -> Iterator[None]:
    """Within it, sizes are written in powers of 1000 if this unit is: all of a picture or page as its budget is.

    Examples
    --------
    >>> with written_like("MB"):
    ...     format_bytes(2495698035)
    '2.50 GB'
    """
    before = _LIKE.set(unit)
    try:
        yield
    finally:
        _LIKE.reset(before)


def byte_units(like: str = "") -> tuple[int, tuple[str, ...]]:
    """How much larger each unit of bytes is than the one before, and the units."""
    return (1000, DECIMAL) if (like or _LIKE.get()) in DECIMAL[1:] else (1024, BINARY)


class Bytes(int):
    """A number of bytes that knows the unit it was written in: "MB", "GiB", "%", ..; "" where it was written in bytes.

    It is an int in all else, and arithmetic gives plain ones.

    Examples
    --------
    >>> from memsched.support.units import parse_bytes
    >>> parse_bytes("500 mb") == 500_000_000, parse_bytes("500 mb").unit, parse_bytes(500).unit
    (True, 'MB', '')
    """

    unit: str

    def __new__(cls, count: int, unit: str = "") -> Bytes:
        """The unit is one of those that `exact_bytes` writes, or "%"."""
        made = super().__new__(cls, count)
        made.unit = unit
        return made


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
    """A number >= 0 in the first of the units, each `base` times the one before, that leaves less than 1000.

    But whole bytes go up to the base.
    """
    power = 0
    while power + 1 < len(units) and float(_rounded(value / base**power, 4)) >= (1000 if power else base):
        power += 1
    amount = value / base**power
    return f"{_rounded(amount, 4 if amount >= 1000 else digits)} {units[power]}"


def format_bytes(count: float, like: str = "") -> str:
    """A size in a suitable unit: in powers of 1024, or of 1000 as the unit that it is to be like.

    Examples
    --------
    >>> format_bytes(512), format_bytes(8589934592), format_bytes(2495698035), format_bytes(1019 * 2**20)
    ('512 B', '8 GiB', '2.32 GiB', '0.995 GiB')
    >>> format_bytes(2495698035, "MB"), format_bytes(2495698035, "MiB"), format_bytes(2495698035, "%")
    ('2.50 GB', '2.32 GiB', '2.32 GiB')
    """
    sign, count = ("-", -count) if count < 0 else ("", count)
    base, units = byte_units(like)
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
    text, known = format_bytes(count), unit in (*DECIMAL[1:], *BINARY[1:])
    if known or (up and count >= 1024):
        base, units = byte_units(unit if known else text.split()[1])
        power = units.index(unit if known else text.split()[1])
        while power and 10 * count < base**power:
            power -= 1
        rounded = _rounded_up if up else _rounded
        while power + 1 < len(units) and float(rounded(count / Fraction(base**power), 4)) >= 10_000:
            power += 1
        text = f"{rounded(count / Fraction(base**power), 4)} {units[power]}"
    return text if text == f"{count} B" else f"{text} ({count:,} bytes)"


def enough_bytes(count: int, unit: str = "") -> str:
    """A size in a unit, without the bytes, and not below it, so that it is enough where it is typed.

    Examples
    --------
    >>> enough_bytes(607_359_968), enough_bytes(607_359_968, "GB")
    ('579.3 MiB', '0.6074 GB')
    """
    return exact_bytes(count, unit, up=True).partition(" (")[0]


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
    >>> from memsched.support.units import parse_bytes
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
    if seconds == 0 or seconds >= 1e15:
        return f"{seconds:.{digits}g} s"
    for power, unit in ((0, "s"), (3, "ms"), (6, "us")):
        amount = seconds * 10.0**power
        if float(_rounded(amount, digits)) >= 1:
            return f"{_rounded(amount, digits)} {unit}"
    return f"{_rounded(seconds * 1e9, digits)} ns"


def format_bound(seconds: float) -> str:
    """A lower bound on the duration of plans; an infinite one proves that there is no plan.

    Examples
    --------
    >>> format_bound(0.25), format_bound(math.inf)
    ('250 ms', 'none fits')
    """
    return "none fits" if math.isinf(seconds) else format_seconds(seconds)


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
