"""The page for a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeAlias

import memsched
from memsched.show.report.page import card, figure, frame, html_page
from memsched.show.report.summary import tile
from memsched.show.report.sweep_rows import Standing, standings
from memsched.show.report.tables import Column, Table, number
from memsched.study.sweep.names import link_names, planner_names, problem_names
from memsched.study.sweep.rows import STATUSES, checked
from memsched.study.sweep.rows import ReadRow as Row

_PLANNERS = (
    Column(title="planner"),
    Column(title="planned", kind="count", hint="points for which it has a plan"),
    Column(title="of", kind="count", hint="points on which it ran"),
    Column(title="best on", kind="percent", hint="share of the points with a plan where no other plan is faster"),
    Column(title="mean / best", kind="ratio", hint="makespan over that of the fastest planner on the same point"),
    Column(title="worst / best", kind="ratio", hint="makespan over that of the fastest planner on the same point"),
    Column(title="mean gap", kind="percent", hint="to the lower bound on plans of the planner's kind"),
    Column(title="worst gap", kind="percent", hint="to the lower bound on plans of the planner's kind"),
    Column(title="optimal", kind="count", hint="points where its plan is claimed to be optimal"),
    Column(title="planned in", kind="seconds", hint="median over the points that it planned"),
    Column(title="infeasible", kind="count"),
    Column(title="failed", kind="count"),
)
Names: TypeAlias = tuple[str, str, str]  # of the planner, the problem and the link of a row
_NAMES = (Column(title="planner"), Column(title="problem"), Column(title="link"))
_POINTS = (  # curves.js finds its columns by these titles, and those of the names
    (Column(title="bandwidth", kind="bandwidth", hint="to the host"), "bandwidth"),
    (Column(title="memory", kind="bytes"), "memory"),
    (Column(title="status"), "status"),
    (Column(title="makespan", kind="seconds"), "makespan"),
    (Column(title="ideal", kind="seconds", hint="computation alone"), "ideal"),
    (Column(title="lower bound", kind="seconds", hint="as claimed"), "lower_bound"),
    (Column(title="gap", kind="percent"), "gap"),
    (Column(title="optimal", kind="yes", hint="the makespan meets the claimed lower bound"), "optimal"),
    (Column(title="peak", kind="bytes"), "peak_memory"),
    (Column(title="out", kind="bytes"), "bytes_out"),
    (Column(title="in", kind="bytes"), "bytes_in"),
    (Column(title="idle", kind="seconds"), "idle"),
    (Column(title="recomputed", kind="seconds", hint="spent on repeated runs"), "recompute_time"),
    (Column(title="tensors out", kind="count", hint="tensors that are offloaded"), "offloaded"),
    (Column(title="ops again", kind="count", hint="ops that run more than once"), "recomputed"),
    (Column(title="key", hint="for memsched report --point, and memsched.plan_again"), "key"),
    (Column(title="estimate", kind="seconds", hint="in the model of the planner's paper"), "estimate"),
    (Column(title="needs", kind="bytes", hint="the least memory of the planner"), "min_memory"),
    (Column(title="planned in", kind="seconds"), "runtime"),
)


def _points(rows: Sequence[Row], names: Sequence[Names]) -> Table:
    return Table(
        name="points",
        columns=(*_NAMES, *(column for column, _ in _POINTS)),
        rows=[[*own, *(row.get(key) for _, key in _POINTS)] for own, row in zip(names, rows, strict=True)],
    )


def _planners(found: Sequence[Standing]) -> Table:
    keys = (
        *("name", "planned", "points", "best_share", "mean_ratio", "worst_ratio"),
        *("mean_gap", "worst_gap", "optimal", "median_runtime", "infeasible", "failed"),
    )
    return Table(name="planners", columns=_PLANNERS, rows=[[getattr(one, key) for key in keys] for one in found])


def _failures(rows: Sequence[Row], names: Sequence[Names]) -> Table:
    failed: list[list[Any]] = [
        [*own, row["memory"], row["error"] or "no message"]
        for own, row in zip(names, rows, strict=True)
        if row["status"] == "failed"
    ]
    columns = (*_NAMES, Column(title="memory", kind="bytes"), Column(title="error"))
    return Table(name="failures", columns=columns, rows=failed)


def _tiles(names: Sequence[Names], counts: dict[str, int]) -> str:
    planners, problems, links = (len(set(own)) for own in zip(*names, strict=True)) if names else (0, 0, 0)
    parts = (
        ("Planned", counts["planned"], f"of {number('count', len(names))} points"),
        ("Infeasible", counts["infeasible"], "no plan of the planner fits the memory"),
        ("Failed", counts["failed"], "raised another error"),
        ("Problems", problems, f"on {number('count', links)} {'link' if links == 1 else 'links'}"),
        ("Planners", planners, "with their options"),
    )
    return "".join(tile(title, number("count", count), note) for title, count, note in parts)


def sweep_page(rows: Sequence[Row], *, title: str = "sweep") -> str:
    """The page as HTML, of rows with the keys of `memsched.read_store(path).rows`; the title is plain text."""
    rows = checked(rows)
    names = list(zip(planner_names(rows), problem_names(rows), link_names(rows), strict=True))
    points, planners, failures = _points(rows, names), _planners(standings(rows)), _failures(rows, names)
    count = f"{number('count', len(rows))} {'point' if len(rows) == 1 else 'points'}"
    counts = {status: sum(row["status"] == status for row in rows) for status in STATUSES}
    parts = [f'<div class="head"><h1>{escape(title)}</h1><p class="verdict sweep">{count}</p></div>']
    parts.append(f'<div class="tiles">{_tiles(names, counts)}</div>')
    if counts["planned"]:
        choice = (
            '<div class="choice"><label>problem <select id="problem"></select></label>'
            '<label>link <select id="link"></select></label></div>'
        )
        parts.append(
            card(
                "What less memory costs",
                choice + figure("sweep", "points"),
                "Makespan over the time of computation alone. A point is a plan; click a name to hide it.",
            )
        )
    if rows:
        note = (
            "A point is a problem with a memory and a link. All figures are claims of the sweep: nothing was "
            "planned or simulated for this page. memsched report --point plans one point again."
        )
        parts.append(card("The planners", planners.to_html(), note))
    if failures.rows:
        parts.append(card("What failed", failures.to_html()))
    if rows:
        parts.append(card("All points", points.to_html()))
    data = {
        "format": "memsched-report/1",
        "memsched": memsched.__version__,
        "sweep": {"title": title, "points": len(rows), **counts},
        "tables": {table.name: table.to_json() for table in (planners, failures, points)},
    }
    return html_page(title, frame("".join(parts), memsched.__version__), data)
