"""The plan of captured steps for a budget, and its report."""

from __future__ import annotations

import bisect
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeVar

import torch

from memsched._core import Device, Graph, Schedule
from memsched.errors import InfeasibleError, LimitError, MemschedError
from memsched.planners.call import measured
from memsched.planners.registry import PLANNERS, min_memory
from memsched.problems.budget import parse_memory, slowest, told_bytes, told_memory, warn_if_slow
from memsched.problems.problem import altered, peak_memory
from memsched.result import Result
from memsched.study.auto import plan as plan_graph
from memsched.support.documents import Document, fields, plain
from memsched.support.formats import format_bytes, unit_written
from memsched.support.units import parse_bytes
from memsched.torch.compiled import cache
from memsched.torch.compiled.as_graph import LEAVE, Cost, Visit, no_costs, prefix, step_graph
from memsched.torch.compiled.border import on_one_side
from memsched.torch.compiled.compiled_plan import CompiledPlan, compiled_plan
from memsched.torch.compiled.joint import modules_in, run_again
from memsched.torch.compiled.options import Options, device_for
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.split import in_order
from memsched.torch.compiled.times import disturbed, measured_costs, modelled_costs
from memsched.torch.link import measure_link
from memsched.torch.machines import Link, machine
from memsched.torch.roofline import describe as describe_model
from memsched.validation.plan import validate

_Plan = TypeVar("_Plan")
_MUCH = 0.98  # of what a step holds with everything kept: where it needs more, there is nothing to plan
Effort = Literal["full", "brief", "first"]
"""Of the planner: as the options say, without a search, or the first plans alone, for a moment."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The graph of a step with times."""

    graph: Graph
    facts: Document  # what a document of its plans says of it
    link: Link | None  # to the host, where one is known


def timed(
    visits: Sequence[Visit], returns: Sequence[int], held: Resident, options: Options, name: str = "step"
) -> Timed:
    """Measure or model the costs of a step."""
    costs, source, link = _costs_of(visits, options)
    facts = {
        "format": cache.FORMAT,
        "costs": [[list(cost[:2]) for cost in each] for each in costs],
        "source": source,
        "inputs": visits[0].inputs,
        "checkpointed": sum(len(run_again(visit.joint)) for visit in visits),
        "modules": dict(chain.from_iterable(modules_in(v.joint, prefix(k, len(visits))) for k, v in enumerate(visits))),
    }
    return Timed(step_graph(visits, returns, costs, resident=held.total, name=name), facts, link)


def costs_in(document: Document) -> list[list[Cost]]:
    """Of each visit's operations, as a document of plans has them."""
    return [[Cost(float(seconds), int(workspace)) for seconds, workspace in costs] for costs in document["costs"]]


def plan_and_document(
    visits: Sequence[Visit],
    returns: Sequence[int],
    held: Resident,
    options: Options,
    known: Mapping[str, Document] | None = None,
    others: Sequence[Sequence[int]] = (),
    name: str = "step",
) -> tuple[CompiledPlan, Document]:
    """Plan the step that visits make, or find the plan that was made for the like; and how the plan is kept.

    Processes that train together follow the plan of the first of them, as long as it fits each. `known` are plans that
    were made before, by `key_of_step`. `others` are orders of the backwards, besides `returns`, in which the plan must
    fit, too.
    """
    problem = _Problem(visits, [returns, *others], held, options, name)
    device, untimed = visits[0].joint.device, problem.untimed[0]
    general, key = key_of_step(untimed, options, device), key_of_step(untimed, options, device, problem.about)
    timed_anew = any(visit.joint.lapped is not None for visit in visits)
    document = None if timed_anew else (known or {}).get(general) or cache.find(key)
    plan = problem.usable(document) if document is not None else None
    if document is None or plan is None:
        plan, document = problem.solved_or_told()
        if not disturbed(str(document["source"])):
            cache.keep(key, document)
    shared = cache.agreed(general, document)
    if shared != document and (other := problem.usable(shared)) is not None:
        return other, shared
    return plan, document


def plan_for_another(
    visits: Sequence[Visit], orders: Sequence[Sequence[int]], held: Resident, options: Options, document: Document
) -> CompiledPlan | None:
    """A plan that was made for another budget, or beside other memory; None if it does not fit this one."""
    return _Problem(visits, orders, held, options).usable(document)


def key_of_step(graph: Graph, options: Options, device: torch.device, memory: int | None = None) -> str:
    """What a plan is found by; the times of the graph do not count.

    Without a budget in bytes, neither it nor resident bytes count: processes that train together differ in them.
    """
    asked = {
        "memory": memory if memory is not None else options.budget,
        "device": options.device if options.device != "here" else _device_name(device),
        **fields(options, "bandwidth", "host_memory", "planner", "time_limit"),
        "threads": torch.get_num_threads(),
        **({"at first": "swap_all"} if _swaps_at_first(options) else {}),
    }
    return cache.key_of(graph, asked, exact=memory is not None)


def plan_again(plan: CompiledPlan, document: Document, options: Options) -> tuple[CompiledPlan, Document]:
    """A plan of the same step with other options, from the same times."""
    graph, before = plan.result.problem, plan.result.device
    assert isinstance(graph, Graph)
    memory = parse_memory(options.budget, graph, "the budget")
    host = {} if options.host_memory is None else {"host_memory": parse_bytes(options.host_memory, "host_memory")}
    device = altered(before, memory=memory, **host)
    try:
        result = _solve(graph, device, options)
    except InfeasibleError as error:
        needed = error.min_memory
        if options.planner == "selective":
            budgets = [parse_memory(f"{percent}%", graph, "the budget") for percent in range(101)]
            of: dict[int, Device] = {one: altered(device, memory=one) for one in budgets}
            found = _least_enough(budgets, memory, lambda one, effort: _solve(graph, of[one], options, effort))
            needed = found.device.memory
        raise too_small(graph, memory, f"{options.planner} needs", needed, planner=options.planner) from None
    return compiled_plan(result, plan.resident, document), {**document, **described(result)}


def _solve(graph: Graph, device: Device, options: Options, effort: Effort = "full") -> Result:
    if options.planner != "selective":
        return plan_graph(graph, device=device, planner=options.planner, time_limit=options.time_limit)
    reorder = any(op["name"] == LEAVE for op in graph.ops)  # the order in which several graphs run is the caller's
    searched: dict[Effort, Any] = {"brief": {"moves": 0}, "first": {"time_limit": 0.0}}
    how = searched.get(effort, {"time_limit": options.time_limit})
    try:
        return PLANNERS["selective"].plan(graph, device=device, reorder=reorder, **how)
    except LimitError:
        if effort != "first":
            raise
        raise InfeasibleError("the first plans do not fit", device.memory) from None


def too_small(
    graph: Graph,
    memory: int,
    reason: str,
    needed: int,
    gradients: int = 0,
    *,
    linked: bool = True,
    planner: str = "selective",
) -> InfeasibleError:
    """The error of a budget: bytes in the unit that it was written in (`gradients`: from before), and what to do."""
    unit = unit_written(memory)
    held, enough = format_bytes(graph.resident, unit), told_bytes(needed, unit, graph, up=True)
    most = peak_memory(graph)
    if gradients:
        held += f" ({format_bytes(gradients, unit)} are gradients from before, which zero_grad() drops)"
    little = f": of the {format_bytes(most, unit)} with everything kept next to nothing can be saved"
    if planner != "selective":
        little = f": of the {format_bytes(most, unit)} with everything kept {planner} can save next to nothing"
    other = "; the default planner, selective, may do with less" if planner != "selective" else ""
    travels = not linked and any(one["size"] for one in graph.tensors if one["role"] == "persistent")
    alone = "; no link to the host is known, over which states could travel: give bandwidth, or name a device"
    return InfeasibleError(
        f"the budget of {told_memory(memory, unit, graph)} is too small for the step: {reason} {enough}, {held} of it "
        "resident; give that or more, a smaller batch, or micro-batches"
        + (little if _MUCH * most < needed <= most else "")
        + other
        + (alone if travels else ""),
        needed,
    )


def described(result: Result) -> Document:
    """What a document says of a plan. Addresses are left to the allocator that runs it."""
    return {
        "device": result.device.to_json(),
        "planner": result.planner,
        "params": plain(result.params),
        **({"border": border} if (border := result.schedule.border) else {}),
        "steps": [{key: value for key, value in step.items() if key != "at"} for step in result.schedule.steps],
    }


def plan_carefully(visit: Visit, held: Resident, options: Options) -> CompiledPlan:
    """Plan a visit for about the least memory for which there is a plan."""
    problem = _Problem([visit], [[0]], held, options)
    return problem.solved(problem.enough(0), "brief")[0]


def _least_enough(budgets: Sequence[int], above: int, solved: Callable[[int, Effort], _Plan]) -> _Plan:
    """The plan for about the least of some rising budgets above one, of which the last is enough.

    That to the first no plan fits takes longest to find out, and it is the most likely.
    """
    few, enough = bisect.bisect_right(budgets, above), len(budgets) - 1
    best = solved(budgets[enough], "first")
    efforts: dict[Effort, int] = {"first": few, "brief": max(few, 1)}
    for effort, low in efforts.items():
        while low < enough:
            middle = (low + enough) // 2
            try:
                best, enough = solved(budgets[middle], effort), middle
            except InfeasibleError:
                low = middle + 1
    return best


_TRIES = 8  # at less and less memory


def _swaps_at_first(options: Options) -> bool:
    """Whether the steps that are timed are those of PoocH."""
    return options.profile_steps > 0 and options.planner == "pooch"


class _Problem:
    """A step to be planned, for all of these orders of its backwards; the first is that of the plan."""

    def __init__(
        self,
        visits: Sequence[Visit],
        orders: Sequence[Sequence[int]],
        held: Resident,
        options: Options,
        name: str = "step",
    ) -> None:
        self._visits, self._orders, self._held, self._options, self._name = visits, orders, held, options, name
        self.untimed = self._graphs([no_costs(visit) for visit in visits])  # by order

    def _graphs(self, costs: Sequence[Sequence[Cost]]) -> list[Graph]:
        """The step in each order."""
        held = self._held.total
        return [step_graph(self._visits, one, costs, resident=held, name=self._name) for one in self._orders]

    @property
    def about(self) -> int:
        """The budget in bytes as far as it is known before anything is measured; cached plans are found by it."""
        return _bytes_of(self._options.budget, self.untimed)

    @functools.cached_property
    def _timed(self) -> tuple[Timed, list[Graph]]:
        """The first order with its costs, and each."""
        found = timed(self._visits, self._orders[0], self._held, self._options, self._name)
        return found, self._graphs(costs_in(found.facts))

    def solved(self, memory: int, effort: Effort = "full") -> tuple[CompiledPlan, Document]:
        """A plan, and how the cache keeps it.

        Where those for each order fit in no other, plans for less memory may.
        """
        found, graphs = self._timed
        if effort == "full":
            warn_if_slow(found.graph, slowest(device_for(memory, found.link, self._options)), "bandwidth")
        needed = None  # no error, which would keep the frames of the step alive
        for order, less, tried in self._tries(memory, graphs[0], effort):
            try:
                result = self._result(graphs[order], device_for(less, found.link, self._options), tried)
            except InfeasibleError as error:
                needed = needed or (error.min_memory if less == memory else None)
                continue
            document = {**found.facts, **described(result)}
            if len(self._orders) == 1:
                validate(result)
                return compiled_plan(result, self._held, document), document
            document["steps"] = in_order(document["steps"], self._orders[0])
            if (plan := self.usable(document, memory)) is not None:
                return plan, document
        reason = f"{self._options.planner} needs" if needed else "no plan fits in each order of its backwards, in"
        raise self._too_small(memory, reason, needed or memory)

    def _result(self, graph: Graph, device: Device, effort: Effort) -> Result:
        """A plan; while the steps of PoocH are timed, that which swaps all, if not all fits and it has one."""
        untimed = any(visit.joint.lapped is None for visit in self._visits)
        if _swaps_at_first(self._options) and untimed and peak_memory(graph) > device.memory:
            with contextlib.suppress(InfeasibleError):
                return plan_graph(graph, device=device, planner="swap_all")
        return on_one_side(_solve(graph, device, self._options, effort))

    def _tries(self, memory: int, graph: Graph, effort: Effort) -> Iterator[tuple[int, int, Effort]]:
        """Orders to plan for, the memory that their plans may use, and the planner's effort."""
        if len(self._orders) == 1:
            yield 0, memory, effort
            return
        least, orders = min_memory(graph), range(len(self._orders))
        efforts: list[Effort] = ["full", "brief"] if effort == "full" else [effort]
        for one in efforts:
            for k in range(_TRIES):
                yield from ((order, memory - (memory - least) * k // _TRIES, one) for order in orders)

    def solved_or_told(self) -> tuple[CompiledPlan, Document]:
        """A plan, and how the cache keeps it; without one, the error names a budget that has one."""
        _, graphs = self._timed
        memory = _bytes_of(self._options.budget, graphs)
        try:
            return self.solved(memory)
        except InfeasibleError:
            if self._options.planner != "selective":
                raise
            needed = self.enough(memory)
            reason = "selective needs" if len(self._orders) == 1 else "for each order of its backwards selective needs"
            raise self._too_small(memory, reason, needed) from None

    def _too_small(self, memory: int, reason: str, needed: int) -> InfeasibleError:
        found, _ = self._timed
        linked = device_for(memory, found.link, self._options).d2h > 0
        held, planner = self._held.gradients, self._options.planner
        return too_small(found.graph, memory, reason, needed, held, linked=linked, planner=planner)

    def enough(self, memory: int) -> int:
        """About the least memory above the given one for which there is a plan, of whole percents."""
        _, graphs = self._timed
        budgets = [_bytes_of(f"{percent}%", graphs) for percent in range(101)]
        return _least_enough(budgets, memory, lambda one, effort: self.solved(one, effort)[0]).result.device.memory

    def usable(self, document: Document, memory: int | None = None) -> CompiledPlan | None:
        """A plan from elsewhere, for so many bytes or the budget; None if it is none for this step in all orders."""
        try:
            graphs = self._graphs(costs_in(document))
            document = {**document, "inputs": self._visits[0].inputs}
            memory = memory if memory is not None else _bytes_of(self._options.budget, graphs)
            found = [adopted(graphs[0], document, memory, self._held)]
            for graph, order in zip(graphs[1:], self._orders[1:], strict=True):
                other = {**document, "steps": in_order(document["steps"], order)}
                found.append(adopted(graph, other, memory, self._held))
            return found[0]
        except (MemschedError, TypeError, ValueError, LookupError):
            return None


def _bytes_of(budget: str | int, graphs: Sequence[Graph]) -> int:
    """A budget in bytes; if it is a percentage, that of the graph that needs most."""
    return max(parse_memory(budget, graph, "the budget") for graph in graphs)


def adopted(graph: Graph, document: Document, memory: int, held: Resident) -> CompiledPlan:
    """The plan of a document, simulated and validated for a graph and a budget."""
    began = time.perf_counter()
    planner = str(document["planner"])
    device = Device.from_json({**document["device"], "memory": memory})
    schedule = Schedule(
        document["steps"], budget=memory, graph=graph.name, planner={"name": planner}, border=document.get("border")
    )
    result = measured(planner, dict(document["params"]), graph, schedule, device, began, recomputes=True)
    validate(result)
    return compiled_plan(result, held, document)


def _costs_of(visits: Sequence[Visit], options: Options) -> tuple[list[list[Cost]], str, Link | None]:
    """Those of each visit's operations, where the times come from, and the link to the host."""
    on = visits[0].joint.device
    if options.device == "here":
        link = measure_link(on) if options.bandwidth is None and on.type == "cuda" else None
        found, told = zip(*(measured_costs(visit.joint, visit.sizes) for visit in visits), strict=True)
        return list(found), f"measured on {_device_name(on)}{max(told)}", link
    chip, link = machine(options.device)
    return [modelled_costs(visit.joint, visit.sizes, chip) for visit in visits], describe_model(chip), link


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
