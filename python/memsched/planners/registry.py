"""The registry: one line a planner. Everything that works with any planner goes through it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memsched import _core
from memsched._core import Chain, Device, Graph
from memsched.errors import InvalidInputError
from memsched.planners import minimum, modnn, olla, superneurons, tflms, vdnn_plus, vdnn_sync
from memsched.planners.autoswap import autoswap
from memsched.planners.base import Figures
from memsched.planners.dynprog import dynprog, dynprog_figures
from memsched.planners.graph_base import WORKSPACE_LIMIT, need_of_swapping_all
from memsched.planners.graph_sets import need_of_moving_all
from memsched.planners.greedy import greedy, greedy_figures
from memsched.planners.offload import offload
from memsched.planners.pofo import pofo, pofo_with_table
from memsched.planners.pooch import pooch
from memsched.planners.recompute import pofo_min_memory, rotor_min_memory
from memsched.planners.rotor import rotor, rotor_with_table
from memsched.planners.swap_all import swap_all
from memsched.planners.swap_opt import swap_opt
from memsched.planners.vdnn import vdnn
from memsched.problems.problem import ChunkLike, Problem, graph_of, least_memory
from memsched.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """A registered planner.

    Attributes
    ----------
    plan : callable
        planner(problem, M, beta, *, device, options) -> Result.
    min_memory : callable
        problem -> the least M (bytes, resident included) for which it has a plan on a device with a link.
    min_memory_on : callable or None
        The same of (chain, device, chunk), for a planner whose minimum depends on the link.
    problems : tuple of str
        "chain", "graph" or both: what it is listed for. Planners of graphs take chains as well, as their graph.
    summary : str
        One line for lists.
    recomputes : bool
        Whether its plans may run an op more than once.
    reorders : bool
        Whether its plans may run the ops in another order than the graph's.
    uses_link : bool
        Whether its plans depend on the link; if not, one plan serves all links of a memory.
    with_table : callable or None
        plan, with table=RematTable, for planners that answer many memories from one table.
    figures : callable or None
        (chain, options) -> what plans many devices at once and gives the figures of each as plan would, or None.
    """

    plan: Callable[..., Result]
    min_memory: Callable[..., int]
    summary: str
    problems: tuple[str, ...] = ("chain",)
    recomputes: bool = False
    reorders: bool = False
    uses_link: bool = True
    with_table: Callable[..., Result] | None = None
    figures: Callable[..., Figures | None] | None = None
    min_memory_on: Callable[[Chain, Device, ChunkLike], int] | None = None

    @property
    def free(self) -> bool:
        """Whether only the bound that holds for all plans, `recompute_bound`, holds for its plans."""
        return self.recomputes or self.reorders


def _tflms_min_memory(problem: Problem) -> int:
    if not isinstance(problem, Chain):
        return tflms.graph_min_memory(graph_of(problem), WORKSPACE_LIMIT)
    bandwidth = (problem.provenance or {}).get("link_bandwidth", math.inf)
    return tflms.min_memory(problem, Device(1, bandwidth))


def _autoswap_min_memory(problem: Problem) -> int:
    if isinstance(problem, Chain):
        return minimum.of_graph(problem)
    return need_of_moving_all(_core.fixed_choices(graph_of(problem), WORKSPACE_LIMIT))


def _graph_planner(
    plan: Callable[..., Result], need: Callable[[Graph, int], int], summary: str, **more: Any
) -> Planner:
    def least(problem: Problem) -> int:
        return need(graph_of(problem), WORKSPACE_LIMIT)

    return Planner(plan=plan, min_memory=least, summary=summary, problems=("graph",), **more)


PLANNERS: dict[str, Planner] = {
    "offload": Planner(plan=offload, min_memory=minimum.of_graph, summary="anytime search on the simulated makespan"),
    "pofo": Planner(
        plan=pofo,
        min_memory=pofo_min_memory,
        summary="recomputes and offloads",
        recomputes=True,
        with_table=pofo_with_table,
    ),
    "rotor": Planner(
        plan=rotor,
        min_memory=rotor_min_memory,
        summary="recomputes, offloads nothing",
        recomputes=True,
        uses_link=False,
        with_table=rotor_with_table,
    ),
    "dynprog": Planner(
        plan=dynprog,
        min_memory=minimum.of_fluid_model,
        summary="dynamic program, interruptible model",
        figures=dynprog_figures,
    ),
    "greedy": Planner(
        plan=greedy,
        min_memory=minimum.of_graph,
        summary="the first activations until the rest fits",
        figures=greedy_figures,
    ),
    "vdnn": Planner(plan=vdnn, min_memory=minimum.of_graph, summary="best threshold on forward time over size"),
    "tflms": Planner(
        plan=tflms.tflms,
        min_memory=_tflms_min_memory,
        min_memory_on=tflms.min_memory,
        summary="the first n, fixed lookahead, no waiting",
        problems=("chain", "graph"),
    ),
    "autoswap": Planner(
        plan=autoswap,
        min_memory=_autoswap_min_memory,
        summary="four priority scores, tuned weights",
        problems=("chain", "graph"),
    ),
    "modnn": Planner(
        plan=modnn.modnn,
        min_memory=modnn.least_memory,
        summary="sub-batches, offloading and algorithms, with addresses",
        problems=("graph",),
    ),
    "olla": Planner(
        plan=olla.olla,
        min_memory=olla.least_memory,
        summary="the order and the addresses that hold the least, nothing moves",
        problems=("graph",),
        reorders=True,
    ),
    "pooch": _graph_planner(
        pooch, need_of_swapping_all, "classes of feature maps: keep, swap or recompute", recomputes=True
    ),
    "swap_opt": _graph_planner(swap_opt, need_of_swapping_all, "classes of feature maps: keep or swap"),
    "swap_all": _graph_planner(swap_all, need_of_swapping_all, "every feature map travels"),
    "superneurons": _graph_planner(
        superneurons.superneurons,
        superneurons.least_memory,
        "the last stay, convolutions travel, the rest runs again",
        recomputes=True,
    ),
    "vdnn_sync": _graph_planner(
        vdnn_sync.vdnn_sync,
        lambda graph, _: vdnn_sync.least_memory(graph),
        "in step with the layers, as in the original",
    ),
    "vdnn_plus": Planner(
        plan=vdnn_plus.vdnn_plus,
        min_memory=vdnn_plus.least_memory,
        summary="the same on sub-batches",
        problems=("graph",),
    ),
}


def planners_of(problem: Problem) -> list[str]:
    """The names of the planners that are listed for a problem: those of chains, or those of graphs and families."""
    kind = "chain" if isinstance(problem, Chain) else "graph"
    return [name for name, entry in PLANNERS.items() if kind in entry.problems]


def check_planner(name: str) -> None:
    """Refuse what `plan` does not know: neither "auto" nor a planner.

    Raises
    ------
    InvalidInputError
        Listing what there is.
    """
    if not isinstance(name, str) or (name != "auto" and name not in PLANNERS):
        raise InvalidInputError(f"planner is {name!r}; it must be auto or one of {', '.join(PLANNERS)}")


def planner_named(name: str) -> Planner:
    """Look a planner up.

    Raises
    ------
    InvalidInputError
        No planner has this name.
    """
    if not isinstance(name, str) or name not in PLANNERS:
        raise InvalidInputError(f"planner is {name!r}; it must be one of {', '.join(PLANNERS)}")
    return PLANNERS[name]


def takes(plan: Callable[..., Result], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given options that the planner takes; None means the planner's default."""
    known = inspect.signature(plan).parameters
    return {name: value for name, value in given.items() if name in known and value is not None}


def min_memory(problem: Problem, planner: str | None = None) -> int:
    """The least M, in bytes, resident included.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    planner : str, optional
        That planner's own minimum. Without it, what no plan can do without: resident, and the largest need of one op
        (reads + writes + workspace; a tape that no op reads need not be written) or of all inputs and weights, which
        lie on the device at time 0. Some plan needs no more where there is a link and the host takes all. Of a family
        at batch 1. For tflms it depends on the link: the
        profile's is taken, or a free one where there is none.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.min_memory(ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]))
    16
    """
    if planner is None:
        return least_memory(problem)
    found = planner_named(planner)
    if not isinstance(problem, Chain) and "graph" not in found.problems:
        raise InvalidInputError(f"problem is a {type(problem).__name__}; {planner} plans a Chain")
    return found.min_memory(problem)


def least_on(chain: Chain, planner: str, device: Device, chunk: ChunkLike = None) -> int:
    """`min_memory`, on the link of this device where it depends on that."""
    found = planner_named(planner)
    return min_memory(chain, planner) if found.min_memory_on is None else found.min_memory_on(chain, device, chunk)
