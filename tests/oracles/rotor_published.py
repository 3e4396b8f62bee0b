"""Rotor's published recurrence, as it is published: 0-based stages 0..n-1, of which the last one is the loss.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova (2019) and the solver that its authors distribute.  x[k] is the size
of activation k and of its gradient, xb[k] what running stage k-1 with everything saved leaves behind, its output
included.  m is the memory that is free beside the input of the sub-chain i..l.

It counts a different memory from POFO's backward part when a forward operation has scratch: a sub-chain's first
Fall is checked against the gradient of stage i instead of stage l, so that its plans can exceed their budget.
Without scratch and with sizes of at least 1 the two agree in every cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf

Opt = Callable[[int, int, int], float]


def published(
    *,
    fw: Sequence[int],
    bw: Sequence[int],
    x: Sequence[int],
    xb: Sequence[int],
    ftmp: Sequence[int],
    btmp: Sequence[int],
) -> Opt:
    """opt(m, i, l), 0 <= i <= l < n, infinite if infeasible; fw, bw, ftmp, btmp have n entries, x and xb n + 1.

    xb[0] is not used.  The whole chain's least time in `slots` is opt(slots - x[0], 0, n - 1).
    """
    if {len(fw), len(bw), len(ftmp), len(btmp)} != {len(x) - 1} or len(x) != len(xb):
        raise ValueError("fw, bw, ftmp, btmp need n entries, x and xb n + 1")

    @cache
    def opt(m: int, i: int, l: int) -> float:  # noqa: E741
        if i == l:
            need_forward = x[i + 1] + xb[i + 1] + ftmp[i]
            need_backward = x[i] + x[i + 1] + xb[i + 1] + btmp[i]
            return fw[i] + bw[i] if m >= max(need_forward, need_backward) else inf
        without_saving = max([x[i + 1] + ftmp[i], *(x[k] + x[k + 1] + ftmp[k] for k in range(i + 1, l))])
        if m < x[l + 1] + without_saving:
            return inf
        checkpoint = [sum(fw[i:j]) + opt(m - x[j], j, l) + opt(m, i, j - 1) for j in range(i + 1, l + 1) if m >= x[j]]
        save_all = [opt(m, i, i) + opt(m - xb[i + 1], i + 1, l)] if m >= xb[i + 1] else []
        return min([*checkpoint, *save_all], default=inf)

    return opt


def table(opt: Opt, stages: int, slots: int) -> dict[tuple[int, int, int], float]:
    """Every cell (m, i, l) of `opt` with 0 <= m <= slots."""
    return {
        (m, i, l): opt(m, i, l)
        for m in range(slots + 1)
        for i in range(stages)
        for l in range(i, stages)  # noqa: E741
    }
