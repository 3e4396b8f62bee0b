"""Rows of the figures of PoocH, as its claims need them."""

from __future__ import annotations

from bench.common import Row
from bench.papers.pooch2019_figures import size_name

X86 = 30e9  # links below are PCI Express


def of(rows: list[Row], network: str, *, x86: bool | None = None, out_of_core: bool = True) -> list[Row]:
    """Rows of a network that do not fit, on one machine or on both."""
    return [
        row
        for row in rows
        if row["network"] == network
        and (x86 is None or (row["link"] < X86) == x86)
        and (row["in-core"] is None or not out_of_core)
    ]


def ratios(rows: list[Row], fast: str, slow: str) -> list[float]:
    """How many times faster, where both have a plan."""
    return [row[slow] / row[fast] for row in rows if row[fast] is not None and row[slow] is not None]


def pairs(rows: list[Row], fast: str, slow: str) -> list[tuple[float | None, float | None]]:
    """Seconds of both."""
    return [(row[fast], row[slow]) for row in rows]


def span(values: list[float], form: str = "{:.2f}") -> str:
    return f"{form.format(min(values))} to {form.format(max(values))}" if values else "no plan"


def losses(rows: list[Row], name: str = "PoocH") -> list[float]:
    """Percent of the speed of the compute bound, which in-core runs reach."""
    return [100 * (1 - row["bound"] / row[name]) for row in rows if row[name] is not None]


def where(row: Row) -> str:
    return f"{size_name(row)} at {row['link'] / 1e9:g} GB/s"
