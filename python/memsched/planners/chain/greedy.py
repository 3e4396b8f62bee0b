"""GREEDY (Euro-Par 2020, section 4): offload the first activations until the rest fits."""

from __future__ import annotations

from functools import partial

from memsched._core import Chain, ChainPlanner, Device
from memsched.planners.entry import Figures, Planner
from memsched.planners.sets import begin_chain, plans_of
from memsched.problems.problem import ChunkLike, least_memory
from memsched.result import Result
from memsched.support.types import Quantity

GREEDY = ChainPlanner.greedy()


def greedy_figures(chain: Chain, *, chunk: ChunkLike = None) -> Figures:
    """A function that plans for many devices at once and returns figures only."""
    return partial(plans_of(chain, chunk).figures, GREEDY)


@Planner("the first activations until the rest fits", needs=least_memory, figures=greedy_figures)
def greedy(
    chain: Chain,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
) -> Result:
    """Offload the first activations of a chain, as early as possible, until the rest fits; prefetch them in time.

    Optimal if fractions of activations may travel (Theorem 2). Here the amount is rounded up to whole activations or
    pieces. O(n) time.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, section 4, Theorem 2.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.greedy(chain, M=20, beta=4).offloaded
    ('a0',)
    """
    call = begin_chain(greedy, chain, M, beta, device, chunk)
    params = {"chunk": call.chunk}
    return call.plan({"name": "greedy", **params}, params, call.plans.choose(GREEDY, call.device)[0])
