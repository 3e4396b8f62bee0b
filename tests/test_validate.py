"""The checker of schedules, on JSON forms only: worked examples, mutations, random legal plans."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.errors import ScheduleError
from memsched.validation.execution import check_intervals, execute
from memsched.validation.plan import check_plan, checked, validate
from memsched.validation.replay import Replay
from plans import device, graph, instances, op, plan, tensor

Json = dict[str, Any]


def refused(step: int | None, *documents: Json, match: str | None = None) -> None:
    with pytest.raises(ScheduleError, match=match) as caught:
        check_plan(*documents)
    assert caught.value.step == step


# A chain of three: a1 leaves after F2, comes back for B; x stays.
CHAIN = graph(
    [tensor("x", 2, "input"), tensor("a1", 4), tensor("a2", 3), tensor("a3", 1), tensor("d1", 4, "gradient")],
    [
        op("F1", ["x"], ["a1"], 2.0),
        op("F2", ["a1"], ["a2"], 3.0),
        op("F3", ["a2"], ["a3"], 5.0, workspace=1),
        op("B", ["a1", "a3"], ["d1"], 2.0, once=True),
    ],
    resident=10,
)
SWAP = [
    {"run": "F1"},  # 0: [0, 2)
    {"offload": "a1"},  # 1: [2, 6)
    {"run": "F2"},  # 2: [2, 5)
    {"free": "a1"},  # 3: at 6
    {"run": "F3"},  # 4
    {"free": "a2"},  # 5
    {"prefetch": "a1"},  # 6
    {"run": "B"},  # 7
]


def test_swap_with_plenty_of_memory() -> None:
    report = check_plan(CHAIN, plan(SWAP, 100), device())
    assert report.start == (0, 2, 2, 6, 5, 10, 6, 10)
    assert report.end == (2, 6, 5, 6, 10, 10, 10, 12)
    assert report.makespan == 12
    assert report.peak_memory == 10 + 11  # F3 at 5: x, a1 still on its way out, a2, a3 and the workspace
    assert report.logical_peak == 10 + 11  # B: x, a3, a1, d1
    assert (report.bytes_out, report.bytes_in, report.compute_time, report.recompute_time) == (4, 4, 12, 0)
    assert report.recomputed == ()


def test_steps_wait_for_memory_to_come_back() -> None:
    small = copy.deepcopy(CHAIN)
    small["tensors"][-1]["size"] = 1  # d1: now F2 has the logical peak, x + a1 + a2 = 9
    report = check_plan(small, plan(SWAP, 19), device())
    # F3 waits for a1 to leave (6 instead of 5); the prefetch for F3's workspace and a2 (11)
    assert report.start == (0, 2, 2, 6, 6, 11, 11, 15)
    assert (report.makespan, report.peak_memory, report.logical_peak) == (17, 19, 19)
    refused(2, small, plan(SWAP, 18), device())
    refused(2, small, plan(SWAP, 100), device(memory=18))  # the smaller of budget and memory counts


def test_latency_and_free_link() -> None:
    assert check_plan(CHAIN, plan(SWAP, 100), device(latency=1.0)).end == (2, 7, 5, 7, 10, 10, 12, 14)
    free = check_plan(CHAIN, plan(SWAP, 100), device(d2h="inf", h2d="inf", latency=0.5))
    assert free.end[1] == 2.5
    assert free.end[6] == 5.5
    refused(1, CHAIN, plan(SWAP, 100), device(d2h=0))
    refused(6, CHAIN, plan(SWAP, 100), device(h2d=0))


@pytest.mark.parametrize(("duplex", "prefetched", "makespan"), [(False, 9, 15), (True, 6, 12)])
def test_half_duplex_is_one_queue(duplex: bool, prefetched: float, makespan: float) -> None:
    steps = [*SWAP[:4], {"offload": "a2"}, SWAP[4], SWAP[6], SWAP[7]]
    report = check_plan(CHAIN, plan(steps, 100), device(duplex=duplex))
    assert report.start[4] == 6  # a2 is ready at 5, the link out is busy until 6
    assert report.start[6] == prefetched
    assert report.makespan == makespan


def test_after_delays_a_run_and_all_behind_it() -> None:
    steps = [*SWAP[:2], {"run": "F2", "after": [1]}, *SWAP[3:]]
    report = check_plan(CHAIN, plan(steps, 100), device())
    assert report.start == (0, 2, 6, 9, 9, 14, 9, 14)  # also the free: F2 reads a1 until 9
    late = [*SWAP[:6], {"prefetch": "a1", "after": [5, 0]}, SWAP[7]]
    assert check_plan(CHAIN, plan(late, 100), device()).start[6] == 10  # after a free


def test_rounds_multiply_the_sums_only() -> None:
    one, three = (check_plan(CHAIN, plan(SWAP, 100, rounds=[[1, n]]), device()) for n in (1, 3))
    assert (three.makespan, three.bytes_out, three.compute_time) == (36, 12, 36)
    assert (three.start, three.end, three.peak_memory) == (one.start, one.end, one.peak_memory)


TAPED = graph(
    [tensor("x", 2, "input"), tensor("a1", 4), tensor("tape1", 3), tensor("d1", 4), tensor("d0", 0)],
    [
        op("F1", ["x"], ["a1", "tape1"], 2.0, workspace=1, tape=["tape1"], skip_workspace=5),
        op("loss", ["a1"], ["d1"], 0.0),
        op("B1", ["x", "a1", "tape1", "d1"], ["d0"], 3.0, once=True),
    ],
)
RECOMPUTE = [{"run": "F1", "skip": ["tape1"]}, {"run": "loss"}, {"free": "a1"}, {"run": "F1"}, {"run": "B1"}]


def test_recomputation_with_a_skipped_tape() -> None:
    report = check_plan(TAPED, plan(RECOMPUTE, 14), device())
    assert (report.makespan, report.compute_time, report.recompute_time) == (7, 7, 2)
    assert report.recomputed == ("F1",)
    assert report.peak_memory == report.logical_peak == 14  # the second F1: x, d1, a1, tape1, workspace
    assert check_plan(TAPED, plan([*RECOMPUTE, {"free": "x"}], 14), device()).end[-1] == 7
    skipping = [RECOMPUTE[0], {"free": "a1"}, *RECOMPUTE[3:], {"run": "loss"}]
    refused(3, TAPED, plan(skipping, 14), device(), match="d1")
    refused(0, TAPED, plan(RECOMPUTE, 10), device())  # x, a1 and the workspace of a skipping run: 11
    plain = copy.deepcopy(TAPED)
    del plain["ops"][0]["skip_workspace"]  # then the first F1 takes the workspace of its choice, 1
    refused(3, plain, plan(RECOMPUTE, 10), device())


def test_workspace_of_an_op_without_length_counts() -> None:
    tensors, ops = [tensor("x", 1, "input"), tensor("y", 1)], [op("Z", ["x"], ["y"], 0.0, workspace=50)]
    report = check_plan(graph(tensors, ops), plan([{"run": "Z"}], 52), device())
    assert (report.makespan, report.peak_memory, report.logical_peak) == (0, 52, 52)
    refused(0, graph(tensors, ops), plan([{"run": "Z"}], 51), device(), match="by 1")


def test_what_leaves_at_an_instant_makes_room_for_what_comes_after_it_in_the_list() -> None:
    tensors = [tensor("x", 1, "weight"), tensor("y", 1), tensor("z", 1)]
    ops = [op("A", ["x"], ["y"], 1.0, workspace=5), op("B", ["y"], ["z"], 1.0, workspace=5)]
    report = check_plan(graph(tensors, ops), plan([{"run": "A"}, {"run": "B"}], 8), device())
    assert (report.makespan, report.peak_memory) == (2, 8)


def test_a_second_offload_takes_the_link_but_the_first_copy_counts() -> None:
    steps = [*SWAP[:2], SWAP[2], {"offload": "a1"}, *SWAP[3:]]
    report = check_plan(CHAIN, plan(steps, 100), device())
    assert (report.start[3], report.end[3], report.start[7]) == (6, 10, 10)
    assert report.bytes_out == 8
    duplex = check_plan(CHAIN, plan(steps, 100), device(duplex=True))
    assert duplex.start[7] == 6  # the host copy is there since 6, though a1 is copied again until 10
    assert check_plan(CHAIN, plan(steps, 100), device(host_memory=4)).makespan == report.makespan
    refused(1, CHAIN, plan(steps, 100), device(host_memory=3), match="host_memory")


ADDRESSED = [
    {"run": "F1", "at": {"a1": 2}},
    {"offload": "a1"},
    {"run": "F2", "at": {"a2": 6}},
    {"free": "a1"},
    {"run": "F3", "at": {"a3": 9, "": 10}},
    {"free": "a2"},
    {"prefetch": "a1", "at": 2},
    {"run": "B", "at": {"d1": 10}},
]


@pytest.mark.parametrize(("address", "prefetched"), [(2, 6), (5, 10)])
def test_addresses_wait_for_what_was_there(address: int, prefetched: float) -> None:
    steps = [*ADDRESSED[:6], {"prefetch": "a1", "at": address}, ADDRESSED[7]]
    report = check_plan(CHAIN, plan(steps, 24, memory="contiguous"), device())
    assert report.start[6] == prefetched  # [5, 9) was a2's, until F3 ends at 10
    assert report.makespan == prefetched + 4 + 2
    assert report.peak_memory == 21  # bytes, not the highest address


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (0, {"at": {"a1": 1}}),  # x lies at [0, 2)
        (0, {"at": {}}),
        (0, {"at": {"a1": -1}}),
        (0, {"at": {"a1": 2.0}}),
        (0, {"at": {"a1": True}}),
        (0, {"at": {"a1": 11}}),  # the arena ends at 14
        (0, {"at": {"a1": 2, "x": 0}}),
        (0, {"at": [2]}),
        (2, {"at": {"a2": 5}}),
        (4, {"at": {"a3": 9, "": 9}}),
        (4, {"at": {"a3": 9}}),
        (6, {"at": 8}),  # a3 at [9, 10) lives
        (6, {"at": {"a1": 2}}),
    ],
)
def test_bad_addresses(step: int, field: Json) -> None:
    steps = copy.deepcopy(ADDRESSED)
    steps[step] |= field
    refused(step, CHAIN, plan(steps, 24, memory="contiguous"), device())


def drop(index: int) -> Any:
    return lambda steps: steps.pop(index)


def put(index: int, step: Any) -> Any:
    return lambda steps: steps.insert(index, step)


def change(index: int, **fields: Any) -> Any:
    return lambda steps: steps[index].update(fields)


MUTATIONS = {
    "dropped prefetch": (drop(6), 6, "a1"),
    "dropped offload": (drop(1), 5, "host copy"),
    "dropped run": (drop(2), 3, "a2"),
    "dropped last run": (drop(7), None, "'B' never runs"),
    "freed before its last use": (put(2, {"free": "a1"}), 3, "a1"),
    "freed twice": (put(4, {"free": "a1"}), 4, "not on the device"),
    "prefetched while on the device": (put(2, {"prefetch": "a1"}), 2, "already"),
    "offloaded when gone": (put(4, {"offload": "a1"}), 4, "not on the device"),
    "wrong order": (lambda steps: steps.reverse(), 0, "a1"),
    "output still there": (put(1, {"run": "F1"}), 1, "already on the device"),
    "once twice": (put(8, {"run": "B"}), 8, "once"),
    "unknown op": (change(0, run="F9"), 0, "F9"),
    "unknown tensor": (change(3, free="a9"), 3, "a9"),
    "op as tensor": (change(1, offload="F1"), 1, "F1"),
    "name not a string": (change(1, offload=["a1"]), 1, "tensor"),
    "unknown field": (change(1, at=3), 1, "'at' is unknown"),
    "after in a free": (change(3, after=[0]), 3, "after"),
    "two verbs": (change(3, offload="a1"), 3, "offload and free"),
    "no verb": (put(1, {"swap": "a1"}), 1, "no verb"),
    "not an object": (put(1, "run F1"), 1, "no verb"),
    "after itself": (change(2, after=[2]), 2, "after"),
    "after before all": (change(2, after=[-1]), 2, "after"),
    "after is a bool": (change(2, after=[True]), 2, "after"),
    "after is a number": (change(2, after=1), 2, "after"),
    "after is a float": (change(2, after=[1.0]), 2, "after"),
    "unknown alg": (change(2, alg="fast"), 2, "fast"),
    "skip without tape": (change(2, skip=["a2"]), 2, "skip"),
    "skip is a string": (change(2, skip="a2"), 2, "skip"),
    "address in a fluid plan": (change(0, at={"a1": 2}), 0, "fluid"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_refused_with_their_step(name: str) -> None:
    act, step, match = MUTATIONS[name]
    steps = copy.deepcopy(SWAP)
    act(steps)
    refused(step, CHAIN, plan(steps, 100), device(), match=match)


def test_budget_one_byte_below_the_logical_peak() -> None:
    assert check_plan(CHAIN, plan(SWAP, 21), device()).peak_memory == 21
    refused(7, CHAIN, plan(SWAP, 20), device(), match="raise the budget by 1")
    refused(None, CHAIN, plan(SWAP, 11), device(), match="At time 0 there are 12 bytes")


def test_tape_is_skipped_as_a_whole() -> None:
    two = copy.deepcopy(TAPED)
    two["ops"][0]["tape"] = ["a1", "tape1"]
    for skip in (["tape1"], ["tape1", "tape1"], ["tape1", "x"], [1, 2]):
        refused(0, two, plan([{"run": "F1", "skip": skip}], 100), device(), match="whole tape")
    fits = plan([{"run": "F1", "skip": ["tape1", "a1"]}, *RECOMPUTE[3:4], RECOMPUTE[1], RECOMPUTE[4]], 100)
    assert check_plan(two, fits, device()).makespan == 7


def test_alg_is_needed_where_there_are_several() -> None:
    choices = [{"alg": "slow", "time": 4, "workspace": 0}, {"alg": "fast", "time": 1, "workspace": 7}]
    one = graph([tensor("x", 1, "input"), tensor("y", 1)], [op("A", ["x"], ["y"], 0, choices=choices)])
    report = check_plan(one, plan([{"run": "A", "alg": "fast"}], 9), device())
    assert (report.makespan, report.peak_memory) == (1, 9)
    assert check_plan(one, plan([{"run": "A", "alg": "slow"}], 2), device()).makespan == 4
    refused(0, one, plan([{"run": "A"}], 9), device(), match="missing")


@pytest.mark.parametrize(
    "head",
    [
        *({"rounds": value} for value in ([], [[2, 1]], [[1, 0]], [[1, 1], [1, 1]], [[1]], [[1, True]], [1, 1], None)),
        *({"budget": value} for value in (True, "6GiB", -1, 1.5)),
        *({"memory": "virtual"}, {"format": "memsched-plan/2"}, {"colour": "red"}),
    ],
)
def test_bad_heads(head: Json) -> None:
    refused(None, CHAIN, plan(SWAP, 100) | head, device(), match=next(iter(head)))
    missing = plan(SWAP, 100)
    del missing["memory"]
    refused(None, CHAIN, missing, device(), match="missing")


@pytest.mark.parametrize(
    ("step", "begin", "finish"),
    [
        (2, 2.0, 6.0),  # too long
        (2, 1.0, 4.0),  # compute is busy, a1 not complete
        (1, 1.0, 5.0),  # a1 not complete
        (3, 5.0, 5.0),  # a1 is still being copied
        (6, 5.0, 9.0),  # the link is busy
        (6, 4.0, 8.0),  # before F3
        (7, 9.0, 11.0),  # a1 is not back
    ],
)
def test_sweep_refuses_wrong_intervals(step: int, begin: float, finish: float) -> None:
    replay = Replay(CHAIN, plan(SWAP, 100), device())
    start, end = execute(replay)
    assert max(held for _, held, _ in check_intervals(replay, start, end)) == 11
    start[step], end[step] = begin, finish
    with pytest.raises(ScheduleError) as caught:
        check_intervals(replay, start, end)
    assert caught.value.step is not None


def test_sweep_counts_bytes_and_addresses_in_time() -> None:
    small = copy.deepcopy(CHAIN)
    small["tensors"][-1]["size"] = 1
    plenty = execute(Replay(small, plan(SWAP, 100), device()))
    with pytest.raises(ScheduleError, match="10 bytes are held, 9 bytes are there"):
        check_intervals(Replay(small, plan(SWAP, 19), device()), *plenty)
    steps = [*ADDRESSED[:6], {"prefetch": "a1", "at": 5}, ADDRESSED[7]]
    fluid = execute(Replay(CHAIN, plan(SWAP, 100), device()))
    with pytest.raises(ScheduleError, match="taken") as caught:  # too early for these addresses
        check_intervals(Replay(CHAIN, plan(steps, 24, memory="contiguous"), device()), *fluid)
    assert caught.value.step == 6


def as_object(document: Json, **more: Any) -> Any:
    return SimpleNamespace(to_json=lambda: document, **more)


def test_validate_a_result() -> None:
    def result(**figures: Any) -> Any:
        parts = {
            "problem": as_object(CHAIN, ops=()),
            "device": as_object(device()),
            "schedule": as_object(plan(SWAP, 100), chunk=None),
        }
        played, memory, _ = checked(CHAIN, plan(SWAP, 100), device())
        keys = ("makespan", "peak_memory", "recompute_time", "bytes_out", "bytes_in", "start", "end")
        timeline = {"idle": played.makespan - played.compute_time, **{key: getattr(played, key) for key in keys}}
        timeline["memory"] = tuple(zip(*memory, strict=True))
        timeline |= {key: value for key, value in figures.items() if key in timeline}
        said = {"lower_bound": 12.0, "bound_on": "all", "placement": None, **figures}
        return SimpleNamespace(**parts, **said, timeline=SimpleNamespace(**timeline))

    good = result()
    report = validate(good)
    alone = validate(good.problem, good.schedule, good.device)
    assert (alone.claimed_lower_bound, report.claimed_lower_bound) == (None, 12.0)
    assert replace(report, claimed_lower_bound=None) == alone
    for key, value in [
        ("makespan", 12.001),
        ("peak_memory", 20),
        ("lower_bound", 12.1),
        ("bytes_in", 3),
        ("idle", 1.0),
    ]:
        with pytest.raises(ScheduleError, match=key):
            validate(result(**{key: value}))
    for key in ("start", "end"):
        with pytest.raises(ScheduleError, match=rf"{key}\[3\]"):
            validate(result(**{key: [*getattr(report, key)[:3], 99.0, *getattr(report, key)[4:]]}))
        with pytest.raises(ScheduleError, match=f"length of {key}"):
            validate(result(**{key: getattr(report, key)[:3]}))
    with pytest.raises(ScheduleError, match="lower_bound"):
        validate(result(lower_bound=math.nan))
    times, held = good.timeline.memory
    last = times.index(times[-1])  # of the events that follow on time
    other = (*held[: last - 1], held[last - 1] - 1, *held[last:])
    for memory in ((times, other), (times[::-1], held), (times, (*held[:-1], 99)), ((), ())):
        with pytest.raises(ScheduleError, match="memory of the result"):
            validate(result(memory=memory))


def test_validate_a_family() -> None:
    def at(batch: int) -> Any:
        grown = copy.deepcopy(CHAIN)
        grown["batch"] = batch
        for each in grown["ops"]:
            each["choices"][0]["time"] *= batch
        return as_object(grown, ops=())

    schedule = as_object(plan(SWAP, 100, rounds=[[2, 3], [1, 1]]), chunk=None)
    report = validate(SimpleNamespace(at=at, batch=7), schedule, as_object(device()))
    assert report.makespan == 3 * 24 + 12
    assert report.end[-1] == 24


# A one-pass recurrence to compare the event loop with.


def one_pass(document: Json, schedule: Json, machine: Json) -> tuple[list[float], list[float], int]:
    """Starts, ends and the peak in bytes, each start from earlier steps only."""
    sizes = {t["name"]: t["size"] for t in document["tensors"]}
    ops = {o["name"]: o for o in document["ops"]}
    contiguous = schedule["memory"] == "contiguous"
    capacity = min(schedule["budget"], machine["memory"]) - document["resident"]
    blocks: list[Json] = []
    current: dict[str, Json] = {}
    low = 0
    for t in document["tensors"]:
        if t["role"] in ("input", "weight"):
            current[t["name"]] = {
                "from": (0.0, -1),
                "ready": 0.0,
                "busy": 0.0,
                "bytes": t["size"],
                "low": low,
            }
            blocks.append(current[t["name"]])
            low += t["size"]
    start: list[float] = []
    end: list[float] = []
    last_run = 0.0
    stream_end = {"run": 0.0, "out": 0.0, "in": 0.0}
    host: dict[str, float] = {}
    for k, step in enumerate(schedule["steps"]):
        verb = next(v for v in ("run", "offload", "prefetch", "free") if v in step)
        name, after = step[verb], [end[j] for j in step.get("after", [])]
        if verb == "free":
            copy_ = current.pop(name)
            done = max(last_run, copy_["busy"])
            copy_["to"] = (done, k)
            start.append(done)
            end.append(done)
            continue
        births: list[Json] = []
        stream = {"run": "run", "offload": "out", "prefetch": "in" if machine["duplex"] else "out"}[verb]
        t = max([last_run, stream_end[stream], *after])
        if verb == "run":
            o = ops[name]
            skip = step.get("skip", [])
            choice = next(c for c in o["choices"] if c["alg"] == step.get("alg", c["alg"]))
            workspace = o.get("skip_workspace", choice["workspace"]) if skip else choice["workspace"]
            seconds, at = choice["time"], step.get("at", {})
            used = [current[r] for r in o["reads"]]
            births = [{"name": w, "bytes": sizes[w], "low": at.get(w)} for w in o["writes"] if w not in skip]
            births.append({"name": "", "bytes": workspace, "low": at.get("")})
        else:
            rate = float(machine["d2h" if verb == "offload" else "h2d"])
            seconds = machine["latency"] + sizes[name] / rate
            used = [current[name]] if verb == "offload" else []
            if verb == "prefetch":
                births = [{"name": name, "bytes": sizes[name], "low": step.get("at")}]
                t = max(t, host[name])
        t = max([t, *(u["ready"] for u in used)])
        gone = [b for b in blocks if "to" in b]
        if contiguous:
            for new in births:
                for b in gone:
                    if max(new["low"], b["low"]) < min(new["low"] + new["bytes"], b["low"] + b["bytes"]):
                        t = max(t, b["to"][0])
        elif any(b["bytes"] for b in births):
            asked = sum(b["bytes"] for b in blocks + births)
            for moment in sorted({t, *(b["to"][0] for b in gone if b["to"][0] > t)}):
                t = moment
                if asked - sum(b["bytes"] for b in gone if b["to"][0] <= t) <= capacity:
                    break
        start.append(t)
        end.append(t + seconds)
        stream_end[stream] = end[k]
        for u in used:
            u["busy"] = max(u["busy"], end[k])
        for new in births:
            new |= {"from": (t, k), "ready": end[k], "busy": end[k]}
            if new["name"]:
                current[new["name"]] = new
            else:
                new["to"] = (end[k], k + 0.5)
        blocks += births
        if verb == "run":
            last_run = t
        elif verb == "offload":
            host.setdefault(name, end[k])
    moments = [b["from"] for b in blocks]
    never = (math.inf, 0)
    peak = max(sum(b["bytes"] for b in blocks if b["from"] <= m < b.get("to", never)) for m in moments)
    return start, end, peak + document["resident"]


@settings(max_examples=3 * settings().max_examples)
@given(instances())
def test_random_plans_agree_with_a_recurrence(instance: tuple[Json, Json, Json, int]) -> None:
    document, schedule, machine, need = instance
    report = check_plan(document, schedule, machine)
    start, end, peak = one_pass(document, schedule, machine)
    assert report.start == tuple(start)
    assert report.end == tuple(end)
    assert report.peak_memory == peak <= schedule["budget"]
    assert report.logical_peak == need
    assert report.makespan == max(end) >= report.compute_time - 1e-9


@settings(max_examples=3 * settings().max_examples)
@given(instances(), st.sampled_from(["d2h", "h2d", "duplex", "latency", "times"]))
def test_faster_is_never_slower(instance: tuple[Json, Json, Json, int], what: str) -> None:
    document, schedule, machine, _ = instance
    slow = check_plan(document, schedule, machine)
    faster, shorter = dict(machine), copy.deepcopy(document)
    if what != "times":
        faster[what] = {"d2h": "inf", "h2d": "inf", "duplex": True, "latency": 0}[what]
    for o in shorter["ops"] if what == "times" else []:
        for choice in o["choices"]:
            choice["time"] /= 2
    fast = check_plan(shorter, schedule, faster)
    assert fast.makespan <= slow.makespan + 1e-9
    assert all(a <= b + 1e-9 for a, b in zip(fast.start, slow.start, strict=True))


@settings(max_examples=3 * settings().max_examples)
@given(instances(contiguous=False), st.integers(1, 9))
def test_more_memory_is_never_slower_and_too_little_is_refused(instance: Any, more: int) -> None:
    document, schedule, machine, need = instance
    tight = check_plan(document, schedule | {"budget": need}, machine)
    ample = check_plan(document, schedule | {"budget": need + more}, machine | {"memory": need + more})
    assert ample.makespan <= tight.makespan + 1e-9
    assert tight.peak_memory <= need
    with pytest.raises(ScheduleError):
        check_plan(document, schedule | {"budget": need - 1}, machine)


def test_a_plan_of_another_problem_says_so_first() -> None:
    """The first thing that did not fit was told, be it a budget or an op."""
    mine, other = (ms.profiles.load(name) for name in ("resnet18-224-b32", "resnet101-224-b32"))
    result = ms.greedy(mine, "60%", "12GB/s")
    for check, told in (
        (ms.validate, "^The plan was made for 'resnet18-224-b32', not for 'resnet101-224-b32'. Step 7 "),
        (ms.simulate, "^the schedule was made for 'resnet18-224-b32', not for 'resnet101-224-b32'; step 7: "),
    ):
        with pytest.raises(ScheduleError, match=told) as error:
            check(other, result.schedule, result.device)
        assert error.value.step == 7
    with pytest.raises(ms.InvalidInputError, match=r"schedule is a Result, .*; give it alone, or its .schedule"):
        ms.validate(other, result)


def test_bytes_in_errors_are_readable_and_exact() -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    schedule = ms.greedy(chain, "60%", "12GB/s").schedule
    for check, told in (
        (
            ms.validate,
            r"needs 36.76 MiB \(38,541,312 bytes\), but of the budget of 572.2 MiB \(600,000,000 bytes\) only ",
        ),
        (ms.simulate, r"needs \S+ MiB \([\d,]+ bytes\), but \S+ MiB \([\d,]+ bytes\) of 483 MiB \(506,443,296 bytes\)"),
    ):
        with pytest.raises(ScheduleError, match=told):
            check(chain, schedule, ms.Device("600MB", "12GB/s"))
