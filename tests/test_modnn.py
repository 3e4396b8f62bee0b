"""moDNN: a slow one and the core's make the same plans; they are legal, and their clock is the simulator's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.testing import graphs
from oracles.modnn import DoesNotFitError, Modnn


def fastest(graph: ms.Graph) -> float:
    return float(sum(min(choice["time"] for choice in op["choices"]) for op in graph.ops))


@st.composite
def devices(draw: st.DrawFn, memory: int) -> ms.Device:
    rates = st.sampled_from([0.5, 1.0, 3.0, float("inf")])
    return ms.Device(
        memory, d2h=draw(rates), h2d=draw(rates), duplex=draw(st.booleans()), latency=draw(st.sampled_from([0.0, 0.25]))
    )


def planned(graph: ms.Graph, device: ms.Device, budget: int) -> tuple[Modnn, Any]:
    """The plan, measured by the simulator and the validator."""
    plan = Modnn(graph.to_json(), device.to_json(), budget)
    schedule = ms.Schedule(plan.steps, budget=budget, graph=graph.name, memory="contiguous", rounds=[(graph.batch, 1)])
    timeline, report = ms.simulate(graph, schedule, device), ms.validate(graph, schedule, device)
    assert report.makespan == pytest.approx(timeline.makespan, rel=1e-9)
    assert report.peak_memory == timeline.peak_memory <= budget
    assert plan.makespan == pytest.approx(timeline.makespan, rel=1e-9)
    core, clock = _core.modnn(graph, device, True, {"name": "modnn"})
    assert clock == pytest.approx(timeline.makespan, rel=1e-9)
    assert core.to_json()["steps"] == schedule.to_json()["steps"]
    return plan, timeline


@given(graph=graphs(max_layers=8), share=st.floats(0, 1), data=st.data())
def test_plans_are_legal_and_keep_time(graph: ms.Graph, share: float, data: st.DataObject) -> None:
    least = ms.min_memory(graph)
    budget = max(1, least + int(share * (ms.peak_memory(graph) - least)))
    planned(graph, data.draw(devices(budget)), budget)


@given(graph=graphs(max_layers=8), data=st.data())
def test_runs_exactly_from_the_minimum(graph: ms.Graph, data: st.DataObject) -> None:
    least = ms.min_memory(graph)
    device = data.draw(devices(max(1, least)))
    planned(graph, device, max(1, least))
    assert _core.modnn_min_memory(graph) == least
    with pytest.raises(DoesNotFitError):
        Modnn(graph.to_json(), device.to_json(), least - 1)
    if least > 1:
        with pytest.raises(ms.InfeasibleError, match=str(least)):
            _core.modnn(graph, ms.Device(least - 1, 1.0), True, {"name": "modnn"})


@given(graph=graphs(max_layers=8), data=st.data())
def test_plentiful_memory_moves_nothing(graph: ms.Graph, data: st.DataObject) -> None:
    budget = 10 * ms.peak_memory(graph) + 100
    plan, timeline = planned(graph, data.draw(devices(budget)), budget)
    assert not any("offload" in step or "prefetch" in step for step in plan.steps)
    assert timeline.makespan == pytest.approx(fastest(graph), rel=1e-9)
