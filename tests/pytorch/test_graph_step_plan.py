"""The public way: a model and a budget to a plan that runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import time
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
import memsched.torch as mt
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.torch import graph_step
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.op_times import measure_operations
from memsched.torch.lanes import EmulatedLanes
from pytorch.graph_step_models import QUICK, Captured, captured, loss, make, planned_step, staying
from pytorch.steps import differences, outcome

MODULES = [module.name for module in pkgutil.iter_modules(graph_step.__path__, "memsched.torch.graph_step.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


def planned(name: str = "residual", **options: Any) -> tuple[Any, tuple[Any, ...], Any]:
    model, args = make(name)
    options = {"budget": "30%", "device": "v100:pcie3", "planner": "swap_all", **options}
    return model, args, mt.plan_step(model, args, loss, **options)


def test_a_plan_runs_and_is_what_autograd_does() -> None:
    model, args, plan = planned()
    assert plan.result.peak_memory <= plan.result.schedule.budget
    assert plan.problem == plan.result.problem
    plan.verify(*args)
    assert all(parameter.grad is None for parameter in model.parameters())
    other, _ = make("residual")
    value = loss(other(*args))
    value.backward()
    assert differences(outcome(other, value), outcome(model, plan.step(*args))) == []


def test_the_report_says_what_it_costs() -> None:
    _, _, plan = planned("transformer", planner="superneurons", budget="40%")
    text = plan.report()
    for part in ("memory", "budget", "without plan", "with plan", "resident", "roofline model of v100", "what travels",
                 "what is repeated", "to the host", "planned by superneurons"):  # fmt: skip
        assert part in text
    assert plan.result.recomputed[0] in text
    assert repr(plan).startswith("StepPlan(Result(planner='superneurons'")


def test_times_are_measured_here() -> None:
    _, args, plan = planned("dropout_mlp", device="here", bandwidth="12GB/s")
    assert "measured on this CPU" in plan.report()
    assert plan.result.device.d2h == 12e9
    assert all(op["choices"][0]["time"] > 0 for op in plan.result.graph.ops)
    plan.verify(*args)


def test_bytes_that_tracing_does_not_know_are_measured() -> None:
    """The LSTM of oneDNN keeps bytes for its backward that it has without data only in name."""
    from pytorch.handmade import lstm

    model, args = lstm()
    plan = mt.plan_step(model.train(), args, loss, budget="50%", planner="swap_all", bandwidth=1e12)
    plan.verify(*args)
    step = CapturedStep(model, args, loss)
    assert ms.peak_memory(step.graph) < ms.peak_memory(plan.problem)
    unmeasured = Captured(model=model, args=args, step=step)
    with pytest.raises(MemschedError, match="plan again, on this device"):
        planned_step(unmeasured, staying(unmeasured))


@pytest.mark.parametrize("offload", [False, True])
def test_operations_are_measured_without_a_trace(offload: bool) -> None:
    """Where a plain step does not fit, everything waits on the host between two operations."""
    c = captured("residual")
    program = c.step.program
    state = [*c.model.parameters(), *c.model.buffers()]
    before, numbers = [tensor.detach().clone() for tensor in state], torch.get_rng_state()
    found = measure_operations(program, state, EmulatedLanes(early=lambda: False), offload=offload, repeat=1)
    for operation, measured in zip(program.operations, found, strict=True):
        assert measured.seconds > 0
        assert measured.makes == tuple(program.blocks[number].bytes for number in operation.makes)
    assert all(map(torch.equal, before, state))
    assert torch.equal(numbers, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in c.model.parameters())


def test_rounds() -> None:
    model, args, plan = planned("dropout_mlp", planner="modnn", rounds=True, budget="5%", bandwidth="inf")
    assert isinstance(plan.problem, ms.GraphFamily)
    assert sum(times for _, times in plan.result.schedule.rounds) > 1
    assert "in rounds: " in plan.report()
    plan.verify(*args)
    plan.step(*args)
    assert model[0].weight.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_auto(name: str) -> None:
    _, args, plan = planned(name, planner="auto", budget="50%", time_limit=0.2, bandwidth=1e12)
    plan.verify(*args)


def test_under_autocast() -> None:
    model, args = make("transformer")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plan = mt.plan_step(model, args, lambda out: loss(out.float()), budget="30%", device="v100", planner="swap_all")
        plan.verify(*args)
        plan.step(*args)
    with pytest.raises(MemschedError, match="autocast to bfloat16"):
        plan.step(*args)


def test_too_small_a_budget_says_what_it_takes() -> None:
    with pytest.raises(InfeasibleError) as caught:
        planned("dropout_mlp", budget="1KiB")
    _, args, plan = planned("dropout_mlp", budget=caught.value.min_memory)
    plan.verify(*args)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"planner": "rotor"}, "planner is 'rotor'; a step as a graph takes auto or one of"),
        ({"budget": "6 apples"}, "the budget is '6 apples'"),
        ({"bandwidth": "fast"}, "bandwidth is 'fast'"),
        ({"rounds": 4}, "rounds is 4; give True or False"),
        ({"device": "abacus"}, "no machine is named 'abacus'"),
        ({"time_limit": -1.0}, "time_limit"),
    ],
)
def test_options_that_cannot_be_right(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInputError, match=what):
        planned("dropout_mlp", **options)


def test_arguments_that_cannot_be_right() -> None:
    model, args = make("dropout_mlp")
    for wrong, what in (
        ((3, args, loss), "model is a int"),
        ((model, args[0], loss), "args is a tensor"),
        ((model, args, "mse"), "loss is 'mse'"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            mt.plan_step(*wrong, budget="50%")


class Moody(nn.Module):
    """Depends on what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * time.perf_counter()


def test_verify_finds_what_differs() -> None:
    args = (torch.randn(4, 4),)
    model = Moody()
    options = {"budget": "100%", "device": "v100", "planner": "swap_opt"}
    with pytest.raises(MemschedError, match="planned step of Moody changes the output 0"):
        mt.plan_step(model, args, loss, **options)
    plan = mt.plan_step(model, args, loss, **options, verify=False)
    model.layer.weight.grad = kept = torch.ones(4, 4)
    with pytest.raises(MemschedError, match="planned step of Moody changes the output 0"):
        plan.verify(*args)
    assert model.layer.weight.grad is kept


def test_an_input_that_a_plan_drops_is_gone() -> None:
    """If the caller does not hold it."""

    class Gone:
        def __init__(self) -> None:
            self.alive: list[bool] = []

        def before(self, step: int, action: Any) -> None:
            self.alive.append(storages[0]() is not None)

        def after(self, step: int, action: Any, event: Any) -> None: ...

    def batch() -> torch.Tensor:
        x = torch.randn(8, 16)
        storages.append(weakref.ref(x.untyped_storage()))
        return x

    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).requires_grad_(False)
    model[2].requires_grad_(True)
    storages: list[Any] = []
    plan = mt.plan_step(
        model, (torch.randn(8, 16),), lambda out: out.mean(), budget="1GiB", planner="swap_opt", device="v100:pcie3"
    )
    gone = Gone()
    plan._runner.observe = lambda: gone
    plan.step(batch())
    dropped = next(k for k, step in enumerate(plan.result.schedule.steps) if step.get("free") == "input:0")
    assert gone.alive == [True] * (dropped + 1) + [False] * (len(gone.alive) - dropped - 1)
    assert not gone.alive[-1]
