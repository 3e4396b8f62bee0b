"""Chains as tables: what `Chain.from_frame` and `Chain.from_csv` read back."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import memsched as ms
from memsched.readers.tables import COLUMNS
from memsched.support.files import plain_cell


def chain_to_columns(chain: ms.Chain) -> dict[str, list[Any]]:
    """A list for each column. Its first entry is that of the input."""
    columns: dict[str, list[Any]] = {"name": ["input", *chain.names]}
    half = chain.resident // 2
    columns["resident"] = [half, *[None] * (chain.n - 1), chain.resident - half]
    for key in COLUMNS[1:-1]:
        entries = getattr(chain, key).tolist()
        columns[key] = entries if key in ("activation", "gradient") else [None, *entries]
    return columns


def write_chain_csv(path: Path, chain: ms.Chain) -> None:
    """A CSV file, with an apostrophe before names that are blank or that a spreadsheet takes for formulas."""
    columns = chain_to_columns(chain)
    columns["name"] = [plain_cell(name) if name.lstrip("'").strip() else f"'{name}" for name in columns["name"]]
    with open(path, "w", encoding="utf-8", newline="") as file:
        plain, quoting = (
            csv.writer(file, lineterminator="\n", quoting=kind) for kind in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        plain.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            (quoting if "\r" in row[0] else plain).writerow(row)
