"""The points of a sweep compared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from memsched.result import as_fast
from memsched.study.sweep.names import planner_names, point_of
from memsched.study.sweep.rows import ReadRow as Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one planner did over a sweep."""

    name: str
    points: int
    planned: int
    infeasible: int
    failed: int
    optimal: int
    best: int  # points where no other plan is faster
    best_share: float | None  # the same as a share of the points for which any planner has a plan
    over_ideal: float | None  # mean, above the time of computation alone
    mean_gap: float | None  # both gaps: over the points that it planned and that have a bound
    worst_gap: float | None
    mean_ratio: float | None  # both ratios: makespan over that of the fastest planner on the same point
    worst_ratio: float | None
    median_runtime: float | None  # seconds


def standings(rows: Sequence[Row], names: Sequence[str] | None = None) -> list[Standing]:
    """One per planner, in order of first appearance. Names are of each row's planner, by default with its options."""
    best: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["status"] == "planned":
            best[point_of(row)] = min(row["makespan"], best.get(point_of(row), math.inf))
    groups: dict[str, list[Row]] = defaultdict(list)
    for name, row in zip(names or planner_names(rows), rows, strict=True):
        groups[name].append(row)
    return [_standing(name, group, best) for name, group in groups.items()]


def _standing(name: str, rows: list[Row], best: dict[tuple[Any, ...], float]) -> Standing:
    planned = [row for row in rows if row["status"] == "planned"]
    gaps = [row["gap"] for row in planned if row["gap"] is not None]
    ratios = [
        row["makespan"] / best[point_of(row)] if best[point_of(row)] > 0 else 1.0 if row["makespan"] == 0 else math.inf
        for row in planned
    ]
    over = [row["makespan"] / row["ideal"] - 1 if row["ideal"] else 0.0 for row in planned]
    contested = {point_of(row) for row in rows} & best.keys()
    won = {point_of(row) for row in planned if as_fast(row["makespan"], best[point_of(row)])}
    return Standing(
        name=name,
        points=len(rows),
        planned=len(planned),
        infeasible=sum(row["status"] == "infeasible" for row in rows),
        failed=sum(row["status"] == "failed" for row in rows),
        optimal=sum(bool(row["optimal"]) for row in planned),
        best=len(won),
        best_share=len(won) / len(contested) if contested else None,
        over_ideal=fmean(over) if over else None,
        mean_gap=fmean(gaps) if gaps else None,
        worst_gap=max(gaps, default=None),
        mean_ratio=fmean(ratios) if ratios else None,
        worst_ratio=max(ratios, default=None),
        median_runtime=median(row["runtime"] for row in planned) if planned else None,
    )
