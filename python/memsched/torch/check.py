"""One planned step against a plain one, before anybody trains with the plan."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from memsched.errors import MemschedError
from memsched.torch.lanes import as_bytes
from memsched.torch.leaves import has_no_data
from memsched.torch.trial import Step, first_difference, trial_step, untouched


@contextlib.contextmanager
def standing_in(model: nn.Module, forward: Callable[..., Any] | None) -> Iterator[None]:
    """The model's forward is another one meanwhile, or its own (None)."""
    attributes = vars(model)
    before = attributes.pop("forward", None)
    if forward is not None:
        attributes["forward"] = forward
    try:
        yield
    finally:
        attributes.pop("forward", None)
        if before is not None:
            attributes["forward"] = before


def difference(
    model: nn.Module,
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    device: torch.device,
    *,
    plain_fits: bool,
    own: bool,
) -> str | None:
    """The first thing that a step with another forward computes otherwise than a plain one, in words.

    Everything is left as it was. Where the plain step does not fit the device, what it saves waits on the host: the
    same operations on the same values. Where it does not fit either, or the model has no data, nothing is compared; a
    warning says so in the first case.

    Parameters
    ----------
    model, forward, args, kwargs, device
    plain_fits : bool
        Whether the device has room for a plain step, as far as one knows.
    own : bool
        `forward` runs the model's own code, so what differs between two plain steps does not count. On CUDA it never
        does: atomic additions come in any order.

    Raises
    ------
    MemschedError
        The plain step fails.
    """
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(map(has_no_data, [*model.parameters(), *model.buffers(), *tensors])):
        return None

    def step(instead: Callable[..., Any] | None, saving: Callable[[], contextlib.AbstractContextManager[Any]]) -> Step:
        with untouched(model, device, leaves), standing_in(model, instead), saving():
            return trial_step(model, model, args, kwargs, device)

    ways: list[Callable[[], contextlib.AbstractContextManager[Any]]] = [contextlib.nullcontext, saving_on_host]
    for way in ways if plain_fits else ways[1:]:
        try:
            expected = step(None, way)
            break
        except torch.OutOfMemoryError:
            continue
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise MemschedError(f"a plain step of the model fails: {type(error).__name__}: {error}") from error
    else:
        warnings.warn(
            "the plan is not checked: a plain step does not fit the device, even with all that it saves on the host; "
            "call plan.verify(model, args) with a smaller batch of a plan for it",
            stacklevel=4,
        )
        return None
    found = step(forward, contextlib.nullcontext)
    different = first_difference(expected, found)
    if different is not None and (own or device.type == "cuda"):
        different = first_difference(expected.without_noise(step(None, way)), found)
    return different


@contextlib.contextmanager
def saving_on_host() -> Iterator[None]:
    """What autograd saves waits on the host. It keeps its strides: kernels choose their order of sums by them."""

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.detach(), None
        storage = as_bytes(tensor.untyped_storage()).to("cpu", copy=True)
        return tensor.detach().new_empty(0), (storage, tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(packed: Any) -> torch.Tensor:
        like, kept = packed
        if kept is None:
            return like
        storage, *view = kept
        with torch.no_grad():
            shape, strides, offset = view
            there = storage.to(like.device, copy=True).untyped_storage()
            return like.new_empty(0).set_(there, offset, shape, strides)

    with saved_tensors_hooks(pack, unpack):
        yield
