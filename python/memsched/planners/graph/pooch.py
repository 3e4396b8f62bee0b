"""PoocH (Ito et al., 2019): keep, swap or recompute each feature map."""

from __future__ import annotations

from memsched._core import Device
from memsched.planners.call import begin
from memsched.planners.classes import WORKSPACE_LIMIT, by_default, need_of_swapping_all, of_classes, search_classes
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support.types import Progress, Quantity, Size


@Planner(
    "classes of feature maps: keep, swap or recompute",
    needs=by_default(need_of_swapping_all),
    problems=("graph",),
    recomputes=True,
    seconds_an_op=(1.4e-5, 1.4e-5),
)
def pooch(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    workspace_limit: Size = WORKSPACE_LIMIT,
    tree: int = 12,
    beam: int = 4,
    fill: bool = False,
    threads: int = 1,
    time_limit: Quantity = 0.0,
    search: float = 0.0,
    seed: int = 0,
    progress: Progress = None,
) -> Result:
    """Search over classes of feature maps: first which to keep and which to swap, then which to recompute instead.

    The first step is `swap_opt`. The second takes the map whose recomputation costs least compared with swapping, both
    measured against a plan that has the map for free, and repeats while this gets faster. Every candidate is simulated:
    O(maps^2) simulations. Never worse than `swap_opt`; if everything fits, nothing moves.

    Parameters
    ----------
    fill : bool
        At the end keep what still fits, from the output layer on, if it costs no time.
    time_limit : float or str
        Seconds in total, 0 for no limit. When they are over, the paper's search stops with the best plan so far. If it
        ends earlier, random changes of a few classes at a time use the rest.
    search : float
        Without a time_limit: seconds of random changes after the paper's search.

    Returns
    -------
    Result
        params["evaluations"] counts the plans that were simulated.

    Raises
    ------
    InfeasibleError
        It does not fit even with all feature maps on the host. Without a link, or with a host too small for all maps:
        no mixture tried fits; `.min_memory` is what keeps all maps, but less may do.

    References
    ----------
    Ito, Imai, Duc, Negishi, Kawachiya, Matsumiya, Endo, "Profiling based out-of-core hybrid method for large neural
    networks", 2019, sections 4.2 and 4.3.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.analytic("resnet50", 512).graph
    >>> device = ms.Device(16 * 10**9, 12e9, duplex=True)
    >>> result = ms.pooch(graph, device=device)
    >>> result.makespan < 0.5 * ms.swap_opt(graph, device=device).makespan
    True
    """
    call = of_classes(begin(pooch, problem, M, beta, device), workspace_limit, mixes=True)
    return search_classes(call, tree, beam, threads, time_limit, progress, fill=fill, search=search, seed=seed)
