"""Generated code calls PyTorch's own bindings: the same operations run, and views that change nothing are not made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from memsched.errors import MemschedError
from memsched.torch.compiled.calls import _FUNCTIONS, cheapen, dropout, dropout_backward
from memsched.torch.compiled.private import check_release

aten = torch.ops.aten
X, Y, B = torch.randn(4, 6), torch.randn(6, 4), torch.randn(4)
IMAGE, KERNEL = torch.randn(1, 2, 5, 5), torch.randn(4, 2, 3, 3)
ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    aten.add.Tensor: (X, 0.5),
    aten.addmm.default: (B, X, Y),
    aten.bmm.default: (X[None], Y[None]),
    aten.cat.default: ([X, X], 1),
    aten.convolution.default: (IMAGE, KERNEL, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    aten.detach.default: (X,),
    aten.div.Tensor: (X, X),
    aten.embedding.default: (X, torch.tensor([1, 2]), 0),
    aten.gelu.default: (X,),
    aten.mm.default: (X, Y),
    aten.mul.Tensor: (X, 2.0),
    aten.native_layer_norm.default: (X, [6], None, None, 1e-5),
    aten.neg.default: (X,),
    aten.permute.default: (X, [1, 0]),
    aten.relu.default: (X,),
    aten.rsqrt.default: (X.abs(),),
    aten.silu.default: (X,),
    aten.sub.Tensor: (X, X),
    aten.sum.dim_IntList: (X, [0], True),
    aten.t.default: (X,),
    aten.transpose.int: (X, 0, 1),
    aten.unsqueeze.default: (X, -1),
    aten.where.self: (X > 0, X, torch.tensor(0.0)),
}


class Calls(TorchDispatchMode):
    """What reaches the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operation", _FUNCTIONS, ids=str)
def test_a_binding_runs_the_same_operation(operation: Any) -> None:
    found = []
    for call in (operation, _FUNCTIONS[operation]):
        torch.manual_seed(0)
        with torch.no_grad(), Calls() as calls:
            found.append((call(*ARGUMENTS[operation]), calls.seen))
    (expected, wanted), (value, seen) = found
    assert seen == wanted
    torch.testing.assert_close(value, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("layout", [(0, 1, 2), (2, 0, 1)])
def test_dropout_has_the_bits_and_the_layout_of_the_operation(
    dtype: torch.dtype, p: float, layout: tuple[int, ...]
) -> None:
    x = torch.randn(8, 16, 24).to(dtype).permute(layout)
    x.flatten()[:3] = torch.tensor([-0.0, float("inf"), float("nan")])
    gradient = torch.randn(8, 16, 24).to(dtype).permute(layout)
    torch.manual_seed(0)
    expected, mask = aten.native_dropout.default(x, p, True)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    found, found_mask = dropout(x, p, True)
    assert torch.equal(after, torch.get_rng_state())
    own = torch.Generator().manual_seed(0)
    again, again_mask = dropout(x, p, True, generator=own)
    assert torch.equal(after, own.get_state())
    wanted = aten.native_dropout_backward.default(gradient, mask, 1.0 / 0.9)
    back = dropout_backward(gradient, found_mask, 1.0 / 0.9)
    pairs = ((found, expected), (again, expected), (found_mask, mask), (again_mask, mask), (back, wanted))
    for one, other in pairs:
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def traced(build: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    graph.output(build(graph, x))
    before = fx.GraphModule(torch.nn.Module(), graph)
    after = fx.GraphModule(torch.nn.Module(), fx.Graph())
    after.graph = fx.Graph()
    after.graph.output(after.graph.graph_copy(graph, {}))
    for old, new in zip(graph.nodes, after.graph.nodes, strict=True):
        new.meta = dict(old.meta)
    cheapen(after.graph)
    after.graph.lint()
    after.recompile()
    return before, after


def names(module: fx.GraphModule) -> list[str]:
    return [getattr(n.target, "__name__", str(n.target)) for n in module.graph.nodes if n.op.startswith("call")]


def test_a_linear_layer_is_one_call_and_its_bias_is_summed_without_a_view() -> None:
    """They reach the same kernels."""
    weight, bias = torch.randn(3, 6), torch.randn(3)

    def build(graph: fx.Graph, x: fx.Node) -> Any:
        parts = [graph.placeholder("weight"), graph.placeholder("bias")]
        parts.append(graph.call_function(aten.t.default, (parts[0],)))
        made = graph.call_function(aten.addmm.default, (parts[1], x, parts[2]))
        total = graph.call_function(aten.sum.dim_IntList, (made, [0], True))
        view = graph.call_function(aten.view.default, (total, [3]))
        for node, value in zip(
            (*parts, made, total), (weight, bias, weight.t(), X @ weight.t(), bias[None]), strict=True
        ):
            node.meta["val"] = value
        return (view,)

    modules = traced(build)
    found = []
    for module in modules:
        with torch.no_grad(), Calls() as calls:
            found.append((module(X, weight, bias)[0], calls.seen))
    assert names(modules[1]) == ["linear", "sum"]
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == [*found[1][1], aten.view.default]


def test_views_that_change_nothing_are_not_made() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> Any:
        twice = graph.call_function(aten.t.default, (graph.call_function(aten.t.default, (x,)),))
        same = graph.call_function(aten.view.default, (graph.call_function(aten.detach.default, (twice,)), [4, 6]))
        flat = graph.call_function(aten.view.default, (graph.call_function(aten.view.default, (same, [2, 12])), [24]))
        return (graph.call_function(aten.neg.default, (flat,)),)

    before, after = traced(build)
    assert torch.equal(before(X)[0], after(X)[0])
    assert names(after) == ["view", "neg"]


def test_results_stay_tensors_of_their_own() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> Any:
        y = graph.call_function(aten.neg.default, (x,))
        return y, graph.call_function(aten.detach.default, (y,)), graph.call_function(aten.detach.default, (x,))

    before, after = traced(build)
    results = after(X)
    assert len({id(one) for one in (X, *results)}) == 4
    assert all(torch.equal(a, b) for a, b in zip(before(X), results, strict=True))


def test_transposes_of_other_dimensions_stay() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> Any:
        cube = graph.call_function(aten.view.default, (x, [2, 3, 4]))
        once = graph.call_function(aten.transpose.int, (cube, 0, 1))
        return (graph.call_function(aten.transpose.int, (once, 1, 2)),)

    before, after = traced(build)
    assert torch.equal(before(X)[0], after(X)[0])


def test_releases_of_pytorch_that_nobody_tried_are_refused_by_name() -> None:
    for known in ("2.12.1", "2.13.0+cpu", "2.14.1+cu130"):
        check_release(known)
    for unknown in ("2.11.0", "2.15.0", "2.2.0", "3.0.0a0"):
        with pytest.raises(MemschedError, match=f"here is {unknown}"):
            check_release(unknown)


def detached_part(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = (x @ w).sin()
    part = made[:, 1:3]
    return part.detach(), part[0]


def views_of_detached(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = (x @ w).sin()
    part = made[:, 1:3].detach()
    return part, part[0], part.t().t(), made[0]


def detached_whole(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = (x @ w).sin()
    whole = made.t().t().detach().view(4, 8)
    return whole, whole[0], made


@pytest.mark.parametrize("step", [detached_part, views_of_detached, detached_whole])
def test_detached_results_stay_detached(step: Any) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    expected = [one.requires_grad for one in step(x, w)]
    found = torch.compile(step, backend="memsched", options={"budget": "100%"})(x, w)
    assert [one.requires_grad for one in found] == expected
    found[0].mul_(0.9)  # as states that are carried on


SCALARS: dict[str, Any] = {
    "a mean of one number": lambda x, w: (x @ w).sum().mean(),
    "views of one number": lambda x, w: (x @ w).sum().view(()).expand([]).mean(),
    "a backward with effects": lambda x, w: torch.linalg.eigvals(x.t() @ x @ w).abs().sum(),
}


@pytest.mark.parametrize("name", SCALARS)
def test_gradients_of_one_number(name: str) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    for budget in ("100%", "0%"):
        found = []
        for backend, options in (("aot_eager", None), ("memsched", {"budget": budget})):
            torch._dynamo.reset()
            torch.compile(SCALARS[name], backend=backend, options=options)(x, w).backward()
            found.append(w.grad)
            w.grad = None
        assert torch.equal(*found)


class Added(TorchFunctionMode):
    """Adds one to each product."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made + 1 if func is torch.mul else made


@pytest.mark.parametrize("product", [torch.mul, torch.Tensor.mul])
def test_function_modes_apply_once(product: Any) -> None:
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    planned = torch.compile(lambda x: product(x, w).sum(), backend="memsched", options={"budget": "100%"})
    with Added():
        expected, found = product(x, w).sum(), planned(x)
        assert torch.equal(expected, found)
        found.backward()
    assert w.grad is not None
    assert torch.equal(w.grad, x)


def test_the_default_device_does_not_matter() -> None:
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    planned = torch.compile(lambda x: (x * w).sum(), backend="memsched", options={"budget": "100%"})
    with torch.device("meta"):
        loss = planned(x)
    loss.backward()
    assert w.grad is not None
    assert torch.equal(w.grad, x)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.last(self.norm(self.first(x)).sin() * self.steps).cos()


@pytest.mark.parametrize("bandwidth", [pytest.param(0, marks=pytest.mark.slow), "10GB/s"])
def test_under_checkpoint_buffers_are_written_as_in_plain_training(bandwidth: int | str) -> None:
    """The second forward ends as soon as all is saved, before AOTAutograd writes to them."""
    models = []
    for options in (None, {"budget": "100%", "bandwidth": bandwidth}):
        torch.manual_seed(0)
        model = Counting()
        call = torch.compile(model, backend="memsched", options=options) if options else model
        for _ in range(3):
            checkpoint(call, torch.randn(8, 16), use_reentrant=False).sum().backward()
        models.append(model)
    plain, planned = models
    assert plain.steps == 6
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), planned.buffers(), strict=True))
    gradients = [[one.grad for one in model.parameters()] for model in models]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
