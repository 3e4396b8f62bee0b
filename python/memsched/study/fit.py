"""Whether a training step fits a device, and what each way to make it fit costs: the figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from memsched.support.views import Columns, Drawn, Printed, Tabular


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
        Simulated seconds of forward and backward, transfers included; None if it does not fit. An optimiser's own
        operations are not counted.
    largest_batch : int or None
        The most samples in dimension 0 of the inputs that fit; 0 if not even one does, None if it was not asked or not
        found.
    note : str
        What was assumed.
    """

    name: str
    fits: bool
    peak_memory: int
    makespan: float | None
    largest_batch: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Printed, Drawn, Tabular):
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
    """

    name: str
    memory: int
    times: str
    steady: Steady
    ways: tuple[Way, ...]
    assumed: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the plain step does."""
        return self.ways[0].fits

    @property
    def peak_memory(self) -> int:
        """Bytes of the whole process over a steady step of plain PyTorch, with what was reserved."""
        return self.ways[0].peak_memory

    @property
    def notes(self) -> list[str]:
        """What was assumed, also for some of the ways."""
        return [*self.assumed, *(f"{one.name}: {one.note}" for one in self.ways if one.note)]

    def to_json(self) -> dict[str, Any]:
        """The figures, as JSON has them."""
        said = {**asdict(self), "ways": [asdict(one) for one in self.ways], "assumed": list(self.assumed)}
        return {"fits": self.fits, "peak_memory": self.peak_memory, **said}

    def _columns(self) -> Columns:
        return {
            "way": (str, [one.name for one in self.ways]),
            "fits": (bool, [one.fits for one in self.ways]),
            "peak_memory": (int, [one.peak_memory for one in self.ways]),
            "makespan": (float, [one.makespan for one in self.ways]),
            "largest_batch": (int, [one.largest_batch for one in self.ways]),
        }
