"""One pass over a program that follows a schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from memsched.errors import MemschedError
from memsched.torch.graph_step.gradients import Taker
from memsched.torch.graph_step.program import Operation, Program, Source
from memsched.torch.graph_step.resolve import key_of
from memsched.torch.graph_step.transfers import Transfers
from memsched.torch.lanes import Lanes
from memsched.torch.random_state import RandomState
from memsched.torch.run import Observer
from memsched.torch.script import Action, Script
from memsched.torch.slots import Handle, Slot


class Pass:
    """Carries out a script once, from inputs to loss, gradients and new buffers.

    Values that the schedule decides about are kept as handles, which never hold bytes. So a storage is gone when its
    slot lets go of it.

    Parameters
    ----------
    program, script
    state : list of Tensor
        The present parameters and buffers, in the order of program.state.
    inputs : list of Tensor
        Taken over: the list is emptied.
    gradients : Taker
    lanes, host
        Where bytes travel, and the host memory for them (script.host_bytes).
    observer : Observer, optional
        Told of every step.
    learning : bool
        Other bytes than planned are no error; nothing may travel.

    Attributes
    ----------
    loss : Tensor or None
    buffers : dict of str to Tensor
        The new values of buffers, to be written when the pass has ended well.
    random : dict
        Of operations that draw and run again the state of the generators before.
    made : dict
        Operation -> the bytes of each storage that it made.
    """

    def __init__(
        self,
        program: Program,
        script: Script,
        state: list[torch.Tensor],
        inputs: list[torch.Tensor],
        *,
        gradients: Taker,
        lanes: Lanes,
        host: torch.Tensor,
        observer: Observer | None = None,
        learning: bool = False,
    ) -> None:
        self.program, self.script, self.observer = program, script, observer
        self.loss: torch.Tensor | None = None
        self.buffers: dict[str, torch.Tensor] = {}
        self.random: dict[int, RandomState] = {}
        self.made: dict[int, tuple[int, ...]] = {}
        self._learning = learning
        self._gradients, self._lanes = gradients, lanes
        self._transfers = Transfers(script, lanes, host)
        self._values: dict[fx.Node, Any] = {}
        self._ends: dict[int, Any] = {}
        self._awaited = {step for action in script.actions for step in action.after}
        lanes.begin()
        for source, value in zip(program.state, state, strict=True):
            self._enter(source, value)
        for source in program.constants:
            self._enter(source, program.constant(source))
        for source in program.inputs:
            self._enter(source, inputs.pop(0))

    def run(self) -> None:
        """Carry out every step; afterwards nothing is held but the results."""
        try:
            for step, action in enumerate(self.script.actions):
                if self.observer is not None:
                    self.observer.before(step, action)
                event = self._carry_out(step, action)
                if step in self._awaited:
                    self._ends[step] = event if event is not None else self._lanes.now()
                if self.observer is not None:
                    self.observer.after(step, action, event)
        finally:
            self._transfers.close()
            self._values.clear()

    def _enter(self, source: Source, value: torch.Tensor) -> None:
        """A value that is there before the step, and the views of it."""
        slots: dict[int, Slot] = {}
        if source.block >= 0:
            storage = value.untyped_storage()
            self._transfers.take(key_of(source.block), storage)
            slots[storage._cdata] = self._transfers.slots[key_of(source.block)]
        with torch.no_grad():
            self._keep({source.node: value.detach()}, source.views, slots)

    def _keep(self, live: dict[fx.Node, Any], views: tuple[fx.Node, ...], slots: dict[int, Slot]) -> None:
        """Look at what there is in all the ways that are needed later, and keep handles of that."""
        for node in views:
            args, kwargs = self._arguments(node, live)
            live[node] = _called(node, args, kwargs)
        for node, value in live.items():
            if node in self.program.kept:
                self._values[node] = _handles(value, slots)

    def _arguments(self, node: fx.Node, live: dict[fx.Node, Any]) -> tuple[Any, dict[str, Any]]:
        def value(argument: fx.Node) -> Any:
            return live[argument] if argument in live else _tensors(self._values[argument])

        return fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)

    def _carry_out(self, step: int, action: Action) -> Any:
        after = [self._ends[earlier] for earlier in action.after]
        match action.kind:
            case "offload":
                return self._transfers.offload(action, after)
            case "prefetch":
                return self._transfers.prefetch(step, action, after)
            case "free" if action.moves:
                self._transfers.free(action)
            case "free":
                self._wait(after)
            case _:
                self._wait(after)
                self._transfers.before(action)
                self._transfers.after(action, self._run(action))
        return None

    def _wait(self, events: Sequence[Any]) -> None:
        for event in events:
            self._lanes.wait(event)

    def _run(self, action: Action) -> list[torch.UntypedStorage]:
        """Run an operation; the storages that it writes. The results of a repeated run are dropped."""
        k = action.stage
        operation = self.program.operations[k]
        slots = {self._storage(number)._cdata: self._slot(number) for number in operation.reads}
        args, kwargs = self._arguments(operation.node, {})
        # Some kernels, such as oneDNN's LSTM, keep what a backward needs only where gradients are enabled.
        with torch.set_grad_enabled(not operation.place.backward), self._random_numbers(k, operation, action.first):
            live = {operation.node: _called(operation.node, args, kwargs)}
        given = {tensor.untyped_storage()._cdata for tensor in _flat((args, list(kwargs.values())))}
        found = self._check(k, live[operation.node], given)
        made = {number: storage for number, storage in found.items() if key_of(number) in self.script.sizes}
        if action.first:
            slots |= {storage._cdata: self._slot(number) for number, storage in made.items()}
            with torch.no_grad():
                self._keep(live, operation.views, slots)
                for kind, name, node in operation.results:
                    self._give(kind, name, live[node])
        return list(made.values())

    def _slot(self, number: int) -> Slot:
        return self._transfers.slots[key_of(number)]

    def _storage(self, number: int) -> torch.UntypedStorage:
        storage = self._slot(number).storage
        assert storage is not None, "an operation reads what is not on the device"
        return storage

    def _check(self, k: int, value: Any, known: set[int]) -> dict[int, torch.UntypedStorage]:
        """The new storages of an operation, which must be those that were planned."""
        operation = self.program.operations[k]
        found: dict[int, torch.UntypedStorage] = {}
        for tensor in _flat(value):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and tensor.device.type == self.program.device.type:
                found.setdefault(storage._cdata, storage)
        self.made[k] = tuple(storage.nbytes() for storage in found.values())
        planned = tuple(self.program.blocks[number].bytes for number in operation.makes)
        if self.made[k] != planned and not (self._learning and len(planned) == len(found)):
            raise MemschedError(
                f"{operation.node.target} in {operation.place.path!r} made storages of {list(self.made[k])} bytes "
                f"where {list(planned)} were planned; plan again, on this device and with this version of PyTorch"
            )
        return dict(zip(operation.makes, found.values(), strict=True))

    def _give(self, kind: str, name: str, value: torch.Tensor) -> None:
        if kind == "loss":
            self.loss = value
        elif kind == "buffer":
            self.buffers[name] = value
        else:
            self._gradients.add(name, value)

    def _random_numbers(self, k: int, operation: Operation, first: bool) -> Any:
        """A repeated run draws what the first run drew, and leaves the generator as it was."""
        if not operation.random or k not in self.script.repeated:
            return contextlib.nullcontext()
        if first:
            self.random[k] = RandomState(self.program.device)
            return contextlib.nullcontext()
        return self.random[k]


def _called(node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation, or a look at its result, gives.

    Raises
    ------
    MemschedError
        It fails, as where the kernels lay a result out in another way than PyTorch said when the step was traced, or
        where the values are none that it takes.
    """
    try:
        return node.target(*args, **kwargs)
    except (torch.OutOfMemoryError, MemschedError):
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise MemschedError(
            f"{node.target} fails in the planned step: {type(error).__name__}: {error}; if it runs in a plain step on "
            "these inputs, leave it out of what is planned"
        ) from error


def _flat(value: Any) -> list[torch.Tensor]:
    """The tensors that an operation returns."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _flat(part)]
    return []


def _handles(value: Any, slots: dict[int, Slot]) -> Any:
    """The value with handles in the place of the tensors that the schedule decides about."""
    if isinstance(value, torch.Tensor):
        slot = slots.get(value.untyped_storage()._cdata)
        return value if slot is None else Handle(value, slot)
    if isinstance(value, list | tuple):
        return [_handles(part, slots) for part in value]
    return value


def _tensors(value: Any) -> Any:
    """The other way."""
    if isinstance(value, Handle):
        return value.tensor()
    return [_tensors(part) for part in value] if isinstance(value, list) else value
