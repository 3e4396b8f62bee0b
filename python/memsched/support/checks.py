"""Checks of the numbers that users pass, each with an error that names the option, its value and what would do."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Sequence
from typing import TypeVar

import numpy as np

from memsched.errors import InvalidInputError

EXACT_BYTES = 2**53  # what a count of bytes may be, and the sizes of a problem together: doubles are exact up to there
_LONGEST = 1000  # letters of a value in an error


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _as_float(value: object) -> float:
    """The value as a float; nan where it is no number, inf where it is too large for one."""
    if not _is_number(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def shown(value: object) -> str:
    """The repr of a value, cut where it is long; numbers of thousands of digits and endless nesting have none."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


Kind = TypeVar("Kind")


def kind(name: str, value: object, kind: type[Kind]) -> Kind:
    """An object of a class.

    Raises
    ------
    InvalidInputError
    """
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a {kind.__name__}")
    return value


def one_or_more(name: str, value: object, kinds: tuple[type[Kind], ...], most: int) -> list[Kind]:
    """An object of one of some classes, or a sequence of up to `most` of them, as a list.

    Raises
    ------
    InvalidInputError
    """
    words = " or ".join(f"a {one.__name__}" for one in kinds)
    if isinstance(value, kinds):
        return [value]
    if not isinstance(value, Sequence):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be {words}, or a list of them")
    listed = list(value)
    for at, one in enumerate(listed):
        if not isinstance(one, kinds):
            raise InvalidInputError(f"{name}[{at}] is {shown(one)}; it must be {words}")
    if not 0 < len(listed) <= most:
        raise InvalidInputError(f"{name} are {len(listed)}; give 1 to {most}")
    return listed


def count(name: str, value: object, least: int, most: int) -> int:
    """An integer between `least` and `most`; refuses bool, str and floats.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    if type(value) is int and least <= value <= most:  # most are, and there may be 100,000s
        return value
    whole = isinstance(value, numbers.Integral) and _is_number(value)
    if not whole or not least <= value <= most:  # type: ignore[operator]
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number from {least} to {most}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def text(name: str, value: object) -> str:
    """A string that UTF-8 can write: one without lone surrogates.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    try:
        if isinstance(value, str) and value.encode() is not None:
            return value
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(f"{name} is {shown(value)}; it must be a string that UTF-8 can write")


def non_negative(name: str, value: object, unit: str) -> float:
    """A finite number >= 0.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    number = _as_float(value)
    if not 0 <= number < math.inf:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a finite number of {unit} >= 0")
    return number


def flag(name: str, value: object) -> bool:
    """True or False, and nothing that is merely true.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def size(name: str, value: object) -> int:
    """A whole number of bytes from 0 to EXACT_BYTES.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    if type(value) is int and 0 <= value <= EXACT_BYTES:
        return value
    number = _as_float(value)
    if not 0 <= number < math.inf or number != math.floor(number) or int(value) > EXACT_BYTES:  # type: ignore[call-overload]
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number of bytes from 0 to 2^53")
    return int(value)  # type: ignore[call-overload,no-any-return]


def time_limit(value: object) -> float | None:
    """Seconds >= 0, or None for no limit.

    Raises
    ------
    InvalidInputError
        Naming the value.
    """
    return None if value is None else non_negative("time_limit", value, "seconds")


def choice(name: str, value: object, known: Collection[str]) -> str:
    """One of some words.

    Raises
    ------
    InvalidInputError
        Naming the option, its value and the words.
    """
    if not isinstance(value, str) or value not in known:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be one of {', '.join(known)}")
    return value


def progress(value: object) -> None:
    """Refuse what cannot be called; None is no callback.

    Raises
    ------
    InvalidInputError
        Naming the value.
    """
    if value is not None and (not callable(value) or isinstance(value, type)):
        raise InvalidInputError(f"progress is {shown(value)}; it must be a function of one argument, or None")


def bandwidth(name: str, value: object) -> float:
    """Bytes per second: 0 means no link, inf a free one.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    number = _as_float(value)
    if not number >= 0 or (math.isinf(number) and not isinstance(value, float | np.floating)):
        raise InvalidInputError(
            f"{name} is {shown(value)}; it must be bytes per second >= 0 (0: no link, inf: a free one)"
        )
    return number


def memory(name: str, value: object) -> int:
    """A whole number of bytes from 1 to EXACT_BYTES.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    number = _as_float(value)
    whole = int(value) if math.isfinite(number) and number == math.floor(number) else 0  # type: ignore[call-overload]
    if not 0 < whole <= EXACT_BYTES:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number of bytes from 1 to 2^53")
    return int(whole)
