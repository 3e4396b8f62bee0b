"""The errors of memsched. All that it raises on purpose derive from `MemschedError`; messages say what to do."""

from __future__ import annotations

import re

# Controls of terminals, letters that turn the direction or are not seen, and halves of letters.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """A text that can be shown: names may hold what moves a cursor, and are written out as in Python's literals.

    Examples
    --------
    >>> visible("conv\\x1b[2J")
    'conv\\\\x1b[2J'
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class MemschedError(Exception):
    """Base of all errors that memsched raises on purpose. Its text is safe to show, whatever names it quotes."""

    def __str__(self) -> str:
        return visible(str(self.args[0])) if self.args else ""


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


class LimitError(MemschedError):
    """A bound on memory or time leaves no room for a plan; the message says which option to change."""


class StoreError(MemschedError):
    """A sweep's store that cannot be read or written; the message says which, why, and what to do."""


class InternalError(AssertionError):
    """memsched contradicts itself. No `MemschedError`, so that nothing records it as an outcome and goes on."""
