"""`memsched plan`, and planning for the commands that draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from memsched.cli.inputs import Machine, check_writable, json_option, load_problem, machine_options
from memsched.cli.show import answer, report, working
from memsched.planners.registry import PLANNERS, check_planner
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.study.compare import plan as best_plan
from memsched.support.documents import write_document
from memsched.support.units import parse_chunk, parse_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """The options of a planner, as typed."""

    planner: str | None
    chunk: str | None
    time_limit: str | None

    @property
    def given(self) -> bool:
        """Whether any was given."""
        return any(value is not None for value in (self.planner, self.chunk, self.time_limit))

    def check(self) -> None:
        """Refuse a bad option before any work."""
        check_planner(self.planner or "auto")
        chunk_and_limit(self.chunk, self.time_limit)

    def run(self, problem: Problem, machine: Machine) -> tuple[Result, str]:
        """Plan; returns the result and where the link's bandwidth comes from."""
        device, origin = machine.build(problem)
        chunk, limit = chunk_and_limit(self.chunk, self.time_limit)
        name = self.planner or "auto"
        with working(f"planning: {name}"):
            result = best_plan(problem, device=device, planner=name, chunk=chunk, time_limit=limit)
        return result, origin


def chunk_and_limit(chunk: str | None, time_limit: str | None) -> tuple[int | str | None, float | None]:
    """The options --chunk and --time-limit as values."""
    return (
        None if chunk is None else parse_chunk(chunk),
        None if time_limit is None else parse_seconds(time_limit, "the time limit"),
    )


CHUNK = click.option(
    "--chunk", metavar="SIZE|storage", help="Cut tensors into pieces, such as 16MiB, or into their storages."
)
TIME_LIMIT = click.option(
    "--time-limit",
    metavar="SECONDS",
    help="For planners that search. By default 1 for offload, 0 for pofo and pooch (1 in auto), none for dynprog.",
)


def planner_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Planning`, which the command takes as `options`."""

    @wraps(command)
    def gathered(**arguments: Any) -> Any:
        taken = {name: arguments.pop(name) for name in Planning.__dataclass_fields__}
        return command(options=Planning(**taken), **arguments)

    names = ", ".join(("auto", *PLANNERS))
    option = click.option("-p", "--planner", metavar="NAME", help=f"{names}. By default auto: the best of all.")
    return option(CHUNK(TIME_LIMIT(gathered)))


@click.command()
@click.argument("problem")
@click.option("-o", "--output", metavar="FILE", help="Save the result: plan, problem, device, timeline.")
@click.option("--plan-only", metavar="FILE", help="Save the bare plan (memsched-plan/1).")
@json_option
@machine_options
@planner_options
def plan(
    problem: str,
    output: str | None,
    plan_only: str | None,
    as_json: bool,
    machine: Machine,
    options: Planning,
) -> None:
    """Plan PROBLEM and report the cost of the plan.

    By default the best plan of all planners is taken, whether it offloads, recomputes or both.

    \b
    memsched plan resnet101-224-b32 --planner offload --memory 40% -o result.json

    With --json the result is printed in the form that -o saves.
    """
    check_writable(output)
    check_writable(plan_only)
    options.check()
    result, origin = options.run(load_problem(problem), machine)
    if output is not None:
        write_document(output, result.to_json())
    if plan_only is not None:
        write_document(plan_only, result.schedule.to_json())
    answer(as_json, result.to_json, report(result, origin), saved=[output, plan_only])
