"""What a user meets: plan, report, apply, remove, verify, measure, at, save and load."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import memsched as ms
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.torch import HookedPlan, TorchPlan
from memsched.torch.resident import optimizer_bytes
from memsched.torch.run import Run
from pytorch.models import CASES

V100 = "v100:pcie3"  # times of a model: the plans are the same on any machine
CPU = torch.device("cpu")


def blocks(number: int = 8, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.1)) for _ in range(number)
    )
    return nn.Sequential(*layers).train()


@pytest.fixture
def model() -> nn.Sequential:
    return blocks()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


def make(model: nn.Module, x: torch.Tensor, budget: Any = "40%", **options: Any) -> TorchPlan:
    return ms.torch.plan(model, (x,), budget=budget, device=V100, **options)


def losses(model: nn.Module, x: torch.Tensor, steps: int = 4) -> list[float]:
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_training_is_the_same_with_a_plan(model: nn.Sequential, x: torch.Tensor) -> None:
    want = losses(blocks(), x)
    plan = make(model, x)
    assert plan.apply(model) is model
    assert losses(model, x) == want


@pytest.mark.parametrize("planner", ["greedy", "dynprog", "offload", "rotor", "pofo", "auto"])
def test_every_planner_is_proven_on_the_model(model: nn.Sequential, x: torch.Tensor, planner: str) -> None:
    plan = make(model, x, "20%", planner=planner, time_limit=0.05)
    measured = plan.verify(model, (x,))
    assert measured.peak_memory <= plan.result.schedule.budget
    assert len(measured.start) == len(plan.result.schedule)


def test_verify_and_measure_leave_the_model_as_it_was(model: nn.Sequential, x: torch.Tensor) -> None:
    plan = make(model, x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    plan.verify(model, (x,))
    plan.measure(model, (x,))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_verify_names_what_a_wrong_plan_changes(
    model: nn.Sequential, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(model, x, "0%", planner="greedy")
    assert plan.result.offloaded
    monkeypatch.setattr(Run, "_arrive", lambda self, key: None)
    with pytest.raises(MemschedError, match=r"planned step changes the (output|gradient)"):
        plan.verify(model, (x,))


def test_a_measured_timeline_is_like_a_simulated_one(model: nn.Sequential, x: torch.Tensor) -> None:
    plan = make(model, x, "0%", planner="pofo")
    measured = plan.measure(model, (x,))
    simulated = plan.result.timeline
    assert type(measured) is type(simulated)
    assert (measured.bytes_out, measured.bytes_in) == (simulated.bytes_out, simulated.bytes_in)
    assert (measured.end >= measured.start).all()
    assert measured.makespan == measured.end.max() > 0
    assert (measured.recompute_time > 0) == (simulated.recompute_time > 0)
    assert measured.memory[1].max() == measured.peak_memory <= simulated.peak_memory
    assert ms.Timeline.from_json(measured.to_json()) == measured


def test_remove_gives_the_own_forward_back(model: nn.Sequential, x: torch.Tensor) -> None:
    keys = list(model.state_dict())
    plan = make(model, x)
    plan.apply(model)
    assert list(model.state_dict()) == keys
    plan.remove()
    assert "forward" not in model.__dict__
    model(x[:5]).sum().backward()


def test_a_second_plan_is_refused(model: nn.Sequential, x: torch.Tensor) -> None:
    plan = make(model, x)
    plan.apply(model)
    for other in (plan, plan.at("60%")):
        with pytest.raises(MemschedError, match="has a plan already"):
            other.apply(model)


def test_another_budget_from_the_same_measurements(model: nn.Sequential, x: torch.Tensor) -> None:
    plan = make(model, x, "100%")
    tight = plan.at("10%", planner="rotor")
    assert tight.result.schedule.budget < plan.result.schedule.budget
    assert tight.chain == plan.chain
    assert tight.result.planner == "rotor"
    tight.verify(model, (x,))


def test_saved_and_loaded(model: nn.Sequential, x: torch.Tensor, tmp_path: Path) -> None:
    want = losses(blocks(), x)
    make(model, x, "30%").save(tmp_path / "plan.json")
    plan = TorchPlan.load(tmp_path / "plan.json")
    assert losses(plan.apply(model), x) == want
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "memsched-torch-plan/1"


def test_a_loaded_plan_refuses_another_model(model: nn.Sequential, x: torch.Tensor, tmp_path: Path) -> None:
    make(model, x).save(tmp_path / "plan.json")
    other = blocks(number=9)
    with pytest.raises(MemschedError, match="made for a model of"):
        TorchPlan.load(tmp_path / "plan.json").apply(other)
    assert "forward" not in other.__dict__


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "memsched-torch-plan/2"},
        {"kind": "magic"},
        {"resident": {"parameters": 1}},
        {"autocast": {}},
        {"device": "nowhere"},
        {"leaves": [1]},
        {"result": {}},
        {"surprise": 1},
    ],
)
def test_a_damaged_document_is_one_sentence(model: nn.Sequential, x: torch.Tensor, damage: dict[str, Any]) -> None:
    document = make(model, x, planner="greedy").to_json() | damage
    with pytest.raises(InvalidInputError):
        TorchPlan.load(document)


def test_the_budget_is_that_of_the_whole_process(model: nn.Sequential, x: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    plan = make(model, x, optimizer=optimizer)
    parts = plan.resident.parts()
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert parts["parameters"] == parts["gradients"] == parameters
    assert parts["optimizer"] == 2 * parameters + 4 * len(list(model.parameters()))
    assert parts["inputs"] == x.numel() * 4
    assert parts["outputs"] == 2 * x.numel() * 4
    assert plan.resident.total == sum(parts.values()) == plan.chain.resident
    report = plan.report(plan.measure(model, (x,)))
    for words in ("optimiser state", "budget", "measured", "lower bound", "v100"):
        assert words in report


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_the_state_of_an_optimiser_is_known_before_its_first_step(kind: str) -> None:
    model = blocks(2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    before = optimizer_bytes(optimizer, CPU)
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    assert before == optimizer_bytes(optimizer, CPU)


def test_an_optimiser_that_cannot_be_tried_is_declared() -> None:
    model = blocks(2)
    with pytest.raises(InvalidInputError, match="step it once, or give its bytes"):
        optimizer_bytes(torch.optim.Adafactor(model.parameters()), CPU)
    assert optimizer_bytes(4096, CPU) == 4096
    with pytest.raises(InvalidInputError, match="optimizer is -1"):
        optimizer_bytes(-1, CPU)


def test_a_loss_outside_of_the_model_is_reserved(model: nn.Sequential, x: torch.Tensor) -> None:
    labels = torch.zeros(64, dtype=torch.long)
    with_loss = make(model, x, loss=lambda y: functional.cross_entropy(y, labels))
    assert with_loss.resident.loss >= x.numel() * 4  # the log-probabilities
    in_place = make(model, x, loss=lambda y: y.div_(2).square().mean())
    assert 0 < in_place.resident.loss <= 4 * x.numel() * 4
    with pytest.raises(InvalidInputError, match="must return one number"):
        make(model, x, loss=lambda y: y)
    with pytest.raises(InvalidInputError, match=r"loss reads values of tensors.*reserve="):
        make(model, x, loss=lambda y: y.sum() * float(y.mean()))


def test_too_small_a_budget_names_the_smallest(model: nn.Sequential, x: torch.Tensor) -> None:
    with pytest.raises(InfeasibleError, match=r"too small.*smallest feasible budget is (\d+) bytes") as caught:
        make(model, x, 1000)
    plan = make(model, x, caught.value.min_memory)
    plan.verify(model, (x,))
    with pytest.raises(InfeasibleError):
        make(model, x, caught.value.min_memory - 1)


def test_too_little_host_memory_is_an_error_before_the_step(model: nn.Sequential, x: torch.Tensor) -> None:
    with pytest.raises(InfeasibleError, match="host_memory"):
        make(model, x, "0%", planner="greedy", host_memory=100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "6 apples"}, "the budget is '6 apples'"),
        ({"budget": -5}, "the budget is -5"),
        ({"device": "abacus"}, "abacus"),
        ({"planner": "oracle"}, "'oracle'; it must be auto or one of offload"),
        ({"optimizer": "adam"}, "'adam'; give a torch.optim.Optimizer"),
        ({"optimizer": -1}, "optimizer is -1"),
        ({"loss": 5}, "loss is 5; it must be a function"),
        ({"host_memory": "-1"}, "host_memory"),
        ({"reserve": "much"}, "reserve"),
        ({"time_limit": -1}, "time_limit"),
    ],
)
def test_bad_options(model: nn.Sequential, x: torch.Tensor, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        ms.torch.plan(model, (x,), **{"budget": "50%", "device": V100} | options)


def test_a_model_in_eval_mode_is_refused(model: nn.Sequential, x: torch.Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"model\.train\(\)"):
        make(model.eval(), x)


def test_under_autocast(model: nn.Sequential, x: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plan = make(model, x)
    plan.apply(model)
    with pytest.raises(MemschedError, match="planned with autocast to bfloat16 and runs with no autocast"):
        model(x)


def test_what_cannot_be_captured_is_planned_with_hooks(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "data_dependent")
    model, args = case.make()
    with pytest.warns(UserWarning, match="saved-tensor hooks") as caught:
        plan = ms.torch.plan(model, args, budget="100%", device=V100)
    assert caught[0].filename == __file__
    assert isinstance(plan, HookedPlan)
    plan.verify(model, args)
    plan.save(tmp_path / "plan.json")
    loaded = TorchPlan.load(tmp_path / "plan.json")
    assert isinstance(loaded, HookedPlan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.apply(model)(*args).sum().backward()


def test_measured_on_this_machine(model: nn.Sequential, x: torch.Tensor) -> None:
    plan = ms.torch.plan(model, (x,), budget="40%", device="here", planner="greedy")
    assert "measured on this CPU" in plan.report()
    assert (plan.chain.forward_time > 0).all()
    assert plan.result.device.d2h > 0
