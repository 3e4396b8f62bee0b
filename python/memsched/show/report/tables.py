"""Tables of a report: HTML for the first rows, and all rows as exact figures, which page.js sorts and searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from memsched.support.units import format_bandwidth, format_bytes, format_percent, format_seconds

FIRST = 60  # rows in the HTML itself
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

    def to_html(self) -> str:
        """The table with its first rows, every figure with its exact value."""
        heads = "".join(
            f'<th scope="col" class="{column.kind}"{_titled(column.hint)}>{escape(column.title)}</th>'
            for column in self.columns
        )
        most = [largest(row[at] for row in self.rows) for at, _ in enumerate(self.columns)]
        rows = "".join(self._row(at, row, most) for at, row in enumerate(self.rows[:FIRST]))
        return (
            f'<div class="table" data-table="{escape(self.name)}"><table>'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _row(self, at: int, row: Sequence[Any], most: list[float]) -> str:
        cells = "".join(cell(column, value, top) for column, value, top in zip(self.columns, row, most, strict=True))
        return f'<tr class="marked">{cells}</tr>' if at in self.marked else f"<tr>{cells}</tr>"


def largest(values: Any) -> float:
    """The largest finite number among values of any type; 0 if there is none."""
    numbers = (one for one in values if isinstance(one, int | float) and math.isfinite(one))
    return max(numbers, default=0.0)


def _titled(text: str) -> str:
    return f' title="{escape(text)}"' if text else ""


def shown(kind: str, value: Any) -> str:
    """A value in readable form."""
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


def exact(kind: str, value: Any) -> tuple[str, str]:
    """A number in exact form, without and with its unit."""
    text = repr(value)
    units = {"bytes": " bytes", "seconds": " s", "bandwidth": " bytes per second"}
    return text, f"{text}{units.get(kind, '')}"


def number(kind: str, value: float | None) -> str:
    """A figure in running text, with its exact value."""
    if value is None:
        return ""
    plain, titled = exact(kind, value)
    return f'<span class="number" data-value="{plain}" title="{titled}">{escape(shown(kind, value))}</span>'


def cell(column: Column, value: Any, most: float = 0.0) -> str:
    """One cell."""
    if value is None or column.kind in ("text", "yes"):
        text = shown(column.kind, value)
        return f'<td class="{column.kind}{" long" if len(text) > LONG else ""}">{escape(text)}</td>'
    plain, titled = exact(column.kind, value)
    share = f' style="--share:{value / most:.4f}"' if column.bar and most > 0 and math.isfinite(value) else ""
    bar = " bar" if share else ""
    text = escape(shown(column.kind, value))
    return f'<td class="{column.kind}{bar}" data-value="{plain}" title="{titled}"{share}>{text}</td>'
