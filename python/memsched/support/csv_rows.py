"""Rows as CSV: one naming of columns, with units, in all files and outputs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from memsched.support.files import plain_cell

_UNITS = {
    **dict.fromkeys(("makespan", "lower_bound", "ideal", "estimate", "runtime"), "seconds"),
    **dict.fromkeys(("idle", "recompute_time", "compute_time"), "seconds"),
    **dict.fromkeys(("memory", "min_memory", "peak_memory", "resident"), "bytes"),
    **dict.fromkeys(("bandwidth", "link_bandwidth"), "bytes_per_second"),
}


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line per row: units in the names of the columns, plain numbers, objects as JSON, and empty what a row lacks.

    A text that a spreadsheet would take for a formula has an apostrophe before it.

    Examples
    --------
    >>> csv_of([{"planner": "greedy", "makespan": 0.5, "peak_memory": 7}, {"planner": "=1", "peak_memory": 8}])
    "planner,makespan_seconds,peak_memory_bytes\\ngreedy,0.5,7\\n'=1,,8\\n"
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    all_quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # as a line end that is not ours needs
    writer.writerow(f"{key}_{_UNITS[key]}" if key in _UNITS else key for key in keys)
    for row in rows:
        cells = [_cell(row.get(key)) for key in keys]
        (all_quoted if any("\r" in cell for cell in cells if isinstance(cell, str)) else writer).writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    return plain_cell(value) if isinstance(value, str) else value
