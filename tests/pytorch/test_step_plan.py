"""Steps that are planned and called as a whole: any planner, addresses of olla, and batches that are split."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import memsched as ms
import memsched.torch as mt
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.torch import CaptureError, StepPlan, trial, verify
from memsched.torch.trial import Step

V100 = "v100:pcie3"


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().logsumexp(1).mean()


def residual() -> tuple[nn.Module, torch.Tensor]:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)
            )
            self.last = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = x + block(x)
            return self.last(x.mean((2, 3)))

    return Residual(), torch.randn(8, 3, 16, 16)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(6))
    return nn.Sequential(*layers), torch.randn(512, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(32 * 12, 5))
    return net, torch.randn(8, 12, 32)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "residual": residual,
    "mlp": mlp,
    "transformer": transformer,
}
PLANNERS = ("auto", "pooch", "modnn", "superneurons", "swap_opt", "olla")


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    return model.train(), x


def planned(name: str, budget: Any, planner: str, **options: Any) -> tuple[StepPlan, torch.Tensor]:
    model, x = made(name)
    return mt.plan_step(model, (x,), loss, budget=budget, device=V100, planner=planner, **options), x


PLANNED = [(name, planner) for name in MODELS for planner in PLANNERS]
QUICK = {("mlp", planner) for planner in ("modnn", "superneurons", "olla")} | {(name, "auto") for name in MODELS}


@pytest.mark.parametrize(
    ("name", "planner"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in PLANNED]
)
def test_a_planned_step_is_the_plain_one(name: str, planner: str) -> None:
    budget = "100%" if planner == "olla" else "60%"
    try:
        plan, x = planned(name, budget, planner)
    except InfeasibleError as error:
        plan, x = planned(name, error.min_memory, planner)
    verified = plan.verify(x)
    assert verified.reordered is None
    assert verified.peak_memory <= plan.result.schedule.budget


def test_gradients_add_up_and_buffers_are_updated() -> None:
    plan, x = planned("residual", "40%", "selective")
    model, _ = made("residual")
    for _ in range(2):
        wanted = loss(model(x))
        wanted.backward()
        assert torch.equal(plan.step(x), wanted)
    for (name, one), other in zip(model.named_parameters(), plan._model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name
    for (name, one), other in zip(model.named_buffers(), plan._model.buffers(), strict=True):
        assert torch.equal(one, other), name


def test_olla_gives_addresses_and_the_least_order() -> None:
    model, x = made("transformer")
    plan = mt.plan_step(model, (x,), loss, budget="100%", device=V100, planner="olla")
    assert plan.result.placement is not None
    assert "of one arena of" in plan.report()
    assert plan.peak_memory <= ms.peak_memory(plan.problem)
    least = plan.problem.resident + plan.result.placement.height
    again = mt.plan_step(model, (x,), loss, budget=least, device=V100, planner="olla")
    assert again.peak_memory <= least
    assert again.verify(x).peak_memory <= least


def parts_of(model: nn.Module, x: torch.Tensor, rounds: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """Loss and gradients of plain accumulation over the parts."""
    total, start = torch.zeros(()), 0
    for batch, times in rounds:
        for _ in range(times):
            part = loss(model(x[start : start + batch])) * (batch / len(x))
            part.backward()
            total, start = total + part.detach(), start + batch
    assert start == len(x)
    return total, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "planner", "budget"),
    [
        ("mlp", "modnn", "5%"),
        pytest.param("residual", "modnn", "0%", marks=pytest.mark.slow),
        pytest.param("mlp", "vdnn_plus", "5%", marks=pytest.mark.slow),
    ],
)
def test_rounds_are_accumulation_by_hand(name: str, planner: str, budget: str) -> None:
    try:
        plan, x = planned(name, budget, planner, rounds=True)
    except InfeasibleError as error:
        plan, x = planned(name, error.min_memory, planner, rounds=True)
    rounds = plan.result.schedule.rounds
    assert sum(times for _, times in rounds) > 1
    verified = plan.verify(x)
    assert verified.reordered is None
    assert verified.peak_memory <= plan.result.schedule.budget
    torch.manual_seed(3)
    found = plan.step(x)
    model, _ = made(name)
    torch.manual_seed(3)
    total, gradients = parts_of(model, x, rounds)
    assert torch.equal(found, total)
    for key, parameter in plan._model.named_parameters():
        assert torch.equal(parameter.grad, gradients[key]), key


@pytest.mark.slow
def test_the_whole_batch_at_once_is_the_plain_step() -> None:
    plan, x = planned("transformer", "100%", "modnn", rounds=True)
    assert [list(pair) for pair in plan.result.schedule.rounds] == [[8, 1]]
    assert plan.verify(x).reordered is None


class OtherAtFour(nn.Module):
    """Leaves an operation out where the batch is small."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = self.layer(x)
        return torch.tanh(x) if len(x) > 4 else x


def test_what_cannot_be_split_is_named() -> None:
    with pytest.raises(InvalidInputError, match="rounds is 3"):
        planned("mlp", "50%", "modnn", rounds=3)
    with pytest.raises(InvalidInputError, match=r"shapes \(4, 4\), \(3, 4\)"):
        mt.plan_step(
            nn.Bilinear(4, 4, 2), (torch.randn(4, 4), torch.randn(3, 4)), loss, budget="5%", device=V100, rounds=True
        )


def test_parts_that_run_other_operations_are_not_made() -> None:
    plan = mt.plan_step(OtherAtFour(), (torch.randn(16, 4),), loss, budget="0%", device=V100, rounds=True)
    assert plan.problem.batches == (8, 16)


def test_inputs_that_were_not_planned_are_refused() -> None:
    plan, x = planned("mlp", "50%", "selective")
    with pytest.raises(InvalidInputError, match=r"float32 \(8, 32\).*plan is for float32 \(512, 32\)"):
        plan.step(x[:8])
    with pytest.raises(InvalidInputError, match="float64"):
        plan.step(x.double())
    plan._model.eval()
    with pytest.raises(InvalidInputError, match="eval mode"):
        plan.step(x)


def test_bad_arguments() -> None:
    model, x = made("mlp")
    with pytest.raises(InvalidInputError, match="loss is 5"):
        mt.plan_step(model, (x,), 5, budget="50%")
    with pytest.raises(InvalidInputError, match="must return one number"):
        mt.plan_step(model, (x,), lambda out: out, budget="50%")
    with pytest.raises(InvalidInputError, match="args is a tensor"):
        mt.plan_step(model, x, loss, budget="50%")
    with pytest.raises(InvalidInputError, match="oracle"):
        mt.plan_step(model, (x,), loss, budget="50%", planner="oracle")
    table = nn.Sequential(nn.Embedding(8, 4, sparse=True))
    with pytest.raises(CaptureError, match="nothing of Sequential can be planned"):
        mt.plan_step(table, (torch.zeros(3, dtype=torch.long),), loss, budget="50%")
    with pytest.raises(CaptureError, match="looks at values"):
        mt.plan_step(model, (x,), lambda out: out.mean() * (1 if out.sum() > 0 else 2), budget="50%", device=V100)


def test_it_is_not_copied() -> None:
    """The copy would run the model of the original, beside a copied model that gets no gradients."""
    model, x = made("mlp")
    plan = mt.plan_step(model, (x,), loss, budget="50%", device=V100)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInputError, match="runs the model that it was made for"):
            attempt(plan)


def test_under_autocast() -> None:
    model, x = made("mlp")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plan = mt.plan_step(model, (x,), loss, budget="50%", device=V100)
        plan.verify(x)
    assert functional.gelu(x).dtype == torch.float32


def test_batches_that_the_model_refuses_are_no_parts() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))  # of one sample: an error
    inputs = (torch.randn(8, 16),)
    plan = mt.plan_step(
        model, inputs, lambda out: out.sin().mean(), budget="100%", device="v100:pcie3", planner="modnn", rounds=True
    )
    assert all(batch > 1 for batch, _ in plan.result.schedule.rounds)
    plan.verify(*inputs)


def test_verify_leaves_gradients_and_their_hooks_as_they_are() -> None:
    """Inputs kept the sum of its gradients, and an optimiser within the backward stepped, that of the loss too."""
    model, x = mlp()
    x.requires_grad_(True)
    scale = nn.Parameter(torch.ones(32))
    learning, called = [*model.parameters(), scale], list[torch.Tensor]()
    for one in (x, *learning):
        one.register_post_accumulate_grad_hook(called.append)
    plan = mt.plan_step(model, (x,), lambda out: loss(out * scale), budget="100%", planner="selective", time_limit=1)
    plan.verify(x)
    assert called == []
    assert all(one.grad is None for one in (x, *learning))
    x.grad = before = torch.ones_like(x)
    plan.verify(x)
    assert x.grad is before
    assert torch.equal(before, torch.ones_like(x))
    x.grad = None
    state = torch.get_rng_state()
    plan.step(x)
    assert len(called) == 1 + len(learning)
    found, x.grad = x.grad, None
    torch.set_rng_state(state)
    loss(model(x) * scale).backward()
    assert x.grad is not None
    assert torch.equal(found, x.grad)


def test_verify_compares_the_gradients_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp()
    x.requires_grad_(True)
    seen: list[Step] = []
    monkeypatch.setattr(verify, "first_difference", lambda expected, found: seen.append(found))
    mt.plan_step(model, (x,), loss, budget="100%", planner="selective", time_limit=1).verify(x)
    assert all(one.gradients["input 0"] is not None for one in seen)
    assert seen


@pytest.mark.parametrize("kind", ["plan", "plan_step"])
def test_ctrl_c_while_a_model_is_put_back_leaves_nothing_changed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8))
    given, plain = torch.randn(16, 8), trial.Originals.put_back
    before = {name: value.clone() for name, value in net.named_buffers()}

    def interrupted(self: trial.Originals) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        plain(self)

    def look() -> None:
        if kind == "plan":
            found = mt.plan(net, (given,), budget="100%", loss=lambda out: out.square().mean())
            monkeypatch.setattr(trial.Originals, "put_back", interrupted)
            found.verify(net, (given,))
        else:
            step = mt.plan_step(net, (given,), lambda out: out.square().mean(), budget="100%")
            monkeypatch.setattr(trial.Originals, "put_back", interrupted)
            step.verify(given)

    with pytest.raises(KeyboardInterrupt):
        look()
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())


class Output:
    """As models of Hugging Face return it."""

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))

    def forward(self, x: torch.Tensor, *, labels: torch.Tensor, scale: float = 1.0) -> Output:
        return Output((self.layers(x) - labels).square().mean() * scale)


@pytest.mark.parametrize("rounds", [False, True])
def test_named_inputs_and_a_loss_within_the_result(rounds: bool) -> None:
    model, x, labels = Named(), torch.randn(8, 16), torch.randn(8, 16)
    given = {"x": x, "labels": labels}
    planner = "modnn" if rounds else "selective"
    plan = mt.plan_step(model, kwargs=given, budget="60%", device="v100:pcie3", planner=planner, rounds=rounds)
    found = plan.step(labels=labels, x=x)
    assert plan.verify(**given).peak_memory <= plan.result.schedule.budget
    for parameter in model.parameters():
        assert parameter.grad is not None
    wanted = model(x, labels=labels).loss
    assert torch.allclose(found, wanted, rtol=1e-6) if rounds else torch.equal(found, wanted)
    with pytest.raises(
        InvalidInputError, match=r"the inputs are float32 \(8, 16\) with strides \(16, 1\), labels: float32"
    ):
        plan.step(x, labels=labels)
    with pytest.raises(InvalidInputError, match=r"and the plan is for labels: .*, x: float32"):
        plan.step(x=x, labels=labels, scale=2.0)
    with pytest.raises(InvalidInputError, match="a module is among the inputs; a planned step knows its model"):
        plan.verify(model, (x,))
    with pytest.raises(InvalidInputError, match="the inputs are none, and the plan is for labels"):
        plan.verify()
    verified = plan.verify(**given)
    assert str(verified).startswith("the bits of plain PyTorch; ")
    with pytest.raises(InvalidInputError, match="kwargs is a tensor"):
        mt.plan_step(model, kwargs=x, budget="60%", device="v100:pcie3")  # type: ignore[arg-type]


def test_what_a_step_plan_has_not_is_told() -> None:
    plan = mt.plan_step(nn.Linear(4, 4), (torch.randn(2, 4),), torch.sum, budget="100%", device="v100")
    with pytest.raises(AttributeError, match="a StepPlan has no 'save': it is a step of this process"):
        plan.save("a.json")
    assert not hasattr(plan, "anything")
