"""The budget and the device of one call: sizes, percentages of what a problem needs, and bandwidths."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

from memsched._core import Device
from memsched.errors import InvalidInputError, shown
from memsched.problems.problem import Problem, altered, least_memory, name_of, peak_memory
from memsched.support import checks, quantities
from memsched.support.types import Quantity
from memsched.support.units import (
    MEMORY_FORMS,
    format_bandwidth,
    format_bytes,
    parse_bytes,
    parse_share,
    whole_bytes,
)

_SLOW = 3600.0  # seconds that a link needs for all of a problem: slower ones are hardly meant
_REAL = 2**20  # bytes of problems that are measured, not made up: of others nothing is said


def parse_memory(value: str | float, problem: Problem, what: str = "the memory") -> int:
    """A memory budget M in bytes, resident included, from a size as in `parse_bytes` or a percentage.

    "40%" is min_memory + 0.4 (peak_memory - min_memory) of the problem, rounded down to whole bytes. 0% is the least
    memory of any plan without recomputation; at 100% the plain run fits; more is allowed. Errors call the value `what`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> ms.min_memory(chain), ms.peak_memory(chain)
    (16, 20)
    >>> parse_memory("0%", chain), parse_memory("50%", chain), parse_memory("100 B", chain)
    (16, 18, 100)
    """
    share = _plain(value) if isinstance(value, str) else checks.as_float(value)
    if 0 < share < 1:
        raise InvalidInputError(f'{what} is {shown(value)}, less than a byte; did you mean "{100 * share:g}%"?')
    if not isinstance(value, str) or not value.rstrip().endswith("%"):
        return parse_bytes(value, what, MEMORY_FORMS)
    least, most = least_memory(problem), peak_memory(problem)
    return whole_bytes(least + parse_share(value, what) * (most - least), what, value, MEMORY_FORMS)


def _plain(text: str) -> float:
    """A text that is a number alone; else nan."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def memory_percent(memory: int, problem: Problem) -> float | None:
    """The inverse of a percentage in `parse_memory`; None if min_memory equals peak_memory.

    Examples
    --------
    >>> import memsched as ms
    >>> memory_percent(18, ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]))
    50.0
    """
    least, most = least_memory(problem), peak_memory(problem)
    return None if most == least else 100 * (memory - least) / (most - least)


def make_device(
    problem: Problem, memory: Quantity | None = None, bandwidth: Quantity | None = None, device: Device | None = None
) -> Device:
    """The device of one call: from M and beta (here memory and bandwidth), or one of which they override the two.

    M is as in `parse_memory`; beta is in both directions, 0 means no link, inf a free one. Without a device, M must be
    given. A link that takes hours for the problem is told by a warning, as its unit is missing.
    """
    changes: dict[str, Any] = {}
    if memory is not None:
        text = isinstance(memory, str) or 0 < checks.as_float(memory) < 1
        changes["memory"] = checks.size("M", parse_memory(memory, problem, "M") if text else memory, 1)
    if bandwidth is not None:
        changes["d2h"] = changes["h2d"] = quantities.bandwidth("beta", bandwidth)
        _warn_if_slow(problem, changes["d2h"])
    if device is not None:
        checks.kind("device", device, Device)
        return altered(device, **changes) if changes else device
    if memory is None:
        raise InvalidInputError("M is missing; give M (6GiB, 40% or bytes) or device=")
    return Device(changes["memory"], bandwidth=changes.get("d2h", 0.0))


def told_if_slow(problem: Problem, bandwidth: float, what: str) -> str | None:
    """What to say of a link, called `what`, that takes hours for what is a matter of seconds; None of any other."""
    moved = peak_memory(problem)
    if not 0 < bandwidth < math.inf or moved < max(_REAL, _SLOW * bandwidth):
        return None
    return (
        f"{what} is {format_bandwidth(bandwidth)}, which takes {moved / bandwidth / 3600:,.0f} hours for the "
        f"{format_bytes(moved)} of {name_of(problem)}; write the unit, such as 12GB/s"
    )


def _warn_if_slow(problem: Problem, bandwidth: float) -> None:
    """Tell the caller of the package."""
    told = told_if_slow(problem, bandwidth, "beta")
    if told is None:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("memsched."):
        level, frame = level + 1, frame.f_back
    warnings.warn(told, stacklevel=level)
