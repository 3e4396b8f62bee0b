"""The page for one or several results."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import memsched
from memsched._core import Chain
from memsched.problems.bounds import covered
from memsched.problems.family import GraphFamily
from memsched.problems.problem import name_of
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.show.report.comparison import Study, comparison_table
from memsched.show.report.figures import figures
from memsched.show.report.page import card, figure, frame, html_page
from memsched.show.report.summary import Summary, described_link, summarize, tiles, verdict
from memsched.show.report.tables import Column, Table, number
from memsched.show.report.tensors import FATES, TensorUse, tensor_uses
from memsched.study.feature_maps import CLASSES, classes_by_kind, feature_map_classes
from memsched.support.units import format_bytes

_FATES = {
    "kept": "on the device from its first write to its last use",
    "fetched": "offloaded, and fetched back before it is needed",
    "recomputed": "dropped, and recomputed when it is needed",
    "offloaded": "went to the host and never came back",
    "freed early": "gone before the backward begins, and not needed again",
    "never written": "part of a tape that no run writes",
}
_TENSORS = (
    Column(title="tensor"),
    Column(title="role"),
    Column(title="bytes", kind="bytes"),
    Column(title="what happens", hint="kept, fetched, recomputed, offloaded, freed early or never written"),
    Column(title="written", kind="seconds", hint="end of the first run that writes the tensor"),
    Column(title="offloaded", kind="seconds", hint="end of its first offload"),
    Column(title="prefetched", kind="seconds", hint="end of its first prefetch"),
    Column(title="freed", kind="seconds", hint="when its bytes were last released"),
    Column(title="runs", kind="count", hint="how often the op that writes it runs"),
)


_KINDS = (
    Column(title="kind of op"),
    Column(title="feature maps", kind="bytes", bar=True, hint="what its ops write in the forward for the backward"),
    Column(title="keep", kind="bytes"),
    Column(title="swap", kind="bytes", hint="fetched from the host"),
    Column(title="recompute", kind="bytes", hint="their op runs again instead"),
    Column(title="run again", kind="seconds", bar=True, hint="time of all runs of such ops beyond the first of each"),
)


def _kind_table(name: str, result: Result) -> Table:
    """One row for each kind of op that writes feature maps or runs again."""
    kinds = {op["name"]: op["kind"] for op in result.graph.ops}
    ran: set[str] = set()
    again: dict[str, float] = {}
    starts, ends = result.timeline.start.tolist(), result.timeline.end.tolist()
    for step, start, end in zip(result.schedule.steps, starts, ends, strict=True):
        op = step.get("run")
        if op in ran:
            again[kinds[op]] = again.get(kinds[op], 0.0) + end - start
        elif op is not None:
            ran.add(op)
    classes = classes_by_kind(result)
    nothing = dict.fromkeys(CLASSES, 0)
    rows: list[list[Any]] = []
    for kind in dict.fromkeys([*classes, *again]):
        chosen = list(classes.get(kind, nothing).values())
        rows.append([kind, sum(chosen), *chosen, again.get(kind, 0.0)])
    return Table(name=name, columns=_KINDS, rows=rows)


def _fates(uses: list[TensorUse]) -> str:
    """The number of tensors and bytes with each fate, as a bar with a legend."""
    total = sum(use.bytes for use in uses)
    parts, words = [], []
    for fate in FATES:
        chosen = [use.bytes for use in uses if use.fate == fate and use.bytes > 0]
        if not chosen:
            continue
        css = fate.replace(" ", "-")
        share = 100 * sum(chosen) / total
        parts.append(
            f'<span class="fate {css}" style="width:{share:.3f}%" title="{fate}: {format_bytes(sum(chosen))}"></span>'
        )
        words.append(
            f'<li class="{css}"><b>{fate}</b> {number("count", len(chosen))} '
            f"{'tensor' if len(chosen) == 1 else 'tensors'}, {number('bytes', sum(chosen))}"
            f"<small>{_FATES[fate]}</small></li>"
        )
    if not words:
        return '<p class="note">No tensor of this problem has any bytes.</p>'
    return f'<div class="fates" aria-hidden="true">{"".join(parts)}</div><ul class="fate-words">{"".join(words)}</ul>'


def _details(result: Result) -> str:
    """Facts that are not in the tiles, as names and values; HTML."""
    problem, graph = result.problem, result.graph
    size = f"{number('count', problem.n)} stages, " if isinstance(problem, Chain) else ""
    rows = [
        ("problem", f"{size}{number('count', len(graph.ops))} ops, {number('count', len(graph.tensors))} tensors"),
        ("resident", f"{number('bytes', graph.resident)} of weights and their gradients, which never move"),
        ("link", described_link(result.device)),
        ("steps", f"{number('count', len(result.schedule))} in the plan"),
        ("planned in", f"{number('seconds', result.runtime)}, as the planner claims"),
    ]
    if result.estimate is not None:
        rows.append(
            ("estimate", f"{number('seconds', result.estimate)}, as the planner claims in the model of its paper")
        )
    if isinstance(problem, GraphFamily):
        rounds = " and ".join(
            f"{number('count', times)} × {number('count', batch)} samples" for batch, times in result.schedule.rounds
        )
        rows.append(("rounds", f"{rounds}; the pictures show the first"))
    chunk = result.schedule.chunk
    if isinstance(chunk, int):
        rows.append(("pieces", f"tensors travel in pieces of at most {number('bytes', chunk)}"))
    elif chunk is not None:
        rows.append(("pieces", "tensors travel in the storages of the framework"))
    options = {key: value for key, value in result.params.items() if value is not None and key != "chunk"}
    if options:
        said = ", ".join(f"{key} = {_short(value)}" for key, value in options.items())
        rows.append(("the planner claims", escape(said)))
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{value}</dd>' for name, value in rows)}</dl>"


def _short(value: object, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _section(
    at: int, result: Result, summary: Summary, uses: list[TensorUse], study: Study | None, level: str
) -> tuple[str, list[Table]]:
    """One result as HTML, below a heading of this level, and its tables."""
    keys = ("name", "role", "bytes", "fate", "written", "offloaded", "prefetched", "freed", "runs")
    rows = [[getattr(use, key) for key in keys] for use in uses]
    tensors = Table(name=f"tensors-{at}", columns=_TENSORS, rows=rows)
    kinds = _kind_table(f"kinds-{at}", result)
    tables = [tensors, kinds]
    shown_round = " Of a plan in rounds, the first round is shown." if summary.rounds > 1 else ""
    title = f"{escape(result.planner)} <span>on {escape(name_of(result.problem))}</span>"
    parts = [
        f'<div class="head"><{level}>{title}</{level}>'
        f'<p class="verdict {summary.standing}">{verdict(result, summary)}</p></div>',
        f'<div class="tiles">{tiles(result, summary)}</div>',
        f'<details class="card facts"><summary>More about this plan</summary>{_details(result)}</details>',
        card(
            "What happens when",
            figure("timeline", at),
            "The three streams, and the memory below. "
            f'<span class="mouse">Drag to zoom, double-click to see all.</span>{shown_round}',
        ),
        card(
            "What happens to each tensor",
            f"{_fates(uses)}{figure('lifetimes', at)}{tensors.to_html()}",
            "One row per tensor: when it is on the device, and when only on the host.",
        ),
        card(
            "What each kind of op gives up",
            kinds.to_html(),
            "The bytes that the forward writes for the backward, by the kind of the op that writes them, and what it "
            f"costs to run such ops again.{shown_round}",
        ),
    ]
    if result.placement is not None or result.schedule.memory == "contiguous":
        parts.append(card("Where everything lies", figure("addresses", at), _address_note(result)))
    if study is not None:
        cut = result.problem, result.schedule.chunk
        table = comparison_table(f"planners-{at}", result, summary, study.outcomes)
        tables.append(table)
        parts.append(
            card(
                "All planners on this problem",
                table.to_html(),
                "With the same memory and link. “/ bound” is the makespan over the lower bound for the planner's kind "
                f"of plans: those that recompute are compared with {covered(*cut, 'all')}, others with "
                f"{covered(*cut, 'once')}.{_batch_note(result)}",
            )
        )
        if study.curves:
            parts.append(
                card(
                    "What less memory costs",
                    figure("frontier", at),
                    "Makespan of each planner against memory; the star is this plan.",
                )
            )
    return f'<section class="result" id="result-{at}">{"".join(parts)}</section>', tables


def _address_note(result: Result) -> str:
    if result.schedule.memory == "contiguous":
        return "The arena over time: each rectangle is a tensor or a workspace, as high as its size."
    return "The arena over the ops in the order of the plan, whose schedule itself has no addresses."


def _batch_note(result: Result) -> str:
    """For a family with stored graphs only: what that means for other planners."""
    batches = result.problem.batches if isinstance(result.problem, GraphFamily) else None
    if batches is None:
        return ""
    known = ", ".join(map(str, batches))
    return f" The saved result has graphs for batch {known} only, so other planners could not choose other rounds."


def _given(results: Sequence[Result], summaries: Sequence[Summary]) -> Table:
    columns = (
        *(Column(title="problem"), Column(title="planner"), Column(title="budget", kind="bytes")),
        Column(title="makespan", kind="seconds", bar=True),
        Column(title="over ideal", kind="percent", hint="over the time of the computation alone"),
        Column(
            title="of any plan",
            kind="percent",
            hint="at most this far above the best plan in the same rounds and pieces",
        ),
        *(Column(title="peak", kind="bytes"), Column(title="moved", kind="bytes", hint="out and back in")),
        *(Column(title="recomputed", kind="seconds"), Column(title="planned in", kind="seconds")),
    )
    rows: list[list[Any]] = [
        [
            *(result.problem.name or "", result.planner, budget_of(result), result.makespan),
            *(summary.over_ideal, summary.any_gap, result.peak_memory),
            *(result.timeline.bytes_out + result.timeline.bytes_in, result.timeline.recompute_time, result.runtime),
        ]
        for result, summary in zip(results, summaries, strict=True)
    ]
    return Table(name="results", columns=columns, rows=rows)


def _tabs(results: Sequence[Result]) -> str:
    buttons = "".join(
        f'<button type="button" role="tab" data-tab="result-{at}">{escape(result.planner)}'
        f"<small>{escape(name_of(result.problem))}</small></button>"
        for at, result in enumerate(results)
    )
    return f'<nav class="tabs" role="tablist">{buttons}</nav>'


def results_page(results: Sequence[Result], studies: Sequence[Study | None]) -> str:
    """The page as HTML; `studies` are the results of other planners on each result's problem, one per result."""
    summaries = [summarize(result) for result in results]
    uses = [tensor_uses(result) for result in results]
    sections, tables = [], []
    for at, parts in enumerate(zip(results, summaries, uses, studies, strict=True)):
        section, found = _section(at, *parts, "h1" if len(results) == 1 else "h2")
        sections.append(section)
        tables += found
    head = ""
    if len(results) > 1:
        given = _given(results, summaries)
        tables.append(given)
        head = f"<h1>{number('count', len(results))} plans</h1>{card('Side by side', given.to_html())}{_tabs(results)}"
    data = {
        "format": "memsched-report/1",
        "memsched": memsched.__version__,
        "results": [
            {
                **summary.to_json(),
                "classes": feature_map_classes(result),
                "figures": figures(result, found),
                "frontier": None if study is None else study.frontier_json(result),
            }
            for result, summary, found, study in zip(results, summaries, uses, studies, strict=True)
        ],
        "tables": {table.name: table.to_json() for table in tables},
    }
    names = dict.fromkeys(result.problem.name or "a plan" for result in results)
    title = f"{', '.join(names)}: {', '.join(dict.fromkeys(result.planner for result in results))}"
    return html_page(title, frame(head + "".join(sections), memsched.__version__), data)
