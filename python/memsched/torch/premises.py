"""What a capture takes for granted: all that a forward may read in Python, and that may be otherwise at the next step.

A captured model is a list of operations. The probability of a dropout is a number in it, a branch on `self.training` is
one side of it, a hook is the operations that it ran. `Premises` writes down what the forward may have read of this and
says in a few microseconds a module whether it still is so.
"""

from __future__ import annotations

import argparse
import dis
import enum
import functools
import itertools
import math
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, type),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_DATA = (types.SimpleNamespace, argparse.Namespace)
_OBSERVED = (*_PLAIN, *_DATA, tuple, list, dict, set, types.FunctionType)
_TENSORS = ("_parameters", "_buffers")
_DEEPEST = 2  # objects within objects that are neither containers nor modules
_LIBRARIES = {"torch", "numpy", "memsched", "typing_extensions", *sys.stdlib_module_names} - {"__main__"}
_ALL_MODULES = tuple(
    name
    for name in vars(torch.nn.modules.module)
    if name.startswith("_global_") and name.endswith(("_hooks", "_hooks_always_called", "_hooks_with_kwargs"))
)

Facts = dict[str, Any]
"""What a description says of each path: a plain value, a tuple, or an object that counts by its identity."""


def ambient() -> dict[str, Any]:
    """The settings of PyTorch that Python code asks for while it computes."""
    cuda = torch.backends.cuda
    return {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.backends.cuda.flash_sdp_enabled()": cuda.flash_sdp_enabled(),
        "torch.backends.cuda.mem_efficient_sdp_enabled()": cuda.mem_efficient_sdp_enabled(),
        "torch.backends.cuda.math_sdp_enabled()": cuda.math_sdp_enabled(),
        "TorchFunctionMode": tuple(m for m in _get_current_function_mode_stack() if not _of_a_library(type(m))),
    }


class Premises:
    """What holds of a model, and of functions that are used with it, when this is made.

    Parameters
    ----------
    model : torch.nn.Module
    functions : callable
        Their code, defaults, closures and globals count, too.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    >>> premises = Premises(model)
    >>> premises.changed()
    >>> model[1].p = 0.25
    >>> premises.changed()
    "'1.p' was 0.5 and is 0.25"
    """

    def __init__(self, model: nn.Module, *functions: Callable[..., Any]) -> None:
        self._model, self._functions = weakref.ref(model), functions
        self._survey = self._look()

    def _look(self) -> _Survey:
        model = self._model()
        assert model is not None, "the model is gone"
        return _Survey(model, self._functions)

    def changed(self) -> str | None:
        """The first thing that is not as it was, in words; None where all is. Equal values count as the same."""
        if self._survey.untouched():
            return None
        now = self._look()
        different = _first_difference(self._survey.facts, now.facts)
        if different is None:
            self._survey = now
        return different

    def accept(self) -> None:
        """What holds now is taken for granted from here on."""
        self._survey = self._look()


def _first_difference(before: Facts, now: Facts) -> str | None:
    for path, value in before.items():
        if path not in now:
            return f"{path!r} was {_said(value)} and is gone"
        if not _alike(value, now[path]):
            if path.endswith(".training"):
                return f"{path.removesuffix('.training')!r} went to {'train' if now[path] else 'eval'} mode"
            return f"{path!r} was {_said(value)} and is {_said(now[path])}"
    added = next((path for path in now if path not in before), None)
    return None if added is None else f"{added!r} is new ({_said(now[added])})"


def _alike(a: Any, b: Any) -> bool:
    """The same object, or equal values of the same type."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    return isinstance(a, (*_PLAIN, frozenset)) and bool(a == b)


def _said(value: Any) -> str:
    text = repr(value) if isinstance(value, (*_PLAIN, tuple)) else f"a {type(value).__name__}"
    return text if len(text) < 80 else f"{text[:77]}..."


class _Survey:
    """One look at a model: facts to compare with those of another look, and what tells fast that nothing was touched.

    What is fast: dicts, lists and cells are compared with what they held, by the identity of what they hold.
    """

    def __init__(self, model: nn.Module, functions: tuple[Callable[..., Any], ...]) -> None:
        self.facts: Facts = {}
        self._root = weakref.ref(model)
        self._top = vars(model)
        self._modules: list[nn.Module] = []  # those below
        self._classes: list[type] = []
        self._ambient = ambient()
        self._mappings: list[tuple[Any, tuple[Any, ...]]] = []  # all of a dict
        self._parts: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []  # some keys of a dict
        self._growing: list[Any] = []  # dicts that count by their length, beside some of their keys
        self._lists: list[tuple[Any, tuple[Any, ...]]] = []
        self._empty: list[Any] = []
        self._sets: list[tuple[Any, frozenset[Any]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._functions: list[types.FunctionType] = []
        self._codes: list[Any] = []
        self._tensors: list[torch.Tensor] = []
        self._places: dict[int, str] = {}  # of each parameter and buffer, its first name
        self._seen: dict[int, tuple[str, Any, int]] = {}
        for path, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            self._places.setdefault(id(tensor), path)
        self.facts |= self._ambient
        self._module("", model)
        for name in _ALL_MODULES:
            self._visit(f"torch.nn.modules.module.{name}", vars(torch.nn.modules.module)[name])
        for k, function in enumerate(functions):
            self._visit(f"function {k}", function)
        self.settle()

    def settle(self) -> None:
        """Lay out what `untouched` compares, so that it takes one pass over each kind."""
        self._owners = [of for of, _ in (*self._mappings, *self._lists)]
        self._lengths = [len(of) for of in self._owners]
        self._lengths += map(len, self._growing)
        self._held = [value for _, held in (*self._mappings, *self._lists) for value in held]
        self._tensors = list(dict.fromkeys(self._tensors))
        self._kinds = list(map(_kind, self._tensors))
        self._strides = list(map(_strides, self._tensors))

    def untouched(self) -> bool:
        """Whether everything holds what it held."""
        root = _own(self._top)
        return (
            type(self._root()) is self.facts["class"]
            and len(root) == len(self._attributes)
            and all(map(is_, root.values(), self._attributes))
            and list(map(len, (*self._owners, *self._growing))) == self._lengths
            and all(map(is_, itertools.chain(*map(_held_by, self._owners)), self._held))
            and not any(self._empty)
            and list(map(_kind, self._tensors)) == self._kinds
            and list(map(_strides, self._tensors)) == self._strides
            and all(map(is_, map(type, self._modules), self._classes))
            and all(all(map(is_, map(of.get, keys), values)) for of, keys, values in self._parts)
            and all(of == held for of, held in self._sets)
            and all(_content(cell) is held for cell, held in self._cells)
            and list(map(_code, self._functions)) == self._codes
            and ambient() == self._ambient
        )

    def _module(self, path: str, module: nn.Module) -> None:
        if self._known(path, module):
            return
        prefix = f"{path}." if path else ""
        self.facts[f"{prefix}class"] = type(module)
        if isinstance(module, torch.jit.ScriptModule):  # Python does not see into it
            self.facts[path] = module
            return
        self._class(type(module))
        attributes = vars(module)
        if attributes is self._top:
            attributes = _own(attributes)
            self._attributes = tuple(attributes.values())
        else:
            self._modules.append(module)
            self._classes.append(type(module))
            self._mappings.append((attributes, tuple(attributes.values())))
        for name, value in attributes.items():
            if isinstance(module, nn.RNNBase) and name.startswith("_flat_weight"):
                continue  # the parameters once more
            if name in _TENSORS:
                self._tensors_of(prefix, value)
            elif name == "_modules":
                self._hold(value)
                self.facts[f"{prefix}submodules"] = tuple(value)
                for key, inner in value.items():
                    if inner is None:
                        self.facts[f"{prefix}{key}"] = None
                    else:
                        self._module(f"{prefix}{key}", inner)
            else:
                self._visit(f"{prefix}{name}", value)

    def _tensors_of(self, prefix: str, held: dict[str, torch.Tensor | None]) -> None:
        self._hold(held)
        for name, tensor in held.items():
            path = f"{prefix}{name}"
            self.facts[path] = None
            if isinstance(tensor, nn.parameter.UninitializedTensorMixin):  # of a lazy module
                self.facts[path] = tensor
            elif tensor is not None:
                self._tensors.append(tensor)
                self.facts[path] = (type(tensor), str(tensor.device), *_kind(tensor), *_strides(tensor))
                self.facts[f"{path} is"] = self._places.get(id(tensor), path)  # tied, or not

    def _known(self, path: str, value: Any, depth: int = 0) -> bool:
        """Whether a thing has been looked at: a function that calls itself, or what stands elsewhere, too.

        Of the latter it is the place that counts.
        """
        seen = self._seen.get(id(value))
        if seen is not None and seen[0] != path:
            self.facts[path] = f"the same as {seen[0]!r}"
            return True
        if seen is not None and seen[2] <= depth:
            return True
        self._seen[id(value)] = (path, value, depth)
        return False

    def _hold(self, mapping: dict[Any, Any]) -> None:
        if mapping:
            self._mappings.append((mapping, tuple(mapping.values())))
        else:
            self._empty.append(mapping)

    def _visit(self, path: str, value: Any, depth: int = 0) -> None:
        """Anything that an attribute, a global or a cell of a closure holds."""
        if isinstance(value, _PLAIN):
            self.facts[path] = value
        elif isinstance(value, torch.Tensor):
            self.facts[path] = self._places.get(id(value), value)
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, tuple):
            self.facts[path] = (type(value), len(value))
            for k, inner in enumerate(value):
                self._visit(f"{path}[{k}]", inner, depth)
        elif not self._known(path, value, depth):
            self._visit_object(path, value, depth)

    def _visit_object(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            self._hold(value)
            self.facts[path] = (type(value), len(value))
            for key, inner in value.items():
                self._visit(f"{path}[{key!r}]", inner, depth)
        elif isinstance(value, list | deque):
            self._lists.append((value, tuple(value))) if value else self._empty.append(value)
            self.facts[path] = (type(value), len(value))
            for k, inner in enumerate(value):
                self._visit(f"{path}[{k}]", inner, depth)
        elif isinstance(value, set | frozenset):
            self.facts[path] = frozenset(value)
            self._sets.append((value, frozenset(value)))
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self._visit(f"{path}.{name}", getattr(value, name), depth)
        elif isinstance(value, types.MethodType):
            self._visit(f"{path}.__func__", value.__func__, depth)
            self._visit(f"{path}.__self__", value.__self__, depth)
        elif isinstance(value, types.FunctionType):
            self._function(path, value, depth)
        else:
            self.facts[path] = value
            known = _of_a_library(type(value)) and not isinstance(value, _DATA)
            if depth < _DEEPEST and hasattr(value, "__dict__") and not known:
                self._class(type(value))
                self._growing.append(vars(value))
                self._some(path, vars(value), list(vars(value)), depth + 1)

    def _some(self, path: str, of: Any, keys: list[str], depth: int) -> None:
        """Some entries of a dict: those that are data. Others count where they are used."""
        keys = [key for key in keys if isinstance(of.get(key), _OBSERVED)]
        if keys:
            self._parts.append((of, tuple(keys), tuple(of[key] for key in keys)))
        for key in keys:
            self._visit(f"{path}.{key}", of[key], depth)

    def _class(self, cls: type) -> None:
        """What a class and those that it derives from say, but for classes of PyTorch and of Python."""
        for base in cls.__mro__:
            if not _of_a_library(base) and not self._known(f"{base.__module__}.{base.__qualname__}", base):
                keys = [key for key in vars(base) if not key.startswith("__") or key == "__call__"]
                self._some(f"{base.__module__}.{base.__qualname__}", vars(base), keys, _DEEPEST)

    def _function(self, path: str, function: types.FunctionType, depth: int) -> None:
        self.facts[path] = function.__code__
        self._functions.append(function)
        self._codes.append(_code(function))
        self._visit(f"{path} defaults", (function.__defaults__, function.__kwdefaults__), depth)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cells.append((cell, _content(cell)))
            self._visit(f"{name} of {path}", _content(cell), depth + 1)
        if _is_installed(function.__code__.co_filename):
            return
        scope = function.__globals__
        names = [name for name in _globals_of(function.__code__) if name in scope]
        self._some(function.__module__, scope, [name for name in names if not name.startswith("__")], _DEEPEST)
        for name in names:
            value = scope[name]
            if isinstance(value, types.ModuleType):
                if not _is_installed(getattr(value, "__file__", None)):
                    used = [key for key in _names_of(function.__code__) if key in vars(value)]
                    self._some(name, vars(value), used, _DEEPEST)
            elif hasattr(value, "__dict__") and not isinstance(value, type | types.FunctionType):
                self._visit(f"{function.__module__}.{name}", value, 1)


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the model itself. A plan stands in for its forward."""
    return {key: value for key, value in attributes.items() if key != "forward"}


_kind = operator.attrgetter("dtype", "requires_grad", "shape", "layout")
_code = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def _held_by(of: Any) -> Iterable[Any]:
    """What a dict or a list holds."""
    return of.values() if isinstance(of, dict) else of


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _of_a_library(cls: type) -> bool:
    """Whether a class is PyTorch's or Python's; their ways are taken for granted."""
    return cls.__module__.split(".")[0] in _LIBRARIES


def _is_installed(file: str | None) -> bool:
    """Whether a file belongs to an installed package, not to the user's own code."""
    return file is None or "site-packages" in file or "dist-packages" in file or file.startswith("<frozen")


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The globals that a function reads."""
    found = (i.argval for one in _codes_in(code) for i in dis.get_instructions(one) if i.opname.startswith("LOAD_GL"))
    return tuple(dict.fromkeys(map(str, found)))


def _names_of(code: types.CodeType) -> tuple[str, ...]:
    """The globals and attributes that a function names."""
    return tuple(dict.fromkeys(name for one in _codes_in(code) for name in one.co_names))
