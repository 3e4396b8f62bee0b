"""The points of a sweep: checked, named and compared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from memsched.errors import InvalidInputError
from memsched.sweep.rows import contradiction
from memsched.units import format_bytes

STATUSES = ("planned", "infeasible", "failed")
_TEXTS = ("problem", "planner", "status")
_NUMBERS = ("memory", "bandwidth")
_MEASURES = (
    *("makespan", "lower_bound", "gap", "optimal", "peak_memory", "bytes_out", "bytes_in", "idle", "recompute_time"),
    *("offloaded", "recomputed", "runtime", "ideal"),
)
_OPTIONAL = ("estimate", "min_memory", "error")
_KEYS = (*_TEXTS, *_NUMBERS, "options", *_MEASURES, *_OPTIONAL)
_EQUAL = 1 + 1e-9  # what sums in another order may differ by

Row = Mapping[str, Any]


def checked(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with all that a page asks of it.

    Raises
    ------
    InvalidInputError
        Naming the row, the key and the value.
    """
    for at, row in enumerate(rows):
        where = f"row {at} of the sweep"
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"{where} is {row!r}; it must be a mapping")
        missing = next((key for key in _KEYS if key not in row), None)
        if missing is not None:
            raise InvalidInputError(f"{where} lacks '{missing}'; write it, or give what memsched.read_store reads")
        for key in _TEXTS:
            _check(where, key, row[key], isinstance(row[key], str), "a string")
        _check(where, "status", row["status"], row["status"] in STATUSES, f"one of {', '.join(STATUSES)}")
        _check(where, "options", row["options"], isinstance(row["options"], Mapping), "a mapping")
        for key in _NUMBERS:
            _check(where, key, row[key], _is_number(row[key]), "a number >= 0")
        if row["status"] == "planned":
            for key in ("makespan", "lower_bound", "runtime"):
                _check(where, key, row[key], _is_number(row[key]), "a number >= 0")
        for key in (*_MEASURES, "estimate", "min_memory"):
            _check(where, key, row[key], row[key] is None or _is_number(row[key]), "a number >= 0 or None")
        if row["status"] == "planned":
            _check_proof(where, row)
    return list(rows)


def _check_proof(where: str, row: Row) -> None:
    """Refuse what other figures of the row contradict."""
    wrong = contradiction(row)
    if wrong is not None:
        _check(where, wrong[0], row[wrong[0]], False, wrong[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0


def _check(where: str, key: str, value: object, fine: bool, what: str) -> None:
    if not fine:
        raise InvalidInputError(f"{key} of {where} is {value!r}; it must be {what}")


def labels(rows: Sequence[Row]) -> list[str]:
    """What each row's planner is called: with its options where one planner has several sets of them."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        kinds[row["planner"]].add(_options(row))
    return [
        f"{row['planner']} ({_options(row) or 'defaults'})" if len(kinds[row["planner"]]) > 1 else row["planner"]
        for row in rows
    ]


def _options(row: Row) -> str:
    given = sorted((key, value) for key, value in row["options"].items() if value is not None)
    sized = ((key, format_bytes(value) if key == "chunk" and isinstance(value, int) else value) for key, value in given)
    return ", ".join(f"{key}={value}" for key, value in sized)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one planner did over a sweep.

    Attributes
    ----------
    name : str
    points, planned, infeasible, failed, optimal : int
    best_share : float or None
        Of the points for which this or another planner has a plan, those where no other one's is faster.
    mean_gap, worst_gap : float or None
        Over the points that it planned and that have a bound.
    mean_ratio, worst_ratio : float or None
        Makespan over that of the fastest planner on the same point.
    median_runtime : float or None
        Seconds.
    """

    name: str
    points: int
    planned: int
    infeasible: int
    failed: int
    optimal: int
    best_share: float | None
    mean_gap: float | None
    worst_gap: float | None
    mean_ratio: float | None
    worst_ratio: float | None
    median_runtime: float | None


def standings(rows: Sequence[Row]) -> list[Standing]:
    """One a planner, in the order in which they first appear.

    Examples
    --------
    >>> row = dict(problem="p", memory=1, bandwidth=1.0, options={}, status="planned", lower_bound=1.0, optimal=False)
    >>> fast = row | dict(planner="fast", makespan=2.0, gap=1.0, runtime=0.1)
    >>> slow = row | dict(planner="slow", makespan=3.0, gap=2.0, runtime=0.2)
    >>> [(one.name, one.best_share, one.mean_ratio) for one in standings([fast, slow])]
    [('fast', 1.0, 1.0), ('slow', 0.0, 1.5)]
    """
    best: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["status"] == "planned":
            best[_point(row)] = min(row["makespan"], best.get(_point(row), math.inf))
    groups: dict[str, list[Row]] = defaultdict(list)
    for name, row in zip(labels(rows), rows, strict=True):
        groups[name].append(row)
    return [_standing(name, group, best) for name, group in groups.items()]


def _point(row: Row) -> tuple[Any, ...]:
    return row["problem"], row["bandwidth"], row["memory"]


def _standing(name: str, rows: list[Row], best: dict[tuple[Any, ...], float]) -> Standing:
    planned = [row for row in rows if row["status"] == "planned"]
    gaps = [row["gap"] for row in planned if row["gap"] is not None]
    ratios = [
        row["makespan"] / best[_point(row)] if best[_point(row)] > 0 else 1.0 if row["makespan"] == 0 else math.inf
        for row in planned
    ]
    contested = {_point(row) for row in rows} & best.keys()
    won = {_point(row) for row in planned if row["makespan"] <= best[_point(row)] * _EQUAL}
    return Standing(
        name=name,
        points=len(rows),
        planned=len(planned),
        infeasible=sum(row["status"] == "infeasible" for row in rows),
        failed=sum(row["status"] == "failed" for row in rows),
        optimal=sum(bool(row["optimal"]) for row in planned),
        best_share=len(won) / len(contested) if contested else None,
        mean_gap=fmean(gaps) if gaps else None,
        worst_gap=max(gaps, default=None),
        mean_ratio=fmean(ratios) if ratios else None,
        worst_ratio=max(ratios, default=None),
        median_runtime=median(row["runtime"] for row in planned) if planned else None,
    )
