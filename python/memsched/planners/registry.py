"""The registry: the planners by name."""

from __future__ import annotations

from collections.abc import Collection

from memsched import planners
from memsched._core import Chain, Device
from memsched.errors import InvalidInputError, shown
from memsched.planners.entry import ENTRIES, Planner
from memsched.problems.problem import ChunkLike, Problem, graph_of, least_memory, no_chain
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.docstrings import documented

PLANNERS: dict[str, Planner] = {name: ENTRIES[getattr(planners, name)] for name in planners.__all__}
"""In the order of lists. On ties `plan` takes the first."""


def planners_of(problem: Problem) -> list[str]:
    """The planners that run by default: those of chains, or those of graphs and families, without `by_name`."""
    kind = "chain" if isinstance(problem, Chain) else "graph"
    listed = {name: entry for name, entry in PLANNERS.items() if kind in entry.problems and not entry.by_name}
    return [name for name, entry in listed.items() if entry.repeats or not _repeated(problem)]


@documented
def not_asked(problem: Problem) -> dict[str, str]:
    """Say of each planner that `compare` does not run by default on this problem why.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily

    Returns
    -------
    dict
        Planner name -> reason, in the order of the registry. With what `compare` returns, it has every planner once.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.not_asked(ms.to_graph(chain))["rotor"]
    'for chains alone'
    """
    kind = "chain" if isinstance(problem, Chain) else "graph"
    asked = planners_of(problem)
    repeated = _repeated(problem)
    return {name: _why_not(entry, kind, repeated) for name, entry in PLANNERS.items() if name not in asked}


def _repeated(problem: Problem) -> bool:
    return not isinstance(problem, Chain) and bool(graph_of(problem).persistent)


def _why_not(entry: Planner, kind: str, repeated: bool) -> str:
    if kind == "graph" and not entry.takes_graphs:
        return "for chains alone"
    if repeated and not entry.repeats:
        return "not with persistent tensors"
    if kind in entry.problems:
        return f"{entry.by_name}; only by name"
    listed = "chains" if kind == "graph" else "graphs and families"
    return f"for {listed}; only by name" + (f"; {entry.by_name}" if entry.by_name else "")


def check_planner(name: str) -> str:
    """Refuse a name that is neither "auto" nor a planner's; the error lists the planners."""
    return _one_of(name, ("auto", *PLANNERS))


def planner_named(name: str) -> Planner:
    """Look a planner up; the error lists the planners."""
    return PLANNERS[_one_of(name, PLANNERS)]


def _one_of(name: str, known: Collection[str]) -> str:
    if checks.is_list(name):
        raise InvalidInputError(f"planner is {shown(name)}; give one name; compare and sweep take several")
    if isinstance(name, str) and name == "all":
        raise InvalidInputError("planner is 'all', which is no name; to take all, leave it out in compare and sweep")
    return checks.choice("planner", name, known)


@public
def min_memory(problem: Problem, planner: str | None = None) -> int:
    """The least M for which there is a plan, in bytes, resident included; 0 if nothing has bytes, where M is 1.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    planner : str, optional
        That planner's own minimum. Without it, or with "auto", what every plan needs: resident plus the largest need of
        one op (reads + writes + workspace; a tape that no op reads need not be written), or plus all inputs and
        weights, which are on the device at time 0. That suffices for some plan if there is a link and the host is large
        enough. For a family: at batch 1. For tflms it depends on the link; the profile's is assumed, or a free one if
        there is none.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.min_memory(ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]))
    16
    """
    if planner is None or check_planner(planner) == "auto":
        return least_memory(problem)
    found = planner_named(planner)
    if not isinstance(problem, Chain) and not found.takes_graphs:
        raise no_chain(problem, planner)
    if not isinstance(problem, Chain):
        found.check_repeats(graph_of(problem))
    return found.needs(problem)


def least_on(problem: Problem, planner: str, device: Device, chunk: ChunkLike = None) -> int:
    """`min_memory`, on the link of this device if it depends on the link, as it may for chains."""
    found = None if check_planner(planner) == "auto" else planner_named(planner)
    if found is None or found.needs_on is None or not isinstance(problem, Chain):
        return min_memory(problem, planner)
    return found.needs_on(problem, device, chunk)
