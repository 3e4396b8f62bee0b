"""vDNN+ (Chen et al., 2018): vDNN with the sub-batches of moDNN."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from memsched._core import Device, Graph
from memsched.errors import InfeasibleError
from memsched.planners.classes import FIRST, ClassCall, begin_classes
from memsched.planners.entry import Planner
from memsched.planners.graph import vdnn_sync
from memsched.planners.rounds import Rounds, choice, choices, number_of, rounds_of
from memsched.problems.budget import asked_memory, make_device, told_bytes
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, graph_of
from memsched.result import Result
from memsched.support.types import Quantity
from memsched.support.units import Bytes, unit_written


def least_memory(problem: Problem) -> int:
    """An M at which vDNN runs on the sub-batch of eq. (3); the least one if needs grow with the batch."""
    if not isinstance(problem, GraphFamily):
        return vdnn_sync.least_memory(graph_of(problem))
    return _least_from(problem, 0, 1, vdnn_sync.least_memory)


def _least_from(family: GraphFamily, number: int, memory: int, needs: Callable[[Graph], int]) -> int:
    """An M of at least `memory` at which some split of the batch, from this number on, has a plan.

    A split has a plan if it needs less than the memory at which eq. (3) chooses the next one. Each split that is
    examined costs two graphs, so few are examined.
    """

    def fits(at: int) -> int | None:
        rounds, low = choice(family, at)
        enough = max(low, memory, needs(family.at(rounds[0][0])))
        return enough if at + 1 == choices(family) or enough < choice(family, at + 1)[1] else None

    last, failed, step, found = choices(family) - 1, number - 1, 1, fits(number)
    while found is None:
        failed, number, step = number, min(last, number + step), 2 * step
        found = fits(number)
    while number - failed > 1:
        middle = (failed + number) // 2
        other = fits(middle)
        failed, number, found = (middle, number, found) if other is None else (failed, middle, other)
    return found


@Planner("the same on sub-batches", needs=least_memory, problems=("graph",))
def vdnn_plus(
    problem: Problem, M: Quantity | None = None, beta: Quantity | None = None, *, device: Device | None = None
) -> Result:
    """Split the batch as `modnn` does, so that each op fits with its fastest algorithm; then plan as `vdnn_sync` does.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        Only a family can be split; for other problems the plan is that of `vdnn_sync`.

    Returns
    -------
    Result
        lower_bound holds for the same rounds. params["moved"] is "all" or "conv".

    Raises
    ------
    InfeasibleError
        `.min_memory` is an M above the given one with a plan.

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
    asked = asked_memory(problem, M, device)
    device, unit = make_device(problem, asked, beta, device), unit_written(asked)
    try:
        call, rounds = _start(problem, device, unit)
    except InfeasibleError as error:
        if not isinstance(problem, GraphFamily):
            raise
        number = number_of(problem, rounds_of(problem, device.memory))
        least = _least_from(problem, number, device.memory + 1, partial(_needs, device=device))
        if least == error.min_memory:
            raise
        needs = told_bytes(least, unit, problem, up=True)
        raise InfeasibleError(f"{error} in these rounds; other rounds need at least {needs}", least) from None
    return vdnn_sync.planned(call, rounds)


def _start(problem: Problem, device: Device, unit: str) -> tuple[ClassCall, Rounds]:
    """The call for the larger sub-batch, and the rounds."""
    family = problem if isinstance(problem, GraphFamily) else None
    rounds = [(graph_of(problem).batch, 1)] if family is None else rounds_of(family, device.memory)
    graph = graph_of(problem) if family is None else family.at(rounds[0][0])
    memory = None if unit == "%" and family is not None else Bytes(device.memory, unit)  # a share of all the family
    call = begin_classes(vdnn_plus, graph, memory, None, device, FIRST, need=vdnn_sync.least_memory)
    return dataclasses.replace(call, problem=problem), rounds


def _needs(graph: Graph, device: Device) -> int:
    """What vDNN needs on a graph with this device's link and host."""
    try:
        begin_classes(vdnn_plus, graph, 1, None, device, FIRST, need=vdnn_sync.least_memory)
    except InfeasibleError as error:
        return error.min_memory
    return 1
