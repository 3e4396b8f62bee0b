"""The entry of a planner: what all that works with any planner reads of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

from memsched._core import Device
from memsched.problems.problem import ChunkLike, Problem
from memsched.result import Result

# Of many devices at once: (makespan, lower_bound, peak_memory, estimate, bytes_out, bytes_in, idle, offloaded, runtime)
# of each, or None where it must be planned alone.
Figures: TypeAlias = Callable[[Sequence[Device]], list[tuple[Any, ...] | None]]


_CALL = ("problem", "chain", "M", "beta", "device", "table")  # what a call is about: no options
Plan = TypeVar("Plan", bound=Callable[..., Result])


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a planner: its name, its type as it is written, and its default."""

    name: str
    type: str
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """A planner's entry.

    Attributes
    ----------
    name : str
    summary : str
        One line for lists.
    plan : callable
        planner(problem, M, beta, *, device, options) -> Result.
    needs : callable
        problem -> the least M (bytes, resident included) for which it has a plan on a device with a link.
    needs_on : callable or None
        The same of (chain, device, chunk), for a planner whose minimum depends on the link.
    needs_alone : callable or None
        problem -> the same without a link, for planners that recompute; others need the peak of the plain run.
    problems : tuple of str
        "chain", "graph" or both: what it is listed for. Planners of graphs take chains as well, as their graph.
    unlisted : tuple of str
        What else it takes, where lists name the planner that it then asks.
    recomputes : bool
        Whether its plans may run an op more than once.
    reorders : bool
        Whether its plans may run the ops in another order than the graph's.
    uses_link : bool
        Whether its plans depend on the link; if not, one plan serves all links of a memory.
    with_table : callable or None
        plan, with table=RematTable, for planners that answer many memories from one table.
    by_name : str
        Why it runs only where it is asked for by its name; "" where it is one of all.
    figures : callable or None
        (chain, options) -> what plans many devices at once and gives the figures of each as plan would, or None.
    """

    name: str
    summary: str
    plan: Callable[..., Result]
    needs: Callable[[Problem], int]
    needs_on: Callable[[Any, Device, ChunkLike], int] | None
    needs_alone: Callable[[Any], int] | None
    problems: tuple[str, ...]
    unlisted: tuple[str, ...]
    recomputes: bool
    reorders: bool
    uses_link: bool
    with_table: Callable[..., Result] | None
    by_name: str
    figures: Callable[..., Figures | None] | None

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options by their names."""
        return options_of(self.plan)

    @property
    def takes_graphs(self) -> bool:
        """Whether it plans graphs and families, too."""
        return "graph" in (*self.problems, *self.unlisted)

    @property
    def free(self) -> bool:
        """Whether only the bound that holds for all plans, `recompute_bound`, holds for its plans."""
        return self.recomputes or self.reorders


ENTRIES: dict[Callable[..., Result], Planner] = {}


def planner(
    summary: str,
    *,
    needs: Callable[[Any], int],
    needs_on: Callable[[Any, Device, ChunkLike], int] | None = None,
    needs_alone: Callable[[Any], int] | None = None,
    problems: tuple[str, ...] = ("chain",),
    unlisted: tuple[str, ...] = (),
    recomputes: bool = False,
    reorders: bool = False,
    uses_link: bool = True,
    with_table: Callable[..., Result] | None = None,
    by_name: str = "",
    figures: Callable[..., Figures | None] | None = None,
) -> Callable[[Plan], Plan]:
    """Give a function its entry, as `Planner` says; the function stays as it is."""

    def enter(plan: Plan) -> Plan:
        ENTRIES[plan] = Planner(
            name=plan.__name__,
            summary=summary,
            plan=plan,
            needs=needs,
            needs_on=needs_on,
            needs_alone=needs_alone,
            problems=problems,
            unlisted=unlisted,
            recomputes=recomputes,
            reorders=reorders,
            uses_link=uses_link,
            with_table=with_table,
            by_name=by_name,
            figures=figures,
        )
        return plan

    return enter


@cache
def options_of(plan: Callable[..., Result]) -> Mapping[str, Option]:
    """The options of what is called as a planner is, by their names."""
    listed = inspect.signature(plan).parameters.values()
    return {one.name: Option(one.name, str(one.annotation), one.default) for one in listed if one.name not in _CALL}


def takes(plan: Callable[..., Result], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given options that it takes; None means its default."""
    known = options_of(plan)
    return {name: value for name, value in given.items() if name in known and value is not None}
