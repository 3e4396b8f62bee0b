"""Plans of whole training steps: selective and order on graphs with persistent tensors."""

from __future__ import annotations

import json
import random
import time
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

import memsched as ms
import memsched.study.auto
from memsched.cli.app import command_line
from memsched.testing import random_repeated, repeated_schedules
from oracles.steady import period
from oracles.whole_step import least_period
from plans import graph, op, tensor
from test_steady import step_graph

Json = dict[str, Any]
Case = tuple[ms.Graph, ms.Schedule, ms.Device]


def layers(count: int, *, clip: bool = False, counters: bool = False) -> ms.Graph:
    """Layers in a row, each with a parameter, a state of twice its bytes, and an update, listed after the backward.

    With counters, each update waits for an operation that counts the steps.
    """
    tensors, ops, last = [], [], []
    for k in range(count):
        tensors += [tensor(f"p{k}", 16, "persistent"), tensor(f"s{k}", 32, "persistent"), tensor(f"a{k}", 10)]
        tensors += [tensor(f"d{k}", 2, "gradient"), tensor(f"g{k}", 16, "gradient")]
        ops.append(op(f"F{k}", [f"p{k}", *([f"a{k - 1}"] if k else [])], [f"a{k}"], 2.0))
    for k in reversed(range(count)):
        reads = [f"p{k}", f"a{k}", *([f"d{k + 1}"] if k < count - 1 else [])]
        ops.append(op(f"B{k}", reads, [f"d{k}", f"g{k}"], 4.0, phase="bwd"))
        if counters:
            tensors += [tensor(f"n{k}", 1, "persistent"), tensor(f"counted{k}", 0, "gradient")]
            last.append(op(f"C{k}", [f"n{k}"], [f"counted{k}"], 0.0, phase="bwd", once=True, updates=[f"n{k}"]))
        reads = [f"g{k}", f"p{k}", f"s{k}", *(["norm"] if clip else []), *([f"counted{k}"] if counters else [])]
        last.append(op(f"U{k}", reads, [], 1.0, phase="bwd", once=True, updates=[f"p{k}", f"s{k}"]))
    if clip:
        tensors.append(tensor("norm", 0, "gradient"))
        ops.append(op("clip", [f"g{k}" for k in range(count)], ["norm"], 1.0, phase="bwd"))
    return ms.Graph.from_json(graph(tensors, [*ops, *last]))


def planned(case: Case, moves: int = 50) -> ms.Result:
    """A plan that the validator, the bound and the rules played literally accept."""
    problem, schedule, machine = case
    memory = min(schedule.budget, machine.memory)
    fields = {key: getattr(machine, key) for key in ("d2h", "h2d", "duplex", "latency", "host_memory")}
    machine = ms.Device(memory, **fields)
    found = ms.selective(problem, device=machine, moves=moves)
    report = ms.validate(found)
    assert report.makespan == found.makespan >= report.lower_bound
    assert report.peak_memory <= memory
    return found


@settings(deadline=None)
@given(repeated_schedules())
def test_plans_are_legal_and_no_faster_than_the_bound(case: Case) -> None:
    found = planned(case)
    exact = period(case[0].to_json(), found.schedule.to_json(), found.device.to_json())[0]
    assert exact is None or float(exact) == pytest.approx(found.makespan, rel=1e-12)


@pytest.mark.parametrize(
    "first",
    [
        *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 200)),
        *(pytest.param(k, marks=pytest.mark.exhaustive) for k in range(1000, 11_000, 500)),
    ],
)
def test_plans_are_no_slower_than_random_ones(first: int) -> None:
    """Where a random list runs, selective has a plan; its search is no proof, but none of these was slower."""
    for seed in range(first, first + 200):
        case = random_repeated(seed)
        assert planned(case, moves=100).makespan <= ms.simulate(*case).makespan * (1 + 1e-9), seed


def tiny(seed: int, *, hosts: bool = False) -> tuple[ms.Graph, ms.Device]:
    """Two or three ops with one or two persistent tensors, in a memory between the least and the peak.

    With `hosts`, the update may run on the host.
    """
    numbers = random.Random(seed)
    tensors: list[Json] = []

    def new(name: str, role: str = "activation") -> str:
        tensors.append(tensor(name, 1 + numbers.randrange(5), role))
        return name

    def any_op(name: str, reads: list[str], writes: list[str], **more: Any) -> Json:
        phase, workspace = "fwd" if name in "FG" else "bwd", numbers.randrange(2) * numbers.randrange(4)
        return op(name, reads, writes, (1 + numbers.randrange(6)) / 2, workspace=workspace, phase=phase, **more)

    kind, w = numbers.randrange(3), new("w", "persistent")
    if kind == 0:
        a, g = new("a"), new("g", "gradient")
        back = any_op("B", [a, *[w] * numbers.randrange(2)], [g])
        ops = [any_op("F", [w], [a]), back, any_op("U", [g, w], [], once=True, updates=[w])]
    elif kind == 1:
        m, g = new("m", "persistent"), new("g", "gradient")
        updates = [w, m] if numbers.randrange(2) else [m]
        ops = [any_op("F", [w], [g]), any_op("U", [g, w, m], [], once=True, updates=updates)]
    else:
        a, b = new("a"), new("b")
        ops = [any_op("F", [w], [a]), any_op("G", [a], [b]), any_op("U", [a, b, w], [], once=True, updates=[w])]
    if hosts:
        ops[-1]["host_time"] = numbers.randrange(8) / 2
    problem = ms.Graph.from_json(graph(tensors, ops))
    least, peak = ms.min_memory(problem), ms.peak_memory(problem)
    rate = numbers.choice((1.0, 2.0, 4.0))
    machine = ms.Device(
        least + numbers.randrange(peak - least + 1),
        d2h=rate,
        h2d=numbers.choice((rate, 3.0)),
        duplex=numbers.random() < 0.5,
    )
    return problem, machine


@pytest.mark.parametrize(
    ("first", "seeds"),
    [
        pytest.param(0, 20, marks=pytest.mark.slow),
        pytest.param(20, 30, marks=pytest.mark.exhaustive),
        *(pytest.param(k, 500, marks=pytest.mark.exhaustive) for k in range(50, 50_050, 500)),
    ],
)
@pytest.mark.parametrize("hosts", [False, True], ids=["device", "host"])
def test_the_best_of_all_lists(first: int, seeds: int, hosts: bool) -> None:
    for seed in range(first, first + seeds):
        problem, machine = tiny(seed, hosts=hosts)
        best, schedule, _ = least_period(problem, machine)
        try:
            found = ms.selective(problem, device=machine, moves=200)
        except ms.InfeasibleError:
            assert best == inf, seed
            continue
        assert schedule is not None, seed
        assert period(problem.to_json(), schedule.to_json(), machine.to_json())[0] in (None, pytest.approx(best)), seed
        assert ms.validate(found).makespan == found.makespan == pytest.approx(best, rel=1e-9), seed


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_updates_that_wait_for_a_counter_run_early_too(share: float) -> None:
    """Listed last, they would run one after the other, and nothing would hide what travels."""
    periods = []
    for counters in (False, True):
        problem = layers(12, counters=counters)
        least, peak = ms.min_memory(layers(12), "selective"), ms.peak_memory(layers(12))
        memory = int(least + share * (peak - least)) + 12 * counters  # for the counters
        found = ms.selective(problem, device=ms.Device(memory, 8.0, duplex=True), moves=20)
        assert ms.validate(found).proven
        periods.append(found.makespan)
        order = [step["run"] for step in found.schedule.steps if "run" in step]
        assert order.index("U11") < order.index("B0")
    assert periods[1] <= 1.05 * periods[0]  # counters travel, too


def test_nothing_is_sent_that_never_comes_back() -> None:
    for share in (0.2, 0.6):
        problem = layers(16)
        least, peak = ms.min_memory(problem, "selective"), ms.peak_memory(problem)
        for rate in (4.0, 24.0):
            found = ms.selective(problem, device=ms.Device(int(least + share * (peak - least)), rate), moves=100)
            steps, roles = found.schedule.steps, {one["name"]: one["role"] for one in problem.tensors}
            sent, back = ({one[verb] for one in steps if verb in one} for verb in ("offload", "prefetch"))
            assert {name for name in sent - back if roles[name] != "persistent"} == set()


@pytest.mark.parametrize(("count", "clip", "link"), [(4, True, 8.0), (8, False, 4.0), (8, False, 8.0), (12, True, 4.0)])
def test_what_has_no_bytes_never_travels(count: int, clip: bool, link: float) -> None:
    """Parameters that stay have no bytes in a step's graph: a copy of one would not be the one that the step trains."""
    document = layers(count, clip=clip).to_json()
    for one in document["tensors"]:
        one["size"] = 0 if one["name"].startswith("p") else one["size"]
    problem = ms.Graph.from_json(document)
    least, peak = ms.min_memory(problem), ms.peak_memory(problem)
    found = ms.selective(problem, device=ms.Device(int(least + 0.1 * (peak - least)), link, duplex=True), moves=600)
    moved = {next(iter(step.values())) for step in found.schedule.steps if not {"offload", "prefetch"}.isdisjoint(step)}
    assert moved
    assert not {name for name in moved if name.startswith("p")}


def test_lists_for_less_memory_start_their_fetches_earlier() -> None:
    """A new user's step, in 20 % of the way: 143.8 ms with lists that use all of the memory, and bound 104 ms."""
    tensors: list[Json] = [tensor("x", 8, "input")]
    forward, back = [], []
    for k in range(16):
        tensors += [tensor(f"w{k}", 16, "persistent"), tensor(f"m{k}", 32, "persistent"), tensor(f"a{k}", 24)]
        tensors += [tensor(f"g{k}", 16, "gradient"), tensor(f"d{k}", 24, "gradient")]
        before = f"a{k - 1}" if k else "x"
        forward.append(op(f"F{k}", [before, f"w{k}"], [f"a{k}"], 2.0))
    for k in reversed(range(16)):
        reads = [f"d{k + 1}" if k < 15 else f"a{k}", f"a{k - 1}" if k else "x", f"w{k}"]
        back.append(op(f"B{k}", reads, [f"g{k}", f"d{k}"], 4.0, phase="bwd"))
        owned = [f"w{k}", f"m{k}"]
        back.append(op(f"U{k}", [f"g{k}", *owned], [], 0.5, phase="bwd", once=True, updates=owned))
    problem = ms.Graph.from_json(graph(tensors, [*forward, *back]))
    link = 24e9 / 2**20 * 1e-3  # 24 GB/s, in MiB per ms
    found = ms.selective(problem, "20%", link)
    assert found.makespan < 1.1 * 104
    assert ms.validate(found).proven
    assert ms.selective(problem, "40%", link).optimal


def test_a_copy_need_not_wait_for_one_that_nobody_waits_for() -> None:
    """A user's plan by hand took 5.25 s: x comes back before m leaves, which the next forward does not wait for."""
    tensors = [tensor("x", 2, "input"), tensor("w", 4, "persistent"), tensor("m", 8, "persistent")]
    tensors += [tensor("a", 2), tensor("g", 4, "gradient")]
    problem = ms.Graph.from_json(
        graph(
            tensors,
            [
                op("F", ["x", "w"], ["a"], 1.0),
                op("B", ["w", "a"], ["g"], 2.0, phase="bwd"),
                op("U", ["g", "w", "m"], [], 1.0, phase="bwd", once=True, updates=["w", "m"]),
            ],
        )
    )
    found = ms.selective(problem, 16, 8.0)
    assert ms.validate(found).proven
    assert found.makespan <= 5.25


def test_states_travel_where_that_is_free() -> None:
    """Each layer computes for 7 s; its state of 32 bytes is on the host but for its update, at 8 bytes per second."""
    problem = layers(4)
    everything = ms.peak_memory(problem)
    found = ms.selective(problem, device=ms.Device(everything - 48, 8.0, duplex=True))
    assert found.optimal
    assert found.makespan == 28.0
    away = {name for name, place in found.schedule.border.items() if place != "device"}
    assert away
    assert ms.validate(found).makespan == found.makespan
    moved = [next(iter(step.items())) for step in found.schedule.steps if "run" not in step and "free" not in step]
    for name in away:
        assert {("prefetch", name), ("offload", name)} <= set(moved)  # each is updated, so it is written back


def test_what_nobody_updates_is_never_written_back() -> None:
    document = step_graph()
    document["ops"][2]["updates"] = ["m"]
    problem = ms.Graph.from_json(document)
    found = ms.selective(problem, device=ms.Device(ms.min_memory(problem), 4.0, duplex=True))
    assert ms.validate(found).makespan == found.makespan
    assert all(step.get("offload") != "w" for step in found.schedule.steps)


def test_updates_run_as_early_as_clipping_allows() -> None:
    """Without clipping, gradients of 16 bytes need not wait for one another."""
    early, late = ms.order(layers(6)), ms.order(layers(6, clip=True))
    places = early.order.index
    assert places("U5") < places("B4")
    assert late.order.index("clip") < min(late.order.index(f"U{k}") for k in range(6))
    assert early.peak_memory < ms.order(layers(6), method="listed").peak_memory <= late.peak_memory
    found = ms.selective(layers(6), early.peak_memory, 0)
    assert found.optimal
    assert found.peak_memory <= early.peak_memory


def peak_of_order(problem: ms.Graph, names: tuple[str, ...]) -> float:
    """Bytes that an order holds where sources never leave; infinite if an op reads what is missing or out of date."""
    ops = {one["name"]: one for one in problem.ops}
    listed = list(ops)
    size = {t["name"]: t["size"] for t in problem.tensors}
    written = {t for one in ops.values() for t in one["writes"]}
    live = sum(size[t] for t in size if t not in written)
    ready = set(size) - written
    peak = live
    for k, name in enumerate(names):
        one = ops[name]
        for t in one["reads"]:
            updates = [u for u in listed if t in ops[u].get("updates", ())]
            before = {u for u in updates if listed.index(u) < listed.index(name)}
            if t not in ready or before != {u for u in updates if u in names[:k]}:
                return inf
        live += sum(size[t] for t in one["writes"])
        ready |= set(one["writes"])
        peak = max(peak, live + one["choices"][0]["workspace"])
        later = {t for other in names[k + 1 :] for t in ops[other]["reads"]}
        gone = {t for t in (*one["reads"], *one["writes"]) if t in written} - later
        live -= sum(size[t] for t in gone)
    return problem.resident + peak


@pytest.mark.parametrize("seed", range(12))
def test_order_is_the_best_of_all_that_keep_reads_and_updates(seed: int) -> None:
    problem = random_repeated(seed, max_layers=2)[0]
    assert len(problem.ops) <= 12
    found = ms.order(problem)
    assert found.optimal
    assert peak_of_order(problem, found.order) == found.peak_memory
    every = permutations(op["name"] for op in problem.ops) if len(problem.ops) <= 6 else [found.order]
    assert min(peak_of_order(problem, names) for names in every) == found.peak_memory
    assert ms.selective(problem, max(1, found.peak_memory), 0).peak_memory <= max(1, found.peak_memory)


@pytest.mark.parametrize("seed", range(40))
def test_the_least_memory_is_enough_with_a_link(seed: int) -> None:
    problem = random_repeated(seed)[0]
    least = max(1, ms.min_memory(problem))
    found = ms.selective(problem, least, 2.0, moves=0)
    assert ms.validate(found).peak_memory <= least
    if least > problem.resident + 1:
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.selective(problem, least - 1, 2.0)
        assert caught.value.min_memory == least


def test_no_plan_is_told_as_not_found_unless_it_is_proven() -> None:
    problem = ms.Graph.from_json(step_graph())
    with pytest.raises(ms.InfeasibleError, match="what must be held does not fit, and without a link"):
        ms.selective(problem, 17, 0)
    with pytest.raises(ms.InfeasibleError, match="no plan exists: what must be held does not fit; 18 B is enough"):
        ms.selective(problem, device=ms.Device(17, 1.0, host_memory=0))
    with pytest.raises(ms.InfeasibleError, match="no mixture that was tried fits; 18 B is enough, and less may do"):
        ms.selective(problem, device=ms.Device(17, 1.0, host_memory=2))


def test_a_time_limit_and_the_same_seed() -> None:
    problem, machine = layers(5), ms.Device(240, 8.0)
    one, two = (ms.selective(problem, device=machine, moves=50) for _ in range(2))
    assert one.schedule == two.schedule
    assert ms.validate(ms.selective(problem, device=machine, time_limit=0.2)).proven


@pytest.mark.slow
def test_the_rest_of_memsched_plans_them_or_refuses_by_name(tmp_path: Path) -> None:
    problem, machine = layers(3), ms.Device(140, 8.0)
    best = ms.plan(problem, device=machine)
    assert best.planner == "selective"
    assert ms.validate(best).proven
    assert list(ms.compare(problem, device=machine)) == ["selective"]
    assert ms.not_asked(problem)["pooch"] == "not with persistent tensors"
    curve = ms.frontier(problem, beta=8.0, planner="selective")
    assert min(curve.makespan) >= best.lower_bound - 1e-9
    for planner in (ms.pooch, ms.olla, ms.modnn, ms.swap_all, ms.checkmate):
        with pytest.raises(ms.InvalidInputError, match="has persistent tensors, such as 'p0', which"):
            planner(problem, device=machine)
    path = tmp_path / "step.json"
    path.write_text(json.dumps(problem.to_json()))
    said = CliRunner().invoke(command_line, ["plan", str(path), "--memory", "140", "--bandwidth", "8", "--json"])
    assert said.exit_code == 0, said.output


def test_what_has_no_plan_has_no_least_memory() -> None:
    problem = layers(2)
    assert ms.min_memory(problem, "selective") == ms.min_memory(problem)
    for planner in ("checkmate", "modnn", "olla", "pooch", "swap_all", "vdnn_sync"):
        with pytest.raises(
            ms.InvalidInputError, match=rf"persistent tensors, such as 'p0', which {planner} cannot plan"
        ):
            ms.min_memory(problem, planner)
    with pytest.raises(ms.InvalidInputError, match="has no addresses yet; to place one step, give those tensors"):
        ms.with_addresses(ms.selective(problem, 300, 8.0))


def test_a_period_that_meets_its_bound_ends_the_search_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of the same times in another order, it may be a bit above: all rungs were tried, for half a minute."""
    document = layers(6).to_json()
    for k, one in enumerate(document["ops"]):
        one["choices"][0]["time"] = 1.0 / (3 + k)
    problem = ms.Graph.from_json(document)
    tried: list[str] = []
    monkeypatch.setattr(memsched.study.auto, "_draft", lambda _, name, *__: tried.append(name))
    found = ms.plan(problem, device=ms.Device(ms.peak_memory(problem), 8.0))
    assert found.optimal
    assert found.makespan > found.lower_bound  # by rounding: else this says nothing
    assert tried == []


def test_without_time_no_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of 0 the search ends after its moves, for how far it comes in a moment is another each time."""
    limits = []
    plain = memsched.study.auto.outcome

    def outcome(entry: Any, problem: Any, device: Any, options: dict[str, Any]) -> Any:
        limits.append(options.get("time_limit"))
        return plain(entry, problem, device, options | {"moves": 5})

    monkeypatch.setattr(memsched.study.auto, "outcome", outcome)
    ms.plan(layers(2), "60%", 8.0, time_limit=0)
    assert set(limits) == {None}


def test_order_and_frontier_on_the_command_line(tmp_path: Path) -> None:
    problem, saved = tmp_path / "step.json", tmp_path / "order.json"
    layers(3).save(problem)

    def said(*words: str) -> str:
        found = CliRunner().invoke(command_line, list(words), env={"COLUMNS": "200"})
        assert found.exit_code == 0, found.output
        return found.output

    said("order", str(problem), "-o", str(saved))
    assert "repeated" not in said("simulate", str(saved), "--problem", str(problem), "--bandwidth", "0")
    said("validate", str(saved), "--problem", str(problem), "--bandwidth", "0")
    assert "selective" in said("frontier", str(problem), "--points", "2", "--bandwidth", "8B/s")


def test_long_steps_are_simulated_in_time_that_grows_with_them() -> None:
    """Each step that needs memory waits for one of the copies in turn, not for each: 1,500 layers took 15 s of CPU."""
    problem = layers(1500)
    found = ms.selective(problem, ms.min_memory(problem) + 200, 8.0, time_limit=0.5)
    began = time.process_time()
    ms.simulate(problem, found.schedule, found.device)
    assert time.process_time() - began < 1.5


def test_many_tensors_of_one_run_come_back_at_once() -> None:
    """Each prefetch looked at all that the run before had used: 8 s and 2.3 GB for 16,001 steps."""
    names = [f"w{k}" for k in range(16000)]
    problem = ms.Graph.from_json(graph([tensor(one, 10, "persistent") for one in names], [op("A", names, [], 1.0)]))
    gone = names[:8000]
    steps = [{"run": "A"}, *({"free": one} for one in gone), *({"prefetch": one} for one in gone)]
    schedule = ms.Schedule(steps, budget=160000, border=dict.fromkeys(gone, "both"))
    began = time.process_time()
    found = ms.simulate(problem, schedule, ms.Device(160000, 1000.0))
    assert time.process_time() - began < 1
    assert found.makespan == pytest.approx(1 + 80)
