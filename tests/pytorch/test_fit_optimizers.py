"""What `fit` makes of optimisers: parameters of others, hooks, steps that cannot run without data."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import memsched as ms
from memsched.torch.optimizer_state import distinct_bytes, optimizer_named
from memsched.torch.preflight import fit

pytestmark = pytest.mark.usefixtures("few_moves")

Loss = Callable[[torch.Tensor], torch.Tensor]


def layers(width: int = 32, depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))


def square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def allocated(model: Any, x: torch.Tensor, optimizer: Any, loss: Loss, learning: list[nn.Parameter]) -> int:
    """The peak of the second of two real steps, by what PyTorch's allocator hands out."""

    def step() -> None:
        loss(model(x)).backward()
        optimizer.step()
        for one in learning:
            one.grad = None

    def held() -> list[Any]:
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        state = [one for those in optimizer.state.values() for one in those.values()]
        return [x, *learning, *trained, *(one.grad for one in trained), *state]

    step()
    beside = distinct_bytes(held())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    now = most = 0
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    for one in sorted(events, key=lambda one: one.start_ns()):
        now += one.nbytes()
        most = max(most, now)
    return most + beside


def test_casts_under_autocast_count() -> None:
    """Autocast keeps those of weights until its region ends, so that one around all of `fit` made each only once."""
    model, x = layers(64, 5), torch.randn(64, 64)
    optimizer = torch.optim.SGD(model.parameters())

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return square(model(x))

    with warnings.catch_warnings():  # of GPUs of others
        warnings.simplefilter("ignore")
        without = torch.backends.mkldnn.flags(enabled=False)  # oneDNN has scratch of its own on some processors
        with without:
            real = allocated(forward, x, optimizer, lambda loss: loss, list(model.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        model(x)  # its casts are there
        found = fit(model, (x,), optimizer=optimizer, loss=square, memory="1GB", largest=False, time_limit=0.1)
    assert found.peak_memory == pytest.approx(real, rel=0.005)  # kernels have some scratch; the casts are 11 %


@pytest.mark.parametrize("gradient", [False, True])
def test_parameters_of_others_count(gradient: bool) -> None:
    """Their state did, and they did not."""
    model, x = layers(), torch.randn(64, 32)
    other = nn.Parameter(torch.randn(100, 100))
    if gradient:
        other.grad = torch.ones_like(other)
    optimizer = torch.optim.Adam([*model.parameters(), other])
    found = fit(model, (x,), optimizer=optimizer, loss=square, memory="1GB", largest=False)
    alone = torch.optim.Adam(model.parameters())
    without = fit(model, (x,), optimizer=alone, loss=square, memory="1GB", largest=False)
    assert found.steady.parameters == without.steady.parameters + other.nbytes
    assert found.steady.gradients == without.steady.gradients + other.nbytes * gradient
    assert (other.grad is not None) == gradient
    real = allocated(model, x, optimizer, square, list(model.parameters()))
    assert found.peak_memory == pytest.approx(real, abs=200)


def test_parameters_of_the_loss_count_once() -> None:
    model, x = layers(), torch.randn(64, 32)
    weights = nn.Parameter(torch.ones(64, 32))
    optimizer = torch.optim.SGD([*model.parameters(), weights], momentum=0.9)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return square(out * weights)

    found = fit(model, (x,), optimizer=optimizer, loss=loss, memory="1GB", largest=False)
    own = sum(one.nbytes for one in model.parameters())
    assert found.steady.parameters == found.steady.gradients == found.steady.optimizer == own + weights.nbytes
    real = allocated(model, x, optimizer, loss, [*model.parameters(), weights])
    assert found.peak_memory == pytest.approx(real, abs=200)


def test_plans_count_parameters_of_others_too() -> None:
    model, x = layers(64, 8), torch.randn(512, 64)
    other = nn.Parameter(torch.randn(100, 100))
    asked: dict[str, Any] = {"memory": "900kB", "device": "v100", "bandwidth": 0, "largest": False, "time_limit": 1}
    found = fit(model, (x,), optimizer=torch.optim.SGD(model.parameters()), **asked)
    more = fit(model, (x,), optimizer=torch.optim.SGD([*model.parameters(), other]), **asked, reserve=0)
    less = {**asked, "memory": 900_000 - other.nbytes}
    assert more.peak_memory == found.peak_memory + other.nbytes
    same = fit(model, (x,), optimizer=torch.optim.SGD(model.parameters()), **less)
    plans = [next(one for one in some.ways if one.name == "recompute") for some in (more, same)]
    assert plans[0].fits == plans[1].fits
    assert plans[0].peak_memory == plans[1].peak_memory + other.nbytes


def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)


class Keeps:
    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.kept = [one.clone() for one in optimizer.param_groups[0]["params"]]

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self(optimizer, args, kwargs)


class Around(torch.optim.Optimizer):
    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups, self.state, self.defaults = inner, inner.param_groups, inner.state, {}

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


def instead(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    before = optimizer.step

    @functools.wraps(before)
    def logged() -> None:
        before()

    optimizer.step = logged  # type: ignore[method-assign]  # as a logger does
    return optimizer


def around(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.register_step_pre_hook(clip)
    return Around(optimizer)


HOOKED: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "clip": lambda optimizer: optimizer.register_step_pre_hook(clip),
    "Keeps": lambda optimizer: optimizer.register_step_post_hook(Keeps()),
    "after": lambda optimizer: optimizer.register_step_post_hook(Keeps().after),
    "<lambda>": lambda optimizer: optimizer.register_step_post_hook(lambda *given: None),
    "step": instead,
    "clip, clip": lambda _: (register_optimizer_step_pre_hook(clip), register_optimizer_step_post_hook(clip)),
}


@pytest.fixture
def hooks_of_all() -> Iterator[None]:
    shared = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    before = [dict(those) for those in shared]
    yield
    for those, kept in zip(shared, before, strict=True):
        those.clear()
        those.update(kept)


@pytest.mark.usefixtures("hooks_of_all")
@pytest.mark.parametrize("name", HOOKED)
def test_code_around_a_step_is_refused_by_name(name: str) -> None:
    """What it held was not counted, in silence."""
    model, x = layers(), torch.randn(64, 32)
    optimizer = torch.optim.SGD(model.parameters())
    HOOKED[name](optimizer)
    with pytest.raises(ms.InvalidInputError, match=rf"the step of SGD also calls {name}, .* as reserve="):
        fit(model, (x,), optimizer=optimizer, memory="1MB", device="v100", largest=False)


def test_hooks_of_an_optimiser_within_another_are_refused() -> None:
    model, x = layers(), torch.randn(64, 32)
    with pytest.raises(ms.InvalidInputError, match="the step of SGD also calls clip"):
        fit(model, (x,), optimizer=around(torch.optim.SGD(model.parameters())), memory="1MB", device="v100")


def test_schedulers_and_the_hooks_of_pytorch_are_no_code_around_a_step() -> None:
    model, x = layers(), torch.randn(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked: dict[str, Any] = {"memory": "1MB", "device": "v100", "largest": False}
    plain = fit(model, (x,), optimizer=optimizer, **asked)
    handle = optimizer.register_step_pre_hook(clip)
    handle.remove()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    assert fit(model, (x,), optimizer=optimizer, **asked).steady == plain.steady
    bound: Any = optimizer.step
    optimizer.step = bound  # type: ignore[method-assign]  # as who puts it back leaves it
    assert fit(model, (x,), optimizer=optimizer, **asked).steady == plain.steady


@pytest.mark.parametrize("kind", ["Adafactor", "LBFGS"])
@pytest.mark.parametrize("stepped", [False, True])
def test_what_cannot_step_without_data_is_told_in_one_sentence(kind: str, stepped: bool) -> None:
    """It said to step it once, and refused it again after one step."""
    model, x = layers(), torch.randn(64, 32)
    optimizer = getattr(torch.optim, kind)(model.parameters())
    if stepped:
        square(model(x)).backward()
        optimizer.step(lambda: square(model(x)))
    asked: dict[str, Any] = {"memory": "1MB", "device": "v100", "largest": False}
    with pytest.raises(ms.InvalidInputError, match=f"a copy of {kind} cannot step tensors without data") as caught:
        fit(model, (x,), optimizer=optimizer, **asked)
    assert "once" not in str(caught.value)
    assert str(caught.value).endswith("give the bytes of its state as a number instead")
    assert fit(model, (x,), optimizer=4096, **asked).steady.optimizer == 4096


def test_where_the_step_fits_ways_are_listed_that_allow_larger_batches() -> None:
    """Recomputing was listed with fewer samples than plain PyTorch, or as many."""
    asked: dict[str, Any] = {"device": "v100", "loss": square, "time_limit": 1}
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)), nn.Linear(32, 4))
    for model, x in ((normed, torch.randn(64, 32)), (nn.Linear(32, 32), torch.randn(8, 32)), (layers(), x_of(64))):
        plain = fit(model, (x,), memory="1GB", **{**asked, "largest": False}).peak_memory
        found = fit(model, (x,), memory=plain * 3 // 2, **asked)
        first, *others = found.ways
        assert first.largest_batch
        assert all(one.largest_batch is None or one.largest_batch > first.largest_batch for one in others)


def x_of(batch: int) -> torch.Tensor:
    return torch.randn(batch, 32)


def test_the_state_of_an_optimiser_that_is_no_class_of_pytorch_is_given_in_bytes() -> None:
    assert optimizer_named("90MB", []) == 90_000_000
    with pytest.raises(ms.InvalidInputError, match="optimizer is '9 bits', which reads as bits"):
        optimizer_named("9 bits", [])
