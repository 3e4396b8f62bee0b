"""The bound of the cuts on the period of a repeated step: cases in which it was once false, and what it knows."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.testing import repeated_schedules

Json = dict[str, Any]


def tensor(name: str, size: int, role: str = "activation") -> Json:
    return {"name": name, "size": size, "role": role}


def op(name: str, phase: str, reads: list[str], writes: list[str], time: float = 1.0, **more: Any) -> Json:
    choices = [{"alg": "default", "time": time, "workspace": more.pop("workspace", 0)}]
    return {"name": name, "phase": phase, "reads": reads, "writes": writes, "choices": choices, **more}


@pytest.mark.parametrize("host_memory", [None, 16, 15])
def test_what_nobody_changes_needs_no_way_out(host_memory: int | None) -> None:
    """It was infinite: two parameters that are on the host, over a link that only brings."""
    tensors = [tensor("x", 8, "persistent"), tensor("y", 8, "persistent"), tensor("a", 1)]
    graph = ms.Graph(tensors, [op("F", "fwd", ["x"], ["a"]), op("B", "bwd", ["a", "y"], [])], name="g")
    listed = ["prefetch x", "run F", "free x", "prefetch y", "run B", "free y", "free a"]
    steps = [dict([step.split()]) for step in listed]
    schedule = ms.Schedule(steps, budget=9, border={"x": "host", "y": "host"})
    device = ms.Device(9, d2h=0.0, h2d=1.0, host_memory=host_memory)
    if host_memory == 15:
        with pytest.raises(ms.ScheduleError):
            ms.simulate(graph, schedule, device)
        return
    report = ms.validate(graph, schedule, device)
    assert ms.bounds(graph, device=device).recompute == report.lower_bound == 8
    assert ms.simulate(graph, schedule, device).makespan == report.makespan == 18


def test_what_may_run_on_the_host_counts_nowhere() -> None:
    """An op behind it counted its time on the device: the validator's bound was 1009 seconds, of a plan of 19."""
    tensors = [tensor("x", 0, "persistent"), tensor("n", 0, "persistent"), tensor("a", 8)]
    tensors += [tensor(name, 0) for name in ("c", "b", "done")]
    ops = [
        op("F", "fwd", ["x"], ["a", "c"], once=True),
        op("N", "fwd", ["n"], ["done"], 1000.0, host_time=1.0, once=True, updates=["n"]),
        op("M", "bwd", ["done", "c"], ["b"], workspace=8),
        op("B", "bwd", ["a", "b"], []),
    ]
    found = ms.selective(ms.Graph(tensors, ops, name="g"), device=ms.Device(8, 1.0))
    assert found.makespan == pytest.approx(19)
    assert ms.validate(found).lower_bound == pytest.approx(found.lower_bound) == pytest.approx(16, rel=1e-4)


@pytest.mark.parametrize(("forward", "backward"), [(4.0, 1.0), (1.0, 4.0)])
def test_a_state_travels_while_only_some_ops_run(forward: float, backward: float) -> None:
    """When B starts, 4 bytes of the state are away. They come back after F, and leave after B and the update."""
    tensors = [tensor("w", 1, "persistent"), tensor("s", 8, "persistent"), tensor("n", 0, "persistent")]
    tensors += [tensor("a", 4), tensor("g", 1), tensor("counted", 0)]
    ops = [
        op("F", "fwd", ["w"], ["a"], forward),
        op("count", "fwd", ["n"], ["counted"], 0.0, once=True, updates=["n"]),  # an early change, of nothing
        op("B", "bwd", ["a", "w"], ["g"], backward),
        op("U", "bwd", ["g", "s", "counted"], [], 1.0, once=True, updates=["s"]),
    ]
    graph, device = ms.Graph(tensors, ops, name="g"), ms.Device(10, 1.0, duplex=True)
    found = ms.selective(graph, device=device)
    assert found.lower_bound == pytest.approx(8)
    assert ms.validate(found).lower_bound == pytest.approx(8)


def test_a_run_that_allocates_nothing_does_not_wait_for_a_fetch_listed_before() -> None:
    """The fetch of s may start after B, which then has less than the list says. The bound holds for it, too."""
    tensors = [tensor("w", 1, "persistent"), *(tensor(name, 1, "persistent") for name in "stu")]
    tensors += [tensor("a", 4), tensor("g", 0)]
    ops = [
        op("F", "fwd", ["w"], ["a"], 0.5, once=True),
        op("B", "bwd", ["a", "w"], ["g"], once=True),
        op("U", "bwd", ["g", "w", "s", "t", "u"], [], 0.25, once=True, updates=["s", "t", "u", "w"]),
    ]
    graph, device = ms.Graph(tensors, ops, name="g"), ms.Device(7, 0.5, duplex=True)
    listed = ["run F", "prefetch s", "run B", "free a", "prefetch t", "run U"]
    listed += [f"{what} {name}" for name in "st" for what in ("offload", "free")] + ["free g"]
    schedule = ms.Schedule([dict([one.split()]) for one in listed], budget=7, border={"s": "host", "t": "host"})
    report = ms.validate(graph, schedule, device)
    bound = ms.bounds(graph, device=device).recompute
    assert report.lower_bound == pytest.approx(bound)
    assert bound <= ms.selective(graph, device=device).makespan <= report.makespan


def test_many_updates_take_no_longer_to_bound() -> None:
    """Ten thousand early updates: which ops come before all of them is found once, or not at all."""
    layers = range(10_000)
    tensors = [tensor(f"{name}{k}", 4, "persistent") for k in layers for name in "ws"]
    tensors += [tensor(f"{name}{k}", 4) for k in layers for name in "adg"]
    ops = [op(f"F{k}", "fwd", [f"w{k}", *([f"a{k - 1}"] if k else [])], [f"a{k}"]) for k in layers]
    for k in reversed(layers):
        reads = [f"w{k}", f"a{k}", *([f"d{k + 1}"] if f"d{k + 1}" in ops[-1]["writes"] else [])]
        ops.append(op(f"B{k}", "bwd", reads, [f"d{k}", f"g{k}"]))
        ops.append(op(f"U{k}", "bwd", [f"g{k}", f"w{k}", f"s{k}"], [], once=True, updates=[f"w{k}", f"s{k}"]))
    graph = ms.Graph(tensors, ops, name="g")
    device = ms.Device(ms.peak_memory(graph) // 4, 1.0, duplex=True)
    began = time.process_time()
    assert ms.bounds(graph, device=device).recompute > len(ops)
    assert time.process_time() - began < 2


@given(repeated_schedules(), st.sampled_from([0.0, 1e-9, 1e9]), st.booleans(), st.sampled_from(["d2h", "h2d"]))
def test_no_list_is_faster_over_a_link_of_two_speeds(
    case: tuple[ms.Graph, ms.Schedule, ms.Device], share: float, duplex: bool, which: str
) -> None:
    graph, schedule, given_ = case
    speeds = {"d2h": given_.d2h, "h2d": given_.h2d}
    speeds[which] *= share
    device = ms.Device(given_.memory, **speeds, duplex=duplex, host_memory=given_.host_memory)
    try:
        makespan = ms.simulate(graph, schedule, device).makespan
    except ms.ScheduleError:
        return  # nothing may travel that way
    device = ms.Device(min(device.memory, schedule.budget), **speeds, duplex=duplex, host_memory=given_.host_memory)
    bound = ms.bounds(graph, device=device)
    assert max(bound.best, bound.recompute) <= makespan * (1 + 1e-9)
    assert ms.validate(graph, schedule, device).lower_bound <= makespan
