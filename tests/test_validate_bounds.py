"""The validator's own bounds: those of the core on all problems, and never above a plan that is legal."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.problems.bounds import graph_bound
from memsched.testing import chains, devices, graphs, repeated_schedules, schedules
from memsched.validation.bounds import bound_of_all, bound_of_once
from memsched.validation.cuts import bound_of_cut
from memsched.validation.plan import bound_of_every_plan
from memsched.validation.steady import bound_of_period


def close(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=1e-9)


def derived(graph: ms.Graph, device: ms.Device) -> tuple[float, float]:
    return bound_of_once(graph.to_json(), device.to_json()), bound_of_all(graph.to_json(), device.to_json())


@given(chains(), st.none() | st.integers(1, 9), devices(), st.floats(0, 1.1))
def test_they_are_those_of_the_core_on_chains(
    chain: ms.Chain, chunk: int | None, device: ms.Device, share: float
) -> None:
    graph = ms.to_graph(chain, chunk=chunk)
    memory = max(1, int(share * ms.peak_memory(graph)))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex)
    once, anyhow = derived(graph, device)
    assert close(once, graph_bound(graph, device))
    assert close(anyhow, _core.recompute_bound(graph, device, device.memory))


@given(graphs(), devices(), st.floats(0, 1.1))
def test_they_hold_for_every_plan_of_a_graph(graph: ms.Graph, device: ms.Device, share: float) -> None:
    memory = max(1, int(share * ms.peak_memory(graph)))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex)
    once, anyhow = derived(graph, device)
    for planner, result in ms.compare(graph, device=device, time_limit=0.01).items():
        if not isinstance(result, ms.Result):
            continue
        assert anyhow <= result.makespan * (1 + 1e-9), planner
        runs = [step["run"] for step in result.schedule.steps if "run" in step]
        if runs == [op["name"] for op in graph.ops]:
            assert once <= result.makespan * (1 + 1e-9), planner
        report = ms.validate(result)
        assert report.claimed_lower_bound == result.lower_bound
        assert report.lower_bound <= result.makespan


@given(graphs(), devices(), st.floats(0, 1.1))
def test_a_certificate_of_a_cut_is_worth_what_the_core_says(graph: ms.Graph, device: ms.Device, share: float) -> None:
    memory = max(1, int(share * ms.peak_memory(graph)))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex, host_memory=device.host_memory)
    seconds, op, price = _core.cut_bound(graph, device, device.memory)
    if op >= 0:
        assert close(bound_of_cut(graph.to_json(), device.to_json(), op, *_core.cut_flows(graph, op, price)), seconds)


@given(repeated_schedules(), devices(), st.floats(0, 1.1))
def test_so_is_one_of_a_repeated_step(
    case: tuple[ms.Graph, ms.Schedule, ms.Device], device: ms.Device, share: float
) -> None:
    graph = case[0]
    memory = max(1, int(share * ms.peak_memory(graph)))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex, host_memory=device.host_memory)
    seconds, op, price = _core.cut_bound(graph, device, device.memory)
    form, machine = graph.to_json(), device.to_json()
    known = bound_of_period(form, machine)
    assert seconds >= known * (1 - 1e-9)
    if op >= 0:
        assert close(bound_of_cut(form, machine, op, *_core.cut_flows(graph, op, price)), seconds)
    else:
        assert close(seconds, known)


@pytest.mark.parametrize("name", ["gpt2-1024-b8", "resnet50-224-b32", "whole step"])
def test_a_false_certificate_proves_no_more(name: str) -> None:
    """What a forged flow claims too much is taken off again."""
    rng = random.Random(name)
    graph = ms.profiles.load_graph(name) if name != "whole step" else whole_step()
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    device = ms.Device(least + (peak - least) // 2, 1e9)
    _, op, price = _core.cut_bound(graph, device, device.memory)
    assert op >= 0
    price, flows = _core.cut_flows(graph, op, price)
    form, machine = graph.to_json(), device.to_json()
    for _ in range(12):
        other = op if rng.random() < 0.5 else rng.randrange(len(graph.ops))
        forged = [(reader, tensor, flow * rng.choice([1, 1, 1, 0, 2, 1e6])) for reader, tensor, flow in flows]
        true = bound_of_cut(form, machine, other, *_core.cut_flows(graph, other, price))
        assert bound_of_cut(form, machine, other, price, forged) <= true * (1 + 1e-9)
    compute = math.fsum(op["choices"][0]["time"] for op in graph.ops if "host_time" not in op)
    for number, cost, said in ((-1, price, flows), (len(graph.ops), price, flows), (op, math.inf, flows)):
        assert close(bound_of_cut(form, machine, number, cost, said), compute)
    assert close(bound_of_cut(form, machine, op, price, [(-1, 0, math.nan)]), compute)


@pytest.mark.parametrize("seed", range(8))
def test_no_flows_prove_more_than_the_largest(seed: int) -> None:
    """Payments at random, and among them for what the op reads, which is there in any case and has no price."""
    rng = random.Random(seed)
    raised = 0
    for _ in range(400):
        graph = random_dag(rng)
        least, peak = ms.min_memory(graph), ms.peak_memory(graph)
        device = ms.Device(rng.randint(least, max(least, peak - 1)), rng.choice([0.0, 0.0, 0.1, 1.0]))
        _, op, price = _core.cut_bound(graph, device, device.memory)
        if op < 0:
            continue
        price, flows = _core.cut_flows(graph, op, rng.choice([1, 1, 0.5, 2]) * price)
        form, machine = graph.to_json(), device.to_json()
        true = bound_of_cut(form, machine, op, price, flows)
        raised += true > ms.bounds(graph, device=device).compute
        number = {tensor["name"]: k for k, tensor in enumerate(graph.tensors)}
        for _ in range(8):
            forged = [flow for flow in flows if rng.random() < 0.8]
            for reader, item in rng.sample(list(enumerate(graph.ops)), k=min(2, len(graph.ops))):
                for name in item["reads"]:  # what it takes off there, its outputs may pay
                    seconds = rng.choice([0.5, 1.0, 2.0]) * price * rng.randint(1, 9)
                    forged += [(-1, number[name], seconds), (reader, number[name], seconds)]
                    forged += [(-1, number[output], seconds) for output in item["writes"]]
            assert bound_of_cut(form, machine, op, price, forged) <= true * (1 + 1e-9) + 1e-9
    assert raised > 20


def whole_step() -> ms.Graph:
    """That of a chain, whose updates may run on the host."""
    step = ms.whole_step(ms.profiles.load("resnet50-224-b32"), states=2, update_time="900 GB/s")
    return ms.with_host_updates(step, "20 GB/s")


def random_dag(rng: random.Random) -> ms.Graph:
    """Up to seven ops that read any of the last tensors, so that some are in no order."""
    tensors = [{"name": "t0", "size": rng.randint(1, 9), "role": "input"}]
    ops: list[dict[str, Any]] = []
    for k in range(rng.randint(3, 9)):
        known = [tensor["name"] for tensor in tensors]
        tensors.append({"name": f"t{k + 1}", "size": rng.randint(1, 9), "role": "activation"})
        ops.append(
            {
                "name": f"o{k}",
                "phase": "fwd",
                "reads": [name for name in known if rng.random() < 0.5],
                "writes": [f"t{k + 1}"],
                "choices": [{"alg": "one", "time": float(rng.randint(0, 5)), "workspace": 0}],
                "once": rng.random() < 0.1,
            }
        )
    return ms.Graph(tensors, ops)


@given(schedules(max_stages=3))
def test_they_hold_for_random_plans(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    chain, schedule, device = case
    report = ms.validate(chain, schedule, device)
    assert 0 <= report.lower_bound <= report.makespan
    assert report.bound_on == "all"
    assert report.proven


def skippable() -> dict[str, Any]:
    """Nobody reads the tape of F, which does not fit; the one op that must keep to memory runs once."""
    tensors = [{"name": "x", "size": 4, "role": "input"}, {"name": "t", "size": 90, "role": "activation"}]
    tensors += [{"name": name, "size": 4, "role": "activation"} for name in ("a", "b")]
    choices = [{"alg": "default", "time": 1.0, "workspace": 0}]
    head = {"phase": "fwd", "kind": "op", "layer": 1, "choices": choices}
    ops = [
        {"name": "F", "reads": ["x"], "writes": ["a", "t"], "tape": ["t"], "skip_workspace": 3, "once": True, **head},
        {"name": "G", "reads": ["x", "a"], "writes": ["b"], **head},
    ]
    return {"format": "memsched-graph/1", "name": "skips", "batch": 1, "resident": 0, "tensors": tensors, "ops": ops}


def test_a_tape_that_nobody_reads_may_be_skipped() -> None:
    graph, device = ms.Graph.from_json(skippable()), ms.Device(12, 1.0)
    plan = ms.Schedule([{"run": "F", "skip": ["t"]}, {"run": "G"}], budget=12, graph="skips")
    report = ms.validate(graph, plan, device)
    assert (report.makespan, report.lower_bound) == (2, 2)
    assert bound_of_once(graph.to_json(), device.to_json()) == 2


def test_bytes_are_counted_to_the_last_one() -> None:
    """What is one byte above 2^51 does not fit below it, and without a link nothing can leave."""
    size = 2**49
    graph = ms.to_graph(ms.Chain([1.0, 1.0], [1.0, 1.0], [size, size, size + 1], [0, 0, 0]))
    need = ms.peak_memory(graph)
    memories = (need, need - 1)
    assert [bound_of_once(graph.to_json(), ms.Device(one, 0.0).to_json()) for one in memories] == [4.0, math.inf]


def test_a_claim_that_cannot_be_derived_is_shown_as_one() -> None:
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [9, 9, 9, 9], [0, 4, 4, 4])
    result = ms.greedy(chain, M=ms.peak_memory(chain) - 4, beta=1)
    assert ms.validate(result).proven
    claimed = ms.validate(replace(result, lower_bound=result.makespan))
    assert result.lower_bound < result.makespan
    assert not claimed.proven
    assert not claimed.optimal
    assert claimed.claimed_lower_bound == result.makespan
    assert claimed.lower_bound == pytest.approx(result.lower_bound)
    wider = ms.validate(replace(result, bound_on="all"))
    assert wider.lower_bound == pytest.approx(ms.bounds(chain, device=result.device).recompute)
    assert not wider.proven


def test_what_is_next_to_optimal_is_not_optimal() -> None:
    """One part in 10^9 is what sums of a bound may differ by; the checker used to call plans so close to it optimal."""
    chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    result = ms.greedy(chain, device=ms.Device(ms.min_memory(chain), 2e10, latency=3e-9))
    assert result.lower_bound < result.makespan < result.lower_bound * (1 + 1e-9)
    assert not result.optimal
    assert not ms.validate(result).optimal
    assert not ms.validate(result.problem, result.schedule, result.device).optimal
    kept = ms.greedy(chain, ms.peak_memory(chain), 1.0)
    assert kept.optimal
    assert ms.validate(kept).optimal


@pytest.mark.parametrize("price", [0.010968942730645167, 0.37477966865482343, 18.886783039928442, 1e9])
def test_rounding_proves_nothing_where_a_plan_takes_no_time(price: float) -> None:
    """A free link brings back what must be away; the sums of the certificate left 7e-15 seconds."""
    choices = [{"alg": "a", "time": 0.0, "workspace": 0}]
    fixed = {"phase": "fwd", "choices": choices}
    graph = ms.Graph(
        [
            {"name": "w", "size": 8, "role": "weight"},
            {"name": "x", "size": 5, "role": "input"},
            {"name": "y", "size": 7, "role": "activation"},
        ],
        [
            {"name": "A", "reads": ["w"], "writes": ["y"], **fixed},
            {"name": "B", "reads": ["y", "x"], "writes": [], **fixed},
        ],
    )
    device = ms.Device(18, math.inf, host_memory=10)
    assert ms.plan(graph, device=device).makespan == 0
    assert bound_of_cut(graph.to_json(), device.to_json(), 0, price, [(-1, 1, price * 5)]) == 0


def test_a_bound_is_proven_to_the_last_digits() -> None:
    """The core told the price up to rounding, for which the flow was another, and 1e-9 less was proven than claimed."""
    chain = ms.profiles.load("resnet152-1000-b2")
    least, peak = ms.min_memory(chain, "pofo"), ms.peak_memory(chain)
    graph = ms.to_graph(chain)
    for link in (8e9, 12e9, 16e9, 32e9):
        device = ms.Device(int(least + 2 / 9 * (peak - least)), link)
        claimed = _core.cut_bound(graph, device, device.memory)[0]
        found = bound_of_every_plan(graph.to_json(), device.to_json(), claimed)
        assert math.isclose(found, claimed, rel_tol=1e-12)
