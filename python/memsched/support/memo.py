"""Values of an immutable object that are computed once and forgotten with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

Value = TypeVar("Value")


def once_per_object(make: Callable[..., Value]) -> Callable[..., Value]:
    """Decorate a function of an immutable object and hashable arguments: it runs once for each.

    The object need not be hashable, and equal objects are treated separately. If two threads ask at the same time, both
    may compute, and either value is kept.
    """
    kept: dict[int, tuple[weakref.ref[Any], dict[Hashable, Value]]] = {}

    @wraps(make)
    def remembered(one: Any, *arguments: Hashable) -> Value:
        known = kept.get(id(one))
        if known is None or known[0]() is not one:

            def forget(gone: weakref.ref[Any], key: int = id(one)) -> None:
                if key in kept and kept[key][0] is gone:  # otherwise another object already has this id
                    del kept[key]

            known = kept[id(one)] = (weakref.ref(one, forget), {})
        values, key = known[1], tuple((type(value), value) for value in arguments)  # True is not 1
        try:
            known_value = key in values
        except (TypeError, ValueError):  # an argument without a hash, which `make` refuses by name
            return make(one, *arguments)
        if not known_value:
            values[key] = make(one, *arguments)
        return values[key]

    return remembered
