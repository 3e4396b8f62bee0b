"""What a step does with the gradients of what it trains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class How:
    """What a step does with the gradients of what it trains, once they are there."""

    max_norm: float | None = None  # of all together: larger ones are clipped
    adds: bool = False  # to gradients that wait from steps before
    updates: bool = True  # by the optimiser; else they wait
    scaled: bool = False  # they are multiples of what they stand for, and may be infinite

    @property
    def waits(self) -> bool:
        """Whether updates wait for what all gradients are like."""
        return self.max_norm is not None or self.scaled


PLAIN = How()
