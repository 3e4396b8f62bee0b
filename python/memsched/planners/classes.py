"""Planners that choose a class for each feature map: their calls, their memory needs, and their search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from memsched import _core
from memsched._core import Device, Graph, Schedule
from memsched.errors import InfeasibleError
from memsched.planners.call import Call, seconds_left, without_link
from memsched.problems.problem import Problem, graph_of
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.formats import exact_bytes
from memsched.support.memo import once_per_object
from memsched.support.types import Flags, Progress, Quantity

WORKSPACE_LIMIT = 8 << 20  # bytes; Chainer's default for cuDNN
FIRST = object()  # instead of a limit: each op uses its first algorithm

Need = Callable[[Graph, int], int]  # the least M on a graph, given a workspace limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCall(Call):
    """One call of a planner that chooses classes."""

    workspace_limit: int  # bytes: each op uses the fastest algorithm within it; -1: its first one
    cannot: str  # why the feature maps cannot all be offloaded; "" if they can
    stays: bool  # they cannot all be offloaded, but everything fits, so nothing needs to be

    def everything_stays(self) -> Schedule:
        """The plan that keeps all feature maps."""
        kept = np.zeros(len(_core.feature_maps(self.graph)), np.uint8)
        limit, planner = self.workspace_limit, {"name": self.entry.name}
        schedule = _core.class_schedule(self.graph, self.device, limit, kept, planner=planner)
        assert schedule is not None  # `of_classes` has checked its peak
        return schedule

    def result(self, params: dict[str, Any], schedule: Schedule, **known: Any) -> Result:
        """Simulate a schedule and make a Result of it."""
        options = {"workspace_limit": self.workspace_limit, **params} if self.workspace_limit >= 0 else params
        return Call.result(self, options, schedule, **known)

    def endless(self) -> InfeasibleError:
        """The error if plans fit but take forever, or if not all feature maps can be offloaded."""
        needed = need_of_keeping_all(self.graph, self.workspace_limit)
        enough = bool(self.cannot) and not self.stays  # with a mixture of classes, less may do
        return self.no_plan(needed, self.cannot or "the link is so slow that no plan ends", enough=enough)


def all_swap(graph: Graph) -> Flags:
    """Flags that offload every feature map."""
    return np.ones(len(_core.feature_maps(graph)), np.uint8)


@once_per_object
def need_of_swapping_all(graph: Graph, workspace_limit: int) -> int:
    """The least M at which a plan exists that swaps every feature map."""
    return _core.least_budget(graph, workspace_limit, all_swap(graph))


@once_per_object
def need_of_keeping_all(graph: Graph, workspace_limit: int) -> int:
    """The least M at which nothing has to be offloaded."""
    return _core.least_budget(graph, workspace_limit, 0 * all_swap(graph))


def cannot_travel(graph: Graph, device: Device, *, mixes: bool = False) -> str:
    """Why the feature maps cannot all be offloaded; "" if they can. `mixes`: a mixture of classes may be tried."""
    moved = int(np.asarray(_core.tensor_bytes(graph))[_core.feature_maps(graph)].sum())
    if without_link(device, moved, _core.tensor_count(graph)):
        end = "no mixture tried fits" if mixes else "everything must stay"
        return f"without a link (beta is 0, missing or next to nothing) {end}"
    if device.host_memory is None or device.host_memory >= moved:
        return ""
    end = "and no mixture tried fits" if mixes else "so all must stay"
    return f"the host takes {exact_bytes(device.host_memory)}, not the {exact_bytes(moved)} of all feature maps, {end}"


def of_classes(
    call: Call, workspace_limit: object = FIRST, *, need: Need = need_of_swapping_all, mixes: bool = False
) -> ClassCall:
    """The call of a planner of graphs, if it can succeed: InfeasibleError if M is below what is needed.

    `need` is the planner's minimum if feature maps can be offloaded. Without a link, or with a host too small for all
    of them, the minimum is what keeps all of them, unless the planner `mixes` classes: then it may try with less.
    """
    limit = -1 if workspace_limit is FIRST else quantities.size("workspace_limit", workspace_limit)
    reason, memory = cannot_travel(call.graph, call.device, mixes=mixes), call.device.memory
    needed = (need_of_keeping_all if reason else need)(call.graph, limit)
    if memory < needed and not (reason and mixes):
        raise call.no_plan(needed, reason or "some op does not fit")
    stays = bool(reason) and memory >= needed
    return ClassCall(**call.facts | {"workspace_limit": limit}, cannot=reason, stays=stays)


def by_default(need: Need) -> Callable[[Problem], int]:
    """The least M on a problem's graph, with the default workspace limit."""
    return lambda problem: need(graph_of(problem), WORKSPACE_LIMIT)


def search_classes(
    call: ClassCall,
    tree: int,
    beam: int,
    threads: int,
    time_limit: Quantity,
    progress: Progress,
    *,
    fill: bool = False,
    search: float = 0.0,
    seed: int = 0,
) -> Result:
    """PoocH's search, with or without recomputation; its options are checked here."""
    checks.progress(progress)
    tree = checks.count("tree", tree, 0, 20)
    beam = checks.count("beam", beam, 1, 1000)
    threads = checks.count("threads", threads, 0, 1024)
    time_limit = quantities.seconds("time_limit", time_limit)
    search = quantities.seconds("search", search)
    seed = checks.count("seed", seed, 0, 2**63 - 1)
    recompute = call.entry.recomputes
    params: dict[str, Any] = {"tree": tree, "beam": beam}
    if recompute:
        params |= {"fill": checks.flag("fill", fill), "time_limit": time_limit, "search": search, "seed": seed}
    if call.stays:
        return call.result({**params, "evaluations": 0}, call.everything_stays())
    graph, device, limit, planner = call.graph, call.device, call.workspace_limit, {"name": call.entry.name, **params}
    left = seconds_left(call.until(time_limit or None))
    schedule, evaluations = _core.pooch(
        graph, device, limit, recompute, tree, beam, fill, threads, left, search, seed, planner, progress
    )
    if schedule is None:
        raise call.endless()
    return call.result({**params, "evaluations": evaluations}, schedule)
