"""The result of a sweep: a tidy table, one row per point."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memsched.errors import InvalidInputError
from memsched.study.sweep.rows import MEASURES, Row
from memsched.support import checks
from memsched.support.files import plain_cell, write_bytes
from memsched.support.interrupt import optional

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# First what identifies a point, then its figures, then the rest.
COLUMNS = (
    *("problem", "planner", "memory", "bandwidth", "options", "status"),
    *MEASURES,
    *("ideal", "device", "table_slots", "version", "finished", "problem_key", "key"),
)
_KINDS = {
    **{name: {"REAL": "float64", "INTEGER": "Int64"}.get(kind) for name, kind in MEASURES.items()},
    **dict.fromkeys(("bandwidth", "ideal", "finished"), "float64"),
    **{"memory": "Int64", "table_slots": "Int64", "optimal": "boolean"},
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """The table of a sweep.

    Attributes
    ----------
    rows : list of dict
        One per point: problem (its name), planner, memory (bytes), bandwidth (bytes per second, to the host), options,
        status ("planned", "infeasible" or "failed"); makespan, lower_bound, estimate, idle, recompute_time, runtime
        (seconds), gap, optimal, peak_memory, bytes_out, bytes_in (bytes), offloaded and recomputed (how many tensors
        and ops); min_memory (bytes, of infeasible points), error (a sentence, of infeasible and failed points); ideal
        (seconds of computation with enough memory), device, table_slots, version, finished (Unix time), problem_key,
        key. None if a point has no such number.
    claimed : bool
        Whether the rows were read from a file. Then the figures, bounds included, are claims of that file: only
        whether the figures of a row agree with each other is checked. `plan_again` plans a point anew.
    """

    rows: list[Row] = field(repr=False)
    claimed: bool = field(default=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(status)} {status}" for status in ("planned", "infeasible", "failed"))
        return f"Sweep({len(self)} points: {counts})"

    def count(self, status: str) -> int:
        """How many points are "planned", "infeasible" or "failed"."""
        status = checks.text("status", status)
        return sum(row["status"] == status for row in self.rows)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the columns of `rows`; needs pandas (memsched[sweep]).

        Integer columns with missing values have type Int64; `options` and `device` are JSON texts.
        """
        import json

        made = _needed("pandas")
        columns = {}
        for name in COLUMNS:
            values = [row[name] for row in self.rows]
            if name in ("options", "device"):
                values = [json.dumps(value, sort_keys=True) for value in values]
            columns[name] = made.Series(values, dtype=_KINDS.get(name) or ("object" if not values else None))
        tidy: pandas.DataFrame = made.DataFrame(columns)
        return tidy

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the data frame as a Parquet file; needs pandas and pyarrow (memsched[sweep])."""
        _needed("pyarrow")
        write_bytes(path, self.to_pandas().to_parquet(index=False))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the data frame as a CSV file; needs pandas (memsched[sweep]).

        Text that begins with =, +, - or @ is prefixed with an apostrophe, since a spreadsheet would take it for a
        formula. Numbers are not changed.
        """
        frame = self.to_pandas()
        for name in frame.columns:
            if _KINDS.get(name) is None:
                frame[name] = frame[name].map(plain_cell, na_action="ignore")
        write_bytes(path, frame.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode())

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Plot makespan over memory, one line per planner, one panel per problem and link; see `plot_sweep`."""
        from memsched.show.plots.sweep import plot_sweep

        return plot_sweep(self.rows, path)


def _needed(package: str) -> Any:
    missing = f"the table needs {package}, which is not installed; install memsched[sweep]"
    return optional(package, InvalidInputError(missing))
