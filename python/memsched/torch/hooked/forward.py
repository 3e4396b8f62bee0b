"""A model's own forward, under hooks that let what autograd saves leave and come back as a schedule says.

What hooks do not know, and how it is made up for:

* Whether the forward still uses a storage that autograd has saved. A storage is touched only when nothing but its slot
  refers to it; then no tensor can read or write it any more. Where somebody holds it longer than in the recorded step,
  it stays.
* Whether a saved tensor is changed in place afterwards: autograd does not look under hooks. `Saved` does, and raises
  what autograd would.
* In which order the backward reads. A storage that is read before its turn begins the stages up to its own; one that
  is away is fetched then. So any order is right, and the recorded one is fast.
* Whether this step is like the recorded one. Every save is compared. From the first that differs on, the schedule is
  given up: what only autograd holds leaves as long as there is room on the host, comes back when it is read, and the
  user is warned once that the budget may not hold.
* When the backward is over: autograd's engine calls back.

A storage that has come back is given back when autograd lets go of it, and not when the schedule says so: the chain
knows when that is.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import MemschedError
from memsched.torch.hooked.chain import Flow
from memsched.torch.hooked.saved import Saved, SavedSlot, SavedStorages, only_saved, unpack
from memsched.torch.hooked.transfers import Transfers
from memsched.torch.lanes import Lanes
from memsched.torch.run import Observer
from memsched.torch.script import Action, Key, Kind, Script
from memsched.torch.stand_in import StandIn, waiting_for_backward

_RUNS = ("forward", "loss", "backward")


class HookedForward(StandIn):
    """Stands in for the `forward` of a model that cannot be captured.

    Parameters
    ----------
    model : torch.nn.Module
    flow : Flow
        Of the recorded step.
    script : Script
        The schedule of its chain.
    device : torch.device
    lanes : Lanes
    """

    def __init__(self, model: torch.nn.Module, flow: Flow, script: Script, device: torch.device, lanes: Lanes) -> None:
        super().__init__(model)
        self._active: weakref.ref[HookedStep] | None = None
        self._transfers = Transfers(lanes, lanes.host_memory(script.host_bytes))
        self._warned = False
        self.flow, self.script, self.device = flow, script, device

    def _step(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._end_step_before()
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        storages = SavedStorages([*model.parameters(), *model.buffers(), *inputs], self.device)
        observer = self.observe()
        step = HookedStep(self.flow, self.script, storages, self._transfers, observer)
        self._active = weakref.ref(step)
        try:
            with torch.autograd.graph.saved_tensors_hooks(step.pack, unpack):
                result = type(model).forward(model, *args, **kwargs)
        except BaseException:
            step.close()
            raise
        step.end_forward()
        if step.differs is not None and observer is not None:
            raise MemschedError(
                f"this step differs from the one that was planned ({step.differs}), so it cannot be measured against "
                "the plan; pass the inputs that were planned"
            )
        if step.differs is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"this step differs from the one that was planned ({step.differs}): it is computed right, but may need "
                "more memory than the budget; plan with inputs that are typical",
                stacklevel=2,
            )
        return result

    def _end_step_before(self) -> None:
        active = self._active() if self._active is not None else None
        if active is not None:
            if active.waits_for_backward:
                raise waiting_for_backward()
            active.close()
        self._transfers.drain()

    def __del__(self) -> None:
        """Memory must not be used for anything else while it is copied to."""
        transfers = getattr(self, "_transfers", None)
        if transfers is not None:
            transfers.drain()


class HookedStep:
    """One training step under hooks.

    Autograd's graph holds the step through what it saved; the step holds nothing of the graph, and the slots weakly.

    Attributes
    ----------
    differs : str or None
        How the step differs from the recorded one.
    """

    def __init__(
        self, flow: Flow, script: Script, storages: SavedStorages, transfers: Transfers, observer: Observer | None
    ) -> None:
        self.differs: str | None = None
        self._flow, self._script, self._storages, self._transfers = flow, script, storages, transfers
        self._observer, self._lanes = observer, transfers.lanes
        self._stage_of = {number: k for k, number in enumerate(flow.numbers)}
        self._run_of = {
            (action.kind, action.stage): i for i, action in enumerate(script.actions) if action.kind in _RUNS
        }
        self._awaited = {step for action in script.actions for step in action.after}
        self._saves = self._stage = self._position = self._held = self._room = 0
        self._open: int | None = None
        self._done: set[int] = set()
        self._events: dict[int, Any] = {}
        self._host: dict[int, tuple[int, Any]] = {}  # of each number that has left: its place and the end of its copy
        self._phase = "forward"
        self._go(self._run_of["forward", 0] + 1)

    # What autograd asks for

    def pack(self, tensor: torch.Tensor) -> Saved:
        """The hook for a tensor that autograd saves."""
        slot = self._storages.slot_of(tensor)
        saved = Saved(self, tensor, slot)
        if self.differs is None:
            found = (slot.number, slot.nbytes) if slot is not None else (-1, 0)
            if self._saves >= len(self._flow.saves):
                self._improvise_from_here("it saves more tensors")
            elif found != self._flow.saves[self._saves]:
                self._improvise_from_here(f"another tensor is saved, {tensor.dtype} of {tuple(tensor.shape)}")
        self._let_go(self._saves)
        self._saves += 1
        return saved

    def end_forward(self) -> None:
        """The forward has returned."""
        if self.differs is None and self._saves != len(self._flow.saves):
            self._improvise_from_here("it saves fewer tensors")
        self._let_go(self._saves)
        self._storages.close()
        self._phase = "loss"

    def read(self, slot: SavedSlot | None) -> None:
        """The backward reads: go on with the schedule, and see that the bytes are there."""
        if self._phase != "backward" and self._phase != "closed":
            self._phase = "backward"
            torch.autograd.Variable._execution_engine.queue_callback(self.end_backward)
            self._begin(len(self._flow.ends) - 1)
        if slot is None:
            return
        if slot.number in self._stage_of:
            self._begin(self._stage_of[slot.number])
        if slot.storage is None:
            self._fetch(slot)
        self._transfers.arrive(slot)

    @property
    def waits_for_backward(self) -> bool:
        """The forward has ended, and some of what it saved is there to be read."""
        return self._phase == "loss" and self._storages.alive()

    def close(self) -> None:
        """The host memory is for another step from here on."""
        self._phase = "closed"

    def end_backward(self) -> None:
        """All that this backward computes is issued."""
        if self._phase != "backward":
            return
        self._phase = "done"
        if self.differs is None and not self._storages.alive():
            self._go(len(self._script.actions))
            self._close_run()
        self._transfers.give_back(wait=False)

    # The recorded step

    def _let_go(self, save: int) -> None:
        """End the stages whose storages the forward holds no longer once a tensor is saved."""
        ends = self._flow.ends
        while self.differs is None and self._stage < len(ends) and ends[self._stage] == save:
            k = self._stage
            slot = self._storages.get(self._flow.numbers[k]) if k < len(self._flow.numbers) else None
            if k < len(self._flow.numbers) and (slot is None or not only_saved(slot)):
                self._improvise_from_here("a saved tensor is held elsewhere")
                break
            self._stage += 1
            following: tuple[Kind, int] = ("forward", k + 1) if k + 1 < len(ends) else ("loss", -1)
            self._go(self._run_of[following] + 1)
        if self.differs is not None:
            self._improvise()

    def _begin(self, k: int) -> None:
        """Go on to the backward of stage k, and begin with what may arrive beside it."""
        if self.differs is not None or self._phase != "backward":
            return
        run = self._run_of["backward", k]
        if self._position > run:
            return
        self._go(run + 1)
        if not self._lanes.overlap:
            return
        for step in self._script.actions[run].prefetches:
            action = self._script.actions[step]
            slots = self._slots(action)
            if any(slot.storage is not None or slot.number not in self._host for slot in slots):
                return
            if any(earlier not in self._events for earlier in action.after):
                return
            if self._held + action.needs > self._script.device_bytes:
                return
            self._done.add(step)
            self._carry_out(step, action)

    def _go(self, end: int) -> None:
        """Carry out the steps of the schedule before position `end`; the last of them may be a run that begins."""
        while self._position < end:
            self._close_run()
            step, action = self._position, self._script.actions[self._position]
            self._position += 1
            if action.kind in _RUNS:
                self._begin_run(step, action)
            elif step not in self._done:
                if action.kind == "prefetch":
                    self._let_leave_first(step)
                self._carry_out(step, action)

    def _let_leave_first(self, prefetch: int) -> None:
        """Carry out what leaves between a prefetch and the next run before it.

        The list counts what a run allocates from its start on; some of it is there before. So what the run has no room
        for must have left when the prefetch takes its memory.
        """
        moved = set(self._script.actions[prefetch].moves)
        for step in range(prefetch + 1, self._next_run(prefetch)):
            action = self._script.actions[step]
            ready = all(earlier in self._events for earlier in action.after)
            if action.kind == "prefetch" or not ready or not moved.isdisjoint(action.moves):
                moved.update(action.moves)
            elif step not in self._done:
                self._done.add(step)
                self._carry_out(step, action)

    def _next_run(self, step: int) -> int:
        actions = self._script.actions
        return next((i for i in range(step, len(actions)) if actions[i].kind in _RUNS), len(actions))

    def _begin_run(self, step: int, action: Action) -> None:
        for earlier in action.after:
            self._lanes.wait(self._events[earlier])
        self._make_room(action.needs)
        self._held += action.needs
        self._open = step
        if self._observer is not None:
            self._observer.before(step, action)

    def _close_run(self) -> None:
        if self._open is None:
            return
        step, self._open = self._open, None
        action = self._script.actions[step]
        self._held -= action.scratch
        if step in self._awaited:
            self._events[step] = self._lanes.now()
        if self._observer is not None:
            self._observer.after(step, action, None)

    def _carry_out(self, step: int, action: Action) -> None:
        """A transfer, or a free."""
        if self._observer is not None:
            self._observer.before(step, action)
        event = None
        after = [self._events[earlier] for earlier in action.after]
        if action.kind == "prefetch":
            self._make_room(action.needs, self._next_run(step))
            self._held += action.needs
        for slot in self._slots(action):
            if action.kind == "offload" and only_saved(slot):
                event = self._offload(slot, self._script.host["tape", self._stage_of[slot.number], 0], after)
            elif action.kind == "prefetch" and slot.storage is None:
                place, copied = self._host[slot.number]
                event = self._transfers.back(slot, place, [copied, *after])
        if action.kind == "free":
            self._free(action)
        if step in self._awaited:
            self._events[step] = event if event is not None else self._lanes.now()
        if self._observer is not None:
            self._observer.after(step, action, event)

    def _slots(self, action: Action) -> list[SavedSlot]:
        """The slots that a step moves and that autograd still needs."""
        found = (self._storages.get(self._flow.numbers[k]) for _, k, _ in self._tapes(action))
        return [slot for slot in found if slot is not None]

    def _tapes(self, action: Action) -> list[Key]:
        """The storages among what a step moves: the chain's boundaries have no bytes."""
        return [key for key in action.moves if key[0] == "tape" and self._script.sizes[key]]

    def _free(self, action: Action) -> None:
        for key in self._tapes(action):
            slot = self._storages.get(self._flow.numbers[key[1]])
            ahead = self._position <= self._run_of["backward", key[1]]
            if slot is not None and ahead and slot.number in self._host and only_saved(slot):
                self._transfers.arrive(slot)
                self._transfers.free(self._storages.take(slot), self._host[slot.number][1])
            else:  # read already: autograd gives it back
                if self._flow.numbers[key[1]] in self._host:
                    self._lanes.wait(self._host[self._flow.numbers[key[1]]][1])
                self._held -= self._script.sizes[key]
        self._held -= self._transfers.give_back(wait=False)

    def _make_room(self, needs: int, run: int | None = None) -> None:
        """Give back what was freed; wait for its copies only as far as the memory is needed now, or by the next run."""
        actions = self._script.actions
        soon = actions[run].needs if run is not None and run < len(actions) else 0
        self._held -= self._transfers.give_back(wait=False)
        while self._transfers.leaving and self._held + needs + soon > self._script.device_bytes:
            self._held -= self._transfers.give_back(wait=True)
        assert self._held + needs <= self._script.device_bytes, "the schedule needs more memory than its budget"

    def _offload(self, slot: SavedSlot, place: int, after: list[Any]) -> Any:
        self._transfers.arrive(slot)
        event = self._transfers.out(slot, place, [self._lanes.now(), *after])
        self._host[slot.number] = (place, event)
        self._room = max(self._room, place + slot.nbytes)
        return event

    # Any other step

    def _improvise_from_here(self, why: str) -> None:
        self.differs = why
        self._open = None

    def _improvise(self) -> None:
        """Let leave what only autograd holds, in the host memory that is left."""
        for slot in self._storages.on_device():
            if only_saved(slot) and (
                slot.number in self._host or self._room + slot.nbytes <= len(self._transfers.host)
            ):
                if self._transfers.leaving:
                    self._transfers.give_back(wait=True)
                if slot.number not in self._host:
                    self._offload(slot, self._room, [])
                self._transfers.free(self._storages.take(slot), self._host[slot.number][1])

    def _fetch(self, slot: SavedSlot) -> None:
        """Bring back at once what is read before its turn."""
        if self._phase == "closed":
            raise MemschedError(
                "the backward reads what another forward has taken the place of; call backward() before that forward"
            )
        place, copied = self._host[slot.number]
        self._transfers.back(slot, place, [copied])
