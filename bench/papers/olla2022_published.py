"""The code that OLLA's authors published, on our captured steps, with HiGHS in the place of Gurobi.

It lies in a checkout of github.com/facebookresearch/OLLA that the caller has, and needs networkx and intervaltree. As
in the authors' benchmark, control edges force weight updates early, and the solver may stop at a gap of 0.5 %.
"""

from __future__ import annotations

import contextlib
import heapq
import importlib
import io
import json
import logging
import os
import subprocess
import sys
import time
import types
from functools import cache
from pathlib import Path
from typing import Any

from bench.common import ROOT, Row
from bench.papers import olla2022_gurobi
from bench.papers.olla2022_orders import Flow

import memsched as ms

__all__ = ["published"]

GAP = 0.005


@cache
def _load(source: Path) -> types.SimpleNamespace:
    """The parts of the checkout that plan; the package's own start would import much more."""
    sys.modules["gurobipy"] = olla2022_gurobi.module()
    drawing, package = types.ModuleType("graphviz"), types.ModuleType("olla")
    vars(drawing)["Digraph"] = None
    package.__path__ = [str(source / "olla")]
    sys.modules.setdefault("graphviz", drawing)
    sys.modules["olla"] = package
    sys.setrecursionlimit(100_000)  # it walks graphs recursively
    names = ("dataflow_graph", "training_graph_optimizer", "utils")
    return types.SimpleNamespace(**{name: importlib.import_module(f"olla.{name}") for name in names})


def _converted(olla: Any, flow: Flow) -> Any:
    """The graph in the form of the published code; op k is the node "k".

    A weight update there is a node without readers that refers to a weight. Workspaces are left out.
    """
    made = olla.dataflow_graph.Graph(flow.graph.name)
    nodes = [made.add_node(str(op), "call_function") for op in flow.listed()]
    updates = {op for op, known in enumerate(flow.graph.ops) if known["kind"] == "optimizer"}
    updates = {op for op in updates if set(flow.after[op]) <= {len(nodes) - 1}}
    for tensor, count in enumerate(flow.bytes):
        writer = flow.writer[tensor]
        sinks = [nodes[op] for op in flow.readers[tensor] if writer not in updates or op < len(nodes) - 1]
        if sinks:
            source = nodes[writer] if writer >= 0 else made.add_node(f"input{tensor}", "placeholder")
            made.add_edge([source], sinks, count, name=f"tensor{tensor}")
    for op in updates:
        weight = made.add_node(f"params_{op}", "weight", size=1)
        made.add_edge([weight], [nodes[op]], 0, name=f"weight{op}")
    made.canonicalize()
    made.constrain_weight_updates()
    made.constrain_tensor_generators()
    return made


def _in_order(flow: Flow, moments: dict[str, int]) -> list[int]:
    """Ops by their moments, of which several may share one."""
    late = max(moments.values(), default=0) + 1
    when = [moments.get(str(op), late) for op in flow.listed()]
    waits = [len(before) for before in flow.before]
    ready = [(when[op], op) for op, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, chosen = heapq.heappop(ready)
        order.append(chosen)
        for op in flow.after[chosen]:
            waits[op] -= 1
            if waits[op] == 0:
                heapq.heappush(ready, (when[op], op))
    return order


def published(flow: Flow, source: Path, limit: float) -> Row:
    """The peak of the order that it finds in so many seconds of solving; None if it finds none.

    HiGHS may exceed its limit by far, so another process does it, which has three times as long.
    """
    command = [sys.executable, "-m", "bench.papers.olla2022_published", str(source), str(limit)]
    given = json.dumps(flow.graph.to_json())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            command,
            input=given,
            cwd=ROOT,
            env=environment,
            timeout=3 * limit,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return {"limit": limit, "seconds": 3 * limit, "columns": None, "rows": None, "solved": False, "found": None}
    found: Row = json.loads(done.stdout)
    return found


def _run(flow: Flow, source: Path, limit: float) -> Row:
    logging.getLogger().handlers = [logging.NullHandler()]  # its messages about licences cannot be formatted
    olla = _load(source)
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        graph = _converted(olla, flow)
        scheduler = olla.training_graph_optimizer.Scheduler(graph, rel_stop=GAP, timeout_s=limit)
        try:
            _, schedule, _ = scheduler.ComputeOptimalSchedule(allow_swaps=False, max_spills=0)
            moments = {node.name: when for node, when in olla.utils.extract_node_ordering(graph, schedule).items()}
        except RuntimeError:  # no solution in time
            moments = None
    model = olla2022_gurobi.Model.last
    row: Row = {"limit": limit, "seconds": time.perf_counter() - begin, "columns": len(model.columns)}
    row |= {"rows": len(model.rows), "solved": model.Status == olla2022_gurobi.GRB.OPTIMAL}
    return {**row, "found": None if moments is None else flow.peak(_in_order(flow, moments))}


if __name__ == "__main__":
    made = ms.Graph.from_json(json.load(sys.stdin))
    print(json.dumps(_run(Flow(made), Path(sys.argv[1]), float(sys.argv[2]))))
