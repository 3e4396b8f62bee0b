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
    learning : int
        The most while forward and backward run, all of the above that is alive included.
    updating : int
        The most while the optimiser steps.
    """

    parameters: int
    buffers: int
    inputs: int
    optimizer: int
    gradients: int
    learning: int
    updating: int

    @property
    def peak_memory(self) -> int:
        """Of the whole step."""
        return max(self.learning, self.updating)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to run a training step.

    Attributes
    ----------
    name : str
    fits : bool
    peak_memory : int
        Bytes of the whole process at the peak; what it needs at least, if it does not fit.
    step_time : float or None
        Simulated seconds of forward and backward, transfers included; None if it does not fit. An optimiser's own
        operations are not counted.
    largest_batch : int or None
        The most samples in dimension 0 of the inputs that fit; 0 if not even one does, None if it was not asked or not found.
    note : str
        What was assumed.
    """

    name: str
    fits: bool
    peak_memory: int
    step_time: float | None
    largest_batch: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Printed, Drawn, Tabular):
    """Whether a training step fits, and how. Made by `memsched.torch.fit`.

    Attributes
    ----------
    memory : int
        Bytes of the device.
    times : str
        Where the seconds come from: measured, or a model.
    steady : Steady
        The plain step, part by part.
    choices : tuple of Choice
        The plain step first.
    """

    memory: int
    times: str
    steady: Steady
    choices: tuple[Choice, ...]

    @property
    def fits(self) -> bool:
        """Whether the plain step does."""
        return self.peak_memory <= self.memory

    @property
    def peak_memory(self) -> int:
        """Bytes of the whole process over a steady step of plain PyTorch."""
        return self.steady.peak_memory

    def to_json(self) -> dict[str, Any]:
        """The figures, as JSON has them."""
        said = {**asdict(self), "choices": [asdict(one) for one in self.choices]}
        return {"fits": self.fits, "peak_memory": self.peak_memory, **said}

    def _columns(self) -> Columns:
        return {
            "choice": (str, [one.name for one in self.choices]),
            "fits": (bool, [one.fits for one in self.choices]),
            "peak_memory": (int, [one.peak_memory for one in self.choices]),
            "step_time": (float, [one.step_time for one in self.choices]),
            "largest_batch": (int, [one.largest_batch for one in self.choices]),
        }
