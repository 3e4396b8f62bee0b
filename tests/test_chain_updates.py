"""Whole steps of chains: the graph that `selective` plans, and the chain whose backwards update, beside each other."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import memsched as ms
from memsched.testing import chains

Case = tuple[ms.Chain, dict[str, Any]]


@st.composite
def steps(draw: st.DrawFn) -> Case:
    """A chain with the columns of its updates; stages without parameters among them."""
    chain = draw(chains(max_stages=4))
    column = st.lists(st.integers(0, 6), min_size=chain.n, max_size=chain.n)
    parameters, gradients, states = draw(column), draw(column), draw(column)
    some = [any(sizes) for sizes in zip(parameters, gradients, states, strict=True)]
    seconds = [float(draw(st.integers(0, 4))) if one else 0.0 for one in some]
    more = sum(parameters) + sum(gradients)
    chain = ms.Chain(**columns(chain), resident=chain.resident + more)
    return chain, {"parameters": parameters, "gradients": gradients, "states": states, "update_time": seconds}


def columns(chain: ms.Chain) -> dict[str, Any]:
    named = ("forward_time", "backward_time", "activation", "gradient", "saved", "forward_overhead", "pieces", "names")
    return {name: getattr(chain, name) for name in (*named, "transient_overhead", "backward_overhead", "name")}


@given(steps())
@settings(deadline=None)
def test_both_count_the_same_bytes_and_seconds(case: Case) -> None:
    chain, updates = case
    graph, fused = ms.whole_step(chain, **updates), ms.update_in_backward(chain, **updates)
    assert ms.peak_memory(graph) == ms.peak_memory(fused)
    seconds = sum(chain.forward_time) + sum(chain.backward_time) + sum(updates["update_time"])
    assert sum(op["choices"][0]["time"] for op in graph.ops) == seconds
    assert fused.forward_time.sum() + fused.backward_time.sum() == seconds
    stay = chain.resident - sum(updates["parameters"]) - sum(updates["gradients"])
    assert graph.resident == stay
    assert fused.resident == stay + sum(updates["parameters"]) + sum(updates["states"])
    sizes = {one["name"]: one["size"] for one in graph.tensors if one["role"] == "persistent"}
    named = {f"w{k}": size for k, size in enumerate(updates["parameters"], 1) if size}
    assert sizes == named | {f"m{k}": size for k, size in enumerate(updates["states"], 1) if size}


PLANNERS = ["dynprog", "greedy", "rotor", "pofo", "autoswap", "swap_all", "superneurons", "tflms", "vdnn_sync"]


@given(steps(), st.sampled_from(PLANNERS), st.integers(0, 10))
@settings(deadline=None)
def test_plans_of_the_chain_are_plans_of_the_whole_step(case: Case, planner: str, tenths: int) -> None:
    """Each with its updates right after the backwards, and an input that stays, in the same budget."""
    chain, updates = case
    graph, fused = ms.whole_step(chain, **updates), ms.update_in_backward(chain, **updates)
    least, peak = ms.min_memory(fused), ms.peak_memory(fused)
    try:
        found = getattr(ms, planner)(fused, max(1, least + (peak - least) * tenths // 10), 2.0)
    except ms.InfeasibleError:
        return
    known = {op["name"]: op for op in graph.ops}
    steps: list[dict[str, Any]] = []
    for step in found.schedule.steps:
        steps.append({key: one for key, one in step.items() if key != "after"})
        name = step.get("run", "")
        if name.startswith("B") and (update := known.get(f"U{name[1:]}")) is not None:
            steps.append({"run": update["name"]})
            steps += [{"free": one} for one in update["reads"] if one not in update.get("updates", [])]
    last = max((k for k, step in enumerate(steps) if "a0" in step.values()), default=0)
    if steps[last] == {"free": "a0"}:
        del steps[last]
    here: set[str] = set()
    for step in steps:
        (verb, name), *_ = step.items()
        here |= set(known[name]["writes"]) if verb == "run" else {name} if verb == "prefetch" else set()
        here -= {name} if verb == "free" else set()
    steps += [{"free": one} for one in sorted(here - {"a0"})]
    listed = ms.Schedule(steps, budget=found.schedule.budget)
    timeline = ms.simulate(graph, listed, found.device)
    assert ms.validate(graph, listed, found.device).peak_memory == timeline.peak_memory <= found.device.memory
    assert timeline.makespan >= sum(op["choices"][0]["time"] for op in graph.ops) * (1 - 1e-12)


@given(steps(), st.integers(0, 10))
@settings(deadline=None, max_examples=30)
def test_what_travels_needs_less(case: Case, tenths: int) -> None:
    chain, updates = case
    graph, fused = ms.whole_step(chain, **updates), ms.update_in_backward(chain, **updates)
    least, peak = ms.min_memory(graph, "selective"), ms.peak_memory(graph)
    assert least <= ms.min_memory(fused, "selective")
    found = ms.selective(graph, max(1, least + (peak - least) * tenths // 10), 2.0, moves=20)
    assert ms.validate(found).peak_memory <= found.device.memory
    assert found.makespan >= sum(op["choices"][0]["time"] for op in graph.ops) * (1 - 1e-12)


CHAIN = ms.Chain([1, 1], [2, 2], [4, 4, 4], [0, 4, 4], resident=50, name="two")
GIVEN: dict[str, Any] = {"states": 2, "update_time": "10 B/s", "parameters": [10, 5]}


def test_states_and_times_by_a_number() -> None:
    graph = ms.whole_step(CHAIN, **GIVEN)
    sizes = {one["name"]: one["size"] for one in graph.tensors}
    assert {name: sizes[name] for name in ("w1", "m1", "g1", "w2", "m2", "g2")} == {
        **{"w1": 10, "m1": 20, "g1": 10},
        **{"w2": 5, "m2": 10, "g2": 5},
    }
    took = {op["name"]: op["choices"][0]["time"] for op in graph.ops}
    assert took["U1"] == pytest.approx((2 * 30 + 10) / 10)  # read and written, and the gradient
    assert graph.resident == 50 - 2 * 15
    assert ms.whole_step(CHAIN, 1.5, "inf", parameters=["10B", "5 B"]).ops[-1]["choices"][0]["time"] == 0
    assert [one["size"] for one in ms.whole_step(CHAIN, 0.3, 1, parameters=[10, 5]).tensors if one["name"] == "m2"] == [
        2
    ]


def test_bounds_say_that_they_are_on_all_plans() -> None:
    chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4], resident=16)
    graph = ms.whole_step(chain, states=1, update_time=[0.5, 0.5], parameters=[4, 4])
    for problem, on, words in ((chain, "once", "run each op once"), (graph, "all", "of all plans\n")):
        found = ms.bounds(problem, M=ms.peak_memory(problem), beta=1)
        assert found.bound_on == on
        assert words in str(found)
        assert ("run each op once" in str(found)) == (on == "once")


def test_it_may_run_on_the_host_too() -> None:
    step = ms.with_host_updates(ms.whole_step(CHAIN, **GIVEN), "100 B/s")
    least = ms.min_memory(step, "selective")
    assert least < ms.min_memory(ms.whole_step(CHAIN, **GIVEN), "selective")
    assert any("update" in one for one in ms.selective(step, least, 50.0).schedule.steps)


def test_the_profile_may_tell_the_parameters() -> None:
    told = {"source": "by hand", "stage_gradients": [10, 5]}
    chain = ms.Chain(**columns(CHAIN), resident=50, provenance=told)
    assert ms.whole_step(chain, 2, "10 B/s") == ms.whole_step(CHAIN, **GIVEN)
    fused = ms.update_in_backward(chain, 2, "10 B/s")
    assert fused.provenance == {
        "source": "by hand",
        "resident": {"parameters": 15, "states": 30, "other": 20},
    }
    with pytest.raises(ms.InvalidInputError, match="does not tell the parameters of each of its 2 stages"):
        ms.update_in_backward(fused, 2, "10 B/s")  # it has them already


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parameters": None}, "'two' does not tell the parameters of each of its 2 stages"),
        ({"parameters": [10]}, "parameters has 1 entries; it must have 2"),
        ({"parameters": 15}, "parameters is 15; it must be a list"),
        ({"parameters": [10, -5]}, r"parameters\[1\] is -5"),
        ({"gradients": [10, 5.5]}, r"gradients\[1\] is 5.5"),
        ({"gradients": [40, 5]}, "resident of 'two' is 50 B; it must count the parameters and the gradients"),
        ({"states": -1}, "states is -1"),
        ({"states": math.nan}, "states is nan"),
        ({"states": 1e308}, r"states is 1e\+308, and 10 bytes times that are more than 2\^53"),
        ({"states": [1, 2, 3]}, "states has 3 entries"),
        ({"update_time": 0}, "update_time is 0; give seconds of each stage"),
        ({"update_time": [0.5]}, "update_time has 1 entries"),
        ({"update_time": [0.5, math.inf]}, r"update_time\[1\] is inf"),
        (
            {"update_time": [1, 1], "parameters": [10, 0]},
            r"update_time\[1\] is 1, and that stage has nothing to update",
        ),
        ({"chain": "two.json"}, "chain is 'two.json'; it must be a Chain"),
    ],
)
def test_bad_columns(change: dict[str, Any], match: str) -> None:
    for make in (ms.whole_step, ms.update_in_backward):
        with pytest.raises(ms.InvalidInputError, match=match):
            make(**{"chain": CHAIN, **GIVEN, **change})


def test_a_column_may_be_a_generator() -> None:
    with pytest.raises(ms.InvalidInputError, match=r"update_time\[1\] is 2, and that stage has nothing to update"):
        ms.whole_step(CHAIN, 2, (one for one in (1, 2)), parameters=[10, 0])
