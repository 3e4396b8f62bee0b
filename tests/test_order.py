"""The order that holds the least memory: against a program over all sets of ops, and what users may rely on."""

from __future__ import annotations

import random
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from oracles.olla_graphs import WORKED, random_graphs, with_kept
from oracles.orders import best_order, peak_of
from plans import graph as graph_json
from plans import op, tensor

METHODS = ("search", "listed", *(("ilp", "published") if find_spec("highspy") else ()))
TRIED = settings().max_examples
MANY = settings(max_examples=TRIED * (2 if TRIED <= 100 else 10 if TRIED < 1000 else 20))


def ids(graph: ms.Graph, order: tuple[str, ...]) -> list[int]:
    number = {op["name"]: k for k, op in enumerate(graph.ops)}
    return [number[name] for name in order]


def test_a_tape_that_nobody_reads_is_skipped() -> None:
    """It used to be written, which made peak, bound and the least memory of olla too large."""
    tensors = [tensor("x", 1, "input"), tensor("a", 5), tensor("tape", 50)]
    graph = ms.Graph.from_json(graph_json(tensors, [op("A", ["x"], ["a", "tape"], 1.0, tape=["tape"])]))
    for method in METHODS:
        found = ms.order(graph, method=method)
        assert (found.peak_memory, found.lower_bound) == (6, 6)
        assert ms.order(graph, method=method, keep=["tape"]).peak_memory == 56
    assert ms.min_memory(graph, "olla") == 6
    assert next(step.get("skip") for step in ms.olla(graph, M=6).schedule.to_json()["steps"]) == ["tape"]


def test_inputs_that_no_op_reads_are_there_at_first() -> None:
    """They used to be forgotten, and the plan of the order could not run in its own peak."""
    tensors = [tensor("x", 1, "input"), tensor("y", 100, "input"), tensor("a", 5)]
    graph = ms.Graph.from_json(graph_json(tensors, [op("A", ["x"], ["a"], 1.0)]))
    for method in METHODS:
        found = ms.order(graph, method=method)
        assert (found.peak_memory, found.lower_bound) == (101, 101)


@MANY
@given(case=with_kept(random_graphs(max_ops=12)))
def test_the_plan_of_an_order_runs_in_its_peak(case: tuple[ms.Graph, frozenset[str]]) -> None:
    graph, keep = case
    for method in ("search", "listed"):
        found = ms.order(graph, method=method, keep=keep)
        limit = found.peak_memory
        budget, flags = max(1, limit), [int(one["name"] in keep) for one in graph.tensors]
        plan = _core.order_schedule(graph, ids(graph, found.order), flags, limit, budget, {"name": "order"})
        device = ms.Device(budget)
        assert ms.simulate(graph, plan, device).peak_memory == limit
        assert ms.validate(graph, plan, device).logical_peak == limit


@MANY
@given(case=with_kept(random_graphs(max_ops=12)))
def test_equal_to_the_program_over_sets_of_ops(case: tuple[ms.Graph, frozenset[str]]) -> None:
    graph, keep = case
    found = ms.order(graph, keep=keep)
    assert found.optimal
    assert found.peak_memory == best_order(graph, keep)[0] == peak_of(graph, ids(graph, found.order), keep)


@pytest.mark.parametrize("name", WORKED)
def test_worked_graphs(name: str) -> None:
    graph, listed, best = WORKED[name]
    found = ms.order(graph)
    assert (found.peak_memory, found.lower_bound) == (best, best)
    assert ms.order(graph, method="listed").peak_memory == listed
    assert peak_of(graph, ids(graph, found.order)) == best


@given(case=with_kept(random_graphs(max_ops=14)))
def test_the_answer_at_any_time_is_sound(case: tuple[ms.Graph, frozenset[str]]) -> None:
    graph, keep = case
    found = ms.order(graph, time_limit=0, keep=keep)
    assert found.peak_memory == peak_of(graph, ids(graph, found.order), keep)
    assert found.lower_bound <= best_order(graph, keep)[0] <= found.peak_memory
    assert found.peak_memory <= peak_of(graph, list(range(len(graph.ops))), keep)


@given(graph=random_graphs(max_ops=12), seed=st.integers(0, 99))
def test_random_orders_are_orders(graph: ms.Graph, seed: int) -> None:
    flags = [0] * len(graph.tensors)
    best = ms.order(graph).peak_memory
    other = _core.order_within(graph, flags, best, seed, None)
    assert sorted(other) == list(range(len(graph.ops)))
    assert _core.order_peak(graph, flags, other) == peak_of(graph, other)


@pytest.mark.skipif("published" not in METHODS, reason="needs memsched[ilp]")
@pytest.mark.parametrize(("name", "peak"), [("gradients", 2201), ("figure 3", 60), ("pathological", 42)])
def test_the_papers_shortcuts_exclude_better_orders(name: str, peak: int) -> None:
    graph, _, best = WORKED[name]
    found = ms.order(graph, method="published")
    assert peak_of(graph, ids(graph, found.order)) == found.peak_memory == peak > best >= found.lower_bound


@given(graph=random_graphs(max_ops=12))
def test_same_graph_same_order(graph: ms.Graph) -> None:
    assert ms.order(graph) == ms.order(graph)


@pytest.mark.parametrize("name", ["resnet18-224-b32", "gpt2-1024-b8", "densenet121-224-b32", "inception_v3-299-b32"])
def test_training_steps_are_proven(name: str) -> None:
    graph = ms.profiles.load_graph(name)
    found = ms.order(graph)
    assert found.optimal
    assert found.peak_memory == peak_of(graph, ids(graph, found.order))
    assert found.peak_memory <= ms.order(graph, method="listed").peak_memory <= ms.peak_memory(graph)


def test_of_a_chain_and_of_a_family() -> None:
    chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    assert ms.order(chain).peak_memory == ms.peak_memory(chain)
    family = ms.profiles.analytic("alexnet", 8)
    assert ms.order(family) == ms.order(family.graph)


def test_wide_graphs_end() -> None:
    """400 ops that need no one, each with an output that the last op reads."""
    tensors = [tensor(f"t{k}", 1 + k % 7) for k in range(400)]
    ops = [op(f"o{k}", [], [f"t{k}"], 1.0) for k in range(400)]
    ops.append(op("last", [f"t{k}" for k in range(400)], [], 1.0))
    found = ms.order(ms.Graph.from_json(graph_json(tensors, ops)))
    assert found.optimal
    assert found.peak_memory == sum(1 + k % 7 for k in range(400))


def test_a_deep_graph_ends() -> None:
    tensors = [tensor(f"t{k}", 5) for k in range(5000)]
    ops = [op("o0", [], ["t0"], 1.0)] + [op(f"o{k}", [f"t{k - 1}"], [f"t{k}"], 1.0) for k in range(1, 5000)]
    found = ms.order(ms.Graph.from_json(graph_json(tensors, ops)))
    assert (found.peak_memory, found.optimal) == (10, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "best"}, "method is 'best'; it must be one of search, ilp, published, listed"),
        ({"time_limit": -1}, "time_limit is -1; it must be a finite number of seconds >= 0"),
        ({"keep": ["nothing"]}, "keep has 'nothing', which is no tensor"),
        ({"keep": "A"}, "keep is 'A'; it must be a list of names of tensors"),
    ],
)
def test_bad_options(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=sentence.replace("(", "\\(")):
        ms.order(WORKED["diamond"].graph, **options)  # type: ignore[arg-type]


def test_a_problem_of_another_kind() -> None:
    with pytest.raises(ms.InvalidInputError, match="problem is a str; it must be a Chain or a Graph"):
        ms.order("resnet50")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reads", "sentence"),
    [
        ({"A": "b", "B": "a"}, "op 'A' reads 'b', which 'B' writes only after it: the ops form a cycle"),
        ({"A": "a"}, "op 'A' reads 'a', which 'A' writes only after it: the ops form a cycle"),
        ({"A": "b"}, "op 'A' reads 'b', which no earlier op writes; list ops in a topological order"),
        ({"A": "lost"}, "op 'A' reads 'lost', which no op writes; add its writer, or give it the role input"),
    ],
)
def test_graphs_without_an_order(reads: dict[str, str], sentence: str) -> None:
    tensors = [tensor("a", 1), tensor("b", 1), tensor("lost", 1)]
    ops = [op(name, [reads[name]] if name in reads else [], [name.lower()], 1.0) for name in "AB"]
    with pytest.raises(ms.InvalidInputError, match=sentence):
        ms.Graph.from_json(graph_json(tensors, ops))


def test_what_loses_nothing_is_run_at_once() -> None:
    """A search that begins by trying what loses nothing sees 214 sets of ops here; one that does not sees 7,507."""
    rng = random.Random(0)
    tensors, ops = [], []
    for k in range(60):
        tensors.append({"name": f"t{k}", "size": rng.randint(0, 99), "role": "activation"})
        reads = [f"t{j}" for j in range(max(0, k - 15), k) if rng.random() < 0.1]
        choices = [{"alg": "default", "time": 1.0, "workspace": 0}]
        ops.append({"name": f"o{k}", "phase": "fwd", "reads": reads, "writes": [f"t{k}"], "choices": choices})
    found = ms.order(ms.Graph(tensors, ops))
    assert found.optimal
    assert 0 < found.visited < 1000


def test_stages_keep_their_order_though_what_passes_has_no_bytes() -> None:
    """Such a boundary was no tensor: the last stages ran first, and B2 before F2, and no judge objected."""
    chain = ms.Chain([1, 2, 3], [1, 2, 3], [8, 0, 0, 0], [0, 0, 0, 0], saved=[8, 8, 8])
    listed = tuple(one["name"] for one in ms.to_graph(chain).ops)
    assert ms.order(chain).order == listed
    plan = ms.olla(chain, ms.peak_memory(chain))
    assert [step["run"] for step in plan.schedule.steps if "run" in step] == list(listed)
    early = [{"run": name} for name in ("F2", "F1", *listed[2:])]
    schedule = ms.Schedule(early, budget=100, graph="chain")
    for judge in (ms.simulate, ms.validate):
        with pytest.raises(ms.ScheduleError) as error:
            judge(chain, schedule, ms.Device(100))
        assert error.value.step == 0


def test_what_has_no_bytes_does_not_travel_with_its_stage() -> None:
    """It would take a latency for nothing."""
    chain = ms.Chain([1] * 4, [1] * 4, [4, 0, 0, 0, 4], [4] * 5, saved=[8] * 4)
    device = ms.Device(ms.min_memory(chain, "dynprog"), 8.0, latency=0.5)
    assert device.memory < ms.peak_memory(chain)
    for planner in (ms.greedy, ms.dynprog, ms.vdnn, ms.autoswap, ms.pofo, ms.offload):
        assert not {"a1", "a2", "a3"} & set(planner(chain, device=device).offloaded)
