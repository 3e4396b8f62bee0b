"""Result, the return value of a planner: the plan, its simulated figures, and what is proven about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Device, Graph, Schedule, Timeline
from memsched.arena.placement import Placement
from memsched.arena.residency import buffers_of, placement_of
from memsched.errors import InvalidInputError, ScheduleError, shown
from memsched.problems.bounds import BOUND_ON, bound_of, covered
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, check_kinds, graph_of, largest_graph, problem_from, simulate, stage_of
from memsched.support import checks
from memsched.support.documents import (
    Document,
    Saved,
    Source,
    check_keys,
    check_plain,
    read_device,
    read_document,
    read_plan,
)
from memsched.support.types import VERBS
from memsched.support.views import Columns, Drawn, Tabular

if TYPE_CHECKING:
    from typing_extensions import Self

_FORMATS = ("memsched-result/1", "memsched-result/2")
_ROUNDING = 1e-9  # relative, between sums computed on different machines
_KEYS = (
    *("planner", "params", "problem", "device", "schedule", "timeline"),
    *("placement", "estimate", "lower_bound", "bound_on", "optimal", "runtime"),
)


def gap_above(bound: float, makespan: float) -> float:
    """The gap as a fraction of the bound; always finite, so that it can be stored and written."""
    return min((makespan - bound) / bound, sys.float_info.max) if bound > 0 else 0.0


def above(ideal: float, makespan: float) -> float:
    """How much longer a makespan is than a time of computation alone, as a fraction; below 0 with the host's help."""
    over = makespan / ideal - 1
    return over if abs(over) > 1e-9 else 0.0  # sums in another order


def as_fast(makespan: float, best: float) -> bool:
    """Whether a makespan is no longer than the best, but for the rounding of sums in another order."""
    return makespan <= best * (1 + 1e-9)


def _own(value: Any) -> Any:
    """A value of params, so that no two results share a list; plain Python for numpy's numbers."""
    if type(value) in (str, int, float, bool, type(None)):
        return value
    return value.item() if isinstance(value, np.generic) else deepcopy(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Saved, Tabular, Drawn):
    """A plan and its figures.

    `print` gives a summary; `plot` draws it as `memsched.plot` does; `to_pandas` and `to_polars` give a row for each
    step of the schedule in each round: kind, name (of the op or tensor), stage (its name, in a chain), start and end
    (seconds), round (from 1; of a family, whose plan may be in several).

    Attributes
    ----------
    planner : str
    params : dict
        The options of the planner, and what it reports about its run.
    problem : Chain, Graph or GraphFamily
    device : Device
    schedule : Schedule
    timeline : Timeline
        From the simulator, never from the planner.
    placement : Placement or None
        The address of every buffer of the schedule, if the plan has addresses.
    estimate : float or None
        Seconds; the value that the planner claims, in the model of its paper.
    lower_bound : float
        Seconds. No schedule covered by `bound_on` is faster on this device (for a family, among those with the same
        rounds); `bounded` says it in words.
    bound_on : str
        "once": the bound covers schedules that run each op once, in graph order; "all": any schedule, as for planners
        that may recompute (for a chain, among those that cut its tensors in the same way).
    runtime : float
        Seconds of planning, as claimed by the planner.
    """

    __hash__ = None  # type: ignore[assignment]  # neither problem nor schedule has one

    planner: str
    problem: Problem
    device: Device
    schedule: Schedule
    timeline: Timeline
    lower_bound: float
    runtime: float
    params: dict[str, Any] = field(default_factory=dict)
    placement: Placement | None = None
    estimate: float | None = None
    bound_on: str = "once"

    def __post_init__(self) -> None:
        check_kinds(self.problem, self.schedule, self.device)
        if not isinstance(self.timeline, Timeline) or not isinstance(self.placement, Placement | None):
            kinds = f"timeline is a {type(self.timeline).__name__} and placement a {type(self.placement).__name__}"
            raise InvalidInputError(f"{kinds}; give a Timeline, and a Placement or None")
        if not isinstance(self.params, dict):
            raise InvalidInputError(f"params is {shown(self.params)}; it must be a dict of options")
        try:
            object.__setattr__(self, "params", {key: _own(one) for key, one in self.params.items()})
        except (TypeError, RecursionError) as error:
            raise InvalidInputError(f"params of the result cannot be copied: {error}") from error
        checks.text("planner", self.planner)
        for name in ("lower_bound", "runtime", *(["estimate"] if self.estimate is not None else [])):
            object.__setattr__(self, name, checks.non_negative(name, getattr(self, name), "seconds"))
        if self.bound_on not in BOUND_ON:
            raise InvalidInputError(f"bound_on is {shown(self.bound_on)}; it must be {' or '.join(BOUND_ON)}")
        if isinstance(self.problem, GraphFamily):
            for batch, _ in self.schedule.rounds:
                self.problem.at(batch)  # raises if the family does not have this batch
        if self.lower_bound > self.makespan * (1 + 1e-9):
            raise InvalidInputError(
                f"lower_bound is {self.lower_bound}, above the makespan {self.makespan}; simulate the schedule again"
            )
        if len(self.timeline.start) != len(self.schedule):
            raise InvalidInputError(
                f"timeline has {len(self.timeline.start)} steps, the schedule {len(self.schedule)}; simulate it again"
            )

    @property
    def makespan(self) -> float:
        """Seconds, simulated."""
        return self.timeline.makespan

    @property
    def peak_memory(self) -> int:
        """Bytes, simulated, resident included."""
        return self.timeline.peak_memory

    @property
    def graph(self) -> Graph:
        """The graph that the steps refer to; for a family, that of the first round."""
        if isinstance(self.problem, GraphFamily):
            return self.problem.at(self.schedule.rounds[0][0])
        return graph_of(self.problem, self.schedule.chunk)

    @property
    def optimal(self) -> bool:
        """Whether no schedule covered by `bound_on` is faster: the makespan equals the lower bound."""
        return self.makespan <= self.lower_bound * (1 + 1e-12)

    @property
    def bounded(self) -> str:
        """The plans that lower_bound covers, in words."""
        return covered(self.problem, self.schedule.chunk, self.bound_on)

    @property
    def gap(self) -> float:
        """(makespan - lower_bound) / lower_bound; 0 if the bound is 0; capped at the largest double."""
        return gap_above(self.lower_bound, self.makespan)

    @property
    def offloaded(self) -> tuple[str, ...]:
        """Names of the offloaded tensors, in the order of their first offload."""
        return self.schedule.offloaded

    @property
    def recomputed(self) -> tuple[str, ...]:
        """Names of the ops that run more than once, in the order of their first repeat."""
        return self.schedule.recomputed

    def to_json(self) -> Document:
        """The form `memsched-result/2`, problem and device included, as a dict; refuses params that are no JSON."""
        check_plain("params of the result", self.params)
        document: Document = {"format": _FORMATS[-1]}
        for key in _KEYS:
            value = getattr(self, key)
            document[key] = value.to_json() if hasattr(value, "to_json") else value
        document["params"] = deepcopy(self.params)
        if isinstance(self.problem, GraphFamily):  # the graphs that the schedule uses
            document["problem"] = self.problem.to_json(batch for batch, _ in self.schedule.rounds)
        return document

    @classmethod
    def from_json(cls, source: Source) -> Self:
        """Read `memsched-result/2`, or /1, from a dict, a JSON text or the path of a file.

        What can be derived is not trusted: the schedule is simulated again and the bound derived again. A smaller
        bound, as of an older version, gives way to that one. The planner, its options, its estimate and its runtime are
        claims.

        Raises
        ------
        InvalidInputError
            The document has another form.
        ScheduleError
            The schedule cannot run, its timeline or placement differ, or its bound or proof claim more; the message
            names the field.
        """
        document = read_document(source, *_FORMATS)
        old = document["format"] == _FORMATS[0]
        check_keys(document, "the result", tuple(key for key in _KEYS if not (old and key == "bound_on")))
        objects = ("params", "problem", "device", "schedule", "timeline")
        for key in (*objects, *(("placement",) if document["placement"] is not None else ())):
            if not isinstance(document[key], dict):
                raise InvalidInputError(f"{key} of the result is {shown(document[key])}; it must be an object")
        if not old and document["bound_on"] not in BOUND_ON:
            raise InvalidInputError(f"bound_on is {shown(document['bound_on'])}; it must be all or once")
        checks.text("planner of the result", document["planner"])
        check_plain("params of the result", document["params"])
        for key in ("lower_bound", "runtime", "estimate"):
            if not (key == "estimate" and document[key] is None):
                checks.non_negative(f"{key} of the result", document[key], "seconds")
        read: Document = {key: document[key] for key in _KEYS if key in document and key != "optimal"}
        read["problem"] = problem_from(document["problem"])
        read["device"] = read_device(document["device"])
        read["schedule"] = read_plan(document["schedule"])
        read["timeline"] = _timeline(document["timeline"], read)
        if document["placement"] is not None:
            read["placement"] = _placement(document["placement"], read)
        found = cls(**_bounded(read, old))
        said = document["optimal"]
        if not isinstance(said, bool):
            raise InvalidInputError(f"optimal of the result is {shown(said)}; it must be true or false")
        if said and not found.optimal and not old:
            raise ScheduleError("optimal of the result is true; its makespan and lower_bound say otherwise")
        return found

    def _columns(self) -> Columns:
        phases = {op["name"]: {"fwd": "forward"}.get(op["phase"], "backward") for op in self.graph.ops}
        kinds, names = [], []
        for step in self.schedule.steps:
            verb = next(verb for verb in VERBS if verb in step)
            names.append(step[verb])
            kinds.append(verb if verb != "run" else phases[step[verb]])
            if verb == "run":
                phases[step[verb]] = "recompute"
        stages = [stage_of(self.problem, name) for name in names]
        rounds = list(self._rounds())
        return {
            "kind": (str, kinds * len(rounds)),
            "name": (str, names * len(rounds)),
            "stage": (str, stages * len(rounds)),
            "start": (float, [begin + time for begin, one in rounds for time in one.start.tolist()]),
            "end": (float, [begin + time for begin, one in rounds for time in one.end.tolist()]),
            "round": (int, [number for number in range(1, len(rounds) + 1) for _ in names]),
        }

    def _rounds(self) -> Iterator[tuple[float, Timeline]]:
        """When each round begins, and its timeline."""
        if not isinstance(self.problem, GraphFamily):
            yield 0.0, self.timeline
            return
        begin = 0.0
        for batch, times in self.schedule.rounds:
            alone = self.schedule.with_rounds([(batch, 1)])
            timeline = _core.simulate_graph(self.problem.at(batch), alone, self.device)
            for number in range(times):
                yield begin + number * timeline.makespan, timeline
            begin += times * timeline.makespan

    def __repr__(self) -> str:
        return (
            f"Result(planner={self.planner!r}, makespan={self.makespan:.6g}, peak_memory={self.peak_memory}, "
            f"gap={self.gap:.2%}, offloaded={len(self.offloaded)}, recomputed={len(self.recomputed)})"
        )


class HasResult(Protocol):
    """What has a result, as the plans of `memsched.torch` have."""

    @property
    def result(self) -> Result: ...


Planned: TypeAlias = Result | HasResult


def results_in(value: Any) -> Any:
    """The result in place of what has one, also within a list; anything else stays, to be refused by who takes it."""
    return [_result_in(one) for one in value] if isinstance(value, list | tuple) else _result_in(value)


def _result_in(value: Any) -> Any:
    for name in () if isinstance(value, type) else ("shown", "result"):  # a plan of a model is shown with its modules
        if isinstance(found := getattr(value, name, None), Result):
            return found
    return value


def _bounded(read: Document, old: bool) -> Document:
    """The fields of a result with the bound that is derived again; refuses a larger one.

    A smaller one, as of an older version, gives way. Version 1 of the form did not say which schedules its bound
    covers: those for which it can be derived.
    """
    said, known, makespan = read["lower_bound"], {}, read["timeline"].makespan
    if said > makespan * (1 + _ROUNDING):
        raise ScheduleError(f"lower_bound of the result is {said}, above the makespan {makespan}")
    classes = sorted(BOUND_ON, reverse=not read["schedule"].recomputed) if old else [read["bound_on"]]
    for on in classes:
        known[on] = bound_of(read["problem"], read["schedule"], read["device"], on)
        if said <= known[on] * (1 + _ROUNDING):
            if said < known[on] * (1 - _ROUNDING) and known[on] <= makespan * (1 + _ROUNDING):
                said = makespan
            return {**read, "bound_on": on, "lower_bound": min(said, known[on])}
    on = max(known, key=lambda one: known[one])
    if old:
        return {**read, "bound_on": on, "lower_bound": known[on]}
    raise ScheduleError(f"lower_bound of the result is {said}, but only {known[on]} can be derived; plan again")


def _timeline(document: Document, read: Document) -> Timeline:
    """The simulated schedule; refuses a document with another timeline."""
    stated = Timeline.from_json(document).to_json()
    found = simulate(read["problem"], read["schedule"], read["device"])
    said, value = ({**one, **one["memory"]} for one in (stated, found.to_json()))
    for name in value:
        if name != "memory":
            _check_same(name, np.atleast_1d(said[name]), np.atleast_1d(value[name]), _ROUNDING * found.makespan)
    return found


def _check_same(name: str, said: npt.NDArray[Any], value: npt.NDArray[Any], slack: float) -> None:
    """Refuse different bytes, or times that differ by more than rounding."""
    if len(said) != len(value):
        raise ScheduleError(f"{name} of the timeline has {len(said)} entries, the schedule {len(value)}; plan again")
    exact = "bytes" in name or name == "peak_memory"
    same = said == value if exact else np.isclose(said, value, rtol=0.0, atol=slack)
    if not same.all():
        k = int(np.argmin(same))
        where = f"{name}[{k}]" if len(said) > 1 else name
        unit = " bytes" if exact else " s"
        raise ScheduleError(
            f"{where} of the timeline is {said[k]}{unit}, the schedule gives {value[k]}{unit}; plan again"
        )


def _placement(document: Document, read: Document) -> Placement:
    """The placement of the schedule's buffers; refuses one of other buffers."""
    try:
        placement = Placement.from_json(document)
    except (InvalidInputError, ScheduleError) as error:
        raise type(error)(f"placement of the result: {error}") from error
    schedule, problem = read["schedule"], read["problem"]
    graph = largest_graph(problem, schedule)
    buffers, held = (
        [(one.name, one.start, one.end, one.size) for one in listed]
        for listed in (placement.buffers, buffers_of(schedule, graph))
    )
    if buffers != held:
        different = (k for k, (one, other) in enumerate(zip(buffers, held, strict=False)) if one != other)
        k = next(different, min(len(buffers), len(held)))
        raise ScheduleError(f"buffers[{k}] of the placement is not a buffer of the schedule; place the result again")
    own = placement_of(schedule, graph)
    for k, (said, offset) in enumerate(zip(placement.offsets, own.offsets, strict=True) if own is not None else ()):
        if said != offset:
            raise ScheduleError(f"offsets[{k}] of the placement is {said}, in the schedule it is {offset}")
    return placement
