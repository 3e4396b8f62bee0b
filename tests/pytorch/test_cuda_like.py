"""Saved bytes of programs changed to CUDA's operations: hand counts, and CUDA itself where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from memsched.errors import InvalidInputError
from memsched.torch.cuda_like import cuda_like

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


def program(model: nn.Module, *args: torch.Tensor) -> fx.GraphModule:
    return torch.export.export(model, args, strict=False).module(check_guards=False)


def saved(run: Callable[..., torch.Tensor], known: list[torch.Tensor], *args: torch.Tensor) -> list[tuple[Any, ...]]:
    """Shape, type and bytes of the distinct storages that one forward and backward saves, but for those known."""
    storages = {tensor.untyped_storage()._cdata for tensor in known}
    found: dict[int, tuple[Any, ...]] = {}
    kept = []  # so that no storage gets the name of a dead one

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            kept.append(tensor)
            found[storage._cdata] = (tuple(tensor.shape), tensor.dtype, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run(*args)
    out.sum().backward()
    return list(found.values())


def saved_like_cuda(
    model: nn.Module, *args: torch.Tensor, capability: tuple[int, int] = AMPERE, replaced: int | None = None
) -> list[tuple[Any, ...]]:
    """What the changed program saves on fake CPU tensors. The inputs need gradients, and count where they are saved."""
    graph = program(model, *args)
    count = cuda_like(graph, capability=capability)
    assert replaced is None or count == replaced
    fake = FakeTensorMode()
    inputs = [fake.from_tensor(arg).requires_grad_(arg.is_floating_point()) for arg in args]
    state = {name: fake.from_tensor(x) for name, x in [*graph.named_parameters(), *graph.named_buffers()]}
    with fake:
        return saved(lambda *xs: torch.func.functional_call(graph, state, xs), list(state.values()), *inputs)


def total(parts: list[tuple[Any, ...]]) -> int:
    """Bytes, but for the seeds of dropout, which are scalars of 8 or 16 bytes."""
    return sum(size for shape, dtype, size in parts if dtype not in (torch.int64, torch.uint64))


def test_a_block_saves_what_a_hand_count_says() -> None:
    batch, length, width, heads = 2, 48, 32, 4
    parts = saved_like_cuda(Block(width, heads, 0.1), torch.empty(batch, length, width), replaced=3)
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


def test_dropout_keeps_one_byte_an_element() -> None:
    x = torch.ones(5, 7)
    assert saved_like_cuda(nn.Dropout(0.3), x, replaced=1) == [((5, 7), torch.bool, 35)]
    assert saved_like_cuda(nn.Dropout(0.0), x, replaced=0) == []
    assert saved_like_cuda(Run(lambda x: functional.dropout(x * 2, 0.3, training=False)), x, replaced=0) == []


@pytest.mark.parametrize(
    "run",
    [
        lambda x: functional.dropout(x * 2, 0.3, inplace=True),
        lambda x: functional.dropout(x * 2, 1.0),
        lambda x: functional.alpha_dropout(x * 2, 0.3, training=True),
        lambda x: functional.dropout2d(x * 2, 0.3),
        lambda x: functional.feature_alpha_dropout(x * 2, 0.3, training=True),
    ],
)
def test_dropouts_that_cuda_does_not_fuse_stay(run: Callable[..., torch.Tensor]) -> None:
    saved_like_cuda(Run(run), torch.ones(2, 3, 4, 4), replaced=0)


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
    """The kernel that takes the place of scaled_dot_product_attention, whose backward is run, too."""
    q, k, v = (
        torch.empty(2, h, r, size, dtype=dtype)
        for h, r in zip((heads[0], *heads[1:] * 2), (rows[0], *rows[1:] * 2), strict=True)
    )
    args = (q, k, v) if mask is None else (q, k, v, mask)
    options = {"enable_gqa": heads[0] != heads[1], **options}
    model = Run(lambda *xs: functional.scaled_dot_product_attention(*xs, **options))
    graph = program(model, *args)
    assert cuda_like(graph, capability=capability) == 1
    names = [node.target.__name__ for node in graph.graph.nodes if "scaled_dot" in str(node.target)]
    saved_like_cuda(model, *args, capability=capability)
    (name,) = names
    return (
        name.removeprefix("_scaled_dot_product_")
        .removesuffix("_attention.default")
        .removeprefix("attention_")
        .removesuffix(".default")
    )


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
    graph = program(model, q, k, v)
    assert cuda_like(graph, capability=HOPPER) == 1
    assert "efficient" in graph.code
    assert saved_like_cuda(model, q, k, v, capability=HOPPER)


def test_autocast_decides_the_type_of_attention() -> None:
    q, k, v = (torch.empty(2, 4, 24, 16) for _ in range(3))
    model = Run(lambda *x: functional.scaled_dot_product_attention(*x))
    with torch.autocast("cpu", dtype=HALF):
        graph = program(model, q, k, v)
    assert cuda_like(graph) == 1
    fake = FakeTensorMode()
    with fake, torch.autocast("cpu", dtype=HALF):
        inputs = [torch.empty(2, 4, 24, 16, requires_grad=True) for _ in range(3)]
        parts = saved(graph, [], *inputs)
    assert total(parts) == 4 * q.nbytes // 2 + 4 * 2 * 4 * 24


def test_a_batch_that_may_vary() -> None:
    model, x = Block(32, 4, 0.1), torch.empty(4, 48, 32)
    batch = {"x": {0: torch.export.Dim.DYNAMIC}}
    graph = torch.export.export(model, (x,), dynamic_shapes=batch, strict=False).module(check_guards=False)
    assert cuda_like(graph) == 3
    fake = FakeTensorMode()
    state = {name: fake.from_tensor(tensor) for name, tensor in graph.named_parameters()}
    sizes = []
    for images in (2, 4):
        with fake:
            inputs = torch.empty(images, 48, 32, requires_grad=True)
            sizes.append(
                total(saved(lambda y: torch.func.functional_call(graph, state, (y,)), [*state.values()], inputs))
            )
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_a_norm_by_squares_keeps_its_input() -> None:
    x = torch.empty(6, 10, 8)
    assert total(saved_like_cuda(nn.RMSNorm(8), x, replaced=1)) == x.nbytes + 2 * 4 * 60  # CUDA: 1 * 4 * 60
    mixed = Run(lambda x, w: functional.rms_norm(x, (8,), w), 8)  # CUDA decomposes it as the CPU does
    saved_like_cuda(mixed, torch.empty(6, 10, 8, dtype=HALF), replaced=0)


def test_log_sigmoid_keeps_its_input_alone() -> None:
    assert saved_like_cuda(nn.LogSigmoid(), torch.empty(5, 7), replaced=1) == [((5, 7), torch.float32, 140)]


def test_graphs_inside_graphs_are_changed_too() -> None:
    class Partly(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = functional.dropout(x, 0.5)
            return functional.dropout(x * y, 0.5)

    saved_like_cuda(Partly(), torch.ones(3, 3), replaced=2)


def test_new_nodes_know_their_values_and_their_origin() -> None:
    graph = program(Block(32, 4, 0.1), torch.empty(2, 48, 32))
    cuda_like(graph)
    graph.graph.lint()
    for node in graph.graph.nodes:
        if node.op == "call_function":
            assert "val" in node.meta
            assert "nn_module_stack" in node.meta


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="the module is a Linear; give torch"):
        cuda_like(nn.Linear(2, 2))  # type: ignore[arg-type]
    graph = program(nn.Dropout(0.5), torch.ones(3))
    for node in graph.graph.nodes:
        node.meta.pop("val", None)
    with pytest.raises(InvalidInputError, match="node 'dropout' has no meta 'val'"):
        cuda_like(graph)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA to compare with")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cuda_saves_the_same(dtype: torch.dtype) -> None:
    model = nn.Sequential(Block(64, 4, 0.1), nn.LogSigmoid(), Block(64, 4, 0.0)).to(dtype)
    x = torch.randn(2, 48, 64, dtype=dtype)
    here = total(saved_like_cuda(model, x, capability=torch.cuda.get_device_capability()))
    model, x = model.cuda(), x.detach().cuda().requires_grad_()
    there = total(saved(model, list(model.parameters()), x))
    # CUDA keeps the mean and the deviation of each row in float32; four norms have 2 * 48 rows each.
    statistics = 4 * (2 * 48) * 2 * (4 - dtype.itemsize)
    assert there == here + statistics
