"""SuperNeurons: what runs again in segments, what leaves the cache, and which plan of the four counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.testing import devices, graphs


def segments(count: int, cheap: int, size: int = 4, dear: int = 4) -> ms.Graph:
    """So many segments: a convolution, and cheap ops after it; each backward reads what its op of the forward read."""
    kinds = (["conv"] + ["relu"] * cheap) * count + ["conv"]
    sizes = [dear if kind == "conv" else size for kind in kinds]
    tensors = [{"name": "x", "size": dear, "role": "input"}]
    tensors += [{"name": f"t{k}", "size": one, "role": "activation"} for k, one in enumerate(sizes)]
    tensors += [{"name": f"g{k}", "size": one, "role": "gradient"} for k, one in enumerate(sizes)]
    read = ["x", *(f"t{k}" for k in range(len(kinds) - 1))]
    choice = [{"alg": "only", "time": 1.0, "workspace": 0}]
    ops = [
        {"name": f"F{k}", "kind": kind, "phase": "fwd", "reads": [read[k]], "writes": [f"t{k}"], "choices": choice}
        for k, kind in enumerate(kinds)
    ]
    for k in reversed(range(len(kinds))):
        reads = [read[k], *([f"g{k + 1}"] if k + 1 < len(kinds) else [f"t{k}"])]
        ops.append(
            {"name": f"B{k}", "kind": kinds[k], "phase": "bwd", "reads": reads, "writes": [f"g{k}"], "choices": choice}
        )
    return ms.Graph(tensors, ops)


def again(plan: ms.Result) -> int:
    """How many runs are not the first of their op."""
    runs = Counter(step["run"] for step in plan.schedule.steps if "run" in step)
    return sum(count - 1 for count in runs.values())


@pytest.mark.parametrize("cheap", [1, 2, 5])
def test_a_segment_runs_once_or_once_for_each_of_its_ops(cheap: int) -> None:
    """k runs where they are kept, k(k + 1) / 2 where each is dropped after its use, in each of three segments."""
    graph = segments(3, cheap)
    memory = ms.peak_memory(graph) - 1  # without a link, only what runs again can have left
    plans = {name: ms.superneurons(graph, memory, 0, strategy=name) for name in ("speed", "memory")}
    assert again(plans["speed"]) == 3 * cheap
    assert again(plans["memory"]) == 3 * cheap * (cheap + 1) // 2
    assert all(plan.params["recompute"] and not plan.offloaded for plan in plans.values())
    for plan in plans.values():
        ms.validate(plan)


@pytest.mark.parametrize(("size", "same"), [(1, "speed"), (9, "memory")])
def test_the_cost_of_a_segment_is_compared_with_the_largest_need_of_an_op(size: int, same: str) -> None:
    """4 maps of 1 byte are less than what a convolution's backward touches, 4 of 9 bytes are more."""
    graph = segments(2, 4, size=size, dear=8)
    memory = ms.peak_memory(graph) - 1
    assert again(ms.superneurons(graph, memory, 0)) == again(ms.superneurons(graph, memory, 0, strategy=same))


def test_the_least_recently_used_tensor_leaves() -> None:
    tensors = [{"name": name, "size": 4, "role": "input"} for name in "abc"]
    tensors += [{"name": f"t{k}", "size": 4, "role": "activation"} for k in range(4)]
    reads = [["b"], ["a"], ["c"], ["a", "b"]]
    choice = [{"alg": "only", "time": 1.0, "workspace": 0}]
    ops = [
        {"name": f"o{k}", "kind": "conv", "phase": "fwd", "reads": read, "writes": [f"t{k}"], "choices": choice}
        for k, read in enumerate(reads)
    ]
    ops.append({"name": "end", "kind": "conv", "phase": "bwd", "reads": ["t0", "t3"], "writes": [], "choices": choice})
    plan = ms.superneurons(ms.Graph(tensors, ops), 16, 1.0)
    assert plan.params["cache"]
    left = [step["offload"] for step in plan.schedule.steps if "offload" in step]
    # For t1: c, which nobody has used yet. For t2: b; t0 is wanted last of all, but was used after it.
    assert left == ["c", "b"]


def test_the_memory_that_is_named_is_enough_where_weights_are_read_for_the_last_time_early() -> None:
    """The plain run, whose peak is named, frees them then."""
    tensors = [{"name": "w", "size": 12, "role": "weight"}]
    tensors += [{"name": f"t{k}", "size": 6 + k, "role": "activation"} for k in range(4)]
    reads = [["w"], ["t0"], ["t0", "t1"], ["t1", "t2"]]
    choice = [{"alg": "only", "time": 1.0, "workspace": 0}]
    ops = [
        {"name": f"o{k}", "phase": "bwd", "reads": read, "writes": [f"t{k}"], "choices": choice, "once": True}
        for k, read in enumerate(reads)
    ]
    graph = ms.Graph(tensors, ops)
    with pytest.raises(ms.InfeasibleError) as refused:
        ms.superneurons(graph, ms.min_memory(graph) - 1, 0)
    assert refused.value.min_memory == ms.peak_memory(graph)
    assert ms.validate(ms.superneurons(graph, ms.peak_memory(graph), 0)).peak_memory == ms.peak_memory(graph)


def test_an_op_takes_the_fastest_algorithm_that_fits_at_that_moment() -> None:
    graph = ms.profiles.analytic("vgg16", 32).graph
    least, most = ms.min_memory(graph), ms.peak_memory(graph)
    frugal, ample = (
        Counter(step.get("alg") for step in ms.superneurons(graph, memory, 12e9).schedule.steps if "run" in step)
        for memory in (least + (most - least) // 10, 2 * most)
    )
    assert frugal != ample
    assert ms.superneurons(graph, 2 * most, 12e9).makespan == pytest.approx(
        sum(min(choice["time"] for choice in op["choices"]) for op in graph.ops)
    )


@given(graphs(), devices(memory=1), st.floats(0, 1))
def test_the_fastest_of_the_plans_counts(graph: ms.Graph, device: ms.Device, share: float) -> None:
    least = max(1, ms.min_memory(graph))
    memory = int(least + share * max(0, ms.peak_memory(graph) - least))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex, latency=device.latency)
    for strategy in ("cost", "speed", "memory"):
        try:
            plan = ms.superneurons(graph, device=device, strategy=strategy)
        except ms.InfeasibleError as refused:
            assert min(device.d2h, device.h2d) == 0
            named = ms.Device(refused.min_memory or 0, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex)
            ms.validate(ms.superneurons(graph, device=named, strategy=strategy))
            continue
        assert ms.validate(plan).peak_memory <= memory
        # At the peak of the plain run, room that is made may let an op take a faster algorithm, which needs scratch.
        scratch = max(choice["workspace"] for one in graph.ops for choice in one["choices"])
        ample = ms.superneurons(graph, max(1, ms.peak_memory(graph) + scratch), device=device, strategy=strategy)
        assert (ample.offloaded, ample.recomputed) == ((), ())
        if memory >= ms.peak_memory(graph) and not any(len(one["choices"]) > 1 for one in graph.ops):
            assert (plan.offloaded, plan.recomputed) == ((), ())


def test_the_plan_does_not_depend_on_how_python_hashes() -> None:
    code = (
        "import memsched as ms, hashlib; graph = ms.profiles.analytic('resnet50', 64).graph;"
        "plans = [ms.superneurons(graph, share, '6GB/s').schedule.to_json() for share in ('10%', '40%')];"
        "print(hashlib.sha256(repr(plans).encode()).hexdigest())"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert len({*found}) == 1


def test_graphs_of_todays_models() -> None:
    for name in ("gpt2-1024-b8", "resnet50-224-b32", "gnn"):
        if name in ms.profiles.graph_names():
            graph = ms.profiles.load_graph(name)
            plan = ms.superneurons(graph, "30%", "24GB/s")
            ms.validate(plan)
            assert plan.makespan >= plan.lower_bound
    refused = ms.not_asked(ms.to_graph(ms.Chain([1], [1], [1, 1], [0, 1])))["superneurons"]
    assert "only by name" in refused
    with pytest.raises(ms.InvalidInputError, match="strategy is 'fast'"):
        ms.superneurons(ms.to_graph(ms.Chain([1], [1], [1, 1], [0, 1])), 9, 1.0, strategy="fast")


def test_a_plan_with_too_many_runs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 cheap ops in turn, each dropped after its use, took a second, and 2,000 twenty; the docs said 0.4 s."""
    graph = segments(1, 20)
    memory = ms.peak_memory(graph) - 1
    monkeypatch.setattr("memsched.planners.graph.superneurons._MOST_RUNS", 100)
    assert 20 <= again(ms.superneurons(graph, memory, 0, strategy="speed")) < 25
    with pytest.raises(ms.LimitError, match=r"no plan of at most 100 runs; strategy='speed' needs fewer"):
        ms.superneurons(graph, memory, 0, strategy="memory")
    assert again(ms.superneurons(graph, memory, 1.0, strategy="memory")) == 0  # a plan that runs each op once is left
