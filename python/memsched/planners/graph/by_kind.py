"""Classes by the kind of op, which PoocH's authors compare with as SuperNeurons."""

from __future__ import annotations

import math

from memsched import _core
from memsched._core import Device, Graph, Schedule
from memsched.planners.call import begin, by_bisection, seconds_left, sooner
from memsched.planners.classes import WORKSPACE_LIMIT, by_default, need_of_keeping_all, of_classes
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support import quantities
from memsched.support.types import Quantity, Size


def _planned(graph: Graph, device: Device, workspace_limit: int, until: float) -> Schedule | None:
    return _core.by_kind(graph, device, workspace_limit, {"name": "by_kind"}, seconds_left(until))


def least_memory(graph: Graph, workspace_limit: int, above: int = 0, until: float = math.inf) -> int:
    """An M above `above` with a plan, while one byte less has none. With more memory there may again be none.

    When time.perf_counter() reaches `until`, the least M known so far.
    """
    return by_bisection(
        lambda memory: _planned(graph, Device(memory, 1.0), workspace_limit, sooner(until)) is not None,
        above,
        max(above + 1, need_of_keeping_all(graph, workspace_limit)),
        until,
    )


@Planner(
    "the last stay, convolutions travel, the rest runs again",
    needs=by_default(least_memory),
    problems=("graph",),
    recomputes=True,
    seconds_an_op=(1.4e-5, 1.4e-5),
)
def by_kind(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    workspace_limit: Size = WORKSPACE_LIMIT,
    time_limit: Quantity | None = None,
) -> Result:
    """Keep the last feature maps; of the others, swap those of convolutions and recompute the rest.

    As many maps are kept as fit if prefetches wait until they are needed. The plan then prefetches one convolution
    ahead. If that does not fit there is no plan, and more memory may not help. Only sizes are considered. O(maps)
    plans.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        For a family: its graph at full batch. Convolutions are ops of kind "conv".
    time_limit : float or str, optional
        Seconds; 0 or None for no limit.

    Raises
    ------
    InfeasibleError
        `.min_memory` is an M above the given one with a plan; if time allows, the least one found.
    LimitError
        Time ran out before it was known whether there is a plan.

    References
    ----------
    Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018; Ito et
    al., PoocH, 2019, section 5.2.

    Examples
    --------
    >>> import memsched as ms
    >>> device = ms.Device(16 * 10**9, 16e9, duplex=True)
    >>> result = ms.by_kind(ms.profiles.analytic("resnet50", 256).graph, device=device)
    >>> len(result.offloaded), len(result.recomputed) > 0
    (5, True)
    """
    call = of_classes(begin(by_kind, problem, M, beta, device), workspace_limit, need=lambda graph, limit: 0)
    until = call.until(quantities.time_limit(time_limit) or None)
    if call.stays:
        return call.result({}, call.everything_stays())
    schedule = _planned(call.graph, call.device, call.workspace_limit, until)
    if schedule is None:
        needed = least_memory(call.graph, call.workspace_limit, until=until)
        if needed <= call.device.memory:
            needed = least_memory(call.graph, call.workspace_limit, call.device.memory, until)
        raise call.no_plan(needed, "its classes, or their fetches one convolution ahead, do not fit")
    return call.result({}, schedule)
