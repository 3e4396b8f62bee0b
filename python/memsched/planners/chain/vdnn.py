"""VDNN as generalised in the Euro-Par paper (section 6.1): offload by the ratio of forward time to activation size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memsched._core import Chain, Device, Graph
from memsched.errors import InfeasibleError
from memsched.planners.entry import Planner
from memsched.planners.graph.vdnn_sync import least_memory as least_of_vdnn_sync
from memsched.planners.graph.vdnn_sync import vdnn_sync
from memsched.planners.sets import begin_chain
from memsched.problems.family import GraphFamily
from memsched.problems.problem import ChunkLike, Problem, graph_of, least_memory
from memsched.result import Result
from memsched.support import quantities
from memsched.support.types import Flags, Quantity


def _needs(problem: Problem) -> int:
    return least_memory(problem) if isinstance(problem, Chain) else least_of_vdnn_sync(graph_of(problem))


@Planner("best threshold on forward time over size", needs=_needs, unlisted=("graph",))
def vdnn(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
    time_limit: Quantity | None = None,
) -> Result:
    """Offload the activations of a chain whose forward is long for their size, by the best of all thresholds.

    For every threshold t on u_F(i) / |x_i|, two sets are simulated: all activations with a ratio >= t, and every second
    one of these. O(n) simulations. Graphs and families are planned layer by layer, by `vdnn_sync`.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    time_limit : float or str, optional
        For a chain: seconds after which no more sets are tried; 0 or None for no limit.

    Returns
    -------
    Result
        params["threshold"] (seconds per byte; None: nothing is offloaded) and params["every_other"] of the best set.

    Raises
    ------
    LimitError
        Time ran out before a set that runs was found.

    References
    ----------
    Rhu et al., "vDNN", MICRO 2016; Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, section 6.1.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.vdnn(chain, M=20, beta=4).makespan
    7.0
    """
    limit, chunk = quantities.time_limit(time_limit) or None, quantities.chunk(chunk)
    if isinstance(problem, Graph | GraphFamily):
        graph_of(problem, chunk)  # which is not cut
        try:
            return vdnn_sync(problem, M, beta, device=device)
        except InfeasibleError as error:
            raise InfeasibleError(f"vdnn plans graphs as vdnn_sync does, and {error}", error.min_memory) from None
    call = begin_chain(vdnn, problem, M, beta, device, chunk)
    chain = call.chain
    sizes = np.array([chain.activation[0], *chain.saved[:-1]], dtype=float)
    ratio = np.divide(chain.forward_time, sizes, out=np.zeros(chain.n), where=sizes > 0)
    thresholds = np.unique(ratio)[::-1]

    def stages(numbers: npt.NDArray[np.int64]) -> Flags:
        """The sets by number: 0 is empty, then one per threshold, then every second tensor of each of these."""
        reached = ratio[None, :] >= thresholds[(numbers - 1) % len(thresholds), None]
        every_other = reached & (np.cumsum(reached, axis=1) % 2 == 1)
        chosen: Flags = np.where((numbers > len(thresholds))[:, None], every_other, reached).astype(np.uint8)
        chosen[numbers == 0] = 0
        return chosen

    makespans = call.makespans_of_many(stages, 1 + 2 * len(thresholds), time_limit=limit)[0]
    if not np.isfinite(makespans).any():
        raise call.host_error()
    best = int(np.argmin(makespans))
    params = {
        "chunk": call.chunk,
        "threshold": None if best == 0 else float(thresholds[(best - 1) % len(thresholds)]),
        "every_other": best > len(thresholds),
    }
    schedule = call.schedule(call.tensors(stages(np.array([best])))[0], {"name": "vdnn"})
    return call.result(params, schedule)
