"""Models that torch.export cannot capture: planned with saved-tensor hooks, they do what plain autograd does."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.errors import MemschedError
from memsched.testing import schedules_of
from memsched.torch.cuda_lanes import CudaLanes
from memsched.torch.hooked.forward import HookedForward, Transfers
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.script import compile_schedule
from memsched.torch.trial import first_difference, trial_step
from pytorch.fake_cuda import FakeCuda
from pytorch.hooked_models import (
    CPU,
    MODELS,
    SLACK,
    Branching,
    branching,
    check_schedule,
    gradients,
    plain,
    planned,
    same,
)
from pytorch.steps import copies


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_autograd_and_fit(name: str) -> None:
    model, args = MODELS[name]()
    plan, want, number = planned(model, args), plain(model, args), 0
    least, most = ms.min_memory(plan.chain), ms.peak_memory(plan.chain)
    for planner in ("greedy", "dynprog", "offload"):
        needed = ms.min_memory(plan.chain, planner)  # dynprog needs more than the least
        for memory in (needed, max(needed, (least + most) // 2)):
            limit = 0.1 if planner == "offload" else None
            result = ms.plan(plan.chain, memory, 1e12, planner=planner, chunk="storage", time_limit=limit)
            for seed in (0, 1, number + 2):
                lanes = EmulatedLanes(early=copies(seed), overlap=number % 2 == 1)
                assert check_schedule(plan, result.schedule, model, args, want, lanes) >= -SLACK
            number += 1
    assert name == "data_dependent" or plan.result.offloaded


@pytest.mark.parametrize("name", ["opt", "lstm", "branching", "chunks", "shared"])
def test_random_schedules(name: str) -> None:
    model, args = MODELS[name]()
    plan, want = planned(model, args), plain(model, args)

    @settings(max_examples=10, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        schedule = data.draw(schedules_of(plan.chain, recompute=False, chunk="storage"), label="schedule")
        early = copies(data.draw(st.integers(0, 9), label="copies"))
        lanes = EmulatedLanes(early=early, overlap=data.draw(st.booleans(), label="overlap"))
        assert check_schedule(plan, schedule, model, args, want, lanes) >= -SLACK

    check()


@pytest.mark.parametrize("name", ["resnet18", "opt"])
def test_verify_and_measure_are_those_of_any_plan(name: str) -> None:
    model, args = MODELS[name]()
    plan = planned(model, args, "30%")
    assert plan.verify(model, args).peak_memory <= plan.result.peak_memory + SLACK
    measured = plan.measure(model, args)
    assert "the test wants it" in plan.report(measured)
    assert measured.bytes_out == plan.result.timeline.bytes_out > 0


def test_in_bfloat16() -> None:
    model, args = MODELS["resnet18"]()
    with torch.autocast("cpu", torch.bfloat16):
        plan = planned(model, args)
        plan.verify(model, args)
    assert plan.autocast.enabled


def test_without_waiting_for_arrivals_nan_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = branching()
    plan, want = planned(model, args), plain(model, args)
    late = EmulatedLanes(early=lambda: False)
    monkeypatch.setattr(Transfers, "arrive", lambda self, slot: None)
    script = plan._script()
    found = trial_step(model, HookedForward(model, plan.flow, script, CPU, late), args, None, CPU)
    assert first_difference(want, found) is not None
    assert any(g is not None and g.isnan().any() for g in found.gradients.values())


@pytest.mark.parametrize("queried", [True, False])
@pytest.mark.parametrize("name", ["branching", "chunks", "lstm", "shared"])
def test_no_race_between_the_streams_of_cuda(name: str, queried: bool) -> None:
    """Planned steps, a step that is dropped, a partial backward, and one that goes another way."""
    model, args = MODELS[name]()
    plan = planned(model, args)

    @settings(max_examples=8, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        schedule = data.draw(st.just(plan.result.schedule) | schedules_of(plan.chain, recompute=False, chunk="storage"))
        cuda = FakeCuda(reached=lambda: queried)
        with pytest.MonkeyPatch.context() as patch, cuda, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a step goes another way
            cuda.install(patch)
            script = compile_schedule(plan.chain, schedule, plan.chain.pieces)
            forward = HookedForward(model, plan.flow, script, CPU, CudaLanes(CPU))
            inputs = [args, args, tuple(-x[: len(x) // 2] for x in args), args]
            kinds = data.draw(st.permutations(["whole", "dropped", "part", "whole"]), label="kinds")
            for kind, given_now in zip(kinds, inputs, strict=True):
                result = forward(*given_now)
                loss = sum(leaf.sum() for leaf in (result.values() if isinstance(result, dict) else [result]))
                if kind == "whole":
                    loss.backward()
                elif kind == "part":
                    torch.autograd.grad(loss, list(model.parameters())[-1:])
                del loss, result
            del forward
        assert cuda.races == []

    check()


# Steps that are not like the recorded one


@pytest.mark.parametrize("seed", [0, 1, 5])
@pytest.mark.parametrize("other", [-1.0, -60.0, "smaller"])
def test_another_way_is_computed_right_and_warned_of_once(other: Any, seed: int) -> None:
    model, args = branching()
    plan = planned(model, args)
    elsewhere = (torch.ones(5, 32),) if other == "smaller" else (torch.full((16, 32), other),)
    want, known = gradients(model, elsewhere), gradients(model, args)
    model.forward = HookedForward(model, plan.flow, plan._script(), CPU, EmulatedLanes(early=copies(seed)))
    with pytest.warns(UserWarning, match=r"differs from the one that was planned .*more memory than the budget"):
        assert same(gradients(model, elsewhere), want)
    for _ in range(2):  # without another warning, which would be an error
        assert same(gradients(model, elsewhere), want)
        assert same(gradients(model, args), known)


def test_a_way_cannot_be_measured_that_was_not_planned() -> None:
    model, args = branching()
    plan = planned(model, args)
    with pytest.raises(MemschedError, match="cannot be measured against the plan"):
        plan.measure(model, (-args[0],))


def test_what_others_hold_stays() -> None:
    model, args = branching()
    want, plan = gradients(model, args), planned(model, args)
    held = []
    plan.apply(model)
    hook = model.first[1].register_forward_hook(lambda module, given, result: held.append(given[0]))
    with pytest.warns(UserWarning, match="held elsewhere"):
        assert same(gradients(model, args), want)
    hook.remove()
    assert torch.isfinite(held[0]).all()


@pytest.mark.parametrize("early", [0, 1])
def test_random_numbers_of_a_layer_drop(early: int) -> None:
    """Layers that are dropped at random, by Python's own generator: each step is another one."""

    class Dropping(Branching):
        def forward(self, x: Any) -> Any:
            for layer in (*self.first, *self.last):
                if random.random() < 0.5:
                    x = layer(x).tanh() * x
            return x

    model, args = Dropping().train(), (torch.randn(8, 32, requires_grad=True),)
    random.seed(3)
    plan = planned(model, args)
    model.forward = HookedForward(model, plan.flow, plan._script(), CPU, EmulatedLanes(early=copies(early)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(8):
            random.seed(seed)
            want = gradients(model, args, forward=lambda *a: Dropping.forward(model, *a))
            random.seed(seed)
            assert same(gradients(model, args), want)
