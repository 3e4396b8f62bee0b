"""Swap-all, the baseline of PoocH (Ito et al., 2019): every feature map is swapped."""

from __future__ import annotations

from memsched import _core
from memsched._core import Device
from memsched.planners.call import begin, by_bisection
from memsched.planners.classes import WORKSPACE_LIMIT, by_default, need_of_swapping_all, of_classes
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem, altered
from memsched.result import Result
from memsched.support import checks
from memsched.support.checks import EXACT_BYTES
from memsched.support.types import Quantity, Size


@Planner("every feature map travels", needs=by_default(need_of_swapping_all), problems=("graph",))
def swap_all(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    workspace_limit: Size = WORKSPACE_LIMIT,
    scheduled: bool = True,
) -> Result:
    """Offload every feature map after its last forward use, and prefetch it for the backward.

    Three simulations. If nothing can be offloaded, without a link or with a host too small, everything is kept.

    Parameters
    ----------
    scheduled : bool
        Prefetch as early as memory allows, one layer ahead or on demand, whichever is fastest. Otherwise one layer
        ahead: the paper's "swap-all (w/o scheduling)".

    References
    ----------
    Ito, Imai, Duc, Negishi, Kawachiya, Matsumiya, Endo, "Profiling based out-of-core hybrid method for large neural
    networks", 2019, sections 4.3 and 5.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.analytic("alexnet", 4096).graph
    >>> result = ms.swap_all(graph, 16e9, 12e9)
    >>> len(result.offloaded)
    11
    """
    scheduled = checks.flag("scheduled", scheduled)
    least = need_of_swapping_all if scheduled else lambda graph, limit: 0  # the need of one layer ahead is found below
    call = of_classes(begin(swap_all, problem, M, beta, device), workspace_limit, need=least)
    planner = {"name": "swap_all", "scheduled": scheduled}

    def planned(memory: int) -> _core.Schedule | None:
        at = altered(call.device, memory=memory)
        return _core.swap_all(call.graph, at, call.workspace_limit, scheduled, planner)

    schedule = call.everything_stays() if call.stays else planned(call.device.memory)
    if schedule is None:  # it would fit with prefetches on demand
        enough = need_of_swapping_all(call.graph, call.workspace_limit)
        while planned(enough) is None:
            if enough == EXACT_BYTES:
                raise call.endless()
            enough = min(2 * enough, EXACT_BYTES)
        needed = by_bisection(lambda memory: planned(memory) is not None, call.device.memory, enough)
        raise call.no_plan(needed, "fetching one layer ahead does not fit")
    return call.result({"scheduled": scheduled}, schedule)
