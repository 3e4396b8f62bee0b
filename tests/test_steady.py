"""Schedules that are repeated: persistent tensors, the steady state, its period and peak, the validator, bounds."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from fractions import Fraction
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.cli.app import command_line
from memsched.show.report.tensors import tensor_uses
from memsched.show.trace import intervals
from memsched.testing import random_repeated, repeated_schedules
from oracles.steady import IllegalError, least_period, period
from plans import device, graph, op, plan, tensor

MANY = settings(max_examples=3 * settings().max_examples, deadline=None)
Json = dict[str, Any]
Case = tuple[ms.Graph, ms.Schedule, ms.Device]
LIST = "run F, run B, free a, prefetch m, run U, free g, offload m, free m"


def step_graph(**sizes: int) -> Json:
    """F reads w (4), writes a (2); B reads both, writes g (4); U reads w, m (8) and g, and updates w and m."""
    size = {"w": 4, "m": 8, "a": 2, "g": 4, **sizes}
    roles = {"w": "persistent", "m": "persistent", "g": "gradient"}
    ops = [op("F", ["w"], ["a"], 1.0), op("B", ["w", "a"], ["g"], 2.0)]
    ops.append(op("U", ["w", "m", "g"], [], 1.0, once=True, updates=["w", "m"]))
    return graph([tensor(t, size[t], roles.get(t, "activation")) for t in size], ops)


def steps_of(text: str) -> list[Json]:
    return [dict([part.split()]) for part in text.split(", ")]


def run(text: str, border: Json, machine: Json | None = None, budget: int = 20, **sizes: int) -> ms.Timeline:
    """Simulate steps separated by commas; the validator and the oracle agree."""
    document, one = step_graph(**sizes), plan(steps_of(text), budget, border=border)
    machine = machine or device()
    problem, schedule, at = ms.Graph.from_json(document), ms.Schedule.from_json(one), ms.Device.from_json(machine)
    timeline = ms.simulate(problem, schedule, at)
    report = ms.validate(problem, schedule, at)
    assert (report.makespan, report.peak_memory) == (timeline.makespan, timeline.peak_memory)
    assert period(document, one, machine)[0] == timeline.makespan
    return timeline


def refused(text: str, border: Json, match: str, machine: Json | None = None, budget: int = 20, **more: Any) -> None:
    """The simulator refuses the steps, and so do the validator and the oracle."""
    document, one = step_graph(), plan(steps_of(text), budget, border=border, **more)
    problem, at = ms.Graph.from_json(document), ms.Device.from_json(machine or device())
    schedule = ms.Schedule.from_json(one)
    with pytest.raises(ms.ScheduleError, match=match):
        ms.simulate(problem, schedule, at)
    with pytest.raises(ms.ScheduleError):
        ms.validate(problem, schedule, at)


@pytest.mark.parametrize(("bandwidth", "makespan"), [(1.0, 17.0), (2.0, 9.0), (8.0, 4.0), (100.0, 4.0)])
def test_the_next_repetition_overlaps_the_end_of_this_one(bandwidth: float, makespan: float) -> None:
    """m travels while F and B of the next step run: the link (16 bytes and U) or compute (4 seconds) decides."""
    timeline = run(LIST, {"m": "host"}, device(d2h=bandwidth, h2d=bandwidth))
    assert timeline.makespan == makespan
    assert timeline.idle == makespan - 4


def test_all_on_the_device_takes_the_sum_of_the_runs() -> None:
    timeline = run("run F, run B, free a, run U, free g", {})
    assert (timeline.makespan, timeline.peak_memory, timeline.bytes_in) == (4.0, 18, 0)
    assert timeline.memory[0].tolist() == [0.0, 0.0, 1.0, 3.0, 4.0]  # from border to border
    assert timeline.memory[1].tolist() == [12, 14, 18, 16, 12]


def test_what_nobody_changed_need_not_be_written_back() -> None:
    """w is on both at the border, as its prefetch for the next repetition stands at the end of the list."""
    changed = "run F, run B, free a, run U, free g, offload w, free w, prefetch w"
    assert run(changed, {"w": "both"}).makespan == 12.0
    refused("run F, run B, free a, run U, free g, free w, prefetch w", {"w": "both"}, "no host copy")
    unchanged = step_graph()
    unchanged["ops"][2]["updates"] = ["m"]
    steps = steps_of("run F, run B, free a, run U, free g, free w, prefetch w")
    one = plan(steps, 20, border={"w": "both"})
    assert period(unchanged, one, device())[0] == 7
    found = ms.simulate(ms.Graph.from_json(unchanged), ms.Schedule.from_json(one), ms.Device.from_json(device()))
    assert (found.makespan, found.bytes_out) == (7.0, 0)


def test_an_update_waits_for_the_copy_of_what_it_changes() -> None:
    text = "run F, offload w, run B, free a, run U, free g"
    assert run(text, {}).start.tolist() == [0.0, 0.0, 1.0, 3.0, 4.0, 5.0]
    assert run(text, {}).makespan == 5.0


def test_a_copy_that_the_border_drops_is_read_before_another_is_made() -> None:
    """The prefetch reads for 8 s what the next repetition's offload replaces in 1 s; the device copy is another one."""
    machine = device(d2h=2.0, h2d=0.25, duplex=True)
    text = "run F, offload a, run B, free a, prefetch a, free a, run U, free g"
    assert run(text, {}, machine, budget=40).makespan == 9.0


def test_memory_of_the_previous_repetition_is_waited_for() -> None:
    """B needs 10 bytes. With 18 it runs while m leaves; with 17 it waits, and so does the prefetch for B to end."""
    machine = device(d2h=4.0, h2d=8.0, duplex=True)
    assert run(LIST, {"m": "host"}, machine, budget=18).makespan == 4.0
    timeline = run(LIST, {"m": "host"}, machine, budget=17)
    assert timeline.start.tolist()[:2] == [0.0, 2.0]  # m leaves from 0 to 2
    assert (timeline.makespan, timeline.peak_memory) == (6.0, 16)


@pytest.mark.parametrize(
    ("text", "border", "match"),
    [
        (LIST.replace(", free m", ""), {"m": "host"}, "'m' ends on the device and starts off it"),
        (LIST.replace(", free a", ""), {"m": "host"}, "'a' ends on the device"),
        (LIST.replace(", offload m", ""), {"m": "host"}, "'m' ends with a stale copy"),
        ("run F, run B, free a, run U, free g, offload w", {"w": "both", "m": "both"}, "'m' ends with a stale copy"),
        ("run F, run B, free a, run U, free g, offload m, free m", {}, "'m' ends off the device and starts on it"),
        ("run F, run B, run U, free a, run F, free a, free g", {}, "reads 'w' after 1 of its updates"),
        ("run F, run B, free a, run U, free g, offload w, free w, prefetch m", {}, "on the device already"),
        (LIST, {"a": "host"}, "no persistent tensor"),
    ],
)
def test_lists_that_do_not_close_are_refused(text: str, border: Json, match: str) -> None:
    refused(text, border, match)


def test_what_a_repeated_plan_may_not_have() -> None:
    refused(LIST, {"m": "host"}, "several rounds", rounds=[[1, 2]])
    refused(LIST, {"m": "host"}, "no addresses", memory="contiguous")
    refused(LIST, {"m": "host"}, "over host_memory = 7", device(host_memory=7))
    refused(LIST, {"m": "host"}, "need 4 bytes at time 0, and the budget less what is resident is 3", budget=3)
    with pytest.raises(ms.ScheduleError, match="it must be device, host or both"):
        ms.Schedule([], budget=1, border={"m": "disk"})
    problem, schedule, _ = random_repeated(0)
    with pytest.raises(ms.InvalidInputError, match="has no addresses yet; to place one step"):
        ms._core.residency(problem, schedule)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"updates": ["g"]}, "which is not persistent"),
        ({"updates": ["a"]}, "does not read"),
        ({"updates": ["w", "w"]}, "has it twice"),
        ({"once": False}, "set once"),
        ({"writes": ["w"]}, "list it in reads and updates"),
    ],
)
def test_bad_updates(change: Json, match: str) -> None:
    document = step_graph()
    document["ops"][2] |= change
    with pytest.raises(ms.InvalidInputError, match=match):
        ms.Graph.from_json(document)


def test_files_come_back_and_old_ones_are_as_they_were() -> None:
    problem, schedule, _ = random_repeated(3)
    assert ms.Graph.from_json(problem.to_json()) == problem
    assert ms.Schedule.from_json(schedule.to_json()) == schedule
    assert schedule.with_budget(99).border == schedule.border
    old = ms.Schedule([], budget=1)
    assert "border" not in old.to_json()
    assert not any("updates" in one for one in ms.profiles.load_graph("vgg16-224-b128").to_json()["ops"])


def test_planners_refuse_persistent_tensors_by_name() -> None:
    problem = ms.Graph.from_json(step_graph())
    with pytest.raises(ms.InvalidInputError, match="'g' has persistent tensors, such as 'w', which olla cannot plan"):
        ms.olla(problem, 100, 1.0)
    with pytest.raises(ms.InvalidInputError, match="which pooch cannot plan"):
        ms.pooch(problem, 100, 1.0)


def test_a_result_is_checked_against_the_steady_state() -> None:
    problem, schedule, machine = random_repeated(7)
    timeline = ms.simulate(problem, schedule, machine)
    more = {"planner": "by hand", "problem": problem, "schedule": schedule, "device": machine, "runtime": 0.0}
    bound = min(ms.bounds(problem, device=machine).best, timeline.makespan)
    result = ms.Result(**more, timeline=timeline, lower_bound=bound, bound_on="all")
    assert ms.validate(result).proven
    forged = timeline.to_json() | {"makespan": 0.5 * timeline.makespan}
    with pytest.raises(ms.ScheduleError, match="makespan of the result"):
        ms.validate(ms.Result(**more, timeline=ms.Timeline.from_json(forged), lower_bound=0.0))


def check(case: Case) -> None:
    """The simulator, the validator, the oracle and the bounds agree on a case that is legal."""
    problem, schedule, machine = case
    documents = (problem.to_json(), schedule.to_json(), machine.to_json())
    timeline, report = ms.simulate(*case), ms.validate(*case)
    assert report.makespan == timeline.makespan
    assert report.peak_memory == timeline.peak_memory == timeline.memory[1].max() <= schedule.budget
    assert timeline.memory[1][0] == timeline.memory[1][-1]  # as at each border
    whole = {"planner": "by hand", "problem": problem, "schedule": schedule, "device": machine, "runtime": 0.0}
    ms.validate(ms.Result(**whole, timeline=timeline, lower_bound=0.0))  # the memory over time, too
    bound = ms.bounds(problem, device=machine)
    assert bound.best <= bound.recompute <= timeline.makespan * (1 + 1e-12)
    assert report.lower_bound == pytest.approx(min(bound.recompute, timeline.makespan))
    found, endless = period(*documents)
    assert found is not None  # these few steps recur soon
    assert isclose(found, timeline.makespan, rel_tol=1e-12)
    # In the long run, whatever the start was: after k repetitions, k periods and no more than one repetition is over.
    n = len(schedule)
    repetitions = len(endless.ends) // n
    slack = sum(float(end - start) for start, end in zip(endless.starts[:n], endless.ends[:n], strict=True))
    assert abs(float(max(endless.ends)) - repetitions * timeline.makespan) <= 2 * (slack + timeline.makespan)


@MANY
@given(repeated_schedules())
def test_random_lists_agree_with_the_rules_played_literally(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(500, 100_000, 500)),
    ],
)
def test_many_random_lists(first: int) -> None:
    for seed in range(first, first + 500):
        check(random_repeated(seed))


@MANY
@given(repeated_schedules(), st.randoms(use_true_random=False))
def test_changed_lists_are_refused_by_all_or_by_none(case: Case, numbers: random.Random) -> None:
    problem, schedule, machine = case
    steps, border = list(schedule.steps), dict(schedule.border)
    here = numbers.randrange(len(steps))
    change = numbers.randrange(4)
    if change == 0:
        del steps[here]
    elif change == 1:
        other = numbers.randrange(len(steps))
        steps[here], steps[other] = steps[other], steps[here]
    elif change == 2:
        steps.insert(here, steps[numbers.randrange(len(steps))])
    else:
        border[numbers.choice(problem.persistent)] = numbers.choice(["device", "host", "both"])
    steps = [{key: value for key, value in one.items() if key != "after"} for one in steps]
    changed = ms.Schedule(steps, budget=schedule.budget, border=border)
    try:
        expected = period(problem.to_json(), changed.to_json(), machine.to_json())[0]
    except IllegalError:
        for refuse in (ms.simulate, ms.validate):
            with pytest.raises(ms.ScheduleError):
                refuse(problem, changed, machine)
        return
    assert isclose(expected or 0, ms.simulate(problem, changed, machine).makespan, rel_tol=1e-12)
    assert ms.validate(problem, changed, machine).makespan == ms.simulate(problem, changed, machine).makespan


@MANY
@given(repeated_schedules())
def test_the_border_is_a_place_in_a_circle(case: Case) -> None:
    """Steps at the beginning may as well stand at the end, with the border behind them."""
    problem, schedule, machine = case
    steps = [{key: value for key, value in one.items() if key != "after"} for one in schedule.steps]
    before = ms.Schedule(steps, budget=schedule.budget, border=schedule.border)
    first, border = steps[0], dict(schedule.border)
    verb, name = next(iter(first.items()))
    assume(verb != "run" and border.get(name, "device") != "device")
    border[name] = {"prefetch": "both", "free": "host"}.get(verb, border[name])
    after = ms.Schedule([*steps[1:], first], budget=schedule.budget, border=border)
    machine = ms.Device(machine.memory, d2h=machine.d2h, h2d=machine.h2d, duplex=machine.duplex)
    one, other = ms.simulate(problem, before, machine), ms.simulate(problem, after, machine)
    assert isclose(one.makespan, other.makespan, rel_tol=1e-12, abs_tol=1e-12)


@settings(deadline=None)
@given(repeated_schedules(), st.sampled_from(["d2h", "h2d", "duplex", "memory"]))
def test_faster_is_never_slower(case: Case, what: str) -> None:
    problem, schedule, machine = case
    fields = {key: getattr(machine, key) for key in ("memory", "d2h", "h2d", "duplex", "latency", "host_memory")}
    fields[what] = True if what == "duplex" else 2 * fields[what]
    better = schedule.with_budget(2 * schedule.budget) if what == "memory" else schedule
    makespan = ms.simulate(problem, schedule, machine).makespan
    assert ms.simulate(problem, better, ms.Device(**fields)).makespan <= makespan * (1 + 1e-12)


@pytest.mark.parametrize(("memory", "duplex"), [(18, True), (14, False), (13, True), (13, False)])
def test_no_list_is_faster_than_the_bound(memory: int, duplex: bool) -> None:
    """Exhaustive, with few tensors: w and a gradient of 4 bytes; m of 6 bytes need not be there for F."""
    document = graph(
        [tensor("w", 4, "persistent"), tensor("m", 6, "persistent"), tensor("g", 3, "gradient")],
        [
            op("F", ["w"], ["g"], 2.0, workspace=6 if memory < 18 else 0),
            op("U", ["w", "m", "g"], [], 1.0, once=True, updates=["w", "m"]),
        ],
    )
    machine = device(memory, d2h=2.0, h2d=4.0, duplex=duplex)
    least, runs = least_period(document, machine)
    bound = ms.bounds(ms.Graph.from_json(document), device=ms.Device.from_json(machine)).recompute
    assert runs > 0
    assert 3 <= bound <= least
    assert least == {18: Fraction(3)}.get(memory, least)


def test_equal_streams_have_no_short_way_to_the_period() -> None:
    """The link is a millionth slower than compute: from time 0 it would take a million repetitions to see it."""
    text = "run F, run B, free a, prefetch m, run U, free g, offload m, free m"
    for off in (-1e-6, 1e-6):
        seconds = 2.0 * (1 + off)
        timeline = simulate_only(text, {"m": "host"}, device(d2h=8 / seconds, h2d=8 / seconds, duplex=False))
        assert timeline.makespan >= 4.0
        assert timeline.makespan == pytest.approx(max(4.0, 2 * seconds + 1.0), rel=1e-12)


def simulate_only(text: str, border: Json, machine: Json) -> ms.Timeline:
    schedule = ms.Schedule.from_json(plan(steps_of(text), 20, border=border))
    return ms.simulate(ms.Graph.from_json(step_graph()), schedule, ms.Device.from_json(machine))


@pytest.mark.parametrize("seed", [707784, 907953])
def test_rounding_changes_nothing(seed: int) -> None:
    """A run began an instant before the bytes that it waits for were back; one read what was not yet there."""
    check(random_repeated(seed))


@pytest.mark.parametrize("first", [0, pytest.param(100, marks=pytest.mark.slow)])
def test_a_picture_shows_one_period(first: int) -> None:
    """All that a repetition does, where it falls in a period; no stream does two things at once."""
    for seed in range(first, first + 60):
        problem, schedule, machine = random_repeated(seed)
        made = {"planner": "by hand", "problem": problem, "schedule": schedule, "device": machine, "runtime": 0.0}
        result = ms.Result(**made, timeline=ms.simulate(problem, schedule, machine), lower_bound=0.0)
        found, period, timeline = intervals(result), result.makespan, result.timeline
        assert all(0 <= one.start <= one.end <= period * (1 + 1e-9) for one in found), seed
        for step in {one.step for one in found}:
            whole = sum(one.end - one.start for one in found if one.step == step)
            assert whole == pytest.approx(timeline.end[step] - timeline.start[step], abs=1e-9 * period)
        for lane in range(3):
            busy = sorted((one.start, one.end) for one in found if one.lane == lane and one.end > one.start)
            assert all(a[1] <= b[0] + 1e-9 * period for a, b in pairwise(busy)), seed


@pytest.mark.parametrize("first", [0, pytest.param(100, marks=pytest.mark.slow)])
def test_a_report_shows_where_each_tensor_is_in_a_period(first: int) -> None:
    """At each moment, what is on the device and what runs hold as many bytes as the memory curve has."""
    for seed in range(first, first + 60):
        problem, schedule, machine = random_repeated(seed)
        made = {"planner": "by hand", "problem": problem, "schedule": schedule, "device": machine, "runtime": 0.0}
        result = ms.Result(**made, timeline=ms.simulate(problem, schedule, machine), lower_bound=0.0)
        uses, period = tensor_uses(result), result.makespan
        spans = [(stay.start, stay.end, use.bytes) for use in uses for stay in use.stays if stay.place != "host"]
        chosen = {op["name"]: op["choices"] for op in problem.ops}
        for one in intervals(result):
            if one.lane == 0:
                alg = schedule.steps[one.step].get("alg", chosen[one.name][0]["alg"])
                (workspace,) = (choice["workspace"] for choice in chosen[one.name] if choice["alg"] == alg)
                spans.append((one.start, one.end, workspace))
        times, counts = map(list, result.timeline.memory)
        moments = sorted({0.0, period, *times, *(end for span in spans for end in span[:2])})
        for a, b in pairwise(moments):
            if b - a > 1e-9 * period and b <= period:
                held = problem.resident + sum(size for start, end, size in spans if start <= a and b <= end)
                assert held == counts[max(k for k, time in enumerate(times) if time <= a)], (seed, a)
        for use in uses:  # it is somewhere all the time
            if use.role in ("persistent", "input"):
                assert sum(stay.end - stay.start for stay in use.stays) >= period * (1 - 1e-9), (seed, use.name)


@pytest.mark.slow
def test_what_is_repeated_is_drawn(tmp_path: Path) -> None:
    problem, schedule, machine = random_repeated(7)
    made = {"planner": "by hand", "problem": problem, "schedule": schedule, "device": machine, "runtime": 0.0}
    result = ms.Result(**made, timeline=ms.simulate(problem, schedule, machine), lower_bound=0.0)
    ms.write_report(result, tmp_path / "a.html")
    assert "one period in a steady state is shown" in (tmp_path / "a.html").read_text()
    assert "repeated without end: one period is shown" in " ".join(one.get_text() for one in ms.plot(result).texts)
    with pytest.raises(ms.MemschedError, match="so its plan is repeated without end, and has no addresses yet"):
        ms.plot_addresses(result)
    assert "<table" in result._repr_html_()
    assert "<img" in result._repr_html_()
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result.to_json()))
    for command in (["simulate"], ["validate"]):
        said = CliRunner().invoke(command_line, [*command, str(path), "--json"])
        assert said.exit_code == 0, said.output
        assert json.loads(said.output)["makespan"] == result.makespan
    said = CliRunner().invoke(command_line, ["report", str(path), "-o", str(tmp_path / "r.html")])
    assert said.exit_code == 0, said.output
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    for command, name in (("plot", "p.png"), ("trace", "t.json")):
        said = CliRunner().invoke(command_line, [command, str(path), "-o", str(tmp_path / name)])
        assert said.exit_code == 0, said.output
        assert (tmp_path / name).exists()


def test_ctrl_c_ends_a_long_search_for_the_period() -> None:
    """Thousands of states travel and are freed in reverse; a prefetch may wait for each: seconds of work."""
    count = 4000
    names = [f"s{k}" for k in range(count)]
    ops = [op(f"U{k}", [name], [], 1 + k % 7 / 8, once=True, updates=[name]) for k, name in enumerate(names)]
    problem = ms.Graph.from_json(graph([tensor(name, 5 + k % 11, "persistent") for k, name in enumerate(names)], ops))
    steps: list[Json] = [{"prefetch": name} for name in names]
    steps += [{"run": f"U{k}"} for k in range(count)]
    steps += [{"offload": name} for name in names]
    steps += [{"free": name} for name in reversed(names)]
    budget = sum(5 + k % 11 for k in range(count))
    schedule = ms.Schedule(steps, budget=budget, border=dict.fromkeys(names, "host"))
    machine = ms.Device(budget, d2h=8.0, h2d=8.0)
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ms.simulate(problem, schedule, machine)
        assert time.monotonic() - pressed[0] < 1
    finally:
        timer.cancel()
