"""Bytes of a process that no plan of a step moves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes that no plan moves, by what they are for.

    Attributes
    ----------
    parameters, inputs, results : int
        Of the step. The caller holds the results until the step ends.
    updates : int
        Copies of inputs that the step changes and may read again.
    gradients : int
        Of gradients that parameters have before the step: the step's own are added to them.
    optimizer : int
    others : int
        On the device, and not of this step.
    random : int
        States of random number generators, kept for operations that run again.
    reserve : int
        What the caller asked for, and the most that a step of the process took beyond its plan.
    fused : int
        What a compiler holds at the peak beyond the tensors of the plan; below 0 where it stores less.
    """

    parameters: int = 0
    inputs: int = 0
    results: int = 0
    updates: int = 0
    gradients: int = 0
    optimizer: int = 0
    others: int = 0
    random: int = 0
    reserve: int = 0
    fused: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return sum(dataclasses.astuple(self))

    def parts(self) -> dict[str, int]:
        """Each part by name."""
        return dataclasses.asdict(self)
