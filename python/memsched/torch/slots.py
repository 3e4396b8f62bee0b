"""Where the bytes of a tensor are: the storages that autograd reads through, so that they can leave and come back."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch


class Slot:
    """The bytes of one storage, or the place where they will be again.

    Attributes
    ----------
    storage : torch.UntypedStorage or None
        None while the bytes are not on the device.
    nbytes : int
    """

    __slots__ = ("__weakref__", "handles", "nbytes", "storage")

    def __init__(self, storage: torch.UntypedStorage | None = None) -> None:
        self.storage = storage
        self.nbytes = storage.nbytes() if storage is not None else 0
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()

    def take_over(self, other: Slot) -> None:
        """Hold the storage of `other`, and serve all who read through it."""
        self.storage, self.nbytes = other.storage, other.nbytes
        for handle in list(other.handles):
            handle.slot = self
            self.handles.add(handle)


class Handle:
    """A tensor as autograd keeps it: a view of a slot. It never holds the bytes themselves."""

    __slots__ = ("__weakref__", "conjugate", "device", "dtype", "negative", "offset", "shape", "slot", "strides")

    def __init__(self, tensor: torch.Tensor, slot: Slot) -> None:
        self.slot = slot
        self.dtype, self.device = tensor.dtype, tensor.device
        self.shape, self.strides, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self.conjugate, self.negative = tensor.is_conj(), tensor.is_neg()
        slot.handles.add(self)

    def tensor(self) -> torch.Tensor:
        """The tensor, on the bytes that the slot holds now."""
        storage = self.slot.storage
        assert storage is not None, "a tensor is read while its bytes are away"
        with torch.no_grad():
            view = torch.empty(0, dtype=self.dtype, device=self.device)
            view.set_(storage, self.offset, self.shape, self.strides)
            view = torch._neg_view(view) if self.negative else view
            return view.conj() if self.conjugate else view


class Packer:
    """Hooks for saved tensors that put each new storage into a slot of its own.

    Nothing here refers to the step that runs: hooks that did would keep each other alive through autograd's graph.

    Parameters
    ----------
    outside : iterable of Tensor
        Parameters, buffers and the like: tensors on their storages are kept as they are.
    slots : iterable of Slot
        Storages that have a slot already.
    device_type : str
        Tensors elsewhere are kept as they are: some CUDA kernels save their seed on the CPU.
    """

    def __init__(self, outside: Iterable[torch.Tensor], slots: Iterable[Slot], device_type: str) -> None:
        self._device_type = device_type
        self.given: set[int] = set()  # the storages, by address, of what was saved and existed before
        self._outside = {tensor.untyped_storage()._cdata for tensor in outside}
        self._slots: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
        for slot in slots:
            assert slot.storage is not None
            self._slots[slot.storage._cdata] = slot
        self._entries = set(self._slots)

    def pack(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != self._device_type:
            return tensor.detach()
        storage = tensor.untyped_storage()
        if storage._cdata in self._outside or storage.nbytes() == 0:
            self.given.add(storage._cdata)
            return tensor.detach()
        slot = self._slots.get(storage._cdata)
        if slot is None:
            slot = self._slots[storage._cdata] = Slot(storage)
        elif storage._cdata in self._entries:
            self.given.add(storage._cdata)
        return Handle(tensor, slot)

    def found(self) -> list[Slot]:
        """The slots that anybody still reads through, in the order in which they were first saved."""
        return list(self._slots.values())

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """The slot of a tensor's storage."""
        return self._slots.get(tensor.untyped_storage()._cdata)


def unpack(packed: Any) -> torch.Tensor:
    """The other hook."""
    return packed.tensor() if isinstance(packed, Handle) else packed


def pack_nothing(tensor: torch.Tensor) -> None:
    """Hook of a run that saves nothing."""


def unpack_nothing(packed: Any) -> torch.Tensor:
    """Its other half, which nobody calls."""
    raise AssertionError("a backward reads what its forward did not save")
