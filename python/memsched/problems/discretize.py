"""Round a chain to memory slots (Euro-Par 2020, section 5.3.2), in Cython's pure Python mode.

The same file runs compiled or not. Everything is in units of one slot of `capacity / slots` bytes.
"""

from __future__ import annotations

import math

import cython


@cython.cfunc
@cython.exceptval(check=True)
def _ratio(value: cython.double, width: cython.double) -> cython.double:
    """value / width, where a quotient that is whole up to rounding errors is made whole."""
    quotient: cython.double = value / width
    nearest: cython.double = math.floor(quotient + 0.5)
    return nearest if abs(quotient - nearest) <= 1e-9 * max(1.0, abs(nearest)) else quotient


def ceil_slots(values: list[float], width: float) -> list[float]:
    """Each value in slots, rounded up: for gradients and overheads.

    Examples
    --------
    >>> ceil_slots([10.0, 11.0], 5.0)
    [2.0, 3.0]
    """
    return [float(math.ceil(_ratio(value, width))) for value in values]


def ceil_partial_sums(values: list[float], width: float) -> list[float]:
    """Slots whose every prefix sum is the prefix sum of the values, rounded up: for activations (optimistic).

    Examples
    --------
    >>> ceil_partial_sums([3.0, 3.0, 3.0], 5.0)
    [1.0, 1.0, 0.0]
    """
    return _partial_sums(values, width, True)


def floor_partial_sums(values: list[float], width: float) -> list[float]:
    """Slots whose every prefix sum is that of the values, rounded down: for times, so that plans stay feasible.

    Examples
    --------
    >>> floor_partial_sums([3.0, 3.0, 3.0], 5.0)
    [0.0, 1.0, 0.0]
    """
    return _partial_sums(values, width, False)


def _partial_sums(values: list[float], width: float, up: bool) -> list[float]:
    total: cython.double = 0.0
    before: cython.double = 0.0
    slots: list[float] = []
    for value in values:
        total += value
        quotient: cython.double = _ratio(total, width)
        reached: cython.double = math.ceil(quotient) if up else math.floor(quotient)
        slots.append(float(reached - before))
        before = reached
    return slots


def bump(slots: list[float], values: list[float], width: float) -> bool:
    """Add one slot to the entry that is closest below its value; False if no entry is below its value.

    Examples
    --------
    >>> slots = [1.0, 0.0]
    >>> bump(slots, [4.0, 3.0], 5.0), slots
    (True, [1.0, 1.0])
    """
    best: cython.int = -1
    least: cython.double = math.inf
    for index in range(len(slots)):
        missing: cython.double = _ratio(values[index], width) - slots[index]
        if 0 < missing < least:
            best = index
            least = missing
    if best < 0:
        return False
    slots[best] += 1.0
    return True
