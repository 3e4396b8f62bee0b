"""What models and losses do that a trace may get wrong: each is compared with plain autograd."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import memsched.torch as mt
from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.capture import CaptureError
from memsched.torch.graph_step.captured import CapturedStep
from pytorch.graph_step_models import loss


class Constants(nn.Module):
    """Tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), torch.arange(4.0)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(x)) * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.saved_tensors[0].cos()


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return Sine.apply(self.layer(x))


class Checkpointed(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(dropout) if dropout else nn.Identity())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(checkpoint(self.inner, x, use_reentrant=False))


class Language(nn.Module):
    """Tokens and the same tokens one place on: two views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 6), nn.Linear(6, 10)

    def forward(self, tokens: Any, following: Any) -> Any:
        return F.cross_entropy(self.head(self.words(tokens)).flatten(0, 1), following.flatten())


class Attention(nn.Module):
    """Projects once where query, key and value are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        return self.inner(query, key, value)[0]


def norm_twice() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), norm, norm, nn.Linear(4, 2))


def frozen_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))


def stateless_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.RReLU(), nn.Linear(4, 2))


def encoder() -> nn.Module:
    """Drops out of a tensor whose dimensions are permuted."""
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.3)


def instance_norm() -> nn.Module:
    """Batch normalisation that writes to statistics which are no buffers, but what becomes one."""
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3, stride=2), norm, nn.Dropout2d(0.3), nn.AvgPool2d(2, ceil_mode=True)
    )


class OneMask(nn.Module):
    """Dropout under vmap fills a tensor that vmap has expanded."""

    def __init__(self, randomness: str) -> None:
        super().__init__()
        self.weight, self.randomness = nn.Parameter(torch.randn(4, 4)), randomness

    def forward(self, x: Any) -> Any:
        return torch.vmap(lambda row: F.dropout(self.weight @ row, 0.3), randomness=self.randomness)(x)


def norm_first() -> nn.Module:
    """Nobody asks the backward of its normalisation for the gradient of the input."""
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))


def rows() -> tuple[Any, ...]:
    return (torch.randn(5, 4),)


def shifted() -> tuple[Any, ...]:
    tokens = torch.randint(0, 10, (3, 9))
    return tokens[:, :-1], tokens[:, 1:]


def tokens() -> tuple[Any, ...]:
    return (torch.randn(2, 5, 8),)


def images() -> tuple[Any, ...]:
    return (torch.randn(3, 3, 7, 7),)


def thrice() -> tuple[Any, ...]:
    return (torch.randn(2, 5, 8),) * 3


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (Constants, rows),
        (OwnFunction, rows),
        (lambda: Checkpointed(0.0), rows),
        (Language, shifted),
        (Attention, thrice),
        (encoder, tokens),
        (instance_norm, images),
        (norm_twice, rows),
        (frozen_norm, rows),
        (stateless_norm, rows),
        (norm_first, rows),
        (lambda: OneMask("same"), rows),
        (lambda: OneMask("different"), rows),
    ],
)
@pytest.mark.parametrize("planner", ["swap_all", pytest.param("superneurons", marks=pytest.mark.slow)])
def test_traits(build: Callable[[], nn.Module], inputs: Callable[[], Any], planner: str) -> None:
    model, args = build().train(), inputs()
    before = [type(tensor) for tensor in (*model.parameters(), *model.buffers())]
    plan = mt.plan_step(model, args, loss, budget="200kB", device="v100:pcie3", planner=planner)
    plan.verify(*args)
    plan.step(*args)
    assert [type(tensor) for tensor in (*model.parameters(), *model.buffers())] == before


class CastTwice(nn.Module):
    """A weight that is used twice is cast once: its gradients add up in bfloat16."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(8, 8), own

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16) if self.own else contextlib.nullcontext():
            return self.layer(self.layer(x)).float()


@pytest.mark.parametrize("own", [True, False])
def test_casts_of_weights_are_cached_as_in_a_plain_step(own: bool) -> None:
    torch.manual_seed(0)
    planned, x = CastTwice(own), torch.randn(64, 8)
    plain = copy.deepcopy(planned)
    with contextlib.nullcontext() if own else torch.autocast("cpu", torch.bfloat16):
        plan = mt.plan_step(planned, (x,), loss, budget="200kB", device="v100:pcie3", planner="swap_all")
        plan.step(x)
        plan.verify(x)
        value = loss(plain(x))
    value.backward()
    for mine, its in zip(planned.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


class WholeInPart(nn.Module):
    """A part runs without autocast, as the positions of many decoders are turned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            x = self.second(x.float()) @ self.second.weight
        return self.third(x).float()


@pytest.mark.parametrize("verify", [True, False])
def test_a_part_without_autocast_stays_without(verify: bool) -> None:
    torch.manual_seed(0)
    planned, x = WholeInPart(), torch.randn(64, 8)
    plain = copy.deepcopy(planned)
    with torch.autocast("cpu", torch.bfloat16):
        plan = mt.plan_step(planned, (x,), loss, budget="200kB", device="v100:pcie3", planner="swap_all", verify=verify)
        found, wanted = plan.step(x), loss(plain(x))
    wanted.backward()
    assert torch.equal(found, wanted.detach())
    for mine, its in zip(planned.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


def test_a_loss_may_refer_to_tensors() -> None:
    """What they hold when the step runs counts."""
    model, args, labels = nn.Linear(4, 3), rows(), torch.tensor([0, 1, 2, 0, 1])
    plan = mt.plan_step(
        model, args, lambda out: F.cross_entropy(out, labels), budget="100kB", device="v100", planner="swap_all"
    )
    for _ in range(2):
        plan.verify(*args)
        assert torch.equal(plan.step(*args), F.cross_entropy(model(*args), labels).detach())
        labels.copy_(labels.flip(0))


def test_inputs_that_were_one_tensor_must_be_one() -> None:
    args = thrice()
    plan = mt.plan_step(Attention(), args, loss, budget="100kB", device="v100", planner="swap_all")
    with pytest.raises(InvalidInputError, match="pass them alike"):
        plan.step(args[0], args[0], args[0].clone())


@pytest.mark.parametrize(
    ("model", "args", "what"),
    [
        (Checkpointed(0.5), rows(), r"the backward draws random numbers .* torch\.utils\.checkpoint"),
        (nn.Embedding(10, 4, sparse=True), (torch.zeros(3, dtype=torch.long),), "sparse=False"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), rows(), "values of tensors"),
    ],
)
def test_steps_that_cannot_be_captured(model: Any, args: Any, what: str) -> None:
    with pytest.raises(CaptureError, match=what):
        CapturedStep(model, args, loss)


def test_hooks_of_parameters_are_refused() -> None:
    model, args = nn.Linear(4, 4), rows()
    plan = mt.plan_step(model, args, loss, budget="100kB", device="v100", planner="swap_all")
    hook = model.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(MemschedError, match="parameter 'bias' has hooks"):
        plan.step(*args)
    hook.remove()
    plan.step(*args)
