"""How long the forward and the backward of each stage take: measured here, or modelled for a machine elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.support import checks
from memsched.torch.facts import fake_copy, fake_mode
from memsched.torch.leaves import has_no_data
from memsched.torch.machines import MACHINES, Machine
from memsched.torch.roofline import Roofline
from memsched.torch.stage_run import run_backward
from memsched.torch.stage_walk import Walk, arriving_gradients, filled
from memsched.torch.stages import Stage, StagedModel

Gradients = list[torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of each stage.

    Attributes
    ----------
    forward, backward : list of float, shape [n]
        Of a forward that saves, and of the backward; 0 for a stage whose backward computes nothing. The backward ends
        with the gradients of the parameters; adding them to gradients that are there already is not included.
    """

    forward: list[float]
    backward: list[float]


def measure_times(
    staged: StagedModel,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    repeat: int = 5,
) -> StageTimes:
    """Run every stage on the device of the model and take the median of its times.

    The memory of one stage at a time is needed, besides model and inputs. Parameters, their gradients, buffers and the
    generators of random numbers are as before when it returns.

    Parameters
    ----------
    staged : StagedModel
        The stages of `model`, captured without a rewrite.
    model, args, kwargs
        As they were captured, with data.
    repeat : int
        How often each stage runs, after one run that is not timed.

    Raises
    ------
    InvalidInputError
        The model or an input has no data.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.stages import stage
    >>> from memsched.torch.stage_times import measure_times
    >>> model, args = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), (torch.ones(2, 8),)
    >>> times = measure_times(stage(model, args), model, args)
    >>> len(times.forward), min(times.backward) > 0
    (2, True)
    """
    repeat = checks.count("repeat", repeat, 1, 10**6)
    leaves, state = real_values(staged, model, args, kwargs)
    _, gradients = dry_walk(staged, leaves, state, Roofline(MACHINES["v100"]))
    device = staged.device
    forward, backward = [], []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        walk = Walk(staged, leaves, state)
        for one, arriving in zip(staged.stages, gradients, strict=True):
            times = _measure_stage(walk, one, [filled(gradient, device) for gradient in arriving], device, repeat)
            forward.append(times[0])
            backward.append(times[1])
    return StageTimes(forward=forward, backward=backward)


def model_times(
    staged: StagedModel,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    machine: Machine,
) -> StageTimes:
    """What the roofline model says of every stage on a machine. Nothing is computed, and nothing allocated.

    Parameters
    ----------
    staged, model, args, kwargs
        As in `measure_times`, with data or without. Stages rewritten by `cuda_like` run the kernels of CUDA.
    machine : Machine

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.machines import machine
    >>> from memsched.torch.stages import stage
    >>> from memsched.torch.stage_times import model_times
    >>> model, args = torch.nn.Linear(4096, 4096), (torch.ones(4096, 4096),)
    >>> times = model_times(stage(model, args), model, args, machine=machine("v100")[0])
    >>> print(f"{times.forward[0] * 1e3:.1f} ms")
    16.4 ms
    """
    return dry_walk(staged, *_values(staged, model, args, kwargs), Roofline(machine))[0]


def _values(
    staged: StagedModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """The leaves of the inputs, and the state of the model."""
    return pytree.tree_leaves((tuple(args), dict(kwargs or {}))), staged.fetch_state(model)


def real_values(
    staged: StagedModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """The same, or an InvalidInputError if there is a tensor without data among them."""
    leaves, state = _values(staged, model, args, kwargs)
    if any(has_no_data(value) for value in (*leaves, *state.values())):
        raise InvalidInputError(
            "the stages are to be run, but the model or an input is a fake or meta tensor without data; give tensors "
            'with data, or name a machine to model, such as device="v100"'
        )
    return leaves, state


def dry_walk(
    staged: StagedModel, leaves: Sequence[Any], state: Mapping[str, torch.Tensor], roofline: Roofline
) -> tuple[StageTimes, list[Gradients]]:
    """Run all stages on tensors without data: the times of a model, and the gradients that arrive at each."""
    fake = fake_mode([*leaves, *state.values()])
    inputs = [fake_copy(fake, leaf) for leaf in leaves]
    values = {name: fake_copy(fake, value) for name, value in state.items()}
    n = len(staged.stages)
    times = StageTimes(forward=[0.0] * n, backward=[0.0] * n)
    gradients: list[Gradients] = [[] for _ in range(n)]
    with fake, roofline:
        walk = Walk(staged, inputs, values)
        runs = []
        for k, one in enumerate(staged.stages):
            roofline.lap()
            runs.append(walk.forward(one))
            times.forward[k] = roofline.lap()
            walk.leave(one, runs[k])
        gradient: torch.Tensor | None = None
        for k in range(n - 1, -1, -1):
            tape = runs[k].tape
            assert tape is not None
            gradients[k] = arriving_gradients(staged.stages[k], runs[k], gradient)
            roofline.lap()
            gradient, _ = run_backward(tape, gradients[k])
            times.backward[k] = roofline.lap()
    return times, gradients


def _measure_stage(
    walk: Walk, stage: Stage, gradients: Gradients, device: torch.device, repeat: int
) -> tuple[float, float]:
    """Medians of the seconds of a forward and a backward; the walk goes on to the next stage."""
    clock = Clock(device)
    for attempt in range(repeat + 1):
        if attempt == 1:
            clock.restart()  # the first run fills caches and lets libraries choose their kernels
        clock.start()
        forward = walk.forward(stage)
        clock.stop()
        assert forward.tape is not None
        clock.start()
        found = run_backward(forward.tape, gradients)
        clock.stop()
        forward.tape = None
        nothing = all(gradient is None for gradient in (found[0], *found[1]))
        del found
        if attempt < repeat:
            del forward
    walk.leave(stage, forward)
    seconds = clock.seconds()
    return median(seconds[::2]), 0.0 if nothing else median(seconds[1::2])


class Clock:
    """Times spans of work. On CUDA by events on the stream: the CPU runs ahead of the GPU as it does in training."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        """Forget all spans, and let the device finish what it has to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._marks: list[Any] = []

    def start(self) -> None:
        self._mark()

    def stop(self) -> None:
        self._mark()

    def _mark(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(perf_counter())

    def seconds(self) -> list[float]:
        """Of every span from a start to a stop."""
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._device.type != "cuda":
            return [end - start for start, end in pairs]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]
