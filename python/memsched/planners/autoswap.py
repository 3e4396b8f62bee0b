"""AUTOSWAP (Zhang et al., 2019): offload by a weighted sum of four priority scores until the memory fits."""

from __future__ import annotations

from memsched._core import Chain, Device
from memsched.planners.vdnn import vdnn
from memsched.problem import ChunkLike
from memsched.result import Result


def autoswap(
    chain: Chain,
    M: float | None = None,
    beta: float | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
) -> Result:
    """Being written."""
    return vdnn(chain, M, beta, device=device, chunk=chunk)
