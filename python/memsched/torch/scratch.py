"""The memory that kernels take inside themselves, such as workspaces of convolutions: only a real run shows it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as trace

from memsched.torch.machines import MACHINES
from memsched.torch.meter import Meter
from memsched.torch.roofline import Roofline
from memsched.torch.stage_run import run_backward
from memsched.torch.stage_times import dry_walk, real_values
from memsched.torch.stage_walk import Walk, filled
from memsched.torch.stages import StagedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScratch:
    """Bytes that the allocator held at most in each run, beyond the tensors that PyTorch's operators hand out.

    Attributes
    ----------
    forward, backward : list of int, shape [n]
    """

    forward: list[int]
    backward: list[int]

    @property
    def most(self) -> int:
        """What a budget has to reserve, whatever the plan."""
        return max(*self.forward, *self.backward)


def kernel_scratch(
    staged: StagedModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> KernelScratch:
    """Run every stage once on the device of the model and compare what its allocator held with what was metered.

    On the CPU the memory events of the torch profiler tell: all that goes through PyTorch's allocator, not what
    libraries such as oneDNN take from the system themselves. On CUDA the statistics of the caching allocator tell:
    workspaces, those that a library keeps from its first use on, and the rounding of sizes.

    Parameters
    ----------
    staged, model, args, kwargs
        As `measure_times` takes them. The model is left as it was.

    Raises
    ------
    InvalidInputError
        The model or an input has no data.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.scratch import kernel_scratch
    >>> from memsched.torch.stages import stage
    >>> model, args = torch.nn.Linear(8, 8), (torch.ones(2, 8),)
    >>> kernel_scratch(stage(model, args), model, args).most
    0
    """
    leaves, state = real_values(staged, model, args, kwargs)
    _, gradients = dry_walk(staged, leaves, state, Roofline(MACHINES["v100"]))
    device = staged.device
    metered: list[int] = []

    gc.collect()  # what dies in between would count as given back
    generators = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with generators, _Allocator(device) as allocator, Meter() as meter:
        walk = Walk(staged, leaves, state)
        for one, arriving in zip(staged.stages, gradients, strict=True):
            incoming = [filled(gradient, device) for gradient in arriving]
            with _metered(meter, metered), allocator.watch(len(metered)):
                forward = walk.forward(one)
            assert forward.tape is not None
            with _metered(meter, metered), allocator.watch(len(metered)):
                run_backward(forward.tape, incoming)
            forward.tape = None
            walk.leave(one, forward)
    found = [max(0, held - counted) for held, counted in zip(allocator.most(), metered, strict=True)]
    return KernelScratch(forward=found[::2], backward=found[1::2])


@contextmanager
def _metered(meter: Meter, found: list[int]) -> Iterator[None]:
    """Note the peak of what was metered."""
    meter.start()
    yield
    found.append(meter.peak)


class _Allocator:
    """The most bytes that the allocator of a device held in each of several spans, beyond those before all of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._most: list[int] = []
        self._start = 0
        self._trace = None if self._cuda else trace(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> _Allocator:
        if self._trace is not None:
            self._trace.__enter__()
        else:
            self._start = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *error: object) -> None:
        if self._trace is not None:
            self._trace.__exit__(*error)

    @contextmanager
    def watch(self, span: int) -> Iterator[None]:
        if not self._cuda:
            with record_function(f"memsched span {span}"):
                yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        self._most.append(torch.cuda.max_memory_allocated(self._device) - self._start)

    def most(self) -> list[int]:
        """Of each span, in order."""
        if self._trace is None:
            return self._most
        events = self._trace.profiler.kineto_results.events()
        spans = sorted(
            (event.start_ns(), event.end_ns()) for event in events if event.name().startswith("memsched span ")
        )
        changes = sorted(
            ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"),
            key=lambda change: change[0],
        )
        return _peaks(spans, changes)


def _peaks(spans: Sequence[tuple[int, int]], changes: Sequence[tuple[int, int]]) -> list[int]:
    """The largest running sum of the changes (time, bytes) within each span (start, end); spans do not overlap."""
    found, held, position = [], 0, 0
    for start, end in spans:
        while position < len(changes) and changes[position][0] < start:
            held += changes[position][1]
            position += 1
        most = held
        while position < len(changes) and changes[position][0] <= end:
            held += changes[position][1]
            most = max(most, held)
            position += 1
        found.append(most)
    return found
