"""The optimiser's states between two planned steps, where others may read and write them."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from updating import Make, mlp, plain_step, planned, same

import memsched as ms


def test_verify_leaves_no_states_behind() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters())
    plan = planned(model, x, optimizer)

    def alive() -> int:
        gc.collect()
        kinds = torch.Tensor, nn.Parameter  # none of those without data
        return sum(one.nbytes for one in gc.get_objects() if type(one) in kinds)

    plan.verify(x)
    before = alive()
    plan.verify(x)
    assert alive() == before


@pytest.mark.parametrize("fused", [False, True])  # whose kernels change tensors without a note
def test_what_is_written_to_states_between_steps_counts(fused: bool) -> None:
    """It was lost where a copy of them had come to the device already."""
    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    make: Make = lambda p: torch.optim.AdamW(p, lr=0.01, fused=fused)  # noqa: E731
    optimizer, plain = make(model.parameters()), make(other.parameters())
    plan = planned(model, x, optimizer, "50%")
    assert set(plan.result.schedule.border.values()) & {"both", "host"}

    def tensors(one: Any) -> list[torch.Tensor]:
        return [state["exp_avg"] for state in one.state.values()]

    for change in (
        lambda one: [t.zero_() for t in tensors(one)],
        lambda one: [setattr(t, "data", torch.ones_like(t)) for t in tensors(one)],
        lambda one: [state.update(exp_avg=torch.ones_like(state["exp_avg"])) for state in one.state.values()],
        lambda one: plain_step(model if one is optimizer else other, x, one),
    ):
        plan.step(x)
        plain_step(other, x, plain)
        change(optimizer)
        change(plain)
        plan.step(x)
        plain_step(other, x, plain)
        same(model, other, optimizer, plain)


def test_states_that_were_loaded_are_verified() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    plan = planned(model, x, optimizer)
    plan.step(x)
    state = copy.deepcopy(optimizer.state_dict())
    for one in state["state"].values():
        one["exp_avg"].fill_(7.0)
    optimizer.load_state_dict(state)
    copied = plan._updates.copy().optimizer  # type: ignore[union-attr]
    assert all(bool((one["exp_avg"] == 7.0).all()) for one in copied.state.values())
    plan.verify(x)
    assert all(bool((one["exp_avg"] == 7.0).all()) for one in optimizer.state.values())


def test_states_can_be_saved_and_loaded_between_steps() -> None:
    make: Make = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731
    model, x = mlp(), torch.randn(8, 24)
    optimizer = make(model.parameters())
    plan = planned(model, x, optimizer)
    assert "host" in plan.result.schedule.border.values()
    plan.step(x)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    plan.step(x)
    after = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    plan.step(x)
    for name, one in model.state_dict().items():
        assert torch.equal(one, after[0][name]), name
    other = mlp()
    plain = make(other.parameters())
    other.load_state_dict(after[0])
    plain.load_state_dict(after[1])
    same(model, other, optimizer, plain)


def test_plans_of_one_optimizer_share_its_states() -> None:
    """A plan took states for its own that another had on the host, and exceeded its budget."""
    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    make: Make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    optimizer, plain = make(model.parameters()), make(other.parameters())
    plans = [planned(model, x, optimizer, budget) for budget in ("100%", "0%", "50%")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for plan in (*plans, *reversed(plans), *plans):
            plan.step(x)
            plain_step(other, x, plain)
            same(model, other, optimizer, plain)
    plans[1].step(x)
    plain_step(other, x, plain)
    plans[1].bring_back()
    plain_step(model, x, optimizer)
    plain_step(other, x, plain)
    same(model, other, optimizer, plain)


def test_a_step_that_was_interrupted_can_be_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, left = torch.optim.AdamW.step, [1000]

    def interrupted(self: Any, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return steps(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    plan = planned(model, x, optimizer)
    plan.step(x)
    left[0] = 4
    with pytest.raises(KeyboardInterrupt):
        plan.step(x)
    assert len(optimizer.param_groups[0]["params"]) == 8
    assert all(one.grad is None for one in model.parameters())
    other = copy.deepcopy(model)
    plain = torch.optim.AdamW(other.parameters(), lr=0.01)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    plan.step(x)
    plain_step(other, x, plain)
    same(model, other, optimizer, plain)


def test_the_report_tells_of_states() -> None:
    model, x = mlp(), torch.randn(8, 24)
    plan = planned(model, x, torch.optim.AdamW(model.parameters()))
    report = plan.report()
    assert {"0.0/states:0", "3.0/states:7"} <= set(plan.shown.schedule.border)
    assert ms.validate(plan.shown).makespan == plan.result.makespan
    assert "states           18.8 KiB of the optimiser" in report
    assert "of them on the host between steps" in report
    assert "what is updated\n  8 of 8 parameters, by AdamW" in report


def test_an_optimizer_that_does_more_after_some_steps_is_planned_for_that() -> None:
    """RAdam rectifies from its sixth step on, and needs more memory for it."""
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.01)
    plan = planned(model, x, optimizer)
    for _ in range(7):
        plan.step(x)
    assert plan.verify(x).peak_memory <= plan.result.schedule.budget


def test_nothing_outlives_the_plan() -> None:
    """What PyTorch compiled lives on, and held the optimiser, its states and all parameters."""

    def trained() -> list[weakref.ref[Any]]:
        model, x = mlp(), torch.randn(8, 24)
        optimizer = torch.optim.AdamW(model.parameters())
        plan = planned(model, x, optimizer)
        plan.step(x)
        return [weakref.ref(one) for one in (model, optimizer, plan, *model.parameters())]

    found = trained()
    gc.collect()
    assert [one() for one in found] == [None] * len(found)
