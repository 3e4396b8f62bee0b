"""The training steps that ship as graphs: they load, run, and need the memory that the chains say."""

from __future__ import annotations

from typing import Any

import pytest

import memsched as ms
from memsched import profiles

FEW = ("densenet121-224-b32", "gpt2-1024-b8", "inception_v3-299-b32", "resnet50-224-b32", "vgg16-224-b32")


def plain(graph: ms.Graph) -> ms.Schedule:
    """Every op in order, and each tensor freed after its last use."""
    last = {tensor: op["name"] for op in graph.ops for tensor in op["reads"]}
    steps: list[dict[str, Any]] = []
    for op in graph.ops:
        steps.append({"run": op["name"]})
        steps += [{"free": tensor} for tensor in op["reads"] if last[tensor] == op["name"]]
    return ms.Schedule(steps, budget=ms.peak_memory(graph), graph=graph.name, rounds=[(graph.batch, 1)])


def check(name: str) -> None:
    graph, chain, parameters = profiles.load_graph(name), profiles.load(name), profiles.document(name)["parameters"]
    ops = graph.ops
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    assert graph.name == name
    assert graph.batch == int(name.rpartition("-b")[2])
    assert len(sizes) > len(ops) > 3 * chain.n
    (optimizer,) = (op for op in ops if op["kind"] == "optimizer")
    assert [op["name"] for op in ops[-2:]] == [optimizer["name"], "end"]  # the loss is read last
    # A gradient for every parameter, and momentum beside it; buffers are small.
    gradients = {tensor: sizes[tensor] for tensor in optimizer["reads"]}
    assert sum(gradients.values()) == parameters
    assert 2 * parameters <= graph.resident < 2.02 * parameters
    # The loss and the optimiser are what a chain does not have; DenseNet's concatenations are not rewritten.
    own = chain.forward_time.sum() + chain.backward_time.sum()
    assert 0.97 < sum(op["choices"][0]["time"] for op in ops) / own < 1.06
    # A chain holds all gradients of parameters from the start; a graph holds as many bytes of momentum, and gradients
    # as they come. GPT-2's loss holds one tensor of the size of all scores that the chain does not count.
    peak = ms.peak_memory(graph) - (chain.activation[-1] if name.startswith("gpt2") else 0)
    assert peak < ms.peak_memory(chain) + parameters
    assert 0.97 < peak / ms.peak_memory(chain) < 1.035


@pytest.mark.parametrize("name", FEW)
def test_a_few(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", profiles.names())
def test_all(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", ["resnet50-224-b32", "gpt2-1024-b8"])
def test_the_plain_run(name: str) -> None:
    graph = profiles.load_graph(name)
    schedule, device = plain(graph), ms.Device(64 * 10**9)
    timeline = ms.simulate(graph, schedule, device)
    assert timeline.peak_memory == ms.peak_memory(graph)
    assert timeline.makespan == pytest.approx(sum(op["choices"][0]["time"] for op in graph.ops))
    assert ms.validate(graph, schedule, device).peak_memory == timeline.peak_memory


def test_sizes_share_their_names() -> None:
    small, large = (profiles.load_graph(f"resnet18-224-b{batch}") for batch in (32, 128))
    assert [op["name"] for op in small.ops] == [op["name"] for op in large.ops]
    assert small.tensors[-1]["name"] == large.tensors[-1]["name"]
    assert max(tensor["size"] for tensor in large.tensors) == 4 * max(tensor["size"] for tensor in small.tensors)


def test_a_graph_is_kept() -> None:
    assert profiles.load_graph("resnet18-224-b32") is profiles.load_graph("resnet18-224-b32")


@pytest.mark.parametrize("name", ["resnet18", "resnet18-224-b33", "../chains/x", ""])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ms.InvalidInputError, match="no profile is named"):
        profiles.load_graph(name)
