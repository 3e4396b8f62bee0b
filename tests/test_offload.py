"""OFFLOAD: never worse than what it starts from, optimal where its class can be searched, any pieces."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.testing import chains, devices, instances, three_partition_chain
from oracles.exhaustive import least_makespan

FEW = settings(max_examples=max(10, settings().max_examples // 2))
TINY = 1e-9
ENOUGH = 0.05  # seconds; the tiny sets here are all tried within a few milliseconds


@st.composite
def limited(draw: st.DrawFn, **options: Any) -> tuple[ms.Chain, ms.Device, Any]:
    """A chain, a device below its peak, and a chunk."""
    chain = draw(chains(**options).filter(lambda c: max(1, ms.min_memory(c)) < ms.peak_memory(c)))
    memory = draw(st.integers(max(1, ms.min_memory(chain)), ms.peak_memory(chain) - 1))
    chunk: st.SearchStrategy[Any] = st.none() | st.integers(1, 9)
    if chain.pieces is not None:
        chunk = chunk | st.just("storage")
    return chain, draw(devices(memory=memory)), draw(chunk)


@example(  # DYNPROG took GREEDY's set of whole stages, which is not GREEDY's of pieces
    (
        ms.Chain(
            [0, 0, 0, 0, 3, 6, 6],
            [0] * 7,
            [0, 2, 6, 0, 0, 2, 8, 9],
            [0, 0, 0, 0, 0, 0, 0, 7],
            saved=[2, 7, 18, 0, 2, 9, 30],
            transient_overhead=[0, 1, 18, 0, 0, 1, 21],
            backward_overhead=[0, 0, 0, 0, 0, 0, 5],
        ),
        ms.Device(70, 4, latency=1, duplex=True),
        5,
    )
)
@given(limited(max_stages=7))
def test_never_worse_than_greedy_and_dynprog(case: tuple[ms.Chain, ms.Device, Any]) -> None:
    chain, device, chunk = case
    found = ms.offload(chain, device=device, chunk=chunk, time_limit=0)
    ms.validate(found)
    assert found.makespan <= ms.greedy(chain, device=device, chunk=chunk).makespan * (1 + TINY)
    if device.memory >= ms.min_memory(chain, "dynprog"):
        assert found.makespan <= ms.dynprog(chain, device=device, chunk=chunk).makespan * (1 + TINY)


@pytest.mark.parametrize("name", ["resnet50-224-b32", "densenet121-224-b32", "gpt2-1024-b8"])
@pytest.mark.parametrize("chunk", [None, 64 << 20])
def test_never_worse_on_profiles(name: str, chunk: int | None) -> None:
    chain = ms.profiles.load(name)
    for share in (0.1, 0.4, 0.8):
        least = ms.min_memory(chain, "dynprog")
        memory = int(least + share * (ms.peak_memory(chain) - least))
        found = ms.offload(chain, memory, 12.2e9, chunk=chunk, time_limit=0.05)
        assert found.makespan <= ms.greedy(chain, memory, 12.2e9, chunk=chunk).makespan * (1 + TINY)
        assert found.makespan <= ms.dynprog(chain, memory, 12.2e9, chunk=chunk).makespan * (1 + TINY)
        assert found.lower_bound <= found.makespan


def best_set(chain: ms.Chain, device: ms.Device, chunk: Any = None) -> float:
    """Makespan of the best set of tensors of the forward pass, each set sent by the no-wait schedule."""
    graph = ms.to_graph(chain, chunk=chunk)
    may = [tensor["role"] != "gradient" for tensor in graph.tensors]
    rows = []
    for chosen in product((0, 1), repeat=sum(may)):
        flags = iter(chosen)
        rows.append([next(flags) if movable else 0 for movable in may])
    return float(min(_core.offload_set_makespans(graph, device, device.memory, np.array(rows, np.uint8))))


@FEW
@given(limited(max_stages=3, max_bytes=6))
def test_no_set_beats_it_on_tiny_chains(case: tuple[ms.Chain, ms.Device, Any]) -> None:
    chain, device, _ = case
    found = ms.offload(chain, device=device, time_limit=ENOUGH)
    assert found.makespan <= best_set(chain, device) * (1 + TINY)


@FEW
@given(instances(max_stages=3))
def test_never_below_the_best_schedule_there_is(instance: tuple[ms.Chain, int, float]) -> None:
    """Equal, or above where the search has not found it, or cannot write it.

    The schedules of the search let each op run once, move each tensor out and back at most once, and never
    let a transfer wait for another one that is listed later; the best of all may do otherwise.
    """
    chain, memory, beta = instance
    best = least_makespan(ms.to_graph(chain).to_json(), memory, {"bandwidth": beta})
    assert best is not None
    found = ms.offload(chain, memory, beta, time_limit=0.02)
    assert found.lower_bound - TINY <= best.makespan <= found.makespan + TINY


@pytest.mark.parametrize(
    ("columns", "memory", "beta", "makespan"),
    [
        # the optimum of the exhaustive search, reached
        (([1, 1], [1, 1], [4, 4, 4], [0, 0, 0]), 10, 1.0, 11),
        (([1, 2], [2, 3], [4, 6, 5], [0, 6, 5]), 22, 2.0, 10),
        (([3, 1, 2], [1, 4, 2], [5, 4, 3, 2], [0, 4, 3, 2]), 17, 3.0, 44 / 3),
    ],
)
def test_the_optimum_of_tiny_chains(columns: Any, memory: int, beta: float, makespan: float) -> None:
    chain = ms.Chain(*columns)
    best = least_makespan(ms.to_graph(chain).to_json(), memory, {"bandwidth": beta})
    assert best is not None
    found = ms.offload(chain, memory, beta, time_limit=ENOUGH)
    assert found.makespan == pytest.approx(best.makespan)
    assert found.makespan == pytest.approx(makespan)


@pytest.mark.parametrize(("values", "target"), [([7, 7, 7], 21), ([8, 8, 9, 8, 8, 9], 25)])
def test_three_partition(values: list[int], target: int) -> None:
    """Whole transfers within T: needs triples of sum `target` to be sent together."""
    chain, memory, beta, seconds = three_partition_chain(values, target)
    found = ms.offload(chain, memory, beta, time_limit=ENOUGH)
    assert found.makespan >= seconds


def test_storages() -> None:
    """Tapes of three storages: any of them may stay, so the plan is no worse than with whole tapes."""
    chain = ms.Chain(
        [2, 2, 2],
        [2, 2, 2],
        [4, 4, 4, 4],
        [0, 4, 4, 4],
        saved=[16, 16, 16],
        pieces=[[6, 4, 2], [2, 4, 6], [12]],
    )
    names = {tensor["name"] for tensor in ms.to_graph(chain, "storage").tensors}
    assert {"tape1/0", "tape1/1", "tape1/2", "tape2/0", "tape3"} <= names
    memory = ms.peak_memory(chain) - 5
    pieces = ms.offload(chain, memory, 2.0, chunk="storage", time_limit=ENOUGH)
    whole = ms.offload(chain, memory, 2.0, time_limit=ENOUGH)
    assert ms.validate(pieces).peak_memory <= memory
    assert pieces.schedule.chunk == "storage"
    assert pieces.makespan <= whole.makespan
    assert pieces.makespan <= best_set(chain, pieces.device, "storage") * (1 + TINY)


@FEW
@given(limited(max_stages=5))
def test_no_bytes_travel_in_vain(case: tuple[ms.Chain, ms.Device, Any]) -> None:
    """What is offloaded is fetched again, once, and gradients stay."""
    chain, device, chunk = case
    found = ms.offload(chain, device=device, chunk=chunk, time_limit=0.005)
    fetched = [step["prefetch"] for step in found.schedule.steps if "prefetch" in step]
    sent = [step["offload"] for step in found.schedule.steps if "offload" in step]
    assert sorted(fetched) == sorted(sent) == sorted(found.offloaded)
    assert not any(name.startswith("d") for name in sent)
    assert found.timeline.bytes_in == found.timeline.bytes_out


def test_options() -> None:
    chain = ms.profiles.load("resnet50-224-b32")
    memory = int(0.7 * ms.min_memory(chain) + 0.3 * ms.peak_memory(chain))
    start = ms.offload(chain, memory, 12.2e9, time_limit=0)
    assert ms.offload(chain, memory, 12.2e9, time_limit=0.1).makespan <= start.makespan
    at_once = ms.offload(chain, memory, 12.2e9, time_limit=60, gap=10.0)
    assert at_once.makespan >= start.lower_bound
    assert at_once.gap <= 10
    assert ms.offload(chain, memory, 12.2e9, time_limit=0, seed=3).params["seed"] == 3
    seen: list[float] = []
    ms.offload(chain, memory, 12.2e9, time_limit=0.3, progress=seen.append)
    assert seen
    assert all(0 <= fraction <= 1 for fraction in seen)


def test_no_time_at_all_is_no_worse_than_dynprog() -> None:
    """A tight chain on which a search of its own starting sets alone once lost to dynprog."""
    problem = ms.profiles.random(27, seed=185, scale=50), 1207, 9927.880789074137
    assert ms.offload(*problem, time_limit=0).makespan <= ms.dynprog(*problem).makespan


def test_only_feature_maps_travel() -> None:
    """Gradients never do: a start that sent them once made every plan in pieces illegal."""
    graph = ms.to_graph(ms.profiles.load("densenet121-224-b32"), 1 << 24)
    roles = {graph.tensors[tensor]["role"] for tensor in _core.movable_tensors(graph)}
    assert roles == {"input", "activation"}


def test_a_host_that_holds_just_what_must_leave() -> None:
    """Only one set of tensors fits both memories, and none of the planners' own sets is it."""
    problem = ms.Chain([1] * 5, [1] * 5, [7, 10, 6, 9, 2, 7], [0] * 6)
    result = ms.offload(problem, device=ms.Device(25, 1.0, host_memory=16), time_limit=0.05)
    assert ms.validate(result).bytes_out <= 16


def test_evaluations_count_starts_and_whole_slices_of_moves() -> None:
    chain = ms.profiles.random(12, 3)
    memory = (ms.min_memory(chain) + ms.peak_memory(chain)) // 2
    beta = 0.3 * ms.peak_memory(chain) / float(chain.forward_time.sum() + chain.backward_time.sum())
    counts = [ms.offload(chain, memory, beta, moves=moves).params["evaluations"] for moves in (0, 1, 32, 33)]
    assert [count - counts[0] for count in counts] == [0, 32, 32, 64]
