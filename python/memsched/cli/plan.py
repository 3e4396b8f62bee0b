"""`memsched plan`, and planning for the commands that draw."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from memsched.cli import inputs, outputs
from memsched.cli.inputs import Machine
from memsched.cli.show import Built, answer, report, working
from memsched.planners.registry import PLANNERS
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.study.auto import plan as best_plan
from memsched.support import checks
from memsched.support.documents import write_document
from memsched.support.formats import Bytes
from memsched.support.units import parse_chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """The options of a planner."""

    planner: str | None
    chunk: int | str | None
    time_limit: float | None
    options: dict[str, Any]  # of the planner
    given: bool  # whether any was given

    def run(self, problem: Problem, machine: Machine) -> tuple[Result, Built]:
        """Plan; returns the result and the device."""
        built = machine.build(problem)
        name = self.planner or "auto"
        inputs.check_takes([name] if name in PLANNERS else [], problem)
        options: dict[str, Any] = {"planner": name, "chunk": self.chunk, "time_limit": self.time_limit}
        options["options"] = self.options
        with working(f"planning: {name}") as say:
            asked = Bytes(built.device.memory, built.unit)
            options["progress"] = say
            return best_plan(problem, asked, device=built.device, **options), built


CHUNK = click.option(
    "--chunk",
    metavar="SIZE|storage",
    callback=inputs.parsed(lambda text: parse_chunk(text, "--chunk")),
    shell_complete=lambda context, option, typed: [word for word in ("storage", "none") if word.startswith(typed)],
    help="Cut tensors into pieces, such as 16MiB, or into their storages. For planners that take it.",
)
_SEARCH = "For planners that search: 10, 500ms. By default {} for offload, 0 for pofo and pooch (1 in auto), none for "
_SEARCH += "dynprog, and a number of moves for selective."
TIME_LIMIT = inputs.time_limit_option(_SEARCH.format("1"))
TIME_LIMIT_OF_SEVERAL = inputs.time_limit_option(_SEARCH.format("a number of moves"))


def _value(text: str) -> Any:
    """A number, true, false, none or a list in JSON, or else the text."""
    try:
        value = json.loads("null" if text.lower() == "none" else text)
    except ValueError:
        return text
    return text if isinstance(value, str | dict) else value


def _read_options(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """Options of planners; of one that a dot ends, by planner."""
    found: dict[str, Any] = {}
    form = str(option.metavar)
    for one in given:
        name, equals, value = one.partition("=")
        planner, dot, own = name.strip().rpartition(".")
        if not (equals and own) or bool(dot) is not (form == _OF_SEVERAL):
            raise click.UsageError(f"--option is {one!r}; write {form}, as in {_LIKE[form]}")
        (found.setdefault(planner, {}) if dot else found)[own] = _value(value.strip())
    return found


_OF_ONE, _OF_SEVERAL = "NAME=VALUE", "PLANNER.NAME=VALUE"
_LIKE = {_OF_ONE: "-O slots=2000", _OF_SEVERAL: "-O pofo.slots=2000"}


def _option(metavar: str) -> Callable[..., Any]:
    words = f"An option of a planner, as its Python function takes it: {_LIKE[metavar]}. Repeatable."
    return click.option("-O", "--option", "options", multiple=True, metavar=metavar, callback=_read_options, help=words)


OPTIONS, OPTIONS_OF_SEVERAL = _option(_OF_ONE), _option(_OF_SEVERAL)
_ONE = "a plan is by one planner, and 'memsched compare' takes several"


def _complete_planners(context: click.Context, option: click.Parameter, typed: str) -> list[str]:
    """The planners that complete a name, or the last name of a list with commas."""
    one = option.name == "planner"
    names, before = ["auto", *PLANNERS], "" if one else typed[: typed.rfind(",") + 1]
    return [before + name for name in names if (before + name).startswith(typed)]


def planners_option(default: str = "") -> Callable[..., Any]:
    """The option --planner, repeatable, which commands take as a list of names without repeats."""

    def read(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> list[str]:
        given, known = checks.names("--planner", names), ("auto", *PLANNERS)
        return list(dict.fromkeys(checks.choice("--planner", name, known) for name in given))

    words = f"Repeatable, or with commas: auto, {', '.join(PLANNERS)}.{default}"
    return click.option(
        "-p",
        "--planner",
        "planners",
        multiple=True,
        metavar="NAME",
        callback=read,
        shell_complete=_complete_planners,
        help=words,
    )


def planner_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Planning`, which the command takes as `options`."""

    @wraps(command)
    def gathered(**arguments: Any) -> Any:
        taken = {name: arguments.pop(name) for name in ("planner", "chunk", "time_limit", "options")}
        source = click.get_current_context().get_parameter_source
        given = any(source(name) is not ParameterSource.DEFAULT for name in taken)
        return command(options=Planning(**taken, given=given), **arguments)

    words = f"{', '.join(('auto', *PLANNERS))}. By default auto: the best of all."
    option = inputs.single_option(
        "-p",
        "--planner",
        several=".*,.*",
        remedy=_ONE,
        read=lambda name: checks.choice("--planner", name, ("auto", *PLANNERS)),
        metavar="NAME",
        shell_complete=_complete_planners,
        help=words,
    )
    decorated: Callable[..., Any] = option(CHUNK(TIME_LIMIT(OPTIONS(gathered))))
    return decorated


@click.command()
@inputs.problem_argument
@outputs.file_option(
    "-o", "--output", check=outputs.check_json, help="Save the result: plan, problem, device, timeline."
)
@outputs.file_option("--plan-only", check=outputs.check_json, help="Save the bare plan (memsched-plan/1).")
@inputs.quiet_option
@inputs.json_option
@inputs.machine_options
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
    result, built = options.run(inputs.load_problem(problem), machine)
    if output is not None:
        write_document(output, result.to_json())
    if plan_only is not None:
        write_document(plan_only, result.schedule.to_json())
    told = ", by all planners that were asked" if options.planner in (None, "auto") else ""
    answer(as_json, result.to_json, report(result, built, told), saved=[output, plan_only])
