"""vDNN (Rhu et al., 2016) layer by layer: transfers are synchronised with the layers, as in the original."""

from __future__ import annotations

from memsched import _core
from memsched._core import Device, Graph
from memsched.planners.call import begin
from memsched.planners.classes import ClassCall, of_classes
from memsched.planners.entry import Planner
from memsched.planners.rounds import Rounds
from memsched.problems.problem import Problem, graph_of
from memsched.result import Result
from memsched.support.memo import once_per_object
from memsched.support.types import Quantity


@once_per_object
def least_memory(graph: Graph, workspace_limit: int = -1) -> int:
    """The need of the smaller of the two sets, with the least workspace of each op."""
    return min(_core.least_budget(graph, workspace_limit, _core.vdnn_classes(graph, only)) for only in (False, True))


@Planner(
    "in step with the layers, as in the original",
    needs=lambda problem: least_memory(graph_of(problem)),
    problems=("graph",),
)
def vdnn_sync(
    problem: Problem, M: Quantity | None = None, beta: Quantity | None = None, *, device: Device | None = None
) -> Result:
    """Offload the inputs of all layers, or of convolutions only, in step with the layers; the faster of the two.

    vDNN_all offloads each feature map that the forward reads in an op of any kind but "fc", vDNN_conv each that an op
    of kind "conv" reads. A layer waits for the offloads issued with the layer before. Prefetches are issued one layer
    ahead, or on demand if that does not fit. Each run uses the fastest algorithm whose workspace finds room. Two
    simulations. If nothing can be offloaded, without a link or with a host too small, everything is kept.

    Returns
    -------
    Result
        params["moved"] is "all" or "conv".

    References
    ----------
    Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, "vDNN: virtualized deep neural networks for scalable, memory-efficient
    neural network design", MICRO 2016.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.analytic("vgg16", 256, "k40m").graph
    >>> ms.vdnn_sync(graph, 12 * 2**30, 10e9).params["moved"]
    'conv'
    """
    call = of_classes(begin(vdnn_sync, problem, M, beta, device), need=least_memory)
    return planned(call, [(call.graph.batch, 1)])


def planned(call: ClassCall, rounds: Rounds) -> Result:
    """The plan of a call in these rounds; its graph is that of the larger ones."""
    schedule, convolutions = _core.vdnn_sync(call.graph, call.device, {"name": call.entry.name}, stays=call.stays)
    if schedule is None:
        raise call.endless()
    moved = None if call.stays else "conv" if convolutions else "all"
    return call.result({"moved": moved}, schedule.with_rounds(rounds))
