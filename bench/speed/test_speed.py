"""Seconds of everything that runs often: `pytest bench/speed --benchmark-only`, to be compared within one run.

Tests of one group do the same work in different ways, so that the report's ratios mean something.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import memsched as ms
from memsched import _core
from memsched.planners.chain.greedy import GREEDY
from memsched.planners.sets import begin_chain
from memsched.problems.discretize import ceil_partial_sums
from memsched.problems.fluid import fluid_chain, fluid_solve

PROFILE = "resnet101-224-b32"
LONG = "densenet201-224-b32"
BIG = "resnet152-1000-b8"
MIB = 1 << 20


def device_of(name: str, percent: float, planner: str | None = None) -> ms.Device:
    """The profile's link, and memory in percent of the way from the least to the peak."""
    chain = ms.profiles.load(name)
    low, high = ms.min_memory(chain, planner), ms.peak_memory(chain)
    return ms.Device(int(low + percent / 100 * (high - low)), (chain.provenance or {})["link_bandwidth"])


@pytest.mark.parametrize("method", ["pruned", "hash"])
@pytest.mark.parametrize(("name", "percent"), [("resnet18-224-b32", 10), (PROFILE, 40), (LONG, 10), (LONG, 70)])
def test_dynprog_slots(benchmark: BenchmarkFixture, name: str, percent: float, method: str) -> None:
    benchmark.group = f"dynprog slots=500: {name} at {percent} %"
    instance = fluid_chain(ms.profiles.load(name), device_of(name, percent, "dynprog"))
    width = instance.capacity / 500
    rounded = instance.in_slots(width, 500, ceil_partial_sums(instance.activation, width))
    if method == "hash" and (name, percent) == (LONG, 70):  # seconds
        benchmark.pedantic(_core.dynprog, (rounded, True), rounds=2)
    else:
        benchmark(_core.dynprog, rounded, method == "hash")


@pytest.mark.parametrize("gap", [0.0, 0.003])
@pytest.mark.parametrize("name", [PROFILE, LONG])
def test_dynprog_exact(benchmark: BenchmarkFixture, name: str, gap: float) -> None:
    benchmark.group = f"dynprog slots=None: {name} at 30 %"
    instance = fluid_chain(ms.profiles.load(name), device_of(name, 30, "dynprog"))
    benchmark(fluid_solve, instance, gap=gap, time_limit=10.0)


@pytest.mark.parametrize(("name", "chunk"), [(BIG, MIB), (PROFILE, None)])
def test_simulate(benchmark: BenchmarkFixture, name: str, chunk: int | None) -> None:
    benchmark.group = f"simulate {name} at 40 %, chunk {chunk}"
    chain, device = ms.profiles.load(name), device_of(name, 40)
    schedule = ms.greedy(chain, device=device, chunk=chunk).schedule
    graph = ms.to_graph(chain, chunk)
    benchmark(_core.simulate_graph, graph, schedule, device)
    if benchmark.stats is not None:  # None under --benchmark-disable
        benchmark.extra_info["steps"] = len(schedule)
        benchmark.extra_info["steps_per_second"] = len(schedule) / benchmark.stats.stats.min


@pytest.mark.parametrize(("name", "chunk"), [(BIG, MIB), (PROFILE, None)])
def test_search_evaluation(benchmark: BenchmarkFixture, name: str, chunk: int | None) -> None:
    """The inner loop of the search: one set, made into an eager plan and timed."""
    benchmark.group = f"simulate {name} at 40 %, chunk {chunk}"
    device = device_of(name, 40)
    task = begin_chain(ms.greedy, ms.profiles.load(name), None, None, device, chunk, least=False)
    rows = np.array([task.plans.choose(GREEDY, task.device)[0]])
    benchmark(_core.offload_set_makespans, task.graph, device, device.memory, rows)


RESNET50 = 512  # its batch: on 16e9 bytes it needs the searches most
V100 = ms.Device(16 * 10**9, 12e9, duplex=True)


def test_simulate_resnet50(benchmark: BenchmarkFixture) -> None:
    """PoocH's plan, names resolved; `test_search_evaluation` is without names."""
    benchmark.group = "simulate ResNet-50 by formula"
    graph = ms.profiles.analytic("resnet50", RESNET50).graph
    schedule = ms.pooch(graph, device=V100).schedule
    benchmark(_core.simulate_graph, graph, schedule, V100)
    if benchmark.stats is not None:
        benchmark.extra_info["steps"] = len(schedule)
        benchmark.extra_info["steps_per_second"] = len(schedule) / benchmark.stats.stats.min


def largest_step() -> tuple[ms.Graph, ms.Device]:
    """The largest shipped training step, 3,327 ops, at half of its memory."""
    graph = ms.profiles.load_graph("densenet201-224-b32")
    least = ms.min_memory(graph, "pooch")
    return graph, ms.Device((least + ms.peak_memory(graph)) // 2, 12e9)


@pytest.mark.parametrize("planner", ["pooch", "swap_opt", "swap_all", "by_kind", "vdnn_sync", "autoswap", "tflms"])
@pytest.mark.parametrize("name", ["resnet50", "DenseNet-201 with optimiser"])
def test_graph_planner(benchmark: BenchmarkFixture, name: str, planner: str) -> None:
    benchmark.group = f"planners of graphs: {name}"
    made = ms.profiles.analytic("resnet50", RESNET50).graph, V100
    graph, device = made if name == "resnet50" else largest_step()
    benchmark.extra_info["ops"] = len(graph.ops)
    try:
        benchmark.pedantic(getattr(ms, planner), (graph,), {"device": device}, rounds=3)
    except ms.InfeasibleError:
        pytest.skip("no plan at this memory")


@pytest.mark.parametrize("rounds", ["fewest", "search"])
@pytest.mark.parametrize("gib", [12, 4])
def test_modnn(benchmark: BenchmarkFixture, gib: int, rounds: str) -> None:
    """The family is made anew each time: its graphs at the sub-batches are a part of the work."""
    benchmark.group = f"modnn on VGG-101 in {gib} GiB"
    benchmark.pedantic(
        lambda: ms.modnn(ms.profiles.analytic("vgg101", 128, "k40m"), gib * 2**30, 10e9, rounds=rounds), rounds=3
    )


@pytest.mark.parametrize("chunk", [None, 16 * MIB, MIB])
def test_to_graph(benchmark: BenchmarkFixture, chunk: int | None) -> None:
    benchmark.group = f"to_graph: {BIG}"
    benchmark(ms.to_graph, ms.profiles.load(BIG), chunk)


PLANNERS: dict[str, tuple[Callable[..., ms.Result], dict[str, Any]]] = {
    "greedy": (ms.greedy, {}),
    "dynprog": (ms.dynprog, {}),
    "vdnn": (ms.vdnn, {}),
    "tflms": (ms.tflms, {}),
    "autoswap": (ms.autoswap, {}),
    "offload, 0.1 s": (ms.offload, {"time_limit": 0.1}),
}


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", [PROFILE, LONG])
def test_planner(benchmark: BenchmarkFixture, name: str, planner: str) -> None:
    benchmark.group = f"planners: {name} at 95 %"  # where tflms has a plan too
    plan, options = PLANNERS[planner]
    benchmark(plan, ms.profiles.load(name), device=device_of(name, 95), **options)


@pytest.mark.parametrize("chunk", [None, 16 * MIB])
def test_validate(benchmark: BenchmarkFixture, chunk: int | None) -> None:
    benchmark.group = f"validate: {LONG} at 40 %"
    result = ms.greedy(ms.profiles.load(LONG), device=device_of(LONG, 40), chunk=chunk)
    benchmark(ms.validate, result)


def test_result_to_json(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "Result as JSON text"
    result = ms.greedy(ms.profiles.load(LONG), device=device_of(LONG, 40))
    benchmark(lambda: json.dumps(result.to_json()))


def test_result_from_json(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "Result as JSON text"
    text = json.dumps(ms.greedy(ms.profiles.load(LONG), device=device_of(LONG, 40)).to_json())
    assert benchmark(lambda: ms.Result.from_json(json.loads(text))).makespan > 0


@pytest.mark.parametrize("module", ["memsched", "numpy"])
def test_import(benchmark: BenchmarkFixture, module: str) -> None:
    """A new interpreter each time: the difference to numpy is what memsched adds."""
    benchmark.group = "import"
    benchmark.pedantic(subprocess.check_call, ([sys.executable, "-c", f"import {module}"],), rounds=5)
