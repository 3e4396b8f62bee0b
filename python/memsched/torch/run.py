"""One training step that follows a schedule."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from memsched.errors import MemschedError
from memsched.torch.lanes import Lanes
from memsched.torch.random_state import RandomState
from memsched.torch.script import Action, Key, Script
from memsched.torch.slots import Handle, Slot
from memsched.torch.stage_run import Forward, Tape, run_backward, run_forward
from memsched.torch.stage_state import StageState
from memsched.torch.stages import Stage, StagedModel
from memsched.torch.versions import Versions


class Observer(Protocol):
    """Told of every step of the schedule, before it is issued and after."""

    def before(self, step: int, action: Action) -> None: ...

    def after(self, step: int, action: Action, event: Any) -> None: ...


class Run:
    """Carries out the actions of a script, up to where autograd asks for.

    Holds every storage that the schedule decides about; autograd and the stages see them through slots only.

    Parameters
    ----------
    staged, script
    state : mapping of str to Tensor
        The model's present state.
    inputs : list
        The leaves of the inputs.
    lanes, host
        Where bytes travel, and the host memory for them (script.host_bytes).
    observer : Observer, optional
    """

    def __init__(
        self,
        staged: StagedModel,
        script: Script,
        state: dict[str, torch.Tensor],
        inputs: list[Any],
        lanes: Lanes,
        host: torch.Tensor,
        observer: Observer | None = None,
    ) -> None:
        self.staged, self.script, self.lanes, self.host, self.observer = staged, script, lanes, host, observer
        self.position = len(script.actions)  # until it can begin
        self.state = StageState(state, [staged.stages[k] for k in script.repeated])
        self.environment: dict[str, Any] = dict(zip(staged.input_names, inputs, strict=True))
        self.outputs: dict[int, Any] = {}
        self.result_needs_grad: dict[int, list[bool]] = {}
        self.output_gradients: dict[int, torch.Tensor] = {}
        self.leaf_gradients: dict[int, list[torch.Tensor | None]] = {}
        self.returning = False  # its backward has begun
        n = len(staged.stages)
        self._slots: dict[Key, Slot] = {key: Slot() for key in script.sizes}
        self._exits: list[Handle | None] = [None] * n
        self._gradients: list[Handle | None] = [None] * n
        self._needs_grad = [False] * n
        self._tapes: list[Tape | None] = [None] * n
        self._random: list[RandomState | None] = [None] * n
        self._versions = Versions()
        self._made: dict[Key, Any] = {}  # when the bytes on the device are complete
        self._arriving: set[Key] = set()  # copied in, and the computation does not wait for it yet
        self._copied: dict[Key, Any] = {}  # when the host has them
        self._reserved: dict[int, tuple[Any, list[torch.UntypedStorage]]] = {}
        self._ends: dict[int, Any] = {}
        self._awaited = {step for action in script.actions for step in action.after}
        self._leaving: deque[tuple[torch.UntypedStorage, list[Any]]] = deque()
        self._held = 0
        lanes.begin()
        self.position = 0

    @property
    def done(self) -> bool:
        """All steps are carried out, or none will be any more."""
        return self.position >= len(self.script.actions)

    def give_up(self) -> None:
        """The step ends here, by an error or because nobody wants the rest of it: let go of its memory."""
        self.position = len(self.script.actions)
        for key in self._arriving:  # a copy must not write to memory that somebody else gets
            self.lanes.wait(self._made[key])
        self.close()
        for slot in self._slots.values():
            slot.storage = None
        self._arriving.clear()
        self._reserved.clear()
        self._tapes = [None] * len(self._tapes)
        self._let_go()

    def _let_go(self) -> None:
        self.outputs, self.output_gradients, self.environment = {}, {}, {}
        self._versions.clear()

    def __del__(self) -> None:
        if not self.done:
            self.give_up()

    def differentiable(self, k: int) -> list[torch.Tensor]:
        """The tensors through which gradients leave stage k beside the chain: its parameters, mostly.

        The last use comes first, so that autograd sums the gradients of a tensor that is used several times in the
        order in which it does without stages.
        """
        stage = self.staged.stages[k]
        values = [*(self.environment.get(name) for name in stage.environment), *self.state.values(stage)]
        return [value for value in reversed(values) if isinstance(value, torch.Tensor) and value.requires_grad]

    def results(self, k: int) -> list[Any]:
        """The leaves of the model's result that stage k computed."""
        return [self.outputs[position] for position in self.staged.stages[k].outputs]

    def backward(self, k: int, gradients: Sequence[torch.Tensor | None], *, last: bool) -> list[torch.Tensor | None]:
        """The backward of stage k, given the gradients of `results`; the gradients of `differentiable`.

        The last one that autograd will ask for carries out all that is left.
        """
        end = self.script.backward_end[k]
        if self.position >= end:
            raise MemschedError("a planned step has one backward, and it has run; call the model again before the next")
        for position, gradient in zip(self.staged.stages[k].outputs, gradients, strict=True):
            if gradient is not None:
                self.output_gradients[position] = gradient
        self.returning = True
        try:
            self.advance(len(self.script.actions) if last else end)
            if last:
                self.close()
                self._let_go()
        except BaseException:
            self.give_up()
            raise
        return self.leaf_gradients.pop(k)[::-1]

    def advance(self, end: int) -> None:
        """Carry out the steps before position `end`."""
        while self.position < end:
            step, action = self.position, self.script.actions[self.position]
            self.position += 1
            if self.observer is not None:
                self.observer.before(step, action)
            event = self._carry_out(step, action)
            if step in self._awaited:
                self._ends[step] = event if event is not None else self.lanes.now()
            if self.observer is not None:
                self.observer.after(step, action, event)

    def _carry_out(self, step: int, action: Action) -> Any:
        after = [self._ends[step] for step in action.after]
        match action.kind:
            case "forward" | "backward":
                for event in after:
                    self.lanes.wait(event)
                self._run(action)
            case "offload":
                return self._offload(action, after)
            case "prefetch":
                return self._prefetch(step, action, after)
            case "free":
                self._free(action)
        return None

    # Runs

    def _run(self, action: Action) -> None:
        for key in action.reads:
            self._arrive(key)
        self._make_room(action.needs)
        if self.lanes.overlap:
            self._reserve(action)
        if action.kind == "forward":
            self._forward(action)
        else:
            self._backward(action)
        self._held += action.needs - action.scratch
        if any(key in self.script.host for key in action.writes):
            self._made.update(dict.fromkeys(action.writes, self.lanes.now()))

    def _arrive(self, key: Key) -> None:
        """Let the computation wait until a storage has been copied in."""
        if key in self._arriving:
            self._arriving.remove(key)
            self.lanes.wait(self._made[key])

    def _forward(self, action: Action) -> None:
        k, stage = action.stage, self.staged.stages[action.stage]
        entry = self._exits[k - 1] if stage.entry else None
        if action.first:
            self._note_what_it_reads(k, stage)
        else:
            self._versions.check(k, backward=False)
        state = self.state.first(stage) if action.first else self.state.again(stage)
        with self._random_numbers(k, stage, action.first):
            forward = run_forward(
                stage,
                entry.slot if entry else None,
                entry.tensor() if entry else None,
                [self.environment[name] for name in stage.environment],
                state,
                autocast=self.staged.autocast,
                entry_needs_grad=k > 0 and self._needs_grad[k - 1],
                saving=action.saving,
            )
        if action.first:
            self.state.keep(stage, state)
            self._needs_grad[k] = forward.needs_grad
            self.environment.update(zip(stage.exports, forward.exports, strict=True))
            self.outputs.update(zip(stage.outputs, forward.outputs, strict=True))
            for position, value in zip(stage.outputs, forward.outputs, strict=True):
                self._versions.gave_out(position, value)
            self.result_needs_grad[k] = forward.output_needs_grad
        self._adopt(action, stage, forward)

    def _note_what_it_reads(self, k: int, stage: Stage) -> None:
        """Watch the tensors that others can change: inputs, state, and what was given out as a result."""
        entry = self._exits[k - 1] if stage.entry else None
        if entry is not None:
            self._versions.note_if_given(k, entry.tensor())
        for name in stage.environment:
            value = self.environment[name]
            if name in self.staged.input_names:
                self._versions.note(k, f"input {name!r}", value)
            elif isinstance(value, torch.Tensor):
                self._versions.note_if_given(k, value)
        for ref, value in zip(stage.state, self.state.values(stage), strict=True):
            if not ref.written:
                self._versions.note(k, f"{ref.name!r} of the model", value)

    def _adopt(self, action: Action, stage: Stage, forward: Forward) -> None:
        """Put what a forward gave where the schedule looks for it."""
        k = action.stage
        if forward.exit is not None and forward.exit_slot is not None:
            slot = self._slots.get(("activation", k, 0)) or Slot()
            self._check(k, "activation", [forward.exit_slot.nbytes], [self.script.sizes.get(("activation", k, 0), 0)])
            slot.take_over(forward.exit_slot)
            self._exits[k] = Handle(forward.exit, slot)
        if not action.saving:
            return
        beside = [*(self.environment[name] for name in stage.exports), *(self.outputs[p] for p in stage.outputs)]
        for position, slot in forward.beside:  # a repeated run made them anew: read those of the first run
            slot.storage = beside[position].untyped_storage()
            self._versions.note_if_given(k, beside[position], saved=True)
        self._versions.keep(k, forward.given)
        keys = [key for key in action.writes if key[0] == "tape"]
        self._check(k, "saved storages", [s.nbytes for s in forward.saved], [self.script.sizes[key] for key in keys])
        for key, slot in zip(keys, forward.saved, strict=True):
            self._slots[key].take_over(slot)
        self._tapes[k] = forward.tape

    def _check(self, k: int, what: str, found: list[int], planned: list[int]) -> None:
        if found != planned:
            raise self._differs(k, what, found, planned)

    def _differs(self, k: int, what: str, found: object, planned: object) -> MemschedError:
        return MemschedError(
            f"stage {k + 1} ({self.staged.stages[k].name}) has {what} of {found} bytes where {planned} were planned; "
            "plan again, on this device and with this version of PyTorch"
        )

    def _backward(self, action: Action) -> None:
        k = action.stage
        self._versions.check(k, backward=True)
        tape, self._tapes[k] = self._tapes[k], None
        own = self._gradients[k]
        self._gradients[k] = None
        if tape is None:  # no gradient flows through this stage
            self._expect_nothing(action)
            return
        arriving = [
            (own.tensor() if own else None) if position is None else self.output_gradients.pop(position, None)
            for position, _ in tape.exits
        ]
        gradient, leaves = run_backward(tape, arriving)
        self.leaf_gradients[k] = leaves
        if gradient is None:
            self._expect_nothing(action)
            return
        key: Key = ("gradient", k - 1, 0)
        planned = self.script.sizes.get(key, 0)
        if gradient.untyped_storage().nbytes() > planned:
            gradient = gradient.clone()  # a part of something larger that the loss made
        storage = gradient.untyped_storage()
        if storage.nbytes() > planned:
            raise self._differs(k, "gradient of its input", storage.nbytes(), planned)
        self._held -= planned - storage.nbytes()  # that of a sum is one number, expanded
        slot = self._slots.setdefault(key, Slot())
        slot.take_over(Slot(storage))
        self._gradients[k - 1] = Handle(gradient, slot)

    def _expect_nothing(self, action: Action) -> None:
        """A backward without a gradient writes none: what the plan counted for it is not held."""
        self._held -= sum(self.script.sizes[key] for key in action.writes)

    def _random_numbers(self, k: int, stage: Stage, first: bool) -> Any:
        """A repeated run draws what the first run drew, and leaves the generator as it was."""
        if not stage.random or k not in self.script.repeated:
            return contextlib.nullcontext()
        if first:
            self._random[k] = RandomState(self.staged.device)
            return contextlib.nullcontext()
        return self._random[k]

    # Transfers

    def _offload(self, action: Action, after: list[Any]) -> Any:
        event = None
        for key in action.moves:
            place = self.script.host[key]
            storage = self._slots[key].storage
            if storage is None:  # a gradient that did not come
                continue
            target = self.host[place : place + storage.nbytes()]
            event = self._copied[key] = self.lanes.copy("out", storage, target, [self._made[key], *after])
        return event

    def _reserve(self, run: Action) -> None:
        """Take the memory of the prefetches that follow a run before the run is issued, where both fit.

        Memory that is taken after it may be memory that the run itself gave back: the copies would have to wait for its
        end.
        """
        for step in run.prefetches:
            action = self.script.actions[step]
            ready = all(self._slots[key].storage is None and key in self._copied for key in action.moves)
            if not ready or self._held + run.needs + action.needs > self.script.device_bytes:
                return
            self._held += action.needs
            storages = [self.lanes.allocate(self.script.sizes[key]) for key in action.moves]
            self._reserved[step] = (self.lanes.now(), storages)

    def _prefetch(self, step: int, action: Action, after: list[Any]) -> Any:
        keys = [key for key in action.moves if key in self._copied]
        if step not in self._reserved:
            needs = sum(self.script.sizes[key] for key in keys)
            self._make_room(needs)
            self._held += needs
            storages = [self.lanes.allocate(self.script.sizes[key]) for key in keys]
            self._reserved[step] = (self.lanes.now(), storages)
        free, storages = self._reserved.pop(step)
        event = None
        for key, storage in zip(keys, storages, strict=True):
            place, size = self.script.host[key], self.script.sizes[key]
            self._slots[key].storage = storage
            start = [free, self._copied[key], *after]
            event = self._made[key] = self.lanes.copy("in", storage, self.host[place : place + size], start)
            self._arriving.add(key)
        return event

    def _free(self, action: Action) -> None:
        for key in action.moves:
            slot = self._slots.get(key)
            if slot is None or slot.storage is None:
                continue
            storage, slot.storage = slot.storage, None
            events = [self._copied[key]] if key in self._copied else []
            if key in self._arriving:
                self._arriving.remove(key)
                events.append(self._made[key])
            if all(self.lanes.reached(event) for event in events):
                self._give_back(storage)
            else:
                self._leaving.append((storage, events))

    def _make_room(self, needs: int) -> None:
        """Wait for copies of what was freed, as far as its memory is needed now."""
        while self._leaving and self._held + needs > self.script.device_bytes:
            self._wait_for_the_first_to_leave()
        assert self._held + needs <= self.script.device_bytes, "the schedule needs more memory than its budget"

    def _wait_for_the_first_to_leave(self) -> None:
        storage, events = self._leaving.popleft()
        for event in events:
            self.lanes.wait(event)
        self._give_back(storage)

    def _give_back(self, storage: torch.UntypedStorage) -> None:
        self._held -= storage.nbytes()
        self.lanes.give_back(storage)

    def close(self) -> None:
        """Wait for what is under way, so that its memory may be used again."""
        while self._leaving:
            self._wait_for_the_first_to_leave()
