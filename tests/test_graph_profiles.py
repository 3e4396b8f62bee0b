"""The training steps that ship as graphs: they load, run, and need the memory that the chains say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from marks import nightly
from memsched import profiles

DOCS = Path(__file__).resolve().parents[1] / "docs" / "profiles.md"
STEPS = tuple(name for name in profiles.graph_names() if name not in profiles.names())
FEW_STEPS = ("gpt-1024-b8-bf16", "resnet50-224-b128-f32", "vit-224-b64-f32")
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", profiles.names())
def test_all(name: str) -> None:
    check(name)


def test_there_are_twelve_networks_in_two_precisions() -> None:
    assert len(STEPS) == 24
    assert {name.rpartition("-")[0] for name in STEPS} == {name.removesuffix("-f32") for name in STEPS if "f32" in name}
    assert list(profiles.graph_names()) == sorted({*profiles.names(), *STEPS})


@pytest.mark.parametrize("name", STEPS)
def test_training_steps(name: str) -> None:
    graph, found = profiles.load_graph(name), profiles.provenance(name)
    network, _, precision = name.rpartition("-")
    assert (graph.name, graph.batch) == (name, int(network.rpartition("-b")[2]))
    assert 500 < len(graph.ops) < 2100
    assert {"source", "precision", "times", "gpu", "link", "link_bandwidth"} == set(found)
    assert found["gpu"].startswith("a100")
    assert found["link_bandwidth"] == 24.4e9
    assert ("bfloat16" in found["precision"]) == (precision == "bf16")
    ops, sizes = graph.ops, {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    assert len(sizes) > len(ops)
    assert ops[-1]["name"] == "end"
    # Every parameter has an update of its own, which reads one gradient; the others count the updates of AdamW.
    updates = [op for op in ops if op["kind"] == "optimizer"]
    gradients = [[tensor for tensor in op["reads"] if sizes[tensor]] for op in updates]
    assert {len(read) for read in gradients} <= {0, 1}
    read = [tensor for one in gradients for tensor in one]
    assert len(read) == len(set(read)) > 70
    assert sum(not one for one in gradients) == (len(read) if "AdamW" in found["source"] else 0)
    # The state of SGD is as large as the parameters, that of AdamW twice; counts and buffers are small.
    parameters = sum(sizes[tensor] for tensor in read)
    state = 3 if "AdamW" in found["source"] else 2
    assert state * parameters <= graph.resident < 1.01 * state * parameters + 2**20
    # What must not run twice: updates, counts of batches, the end. Nothing that makes a feature map.
    assert not any(op.get("once") and any(sizes[tensor] for tensor in op["writes"]) for op in ops)
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    assert graph.resident < least < 0.7 * peak


@pytest.mark.skipif(not DOCS.is_file(), reason="needs the repository")
def test_the_table_of_training_steps_is_true() -> None:
    rows = [
        line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `") and "GB" not in line
    ]
    cells = {row.split("`")[1]: [cell.strip() for cell in row.strip("|").split("|")] for row in rows}
    for base in {name.rpartition("-")[0] for name in STEPS}:
        pair = [profiles.load_graph(f"{base}-{precision}") for precision in ("f32", "bf16")]
        _, _, optimizer, bfloat16, *numbers = cells[base]
        assert numbers[0] == ", ".join(str(len(graph.ops)) for graph in pair)
        assert numbers[1] == ", ".join(f"{ms.peak_memory(graph) / 1e9:.2f}" for graph in pair)
        assert numbers[2] == ", ".join(f"{ms.min_memory(graph) / 1e9:.2f}" for graph in pair)
        found = profiles.provenance(f"{base}-bf16")
        assert optimizer in found["source"]
        assert bfloat16 in found["precision"]


@pytest.mark.parametrize("network", sorted({name.rpartition("-")[0] for name in STEPS}))
def test_bfloat16_needs_less_memory_and_time(network: str) -> None:
    wide, half = (profiles.load_graph(f"{network}-{precision}") for precision in ("f32", "bf16"))
    assert ms.peak_memory(half) < ms.peak_memory(wide)
    assert sum(op["choices"][0]["time"] for op in half.ops) < sum(op["choices"][0]["time"] for op in wide.ops)


@pytest.mark.parametrize("name", [*FEW_STEPS, *nightly(*(name for name in STEPS if name not in FEW_STEPS))])
def test_training_steps_are_planned(name: str) -> None:
    graph = profiles.load_graph(name)
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    memory = least + (peak - least) // 2
    result = ms.plan(graph, memory, 12e9, planner="pooch", time_limit=0.2)
    assert ms.validate(result).peak_memory <= memory
    assert result.lower_bound <= result.makespan
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    assert all(sizes[name] for name in ms.feature_map_classes(result))  # what only keeps the order never travels
    assert all(sizes[step["offload"]] for step in result.schedule.steps if "offload" in step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet50-224-b32", "gpt2-1024-b8", *FEW_STEPS, *nightly(*(one for one in STEPS if one not in FEW_STEPS))]
)
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


@pytest.mark.parametrize("name", ["resnet18", "resnet18-224-b33", "../chains/x", "", "gpt-1024-b8"])
def test_unknown_names(name: str) -> None:
    for function in (profiles.load_graph, profiles.provenance):
        with pytest.raises(ms.InvalidInputError, match="no profile is named"):
            function(name)


def test_a_training_step_has_no_chain() -> None:
    for function in (profiles.load, profiles.document):
        with pytest.raises(ms.InvalidInputError, match="ships as a graph alone"):
            function("vit-224-b64-f32")


def test_the_provenance_of_a_profile_with_a_chain() -> None:
    assert profiles.provenance("resnet18-224-b32")["link_bandwidth"] == 12.2e9


def test_what_a_caller_does_to_a_provenance_changes_no_other() -> None:
    """It was the dict of the module itself: a sweep then took its link from what the caller had written there."""
    name = "vit-224-b64-bf16"
    found = profiles.provenance(name)
    found["link_bandwidth"] = 1.0
    assert profiles.provenance(name)["link_bandwidth"] != 1.0
