"""The page for a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from memsched.show.plots.sweep import footnote, styles_of
from memsched.show.report.captions import sweep_caption
from memsched.show.report.page import html_page
from memsched.show.report.summary import Tile
from memsched.show.report.sweep_rows import Standing, standings
from memsched.show.report.tables import Column, Table
from memsched.show.text import Number, counted, text
from memsched.show.words import kinds_of_gaps
from memsched.study.sweep.names import link_names, planner_names, problem_names
from memsched.study.sweep.rows import STATUSES, checked
from memsched.study.sweep.rows import ReadRow as Row
from memsched.support.formats import format_bandwidth

_PLANNERS = (
    Column(title="planner"),
    Column(title="planned", kind="count", hint="points for which it has a plan"),
    Column(title="of", kind="count", hint="points on which it ran"),
    Column(title="best on", kind="percent", hint="share of the cases with a plan where no other plan is faster"),
    Column(title="mean / best", kind="ratio", hint="makespan over that of the fastest planner in the same case"),
    Column(title="worst / best", kind="ratio", hint="makespan over that of the fastest planner in the same case"),
    Column(title="mean gap", kind="percent", hint="to the lower bound on plans of the planner's kind"),
    Column(title="worst gap", kind="percent", hint="to the lower bound on plans of the planner's kind"),
    Column(title="optimal", kind="count", hint="points where its plan is claimed to be optimal"),
    Column(title="planned in, median", kind="seconds", hint="over the points that it planned"),
    Column(title="infeasible", kind="count"),
    Column(title="failed", kind="count"),
)
_TOLD = 2  # problems in the heading
Names: TypeAlias = tuple[str, str, str]  # of the planner, the problem and the link of a row
_NAMES = (Column(title="planner"), Column(title="problem"))
_POINTS = (  # curves.js finds its columns by these titles, and those of the names and the links
    (Column(title="memory", kind="bytes"), "memory"),
    (Column(title="status"), "status"),
    (Column(title="makespan", kind="seconds"), "makespan"),
    (Column(title="ideal", kind="seconds", hint="computation alone"), "ideal"),
    (Column(title="lower bound", kind="seconds", hint="as claimed"), "lower_bound"),
    (Column(title="gap", kind="percent"), "gap"),
    (Column(title="optimal", kind="yes", hint="the makespan meets the claimed lower bound"), "optimal"),
    (Column(title="bound on", hint="all plans, or those that run each op once, in graph order"), "bound_on"),
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


def _links(rows: Sequence[Row], names: Sequence[Names]) -> tuple[list[Column], list[list[Any]]]:
    """The columns about the link, and their values in each row: the bandwidth alone if it is all that names say."""
    links = [link for _, _, link in names]
    if all(link == format_bandwidth(row["bandwidth"]) for link, row in zip(links, rows, strict=True)):
        return [Column(title="link", kind="bandwidth", hint="to the host")], [[row["bandwidth"]] for row in rows]
    columns = [Column(title="link"), Column(title="bandwidth", kind="bandwidth", hint="to the host")]
    return columns, [[link, row["bandwidth"]] for link, row in zip(links, rows, strict=True)]


def _points(rows: Sequence[Row], names: Sequence[Names]) -> Table:
    columns, links = _links(rows, names)
    return Table(
        name="points",
        columns=(*_NAMES, *columns, *(column for column, _ in _POINTS)),
        rows=[
            [*own[:2], *link, *(row.get(key) for _, key in _POINTS)]
            for own, link, row in zip(names, links, rows, strict=True)
        ],
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
    columns = (*_NAMES, Column(title="link"), Column(title="memory", kind="bytes"), Column(title="error"))
    return Table(name="failures", columns=columns, rows=failed)


def _tiles(names: Sequence[Names], counts: dict[str, int]) -> list[Tile]:
    planners, problems, links = (len(set(own)) for own in zip(*names, strict=True)) if names else (0, 0, 0)
    parts = (
        ("Planned", counts["planned"], text("of {}", counted(len(names), "point"))),
        ("Infeasible", counts["infeasible"], text("no plan of the planner fits the memory")),
        ("Failed", counts["failed"], text("raised another error")),
        ("Problems", problems, text("on {}", counted(links, "link"))),
        ("Planners", planners, text("with their options")),
    )
    return [Tile(title=title, number=Number("count", count), note=note) for title, count, note in parts]


def sweep_page(rows: Sequence[Row], *, title: str = "sweep") -> str:
    """The page as HTML, of rows with the keys of `memsched.read_store(path).rows`; the title is plain text."""
    rows = checked(rows)
    names = list(zip(planner_names(rows), problem_names(rows), link_names(rows), strict=True))
    points, planners, failures = _points(rows, names), _planners(standings(rows)), _failures(rows, names)
    problems = list(dict.fromkeys(name for _, name, _ in names))
    about = " and ".join(problems) if 0 < len(problems) <= _TOLD else f"{len(problems)} problems"
    counts = {status: sum(row["status"] == status for row in rows) for status in STATUSES}
    return html_page(
        "sweep.html",
        {
            "sweep": {"title": title, "points": len(rows), **counts},
            "styles": styles_of(rows),
            "tables": {table.name: table.to_json() for table in (planners, failures, points)},
        },
        title=title,
        about=about,
        count=counted(len(rows), "point"),
        all_tiles=_tiles(names, counts),
        summary=sweep_caption(rows, names),
        note=f" {footnote(rows)}".rstrip(),
        kinds=kinds_of_gaps(rows),
        points=points,
        planners=planners,
        failures=failures,
    )
