"""Joint graphs as a compiler that fuses sees them: which values it stores."""

from __future__ import annotations

from torch import fx

from memsched.torch.compiled.inductor import READS_OF_ANY, READS_OF_SHARED, is_costly, is_fusible, is_pointwise
from memsched.torch.compiled.joint import address
from memsched.torch.nests import tensors_of


def folded_calls(module: fx.GraphModule, saved: set[str]) -> frozenset[fx.Node]:
    """The calls whose results Inductor does not store: each reader computes the elements that it needs.

    Stored are: what is returned, what `saved` names, what an operation reads whose code is not generated (a matrix
    product), and values that would take many reads to compute again.

    The module is a joint graph, and `saved` names what the stock compiler keeps for the backward.
    """
    (output,) = module.graph.find_nodes(op="output")
    owner: dict[int, fx.Node] = {}  # by the address of an example, the node that made it
    base: dict[fx.Node, fx.Node] = {}  # of a view, what it is a view of
    for node in module.graph.nodes:
        for one in tensors_of(node.meta.get("val")):
            base.setdefault(node, owner.setdefault(address(one), node))
    stored = set()
    readers: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        for source in node.all_input_nodes:
            if base.get(node) is not base.get(source):
                readers[base.get(source, source)] = readers.get(base.get(source, source), 0) + 1
                if node is output or not is_fusible(node):
                    stored.add(base.get(source, source))
        if node.name in saved:
            stored.add(base.get(node, node))
    folded: set[fx.Node] = set()
    costly: set[fx.Node] = set()
    reads: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        first = base.get(node, node)
        if first is not node:  # a view is where its base is
            if first in folded:
                folded.add(node)
                reads[node] = reads[first]
            continue
        needed: frozenset[fx.Node] = frozenset().union(
            *(reads.get(source, frozenset({base.get(source, source)})) for source in node.all_input_nodes)
        )
        heavy = is_costly(node) or any(base.get(source, source) in costly for source in node.all_input_nodes)
        shared = readers.get(node, 0) > 1
        keep = (
            node in stored
            or not is_pointwise(node)
            or len(needed) > READS_OF_ANY
            or (shared and (len(needed) > READS_OF_SHARED or heavy))
        )
        if not keep:
            folded.add(node)
            reads[node] = needed
            if heavy:
                costly.add(node)
    return frozenset(folded)
