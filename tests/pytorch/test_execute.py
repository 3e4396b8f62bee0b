"""Planned steps do what plain autograd does, bit for bit: under the planners' schedules and under random legal ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import memsched as ms
from memsched.errors import InvalidInputError
from memsched.testing import schedules_of
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.run import Run
from memsched.torch.script import compile_schedule
from pytorch.models import CASES, Case
from pytorch.steps import (
    PLANNERS,
    Prepared,
    copies,
    differences,
    installed,
    plain_step,
    planned_step,
    planner_schedules,
    prepare,
    prepared,
    train_step,
)

BFLOAT16 = torch.bfloat16
# Of the fast cases of the zoo, these two run always.
QUICK = ("torchvision-small_densenet", "transformers-gpt2")
NAMED = {case.name: case for case in CASES}
# In bfloat16 few are tried: what casts change is the same in all.
BIG = (
    "torchvision-densenet121",
    "torchvision-efficientnet_b0",
    "torchvision-swin_t",
    "transformers-bert",
    "transformers-gpt2",
    "transformers-t5",
)


def check_planners(p: Prepared) -> None:
    """All planners at two budgets, with copies early, late and mixed in turn."""
    want = plain_step(p)
    planners = [planner for planner in PLANNERS if planner != "pofo" or p.chain.n < 40]  # whose table takes seconds
    for number, (name, schedule) in enumerate(planner_schedules(p, planners)):
        seed = number % 3 * number
        got = planned_step(p, schedule, early=copies(seed), overlap=number % 4 > 1)
        assert differences(want, got) == [], (name, seed)


def check_few(p: Prepared) -> None:
    """For large models: one plan that computes again, one that offloads and one that does both."""
    want = plain_step(p)
    for planner, part, seed in (("rotor", 0.05, 0), ("greedy", 0.05, 1), ("pofo", 0.3, 5)):
        if planner != "pofo" or p.chain.n < 40:
            for name, schedule in planner_schedules(p, (planner,), (part,)):
                got = planned_step(p, schedule, early=copies(seed), overlap=planner == "pofo")
                assert differences(want, got) == [], name


def check_random(p: Prepared, *, examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    """Random legal schedules, cut or not, with copies at random times."""
    want = plain_step(p)

    @settings(max_examples=examples, deadline=None, phases=phases, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from([None, "storage"]), label="chunk")
        schedule = data.draw(schedules_of(p.chain, chunk=chunk), label="schedule")
        early = data.draw(st.integers(0, 9), label="copies")
        overlap = data.draw(st.booleans(), label="overlap")
        assert differences(want, planned_step(p, schedule, early=copies(early), overlap=overlap)) == []

    check()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.family is None or case.name in QUICK else pytest.mark.slow)
        for case in CASES
        if case.exportable
    ],
)
def test_planned_steps_are_those_of_autograd(case: Case) -> None:
    p = prepared(case)
    if case.family is None:
        check_planners(p)
        check_random(p, examples=5)
    else:
        check_few(p)
        if p.chain.n < 30:  # a failure of a long list would take minutes to shrink
            check_random(p, examples=1, phases=(Phase.generate,))


@pytest.mark.parametrize(
    "name",
    [
        "in_place_batch_norm",
        "tied_weights",
        "two_outputs",
        "unet",
        *(pytest.param(n, marks=pytest.mark.slow) for n in BIG),
    ],
)
def test_in_bfloat16(name: str) -> None:
    p = prepared(NAMED[name], BFLOAT16)
    check_few(p)
    if p.chain.n < 30:
        check_random(p, examples=2, phases=(Phase.generate,))


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.fast and case.family is not None])
def test_more_plans(name: str) -> None:
    check_planners(prepared(NAMED[name]))


@pytest.mark.parametrize("name", ["dict_output", "in_place_batch_norm"])
def test_plans_of_auto(name: str) -> None:
    p = prepared(NAMED[name])
    want = plain_step(p)
    for budget, schedule in planner_schedules(p, ("auto",), (0.3,)):
        assert differences(want, planned_step(p, schedule, early=copies(7))) == [], budget


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.fast and case.exportable])
def test_many_random_schedules(name: str) -> None:
    p = prepared(NAMED[name])
    check_random(p, examples=40 if p.chain.n < 15 else 5, phases=(Phase.generate,))


def test_pieces_of_bytes_are_refused() -> None:
    p = prepared(NAMED["dropout_mlp"])
    result = ms.plan(p.chain, ms.min_memory(p.chain), 1e12, planner="greedy", chunk=64)
    with pytest.raises(InvalidInputError, match="pieces of 64 bytes"):
        compile_schedule(p.chain, result.schedule, p.pieces)


# The emulation can fail: each of these takes one precaution away.


def offloaded(p: Prepared) -> ms.Schedule:
    """Everything that may leaves, and comes back just before it is needed."""
    return next(iter(planner_schedules(p, ("greedy",), (0.0,))))[1]


def test_without_waiting_for_arrivals_nan_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    p = prepared(NAMED["dropout_mlp"])
    want, schedule = plain_step(p), offloaded(p)
    assert differences(want, planned_step(p, schedule, early=copies(1))) == []
    monkeypatch.setattr(Run, "_arrive", lambda self, key: None)
    got = planned_step(p, schedule, early=copies(1))
    assert any(not torch.isfinite(gradient).all() for gradient in got.gradients.values())


def test_memory_given_back_before_its_copy_has_left_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    p = prepared(NAMED["dropout_mlp"])
    want, schedule = plain_step(p), offloaded(p)
    monkeypatch.setattr(EmulatedLanes, "reached", lambda self, event: True)
    assert differences(want, planned_step(p, schedule, early=copies(1))) != []


def test_copies_that_start_before_their_data_has_left_show(monkeypatch: pytest.MonkeyPatch) -> None:
    p = prepared(NAMED["dropout_mlp"])
    want, schedule = plain_step(p), offloaded(p)
    copy = EmulatedLanes.copy

    def hasty(self: EmulatedLanes, way: Any, device: Any, host: Any, after: Any) -> Any:
        self.early = lambda: way == "in"
        return copy(self, way, device, host, [])

    assert differences(want, planned_step(p, schedule)) == []
    monkeypatch.setattr(EmulatedLanes, "copy", hasty)
    monkeypatch.setattr(Run, "_give_back", lambda self, storage: None)
    monkeypatch.setattr(Run, "_make_room", lambda self, needs: None)
    assert differences(want, planned_step(p, schedule)) != []


class Elementwise(nn.Module):
    """Every layer's output is overwritten twice where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).mul_(2.0).relu_()
        return x


def test_in_place_chains_recompute_from_intact_inputs() -> None:
    p = prepare(Elementwise().train(), (torch.randn(3, 16),))
    check_random(p, examples=10)


def test_two_steps_in_a_row_reuse_the_host_memory() -> None:
    p = prepared(NAMED["unet"])
    want = plain_step(p)
    with installed(p, offloaded(p), early=copies(1)):
        for _ in range(3):
            assert differences(want, train_step(p)) == []
