"""Whether a training step fits a device, and what each way to make it fit costs: the figures."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, TypeVar

from memsched.errors import InvalidInputError, shown
from memsched.problems.machines import machine
from memsched.problems.specs import parse_autocast, parse_input, parse_loss, parse_model, parse_optimizer
from memsched.support import checks, quantities
from memsched.support.documents import Document, Saved, Source, check_keys, read_document
from memsched.support.formats import Bytes, exact_bytes, format_bytes, unit_written
from memsched.support.units import BYTES_FORMS, parse_bandwidth, parse_bytes
from memsched.support.views import Columns, Drawn, Tabular

_FORMAT = "memsched-fit/1"
_MOST = 2**62  # of counted bytes and samples
_LEAST = 1000  # bytes of a device: with less, a unit is missing
OFFLOADED = "optimizer on the host"
UPDATED = "update in the step"
TRAVELLING = "parameters travel, too"
LARGER = "for larger inputs"
MICRO = "micro-batches"
_OPTIONS = {
    UPDATED: "update=True",
    TRAVELLING: "update=True, offload_parameters=True",
    OFFLOADED: "update=True, update_on_host=True",
}
"""Of `plan_step`, by the ways that it runs."""
_LEFT = 0.88  # of a GPU's memory, for what PyTorch's allocator does not lose between tensors
_FASTER = 0.95  # of the time of another way, so that it is worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Bytes of a training step that follows another, in one process.

    Attributes
    ----------
    parameters, buffers, inputs, optimizer : int
        What is there from step to step.
    gradients : int
        Of the parameters, when the backward is over.
    peak_forward_backward : int
        The most while forward and backward run, all of the above that is alive included.
    peak_update : int
        The most while the optimiser steps.
    """

    parameters: int
    buffers: int
    inputs: int
    optimizer: int
    gradients: int
    peak_forward_backward: int
    peak_update: int

    @property
    def peak_memory(self) -> int:
        """Of the whole step."""
        return max(self.peak_forward_backward, self.peak_update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a training step.

    Attributes
    ----------
    name : str
    fits : bool
    peak_memory : int
        Bytes of the whole process at the peak; what it needs at least, if it does not fit.
    makespan : float or None
        Simulated seconds of forward and backward, transfers included; where it does not fit, those on a device with
        enough memory, or None if there is no plan. An optimiser's own operations, and a loss outside of the model, are
        counted where they are a part of the step ("update in the step") and nowhere else.
    largest_batch : int or None
        The most samples in dimension 0 of the inputs that fit; 0 if not even one does, None if it was not asked or not
        found.
    largest_length : int or None
        The same of sequences, in dimension 1: neither the next longer fits, nor the next multiple of 8, which may run
        by other operations.
    note : str
        What was assumed.
    """

    name: str
    fits: bool
    peak_memory: int
    makespan: float | None
    largest_batch: int | None = None
    largest_length: int | None = None
    note: str = ""

    @property
    def largest(self) -> int | None:
        """Of the two what was asked."""
        return self.largest_batch if self.largest_length is None else self.largest_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Drawn, Tabular, Saved):
    """Whether a training step fits, and how. Made by `memsched.torch.fit`.

    Attributes
    ----------
    name : str
        The model and the sizes of its inputs.
    memory : int
        Bytes of the device.
    times : str
        Where the seconds come from: measured, or a model.
    steady : Steady
        The plain step, part by part.
    ways : tuple of Way
        The plain step first.
    assumed : tuple of str
        What is not counted.
    with_loss : bool
        Whether a loss outside of the model was given, and counts.
    doubted : bool
        Whether the seconds were measured while others had the cores.
    """

    name: str
    memory: int
    times: str
    steady: Steady
    ways: tuple[Way, ...]
    assumed: tuple[str, ...] = ()
    with_loss: bool = False
    doubted: bool = False

    @property
    def fits(self) -> bool:
        """Whether the plain step does."""
        return self.ways[0].fits

    @property
    def searched(self) -> str | None:
        """What the largest of was sought: "batch", "length", or None."""
        for one in self.ways:
            if one.largest is not None:
                return "batch" if one.largest_length is None else "length"
        return None

    @property
    def peak_memory(self) -> int:
        """Bytes of the whole process over a steady step of plain PyTorch, with what was reserved."""
        return self.ways[0].peak_memory

    @property
    def notes(self) -> list[str]:
        """What was assumed, also for some of the ways."""
        return [*self.assumed, *(f"{one.name}: {one.note}" for one in self.ways if one.note)]

    @property
    def next_step(self) -> str:
        """What to do now, in a sentence."""
        if self.fits:
            faster = [one for one in self.ways[1:] if one.fits and one.note != LARGER and one.makespan is not None]
            best = min(faster, key=lambda one: one.makespan or 0.0, default=self.ways[0])
            if (best.makespan or 0.0) >= _FASTER * (self.ways[0].makespan or 0.0):
                return "nothing: train as it is"
            instead = "without the model's own checkpoints"
            return f"train as it is; or, {instead}, {_how(best.name, self)}"
        sizes = [(one.largest, one.name) for one in self.ways if one.largest]
        most = "a length of at most {}" if self.searched == "length" else "at most {} samples"
        smaller = f"; or {most}, with {{!r}}".format(*max(sizes)) if sizes else ""
        fitting = [one for one in self.ways if one.fits]
        if fitting:
            # An estimate knows no times of updates, which take far longer on the host than elsewhere.
            timed = [one for one in fitting if one.name != OFFLOADED or self._plans_updates] or fitting
            best, *others = sorted(timed, key=lambda one: one.makespan or 0.0)
            if best.name.endswith(MICRO):  # which change the loop, and not only the model
                worth = 0.0 if self.doubted else _FASTER
                alike = (one for one in others if worth * (one.makespan or 0.0) <= (best.makespan or 0.0))
                best = next((one for one in alike if not one.name.endswith(MICRO)), best)
            note = f" ({best.note})" if best.note else ""
            doubt = "; which way is the fastest is not known: see below on the times" if self.doubted else ""
            return _how(best.name, self) + note + doubt + self._lacking(best.name)
        least = min(self.ways, key=lambda one: one.peak_memory)
        needed = exact_bytes(least.peak_memory, unit_written(self.memory), up=True)
        planned = self._plans_updates and least.name in _OPTIONS
        how = f" (memsched.torch.plan_step(.., {_OPTIONS[least.name]}))" if planned else ""
        return f"give at least {needed}, with {least.name!r}{how}{smaller or self._without_batches()}"

    @property
    def _plans_updates(self) -> bool:
        """Whether updates are a part of planned steps, on the host as well."""
        return any(one.name == UPDATED for one in self.ways)

    def _lacking(self, best: str) -> str:
        """What would make the answer another one."""
        if not any(one.startswith("no loss") for one in self.assumed):
            return ""
        other = f", and {UPDATED!r} may fit" if best == OFFLOADED else ""
        return f"; this is without a loss, with which a step needs more{other}; give it"

    def _without_batches(self) -> str:
        """Whether a smaller batch may help, where none is known that fits."""
        if self._plans_updates:  # which needs neither all gradients nor all states
            return ""
        step = self.steady
        held = step.parameters + step.buffers + step.gradients + step.optimizer
        needed = max(held, step.peak_update - step.inputs) + self.peak_memory - step.peak_memory
        if needed > self.memory:
            what, unless = "parameters and gradients alone need", ""
            if step.optimizer:
                what, unless = "the optimizer's step alone needs", " unless the optimizer's state is on the host"
            return f"; no smaller batch helps{unless}: {what} {format_bytes(needed, unit_written(self.memory))}"
        return "" if any(one.largest == 0 for one in self.ways) else "; or a smaller batch"

    def to_json(self) -> Document:
        """The form `memsched-fit/1`: the attributes, and whether the plain step fits."""
        said = {**asdict(self), "ways": [asdict(one) for one in self.ways], "assumed": list(self.assumed)}
        return {"format": _FORMAT, "fits": self.fits, "peak_memory": self.peak_memory, **said}

    @classmethod
    def from_json(cls, source: Source) -> Fit:
        """Read `memsched-fit/1` from a dict, a JSON text or a file. Its figures are claims of that file."""
        document = dict(read_document(source, _FORMAT))
        claimed = [document.pop(key, None) for key in ("fits", "peak_memory")]
        ways, assumed = document.get("ways"), document.get("assumed", [])
        if not isinstance(ways, list) or not ways:
            raise InvalidInputError(f"ways of the fit is {shown(ways)}; it must be a list that is not empty")
        if not isinstance(assumed, list):
            raise InvalidInputError(f"assumed of the fit is {shown(assumed)}; it must be a list")
        read: dict[str, Any] = {
            "steady": _read(Steady, document.get("steady"), "steady of the fit"),
            "ways": tuple(_read(Way, one, f"ways[{k}] of the fit") for k, one in enumerate(ways)),
            "assumed": tuple(checks.text(f"assumed[{k}] of the fit", one) for k, one in enumerate(assumed)),
        }
        found = _read(cls, document, "the fit", read)
        if claimed != [found.fits, found.peak_memory]:
            raise InvalidInputError(f"fits and peak_memory of the fit are {shown(claimed)}; its ways say otherwise")
        return found

    def _columns(self) -> Columns:
        return {
            "way": (str, [one.name for one in self.ways]),
            "fits": (bool, [one.fits for one in self.ways]),
            "peak_memory": (int, [one.peak_memory for one in self.ways]),
            "makespan": (float, [one.makespan for one in self.ways]),
            "largest_batch": (int, [one.largest_batch for one in self.ways]),
            "largest_length": (int, [one.largest_length for one in self.ways]),
        }


_Part = TypeVar("_Part", Steady, Way, Fit)


def _read(kind: type[_Part], document: object, what: str, known: dict[str, Any] | None = None) -> _Part:
    """A part of a fit from its document; `known` are attributes that were read already."""
    if not isinstance(document, dict):
        raise InvalidInputError(f"{what} is {shown(document)}; it must be an object")
    parts, values = fields(kind), dict(known or {})
    required = tuple(one.name for one in parts if one.default is MISSING)
    check_keys(document, what, required, tuple(one.name for one in parts if one.default is not MISSING))
    for one in parts:
        if one.name in document and one.name not in values:
            values[one.name] = _value(f"{one.name} of {what}", document[one.name], str(one.type))
    return kind(**values)


def _value(name: str, value: object, kind: str) -> Any:
    """A plain value, checked."""
    if value is None and kind.endswith(" | None"):
        return None
    if kind == "bool":
        return checks.flag(name, value)
    if kind == "str":
        return checks.text(name, value)
    if kind.startswith("float"):
        return checks.non_negative(name, value, "seconds")
    return checks.count(name, value, 0, _MOST)


def _how(way: str, found: Fit) -> str:
    """How to train in one of the ways that fit."""
    memory, optimizer = found.memory, found.steady.optimizer
    if way == OFFLOADED and not found._plans_updates:
        return "keep the optimizer's state on the host, by a library that does so: nothing else that was tried fits"
    if way.endswith(MICRO):
        parts = way.split()[0]
        return f"split the batch into {parts} parts, add up the gradients of loss / {parts}, and step once for all"
    written = exact_bytes(memory, unit_written(memory)).partition(" (")[0].replace(" ", "")
    budget = f'"{written}"' if parse_bytes(written) == memory else str(memory)
    rest = format_bytes(_LEFT * memory, unit_written(memory)).replace(" ", "")
    less = f"if that is all of a GPU, ask again for {rest}: PyTorch's allocator needs 10 to 15 %"
    if way in _OPTIONS:
        call = f"memsched.torch.plan_step(model, args, loss, budget={budget}, optimizer=optimizer, {_OPTIONS[way]})"
        return f"{way}: {call}; {less}"
    given = {"budget": budget, "optimizer": "optimizer" if optimizer else "", "bandwidth": "0" * (way == "recompute")}
    if found.with_loss:  # which torch.compile does not see
        named = ", ".join(f"{key}={value}" for key, value in given.items() if value)
        call = f"memsched.torch.plan(model, args, loss=loss, {named}).apply(model)"
    else:
        options = ", ".join(f'"{key}": {value}' for key, value in given.items() if value)
        call = f'torch.compile(model, backend="memsched", options={{{options}}})'
    return f"{way}: {call}; {less}"


def device_memory(memory: object) -> Bytes:
    """Bytes of a device, from a number or a text with a unit.

    Raises
    ------
    InvalidInputError
        It is a percentage, which has no meaning here, or so little that a unit is missing.
    """
    if isinstance(memory, str) and memory.rstrip().endswith("%"):
        raise InvalidInputError(f"memory is {shown(memory)}, but it is the device's, which has no share: {BYTES_FORMS}")
    found = parse_bytes(memory, "memory")
    if found < _LEAST:
        raise InvalidInputError(
            f"memory is {shown(memory)}, less than {_LEAST} bytes; write the unit; did you mean {max(found, 1)}GiB?"
        )
    return found


def check_asked(
    model: str,
    input: str | None,
    *,
    device: str,
    memory: str | int | None = None,
    optimizer: str | None = None,
    loss: str | None = None,
    autocast: str | None = None,
    bandwidth: str | float | None = None,
    time_limit: str | float | None = None,
    search_limit: str | float | None = None,
) -> None:
    """Refuse what is wrong with texts before PyTorch is imported, which takes seconds.

    Raises
    ------
    InvalidInputError
        Naming what cannot be read, or is not there.
    """
    if device.strip().lower() != "here":
        machine(device)
    if memory is not None:
        device_memory(memory)
    if bandwidth is not None:
        parse_bandwidth(bandwidth)
    quantities.time_limit(time_limit)
    if search_limit is not None:
        quantities.seconds("search_limit", search_limit)
    parse_autocast(autocast)
    if input is not None:
        parse_input(input)
    if optimizer is not None:
        parse_optimizer(optimizer)
    if loss is not None:
        parse_loss(loss)
    parse_model(model)
