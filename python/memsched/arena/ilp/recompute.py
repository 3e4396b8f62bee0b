"""Checkmate's integer program (Jain et al., 2020): which ops run again, and with it what is kept, in the least time.

R(t, k) of the paper says that op k runs in turn t (its stage t). Its S and FREE say what is held: a tensor is, from the
last run that writes it to the last run that reads it before it is written again. So one number per tensor and position
suffices, `held`, which is 0 or 1 where R is: what runs decides it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from memsched.arena.ilp.model import Model, Outcome, Terms, TimeUpError, left, load
from memsched.arena.ilp.turns import INPUT, Runs, Turns, Way

MOST_VARIABLES = 20_000  # of what is worth a try: half a second to write, and HiGHS takes about a minute
_SECONDS = 1e4  # the plain run as HiGHS sees it
_GAP = 1e-4  # of that: bounds that are closer are the same
_WHOLE = 1e-4  # that HiGHS's bound on a whole number may be above it
_LEVELS = 2**14  # that bytes are rounded down to: beside a factor of 10^9 times another one HiGHS has cut off what fits
_SLOW_RULES = 1 << 13 | 1 << 15 | 1 << 16  # parallel rows and columns, probing, enumeration: seconds without the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeSolution:
    """Runs that fit, and what is proven of all choices of runs in turns."""

    runs: Runs | None  # None: none were found
    bound: float  # on the seconds (of `least_recompute_ilp`: bytes) of all choices of runs that fit; inf: none fits
    variables: int = 0  # of the program; 0 where none was written
    time_up: bool = False  # before HiGHS was sure


def recompute_ilp(turns: Turns, memory: int, *, until: float = math.inf) -> RecomputeSolution:
    """The runs that take the least time in so many bytes, resident included.

    `until` is a time of the monotonic clock. MemschedError: highspy is not installed.
    """
    load()
    ideal = turns.seconds(min)
    if max(turns.start, turns.need) > memory:
        return RecomputeSolution(runs=None, bound=math.inf)
    unit = (ideal or turns.seconds(max) or 1.0) / _SECONDS or sys.float_info.min
    model = Model(until)
    try:
        program = _Program(model, turns, lambda way: way.seconds / unit)
        runs, outcome = _fitting(program, memory, until)
    except TimeUpError:
        return RecomputeSolution(runs=None, bound=ideal, variables=len(model.lower), time_up=True)
    bound = math.inf if outcome.infeasible else max(ideal, (outcome.bound - _GAP) * unit)
    return RecomputeSolution(runs=runs, bound=bound, variables=len(model.lower), time_up=outcome.time_up)


def least_recompute_ilp(turns: Turns, most: int, *, until: float = math.inf) -> RecomputeSolution:
    """The runs that hold the least, if that is less than `most` bytes, resident included. Times do not matter."""
    load()
    least = max(turns.start, turns.need)
    if least >= most:
        return RecomputeSolution(runs=None, bound=most)
    need, high = turns.need - turns.always, most - turns.always - 1
    scratch = [way.scratch for ways in turns.ways for way in ways]
    level = _level([*(item.size for item in turns.items), *scratch], high)
    model = Model(until)
    try:
        top = model.variable(need // level, high // level, cost=1.0, integer=True)
        program = _Program(model, turns, lambda way: 0.0)
        program.limit_by(top, need, level)
        outcome = model.solve(time_limit=_share(until), gap=0.9, rules_off=_SLOW_RULES)
    except TimeUpError:
        return RecomputeSolution(runs=None, bound=least, variables=len(model.lower))
    bound = most if outcome.infeasible else least
    if math.isfinite(outcome.bound):
        bound = max(least, min(most, math.ceil(outcome.bound - _WHOLE) * level + turns.always))
    return RecomputeSolution(runs=program.runs(outcome), bound=bound, variables=len(model.lower))


def less_recompute_ilp(turns: Turns, most: int, *, until: float = math.inf) -> RecomputeSolution:
    """Runs that hold less than `most` bytes, resident included, or the proof that none do: to the byte."""
    model = Model(until)
    try:
        runs, outcome = _fitting(_Program(model, turns, lambda way: 0.0), most - 1, until)
    except TimeUpError:
        return RecomputeSolution(runs=None, bound=0)
    return RecomputeSolution(runs=runs, bound=most if outcome.infeasible else 0)


def _fitting(program: _Program, memory: int, until: float) -> tuple[Runs | None, Outcome]:
    """The best runs in so many bytes, resident included, to the byte, and what HiGHS says of all that fit.

    HiGHS cannot tell sums of terabytes apart by a byte. So its rows have bytes rounded down to levels: they admit all
    that fits. What does not fit, whole numbers tell, and one more row excludes what is too much together.
    """
    room = memory - program.turns.always
    program.limit(room)
    while True:
        outcome = program.model.solve(time_limit=_share(until), gap=_GAP, rules_off=_SLOW_RULES)
        runs = program.runs(outcome)
        if runs is None or program.turns.peak(runs) <= memory:
            return runs, outcome
        if not program.exclude(outcome, room):
            return None, outcome


class _Program:
    """Variables of what runs where and of what is held, and the rows between them.

    `held` has of each position the bytes beside the weights.
    """

    def __init__(self, model: Model, turns: Turns, cost: Callable[[Way], float]) -> None:
        self.model, self.turns = model, turns
        self.positions = turns.positions()
        self.held: list[list[tuple[int, int]]] = []
        self.ran: list[list[int]] = []  # variables of each position, one per way
        self.at: list[list[int]] = [[] for _ in turns.ways]  # positions of each op, by number
        for number, (turn, op) in enumerate(self.positions):
            first, ways = turn == op, turns.ways[op]
            low = 1.0 if first and len(ways) == 1 else 0.0
            ran = [model.variable(low, 1.0, cost=cost(way), integer=True) for way in ways]
            model.row(float(first), 1.0, [(variable, 1.0) for variable in ran])
            self.at[op].append(number)
            self.ran.append(ran)
            self.held.append([(variable, way.scratch) for variable, way in zip(ran, ways, strict=True) if way.scratch])
        for number in range(len(turns.items)):
            self._hold(number)

    def _hold(self, number: int) -> None:
        """What is held of an item: from the last position that touches it back to the first, what is wanted after."""
        item, model = self.turns.items[number], self.model
        size = item.size
        touching = item.readers if item.writer == INPUT else item.readers | {item.writer}
        places = sorted(place for op in touching for place in self.at[op])
        after: Terms = []  # held after the place
        for before, place in zip([-1, *places][-2::-1], reversed(places), strict=True):
            turn, op = self.positions[place]
            ways = zip(self.ran[place], self.turns.ways[op], strict=True)
            ran = [(variable, 1.0) for variable, way in ways if op != item.writer or number in way.items]
            wanted = [(variable, -factor) for variable, factor in after]
            if op == item.writer:
                self.held[place] += [(variable, size) for variable, _ in ran]
                if turn == op:  # it is not there before
                    model.row(0.0, math.inf, [*ran, *wanted])
                    return
                if not after:
                    continue
            held = model.variable(0.0, 1.0, integer=True)
            if op == item.writer:  # there still, or written
                model.row(0.0, math.inf, [(held, 1.0), *ran, *wanted])
            else:
                model.row(0.0, math.inf, [(held, 1.0), *((variable, -1.0) for variable, _ in ran)])
                model.row(0.0, math.inf, [(held, 1.0), *wanted])
            after = [(held, 1.0)]
            term = (held, size)
            for terms in self.held[before + 1 : place + 1] if size else ():
                terms.append(term)

    def limit(self, room: int) -> None:
        """What is held is at most `room` bytes, all rounded down to levels.

        Of what is 0 or 1, no factor need be above what all together are too much by.
        """
        for held in self.held:
            row: dict[int, int] = {}
            for variable, size in held:
                row[variable] = row.get(variable, 0) + size
            excess = sum(row.values()) - room
            if excess > 0:
                row = {variable: min(size, excess) for variable, size in row.items()}
                most = sum(row.values()) - excess
                level = _level(list(row.values()), max(most, excess))
                terms = [(variable, float(size // level)) for variable, size in row.items() if size >= level]
                self.model.row(-math.inf, most // level + 0.5, terms)

    def exclude(self, outcome: Outcome, room: int) -> bool:
        """Forbid what the outcome holds at once in more than `room` bytes; whether there was such."""
        assert outcome.values is not None
        rows = len(self.model.rows)
        for held in self.held:
            row: dict[int, int] = {}
            for variable, size in held:
                if outcome.values[variable] > 0.5:
                    row[variable] = row.get(variable, 0) + size
            excess = sum(row.values()) - room
            for variable in sorted(row, key=row.__getitem__) if excess > 0 else ():
                if row[variable] < excess:  # the others are too much without it
                    excess -= row.pop(variable)
            if excess > 0:
                self.model.row(-math.inf, len(row) - 1, [(variable, 1.0) for variable in row])
        return len(self.model.rows) > rows

    def limit_by(self, top: int, least: int, level: int) -> None:
        """What is held is at most a variable, in levels; that is at least so many bytes."""
        for held in self.held:
            if sum(size for _, size in held) > least:
                terms = [(variable, float(size // level)) for variable, size in held if size >= level]
                self.model.row(-math.inf, 0.5, [*terms, (top, -1.0)])

    def runs(self, outcome: Outcome) -> Runs | None:
        """What runs."""
        if outcome.values is None:
            return None
        chosen: Runs = []
        for (turn, op), ran in zip(self.positions, self.ran, strict=True):
            values = [outcome.values[variable] for variable in ran]
            if turn == op or max(values) > 0.5:
                chosen.append((op, self.turns.ways[op][values.index(max(values))]))
        return chosen


def _share(until: float) -> float:
    """Of the seconds that are left those for HiGHS, which does not look at the clock all the time."""
    return 0.9 * left(until)


def _level(sizes: list[int], most: int) -> int:
    """Bytes of a level: what all sizes are multiples of, or more where `most` bytes would be too many levels."""
    unit = max(math.gcd(*sizes), 1)
    return unit if most <= unit * _LEVELS else -(-most // _LEVELS)
