"""Graphs whose updates may also run on the host."""

from __future__ import annotations

import math

from memsched._core import Graph
from memsched.errors import InvalidInputError, shown
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.support.documents import Document
from memsched.support.types import Quantity


@public
def with_host_updates(graph: Graph, memory_bandwidth: Quantity) -> Graph:
    """Return the same graph, with updates of the optimiser that may also run on the host.

    An update that runs there reads and writes copies on the host: the gradient travels to it and the parameter back,
    and states of the optimiser never travel. `selective` chooses the place of each update (docs/schedule.md, E12).
    Tensors without bytes that only tell that an update is over are dropped where they order nothing.

    Parameters
    ----------
    graph : Graph
        With persistent tensors, and ops that do nothing but update some.
    memory_bandwidth : float or str
        Bytes per second that the host reads and writes while it updates. An op takes the time to read all that it reads
        and to write all that it updates; one that has a "host_time", such as one that was measured, keeps it.

    Raises
    ------
    InvalidInputError
        No op does nothing but update, or the bandwidth is no number of at least 1.

    Examples
    --------
    >>> import memsched as ms
    >>> roles = {"w": "persistent", "m": "persistent", "g": "gradient"}
    >>> tensors = [{"name": name, "size": 4, "role": role} for name, role in roles.items()]
    >>> choices = [{"alg": "default", "time": 1, "workspace": 0}]
    >>> back = {"name": "B", "phase": "bwd", "reads": ["w"], "writes": ["g"], "choices": choices}
    >>> update = {"name": "U", "phase": "bwd", "reads": ["w", "m", "g"], "writes": [], "updates": ["w", "m"]}
    >>> step = ms.Graph(tensors, [back, {**update, "once": True, "choices": choices}])
    >>> ms.with_host_updates(step, "20 B/s").ops[1]["host_time"]
    1.0
    """
    checks.kind("graph", graph, Graph)
    text = isinstance(memory_bandwidth, str)
    rate = quantities.bandwidth("memory_bandwidth", memory_bandwidth) if text else checks.as_float(memory_bandwidth)
    if not rate >= 1:
        raise InvalidInputError(f"memory_bandwidth is {shown(memory_bandwidth)}; give at least 1 byte per second")
    document = graph.to_json()
    size = {tensor["name"]: tensor["size"] for tensor in document["tensors"]}
    updates = [op for op in document["ops"] if op.get("updates") and not any(size[name] for name in op["writes"])]
    if not updates:
        raise InvalidInputError(
            f"no op of '{graph.name}' does nothing but update persistent tensors; capture the step with its optimizer, "
            "or list what an op writes in place under its updates"
        )
    for op in updates:
        moved = sum(size[name] for name in (*op["reads"], *op["updates"]))
        op.setdefault("host_time", 0.0 if math.isinf(rate) else moved / rate)
    _free_of_order(document, updates)
    return Graph.from_json(document)


def _free_of_order(document: Document, updates: list[Document]) -> None:
    """Drop what updates write to tell that they are over, for those readers for which that says nothing.

    Of these, one reads what the update changes, and so keeps its place; another computes nothing, as the end of a step.
    On the device, it would wait for all updates on the host, and so would the next step.
    """
    changes = {name: set(op["updates"]) for op in updates for name in op["writes"]}
    for op in document["ops"]:
        idle = not (op["writes"] or op.get("updates") or any(choice["time"] for choice in op["choices"]))
        op["reads"] = [
            name for name in op["reads"] if name not in changes or not (idle or changes[name] & set(op["reads"]))
        ]
    told = changes.keys() - {name for op in document["ops"] for name in op["reads"]}
    for op in updates:
        for key in ("writes", "tape"):
            if key in op:
                op[key] = [name for name in op[key] if name not in told]
    document["tensors"] = [tensor for tensor in document["tensors"] if tensor["name"] not in told]
