"""The errors of memsched. All derive from `MemschedError`; each message is a sentence that says what to do."""

from __future__ import annotations


class MemschedError(Exception):
    """Base of all errors that memsched raises on purpose."""


class InvalidInputError(MemschedError, ValueError):
    """A field, an option or a document that cannot be right; the message names it, its value and the remedy."""


class InfeasibleError(MemschedError):
    """No plan of this planner fits the memory.

    Attributes
    ----------
    min_memory : int
        The smallest M (bytes, resident included) for which this planner finds a plan; an estimate where host_memory is
        what lacks, and the message says so.
    """

    def __init__(self, message: str, min_memory: int) -> None:
        super().__init__(message, min_memory)
        self.min_memory = min_memory

    def __str__(self) -> str:
        return str(self.args[0])


class ScheduleError(MemschedError, ValueError):
    """A schedule that cannot run.

    Attributes
    ----------
    step : int or None
        Index of the step to blame, or None when it is the schedule as a whole.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message, step)
        self.step = step

    def __str__(self) -> str:
        return str(self.args[0])


class LimitError(MemschedError):
    """A computation would outgrow its bound on memory; the message says which option to change."""


class StoreError(MemschedError):
    """A sweep's store that cannot be read or written; the message says which, why, and what to do."""
