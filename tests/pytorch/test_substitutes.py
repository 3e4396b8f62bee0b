"""What a step saves with the kernels of CUDA in place of the CPU's: hand counts, and CUDA itself where there is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.look import look
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.nests import tensors_of
from memsched.torch.substitutes import substitute_for_chains

HALF = torch.bfloat16
VOLTA, AMPERE, ADA, HOPPER = (7, 0), (8, 0), (8, 9), (9, 0)


class Run(nn.Module):
    """A function as a module, with a parameter to learn."""

    def __init__(self, run: Callable[..., torch.Tensor], *parameter: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.run = run
        self.parameter = nn.Parameter(torch.ones(*parameter, dtype=dtype)) if parameter else None

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.run(*args) if self.parameter is None else self.run(*args, self.parameter)


class Block(nn.Module):
    """A transformer's block as GPT-2 has it, with dropout everywhere."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


def captured(model: nn.Module, *args: torch.Tensor, capability: tuple[int, int] | None = AMPERE) -> Joint:
    """The joint graph, with the kernels of CUDA. Floating inputs need gradients."""
    args = tuple(arg.detach().requires_grad_(arg.is_floating_point()) for arg in args)
    prepare = partial(substitute_for_chains, capability=capability)
    seen = look(model.train(), args, {}, Options(budget="100%"), prepare=prepare)
    (visit,) = seen.visits
    return visit.joint


def saved(model: nn.Module, joint: Joint) -> list[tuple[Any, ...]]:
    """Shape, type and bytes of the storages that the backward reads, but for parameters and given gradients."""
    parameters = {(tuple(one.shape), one.dtype) for one in model.parameters()}
    sizes = Sizes(joint, ())
    made = {n for op in joint.operations if op.backward for n in op.writes}
    made |= {n for node in joint.tangents for n in joint.storages_of(node)}
    needed = dict.fromkeys(n for op in joint.operations if op.backward for n in op.reads if n not in made)
    found = []
    for n in needed:
        storage = joint.storages[n]
        examples = zip(joint.storages_of(storage.base), tensors_of(storage.base.meta["val"]), strict=True)
        example = dict(examples)[n]
        shape = tuple(example.shape)
        if storage.writer is not None or (shape, example.dtype) not in parameters:
            found.append((shape, example.dtype, sizes.bytes_of(n)))
    return found


def saved_like_cuda(
    model: nn.Module, *args: torch.Tensor, capability: tuple[int, int] = AMPERE
) -> list[tuple[Any, ...]]:
    return saved(model, captured(model, *args, capability=capability))


def total(parts: list[tuple[Any, ...]]) -> int:
    """Bytes, but for the seeds of dropout, which are scalars of 8 or 16 bytes."""
    return sum(size for shape, dtype, size in parts if dtype not in (torch.int64, torch.uint64))


def test_a_block_saves_what_a_hand_count_says() -> None:
    batch, length, width, heads = 2, 48, 32, 4
    parts = saved_like_cuda(Block(width, heads, 0.1), torch.empty(batch, length, width))
    one = batch * length * width
    numbers = {
        "the input, its norm and the mean and deviation of each row": 2 * one + 2 * batch * length,
        "query, key and value, in one storage": 3 * one,
        "the result of attention, and the logarithm of each row's sum, rows rounded up to 32": one + batch * heads * 64,
        "the sum, its norm and the mean and deviation of each row": 2 * one + 2 * batch * length,
        "before and after gelu": 8 * one,
    }
    masks = 2 * one  # one byte an element, after the projections of attention and of the rest
    assert total(parts) == 4 * sum(numbers.values()) + masks
    assert sum(size for _, dtype, size in parts if dtype is torch.bool) == masks
    assert len(parts) == 17  # two of them are the seeds of attention's dropout


@pytest.mark.parametrize("capability", [None, VOLTA])
def test_dropout_keeps_one_byte_an_element(capability: tuple[int, int] | None) -> None:
    """Here, too: AOTAutograd traces it so."""
    model = nn.Dropout(0.3)
    assert saved(model, captured(model, torch.ones(5, 7), capability=capability)) == [((5, 7), torch.bool, 35)]


def attention(
    *,
    dtype: torch.dtype = HALF,
    capability: tuple[int, int] = AMPERE,
    heads: tuple[int, int] = (4, 4),
    size: int = 16,
    rows: tuple[int, int] = (24, 24),
    mask: torch.Tensor | None = None,
    **options: Any,
) -> str:
    """The kernel that takes the place of scaled_dot_product_attention, whose backward is captured, too."""
    q, k, v = (
        torch.empty(2, h, r, size, dtype=dtype)
        for h, r in zip((heads[0], *heads[1:] * 2), (rows[0], *rows[1:] * 2), strict=True)
    )
    args = (q, k, v) if mask is None else (q, k, v, mask)
    options = {"enable_gqa": heads[0] != heads[1], **options}
    model = Run(lambda *xs: functional.scaled_dot_product_attention(*xs, **options))
    return kernel_of(captured(model, *args, capability=capability))


def kernel_of(joint: Joint) -> str:
    names = [str(op.node.target) for op in joint.operations if not op.backward and "scaled_dot" in str(op.node.target)]
    return names[0].split("_product_")[1].split("_attention")[0] if names else "math"


MASK = torch.ones(24, 24, dtype=torch.bool)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("flash", {}),
        ("flash", {"is_causal": True, "dropout_p": 0.1}),
        ("flash", {"heads": (4, 2)}),
        ("flash", {"dtype": torch.float16, "size": 12}),  # padded to 16
        ("flash", {"size": 256}),
        ("efficient", {"size": 256, "capability": ADA, "dropout_p": 0.1}),
        ("efficient", {"size": 264}),
        ("efficient", {"rows": (16, 24), "is_causal": True}),
        ("efficient", {"mask": MASK}),
        ("efficient", {"mask": torch.ones(2, 1, 24, 24, dtype=HALF)}),
        ("efficient", {"dtype": torch.float32}),
        ("efficient", {"dtype": torch.float32, "is_causal": True, "dropout_p": 0.1}),
        ("efficient", {"dtype": torch.float16, "capability": VOLTA}),
        ("efficient", {"dtype": torch.float32, "capability": VOLTA, "size": 3}),
        ("cudnn", {"capability": HOPPER}),
        ("cudnn", {"capability": HOPPER, "mask": MASK}),
        ("cudnn", {"capability": HOPPER, "heads": (4, 2), "mask": MASK}),
        ("flash", {"capability": HOPPER, "dropout_p": 0.1}),  # cuDNN counts in sixteenths
        ("efficient", {"capability": HOPPER, "dtype": torch.float32}),
        ("math", {"dtype": torch.float32, "heads": (4, 2)}),
        ("math", {"dtype": torch.float32, "heads": (4, 2), "dropout_p": 0.1}),
        ("math", {"heads": (4, 2), "mask": MASK}),
        ("math", {"capability": VOLTA}),  # no bfloat16 before Ampere
        ("math", {"dtype": torch.float32, "size": 6}),
        ("math", {"dtype": torch.float64}),
        ("math", {"dtype": torch.float32, "capability": (3, 5)}),
    ],
)
def test_the_kernel_of_attention_is_the_one_that_cuda_chooses(kernel: str, options: dict[str, Any]) -> None:
    assert attention(**options) == kernel


def test_attention_saves_its_arguments_its_result_and_a_number_a_row() -> None:
    q, k, v = (torch.empty(2, h, 40, 16, dtype=HALF) for h in (4, 2, 2))
    model = Run(lambda *x: functional.scaled_dot_product_attention(*x, enable_gqa=True))
    parts = saved_like_cuda(model, q, k, v)
    assert total(parts) == q.nbytes + k.nbytes + v.nbytes + q.nbytes + 4 * 2 * 4 * 40
    q, k, v = (torch.empty(2, 4, 40, 16) for _ in range(3))
    model = Run(lambda *x: functional.scaled_dot_product_attention(*x))
    assert total(saved_like_cuda(model, q, k, v)) == 4 * q.nbytes + 4 * 2 * 4 * 64  # rows rounded up to 32


@pytest.mark.parametrize(("length", "aligned"), [(24, 24), (20, 24)])
def test_a_mask_becomes_numbers_in_aligned_rows(length: int, aligned: int) -> None:
    q, k, v = (torch.empty(2, 4, length, 16) for _ in range(3))
    mask = torch.ones(2, 1, length, length, dtype=torch.bool)
    model = Run(lambda *x: functional.scaled_dot_product_attention(*x[:3], attn_mask=x[3]))
    rest = 4 * q.nbytes + 4 * 2 * 4 * 32
    assert total(saved_like_cuda(model, q, k, v, mask)) == rest + 4 * 2 * length * aligned


def test_a_learned_bias_is_not_for_cudnn() -> None:
    q, k, v = (torch.empty(2, 4, 24, 16, dtype=HALF) for _ in range(3))
    model = Run(lambda q, k, v, b: functional.scaled_dot_product_attention(q, k, v, b[None] * 2), 4, 24, 24, dtype=HALF)
    assert kernel_of(captured(model, q, k, v, capability=HOPPER)) == "efficient"


def test_autocast_decides_the_type_of_attention() -> None:
    q, k, v = (torch.empty(2, 4, 24, 16) for _ in range(3))
    model = Run(lambda *x: functional.scaled_dot_product_attention(*x))
    with torch.autocast("cpu", dtype=HALF):
        parts = saved_like_cuda(model, q, k, v)
    assert total(parts) == 4 * q.nbytes // 2 + 4 * 2 * 4 * 24


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_a_norm_by_squares_keeps_its_input() -> None:
    x = torch.empty(6, 10, 8)
    assert total(saved_like_cuda(nn.RMSNorm(8), x)) == x.nbytes + 2 * 4 * 60  # CUDA: 1 * 4 * 60
    mixed = Run(lambda x, w: functional.rms_norm(x, (8,), w), 8)  # CUDA decomposes it as the CPU does
    targets = {op.node.target for op in captured(mixed, torch.empty(6, 10, 8, dtype=HALF)).operations}
    assert torch.ops.aten.native_layer_norm.default not in targets


def test_log_sigmoid_keeps_its_input_alone() -> None:
    assert saved_like_cuda(nn.LogSigmoid(), torch.empty(5, 7)) == [((5, 7), torch.float32, 140)]


def test_a_block_that_is_computed_again_is_changed_too() -> None:
    """A checkpoint is a graph inside the graph."""

    class Again(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(functional.logsigmoid, x * 2, use_reentrant=False) * 2

    targets = [op.node.target for op in captured(Again(), torch.empty(5, 7)).operations]
    assert torch.ops.aten.softplus.default in targets
    assert torch.ops.aten.log_sigmoid_forward.default not in targets


def test_here_the_kernels_stay() -> None:
    model = Run(lambda *x: functional.scaled_dot_product_attention(*x))
    q, k, v = (torch.empty(2, 4, 24, 16) for _ in range(3))
    assert "cpu" in str([op.node.target for op in captured(model, q, k, v, capability=None).operations])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA to compare with")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cuda_saves_the_same(dtype: torch.dtype) -> None:
    model = nn.Sequential(Block(64, 4, 0.1), nn.LogSigmoid(), Block(64, 4, 0.0)).to(dtype)
    x = torch.randn(2, 48, 64, dtype=dtype)
    here = total(saved_like_cuda(model, x, capability=torch.cuda.get_device_capability()))
    model = model.cuda()
    there = total(saved(model, captured(model, x.cuda(), capability=None)))
    # CUDA keeps the mean and the deviation of each row in float32; four norms have 2 * 48 rows each.
    statistics = 4 * (2 * 48) * 2 * (4 - dtype.itemsize)
    assert there == here + statistics
