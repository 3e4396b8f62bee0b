"""How many bytes live in tensors, counted at every operation, on any device and on tensors without data.

And how many an operation takes on a CPU while it runs, which no operation tells.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from memsched.torch.fan_in import current_node, is_fan_in, taker
from memsched.torch.kernel_bytes import kernel_bytes, scratch_bytes


class Meter(TorchDispatchMode):
    """Follows the storages that are born while it is entered, until they die.

    A storage that an operation reads before any operation made it existed already: it counts nothing. Gradients that
    autograd adds up count as it does when nobody watches: in place (see `memsched.torch.fan_in`). Of tensors without
    data count the bytes that the kernel would allocate. With a device type the tensors of such devices alone count.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.meter import Meter
    >>> with Meter() as meter:
    ...     kept = torch.ones(4) + torch.ones(4)
    >>> meter.live, meter.peak
    (16, 48)
    """

    supports_higher_order_operators = True

    def __init__(self, device_type: str | None = None) -> None:
        super().__init__()
        self._device_type = device_type
        self.live = 0  # bytes of the storages born under it that are alive
        self._peak = 0
        self._sizes: dict[int, int] = {}
        self._makers: dict[int, int | None] = {}  # the autograd nodes in which storages were born
        self._sum: _Sum | None = None

    @property
    def peak(self) -> int:
        """The largest `live` so far."""
        self._settle()
        return self._peak

    def count(self, tensors: Iterable[torch.Tensor], beside: int = 0) -> None:
        """Count these storages from now on, as if they were born now: they were made while it was not entered.

        So many bytes were there beside them when they were made.
        """
        for _, one in self._unknown(tensors):
            self._follow(one.untyped_storage(), one.untyped_storage().nbytes())
        self._peak = max(self._peak, self.live + beside)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._settle()
        for _, one in self._unknown(pytree.tree_leaves((args, kwargs))):
            self._follow(one.untyped_storage(), 0)
        out = func(*args, **kwargs)
        node = current_node()
        for place, one in self._unknown(pytree.tree_leaves(out)):
            storage = one.untyped_storage()
            more = kernel_bytes(func, args, one, place, self.bytes_of) if isinstance(one, FakeTensor) else 0
            self._follow(storage, max(storage.nbytes(), more))
            self._makers[storage._cdata] = node
        sum_so_far = taker(func, args, kwargs)
        if sum_so_far is not None and self._counts(sum_so_far) and is_fan_in(node, self._makers_of(args)):
            self._sum = _Sum(sum_so_far.untyped_storage()._cdata, self.live, out.untyped_storage().nbytes())
        else:
            self._peak = max(self._peak, self.live + self.scratch(func, args, kwargs))
        return out

    def scratch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> int:
        """What an operation allocates and gives back beside its results, as far as that is known."""
        return scratch_bytes(func, args, kwargs, self.bytes_of)

    def bytes_of(self, one: Any) -> int:
        """The bytes of the memory in which a tensor lies; a number as it is."""
        if not isinstance(one, torch.Tensor):
            return int(one)
        storage = one.untyped_storage()
        return self._sizes.get(storage._cdata) or storage.nbytes()

    def _makers_of(self, tensors: Iterable[torch.Tensor]) -> list[int | None]:
        keys = [tensor.untyped_storage()._cdata for tensor in tensors]
        return [self._makers[key] for key in keys if key in self._makers]

    def _settle(self) -> None:
        """Count the last sum of gradients, now that it shows whether somebody else holds the sum before it."""
        if self._sum is not None:
            in_place = self._sum.so_far not in self._sizes
            self._peak = max(self._peak, self._sum.live - (self._sum.result if in_place else 0))
            self._sum = None

    def _counts(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return False
        return self._device_type in (None, value.device.type)

    def _unknown(self, values: Iterable[Any]) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensors among some values whose storages it does not follow yet, with their places."""
        for place, value in enumerate(values):
            if self._counts(value) and value.untyped_storage()._cdata not in self._sizes:
                yield place, value

    def _follow(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        weakref.finalize(storage, Meter._drop, weakref.ref(self), storage._cdata).atexit = False
        self._sizes[storage._cdata] = nbytes
        self.live += nbytes

    @staticmethod
    def _drop(meter: weakref.ref[Meter], key: int) -> None:
        alive = meter()
        if alive is not None:
            alive.live -= alive._sizes.pop(key, 0)  # an interrupt may have come before its bytes were noted
            alive._makers.pop(key, None)


def with_workspace(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and the most bytes that it held on the CPU beside that, as PyTorch's allocator tells it."""
    kind = torch.autograd.ProfilerState.CPU
    config = torch.autograd.ProfilerConfig(
        kind, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
    )  # of these, only the memory is asked for
    torch.autograd._enable_profiler_legacy(config)
    try:
        found = call()
    finally:
        threads = torch.autograd._disable_profiler_legacy()
    live = most = 0
    for event in itertools.chain.from_iterable(threads):
        if event.kind() == "memory_alloc":
            live += event.cpu_memory_usage()
            most = max(most, live)
    return found, most - live


@dataclass(frozen=True, slots=True)
class _Sum:
    """An addition of two gradients: the storage that could take it, the bytes alive after it and those it made."""

    so_far: int
    live: int
    result: int
