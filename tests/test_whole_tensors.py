"""The benchmarks' bound on plans that move whole tensors, against the least makespan of all schedules."""

from __future__ import annotations

import random

import pytest
from bench.whole_tensors import whole_tensor_bound

import memsched as ms
from memsched.problems.bounds import graph_bound
from oracles.exhaustive import least_makespan

pytestmark = pytest.mark.slow


def small_chain(rng: random.Random) -> ms.Chain:
    """One to three stages of small integers."""
    n = rng.randint(1, 3)

    def numbers(least: int, most: int, count: int = n) -> list[int]:
        return [rng.randint(least, most) for _ in range(count)]

    activation = numbers(1, 9, n + 1)
    saved = [output + rng.choice([0, 0, 1, 3]) for output in activation[1:]]
    return ms.Chain(
        numbers(0, 4),
        numbers(0, 4),
        activation,
        numbers(0, 4, n + 1),
        saved=saved,
        forward_overhead=numbers(0, 3),
        backward_overhead=numbers(0, 3),
    )


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_never_above_the_best_schedule_and_often_above_the_fractional_bound(count: int) -> None:
    rng = random.Random(0)
    compared = above = equal = 0
    for _ in range(count):
        chain = small_chain(rng)
        low, high = ms.min_memory(chain), ms.peak_memory(chain)
        if low == high:
            continue
        device = ms.Device(rng.randrange(low, high), rng.choice([0.5, 1.0, 2.0, 4.0]))
        graph = ms.to_graph(chain)
        best = least_makespan(graph.to_json(), device.memory, {"bandwidth": device.d2h})
        assert best is not None
        found = whole_tensor_bound(graph, device, best.makespan)
        compared += 1
        assert found <= best.makespan * (1 + 1e-9), (chain.to_json(), device)
        above += found > graph_bound(graph, device) * (1 + 1e-9)
        equal += found >= best.makespan * (1 - 1e-9)
    assert compared > count / 2
    assert above > compared / 3
    assert equal > compared / 3


def test_more_tensors_than_it_can_search_end_in_a_sentence() -> None:
    chain = ms.profiles.load("resnet50-224-b32")
    with pytest.raises(ValueError, match="at most 24 tensors"):
        whole_tensor_bound(ms.to_graph(chain), ms.Device(1e9, 1e9), 1.0)
