"""The least memory of each planner of graphs and of each order: a plan there, and none one byte below."""

from __future__ import annotations

import contextlib
import random
from itertools import permutations, product
from math import inf

import pytest
from hypothesis import given, settings

import memsched as ms
from listed import GRAPH_PLANNERS
from marks import nightly
from memsched.planners.registry import PLANNERS
from memsched.testing import chains
from plans import graph as graph_json
from plans import op, tensor
from test_limits import takes
from test_tiny_graphs import tiny_graph

FEW_AND_MANY = pytest.mark.parametrize("count", [40, *nightly(3000)])


def any_graph(rng: random.Random) -> ms.Graph:
    """Of some the phases are drawn, too: a forward op may come after a backward one."""
    document = tiny_graph(rng).to_json()
    if rng.random() < 0.3:
        for one in document["ops"]:
            one["phase"] = rng.choice(["fwd", "bwd"])
    return ms.Graph.from_json(document)


def any_device(rng: random.Random, memory: int) -> ms.Device:
    """One link or two, fast, slow or none, and hosts that take all, little or nothing."""
    d2h = rng.choice([0.0, 0.5, 1.0, inf])
    return ms.Device(
        memory,
        d2h=d2h,
        h2d=rng.choice([d2h, 1.0]),
        duplex=rng.random() < 0.5,
        latency=rng.choice([0.0, 1.0]),
        host_memory=rng.choice([None, None, 0, 3, 8]),
    )


@FEW_AND_MANY
@pytest.mark.parametrize("planner", GRAPH_PLANNERS)
def test_a_planner_has_a_plan_in_its_least_memory_and_none_below(planner: str, count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        graph = any_graph(rng)
        least = ms.min_memory(graph, planner)
        assert least >= ms.min_memory(graph)
        plan = PLANNERS[planner].plan
        assert ms.validate(plan(graph, M=max(1, least), beta=1.0)).peak_memory <= max(1, least), graph.to_json()
        if least > 1:
            with pytest.raises(ms.InfeasibleError) as refused:
                plan(graph, M=least - 1, beta=1.0)
            assert refused.value.min_memory == least, graph.to_json()


@FEW_AND_MANY
@pytest.mark.parametrize("planner", GRAPH_PLANNERS)
def test_what_a_refusal_says_is_needed_is_the_least_on_any_device(planner: str, count: int) -> None:
    rng = random.Random(-count)
    for _ in range(count):
        graph = any_graph(rng)
        device = any_device(rng, 1)
        try:
            PLANNERS[planner].plan(graph, device=device)
        except ms.InfeasibleError as error:
            least = error.min_memory
            assert least is not None
            ms.validate(PLANNERS[planner].plan(graph, M=least, device=device))
            if "less may do" in str(error):
                assert planner in ("modnn", "olla", "pooch", "selective", "superneurons", "swap_opt")
                continue
            with pytest.raises(ms.InfeasibleError):
                PLANNERS[planner].plan(graph, M=least - 1, device=device)


def any_chain(rng: random.Random) -> ms.Chain:
    count = rng.randint(1, 5)
    activation, gradient = ([rng.randint(0, 6) for _ in range(count + 1)] for _ in range(2))
    saved = [size + rng.choice([0, 0, 3]) for size in activation[1:]]
    return ms.Chain([1] * count, [1] * count, activation, gradient, saved)


@FEW_AND_MANY
@pytest.mark.parametrize("planner", [name for name, one in PLANNERS.items() if "chain" in one.problems])
def test_what_is_said_to_be_needed_of_a_chain_is_enough_or_the_host_is_named(planner: str, count: int) -> None:
    rng = random.Random(count)
    options = {"moves": 0} if planner == "offload" else {}
    for _ in range(count):
        chain, device = any_chain(rng), any_device(rng, 1)
        memory = rng.randint(1, max(1, ms.peak_memory(chain)))
        try:
            PLANNERS[planner].plan(chain, M=memory, device=device, **options)
        except ms.InfeasibleError as error:
            if "host_memory" not in str(error):
                ms.validate(PLANNERS[planner].plan(chain, M=error.min_memory, device=device, **options))


@FEW_AND_MANY
def test_swapping_without_a_schedule_names_what_is_enough(count: int) -> None:
    """Where an op does not fit, it used to name what fetches on demand take, which it never makes."""
    rng = random.Random(count)
    for _ in range(count):
        graph = any_graph(rng)
        try:
            ms.swap_all(graph, max(1, ms.min_memory(graph) - rng.randint(0, 2)), 1.0, scheduled=False)
        except ms.InfeasibleError as error:
            ms.validate(ms.swap_all(graph, error.min_memory, 1.0, scheduled=False))


@FEW_AND_MANY
@pytest.mark.parametrize("device", [ms.Device(1, 1e-300), ms.Device(1, 1.0, host_memory=0)], ids=["slow", "no host"])
def test_pofo_has_a_plan_wherever_rotor_has_one(device: ms.Device, count: int) -> None:
    """Where its slots leave no plan and what it would send cannot go, it used to have none."""
    rng = random.Random(count)
    for _ in range(count):
        chain = any_chain(rng)
        needed = ms.min_memory(chain, "rotor")
        labels = rng.choice(["auto", "real", "exact"])
        result = ms.pofo(chain, needed, device=device, slots=rng.choice([1, 2, 5, 50]), labels=labels)
        assert ms.validate(result).peak_memory <= needed


def least_peak(graph: ms.Graph) -> int:
    """The most bytes of the best list of runs and frees, by all permutations and all ways to run: nothing moves."""
    ops, size = graph.ops, {one["name"]: one["size"] for one in graph.tensors}
    given = {one["name"] for one in graph.tensors if one["role"] in ("input", "weight")}
    weights = {one["name"] for one in graph.tensors if one["role"] == "weight"}
    ways = []  # of each op: what it leaves, and the workspaces it may take
    for one in ops:
        kept, spaces = set(one["writes"]) - set(one.get("tape", ())), [way["workspace"] for way in one["choices"]]
        ways.append([(set(one["writes"]), space) for space in spaces])
        ways[-1] += [(kept, one.get("skip_workspace", space)) for space in spaces if one.get("tape")]
    best = None
    for order in permutations(range(len(ops))):
        for runs in product(*ways):
            held, peak = set(given), sum(size[name] for name in given)
            for k, at in enumerate(order):
                later = {name for other in order[k:] for name in ops[other]["reads"]}
                held &= later | weights
                if not held >= set(ops[at]["reads"]):
                    break
                held |= runs[at][0]
                peak = max(peak, sum(size[name] for name in held) + runs[at][1])
            else:
                best = peak if best is None else min(best, peak)
    assert best is not None
    return best + graph.resident


@pytest.mark.parametrize("count", [60, *nightly(3000)])
def test_no_order_of_all_has_a_lower_peak(count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        graph = tiny_graph(rng)
        if len(graph.ops) > 4:
            continue
        found, least = ms.order(graph), least_peak(graph)
        assert (found.peak_memory, found.lower_bound) == (least, least), graph.to_json()
        assert ms.min_memory(graph, "olla") >= least


def test_inputs_that_the_first_op_of_a_backward_reads_stay() -> None:
    """autoswap took them for feature maps that can be away: it asked for 9 bytes, and had no plan in some others."""
    tensors = [tensor("x", 2, "input"), tensor("y", 3)]
    ops = [op("A", ["x"], [], 1.0, phase="bwd", workspace=3), op("B", ["x"], ["y"], 1.0, phase="bwd")]
    graph = ms.Graph.from_json(graph_json(tensors, ops))
    assert ms.min_memory(graph, "autoswap") == 5
    assert ms.autoswap(graph, M=5, beta=1.0).peak_memory == 5


@settings(max_examples=20)
@given(chain=chains(max_stages=4))
def test_vdnn_says_what_it_needs_of_graphs(chain: ms.Chain) -> None:
    """It plans them by `vdnn_sync`, and used to refuse the question."""
    graph = ms.to_graph(chain)
    least = ms.min_memory(graph, "vdnn")
    assert least == ms.min_memory(graph, "vdnn_sync")
    assert ms.vdnn(graph, max(1, least), 4.0).peak_memory <= max(1, least)
    (row,) = ms.sweep(graph, ["vdnn"], memory=[max(1, least)], beta=[4.0])
    assert row["status"] == "planned"


def test_the_least_memory_of_a_long_chain_ends_where_it_cannot_be_less() -> None:
    """Each layer looked at the ends of nearly all blocks that begin there: 0.3 seconds and more, now 0.02."""
    chance, n = random.Random(14), 10_000
    sizes = [1000 * chance.randint(1, 1000) for _ in range(n + 1)]
    gradients = [0, *(size + 1000 * chance.randint(0, 2000) for size in sizes[1:])]
    chain = ms.Chain([1.0] * n, [2.0] * n, sizes, gradients)
    takes(0.15, lambda chain: ms.min_memory(chain, "pofo"), chain)


@pytest.mark.parametrize("name", ["rotor", "pofo"])
@pytest.mark.parametrize("count", [1_000, 4_000])
def test_plans_that_run_stages_without_end_keep_the_limit(name: str, count: int) -> None:
    """At the least memory each layer needs its own forward from the start: 12 to 30 seconds, and gigabytes."""
    sizes = [10**9 - 99_999 * k for k in range(count + 1)]
    chain = ms.Chain([1.0] * count, [1.0] * count, sizes, [0, *sizes[1:]])

    def work(chain: ms.Chain) -> None:
        with contextlib.suppress(ms.LimitError):
            getattr(ms, name)(chain, ms.min_memory(chain, "rotor"), 1.0, time_limit=0.1)

    takes(0.5, work, chain)
