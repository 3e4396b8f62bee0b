"""PoocH (Ito et al., 2019): keep, swap or recompute each feature map."""

from __future__ import annotations

from memsched._core import Device
from memsched.planners.classes import WORKSPACE_LIMIT, begin_classes, by_default, need_of_swapping_all, search_classes
from memsched.planners.entry import planner
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support import checks
from memsched.support.types import Progress


@planner(
    "classes of feature maps: keep, swap or recompute",
    needs=by_default(need_of_swapping_all),
    problems=("graph",),
    recomputes=True,
)
def pooch(
    problem: Problem,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
    workspace_limit: int = WORKSPACE_LIMIT,
    tree: int = 12,
    beam: int = 4,
    fill: bool = False,
    threads: int = 1,
    time_limit: float = 0.0,
    search: float = 0.0,
    seed: int = 0,
    progress: Progress = None,
) -> Result:
    """Search classes of feature maps: first which stay and which travel, then which are computed again instead.

    The first step is `swap_opt`. The second takes the map of which recomputing costs least in comparison with swapping,
    both measured against a plan that has it for free, and goes on as long as one gets faster. Every candidate is
    simulated: O(maps^2) simulations. Never worse than `swap_opt`; where everything fits nothing moves.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        Of a family the graph at full batch.
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.
    workspace_limit : int
        Bytes; each op takes its fastest algorithm whose workspace is within it.
    tree : int
        Up to so many maps are searched exhaustively, from 0 to 20.
    beam : int
        Otherwise so many states are kept.
    fill : bool
        In the end keep what still fits, from the output layer, where it costs no time.
    threads : int
        0: as many as the machine has. The plan does not depend on it.
    time_limit : float
        Seconds in all, 0 for no limit: the paper's search stops when they are over, with the best plan so far, and goes
        on before that with random changes of a few classes at a time.
    search : float
        Without a time_limit: seconds to go on in that way after the paper's search.
    seed : int
        Of these changes.
    progress : callable, optional
        Called with a fraction from 0 to 1.

    Returns
    -------
    Result
        params["evaluations"] counts the plans that were simulated.

    Raises
    ------
    InfeasibleError
        Even with all feature maps on the host it does not fit. Without a link, or where the host cannot take all, no
        mixture that was tried fits either, and `.min_memory` is what keeps them all; less may do.
    InvalidInputError

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
    checks.progress(progress)
    call = begin_classes(pooch, problem, M, beta, device, workspace_limit, mixes=True)
    return search_classes(
        call,
        tree=tree,
        beam=beam,
        fill=fill,
        threads=threads,
        time_limit=time_limit,
        search=search,
        seed=seed,
        progress=progress,
    )
