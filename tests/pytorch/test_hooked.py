"""Models that torch.export cannot capture: planned with saved-tensor hooks, they do what plain autograd does."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import memsched as ms
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.testing import schedules_of
from memsched.torch.cuda_lanes import CudaLanes
from memsched.torch.hooked.forward import HookedForward, Transfers
from memsched.torch.hooked.plan import HookedPlan, plan_with_hooks
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.measure import StepRecorder
from memsched.torch.meter import Meter
from memsched.torch.script import compile_schedule
from memsched.torch.torch_plan import TorchPlan
from memsched.torch.trial import first_difference, trial_step, untouched
from pytorch.fake_cuda import FakeCuda
from pytorch.models import CASES
from pytorch.steps import copies

CPU = torch.device("cpu")
SLACK = 64  # bytes: scalars that autograd and the loss make
Made = tuple[Any, tuple[Any, ...]]


class Branching(nn.Module):
    """Takes a way that depends on its input; one of them saves more and larger tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
        self.last = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.first:
            x = layer(x).tanh() + x
        if x.mean() > 0:
            x = x.sigmoid()
        elif x.mean() > -50:
            x = self.wide(x)
        for layer in self.last:
            x = layer(x).tanh() + x
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(x)[0])


class Chunks(nn.Module):
    """Views of one storage that do not share a version counter are written one after the other once saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            gate, value = layer(x).unsafe_chunk(2, 1)
            x = gate.sigmoid_() * value.tanh_() + x
        return x


class Shared(nn.Module):
    """Dropout, a tensor that is saved by many, and a result that is saved itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> dict[str, Any]:
        kept = []
        for layer in self.layers:
            x = nn.functional.dropout(torch.relu_(layer(x)), 0.3)
            kept.append(x * x.mean())
        return {"last": x.exp(), "all": torch.stack(kept)}


def case(name: str) -> Made:
    return {one.name: one for one in CASES}[name].make()


def branching() -> Made:
    return Branching().train(), (torch.ones(16, 32),)


MODELS: dict[str, Callable[[], Made]] = {
    "data_dependent": lambda: case("data_dependent"),
    "opt": lambda: case("transformers-opt"),
    "lstm": lambda: (Recurrent().train(), (torch.randn(4, 6, 8),)),
    "resnet18": lambda: case("torchvision-resnet18"),
    "branching": branching,
    "chunks": lambda: (Chunks().train(), (torch.randn(8, 16),)),
    "shared": lambda: (Shared().train(), (torch.randn(8, 16, requires_grad=True),)),
}


def planned(model: Any, args: Any, budget: str | int = "0%", **options: Any) -> HookedPlan:
    """A plan on modelled times, without the warning."""
    options = {"device": "v100:pcie3", "planner": "greedy", "reason": "the test wants it", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan_with_hooks(model, args, budget=budget, **options)


def gradients(model: Any, args: Any, forward: Any = None) -> list[Any]:
    """The result and the gradients of a step from a fixed seed."""
    torch.manual_seed(1)
    model.zero_grad()
    result = (forward or model)(*args)
    result.square().mean().backward()
    return [result.detach(), *(p.grad for p in model.parameters())]


def same(one: list[Any], other: list[Any]) -> bool:
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check_schedule(plan: HookedPlan, schedule: ms.Schedule, model: Any, args: Any, want: Any, lanes: Any) -> int:
    """One measured step under a schedule; how many bytes it stayed under the schedule's budget."""
    script = compile_schedule(plan.chain, schedule, plan.chain.pieces)
    forward = HookedForward(model, plan.flow, script, CPU, lanes)
    meter = Meter()
    recorder = StepRecorder(script, lanes, meter, CPU)
    forward.observe = lambda: recorder
    with untouched(model, CPU), meter:
        found = trial_step(model, forward, args, None, CPU)
    assert first_difference(want, found) is None
    return int(schedule.budget - recorder.timeline(plan._uncounted()).peak_memory)


def plain(model: Any, args: Any) -> Any:
    with untouched(model, CPU):
        return trial_step(model, model, args, None, CPU)


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


# What PyTorch does, and what it refuses


def test_changes_in_place_of_what_is_saved_are_errors_as_in_autograd() -> None:
    model, args = branching()
    plan = planned(model, args)
    plan.apply(model)
    loss = model(*args).square().mean()
    with torch.no_grad():
        model.last[1].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    del loss
    plan.remove()

    def change(module: Any, given: Any, result: Any) -> None:
        given[0].mul_(2)  # which the layer has saved

    model.first[2].register_forward_hook(change)
    for with_plan in (False, True):
        if with_plan:
            plan.apply(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the step differs: the hook is new
            loss = model(*args).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_second_derivatives_are_refused() -> None:
    model, args = branching()
    planned(model, args).apply(model)
    result = model(*args).sum()
    with pytest.raises(MemschedError, match="no second derivatives"):
        torch.autograd.grad(result, list(model.parameters()), create_graph=True, allow_unused=True)


def test_a_graph_may_be_kept_for_more_backwards() -> None:
    model, args = branching()
    want = gradients(model, args)
    plan = planned(model, args)
    plan.apply(model)
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(*args).square().mean()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() if p.grad is not None else None for p in model.parameters()]
    assert same(want[1:], first)
    loss.backward()
    assert all(g is None or torch.equal(p.grad, g + g) for g, p in zip(first, model.parameters(), strict=True))


def test_a_partial_backward_may_come_first() -> None:
    model, args = branching()
    want = gradients(model, args)
    planned(model, args).apply(model)
    model.zero_grad()
    loss = model(*args).square().mean()
    torch.autograd.grad(loss, model.last[2].weight, retain_graph=True)
    loss.backward()
    assert same(want[1:], [p.grad for p in model.parameters()])


def test_one_step_at_a_time() -> None:
    model, args = branching()
    planned(model, args).apply(model)
    first = model(*args)
    with pytest.raises(MemschedError, match="waits for its backward"):
        model(*args)
    first.sum().backward(retain_graph=True)
    model(*args).sum().backward()
    del first
    model(*args)  # dropped at once: nothing waits
    model(*args).sum().backward()


def test_a_graph_kept_beyond_the_next_forward_is_refused() -> None:
    model, args = branching()
    planned(model, args).apply(model)
    first = model(*args).sum()
    torch.autograd.grad(first, model.last[2].weight, retain_graph=True)
    second = model(*args).sum()
    with pytest.raises(MemschedError, match="another forward has taken the place"):
        first.backward()
    second.backward()


def test_an_error_in_the_forward_leaves_the_model_usable() -> None:
    model, args = branching()
    want = gradients(model, args)
    planned(model, args).apply(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 31))
    assert same(gradients(model, args), want)


def test_the_model_stays_what_it_was() -> None:
    model, args = branching()
    keys, want = list(model.state_dict()), gradients(model, args)
    plan = planned(model, args)
    assert plan.apply(model) is model
    assert list(model.state_dict()) == keys
    with torch.no_grad():
        assert not model(*args).requires_grad
    assert torch.equal(model.eval()(*args), want[0])
    model.train()
    assert same(gradients(copy.deepcopy(model), args), want)
    with pytest.raises(MemschedError, match="cannot be pickled"):
        pickle.dumps(model)
    plan.remove()
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("early", [0, 1])
def test_nothing_leaks(backward: bool, early: int) -> None:
    model, args = branching()
    plan = planned(model, args)
    forward = HookedForward(model, plan.flow, plan._script(), CPU, EmulatedLanes(early=copies(early)))
    live = []
    gc.collect()
    gc.disable()
    try:
        with Meter() as meter:
            for _ in range(50):
                model.zero_grad()
                result = forward(*args).sum()
                if backward:
                    result.backward()
                del result
                live.append(meter.live)
    finally:
        gc.enable()
    assert live[1:] == live[1:2] * 49


# Plans


def test_the_fallback_is_said_once() -> None:
    model, args = branching()
    with pytest.warns(UserWarning, match="saved-tensor hooks") as caught:
        plan_with_hooks(model, args, budget="0%", reason="it branches", device="v100:pcie3", planner="greedy")
    assert [str(one.message) for one in caught] == [
        "Branching is planned with saved-tensor hooks, which offload and cannot recompute: it branches"
    ]


def test_times_are_measured_here() -> None:
    model, args = branching()
    plan = planned(model, args, device="here")
    assert plan.chain.forward_time.sum() > 0
    assert plan.chain.backward_time.sum() > 0
    assert plan.times == "measured on this CPU"


def test_too_small_a_budget_says_which_one_does() -> None:
    model, args = MODELS["opt"]()
    with pytest.raises(InfeasibleError, match="smallest feasible budget is") as caught:
        planned(model, args, 1)
    plan = planned(model, args, caught.value.min_memory)
    plan.verify(model, args)
    with pytest.raises(InfeasibleError):
        planned(model, args, caught.value.min_memory - 1)


def test_too_little_host_memory_is_an_error_before_the_step() -> None:
    model, args = MODELS["opt"]()
    with pytest.raises(InfeasibleError):
        planned(model, args, "0%", host_memory=1024, planner="offload", time_limit=0.1)
    plan = planned(model, args, "0%")
    forward = plan.apply(model).forward
    assert len(forward._transfers.host) == plan._script().host_bytes <= plan.result.timeline.bytes_out


def test_a_loss_and_an_optimiser_are_reserved_for() -> None:
    model, args = branching()
    plan = planned(model, args, optimizer=1000, loss=lambda y: y.square().mean(), reserve=500)
    assert plan.resident.optimizer == 1000
    assert plan.resident.reserve == 500
    assert plan.resident.loss >= 16 * 32 * 4
    with pytest.raises(InvalidInputError, match="must return one number"):
        planned(model, args, loss=lambda y: y)


@pytest.mark.parametrize("planner", ["rotor", "pofo"])
def test_planners_that_recompute_are_refused(planner: str) -> None:
    with pytest.raises(InvalidInputError, match="recomputes"):
        planned(*branching(), planner=planner)


def test_eval_mode_is_refused() -> None:
    model, args = branching()
    with pytest.raises(InvalidInputError, match="eval mode"):
        planned(model.eval(), args)


def test_planning_leaves_no_trace() -> None:
    model, args = MODELS["resnet18"]()
    before = copy.deepcopy(model.state_dict())
    states = torch.get_rng_state(), random.getstate()
    planned(model, args, device="here")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert all(p.grad is None for p in model.parameters())


def test_plans_are_saved_and_loaded(tmp_path: Path) -> None:
    model, args = MODELS["opt"]()
    plan = planned(model, args, "20%")
    plan.save(tmp_path / "plan.json")
    loaded = TorchPlan.load(tmp_path / "plan.json")
    assert isinstance(loaded, HookedPlan)
    assert loaded.to_json() == plan.to_json()
    assert json.loads((tmp_path / "plan.json").read_text())["kind"] == "hooks"
    loaded.verify(model, args)
    other = loaded.at("90%")
    assert other.result.peak_memory > plan.result.peak_memory
    other.verify(model, args)
    with pytest.raises(InvalidInputError, match="recomputes"):
        loaded.at("90%", planner="rotor")
