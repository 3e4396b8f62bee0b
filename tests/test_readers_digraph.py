"""Graphs from directed graphs of networkx."""

from __future__ import annotations

import doctest
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.readers.digraph import graph_from_networkx
from memsched.testing import graphs

nx = pytest.importorskip("networkx")
pytestmark = pytest.mark.filterwarnings("ignore:no op of the digraph is marked")


def small(**attributes: Any) -> Any:
    """x -> conv -> loss -> dconv, and dconv reads x too."""
    made = nx.DiGraph(**attributes)
    made.add_node("x", role="input", size="4 B")
    made.add_node("conv", time="1 ms", size=6, kind="conv", layer=1, workspace="1kB")
    made.add_node("loss", time=0, size=5, phase="bwd")
    made.add_node("dconv", time=2.5, size=0, once=True)
    made.add_edges_from([("x", "conv"), ("conv", "loss"), ("loss", "dconv"), ("x", "dconv")])
    return made


def op(name: str, phase: str, seconds: float, reads: list[str], writes: list[str], **more: Any) -> dict[str, Any]:
    choice = {"alg": "default", "time": seconds, "workspace": more.pop("workspace", 0)}
    return {"name": name, "phase": phase, "reads": reads, "writes": writes, "choices": [choice], **more}


def test_against_a_graph_made_by_hand() -> None:
    expected = ms.Graph(
        [
            {"name": "x", "size": 4, "role": "input"},
            {"name": "conv", "size": 6, "role": "activation"},
            {"name": "loss", "size": 5, "role": "gradient"},
        ],
        [
            op("conv", "fwd", 0.001, ["x"], ["conv"], kind="conv", layer=1, workspace=1000),
            op("loss", "bwd", 0, ["conv"], ["loss"]),
            op("dconv", "bwd", 2.5, ["x", "loss"], [], once=True),
        ],
        name="small",
        batch=8,
        resident=100,
    )
    assert graph_from_networkx(small(), name="small", batch=8, resident=100) == expected
    own = small(name="small", batch=8, resident="100 B", node_default={})
    assert graph_from_networkx(own) == expected
    assert graph_from_networkx(own, name="other", batch=2, resident=0).batch == 2


def test_inputs_that_are_added_late_move_no_ops() -> None:
    made = nx.DiGraph()
    for name in ("f1", "f2"):
        made.add_node(name, time=1, size=8)
    made.add_node("b", time=1, size=8, phase="bwd")
    made.add_node("x", role="input", size=4)
    made.add_edges_from([("x", "f1"), ("f1", "b")])
    assert [one["name"] for one in graph_from_networkx(made).ops] == ["f1", "f2", "b"]


def test_milliseconds_and_a_forgotten_phase_are_told() -> None:
    made = nx.DiGraph([("f", "g")])
    for name in "fg":
        made.nodes[name].update(time=2, size=8_000_000)
    units = "take 4 s together, and write 15.3 MiB: numbers are seconds and bytes"
    with pytest.warns(UserWarning, match=units), pytest.warns(UserWarning, match="no op .* is marked phase='bwd'"):
        graph_from_networkx(made)


def test_the_example_of_the_docstring() -> None:
    text = (graph_from_networkx.__doc__ or "").replace("# doctest: +SKIP", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "example", None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_order_is_topological_and_closest_to_the_given_one(count: int, rng: random.Random) -> None:
    made, place = nx.DiGraph(), list(range(count))
    rng.shuffle(place)
    made.add_nodes_from((node, {"time": 1, "size": 1}) for node in place)
    made.add_edges_from((a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.3)
    names = [one["name"] for one in graph_from_networkx(made).ops]
    at = {node: k for k, node in enumerate(place)}
    assert names == [str(node) for node in nx.lexicographical_topological_sort(made, key=at.__getitem__)]
    ordered = nx.relabel_nodes(made, {node: k for k, node in enumerate(nx.topological_sort(made))})
    listed = nx.DiGraph()
    listed.add_nodes_from((node, {"time": 1, "size": 1}) for node in range(count))
    listed.add_edges_from(ordered.edges)
    assert [one["name"] for one in graph_from_networkx(listed).ops] == [str(node) for node in range(count)]


def with_one_write_each(graph: ms.Graph) -> ms.Graph:
    """The graph with an op more for each tensor beyond the first one that an op writes."""
    ops = []
    for one in graph.ops:
        kept = {key: value for key, value in one.items() if key not in ("tape", "skip_workspace")}
        ops.append({**kept, "writes": one["writes"][:1]})
        ops += [{**kept, "name": f"{one['name']}/{name}", "writes": [name]} for name in one["writes"][1:]]
    return ms.Graph(graph.tensors, ops, name=graph.name, batch=graph.batch, resident=graph.resident)


@given(graphs(choices=False).map(with_one_write_each))
def test_graphs_whose_ops_write_one_tensor_come_back(graph: ms.Graph) -> None:
    """Drawn training steps through networkx."""
    sizes, made = {one["name"]: one for one in graph.tensors}, nx.DiGraph()
    writer = {one["writes"][0]: one["name"] for one in graph.ops if one["writes"]}
    for one in graph.tensors:
        if one["role"] in ("input", "weight"):
            made.add_node(one["name"], role=one["role"], size=one["size"])
            writer[one["name"]] = one["name"]
    for one in graph.ops:
        choice = one["choices"][0]
        size = sizes[one["writes"][0]]["size"] if one["writes"] else 0
        more = {key: one[key] for key in ("kind", "layer", "once", "phase") if key in one}
        made.add_node(one["name"], time=choice["time"], workspace=choice["workspace"], size=size, **more)
        made.add_edges_from((writer[name], one["name"]) for name in one["reads"])
    found = graph_from_networkx(made, batch=graph.batch, resident=graph.resident)
    assert [one["name"] for one in found.ops] == [one["name"] for one in graph.ops]
    assert ms.peak_memory(found) == ms.peak_memory(graph)
    assert ms.min_memory(found) == ms.min_memory(graph)


def test_what_follows_a_backward_op_is_backward() -> None:
    made = nx.path_graph(5, create_using=nx.DiGraph)
    made.add_edge(0, 5)
    nx.set_node_attributes(made, 1.0, "time")
    nx.set_node_attributes(made, 1, "size")
    made.nodes[2]["phase"] = "bwd"
    phases = {one["name"]: one["phase"] for one in graph_from_networkx(made).ops}
    assert phases == {"0": "fwd", "1": "fwd", "5": "fwd", "2": "bwd", "3": "bwd", "4": "bwd"}
    assert {one["role"] for one in graph_from_networkx(made).tensors} == {"activation", "gradient"}


def without(node: str, key: str) -> Callable[[Any], Any]:
    def change(made: Any) -> Any:
        del made.nodes[node][key]
        return made

    return change


def with_(node: str, **attributes: Any) -> Callable[[Any], Any]:
    def change(made: Any) -> Any:
        made.nodes[node].update(attributes)
        return made

    return change


def with_edge(one: Any, other: Any, **attributes: Any) -> Callable[[Any], Any]:
    def change(made: Any) -> Any:
        made.add_edge(one, other, **attributes)
        return made

    return change


BAD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda made: None, "digraph is None; it must be a networkx.DiGraph"),
    (lambda made: nx.DiGraph, "it must be a networkx.DiGraph"),
    (lambda made: made.to_undirected(), "digraph is a Graph, which is undirected"),
    (lambda made: nx.MultiDiGraph(made), "digraph is a MultiDiGraph, which has several edges"),
    (lambda made: nx.DiGraph(), "ops is empty"),
    (lambda made: (made.graph.update(residnet=3), made)[1], "unknown attributes 'residnet'; known ones are name"),
    (lambda made: (made.graph.update(batch=0), made)[1], "batch is 0"),
    (lambda made: (made.graph.update(name=3), made)[1], "name is 3"),
    (without("conv", "time"), "the attribute 'time' is missing of 'conv'; every op has time and size"),
    (without("x", "size"), "the attribute 'size' is missing of 'x'"),
    (without("x", "role"), "the attribute 'time' is missing of 'x'; .* role=\"input\""),
    (with_edge("conv", "new"), "the attribute 'time' is missing of 'new'; the attribute 'size' is missing of 'new'"),
    (with_("conv", tmie=1), "the attribute 'tmie' is unknown of 'conv'; ops have time, size"),
    (with_("x", time=1), "the attribute 'time' is unknown of 'x'"),
    (with_("x", role="output"), "role of node 'x' is 'output'; it must be one of input, weight"),
    (with_edge("conv", "x"), "node 'x' is no op, by its role, but has edges into it"),
    (with_edge("dconv", "conv"), "has a cycle: 'conv' -> 'loss' -> 'dconv' -> 'conv'"),
    (with_edge("conv", "conv"), "has a cycle: 'conv' -> 'conv'"),
    (with_edge("conv", "dconv", size=3, id=1), "the edge from 'conv' to 'dconv' has the attributes 'size'"),
    (with_("conv", time="3 m"), "time of node 'conv' is '3 m'"),
    (with_("conv", time=-1), "time of node 'conv' is -1"),
    (with_("conv", time=None), "time of node 'conv' is None"),
    (with_("conv", size=1.5), "size of node 'conv' is 1.5"),
    (with_("conv", workspace="x"), "workspace of node 'conv' is 'x'"),
    (with_("conv", phase="forward"), "phase of node 'conv' is 'forward'"),
    (with_("conv", kind=3), "kind of node 'conv' is 3"),
    (with_("conv", layer="a"), "layer of node 'conv' is 'a'"),
    (with_("conv", layer=-1), "from 0 to 2147483647"),
    (with_("conv", once=1), "once of node 'conv' is 1"),
]


@pytest.mark.parametrize(("change", "told"), BAD)
def test_bad_graphs(change: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        graph_from_networkx(change(small()))


@pytest.mark.parametrize("nodes", [[1, "1"], [""], ["\ud800"]])
def test_bad_names(nodes: list[Any]) -> None:
    made = nx.DiGraph()
    made.add_nodes_from((node, {"time": 1, "size": 1}) for node in nodes)
    with pytest.raises(ms.InvalidInputError, match=r"the same name as texts|has an empty name|must be a string"):
        graph_from_networkx(made)


FORMS: dict[str, Callable[[Any, Any], None]] = {
    "graphml": lambda made, path: nx.write_graphml(made, path),
    "graphml with ids": lambda made, path: nx.write_graphml(made, path, edge_id_from_attribute="id"),
    "gexf": lambda made, path: nx.write_gexf(made, path),
}


def test_a_node_without_bytes_or_readers_writes_nothing() -> None:
    made = nx.DiGraph()
    made.add_node("a", time=1, size=0)
    made.add_node("b", time=1, size=0)
    made.add_edge("a", "b")
    assert [op["writes"] for op in ms.Graph.from_networkx(made).ops] == [["a"], []]


@pytest.mark.parametrize("form", FORMS)
def test_files(form: str, tmp_path: Any) -> None:
    """Those of GEXF, and some of GraphML, have ids of edges, and labels of nodes and edges."""
    made, path = small(), tmp_path / "g"
    expected = graph_from_networkx(made)
    if "ids" in form:
        nx.set_edge_attributes(made, {edge: f"e{k}" for k, edge in enumerate(made.edges)}, "id")
        nx.set_edge_attributes(made, "reads", "label")
    FORMS[form](made, path)
    found = (nx.read_gexf if form == "gexf" else nx.read_graphml)(path)
    assert any("id" in attributes for *_, attributes in found.edges(data=True)) == (form != "graphml")
    assert graph_from_networkx(found) == expected


@pytest.mark.exhaustive
def test_a_hundred_thousand_ops_and_a_long_cycle() -> None:
    count = 100_000
    made = nx.path_graph(count, create_using=nx.DiGraph)
    nx.set_node_attributes(made, {node: {"time": 1.0, "size": 4} for node in made})
    assert len(graph_from_networkx(made).ops) == count
    made.add_edge(count - 1, 0)
    with pytest.raises(ms.InvalidInputError, match=rf"'0' -> '1' -> .* -> '4' -> \.\.\. -> '0' \({count} nodes\)"):
        graph_from_networkx(made)


def test_a_cycle_through_a_node_that_is_not_itself() -> None:
    nan, digraph = float("nan"), nx.DiGraph()
    for node in ("a", nan, "b"):
        digraph.add_node(node, time=1, size=1)
    digraph.add_edges_from([("a", nan), (nan, "b"), ("b", "a")])
    with pytest.raises(ms.InvalidInputError, match="has a cycle: 'a' -> 'nan' -> 'b' -> 'a'"):
        ms.Graph.from_networkx(digraph)
