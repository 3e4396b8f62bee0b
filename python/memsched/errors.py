"""The errors of memsched. All that it raises on purpose derive from `MemschedError`; messages include a remedy."""

from __future__ import annotations

import re

_LONGEST, _LONGEST_TEXT = 200, 8000  # characters of a value in an error, and of its text
# Terminal controls, characters that are invisible or change the text direction, and lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"
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


def shown(value: object) -> str:
    """The repr of a value, shortened if long; huge numbers, endless nesting and odd classes have none."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return shortened(text)


def shortened(text: str) -> str:
    """A text as far as it is of use in a sentence."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class MemschedError(Exception):
    """Base of all errors that memsched raises on purpose. Its text is safe to show, whatever names it quotes."""

    def __str__(self) -> str:
        text = visible(str(self.args[0])) if self.args else ""
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


class InvalidInputError(MemschedError, ValueError):
    """An invalid field, option or document; the message gives its name, its value and the remedy.

    Where a function does not take an argument or lacks one, it is a TypeError as well, as in all of Python.
    """


class ArgumentError(InvalidInputError, TypeError):
    """A call with an argument that the function does not take, or without one that it needs: as TypeError elsewhere."""


class InfeasibleError(MemschedError):
    """This planner has no plan that fits the memory.

    Attributes
    ----------
    min_memory : int
        An M (bytes, resident included) for which this planner finds a plan: the smallest, unless the message says that
        less may do; an estimate if host_memory is too small, and the message says so.
    """

    def __init__(self, message: str, min_memory: int) -> None:
        super().__init__(message, min_memory)
        self.min_memory = min_memory


class ScheduleError(MemschedError, ValueError):
    """A schedule that cannot run.

    Attributes
    ----------
    step : int or None
        Index of the failing step, or None if the schedule as a whole is wrong.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message, step)
        self.step = step


class LimitError(MemschedError):
    """A limit on memory or time was reached before there was a plan; the message says which option to change."""


class StoreError(MemschedError):
    """The store of a sweep cannot be read or written; the message says which, why, and what to do."""


class InternalError(AssertionError):
    """A bug in memsched. Not a `MemschedError`, so that it is never recorded as an outcome."""
