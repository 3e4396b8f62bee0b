"""Steps of several graphs, of which one plan spans all: whether code of several plans fits in them, too."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memsched._core import Schedule
from memsched.errors import InfeasibleError, MemschedError
from memsched.planners.registry import min_memory
from memsched.problems.problem import peak_memory, simulate
from memsched.support.documents import Document
from memsched.torch.compiled.as_graph import Cost, Visit, prefix, step_graph
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import costs_in, plan_and_document
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.split import joined
from memsched.torch.compiled.unit import Unit, Version

if TYPE_CHECKING:
    from memsched.torch.compiled.fit import Fitted, Fitting


@dataclass(frozen=True, slots=True)
class Spanned:
    """A step, and the orders of its backwards that its plan is for."""

    units: Sequence[weakref.ref[Unit]]
    visits: Sequence[Visit]
    held: Resident
    orders: Sequence[Sequence[int]]
    plan: CompiledPlan
    costs: Sequence[Sequence[Cost]] = ()

    @property
    def alive(self) -> bool:
        """Whether all its graphs may still run."""
        return all(unit() is not None for unit in self.units)

    @property
    def enough(self) -> int:
        """Memory for the step as in plain PyTorch, in any of the orders."""
        graphs = [step_graph(self.visits, order, self.costs, resident=self.held.total) for order in self.orders]
        return max(map(peak_memory, graphs))

    def versions(self, path: Sequence[Any], planned: Mapping[Any, int]) -> list[Version]:
        """Those that its graphs follow, by the calls up to each of them."""
        units = [unit() for unit in self.units]
        return [unit.versions[planned[path[: k + 1]]] for k, unit in enumerate(units) if unit is not None]

    def add(self, units: Sequence[Unit], plan: CompiledPlan) -> list[int]:
        """The versions of its graphs that follow a plan."""
        each = enumerate(zip(units, self.visits, strict=True))
        return [unit.add(plan, k, len(units), visit.sizes, visit.beside) for k, (unit, visit) in each]

    def with_less(self, options: Options, share: float) -> CompiledPlan | None:
        """A plan that leaves more room, if there is one: for a share of the way from the least memory to the budget."""
        least = min_memory(step_graph(self.visits, self.orders[0], self.costs, resident=self.held.total))
        memory = self.plan.result.device.memory
        less = replace(options, budget=int(least + share * (memory - least)))
        try:
            return plan_and_document(self.visits, self.orders[0], self.held, less, others=self.orders[1:])[0]
        except InfeasibleError:
            return None

    def fits(self, versions: Sequence[Version], known: CompiledPlan) -> bool:
        """Whether the step fits its budget if its graphs follow these versions; it does if all are of that plan."""
        if all(one.plan is known for one in versions):
            return True
        device = self.plan.result.device
        for order in self.orders:
            graph = step_graph(self.visits, order, self.costs, resident=self.held.total)
            steps = joined(graph, [(one.forward_steps, one.backward_steps) for one in versions], order)
            try:
                simulate(graph, Schedule(steps, budget=device.memory, graph=graph.name), device)
            except MemschedError:
                return False
        return True

    def exceeded(self, followed: Sequence[Version], taken: int | None) -> bool:
        """Whether its graphs took more than the budget when they followed these versions: so many bytes, if counted."""
        if taken is None:  # as steps that begin alike were counted before
            return not replace(self, orders=self.orders[:1]).fits(followed, self.plan)  # in the order in which it ran
        return self.plan.process_bytes(taken) > self.plan.result.schedule.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannedCode(Spanned):
    """A step whose graphs Inductor compiles."""

    fitting: Fitting
    fitted: dict[int, Fitted]  # by the plan's identity, how its graphs run

    @property
    def enough(self) -> int:
        """Memory for the step with everything kept."""
        return self.fitting.enough

    def add(self, units: Sequence[Unit], plan: CompiledPlan) -> list[int]:
        """Compile a plan."""
        ways = self.fitted[id(plan)].ways
        kept = self.fitting.counted(ways).kept
        return [
            unit.add_code(plan, visit, ways[k], kept[k], prefix(k, len(units)))
            for k, (unit, visit) in enumerate(zip(units, self.visits, strict=True))
        ]

    def with_less(self, options: Options, share: float) -> CompiledPlan | None:
        """A plan that leaves more room, if there is one: for a share of the way from about the least memory."""
        memory = self.fitting.budget
        least = min(memory, min_memory(self.plan.result.graph))
        found = self.fitting.within(replace(options, budget=int(least + share * (memory - least))))
        if isinstance(found, int):
            return None
        self.fitted[id(found.plan)] = found
        return found.plan

    def fits(self, versions: Sequence[Version], known: CompiledPlan) -> bool:
        """Whether the code fits the budget if its graphs follow these versions."""
        if all(one.plan is known for one in versions):
            return True
        from memsched.torch.compiled.halves import Way  # Inductor takes seconds to import

        ways = [Way(one.forward_steps, one.backward_steps, one.reuse, one.last) for one in versions]
        return self.plan.process_bytes(self.fitting.counted(ways).peak) <= self.fitting.budget

    def exceeded(self, followed: Sequence[Version], taken: int | None) -> bool:
        """The same, told by the code: where that allocates, nobody counts."""
        return not self.fits(followed, self.plan)


def spanned(
    units: Sequence[Unit],
    visits: Sequence[Visit],
    held: Resident,
    orders: Sequence[Sequence[int]],
    options: Options,
    known: Mapping[str, Document],
) -> Spanned:
    """Plan a step of several graphs."""
    alive = [unit.itself for unit in units]
    if options.mode == "eager":
        plan, document = plan_and_document(visits, orders[0], held, options, known, orders[1:])
        return Spanned(alive, visits, held, orders, plan, costs_in(document))
    from memsched.torch.compiled.fit import Fitting  # Inductor takes seconds to import

    halves = [unit.halves(visit) for unit, visit in zip(units, visits, strict=True)]
    fitting = Fitting(halves, visits, held, options, orders)
    found = fitting.fit()
    return SpannedCode(alive, visits, held, orders, found.plan, fitting=fitting, fitted={id(found.plan): found})
