"""Run several planners on one problem: `compare` returns every result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsched._core import Device
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError, shown
from memsched.planners.entry import for_all
from memsched.planners.registry import planners_of
from memsched.problems.budget import make_device
from memsched.problems.problem import ChunkLike, Problem, graph_of
from memsched.result import Result
from memsched.study.auto import BY_THE_CLOCK, Say, outcome, plan_of, search_limits, told
from memsched.study.comparison import Comparison
from memsched.study.options import options_by_planner, refuse_unknown
from memsched.support import checks, quantities
from memsched.support.docstrings import documented
from memsched.support.types import Quantity


@documented
def compare(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    planners: Sequence[str] | None = None,
    chunk: ChunkLike = None,
    time_limit: Quantity | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Say = None,
) -> Comparison:
    """Run several planners on one problem.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    planners : sequence of str, or str, optional
        Names, in a list or in a text with commas; "auto" is the best of all, as `plan` finds it. By default all that
        are listed; `not_asked` says why no others.
    time_limit : float or str, optional
        Seconds for each planner that takes a limit. By default and on chains, offload's search stops after the moves
        that `plan` gives it, so that no row depends on the machine or is better than the plan of `plan`.
    options : mapping, optional
        Planner -> its options, as in {"pofo": {"slots": 2000}}; as the planners' functions take them. They count before
        chunk and time_limit, which are for all.
    progress : callable, optional
        Called with a line about the work: the name of the planner that runs, how far it is, and the best plan so far.

    Returns
    -------
    Comparison
        A dict: planner name -> Result, or the MemschedError that the planner raised (InfeasibleError has .min_memory),
        in the order of `planners`. An input that only one planner refuses is thus an entry, not an exception. Plans
        that cut the problem alike are held against the largest bound on all plans that was found for one of them, if
        that is above their own.

    Raises
    ------
    InvalidInputError
        A bad problem, M, beta, device, chunk, time_limit, options or planner name, or an input that all of them refuse.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> list(ms.compare(chain, M=20, beta=8, planners=["greedy", "vdnn"]))
    ['greedy', 'vdnn']
    """
    device, chunk = make_device(problem, M, beta, device), quantities.chunk(chunk)
    time_limit = quantities.time_limit(time_limit)
    graph_of(problem, chunk)  # refuses what no planner accepts, so that any later error belongs to one planner
    checks.progress(progress)
    names = planners_of(problem) if planners is None else checks.names("planners", planners)
    if not names:
        raise InvalidInputError("planners is empty; name some, or leave it out to take all")
    runs = {name: plan_of(name) for name in names}
    wanted = options_by_planner(options)
    for name, given in wanted.items():
        if name not in runs:
            raise InvalidInputError(f"options has {shown(name)}, which is not among the planners {', '.join(runs)}")
        refuse_unknown(name, runs[name], given)
    found = Comparison()
    for name, run in runs.items():
        say = {"progress": progress} if name == "auto" else told(progress, name, found)
        own = search_limits(problem) if name in BY_THE_CLOCK and time_limit is None else {}
        shared = for_all(chunk=chunk, time_limit=time_limit)
        found[name] = outcome(run, problem, device, {**own, **shared, **wanted.get(name, {}), **say})
    found.share_bounds()
    refused = [outcome for outcome in found.values() if isinstance(outcome, InvalidInputError)]
    if refused and len(refused) == len(found):
        raise refused[0]
    return found


def nearest(found: Mapping[str, Result | MemschedError]) -> MemschedError:
    """What to raise if no planner has a plan: the error of the one that needs least."""
    infeasible = [outcome for outcome in found.values() if isinstance(outcome, InfeasibleError)]
    errors = (outcome for outcome in found.values() if isinstance(outcome, MemschedError))
    return min(infeasible, key=lambda error: error.min_memory, default=None) or next(errors)
