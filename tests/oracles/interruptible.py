# ruff: noqa: N806 -- the paper's symbols, so that formulas can be compared letter by letter
"""The interruptible model: cost of an offload set, and the best of all sets by trying each.

Beaumont, Eyraud-Dubois, Shilova (Euro-Par 2020), section 5, with the printed errors of equations (1), (6),
(9) and (10) corrected.  Symbols are the paper's: F_i reads x_i and writes x_{i+1}; B_i reads x_i, x_{i+1},
y_{i+1} and writes y_i.  Values hold in the class of schedules in which no prefetch starts before the last
offload ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any


def fluid_makespan(
    uF: Sequence[float],
    uB: Sequence[float],
    x: Sequence[float],
    y: Sequence[float],
    exF: Sequence[float],
    exB: Sequence[float],
    M: float,
    beta: float,
    offloaded: Collection[int],
) -> float | None:
    """Least makespan when exactly the x_i with i in `offloaded` travel; None when memory does not suffice."""
    last = len(uF) - 1
    kept, dF, dB, idle = x[0], 0.0, 0.0, 0.0
    for i in range(last + 1):
        need_F = exF[i] + x[i + 1]
        need_B = y[i] + exB[i] + x[i + 1] + y[i + 1]
        if kept + need_F > M or kept + need_B > M:
            return None
        eF = max(0.0, (kept + max(dF, 0.0) + need_F - M) / beta)
        eB = max(0.0, (kept + max(dB, 0.0) + need_B - M) / beta)
        idle += eF + eB
        sF, sB = (eF + uF[i]) * beta, (eB + uB[i]) * beta
        if i in offloaded:
            dF = max(dF, 0.0) + x[i] - sF
            dB = x[i] + max(0.0, dB - sB)
            kept = kept + x[i + 1] - x[i]
        else:
            dF, dB, kept = dF - sF, dB - sB, kept + x[i + 1]
    MF = kept + max(dF, 0.0)
    MB = kept + y[last + 1] + max(dB, 0.0)
    if dF <= 0 and dB <= 0:
        gap = 0.0
    elif dF > 0 and dB > 0:
        gap = (dF + dB) / beta
    elif dF > 0:
        R = [exB[j] + y[j] + y[j + 1] - sum(x[j + 2 :]) for j in range(last + 1)]
        gap = _gap(dF, -dB / beta, uB, R, MF - M, beta)
    else:
        R = [exF[j] - y[last + 1] - sum(x[j + 2 :]) for j in range(last + 1)]
        gap = _gap(dB, -dF / beta, uF, R, MB - M, beta)
    return sum(uF) + sum(uB) + idle + gap


def _gap(queued: float, free_time: float, u: Sequence[float], R: Sequence[float], over: float, beta: float) -> float:
    """Equations (9) and (10): idle time between the phases when only one of them has transfers left."""
    gap = max(0.0, queued / beta - free_time)
    for j in range(len(u)):
        U = sum(u[j + 1 :])
        if free_time > U:
            gap = max(gap, (R[j] + over) / beta - U)
    return gap


def best_fluid(
    uF: Sequence[float],
    uB: Sequence[float],
    x: Sequence[float],
    y: Sequence[float],
    exF: Sequence[float],
    exB: Sequence[float],
    M: float,
    beta: float,
) -> tuple[float, frozenset[int]] | None:
    """Least makespan over all offload sets and a set that reaches it (fewest, lowest); None if infeasible."""
    best: tuple[float, frozenset[int]] | None = None
    for count in range(len(uF) + 1):
        for offloaded in combinations(range(len(uF)), count):
            value = fluid_makespan(uF, uB, x, y, exF, exB, M, beta, offloaded)
            if value is not None and (best is None or value < best[0]):
                best = (value, frozenset(offloaded))
    return best


def least_memory(x: Sequence[float], y: Sequence[float], exF: Sequence[float], exB: Sequence[float]) -> float:
    """The smallest M at which some set is feasible: the largest need of one op with nothing else kept."""
    return max(x[i] + x[i + 1] + max(exF[i], y[i] + exB[i] + y[i + 1]) for i in range(len(exF)))


def peak_memory(x: Sequence[float], y: Sequence[float], exF: Sequence[float], exB: Sequence[float]) -> float:
    """M_peak of section 3.2: what the step needs when nothing is offloaded."""
    return max(sum(x[: i + 2]) + max(exF[i], y[i] + exB[i] + y[i + 1]) for i in range(len(exF)))


def paper_instance(chain: Any, M: float) -> dict[str, Any]:
    """The paper's lists of a memsched.Chain: keyword arguments of `best_fluid`, save beta."""
    return {
        "uF": [float(v) for v in chain.forward_time],
        "uB": [float(v) for v in chain.backward_time],
        "x": [int(chain.activation[0])] + [int(v) for v in chain.saved],
        "y": [int(v) for v in chain.gradient],
        "exF": [int(v) for v in chain.forward_overhead],
        "exB": [int(v) for v in chain.backward_overhead],
        "M": M - int(chain.resident),
    }
