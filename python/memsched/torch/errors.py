"""What `memsched.torch` raises beside the errors of all of memsched, and how it tells those of models."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from memsched.errors import InvalidInputError, MemschedError, shown
from memsched.torch.nests import tensors_of

_LOUD = ("torch._subclasses.fake_tensor", "torch._dynamo.variables.tensor")  # they write the traceback of each error


class CaptureError(MemschedError):
    """A training step that no plan can hold; the message says what stood in the way."""


class CallError(InvalidInputError):
    """A model that cannot be called with its inputs."""


@contextlib.contextmanager
def told(model: Any, args: Any, kwargs: Any = None, loss: Callable[..., Any] | None = None) -> Iterator[None]:
    """What is wrong with a call of a model, and what the model or its loss raises in it, is told in a sentence.

    An error of ours is raised as it is.
    """
    if isinstance(model, torch.nn.Module):
        check_arguments(model, args, kwargs)
    if loss is not None and not callable(loss):
        what = "a tensor" if isinstance(loss, torch.Tensor) else shown(loss)
        raise InvalidInputError(f"loss is {what}; it must be a function that takes the model's result")
    loggers = [logging.getLogger(one) for one in _LOUD]
    quiet = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    except Exception as error:  # of any kind: the model's own
        if isinstance(error, InvalidInputError):
            _check_trained(model, (args, kwargs))
        if isinstance(error, MemschedError | torch.OutOfMemoryError) or not _is_the_models(error):
            raise
        wrong = _wrong_call(model, args, kwargs, loss) if isinstance(error, TypeError) else None
        if wrong is not None:
            raise CallError(wrong) from None
        raise CallError(
            f"{type(model).__name__} cannot run on {_described((args, kwargs))}: {said(error)}{line_of(error)}; "
            f"{_remedy(model, (args, kwargs), str(error))}"
        ) from error
    finally:
        for one, before in zip(loggers, quiet, strict=True):
            one.disabled = before


def _described(inputs: Any) -> str:
    """The types and sizes of the tensors among some inputs."""
    kinds = (f"{str(one.dtype).removeprefix('torch.')} {'x'.join(map(str, one.shape))}" for one in tensors_of(inputs))
    return ", ".join(one.strip() for one in kinds) or "no tensors"


def check_arguments(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Refuse what cannot be what a model is called with."""
    name = type(model).__name__
    if isinstance(args, torch.Tensor):
        raise InvalidInputError("args is a tensor; give the arguments as a tuple: (x,)")
    if isinstance(args, Mapping):
        raise InvalidInputError(f"args is a dict; {name} is called with *args and **kwargs: args=(), kwargs=...")
    if not isinstance(args, tuple | list):
        raise InvalidInputError(f"args is {shown(args)}; give what {name} is called with as a tuple: (x,)")
    if not isinstance(kwargs, Mapping | None):
        what = "a tensor" if isinstance(kwargs, torch.Tensor) else shown(kwargs)
        raise InvalidInputError(f"kwargs is {what}; it must be a dict of named arguments, and others go to args")
    devices = {one.device.type for one in (*model.parameters(), *(t for t in tensors_of((args, kwargs)) if t.dim()))}
    if len(devices) > 1 and "meta" in devices:
        raise CallError(
            f"{name} cannot run on {_described((args, kwargs))}: model and inputs are on "
            f"{' and '.join(sorted(devices))}: put them on one device"
        )


def _check_trained(model: Any, inputs: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        return
    held = [*model.parameters(), *model.buffers(), *tensors_of(inputs)]
    held += [one for module in model.modules() for one in tensors_of(vars(module))]
    if not any(one.requires_grad for one in held):
        why = "all its parameters are frozen" if list(model.parameters()) else "it has no parameters"
        remedy = "call requires_grad_() on what is to be trained"
        raise InvalidInputError(f"{type(model).__name__} trains nothing: {why}; {remedy}") from None


INSTEAD = (
    "let what PyTorch captures of it be planned while it trains: "
    'model.compile(backend="memsched", options={"budget": ...})'
)
_OURS, _TORCH = (str(Path(one).parent) + os.sep for one in (str(Path(__file__).parent), torch.__file__))
# Our functions that call a model, its loss or its backward.
_CALLS = re.compile(r"_looked_at|_loss_bytes|_learn|_take|backward_aside|trial_step|(forward|step)_\d+", re.ASCII)
# Through which PyTorch's operations go.
_BETWEEN = ("__torch_dispatch__", "__torch_function__", "noted", "check_positions", "check_read", "follow_numbers")


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Where an error was raised, outside of PyTorch; of code that Dynamo reads, where it reads."""
    found = getattr(error, "real_stack", None) or traceback.extract_tb(error.__traceback__)
    return [one for one in found if not one.filename.startswith(_TORCH) and one.name not in _BETWEEN]


def _is_the_models(error: Exception) -> bool:
    """Whether the last code outside of PyTorch that ran is not ours, but for what calls the model."""
    outside = _frames(error)
    compiler = type(error).__name__ == "BackendCompilerFailed"
    last = outside[-1] if outside and not compiler else None
    return last is not None and (not last.filename.startswith(_OURS) or bool(_CALLS.fullmatch(last.name)))


def without_tensors(error: BaseException | None) -> None:
    """Let the frames of an error that are not the caller's forget what they have.

    Else whoever keeps the error keeps copies of parameters and states, which a next step takes to be somebody's.
    """
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith(("<", _OURS, _TORCH)):
                with contextlib.suppress(RuntimeError):  # it runs
                    frame.clear()
        error = error.__cause__ or error.__context__


def said(error: BaseException) -> str:
    """What the error says that was raised first, in a line; PyTorch's compiler wraps others."""
    while type(error).__module__.startswith("torch._dynamo") and (cause := error.__cause__ or error.__context__):
        error = cause
    said = str(error).strip().partition("\n")[0].removesuffix(", but expected one of:")  # the rest is a list
    return said[:300].rstrip(".") or type(error).__name__


def line_of(error: BaseException) -> str:
    """The line of the model that raised it, if it is not PyTorch's."""
    found = [one for one in _frames(error) if not one.filename.startswith((_OURS, "<"))]
    if not found or found[-1].name == "<module>":
        return ""
    last = found[-1]
    roots = [os.path.abspath(one) + os.sep for one in (os.curdir, *sys.path)]
    name = min((last.filename.removeprefix(root) for root in roots), key=len, default=last.filename)
    return f" ({name}, line {last.lineno}: {last.line})"


def looks_at_values(model: Any, error: Any) -> CaptureError:
    """The error of a model that reads a tensor, of an error of PyTorch about an operation on one without data."""
    return CaptureError(
        f"{type(model).__name__} looks at values of tensors ({error.func}), which are not known before it "
        f"runs{line_of(error)}; {INSTEAD}"
    )


def _wrong_call(model: Any, args: Any, kwargs: Any, loss: Callable[..., Any] | None) -> str | None:
    """In which way the arguments do not fit the model, or the result does not fit the loss."""
    why = _unbound(model.forward, tuple(args), dict(kwargs or {}))
    if why is not None:
        takes = ", ".join(inspect.signature(model.forward).parameters)
        return f"{type(model).__name__}.forward takes ({takes}): {why}; give args in this order, or kwargs={{..}}"
    function = getattr(loss, "forward", loss)
    if function is not None and (why := _unbound(function, (None,), {})) is not None:
        return (
            f"loss takes the model's result alone ({why}); bind the rest: "
            "loss=lambda out: torch.nn.functional.mse_loss(out, target)"
        )
    return None


def _unbound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:  # it has no signature
        pass
    return None


def _all_numbers(values: Any) -> bool:
    return all(isinstance(one, int | float) for one in values)


def _remedy(model: torch.nn.Module, inputs: Any, said: str) -> str:
    devices = {str(one.device) for one in (*model.parameters(), *tensors_of(inputs))}
    if len(devices) > 1:
        return f"model and inputs are on {' and '.join(sorted(devices))}: put them on one device"
    if "indices" in said and "Long" in said:
        return "an nn.Embedding reads whole numbers: give tokens, dtype=torch.long"
    if "out of range in self" in said:
        return "a token or a position is not below the rows of an nn.Embedding: give other tokens or shorter sequences"
    if "is asked for row" in said:
        return "give shorter inputs, or a model with more"
    numbers = [k for k, one in enumerate(inputs[0]) if isinstance(one, tuple | list) and one and _all_numbers(one)]
    if numbers and ("must be Tensor" in said or "invalid combination" in said):
        sizes = ", ".join(map(str, inputs[0][numbers[0]]))
        return f"args[{numbers[0]}] is a tuple of numbers: give a tensor, such as torch.randn({sizes})"
    nested = [k for k, one in enumerate(inputs[0]) if isinstance(one, tuple | list | dict)]
    if "must be Tensor" in said and nested:
        return f"args[{nested[0]}] is a {type(inputs[0][nested[0]]).__name__}: args is what stands in model(*args)"
    types, others = ({one.dtype for one in some} for some in (model.parameters(), tensors_of(inputs)))
    if "dtype" in said and types and len(types | {one for one in others if one.is_floating_point}) > 1:
        names = sorted(str(one).removeprefix("torch.") for one in types)
        return f"parameters are {' and '.join(names)}: convert the inputs, or train under autocast"
    return "check that model(*args) and its backward run by themselves; here they run on tensors without data"
