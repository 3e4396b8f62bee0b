"""What the caller of planned graphs holds: storages told apart, gradients, and memory of others on the device."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch


def gradient_of(value: Any) -> torch.Tensor | None:
    """The gradient that a parameter or an input has."""
    return value.grad if isinstance(value, torch.Tensor) and value.is_leaf else None


def context_bytes(device: torch.device) -> int:
    """What is occupied beside PyTorch's own memory: the driver's context, and other processes."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


class Identities:
    """A number for each storage that is alive; addresses are used again."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._next = itertools.count()

    def of(self, storage: torch.UntypedStorage) -> int:
        """The number of a storage."""
        key = storage._cdata
        if key not in self._numbers:
            self._numbers[key] = next(self._next)
            weakref.finalize(storage, self._numbers.pop, key, None).atexit = False
        return self._numbers[key]
