"""Rows as CSV: one naming of columns, with units, in all files and outputs; and one reading of all tables."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memsched.errors import InvalidInputError, shown
from memsched.support.arguments import meant
from memsched.support.files import check_named, path_of, plain_cell, read_text, write_bytes
from memsched.support.kinds import told_kind

_SEPARATORS = (",", ";", "\t")

_UNITS = {
    **dict.fromkeys(("makespan", "lower_bound", "ideal", "estimate", "runtime"), "seconds"),
    **dict.fromkeys(("idle", "recompute_time", "compute_time"), "seconds"),
    "finished": "unix_seconds",
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


def write_csv(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write such lines to a file."""
    write_bytes(check_named(path_of(path), "CSV", ".csv"), csv_of(rows).encode())


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names in quotes, to be shown in an error; no more than `most` of them.

    Examples
    --------
    >>> listed(["time", "size"])
    "'time', 'size'"
    """
    texts = [f"'{name}'" for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def read_table(
    path: str | os.PathLike[str], what: str, known: Sequence[str]
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The first line of a CSV file, and the others that have any text, with the numbers of the lines where they end.

    Commas, semicolons or tabs separate the cells. `what` is how `told_kind` calls a table of the known columns.
    """
    where, text = f"'{path_of(path)}'", read_text(path)
    kind = told_kind(text)
    if kind is not None and not kind.startswith(what):
        named = (
            "; let its name end in .json" if text.lstrip()[:1] == "{" and not where.lower().endswith(".json'") else ""
        )
        raise InvalidInputError(f"{where} is {kind}; expected {what}, whose first line names the columns{named}")
    first = text.lstrip("\r\n").partition("\n")[0]  # no name of a column has a separator
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(_SEPARATORS, key=first.count), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InvalidInputError(f"{where}, line {reader.line_num} cannot be read: {error}") from error
    if not rows:
        raise InvalidInputError(f"{where} is empty; its first line must name the columns, {', '.join(known)}")
    return [cell.strip() for cell in rows[0][1]], _as_long(rows[1:], len(rows[0][1]), where)


def _as_long(rows: Iterable[tuple[int, list[str]]], cells: int, where: str) -> Iterator[tuple[int, list[str]]]:
    for line, row in rows:
        if len(row) != cells:
            raise InvalidInputError(f"{where}, line {line} has {len(row)} cells; it must have {cells}")
        yield line, row


def check_columns(names: Sequence[Any], where: str, known: Sequence[str], required: Sequence[str]) -> None:
    """Refuse names of columns that are unknown, missing or listed twice; all of them in one error."""
    columns = f"the columns are {', '.join(known)}"
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:
        free = [name for name in known if name not in names]
        near = {name: guess for name in unknown if isinstance(name, str) and (guess := meant(name, free))}
        alone = len(unknown) == len(near) == 1
        pairs = (f"'{guess}'" if alone else f"'{guess}' for {shown(name)}" for name, guess in near.items())
        guesses = f"did you mean {', '.join(pairs)}? T{columns[1:]}" if near else columns
        if any(isinstance(name, str) and name[:1].isdigit() for name in unknown):
            guesses = f"the first line must name the columns; {columns}"
        elif any(name == "" or str(name).startswith("Unnamed:") for name in unknown):  # as pandas writes and reads it
            guesses = f"one without a name is the index of a table: write it with index=False; {guesses}"
        units = any(re.search(r"[(_ ](ms|us|s|[kMG]i?B|bytes)\)?$", str(name)) for name in unknown)
        written = "; numbers are seconds and bytes, other units stand in the cells: 3.1ms, 200MB" if units else ""
        raise InvalidInputError(f"{where} has {_of(unknown, 'unknown ')}; {guesses}{written}")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InvalidInputError(f"{where} has {_of(twice)} twice; drop one of each")
    missing = [name for name in required if name not in names]
    if missing:
        raise InvalidInputError(f"{where} lacks {_of(missing)}; {columns}")


def _of(names: Sequence[Any], kind: str = "") -> str:
    return f"the {kind}column{'s' if len(names) > 1 else ''} {listed(names)}"
