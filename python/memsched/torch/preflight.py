"""Before training: does a step fit, the largest batch that does, and what each way to make it fit costs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from memsched._core import Device, Graph
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.problems.budget import warn_if_slow
from memsched.study.auto import Say
from memsched.study.fit import LARGER, OFFLOADED, Fit, Steady, Way, check_asked, device_memory
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.formats import counted
from memsched.support.units import parse_bytes
from memsched.torch.batches import (
    OtherBatchError,
    batch_of,
    form_of,
    largest_size,
    largest_within,
    least,
    plan_within,
    scaled,
    told_of,
    with_batch,
)
from memsched.torch.compiled.joint import run_again
from memsched.torch.compiled.look import Loss, check_inputs, check_model, device_of, look, options_of
from memsched.torch.compiled.options import Options, device_for
from memsched.torch.compiled.plan import Timed, costs_in, timed
from memsched.torch.errors import CallError, CaptureError, told
from memsched.torch.machines import MACHINES, machine, memory_of
from memsched.torch.module_state import gradients_aside
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import bytes_beside, check_owner, optimizer_bytes, optimizer_named
from memsched.torch.profile import named_model
from memsched.torch.steady import steady
from memsched.torch.substitutes import kernels_of, substitute

PLANNER_SECONDS = 5.0
_PLANNED = ("recompute", "recompute and offload")
_CAPTURES = 4  # of a step, until the largest batch is found
_GIVE = {"optimizer": "give optimizer=...", "loss": "give loss=..., or a model that returns it"}
_CHECKPOINTED = "under the model's own checkpoints; plans take no notice of them"
_HELD = "a plan counts the model's results until the step ends, plain PyTorch until its loss has read them"


@public
def fit(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: str | int | None = None,
    device: str = "here",
    optimizer: torch.optim.Optimizer | int | None = None,
    loss: Loss | None = None,
    bandwidth: str | float | None = None,
    host_memory: str | int | None = None,
    reserve: str | int = 0,
    time_limit: str | float = PLANNER_SECONDS,
    largest: bool = True,
    progress: Say = None,
) -> Fit:
    """Say before training whether a step fits the device, and what each way to make it fit costs.

    Nothing is computed, and the model may be larger than this machine: its tensors may be without data.

    Parameters
    ----------
    model, args, kwargs, device, loss, bandwidth, host_memory, reserve
        As `memsched.torch.plan` takes them.
    memory : str or int, optional
        Bytes of the device. By default those of the machine that `device` names, or of this GPU.
    optimizer : torch.optim.Optimizer or int, optional
        Its state counts, and what it needs while it steps; of a number, the state alone.
    time_limit : float
        Seconds of the planner for each way.
    largest : bool
        Search for the largest batches, too: it takes several times as long.
    progress : callable, optional
        Called with a line about the work: what runs, and for how many samples.

    Returns
    -------
    Fit

    Raises
    ------
    CaptureError
        The step looks at values of tensors, or nothing of it can be captured.
    InvalidInputError
        The model is in eval mode, or an option cannot be right.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> adam = torch.optim.AdamW(model.parameters())
    >>> found = memsched.torch.fit(model, (torch.randn(256, 64),), optimizer=adam, memory="1MB", device="v100")
    >>> found.fits
    False
    >>> found.ways[0].largest_batch < 256
    True
    """
    check_model(model)
    check_inputs(model, args, kwargs)
    check_owner(optimizer, model)
    checks.flag("largest", largest)
    checks.progress(progress)
    bytes_ = device_memory(memory) if memory is not None else memory_of(device, device_of(model))
    options = options_of(
        model,
        budget=bytes_,
        device=device,
        planner="selective",
        bandwidth=bandwidth,
        host_memory=host_memory,
        reserve=reserve,
        time_limit=time_limit,
        optimizer=None if optimizer is None else optimizer_bytes(optimizer, device_of(model), stepping=True),
    )
    leaves = (one for one in (*model.parameters(), *tensors_of((args, kwargs))) if one.is_leaf)
    with told(model, args, kwargs, loss), gradients_aside(leaves):  # a step releases them before it computes others
        asked = _Asked(model, tuple(args), dict(kwargs or {}), optimizer, loss, options, bytes_, progress)
        return asked.answered(largest)


def fit_spec(
    model: str,
    input: str | None = None,
    *,
    device: str,
    memory: str | int | None = None,
    optimizer: str | None = None,
    autocast: str | None = None,
    bandwidth: str | None = None,
    time_limit: str | float = PLANNER_SECONDS,
    largest: bool = True,
    progress: Say = None,
) -> Fit:
    """`fit` for a model that a line of text names, such as "transformers:gpt2", and an optimiser such as "adamw"."""
    asked: dict[str, Any] = {"device": device, "memory": memory, "optimizer": optimizer, "bandwidth": bandwidth}
    check_asked(model, input, **asked, autocast=autocast, time_limit=time_limit)
    device = device.strip().lower()
    if device == "here" and not torch.cuda.is_available():
        raise InvalidInputError(
            f"device is 'here', and there is no GPU here; name the one to train on: {', '.join(MACHINES)}"
        )
    with named_model(model, input, where="cuda" if device == "here" else "cpu", autocast=autocast) as built:
        stepping = None if optimizer is None else optimizer_named(optimizer, built.model.parameters())
        try:
            found = fit(
                built.model,
                built.args,
                memory=memory,
                device=device,
                optimizer=stepping,
                bandwidth=bandwidth,
                time_limit=time_limit,
                largest=largest,
                progress=progress,
            )
        except CallError as error:  # in the words of who wrote Python; here a text was given
            written = (
                f"input={input}:int:100 for numbers below 100, or {input}:int where the model names its vocabulary"
            )
            raise CallError(str(error).replace("dtype=torch.long", written)) from error
    words = {_GIVE["loss"]: "name a MODULE:FUNCTION whose model returns it", "optimizer=": "--optimizer "}
    said = "\n".join(found.assumed)
    for python, text in words.items():
        said = said.replace(python, text)
    return replace(found, assumed=tuple(said.splitlines()))


class _Asked:
    """A model's step at any size of the batch, on one device."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        optimizer: torch.optim.Optimizer | int | None,
        loss: Loss | None,
        options: Options,
        memory: int,
        progress: Say,
    ) -> None:
        self._progress, self._doing = progress, ""
        self._model, self._given, self._loss = model, (args, kwargs), loss
        self._optimizer, self._memory = optimizer, memory
        self._reserve = parse_bytes(options.reserve, "reserve")
        self._options = replace(options, reserve=self._reserve + bytes_beside(optimizer, model))
        modelled = options.device != "here" and device_of(model).type == "cpu"
        self._capability = machine(options.device)[0].capability if modelled else None
        self._batch = batch_of(self._given)
        self._returns_loss, self._others = False, 0
        self._again: dict[int, float] = {}  # seconds of what the model's own checkpoints run again, by batch
        self.steady = functools.cache(self._steady)
        self._at = functools.cache(self._timed)

    def answered(self, largest: bool) -> Fit:
        """All ways."""
        batch, plain = self._batch, self._plain()
        link = self._device(link=True).d2h
        warn_if_slow(self._at(batch).graph, link, "bandwidth")
        if plain.fits:
            planned = _PLANNED[: 1 + (link > 0)] if largest and batch else ()
            ways = [plain, *(replace(plain, name=name, note=LARGER) for name in planned)]
        else:
            ways = [plain, self._planned(_PLANNED[0], link=False)]
            ways += [self._planned(_PLANNED[1], link=True), *self._optimizer_on_host()] if link else []
            ways += self._accumulated()
        if largest and batch:
            ways = [replace(one, largest_batch=self._largest_of(one.name)) for one in ways]
        most = ways[0].largest_batch or 0
        held = [_HELD] if any(one.largest_batch is not None and one.largest_batch < most for one in ways) else []
        if plain.fits:  # the others are of use where they allow more samples
            ways[1:] = [one for one in ways[1:] if one.largest_batch is None or one.largest_batch > most]
        times = str(self._at(batch).facts["source"])
        return Fit(
            name=f"{type(self._model).__name__} on {self._shapes()}",
            memory=self._memory,
            times=times,
            steady=self.steady(batch),
            ways=tuple(ways),
            assumed=(*self._not_given(), *held),
        )

    def _shapes(self) -> str:
        return ", ".join("x".join(map(str, one.shape)) or "a number" for one in tensors_of(self._given)) or "no tensors"

    def _not_given(self) -> list[str]:
        given = {"optimizer": self._optimizer, "loss": self._loss or self._returns_loss or None}
        return [
            f"no {what} was given, and none is counted; {_GIVE[what]}" for what, one in given.items() if one is None
        ]

    def _say(self, what: str, batch: int) -> None:
        if self._progress is not None:
            self._progress(f"{self._doing}{what}" + (f" of {counted(batch, 'sample')}" if batch else ""))

    def _largest_of(self, name: str) -> int | None:
        self._doing = f"largest batch, {name}: "
        if name == "plain":
            found = self.steady(self._batch)
            fixed = found.parameters + found.buffers + found.optimizer + found.gradients + self._beside
            return largest_within(self._plain_need, self._memory, self._batch, fixed)
        return self._largest_planned(link=name != "recompute") if name in _PLANNED else None

    def _plain(self) -> Way:
        need = self.steady(self._batch).peak_memory + self._beside
        seconds = self._seconds(self._batch)
        return self._way("plain", need, seconds, _CHECKPOINTED if self._again[self._batch] else "")

    def _planned(self, name: str, *, link: bool) -> Way:
        self._say(f"planning {name}", 0)
        update = self._updating(self._batch)
        graph, device = self._at(self._batch).graph, self._device(link=link)
        try:
            result = plan_within(graph, device, self._options.time_limit)
        except InfeasibleError:
            need = max(update, least(graph, device), self._memory + 1)  # no plan was found for what there is
            return self._way(name, need, math.nan)
        return self._way(name, max(update, result.peak_memory), result.makespan)

    def _optimizer_on_host(self) -> list[Way]:
        """The state stays on the host, where the updates run: gradients go there, and parameters come back."""
        found, link = self.steady(self._batch), self._device(link=True)
        if not found.optimizer:
            return []
        need = max(found.peak_forward_backward - found.optimizer, found.parameters + found.gradients) + self._beside
        seconds = self._seconds(self._batch) + found.gradients / link.d2h + found.parameters / link.h2d
        note = "its updates are not timed, and memsched does not run it"
        return [self._way(OFFLOADED, need, seconds, note)]

    def _accumulated(self) -> list[Way]:
        """The fewest micro-batches that fit."""
        small = [k for k in range(1, math.isqrt(self._batch) + 1) if self._batch % k == 0]
        parts = sorted({*small[1:], *(self._batch // k for k in small)} - {1})
        found: list[Way] = []
        norms = any(isinstance(one, torch.nn.modules.batchnorm._BatchNorm) for one in self._model.modules())
        note = "batch normalisation sees each part by itself" if norms else ""
        for k in parts:
            try:
                part, whole = self.steady(self._batch // k, k), self.steady(self._batch)
                need = part.peak_memory + whole.inputs - part.inputs + self._beside  # all parts are on the device
                if need > self._memory:  # its time does not count
                    found = [self._way(f"{k} micro-batches", need, math.nan, note)]
                else:
                    return [self._way(f"{k} micro-batches", need, k * self._seconds(self._batch // k), note)]
            except OtherBatchError:  # such as a normalisation of one sample
                break
        return found

    def _way(self, name: str, need: int, seconds: float, note: str = "") -> Way:
        known = None if math.isnan(seconds) else seconds
        return Way(name=name, fits=need <= self._memory, peak_memory=need, makespan=known, note=note)

    # What a batch needs.

    def _plain_need(self, batch: int) -> float:
        with contextlib.suppress(OtherBatchError):
            return self.steady(batch).peak_memory + self._beside
        return math.inf

    def _updating(self, batch: int) -> int:
        found = self.steady(self._batch)
        return found.peak_update - found.inputs + found.inputs * batch // max(self._batch, 1) + self._beside

    def _there_is_a_plan(self, batch: int, graph: Graph, device: Device) -> bool:
        with contextlib.suppress(InfeasibleError):
            return bool(self._updating(batch) <= self._memory and plan_within(graph, device, None, moves=0))
        return False

    def _fits_between(self, one: int, other: int, device: Device, batch: int) -> bool:
        self._say("planning a step", batch)
        graph = scaled((one, self._at(one).graph), (other, self._at(other).graph), batch)
        return self._there_is_a_plan(batch, graph, device)

    def _largest_planned(self, *, link: bool) -> int | None:
        """The largest batch for which there is a plan; None if it is not found in a few captures.

        The bytes of most tensors are linear in the batch. So the graph of any batch follows from those of two that are
        captured; those of the batch that is found, and of the next, are captured, too, and decide.
        """
        device, batch = self._device(link=link), self._batch
        others = dict.fromkeys([*self._again, batch // 2, 2 * batch, batch - 1])  # captured ones first
        near = [batch, *itertools.islice((one for one in others if one != batch and self._is_alike(one)), 1)]
        for _ in range(_CAPTURES):
            if len(near) < 2:
                return None
            found = largest_size(functools.partial(self._fits_between, near[0], near[1], device), near[0])
            if found and not self._is_planned(found, device):
                missed = found
            elif self._is_planned(found + 1, device):
                missed = found + 1
            else:
                return found
            near = [size for size in dict.fromkeys([missed, *near]) if self._is_alike(size)][:2]
        return None

    def _is_alike(self, batch: int) -> bool:
        """Whether the model runs with so many samples, by the same operations as with those that were given."""
        with contextlib.suppress(OtherBatchError):
            return batch >= 1 and form_of(self._at(batch).graph) == form_of(self._at(self._batch).graph)
        return False

    def _is_planned(self, batch: int, device: Device) -> bool:
        with contextlib.suppress(OtherBatchError):
            return self._there_is_a_plan(batch, self._at(batch).graph, device)
        return False

    def _steady(self, batch: int, micro_batches: int = 1) -> Steady:
        self._say("counting the bytes of a step", batch)
        args, kwargs = self._given if batch == self._batch else with_batch(self._given, batch)
        more: dict[str, Any] = {"micro_batches": micro_batches, "capability": self._capability}
        with told_of(batch, self._batch):
            return steady(self._model, args, kwargs, self._optimizer, self._loss, **more)

    def _timed(self, batch: int) -> Timed:
        self._say("capturing a step", batch)
        args, kwargs = self._given if batch == self._batch else with_batch(self._given, batch)
        calls = {} if self._capability is None else kernels_of(self._capability)
        prepare = functools.partial(substitute, calls=calls)
        with told_of(batch, self._batch):
            seen = look(self._model, args, kwargs, self._options, loss=self._loss, prepare=prepare)
            if seen.unplanned:
                raise CaptureError(f"a part of the step cannot be planned: {seen.unplanned[0]}")
        self._returns_loss = any(one.meta["val"].numel() == 1 for one in seen.visits[-1].joint.tangents)
        if device_of(self._model).type == "cuda":  # where it is measured
            self._others = seen.resident.others
        found = timed(seen.visits, seen.returns, seen.resident, self._options)
        both = zip(seen.visits, costs_in(found.facts), strict=True)
        self._again[batch] = sum(costs[n].seconds for visit, costs in both for n in run_again(visit.joint))
        return found

    @property
    def _beside(self) -> int:
        """Bytes that are no part of the step: what the caller asked for, and what is on the device anyway."""
        self._at(self._batch)
        return self._reserve + self._others

    def _seconds(self, batch: int) -> float:
        """Of the plain step, with the model's own checkpoints."""
        return sum(op["choices"][0]["time"] for op in self._at(batch).graph.ops) + self._again[batch]

    def _device(self, *, link: bool) -> Device:
        options = self._options if link else replace(self._options, bandwidth=0)
        return device_for(self._memory, self._at(self._batch).link, options)
