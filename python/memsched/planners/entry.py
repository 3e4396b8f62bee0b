"""The entry of a planner: all that the rest of memsched reads about it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

from memsched._core import Device, Graph, op_count
from memsched.errors import InternalError, InvalidInputError, shown
from memsched.problems.problem import ChunkLike
from memsched.result import Result
from memsched.support.docstrings import documented

# Per device: (makespan, lower_bound, peak_memory, estimate, bytes_out, bytes_in, idle, offloaded, runtime), or None if
# it must be planned on its own.
Figures: TypeAlias = Callable[[Sequence[Device]], list[tuple[Any, ...] | None]]


_CALL = ("problem", "chain", "M", "beta", "device", "table")  # arguments that are not options
Plan = TypeVar("Plan", bound=Callable[..., Result])


def _undecorated(*_: Any) -> Result:
    raise InternalError("an entry was used that decorates no function")


@dataclass(frozen=True, slots=True)
class Planner:
    """A planner's entry. As the decorator of a function it registers it, and completes its docstring."""

    summary: str  # one line for lists
    _: KW_ONLY
    # problem -> the least M (bytes, resident included) for which the planner has a plan on a device with a link.
    needs: Callable[[Any], int]
    # (chain, device, chunk) -> the same, for a planner whose minimum depends on the link.
    needs_on: Callable[[Any, Device, ChunkLike], int] | None = None
    # problem -> the same without a link, for planners that recompute; others need the plain peak.
    needs_alone: Callable[[Any], int] | None = None
    # "chain", "graph" or both: what it is listed for. Planners of graphs also take chains, as their graph.
    problems: tuple[str, ...] = ("chain",)
    # Other problems that it takes; for these, lists name the planner that it delegates to.
    unlisted: tuple[str, ...] = ()
    recomputes: bool = False  # whether its plans may run an op more than once
    reorders: bool = False  # whether its plans may run the ops in another order than the graph's
    repeats: bool = False  # whether it takes graphs with persistent tensors, whose plans are repeated
    uses_link: bool = True  # whether its plans depend on the link; if not, one plan serves all links at a memory
    # as plan, with an argument table=RematTable, for planners that answer many memories from one table.
    with_table: Callable[..., Result] | None = None
    # Seconds an op that a first plan of a large problem and its bound take, with and without a link: what `least_time`
    # sums up. A time_limit with less is refused.
    seconds_an_op: tuple[float, float] = (0.0, 0.0)
    by_name: str = ""  # why it only runs when requested by name; "" if it is among the planners that run by default
    # (chain, options) -> a function that plans for many devices and returns their figures; None if these options need
    # the planner itself.
    figures: Callable[..., Figures | None] | None = None
    # planner(problem, M, beta, *, device, options) -> Result: the decorated function.
    plan: Callable[..., Result] = _undecorated

    def __call__(self, plan: Plan) -> Plan:
        plan = documented(plan, "Planner")
        ENTRIES[plan] = replace(self, plan=plan)
        return plan

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.plan.__name__

    def check_repeats(self, graph: Graph) -> None:
        """Refuse a graph with persistent tensors, if the planner cannot plan repeated steps."""
        if graph.persistent and not self.repeats:
            raise InvalidInputError(
                f"'{graph.name}' has persistent tensors, such as {shown(graph.persistent[0])}, which {self.name} "
                "cannot plan; use selective, or give those tensors the role weight"
            )

    def least_time(self, graph: Graph, device: Device) -> float:
        """Seconds that a plan takes at the least, of a large graph."""
        return self.seconds_an_op[min(device.d2h, device.h2d) == 0] * op_count(graph)

    @property
    def takes_graphs(self) -> bool:
        """Whether it also plans graphs and families."""
        return "graph" in (*self.problems, *self.unlisted)

    @property
    def free(self) -> bool:
        """Whether its plans recompute or reorder, so that only `recompute_bound` holds for them."""
        return self.recomputes or self.reorders


ENTRIES: dict[Callable[..., Result], Planner] = {}


@cache
def options_of(plan: Callable[..., Result]) -> Mapping[str, inspect.Parameter]:
    """The options of a function with the signature of a planner, by name."""
    return {name: one for name, one in inspect.signature(plan).parameters.items() if name not in _CALL}


def takes(plan: Callable[..., Result], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options that the planner takes."""
    known = options_of(plan)
    return {name: value for name, value in given.items() if name in known}


def for_all(**options: object) -> dict[str, object]:
    """Options for whichever planners take them; None leaves each its own."""
    return {name: value for name, value in options.items() if value is not None}
