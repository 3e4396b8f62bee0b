"""Split a batch into rounds as moDNN does (Chen et al., 2018, eq. 3)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from memsched import _core
from memsched._core import Graph
from memsched.errors import LimitError
from memsched.planners.call import by_bisection, sooner
from memsched.problems.family import GraphFamily
from memsched.support.memo import once_per_object

Rounds = list[tuple[int, int]]  # (batch, times), the larger batch first


def balanced(batch: int, rounds: int) -> Rounds:
    """Split a batch into rounds whose sizes differ by at most one.

    Examples
    --------
    >>> balanced(256, 3)
    [(86, 1), (85, 2)]
    """
    small, larger = divmod(batch, rounds)
    return [(size, times) for size, times in ((small + 1, larger), (small, rounds - larger)) if times > 0]


@once_per_object
def _need(graph: Graph) -> int:
    return max(graph.resident + _core.need_of_fastest(graph), _core.modnn_min_memory(graph))


def _check_time(family: GraphFamily) -> None:
    if time.perf_counter() >= sooner(math.inf):
        raise LimitError(f"time ran out before '{family.name}' had a batch that fits; raise time_limit")


def split_counts(family: GraphFamily) -> Sequence[int]:
    """How many rounds the splits have that eq. (3) chooses from, the most first.

    A family that knows some batches only has the fewest balanced rounds up to each of them, where they exist.
    """
    if family.batches is None:
        return range(family.batch, 0, -1)
    known = set(family.batches)
    counts = sorted({-(-family.batch // most) for most in known}, reverse=True)
    return [count for count in counts if known.issuperset(size for size, _ in balanced(family.batch, count))]


def split(family: GraphFamily, number: int) -> Rounds:
    """One of the splits, by number."""
    return balanced(family.batch, split_counts(family)[number])


def need_of_split(family: GraphFamily, number: int) -> int:
    """The memory from which on eq. (3) takes a split: inputs and every op with its fastest algorithm fit."""
    if number == 0:
        return 0
    _check_time(family)
    return _need(family.at(split(family, number)[0][0]))


def split_for(family: GraphFamily, memory: int) -> int:
    """The number of the split that eq. (3) takes: of those that fit, the one with the fewest rounds.

    Eq. (3) assumes that needs grow in proportion to the batch. For bisection it is enough that they grow.
    """
    last = len(split_counts(family)) - 1
    if need_of_split(family, last) <= memory:
        return last
    found = by_bisection(lambda number: need_of_split(family, number) > memory, 0, last)
    _check_time(family)  # else it may be one that was not tried
    return found - 1


def rounds_of(family: GraphFamily, memory: int) -> Rounds:
    """The rounds that eq. (3) takes."""
    return split(family, split_for(family, memory))


def smallest(family: GraphFamily) -> Graph:
    """The graph at the smallest batch that the largest of some rounds may have."""
    return family.at(split(family, 0)[0][0])
