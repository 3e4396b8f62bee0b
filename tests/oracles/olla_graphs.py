"""Small graphs whose best order is known, some of them OLLA's, and random ones."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from hypothesis import strategies as st

from memsched import Graph


class Worked(NamedTuple):
    """A graph, the peak of the order in which its ops are listed, and the least peak."""

    graph: Graph
    listed: int
    best: int


def written(text: str, *, ops: str = "", resident: int = 0, backward: str = "") -> Graph:
    """A graph from its tensors, "A 10 -> B C" for bytes that A writes and B and C read.

    The ops are listed as `ops` says, or as they are first named.
    """
    lines = [re.fullmatch(r"(\w+) (\d+) ->((?: \w+)*)", line.strip()) for line in text.split(";")]
    edges = [(line[1], int(line[2]), line[3].split()) for line in lines if line]
    assert len(edges) == len(lines)
    names = ops.split() or list(dict.fromkeys(name for source, _, sinks in edges for name in (source, *sinks)))
    tensors = [
        {"name": f"{source}.{k}", "size": size, "role": "activation"} for k, (source, size, _) in enumerate(edges)
    ]
    listed = [
        {
            "name": name,
            "phase": "bwd" if name in backward.split() else "fwd",
            "reads": [f"{source}.{k}" for k, (source, _, sinks) in enumerate(edges) if name in sinks],
            "writes": [f"{source}.{k}" for k, (source, _, _) in enumerate(edges) if name == source],
            "choices": [{"alg": "default", "time": 1.0, "workspace": 0}],
        }
        for name in names
    ]
    return Graph(tensors, listed, resident=resident)


DIAMOND = written("A 10 -> B; B 20 -> C; B 30 -> D; D 40 -> E; E 50 -> F; C 60 -> F; F 10 -> G", ops="A B C D E F G")
SIMPLE = written("A 10 -> B; B 20 -> C; B 30 -> D; D 40 -> E", ops="A B C D E")
MULTI_FANIN = written("A 10 -> B; A 20 -> C; B 30 -> D; D 40 -> E; C 50 -> E", ops="A B C D E")
PATHOLOGICAL = written(
    "; ".join(f"M{k} {size} -> F{k}" for k, size in enumerate((1, 9, 1, 8, 1, 7, 8, 7))),
    ops=" ".join([*(f"M{k}" for k in range(8)), *(f"F{k}" for k in range(8))]),
)
GRADIENTS = written(
    "IN 10 -> O1 GW1; O1 30 -> O2 GW2; O2 50 -> OUT; "
    "G3 345 -> G2 GW2; G2 543 -> G1 GW1; GW1 567 -> AG1; GW2 765 -> AG2",
    ops="IN O1 O2 OUT G3 G2 G1 GW1 GW2 AG1 AG2",
    resident=123 + 321,
    backward="G3 G2 G1 GW1 AG1 GW2 AG2",
)
FIGURE_3 = written(
    "e1 10 -> v1; v1 20 -> v2; v1 10 -> v3; v2 5 -> v4; v3 30 -> v4; v4 10 -> out", ops="e1 v1 v3 v2 v4 out"
)

WORKED = {
    "diamond": Worked(DIAMOND, 150, 130),
    "simple": Worked(SIMPLE, 70, 70),
    "multi_fanin": Worked(MULTI_FANIN, 120, 110),
    "pathological": Worked(PATHOLOGICAL, 42, 9),
    "gradients": Worked(GRADIENTS, 2151, 1594),
    "figure 3": Worked(FIGURE_3, 60, 45),
}


@st.composite
def random_graphs(draw: st.DrawFn, max_ops: int = 8, max_bytes: int = 9) -> Graph:
    """Ops that read a few earlier tensors: several outputs, shared readers, no bytes, workspaces, inputs and weights.

    Some tensors have no reader, some of them in a tape; some ops neither read nor write. `testing.graphs` draws
    training steps instead.
    """
    size = st.one_of(st.just(0), st.integers(1, max_bytes), st.integers(1, max_bytes))
    tensors: list[dict[str, Any]] = []

    def tensor(name: str, role: str) -> str:
        tensors.append({"name": name, "size": draw(size), "role": role})
        return name

    known = [tensor(f"x{k}", draw(st.sampled_from(("input", "weight")))) for k in range(draw(st.integers(0, 2)))]
    ops: list[dict[str, Any]] = []
    for k in range(draw(st.integers(1, max_ops))):
        most = min(3, len(known))
        reads = draw(st.lists(st.sampled_from(known), max_size=most, unique=True)) if known else []
        role = draw(st.sampled_from(("activation", "gradient")))
        writes = [tensor(f"t{k}.{j}", role) for j in range(draw(st.sampled_from((0, 1, 1, 1, 2))))]
        choices = [
            {"alg": f"a{j}", "time": 1.0, "workspace": draw(st.sampled_from((0, 0, 2, max_bytes)))}
            for j in range(draw(st.integers(1, 2)))
        ]
        op = {"name": f"o{k}", "phase": "fwd", "reads": reads, "writes": writes, "choices": choices}
        if writes and draw(st.booleans()):
            op["tape"] = draw(st.sampled_from((writes, writes[-1:])))
            if draw(st.booleans()):
                op["skip_workspace"] = draw(st.sampled_from((0, 2, max_bytes)))
        ops.append(op)
        known += writes
    return Graph(tensors, ops, resident=draw(st.integers(0, max_bytes)))


@st.composite
def with_kept(draw: st.DrawFn, graphs: st.SearchStrategy[Graph]) -> tuple[Graph, frozenset[str]]:
    """A graph and names of tensors that live to the end."""
    graph = draw(graphs)
    names = [tensor["name"] for tensor in graph.tensors]
    return graph, frozenset(draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else ())
