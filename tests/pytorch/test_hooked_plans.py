"""Plans with hooks for saved tensors: budgets, warnings, errors and files."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch

from memsched.errors import InfeasibleError, InvalidInputError
from memsched.torch.hooked.plan import HookedPlan, plan_with_hooks
from memsched.torch.torch_plan import TorchPlan
from pytorch.hooked_models import MODELS, branching, planned


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
