"""The budget and the device of one call: sizes, percentages of what a problem needs, and bandwidths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from memsched._core import Chain, Device, Graph
from memsched.errors import InvalidInputError, shown
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, altered, graph_of, least_memory, name_of, peak_memory
from memsched.support import checks, quantities
from memsched.support.arguments import asked_by_user, tell
from memsched.support.formats import Bytes, exact_bytes, format_bandwidth, format_bytes, format_seconds, unit_written
from memsched.support.memo import once_per_object
from memsched.support.types import Quantity
from memsched.support.units import MEMORY_FORMS, parse_bytes, parse_share, whole_bytes

_SLOW = 3600.0  # seconds that a link needs for all of a problem: slower ones are hardly meant
_REAL = 2**20  # bytes of problems that are measured, not made up: of others nothing is said
_LATE = 1e-3  # seconds of latency: less is never odd


def parse_memory(value: object, problem: Problem, what: str = "the memory") -> Bytes:
    """A memory budget M in bytes, resident included, from a size as in `parse_bytes` or a percentage.

    "40%" is min_memory + 0.4 (peak_memory - min_memory) of the problem, rounded down to whole bytes. 0% is the least
    memory of any plan without recomputation; at 100% the plain run fits; more is allowed. Where nothing has bytes, each
    is one byte. Errors call the value `what`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> ms.min_memory(chain), ms.peak_memory(chain)
    (16, 20)
    >>> parse_memory("0%", chain), parse_memory("50%", chain), parse_memory("100 B", chain)
    (16, 18, 100)
    """
    read = read_memory(value, what)
    if isinstance(read, Bytes):
        return read
    least, most = least_memory(problem), peak_memory(problem)
    return whole_bytes(max(Fraction(1), least + read * (most - least)), what, value, MEMORY_FORMS, "%")


def read_memory(value: object, what: str) -> Bytes | Fraction:
    """Such a memory as far as it can be read without a problem: bytes, or a share."""
    _refuse_share(value, what)
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return parse_share(value, what)
    return parse_bytes(value, what, MEMORY_FORMS)


def _refuse_share(value: object, what: str) -> None:
    """Refuse a number between 0 and 1, alone or as a text: it was meant as a percentage."""
    try:
        share = float(value) if isinstance(value, str) else checks.as_float(value)
    except ValueError:
        return
    if 0 < share < 1:
        raise InvalidInputError(f'{what} is {shown(value)}, less than a byte; did you mean "{100 * share:g}%"?')


def memory_of(value: object, problem: Problem, what: str) -> Bytes:
    """A memory M in a call, in bytes: a number, or a text as in `parse_memory`; it keeps the unit it was written in."""
    if checks.is_number(value):
        _refuse_share(value, what)
        given: object = value
    else:
        given = parse_memory(value, problem, what)
    return Bytes(checks.size(what, given, 1), unit_written(given))


def memory_percent(memory: int, problem: Problem) -> float | None:
    """The inverse of a percentage in `parse_memory`, up to two decimals as typed; None if min_memory is peak_memory.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> memory_percent(18, chain), memory_percent(parse_memory("30%", chain), chain)
    (50.0, 25.0)
    >>> profile = ms.profiles.load("resnet18-224-b32")
    >>> memory_percent(parse_memory("30%", profile), profile)
    30.0
    """
    return _percent_of(problem, memory)


@once_per_object
def _percent_of(problem: Problem, memory: int) -> float | None:
    least, most = least_memory(problem), peak_memory(problem)
    if most == least:
        return None
    above, span = memory - least, most - least
    return _typed(above, span) or 100 * above / span


def _typed(above: int, span: int) -> float | None:
    """The percentage of at most two decimals that is this part of a span, rounded down to a whole byte; or None."""
    ceilings = ((parts, -(-100 * above * parts // span)) for parts in (1, 10, 100))
    return next((most / parts for parts, most in ceilings if most * span < 100 * (above + 1) * parts), None)


def told_bytes(count: int, unit: str, problem: Problem, *, up: bool = False) -> str:
    """A size in the unit in which a budget was written, percentages included; `up` as in `exact_bytes`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4000, 4000, 4000], [0, 4000, 4000])
    >>> told_bytes(18_000, "kB", chain), told_bytes(18_000, "%", chain)
    ('18 kB (18,000 bytes)', '50% (17.6 KiB, 18,000 bytes)')
    """
    if unit != "%":
        return exact_bytes(count, unit, up=up)
    least, most = least_memory(problem), peak_memory(problem)
    if most == least or count < least:
        return exact_bytes(count, up=up)
    percent, typed = Fraction(100 * (count - least), most - least), _typed(count - least, most - least)
    text = f"{float(typed or (math.ceil(100 * percent) / 100 if up else percent)):.2f}".rstrip("0").rstrip(".")
    return f"{text}% ({exact_bytes(count).replace(' (', ', ').rstrip(')')})"


def told_memory(memory: int, unit: str, problem: Problem) -> str:
    """A budget that is too small, in an error: as `told_bytes`; a percentage may have been meant.

    Examples
    --------
    >>> import memsched as ms
    >>> told_memory(40, "", ms.profiles.load("resnet18-224-b32"))
    '40 B (did you mean "40%"?)'
    """
    if unit == "%":
        return told_bytes(memory, unit, problem)
    meant = "" if unit else _meant(memory, problem)
    return exact_bytes(memory, unit) + (f' (did you mean "{meant}"?)' if meant else "")


def _meant(memory: int, problem: Problem) -> str:
    """What somebody meant who wrote such a number without a unit; "" where bytes may be meant."""
    if _hardly_bytes(memory, problem):
        return f"{memory}%"
    least, most = least_memory(problem), peak_memory(problem)
    fits = (
        f"{memory}{unit}" for unit, size in (("MB", 10**6), ("GB", 10**9)) if least / 2 <= memory * size <= 2 * most
    )
    return next(fits, "") if memory < least / 1000 else ""


def _hardly_bytes(memory: int, problem: Problem) -> bool:
    """Whether so few bytes, of what needs far more, were meant as a percentage."""
    return memory <= 100 < least_memory(problem) / 1000


def refuse_percents(memories: Sequence[Bytes], problem: Problem) -> None:
    """Refuse memories all of which were meant as percentages; a single byte says that nothing is to fit."""
    if max(memories) > 1 and all(one.unit == "" and _hardly_bytes(one, problem) for one in memories):
        given, meant = (", ".join(f"{one}{unit}" for one in memories[:3]) for unit in ("", "%"))
        more = ", .." if len(memories) > 3 else ""
        raise InvalidInputError(
            f"memory is [{given}{more}] in bytes, far too little for '{problem.name}'; did you mean "
            f'["{meant.replace(", ", chr(34) + ", " + chr(34))}"{more}]?'
        )


def make_device(
    problem: Problem, memory: Quantity | None = None, bandwidth: Quantity | None = None, device: Device | None = None
) -> Device:
    """The device of one call: from M and beta (here memory and bandwidth), or one of which they override the two.

    M is as in `parse_memory`; beta is in both directions, 0 means no link, inf a free one. Without a device, M must be
    given. The device knows the unit that its memory was written in. A link that takes hours for the problem is told by
    a warning, as its unit is missing; of a device only where the user gave it, and not where one function of memsched
    hands it to the next.
    """
    changes: dict[str, Any] = {}
    if isinstance(memory, Chain | Graph | GraphFamily):
        raise InvalidInputError(f"M is a {type(memory).__name__}; the problem is the first argument, and M the second")
    if isinstance(memory, Device):
        raise InvalidInputError(f"M is {shown(memory)}; write device= before it")
    if memory is not None:
        changes["memory"] = memory_of(memory, problem, "M")
    if bandwidth is not None:
        if isinstance(bandwidth, Device):
            raise InvalidInputError(f"beta is {shown(bandwidth)}; write device= before it")
        changes["d2h"] = changes["h2d"] = quantities.bandwidth("beta", bandwidth)
        warn_if_slow(problem, changes["d2h"], "beta")
    if device is not None:
        checks.kind("device", device, Device)
        if asked_by_user():
            known = slowest(device) if bandwidth is None else math.inf  # the other is told already
            warn_if_slow(problem, known, "the device's link", device.latency)
        return altered(device, **changes) if changes else device
    if memory is None:
        raise InvalidInputError("M is missing; give M (6GiB, 40% or bytes) or device=")
    return Device(changes["memory"], bandwidth=changes.get("d2h", 0.0))


def slowest(device: Device) -> float:
    """The bandwidth of the slower direction of a link, in bytes per second; infinite without a link."""
    return min(one for one in (device.d2h, device.h2d, math.inf) if one)


def told_if_slow(problem: Problem, bandwidth: float, what: str) -> str | None:
    """What to say of a link, called `what`, that takes hours for what is a matter of seconds; None of any other."""
    moved = peak_memory(problem)
    if not 0 < bandwidth < math.inf or moved < max(_REAL, _SLOW * bandwidth):
        return None
    return (
        f"{what} is {format_bandwidth(bandwidth)}, which takes {_hours(moved / bandwidth)} for the "
        f"{format_bytes(moved)} of {name_of(problem)}; write the unit, such as 12GB/s"
    )


def told_if_late(problem: Problem, latency: float, what: str) -> str | None:
    """What to say of a latency, called `what`, that is longer than the whole step; None of any other."""
    if latency <= _LATE or peak_memory(problem) < _REAL or latency <= (step := _computing(problem)):
        return None
    return (
        f"{what} is {format_seconds(latency)} for each transfer, and the ops of {name_of(problem)} take "
        f"{format_seconds(step)} together; write the unit, such as 10us"
    )


def _computing(problem: Problem) -> float:
    """Seconds that the ops take, each run once."""
    return float(sum(op["choices"][0]["time"] for op in graph_of(problem).ops))


def _hours(seconds: float) -> str:
    hours = f"{seconds / 3600:,.0f}"
    return f"{hours} hour{'s' if hours != '1' else ''}"


def warn_if_slow(problem: Problem, bandwidth: float, what: str, latency: float = 0.0) -> None:
    """Tell the caller of the package of a slow link, or of its latency."""
    told = told_if_slow(problem, bandwidth, what) or told_if_late(problem, latency, f"the latency of {what}")
    if told is not None:
        tell(told)
