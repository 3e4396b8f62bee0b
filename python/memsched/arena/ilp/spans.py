"""When an op may run (OLLA, equations 10 to 12), and the bytes of an order as linear terms."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from memsched.arena.ilp.model import Model, Scale, Terms, check_time
from memsched.arena.ilp.net import INPUT, Item, Net, Reach, bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The first and last timestep of 0 .. steps - 1 at which each op may run."""

    steps: int
    first: list[int]
    last: list[int]

    @classmethod
    def exact(cls, reach: Reach, instant: int) -> Spans:
        """One op per timestep: as many timesteps as ops, narrowed by the ops that must come before or after.

        Ops in the mask `instant` take no timestep. They run at the end of the one that makes them ready, or at -1.
        """
        count = len(reach.before)
        timed = (1 << count) - 1 & ~instant
        steps = timed.bit_count()
        first = [(reach.before[op] & timed).bit_count() - (instant >> op & 1) for op in range(count)]
        last = [steps - 1 - (reach.after[op] & timed).bit_count() for op in range(count)]
        return cls(steps=steps, first=first, last=[f if f < 0 else n for f, n in zip(first, last, strict=True)])

    @classmethod
    def levels(cls, reach: Reach, until: float) -> Spans:
        """As many timesteps as the longest path has ops; several ops may share one. After `until`: TimeUpError."""
        count = len(reach.before)
        first, tail = [0] * count, [0] * count
        for op in sorted(range(count), key=lambda op: reach.before[op].bit_count()):
            check_time(until)
            first[op] = max((first[other] + 1 for other in bits(reach.before[op])), default=0)
        for op in sorted(range(count), key=lambda op: reach.after[op].bit_count()):
            check_time(until)
            tail[op] = max((tail[other] + 1 for other in bits(reach.after[op])), default=0)
        steps = max(first, default=-1) + 1
        return cls(steps=steps, first=first, last=[steps - 1 - tail[op] for op in range(count)])


class Sum:
    """A constant and terms."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: float = 0.0, terms: Terms | None = None) -> None:
        self.constant = constant
        self.terms: Terms = [] if terms is None else terms

    def add(self, other: Sum, factor: float = 1.0) -> Sum:
        self.constant += factor * other.constant
        self.terms.extend((variable, factor * value) for variable, value in other.terms)
        return self


class Plan:
    """The variables of an order: C_{e,t} as a running sum, and P_{e,t}.

    All tensors that an op writes are created when it runs (equation 5), so one set of variables per op serves them. The
    binary `done(v, t)` is the sum of C up to t: it never falls and ends at 1 (equation 3). P_{e,t}, alive at the start
    of timestep t, is at least done(src, t - 1) - done(sink, t - 1) for every sink, which are equations 1, 2 and 4,
    summed over time. With one relevant sink it is equal to that and needs no variable; otherwise it may be continuous.

    Without `alone` several ops may share a timestep, as in OLLA. With it each timestep has one op, apart from ops that
    allocate nothing: running one of those as soon as it is ready never costs anything, so it is done at the end of
    that timestep.
    """

    def __init__(self, model: Model, net: Net, reach: Reach, *, alone: bool) -> None:
        self.model, self.net, self.reach, self.alone = model, net, reach, alone
        self.instant = net.instant() if alone else 0
        self.spans = spans = Spans.exact(reach, self.instant) if alone else Spans.levels(reach, model.until)
        self.variables = [
            [model.variable(0, 1, integer=not self.instant >> op & 1) for _ in range(spans.first[op], spans.last[op])]
            for op in range(net.count)
        ]
        for op, own in enumerate(self.variables):
            for earlier, later in pairwise(own):
                model.row(0, 1, [(later, 1.0), (earlier, -1.0)])
            model.check_time()
            ready = 0 if self.instant >> op & 1 else 1  # timesteps from the end of an op to that of one after it
            for before in reach.last(bits(reach.before[op])):
                for t in range(spans.first[op], spans.last[before] + ready):
                    self.at_least(self.done(before, t - ready), self.done(op, t))
        if alone:
            self._one_per_timestep()

    def at_least(self, more: Sum, less: Sum) -> None:
        """more >= less."""
        total = Sum().add(more).add(less, -1.0)
        if total.terms:
            self.model.row(-total.constant, float("inf"), total.terms)

    def done(self, op: int, t: int) -> Sum:
        """Whether the op has run when timestep t ends."""
        if op == INPUT or t >= self.spans.last[op]:
            return Sum(1.0)
        if t < self.spans.first[op]:
            return Sum()
        return Sum(0.0, [(self.variables[op][t - self.spans.first[op]], 1.0)])

    def runs(self, op: int, t: int) -> Sum:
        """C_{e,t} of the op's outputs."""
        if not self.spans.first[op] <= t <= self.spans.last[op]:
            return Sum()
        return self.done(op, t).add(self.done(op, t - 1), -1.0)

    def preserved(self, item: Item) -> list[Sum]:
        """P_{e,t} of an item at every timestep."""
        steps = range(self.spans.steps)
        made = [self.done(item.source, t - 1) for t in steps]
        if item.kept:
            return made
        sinks = self.reach.last(item.readers)
        if not sinks:
            return [Sum() for _ in steps]
        between = self._between(item) if self.alone else []
        kept = []
        for t in steps:
            self.model.check_time()
            least = [Sum().add(made[t]).add(self.done(op, t - 1), -1.0) for op in sinks]
            if len(sinks) == 1:
                alive = least[0]
            elif any(not one.terms and one.constant >= 1 for one in least):
                alive = Sum(1.0)  # equation 12
            elif all(not one.terms and one.constant <= 0 for one in least):
                alive = Sum()  # equation 11
            else:
                alive = Sum(0.0, [(self.model.variable(0, 1), 1.0)])
                for one in least:
                    self.at_least(alive, one)
            if alive.terms:  # only one of these ops runs at a time, so equation 4 holds for their sum
                running = Sum()
                for op in between:
                    running.add(self.runs(op, t))
                if running.terms:
                    self.at_least(alive, running)
            kept.append(alive)
        return kept

    def _between(self, item: Item) -> list[int]:
        """The ops that run while an item is preserved in every order."""
        after = (1 << self.net.count) - 1 if item.source == INPUT else self.reach.after[item.source]
        until = 0
        for op in item.readers:
            until |= self.reach.before[op] | 1 << op
        return list(bits(after & until & ~self.instant))

    def limit(self, scale: Scale, peak: int) -> None:
        """Add equation 13 at every timestep, with a variable for the bytes on top of `always`."""
        writes = [made + scratch for made, scratch in zip(self.net.made, self.net.scratch, strict=True)]
        alive = [self.preserved(item) for item in self.net.items]
        for t in range(self.spans.steps):
            self.model.check_time()
            total = Sum(0.0, [(peak, -1.0)])
            for item, kept in zip(self.net.items, alive, strict=True):
                total.add(kept[t], scale.down(item.size))
            for op, size in enumerate(writes):
                if size:
                    total.add(self.runs(op, t), scale.down(size))
            self.model.row(-float("inf"), -total.constant, total.terms)

    def _one_per_timestep(self) -> None:
        """Exactly t + 1 ops, not counting instant ones, are done when timestep t ends."""
        for t in range(self.spans.steps):
            self.model.check_time()
            total = Sum()
            for op in bits((1 << self.net.count) - 1 & ~self.instant):
                total.add(self.done(op, t))
            if total.terms:
                self.model.row(t + 1 - total.constant, t + 1 - total.constant, total.terms)

    def order(self, values: list[float]) -> list[int]:
        """Function 1: the ops by the timestep at which they run; within a timestep in the order of the graph."""
        step = [
            self.spans.last[op] - sum(values[variable] > 0.5 for variable in own)
            for op, own in enumerate(self.variables)
        ]
        order = []
        waiting = self.instant
        for op in [None, *sorted(bits((1 << self.net.count) - 1 & ~self.instant), key=lambda op: (step[op], op))]:
            order += [] if op is None else [op]
            for other in bits(waiting):
                if not self.net.reach.before[other] & ~sum(1 << one for one in order):
                    order.append(other)
                    waiting ^= 1 << other
        return order
