"""Planned training of many models: the bits of plain training, and a counted peak within budget and prediction."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from memsched.errors import InfeasibleError, MemschedError
from memsched.torch.compiled import copies
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.options import read_options
from memsched.torch.compiled.unit import counted
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.lanes import EmulatedLanes
from pytorch.compiled_models import CASES, PARAMETERS, QUICK, Case, layers

NIGHTLY = bool(os.environ.get("MEMSCHED_NIGHTLY"))

CPU = torch.device("cpu")
BUDGETS = ("20%", "50%", "80%", "100%")
UNPLANNED = {"sparse_gradient": "sparse_coo"}
Record = dict[str, Any]


@dataclass
class Trained:
    """What steps computed, the plans that were made for them, and what each step counted."""

    records: list[Record]
    plans: list[CompiledPlan]
    peaks: list[int]


def made_since(known: list[CompiledPlan]) -> list[CompiledPlan]:
    return [plan for plan in plans() if all(plan is not before for before in known)]


def record(model: nn.Module, loss: torch.Tensor, args: Any) -> Record:
    """All that a step leaves behind."""
    found: Record = {"loss": loss.detach().clone(), "random": torch.get_rng_state()}
    for name, parameter in model.named_parameters():
        found[name] = parameter.detach().clone()
        found[f"gradient of {name}"] = None if parameter.grad is None else parameter.grad.clone()
    found |= {f"buffer {name}": buffer.detach().clone() for name, buffer in model.named_buffers()}
    leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    found |= {f"gradient of input {k}": leaf.grad for k, leaf in enumerate(leaves) if leaf.is_leaf}
    return found


def trained(case: Case, options: dict[str, Any] | None, steps: int = 2) -> Trained:
    """Train a new model; without options, plainly."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = case.build().train()
    run: Any = model
    if options is not None:
        run = torch.compile(model, backend="memsched", options=options)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    known = plans()
    records, peaks = [], []
    for step in range(steps):
        torch.manual_seed(step + 1)
        args, kwargs = case.inputs()
        optimizer.zero_grad()
        with counted(CPU) as meter:
            loss = case.loss(run(*args, **kwargs)) + getattr(model, "aux", 0)
            loss.backward()
        peaks.append(meter.peak)
        optimizer.step()
        records.append(record(model, loss, args))
    return Trained(records, made_since(known), peaks)


def feasible(case: Case, budget: str, **options: Any) -> Trained:
    """With a budget, or the next that is enough."""
    for larger in BUDGETS[BUDGETS.index(budget) :]:
        try:
            return trained(case, {"budget": larger, **options})
        except InfeasibleError:
            continue
    raise AssertionError("the plain step does not fit its own peak")


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def assert_same(wanted: list[Record], found: list[Record]) -> None:
    for step, (a, b) in enumerate(zip(wanted, found, strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            one, other = (v.to_dense() if v is not None and v.is_sparse else v for v in (a[name], b[name]))
            assert (one is None and other is None) or identical(one, other), f"{name} differs in step {step}"


def assert_within(found: Trained) -> None:
    """The first step keeps its budget, and the prediction is right, but for what is reserved and may not be needed."""
    if len(found.plans) != 1:  # several graphs are planned each by itself
        return
    (plan,) = found.plans
    peak = plan.process_bytes(found.peaks[0])
    assert peak <= plan.result.schedule.budget
    assert peak >= 0.99 * plan.result.peak_memory - plan.resident.random - plan.resident.updates - plan.resident.results


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARAMETERS)
def test_planned_training_has_the_bits_of_plain_training(name: str) -> None:
    case = CASES[name]
    case.check()
    wanted = trained(case, {"budget": "100%"} if case.sums_differ else None)
    budgets = ("20%",) if name in QUICK else ("20%", "50%", "80%")
    for found in (*(feasible(case, b) for b in budgets), feasible(case, "20%", bandwidth="1GB/s")):
        assert_same(wanted.records, found.records)
        assert_within(found)
        assert bool(found.plans) == (name not in UNPLANNED)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "reason"), UNPLANNED.items())
def test_what_no_plan_holds_runs_and_a_warning_says_why(name: str, reason: str) -> None:
    with pytest.warns(UnplannedWarning, match=reason):
        trained(CASES[name], {"budget": "50%"})


# Steps that are more than forward and backward


def compared(
    scenario: Callable[[nn.Module, Any], list[Any]],
    build: Callable[[], nn.Module],
    *,
    bandwidth: str = "1GB/s",
    **options: Any,
) -> list[CompiledPlan]:
    """Run a scenario plainly, with recomputation, and with offloading; the plans of the last.

    Copies are made at the earliest moment or at the latest: every night both, else one of them by the scenario.
    """
    torch.manual_seed(0)
    model = build()
    torch.manual_seed(1)
    wanted = scenario(model, model)
    made: list[CompiledPlan] = []
    moments = (True, False) if NIGHTLY else (zlib.crc32(scenario.__qualname__.encode()) % 2 == 0,)
    for early, asked in ((True, {}), *((early, {"bandwidth": bandwidth}) for early in moments)):
        copies.use(CPU, EmulatedLanes(early=lambda early=early: early))
        for budget in ("5%", *BUDGETS) if asked else BUDGETS[1:]:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model, known = build(), plans()
            told = {"budget": budget, **asked}
            run = torch.compile(model, backend="memsched", options=told, **options)
            torch.manual_seed(1)
            try:
                found = scenario(model, run)
            except InfeasibleError:
                continue
            made = made_since(known)
            break
        assert len(wanted) == len(found)
        for k, (a, b) in enumerate(zip(wanted, found, strict=True)):
            assert (a is None and b is None) or identical(a, b), f"{k} of {len(wanted)} differs"
    return made


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


class Residual(nn.Module):
    """The gradient that arrives is wanted again at the very end of the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.drop = layers(4), nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.layers(x)).sin()


class WithStatistics(nn.Module):
    """Layers around a normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(layers(), nn.BatchNorm1d(32), nn.Dropout(0.2), layers(2))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@pytest.mark.filterwarnings("ignore:the last step exceeded the budget")  # by what the caller holds
def test_gradients_that_the_caller_holds_stay_as_they_are() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        x = torch.randn(256, 32, requires_grad=True)
        arriving, result = torch.randn(256, 32), run(x)
        result.backward(arriving, retain_graph=True)
        first = gradients(model)
        result.backward(arriving, retain_graph=True)
        result.backward(arriving)
        return [*first, *gradients(model), x.grad, arriving]

    found = compared(scenario, Residual)
    assert any("tangents" in name for plan in found for name in plan.result.offloaded)


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_two_forwards_before_two_backwards(first: int) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        losses = [run(torch.randn(256, 32)).square().sum() for _ in range(2)]
        losses[first].backward()
        before = gradients(model)
        losses[1 - first].backward()
        return [*before, *gradients(model), *model.buffers()]

    compared(scenario, WithStatistics)


def test_accumulation_clipping_averages_and_evaluation_between() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        optimizer = torch.optim.AdamW(model.parameters())
        average = [p.detach().clone() for p in model.parameters()]
        found: list[Any] = []
        for _ in range(2):
            for size in (256, 100):  # the last batch is smaller
                run(torch.randn(size, 32)).square().mean().backward()
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).clone())
            found += gradients(model)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)
                model.eval()
                found.append(run(torch.randn(10, 32)).clone())
                model.train()
        return [*found, *average, *model.buffers()]

    compared(scenario, WithStatistics)


def test_a_scaler_of_gradients_and_autocast_around_the_model() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        scaler = torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run(torch.randn(256, 32)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return [loss.detach(), *gradients(model), *(p.detach() for p in model.parameters())]

    compared(scenario, WithStatistics)


class Attention(nn.Module):
    """A small transformer, for sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 32), nn.Linear(32, 20)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)

    def forward(self, ids: Any) -> Any:
        return nn.functional.cross_entropy(self.head(self.layer(self.words(ids))).flatten(0, 1), ids.flatten())


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_five_lengths_of_sequences(dynamic: bool | None) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        found: list[Any] = []
        for batch, length in ((8, 16), (8, 12), (6, 16), (4, 20), (3, 9)):
            loss = run(torch.randint(0, 20, (batch, length)))
            loss.backward()
            found.append(loss.detach())
        return [*found, *gradients(model)]

    compared(scenario, Attention, dynamic=dynamic)


class Changing(nn.Module):
    """Writes to two of its inputs, which may lie in each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers(), layers(2)

    def forward(self, x: Any, y: Any) -> Any:
        before = x.cos()
        x.add_(1)
        y[:4].mul_(2)
        h = self.first(y.sin()) * before
        x.mul_(h.detach())
        return self.last(h * x.sin() * y.cos())


@pytest.mark.parametrize("overlap", [pytest.param("none", marks=pytest.mark.slow), "same", "half"])
def test_inputs_that_are_changed_and_lie_in_each_other(overlap: str) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        base = torch.randn(512, 32)
        pairs = {"none": (base[:256], base[256:]), "same": (base, base), "half": (base[:256], base[128:384])}
        run(*pairs[overlap]).square().sum().backward()
        return [*gradients(model), base]

    compared(scenario, Changing)


def test_two_nets_and_two_losses() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.judge = layers(4), nn.Sequential(layers(3), nn.Linear(32, 1))

        def forward(self, noise: Any, real: Any, judging: bool) -> Any:
            made = self.maker(noise)
            if judging:
                return (self.judge(real) - 1).square().mean() + self.judge(made.detach()).square().mean()
            return (self.judge(made) - 1).square().mean()

    def scenario(model: Any, run: Any) -> list[Any]:
        optimizers = [torch.optim.Adam(part.parameters()) for part in (model.judge, model.maker)]
        found: list[Any] = []
        for _ in range(2):
            noise, real = torch.randn(2, 256, 32)
            for optimizer, judging in zip(optimizers, (True, False), strict=True):
                optimizer.zero_grad()
                loss = run(noise, real, judging)
                loss.backward()
                found += [loss.detach(), *gradients(model)]
                optimizer.step()
        return found

    compared(scenario, Pair)


@pytest.mark.filterwarnings("ignore")  # of what Dynamo imports while it traces
def test_a_whole_step_as_a_function() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        options = {"budget": "80%"}
        compiled = step if run is model else torch.compile(step, backend="memsched", options=options)
        return [*(compiled(torch.randn(256, 32)) for _ in range(3)), *(p.detach() for p in model.parameters())]

    compared(scenario, WithStatistics)


def test_forwards_without_backwards_leave_nothing() -> None:
    model = layers()
    run = torch.compile(model, backend="memsched", options={"budget": "10%", "bandwidth": "1GB/s"})
    x = torch.randn(256, 32)
    with counted(CPU) as meter:
        live = []
        for _ in range(100):
            result = run(x)
            live.append(meter.live)
    assert len(set(live[1:])) == 1
    del result
    assert meter.live == live[0] - live[-1] or meter.live <= live[0]


def test_a_plan_for_each_state_of_the_gradients_keeps_the_budget() -> None:
    """Some parameters have gradients, then all: a plan beside fewer would not leave room for them."""
    torch.manual_seed(0)
    model = nn.Sequential(layers(4, 64), layers(4, 64))
    x, known = torch.randn(1024, 64), plans()
    of_parameters = [parameter.nbytes for parameter in model.parameters()]
    budget = 2_100_000 + sum(of_parameters)
    run = torch.compile(model, backend="memsched", options={"budget": budget})
    for having in (0, 8, 16, 4, 0):
        for k, parameter in enumerate(model.parameters()):
            parameter.grad = torch.zeros_like(parameter) if k < having else None
        with counted(CPU) as meter:
            run(x).sum().backward()
        assert meter.peak + x.nbytes + sum(of_parameters) + sum(of_parameters[:having]) <= budget
    held = [plan.resident.gradients for plan in made_since(known)]
    assert {0, sum(of_parameters[:8])} <= set(held)


def test_operations_with_effects_are_not_tried() -> None:
    """Times are measured on made-up values, but not of what must run once."""

    class Asserting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def forward(self, x: Any) -> Any:
            x = self.layers(x)
            torch._assert_async(x.sum() < 1e9)  # made up, this would be false
            return x.sin()

    with warnings.catch_warnings():
        warnings.simplefilter("error", UnplannedWarning)
        compared(lambda model, run: [run(torch.randn(256, 32)).sum().backward(), *gradients(model)], Asserting)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (None, "needs a budget"),
        ({}, "needs a budget"),
        ({"bugdet": "5GiB"}, "did you mean 'budget'"),
        ({"budget": None}, "not a whole number of bytes"),
        ({"budget": "many"}, "not a number with a unit"),
        ({"budget": "50%", "mode": "fast"}, "must be one of eager"),
        ({"budget": "50%", "planner": "best"}, "planner is 'best'"),
        ({"budget": "50%", "planner": "rotor"}, "planner is .rotor., which plans chains"),
        ({"budget": "50%", "optimizer": "adam"}, "optimizer is 'adam'"),
        ({"budget": "x%"}, "not a number with a unit"),
        ({"budget": "100B"}, "too small for the step"),
    ],
)
def test_wrong_options_end_in_one_sentence(options: Any, says: str) -> None:
    def use() -> None:
        read_options(options)  # as the backend does first; an error there leaves PyTorch's Dynamo in an odd state
        torch.compile(layers(1), backend="memsched", options=options)(torch.randn(4, 32)).sum().backward()

    with pytest.raises(MemschedError, match=says):
        use()


def test_users_see_the_sentence() -> None:
    code = "import torch; torch.compile(torch.nn.Linear(2, 2), backend='memsched')(torch.ones(2, 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'InvalidInputError: the backend "memsched" needs a budget' in done.stderr


def test_every_model_has_a_name_of_its_own() -> None:
    assert len(PARAMETERS) == len(CASES) == len(set(CASES))
    assert set(CASES) >= QUICK >= set(UNPLANNED)
