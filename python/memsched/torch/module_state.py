"""What modules hold: where their tensors are, and their attributes."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ProxyTypes

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from memsched.errors import InvalidInputError
from memsched.support.interrupt import Interrupts


def named_places(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every place that holds a parameter or a buffer, once: a module that stands in several places has one name.

    Where `functional_call` is given two names of one place, it leaves what it put there.
    """
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


def parameters_of(model: torch.nn.Module) -> dict[str, Any]:
    """What a plan depends on: of each parameter its type, shape and whether it is trained."""
    named = model.named_parameters()
    return {name: [str(one.dtype).removeprefix("torch."), *one.shape, one.requires_grad] for name, one in named}


def check_same(planned: dict[str, Any] | None, model: torch.nn.Module) -> None:
    """Refuse a model with other parameters than the one that was planned; None: they are not known."""
    if planned is None:
        return
    own = parameters_of(model)
    name = next((one for one in (*planned, *own) if planned.get(one) != own.get(one)), None)
    if name is not None:
        raise InvalidInputError(
            f"the plan is for another model: its parameter {name} is {_told(planned.get(name))}, and that of this "
            f"{type(model).__name__} is {_told(own.get(name))}; plan this one"
        )


def _told(found: Any) -> str:
    if not isinstance(found, list) or len(found) < 2:
        return "not there"
    kind, *shape, trained = found
    return f"{kind} {'x'.join(map(str, shape))}".strip() + ("" if trained else ", frozen")


@contextlib.contextmanager
def unchanged(model: nn.Module, *others: Any, tensors: bool = True) -> Iterator[None]:
    """Gives modules their attributes back: some keep tensors, tables or lists of weights that a forward replaces.

    What containers, generators and tensors among the attributes hold is put back, too; but not that of the model's own
    parameters and buffers. Of what else the code of the model and of the others reaches (objects, classes, closures,
    and globals by name), only what now holds tensors without data is put back: the rest may be the work of others.

    The others are such as a loss: of modules that they reach, parameters and buffers are put back, too. With `tensors`
    those among the attributes may be written to; they are copied. Those among globals are taken not to be.
    """
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    held = _Held((model, *others), own, _DATA if tensors else _CONTENT)
    try:
        yield
    finally:
        with Interrupts():
            held.put_back()


@contextlib.contextmanager
def generators_unchanged() -> Iterator[None]:
    """Puts the global generators of random numbers back: a forward may draw from them, or seed them."""
    python, arrays, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(own)
        if cards:
            torch.cuda.set_rng_state_all(cards)


def backward_aside(
    results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor] | None, own: Callable[[torch.Tensor], bool]
) -> int:
    """A backward that leaves no gradient on leaves that are not one's own; else as `torch.autograd.backward`.

    Returns the bytes of the gradients that these would have.
    """
    leaves = [leaf for leaf in leaves_behind(results) if not own(leaf)]
    with gradients_aside(leaves):
        torch.autograd.backward(results, gradients)
        return sum(leaf.nbytes for leaf in leaves if leaf.grad is not None)


def leaves_behind(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves to which a backward of these results may give gradients."""
    nodes = [one.grad_fn for one in results if one.grad_fn is not None]
    seen, leaves = set(nodes), []
    while nodes:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        nodes += following
    return leaves


@contextlib.contextmanager
def gradients_put_back(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """They have the `.grad` afterwards that they had before."""
    held = [(leaf, leaf.grad) for leaf in leaves]
    try:
        yield
    finally:
        with Interrupts():
            for leaf, gradient in held:
                leaf.grad = gradient


@contextlib.contextmanager
def gradients_aside(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """They have no `.grad` here, nor hooks that run once it is complete and may step an optimiser; both come back."""
    leaves = list(leaves)
    hooks = {id(leaf): leaf._post_accumulate_grad_hooks or {} for leaf in leaves}
    before = {key: dict(those) for key, those in hooks.items()}
    with gradients_put_back(leaves):
        try:
            for leaf in leaves:
                leaf.grad = None
            for those in hooks.values():
                those.clear()
            yield
        finally:
            with Interrupts():
                for key, those in hooks.items():
                    those.update(before[key])


_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)  # of these alone it is known what reading does
_MOST = 10_000  # elements of a container that is noted: more are data
_MOST_OBJECTS = 200_000  # that are looked at
_PLAIN = (str, int, float, bool, bytes, type(None), ModuleType, *ProxyTypes)
_ABSENT = object()

# What is put back of an object: what holds tensors without data; all; all, with what tensors among it hold.
_LEAKS, _CONTENT, _DATA = range(3)


class _Held:
    """What objects hold that the code of some roots reaches."""

    def __init__(self, roots: Sequence[Any], own: set[int], most: int) -> None:
        self._containers: list[tuple[Any, Any, bool]] = []  # with their content, and whether only leaks are put back
        self._places: list[tuple[Any, dict[Any, Any], bool]] = []  # with what names meant there, and whether of all
        self._tensors: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._own, self._most = own, most
        seen: dict[int, Any] = {}  # alive, so that no other object gets its number
        waiting = [(root, _LEAKS) for root in reversed(roots)]
        while waiting and len(seen) < _MOST_OBJECTS:
            value, level = waiting.pop()
            if id(value) not in seen and type(value) not in _PLAIN:
                seen[id(value)] = value
                waiting += self._note(value, type(value), level)

    def _note(self, value: Any, kind: type, level: int) -> list[tuple[Any, int]]:
        """Returns what the value leads to."""
        if issubclass(kind, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif issubclass(kind, torch.Tensor):
            if is_lazy(value) or value.is_meta:  # there is nothing in it
                return []
            written = value.numel() <= 1 or level == self._most == _DATA  # without data PyTorch still counts
            if written and id(value) not in self._own and kind is not FakeTensor:
                self._tensors.append((value, value._version, value.detach().clone()))
        elif kind in (*_CONTAINERS, tuple):
            return self._note_container(value, level)
        elif kind is FunctionType:
            return [] if _of_library(value) else self._note_function(value)
        elif kind is MethodType:
            return [(value.__self__, _LEAKS), (value.__func__, _LEAKS)]
        elif kind is partial:
            return [(value.func, _LEAKS), (value.args, _LEAKS), (value.keywords, _LEAKS)]
        elif issubclass(kind, type):
            return [] if _of_library(value) else self._note_class(value)
        elif (attributes := _attributes(value)) is not None:
            level = _DATA if issubclass(kind, nn.Module) else _LEAKS
            return [(kind, _LEAKS), *self._note_container(attributes, level)]
        return []

    def _note_container(self, value: Any, level: int) -> list[tuple[Any, int]]:
        if level < _DATA and len(value) > _MOST:
            return []
        if isinstance(value, dict) and level == _LEAKS:
            self._places.append((value, dict(value), True))
        elif not isinstance(value, tuple):
            self._containers.append((value, dict(value) if isinstance(value, dict) else list(value), level == _LEAKS))
        return [(one, level) for one in (value.values() if isinstance(value, dict) else value)]

    def _note_class(self, value: type) -> list[tuple[Any, int]]:
        names = dict(vars(value))
        self._places.append((value, names, True))
        return [(one, _LEAKS) for one in (*names.values(), *value.__bases__)]

    def _note_function(self, function: FunctionType) -> list[tuple[Any, int]]:
        reached: list[Any] = [function.__defaults__, function.__kwdefaults__, vars(function)]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                self._places.append((cell, {"cell_contents": cell.cell_contents}, False))
                reached.append(cell.cell_contents)
        codes, names = [function.__code__], set[str]()
        for code in codes:  # which grows
            names.update(code.co_names)
            codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        spaces = [function.__globals__]
        modules = (one for one in map(spaces[0].get, names) if type(one) is ModuleType)
        spaces += [vars(one) for one in modules if not _of_library(one)]
        for space in spaces:
            found = {name: space.get(name, _ABSENT) for name in names}
            self._places.append((space, found, False))
            reached += found.values()
        return [(one, _CONTENT if type(one) in _CONTAINERS else _LEAKS) for one in reached]

    def put_back(self) -> None:
        for container, content, leaks in self._containers:
            if not _same(container, content) and (not leaks or any(map(_leaks, container))):
                container.clear()
                (container.extend if isinstance(container, list | deque) else container.update)(content)
        for place, before, whole in self._places:
            names = (place if isinstance(place, dict) else vars(place)) if whole else before
            for name in list(names):
                value = place.get(name, _ABSENT) if isinstance(place, dict) else getattr(place, name, _ABSENT)
                if value is not before.get(name, _ABSENT) and _leaks(value):
                    _put(place, name, before.get(name, _ABSENT))
        for generator, state in self._generators:
            generator.set_state(state)
        with torch.no_grad():
            for tensor, version, content in self._tensors:  # planned code writes without a new version
                comparable = tensor.layout is torch.strided
                if tensor._version != version or (comparable and not torch.equal(tensor, content)):
                    tensor.copy_(content)


def _attributes(value: Any) -> dict[str, Any] | None:
    """Those of an object by itself, whatever its class makes of being asked for them."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def _of_library(value: Any) -> bool:
    """Whether a function, class or module is PyTorch's, numpy's, Python's or ours."""
    name = value.__name__ if type(value) is ModuleType else getattr(value, "__module__", None)
    root = str(name).partition(".")[0]
    return root in ("torch", "numpy", "memsched") or root in sys.stdlib_module_names


def _leaks(value: Any, depth: int = 2) -> bool:
    """Whether a value is a tensor without data, or holds one."""
    if isinstance(value, FakeTensor):
        return True
    if depth == 0 or type(value) not in (*_CONTAINERS, tuple) or len(value) > _MOST:
        return False
    return any(_leaks(one, depth - 1) for one in (value.values() if isinstance(value, dict) else value))


def _put(place: Any, name: Any, value: Any) -> None:
    if isinstance(place, dict):
        place.pop(name)
        place.update({} if value is _ABSENT else {name: value})
    elif value is _ABSENT:
        delattr(place, name)
    else:
        setattr(place, name, value)


def _same(container: Any, content: Any) -> bool:
    """Whether a container holds the very objects that it held."""
    if isinstance(container, set):
        return set(content) == container
    now, before = (
        (list(one.items()) if isinstance(one, dict) else list(enumerate(one))) for one in (container, content)
    )
    return len(now) == len(before) and all(a == c and b is d for (a, b), (c, d) in zip(now, before, strict=True))
