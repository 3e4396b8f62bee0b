"""TFLMS (TensorFlow large model support) as the Euro-Par paper compares it: the first n tensors, blindly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, Device
from memsched.errors import InfeasibleError
from memsched.fluid import Flags
from memsched.planners.base import ChainTask, start
from memsched.planners.minimum import by_bisection
from memsched.problem import ChunkLike, make_device
from memsched.result import Result

LOOKAHEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def _prefixes(n: int) -> Flags:
    """Row r offloads x_0 .. x_{r-1}."""
    return np.tri(n + 1, n, -1, dtype=np.uint8)


def _makespans(task: ChainTask) -> npt.NDArray[np.float64]:
    """Makespans over (n, lookahead); a forward that waits for memory counts as failed."""
    rows = task.tensors(_prefixes(task.chain.n))
    return np.array([task.makespans(rows, ahead=ahead, stall=False) for ahead in LOOKAHEADS])


def min_memory(chain: Chain, device: Device, chunk: ChunkLike = None) -> int:
    """The least M at which some (n, lookahead) runs, by bisection: with more memory nothing waits longer."""
    task = start("tflms", chain, _core.graph_peak_memory(_core.to_graph(chain, None)), None, device, chunk)
    blocks = np.array_split(task.tensors(_prefixes(chain.n)), 1 + chain.n // 16)

    def runs(memory: int) -> bool:
        at = replace(task, device=make_device(memory, None, device))
        return any(np.isfinite(at.makespans(rows, ahead=1, stall=False)).any() for rows in blocks)

    return by_bisection(runs, 0, task.device.memory)


def tflms(
    chain: Chain,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
) -> Result:
    """Offload the first n activations and prefetch a fixed number of stages ahead; the best of all such settings.

    It knows no profile and never delays a forward to wait for memory: a setting under which one would wait has failed,
    and so has one whose prefetches do not fit.

    Parameters
    ----------
    chain : Chain
    M : int
        Bytes, resident included.
    beta : float
        Bytes per second; 0 means no link, inf a free one.
    device : Device, optional
        Instead of M and beta, which override its memory and bandwidth.
    chunk : None, int or "storage"
        How the chosen activations travel: whole, or in pieces.

    Returns
    -------
    Result
        params["tensors"] and params["lookahead"] (stages) are the winner's.

    Raises
    ------
    InfeasibleError
        No setting runs; `.min_memory` is where one does.
    InvalidInputError

    References
    ----------
    Le et al., "TFLMS", 2018; Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, section 6.1.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.tflms(chain, M=20, beta=8).params["tensors"]
    1
    """
    task = start("tflms", chain, M, beta, device, chunk)
    makespans = _makespans(task)
    if not np.isfinite(makespans).any():
        least = min_memory(chain, task.device, chunk)
        raise InfeasibleError(
            f"tflms has no plan for '{chain.name}' in {task.device.memory} bytes: every setting makes a forward wait "
            f"for memory, which tflms cannot do; it needs M >= {least}",
            least,
        )
    row, count = divmod(int(np.argmin(makespans)), makespans.shape[1])
    flags = task.tensors(_prefixes(chain.n)[count])
    params = {"chunk": chunk, "tensors": count, "lookahead": LOOKAHEADS[row]}
    planner = {"name": "tflms", "tensors": count, "lookahead": LOOKAHEADS[row]}
    return task.result("tflms", params, task.schedule(flags, planner, LOOKAHEADS[row]))
