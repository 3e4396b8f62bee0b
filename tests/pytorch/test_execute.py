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
from pytorch.models import CASES, PARAMETERS, Case
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
EXPORTABLE = [parameter for parameter in PARAMETERS if parameter.values[0].exportable]
NAMED = {case.name: case for case in CASES}
# In bfloat16 the fast tests take few: what casts change is the same in all.
IN_BFLOAT16 = ("transformers-gpt2", "in_place_batch_norm", "tied_weights", "two_outputs", "unet")


def budgets(p: Prepared, planner: str) -> tuple[float, ...]:
    """POFO's table takes seconds on chains of fifty stages, and minutes on longer ones."""
    if planner == "pofo" and p.chain.n > 40:
        return (0.2,) if p.chain.n < 60 else ()
    return (0.05, 0.5)


def check_planners(p: Prepared, *, every_copy: bool) -> None:
    """All planners at two budgets, with copies early, late and mixed: each in turn, or all three."""
    want = plain_step(p)
    number = 0
    for planner in PLANNERS:
        for name, schedule in planner_schedules(p, (planner,), budgets(p, planner)):
            number += 1
            for seed in (0, 1, number + 2) if every_copy else (number % 3 * number,):
                assert differences(want, planned_step(p, schedule, early=copies(seed))) == [], (name, seed)


def check_random(p: Prepared, *, examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    """Random legal schedules, cut or not, with copies at random times."""
    want = plain_step(p)

    @settings(max_examples=examples, deadline=None, phases=phases, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from([None, "storage"]), label="chunk")
        schedule = data.draw(schedules_of(p.chain, chunk=chunk), label="schedule")
        early = data.draw(st.integers(0, 9), label="copies")
        assert differences(want, planned_step(p, schedule, early=copies(early))) == []

    check()


@pytest.mark.parametrize("case", EXPORTABLE)
def test_planned_steps_are_those_of_autograd(case: Case) -> None:
    p = prepared(case)
    check_planners(p, every_copy=not case.fast and p.chain.n < 40)
    if p.chain.n < 30:
        check_random(p, examples=5)
    else:  # a failure of so long a list would take minutes to shrink
        check_random(p, examples=2, phases=(Phase.generate,))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in IN_BFLOAT16 else pytest.mark.slow)
        for case in CASES
        if case.exportable
    ],
)
def test_in_bfloat16(case: Case) -> None:
    p = prepared(case, BFLOAT16)
    check_planners(p, every_copy=False)
    check_random(p, examples=2, phases=(Phase.generate,))


@pytest.mark.parametrize("name", ["dict_output", "in_place_batch_norm"])
def test_plans_of_auto(name: str) -> None:
    p = prepared(NAMED[name])
    want = plain_step(p)
    for budget, schedule in planner_schedules(p, ("auto",), (0.3,)):
        assert differences(want, planned_step(p, schedule, early=copies(7))) == [], budget


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [None, BFLOAT16])
@pytest.mark.parametrize("name", [case.name for case in CASES if case.fast and case.exportable])
def test_many_random_schedules(name: str, autocast: Any) -> None:
    p = prepared(NAMED[name], autocast)
    check_random(p, examples=60 if p.chain.n < 20 else 10, phases=(Phase.generate,))


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
    monkeypatch.setattr(Run, "_give_back", lambda self, urgent: None)  # which would wait for what leaves
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
