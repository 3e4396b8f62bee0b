"""vDNN+ (Chen et al., 2018): vDNN with the sub-batches of moDNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memsched._core import Device, Graph
from memsched.errors import InfeasibleError
from memsched.planners.call import begin
from memsched.planners.classes import cannot_travel, need_of_keeping_all, of_classes
from memsched.planners.entry import Planner
from memsched.planners.graph import vdnn_sync
from memsched.planners.rounds import need_of_split, split, split_counts, split_for
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, graph_of
from memsched.result import Result
from memsched.support.types import Quantity


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
        enough = max(need_of_split(family, at), memory, needs(family.at(split(family, at)[0][0])))
        return enough if at == last or enough < need_of_split(family, at + 1) else None

    last = len(split_counts(family)) - 1
    failed, step, found = number - 1, 1, fits(number)
    while found is None:
        failed, number, step = number, min(last, number + step), 2 * step
        found = fits(number)
    while number - failed > 1:
        middle = (failed + number) // 2
        other = fits(middle)
        failed, number, found = (middle, number, found) if other is None else (failed, middle, other)
    return found


@Planner("vDNN++: as vdnn_sync, on sub-batches", needs=least_memory, problems=("graph",))
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
    call, number, rounds = begin(vdnn_plus, problem, M, beta, device), 0, [(graph_of(problem).batch, 1)]
    if isinstance(problem, GraphFamily):
        number = split_for(problem, call.device.memory)
        rounds = split(problem, number)
        call = replace(call, graph=problem.at(rounds[0][0]))
    try:
        started = of_classes(call, need=vdnn_sync.least_memory)
    except InfeasibleError as error:
        if not isinstance(problem, GraphFamily):
            raise
        least = _least_from(problem, number, call.device.memory + 1, lambda graph: _needs(graph, call.device))
        if least == error.min_memory:
            raise
        told = f"{error} in these rounds; other rounds need at least {call.told(least)}"
        raise InfeasibleError(told, least) from None
    return vdnn_sync.planned(started, rounds)


def _needs(graph: Graph, device: Device) -> int:
    """What vDNN needs on a graph with this device's link and host."""
    return need_of_keeping_all(graph, -1) if cannot_travel(graph, device) else vdnn_sync.least_memory(graph)
