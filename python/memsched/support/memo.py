"""Values of an object that are kept as long as it is: noted, or computed once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial, wraps
from typing import Any, Generic, TypeVar, cast

Value = TypeVar("Value")
_MISSING: Any = object()


class Notes(Generic[Value]):
    """A value for each of some objects, which need not be hashable; equal objects have their own."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def put(self, one: Any, value: Value) -> Value:
        """Note a value; it is returned."""
        # No code of ours runs when the object goes: Python would drop a Ctrl-C in it.
        self._kept[id(one)] = (weakref.ref(one, partial(self._kept.pop, id(one))), value)
        return value

    def get(self, one: Any) -> Value | None:
        """The value of an object, if one was noted."""
        known = self._kept.get(id(one))
        return known[1] if known is not None and known[0]() is one else None


def once_per_object(make: Callable[..., Value]) -> Callable[..., Value]:
    """Decorate a function of an immutable object and hashable arguments: it runs once for each.

    The object need not be hashable, and equal objects are treated separately. If two threads ask at the same time, both
    may compute, and either value is kept.
    """
    kept = Notes[dict[Hashable, Value]]()

    @wraps(make)
    def remembered(one: Any, *arguments: Hashable) -> Value:
        values = kept.get(one)
        if values is None:
            values = kept.put(one, {})
        key = tuple([(type(value), value) for value in arguments]) if arguments else ()  # True is not 1
        try:
            known = values.get(key, _MISSING)
        except (TypeError, ValueError):  # an argument without a hash, which `make` refuses by name
            return make(one, *arguments)
        if known is _MISSING:
            known = values[key] = make(one, *arguments)
        return cast("Value", known)

    return remembered
