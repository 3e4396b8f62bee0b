"""What travels between the device and the host while a model runs under hooks, and the memory that waits for it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from memsched.torch.hooked.saved import SavedSlot
from memsched.torch.lanes import Lanes


class Transfers:
    """Copies between the device and one piece of host memory, and the storages that wait for them."""

    def __init__(self, lanes: Lanes, host: torch.Tensor) -> None:
        self.lanes, self.host = lanes, host
        self._latest: dict[str, Any] = {}
        self._leaving: list[tuple[torch.UntypedStorage, Any]] = []
        self._departing: list[tuple[weakref.ref[SavedSlot], torch.UntypedStorage, Any]] = []
        self._arriving: dict[int, tuple[weakref.ref[SavedSlot], torch.UntypedStorage, Any]] = {}

    def out(self, slot: SavedSlot, place: int, after: list[Any]) -> Any:
        """Issue a copy to the host."""
        storage = slot.storage
        assert storage is not None
        target = self.host[place : place + slot.nbytes]
        event = self._latest["out"] = self.lanes.copy("out", storage, target, after)
        self._departing.append((weakref.ref(slot), storage, event))
        return event

    def back(self, slot: SavedSlot, place: int, after: list[Any]) -> Any:
        """Issue a copy to new memory on the device, which the slot then holds."""
        storage = self.lanes.allocate(slot.nbytes)
        source = self.host[place : place + slot.nbytes]
        event = self.lanes.copy("in", storage, source, [self.lanes.now(), *after])
        self._latest["in"] = event
        self._arriving[slot.number] = (weakref.ref(slot), storage, event)
        slot.storage = storage
        return event

    def arrive(self, slot: SavedSlot) -> None:
        """Let the computation wait until the bytes of a slot are there."""
        arriving = self._arriving.pop(slot.number, None)
        if arriving is not None:
            self.lanes.wait(arriving[2])

    def free(self, storage: torch.UntypedStorage, event: Any) -> None:
        """Give memory back once a copy from it has ended."""
        self._departing = [one for one in self._departing if one[1]._cdata != storage._cdata]
        self._leaving.append((storage, event))

    def give_back(self, *, wait: bool) -> int:
        """Bytes of what was freed and has left; if asked, wait for the first that has not."""
        count, left = 0, []
        for storage, event in self._leaving:
            gone = self.lanes.reached(event)
            if wait and not gone:
                self.lanes.wait(event)  # the computation waits, the caller does not: the event may lie ahead still
                gone, wait = True, False
            if gone:
                count += storage.nbytes()
                self.lanes.give_back(storage)
            else:
                left.append((storage, event))
        self._leaving = left
        self._let_go()
        return count

    def _let_go(self) -> None:
        """Forget copies that have ended; wait for those whose storage autograd has let go of in the meantime."""
        for slot, _, event in (*self._departing, *self._arriving.values()):
            if slot() is None:
                self.lanes.wait(event)
        self._departing = [one for one in self._departing if one[0]() is not None and not self.lanes.reached(one[2])]
        self._arriving = {number: one for number, one in self._arriving.items() if one[0]() is not None}

    @property
    def leaving(self) -> bool:
        """Whether anything waits to be given back."""
        return bool(self._leaving)

    def drain(self) -> None:
        """Wait for all copies."""
        for event in self._latest.values():
            self.lanes.wait(event)
        self._latest.clear()
        self._leaving.clear()
        self._departing.clear()
        self._arriving.clear()
