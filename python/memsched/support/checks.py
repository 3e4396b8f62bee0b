"""Checks of user input: each returns the value, or raises InvalidInputError, which names option, value and rule."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, TypeVar, cast

import numpy as np

from memsched.errors import InvalidInputError, shown
from memsched.support.kinds import told_maker

_MANY = 12  # words that an error does not list where it has one that was meant
EXACT_BYTES = 2**53  # limit on byte counts and on the sum of a problem's sizes: doubles are exact up to here


def is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are none, nor are durations, which numpy calls integers."""
    if type(value) in (int, float):  # most are, and abstract classes are slow to ask
        return True
    return isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool | np.bool_ | np.timedelta64)


def as_float(value: object) -> float:
    """The value as a float; nan if it is not a number or too small for a float, inf if it is too large."""
    if not is_number(value):
        return math.nan
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except ValueError:  # a signalling NaN of Decimal
        return math.nan
    return number if number or value == 0 else math.nan


Kind = TypeVar("Kind")


def kind(name: str, value: object, kind: type[Kind]) -> Kind:
    """An instance of a class."""
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a {kind.__name__}{_held(name, value, kind)}")
    return value


def _held(name: str, value: object, kind: type) -> str:
    """What to add where something is given for what it has, or a file for what it holds."""
    return f"; give its .{name}" if isinstance(getattr(value, name, None), kind) else _read(value, kind)


def _read(value: object, kind: type) -> str:
    """What to add where a file is given for what it holds."""
    made = told_maker(value) if hasattr(kind, "from_csv") else ""
    if made:
        return f"; {made}"
    if not isinstance(value, str | os.PathLike) or not hasattr(kind, "from_json"):
        return ""
    read = "load" if callable(getattr(kind, "load", None)) else "from_json"
    return f"; {kind.__name__}.{read}(path) reads one from a file"


def one_or_more(name: str, value: object, kinds: tuple[type[Kind], ...], most: int) -> list[Kind]:
    """An instance of one of some classes, or a sequence of up to `most`; returned as a list."""
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


def some(name: str, value: object, kind: type[Kind]) -> list[Kind]:
    """An instance of a class, or a sequence of them that is not empty; returned as a list."""
    listed = [value] if isinstance(value, kind) else value
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(one, kind) for one in listed):
        raise InvalidInputError(
            f"{name} is {shown(value)}; give a {kind.__name__} or a list of them, not empty{_read(value, kind)}"
        )
    return list(listed)


def is_list(value: object) -> bool:
    """Whether a value has elements in order: no text, document or set, and no array without dimensions."""
    other = isinstance(value, str | bytes | dict | set | frozenset)
    return isinstance(value, Iterable) and not other and getattr(value, "ndim", 1) != 0


def names(name: str, value: object) -> list[Any]:
    """Names in a list, or in a text with commas or blanks between them; whether they are known is checked elsewhere."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, Iterable) or not is_list(listed):
        raise InvalidInputError(f"{name} is {shown(value)}; give names, in a list or in a text with commas")
    return [part for one in listed for part in (_separated(one) if isinstance(one, str) else [one])]


def _separated(text: str) -> list[str]:
    return [word for part in text.split(",") for word in part.split() or [""]]


def count(name: str, value: object, least: int, most: int) -> int:
    """An integer from `least` to `most`; bool, str and floats are refused."""
    if type(value) is int and least <= value <= most:  # the common case; there may be 100,000 of them
        return value
    whole = isinstance(value, numbers.Integral) and is_number(value)
    if not whole or not least <= value <= most:  # type: ignore[operator]
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number from {least} to {most}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def counts(name: str, values: Iterable[object], least: int, most: int) -> tuple[int, ...]:
    """Integers, each as `count` takes it."""
    listed = tuple(values)
    if set(map(type, listed)) == {int}:  # the common case, ten times as fast
        plain = cast("tuple[int, ...]", listed)
        if least <= min(plain) and max(plain) <= most:
            return plain
    return tuple(count(f"{name}[{k}]", value, least, most) for k, value in enumerate(listed))


def text(name: str, value: object) -> str:
    """A string that UTF-8 can encode: one without lone surrogates."""
    try:
        if isinstance(value, str) and value.encode() is not None:
            return value
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(f"{name} is {shown(value)}; it must be a string that UTF-8 can encode")


def non_negative(name: str, value: object, unit: str) -> float:
    """A finite number >= 0."""
    number = as_float(value)
    if not 0 <= number < math.inf:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a finite number of {unit} >= 0")
    return number


def flag(name: str, value: object) -> bool:
    """True or False; truthy values are refused."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def size(name: str, value: object, least: int = 0, most: int = EXACT_BYTES) -> int:
    """A whole number of bytes from `least` to `most`, a power of two."""
    if type(value) is int and least <= value <= most:
        return value
    number = as_float(value)
    if not least <= number < math.inf or number != math.floor(number) or int(value) > most:  # type: ignore[call-overload]
        limits = f"from {least} to 2^{most.bit_length() - 1}"
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number of bytes {limits}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def close(word: object, known: Collection[str]) -> str | None:
    """The one of some words that was meant by one that is none of them."""
    small = {one.lower(): one for one in known}
    near = get_close_matches(word[:100].lower(), small, n=1) if isinstance(word, str) else []
    return small[near[0]] if near else None


def choice(name: str, value: object, known: Collection[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in known:
        near = close(value if isinstance(value, str) else getattr(value, "__name__", None), known)  # of a function
        meant = f"; did you mean '{near}'?" if near else ""
        listed = f" It must be one of {', '.join(known)}" if near else f"; it must be one of {', '.join(known)}"
        raise InvalidInputError(f"{name} is {shown(value)}{meant}{'' if near and len(known) > _MANY else listed}")
    return value


def known(key: str, values: Mapping[str, Kind], what: str, where: str = "it") -> Kind:
    """The value of a key, which must be one of those that there are."""
    if key not in values:
        near = close(key, values)
        meant = f"did you mean {near!r}?" if near else f"the {what}s are {', '.join(values)}"
        raise InvalidInputError(f"{where} has the unknown {what} {key!r}; {meant}")
    return values[key]


def progress(value: object) -> None:
    """A callable, or None for no callback."""
    if value is not None and (not callable(value) or isinstance(value, type)):
        raise InvalidInputError(f"progress is {shown(value)}; it must be a function of one argument, or None")


def bandwidth(name: str, value: object) -> float:
    """Bytes per second: 0 means no link, inf a free one."""
    number = as_float(value)
    if not number >= 0 or (math.isinf(number) and not isinstance(value, float | np.floating)):
        raise InvalidInputError(
            f"{name} is {shown(value)}; it must be bytes per second >= 0 (0: no link, inf: a free one)"
        )
    return number
