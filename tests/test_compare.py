"""Several planners on one problem: what one of them refuses is its own outcome."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import testing
from memsched.planners.registry import PLANNERS, planners_of
from memsched.planners.remat.pebbles import pebbles

CHAIN = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4], saved=[6, 7, 4])


def refusing(*_: object, **__: object) -> ms.Result:
    raise ms.InvalidInputError("sizes are too large for this planner")


def with_refusals(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        fields = {field: getattr(PLANNERS[name], field) for field in PLANNERS[name].__slots__}
        monkeypatch.setitem(PLANNERS, name, type(PLANNERS[name])(**{**fields, "plan": refusing}))


def test_an_input_that_one_planner_refuses_is_recorded_and_the_others_go_on() -> None:
    found = ms.compare(ms.to_graph(CHAIN), 30, 2.0, planners=["rotor", "tflms", "pofo", "vdnn_sync"])
    assert [type(one).__name__ for one in found.values()] == [
        "InvalidInputError",
        "Result",
        "InvalidInputError",
        "Result",
    ]
    assert "rotor plans a Chain" in str(found["rotor"])


@pytest.mark.parametrize("name", planners_of(CHAIN))
def test_auto_goes_on_without_a_planner_that_refuses(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_refusals(monkeypatch, name)
    assert ms.plan(CHAIN, 24, 2.0, time_limit=0.0).planner != name
    found = ms.compare(CHAIN, 24, 2.0, time_limit=0.0)
    assert [one for one, outcome in found.items() if isinstance(outcome, ms.InvalidInputError)] == [name]


def test_what_all_planners_refuse_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_refusals(monkeypatch, *planners_of(CHAIN))
    for call in (ms.compare, ms.plan):
        with pytest.raises(ms.InvalidInputError, match="too large for this planner"):
            call(CHAIN, 24, 2.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"M": -1}, "M is -1"),
        ({"M": 1.5}, r"M is 1\.5"),
        ({"M": None}, "M is missing"),
        ({"beta": -1}, "beta is -1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": "tape"}, "chunk is"),
        ({"time_limit": -1}, "time_limit is -1"),
        ({"time_limit": "1 apple"}, "time_limit is '1 apple'"),
        ({"device": 7}, "device is 7"),
    ],
)
def test_a_bad_option_is_one_error_and_no_planner_runs(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    with_refusals(monkeypatch, *planners_of(CHAIN))
    for call in (ms.compare, ms.plan):
        with pytest.raises(ms.InvalidInputError, match=words):
            call(CHAIN, **{"M": 24, "beta": 2.0, **options})
        with pytest.raises(ms.InvalidInputError, match="it must be a Chain or a Graph"):
            call("chain", 24, 2.0)  # type: ignore[operator]


def test_that_no_planner_found_a_plan_is_not_called_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph that is too large to search all plans of it, and whose bound is finite."""
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    graph, memory = ms.to_graph(chain), 16
    least = ms.min_memory(graph)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["memsched.study.auto"], "suits", lambda _: False)
        patch.setattr(sys.modules["memsched.study.auto"], "recompute_bound", lambda *_: 0.0)
        with pytest.raises(
            ms.InfeasibleError, match=f"proven only below {least} B, which one op alone needs"
        ) as caught:
            ms.plan(graph, memory, 0.0, time_limit=0.0)
    assert ms.plan(graph, caught.value.min_memory, 0.0, time_limit=0.0).peak_memory <= caught.value.min_memory
    with pytest.raises(ms.InfeasibleError, match=r"there is no plan .* all \d+ states were searched"):
        ms.plan(graph, memory, 0.0, time_limit=0.0)
    with pytest.raises(ms.InfeasibleError, match=f"into {least - 1} B: one op alone needs at least {least} B"):
        ms.plan(graph, least - 1, 1.0, time_limit=0.0)


def test_a_graph_is_planned_with_recomputation_where_there_is_no_link() -> None:
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    found = ms.plan(ms.to_graph(chain), 20, 0.0, time_limit=0.0)
    assert found.makespan <= ms.rotor(chain, 20).makespan
    assert ms.validate(found).peak_memory <= 20


@pytest.mark.parametrize("limit", [None, 0.0, 0.4])
def test_pebbles_has_what_is_left_of_the_time_of_all(monkeypatch: pytest.MonkeyPatch, limit: float | None) -> None:
    given: list[float | None] = []

    def asked(*arguments: Any, time_limit: float | None = None, **more: Any) -> ms.Result:
        given.append(time_limit)
        return pebbles(*arguments, time_limit=time_limit, **more)

    monkeypatch.setattr(sys.modules["memsched.study.auto"], "pebbles", asked)
    ms.plan(ms.to_graph(CHAIN), 24, 2.0, time_limit=limit)
    assert given
    assert all(one is not None and 0 < one < 0.4 if limit else one is None for one in given)


@pytest.mark.parametrize("problem", [CHAIN, ms.to_graph(CHAIN)], ids=["chain", "graph"])
def test_every_planner_is_asked_or_has_a_reason(problem: ms.Chain | ms.Graph) -> None:
    found, others = ms.compare(problem, 30, 2.0, time_limit=0.02), ms.not_asked(problem)
    assert sorted([*found, *others]) == sorted(PLANNERS)
    for name, reason in others.items():
        by_name = ms.compare(problem, 30, 2.0, planners=["tflms", name], time_limit=0.02)[name]
        refused = isinstance(by_name, ms.InvalidInputError)
        assert refused == (reason == "for chains alone"), name
        assert refused or "only by name" in reason


@pytest.mark.parametrize("call", [ms.plan, ms.compare])
@pytest.mark.parametrize("mark", ["%", "autoswap"])
def test_what_progress_raises_reaches_the_caller(call: Callable[..., Any], mark: str) -> None:
    """An error of memsched's own, too, which is none of the planner."""

    def late(line: str) -> None:
        if mark in line.rpartition("; ")[2]:
            raise ms.InvalidInputError("my own")

    with pytest.raises(ms.InvalidInputError, match="my own"):
        call(ms.profiles.load("resnet18-224-b32"), "40%", "12GB/s", progress=late)


def test_a_copy_of_a_comparison_is_one() -> None:
    found = ms.compare(ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]), 20, 8.0, planners=["greedy", "vdnn"])
    for other in (found.copy(), copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert isinstance(other, ms.Comparison)
        assert list(other) == ["greedy", "vdnn"]
    other = found.copy()
    del other["vdnn"]
    assert len(found) == 2


@settings(max_examples=max(6, settings().max_examples // 10))  # a second each
@given(testing.chains(max_stages=6), st.floats(0, 1), st.sampled_from([0.5, 2.0, 8.0]))
def test_plan_is_never_worse_than_a_row_and_rows_do_not_depend_on_the_machine(
    chain: ms.Chain, share: float, beta: float
) -> None:
    least, most = ms.min_memory(chain, "rotor"), ms.peak_memory(chain)
    budget = max(1, int(least + share * (most - least)))
    first, again = ms.compare(chain, budget, beta), ms.compare(chain, budget, beta)
    plans = {name: one for name, one in first.items() if isinstance(one, ms.Result)}
    for name, one in again.items():
        assert not isinstance(one, ms.Result) or one.schedule == plans[name].schedule
    rows = [one.makespan for one in plans.values()]
    assert ms.plan(chain, budget, beta).makespan <= min(rows)


def test_the_bound_proves_that_there_is_no_plan_where_it_does_for_one_planner() -> None:
    sizes = [5, 1, 3, 1, 4, 4, 4, 6, 4, 2, 1, 4, 1, 4, 4, 5, 1, 6, 4, 3, 6, 2, 5, 1, 3]
    chain = ms.Chain([1] * 24, [1] * 24, sizes, [1] * 25)
    with pytest.raises(ms.InfeasibleError, match=r"selective has no plan .*: no plan exists"):
        ms.selective(chain, 12, 0)
    with pytest.raises(ms.InfeasibleError, match="that there is none is proven by the lower bound"):
        ms.plan(chain, 12, 0)


@pytest.mark.parametrize("host", [0, 1])
def test_a_memory_that_is_named_is_said_to_hold_for_larger_hosts_only(host: int) -> None:
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4], saved=[8, 8, 8])
    least = ms.min_memory(chain)
    with pytest.raises(
        ms.InfeasibleError, match=f"and more where what must leave exceeds host_memory = {host} B"
    ) as told:
        ms.plan(chain, device=ms.Device(least - 1, 1, host_memory=host))
    assert told.value.min_memory == least


def test_a_short_limit_is_enough_for_the_plan_of_the_best_planner() -> None:
    """On chains, too, others had their turn before, and took all of the time."""
    chain = ms.profiles.load("densenet121-224-b32")
    least = ms.min_memory(chain)
    with_little = ms.plan(chain, least, "6GB/s", time_limit=0.3)
    assert with_little.makespan < 1.3 * ms.selective(chain, least, "6GB/s").makespan  # 6.7 times as long before


def test_one_plan_has_one_gap() -> None:
    """One planner held it against all plans, and was optimal, and the others against those that run each op once."""
    sizes = {"activation": [4e6, 40e6, 60e6, 50e6]}
    chain = ms.Chain.from_frame(
        {"forward_time": [None, 0.01, 0.02, 0.01], "backward_time": [None, 0.02, 0.04, 0.02], **sizes}
    )
    found = {name: one for name, one in ms.compare(chain, "50%", "12GB/s").items() if isinstance(one, ms.Result)}
    best = min(one.makespan for one in found.values())
    alike = {name: one for name, one in found.items() if one.makespan == best}
    assert len(alike) > 3
    assert all(one.optimal for one in alike.values())
    once = ms.greedy(chain, "50%", "12GB/s")
    assert once.lower_bound < found["greedy"].lower_bound == found["pofo"].lower_bound
    assert found["greedy"].bound_on == "all"
    for one in found.values():
        assert ms.validate(one).lower_bound <= one.lower_bound * (1 + 1e-12)
        assert ms.Result.from_json(one.to_json()) == one
