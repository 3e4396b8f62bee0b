"""The reference for plans from classes: its plans are legal, and as fast on ResNet-50 as PoocH's model says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.testing import chains
from oracles.class_plans import ClassPlan, DoesNotFitError, feature_maps, fixed_choices

POLICIES = ["demand", "prev", "prevconv", "window:2", "eager"]
WORKSPACE = 8 * 2**20


def planned(graph: ms.Graph, classes: dict[str, str], device: ms.Device, policy: str, limit: float = WORKSPACE) -> Any:
    """The timeline of a plan from classes, which the checker confirms."""
    document = graph.to_json()
    plan = ClassPlan(document, classes, device.memory, policy, fixed_choices(document, limit))
    schedule = ms.Schedule(plan.steps, budget=device.memory, graph=graph.name, rounds=[(graph.batch, 1)])
    timeline, report = ms.simulate(graph, schedule, device), ms.validate(graph, schedule, device)
    assert timeline.makespan == pytest.approx(report.makespan)
    assert timeline.peak_memory == report.peak_memory
    return timeline


@given(chains(), st.data())
def test_plans_are_legal(chain: ms.Chain, data: st.DataObject) -> None:
    graph = ms.to_graph(chain)
    maps = feature_maps(graph.to_json())
    classes = {name: data.draw(st.sampled_from(["keep", "swap", "recompute"])) for name in maps}
    least, most = ms.min_memory(graph), ms.peak_memory(graph)
    device = ms.Device(data.draw(st.integers(least, most + 1)) or 1, 2.0, duplex=data.draw(st.booleans()))
    for policy in POLICIES:
        try:
            timeline = planned(graph, classes, device, policy)
        except DoesNotFitError:
            continue
        assert timeline.peak_memory <= device.memory
        assert set(classes.values()) - {"keep"} or timeline.bytes_out == timeline.recompute_time == 0


@pytest.mark.parametrize(
    ("policy", "link", "images"), [("prev", 12e9, 72.0), ("eager", 12e9, 74.9), ("eager", 16e9, 99.6)]
)
def test_swapping_all_of_resnet50(policy: str, link: float, images: float) -> None:
    """Images a second at batch 256 on a V100 with 16e9 bytes; "prev" is PoocH's swap-all without scheduling."""
    graph = ms.profiles.analytic("resnet50", 256).graph
    classes = dict.fromkeys(feature_maps(graph.to_json()), "swap")
    timeline = planned(graph, classes, ms.Device(16 * 10**9, link, duplex=True), policy)
    assert 256 / timeline.makespan == pytest.approx(images, rel=0.01)


def test_more_room_allows_more_maps_to_stay() -> None:
    """As SuperNeurons has it: the last maps stay; of the others those of convolutions travel, the rest run again."""
    graph = ms.profiles.analytic("resnet50", 256).graph
    maps = feature_maps(graph.to_json())
    convolutions = {name for op in graph.ops if op["kind"] == "conv" for name in op["writes"]}
    classes = {
        name: "keep" if k >= len(maps) - 95 else "swap" if name in convolutions else "recompute"
        for k, name in enumerate(maps)
    }
    device = ms.Device(16 * 10**9, 16e9, duplex=True)
    timeline = planned(graph, classes, device, "prevconv")
    assert 256 / timeline.makespan == pytest.approx(253.4, rel=0.02)
    assert timeline.recompute_time > 0
    one_more = {**classes, maps[-96]: "keep"}
    with pytest.raises(DoesNotFitError):
        planned(graph, one_more, device, "demand")
