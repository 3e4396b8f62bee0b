"""What autograd saves, seen through hooks: one slot a storage, and handles that never hold the bytes themselves."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

import torch

from memsched.errors import MemschedError
from memsched.torch.slots import Handle, Slot


class SavedSlot(Slot):
    """The slot of a saved storage, and its place in the order in which storages were first saved."""

    __slots__ = ("number",)

    def __init__(self, storage: torch.UntypedStorage, number: int) -> None:
        super().__init__(storage)
        self.number = number


class Owner(Protocol):
    """The step for which a tensor was saved."""

    def read(self, slot: SavedSlot | None) -> None:
        """The backward reads it: bring the bytes of its slot back."""


class SavedStorages:
    """Gives every storage that is saved during one forward a slot of its own.

    Parameters
    ----------
    outside : iterable of Tensor
        Parameters, buffers and inputs: they stay, so tensors on their storages are kept as they are.
    device : torch.device
        Tensors elsewhere are kept as they are, and so are those without a plain storage.
    """

    def __init__(self, outside: Iterable[torch.Tensor], device: torch.device) -> None:
        self._device = device
        self._held = [tensor for tensor in outside if tensor.layout is torch.strided]
        self._outside = {tensor.untyped_storage()._cdata for tensor in self._held}
        self._at: weakref.WeakValueDictionary[int, SavedSlot] = weakref.WeakValueDictionary()
        self._slots: weakref.WeakValueDictionary[int, SavedSlot] = weakref.WeakValueDictionary()
        self._count = 0

    def slot_of(self, tensor: torch.Tensor) -> SavedSlot | None:
        """The slot of a tensor's storage, made if there is none yet; None where the tensor is to be kept as it is."""
        plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
        if not plain or tensor.layout is not torch.strided or tensor.device != self._device or tensor.is_neg():
            return None
        storage = tensor.untyped_storage()
        if storage._cdata in self._outside or storage.nbytes() == 0:
            return None
        slot = self._at.get(storage._cdata)
        if slot is None:
            slot = SavedSlot(storage, self._count)
            self._at[storage._cdata] = self._slots[self._count] = slot
            self._count += 1
        return slot

    def get(self, number: int) -> SavedSlot | None:
        """A slot by its number; None once autograd needs it no more."""
        return self._slots.get(number)

    def on_device(self) -> list[SavedSlot]:
        """The slots whose bytes are on the device, in the order of their numbers."""
        return [slot for _, slot in sorted(self._slots.items()) if slot.storage is not None]

    def alive(self) -> bool:
        """Whether autograd still needs any."""
        return len(self._slots) > 0

    def take(self, slot: SavedSlot) -> torch.UntypedStorage:
        """Take the storage out of its slot. Its address may be that of another storage soon."""
        storage, slot.storage = slot.storage, None
        assert storage is not None
        self._at.pop(storage._cdata, None)
        return storage

    def close(self) -> None:
        """The forward has ended: nothing more will be saved."""
        self._held.clear()
        self._outside.clear()
        self._at.clear()


def only_saved(slot: SavedSlot) -> bool:
    """Whether nobody but its slot holds a storage that is on the device: no tensor can read or write it any more."""
    return slot.storage is not None and int(torch._C._storage_Use_Count(slot.storage._cdata)) == 1


class Saved:
    """One tensor as autograd keeps it under the hooks.

    Under hooks autograd does not notice that a saved tensor was changed in place. So this does: `witness` shares the
    tensor's version counter and holds none of its bytes.
    """

    __slots__ = ("handle", "owner", "slot", "tensor", "version", "witness")

    def __init__(self, owner: Owner, tensor: torch.Tensor, slot: SavedSlot | None) -> None:
        self.owner, self.slot, self.version = owner, slot, tensor._version
        self.handle = Handle(tensor, slot) if slot is not None else None
        kept = tensor.detach()
        self.tensor = kept if slot is None else None
        if slot is not None:
            kept.data = kept.new_empty(0)
        self.witness = kept


def unpack(saved: Saved) -> torch.Tensor:
    """The hook that gives a saved tensor back."""
    if torch.is_grad_enabled():
        raise MemschedError("a planned model has no second derivatives: call backward() without create_graph=True")
    if saved.witness._version != saved.version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a saved "
            f"{saved.witness.type()} is at version {saved.witness._version}; expected version {saved.version} instead"
        )
    saved.owner.read(saved.slot)
    return saved.handle.tensor() if saved.handle is not None else saved.tensor
