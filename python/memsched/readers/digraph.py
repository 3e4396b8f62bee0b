"""Graphs from directed graphs of networkx."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeAlias

from memsched._core import Graph
from memsched.errors import InvalidInputError, shown
from memsched.readers.tables import SLOWEST
from memsched.support import checks, quantities
from memsched.support.arguments import tell
from memsched.support.csv_rows import listed
from memsched.support.formats import format_bytes, format_seconds
from memsched.support.interrupt import optional

_NEEDED = ("time", "size")
_KNOWN = (*_NEEDED, "workspace", "phase", "kind", "layer", "once", "role")
_SOURCES = ("input", "weight")  # roles of nodes that are no ops
_OF_GRAPH = ("name", "batch", "resident")
# What networkx adds to a graph that it reads from a file, to its nodes, and to its edges.
_OF_FILES, _OF_NODES, _OF_EDGES = ("node_default", "edge_default", "mode"), ("label",), ("id", "label")
_SHOWN = 5  # nodes of a cycle
_REAL = 1e6  # bytes, from which a digraph is no toy

Node: TypeAlias = Hashable
Attributes: TypeAlias = Mapping[str, Any]


def graph_from_networkx(
    digraph: Any, *, name: str | None = None, batch: int | None = None, resident: int | str | None = None
) -> Graph:
    """Make the graph of a training step from a directed graph of networkx.

    A node is an op that writes one tensor. An edge u -> v says that v reads the tensor of u. Ops and tensors have the
    names of the nodes. The ops keep the order in which the nodes were added, except that an op comes after those whose
    tensors it reads.

    Attributes of a node:

    * `time`: seconds, or a text such as "3 ms"; required.
    * `size`: bytes of its tensor, or a text such as "12MiB"; required. 0 makes the tensor a control edge; there is none
      if nobody reads it.
    * `workspace`: bytes while the op runs; by default 0.
    * `phase`: "fwd" or "bwd". By default an op is "bwd" if it reads the tensor of one that is "bwd". So it is enough
      to mark the first op of the backward.
    * `kind`, `layer`, `once`: as for an op of `Graph`.
    * `role`: "input" or "weight" for a node that is no op but a tensor, there from the beginning. It has only `size`.

    Labels and the ids of edges, which files in GEXF and GraphML may have, are not read.

    Parameters
    ----------
    digraph : networkx.DiGraph
        Its own attributes `name`, `batch` and `resident` are the defaults of the parameters below.
    name : str, optional
    batch : int, optional
        Samples per training step; by default 1.
    resident : int or str, optional
        Bytes that never move; by default 0.

    Returns
    -------
    Graph

    Raises
    ------
    InvalidInputError
        It is no simple directed graph, it has a cycle, or attributes are missing, unknown or wrong; the message names
        the nodes.

    Examples
    --------
    >>> import memsched as ms
    >>> import networkx  # doctest: +SKIP
    >>> step = networkx.DiGraph(name="small")  # doctest: +SKIP
    >>> step.add_node("x", role="input", size="4MiB")  # doctest: +SKIP
    >>> step.add_node("conv", time="1 ms", size="6MiB")  # doctest: +SKIP
    >>> step.add_node("loss", time="10 us", size="6MiB", phase="bwd")  # doctest: +SKIP
    >>> step.add_edges_from([("x", "conv"), ("conv", "loss")])  # doctest: +SKIP
    >>> ms.peak_memory(ms.Graph.from_networkx(step))  # doctest: +SKIP
    12582912
    """
    networkx = optional("networkx", _no_digraph(digraph))
    nodes, before = _parts(networkx, digraph)
    own = _own(digraph)
    names = _names(nodes)
    _check_attributes(nodes, before)
    phases: dict[Node, str] = {}
    tensors, ops = [], []
    for node in _order(networkx, digraph, names):
        attributes, title = nodes[node], names[node]
        source = "role" in attributes
        size = quantities.size(f"size of node '{title}'", attributes["size"])
        if not source:
            late = any(phases.get(one) == "bwd" for one in before[node])
            given = attributes.get("phase", "bwd" if late else "fwd")
            phases[node] = checks.choice(f"phase of node '{title}'", given, ("fwd", "bwd"))
            op = _op(attributes, title, phases[node])
            op["reads"] = [names[one] for one in before[node]]
            op["writes"] = [title] if size or digraph.out_degree(node) else []
            ops.append(op)
        if source or op["writes"]:
            role = attributes["role"] if source else {"fwd": "activation", "bwd": "gradient"}[phases[node]]
            tensors.append({"name": title, "size": size, "role": role})
    _tell_of_units(ops, tensors)
    if ops and all(op["phase"] == "fwd" for op in ops):
        tell(
            "no op of the digraph is marked phase='bwd', so that all belong to the forward; mark the first one of the "
            "backward"
        )
    title = name if name is not None else own.get("name") or "graph"
    return Graph(
        tensors,
        ops,
        name=checks.text("name", title),
        batch=batch if batch is not None else own.get("batch", 1),
        resident=quantities.size("resident", resident if resident is not None else own.get("resident", 0)),
    )


def _tell_of_units(ops: list[dict[str, Any]], tensors: list[dict[str, Any]]) -> None:
    taken = sum(choice["time"] for op in ops for choice in op["choices"])
    written = sum(tensor["size"] for tensor in tensors)
    if taken * SLOWEST > written >= _REAL:
        tell(
            f"the ops of the digraph take {format_seconds(taken)} together, and write {format_bytes(written)}: "
            "numbers are seconds and bytes; where others are meant, write the units, such as '3.1 ms' and '64 MiB'"
        )


def _no_digraph(value: Any) -> InvalidInputError:
    return InvalidInputError(f"digraph is {shown(value)}; it must be a networkx.DiGraph")


def _parts(networkx: Any, digraph: Any) -> tuple[dict[Node, Attributes], dict[Node, list[Node]]]:
    """The nodes with their attributes, and of each those whose tensors it reads."""
    if not isinstance(digraph, networkx.Graph):
        raise _no_digraph(digraph)
    if not digraph.is_directed() or digraph.is_multigraph():
        kind = "has several edges between two nodes" if digraph.is_multigraph() else "is undirected"
        raise InvalidInputError(f"digraph is a {type(digraph).__name__}, which {kind}; give a networkx.DiGraph")
    nodes: dict[Node, Attributes] = dict(digraph.nodes(data=True))
    before: dict[Node, list[Node]] = {node: [] for node in nodes}
    for one, other, attributes in digraph.edges(data=True):
        unknown = [key for key in attributes if key not in _OF_EDGES]
        if unknown:
            raise InvalidInputError(
                f"the edge from '{one}' to '{other}' has the attributes {listed(unknown)}; edges have none: the size "
                "of a tensor belongs to the node that writes it"
            )
        before[other].append(one)
    return nodes, before


def _own(digraph: Any) -> dict[str, Any]:
    """The attributes of the graph itself."""
    unknown = [key for key in digraph.graph if key not in (*_OF_GRAPH, *_OF_FILES)]
    if unknown:
        known = ", ".join(_OF_GRAPH)
        raise InvalidInputError(f"digraph has the unknown attributes {listed(unknown)}; known ones are {known}")
    return dict(digraph.graph)


def _names(nodes: Mapping[Node, Attributes]) -> dict[Node, str]:
    """The names of the nodes as texts."""
    names = {node: checks.text("the name of a node", str(node)) for node in nodes}
    seen: dict[str, Node] = {}
    for node, title in names.items():
        if not title:
            raise InvalidInputError("a node has an empty name; name every node")
        if title in seen:
            raise InvalidInputError(f"the nodes {shown(seen[title])} and {shown(node)} have the same name as texts")
        seen[title] = node
    return names


def _check_attributes(nodes: Mapping[Node, Attributes], before: Mapping[Node, list[Node]]) -> None:
    """Refuse attributes that are missing or unknown, of all nodes at once, and inputs that are no inputs."""
    missing: dict[str, list[Node]] = {}
    unknown: dict[str, list[Node]] = {}
    for node, attributes in nodes.items():
        source = "role" in attributes
        if source:
            checks.choice(f"role of node '{node}'", attributes["role"], _SOURCES)
            if before[node]:
                raise InvalidInputError(f"node '{node}' is no op, by its role, but has edges into it; drop one of both")
        for key in ("size",) if source else _NEEDED:
            if key not in attributes:
                missing.setdefault(key, []).append(node)
        for key in attributes:
            if key not in (("size", "role") if source else _KNOWN) and key not in _OF_NODES:
                unknown.setdefault(str(key), []).append(node)
    if missing:
        remedy = 'every op has time and size, and a tensor that is an input has size and role="input"'
        raise InvalidInputError(f"{_of_nodes('is missing', missing)}; {remedy}")
    if unknown:
        known = f"ops have {', '.join(_KNOWN[:-1])}; inputs and weights have size and role"
        raise InvalidInputError(f"{_of_nodes('is unknown', unknown)}; {known}")


def _of_nodes(what: str, found: Mapping[str, list[Node]]) -> str:
    return "; ".join(f"the attribute '{key}' {what} of {listed(nodes, _SHOWN)}" for key, nodes in found.items())


def _order(networkx: Any, digraph: Any, names: Mapping[Node, str]) -> list[Node]:
    """Inputs and weights, and then ops in the order that is closest to the given one: the first that can come next."""
    sources = {node for node, attributes in digraph.nodes(data=True) if "role" in attributes}
    place = {node: k - len(names) * (node in sources) for k, node in enumerate(names)}
    try:
        return list(networkx.lexicographical_topological_sort(digraph, key=place.__getitem__))
    except networkx.NetworkXUnfeasible:
        numbered = networkx.DiGraph((place[one], place[other]) for one, other in digraph.edges())  # nan is not nan
        cycle = [node for node, *_ in networkx.find_cycle(numbered)]
    start, shown = cycle.index(min(cycle)), list(names.values())
    found = [f"'{shown[node]}'" for node in (*cycle[start:], *cycle[:start])]
    path = " -> ".join([*found[:_SHOWN], *(["..."] if len(cycle) > _SHOWN else []), found[0]])
    raise InvalidInputError(f"digraph has a cycle: {path} ({len(cycle)} nodes); the graph of a training step has none")


def _op(attributes: Attributes, title: str, phase: str) -> dict[str, Any]:
    """An op without its tensors."""
    time = quantities.seconds(f"time of node '{title}'", attributes["time"])
    workspace = quantities.size(f"workspace of node '{title}'", attributes.get("workspace", 0))
    op: dict[str, Any] = {"name": title, "phase": phase}
    if "kind" in attributes:
        op["kind"] = checks.text(f"kind of node '{title}'", attributes["kind"])
    if "layer" in attributes:
        op["layer"] = checks.count(f"layer of node '{title}'", attributes["layer"], 0, 2**31 - 1)
    if "once" in attributes:
        op["once"] = checks.flag(f"once of node '{title}'", attributes["once"])
    return {**op, "choices": [{"alg": "default", "time": time, "workspace": workspace}]}
