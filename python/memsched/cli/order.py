"""`memsched order`."""

from __future__ import annotations

import click

from memsched import _core
from memsched.arena.order import METHODS, Order, kept
from memsched.arena.order import order as find_order
from memsched.cli.inputs import (
    SEARCH_LIMIT,
    json_option,
    load_problem,
    problem_argument,
    quiet_option,
)
from memsched.cli.outputs import check_json, file_option
from memsched.cli.show import answer, facts, working
from memsched.problems.problem import Problem, graph_of, name_of
from memsched.support.documents import fields, write_document
from memsched.support.formats import counted, exact_bytes, format_percent, format_seconds


def _schedule(problem: Problem, found: Order, keep: tuple[str, ...]) -> _core.Schedule:
    """The plan that runs each op once in this order; its budget is the peak, but at least a byte."""
    graph = graph_of(problem)
    number = {op["name"]: k for k, op in enumerate(graph.ops)}
    ids = [number[name] for name in found.order]
    planner = {"name": "order", "method": found.method}
    peak = max(1, found.peak_memory)
    return _core.order_schedule(graph, ids, kept(graph, keep), peak, peak, planner)


def _reduction(listed: Order, found: Order) -> float:
    """The reduction of the listed peak, as a fraction."""
    return 1 - found.peak_memory / listed.peak_memory if listed.peak_memory else 0.0


def _report(problem: Problem, listed: Order, found: Order) -> list[tuple[str, str]]:
    proof = "proven optimal" if found.optimal else f"gap {format_percent(found.gap)}"
    searched = f", {counted(found.visited, 'set')} of ops visited" if found.visited else ""
    return [
        ("problem", f"{counted(len(found.order), 'op')}, {exact_bytes(graph_of(problem).resident)} resident"),
        ("listed peak", exact_bytes(listed.peak_memory)),
        ("peak", exact_bytes(found.peak_memory)),
        ("reduction", format_percent(_reduction(listed, found))),
        ("lower bound", f"{exact_bytes(found.lower_bound)}, {proof}"),
        ("solved in", f"{format_seconds(found.runtime, 2)} by {found.method}{searched}"),
    ]


@click.command()
@problem_argument
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="search",
    show_default=True,
    help="ilp: the paper's integer program. published: with its shortcuts. listed: the problem's own order.",
)
@SEARCH_LIMIT
@click.option("--keep", multiple=True, metavar="TENSOR", help="A tensor that stays until the end; repeatable.")
@file_option("-o", "--output", check=check_json, help="Save the order as a bare plan (memsched-plan/1).")
@quiet_option
@json_option
def order(
    problem: str, method: str, time_limit: float, keep: tuple[str, ...], output: str | None, as_json: bool
) -> None:
    """Find the order of PROBLEM's ops with the least peak memory.

    For a chain its graph is ordered, for a family its graph at full batch. Each op runs once; nothing is offloaded.

    \b
    memsched order graph:vgg16-224-b32
    memsched order graph:vgg16-224-b32 -o plan.json
    memsched simulate plan.json --problem graph:vgg16-224-b32 --bandwidth 0

    The budget of the saved plan is the peak. `memsched plan PROBLEM --planner olla` gives the order addresses too.
    """
    loaded = load_problem(problem)
    kept(graph_of(loaded), keep)
    with working("ordering") as say:
        found = find_order(
            loaded,
            method=method,
            time_limit=time_limit,
            keep=keep,
            progress=lambda share: say(f"ordering, {share:.0%}"),
        )
        listed = found if method == "listed" else find_order(loaded, method="listed", keep=keep)
    if output is not None:
        write_document(output, _schedule(loaded, found, keep).to_json())
    report = facts(_report(loaded, listed, found), f"order of {name_of(loaded)}")
    keys = ("method", "peak_memory", "lower_bound", "optimal", "gap", "runtime", "visited", "order")
    document = {"problem": loaded.name, "listed_peak": listed.peak_memory, "reduction": _reduction(listed, found)}
    answer(as_json, lambda: document | fields(found, *keys), report, saved=[output])
