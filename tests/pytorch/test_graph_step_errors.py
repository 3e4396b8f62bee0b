"""What is refused before anything runs, and what an error in the middle of a step leaves behind."""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError, ScheduleError
from memsched.torch.capture import CaptureError
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.interpret import Pass
from memsched.torch.graph_step.transfers import Transfers
from memsched.torch.lanes import EmulatedLanes
from pytorch import handmade
from pytorch.graph_step_models import SPEED, Captured, captured, fresh, loss, make, plain_step, planned_step, schedules
from pytorch.steps import Noting, copies, differences
from pytorch.test_execute_memory import Alive


def swapped(c: Captured) -> ms.Schedule:
    return next(iter(schedules(c, ("swap_all",), (0.0,))))[1]


def repeated(c: Captured) -> ms.Schedule:
    return next(iter(schedules(c, ("superneurons",), (0.0,))))[1]


# Capture.


class WritesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x.mul_(2.0)
        return self.layer(x)


class WritesParameter(WritesInput):
    def forward(self, x: Any) -> Any:
        self.layer.bias.data.mul_(2.0)
        return self.layer(x)


class OwnGenerator(WritesInput):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + torch.randn(x.shape, generator=self.generator)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (handmade.DataDependent(), "must not depend on values of tensors"),
        (WritesInput(), "its input in place"),
        (WritesParameter(), r"its parameter 'layer\.bias' in place"),
        (OwnGenerator(), r"reads a torch\.Generator of its own"),
    ],
)
def test_steps_that_cannot_be_captured(model: Any, what: str) -> None:
    width = 16 if isinstance(model, handmade.DataDependent) else 4
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CaptureError, match=what):
        CapturedStep(model.train(), (torch.randn(4, width),), loss)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_model_that_raises_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(CaptureError, match=r"training step of Sequential cannot be traced: RuntimeError"):
        CapturedStep(model, (torch.randn(4, 5),), loss)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda out: out, r"loss returns a tensor of shape \(8, 4\)"),
        (lambda out: 3.0, "loss returns float"),
        (lambda out: out.detach().mean(), "the loss needs no gradient"),
    ],
)
def test_losses_that_are_none(wrong: Any, what: str) -> None:
    model, args = make("dropout_mlp")
    with pytest.raises(InvalidInputError, match=what):
        CapturedStep(model, args, wrong)


def test_eval_mode_is_refused() -> None:
    model, args = make("dropout_mlp")
    with pytest.raises(InvalidInputError, match=r"model\.train\(\)"):
        CapturedStep(model.eval(), args, loss)


def test_inputs_that_need_a_gradient_are_refused() -> None:
    model, args = make("dropout_mlp")
    with pytest.raises(InvalidInputError, match=r"x\.detach\(\)"):
        CapturedStep(model, (args[0].requires_grad_(),), loss)


# Schedules.


def test_a_schedule_of_another_graph_is_refused() -> None:
    one, other = captured("residual"), captured("unet")
    with pytest.raises(ScheduleError, match="for the graph 'UNet' and the step's is 'Sequential'"):
        one.runner(swapped(other), EmulatedLanes())


def edited(schedule: ms.Schedule, steps: Sequence[Any]) -> ms.Schedule:
    return ms.Schedule.from_json({**schedule.to_json(), "steps": list(steps)})


def test_schedules_that_cannot_run_are_refused() -> None:
    c = captured("residual")
    steps = swapped(c).to_json()["steps"]
    arriving = next(k for k, step in enumerate(steps) if "prefetch" in step)
    for wrong in (steps[:-40], [*steps[:arriving], *steps[arriving + 1 :]], [steps[0], *steps]):
        with pytest.raises(ScheduleError):
            c.runner(edited(swapped(c), wrong), EmulatedLanes())
    smaller = ms.Schedule.from_json({**swapped(c).to_json(), "budget": c.graph.resident + 100})
    with pytest.raises(ScheduleError, match=r"capacity|memory|budget"):
        c.runner(smaller, EmulatedLanes())


def test_the_cap_on_host_memory_holds() -> None:
    c = captured("residual")
    schedule = swapped(c)
    moved = ms.simulate(c.graph, schedule, ms.Device(schedule.budget, SPEED)).bytes_out
    assert c.runner(schedule, EmulatedLanes(), host_memory=moved)._host.nbytes == moved
    with pytest.raises(ScheduleError, match="host"):
        c.runner(schedule, EmulatedLanes(), host_memory=moved - 1)


# Steps.


def test_inputs_like_those_of_the_plan_are_needed() -> None:
    c = captured("dropout_mlp")
    runner = c.runner(swapped(c), EmulatedLanes())
    for wrong, what in (
        ((torch.randn(7, 32),), "input 0 is float32 7x32, and the plan is for float32 8x32"),
        ((torch.randn(8, 32).double(),), "float64 8x32"),
        ((torch.randn(32, 8).t(),), "lay it out alike"),
        ((torch.randn(8, 32), 1), r"nested as \(\*,\) and got"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            runner.step(*wrong)
    assert all(parameter.grad is None for parameter in c.model.parameters())


def test_a_model_that_has_changed_is_refused() -> None:
    model, args = make("dropout_mlp")
    c = Captured(model=model, args=args, step=CapturedStep(model, args, loss))
    runner = c.runner(swapped(c), EmulatedLanes())
    model[2].eval()
    with pytest.raises(MemschedError, match="the model has changed"):
        runner.step(*args)
    model[2].train()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MemschedError, match="planned with no autocast"):
        runner.step(*args)


@pytest.mark.parametrize("where", [3, 40, 90])
def test_an_error_in_the_middle_leaves_the_model_usable(where: int) -> None:
    c = captured("residual")
    want = plain_step(c)
    runner = c.runner(swapped(c), EmulatedLanes(early=copies(1)))

    def stop(step: int, kind: str) -> None:
        if step == where:
            raise KeyError("enough")

    def broken() -> Any:
        runner.observe = lambda: Noting(stop)
        with Alive() as alive:
            for tensor in (*c.model.parameters(), *c.model.buffers(), *c.args, runner._host):
                alive.meet(tensor.untyped_storage())
            alive.counting = True
            with pytest.raises(KeyError, match="enough"):
                runner.step(*c.args)
            gc.collect()
            assert alive.total <= 64
        assert all(parameter.grad is None for parameter in c.model.parameters())
        return torch.zeros(())

    fresh(broken, c.model)
    runner.observe = lambda: None
    assert differences(want, fresh(lambda: runner.step(*c.args), c.model)) == []


# The emulation can fail: each of these takes one precaution away.


def test_without_waiting_for_arrivals_nan_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    c = captured("residual")
    want = plain_step(c)
    real = Transfers.before

    def forgetful(self: Any, run: Any) -> None:
        self._arriving.clear()
        real(self, run)

    monkeypatch.setattr(Transfers, "before", forgetful)
    assert differences(want, planned_step(c, swapped(c), early=copies(1)))


def test_without_waiting_for_departures_nan_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    c = captured("residual")
    want = plain_step(c)
    monkeypatch.setattr(EmulatedLanes, "reached", lambda lanes, event: True)
    assert differences(want, planned_step(c, swapped(c), early=copies(1)))


def test_without_the_state_of_the_generator_a_repeated_dropout_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    c = captured("dropout_mlp")
    want = plain_step(c)
    schedule = repeated(c)
    assert any(
        "bernoulli" in name for name in ms.plan(c.graph, schedule.budget, SPEED, planner="superneurons").recomputed
    )
    assert differences(want, planned_step(c, schedule)) == []
    monkeypatch.setattr(Pass, "_random_numbers", lambda *_: torch.no_grad())
    assert differences(want, planned_step(c, schedule))


def test_too_small_a_budget_says_what_it_takes() -> None:
    c = captured("unet")
    with pytest.raises(InfeasibleError) as caught:
        ms.plan(c.graph, c.graph.resident, SPEED, planner="swap_all")
    least = caught.value.min_memory
    schedule = ms.plan(c.graph, least, SPEED, planner="swap_all").schedule
    assert differences(plain_step(c), planned_step(c, schedule)) == []
