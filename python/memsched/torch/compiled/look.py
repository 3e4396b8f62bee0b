"""A training step as its graphs, found without running it: on a copy of the model, and of its inputs, without data."""

from __future__ import annotations

import contextlib
import copy
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.torch.compiled.as_graph import Resident, Visit
from memsched.torch.compiled.backend import backend_of
from memsched.torch.compiled.group import Unplanned
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.private import unset_fake_temporarily
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.errors import CaptureError
from memsched.torch.meter import Meter

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Look:
    """What a training step does to memory.

    Attributes
    ----------
    visits : tuple of Visit
        Its graphs, in the order of their forwards.
    returns : tuple of int
        The visits, in the order of their backwards.
    resident : Resident
    loss : int
        Bytes that a loss outside the graphs needs between forward and backward.
    unplanned : tuple of str
        Why parts of the step are in no graph.
    """

    visits: tuple[Visit, ...]
    returns: tuple[int, ...]
    resident: Resident
    loss: int
    unplanned: tuple[str, ...]


def look(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    *,
    loss: Loss | None = None,
    within: bool = False,
    prepare: Callable[[fx.GraphModule], None] | None = None,
    dynamic: bool | None = None,
) -> Look:
    """Capture a training step of a model. Nothing is computed, and no memory is needed for its tensors.

    Parameters
    ----------
    model, args, kwargs
        As the model is trained.
    options : Options
    loss : callable, optional
        From the model's result to a scalar. Without, all results need their gradients.
    within : bool
        The loss is captured with the model.
    prepare : callable, optional
        Changes each graph that Dynamo captured, before AOTAutograd traces it.
    dynamic : bool, optional
        As torch.compile takes it. False: no size is a symbol, whatever was captured before.

    Raises
    ------
    CaptureError
        The step looks at values of tensors, or PyTorch captures nothing of it.
    InvalidInputError
        The model is in eval mode or cannot be copied, the loss is no scalar, or no result needs a gradient.
    """
    mode = next((one.fake_mode for one in _tensors(model, args, kwargs) if hasattr(one, "fake_mode")), None)
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    model, args, kwargs = _without_data(mode, model, args, kwargs)
    group = Unplanned(options, aside=unset_fake_temporarily)
    step = forward_of(model) if loss is None or not within else then(forward_of(model), loss)
    needed = 0
    with mode, _quiet() as said, torch.enable_grad():
        try:
            result = torch.compile(step, backend=_after(prepare, backend_of(group)), dynamic=dynamic)(*args, **kwargs)
            if loss is not None and not within:
                needed = _loss_bytes(loss, result)
            _backward(result)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise CaptureError(
                f"{type(model).__name__} looks at values of tensors ({error.func}), which are not known before it "
                'runs; let it be planned while it trains: model.compile(backend="memsched", options={"budget": ...})'
            ) from None
    if not list(group.versions()):
        raise CaptureError(
            f"PyTorch captures nothing of {type(model).__name__}"
            + (f": {said[0]}" if said else ": it leaves out nn.LSTM and nn.GRU, for example")
        )
    visits, returns, resident = group.seen()
    visits[-1] = replace(visits[-1], loss=needed)
    return Look(tuple(visits), tuple(returns), resident, needed, tuple(said))


def _after(prepare: Callable[[fx.GraphModule], None] | None, backend: Callable[..., Any]) -> Callable[..., Any]:
    def prepared(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if prepare is not None:
            prepare(module)
        made: Callable[..., Any] = backend(module, inputs)
        return made

    return prepared


def forward_of(model: torch.nn.Module) -> Callable[..., Any]:
    """The model's call, as a function with code of its own: what PyTorch compiles is kept by code."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    return _renewed(forward)


def then(forward: Callable[..., Any], loss: Loss) -> Callable[..., Any]:
    """A forward, and a loss of its result."""

    def step(*args: Any, **kwargs: Any) -> Any:
        return loss(forward(*args, **kwargs))

    return _renewed(step)


def _renewed(function: Any) -> Callable[..., Any]:
    code, name = function.__code__.replace(), function.__name__
    made = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _tensors(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    yield from (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))


def _without_data(mode: FakeTensorMode, model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """A model and its inputs, with their attributes, and tensors of which only shapes and such are known."""
    made: dict[int, Any] = {}
    for one in _tensors(model, args, kwargs):
        if id(one) not in made:
            made[id(one)] = one if hasattr(one, "fake_mode") else mode.from_tensor(one)
            if one.is_leaf and one.grad is not None:
                made[id(one)].grad = mode.from_tensor(one.grad)
    try:
        copied: tuple[Any, Any, Any] = copy.deepcopy((model, args, kwargs), dict(made))
    except Exception as error:  # of any kind: it is the code of the model's attributes
        raise InvalidInputError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), which looking at it before "
            'training takes; let it be planned while it trains: model.compile(backend="memsched", options={"budget": ...})'
        ) from None
    return copied


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect why parts of a step are not planned, instead of warning of it."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
        said += [str(one.message) for one in caught if issubclass(one.category, UnplannedWarning)]


def _backward(result: Any) -> None:
    differentiable = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
    if not differentiable:
        raise InvalidInputError("no result of the model needs a gradient; there is no training step to plan")
    torch.autograd.backward(differentiable, [torch.empty_like(one) for one in differentiable])


def _loss_bytes(loss: Loss, result: Any) -> int:
    """What a loss needs beside the results and their gradients."""
    leaves = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.is_floating_point()]
    fresh = {id(one): one.detach().requires_grad_() for one in leaves}
    result = pytree.tree_map(lambda one: fresh.get(id(one), one), result)
    with Meter() as meter:
        value = loss(result)
        _check_loss(value)
        if value.requires_grad:
            value.backward()
        del value
    return max(0, meter.peak - sum(one.grad.untyped_storage().nbytes() for one in fresh.values() if one.grad is not None))


def _check_loss(value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise InvalidInputError(f"loss returns {value!r}; it must return one number as a tensor")
