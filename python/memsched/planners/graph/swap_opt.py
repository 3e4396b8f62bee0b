"""Swap-opt, the first step of PoocH (Ito et al., 2019): keep or swap each feature map."""

from __future__ import annotations

from memsched._core import Device
from memsched.planners.classes import WORKSPACE_LIMIT, begin_classes, by_default, need_of_swapping_all, search_classes
from memsched.planners.entry import planner
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support.types import Progress


@planner("classes of feature maps: keep or swap", needs=by_default(need_of_swapping_all), problems=("graph",))
def swap_opt(
    problem: Problem,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
    workspace_limit: int = WORKSPACE_LIMIT,
    tree: int = 12,
    beam: int = 4,
    threads: int = 1,
    time_limit: float = 0.0,
    progress: Progress = None,
) -> Result:
    """Keep those feature maps whose transfers would make the computation wait, as far as they fit; swap the others.

    The maps whose fetches wait are searched from the output layer: all subsets, or by a beam where there are many. Of
    those whose offloads alone wait the first so many stay that the makespan is the least. Every candidate is simulated.
    Never worse than `swap_all`; where everything fits nothing moves.

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
    threads : int
        0: as many as the machine has. The plan does not depend on it.
    time_limit : float
        Seconds in all, 0 for no limit; when they are over, the best plan so far.
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
    Ito et al., PoocH, 2019, section 4.2, step 1.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.analytic("alexnet", 4096).graph
    >>> ms.swap_opt(graph, 16e9, 12e9).makespan < ms.swap_all(graph, 16e9, 12e9).makespan
    True
    """
    call = begin_classes(swap_opt, problem, M, beta, device, workspace_limit, mixes=True)
    return search_classes(
        call,
        tree=tree,
        beam=beam,
        fill=False,
        threads=threads,
        time_limit=time_limit,
        search=0.0,
        seed=0,
        progress=progress,
    )
