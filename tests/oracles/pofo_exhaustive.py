"""The best schedule of POFO's class by trying every sequence of operations and every set of offloaded items.

Nothing of the recurrences is here: the sequences come from what each operation needs, leaves and may do, and a
sequence is timed by following the link from event to event.

Operations (Beaumont et al., NeurIPS 2021, table 1) on the items ("a", k), ("abar", k) and ("delta", k).  The input
of stage k is ("abar", k-1) if that is on the device, else ("a", k-1).

    Fall k   input                  adds abar^k
    Fck k    input                  adds a^k; the input stays
    Fn k     a^{k-1}, not abar      adds a^k; the input goes
    B k      delta^k, abar^k, input adds delta^{k-1}; delta^k, abar^k go, and the input if it is an a

During an operation everything from before it and everything it adds is in memory, and its scratch.

The class.  Forward phase: stages 1..L+1 once each, the last one by Fall.  Then the backward phase.  Persistency: an
item that Fall or Fck read, and every abar, goes only by a B, so Fn may only consume an a that no operation kept.
Stack discipline: while delta^j is the gradient, B j follows at once if abar^j is there; else a forward operation on
the highest item below j.  (Fck j and Fn j are left out there: no later operation could use their a^j.)  Items kept
for the backward phase may be offloaded, each wholly or not at all, during the forward phase and the idle time after
it, and are wholly back before they are first used in the backward phase; all prefetches are in the backward phase
and in the idle time before it.

Timing.  The phases share nothing but the offloaded set, so each is as short as it can be.

Forward: operations run in their order, each as soon as its memory is there; the link moves items first in, first
out, from the moment they are produced.  An item takes all its memory until its last reader of the phase has ended,
then what is not yet copied.  Nothing can be better: which items an operation finds is fixed by the order, so by
induction every operation starts at the earliest possible moment, every item joins the link's queue at the earliest
possible moment, the link never rests while there is something to move, and at any moment the items whose readers
have ended are those that joined first.  The phase ends when its last operation and the link have ended.

Backward: the same, read backwards in time.  An item that must be back before its first user takes all its memory
during that user and all later operations; before (later, when read backwards) it takes what has already been
moved, continuously; its transfer may begin, read backwards, when that user has begun.  So one function
serves both phases, following the backward phase's operations from the last to the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from math import inf

from oracles.pofo_dp import Instance

Item = tuple[str, int]
Op = tuple[str, int]
State = frozenset[Item]
Ops = tuple[Op, ...]

_START: State = frozenset({("a", 0)})


def best(instance: Instance) -> Fraction | None:
    """The least makespan in the class; None if infeasible."""
    least: Fraction | None = None
    for forward, backwards, middle, kept in _schedules(instance.L):
        for offloaded in _subsets(sorted(kept)):
            first = _phase_duration(instance, forward, _START, offloaded, backward=False)
            for backward in backwards if first is not None else ():
                if least is not None and first + _computing(instance, backward) >= least:
                    continue  # too long without any waiting
                second = _phase_duration(instance, backward, middle, offloaded, backward=True)
                if second is not None and (least is None or first + second < least):
                    least = first + second
    return least


def makespan(instance: Instance, ops: Sequence[str], offloaded: Collection[str]) -> Fraction | None:
    """The duration of a sequence such as ["Fall1", "Fck2", "Fn3", ..., "B1"], in the class or not.

    The backward phase is what follows the last stage's first forward operation.  `offloaded` names items such as
    "a0" and "abar2".  None if an operation does not fit in memory; raises if an operation lacks its inputs.
    """
    parsed = tuple(_parse(op) for op in ops)
    split = next(q for q, (_, k) in enumerate(parsed) if k == instance.L + 1) + 1
    items = frozenset(_parse(item) for item in offloaded)
    middle = _after(parsed[:split], _START)
    if not items <= middle:
        raise ValueError(f"{sorted(items - middle)} are not there when the forward phase ends")
    middle |= {("delta", instance.L + 1)}
    if ("delta", 0) not in _after(parsed[split:], middle):
        raise ValueError("the first stage is not propagated back")
    first = _phase_duration(instance, parsed[:split], _START, items, backward=False)
    second = _phase_duration(instance, parsed[split:], middle, items, backward=True)
    return None if first is None or second is None else first + second


def sequences(L: int) -> list[list[str]]:
    """The sequences of the class, as `makespan` takes them."""
    return [
        [f"{kind}{k}" for kind, k in (*forward, *backward)]
        for forward, backwards, _, _ in _schedules(L)
        for backward in backwards
    ]


# Sequences


def _parse(name: str) -> tuple[str, int]:
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :])


def _input(k: int, state: State) -> Item | None:
    return next((item for item in (("abar", k - 1), ("a", k - 1)) if item in state), None)


def _needs(op: Op, state: State) -> set[Item] | None:
    """What the operation reads, or None if it cannot run."""
    kind, k = op
    source = _input(k, state)
    if source is None or (kind == "Fn" and source[0] != "a"):
        return None
    needs = {source, ("delta", k), ("abar", k)} if kind == "B" else {source}
    return needs if needs <= state else None


def _apply(op: Op, state: State) -> State:
    kind, k = op
    needs = _needs(op, state)
    if needs is None:
        raise ValueError(f"{kind}{k} cannot run on {sorted(state)}")
    if kind == "Fall":
        return state | {("abar", k)}
    if kind == "Fck":
        return state | {("a", k)}
    if kind == "Fn":
        return state - needs | {("a", k)}
    return state - {item for item in needs if item != ("abar", k - 1)} | {("delta", k - 1)}


def _after(ops: Ops, state: State) -> State:
    for op in ops:
        state = _apply(op, state)
    return state


def _follow(op: Op, state: State, kept: State) -> tuple[State, State] | None:
    """The state and the kept items after an operation; None if it cannot run or breaks persistency."""
    needs = _needs(op, state)
    if needs is None or (op[0] == "Fn" and needs & kept):
        return None
    after = _apply(op, state)
    kept = kept | needs if op[0] in ("Fall", "Fck") else kept
    return after, frozenset(item for item in after if item in kept or item[0] == "abar")


@cache
def _schedules(L: int) -> list[tuple[Ops, list[Ops], State, State]]:
    """Every forward phase with its backward phases, the state between them, and what may be offloaded."""
    found = []
    for forward, state, kept in _forwards(L, 1, _START, frozenset()):
        middle = state | {("delta", L + 1)}
        found.append((forward, list(_backwards(L + 1, middle, kept)), middle, kept - {("abar", L + 1)}))
    return found


def _forwards(L: int, k: int, state: State, kept: State) -> Iterator[tuple[Ops, State, State]]:
    """The forward operations of stages k..L+1, with the state and the kept items at their end."""
    if k > L + 1:
        yield (), state, kept
        return
    for kind in ("Fall", "Fck", "Fn") if k <= L else ("Fall",):
        after = _follow((kind, k), state, kept)
        if after is not None:
            for rest, *end in _forwards(L, k + 1, *after):
                yield ((kind, k), *rest), *end


def _backwards(j: int, state: State, kept: State) -> Iterator[Ops]:
    """The ways from a state with delta^j to delta^0."""
    if j == 0:
        yield ()
        return
    if ("abar", j) in state:
        candidates: list[Op] = [("B", j)]
    else:
        top = max((k for name, k in state if name != "delta" and k < j), default=None)
        if top is None:
            return
        candidates = [(kind, top + 1) for kind in (("Fall",) if top + 1 == j else ("Fall", "Fck", "Fn"))]
    for op in candidates:
        after = _follow(op, state, kept)
        if after is not None:
            for rest in _backwards(j - (op[0] == "B"), *after):
                yield (op, *rest)


def _subsets(items: Sequence[Item]) -> list[frozenset[Item]]:
    return [frozenset(chosen) for count in range(len(items) + 1) for chosen in combinations(items, count)]


# Timing


@dataclass(frozen=True)
class _Step:
    """An operation as the link sees it, in the direction in which the phase is followed.

    During it, the items in `whole` take all their memory, those in `partly` what the link has not moved.  When it
    has ended, those in `joins` enter the link's queue.
    """

    op: Op
    whole: tuple[Item, ...]
    partly: tuple[Item, ...]
    joins: tuple[Item, ...]


@cache
def _steps(ops: Ops, state: State, offloaded: frozenset[Item], backward: bool) -> tuple[_Step, ...]:
    reads, made, steps = [], [], []
    present: list[State] = []
    for op in ops:
        needs, after = _needs(op, state), _apply(op, state)
        assert needs is not None
        reads.append(needs)
        made.append(after - state)
        present.append(state | after)
        state = after

    def among(item: Item, readers: list[set[Item]]) -> bool:
        return any(item in needs for needs in readers)

    for q, op in enumerate(ops):
        travelling = sorted(offloaded & present[q])
        if backward:  # before its first use, only what has come back takes memory
            partly = [item for item in travelling if not among(item, reads[: q + 1])]
            joins = [item for item in travelling if item in reads[q] and not among(item, reads[:q])]
        else:  # after its last use, only what has not left takes memory
            partly = [item for item in travelling if not among(item, reads[q:])]
            joins = [item for item in travelling if item in made[q]]
        steps.append(_Step(op, tuple(present[q] - set(partly)), tuple(partly), tuple(joins)))
    return tuple(reversed(steps)) if backward else tuple(steps)


def _phase_duration(
    instance: Instance, ops: Ops, state: State, offloaded: frozenset[Item], *, backward: bool
) -> Fraction | None:
    """Follow operations and link from event to event; None if an operation never fits or the link never ends."""
    link = _Link(instance, () if backward else offloaded & _START)
    for step in _steps(ops, state, offloaded, backward):
        whole = _scratch(instance, step.op) + sum(_size(instance, item) for item in step.whole)
        # wait until enough of the queue's first item has gone, or all of it
        while (lacking := whole + sum(link.remaining[item] for item in step.partly) - instance.M) > 0:
            if link.stuck():
                return None
            link.move(min(lacking, link.first()) if link.queue[0] in step.partly else link.first())
        link.run(_time(instance, step.op))
        link.join(step.joins)
    while link.queue:
        if link.stuck():
            return None
        link.move(link.first())
    return link.now


def _size(instance: Instance, item: Item) -> Fraction:
    name, k = item
    if name == "delta":
        return instance.delta[k] if k <= instance.L else Fraction(0)
    return instance.a[k] if name == "a" else instance.abar[k - 1]


def _scratch(instance: Instance, op: Op) -> Fraction:
    return {"Fall": instance.oF, "Fck": instance.tF, "Fn": instance.tF, "B": instance.oB}[op[0]][op[1] - 1]


def _time(instance: Instance, op: Op) -> Fraction:
    return (instance.uB if op[0] == "B" else instance.uF)[op[1] - 1]


def _computing(instance: Instance, ops: Ops) -> Fraction:
    return sum((_time(instance, op) for op in ops), Fraction(0))


class _Link:
    """A queue of items and the clock."""

    def __init__(self, instance: Instance, queue: Iterable[Item]) -> None:
        self.instance = instance
        self.beta = instance.beta
        self.now = Fraction(0)
        self.queue: list[Item] = []
        self.remaining: dict[Item, Fraction] = {}
        self.join(queue)

    def join(self, items: Iterable[Item]) -> None:
        for item in sorted(items):
            self.remaining[item] = _size(self.instance, item)
            self.queue.append(item)
        self._drop_moved()

    def first(self) -> Fraction:
        return self.remaining[self.queue[0]]

    def stuck(self) -> bool:
        return not self.queue or self.beta == 0

    def move(self, size: Fraction) -> None:
        """Let time pass until `size` bytes of the first item have gone."""
        self.now += size / self.beta
        self.remaining[self.queue[0]] -= size
        self._drop_moved()

    def run(self, duration: Fraction) -> None:
        """Let time pass for an operation, while the link goes on."""
        end = self.now + duration
        while self.queue and self.beta > 0 and self.now < end:
            self.move(min(self.first(), self.beta * (end - self.now)))
        self.now = end

    def _drop_moved(self) -> None:
        """Zero bytes have always been moved, and without limit, everything has."""
        while self.queue and (self.first() == 0 or self.beta == inf):
            self.remaining[self.queue.pop(0)] = Fraction(0)
