"""A training step as its graphs, found without running it: on a copy of the model, and of its inputs, without data."""

from __future__ import annotations

import contextlib
import copy
import itertools
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.parameter import is_lazy

from memsched.errors import InvalidInputError, shown
from memsched.torch.compiled.as_graph import Visit, held_by_caller
from memsched.torch.compiled.backend import backend_of
from memsched.torch.compiled.leftovers import Leftovers
from memsched.torch.compiled.options import Options, read_options
from memsched.torch.compiled.private import compiled_apart, unset_fake_temporarily, without_limits
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import NO_LOSS, LossBytes
from memsched.torch.compiled.special_groups import Unplanned
from memsched.torch.compiled.uncaptured import graph_breaks, outside_of_graphs
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.compiled.updates import Updates
from memsched.torch.compiled.witness import Witness
from memsched.torch.errors import INSTEAD, CaptureError, looks_at_values
from memsched.torch.meter import Meter
from memsched.torch.module_state import backward_aside, generators_unchanged, gradients_put_back, unchanged
from memsched.torch.nests import tensors_of, with_tensors
from memsched.torch.optimizer_state import check_owner, optimizer_bytes
from memsched.torch.positions import check_positions
from memsched.torch.weightless import Unwritten, fake_mode_of, meta_as_cpu

Loss = Callable[[Any], torch.Tensor]
_SERIAL = itertools.count()


@dataclass(frozen=True, slots=True)
class Look:
    """What a training step does to memory."""

    visits: tuple[Visit, ...]  # its graphs, in the order of their forwards
    returns: tuple[int, ...]  # the visits, in the order of their backwards
    resident: Resident
    loss: LossBytes  # of a loss outside the graphs
    unplanned: tuple[str, ...]  # why parts of the step are in no graph


def look(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    *,
    loss: Loss | None = None,
    within: bool = False,
    prepare: Callable[[fx.GraphModule], None] | None = None,
    witness: Witness | None = None,
    updates: Updates | None = None,
) -> Look:
    """Capture a training step of a model. Nothing is computed, and no memory is needed for its tensors.

    `loss` makes a scalar of the model's result, and is captured with the model if it is `within`; without one, all
    results need their gradients. `prepare` changes each graph that Dynamo captured, before AOTAutograd traces it. A
    `witness` notes what the graphs take and return. `updates` are operations of the step.

    Raises
    ------
    CaptureError
        The step looks at values of tensors or keeps some, or PyTorch captures nothing of it.
    InvalidInputError
        The model is in eval mode or cannot be copied, the loss is no scalar, or no result needs a gradient.
    """
    check_call(model, args)
    check_inputs(model, args, kwargs)
    if loss is not None and not callable(loss):
        raise InvalidInputError(f"loss is {loss!r}; it must be a function that takes the model's result")
    known = fake_mode_of(_tensors(model, args, kwargs))
    mode = known or FakeTensorMode(allow_non_fake_inputs=True)
    left = contextlib.nullcontext() if known else Leftovers(mode).taken_back()
    # A model without data is not copied: the look's gradients would stay, and count as the caller's in the next.
    kept = unchanged(model, loss, tensors=False)
    learning = [*model.parameters(), *(one for one in tensors_of((args, kwargs)) if one.is_leaf)]
    with meta_as_cpu(), generators_unchanged(), left, kept, gradients_put_back(learning):
        step_of = [without_data(mode, model, args, kwargs, updates and updates.optimizer)]
        return _looked_at(mode, step_of.pop(), options, loss, within, prepare, witness, updates)


def _looked_at(
    mode: FakeTensorMode,
    step_of: tuple[Any, Any, Any, Any],
    options: Options,
    loss: Loss | None,
    within: bool,
    prepare: Callable[[fx.GraphModule], None] | None,
    witness: Witness | None,
    updates: Updates | None,
) -> Look:
    model, args, kwargs, optimizer = step_of
    dry = None if updates is None else Updates(optimizer, looked_at=updates)
    if dry is not None:
        dry.names_of = dry.lasting.parameters.names_in(model)
    group = Unplanned(options, aside=unset_fake_temporarily, witness=witness, updates=dry)
    step = forward_of(model) if loss is None or not within else then(forward_of(model), loss)
    needed, known = NO_LOSS, graph_breaks()
    # To look for NaN, as detect_anomaly does, is to look at values.
    looking_for_nan = torch.autograd.set_detect_anomaly(False)
    if dry is not None and dry.how.adds:
        _with_gradients(mode, model)
    with mode, _quiet() as said, torch.enable_grad(), looking_for_nan, without_limits():
        if witness is not None:
            witness.began(model, (args, kwargs))
        try:
            result = compiled_apart(step, backend_of(group, prepare), dynamic=False)(*args, **kwargs)
            outside = outside_of_graphs(tensors_of(result))
            if witness is not None:
                witness.ended(model, result)
            if loss is not None and not within:
                needed = _loss_bytes(loss, result, mode)
            elif loss is not None:
                check_loss(result)
                _check_history(result)
            _backward(result)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise looks_at_values(model, error) from None
        except NotImplementedError as error:
            if "OpaqueTensorImpl" not in str(error):
                raise
            raise CaptureError(f"{type(model).__name__} makes tensors without storage, such as to_mkldnn()") from None
        except AttributeError as error:
            if "ignore_fresh_unbacked_symbols" not in str(error):  # PyTorch's loops make numbers that it cannot follow
                raise
            raise CaptureError(f"{type(model).__name__} has a while_loop or scan of PyTorch's; {INSTEAD}") from None
        except AssertionError as error:
            if "nested_int" not in str(error):
                raise
            raise CaptureError(f"{type(model).__name__} makes nested tensors, whose sizes no plan knows") from None
    if not any(unit.versions for unit in list(group.units)):
        if said:
            raise CaptureError(f"nothing of {type(model).__name__} can be planned: {said[0]}")
        raise CaptureError(
            f"PyTorch captures nothing of {type(model).__name__}{_why(known)}; plan modules that it captures, each by "
            "itself"
        )
    if outside and not said:
        told = f"PyTorch captures no {outside[-1]} of {type(model).__name__}, whose backward saves tensors"
        said = [told + _why(known)]
    group.updates = None  # whoever keeps the group keeps no tensors of the look
    visits, returns, resident = group.seen()
    for one in visits:
        check_positions(one.joint.module.graph)
    needed = replace(needed, results=held_by_caller(visits[-1].joint, visits[-1].sizes).results)
    visits[-1] = replace(visits[-1], loss=needed)
    return Look(tuple(visits), tuple(returns), resident, needed, tuple(said))


def _why(known: Counter[str]) -> str:
    """The first reason why PyTorch broke a graph since these were known."""
    reasons = [*(graph_breaks() - known)]
    said = f" ({reasons[0]})" if reasons else ""
    return f"{said}: it leaves out nn.LSTM, nn.GRU, TorchScript and what torch.compiler.disable marks, for example"


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
    name = f"{function.__name__}_{next(_SERIAL)}"  # by which PyTorch remembers the sizes that it met
    code = function.__code__.replace(co_name=name)
    made = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _tensors(model: torch.nn.Module, *others: Any) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    yield from tensors_of(others)
    yield from (one for module in model.modules() for one in tensors_of(vars(module)))


def without_data(
    mode: FakeTensorMode, model: torch.nn.Module, args: Any, kwargs: Any, optimizer: Any = None
) -> tuple[Any, Any, Any, Any]:
    """Copies of a model, its inputs and its optimiser, whose tensors have shapes and no data.

    Raises
    ------
    InvalidInputError
        They cannot be copied.
    """
    made: dict[int, Any] = {}
    groups, state = (
        (optimizer.param_groups, optimizer.state) if isinstance(optimizer, torch.optim.Optimizer) else ([], {})
    )
    for one in tensors_of(dict(state)):
        if one.dim() == 0 and not hasattr(one, "fake_mode"):  # how often it stepped, which it reads
            steps = one.item()
            with mode:
                made[id(one)] = torch.tensor(steps, dtype=one.dtype, device=one.device)
    for one in _tensors(model, args, kwargs, groups, state):
        if id(one) not in made:
            known = hasattr(one, "fake_mode") and one.device.type != "meta"
            made[id(one)] = one if known else mode.from_tensor(one)
            if one.is_leaf and one.grad is not None:
                made[id(one)].grad = mode.from_tensor(one.grad)
    try:
        return copy.deepcopy((model, args, kwargs, optimizer), dict(made))
    except Exception as error:  # of any kind: it is the code of the model's attributes
        raise InvalidInputError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), which looking at it before "
            f"training takes; {INSTEAD}"
        ) from None


def _with_gradients(mode: FakeTensorMode, model: torch.nn.Module) -> None:
    """As after a step whose gradients wait."""
    with mode:
        for one in model.parameters():
            if one.requires_grad and one.grad is None:
                one.grad = torch.empty_like(one)


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect why parts of a step are not planned, instead of warning of it."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
        said += [str(one.message) for one in caught if issubclass(one.category, UnplannedWarning)]


def _backward(result: Any) -> None:
    differentiable = [one for one in tensors_of(result) if one.requires_grad]
    if not differentiable:
        raise InvalidInputError(
            "no result of the model needs a gradient (in tuples, lists, dicts and data classes); there is no training "
            "step to plan"
        )
    gradients = [torch.empty_like(one) for one in differentiable]
    backward_aside(differentiable, gradients, own=lambda leaf: isinstance(leaf, FakeTensor))


class _Results(torch.autograd.Function):
    """Hands results to a loss, and takes the gradients that come back."""

    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(one.detach() for one in results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        return (None, *(None for _ in gradients))


def _loss_bytes(loss: Loss, result: Any, mode: FakeTensorMode) -> LossBytes:
    """What a loss needs beside the results; the gradients that it hands back are part of it."""
    differentiable = [one for one in tensors_of(result) if one.requires_grad]
    handed = _Results.apply(torch.zeros(0, requires_grad=True), *(one.detach() for one in differentiable))
    in_place_of = dict(zip(map(id, differentiable), handed, strict=True))
    results = with_tensors(result, lambda one: in_place_of.get(id(one), one))
    with Meter() as meter, Unwritten(mode):
        try:
            value = loss(results)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise InvalidInputError(
                f"loss reads values of tensors ({error.func}), which are not known while its bytes are counted; "
                "compute with tensors only, or leave loss out and add what it needs to reserve=..."
            ) from None
        check_loss(value)
        _check_history(value)
        aside = backward_aside([value], None, own=lambda leaf: isinstance(leaf, FakeTensor))
        return LossBytes(meter.peak, meter.bytes_of(value) + aside)


def _check_history(value: torch.Tensor) -> None:
    if not value.requires_grad:
        raise InvalidInputError(
            "loss returns a number that needs no gradient: it detaches the results of the model, or does not depend on "
            "them; there is no training step to plan"
        )


def check_loss(value: Any) -> None:
    """Refuse what a loss returns that is no scalar."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        tensor = isinstance(value, torch.Tensor)
        what = f"a tensor of shape {tuple(value.shape)}" if tensor else shown(value)
        raise InvalidInputError(f"loss returns {what}; it must return one number as a tensor")


def check_model(model: object) -> None:
    """Refuse what has no training steps: no module, one in eval mode, or one whose parameters have no shapes yet."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
        raise InvalidInputError("the model is what torch.compile returned; give the module that it was made of")
    if not model.training:
        raise InvalidInputError("the model is in eval mode; call model.train(): plans are for training steps")
    lazy = next((name for name, one in model.named_parameters() if is_lazy(one)), None)
    if lazy is not None:
        raise InvalidInputError(f"the parameter {lazy} has no shape yet; run the model once before it is planned")


def check_call(model: object, args: object) -> None:
    """Refuse the same, and a tensor in place of arguments."""
    check_model(model)
    if isinstance(args, torch.Tensor):
        raise InvalidInputError("args is a tensor; give the arguments as a tuple: (x,)")


def check_inputs(model: torch.nn.Module, *inputs: Any) -> None:
    """Refuse inputs whose bytes depend on values: nested and sparse tensors."""
    for one in tensors_of(inputs):
        if one.is_nested or one.layout is not torch.strided:
            kind = "a nested" if one.is_nested else f"a sparse ({str(one.layout).removeprefix('torch.')})"
            raise CaptureError(
                f"{type(model).__name__} is given {kind} tensor, whose bytes no plan knows; give dense ones"
            )


def device_of(model: torch.nn.Module) -> torch.device:
    """Where most of a model is; a model on the meta device counts as on the CPU."""
    sizes: dict[torch.device, int] = {}
    for one in model.parameters():
        sizes[one.device] = sizes.get(one.device, 0) + (0 if is_lazy(one) else one.numel())
    found = max(sizes, key=lambda device: sizes[device], default=torch.device("cpu"))
    return torch.device("cpu") if found.type == "meta" else found


def options_of(model: torch.nn.Module, *, optimizer: Any, **given: Any) -> Options:
    """Options for a model, checked; of an optimiser the bytes of its state count."""
    check_owner(optimizer, model)
    counted = None if optimizer is None else optimizer_bytes(optimizer, device_of(model))
    return read_options({**given, "optimizer": counted})
