"""`memsched simulate` and `memsched validate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from memsched.cli import inputs
from memsched.cli.complete import complete_files, complete_problems
from memsched.cli.inputs import Machine
from memsched.cli.show import answer, describe_link, facts, moved, peak_of_budget, report
from memsched.problems.bounds import covered
from memsched.support.documents import fields
from memsched.support.formats import counted, exact_bytes, format_percent, format_seconds
from memsched.validation.plan import ValidationReport
from memsched.validation.plan import validate as check_plan

PROBLEM = click.option(
    "--problem",
    metavar="PROBLEM",
    shell_complete=complete_problems,
    help="The problem of a bare plan; a result has its own.",
)


def _file_command(command: Callable[..., Any]) -> click.Command:
    decorated = PROBLEM(inputs.quiet_option(inputs.json_option(inputs.machine_options(command))))
    return click.command()(click.argument("file", shell_complete=complete_files)(decorated))


@_file_command
def simulate(file: str, problem: str | None, as_json: bool, machine: Machine) -> None:
    """Simulate a saved plan, possibly on another device.

    FILE is a result, or a bare plan with --problem.

    \b
    memsched simulate result.json
    memsched simulate result.json --bandwidth 6GB/s
    memsched simulate plan.json --problem resnet101-224-b32

    The device is the result's, or the plan's budget and the profile's link; options override it.
    """
    document = inputs.read_saved(file, *inputs.RESULTS, inputs.PLAN)
    result, built = inputs.open_result(document, problem, machine)
    document = fields(result, "planner", "lower_bound", "bound_on", "gap")
    document |= {"problem": result.problem.name, "device": result.device.to_json(), "bandwidth_from": built.origin}
    answer(as_json, lambda: document | result.timeline.to_json(), report(result, built))


@_file_command
def validate(file: str, problem: str | None, as_json: bool, machine: Machine) -> None:
    """Check a saved plan independently of the simulator.

    FILE is a result, or a bare plan with --problem.

    \b
    memsched validate result.json
    memsched validate plan.json --problem resnet101-224-b32 --memory 8GiB

    The times, peak, addresses and bound stated in a result are checked too, unless options change its device. The exit
    status is 4 when the check fails.
    """
    document = inputs.read_saved(file, *inputs.RESULTS, inputs.PLAN)
    saved = None
    if document["format"] in inputs.RESULTS:
        saved, built = inputs.open_saved(document, problem, machine)
        loaded, schedule = saved.problem, saved.schedule
        if machine.given:
            with inputs.told_of_memory(loaded, schedule, built):
                known = check_plan(loaded, schedule, built.device)
        else:
            known = check_plan(saved)
    else:
        loaded, schedule, built = inputs.open_plan(document, problem, machine)
        with inputs.told_of_memory(loaded, schedule, built):
            known = check_plan(loaded, schedule, built.device)
    names = (
        *("makespan", "peak_memory", "logical_peak", "budget", "compute_time", "recompute_time"),
        *("bytes_out", "bytes_in", "lower_bound", "bound_on", "claimed_lower_bound", "proven", "optimal", "recomputed"),
    )
    document = {"valid": True, "steps": len(schedule.steps), **fields(known, *names)}
    rows = [
        ("link", describe_link(built)),
        ("makespan", format_seconds(known.makespan)),
        ("peak memory", peak_of_budget(known.peak_memory, known.budget, loaded, built.unit)),
        ("moved", moved(known.bytes_out, known.bytes_in, built.unit)),
        ("lower bound", _bound(known, covered(loaded, schedule.chunk, known.bound_on))),
    ]
    if saved is not None:
        claims = f"{saved.planner} planned it in {format_seconds(saved.runtime, 2)}"
        if saved.estimate is not None and not machine.given:
            claims += f", in the model of its paper {format_seconds(saved.estimate)}"
        placement = saved.placement
        if placement is not None and placement.claimed:
            claims += f"; no addresses reach lower than {exact_bytes(placement.lower_bound, built.unit)}"
            document["claimed_lowest_height"] = placement.lower_bound
        rows.append(("claimed", f"{claims}: not checked"))
    answer(as_json, lambda: document, facts(rows, f"valid: {counted(len(schedule.steps), 'step')}"))


def _bound(known: ValidationReport, plans: str) -> str:
    """The derived bound, the plans that it covers, and what the result claims beyond it."""
    standing = "proven optimal" if known.optimal else "proven"
    if not known.optimal and known.lower_bound > 0:
        standing += f", gap {format_percent(known.makespan / known.lower_bound - 1)}"
    text = f"{format_seconds(known.lower_bound)} of {plans}: {standing}"
    if known.proven or known.claimed_lower_bound is None:
        return text
    return f"{text}; claimed, and not derived here: {format_seconds(known.claimed_lower_bound)}"
