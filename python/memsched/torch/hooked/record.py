"""One training step of a model, recorded: what autograd saves and reads, when, and what lives beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from memsched.torch.hooked.saved import Saved, SavedSlot, SavedStorages, only_saved, unpack
from memsched.torch.lanes import as_bytes
from memsched.torch.meter import Meter
from memsched.torch.trial import trial_step, untouched

_TIMED = 3  # steps whose times are taken; the median counts


class Clock(Protocol):
    """Tells the seconds between two moments: those that pass here, or those of a modelled machine."""

    def lap(self) -> float:
        """Seconds since the last lap."""


class Stopwatch:
    """Seconds that pass on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mark = perf_counter()

    def lap(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        before, self._mark = self._mark, perf_counter()
        return self._mark - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment of the step, and the work since the mark before.

    Attributes
    ----------
    kind : str
        "save", "forward" (its end), "read" or "backward" (its end).
    number, nbytes : int
        The storage that is saved or read; -1 and 0 for a tensor that is kept as it is.
    seconds : float
        Of the work since the mark before.
    most, before, after : int
        Live bytes: the most since the mark before, at the mark, and once the mark's releases are done.
    released : tuple of int
        The storages that only autograd holds from here on.
    """

    kind: str
    number: int
    nbytes: int
    seconds: float
    most: int
    before: int
    after: int
    released: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step as it went.

    Attributes
    ----------
    marks : list of Mark
    sizes, names : dict
        Of each storage, by its number.
    died : dict of int to int
        The first mark at which autograd needs a storage no more.
    outputs, output_gradients : int
        Bytes of the results that are new, and of the gradients of those that need one.
    scratch : int
        The most bytes that CUDA's allocator held beside the tensors; 0 on the CPU, which does not tell.
    """

    marks: list[Mark]
    sizes: dict[int, int]
    names: dict[int, str]
    died: dict[int, int]
    outputs: int
    output_gradients: int
    scratch: int


def record_step(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    device: torch.device,
    clock: Clock | None = None,
) -> RecordedStep:
    """Run one training step under hooks; the model is left as it was.

    Everything that only autograd holds waits on the host meanwhile, so that the step needs no more device memory than
    the tightest plan would.

    Parameters
    ----------
    model, args, kwargs
        In training mode, with data, on `device`.
    clock : Clock, optional
        The model of another machine; entered as a dispatch mode. Otherwise the step is repeated and timed here.
    """
    modelled: Any = clock if clock is not None else contextlib.nullcontext()
    meter = Meter(device.type)
    recorder = Recorder(clock or Stopwatch(device), meter, device, leaves=True)
    with meter, modelled:
        found = recorder.step(model, args, kwargs)
    if clock is not None:
        return found
    timed = []
    for _ in range(_TIMED):
        one = Recorder(Stopwatch(device), None, device, leaves=device.type == "cuda", guarded=recorder.wrote)
        again = one.step(model, args, kwargs)
        if [(m.kind, m.number) for m in again.marks] == [(m.kind, m.number) for m in found.marks]:
            timed.append([mark.seconds for mark in again.marks])
    return _with_times(found, timed) if timed else found  # with other flow each time, the metered times must do


def _with_times(found: RecordedStep, timed: Sequence[Sequence[float]]) -> RecordedStep:
    seconds = [sorted(column)[len(timed) // 2] for column in zip(*timed, strict=True)]
    marks = [dataclasses.replace(mark, seconds=s) for mark, s in zip(found.marks, seconds, strict=True)]
    return dataclasses.replace(found, marks=marks)


class Recorder:
    """Hooks that write down one step."""

    def __init__(
        self, clock: Clock, meter: Meter | None, device: torch.device, *, leaves: bool, guarded: bool = True
    ) -> None:
        self._meter, self._guarded, self.wrote = meter, guarded, False
        self._clock, self._device, self._leaves = clock, device, leaves
        self._marks: list[Mark] = []
        self._host: dict[int, torch.Tensor] = {}
        self._sizes: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._died: dict[int, int] = {}
        self._released: set[int] = set()
        self._outputs = self._output_gradients = self._scratch = 0
        self._base = int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0
        self._waiting_for_end = True
        self._storages: SavedStorages | None = None

    def step(self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> RecordedStep:
        torch.clear_autocast_cache()
        with untouched(model, self._device, (args, kwargs), guarded=self._guarded) as originals:
            trial_step(model, partial(self._forward, model), args, kwargs, self._device)
        self.wrote = originals.wrote
        return RecordedStep(
            marks=self._marks,
            sizes=self._sizes,
            names=self._names,
            died=self._died,
            outputs=self._outputs,
            output_gradients=self._output_gradients,
            scratch=self._scratch,
        )

    def _forward(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outside = [*model.parameters(), *model.buffers(), *inputs]
        self._storages = SavedStorages(outside, self._device)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._clock.lap()
        with torch.autograd.graph.saved_tensors_hooks(self._pack, unpack):
            result = type(model).forward(model, *args, **kwargs)
        self._mark("forward", None)
        self._storages.close()
        new = {t.untyped_storage()._cdata: t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)}
        for tensor in outside:
            new.pop(tensor.untyped_storage()._cdata, None)
        self._outputs = sum(tensor.untyped_storage().nbytes() for tensor in new.values())
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._output_gradients = sum(t.numel() * t.element_size() for t in tensors if t.requires_grad)
        return result

    def _pack(self, tensor: torch.Tensor) -> Saved:
        assert self._storages is not None
        seconds = self._clock.lap()
        slot = self._storages.slot_of(tensor)
        if slot is not None and slot.number not in self._sizes:
            self._sizes[slot.number] = slot.nbytes
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            self._names[slot.number] = f"{str(tensor.dtype).removeprefix('torch.')} {shape}"
            weakref.finalize(slot, self._note_death, slot.number).atexit = False
        saved = Saved(self, tensor, slot)
        self._mark("save", slot, seconds)
        return saved

    def _note_death(self, number: int) -> None:
        self._died[number] = len(self._marks)
        self._host.pop(number, None)

    def read(self, slot: SavedSlot | None) -> None:
        seconds = self._clock.lap()
        if self._waiting_for_end:
            self._waiting_for_end = False
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._mark, "backward", None))
        self._mark("read", slot, seconds)

    def _mark(self, kind: str, slot: SavedSlot | None, seconds: float | None = None) -> None:
        """Write down a moment, and let go what nobody else holds, or bring back what is read."""
        seconds = self._clock.lap() if seconds is None else seconds
        most, before = (self._meter.peak, self._meter.live) if self._meter is not None else (0, 0)
        if self._meter is not None and self._device.type == "cuda":
            held = int(torch.cuda.max_memory_allocated(self._device)) - self._base
            self._scratch = max(self._scratch, held - most)
        released = self._release() if kind in ("save", "forward") else ()
        if kind == "read" and slot is not None and slot.storage is None:
            self._bring_back(slot)
        number, nbytes = (slot.number, slot.nbytes) if slot is not None else (-1, 0)
        after = self._meter.live if self._meter is not None else 0
        self._marks.append(
            Mark(
                kind=kind,
                number=number,
                nbytes=nbytes,
                seconds=seconds,
                most=most,
                before=before,
                after=after,
                released=released,
            )
        )
        if self._meter is not None:
            self._meter.start()
            if self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._device)
        self._clock.lap()

    def _release(self) -> tuple[int, ...]:
        assert self._storages is not None
        free = [s for s in self._storages.on_device() if s.number not in self._released and only_saved(s)]
        for slot in free:
            self._released.add(slot.number)
            if self._leaves:
                storage = self._storages.take(slot)
                with torch._C._DisableTorchDispatch():  # the host's memory does not count
                    self._host[slot.number] = as_bytes(storage).to("cpu", copy=True)
                del storage
        return tuple(slot.number for slot in free)

    def _bring_back(self, slot: SavedSlot) -> None:
        storage = torch.empty(slot.nbytes, dtype=torch.uint8, device=self._device).untyped_storage()
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            as_bytes(storage).copy_(self._host[slot.number])
        slot.storage = storage
