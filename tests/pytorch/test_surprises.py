"""What PyTorch does within its operations, and a list of them does not say: refused by name, never wrong in silence."""

from __future__ import annotations

import copy
import functools
import os
import random
import signal
import threading
from functools import partial
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch import plan, plan_step
from memsched.torch.capture import CaptureError
from memsched.torch.process_state import uninterrupted


class Warp(nn.Module):
    """The kernel of `affine_grid` multiplies matrices, which autocast casts."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(1, 2, 3))
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, x: Any) -> Any:
        grid = functional.affine_grid(self.theta.expand(2, 2, 3), list(x.shape), align_corners=False)
        return self.layer(functional.grid_sample(x, grid, align_corners=False))


class Pseudoinverse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Any) -> Any:
        return x * torch.linalg.pinv(self.weight).sum()


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(8, 8, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x, x)


@functools.cache
def table(length: int) -> torch.Tensor:
    return torch.arange(length).float()


class Cached(nn.Module):
    """What its first call computes serves all others."""

    known: ClassVar[dict[int, torch.Tensor]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        length = x.shape[-1]
        if length not in self.known:
            self.known[length] = torch.ones(length)
        return self.layer(x) + table(length) * self.known[length]


class Derived(Cached):
    """What it keeps for a step is computed from a parameter, and has a gradient."""

    def forward(self, x: Any) -> Any:
        if 0 not in self.known:
            self.known[0] = self.layer.bias / self.layer.bias.norm()
        return self.layer(x) * self.known[0]


class Softplus(nn.Module):
    """Its backward lays its result out in another way than PyTorch says of tensors without data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(16, 4), nn.Parameter(torch.randn(2, 4, 8))

    def forward(self, x: Any) -> Any:
        return functional.softplus(self.layer(x)).transpose(-1, -2) * self.scale


class Recurrent(nn.Module):
    """A GRU writes to parts of a tensor in place, and a sigmoid of a part rounds otherwise than one of a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(12, 16)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Seeded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            noise = torch.randn(x.shape)
        return self.layer(x + noise)


class Bins(nn.Module):
    """Takes numbers from 0 to 1; of others no bin exists."""

    def __init__(self) -> None:
        super().__init__()
        self.bins, self.layer = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(self.bins((x * 9).long()))


class SeededBeneath(Seeded):
    def forward(self, x: Any) -> Any:
        torch.default_generator.manual_seed(3)
        return self.layer(x + torch.randn(x.shape))


class Conjugated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x: Any) -> Any:
        return (x * self.scale.conj()).conj()


def mean_square(out: Any) -> Any:
    return out.float().square().mean()


def step_plan(model: nn.Module, x: torch.Tensor, *, verify: bool) -> Any:
    return plan_step(model, (x,), mean_square, budget="100%", device="v100:pcie3", planner="swap_all", verify=verify)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(("model", "shape"), [(Warp, (2, 3, 8, 8)), (Pseudoinverse, (3,)), (Bilinear, (2, 8))])
def test_kernels_that_autocast_changes_within(model: Any, shape: tuple[int, ...], verify: bool) -> None:
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(CaptureError, match="under autocast"):
        step_plan(model(), x, verify=verify)
    step_plan(model(), x, verify=verify)


def test_a_plan_of_such_a_kernel_has_hooks() -> None:
    model, x = Warp(), torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        with pytest.warns(UserWarning, match="under autocast"):
            plan(model, (x,), budget="100%", device="v100:pcie3").apply(model)
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("verify", [False, True])
def test_caches_that_a_first_call_fills_hold_real_tensors(verify: bool) -> None:
    """They used to be filled while the model was captured; DINOv3 was of no use any more."""
    x = torch.randn(4, 8)
    for planned in (partial(plan, device="v100:pcie3", budget="100%"), step_plan):
        table.cache_clear()
        Cached.known.clear()
        model = Cached()
        planned(model, x if planned is step_plan else (x,), verify=verify)
        assert type(model.eval()(x)) is torch.Tensor
        assert model.layer.weight.grad is None


def test_what_a_cache_holds_of_a_parameter_is_no_constant() -> None:
    x = torch.randn(4, 8)
    Cached.known.clear()
    with pytest.raises(MemschedError):
        step_plan(Derived(), x, verify=False)
    for verify in (False, True):
        Cached.known.clear()
        with pytest.raises(MemschedError, match="caches"):
            plan(Derived(), (x,), budget="100%", device="v100:pcie3", verify=verify)


@pytest.mark.parametrize("made", [random.Random, numpy.random.default_rng, numpy.random.RandomState])
def test_generators_of_a_models_own(made: Any) -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drawn = nn.Linear(8, 8), made(3)

        def forward(self, x: Any) -> Any:
            return self.layer(x) * float(self.drawn.random() if hasattr(self.drawn, "random") else self.drawn.rand())

    x, model = torch.randn(4, 8), Drawing()
    before = copy.deepcopy(model.drawn)
    with pytest.raises(CaptureError, match="random"):
        step_plan(model, x, verify=False)
    with pytest.warns(UserWarning, match="random numbers"):
        plan(model, (x,), budget="100%", device="v100:pcie3", verify=False)
    assert [model.drawn.random() for _ in range(3)] == [before.random() for _ in range(3)]


def test_parameters_without_a_shape_are_named() -> None:
    model, x = nn.Sequential(nn.LazyLinear(8), nn.ReLU()), torch.randn(4, 8)
    with pytest.raises(InvalidInputError, match=r"0\.weight"):
        step_plan(model, x, verify=True)
    with pytest.raises(InvalidInputError, match=r"0\.weight"):
        plan(model, (x,), budget="100%", device="v100:pcie3")


def test_a_comparison_sees_what_a_mode_would_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both steps used to run under a mode of dispatch, and there they were equal."""
    monkeypatch.setattr("memsched.torch.capture._CAST_WITHIN", set())
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MemschedError, match="changes the output"):
        step_plan(Warp(), torch.randn(2, 3, 8, 8), verify=True)


@pytest.mark.parametrize("verify", [False, True])
def test_a_result_that_is_laid_out_otherwise(verify: bool) -> None:
    with pytest.raises(MemschedError, match=r"aten\.view.*fails in the planned step"):
        step_plan(Softplus(), torch.randn(2, 8, 16), verify=verify)


def test_operations_are_measured_on_the_inputs_that_were_given() -> None:
    """They used to be made up, which an index does not survive."""
    made = step_plan(Bins(), torch.rand(8, 5), verify=True)
    made.step(torch.rand(8, 5))
    with pytest.raises(MemschedError, match="index out of range"):
        made.step(torch.rand(8, 5) + 5)


def test_writes_to_parts_of_a_tensor_are_planned_by_comparison_only() -> None:
    x = torch.randn(3, 7, 12)
    with pytest.raises(CaptureError, match="verify=True"):
        step_plan(Recurrent(), x, verify=False)
    model = Recurrent()
    plain = copy.deepcopy(model)
    try:
        made = step_plan(model, x, verify=True)
    except MemschedError as error:  # some processors' kernels round otherwise
        if "rounds otherwise by itself" not in str(error):
            raise
        return
    wanted = mean_square(plain(x))
    wanted.backward()
    assert torch.equal(made.step(x), wanted)
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert found.grad is not None
        assert expected.grad is not None
        assert torch.equal(found.grad, expected.grad)


@pytest.mark.parametrize("verify", [False, True])
def test_a_forward_that_seeds(verify: bool) -> None:
    with pytest.raises(CaptureError, match="set_rng_state"):
        step_plan(Seeded(), torch.randn(4, 8), verify=verify)
    model, x = Seeded(), torch.randn(4, 8)
    expected = model(x)
    with pytest.warns(UserWarning, match="random numbers"):
        plan(model, (x,), budget="100%", device="v100:pcie3", verify=verify).apply(model)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("verify", [False, True])
def test_a_forward_that_seeds_the_generator_itself(verify: bool) -> None:
    with pytest.raises(CaptureError, match="seeds or sets"):
        step_plan(SeededBeneath(), torch.randn(4, 8), verify=verify)


def test_conjugated_results_are_compared() -> None:
    x = torch.randn(4, 8)
    plan(Conjugated(), (x,), budget="100%", device="v100:pcie3")
    plan_step(Conjugated(), (x,), lambda out: out.abs().sum(), budget="100%", device="v100:pcie3", planner="swap_all")


def test_an_interrupt_waits_for_the_end_of_a_capture() -> None:
    """C++ of PyTorch's tracing calls Python where an exception ends the process."""
    done = []

    def interrupted() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    worker = threading.Thread(target=lambda: done.append(uninterrupted().__enter__() is None))
    worker.start()
    worker.join()
    assert len(done) == 2
