"""Sets of feature maps that travel, for planners that take graphs as well as chains."""

from __future__ import annotations

import time

import numpy as np

from memsched import _core
from memsched._core import Chain, Device, Graph
from memsched.planners import minimum
from memsched.planners.base import SetTask, check_memory, start
from memsched.planners.graph_base import infeasible
from memsched.problems.problem import ChunkLike, Problem, graph_of, make_device
from memsched.support import checks


def need_of_moving_all(graph: Graph) -> int:
    """The least M when every tensor that may travel is away whenever it may be. All ops must have one algorithm."""
    lives, movable = _core.Lifetimes(graph), _core.movable_tensors(graph)
    sizes = np.asarray(_core.tensor_bytes(graph), dtype=np.int64)[movable]
    away = np.zeros(_core.op_count(graph) + 1, dtype=np.int64)
    np.add.at(away, np.maximum(np.asarray(lives.last_forward, dtype=np.int64)[movable], 0) + 1, sizes)
    np.subtract.at(away, np.asarray(lives.first_backward, dtype=np.int64)[movable], sizes)
    return graph.resident + int((np.asarray(lives.usage) - np.cumsum(away)[:-1]).max())


def start_sets(
    planner: str,
    problem: Problem,
    M: float | None,
    beta: float | None,
    device: Device | None,
    chunk: ChunkLike,
    workspace_limit: object,
    *,
    least: bool = True,
) -> SetTask:
    """Check a call for a chain or a graph. Of a graph every tensor that may travel is a block of its own.

    With `least` that M is enough for each op is checked, too.

    Raises
    ------
    InvalidInputError
        A bad problem, M, beta, device, chunk or workspace_limit.
    InfeasibleError
        M is below the least of any plan, or below the peak when there is no link.
    """
    limit = checks.size("workspace_limit", workspace_limit)
    if isinstance(problem, Chain):
        return start(planner, problem, M, beta, device, chunk, min_memory=minimum.of_graph if least else lambda _: 0)
    started = time.perf_counter()
    graph = _core.fixed_choices(graph_of(problem, chunk), limit)
    device = make_device(M, beta, device)
    movable = _core.movable_tensors(graph)
    moved = int(np.asarray(_core.tensor_bytes(graph))[movable].sum())
    peak, host = _core.graph_peak_memory(graph), device.host_memory
    if host is not None and host < moved and device.memory < peak:
        reason = f"the host takes {host} bytes, not all {moved} that may travel, so all must stay"
        raise infeasible(planner, graph.name, device, peak, reason)
    check_memory(planner, graph, device, lambda: need_of_moving_all(graph) if least else 0, copies=len(movable))
    stage = np.full(_core.tensor_count(graph), -1, dtype=np.int64)
    stage[movable] = np.arange(len(movable))
    return SetTask(
        problem=problem,
        graph=graph,
        device=device,
        chunk=None,
        started=started,
        blocks=len(movable),
        stage=stage,
        workspace_limit=limit,
    )
