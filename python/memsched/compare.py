"""Running several planners on one problem: `compare` shows them all, `plan` returns the best."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from memsched._core import Device
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.planners.registry import PLANNERS, planner_named
from memsched.problem import ChunkLike, Problem, make_device
from memsched.result import Result


def _options(plan: Callable[..., Result], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given options that the planner takes; None means the planner's default."""
    known = inspect.signature(plan).parameters
    return {name: value for name, value in given.items() if name in known and value is not None}


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
    problem : Chain or Graph
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.
    planners : sequence of str, optional
        Names; all by default.
    chunk : None, int or "storage"
        How tensors travel: whole, or in pieces.
    time_limit : float, optional
        Seconds for each planner that takes a limit.
    progress : callable, optional
        Called with the name of each planner before it runs.

    Returns
    -------
    dict
        Planner name -> Result, or the MemschedError that it ended with (InfeasibleError has .min_memory), in the order
        of `planners`.

    Raises
    ------
    InvalidInputError
        A bad problem, M, beta, device, chunk or planner name.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> list(ms.compare(chain, M=20, beta=8, planners=["greedy", "vdnn"]))
    ['greedy', 'vdnn']
    """
    device = make_device(M, beta, device)
    if isinstance(planners, str):
        raise InvalidInputError(f"planners is {planners!r}; give a list of names")
    names = list(PLANNERS) if planners is None else list(planners)
    entries = {name: planner_named(name) for name in names}
    found: dict[str, Result | MemschedError] = {}
    for name, entry in entries.items():
        if progress is not None:
            progress(name)
        options = _options(entry.plan, {"chunk": chunk, "time_limit": time_limit})
        try:
            found[name] = entry.plan(problem, device=device, **options)
        except InvalidInputError:
            raise
        except MemschedError as error:
            found[name] = error
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
    problem : Chain or Graph
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.
    planner : str
        A planner's name, or "auto". On ties auto takes the one registered first.
    chunk : None, int or "storage"
        How tensors travel: whole, or in pieces.
    time_limit : float, optional
        Seconds for each planner that takes a limit.

    Returns
    -------
    Result

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
    names = None if planner == "auto" else [planner]
    outcomes = compare(problem, M, beta, device=device, planners=names, chunk=chunk, time_limit=time_limit).values()
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    if results:
        return min(results, key=lambda result: result.makespan)
    infeasible = [outcome for outcome in outcomes if isinstance(outcome, InfeasibleError)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, MemschedError)]
    raise min(infeasible, key=lambda error: error.min_memory) if infeasible else errors[0]
