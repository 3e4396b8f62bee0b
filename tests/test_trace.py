"""Traces in Chrome's Trace Event Format."""

from __future__ import annotations

import doctest
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

import memsched as ms
from memsched.show import trace as module
from memsched.show.trace import intervals, trace
from memsched.testing import plans

CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], resident=7)


def result_of(problem: Any, schedule: ms.Schedule, device: ms.Device) -> ms.Result:
    return ms.Result(
        planner="by hand",
        problem=problem,
        device=device,
        schedule=schedule,
        timeline=ms.simulate(problem, schedule, device),
        lower_bound=0.0,
        runtime=0.0,
    )


def test_the_examples_of_the_docstrings_hold() -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_a_worked_example() -> None:
    result = ms.greedy(CHAIN, 31, 2.0)
    document = json.loads(json.dumps(trace(result), allow_nan=False))
    events = document["traceEvents"]
    threads = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert threads == {"compute": 1, "device to host": 2, "host to device": 3}
    bars = {
        (event["cat"], event["name"]): (event["ts"], event["dur"], event["tid"])
        for event in events
        if event["ph"] == "X"
    }
    assert bars[("forward", "F2")] == (1e6, 2e6, 1)
    assert bars[("backward", "B1")] == (16e6, 2e6, 1)
    assert bars[("offload", "a0")] == (0, 2e6, 2)
    assert bars[("prefetch", "a0")] == (12.5e6, 2e6, 3)
    assert document["otherData"]["budget_bytes"] == 31
    assert document["otherData"]["resident_bytes"] == 7


@given(case=plans.schedules())
def test_every_step_and_every_byte_is_there(case: tuple[Any, ms.Schedule, ms.Device]) -> None:
    result = result_of(*case)
    events = trace(result)["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    bars = {event["args"]["step"]: event for event in timed if event["ph"] == "X"}
    for event in bars.values():
        assert ("bytes" in event["args"]) == (event["tid"] > 1)  # of what the link carries
    assert sum(event["args"].get("bytes", 0) for event in bars.values()) == (
        result.timeline.bytes_out + result.timeline.bytes_in
    )
    assert set(bars) == {index for index, step in enumerate(result.schedule.steps) if "free" not in step}
    for index, bar in bars.items():
        assert bar["ts"] == result.timeline.start[index] * 1e6
        assert math.isclose(bar["ts"] + bar["dur"], result.timeline.end[index] * 1e6, abs_tol=1e-6)
    memory = [event for event in timed if event["ph"] == "C" and event["name"] == "memory"]
    assert [event["args"]["bytes"] for event in memory] == list(result.timeline.memory[1])
    budget = {event["args"]["bytes"] for event in timed if event["name"] == "budget" and event["ph"] == "C"}
    assert budget == {min(result.schedule.budget, result.device.memory)}


@given(case=plans.schedules())
def test_the_second_run_of_an_op_is_a_recomputation(case: tuple[Any, ms.Schedule, ms.Device]) -> None:
    result = result_of(*case)
    bars = intervals(result)
    again = [bar for bar in bars if bar.kind == "recompute"]
    assert {bar.name for bar in again} == set(result.recomputed)
    assert math.isclose(
        sum(bar.end - bar.start for bar in again), result.timeline.recompute_time, rel_tol=1e-9, abs_tol=1e-9
    )
    moved = {kind: sum(bar.bytes or 0 for bar in bars if bar.kind == kind) for kind in ("offload", "prefetch")}
    assert moved == {"offload": result.timeline.bytes_out, "prefetch": result.timeline.bytes_in}


def test_a_timeline_of_another_schedule_is_refused() -> None:
    short, long = ms.greedy(CHAIN, 100, 2.0), ms.greedy(CHAIN, 31, 2.0)
    with pytest.raises(ms.InvalidInputError, match="simulate it"):
        trace(replace(short, timeline=long.timeline))
    with pytest.raises(ms.InvalidInputError, match="does not have"):
        trace(replace(long, problem=ms.Chain([1], [1], [1, 1], [1, 1])))


def test_times_beyond_all_microseconds_are_written_as_json() -> None:
    plan, late = ms.greedy(CHAIN, device=ms.Device(31, 2.0)), ms.Device(31, 2.0, latency=1e304)
    result = replace(plan, device=late, timeline=ms.simulate(CHAIN, plan.schedule, late))
    assert result.makespan > 1e304
    events = trace(result)
    assert json.loads(json.dumps(events, allow_nan=False))
