"""`memsched compare`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from memsched.cli import inputs, outputs, show
from memsched.cli.inputs import Machine
from memsched.cli.plan import CHUNK, OPTIONS_OF_SEVERAL, TIME_LIMIT_OF_SEVERAL, planners_option
from memsched.cli.usage import as_typed
from memsched.errors import InfeasibleError, MemschedError
from memsched.planners.registry import min_memory, not_asked, planners_of
from memsched.problems.bounds import Bounds, bounds
from memsched.problems.budget import memory_percent
from memsched.problems.problem import Problem, name_of, peak_memory
from memsched.result import Result
from memsched.show.summaries import table_of
from memsched.show.words import held_against, unasked
from memsched.study.compare import compare as run_planners
from memsched.study.compare import nearest
from memsched.support.documents import fields, plain, write_document
from memsched.support.formats import Bytes, exact_bytes, format_bound
from memsched.support.units import PERCENT_ENDS
from memsched.support.views import rows_of

BOUNDS = ("compute", "transfer", "fractional", "recompute", "best")

Outcomes = dict[str, Result | MemschedError]


def _header(problem: Problem, built: show.Built, known: Bounds) -> Table:
    memory, unit = built.device.memory, built.unit
    percent = memory_percent(memory, problem)
    where = "" if percent is None else f", {percent:.4g}% ({PERCENT_ENDS})"
    if memory < min_memory(problem):
        where = ", below min_memory"
    said = (("compute", known.compute), ("transfer", known.transfer), ("fractional", known.fractional))
    each = ", ".join(f"{name} {format_bound(seconds)}" for name, seconds in said)
    again = format_bound(known.recompute)
    rows = [
        ("problem", show.describe_problem(problem, unit)),
        ("memory", f"{exact_bytes(memory, unit)}{where}"),
        ("link", show.describe_link(built)),
        ("bounds", f"{each}; {again} with recomputation"),
    ]
    return show.facts(rows, name_of(problem))


def _notes(outcomes: Outcomes, others: dict[str, str]) -> list[str]:
    notes = [
        as_typed(f"{name} failed: {outcome}", click.get_current_context().command)
        for name, outcome in outcomes.items()
        if isinstance(outcome, MemschedError) and not isinstance(outcome, InfeasibleError)
    ]
    if any(isinstance(outcome, Result) for outcome in outcomes.values()):
        notes.append("* the fastest; moved: out and in together; optimal: proven, it meets the lower bound")
        notes += filter(None, [held_against("gap", outcomes.items())])
    return [*notes, *(f"not asked: {told}" for told in unasked(others))]


def _outcome_json(outcome: Result | MemschedError) -> dict[str, Any]:
    if isinstance(outcome, InfeasibleError):
        return {"status": "infeasible", "min_memory": outcome.min_memory, "message": str(outcome)}
    if isinstance(outcome, MemschedError):
        return {"status": "failed", "message": str(outcome)}
    return {
        "status": "planned",
        **fields(
            outcome, "makespan", "lower_bound", "gap", "peak_memory", "bound_on", "estimate", "runtime", "optimal"
        ),
        **fields(outcome.timeline, "bytes_out", "bytes_in", "idle", "recompute_time"),
    }


def _comparison(
    problem: Problem, built: show.Built, known: Bounds, outcomes: Outcomes, others: dict[str, str]
) -> dict[str, Any]:
    device = built.device
    results = {name: found for name, found in outcomes.items() if isinstance(found, Result)}
    return {
        "problem": problem.name,
        "memory": device.memory,
        "memory_percent": memory_percent(device.memory, problem),
        "min_memory": min_memory(problem),
        "peak_memory": peak_memory(problem),
        "device": device.to_json(),
        "bandwidth_from": built.origin,
        "bounds": fields(known, *BOUNDS),
        "best": min(results, key=lambda name: results[name].makespan, default=None),
        "planners": {name: _outcome_json(outcome) for name, outcome in outcomes.items()},
        "not_asked": others,
    }


@click.command()
@inputs.problem_argument
@planners_option()
@CHUNK
@TIME_LIMIT_OF_SEVERAL
@OPTIONS_OF_SEVERAL
@outputs.file_option("-o", "--output", check=outputs.check_json_or_csv, help="Save the figures: .json, or .csv.")
@inputs.quiet_option
@inputs.csv_option
@inputs.json_option
@inputs.machine_options
@click.pass_context
def compare(
    context: click.Context,
    problem: str,
    planners: list[str],
    chunk: int | str | None,
    time_limit: float | None,
    options: dict[str, dict[str, Any]],
    output: str | None,
    as_csv: bool,
    as_json: bool,
    machine: Machine,
) -> None:
    """Run every planner for PROBLEM and compare the figures.

    \b
    memsched compare resnet101-224-b32 --memory 40%
    memsched compare resnet101-224-b32 --memory 40% --chunk 16MiB
    memsched compare analytic:vgg16:256:k40m --memory 12GiB --bandwidth 10GB/s

    "gap" is how far the makespan is above the lower bound for the planner's kind of plans: with recomputation for
    those that recompute, without for the others; plans in rounds are compared with plans in the same rounds. For a
    planner without a plan, a memory in which it has one is shown, and for one that was not asked, why. The exit status
    is 0 when at least one planner has a plan, and 3 when none has.
    """
    loaded = inputs.load_problem(problem)
    inputs.check_takes(planners, loaded)
    names = planners or planners_of(loaded)
    others = {} if planners else not_asked(loaded)
    built = machine.build(loaded)
    device, asked = built.device, Bytes(built.device.memory, built.unit)
    given: dict[str, Any] = {"planners": names, "chunk": chunk, "time_limit": time_limit, "options": options}
    with show.working("planning") as say:
        outcomes = run_planners(loaded, asked, device=device, progress=say, **given)
        known = bounds(loaded, device=device, time_limit=0.0)
    document = _comparison(loaded, built, known, outcomes, others)
    if output is not None and output.lower().endswith(".csv"):
        outcomes.to_csv(output)
    elif output is not None:
        write_document(output, plain(document))
    if as_json:
        show.print_json(document)
    elif as_csv:
        show.print_csv(rows_of(outcomes))
    else:
        head = _header(loaded, built, known)
        show.print_rich(
            head, "", show.table_like(table_of(outcomes)), "", *_notes(outcomes, others), *show.where_saved(output)
        )
    if not any(isinstance(found, Result) for found in outcomes.values()):
        show.complain(as_typed(f"no planner has a plan: {nearest(outcomes)}", context.command))
        context.exit(3)
