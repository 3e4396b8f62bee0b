"""Tables of a report: the first rows are in the page, and all rows in its data, which tables.js sorts and searches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from memsched.show.text import Number, shown

FIRST = 60  # rows in the page itself
LONG = 42  # a cell with more characters is wrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    title: str
    # How its values are written: text, count, bytes, seconds, bandwidth, percent, ratio or yes. None is an empty cell.
    kind: str = "text"
    hint: str = ""  # explains the figures
    bar: bool = False  # whether a bar under each figure shows it as a share of the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value as parts.html writes it."""

    kind: str
    text: str
    number: Number | None = None  # None: no figure
    share: float | None = None  # of the largest figure of a column with bars

    @property
    def long(self) -> bool:
        """Whether it is wrapped."""
        return self.number is None and len(self.text) > LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row."""

    cells: list[Cell]
    marked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of values under columns."""

    name: str  # key in the page's data, and value of the attribute data-table
    columns: tuple[Column, ...]
    rows: list[list[Any]]  # str, int, float, bool or None, one per column
    marked: tuple[int, ...] = ()  # highlighted rows

    def to_json(self) -> dict[str, Any]:
        """Columns and rows, exact."""
        return {
            "columns": [{"title": c.title, "kind": c.kind, "hint": c.hint, "bar": c.bar} for c in self.columns],
            "rows": self.rows,
            "marked": list(self.marked),
        }

    @property
    def first(self) -> Iterator[Row]:
        """The first rows."""
        most = [largest(row[at] for row in self.rows) for at, _ in enumerate(self.columns)]
        for at, row in enumerate(self.rows[:FIRST]):
            cells = [cell(column, value, top) for column, value, top in zip(self.columns, row, most, strict=True)]
            yield Row(cells=cells, marked=at in self.marked)


def largest(values: Iterable[Any]) -> float:
    """The largest finite number among values of any type; 0 if there is none."""
    numbers = (one for one in values if isinstance(one, int | float) and math.isfinite(one))
    return max(numbers, default=0.0)


def cell(column: Column, value: Any, most: float = 0.0) -> Cell:
    """One cell of a column, of which `most` is the largest figure."""
    words = shown(column.kind, value)
    if value is None or column.kind in ("text", "yes"):
        return Cell(kind=column.kind, text=words)
    barred = column.bar and most > 0 and math.isfinite(value)
    number = Number(column.kind, value)
    return Cell(kind=column.kind, text=words, number=number, share=value / most if barred else None)
