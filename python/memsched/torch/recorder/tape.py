"""A dispatch mode that writes down what a step does: which operation makes, reads, changes and drops which storage."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from memsched.errors import InvalidInputError
from memsched.torch.fan_in import current_node, is_fan_in, taker
from memsched.torch.recorder.assemble import Event, Storage, Tape

# Batch normalisation updates its running statistics, which its schema does not say.
_STATISTICS = ("running_mean", "running_var")
_NO_COMPUTATION = ("prim", "profiler")  # questions about a tensor, and marks for the profiler
_Times = Callable[[Any, Any, Any, Any], float]


class Recorder(TorchDispatchMode):
    """Writes a tape. It must not keep a tensor or a storage alive, only weak references."""

    def __init__(
        self,
        resident: Iterable[torch.Tensor],
        cost: _Times | None,
        paths: Mapping[nn.Module, str],
        *,
        repeatable: bool = False,
    ) -> None:
        super().__init__()
        self.tape = Tape()
        self.repeatable = repeatable
        self.cost = cost
        self.paths = {id(module): path for module, path in paths.items()}
        self.numbers: dict[int, int] = {}  # of the storages alive, by address
        self.watches: dict[int, Any] = {}
        self.within: list[str] = []
        self.layers: dict[Any, int] = {}
        self.layer_paths: dict[int, str] = {}
        self.backward = False
        self.optimizing = 0
        for tensor in resident:
            self.tape.storages[self.number(tensor, -1)].resident = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace not in _NO_COMPUTATION:
            self.write(func, args, kwargs, out)
        return out

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Says in which module the step is, and when it is in an optimiser."""

        def enter(module: nn.Module, args: Any) -> None:
            self.within.append(self.paths.get(id(module), self.within[-1] if self.within else ""))

        def leave(module: nn.Module, args: Any, out: Any) -> None:
            self.within.pop()

        def optimize(change: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                self.optimizing += change

            return hook

        with contextlib.ExitStack() as stack:
            for handle in (
                module_hooks.register_module_forward_pre_hook(enter),
                module_hooks.register_module_forward_hook(leave, always_call=True),
                optimizer_hooks.register_optimizer_step_pre_hook(optimize(1)),
                optimizer_hooks.register_optimizer_step_post_hook(optimize(-1)),
            ):
                stack.callback(handle.remove)
            yield

    def close(self) -> Tape:
        """The tape, when the step has returned: what dies from here on outlived it."""
        self.watches.clear()
        return self.tape

    def number(self, tensor: torch.Tensor, born: int) -> int:
        """Of the tensor's storage; one that is not known yet was born at this event (-1: before the step)."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self.numbers:
            number = self.numbers[address] = len(self.tape.storages)
            self.tape.storages.append(Storage(bytes=storage.nbytes(), born=born))

            def died(_: Any) -> None:
                self.tape.storages[number].died = len(self.tape.events)
                del self.numbers[address], self.watches[number]

            self.watches[number] = weakref.ref(storage, died)
        return self.numbers[address]

    def write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """The event of one operation, if it is one."""
        named = {argument.name: argument.default_value for argument in func._schema.arguments}
        named.update(zip(named, args, strict=False))
        named.update(kwargs)
        kind = func.overloadpacket.__name__
        fresh = kind == "lift_fresh"  # a tensor made of Python numbers
        born = len(self.tape.events)
        given = [] if fresh else [self.number(tensor, -1) for tensor in _tensors((args, kwargs), kind)]
        results = [self.number(tensor, born) for tensor in _tensors(out, kind)]
        storages = self.tape.storages
        makes = [number for number in dict.fromkeys(results) if storages[number].born == born]
        written = [] if torch.Tag.inplace_view in func.tags else _written(func, named)
        changes = list(dict.fromkeys(self.number(tensor, -1) for tensor in _tensors(written, kind)))
        if not makes and not changes and results:
            return  # all results are views
        for tensor in _tensors(written, kind):  # resize_ and out= may enlarge a storage
            storage = storages[self.number(tensor, -1)]
            storage.bytes = max(storage.bytes, tensor.untyped_storage().nbytes())
        shapes_only = kind.endswith("_like") or kind.startswith("new_")
        reads = [] if shapes_only else list(dict.fromkeys(given))
        random = _is_random(func, named)
        changed = {number for number in changes if storages[number].resident}
        event = Event(
            kind=kind,
            backward=self.backward,
            once=random or bool(changed),
            seconds=0.0 if self.cost is None else float(self.cost(func, args, kwargs, out)),
            reads=self.movable(reads),
            changes=self.movable(changes),
            makes=makes,
            random=random,
            resident_reads=[number for number in reads if storages[number].resident],
            resident_changes=[number for number in changes if number in changed],
            optimizer=self.optimizing > 0,
        )
        statistics = {self.number(named[key], -1) for key in _STATISTICS if isinstance(named.get(key), torch.Tensor)}
        if self.repeatable and event.once and changed <= statistics:
            event.again = sum(storages[number].bytes for number in changed)
        if len(event.changes) > 1 and kind.startswith("_foreach"):
            event.parts = self.parts(named, event.changes)
        self.locate(event)
        sum_so_far = taker(func, args, kwargs)
        if sum_so_far is not None:
            event.sum_so_far = next(iter(self.movable([self.number(sum_so_far, -1)])), None)
        self.tape.events.append(event)

    def movable(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if not self.tape.storages[number].resident]

    def parts(self, named: dict[str, Any], changes: list[int]) -> list[tuple[list[int], list[int]]]:
        """An operation on lists as one operation an element."""
        lists = [value for value in named.values() if isinstance(value, list | tuple) and value]
        lists = [value for value in lists if isinstance(value[0], torch.Tensor)]
        singles = [value for value in named.values() if isinstance(value, torch.Tensor)]
        parts = []
        for elements in zip(*lists, strict=False):
            reads = self.movable(dict.fromkeys(self.number(tensor, -1) for tensor in (*elements, *singles)))
            changed = [number for number in reads if number in changes]
            if changed:
                parts.append((changed, reads))
        found = [number for changed, _ in parts for number in changed]
        return parts if sorted(found) == sorted(changes) else []  # lists of which two elements share a storage: no

    def locate(self, event: Event) -> None:
        """Phase, layer and module of an operation that has just run."""
        if not self.backward and torch._C._current_graph_task_id() != -1:
            self.backward = event.backward = True
            if self.tape.events and self.tape.events[-1].kind == "ones_like":
                self.tape.events[-1].backward = True  # the gradient of the loss, which backward() makes first
        node = torch._C._current_autograd_node()
        number = torch._C._autograd._get_sequence_nr() - 1 if node is None else node._sequence_nr()
        event.node = current_node()
        if event.optimizer:
            event.layer, event.path = self.layers.setdefault("optimizer", len(self.layers)), "optimizer"
            return
        if node is not None and number not in self.layers and self.tape.events:
            event.layer = self.tape.events[-1].layer  # a node that only adds up gradients
        else:
            event.layer = self.layers.setdefault(number, len(self.layers))
        if self.within:
            self.layer_paths.setdefault(event.layer, self.within[-1])
        event.path = self.within[-1] if self.within else self.layer_paths.get(event.layer, "")


def sum_in_place(tape: Tape) -> None:
    """Let autograd add up gradients as it does when nothing is recorded, and change the tape so.

    See `memsched.torch.fan_in`.
    """
    storages, moved = tape.storages, dict[int, int]()

    def now(numbers: Iterable[int]) -> list[int]:
        return list(dict.fromkeys(moved.get(number, number) for number in numbers))

    for index, event in enumerate(tape.events):
        event.reads, event.changes = now(event.reads), now(event.changes)
        event.parts = [(now(changes), now(reads)) for changes, reads in event.parts]
        makers = [tape.events[storages[number].born].node for number in event.reads if storages[number].born >= 0]
        if event.sum_so_far is None or not is_fan_in(event.node, makers):
            continue
        target = moved.get(event.sum_so_far, event.sum_so_far)
        if storages[target].died != index + 1:
            continue
        result = event.makes.pop()
        storages[target].died = storages[result].died
        storages[result] = Storage(bytes=0, born=-1, died=0)
        moved[result] = target
        event.changes = [target]


def _tensors(value: Any, kind: str) -> list[torch.Tensor]:
    """The tensors in a nest of containers that have a storage."""
    found = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                raise InvalidInputError(
                    f"the operation {kind} has a tensor of layout {leaf.layout}; a step can be recorded only if its "
                    "tensors are dense: make embeddings with sparse=False, for instance"
                )
            if torch._C._has_storage(leaf):
                found.append(leaf)
    return found


def _written(func: Any, named: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operation changes."""
    scaled = named.get("grad_scale") is not None
    written = []
    for argument in func._schema.arguments:
        marked = argument.alias_info is not None and argument.alias_info.is_write
        if argument.name == "grads" and "grad_scale" in named:
            marked = scaled  # fused optimisers change gradients only to unscale them
        if marked or (argument.name in _STATISTICS and named.get("training")):
            written.append(named[argument.name])
    return written


def _is_random(func: Any, named: Mapping[str, Any]) -> bool:
    """Whether an operation draws random numbers; attention without dropout draws none."""
    for argument in ("dropout_p", "dropout"):
        if isinstance(named.get(argument), int | float):
            return bool(named[argument] > 0)
    return torch.Tag.nondeterministic_seeded in func.tags
