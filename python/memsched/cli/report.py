"""`memsched report`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from memsched.cli import inputs, outputs
from memsched.cli.check import PROBLEM
from memsched.cli.complete import complete_files
from memsched.cli.inputs import Machine
from memsched.cli.show import answer, live, quiet, say, working
from memsched.errors import InvalidInputError, MemschedError, ScheduleError
from memsched.problems.problem import name_of
from memsched.result import Result
from memsched.show.report import check_page, write_report, write_sweep_report
from memsched.support.formats import counted, format_seconds
from memsched.support.kinds import SQLITE


def _check_page(path: str) -> str:
    check_page(path)
    return outputs.check_writable(path)


def _read_result(path: str, problem: str | None, machine: Machine) -> Result:
    """A saved result, or a bare plan for a problem, simulated again."""
    if path != "-" and not os.path.isfile(path):
        raise InvalidInputError(f"'{path}' is not a file; give a result of `memsched plan -o`, or a sweep's store")
    document = inputs.read_saved(path, *inputs.RESULTS, *([] if problem is None else [inputs.PLAN]))
    try:
        return inputs.open_result(document, problem, machine)[0]
    except ScheduleError as error:
        raise ScheduleError(f"'{path}': {error}", error.step) from error
    except MemschedError as error:
        raise InvalidInputError(f"'{path}': {error}") from error


@click.command()
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_files)
@outputs.file_option("-o", "--output", check=_check_page, required=True, help="The page to write: .html or .htm.")
@click.option(
    "--compare/--no-compare",
    default=None,
    help="Whether to run all planners on the problem of each result. By default only for a single result.",
)
@click.option(
    "--point",
    "points",
    multiple=True,
    metavar="KEY",
    help="For a store: plan this point again and report on its plan. Repeatable.",
)
@PROBLEM
@inputs.time_limit_option("For each planner that searches, if planners are run.")
@inputs.quiet_option
@inputs.json_option
@inputs.machine_options
def report(
    sources: tuple[str, ...],
    output: str,
    compare: bool | None,
    points: tuple[str, ...],
    problem: str | None,
    time_limit: float | None,
    as_json: bool,
    machine: Machine,
) -> None:
    """Write an HTML page about results or a sweep.

    FILE is one or several results saved by `memsched plan -o`, bare plans with --problem, or one store of `memsched
    sweep`.

    \b
    memsched report result.json -o report.html
    memsched report pofo.json rotor.json -o both.html --compare
    memsched report sweep.sqlite -o sweep.html
    memsched report sweep.sqlite --point 5099a980 -o point.html

    The page is one file that loads nothing from the network: the streams and the memory, what happens to each tensor,
    the addresses, all planners side by side, and what less memory costs. Needs memsched[report].
    """
    stores = [inputs.check_input(path) for path in sources if inputs.first_bytes(path).startswith(SQLITE)]
    if stores:
        if len(sources) > 1:
            raise click.UsageError(f"'{stores[0]}' is a sweep's store; give it alone, or results only")
        if problem is not None or machine.given:
            raise click.UsageError("a store has its own problems and devices; leave --problem and those options out")
        if not points and (compare is not None or time_limit is not None):
            raise click.UsageError("a sweep is not planned again; leave --compare and --time-limit out")
        if not points:
            return _sweep(stores[0], output, as_json)
    elif points:
        raise click.UsageError("--point needs the store of a sweep; leave it out")
    with working("planning") as say_how_far:
        unsaid = not (as_json or quiet() or live())

        def planning(text: str) -> None:
            nonlocal unsaid
            if unsaid:
                say("planning by every planner, for the comparison; --no-compare is quicker")
            unsaid = False
            say_how_far(text)

        names = list(points) or [Path(path).stem for path in sources]
        results = [_point(stores[0], key) for key in points] or [
            _read_result(path, problem, machine) for path in sources
        ]
        write_report(results, output, names=names, compare=compare, time_limit=time_limit, progress=planning)
    found = [{"problem": one.problem.name, "planner": one.planner, "makespan": one.makespan} for one in results]
    lines = [f"{one.planner} on {name_of(one.problem)}, makespan {format_seconds(one.makespan)}" for one in results]
    answer(as_json, lambda: {"output": output, "results": found}, *lines, saved=[output])


def _point(path: str, key: str) -> Result:
    """The plan of the point whose key begins with `key`."""
    from memsched.study.sweep import plan_again, read_store

    keys = [row["key"] for row in read_store(path) if row["key"].startswith(key)]
    if len(keys) != 1:
        raise InvalidInputError(
            f"--point is {key!r}; {len(keys) or 'no'} keys of '{path}' begin with it, and it must be one; "
            "the table of the sweep's page has them"
        )
    return plan_again(path, keys[0])


def _sweep(path: str, output: str, as_json: bool) -> None:
    from memsched.study.sweep import read_store

    rows = read_store(path).rows
    write_sweep_report(rows, output, title=Path(path).stem)
    planned = sum(row["status"] == "planned" for row in rows)
    document = {"output": output, "points": len(rows), "planned": planned}
    answer(as_json, lambda: document, f"{counted(len(rows), 'point')}, {planned} of them planned: saved in {output}")
