"""Swap-opt, the first step of PoocH (Ito et al., 2019): keep or swap each feature map."""

from __future__ import annotations

from memsched._core import Device
from memsched.planners.call import begin
from memsched.planners.classes import WORKSPACE_LIMIT, by_default, need_of_swapping_all, of_classes, search_classes
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support.types import Progress, Quantity, Size


@Planner(
    "classes of feature maps: keep or swap",
    needs=by_default(need_of_swapping_all),
    problems=("graph",),
    seconds_an_op=(6e-6, 6e-6),
)
def swap_opt(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    workspace_limit: Size = WORKSPACE_LIMIT,
    tree: int = 12,
    beam: int = 4,
    threads: int = 1,
    time_limit: Quantity = 0.0,
    progress: Progress = None,
) -> Result:
    """Keep feature maps whose transfers would make the computation wait, as far as they fit; swap the others.

    Maps whose prefetches cause a wait are searched from the output layer: all subsets, or by beam search if there are
    many. Of the maps of which only the offload causes a wait, the first ones are kept, as many as give the least
    makespan. Every candidate is simulated. Never worse than `swap_all`; if everything fits, nothing moves.

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
    Ito et al., PoocH, 2019, section 4.2, step 1.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.analytic("alexnet", 4096).graph
    >>> ms.swap_opt(graph, 16e9, 12e9).makespan < ms.swap_all(graph, 16e9, 12e9).makespan
    True
    """
    call = of_classes(begin(swap_opt, problem, M, beta, device), workspace_limit, mixes=True)
    return search_classes(call, tree, beam, threads, time_limit, progress)
