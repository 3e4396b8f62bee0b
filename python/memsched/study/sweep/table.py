"""What a sweep tells: how far it is, and its result, a tidy table with one row per point."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from memsched.study.sweep.rows import MEASURES, Row
from memsched.support import checks
from memsched.support.files import check_named, path_of, write_bytes
from memsched.support.formats import counted
from memsched.support.views import Columns, Drawn, Figures, needed

# First what identifies a point, then its figures, then the rest.
COLUMNS = (
    *("problem", "planner", "memory", "memory_percent", "bandwidth", "options", "status"),
    *MEASURES,
    *("ideal", "device", "table_slots", "version", "finished", "problem_key", "key"),
)
_KINDS: dict[str, type] = {
    **{name: {"REAL": float, "INTEGER": int, "TEXT": str}[kind] for name, kind in MEASURES.items()},
    **dict.fromkeys(("memory_percent", "bandwidth", "ideal", "finished"), float),
    **{"memory": int, "table_slots": int, "optimal": bool},
}


def columns_of(rows: Sequence[Row], *names: str) -> Columns:
    """Rows as columns, with their types; None where a row lacks one."""
    return {name: (_KINDS.get(name, str), [row.get(name) for row in rows]) for name in names}


def in_columns(rows: Sequence[Row]) -> list[Row]:
    """Rows with all columns, in their order."""
    return [{name: row.get(name) for name in COLUMNS} for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """How far a sweep is.

    Attributes
    ----------
    points : int
        In the whole sweep.
    kept : int
        Points that were already in the store.
    planned, infeasible, failed : int
        Points that this sweep has finished.
    seconds : float
        Since the sweep began.
    """

    points: int
    kept: int
    planned: int
    infeasible: int
    failed: int
    seconds: float

    @property
    def finished(self) -> int:
        """Points finished by this sweep."""
        return self.planned + self.infeasible + self.failed

    @property
    def rate(self) -> float:
        """Points per second."""
        return self.finished / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining(self) -> float | None:
        """Seconds at this rate; None while the rate is unknown."""
        left = self.points - self.kept - self.finished
        return left / self.rate if self.rate > 0 else None if left else 0.0


@dataclass(frozen=True, slots=True)
class Sweep(Figures, Drawn):
    """The table of a sweep. `to_pandas` and `to_polars` give it as a data frame, `plot` draws it as `plot_sweep` does.

    The columns of data frames and Parquet files have the names below; a CSV file adds the unit, as in `memory_bytes`.

    Attributes
    ----------
    rows : list of dict
        One per point: problem (its name), planner, memory (bytes), memory_percent (the same as the percentage that
        a budget may be, to group by), bandwidth (bytes per second, to the host), options, status ("planned",
        "infeasible" or "failed"); makespan, lower_bound, estimate, idle, recompute_time, runtime (seconds), gap,
        optimal, bound_on ("all" plans are covered by lower_bound, or those that run each op "once"), peak_memory,
        bytes_out, bytes_in (bytes), offloaded and recomputed (how many tensors and ops); min_memory (bytes, of
        infeasible points), error (a sentence, of infeasible and failed points); ideal (seconds of computation with
        enough memory), device, table_slots, version, finished (Unix time), problem_key, key. None if a point has no
        such number.
    claimed : bool
        Whether the rows were read from a file. Then the figures, bounds included, are claims of that file: only
        whether the figures of a row agree with each other is checked. `plan_again` plans a point anew.
    """

    __hash__ = None  # type: ignore[assignment]  # its rows have none

    rows: list[Row] = field(repr=False)
    claimed: bool = field(default=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, str):
            raise KeyError(f"a sweep has rows, by number; to_pandas()[{at!r}] is that column")
        return self.rows[at]

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(status)} {status}" for status in ("planned", "infeasible", "failed"))
        return f"Sweep({counted(len(self), 'point')}: {counts})"

    def count(self, status: str) -> int:
        """How many points are "planned", "infeasible" or "failed"."""
        status = checks.text("status", status)
        return sum(row["status"] == status for row in self.rows)

    def _columns(self) -> Columns:
        """Those of `rows`; `options` and `device` are JSON texts."""
        texts = ("options", "device")
        written = [row | {key: json.dumps(row[key], sort_keys=True) for key in texts} for row in self.rows]
        return columns_of(written, *COLUMNS)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the data frame as a Parquet file; needs pandas and pyarrow (memsched[sweep])."""
        needed("pyarrow", "sweep")
        write_bytes(check_named(path_of(path), "Parquet", ".parquet"), self.to_pandas().to_parquet(index=False))
