"""Values that nobody changes: dataclasses with slots say so themselves only of their fields."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any


def _refuse(one: Any, name: str, *_: Any) -> None:
    kind = type(one).__name__
    what = "is no attribute of it" if not hasattr(one, name) else "cannot be changed"
    raise FrozenInstanceError(f"{kind} is immutable, as all values of memsched are: {name!r} {what}")


def immutable(kind: type) -> None:
    """Refuse to set or delete any attribute of a frozen dataclass; Python's error with slots is one of its insides."""
    for name in ("__setattr__", "__delattr__"):
        setattr(kind, name, _refuse)
