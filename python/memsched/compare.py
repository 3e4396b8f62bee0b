"""Running several planners on one problem: `compare` shows them all, `plan` returns the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from memsched import checks
from memsched._core import Device
from memsched.bounds import bound_of
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.planners.registry import PLANNERS, Planner, check_planner, planner_named, planners_of, takes
from memsched.problem import ChunkLike, Problem, graph_of, make_device
from memsched.result import Result

SEARCH = 1.0  # seconds in which auto improves plans that by default stop where their papers do
AUTO: dict[str, dict[str, object]] = {
    "pofo": {"time_limit": SEARCH},
    "pooch": {"time_limit": SEARCH},
    "modnn": {"rounds": "search"},
}


def compare(
    problem: Problem,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
    planners: Sequence[str] | None = None,
    chunk: ChunkLike = None,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Result | MemschedError]:
    """Run several planners on one problem.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.
    planners : sequence of str, optional
        Names; by default all that are listed for chains, or for graphs and families.
    chunk : None, int or "storage"
        Of a chain, how tensors travel: whole, or in pieces.
    time_limit : float, optional
        Seconds for each planner that takes a limit.
    progress : callable, optional
        Called with the name of each planner before it runs.

    Returns
    -------
    dict
        Planner name -> Result, or the MemschedError that it ended with (InfeasibleError has .min_memory), in the order
        of `planners`. So an input that one planner refuses is its own outcome.

    Raises
    ------
    InvalidInputError
        A bad problem, M, beta, device, chunk, time_limit or planner name, or an input that all of them refuse.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> list(ms.compare(chain, M=20, beta=8, planners=["greedy", "vdnn"]))
    ['greedy', 'vdnn']
    """
    device = make_device(M, beta, device)
    _check_common(problem, chunk, time_limit)
    if isinstance(planners, str):
        raise InvalidInputError(f"planners is {planners!r}; give a list of names")
    names = planners_of(problem) if planners is None else list(planners)
    entries = {name: planner_named(name) for name in names}
    found: dict[str, Result | MemschedError] = {}
    for name, entry in entries.items():
        if progress is not None:
            progress(name)
        found[name] = _outcome(entry, problem, device, {"chunk": chunk, "time_limit": time_limit})
    refused = [outcome for outcome in found.values() if isinstance(outcome, InvalidInputError)]
    if refused and len(refused) == len(found):
        raise refused[0]
    return found


def plan(
    problem: Problem,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
    planner: str = "auto",
    chunk: ChunkLike = None,
    time_limit: float | None = None,
) -> Result:
    """Run one planner by name, or all and return the plan with the least simulated makespan.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.
    planner : str
        A planner's name, or "auto": all that are listed for such a problem, with POFO's or PoocH's plan improved by a
        search. On ties auto takes the one registered first.
    chunk : None, int or "storage"
        Of a chain, how tensors travel: whole, or in pieces.
    time_limit : float, optional
        Seconds for each planner that takes a limit; the searches of auto stop after one second by default.

    Returns
    -------
    Result
        With "auto" never worse than any planner's with its default options, and `lower_bound` holds for all plans,
        those that recompute included (of a family, in the same rounds); with a name it holds for that planner's.

    Raises
    ------
    InfeasibleError
        No planner has a plan; `.min_memory` is the least that any needs.
    InvalidInputError

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.plan(chain, M=20, beta=8).planner
    'offload'
    """
    check_planner(planner)
    auto = planner == "auto"
    device = make_device(M, beta, device)
    given = {"chunk": chunk, "time_limit": time_limit}
    if auto:
        _check_common(problem, chunk, time_limit)
        found = {
            name: _outcome(PLANNERS[name], problem, device, {**AUTO.get(name, {}), **_set(given)})
            for name in planners_of(problem)
        }
    else:
        found = compare(problem, device=device, planners=[planner], chunk=chunk, time_limit=time_limit)
    results = [outcome for outcome in found.values() if isinstance(outcome, Result)]
    if results:
        best = min(results, key=lambda result: result.makespan)
        return _bounded(best) if auto else best
    infeasible = [outcome for outcome in found.values() if isinstance(outcome, InfeasibleError)]
    errors = [outcome for outcome in found.values() if isinstance(outcome, MemschedError)]
    raise min(infeasible, key=lambda error: error.min_memory) if infeasible else errors[0]


def _check_common(problem: Problem, chunk: ChunkLike, time_limit: float | None) -> None:
    """Refuse what no planner could take; then what one refuses is its own affair."""
    graph_of(problem, chunk)
    checks.time_limit(time_limit)


def _set(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _outcome(entry: Planner, problem: Problem, device: Device, options: dict[str, object]) -> Result | MemschedError:
    """What a planner returns, or the error that it ends with."""
    try:
        return entry.plan(problem, device=device, **takes(entry.plan, options))
    except MemschedError as error:
        return error


def _bounded(best: Result) -> Result:
    """With a bound on all plans of the same rounds, not only on those of the planner that won."""
    bound = bound_of(best.problem, best.schedule, best.device, "all")
    return dataclasses.replace(best, lower_bound=min(bound, best.makespan), bound_on="all")
