"""How many bytes live in tensors, counted at every operation, on any device and on tensors without data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Meter(TorchDispatchMode):
    """Follows the storages that are born while it is entered, until they die.

    A storage that an operation reads before any operation made it existed already: it counts nothing.

    Parameters
    ----------
    device_type : str, optional
        Count the tensors of such devices only.

    Attributes
    ----------
    live : int
        Bytes of the storages born under it that are alive.
    peak : int
        The largest `live` since `start`.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.meter import Meter
    >>> with Meter() as meter:
    ...     kept = torch.ones(4) + torch.ones(4)
    >>> meter.live, meter.peak
    (16, 48)
    """

    def __init__(self, device_type: str | None = None) -> None:
        super().__init__()
        self._device_type = device_type
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def start(self) -> None:
        """Measure the peak from here on."""
        self.peak = self.live

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count these storages no longer: somebody else holds them."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.live -= self._sizes.get(storage._cdata, 0)
            self._follow(storage, 0)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            if self._counts(leaf):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._follow(storage, 0)
        out = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(out):
            if self._counts(leaf):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._follow(storage, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out

    def _counts(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
        return self._device_type in (None, value.device.type)

    def _follow(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, Meter._drop, weakref.ref(self), key).atexit = False
        self._sizes[key] = nbytes
        self.live += nbytes

    @staticmethod
    def _drop(meter: weakref.ref[Meter], key: int) -> None:
        alive = meter()
        if alive is not None:
            alive.live -= alive._sizes.pop(key)
