"""The simulator: each rule by hand, the validator's figures on random plans, what a faster machine does."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.testing import schedules
from memsched.validation.plan import check_plan
from plans import instances

MANY = settings(max_examples=3 * settings().max_examples)
Json = dict[str, Any]
Case = tuple[ms.Chain, ms.Schedule, ms.Device]


def graph(**times: float) -> ms.Graph:
    """x (2) -> F1 -> a (4) -> F2 -> b (3) -> F3 -> c (1 byte); B reads a and c, writes d (4); 10 resident."""
    time = {"F1": 2.0, "F2": 3.0, "F3": 5.0, "B": 2.0, **times}

    def op(name: str, reads: list[str], writes: list[str], workspace: int = 0, **more: Any) -> Json:
        choices = [{"alg": "default", "time": time[name], "workspace": workspace}]
        return {"name": name, "phase": "fwd", "reads": reads, "writes": writes, "choices": choices, **more}

    sizes = {"x": 2, "a": 4, "b": 3, "c": 1, "d": 4}
    roles = {"x": "input", "d": "gradient"}
    return ms.Graph(
        [{"name": t, "size": size, "role": roles.get(t, "activation")} for t, size in sizes.items()],
        [
            op("F1", ["x"], ["a"]),
            op("F2", ["a"], ["b"]),
            op("F3", ["b"], ["c"], workspace=1),
            op("B", ["a", "c"], ["d"], once=True),
        ],
        resident=10,
    )


def step(text: str) -> Json:
    """ "prefetch a after 1 2" as a step."""
    verb, name, *after = text.split()
    return {verb: name, **({"after": [int(k) for k in after[1:]]} if after else {})}


def run(text: str, budget: int = 100, device: ms.Device | None = None, **times: float) -> ms.Timeline:
    """Simulate steps separated by commas, and let the validator agree."""
    schedule = ms.Schedule([step(part) for part in text.split(",")], budget=budget, graph="graph")
    return agreed(graph(**times), schedule, device or ms.Device(1000, 1.0))


def test_an_op_that_may_run_only_once_does() -> None:
    """Such as one that adds to a gradient in place."""
    text = "run F1, run F2, run F3, run B, free d, run B"
    once = ms.Schedule([step(part) for part in text.split(",")], budget=100, graph="graph")
    with pytest.raises(ms.ScheduleError, match="op 'B' may run only once") as caught:
        ms.simulate(graph(), once, ms.Device(1000, 1.0))
    assert caught.value.step == 5
    with pytest.raises(ms.ScheduleError):
        ms.validate(graph(), once, ms.Device(1000, 1.0))
    document = graph().to_json()
    document["ops"][3].pop("once")
    assert ms.simulate(ms.Graph.from_json(document), once, ms.Device(1000, 1.0)).makespan == 14.0


def test_sources_lie_one_after_the_other_from_address_0() -> None:
    tensors = [("x", 2, "input"), ("w", 3, "weight"), ("v", 5, "weight"), ("a", 4, "activation")]
    op: Json = {"name": "F", "phase": "fwd", "reads": ["x", "w", "v"], "writes": ["a"]}
    choices = [{"alg": "default", "time": 1.0, "workspace": 0}]
    three = ms.Graph(
        [{"name": t, "size": size, "role": role} for t, size, role in tensors], [{**op, "choices": choices}]
    )
    for at, fits in ((10, True), (9, False), (0, False), (2, False)):
        plan = ms.Schedule([{"run": "F", "at": {"a": at}}], budget=100, memory="contiguous")
        if not fits:
            with pytest.raises(ms.ScheduleError):
                ms.simulate(three, plan, ms.Device(100))
            continue
        blocks = ms.simulate(three, plan, ms.Device(100)).blocks
        assert dict(zip(blocks[0].tolist(), blocks[5].tolist(), strict=True)) == {0: 0, 1: 2, 2: 5, 3: 10}
        assert blocks[4].tolist() == [True, True, True, False]


def agreed(problem: Any, schedule: ms.Schedule, device: ms.Device) -> ms.Timeline:
    """The timeline, if the validator says the same."""
    timeline, report = ms.simulate(problem, schedule, device), ms.validate(problem, schedule, device)
    assert timeline.makespan == pytest.approx(report.makespan, rel=1e-9, abs=1e-12)
    assert timeline.peak_memory == report.peak_memory
    assert timeline.start.tolist() == pytest.approx(list(report.start), rel=1e-9, abs=1e-12)
    assert timeline.end.tolist() == pytest.approx(list(report.end), rel=1e-9, abs=1e-12)
    assert (timeline.bytes_out, timeline.bytes_in) == (report.bytes_out, report.bytes_in)
    assert timeline.recompute_time == pytest.approx(report.recompute_time)
    assert timeline.idle == pytest.approx(max(0.0, report.makespan - report.compute_time), abs=1e-9)
    return timeline


SWAP = "run F1,offload a,run F2,free a,run F3,free b,prefetch a,run B"


def test_swap_with_plenty_of_memory() -> None:
    timeline = run(SWAP)
    assert timeline.start.tolist() == [0, 2, 2, 6, 5, 10, 6, 10]
    assert timeline.end.tolist() == [2, 6, 5, 6, 10, 10, 10, 12]
    assert (timeline.makespan, timeline.peak_memory, timeline.idle) == (12, 21, 0)
    times, held = timeline.memory
    assert dict(zip(times.tolist(), held.tolist(), strict=True)) == {0: 16, 2: 19, 5: 21, 6: 21, 10: 21}


def test_e1_a_step_waits_for_the_start_of_the_run_before_it() -> None:
    """x is there from time 0, but the offload is listed behind F2, which starts at 2."""
    assert run("run F1,run F2,offload x,run F3,run B").start[2] == 2
    assert run("offload x,run F1,run F2,run F3,run B").start[0] == 0


def test_e2_a_run_waits_for_the_stream_its_reads_and_after() -> None:
    assert run("run F1,run F2,run F3,run B").start.tolist() == [0, 2, 5, 10]
    assert run(SWAP, F3=1.0).start[7] == 10  # B waits for the copy of a, F3 ends at 6
    assert run("run F1,offload a,run F2 after 1,run F3,run B").start.tolist() == [0, 2, 6, 9, 14]


def test_e3_an_offload_waits_for_its_stream_and_its_tensor() -> None:
    timeline = run("offload x,run F1,offload a,run F2,offload b,run F3,run B")
    assert timeline.start.tolist() == [0, 0, 2, 2, 6, 5, 10]  # a is complete at 2, the link is busy until 6
    assert run("run F1,offload a,offload a,run F2,run F3,run B").end[2] == 10  # twice is legal


def test_e4_a_prefetch_waits_for_the_host_copy_and_reserves_at_its_start() -> None:
    steps = "run F1,offload a,run F2,free a,prefetch a,run F3,run B"
    timeline = run(steps, device=ms.Device(1000, d2h=1.0, h2d=2.0, duplex=True))
    assert timeline.start[4] == timeline.end[1] == 6
    assert timeline.end[4] == 8
    times, held = timeline.memory
    assert dict(zip(times.tolist(), held.tolist(), strict=True))[6] == 10 + 2 + 4 + 3 + 1 + 1
    assert run(steps).start[4] == 6


def test_e5_a_free_waits_for_the_run_before_it_and_for_every_use() -> None:
    assert run("run F1,run F2,free x,run F3,run B").end[2] == 2  # the start of F2
    assert run("run F1,run F2,free b,run F2,run F3,run B").end[2] == 5
    assert run("run F1,offload x,free x,run F2,run F3,run B", device=ms.Device(1000, 0.25)).end[2] == 8
    assert run(SWAP, device=ms.Device(1000, inf)).end[3] == 5  # the reader F2


def test_e6_a_workspace_lives_as_long_as_its_run() -> None:
    timeline = run("run F1,run F2,run F3,run B")
    times, held = timeline.memory
    at = dict(zip(times.tolist(), held.tolist(), strict=True))
    assert at[5] == 10 + 2 + 4 + 3 + 1 + 1
    assert timeline.peak_memory == at[10] == 10 + 2 + 4 + 3 + 1 + 4
    assert run("run F1,run F2,run F3,run B", F3=0.0).peak_memory == 24


def test_e7_an_allocation_waits_until_the_bytes_are_back() -> None:
    """F3 needs 2 bytes while x, a and b hold 9 of 10: it waits for a to leave, until 6."""
    steps = "run F1,offload a,run F2,free a,run F3,free b,free x,prefetch a,run B"
    timeline = run(steps, budget=20)
    assert timeline.start.tolist() == [0, 2, 2, 6, 6, 11, 6, 6, 11]
    assert timeline.peak_memory == 19
    assert run(steps, budget=21).start[4] == 5
    refused(steps, 18, step=2)


def test_e7_what_is_listed_before_counts_as_held_before_it_has_started() -> None:
    """F3 would fit at 5, when x has not begun to come back; but the prefetch is listed before it."""
    steps = "offload x,run F1,free x,run F2,prefetch x,run F3,free b,free x,run B"
    timeline = run(steps, budget=21, device=ms.Device(1000, 0.25))
    assert timeline.start.tolist() == [0, 0, 8, 2, 8, 8, 13, 16, 13]


def test_e8_every_step_starts_as_early_as_it_may() -> None:
    """Nothing waits for the last offload but its own free."""
    timeline = run("run F1,run F2,offload b,run F3,free b,run B")
    assert timeline.start.tolist() == [0, 2, 5, 5, 10, 10]
    assert timeline.makespan == 12
    assert run("run F1,run F2,run F3,run B,offload d").makespan == 16  # transfers count, too


def test_an_allocation_of_nothing_waits_for_nothing() -> None:
    chain = ms.Chain([1, 1], [1, 1], [4, 0, 4], [0, 0, 0])
    steps = "run F1,offload a0,free a0,run F2,run loss,run B2,prefetch a0,run B1"
    schedule = ms.Schedule([step(part) for part in steps.split(",")], budget=8, graph="chain")
    timeline = agreed(chain, schedule, ms.Device(8, 2.0))
    assert timeline.start.tolist()[3:6] == [1, 2, 2]  # F2 fits beside a0, the loss and B2 allocate nothing


def test_the_complete_example_of_the_documentation() -> None:
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
    steps = (
        "run F1,offload a0,free a0,run F2,offload tape1,free tape1,run loss,run B2,free d2,free a2,"
        "prefetch tape1,prefetch a0,run B1,free d1,free tape1,free a1,free a0"
    )
    schedule = ms.Schedule([step(part) for part in steps.split(",")], budget=24, graph="chain")
    timeline = agreed(chain, schedule, ms.Device(24, 2.0))
    assert timeline.start.tolist() == [0, 0, 2, 1, 2, 3.5, 3, 3.5, 6.5, 6.5, 6.5, 8, 10, 12, 12, 12, 12]
    assert timeline.end.tolist() == [1, 2, 2, 3, 3.5, 3.5, 3, 6.5, 6.5, 6.5, 8, 10, 12, 12, 12, 12, 12]
    assert (timeline.makespan, timeline.peak_memory, timeline.idle) == (12, 22, 4)


def test_latency_and_bandwidth() -> None:
    assert run(SWAP, device=ms.Device(1000, 1.0, latency=1.0)).end.tolist() == [2, 7, 5, 7, 10, 10, 12, 14]
    free = run(SWAP, device=ms.Device(1000, inf, latency=0.5))
    assert (free.end[1], free.end[6], free.makespan) == (2.5, 5.5, 12)
    refused(SWAP, 100, step=1, device=ms.Device(1000))
    refused(SWAP, 100, step=6, device=ms.Device(1000, d2h=1.0, h2d=0.0))


def test_recomputation_counts() -> None:
    timeline = run("run F1,run F2,free a,run F1,run F3,run B")
    assert (timeline.recompute_time, timeline.makespan, timeline.idle) == (2, 14, 0)


def refused(text: str, budget: int, step: int | None, device: ms.Device | None = None) -> None:
    with pytest.raises(ms.ScheduleError) as caught:
        run(text, budget, device)
    assert caught.value.step == step


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("run F2", 0),
        ("run F1,run F1", 1),
        ("run F1,run F2,run F3,run B,free d,run B", 5),
        ("run F9", 0),
        ("run F1,offload z", 1),
        ("prefetch x", 0),
        ("free x,free x", 1),
        ("free x,offload x", 1),
        ("offload x,prefetch x", 1),
        ("run F1,run F2,run F3", None),
        ("", None),
    ],
)
def test_what_is_illegal(text: str, index: int | None) -> None:
    if text:
        refused(text, 100, index)
    else:
        with pytest.raises(ms.ScheduleError) as caught:
            ms.simulate(graph(), ms.Schedule([], budget=100), ms.Device(100))
        assert caught.value.step is None


def test_the_smaller_of_budget_and_memory_counts_and_resident_with_it() -> None:
    plain = "run F1,run F2,run F3,run B"
    assert run(plain, budget=24).peak_memory == 24
    refused(plain, 23, step=3)
    refused(plain, 100, step=3, device=ms.Device(23))
    refused(plain, 11, step=None)  # not even x fits


def test_rounds_multiply() -> None:
    schedule = ms.Schedule([step(part) for part in SWAP.split(",")], budget=100, rounds=[[1, 3]])
    timeline = agreed(graph(), schedule, ms.Device(1000, 1.0))
    once = run(SWAP)
    assert (timeline.makespan, timeline.bytes_out, timeline.bytes_in) == (36, 12, 12)
    assert timeline.end.tolist() == once.end.tolist()
    assert timeline.peak_memory == once.peak_memory
    for rounds in ([[2, 1]], [[1, 1], [1, 1]]):
        other = ms.Schedule([step(part) for part in SWAP.split(",")], budget=100, rounds=rounds)
        for check in (ms.simulate, ms.validate):
            with pytest.raises(ms.ScheduleError) as caught:
                check(graph(), other, ms.Device(1000, 1.0))
            assert caught.value.step is None


# Random plans.


def replaced(value: Any, **changes: Any) -> Any:
    return type(value).from_json({**value.to_json(), **changes})


@MANY
@given(schedules())
def test_the_validator_agrees(case: Case) -> None:
    problem, schedule, device = case
    timeline = agreed(problem, schedule, device)
    times, held = timeline.memory
    assert timeline.peak_memory == held.max() <= min(schedule.budget, device.memory)
    assert (times[1:] >= times[:-1]).all()
    assert timeline.makespan == max(timeline.end, default=0)
    rounds = replaced(schedule, rounds=[[1, 3]])
    assert agreed(problem, rounds, device).makespan == pytest.approx(3 * timeline.makespan)


@MANY
@given(schedules(), st.data())
def test_a_better_machine_is_never_slower(case: Case, data: st.DataObject) -> None:
    problem, schedule, device = case
    before = ms.simulate(problem, schedule, device)
    better = data.draw(st.sampled_from(["d2h", "h2d", "duplex", "latency", "memory", "times", "host"]))
    if better in ("d2h", "h2d"):
        speed = getattr(device, better) * data.draw(st.sampled_from([1.5, 2.0, inf]))
        device = replaced(device, **{better: "inf" if speed == inf else speed})
    elif better == "duplex":
        device = replaced(device, duplex=True)
    elif better == "latency":
        device = replaced(device, latency=device.latency / 2)
    elif better == "memory":
        more = data.draw(st.integers(1, 9))
        schedule = replaced(schedule, budget=schedule.budget + more)
        device = replaced(device, memory=device.memory + more)
    elif better == "host":
        device = replaced(device, host_memory=None)
    else:
        column = data.draw(st.sampled_from(["forward_time", "backward_time"]))
        times = getattr(problem, column).copy()
        times[data.draw(st.integers(0, problem.n - 1))] *= 0.5
        problem = replaced(problem, **{column: times.tolist()})
    after = ms.simulate(problem, schedule, device)
    assert (after.start <= before.start + 1e-9).all()
    assert after.makespan <= before.makespan + 1e-9


def mutated(steps: list[Json], sizes: dict[str, int], data: st.DataObject) -> list[Json]:
    """One small change to a list of steps."""
    steps = [dict(step) for step in steps]
    k = data.draw(st.integers(0, len(steps) - 1))
    how = data.draw(st.sampled_from(["drop", "swap", "repeat", "insert", "rename", "move", "skip"]))
    if how == "drop":
        del steps[k]
    elif how == "swap":
        j = (k + 1) % len(steps)
        steps[k], steps[j] = steps[j], steps[k]
    elif how == "repeat":
        steps.insert(data.draw(st.integers(0, len(steps))), steps[k])
    elif how == "insert":
        verb = data.draw(st.sampled_from(["offload", "prefetch", "free"]))
        steps.insert(k, {verb: data.draw(st.sampled_from(sorted(sizes)))})
    elif how == "rename":
        verb = next(v for v in ("run", "offload", "prefetch", "free") if v in steps[k])
        steps[k] = {verb: data.draw(st.sampled_from([*sorted(sizes), "F1", "B1", "loss", "z"]))}
    elif how == "move":
        steps.insert(data.draw(st.integers(0, len(steps) - 1)), steps.pop(k))
    else:
        steps[k].pop("skip", None)
    return steps


@MANY
@given(schedules(after=False), st.data())
def test_broken_plans_break_at_the_same_step(case: Case, data: st.DataObject) -> None:
    """A list with one change is refused by both at the same step, or by neither, with the same times."""
    problem, schedule, device = case
    model = ms.to_graph(problem, chunk=schedule.chunk)
    plan = schedule.to_json()
    change = data.draw(st.sampled_from(["steps", "steps", "steps", "budget", "memory", "host_memory", "link"]))
    if change == "steps":
        sizes = {tensor["name"]: tensor["size"] for tensor in model.tensors}
        plan["steps"] = mutated(plan["steps"], sizes, data)
    elif change == "budget":
        plan["budget"] = data.draw(st.integers(1, plan["budget"]))
    elif change == "link":
        device = replaced(device, **{data.draw(st.sampled_from(["d2h", "h2d"])): 0})
    else:
        device = replaced(device, **{change: data.draw(st.integers(1, 30))})
    found: list[Any] = []
    for check in (
        lambda: ms.simulate(model, ms.Schedule.from_json(plan), device),
        lambda: check_plan(model.to_json(), plan, device.to_json()),
    ):
        try:
            result = check()
            found.append((result.makespan, result.peak_memory))
        except ms.ScheduleError as error:
            found.append(error.step)
    assert found[0] == (found[1] if not isinstance(found[1], tuple) else pytest.approx(found[1])), json.dumps(plan)


@given(schedules())
def test_a_plan_needs_its_budget_whatever_the_times_are(case: Case) -> None:
    """Feasibility is decided by the list alone: the same on a chain whose ops take no time, or very long."""
    problem, schedule, device = case
    for factor in (0.0, 1000.0):
        times = {key: (getattr(problem, key) * factor).tolist() for key in ("forward_time", "backward_time")}
        timeline = ms.simulate(replaced(problem, **times), schedule, device)
        assert timeline.peak_memory <= schedule.budget


# Addresses


def both(document: Json, plan: Json, machine: Json) -> list[Any]:
    """What the simulator and the checker say: times and peak, or the step to blame. With one byte more than none."""
    plan, machine = {**plan, "budget": plan["budget"] + 1}, {**machine, "memory": machine["memory"] + 1}
    found: list[Any] = []
    for check in (
        lambda: ms.simulate(ms.Graph.from_json(document), ms.Schedule.from_json(plan), ms.Device.from_json(machine)),
        lambda: check_plan(document, plan, machine),
    ):
        try:
            result = check()
            found.append((*result.start, *result.end, result.makespan, result.peak_memory))
        except ms.ScheduleError as error:
            found.append(error.step)
    return found


@MANY
@given(instances(contiguous=True))
def test_addresses_are_timed_as_the_checker_times_them(instance: tuple[Json, Json, Json, int]) -> None:
    simulated, checked = both(*instance[:3])
    assert isinstance(checked, tuple)
    assert simulated == pytest.approx(checked)


@MANY
@given(instances(contiguous=True), st.data())
def test_wrong_addresses_are_refused_at_the_same_step(
    instance: tuple[Json, Json, Json, int], data: st.DataObject
) -> None:
    document, plan, machine, _ = instance
    placed = [step for step in plan["steps"] if step.get("at") not in (None, {})]
    if placed:
        step = data.draw(st.sampled_from(placed))
        address = data.draw(st.integers(0, plan["budget"] + 2))
        if "prefetch" in step:
            step["at"] = address
        else:
            step["at"] = {**step["at"], data.draw(st.sampled_from(sorted(step["at"]))): address}
    simulated, checked = both(document, plan, machine)
    assert simulated == (checked if not isinstance(checked, tuple) else pytest.approx(checked))


def placed(text: str, budget: int = 24, **addresses: Any) -> ms.Timeline:
    """As `run`, each step with the address given under its name and position."""
    steps = [step(part) for part in text.split(",")]
    for name, at in addresses.items():
        steps[int(name.rpartition("_")[2])]["at"] = at
    schedule = ms.Schedule(steps, budget=budget, graph="graph", memory="contiguous")
    return agreed(graph(), schedule, ms.Device(1000, 1.0))


SWAP = "run F1,offload a,run F2,free a,run F3,free b,prefetch a,run B"
AT = {"F1_0": {"a": 2}, "F2_2": {"b": 6}, "F3_4": {"c": 9, "": 10}, "a_6": 2, "B_7": {"d": 10}}


def test_a_range_waits_for_what_was_there() -> None:
    """a leaves at 6. At address 2 it comes back when the link is free, at 5 only when b has gone."""
    assert placed(SWAP, **AT).start[6] == 6.0
    assert placed(SWAP, **{**AT, "a_6": 5}).start[6] == 10.0


@pytest.mark.parametrize(
    ("change", "index", "words"),
    [
        ({"F2_2": {"b": 5}}, 2, "'b' at 5 to 8 overlaps what is held at 2 to 6"),
        ({"F2_2": {}}, 2, "'b' has no address"),
        ({"F3_4": {"c": 9}}, 4, "the workspace has no address"),
        ({"F3_4": {"c": 9, "": 9}}, 4, "the workspace at 9 to 10 overlaps"),
        ({"F3_4": {"c": 9, "": 14}}, 4, "the workspace is at 14; its 1 bytes need one from 0 to 13"),
        ({"F3_4": {"c": 9, "": 10, "b": 3}}, 4, "address 3 of 'b'"),
        ({"a_6": 9}, 6, "overlaps what is held at 9 to 10"),
    ],
)
def test_bad_addresses_are_named(change: Any, index: int, words: str) -> None:
    with pytest.raises(ms.ScheduleError, match=words) as caught:
        placed(SWAP, **{**AT, **change})
    assert caught.value.step == index
