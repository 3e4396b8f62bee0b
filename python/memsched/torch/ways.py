"""Each way to run a training step of a model on a device: what it needs, what it costs, and the largest batch."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import replace
from typing import Any

import torch

from memsched._core import Device, Graph
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.problems.budget import warn_if_slow
from memsched.study.auto import Say
from memsched.study.fit import LARGER, MICRO, OFFLOADED, TRAVELLING, UPDATED, Fit, Steady, Way
from memsched.support.formats import counted, format_bandwidth, format_seconds
from memsched.support.units import parse_bytes
from memsched.torch.batches import (
    OtherSizeError,
    PlannedSizes,
    Size,
    largest_aligned,
    largest_within,
    least,
    plan_within,
    size_of,
    told_of,
    with_size,
)
from memsched.torch.compiled.how import How
from memsched.torch.compiled.joint import run_again
from memsched.torch.compiled.look import Look, Loss, device_of, look
from memsched.torch.compiled.options import Options, device_for
from memsched.torch.compiled.plan import Timed, costs_in, timed
from memsched.torch.compiled.private import without_logs
from memsched.torch.compiled.times import disturbed
from memsched.torch.compiled.update_checks import updates_of
from memsched.torch.compiled.update_costs import HostSpeed
from memsched.torch.errors import CaptureError
from memsched.torch.machines import machine
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import bytes_beside
from memsched.torch.steady import steady
from memsched.torch.steps import own_loss
from memsched.torch.substitutes import kernels_of, substitute

_PLANNED = ("recompute", "recompute and offload")
_UPDATING = (UPDATED, TRAVELLING, OFFLOADED)
_HOST = 100e9  # bytes a second that a host reads and writes, of a machine that is not here
GIVE = {"optimizer": "give optimizer=...", "loss": "give loss=..., or a model that returns it"}
_ALIGNED = 8  # lengths that are a multiple of it may run by other kernels
_CHECKPOINTED = "under the model's own checkpoints; plans take no notice of them"
_HELD = "the model's results count until the step ends, as where a variable holds them: out = model(x)"
_TARGETS = "; a loss with targets of its own runs with one size: make them of the shape of the model's result"


class _TimeOverError(Exception):
    """No more searching."""


class Asked:
    """A model's step at any size of its inputs, on one device.

    `searched` is what the largest of is sought, in `search_limit` seconds.
    """

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
        searched: str | None,
        search_limit: float | None,
    ) -> None:
        self._progress, self._doing = progress, ""
        self._limit, self._until = search_limit, math.inf  # of all searches together
        self._model, self._given, self._loss = model, (args, kwargs), loss
        self._optimizer, self._memory = optimizer, memory
        self._reserve = parse_bytes(options.reserve, "reserve")
        self._options = replace(options, reserve=self._reserve + bytes_beside(optimizer, model))
        modelled = options.device != "here" and device_of(model).type == "cpu"
        self._capability = machine(options.device)[0].capability if modelled else None
        self._own = size_of(self._given)
        self._searched = searched if searched and getattr(self._own, searched) else None
        self._returns_loss, self._others = False, 0
        self._refused: dict[Size, str] = {}  # with which the model does not run, and why
        self._ran: set[Size] = set()  # others than the own with which it does
        self._unfound: dict[str, list[str]] = {}  # by reason, the ways whose largest size is not known
        self._untried: list[str] = []  # other ways, and why not
        self._again: dict[Size, float] = {}  # seconds of what the model's own checkpoints run again
        self._steps: dict[str, dict[Size, Timed]] = {way: {} for way in ("", *_UPDATING)}  # by the ways with updates
        self.steady = functools.cache(self._steady)

    def answered(self) -> Fit:
        """All ways."""
        own, plain, searched = self._own, self._plain(), self._searched
        link = self._device(link=True).d2h
        warn_if_slow(self._at(own).graph, link, "bandwidth")
        if plain.fits and self._again[own]:  # what the model checkpoints, plans may keep
            ways = [plain, *(self._planned(name, link=name != _PLANNED[0]) for name in _PLANNED[: 1 + (link > 0)])]
        elif plain.fits:
            planned = [*_PLANNED[: 1 + (link > 0)], *self._with_updates()] if searched else []
            ways = [plain, *(replace(plain, name=name, note=LARGER) for name in planned)]
        else:
            ways = [plain, self._planned(_PLANNED[0], link=False)]
            ways += [self._planned(_PLANNED[1], link=True)] if link else []
            updated = self._updated_in_step(*self._with_updates())
            if updated and link:
                others = (OFFLOADED,) if updated[0].fits else (TRAVELLING, OFFLOADED)
                updated += self._updated_in_step(*others)
            elif link:
                ways += self._optimizer_on_host()
            ways += [*updated, *self._accumulated()]
        if searched:
            self._until = math.inf if self._limit is None else time.monotonic() + self._limit
            for k, one in enumerate(ways):
                found: Any = {f"largest_{searched}": self._largest_of(one.name, searched)}
                ways[k] = replace(one, **found)
        most = ways[0].largest or 0
        held = [_HELD] if self._loss is not None else []
        if plain.fits:  # the others are of use where they allow more
            ways[1:] = [one for one in ways[1:] if one.note != LARGER or (one.largest or math.inf) > most]
        times = str(self._at(own).facts["source"])
        return Fit(
            name=f"{type(self._model).__name__} on {self._shapes()}",
            memory=self._memory,
            times=times,
            doubted=disturbed(times),
            steady=self.steady(own),
            ways=tuple(ways),
            assumed=(*self._not_given(), *held, *self._untried, *self._not_found()),
            with_loss=self._loss is not None,
        )

    def _shapes(self) -> str:
        return ", ".join("x".join(map(str, one.shape)) or "a number" for one in tensors_of(self._given)) or "no tensors"

    def _not_given(self) -> list[str]:
        given = {"optimizer": self._optimizer, "loss": self._loss or self._returns_loss or None}
        return [f"no {what} was given, and none is counted; {GIVE[what]}" for what, one in given.items() if one is None]

    def _say(self, what: str, size: Size | None = None) -> None:
        """Tell of the work that begins, unless the time for it is over."""
        if time.monotonic() > self._until:
            raise _TimeOverError
        if self._progress is not None:
            self._progress(f"{self._doing}{what}" + (f" of {self._in_words(size)}" if size and size.batch else ""))

    def _in_words(self, size: Size) -> str:
        """What differs from the step that was given, or all of it."""
        samples = counted(size.batch, "sample")
        return samples if size.length == self._own.length else f"{samples} of length {size.length}"

    def _largest_of(self, name: str, searched: str) -> int | None:
        self._doing = f"largest {searched}, {name}: "
        start = getattr(self._own, searched)

        def sized(size: int) -> Size:
            return self._own._replace(**{searched: size})

        def largest_plain(step: int, first: int, known: int) -> int:
            found = self.steady(self._own)
            fixed = found.parameters + found.buffers + found.optimizer + found.gradients + self._beside
            return largest_within(lambda k: self._plain_need(sized(step * k)), self._memory, first, fixed, known)

        def largest_planned(step: int, first: int, known: int) -> int | None:
            captured = [getattr(one, searched) for one in self._steps[step_of] if one == sized(getattr(one, searched))]
            sizes = PlannedSizes(
                lambda k: self._graph_at(sized(step * k), step_of),
                first,
                self._device(link=name != "recompute"),
                known=[size // step for size in captured if size % step == 0],
                runs=lambda k: self._runs(sized(step * k)),
                fits=lambda k: step_of != "" or self._need_of_update(step * k / start) <= self._memory,
                say=lambda what, k: self._say(what, sized(step * k)),
            )
            return sizes.largest(known)

        step_of, unit = name if name in self._steps else "", _ALIGNED if searched == "length" else 1
        if name not in ("plain", *_PLANNED) and not self._steps.get(name):  # an estimate
            return None
        try:
            found = largest_aligned(largest_plain if name == "plain" else largest_planned, start, unit)
            reason = "" if found is not None else "in a dozen captures of the step"
        except CaptureError as error:  # which the step as it was given does not raise
            found, reason = None, f"at another {searched}, {error}"
        except _TimeOverError:
            found, reason = None, f"in {format_seconds(self._limit or 0)}; raise search_limit"
        # Of 1 nothing follows: normalisations need two, and 1 is broadcast to any.
        why = [said for size, said in self._refused.items() if getattr(size, searched) > 1]
        ran = any(getattr(size, searched) > 1 for size in self._ran)
        if why and not ran and (searched == "batch" or (found or 0) < start):  # it runs with no other
            found, reason = None, why[0] + (_TARGETS if self._loss is not None else "")
        if reason:
            self._unfound.setdefault(reason, []).append(name)
        return found

    def _not_found(self) -> list[str]:
        each = ((", ".join(ways), reason) for reason, ways in self._unfound.items())
        return [f"the largest {self._searched} of {ways} was not found: {reason}" for ways, reason in each]

    def _plain(self) -> Way:
        need = self.steady(self._own).peak_memory + self._beside
        seconds = self._seconds(self._own)
        return self._way("plain", need, seconds, _CHECKPOINTED if self._again[self._own] else "")

    def _planned(self, name: str, *, link: bool) -> Way:
        self._say(f"planning {name}")
        update = self._need_of_update(1)
        graph, device = self._at(self._own).graph, self._device(link=link)
        try:
            result = plan_within(graph, device, self._options.time_limit)
        except InfeasibleError:
            need = max(update, least(graph, device), self._memory + 1)  # no plan was found for what there is
            return self._way(name, need, math.nan)
        return self._way(name, max(update, result.peak_memory), result.makespan)

    def _optimizer_on_host(self) -> list[Way]:
        """An estimate of what is not captured: gradients go to the host, which updates, and parameters come back."""
        found, link = self.steady(self._own), self._device(link=True)
        if not found.optimizer:
            return []
        need = max(found.peak_forward_backward - found.optimizer, found.parameters + found.gradients) + self._beside
        seconds = self._seconds(self._own) + found.gradients / link.d2h + found.parameters / link.h2d
        note = "an estimate, whose updates are not timed"
        return [self._way(OFFLOADED, need, seconds, note)]

    def _with_updates(self) -> list[str]:
        """The way in which each parameter is updated as soon as its gradient is there, if there is one."""
        if not isinstance(self._optimizer, torch.optim.Optimizer) or not (self._loss or self._returns_loss):
            return []
        try:
            self._graph_at(self._own, UPDATED)
        except (CaptureError, InvalidInputError):  # what `plan_step` tells whoever asks it
            return []
        return [UPDATED]

    def _updated_in_step(self, *names: str) -> list[Way]:
        """The optimiser's states travel, and parameters, if the way says so; or the host computes some updates."""
        return [way for name in names for way in self._of_updates(name)]

    def _of_updates(self, name: str) -> list[Way]:
        self._say(f"planning {name}")
        graph, device = self._graph_at(self._own, name), self._device(link=True)
        times = {op["name"]: op["choices"][0]["time"] for op in graph.ops if op["kind"] == "update"}
        seconds = sum(times.values())
        try:
            result = plan_within(graph, device, self._options.time_limit)
        except InfeasibleError:
            return [self._way(name, max(least(graph, device), self._memory + 1), math.nan)]
        loss = sum(op["choices"][0]["time"] for op in graph.ops) - seconds - self._seconds(self._own)
        both = (f", and {format_seconds(loss)} the loss", "neither") if self._loss and loss > 0 else ("", "none")
        note = "{} of it are updates, counted as passes over memory{}; other times have {}"
        hosted = {step["update"] for step in result.schedule.steps if "update" in step}
        here = sum(time for op, time in times.items() if op not in hosted)
        note = note.format(format_seconds(here), *both)
        if name == OFFLOADED:
            if not hosted:  # it is the way without a host
                return []
            speed = "as measured here" if self._host == "here" else f"at {format_bandwidth(_HOST)}"
            note += f"; {len(hosted)} of {counted(len(times), 'update')} on the host, {speed}"
        return [self._way(name, result.peak_memory, result.makespan, note)]

    def _accumulated(self) -> list[Way]:
        """The fewest micro-batches that fit."""
        batch = self._own.batch
        small = [k for k in range(1, math.isqrt(batch) + 1) if batch % k == 0]
        parts = sorted({*small[1:], *(batch // k for k in small)} - {1})
        found: list[Way] = []
        norms = any(isinstance(one, torch.nn.modules.batchnorm._BatchNorm) for one in self._model.modules())
        note = "batch normalisation sees each part by itself" if norms else ""
        for k in parts:
            size = self._own._replace(batch=batch // k)
            try:
                part, whole = self.steady(size, k), self.steady(self._own)
                need = part.peak_memory + whole.inputs - part.inputs + self._beside  # all parts are on the device
                if need > self._memory:  # its time does not count
                    found = [self._way(f"{k} {MICRO}", need, math.nan, note)]
                else:
                    return [self._way(f"{k} {MICRO}", need, k * self._seconds(size), note)]
            except OtherSizeError as error:  # such as a normalisation of one sample
                self._untried += [] if found else [f"micro-batches were not tried: {error}"]
                break
        return found

    def _way(self, name: str, need: int, seconds: float, note: str = "") -> Way:
        known = None if math.isnan(seconds) else seconds
        return Way(name=name, fits=need <= self._memory, peak_memory=need, makespan=known, note=note)

    # What a size needs.

    def _plain_need(self, size: Size) -> float:
        return self.steady(size).peak_memory + self._beside if self._runs(size) else math.inf

    def _runs(self, size: Size) -> bool:
        """Whether the model does."""
        if size in self._refused:
            return False
        try:
            self.steady(size)
        except OtherSizeError as error:
            self._refused[size] = str(error)
            return False
        self._ran.update({size} - {self._own})
        return True

    def _need_of_update(self, times: float) -> int:
        """Of so many times the inputs."""
        found = self.steady(self._own)
        return found.peak_update - found.inputs + int(found.inputs * times) + self._beside

    def _steady(self, size: Size, micro_batches: int = 1) -> Steady:
        self._say("counting the bytes of a step", size)
        args, kwargs = self._given_with(size)
        more: dict[str, Any] = {"micro_batches": micro_batches, "capability": self._capability}
        with self._told_of(size):
            return steady(self._model, args, kwargs, self._optimizer, self._loss, **more)

    def _given_with(self, size: Size) -> Any:
        return self._given if size == self._own else with_size(self._given, size)

    def _told_of(self, size: Size) -> contextlib.AbstractContextManager[None]:
        own = self._own
        what = f"batch {size.batch}" if size.length == own.length else f"length {size.length}"
        return told_of(what, given=size == own)

    def _at(self, size: Size, way: str = "") -> Timed:
        known = self._steps[way]
        if size not in known:
            if not self._runs(size):
                raise OtherSizeError(f"the model does not run with {self._in_words(size)}")
            known[size] = self._timed_with_updates(size, way) if way else self._timed(size)
        return known[size]

    def _graph_at(self, size: Size, way: str = "") -> Graph:
        return self._at(size, way).graph

    def _timed(self, size: Size) -> Timed:
        seen = self._looked_at(size, self._options, loss=self._loss)
        self._returns_loss = any(one.meta["val"].numel() == 1 for one in seen.visits[-1].joint.tangents)
        if device_of(self._model).type == "cuda":  # where it is measured
            self._others = seen.resident.others
        found = timed(seen.visits, seen.returns, seen.resident, self._options)
        both = zip(seen.visits, costs_in(found.facts), strict=True)
        self._again[size] = sum(costs[n].seconds for visit, costs in both for n in run_again(visit.joint))
        return found

    @property
    def _host(self) -> HostSpeed:
        return "here" if self._options.device == "here" else _HOST

    def _timed_with_updates(self, size: Size, way: str) -> Timed:
        asked: dict[str, Any] = {"update": True, "rounds": False, "planner": "selective", "how": How()}
        asked |= {"offload_parameters": way == TRAVELLING, "host": self._host if way == OFFLOADED else None}
        updates = updates_of(self._model, self._optimizer, **asked)
        options = replace(self._options, optimizer=updates.state_bytes)
        seen = self._looked_at(size, options, loss=self._loss or own_loss, within=True, updates=updates)
        if len(seen.visits) > 1:
            raise CaptureError("the step is captured in several graphs")
        return timed(seen.visits, seen.returns, seen.resident, options)

    def _looked_at(self, size: Size, options: Options, **how: Any) -> Look:
        self._say("capturing a step", size)
        args, kwargs = self._given_with(size)
        calls = {} if self._capability is None else kernels_of(self._capability)
        prepare = functools.partial(substitute, calls=calls)
        with self._told_of(size), without_logs() if how.get("within") else contextlib.nullcontext():
            seen = look(self._model, args, kwargs, options, prepare=prepare, **how)
            if seen.unplanned:
                raise CaptureError(f"a part of the step cannot be planned: {seen.unplanned[0]}")
        return seen

    @property
    def _beside(self) -> int:
        """Bytes that are no part of the step: what the caller asked for, and what is on the device anyway."""
        self._at(self._own)
        return self._reserve + self._others

    def _seconds(self, size: Size) -> float:
        """Of the plain step, with the model's own checkpoints."""
        return sum(op["choices"][0]["time"] for op in self._at(size).graph.ops) + self._again[size]

    def _device(self, *, link: bool) -> Device:
        options = self._options if link else replace(self._options, bandwidth=0)
        return device_for(self._memory, self._at(self._own).link, options)
