"""Plans from classes: the core's against a slow reference, and figures of the papers that use them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.testing import chains, graphs
from oracles.class_plans import ClassPlan, DoesNotFitError, feature_maps, fixed_choices

WORKSPACE = 8 * 2**20
NAMES = ["keep", "swap", "recompute"]
POLICIES: dict[str, dict[str, Any]] = {
    "demand": {"fetch": "demand"},
    "prev": {"fetch": "layers"},
    "prevconv": {"fetch": "layers", "convolutions": True},
    "window:2": {"fetch": "layers", "layers": 2},
    "eager": {"fetch": "eager"},
}


def reference(graph: ms.Graph, classes: list[int], device: ms.Device, policy: str, limit: int) -> Any:
    """The steps of the slow builder, or None where something does not fit."""
    document = graph.to_json()
    named = {name: NAMES[one] for name, one in zip(feature_maps(document), classes, strict=True)}
    try:
        return ClassPlan(document, named, device.memory, policy, fixed_choices(document, limit)).steps
    except DoesNotFitError:
        return None


def product(graph: ms.Graph, classes: list[int], device: ms.Device, policy: str, limit: int) -> Any:
    found = _core.class_schedule(graph, device, limit, np.array(classes, np.uint8), **POLICIES[policy])
    return None if found is None else found.to_json()["steps"]


@pytest.mark.slow
@settings(max_examples=3 * settings().max_examples)
@given(graphs(), st.data())
def test_the_core_and_the_reference_make_the_same_steps(graph: ms.Graph, data: st.DataObject) -> None:
    maps = feature_maps(graph.to_json())
    assert [graph.tensors[t]["name"] for t in _core.feature_maps(graph)] == maps
    classes = [data.draw(st.integers(0, 2)) for _ in maps]
    limit = data.draw(st.integers(0, 9))
    least, most = ms.min_memory(graph), ms.peak_memory(graph)
    device = ms.Device(data.draw(st.integers(least, most + 9)) or 1, 2.0, duplex=data.draw(st.booleans()))
    for policy in POLICIES:
        steps = product(graph, classes, device, policy, limit)
        assert steps == reference(graph, classes, device, policy, limit)
        if steps is None:
            continue
        schedule = ms.Schedule(steps, budget=device.memory, graph=graph.name, rounds=[(graph.batch, 1)])
        timeline, report = ms.simulate(graph, schedule, device), ms.validate(graph, schedule, device)
        assert timeline.makespan == pytest.approx(report.makespan)
        assert timeline.peak_memory == report.peak_memory <= device.memory
        assert {1, 2} & set(classes) or timeline.bytes_out == timeline.recompute_time == 0


@given(graphs(), st.data())
def test_the_least_budget_is_the_least(graph: ms.Graph, data: st.DataObject) -> None:
    classes = [data.draw(st.integers(0, 1)) for _ in feature_maps(graph.to_json())]
    least = _core.least_budget(graph, 0, np.array(classes, np.uint8))
    for memory, fits in ((least, True), (least - 1, False)):
        if memory > 0:
            assert (product(graph, classes, ms.Device(memory, 1.0), "demand", 0) is not None) == fits


def makespan(graph: ms.Graph, steps: Any, device: ms.Device) -> float:
    """Infinite where there are no steps."""
    if steps is None:
        return math.inf
    schedule = ms.Schedule(steps, budget=device.memory, graph=graph.name, rounds=[(graph.batch, 1)])
    return ms.simulate(graph, schedule, device).makespan


@given(chain=chains(max_stages=6, max_bytes=5), share=st.floats(0, 1), link=st.sampled_from([0.5, 1.0, 3.0]))
def test_swapping_all_takes_the_best_fetches(chain: ms.Chain, share: float, link: float) -> None:
    graph = ms.to_graph(chain)
    swapped = [1] * len(_core.feature_maps(graph))
    least = max(1, ms.min_memory(graph, "swap_all"))
    device = ms.Device(int(least + share * max(0, ms.peak_memory(graph) - least)), link, duplex=True)
    found = ms.swap_all(graph, device=device).makespan
    steps = [product(graph, swapped, device, policy, 0) for policy in ("eager", "demand", "prev")]
    assert found == pytest.approx(min(makespan(graph, one, device) for one in steps))


def test_eager_fetches_are_not_always_the_best() -> None:
    """Nobody should claim it: what is listed early holds its memory against later runs.

    The fetch of tape3 waits for its offload until 2 s and arrives at 4 s. Listed before B4 (3 s, a byte of workspace),
    it keeps B4 waiting until the byte of the offloaded copy is back, at 2 s.
    """
    chain = ms.Chain(
        [0, 0, 0, 0], [0, 0, 0, 3], [0] * 5, [0, 0, 1, 0, 0], saved=[0, 0, 1, 0], backward_overhead=[0, 0, 0, 1]
    )
    graph, device = ms.to_graph(chain), ms.Device(2, 0.5, duplex=True)
    classes = [1]  # tape3: it alone has bytes
    assert makespan(graph, product(graph, classes, device, "eager", 0), device) == 5
    assert makespan(graph, product(graph, classes, device, "demand", 0), device) == 4


@pytest.mark.parametrize(
    ("policy", "link", "images"), [("prev", 12e9, 72.0), ("eager", 12e9, 74.9), ("eager", 16e9, 99.6)]
)
def test_swapping_all_of_resnet50(policy: str, link: float, images: float) -> None:
    """Images a second at batch 256 on a V100 with 16e9 bytes; "prev" is PoocH's swap-all without scheduling."""
    graph = ms.profiles.analytic("resnet50", 256).graph
    device = ms.Device(16 * 10**9, link, duplex=True)
    steps = product(graph, [1] * len(_core.feature_maps(graph)), device, policy, WORKSPACE)
    schedule = ms.Schedule(steps, budget=device.memory, graph=graph.name, rounds=[(256, 1)])
    assert 256 / ms.simulate(graph, schedule, device).makespan == pytest.approx(images, rel=0.01)
