"""The page for one or several results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsched._core import Chain
from memsched.planners.registry import not_asked
from memsched.problems.family import GraphFamily
from memsched.problems.problem import name_of
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.show.plots.frontier import footnote
from memsched.show.report.captions import captions
from memsched.show.report.comparison import Study, comparison_table
from memsched.show.report.figures import Columns, figures, scales
from memsched.show.report.page import html_page
from memsched.show.report.summary import Summary, described_link, summarize, tiles, verdict
from memsched.show.report.tables import Column, Table
from memsched.show.report.tensors import FATES, TensorUse, tensor_uses
from memsched.show.text import Number, Text, counted, joined, text
from memsched.show.words import held_against, unasked
from memsched.study.feature_maps import CLASSES, classes_by_kind

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
    Column(title="role", hint="as the graph says; an activation that the backward alone writes is a gradient"),
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
        rows.append([kind or "without a kind", sum(chosen), *chosen, again.get(kind, 0.0)])
    return Table(name=name, columns=_KINDS, rows=rows)


def _fates(uses: list[TensorUse]) -> list[dict[str, Any]]:
    """The number of tensors and bytes with each fate."""
    total = sum(use.bytes for use in uses)
    found = []
    for fate in FATES:
        chosen = [use.bytes for use in uses if use.fate == fate]
        if chosen:
            one = {"name": fate, "css": fate.replace(" ", "-"), "meaning": _FATES[fate], "share": sum(chosen) / total}
            found.append({**one, "tensors": counted(len(chosen), "tensor"), "bytes": Number("bytes", sum(chosen))})
    return found


def _facts(result: Result, uses: list[TensorUse]) -> list[tuple[str, Text]]:
    """Facts that are not in the tiles, as names and values."""
    problem, graph = result.problem, result.graph
    sizes = [counted(len(graph.ops), "op"), counted(len(uses), "tensor")]
    if isinstance(problem, Chain):
        sizes.insert(0, counted(problem.n, "stage"))
    rows = [
        ("problem", joined(sizes)),
        ("resident", text("{} of weights and their gradients, which never move", Number("bytes", graph.resident))),
        ("link", described_link(result.device)),
        ("steps", text("{} in the plan", Number("count", len(result.schedule)))),
        ("planned in", text("{}, as the planner claims", Number("seconds", result.runtime))),
    ]
    if result.estimate is not None:
        claim = "{}, as the planner claims in the model of its paper"
        rows.append(("estimate", text(claim, Number("seconds", result.estimate))))
    if isinstance(problem, GraphFamily):
        rounds = [
            text("{} × {}", Number("count", times), counted(batch, "sample")) for batch, times in result.schedule.rounds
        ]
        rows.append(("rounds", text("{}; the pictures show the first", joined(rounds, " and "))))
    chunk = result.schedule.chunk
    if isinstance(chunk, int):
        rows.append(("pieces", text("tensors travel in pieces of at most {}", Number("bytes", chunk))))
    elif chunk is not None:
        rows.append(("pieces", text("tensors travel in the storages of the framework")))
    options = {key: value for key, value in result.params.items() if value is not None and key != "chunk"}
    if options:
        said = ", ".join(f"{key} = {_short(value)}" for key, value in options.items())
        rows.append(("the planner claims", (said,)))
    return rows


def _short(value: object, most: int = 80) -> str:
    told = str(value)
    return told if len(told) <= most else f"{told[: most - 1]}…"


def _plan(at: int, result: Result, summary: Summary, uses: list[TensorUse], study: Study | None) -> dict[str, Any]:
    """What results.html shows of one result."""
    keys = ("name", "role", "bytes", "fate", "written", "offloaded", "prefetched", "freed", "runs")
    rows = [[getattr(use, key) for key in keys] for use in uses]
    planners = None
    if study is not None:
        planners = comparison_table(f"planners-{at}", result, summary, study.outcomes)
    return {
        "at": at,
        "planner": result.planner,
        "problem": name_of(result.problem),
        "standing": summary.standing,
        "verdict": verdict(result, summary),
        "tiles": tiles(result, summary),
        "facts": _facts(result, uses),
        "round_note": _round_note(result, summary),
        "address_note": _address_note(result),
        "fates": _fates(uses),
        "summaries": captions(result, uses, study),
        "tensors": Table(name=f"tensors-{at}", columns=_TENSORS, rows=rows),
        # The ops of a chain are all of one kind.
        "kinds": None if isinstance(result.problem, Chain) else _kind_table(f"kinds-{at}", result),
        "planners": planners,
        "planners_note": (_planners_note(result, study),),
        "frontier_note": " ".join(filter(None, [footnote(study.curves), _CURVES])) if study and study.curves else "",
    }


_CURVES = (
    "A point is planned for a fraction of a second, so it may differ from the table, and from one page to the next, by "
    "a few percent."
)


def _round_note(result: Result, summary: Summary) -> str:
    if result.graph.persistent:
        return " The plan is repeated without end: one period in a steady state is shown."
    return " Of a plan in rounds, the first round is shown." if summary.rounds > 1 else ""


def _planners_note(result: Result, study: Study | None) -> str:
    outcomes = {} if study is None else study.outcomes
    others = unasked({name: why for name, why in not_asked(result.problem).items() if name != result.planner})
    timed = not isinstance(result.problem, Chain)
    clock = " Planners that search had a time limit, so the machine counts." if timed else ""
    not_run = f" Not asked: {'; '.join(others)}." if others else ""
    return (
        f"With the same memory and link. {held_against('gap', [(result.planner, result), *outcomes.items()])}."
        f"{clock}{_batch_note(result)}{not_run}"
    )


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


def _called(results: Sequence[Result]) -> list[str]:
    """The planner of each result; with a number where several of one problem have it."""
    alike = [(result.problem.name, result.planner) for result in results]
    return [
        one[1] if alike.count(one) == 1 else f"{one[1]} {1 + alike[:at].count(one)}" for at, one in enumerate(alike)
    ]


def _given(results: Sequence[Result], summaries: Sequence[Summary], called: Sequence[str]) -> Table:
    columns = (
        *(Column(title="plan"), Column(title="problem"), Column(title="planner"), Column(title="budget", kind="bytes")),
        Column(title="makespan", kind="seconds", bar=True),
        Column(title="over ideal", kind="percent", hint="over the time of the computation alone"),
        Column(
            title="optimality gap",
            kind="percent",
            hint="at most this far above the best of all plans in the same rounds and pieces",
        ),
        *(Column(title="peak", kind="bytes"), Column(title="moved", kind="bytes", hint="out and back in")),
        *(Column(title="recomputed", kind="seconds"), Column(title="planned in", kind="seconds")),
    )
    rows: list[list[Any]] = [
        [
            *(name, result.problem.name or "", result.planner, budget_of(result), result.makespan),
            *(summary.over_ideal, summary.any_gap, result.peak_memory),
            *(result.timeline.bytes_out + result.timeline.bytes_in, result.timeline.recompute_time, result.runtime),
        ]
        for result, summary, name in zip(results, summaries, called, strict=True)
    ]
    return Table(name="results", columns=columns, rows=rows)


def _data(result: Result, summary: Summary, drawn: Columns, study: Study | None) -> dict[str, Any]:
    """The figures of one result, exact."""
    curves = None if study is None else study.frontier_json(result)
    return {**summary.to_json(), "figures": drawn, "frontier": curves}


def results_page(results: Sequence[Result], studies: Sequence[Study | None], names: Sequence[str] | None = None) -> str:
    """The page as HTML; `studies` are the results of other planners on each result's problem, one per result."""
    called = names or _called(results)
    summaries = [summarize(result) for result in results]
    uses = [tensor_uses(result) for result in results]
    drawn = scales(results, [figures(result, found) for result, found in zip(results, uses, strict=True)])
    plans = [_plan(at, *parts) for at, parts in enumerate(zip(results, summaries, uses, studies, strict=True))]
    for plan, one, name in zip(plans, drawn, called, strict=True):
        plan |= {"called": name, "about": f"{plan['planner']} on " if names else "on "}
        shared = one["shared"] > 1
        plan["scale_note"] = " All plans for this problem are drawn to the same scale." if shared else ""
    side_by_side = _given(results, summaries, called) if len(results) > 1 else None
    tables = [plan[key] for plan in plans for key in ("tensors", "kinds", "planners") if plan[key]]
    data = {
        "results": [_data(*parts) for parts in zip(results, summaries, drawn, studies, strict=True)],
        "tables": {table.name: table.to_json() for table in [*tables, *([side_by_side] if side_by_side else [])]},
    }
    problems = dict.fromkeys(result.problem.name or "a plan" for result in results)
    return html_page(
        "results.html",
        data,
        title=f"{', '.join(problems)}: {', '.join(dict.fromkeys(result.planner for result in results))}",
        heading=counted(len(results), "plan"),
        plans=plans,
        side_by_side=side_by_side,
    )
