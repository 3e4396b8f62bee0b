"""Result: what a planner returns. The plan, what the simulator measured of it, and what is proven about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memsched import checks
from memsched._core import Device, Graph, Schedule, Timeline
from memsched.documents import (
    Document,
    Source,
    check_keys,
    check_plain,
    read_chain,
    read_device,
    read_document,
    read_graph,
    read_plan,
)
from memsched.errors import InvalidInputError
from memsched.family import GraphFamily
from memsched.place import Placement
from memsched.problem import Problem, graph_of

_KEYS = (
    "planner",
    "params",
    "problem",
    "device",
    "schedule",
    "timeline",
    "placement",
    "estimate",
    "lower_bound",
    "optimal",
    "runtime",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A plan and its measure.

    Attributes
    ----------
    planner : str
    params : dict
        The options that the planner ran with, and what it has to say about the run.
    problem : Chain, Graph or GraphFamily
    device : Device
    schedule : Schedule
    timeline : Timeline
        From the simulator, never from the planner.
    placement : Placement or None
        Addresses, where the plan carries them: of all that its schedule holds from step to step.
    estimate : float or None
        The planner's value in its paper's own model, seconds.
    lower_bound : float
        Seconds. No schedule that runs each op once, in graph order, is faster on this device; where the planner may
        recompute, no schedule at all. Of a family, no schedule that works through the batch in the same rounds.
    optimal : bool
        Whether the plan is proven best: its makespan meets the lower bound.
    runtime : float
        Seconds that planning took.
    """

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
    optimal: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.problem, GraphFamily):
            for batch, _ in self.schedule.rounds:
                self.problem.at(batch)  # which refuses what the family does not have
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
        """The graph that the steps speak of; of a family, the one of the first round."""
        if isinstance(self.problem, GraphFamily):
            return self.problem.at(self.schedule.rounds[0][0])
        return graph_of(self.problem, self.schedule.chunk)

    @property
    def gap(self) -> float:
        """(makespan - lower_bound) / lower_bound; 0 when the bound is 0."""
        return (self.makespan - self.lower_bound) / self.lower_bound if self.lower_bound > 0 else 0.0

    @property
    def offloaded(self) -> tuple[str, ...]:
        """Names of the tensors that are offloaded, in the order of their first offload."""
        return self.schedule.offloaded

    @property
    def recomputed(self) -> tuple[str, ...]:
        """Names of the ops that run more than once, in the order of their first repeat."""
        return self.schedule.recomputed

    def to_json(self) -> Document:
        """The form `memsched-result/1`, problem and device included, as a dict."""
        document: Document = {"format": "memsched-result/1"}
        for key in _KEYS:
            value = getattr(self, key)
            document[key] = value.to_json() if hasattr(value, "to_json") else value
        if isinstance(self.problem, GraphFamily):  # the graphs that the schedule uses
            document["problem"] = self.problem.to_json(batch for batch, _ in self.schedule.rounds)
        return document

    @classmethod
    def from_json(cls, source: Source) -> Result:
        """Read `memsched-result/1` from a dict, a JSON text or the path of a file."""
        document = read_document(source, "memsched-result/1")
        check_keys(document, "the result", _KEYS)
        for key in ("problem", "device", "schedule"):
            if not isinstance(document[key], dict):
                raise InvalidInputError(f"{key} of the result is {document[key]!r}; it must be an object")
        problem = document["problem"]
        readers = {"memsched-graph/1": read_graph, "memsched-family/1": GraphFamily.from_json}
        for key, kinds in (("planner", str), ("params", dict), ("timeline", dict), ("optimal", bool)):
            if not isinstance(document[key], kinds):
                raise InvalidInputError(f"{key} of the result is {document[key]!r}, which has the wrong type")
        checks.text("planner of the result", document["planner"])
        check_plain("params of the result", document["params"])
        for key in ("lower_bound", "runtime", "estimate"):
            if not (key == "estimate" and document[key] is None):
                checks.non_negative(f"{key} of the result", document[key], "seconds")
        read: Document = {key: document[key] for key in _KEYS}
        read["problem"] = readers.get(str(problem.get("format")), read_chain)(problem)
        read["device"] = read_device(document["device"])
        read["schedule"] = read_plan(document["schedule"])
        read["timeline"] = Timeline.from_json(document["timeline"])
        if document["placement"] is not None:
            if not isinstance(document["placement"], dict):
                raise InvalidInputError(f"placement of the result is {document['placement']!r}; it must be an object")
            read["placement"] = Placement.from_json(document["placement"])
        return cls(**read)

    def __repr__(self) -> str:
        return (
            f"Result(planner={self.planner!r}, makespan={self.makespan:.6g}, peak_memory={self.peak_memory}, "
            f"gap={self.gap:.2%}, offloaded={len(self.offloaded)}, recomputed={len(self.recomputed)})"
        )
