"""How far a sweep is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """How far a sweep is.

    Attributes
    ----------
    points : int
        In the whole sweep.
    kept : int
        Points that were already in the store.
    planned, infeasible, failed : int
        Points that this sweep has finished.
    seconds : float
        Since the sweep began.
    """

    points: int
    kept: int
    planned: int
    infeasible: int
    failed: int
    seconds: float

    @property
    def finished(self) -> int:
        """Points finished by this sweep."""
        return self.planned + self.infeasible + self.failed

    @property
    def rate(self) -> float:
        """Points per second."""
        return self.finished / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds at this rate; None while the rate is unknown."""
        left = self.points - self.kept - self.finished
        return left / self.rate if self.rate > 0 else None if left else 0.0
