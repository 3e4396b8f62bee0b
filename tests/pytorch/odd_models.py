"""Odd models: what people write in a forward that is more than a list of operations. Each trains for three steps."""

from __future__ import annotations

import collections
import dataclasses
import random
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

WIDTH = 8
SETTINGS = {"scale": 2.0}
FACTOR = 1.5
calls: list[Any] = []


def lin() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def inputs(batch: int = 64) -> torch.Tensor:
    return torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(7))


class Odd(nn.Module):
    """Two layers before and two after what is odd; parts become attributes."""

    def __init__(self, middle: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = lin(), lin(), lin(), lin()
        self.middle = middle
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        x = self.second(self.first(x).tanh())
        x = self.middle(self, x, *args, **kwargs)
        return self.last(self.third(x).tanh()) if isinstance(x, torch.Tensor) else x


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and what `plan` makes of it: "stages", "hooks" or "error"."""

    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]] = lambda: (inputs(),)
    kwargs: dict[str, Any] = field(default_factory=dict)
    kind: str = "hooks"
    says: str = ""  # in the reason


CASES: dict[str, Case] = {}


def odd(middle: Callable[..., Any], kind: str = "hooks", **options: Any) -> None:
    parts = options.pop("parts", dict)
    name = options.pop("name", middle.__name__)
    CASES[name] = Case(make=lambda: Odd(middle, **parts()), kind=kind, **options)


# Functions with a backward of their own


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


rounded_by_alias = Rounded.apply


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(x: Any, weight: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.weight = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -ctx.weight * g, None


class Doubled(torch.autograd.Function):
    """Saves, marks dirty, and gives no gradient for one of its inputs."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        return x * y, x.sign()

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return g * ctx.saved_tensors[0] * 3, None


def straight_through(self: Any, x: Any) -> Any:
    return Rounded.apply(x * 3)


def straight_through_alias(self: Any, x: Any) -> Any:
    return rounded_by_alias(x * 3)


def reversal(self: Any, x: Any) -> Any:
    return Reversed.apply(x, 0.5)


def two_outputs(self: Any, x: Any) -> Any:
    y, sign = Doubled.apply(x, x.cos())
    return y + sign


def function_in_submodule(self: Any, x: Any) -> Any:
    return self.inner(x)


class Rounding(nn.Module):
    def forward(self, x: Any) -> Any:
        return Rounded.apply(x)


def function_under_checkpoint(self: Any, x: Any) -> Any:
    return checkpoint(lambda y: Rounded.apply(y * 2), x, use_reentrant=False)


def function_under_reentrant(self: Any, x: Any) -> Any:
    return checkpoint(lambda y: Rounded.apply(y * 2), x, use_reentrant=True)


class Inner(torch.autograd.Function):
    """Runs layers without a graph, and its backward runs them again and gives them their gradients itself."""

    @staticmethod
    def forward(ctx: Any, x: Any, layers: Any) -> Any:
        ctx.layers = layers
        ctx.save_for_backward(x)
        return layers(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.layers(x).backward(*gradients)
        return x.grad, None


def backward_within(self: Any, x: Any) -> Any:
    return Inner.apply(x, self.inner)


def straight_through_detach(self: Any, x: Any) -> Any:
    return x + (x.round() - x).detach()


odd(straight_through, says="Rounded")
odd(straight_through_alias, says="Rounded")
odd(reversal, says="Reversed")
odd(two_outputs, says="Doubled")
odd(function_in_submodule, parts=lambda: {"inner": Rounding()}, says="Rounded")
odd(function_under_checkpoint, says="Rounded")
odd(backward_within, says="Inner", parts=lambda: {"inner": lin()})
odd(function_under_reentrant, "error", says="use_reentrant")
odd(straight_through_detach, "stages")


# Hooks


def hook_on_activation(self: Any, x: Any) -> Any:
    x.register_hook(lambda g: g * 2)
    return x * 1


def hook_that_looks(self: Any, x: Any) -> Any:
    x.register_hook(lambda g: calls.append("hook"))
    return x * 1


def hook_on_node(self: Any, x: Any) -> Any:
    x = x.sin()
    x.grad_fn.register_hook(lambda into, out: (into[0] * 2,))
    return x


def hook_before_node(self: Any, x: Any) -> Any:
    x = x.sin()
    x.grad_fn.register_prehook(lambda out: (out[0] * 2,))
    return x


def multi_hook(self: Any, x: Any) -> Any:
    y = x.sin()
    torch.autograd.graph.register_multi_grad_hook((x, y), lambda grads: calls.append("multi"))
    return y + x


def retained(self: Any, x: Any) -> Any:
    x.retain_grad()
    return x * 2


def lossy_packing(self: Any, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
        return x.sin() * x


def saved_on_cpu(self: Any, x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return x.sin() * x


def with_hook(kind: str, hook: Callable[..., Any], where: str = "second") -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Odd(plain)
        target = getattr(model, where) if where else model
        getattr(target, f"register_{kind}")(hook)
        return model

    return make


def plain(self: Any, x: Any) -> Any:
    return x.tanh()


odd(hook_on_activation, says="register_hook")
odd(hook_that_looks, says="register_hook")
odd(hook_on_node)
odd(hook_before_node)
odd(multi_hook, says="register_multi_grad_hook")
odd(retained, says="retain_grad")
odd(lossy_packing, says="saved_tensors_hooks")
odd(saved_on_cpu, "stages")
odd(plain, "stages")
CASES |= {
    "forward_hook": Case(make=with_hook("forward_hook", lambda m, a, r: r * 2), says="forward hook on 'second'"),
    "forward_hook_that_looks": Case(
        make=with_hook("forward_hook", lambda m, a, r: calls.append(None)), says="forward hook"
    ),
    "forward_pre_hook": Case(make=with_hook("forward_pre_hook", lambda m, a: (a[0] * 2,)), says="pre-hook on 'second'"),
    "full_backward_hook": Case(
        make=with_hook("full_backward_hook", lambda m, i, o: (i[0] * 2,)), says="backward hook on 'second'"
    ),
    "full_backward_pre_hook": Case(make=with_hook("full_backward_pre_hook", lambda m, o: (o[0] * 2,)), says="pre-hook"),
    "hook_on_the_model": Case(make=with_hook("forward_hook", lambda m, a, r: r * 2, ""), kind="stages"),
    "pre_hook_on_the_model": Case(make=with_hook("forward_pre_hook", lambda m, a: (a[0] * 2,), ""), kind="stages"),
    "backward_hook_on_the_model": Case(make=with_hook("full_backward_hook", lambda m, i, o: None, ""), kind="stages"),
}


# What is kept in Python


def sets_attribute(self: Any, x: Any) -> Any:
    self.aux = x.square().mean()
    return x.tanh()


def sets_known_attribute(self: Any, x: Any) -> Any:
    self.aux = x.abs().mean()
    return x.tanh()


def counts(self: Any, x: Any) -> Any:
    self.steps += 1
    return x * self.steps


def appends(self: Any, x: Any) -> Any:
    self.seen.append(len(self.seen))
    return x * len(self.seen)


def memory_bank(self: Any, x: Any) -> Any:
    old, self.bank["last"] = self.bank.get("last"), x.detach()
    return x if old is None else x + old


def python_random(self: Any, x: Any) -> Any:
    return x * random.random()


def numpy_random(self: Any, x: Any) -> Any:
    return x * float(np.random.rand())


def layer_drop(self: Any, x: Any) -> Any:
    return x if random.random() < 0.5 else self.second(x)


def reads_global(self: Any, x: Any) -> Any:
    return x * FACTOR * SETTINGS["scale"]


def global_list(self: Any, x: Any) -> Any:
    calls.append(1)
    return x * len(calls)


odd(sets_attribute, says="'aux' is new")
odd(sets_known_attribute, parts=lambda: {"aux": 0.0}, says="'aux' was 0.0")
odd(counts, parts=lambda: {"steps": 0}, says="'steps' was 0")
odd(appends, parts=lambda: {"seen": []}, says="'seen")
odd(memory_bank, parts=lambda: {"bank": {}}, says="'bank")
odd(python_random, says="Python's random")
odd(numpy_random, says="numpy.random")
odd(layer_drop, says="Python's random")
odd(reads_global, "stages")
odd(global_list, says="calls")


# State


class Loose(nn.Module):
    """A tensor that is trained and is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = lin()
        self.loose = torch.ones(WIDTH, requires_grad=True)

    def forward(self, x: Any) -> Any:
        return (self.layer(x) * self.loose).tanh()


def momentum_encoder(self: Any, x: Any) -> Any:
    with torch.no_grad():
        for slow, fast in zip(self.slow.parameters(), self.second.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1
        target = self.slow(x)
    return x * target


def clipped_weights(self: Any, x: Any) -> Any:
    with torch.no_grad():
        self.inner.weight.clamp_(-0.1, 0.1)
    return self.inner(x)


def running_buffer(self: Any, x: Any) -> Any:
    self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x - self.mean


def replaced_buffer(self: Any, x: Any) -> Any:
    self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
    return x - self.mean


def plain_tensor_state(self: Any, x: Any) -> Any:
    self.center.mul_(0.9).add_(x.detach().mean(0))
    return x - self.center


class Buffered(Odd):
    def __init__(self, middle: Any) -> None:
        super().__init__(middle)
        self.register_buffer("mean", torch.zeros(WIDTH))


def checkpointed_buffer(self: Any, x: Any) -> Any:
    def counted(y: Any) -> Any:
        self.mean.add_(1)
        return y.exp() * self.mean.mean()

    return checkpoint(counted, x, use_reentrant=False)


def checkpointed_statistics(self: Any, x: Any) -> Any:
    return checkpoint(self.norm, x, use_reentrant=False)


def checkpointed_twice(self: Any, x: Any) -> Any:
    return checkpoint(lambda y: checkpoint(self.inner, y.tanh(), use_reentrant=False).sin(), x, use_reentrant=False)


def checkpointed_drawing(self: Any, x: Any) -> Any:
    return checkpoint(self.drop, x, use_reentrant=False, preserve_rng_state=False)


def flat(nested: Any) -> list[Any]:
    return [leaf for inner in nested for leaf in flat(inner)] if isinstance(nested, list) else [nested]


def recursive_helper(self: Any, x: Any) -> Any:
    return sum(flat([[x.tanh()], [x, [x.sin()]]]))


def shared_layers(self: Any, x: Any) -> Any:
    return self.first(self.second(x).relu())


def frozen_part(self: Any, x: Any) -> Any:
    return self.inner(x).sigmoid()


def unused(self: Any, x: Any) -> Any:
    return x.exp().clamp(max=3)


def tied() -> nn.Module:
    model = Odd(plain)
    model.last.weight = model.first.weight
    return model


def lora() -> nn.Module:
    model = Odd(lambda self, x: x + self.up(self.down(x)), down=nn.Linear(WIDTH, 2), up=nn.Linear(2, WIDTH))
    for part in (model.first, model.second):
        part.requires_grad_(False)
    return model


def normed(norm: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Odd(lambda self, x: self.inner(x), inner=norm(lin(), **options))

    return make


odd(running_buffer, "stages", name="tensor_as_buffer", parts=lambda: {"mean": torch.zeros(WIDTH)})
odd(plain_tensor_state, "stages", parts=lambda: {"center": torch.zeros(WIDTH)})
odd(checkpointed_statistics, says="writes to a buffer once more", parts=lambda: {"norm": nn.BatchNorm1d(WIDTH)})
odd(checkpointed_twice, says="checkpoint within torch.utils.checkpoint", parts=lambda: {"inner": lin()})
odd(checkpointed_drawing, says="preserve_rng_state=False", parts=lambda: {"drop": nn.Dropout(0.3)})
odd(recursive_helper, "stages")
odd(clipped_weights, parts=lambda: {"inner": lin()})
odd(momentum_encoder, parts=lambda: {"slow": lin().requires_grad_(False)})
odd(shared_layers, "stages")
odd(frozen_part, "stages", parts=lambda: {"inner": lin().requires_grad_(False)})
odd(unused, "stages", parts=lambda: {"idle": lin()})
CASES |= {
    "running_buffer": Case(make=lambda: Buffered(running_buffer), kind="stages"),
    "replaced_buffer": Case(make=lambda: Buffered(replaced_buffer)),
    "checkpointed_buffer": Case(make=lambda: Buffered(checkpointed_buffer), says="writes to a buffer once more"),
    "loose_tensor": Case(make=Loose, says="no parameter"),
    "tied": Case(make=tied, kind="stages"),
    "lora": Case(make=lora, kind="stages"),
    "weight_norm": Case(make=normed(nn.utils.parametrizations.weight_norm), kind="stages"),
    "spectral_norm": Case(make=normed(nn.utils.parametrizations.spectral_norm), kind="stages"),
    "old_weight_norm": Case(make=normed(nn.utils.weight_norm), says="WeightNorm"),
    "old_spectral_norm": Case(make=normed(nn.utils.spectral_norm), says="SpectralNorm"),
    "pruned": Case(
        make=lambda: Odd(function_in_submodule, inner=prune.l1_unstructured(lin(), "weight", 0.5)),
        says="pre-hook",
    ),
    "data_parallel": Case(make=lambda: nn.DataParallel(Odd(plain)), kind="stages"),
    "batch_norm": Case(make=lambda: Odd(function_in_submodule, inner=nn.BatchNorm1d(WIDTH)), kind="stages"),
    "part_in_eval": Case(make=lambda: partly_eval(), kind="stages"),
}


def partly_eval() -> nn.Module:
    return Odd(function_in_submodule, inner=nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)))


# Operations


def in_place(self: Any, x: Any) -> Any:
    x = x.sin()
    x[:, :2] *= 2
    x.add_(1).relu_()
    return x


def in_place_view(self: Any, x: Any) -> Any:
    x = x.clone()
    half = x[:, : WIDTH // 2]
    half.mul_(3)
    x.t()[0].zero_()
    return x


def data_write(self: Any, x: Any) -> Any:
    x = x.sin()
    x.data.mul_(2)
    return x


def views(self: Any, x: Any) -> Any:
    a, b = x.view(-1, 2, WIDTH // 2).unbind(1)
    return torch.cat([b.flip(0), a.expand_as(a)], 1).as_strided((x.shape[0], WIDTH), (WIDTH, 1))


def branches(self: Any, x: Any) -> Any:
    return x.sin() if x.sum() > 0 else x.cos()


def item(self: Any, x: Any) -> Any:
    return x * x.detach().abs().max().item()


def nonzero(self: Any, x: Any) -> Any:
    rows = torch.nonzero(x[:, 0] > 0).flatten()
    return x + x[rows].sum()


def masked(self: Any, x: Any) -> Any:
    return x + x[x > 0].sum()


def unique(self: Any, x: Any) -> Any:
    return x * torch.unique(x.detach().round()).numel()


def loop(self: Any, x: Any) -> Any:
    while x.norm() > 1:
        x = x / 2
    return x


def vmapped(self: Any, x: Any) -> Any:
    return torch.vmap(lambda row: self.second(row).tanh())(x)


def functional_grad(self: Any, x: Any) -> Any:
    return torch.func.grad(lambda y: self.second(y).sin().sum())(x) + x


def grad_inside(self: Any, x: Any) -> Any:
    y = self.second(x).tanh()
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0] + y


def jvp_inside(self: Any, x: Any) -> Any:
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


def no_grad_part(self: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = x.abs().mean()
    return x / (scale + 1)


def enable_grad_part(self: Any, x: Any) -> Any:
    with torch.no_grad(), torch.enable_grad():
        return x.sin()


def inference_part(self: Any, x: Any) -> Any:
    with torch.inference_mode():
        scale = x.detach().abs().mean()
    return x * float(scale)


def autocast_part(self: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = self.second(x)
    return x.float()


def complex_part(self: Any, x: Any) -> Any:
    z = torch.fft.rfft(x) * torch.view_as_complex(self.turn)
    return torch.fft.irfft(z, n=WIDTH) + z.abs().mean()


def drops(self: Any, x: Any) -> Any:
    return F.dropout(x, 0.3) + F.dropout(x, 0.3, training=self.training)


def noise(self: Any, x: Any) -> Any:
    return x + torch.randn_like(x) * torch.rand(())


def own_generator(self: Any, x: Any) -> Any:
    return x + torch.randn(x.shape, generator=self.generator)


def seeds(self: Any, x: Any) -> Any:
    torch.manual_seed(3)
    return x + torch.randn_like(x)


def checkpointed(self: Any, x: Any) -> Any:
    return checkpoint(self.second, x, use_reentrant=False).tanh()


def checkpointed_reentrant(self: Any, x: Any) -> Any:
    return checkpoint(self.second, x, use_reentrant=True).tanh()


def recurrent(self: Any, x: Any) -> Any:
    return self.rnn(x.unsqueeze(1))[0].squeeze(1)


def multihead(self: Any, x: Any) -> Any:
    return self.heads(x[None], x[None], x[None])[0][0]


def constant_tensor(self: Any, x: Any) -> Any:
    return x * torch.tensor([1.0, 2.0] * (WIDTH // 2)) + torch.arange(WIDTH)


def default_dtype(self: Any, x: Any) -> Any:
    return (x * torch.full((WIDTH,), 0.1)).float()


def sparse(self: Any, x: Any) -> Any:
    return torch.sparse.mm(torch.eye(x.shape[0]).to_sparse(), x)


def scatter(self: Any, x: Any) -> Any:
    return torch.zeros_like(x).index_add(0, torch.arange(x.shape[0]) // 2, x)


def sorts(self: Any, x: Any) -> Any:
    values, order = x.sort(dim=1)
    return values * order.float()


def einsum(self: Any, x: Any) -> Any:
    return torch.einsum("bi,bj->bij", x, x).sum(-1)


def linalg(self: Any, x: Any) -> Any:
    return x @ torch.linalg.qr(self.second.weight + 3 * torch.eye(WIDTH))[0]


def double(self: Any, x: Any) -> Any:
    return (x.double() * 0.1).cumsum(1).to(x.dtype)


def scripted(self: Any, x: Any) -> Any:
    return self.inner(x)


def numpy_inside(self: Any, x: Any) -> Any:
    return x * torch.from_numpy(np.ones(WIDTH, dtype=np.float32) * 2)


def through_numpy(self: Any, x: Any) -> Any:
    return x + torch.from_numpy(x.detach().numpy() * 2)


def prints_shape(self: Any, x: Any) -> Any:
    assert f"{tuple(x.shape)}"
    return x.reshape(x.shape[0], -1)


for _middle in (in_place, in_place_view, views, no_grad_part, drops, noise, checkpointed, constant_tensor):
    odd(_middle, "stages")
for _middle in (default_dtype, scatter, sorts, einsum, linalg, double, prints_shape, numpy_inside, autocast_part):
    odd(_middle, "stages")
for _middle in (branches, item, nonzero, masked, unique, loop, through_numpy):
    odd(_middle)
odd(data_write)
odd(vmapped)
odd(functional_grad, "error", says="saved tensor hooks")
odd(grad_inside, "error", says="second derivatives")
odd(jvp_inside)
odd(enable_grad_part, "stages")
odd(inference_part)
odd(own_generator, says="Generator", parts=lambda: {"generator": torch.Generator().manual_seed(1)})
odd(seeds)
odd(sparse)
odd(checkpointed_reentrant, "error", says="use_reentrant=False")
odd(complex_part, "stages", parts=lambda: {"turn": nn.Parameter(torch.ones(WIDTH // 2 + 1, 2))})
odd(recurrent, "stages", name="lstm", parts=lambda: {"rnn": nn.LSTM(WIDTH, WIDTH)})
odd(recurrent, "stages", name="gru", parts=lambda: {"rnn": nn.GRU(WIDTH, WIDTH, 2, dropout=0.2)})
odd(multihead, "stages", parts=lambda: {"heads": nn.MultiheadAttention(WIDTH, 2, batch_first=True)})


# Inputs and outputs


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Holder:
    value: Any
    other: Any = None


def takes_dict(self: Any, x: Any, more: Any) -> Any:
    return x + more["a"] * more["b"][0]


def takes_pair(self: Any, x: Any, pair: Any) -> Any:
    return x * pair.left + pair.right


def takes_holder(self: Any, x: Any, holder: Any) -> Any:
    return x * holder.value


def takes_number(self: Any, x: Any, by: Any) -> Any:
    return x * by if by is not True else x


def takes_keywords(self: Any, x: Any, *, scale: Any = None, mask: Any = None) -> Any:
    return x if scale is None else x * scale + mask


def takes_same(self: Any, x: Any, y: Any, z: Any) -> Any:
    return x + (y * 2 if y is z else y * 3)


def takes_normed(self: Any, x: Any, y: Any) -> Any:
    """The normalisation gives two gradients of y, and the product one more, which comes first."""
    return self.third((x + torch.rms_norm(y, (WIDTH,))).tanh()) * y


def gives_dict(self: Any, x: Any) -> Any:
    return {"x": x, "n": 3, "more": [x.sin(), None, "text"]}


def gives_pair(self: Any, x: Any) -> Any:
    return Pair(x.sin(), x.cos())


def gives_holder(self: Any, x: Any) -> Any:
    return Holder(x.sin(), 5)


def gives_namespace(self: Any, x: Any) -> Any:
    return types.SimpleNamespace(value=x)


def gives_twice(self: Any, x: Any) -> Any:
    y = x.sin()
    return y, y


def gives_input(self: Any, x: Any, y: Any) -> Any:
    return x + y, y


def gives_parameter(self: Any, x: Any) -> Any:
    return x.sum() * self.second.bias, self.second.weight


def gives_detached(self: Any, x: Any) -> Any:
    return x.sin(), x.detach(), x.argmax(1)


def gives_view(self: Any, x: Any) -> Any:
    return x[:2], x.t()


class WholeNumbers(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, WIDTH, **options), lin()

    def forward(self, ids: Any) -> Any:
        return self.head(self.words(ids)).tanh()


class NoInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.layer = nn.Parameter(torch.ones(3, WIDTH)), lin()

    def forward(self) -> Any:
        return self.layer(self.start).tanh()


class OneParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Any) -> Any:
        return x * self.scale


class HiddenModules(nn.Module):
    """Parts in a plain list and a plain dict: their parameters are not the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = lin()
        self.parts = [nn.Dropout(0.4), nn.Tanh()]

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = part(self.layer(x))
        return x


def curved(model: Any, h: Any) -> Any:
    """Forward-mode derivatives make zeros without memory."""
    return torch.func.hessian(lambda v: model.first(v).sin().sum())(h[0]) @ h[1] + h


class Solved(nn.Module):
    """The gradient of what is solved for has a dimension more than it."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.utils.parametrizations.orthogonal(lin(), orthogonal_map="cayley")

    def forward(self, x: Any) -> Any:
        return self.map(x).sin()


odd(takes_dict, "stages", args=lambda: (inputs(), {"b": [inputs() * 2], "a": inputs() + 1}))
odd(takes_pair, "stages", args=lambda: (inputs(), Pair(inputs() * 2, inputs() + 1)))
odd(takes_holder, args=lambda: (inputs(), Holder(3.0)))
odd(takes_number, "stages", args=lambda: (inputs(), 1))
odd(takes_keywords, "stages", kwargs={"mask": inputs() > 0, "scale": 2.0})
odd(takes_same, "stages", args=lambda: (inputs(), *[inputs() * 2] * 2))
odd(takes_normed, args=lambda: (inputs(), inputs().requires_grad_()), says="would add up the gradients of")
odd(gives_dict, "stages")
odd(gives_pair, "stages")
odd(gives_holder, "error", says="no result")
odd(gives_namespace, "error", says="no result")
odd(gives_twice, "stages")
odd(gives_input, "stages", args=lambda: (inputs(), inputs() * 2))
odd(gives_parameter, "stages")
odd(gives_detached, "stages")
odd(gives_view, "stages")
odd(plain, "stages", name="input_needs_gradient", args=lambda: (inputs().requires_grad_(),))
odd(plain, "stages", name="transposed_input", args=lambda: (inputs(WIDTH).t(),))
odd(curved, "stages")
odd(plain, "stages", name="empty_batch", args=lambda: (inputs(0),))
odd(plain, "stages", name="one_sample", args=lambda: (inputs(1),))
CASES |= {
    "whole_numbers": Case(make=WholeNumbers, args=lambda: (torch.arange(6).view(2, 3),), kind="stages"),
    "sparse_gradient": Case(make=lambda: WholeNumbers(sparse=True), args=lambda: (torch.arange(6),)),
    "renormed": Case(make=lambda: WholeNumbers(max_norm=1.0), args=lambda: (torch.arange(6),)),
    "solved": Case(make=Solved, kind="stages"),
    "no_input": Case(make=NoInput, args=tuple, kind="stages"),
    "one_parameter": Case(make=OneParameter, kind="stages"),
    "hidden_modules": Case(make=HiddenModules, kind="stages"),
    "ordered": Case(make=lambda: nn.Sequential(collections.OrderedDict(b=lin(), a=nn.Tanh(), c=lin())), kind="stages"),
    "scripted": Case(make=lambda: Odd(scripted, inner=torch.jit.trace(lin(), inputs())), kind="stages"),
}
