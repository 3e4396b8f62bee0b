"""The graph of a training step with the algorithms of its convolutions, each measured on the device at hand."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memsched._core import Graph
from memsched.errors import MemschedError
from memsched.torch.compiled.as_graph import Kernel, step_graph
from memsched.torch.compiled.look import Loss, look
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.compiled.times import alone, described, measured_costs
from memsched.torch.errors import CaptureError, told

_aten = torch.ops.aten
CONVOLUTIONS = (_aten.convolution.default, _aten.convolution_backward.default)
_DEFAULT = "default"
_Call = Callable[..., Any]
_Around = Callable[[], contextlib.AbstractContextManager[Any]]


def algorithms(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Loss | None = None,
    name: str | None = None,
) -> Graph:
    """Capture a training step, and measure the algorithms that the device offers for each of its convolutions.

    For planners that choose among algorithms, as `modnn` does by equation (5) of its paper: every convolution, forward
    and backward, has several `choices` with the seconds and the workspace of each, measured on made-up values. The
    first is "default", what PyTorch runs. On a CPU the others are "gemm", without oneDNN: the patches of all samples
    are unfolded; and "by sample": as "default", one sample after the other. On CUDA they are "benchmark", the fastest
    that cuDNN finds, and "native", without cuDNN; these have not run on a GPU yet. What PyTorch cannot run so is left
    out. All other operations have one choice, as in `memsched.torch.plan(..).graph`.

    A plan on this graph says what a choice would bring. PyTorch runs plans with "default" alone, as the algorithms
    round otherwise. Graphs of several batches are seldom a `GraphFamily`: some workspaces shrink as the batch grows.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, with its weights on the device. It is left as it was.
    args, kwargs
        Inputs of the shapes, dtypes and device to train with.
    loss : callable, optional
        As in `memsched.torch.plan`.
    name : str, optional
        Of the graph. Default: the name of the model's class.

    Returns
    -------
    Graph
        Times in seconds, workspaces and sizes in bytes.

    Raises
    ------
    CaptureError
        PyTorch captures nothing of the model, or parts of the step are in no graph.
    InvalidInputError
        The model is in eval mode, or does not run on these inputs.
    MemschedError
        A profiler of PyTorch is at work.

    References
    ----------
    Chen et al., moDNN, DATE 2018, section III.C and equation (5).

    Examples
    --------
    >>> import torch
    >>> import memsched as ms
    >>> from memsched.torch import algorithms
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    >>> graph = algorithms(model, (torch.ones(4, 3, 16, 16),))
    >>> first = next(op for op in graph.ops if op["kind"] == "convolution")
    >>> [choice["alg"] for choice in first["choices"]]
    ['default', 'gemm', 'by sample']
    >>> plan = ms.modnn(graph, "50%", "12GB/s")
    """
    if torch.autograd._profiler_enabled():
        raise MemschedError(
            "a profiler of PyTorch is at work, and it takes one to count workspaces; measure outside of it"
        )
    with told(model, args, kwargs):
        seen = look(model, args, dict(kwargs or {}), Options(budget="100%"), loss=loss, within=loss is not None)
    if seen.unplanned:
        raise CaptureError(f"a part of it is not captured: {seen.unplanned[0]}")
    costs, known = [], dict[Any, tuple[Kernel, ...]]()
    for visit in seen.visits:
        found, _ = measured_costs(visit.joint, visit.sizes)
        for op in visit.joint.operations:
            if op.node.target in CONVOLUTIONS:
                key = described(op.node, visit.sizes)
                if key not in known:
                    known[key] = tuple(_kernels(op.node, visit.sizes))
                found[op.number] = found[op.number]._replace(kernels=known[key])
        costs.append(found)
    resident = seen.resident.total
    return step_graph(seen.visits, seen.returns, costs, resident=resident, name=name or type(model).__name__)


def _kernels(node: fx.Node, sizes: Sizes) -> Iterator[Kernel]:
    """What each algorithm takes, as far as PyTorch can run it."""
    for name, around, change in _ways(node):
        refused = contextlib.nullcontext() if name == _DEFAULT else contextlib.suppress(RuntimeError)
        with refused, torch.no_grad():
            with around():
                seconds, workspace = alone(node, sizes, change)
            yield Kernel(name, seconds, workspace)


def _ways(node: fx.Node) -> Iterator[tuple[str, _Around, Callable[[_Call], _Call]]]:
    """Names of algorithms, what is set while they run, and how they are called."""
    example = node.meta["val"]
    backward = node.target is CONVOLUTIONS[1]
    device = next(one.device.type for one in (example if backward else [example]) if one is not None)
    yield _DEFAULT, contextlib.nullcontext, _as_it_is
    if device == "cuda":
        yield "benchmark", functools.partial(torch.backends.cudnn.flags, enabled=True, benchmark=True), _as_it_is
        yield "native", functools.partial(torch.backends.cudnn.flags, enabled=False), _as_it_is
        return
    yield "gemm", _by_patches, _as_it_is
    yield "by sample", contextlib.nullcontext, _backward_by_sample if backward else _forward_by_sample


@contextlib.contextmanager
def _by_patches() -> Iterator[None]:
    """Without oneDNN, and without NNPACK, whose workspace nobody tells."""
    with contextlib.ExitStack() as settings:
        with warnings.catch_warnings():  # of GPUs that are not there
            warnings.simplefilter("ignore")
            settings.enter_context(torch.backends.mkldnn.flags(enabled=False))
        settings.enter_context(torch.backends.nnpack.flags(enabled=False))
        yield


def _as_it_is(call: _Call) -> _Call:
    return call


def _forward_by_sample(call: _Call) -> _Call:
    def forward(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        first = call(x[:1], *rest)
        found = first.new_empty((len(x), *first.shape[1:]))
        found[:1] = first
        del first
        for k in range(1, len(x)):
            found[k : k + 1] = call(x[k : k + 1], *rest)
        return found

    return forward


def _backward_by_sample(call: _Call) -> _Call:
    def backward(gradient: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
        if len(x) == 0:
            return call(gradient, x, *rest)
        needs_input = rest[-1][0]
        found = torch.empty_like(x) if needs_input else None
        sums: list[torch.Tensor | None] = [None, None]
        for k in range(len(x)):
            of_input, *of_others = call(gradient[k : k + 1], x[k : k + 1], *rest)
            if found is not None:
                found[k : k + 1] = of_input
            sums = [one if so_far is None else so_far.add_(one) for so_far, one in zip(sums, of_others, strict=True)]
        return [found, *sums]

    return backward
