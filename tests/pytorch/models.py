"""Small versions of real networks, and hand-written ones, each with a trait that capture or execution may get wrong.

`CASES` holds them all; `PARAMETERS` is for `pytest.mark.parametrize("case", PARAMETERS)`: the fast ones run always, the
others with `-m slow`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from memsched.torch import zoo
from pytorch import handmade


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network of the tests.

    Attributes
    ----------
    name : str
    build : callable
        Makes (model in train mode, args); use `make`, which seeds.
    fast : bool
        Whether it belongs to the tests that always run.
    exportable : bool
        Whether torch.export can capture it in train mode.
    family : str or None
        The package that it needs besides torch.
    """

    name: str
    build: Callable[[], tuple[Any, tuple[Any, ...]]]
    fast: bool = False
    exportable: bool = True
    family: str | None = None

    def make(self, seed: int = 0) -> tuple[Any, tuple[Any, ...]]:
        """A new model in train mode and its args, the same for the same seed. Skips where the package is missing."""
        if self.family is not None and importlib.util.find_spec(self.family) is None:
            pytest.skip(f"{self.family} is not installed; it is needed for the model {self.name}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, args = self.build()
        return model.train(), args


def _zoo(spec: str, input: str, *, fast: bool = False, exportable: bool = True) -> Case:
    family, _, rest = spec.partition(":")

    def build() -> tuple[Any, tuple[Any, ...]]:
        built = zoo.build(spec, input)
        return built.model, built.args

    return Case(name=f"{family}-{rest.partition('?')[0]}", build=build, fast=fast, exportable=exportable, family=family)


def small_densenet() -> tuple[Any, tuple[Any, ...]]:
    """Two dense blocks; torchvision's own sizes have at least four."""
    models = zoo.torchvision().models
    model = models.DenseNet(growth_rate=8, block_config=(3, 3), num_init_features=16, num_classes=10)
    return model, (torch.randn(2, 3, 32, 32),)


def small_mvit() -> tuple[Any, tuple[Any, ...]]:
    """Three blocks, one of which pools; torchvision's own sizes take no smaller videos."""
    video = zoo.torchvision().models.video
    setting = partial(video.mvit.MSBlockConfig, input_channels=32, output_channels=32, kernel_q=[3, 3, 3])
    blocks = [
        setting(num_heads=1, kernel_kv=[3, 3, 3], stride_q=[1, 1, 1], stride_kv=[1, 2, 2]),
        setting(num_heads=2, kernel_kv=[3, 3, 3], stride_q=[1, 2, 2], stride_kv=[1, 1, 1]),
        setting(num_heads=2, kernel_kv=[3, 3, 3], stride_q=[1, 1, 1], stride_kv=[1, 1, 1]),
    ]
    model = video.MViT(
        (32, 32),
        4,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=10,
    )
    return model, (torch.randn(2, 3, 4, 32, 32),)


def _own(build: Callable[[], tuple[Any, tuple[Any, ...]]], *, fast: bool = True, family: str | None = None) -> Case:
    name = build.__name__ if family is None else f"{family}-{build.__name__}"
    return Case(name=name, build=build, fast=fast, exportable=build is not handmade.data_dependent, family=family)


_BERT = "num_hidden_layers=2&hidden_size=64&num_attention_heads=4&intermediate_size=128&vocab_size=200"
_LLAMA = f"{_BERT}&num_key_value_heads=2"

TORCHVISION = (
    _zoo("torchvision:alexnet?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:convnext_tiny?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:densenet121?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:densenet201?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:efficientnet_b0?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:efficientnet_v2_s?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:googlenet?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:inception_v3?num_classes=10", "2x3x299x299"),  # its auxiliary head takes nothing smaller
    _zoo("torchvision:maxvit_t?num_classes=10", "1x3x224x224"),  # whose windows fit multiples of 224
    _zoo("torchvision:mnasnet1_0?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:mobilenet_v2?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:mobilenet_v3_large?num_classes=10", "2x3x64x64", fast=True),
    _zoo("torchvision:r3d_18?num_classes=10", "2x3x4x32x32"),
    _zoo("torchvision:regnet_x_400mf?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:regnet_y_400mf?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:resnet101?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:resnet152?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:resnet18?num_classes=10", "2x3x64x64", fast=True),
    _zoo("torchvision:resnet50?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:resnext50_32x4d?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:shufflenet_v2_x1_0?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:squeezenet1_1?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:swin_t?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:swin_v2_t?num_classes=10", "2x3x64x64"),
    _zoo("torchvision:vgg16_bn?num_classes=10", "2x3x32x32"),
    _zoo("torchvision:vit_b_16?num_classes=10&image_size=32", "2x3x32x32"),
    _zoo("torchvision:wide_resnet50_2?num_classes=10", "2x3x64x64"),
    _own(small_densenet, family="torchvision"),
    _own(small_mvit, fast=False, family="torchvision"),
)

TIMM = (
    _zoo("timm:cait_xxs24_224?num_classes=10&img_size=64", "2x3x64x64"),
    _zoo("timm:coat_tiny?num_classes=10&img_size=64", "2x3x64x64"),
    _zoo("timm:convmixer_768_32?num_classes=10", "2x3x32x32"),
    _zoo("timm:deit_tiny_patch16_224?num_classes=10&img_size=64", "2x3x64x64", fast=True),
    _zoo("timm:efficientformer_l1?num_classes=10", "2x3x224x224"),
    _zoo("timm:mixer_s32_224?num_classes=10", "2x3x224x224"),
    _zoo("timm:nfnet_l0?num_classes=10", "2x3x64x64"),
    _zoo("timm:resnest14d?num_classes=10", "2x3x64x64"),
    _zoo("timm:xcit_nano_12_p16_224?num_classes=10", "2x3x64x64"),
)

TRANSFORMERS = (
    _zoo(f"transformers:bert?{_BERT}", "2x16:int", fast=True),
    _zoo("transformers:distilbert?n_layers=2&dim=64&n_heads=4&hidden_dim=128&vocab_size=200", "2x16:int"),
    _zoo(
        "transformers:gpt2?n_layer=2&n_embd=64&n_head=4&vocab_size=200&bos_token_id=0&eos_token_id=0",
        "2x16:int",
        fast=True,
    ),
    _zoo(f"transformers:llama?{_LLAMA}", "2x16:int", fast=True),
    _zoo(f"transformers:mistral?{_LLAMA}", "2x16:int"),
    _zoo(
        "transformers:opt?num_hidden_layers=2&hidden_size=64&num_attention_heads=4&ffn_dim=128&vocab_size=200"
        "&word_embed_proj_dim=64",
        "2x16:int",
        exportable=False,  # draws a number a layer to drop layers, and looks at it, even with a rate of 0
    ),
    _zoo(f"transformers:qwen2?{_LLAMA}", "2x16:int"),
    _zoo("transformers:t5?num_layers=2&d_model=64&num_heads=4&d_kv=16&d_ff=128&vocab_size=200", "2x16:int,2x12:int"),
    _zoo(f"transformers:xlm-roberta?{_BERT}", "2x16:int"),
)

HANDMADE = tuple(_own(build) for build in handmade.ALL)

CASES = (*TORCHVISION, *TIMM, *TRANSFORMERS, *HANDMADE)
PARAMETERS = [pytest.param(case, id=case.name, marks=() if case.fast else pytest.mark.slow) for case in CASES]
