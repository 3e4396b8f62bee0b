"""Running text of a report: words between figures, each of which keeps its exact value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from memsched.support.formats import format_bandwidth, format_bytes, format_percent, format_seconds

_UNITS = {"bytes": " bytes", "seconds": " s", "bandwidth": " bytes per second"}


class Number(NamedTuple):
    """A figure."""

    kind: str  # count, bytes, seconds, bandwidth, percent or ratio
    value: int | float

    @property
    def shown(self) -> str:
        """In readable form."""
        return shown(self.kind, self.value)

    @property
    def plain(self) -> str:
        """Exactly, without a unit."""
        return repr(self.value)

    @property
    def exact(self) -> str:
        """Exactly, with its unit."""
        return f"{self.value!r}{_UNITS.get(self.kind, '')}"


Text: TypeAlias = tuple[str | Number, ...]


def shown(kind: str, value: Any) -> str:
    """A value of a kind of columns in readable form."""
    if value is None:
        return ""
    writers: dict[str, Callable[[float], str]] = {
        "bytes": format_bytes,
        "seconds": format_seconds,
        "bandwidth": format_bandwidth,
        "percent": format_percent,
    }
    if kind in writers:
        return writers[kind](value)
    if kind == "ratio":
        return f"{value:.4f}" if math.isfinite(value) else "inf"
    if kind == "yes":
        return "yes" if value else ""
    return str(value)


def text(template: str, *parts: str | Number | Text) -> Text:
    """The template with the parts in place of each {}.

    Examples
    --------
    >>> text("{} ops in {}", Number("count", 3), Number("seconds", 0.5))
    (Number(kind='count', value=3), ' ops in ', Number(kind='seconds', value=0.5))
    """
    found: list[str | Number] = []
    words = template.split("{}")
    if len(words) != len(parts) + 1:
        raise ValueError(f"{template!r} has {len(words) - 1} places for {len(parts)} parts")
    for word, part in zip_longest(words, parts, fillvalue=""):
        found += [word, *(part if isinstance(part, tuple) and not isinstance(part, Number) else (part,))]
    return tuple(part for part in found if part != "")


def joined(parts: Iterable[Text], between: str = ", ") -> Text:
    """Texts one after the other, with words between them."""
    listed = list(parts)
    return text(between.join(["{}"] * len(listed)), *listed)


def counted(count: int, what: str) -> Text:
    """How many there are, as in "1 op" and "2 ops"; for words whose plural ends in an s.

    Examples
    --------
    >>> counted(1, "op"), counted(2, "op")
    ((Number(kind='count', value=1), ' ', 'op'), (Number(kind='count', value=2), ' ', 'ops'))
    """
    return text("{} {}", Number("count", count), what if count == 1 else f"{what}s")
