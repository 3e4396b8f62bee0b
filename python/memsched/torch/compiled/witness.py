"""What a captured graph takes and returns, by where the caller of the model has it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import visible
from memsched.torch.module_state import named_places
from memsched.torch.nests import leaves_of, tensors_of

PARAMETER, BUFFER, INPUT, RESULT, ELSEWHERE = "parameter", "buffer", "input", "result", "elsewhere"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_REGISTERED = ("_parameters", "_buffers", "_modules")
_LIBRARIES = ("torch", "builtins", "types", "functools", "numpy")
_DEPTH, _MOST = 4, 1000  # of what attributes hold, and elements of a container that are looked at


@dataclass(frozen=True, slots=True)
class End:
    """A tensor that a graph takes, or that the model returns.

    `kind` is one of the words above. `name` is the dotted name of a parameter or a buffer, and the number of an input
    or of the graph's result.
    """

    kind: str
    name: str = ""
    differentiable: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {visible(self.name)}"


@dataclass(slots=True)
class Witness:
    """Watches a look at a step, and notes the ends of its graphs. It keeps no tensor afterwards."""

    takes: list[list[End]] = field(default_factory=list)
    """Of each call of a graph, what its forward takes."""
    results: list[list[End]] = field(default_factory=list)
    """The tensors among the model's result, in order; where results of the graph are the same memory, one of them."""
    names: list[str] = field(default_factory=list)
    """Of these, such as "['logits']"; "" for a result that is one tensor."""
    objects: list[str] = field(default_factory=list)
    """The types of objects among the model's result, such as caches, that are no container of tensors."""
    hidden: set[int] = field(default_factory=set)
    """Results of the graph that are in such objects."""
    changed: list[str] = field(default_factory=list)
    """Attributes of modules that hold something else after the forward."""
    _calls: list[tuple[Sequence[Any], Sequence[Any]]] = field(default_factory=list)
    _before: dict[str, Any] = field(default_factory=dict)
    _known: dict[int, tuple[End, torch.Tensor]] = field(default_factory=dict)

    def began(self, model: torch.nn.Module, inputs: Any) -> None:
        """The forward of a model begins."""
        self._before = _attributes(model)
        for place, one in named_places(model):
            kind = PARAMETER if isinstance(one, torch.nn.Parameter) else BUFFER
            self._known.setdefault(id(one), (End(kind, place, one.requires_grad), one))
        for k, one in enumerate(tensors_of(inputs)):
            self._known.setdefault(id(one), (End(INPUT, str(k), one.requires_grad), one))

    def called(self, given: Sequence[Any], returned: Sequence[Any]) -> None:
        """A graph took these, and returned these."""
        self._calls.append((list(given), list(returned)))

    def ended(self, model: torch.nn.Module, result: Any) -> None:
        """The forward returned."""
        after = _attributes(model)
        self.changed = [one for one in {**self._before, **after} if self._before.get(one) != after.get(one)]
        known = {key: end for key, (end, _) in self._known.items()}
        made: dict[Any, list[End]] = {}
        for given, returned in self._calls:
            self.takes.append([known.get(id(one), End(ELSEWHERE, _place_of(one, model))) for one in given])
            for k, one in enumerate(returned):
                made.setdefault(_key(one), []).append(End(RESULT, str(k)))
        leaves = tensors_of(result)
        for one in leaves:
            ends = [known[id(one)]] if id(one) in known else made.get(_key(one), [End(ELSEWHERE)])
            self.results.append([replace(end, differentiable=one.requires_grad) for end in ends])
        own = set(map(id, leaves))
        paths = [path for path, one in paths_of(result) if id(one) in own]
        self.names = paths if len(paths) == len(leaves) else [f"[{k}]" for k in range(len(leaves))]
        objects = [one for one in leaves_of(result) if _holds(one)]
        self.objects = [type(one).__name__ for one in objects]
        self.hidden = {int(end.name) for one in _within(objects, _DEPTH + 2) for end in made.get(_key(one), ())}
        self._calls.clear()
        self._known.clear()


def paths_of(value: Any) -> list[tuple[str, Any]]:
    """The leaves of a nest with their paths, such as "['logits'][0]"; with numbers where a container names none."""
    try:
        return [(pytree.keystr(path), one) for path, one in pytree.tree_flatten_with_path(value)[0]]
    except ValueError:  # a class that was registered without names
        return [(f"[{k}]", one) for k, one in enumerate(leaves_of(value))]


def _holds(one: Any) -> bool:
    """Whether a value is an object with attributes, which may be tensors."""
    return hasattr(one, "__dict__") and not isinstance(one, torch.Tensor | torch.nn.Module | type) and not callable(one)


def _within(values: Any, depth: int) -> Iterator[torch.Tensor]:
    """The tensors that objects and containers hold."""
    for one in values:
        if isinstance(one, torch.Tensor):
            yield one
        elif depth and isinstance(one, dict | list | tuple):
            yield from _within(one.values() if isinstance(one, dict) else one, depth - 1)
        elif depth and _holds(one):
            yield from _within(vars(one).values(), depth - 1)


def _key(one: Any) -> Any:
    """What two tensors that are the same elements have in common."""
    if not isinstance(one, torch.Tensor) or one.layout is not torch.strided:
        return id(one)
    return one.untyped_storage()._cdata, one.storage_offset(), tuple(one.shape), one.stride(), one.dtype


def _attributes(model: torch.nn.Module) -> dict[str, Any]:
    """What the attributes of modules hold, but for parameters, buffers and modules, to compare."""
    return {
        f"{path}.{name}" if path else str(name): _content(value, _DEPTH)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _REGISTERED
    }


def _content(value: Any, depth: int) -> Any:
    if type(value) in _PLAIN:
        return repr(value)
    foreign = type(value).__module__.partition(".")[0] not in _LIBRARIES
    within = vars(value) if foreign and hasattr(value, "__dict__") else value
    if depth == 0 or not isinstance(within, dict | list | tuple | set | deque) or isinstance(value, type):
        return id(value)
    parts = within.items() if isinstance(within, dict) else within
    return [_content(one, depth - 1) for one in itertools.islice(parts, _MOST)], len(within)


def _place_of(one: Any, model: torch.nn.Module) -> str:
    """Where a model keeps a tensor that is neither parameter nor buffer; "" if it does not."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _REGISTERED and any(one is other for other in tensors_of(value)):
                return f"{path}.{name}" if path else str(name)
    return ""
