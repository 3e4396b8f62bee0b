"""`memsched frontier`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import numpy as np
from rich.table import Table

from memsched._core import Chain, Device
from memsched.cli import inputs, outputs
from memsched.cli.inputs import Machine
from memsched.cli.plan import CHUNK, TIME_LIMIT, planners_option
from memsched.cli.show import answer, describe_link, describe_problem, facts, new_table, print_csv, shown, working
from memsched.planners.registry import least_on, min_memory, planners_of
from memsched.problems.problem import ChunkLike, Problem, name_of, peak_memory
from memsched.result import Result, above, as_fast
from memsched.show.plots.frontier import plot_frontier
from memsched.show.words import from_one_table, held_against, table_answers
from memsched.study.frontier import Frontier, spaced
from memsched.study.frontier import frontier as plan_frontier
from memsched.support.formats import enough_bytes, format_percent, format_seconds
from memsched.support.views import rows_of

CHAIN_PLANNERS = ("pofo", "rotor", "offload", "selective")
GRAPH_PLANNERS = ("selective", "pooch", "by_kind")
POINTS = 10


def _cells(one: Frontier, result: Result, best: float) -> tuple[list[str], str]:
    """Cells and style of one plan."""
    chosen = as_fast(result.makespan, best)
    return [
        format_seconds(result.makespan) + (" *" if chosen else "  "),
        format_percent(above(one.ideal, result.makespan)) if one.ideal > 0 else "",
        format_seconds(result.lower_bound),
        "optimal" if result.optimal else format_percent(result.gap) if result.lower_bound > 0 else "",
    ], "bold green" if chosen else ""


def _table(curves: dict[str, Frontier], unit: str) -> Table:
    table = new_table("planner", "memory", "makespan  ", "over ideal", "lower bound", "gap")
    best = np.min([one.makespan for one in curves.values()], axis=0)
    for at, (name, one) in enumerate(curves.items()):
        if at:
            table.add_row()
        for memory, result, least in zip(one.memory.tolist(), one.results, best, strict=True):
            cells, style = (["none found"], "dim") if result is None else _cells(one, result, float(least))
            table.add_row(*(shown(cell) for cell in (name, enough_bytes(memory, unit), *cells)), style=style)
    return table


def _numbers(values: np.ndarray[Any, Any], one: Frontier) -> list[float | int | None]:
    """A column for JSON: null where no plan was found."""
    return [None if result is None else value for value, result in zip(values.tolist(), one.results, strict=True)]


def _document(
    problem: Problem, device: Device, chunk: ChunkLike, origin: str, curves: dict[str, Frontier]
) -> dict[str, Any]:
    first = next(iter(curves.values()))
    columns = ("makespan", "lower_bound", "estimate", "peak_memory")
    return {
        "problem": name_of(problem),
        "min_memory": min_memory(problem),
        "peak_memory": peak_memory(problem),
        "device": {key: value for key, value in device.to_json().items() if key != "memory"},
        "bandwidth_from": origin,
        "ideal": first.ideal,
        "memory": first.memory.tolist(),
        "planners": {
            name: {
                "min_memory": least_on(problem, name, device, chunk),
                **{column: _numbers(getattr(one, column), one) for column in columns},
                "optimal": [None if result is None else result.optimal for result in one.results],
                "bound_on": [None if result is None else result.bound_on for result in one.results],
            }
            for name, one in curves.items()
        },
    }


def _refuse_memory(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "frontier plans for many memories, from the least to the peak of the plain run: leave --memory out and say "
            f"how many with --points, or plan for one with 'memsched plan PROBLEM --memory {value}'"
        )


@click.command()
@inputs.problem_argument
@click.option("-m", "--memory", hidden=True, expose_value=False, callback=_refuse_memory)
@planners_option(f" By default {', '.join(CHAIN_PLANNERS)} for chains, {', '.join(GRAPH_PLANNERS)} for graphs.")
@click.option(
    "--points", type=click.IntRange(2, 1000), default=POINTS, metavar="N", help=f"Memories; by default {POINTS}."
)
@CHUNK
@TIME_LIMIT
@outputs.file_option("-o", "--output", check=outputs.check_picture, help="Draw the curves: .png, .svg or .pdf.")
@inputs.quiet_option
@inputs.csv_option
@inputs.json_option
@inputs.link_options
def frontier(
    problem: str,
    planners: list[str],
    points: int,
    chunk: int | str | None,
    time_limit: float | None,
    output: str | None,
    as_csv: bool,
    as_json: bool,
    machine: Machine,
) -> None:
    """Plan PROBLEM for many memories, to see what less memory costs.

    \b
    memsched frontier resnet101-224-b32 -o frontier.png
    memsched frontier resnet101-224-b32 -p pofo --points 20 --json

    The memories are spaced evenly from the least that any of the planners needs to the peak of the plain run, plus the
    least memory of each planner. --time-limit is per plan. The ideal is the time of computation alone.
    """
    loaded = inputs.load_problem(problem)
    usual = CHAIN_PLANNERS if isinstance(loaded, Chain) else GRAPH_PLANNERS
    names = planners or [name for name in usual if name in planners_of(loaded)]
    built = machine.build(loaded, memory=max(1, peak_memory(loaded)))
    device = built.device
    least = [least_on(loaded, name, device, chunk) for name in names]
    memories = spaced(min(least), peak_memory(loaded), points, *least)
    curves: dict[str, Frontier] = {}
    with working("planning") as say:
        for name in names:
            say(f"planning: {name}")

            def progress(share: float, name: str = name) -> None:
                say(f"planning: {name}, {share:.0%}")

            curves[name] = plan_frontier(
                loaded,
                device=device,
                planner=name,
                memory=memories,
                chunk=chunk,
                time_limit=time_limit,
                progress=progress,
            )
    if output is not None:
        plot_frontier(list(curves.values()), output)
    if as_csv:
        return print_csv([row for one in curves.values() for row in rows_of(one)])
    head = [
        ("problem", describe_problem(loaded, built.unit)),
        ("link", describe_link(built)),
        ("ideal", format_seconds(next(iter(curves.values())).ideal)),
    ]
    notes = [
        "* least makespan of these planners for this memory; a plan by itself may be faster, and auto tries them all",
    ]
    if len(memories) > points:
        notes.append(f"{points} memories at equal distances, and the least memory of each planner")
    every = ((name, result) for name, one in curves.items() for result in one.results)
    notes += filter(None, [held_against("gap", every, shared=False)])
    notes += filter(None, [from_one_table(name for name, one in curves.items() if table_answers(one))])
    if 0 in (device.d2h, device.h2d):
        notes.append("no link: nothing can be offloaded; planners that do not recompute need the peak of the plain run")
    document = partial(_document, loaded, device, chunk, built.origin, curves)
    answer(as_json, document, facts(head, name_of(loaded)), "", _table(curves, built.unit), "", *notes, saved=[output])
