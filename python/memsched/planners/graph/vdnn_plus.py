"""vDNN+ (Chen et al., 2018): vDNN on moDNN's sub-batches."""

from __future__ import annotations

import dataclasses

from memsched import _core
from memsched._core import Device
from memsched.errors import InfeasibleError
from memsched.planners.classes import FIRST, ClassCall, begin_classes
from memsched.planners.entry import planner
from memsched.planners.graph import vdnn_sync
from memsched.planners.minimum import by_bisection
from memsched.planners.rounds import Rounds, rounds_of
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, graph_of, make_device
from memsched.result import Result
from memsched.support.checks import EXACT_BYTES


def least_memory(problem: Problem) -> int:
    """An M at which vDNN runs on the sub-batch that eq. (3) gives, and with one byte less does not."""
    if not isinstance(problem, GraphFamily):
        return vdnn_sync.least_memory(graph_of(problem))

    def runs(memory: int) -> bool:
        return vdnn_sync.least_memory(problem.at(rounds_of(problem, memory)[0][0])) <= memory

    return by_bisection(runs, 0, max(1, vdnn_sync.least_memory(problem.graph), _core.graph_peak_memory(problem.graph)))


@planner("the same on sub-batches", needs=least_memory, problems=("graph",))
def vdnn_plus(
    problem: Problem,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
) -> Result:
    """Split the batch as `modnn` does, so that each op fits with its fastest algorithm, and plan as `vdnn_sync`.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        Only a family can be split; of others the plan is that of `vdnn_sync`.
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.

    Returns
    -------
    Result
        lower_bound holds for the same rounds. params["moved"] is "all" or "conv".

    Raises
    ------
    InfeasibleError
        `.min_memory` is an M above the one given at which there is a plan.
    InvalidInputError

    References
    ----------
    Chen, Chen, Hu, "moDNN: memory optimal DNN training on GPUs", DATE 2018, section IV.

    Examples
    --------
    >>> import memsched as ms
    >>> family = ms.profiles.analytic("vgg16", 256, "k40m")
    >>> ms.vdnn_plus(family, 4 * 2**30, 10e9).schedule.rounds
    ((32, 8),)
    """
    device = make_device(M, beta, device)
    try:
        call, rounds = _start(problem, device)
    except InfeasibleError as error:
        if not isinstance(problem, GraphFamily):
            raise
        least = _least_above(problem, device)
        raise InfeasibleError(f"{error} at these rounds, or with others M >= {least}", least) from None
    if call.stays:
        return call.result({"moved": None}, call.everything_stays().with_rounds(rounds))
    schedule, convolutions = _core.vdnn_sync(call.graph, call.device, {"name": "vdnn_plus"})
    if schedule is None:
        raise call.endless()
    return call.result({"moved": "conv" if convolutions else "all"}, schedule.with_rounds(rounds))


def _start(problem: Problem, device: Device) -> tuple[ClassCall, Rounds]:
    """The call at the larger sub-batch, and the rounds."""
    family = problem if isinstance(problem, GraphFamily) else None
    rounds = [(graph_of(problem).batch, 1)] if family is None else rounds_of(family, device.memory)
    graph = graph_of(problem) if family is None else family.at(rounds[0][0])
    call = begin_classes(vdnn_plus, graph, None, None, device, FIRST, need=vdnn_sync.least_memory)
    return dataclasses.replace(call, problem=problem), rounds


def _least_above(problem: Problem, device: Device) -> int:
    def runs(memory: int) -> bool:
        try:
            _start(problem, make_device(memory, None, device))
        except InfeasibleError:
            return False
        return True

    high = 2 * device.memory
    while high < EXACT_BYTES and not runs(high):
        high *= 2
    high = min(high, EXACT_BYTES)
    return by_bisection(runs, device.memory, high)
