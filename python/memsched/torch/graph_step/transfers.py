"""The storages that a schedule decides about: on the device, on the host, and on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from memsched.torch.lanes import Lanes
from memsched.torch.script import Action, Key, Script
from memsched.torch.slots import Slot


class Transfers:
    """Carries out the offloads, prefetches and frees of a script, and waits where runs need it.

    Parameters
    ----------
    script : Script
    lanes : Lanes
    host : Tensor
        Host memory, script.host_bytes of it.

    Attributes
    ----------
    slots : dict
        Key -> where its bytes are.
    """

    def __init__(self, script: Script, lanes: Lanes, host: torch.Tensor) -> None:
        self._script, self._lanes, self._host = script, lanes, host
        self.slots: dict[Key, Slot] = {key: Slot() for key in script.sizes}
        self._made: dict[Key, Any] = {}  # when the bytes on the device are complete
        self._arriving: set[Key] = set()  # copied in, and the computation does not wait for it yet
        self._copied: dict[Key, Any] = {}  # when the host has them
        self._reserved: dict[int, tuple[Any, torch.UntypedStorage]] = {}
        self._leaving: deque[tuple[torch.UntypedStorage, list[Any]]] = deque()
        self._foreign: set[int] = set()  # storages that others may hold, by address
        self._held = 0

    def take(self, key: Key, storage: torch.UntypedStorage) -> None:
        """An input: its bytes are on the device, and they may be the caller's."""
        self.slots[key].storage = storage
        self._foreign.add(storage._cdata)
        self._made[key] = self._lanes.now()
        self._held += self._script.sizes[key]

    def before(self, run: Action) -> None:
        """Let the computation wait for what a run reads, and have memory for what it makes."""
        for key in run.reads:
            if key in self._arriving:
                self._arriving.remove(key)
                self._lanes.wait(self._made[key])
        self._make_room(run.needs)
        if self._lanes.overlap:
            self._reserve(run)

    def after(self, run: Action, storages: Sequence[torch.UntypedStorage]) -> None:
        """A run has made these storages, one for each of its writes."""
        for key, storage in zip(run.writes, storages, strict=True):
            self.slots[key].storage = storage
        self._held += run.needs - run.scratch
        if any(key in self._script.host for key in run.writes):
            self._made.update(dict.fromkeys(run.writes, self._lanes.now()))

    def offload(self, action: Action, after: Sequence[Any]) -> Any:
        """Begin a copy to the host; its end."""
        (key,) = action.moves
        storage, place = self.slots[key].storage, self._script.host[key]
        assert storage is not None, "an offload of what is not on the device"
        target = self._host[place : place + self._script.sizes[key]]
        self._copied[key] = self._lanes.copy("out", storage, target, [self._made[key], *after])
        return self._copied[key]

    def prefetch(self, step: int, action: Action, after: Sequence[Any]) -> Any:
        """Begin a copy to the device; its end."""
        (key,) = action.moves
        if step not in self._reserved:
            self._make_room(action.needs)
            self._held += action.needs
            storage = self._lanes.allocate(self._script.sizes[key])
            self._reserved[step] = (self._lanes.now(), storage)
        free, storage = self._reserved.pop(step)
        place = self._script.host[key]
        source = self._host[place : place + self._script.sizes[key]]
        self.slots[key].storage = storage
        self._made[key] = self._lanes.copy("in", storage, source, [free, self._copied[key], *after])
        self._arriving.add(key)
        return self._made[key]

    def free(self, action: Action) -> None:
        """Give a device copy back, as soon as no copy needs it any more."""
        (key,) = action.moves
        slot = self.slots[key]
        storage, slot.storage = slot.storage, None
        assert storage is not None, "a free of what is not on the device"
        events = [self._copied[key]] if key in self._copied else []
        if key in self._arriving:
            self._arriving.remove(key)
            events.append(self._made[key])
        if all(self._lanes.reached(event) for event in events):
            self._give_back(storage)
        else:
            self._leaving.append((storage, events))

    def close(self) -> None:
        """Wait for what is under way and let go of everything."""
        for key in self._arriving:  # a copy must not write to memory that somebody else gets
            self._lanes.wait(self._made[key])
        self._arriving.clear()
        while self._leaving:
            self._wait_for_the_first_to_leave()
        for event in self._copied.values():  # nor read it
            self._lanes.wait(event)
        self._copied.clear()
        self._reserved.clear()
        for slot in self.slots.values():
            slot.storage = None

    def _reserve(self, run: Action) -> None:
        """Take the memory of the prefetches that follow a run before the run is issued, where both fit.

        Memory that is taken after it may be memory that the run itself gave back: the copies would have to wait for its
        end.
        """
        for step in run.prefetches:
            action = self._script.actions[step]
            (key,) = action.moves
            ready = self.slots[key].storage is None and key in self._copied
            if not ready or self._held + run.needs + action.needs > self._script.device_bytes:
                return
            self._held += action.needs
            storage = self._lanes.allocate(self._script.sizes[key])
            self._reserved[step] = (self._lanes.now(), storage)

    def _make_room(self, needs: int) -> None:
        """Wait for copies of what was freed, as far as its memory is needed now."""
        while self._leaving and self._held + needs > self._script.device_bytes:
            self._wait_for_the_first_to_leave()
        assert self._held + needs <= self._script.device_bytes, "the schedule needs more memory than its budget"

    def _wait_for_the_first_to_leave(self) -> None:
        storage, events = self._leaving.popleft()
        for event in events:
            self._lanes.wait(event)
        self._give_back(storage)

    def _give_back(self, storage: torch.UntypedStorage) -> None:
        self._held -= storage.nbytes()
        if storage._cdata in self._foreign:
            self._foreign.discard(storage._cdata)
        else:
            self._lanes.give_back(storage)
