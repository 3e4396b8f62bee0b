"""From a list of operations to a chain of stages, cut where one activation crosses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from memsched.torch.capture import is_getitem
from memsched.torch.facts import Facts

_CATS = (torch.ops.aten.cat.default, torch.ops.aten.concat.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One stage of the chain, as nodes of the captured graph.

    Attributes
    ----------
    name : str
        The first and the last module in it.
    nodes : tuple of Node
        Its operations, in order.
    entry : Node or None
        The activation that the stage before it hands over; None for the first stage.
    exit : Node or None
        The activation that it hands to the next stage; None for the last stage.
    environment : tuple of Node
        What it reads besides: inputs of the program, and values that no gradient flows to, such as masks.
    state : tuple of Node
        The get_attr nodes that it reads: parameters, buffers, constants.
    exports : tuple of Node
        Values of its own that later stages find in their environment.
    """

    name: str
    nodes: tuple[fx.Node, ...]
    entry: fx.Node | None
    exit: fx.Node | None
    environment: tuple[fx.Node, ...]
    state: tuple[fx.Node, ...]
    exports: tuple[fx.Node, ...]


def share_concatenations(graph: fx.Graph, known: dict[fx.Node, Facts]) -> bool:
    """Rewrite cat([a, b, c]) as cat([cat([a, b]), c]) where cat([a, b]) exists already; say whether anything changed.

    A dense block concatenates all that came before it in each of its layers, so that every layer's output lives to the
    end of the block and nothing can be cut. Grown step by step, one tensor crosses from layer to layer. Values and
    gradients stay the same bit for bit: copies are copied, and sums keep their order.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    writes = _writes(graph, known)
    seen: dict[tuple[object, ...], fx.Node] = {}
    changed = False
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _CATS:
            continue
        parts, dim = tuple(node.args[0]), (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))
        key = (dim, *parts)
        for shared in range(len(parts) - 1, 0, -1):
            prefix = seen.get((dim, *parts[:shared]))
            if prefix is None:
                continue
            storages = known[prefix].storages.union(*(known[part].storages for part in parts[:shared]))
            if not _written_between(writes, order[prefix], order[node], storages):
                node.args = ([prefix, *parts[shared:]], dim)
                node.kwargs = {}
                changed = True
                break
        seen[key] = node
    return changed


def _writes(graph: fx.Graph, known: dict[fx.Node, Facts]) -> list[tuple[int, frozenset[int]]]:
    """Pairs (position of an operation, the storages that it changes)."""
    return [(at, known[node].writes) for at, node in enumerate(graph.nodes) if node in known and known[node].writes]


def _written_between(
    writes: Sequence[tuple[int, frozenset[int]]], first: int, last: int, storages: frozenset[int]
) -> bool:
    """Whether an operation between two positions changes one of some storages."""
    return any(first < at < last and storages & written for at, written in writes)


def _touched(node: fx.Node, known: dict[fx.Node, Facts]) -> frozenset[int]:
    """The storages that an operation reads or returns."""
    return known[node].storages.union(*(known[source].storages for source in node.all_input_nodes))


def sink_parameter_arithmetic(graph: fx.Graph, known: dict[fx.Node, Facts]) -> None:
    """Move what is computed from parameters alone, and needs a gradient, down to its first use.

    A transposed weight or a table of position biases that is made long before it is used would cross every cut between.
    """
    first_use: dict[fx.Node, int] = {}
    order = {node: position for position, node in enumerate(graph.nodes)}
    writes = _writes(graph, known)
    at = {position: node for node, position in order.items()}
    for node in reversed(list(graph.nodes)):
        fact = known.get(node)
        users = [first_use.get(user, order[user]) for user in node.users]
        if node.op != "call_function" or fact is None or not users:
            continue
        movable = fact.requires_grad and not fact.batch and not fact.writes and not fact.random and not is_getitem(node)
        if movable and _written_between(writes, order[node], min(users), _touched(node, known)):
            continue
        if movable and min(users) > order[node] + 1 and not any(is_getitem(user) for user in node.users):
            first_use[node] = min(users)
    for node in list(graph.nodes):
        if node in first_use:
            at[first_use[node]].prepend(node)


def linearize(graph: fx.Graph, known: dict[fx.Node, Facts]) -> list[Cut]:
    """Cut a captured graph into the longest chain of stages.

    A cut between two operations is legal where exactly one activation crosses it, alone in its storage and never
    changed again. An activation is of floating type and a gradient flows to it, or it depends on both an input and a
    parameter. All else that crosses, such as masks, travels beside the chain; the operations after the cut must not
    write to it.

    Parameters
    ----------
    graph : torch.fx.Graph
    known : dict
        The facts of each node (`facts`).

    Returns
    -------
    list of Cut
        At least one.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    boundaries = list(_boundaries(nodes, graph, known))
    starts = [0, *(position for position, _ in boundaries)]
    ends = [*(position for position, _ in boundaries), len(nodes)]
    crossing = [None, *(node for _, node in boundaries), None]
    stage_of = {node: k for k, (start, end) in enumerate(zip(starts, ends, strict=True)) for node in nodes[start:end]}
    return [
        _cut(tuple(nodes[start:end]), k, stage_of, crossing[k], crossing[k + 1])
        for k, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _cut(
    nodes: tuple[fx.Node, ...], k: int, stage_of: dict[fx.Node, int], entry: fx.Node | None, exit_: fx.Node | None
) -> Cut:
    reads = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if stage_of.get(source) != k)
    exports = [
        node
        for node in nodes
        if node is not exit_ and any(stage_of.get(user, k) > k for user in node.users if user.op != "output")
    ]
    return Cut(
        name=_name(nodes),
        nodes=nodes,
        entry=entry,
        exit=exit_,
        environment=tuple(node for node in reads if node is not entry and node.op != "get_attr"),
        state=tuple(node for node in reads if node.op == "get_attr"),
        exports=tuple(exports),
    )


def _boundaries(
    nodes: Sequence[fx.Node], graph: fx.Graph, known: dict[fx.Node, Facts]
) -> Iterator[tuple[int, fx.Node]]:
    """Pairs (position in nodes before which to cut, the activation that crosses there)."""
    position = {node: k for k, node in enumerate(nodes)}
    last_use = {
        node: max((position[user] for user in node.users if user in position), default=-1) for node in graph.nodes
    }
    last_write: dict[int, int] = {}
    for node, k in position.items():
        for storage in known[node].writes:
            last_write[storage] = k
    given = {s for node in graph.nodes if node.op in ("placeholder", "get_attr") for s in known[node].storages}
    results = [node for output in graph.nodes if output.op == "output" for node in output.all_input_nodes]
    returned = frozenset(s for node in results for s in known[node].storages)
    live: list[fx.Node] = []
    before: frozenset[int] = frozenset()
    for k in range(1, len(nodes)):
        live = [node for node in [*live, nodes[k - 1]] if last_use[node] >= k]
        crossing = [node for node in live if not known[node].storages <= given or known[node].requires_grad]
        activations = [node for node in crossing if _is_activation(known[node])]
        if len(activations) != 1:
            continue
        node = activations[0]
        storages = known[node].storages
        shared = any(storages & known[other].storages for other in crossing if other is not node)
        changed_later = any(last_write.get(s, -1) >= k for other in crossing for s in known[other].storages)
        several = len(storages) != 1 or is_split(node)
        if shared or changed_later or several or storages & (given | returned) or storages == before:
            continue
        before = storages
        yield k, node


def is_split(node: fx.Node) -> bool:
    """Whether the results of a node are taken apart by getitem nodes."""
    return any(is_getitem(user) for user in node.users)


def _is_activation(fact: Facts) -> bool:
    return fact.floating and (fact.requires_grad or (fact.batch and fact.state))


def _name(nodes: Sequence[fx.Node]) -> str:
    """The modules of the first and the last operation, as a path in the model."""
    paths = [path for node in nodes if (path := _module_path(node))]
    if not paths:
        return str(nodes[0].name) if nodes else "nothing"
    return paths[0] if paths[0] == paths[-1] else f"{paths[0]}..{paths[-1]}"


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(list(stack.values()))), "")
    return path.removeprefix("L['self'].").removeprefix("L['self']")
