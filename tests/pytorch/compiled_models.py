"""Models that are trained under torch.compile(backend="memsched"): real ones, small, and ones with a trait each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from memsched.torch import zoo

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of the tests.

    Attributes
    ----------
    build : callable
        Makes the model.
    inputs : callable
        Makes (args, kwargs) of a step.
    loss : callable
        From what the model returns to a number.
    sums_differ : bool
        AOTAutograd adds gradients up in another order than autograd: only plans are compared with each other.
    packages : tuple of str
        It needs these besides torch.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    loss: Callable[[Any], torch.Tensor]
    sums_differ: bool = False
    packages: tuple[str, ...] = ()

    def check(self) -> None:
        """Skip where a package is missing."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        if self.packages:
            zoo.torchvision()  # which the others import


def own_loss(result: Any) -> torch.Tensor:
    """The loss that the model computed."""
    return result.loss


def squares(result: Any) -> torch.Tensor:
    """A loss of all that needs a gradient, outside the model."""
    nest = result.to_tuple() if hasattr(result, "to_tuple") else result
    leaves = [leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack([(k + 1) * leaf.abs().square().sum().float() for k, leaf in enumerate(leaves)]).sum()


CASES: dict[str, Case] = {}


# Real ones

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 100,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "dropout": 0.1,
}


def padded(batch: int = 2, length: int = 16) -> Inputs:
    """Tokens, a mask of padding, and labels."""
    ids = torch.randint(5, 100, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -5:] = 0
    return (), {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def huggingface(name: str, **config: Any) -> Callable[[], nn.Module]:
    """A model by its class, with the configuration that belongs to it."""

    def build() -> nn.Module:
        import transformers

        model = getattr(transformers, name)
        return model(model.config_class(**config))

    return build


def language(name: str, *, sums_differ: bool = False, inputs: Any = padded, **config: Any) -> Case:
    return Case(
        build=huggingface(name, **config),
        inputs=inputs,
        loss=own_loss,
        sums_differ=sums_differ,
        packages=("transformers",),
    )


def adapted() -> nn.Module:
    import peft

    base = huggingface("LlamaForCausalLM", **GROUPED)()
    return peft.get_peft_model(
        base, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    )


def with_checkpoints() -> nn.Module:
    model: Any = huggingface("LlamaForCausalLM", **GROUPED)()
    model.gradient_checkpointing_enable()
    return model


def diffusion() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        cross_attention_dim=16,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )


def translation() -> Inputs:
    _, words = padded()
    return (), {**words, "labels": torch.randint(5, 100, (2, 9))}


CASES |= {
    "llama": language("LlamaForCausalLM", **GROUPED),
    "qwen3": language("Qwen3ForCausalLM", **GROUPED, head_dim=8),
    "mistral": language("MistralForCausalLM", **GROUPED, sliding_window=8),
    "mixtral": language("MixtralForCausalLM", sums_differ=True, **GROUPED, num_local_experts=4),
    "bert": language("BertForMaskedLM", **SMALL),
    "t5": language(
        "T5ForConditionalGeneration",
        inputs=translation,
        d_model=32,
        d_ff=64,
        d_kv=8,
        num_layers=2,
        num_heads=4,
        vocab_size=100,
        decoder_start_token_id=0,
    ),
    "vit": language(
        "ViTForImageClassification",
        inputs=lambda: ((), {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 5, (4,))}),
        **{**SMALL, "vocab_size": 0},
        image_size=32,
        patch_size=8,
        num_labels=5,
    ),
    "whisper": language(
        "WhisperForConditionalGeneration",
        sums_differ=True,
        inputs=lambda: ((), {"input_features": torch.randn(2, 8, 40), "labels": torch.randint(5, 100, (2, 9))}),
        **WHISPER,
    ),
    "mamba": language(
        "MambaForCausalLM",
        sums_differ=True,
        inputs=lambda: ((), {"input_ids": torch.randint(5, 100, (2, 16)), "labels": torch.randint(5, 100, (2, 16))}),
        hidden_size=32,
        state_size=4,
        num_hidden_layers=2,
        vocab_size=100,
    ),
    "lora": Case(build=adapted, inputs=padded, loss=own_loss, packages=("transformers", "peft")),
    "with_checkpoints": Case(build=with_checkpoints, inputs=padded, loss=own_loss, packages=("transformers",)),
    "diffusion": Case(
        build=diffusion,
        inputs=lambda: ((torch.randn(2, 4, 16, 16), torch.tensor([3, 500]), torch.randn(2, 5, 16)), {}),
        loss=squares,
        packages=("transformers", "diffusers"),
    ),
}


def vision(name: str) -> Case:
    return Case(
        build=lambda: getattr(zoo.torchvision().models, name)(num_classes=10),
        inputs=lambda: ((torch.randn(2, 3, 64, 64),), {}),
        loss=squares,
        packages=("torchvision",),
    )


CASES |= {name: vision(name) for name in ("resnet18", "densenet121", "mobilenet_v3_small", "swin_t")}


# Traits

WIDTH, BATCH = 32, 256


def layers(count: int = 3, width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)))


class Trait(nn.Module):
    """Layers, something odd, and more layers; parts become attributes."""

    def __init__(self, middle: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.first, self.last, self.middle = layers(), layers(2), middle
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        x = self.middle(self, self.first(x))
        return self.last(x) if isinstance(x, torch.Tensor) else x


def one_input() -> Inputs:
    return (torch.randn(BATCH, WIDTH, requires_grad=True),), {}


def trait(
    middle: Callable[..., Any],
    *,
    name: str | None = None,
    inputs: Any = one_input,
    sums_differ: bool = False,
    **parts: Any,
) -> None:
    def build() -> nn.Module:
        return Trait(middle, **{key: part() for key, part in parts.items()})

    CASES[name or middle.__name__] = Case(build=build, inputs=inputs, loss=squares, sums_differ=sums_differ)


class Rounded(torch.autograd.Function):
    """Rounds, and lets gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def straight_through(self: Any, x: Any) -> Any:
    return Rounded.apply(x * 3)


def tensor_hook(self: Any, x: Any) -> Any:
    x = x.sin()
    x.register_hook(lambda g: g * 2)
    return x.cos()


def module_hook(self: Any, x: Any) -> Any:
    return self.hooked(x)


def hooked() -> nn.Module:
    part = layers(1)
    part.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
    return part


def drop_path(self: Any, x: Any) -> Any:
    for part in self.parts:
        x = x + part(x) * torch.bernoulli(torch.full((len(x), 1), 0.8)) / 0.8
    return x


def random_many(self: Any, x: Any) -> Any:
    x = F.dropout(x, 0.2) * torch.rand_like(x) + torch.randn(x.shape, device=x.device)
    x = x * torch.bernoulli(torch.full_like(x, 0.5)) + F.rrelu(x, training=True)
    return x * torch.empty_like(x).uniform_(-1, 1) + F.alpha_dropout(x, 0.1, training=True)[torch.randperm(len(x))]


def attention_with_dropout(self: Any, x: Any) -> Any:
    q = x.view(4, -1, 4, 8).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q.sin(), q.cos(), dropout_p=0.3).transpose(1, 2).reshape(-1, WIDTH)


def checkpointed(self: Any, x: Any) -> Any:
    return checkpoint(self.parts, x, use_reentrant=False)


def twice(self: Any, x: Any) -> Any:
    return self.first(x) * self.first(x.flip(0))


def under_autocast(self: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.parts(x).float()


def normalised(self: Any, x: Any) -> Any:
    return self.norm(x)


def counting(self: Any, x: Any) -> Any:
    self.count += 1
    return x * self.count


def cached(self: Any, x: Any) -> Any:
    """A cache that is read before and after it is written."""
    before = self.cache.sin() * x
    self.cache.mul_(0.5).add_(x.detach())
    self.cache[:4] = x.detach()[:4]
    return before.cos() * self.cache.cos()


def complex_numbers(self: Any, x: Any) -> Any:
    z = torch.fft.fft(x) * torch.view_as_complex(self.turn)
    return torch.fft.ifft(z.abs() * z).real + z.imag


def empty_tensors(self: Any, x: Any) -> Any:
    return torch.cat([x, self.last(x[:0])]).sin() + x[:, :0].sum()


def dtypes(self: Any, x: Any) -> Any:
    return self.wide(x.double()).to(torch.bfloat16).float() * (x > 0) + x.half().float().sum()


def without_dimensions(self: Any, x: Any) -> Any:
    return x * self.scale + (x.mean() * self.scale).exp()


def several_results(self: Any, x: Any) -> Any:
    y = x.sin()
    return {"x": x, "y": y, "part": y[:3], "turned": x.t(), "weight": self.last[0][0].weight, "n": 3, "sum": y.sum()}


def own_operation(self: Any, x: Any) -> Any:
    """An operation of the user's that draws, which PyTorch knows nothing of."""
    return torch.ops.memsched_tests.noisy(x)


def branch_that_draws(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: F.dropout(y.sin(), 0.5), lambda y: y.cos() * torch.rand_like(y), (x,))


def frozen(self: Any, x: Any) -> Any:
    return self.parts(x)


def strange_strides(self: Any, x: Any) -> Any:
    """PyTorch traces these with other strides than the kernels give."""
    return self.norm(x.view(8, -1, WIDTH).transpose(1, 2)).transpose(1, 2).reshape(-1, WIDTH).sin()


@torch.library.custom_op("memsched_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand_like(x)


@noisy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _saved(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


noisy.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0], setup_context=_saved)


for _middle in (straight_through, tensor_hook, random_many, attention_with_dropout, twice, empty_tensors):
    trait(_middle)
for _middle in (own_operation, branch_that_draws):
    trait(_middle)
trait(several_results, sums_differ=True)
trait(module_hook, hooked=hooked)
trait(drop_path, parts=lambda: nn.ModuleList(layers(3)))
trait(checkpointed, parts=layers)
trait(under_autocast, parts=layers)
trait(normalised, norm=lambda: nn.BatchNorm1d(WIDTH))
trait(normalised, name="cumulative_average", norm=lambda: nn.BatchNorm1d(WIDTH, momentum=None))
trait(strange_strides, norm=lambda: nn.BatchNorm1d(WIDTH))
trait(counting, count=lambda: torch.zeros((), dtype=torch.long))
trait(cached, cache=lambda: torch.zeros(BATCH, WIDTH))
trait(complex_numbers, turn=lambda: nn.Parameter(torch.randn(WIDTH, 2)))
trait(dtypes, wide=lambda: layers().double())
trait(without_dimensions, scale=lambda: nn.Parameter(torch.tensor(2.0)))
trait(frozen, parts=lambda: layers().requires_grad_(False))


class Adapter(nn.Module):
    """Frozen layers, and small ones beside them, which see their input through dropout: nobody reads its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.drop = layers().requires_grad_(False), nn.Dropout(0.1)
        self.down, self.up, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH), layers()

    def forward(self, x: Any) -> Any:
        return self.last(self.base(x) + self.up(self.down(self.drop(x))))


class UNet(nn.Module):
    """Convolutions with a skip connection at each of two levels, in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(3, 8), self.block(8, 16)])
        self.bottom, self.up = self.block(16, 16), nn.ModuleList([self.block(24, 8), self.block(32, 16)])
        self.to(memory_format=torch.channels_last)

    def block(self, before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))

    def forward(self, x: Any) -> Any:
        x, skips = x.contiguous(memory_format=torch.channels_last), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for block in reversed(self.up):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return x


class Recurrent(nn.Module):
    """Cells, step by step; Dynamo does not take whole recurrent layers."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = cell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        state, results = None, []
        for k in range(len(x)):
            state = self.cell(x[k], state)
            results.append(self.head(state[0] if isinstance(state, tuple) else state).sin())
        return torch.stack(results)


class Tied(nn.Module):
    """An embedding that is the output layer, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(50, WIDTH, **options), layers()
        self.head = nn.Linear(WIDTH, 50, bias=False)
        if not options:
            self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        return F.cross_entropy(self.head(self.layers(self.words(ids))).flatten(0, 1), ids.flatten())


class Sideways(nn.Module):
    """Keeps a second loss as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers(), layers()

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        self.aux = x.square().mean()
        return self.last(x.sin())


def words() -> Inputs:
    return (torch.randint(0, 50, (8, 16)),), {}


CASES |= {
    "unet": Case(build=UNet, inputs=lambda: ((torch.randn(2, 3, 16, 16),), {}), loss=squares),
    "gru_cells": Case(
        build=lambda: Recurrent(nn.GRUCell), inputs=lambda: ((torch.randn(4, 16, WIDTH),), {}), loss=squares
    ),
    "lstm_cells": Case(
        build=lambda: Recurrent(nn.LSTMCell), inputs=lambda: ((torch.randn(4, 16, WIDTH),), {}), loss=squares
    ),
    "adapter": Case(build=Adapter, inputs=lambda: ((torch.randn(BATCH, WIDTH),), {}), loss=squares),
    "tied": Case(build=Tied, inputs=words, loss=squares),
    "sparse_gradient": Case(build=lambda: Tied(sparse=True), inputs=words, loss=squares),
    "sideways": Case(build=Sideways, inputs=one_input, loss=squares),
}
QUICK = {
    *("straight_through", "tensor_hook", "random_many", "attention_with_dropout", "several_results", "own_operation"),
    *("normalised", "counting", "cached", "adapter", "tied", "sparse_gradient", "strange_strides"),
}
PARAMETERS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
