"""Split a batch into rounds as moDNN does (Chen et al., 2018, eq. 3)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from memsched import _core
from memsched._core import Graph
from memsched.errors import LimitError
from memsched.planners.call import by_bisection
from memsched.problems.family import GraphFamily, count_rounds
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


_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


@contextmanager
def tried_until(until: float) -> Iterator[None]:
    """Within this, no batch is tried when time.perf_counter() has reached `until`: LimitError. A graph takes time."""
    token = _UNTIL.set(until)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def _check_time(family: GraphFamily) -> None:
    if time.perf_counter() >= _UNTIL.get():
        raise LimitError(f"time ran out before '{family.name}' had a batch that fits; raise time_limit")


def _need_at(family: GraphFamily, batch: int) -> int:
    _check_time(family)
    return _need(family.at(batch))


def fitting_batch(family: GraphFamily, memory: int) -> int:
    """The largest batch at which the inputs and every op with its fastest algorithm fit; 1 if there is none.

    Eq. (3) assumes that needs grow in proportion to the batch. For bisection it is enough that they grow.
    """
    if _need_at(family, family.batch) <= memory:
        return family.batch
    found = by_bisection(lambda batch: _need_at(family, batch) > memory, 1, family.batch)
    _check_time(family)  # else it may be a batch that was not tried
    return max(1, found - 1)


def _splits(family: GraphFamily) -> list[Rounds]:
    """Of a family that knows some batches only, the fewest balanced rounds up to each of them, where they exist."""
    known = set(family.batches or ())
    counts = sorted({-(-family.batch // most) for most in known}, reverse=True)
    found = [balanced(family.batch, count) for count in counts]
    return [rounds for rounds in found if known.issuperset(size for size, _ in rounds)]


def smallest(family: GraphFamily) -> Graph:
    """The graph at the smallest batch that the largest of some rounds may have."""
    return family.at(1 if family.batches is None else _splits(family)[0][0][0])


def rounds_of(family: GraphFamily, memory: int) -> Rounds:
    """The fewest balanced rounds that the fitting batch allows, by eq. (3).

    For a family with some batches only, as far as it has their graphs.
    """
    if family.batches is not None:
        splits = _splits(family)
        return ([rounds for rounds in splits if _need_at(family, rounds[0][0]) <= memory] or splits[:1])[-1]
    return balanced(family.batch, -(-family.batch // fitting_batch(family, memory)))


def choices(family: GraphFamily) -> int:
    """How many splits `rounds_of` may choose from, counted from the smallest batch."""
    return family.batch if family.batches is None else len(_splits(family))


def choice(family: GraphFamily, number: int) -> tuple[Rounds, int]:
    """One of these splits, and the memory from which on `rounds_of` takes it."""
    if family.batches is not None:
        rounds = _splits(family)[number]
        return rounds, 0 if number == 0 else _need(family.at(rounds[0][0]))
    rounds = balanced(family.batch, family.batch - number)
    return rounds, 0 if number == 0 else _need_at(family, rounds[0][0])


def number_of(family: GraphFamily, rounds: Rounds) -> int:
    """The number of a split."""
    if family.batches is not None:
        return _splits(family).index(rounds)
    return family.batch - count_rounds(rounds)
