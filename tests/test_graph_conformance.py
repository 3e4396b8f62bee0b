"""What every planner of graphs must do, on random training graphs with skips and ops with several algorithms."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from listed import CHAIN_PLANNERS, GRAPH_PLANNERS
from memsched.planners.registry import PLANNERS, planners_of
from memsched.testing import devices, graphs

FEW = settings(max_examples=max(12, settings().max_examples // 3))
TINY = 1e-9
ALL = pytest.mark.parametrize("planner", GRAPH_PLANNERS)
RISING = [name for name in GRAPH_PLANNERS if name != "by_kind"]  # feasible at M is feasible above


def run(planner: str, *arguments: Any, **options: Any) -> ms.Result:
    return PLANNERS[planner].plan(*arguments, **options)


def linked(draw: st.DrawFn, graph: ms.Graph) -> ms.Device:
    """A device with a link, and a host that takes everything; its memory is still open."""
    device = draw(devices(memory=1))
    assume(min(device.d2h, device.h2d) > 0)
    return ms.Device(1, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex, latency=device.latency)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ms.Graph, ms.Device]:
    graph = draw(graphs())
    return graph, linked(draw, graph)


def between(planner: str, graph: ms.Graph, share: float) -> int:
    """An amount of memory from the planner's least to a little above the peak."""
    least = max(1, ms.min_memory(graph, planner))
    return int(least + share * max(0, ms.peak_memory(graph) + 9 - least))


def needs(planner: str, graph: ms.Graph, memory: int, beta: float | None = None, **options: Any) -> int | None:
    """What the planner says that it needs; None where it has a plan."""
    try:
        run(planner, graph, memory, beta, **options)
    except ms.InfeasibleError as error:
        return error.min_memory
    return None


def check(result: ms.Result, memory: int) -> None:
    """What holds for every result."""
    report = ms.validate(result)
    assert report.makespan == pytest.approx(result.makespan, rel=TINY, abs=TINY)
    assert report.peak_memory == result.peak_memory <= memory
    assert report.recomputed == result.recomputed
    assert 0 <= result.lower_bound <= result.makespan * (1 + TINY)
    assert result.makespan >= report.compute_time - TINY
    assert result.schedule.planner["name"] == result.planner
    again = ms.Result.from_json(json.dumps(result.to_json(), allow_nan=False))
    assert again.to_json() == result.to_json()  # a family is saved with some of its graphs
    assert again == result or isinstance(result.problem, ms.GraphFamily)
    if not PLANNERS[result.planner].recomputes:
        assert result.recomputed == ()
    assert result.bound_on == ("all" if PLANNERS[result.planner].free else "once")


@ALL
@FEW
@given(case=cases(), share=st.floats(0, 1))
def test_results_are_what_they_say(planner: str, case: tuple[ms.Graph, ms.Device], share: float) -> None:
    graph, device = case
    memory = between(planner, graph, share)
    if (needed := needs(planner, graph, memory, device=device)) is not None:
        assert planner in ("by_kind", "swap_all", "tflms")
        assert needed > memory
        memory = needed
    result = run(planner, graph, memory, device=device)
    assert (result.planner, result.problem, result.device.memory) == (planner, graph, memory)
    check(result, memory)


@ALL
@FEW
@given(case=cases())
def test_the_least_memory_is_enough_and_one_byte_less_is_not(planner: str, case: tuple[ms.Graph, ms.Device]) -> None:
    graph, device = case
    least = ms.min_memory(graph, planner)
    if least > 0:
        check(run(planner, graph, least, device=device), least)
    if least > 1:
        with pytest.raises(ms.InfeasibleError) as caught:
            run(planner, graph, least - 1, device=device)
        assert caught.value.min_memory == least


@ALL
@FEW
@given(graph=graphs())
def test_without_a_link_everything_stays_or_nothing_runs(planner: str, graph: ms.Graph) -> None:
    enough = needs(planner, graph, 1, 0) or 1
    # modnn may take algorithms with less workspace, olla and selective another order; checkmate and superneurons run
    # ops again
    assert enough >= ms.peak_memory(graph) or planner in ("modnn", "olla", "checkmate", "selective", "superneurons")
    result = run(planner, graph, enough, 0)
    check(result, enough)
    assert result.offloaded == ()
    again = ("checkmate", "selective", "superneurons")  # it may pay for a faster algorithm
    assert result.recomputed == () or planner in again
    if enough > 1:
        needed = needs(planner, graph, enough - 1)
        if planner == "pooch" and needed is None:  # it may compute again
            assert run(planner, graph, enough - 1).recomputed
        elif planner not in ("selective", "superneurons") or needed is not None:  # it may do so in another order, too
            assert needed == enough or (planner == "modnn" and needed is not None)  # it may fail again with more


@ALL
@FEW
@given(case=cases(), share=st.floats(0, 1))
def test_same_input_same_plan(planner: str, case: tuple[ms.Graph, ms.Device], share: float) -> None:
    graph, device = case
    memory = between(planner, graph, share)
    again = {"threads": 2} if "threads" in inspect.signature(PLANNERS[planner].plan).parameters else {}
    memory = needs(planner, graph, memory, device=device) or memory
    once = run(planner, graph, memory, device=device)
    other = run(planner, graph, memory, device=device, **again)
    assert (once.schedule, once.timeline, once.params) == (other.schedule, other.timeline, other.params)


@FEW
@given(case=cases(), share=st.floats(0, 1))
def test_each_search_is_no_worse_than_what_it_starts_from(case: tuple[ms.Graph, ms.Device], share: float) -> None:
    graph, device = case
    memory = between("pooch", graph, share)
    everything = ms.swap_all(graph, memory, device=device).makespan
    chosen = ms.swap_opt(graph, memory, device=device).makespan
    assert chosen <= everything * (1 + TINY)
    assert ms.pooch(graph, memory, device=device).makespan <= chosen * (1 + TINY)
    assert ms.pooch(graph, memory, device=device, fill=True).makespan <= chosen * (1 + TINY)
    unscheduled = needs("swap_all", graph, memory, device=device, scheduled=False) or memory
    ahead = ms.swap_all(graph, unscheduled, device=device, scheduled=False)
    assert ms.swap_all(graph, unscheduled, device=device).makespan <= ahead.makespan * (1 + TINY)


@settings(max_examples=10)
@given(case=cases(), share=st.floats(0, 1), seed=st.integers(0, 3))
def test_a_longer_search_is_no_worse(case: tuple[ms.Graph, ms.Device], share: float, seed: int) -> None:
    graph, device = case
    memory = between("pooch", graph, share)
    paper = ms.pooch(graph, memory, device=device)
    longer = ms.pooch(graph, memory, device=device, search=0.02, seed=seed)
    check(longer, memory)
    assert longer.makespan <= paper.makespan * (1 + TINY)


def test_a_longer_search_finds_better_classes_of_resnet50() -> None:
    graph = ms.profiles.analytic("resnet50", 640).graph
    device = ms.Device(16 * 10**9, 16e9, duplex=True)
    paper, longer = (ms.pooch(graph, device=device, search=seconds) for seconds in (0, 0.3))
    assert longer.makespan < 0.97 * paper.makespan
    assert longer.params["evaluations"] > paper.params["evaluations"]


@FEW
@given(case=cases(), more=st.integers(0, 9))
def test_with_enough_memory_the_searches_move_nothing(case: tuple[ms.Graph, ms.Device], more: int) -> None:
    graph, device = case
    workspaces = sum(max(choice["workspace"] for choice in op["choices"]) for op in graph.ops)
    memory = ms.peak_memory(graph) + workspaces + more + 1
    for planner in ("pooch", "swap_opt"):
        result = run(planner, graph, memory, device=device)
        assert result.offloaded == result.recomputed == ()
        assert run(planner, graph, memory, 0).params["evaluations"] == 0  # nothing can travel: nothing to try
        fastest = sum(min(choice["time"] for choice in op["choices"]) for op in graph.ops)
        assert result.makespan == pytest.approx(fastest)
        assert result.optimal


@FEW
@given(case=cases(), planner=st.sampled_from(["pooch", "swap_opt", "swap_all", "tflms", "vdnn_sync"]))
def test_weights_may_go_after_their_last_use_as_inputs_do(case: tuple[ms.Graph, ms.Device], planner: str) -> None:
    """They stayed to the end: without a link there was no plan in the memory of the plain run."""
    document = case[0].to_json()
    weights = [{**one, "role": "weight"} if one["role"] == "input" else one for one in document["tensors"]]
    graph = ms.Graph.from_json({**document, "tensors": weights})
    assert ms.peak_memory(graph) == ms.peak_memory(case[0])
    found = []
    for one in (graph, case[0]):
        try:
            found.append(run(planner, one, "100%", 0).makespan)
        except ms.InfeasibleError as error:
            found.append(error.min_memory)
    assert found[0] == found[1]


def refused(result: ms.Result, steps: list[dict[str, Any]], budget: int | None = None) -> None:
    """Neither the validator nor the simulator takes the steps."""
    schedule = ms.Schedule(
        steps,
        budget=result.schedule.budget if budget is None else budget,
        graph=result.graph.name,
        memory=result.schedule.memory,
        rounds=[(result.graph.batch, 1)],
    )
    for judge in (ms.validate, ms.simulate):
        with pytest.raises(ms.ScheduleError):
            judge(result.problem, schedule, result.device)


@given(
    planner=st.sampled_from(["selective", "pooch", "by_kind", "vdnn_sync", "modnn", "autoswap"]),
    case=cases(),
    share=st.floats(0, 0.9),
    better=st.sampled_from(["d2h", "h2d", "duplex", "latency", "time", "memory"]),
    data=st.data(),
)
def test_the_same_plan_is_never_slower_on_a_better_machine(
    planner: str, case: tuple[ms.Graph, ms.Device], share: float, better: str, data: st.DataObject
) -> None:
    """In bytes as well as with addresses, where more memory changes nothing."""
    graph, device = case
    memory = between(planner, graph, share)
    result = run(planner, graph, needs(planner, graph, memory, device=device) or memory, device=device)
    faster, steps, budget = graph, result.schedule, result.device.to_json()
    if better in ("d2h", "h2d"):
        budget[better] = "inf"
    elif better == "duplex":
        budget["duplex"] = True
    elif better == "latency":
        budget["latency"] /= 2
    elif better == "memory":
        budget["memory"] += data.draw(st.integers(1, 9))
        steps = ms.Schedule.from_json({**steps.to_json(), "budget": budget["memory"]})
    else:
        document = graph.to_json()
        for choice in data.draw(st.sampled_from(document["ops"]))["choices"]:
            choice["time"] /= 2
        faster = ms.Graph.from_json(document)
    timeline = ms.simulate(faster, steps, ms.Device.from_json(budget))
    assert timeline.makespan <= result.makespan + TINY
    assert (timeline.start <= result.timeline.start + TINY).all()


MUTATED = st.sampled_from(["selective", "pooch", "swap_all", "vdnn_sync", "modnn", "autoswap"])


@given(planner=MUTATED, case=cases(), share=st.floats(0, 0.9), data=st.data())
def test_mutated_plans_are_refused(
    planner: str, case: tuple[ms.Graph, ms.Device], share: float, data: st.DataObject
) -> None:
    """Without a run or a prefetch something is missing; so it is where a free comes before a use; and so on."""
    graph, device = case
    result = run(planner, graph, between(planner, graph, share), device=device)
    steps = [{key: value for key, value in step.items() if key != "after"} for step in result.schedule.steps]
    once = Counter(step["run"] for step in steps if "run" in step)
    needed = [k for k, step in enumerate(steps) if "prefetch" in step or once[step.get("run")] == 1]
    gone = data.draw(st.sampled_from(needed), label="gone")
    refused(result, steps[:gone] + steps[gone + 1 :])
    frees = [k for k, step in enumerate(steps) if "free" in step and used_before(graph, steps, k) >= 0]
    if frees:
        late = data.draw(st.sampled_from(frees), label="late")
        early = used_before(graph, steps, late)
        refused(result, [*steps[:early], steps[late], *steps[early:late], *steps[late + 1 :]])
    if result.schedule.memory == "fluid" and logical_peak(graph, steps) > 1:
        refused(result, steps, logical_peak(graph, steps) - 1)


def used_before(graph: ms.Graph, steps: list[dict[str, Any]], free: int) -> int:
    """The run before a free that reads its tensor last, with nothing in between that brings it; -1: there is none."""
    reads = {op["name"]: op["reads"] for op in graph.ops}
    for k in range(free - 1, -1, -1):
        if steps[free]["free"] in (steps[k].get("prefetch"), steps[k].get("offload")):
            return -1
        if steps[free]["free"] in reads.get(steps[k].get("run"), ()):
            return k
    return -1


@given(case=cases(), share=st.floats(0, 0.9), data=st.data())
def test_wrong_addresses_are_refused(case: tuple[ms.Graph, ms.Device], share: float, data: st.DataObject) -> None:
    """What one run brings shares no byte."""
    graph, device = case
    result = ms.modnn(graph, between("modnn", graph, share), device=device)
    steps = [dict(step) for step in result.schedule.steps]
    several = [k for k, step in enumerate(steps) if "run" in step and len(step.get("at", {})) > 1]
    assume(several)
    chosen = data.draw(st.sampled_from(several))
    places = dict(steps[chosen]["at"])
    first, second = list(places)[:2]
    refused(result, [*steps[:chosen], {**steps[chosen], "at": {**places, second: places[first]}}, *steps[chosen + 1 :]])
    outside = {**places, first: result.device.memory}
    refused(result, [*steps[:chosen], {**steps[chosen], "at": outside}, *steps[chosen + 1 :]])


def logical_peak(graph: ms.Graph, steps: list[dict[str, Any]]) -> int:
    """The most bytes that the list holds in its own order, resident included."""
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    ops = {op["name"]: op for op in graph.ops}
    live = graph.resident + sum(tensor["size"] for tensor in graph.tensors if tensor["role"] in ("input", "weight"))
    most = live
    for step in steps:
        scratch = 0
        if "run" in step:
            op = ops[step["run"]]
            live += sum(size[name] for name in op["writes"])
            names = [choice["alg"] for choice in op["choices"]]
            scratch = op["choices"][names.index(step["alg"]) if "alg" in step else 0]["workspace"]
        live += size[step["prefetch"]] if "prefetch" in step else 0
        most = max(most, live + scratch)
        live -= size[step["free"]] if "free" in step else 0
    return most


@ALL
def test_chains_and_families_are_planned_on_their_graphs(planner: str) -> None:
    chain = ms.profiles.random(9, seed=3)
    memory = int(0.6 * ms.min_memory(ms.to_graph(chain), planner) + 0.4 * ms.peak_memory(chain))
    check(run(planner, ms.to_graph(chain), memory, 1e9), memory)
    if planner not in CHAIN_PLANNERS:  # which plan chains in another way
        result = run(planner, chain, memory, 1e9)
        check(result, memory)
        assert result.problem == chain
        assert result.schedule.steps == run(planner, ms.to_graph(chain), memory, 1e9).schedule.steps
    family = ms.profiles.analytic("alexnet", 512)
    check(run(planner, family, 3 * 10**9, 12e9), 3 * 10**9)


@ALL
def test_plans_of_pieces_of_real_networks(planner: str) -> None:
    for name, batch in (("resnet50", 256), ("vgg16", 128)):
        graph = ms.profiles.analytic(name, batch).graph
        memory = 16 * 10**9
        if planner in ("olla", "checkmate"):  # nothing moves
            memory = max(memory, ms.min_memory(graph, planner))
        result = run(planner, graph, device=ms.Device(memory, 12e9, duplex=True))
        check(result, memory)


def test_compare_and_plan_take_graphs() -> None:
    graph = ms.to_graph(ms.profiles.random(6, seed=3))
    memory = int(0.2 * ms.min_memory(graph) + 0.8 * ms.peak_memory(graph))
    seen: list[str] = []
    found = ms.compare(graph, memory, 12e9, progress=seen.append)
    begun = [*dict.fromkeys(name for line in seen if "%" not in (name := line.rpartition("; ")[2]))]
    assert list(found) == planners_of(graph) == begun
    results = [value for value in found.values() if isinstance(value, ms.Result)]
    assert len(results) > 2
    best = ms.plan(graph, memory, 12e9)  # a limit would make it worse on a busy machine
    assert best.makespan <= min(result.makespan for result in results)
    assert np.isclose(best.lower_bound, ms.bounds(graph, memory, 12e9, recompute=True).best)
    with pytest.raises(ms.InvalidInputError, match="chunk"):
        ms.compare(graph, memory, 12e9, chunk=5)
    with pytest.raises(ms.InvalidInputError, match="greedy plans a Chain"):
        ms.plan(graph, memory, 12e9, planner="greedy")


@pytest.mark.parametrize(("host", "share"), [(0, 0.3), (500_000_000, 0.3), (500_000_000, 0.7), (None, 0.7)])
def test_a_long_graph_is_planned_where_its_feature_maps_cannot_all_travel(host: int | None, share: float) -> None:
    graph = ms.profiles.analytic("resnet50", 8).graph
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    device = ms.Device(int(least + share * (peak - least)), bandwidth=0 if host is None else 12e9, host_memory=host)
    found = ms.pooch(graph, device=device)
    check(found, device.memory)
    assert found.recomputed or found.offloaded
    assert ms.plan(graph, device=device, time_limit=0.0).makespan <= found.makespan


@FEW
@given(case=cases(), share=st.floats(0, 1), part=st.floats(0, 1))
def test_recomputation_is_never_worse_than_swapping_alone(
    case: tuple[ms.Graph, ms.Device], share: float, part: float
) -> None:
    graph, linked = case
    host = int(part * sum(tensor["size"] for tensor in graph.tensors))
    device = ms.Device(between("swap_opt", graph, share), linked.d2h, host_memory=host)
    swapped = needs("swap_opt", graph, device.memory, device=device) is None
    swapping = run("swap_opt", graph, device.memory, device=device) if swapped else None
    assert swapping is None or run("pooch", graph, device.memory, device=device).makespan <= swapping.makespan


@pytest.mark.parametrize("planner", ["pooch", "swap_opt"])
@FEW
@given(case=cases(), share=st.floats(0, 1), part=st.floats(0, 1))
def test_what_a_small_host_takes_may_travel(
    planner: str, case: tuple[ms.Graph, ms.Device], share: float, part: float
) -> None:
    graph, linked = case
    total = sum(tensor["size"] for tensor in graph.tensors)
    link = {"d2h": linked.d2h, "h2d": linked.h2d, "duplex": linked.duplex, "latency": linked.latency}
    device = ms.Device(between(planner, graph, share), **link, host_memory=int(part * total))
    memory = needs(planner, graph, device.memory, device=device) or device.memory
    check(run(planner, graph, memory, device=device), memory)
