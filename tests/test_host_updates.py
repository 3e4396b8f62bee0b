"""Updates that run on the host: rule E12, bounds, plans of `selective`, and what is shown of them."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from scipy.optimize import linprog

import memsched as ms
from memsched.show.report.tensors import tensor_uses
from memsched.testing import random_repeated
from oracles.steady import period
from plans import device, graph, op, plan, tensor

Json = dict[str, Any]
LIST = "run F, run B, free a, free w, offload g, free g, update U, prefetch w"
BORDER = {"w": "both", "m": "host"}


def step_graph(host_time: float | None = 1.0, **changes: Any) -> Json:
    """F reads w (4), writes a (2); B reads both, writes g (4); U reads w, m (8) and g, and updates w and m."""
    roles = {"w": "persistent", "m": "persistent", "a": "activation", "g": "gradient"}
    sizes = {"w": 4, "m": 8, "a": 2, "g": 4}
    ops = [op("F", ["w"], ["a"], 1.0), op("B", ["w", "a"], ["g"], 2.0)]
    host = {} if host_time is None else {"host_time": host_time}
    ops.append(op("U", ["w", "m", "g"], [], 1.0, once=True, updates=["w", "m"], **host) | changes)
    return graph([tensor(t, sizes[t], roles[t]) for t in sizes], ops)


def layers(count: int, host_time: float | None) -> ms.Graph:
    """Each layer has a parameter of 8 bytes and states of 16; its update takes a tenth of its forward."""
    tensors, ops, last = [tensor("x0", 2, "input")], [], []
    for k in range(count):
        tensors += [tensor(f"p{k}", 8, "persistent"), tensor(f"m{k}", 16, "persistent")]
        tensors += [tensor(f"x{k + 1}", 2), tensor(f"g{k}", 8, "gradient"), tensor(f"d{k}", 2, "gradient")]
        ops.append(op(f"F{k}", [f"x{k}", f"p{k}"], [f"x{k + 1}"], 1.0))
        host = {} if host_time is None else {"host_time": host_time}
        reads = [f"x{k}", f"p{k}", *([f"d{k + 1}"] if k + 1 < count else [f"x{count}"])]
        update = op(f"U{k}", [f"g{k}", f"p{k}", f"m{k}"], [], 0.1, phase="bwd", once=True, **host)
        last[:0] = [op(f"B{k}", reads, [f"d{k}", f"g{k}"], 2.0, phase="bwd"), update | {"updates": [f"p{k}", f"m{k}"]}]
    return ms.Graph.from_json(graph(tensors, [*ops, *last]))


def counted(count: int) -> ms.Graph:
    """`layers` as they are captured: each update writes that it is over and waits for a counter, the end for all."""
    document = layers(count, None).to_json()
    updates = [one for one in document["ops"] if one.get("updates")]
    for k, one in enumerate(updates):
        document["tensors"] += [tensor(f"n{k}", 1, "persistent"), tensor(f"c{k}", 0), tensor(f"u{k}", 0)]
        counter = op(f"C{k}", [f"n{k}"], [f"c{k}"], 0.0, phase="bwd", once=True, updates=[f"n{k}"])
        one["reads"] += [f"c{k}", f"n{k}"]
        one["writes"] = [f"u{k}"]
        document["ops"].insert(document["ops"].index(one), counter)
    document["ops"].append(op("end", [f"u{k}" for k in range(count)], [], 0.0, phase="bwd"))
    return ms.Graph.from_json(document)


def steps_of(text: str) -> list[Json]:
    return [dict([part.split()]) for part in text.split(", ")]


def case(text: str, border: Json, machine: Json, document: Json) -> tuple[ms.Graph, ms.Schedule, ms.Device, Json]:
    one = plan(steps_of(text), 20, border=border)
    return ms.Graph.from_json(document), ms.Schedule.from_json(one), ms.Device.from_json(machine), one


def run(text: str, border: Json, machine: Json | None = None, host_time: float = 1.0) -> ms.Timeline:
    """Simulate steps separated by commas; the validator and the rules played literally agree."""
    machine, document = machine or device(), step_graph(host_time)
    problem, schedule, at, one = case(text, border, machine, document)
    timeline, report = ms.simulate(problem, schedule, at), ms.validate(problem, schedule, at)
    assert (report.makespan, report.peak_memory) == (timeline.makespan, timeline.peak_memory)
    assert period(document, one, machine)[0] == timeline.makespan
    return timeline


def test_the_gradient_leaves_and_the_weight_comes_back() -> None:
    """F and B (3 s), the gradient (0.5 s), U on the host (1 s) and the weight (0.5 s) are one circle."""
    timeline = run(LIST, BORDER, device(d2h=8.0, h2d=8.0))
    assert (timeline.makespan, timeline.idle) == (5.0, 2.0)
    assert timeline.start.tolist() == [0.0, 1.0, 3.0, 3.0, 3.0, 3.5, 3.5, 4.5]
    assert timeline.peak_memory == 10  # w, a and g: m is never there
    assert (timeline.bytes_out, timeline.bytes_in) == (4, 4)


def test_the_host_works_beside_the_device() -> None:
    """U changes m alone, which the device never reads. The gradient (0.5 s) replaces one that U has read."""
    text = "run F, run B, free a, offload g, free g, update U"
    for seconds, makespan in ((2.5, 3.0), (3.0, 3.5)):
        document = step_graph(seconds, updates=["m"])
        problem, schedule, at, one = case(text, {"w": "both", "m": "host"}, device(d2h=8.0, h2d=8.0), document)
        assert ms.simulate(problem, schedule, at).makespan == makespan
        assert period(document, one, device(d2h=8.0, h2d=8.0))[0] == makespan


def test_a_copy_that_is_read_or_written_is_not_changed() -> None:
    """U waits for the prefetch of the old weight (8 s), which only the next F reads: both must not overlap."""
    machine = device(d2h=8.0, h2d=0.5, duplex=True)
    text = "prefetch w, run F, run B, free a, free w, offload g, free g, update U"
    timeline = run(text, {"w": "host", "m": "host"}, machine)
    assert timeline.makespan == 8 + 3 + 0.5 + 1
    redundant = "run F, offload w, run B, free a, free w, offload g, free g, update U, prefetch w"
    slow = run(redundant, BORDER, device(d2h=0.25, h2d=8.0, duplex=True))
    assert slow.start[7] >= slow.end[1]  # the copy of w, which the host has already, is written until then


def test_a_gradient_is_replaced_when_it_was_read() -> None:
    timeline = run(LIST, BORDER, device(d2h=8.0, h2d=8.0), host_time=40.0)
    assert timeline.makespan == 3 + 0.5 + 40 + 0.5


@pytest.mark.parametrize(
    ("text", "border", "match"),
    [
        (LIST.replace(", free w", ""), BORDER, "changes 'w', whose copy on the device would be stale"),
        (LIST.replace("offload g, ", ""), BORDER, "reads 'g', which has no host copy, or a stale one"),
        (LIST, {"w": "both"}, "reads 'm', which has no host copy"),
        (LIST.replace("update U", "update U, update U"), BORDER, "may run only once"),
        (LIST.replace("update U", "update B"), BORDER, "has no host_time"),
        (LIST.replace("update U, ", ""), BORDER, "never runs"),
        (LIST.replace("update U", "update m"), BORDER, "no op 'm'"),
        ("run F, run B, free a, prefetch m, run U, update U", BORDER, "may run only once"),
        (LIST + ", run F, free a", BORDER, "reads 'w' after 1 of its updates"),
    ],
)
def test_what_is_refused(text: str, border: Json, match: str) -> None:
    problem, schedule, at, _ = case(text, border, device(), step_graph())
    with pytest.raises(ms.ScheduleError, match=match):
        ms.simulate(problem, schedule, at)
    with pytest.raises(ms.ScheduleError):
        ms.validate(problem, schedule, at)


def test_without_a_host_time_nothing_runs_there() -> None:
    problem, schedule, at, _ = case(LIST, BORDER, device(), step_graph(None))
    with pytest.raises(ms.ScheduleError, match="op 'U' has no host_time, so it cannot run on the host; run it"):
        ms.simulate(problem, schedule, at)
    with pytest.raises(ms.ScheduleError, match="no host_time; run it on the device"):
        ms.validate(problem, schedule, at)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"updates": [], "once": False}, "updates nothing; only an op that does nothing but update"),
        ({"host_time": -1.0}, "host_time"),
        ({"host_time": "soon"}, "host_time"),
        ({"host_time": float("inf")}, "host_time"),
        ({"host_time": None}, "host_time"),
    ],
)
def test_bad_host_times(change: Json, match: str) -> None:
    document = step_graph()
    document["ops"][2] |= change
    with pytest.raises(ms.InvalidInputError, match=match):
        ms.Graph.from_json(document)


def test_only_updates_run_on_the_host() -> None:
    document = step_graph()
    document["ops"][0]["host_time"] = 1.0
    with pytest.raises(ms.InvalidInputError, match="op 'F' has a host_time, but updates nothing"):
        ms.Graph.from_json(document)


def test_files_keep_them(tmp_path: Path) -> None:
    problem = layers(3, 0.25)
    again = ms.Graph.from_json(problem.to_json())
    assert again == problem != layers(3, 0.5) != layers(3, None)
    found = ms.selective(problem, ms.min_memory(problem), 16.0)
    assert any("update" in step for step in found.schedule.steps)
    found.save(path := tmp_path / "plan.json")
    read = ms.Result.load(path)
    assert read.schedule == found.schedule
    assert ms.validate(read).proven


def test_the_host_saves_memory_and_time() -> None:
    """On the device an update holds 40 bytes; on the host the gradient and the weight alone travel."""
    alone, both = layers(6, None), layers(6, 0.5)
    assert ms.min_memory(both) < ms.min_memory(alone)
    for memory, share in ((ms.min_memory(alone), 0.6), (60, 0.9), (100, 0.99)):
        slow, fast = (ms.selective(one, memory, 16.0) for one in (alone, both))
        assert fast.makespan < share * slow.makespan
        assert ms.validate(fast).proven
        assert fast.peak_memory <= memory
    never = layers(6, 1e6)
    assert ms.selective(never, 100, 16.0).makespan <= ms.selective(alone, 100, 16.0).makespan * 1.05


def test_the_time_to_read_and_write_on_the_host() -> None:
    problem = ms.with_host_updates(layers(2, None), "64 B/s")
    # p (8), m (16) and g (8) are read, p and m are written: 56 bytes.
    assert [one.get("host_time") for one in problem.ops if one.get("updates")] == [0.875, 0.875]
    assert ms.with_host_updates(layers(2, None), "inf").ops[-1]["host_time"] == 0
    for wrong, match in ((0, "at least 1 byte"), (-1, "memory_bandwidth"), ("fast", "memory_bandwidth")):
        with pytest.raises(ms.InvalidInputError, match=match):
            ms.with_host_updates(problem, wrong)
    with pytest.raises(ms.InvalidInputError, match=r"no op of .* does nothing but update"):
        ms.with_host_updates(ms.profiles.load_graph("vit-224-b64-f32"), 1e11)
    with pytest.raises(ms.InvalidInputError, match="graph"):
        ms.with_host_updates("vit-224-b64-f32", 1e11)


def test_the_next_step_does_not_wait_for_all_updates() -> None:
    """The end of a step reads what updates write to tell that they are over; on the device it would wait for them."""
    problem = ms.with_host_updates(counted(6), "inf")
    assert all("u" not in name for one in problem.ops for name in (*one["reads"], *one["writes"]))
    assert not any(one["writes"] for one in problem.ops if one.get("updates"))
    assert [one["name"] for one in problem.ops] == [one["name"] for one in counted(6).ops]
    assert sum("host_time" in one for one in problem.ops) == 12
    memory = ms.min_memory(counted(6))
    found = ms.selective(problem, memory, 16.0)
    assert ms.validate(found).proven
    assert found.makespan < 0.7 * ms.selective(counted(6), memory, 16.0).makespan


def test_what_orders_something_stays() -> None:
    """An op on the device that reads nothing that an update changes waits for it, with a tensor without bytes."""
    document = counted(3).to_json()
    document["tensors"].append(tensor("told", 1))
    document["ops"][-1] |= {"writes": ["told"], "reads": ["u0", "u1", "u2"]}
    problem = ms.with_host_updates(ms.Graph.from_json(document), "20 B/s")
    assert problem.ops[-1]["reads"] == ["u0", "u1", "u2"]
    found = ms.selective(problem, 60, 16.0)
    steps = [step for step in found.schedule.steps if "update" in step or step.get("prefetch") in ("u0", "u1", "u2")]
    assert {next(iter(step)) for step in steps} == {"update", "prefetch"}
    assert ms.validate(found).proven
    exact = period(problem.to_json(), found.schedule.to_json(), found.device.to_json())[0]
    assert exact is None or float(exact) == pytest.approx(found.makespan)


def test_no_link_no_host() -> None:
    problem = layers(3, 0.25)
    peak = ms.peak_memory(problem)
    assert not any("update" in step for step in ms.selective(problem, peak, 0).schedule.steps)
    with pytest.raises(ms.InfeasibleError):
        ms.selective(problem, ms.min_memory(problem), 0)
    with pytest.raises(ms.InfeasibleError):
        ms.selective(problem, device=ms.Device(ms.min_memory(problem), 16.0, host_memory=0))


def least_share(problem: ms.Graph, machine: ms.Device) -> float:
    """The bound on ops that may run on the host, as a linear program: a share of each op on the device."""
    document = problem.to_json()
    hosts = [one for one in document["ops"] if "host_time" in one]
    rest = sum(one["choices"][0]["time"] for one in document["ops"] if "host_time" not in one)
    size = {one["name"]: one["size"] for one in document["tensors"]}
    best = rest
    out = [size[one["reads"][0]] / machine.d2h for one in hosts]
    back = [size[one["updates"][0]] / machine.h2d for one in hosts]
    links = [out, back] if machine.duplex else [[one + other for one, other in zip(out, back, strict=True)]]
    for costs in [*links, [one["host_time"] for one in hosts]]:
        times = [one["choices"][0]["time"] for one in hosts]
        # Variables: the period, and the share of each op on the device.
        rows = np.array([[-1.0, *times], [-1.0, *(-cost for cost in costs)]])
        limits = [-rest, -sum(costs)]
        solved = linprog([1.0, *[0.0] * len(hosts)], rows, limits, bounds=[(0, None), *[(0, 1)] * len(hosts)])
        best = max(best, solved.fun)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_that_of_a_linear_program(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    document = layers(4, 1.0).to_json()
    for one in document["ops"]:
        if "host_time" in one:
            one["host_time"] = float(numbers.integers(0, 9)) / 4
            one["choices"][0]["time"] = float(numbers.integers(0, 20)) / 4
    for one in document["tensors"]:
        one["size"] = int(numbers.integers(0, 9))
    problem = ms.Graph.from_json(document)
    rate = float(numbers.integers(1, 9))
    machine = ms.Device(10**6, d2h=rate, h2d=float(numbers.integers(1, 9)), duplex=bool(numbers.integers(2)))
    assert ms.bounds(problem, device=machine).compute == pytest.approx(least_share(problem, machine), rel=1e-9)


def test_the_bound_allows_any_place() -> None:
    """All fits, so the device alone needs the sum of the times; the host takes a share, as far as it has time."""
    machine = ms.Device(1000, 1e9, duplex=True)
    assert ms.bounds(layers(4, None), device=machine).compute == pytest.approx(12.4)
    assert ms.bounds(layers(4, 3.0), device=machine).compute == pytest.approx(12.0)
    share = 12.4 / 100.1  # of an op of 0.1 s on the device and 100 s on the host
    assert ms.bounds(layers(4, 100.0), device=machine).compute == pytest.approx(12.4 - 0.1 * share)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(150, 6000, 150)),
    ],
)
def test_the_host_is_used_where_random_lists_do(first: int) -> None:
    """Plans of random problems with a host are valid, with the bound that the validator derives, and no slower."""
    hosts = 0
    for seed in range(first, first + 150):
        problem, schedule, machine = random_repeated(seed)
        fields = {key: getattr(machine, key) for key in ("d2h", "h2d", "duplex", "latency", "host_memory")}
        found = ms.selective(problem, device=ms.Device(min(schedule.budget, machine.memory), **fields), moves=50)
        report = ms.validate(found)
        assert report.makespan == found.makespan <= ms.simulate(problem, schedule, machine).makespan * (1 + 1e-9), seed
        assert report.lower_bound == pytest.approx(found.lower_bound), seed
        hosts += any("update" in step for step in found.schedule.steps)
    assert hosts > 15


def test_pictures_and_tables_have_a_lane_for_the_host(tmp_path: Path) -> None:
    problem = layers(4, 0.5)
    found = ms.selective(problem, 60, 16.0)
    figure = ms.plot(found)
    assert "host" in [label.get_text() for label in figure.axes[0].get_yticklabels()]
    lanes = {event["args"]["name"] for event in ms.trace(found)["traceEvents"] if event["name"] == "thread_name"}
    assert lanes == {"compute", "device to host", "host to device", "host"}
    assert "update" in set(found.to_pandas()["kind"])
    assert " update" in str(found.schedule)
    ms.write_report(found, tmp_path / "plan.html")
    assert "updates on the host" in (tmp_path / "plan.html").read_text()
    fates = {use.name: use.fate for use in tensor_uses(found)}
    assert "offloaded" in {fates[f"m{k}"] for k in range(4)}  # those that are never on the device
    alone = ms.selective(layers(4, None), 60, 16.0)
    assert "host" not in [label.get_text() for label in ms.plot(alone).axes[0].get_yticklabels()]


def test_fractions_of_the_period() -> None:
    """Times that are no binary fractions are played exactly by the oracle."""
    machine, document = device(d2h=3.0, h2d=7.0, duplex=True), step_graph(0.3)
    problem, schedule, at, one = case(LIST, BORDER, machine, document)
    exact = period(document, one, machine)[0]
    assert exact == 3 + Fraction(4, 3) + Fraction(0.3) + Fraction(4, 7)
    assert ms.simulate(problem, schedule, at).makespan == pytest.approx(float(exact), rel=1e-12)


def two_updates(hosts: bool) -> ms.Graph:
    """U1 and U2 both change p1; beside the host copy of i, which U2 reads, the device runs all of it faster."""
    sizes = {"p1": (4, "persistent"), "p2": (2, "persistent"), "i": (2, "input"), "x": (2, "activation")}
    tensors = [tensor(name, *found) for name, found in {**sizes, "y": (3, "gradient")}.items()]
    more: list[Json] = [{"once": True, **({"host_time": seconds} if hosts else {})} for seconds in (1.0, 0.5)]
    ops = [
        op("A", ["p1"], ["x"], 3.0, once=True),
        op("U1", ["p1"], [], 3.0, phase="bwd", updates=["p1"], **more[0]),
        op("U2", ["p2", "i", "p1"], [], 1.0, phase="bwd", updates=["p1", "p2"], **more[1]),
        op("C", ["p2", "x"], ["y"], 1.0, phase="bwd"),
    ]
    return ms.Graph.from_json(graph(tensors, ops))


@pytest.mark.parametrize("memory", [11, 12, 13])
def test_what_may_run_on_the_host_is_no_slower_for_it(memory: int) -> None:
    with_host, without = (ms.selective(two_updates(hosts), memory, 0.5).makespan for hosts in (True, False))
    assert with_host <= without


@pytest.mark.parametrize("first", [0, pytest.param(60, marks=pytest.mark.slow)])
def test_random_steps_are_no_slower_with_a_host(first: int) -> None:
    for seed in range(first, first + 60):
        problem, schedule, machine = random_repeated(seed)
        alone = ms._core.without_host(problem)
        if alone is None or min(schedule.budget, machine.memory) < ms.min_memory(alone):
            continue
        fields = {key: getattr(machine, key) for key in ("d2h", "h2d", "duplex", "latency", "host_memory")}
        at = ms.Device(min(schedule.budget, machine.memory), **fields)
        one, other = (ms.selective(graph, device=at, moves=20).makespan for graph in (problem, alone))
        assert one <= other * (1 + 1e-9), seed


def test_an_update_and_its_counter_may_run_apart() -> None:
    tensors = [tensor("p", 4, "persistent"), tensor("i", 8, "weight"), tensor("t", 0)]
    ops = [
        op("U1", ["p"], ["t"], 0.25, phase="bwd", updates=["p"], once=True, host_time=3.0),
        op("U2", ["p", "i", "t"], [], 2.0, phase="bwd", updates=["p"], once=True, host_time=0.25),
    ]
    problem = ms.Graph.from_json(graph(tensors, ops))
    found = [ms.selective(problem, memory, float("inf")).makespan for memory in (11, 12, 1000)]
    assert found == [0.5, 0.5, 0.5]


def test_all_on_the_host() -> None:
    """The device holds nothing at any time."""
    ops = [op("U", ["p"], [], 3.0, phase="bwd", updates=["p"], once=True, host_time=1.0)]
    found = ms.selective(ms.Graph.from_json(graph([tensor("p", 2, "persistent")], ops)), 10, 1.0)
    assert found.schedule.steps == ({"update": "U"},)
    report = ms.validate(found)
    assert (found.makespan, found.peak_memory, report.makespan, report.peak_memory) == (1.0, 0, 1.0, 0)
    assert "the plan takes 66.67 % less" in str(found)
    assert "all on the device" in str(ms.frontier(found.problem, beta=1.0, planner="selective", points=2))


def test_odd_graphs_get_host_times() -> None:
    tensors = [tensor("w", 4, "persistent"), tensor("g", 2, "gradient"), tensor("t", 0)]
    ops = [
        op("B", ["w"], ["g"], 1.0),
        op("U", ["w", "g"], ["t"], 1.0, phase="bwd", tape=["t"], updates=["w"], once=True),
    ]
    problem = ms.Graph.from_json(graph(tensors, ops))
    made = ms.with_host_updates(problem, 1)
    assert made.ops[1]["host_time"] == 10
    assert made.ops[1]["writes"] == []
    assert ms.with_host_updates(made, 5) == made  # what was measured stays
    for wrong in (1e-320, float("nan"), "0", True):
        with pytest.raises(ms.InvalidInputError, match=r"memory_bandwidth is .*; give at least 1 byte per second"):
            ms.with_host_updates(problem, wrong)


def test_inputs_that_the_host_reads_stay() -> None:
    """They are on the device at the border anyway; freed and fetched again, they would load the link twice."""
    tensors = [tensor("p", 4, "persistent"), tensor("q", 4, "persistent"), tensor("i", 2, "input"), tensor("x", 0)]
    ops = [
        op("A", [], ["x"], 2.0, workspace=1),
        op("U", ["q", "i", "x", "p"], [], 1.0, phase="bwd", updates=["p", "q"], once=True, host_time=2.0, workspace=1),
    ]
    found = ms.selective(ms.Graph.from_json(graph(tensors, ops)), 6, 0.5)
    assert found.makespan == 6.0
    assert {"free": "i"} not in found.schedule.steps


def test_where_nothing_may_travel_places_are_tried() -> None:
    """The last of three updates of a parameter without bytes is faster on the host, the others on the device."""
    tensors = [tensor("p", 0, "persistent"), tensor("s", 0), tensor("t", 0)]
    more: Json = {"phase": "bwd", "updates": ["p"], "once": True}
    ops = [
        op("U0", ["p"], ["s"], 0.0, host_time=1.0, **more),
        op("U1", ["p", "s"], ["t"], 0.0, host_time=1.0, **more),
        op("U2", ["p", "t"], [], 2.0, host_time=0.25, **more),
    ]
    assert ms.selective(ms.Graph.from_json(graph(tensors, ops)), 5, 2.0).makespan == 0.25


def updates_of(times: list[tuple[float, float]], known: float) -> ms.Graph:
    """A forward, and updates that each take so many seconds on the device and on the host, of tensors of one byte."""
    tensors = [tensor("g", 1, "gradient"), *(tensor(f"m{k}", 1, "persistent") for k in range(len(times)))]
    ops = [op("F", [], ["g"], known)]
    for k, (here, there) in enumerate(times):
        more = {"once": True, "updates": [f"m{k}"], "host_time": there}
        ops.append(op(f"U{k}", ["g", f"m{k}"], [], here, phase="bwd", **more))
    return ms.Graph.from_json(graph(tensors, ops))


def shared(times: list[tuple[float, float]], known: float) -> Fraction:
    """The least of the busier of device and host, if each update may be split; exact."""
    here, there = Fraction(known) + sum(Fraction(one) for one, _ in times), Fraction(0)
    for seconds, cost in sorted(((Fraction(a), Fraction(b)) for a, b in times if a), key=lambda one: one[1] / one[0]):
        if here - seconds <= there + cost:
            return here - seconds * (here - there) / (seconds + cost) if here > there else here
        here, there = here - seconds, there + cost
    return here


DECADES = st.tuples(st.integers(1, 9), st.integers(-300, 290)).map(lambda one: one[0] * 10.0 ** one[1])


@example([(1.0, 10.0), (1.0, 1e17), (2e-17, 1.0)], 1.0)  # the validator's bound was 2.0 of 2.7
@given(st.lists(st.tuples(DECADES, DECADES), min_size=1, max_size=4), DECADES)
@settings(deadline=None)
def test_bounds_hold_where_seconds_differ_by_many_orders(times: list[tuple[float, float]], known: float) -> None:
    problem = updates_of(times, known)
    machine = ms.Device(1 + len(times), inf, duplex=True)
    bound, exact = ms.bounds(problem, device=machine).best, float(shared(times, known))
    assert bound == pytest.approx(max(known, exact), rel=1e-12)
    found = ms.selective(problem, device=machine, moves=5)
    assert found.makespan >= bound * (1 - 1e-12)
    assert ms.validate(found).lower_bound == pytest.approx(found.lower_bound, rel=1e-12)


@pytest.mark.parametrize("seconds", [1e16, 1e30])
def test_an_update_that_never_fits_the_device_in_time(seconds: float) -> None:
    """Its seconds there were subtracted again, with the digits that they had cost: the bound was 4 seconds, or 1."""
    found = ms.plan(updates_of([(seconds, 3.0)], 1.0), 2, inf)
    assert found.lower_bound == pytest.approx(3.0, rel=1e-12)
    assert ms.validate(found).lower_bound == pytest.approx(3.0, rel=1e-12)
