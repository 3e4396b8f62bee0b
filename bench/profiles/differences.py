"""Where two documents differ, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differing(old: Any, new: Any, where: str = "") -> list[str]:
    """The places that differ, such as "forward_time (12 of 13, up to 3.4 %)"; of lists of numbers with how much."""
    return list(_walk(old, new, where))


def _walk(old: Any, new: Any, where: str) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            place = f"{where}.{key}" if where else str(key)
            if key not in old or key not in new:
                yield f"{place} ({'new' if key in new else 'gone'})"
            else:
                yield from _walk(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        numbers = all(isinstance(value, int | float) for pair in pairs for value in pair)
        most = f", up to {100 * max(relative(a, b) for a, b in pairs):.3g} %" if numbers else ""
        yield f"{where} ({len(pairs)} of {len(old)}{most})"
    else:
        yield where or "all"


def relative(old: float, new: float) -> float:
    """How far two numbers are apart, as a share of the larger; 0 for two zeros."""
    largest = max(abs(old), abs(new))
    return abs(new - old) / largest if largest else 0.0
