"""What modules hold: where their tensors are, and their attributes."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


def named_places(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every place that holds a parameter or a buffer, once: a module that stands in several places has one name.

    Where `functional_call` is given two names of one place, it leaves what it put there.
    """
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


@contextlib.contextmanager
def unchanged(model: nn.Module, *, tensors: bool = True) -> Iterator[None]:
    """Gives modules their attributes back: some keep tensors, tables or lists of weights that a forward replaces.

    What containers, generators and tensors among the attributes hold is put back, too; but not that of parameters and
    buffers. So are containers among the globals beside the forwards, where some keep their tables.

    Parameters
    ----------
    model : torch.nn.Module
    tensors : bool
        Tensors among the attributes may be written to; they are copied. Those among globals are taken not to be.
    """
    held = _Held(model, tensors)
    try:
        yield
    finally:
        held.put_back()


def _globals_of(module: nn.Module) -> dict[str, Any]:
    """Those of the module's forward, unless it is PyTorch's."""
    names: dict[str, Any] = getattr(type(module).forward, "__globals__", {})
    return {} if str(names.get("__name__", "")).split(".")[0] == "torch" else names


@contextlib.contextmanager
def gradients_aside(model: nn.Module) -> Iterator[None]:
    """The parameters have no `.grad` here, and get theirs back."""
    held = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)  # of these alone it is known what reading does
_MOST = 10_000  # elements of a container that is noted: more are data


class _Held:
    """What the attributes of modules hold."""

    def __init__(self, model: nn.Module, tensors: bool) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        for module in model.modules():
            self._note(vars(module), tensors)
        for names in {id(names): names for names in map(_globals_of, model.modules())}.values():
            for value in list(names.values()):
                if type(value) in _CONTAINERS and len(value) <= _MOST:
                    self._note(value, False)

    def _note(self, value: Any, tensors: bool) -> None:
        if isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif isinstance(value, torch.Tensor):
            known = id(value) in self._own or id(value) in self._tensors
            if tensors and not known and not isinstance(value, FakeTensor):
                self._tensors[id(value)] = value, value._version, value.detach().clone()
        elif type(value) in (*_CONTAINERS, tuple) and id(value) not in self._containers:
            if not isinstance(value, tuple):
                self._containers[id(value)] = value, dict(value) if isinstance(value, dict) else list(value)
            for inner in list(value.values() if isinstance(value, dict) else value):
                self._note(inner, tensors)

    def put_back(self) -> None:
        for container, content in self._containers.values():
            if _same(container, content):
                continue
            container.clear()
            (container.extend if isinstance(container, list | deque) else container.update)(content)
        for generator, state in self._generators:
            generator.set_state(state)
        with torch.no_grad():
            for tensor, version, content in self._tensors.values():
                if tensor._version != version:
                    tensor.copy_(content)


def _same(container: Any, content: Any) -> bool:
    """Whether a container holds the very objects that it held."""
    if isinstance(container, set):
        return set(content) == container
    now, before = (
        (list(one.items()) if isinstance(one, dict) else list(enumerate(one))) for one in (container, content)
    )
    return len(now) == len(before) and all(a == c and b is d for (a, b), (c, d) in zip(now, before, strict=True))
