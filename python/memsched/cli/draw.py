"""`memsched plot` and `memsched trace`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from memsched.cli import inputs, outputs
from memsched.cli.check import PROBLEM
from memsched.cli.complete import complete_problems
from memsched.cli.inputs import Machine
from memsched.cli.plan import Planning, planner_options
from memsched.cli.show import answer
from memsched.problems.problem import problem_from
from memsched.result import Result
from memsched.show.plots.addresses import plot_addresses as draw_addresses
from memsched.show.plots.classes import plot_classes as draw_classes
from memsched.show.plots.plan import plot as draw
from memsched.show.trace import trace as make_trace
from memsched.study.sources import PROBLEMS
from memsched.support.documents import fields, write_document
from memsched.support.formats import format_seconds


def _result(target: str, problem: str | None, machine: Machine, options: Planning) -> Result:
    """A result from a file, from a bare plan, or newly planned for a problem."""
    found = inputs.made_problem(target)
    if found is None:
        document = inputs.read_target(target, *inputs.RESULTS, inputs.PLAN, *PROBLEMS)
        if document["format"] in (*inputs.RESULTS, inputs.PLAN):
            if options.given:
                raise click.UsageError(f"'{target}' holds a plan; leave --planner, --chunk and --time-limit out")
            return inputs.open_result(document, problem, machine)[0]
        found = problem_from(document)
    if problem is not None:
        raise click.UsageError(f"'{target}' is itself a problem; leave --problem out")
    return options.run(found, machine)[0]


def _drawing_command(
    command: Callable[..., Any], check: Callable[[str], str] = outputs.check_writable
) -> click.Command:
    output = outputs.file_option("-o", "--output", check=check, required=True, help="The file to write.")
    target = click.argument("target", metavar="FILE|PROBLEM", shell_complete=complete_problems)
    decorated = inputs.quiet_option(inputs.json_option(inputs.machine_options(planner_options(command))))
    return click.command()(target(output(PROBLEM(decorated))))


def _say(result: Result, output: str, as_json: bool) -> None:
    document = {"output": output, "problem": result.problem.name}
    document |= fields(result, "planner", "makespan", "lower_bound", "peak_memory")
    said = f"{result.planner}, makespan {format_seconds(result.makespan)}: saved in {output}"
    answer(as_json, lambda: document, said)


@click.option("--classes", is_flag=True, help="Instead, draw the class of each feature map along the network.")
@click.option("--kinds", is_flag=True, help="Instead, draw the bytes of each class by kind of op.")
@click.option("--addresses", is_flag=True, help="Instead, draw which buffer is at which address, and when.")
def _plot(
    target: str,
    output: str,
    problem: str | None,
    classes: bool,
    kinds: bool,
    addresses: bool,
    as_json: bool,
    machine: Machine,
    options: Planning,
) -> None:
    """Draw the streams and the memory in use.

    FILE is a result, a bare plan with --problem, or a PROBLEM to plan.

    \b
    memsched plot result.json -o plan.png
    memsched plot resnet101-224-b32 --planner greedy --memory 40% -o plan.svg
    memsched plot analytic:resnet50:512 --memory 16GB --bandwidth 12GB/s --duplex --classes -o classes.png
    memsched plot graph:gpt-1024-b8-bf16 --planner selective --memory 40% --kinds -o kinds.png
    memsched plot graph:vgg16-224-b32 -p olla -m 100% -b 0 --addresses -o addresses.png

    The suffix of the output selects the format: .png, .svg or .pdf.
    """
    chosen = [name for name, given in (("classes", classes), ("kinds", kinds), ("addresses", addresses)) if given]
    if len(chosen) > 1:
        raise click.UsageError(f"--{' and --'.join(chosen)} are {len(chosen)} pictures; give one of them")
    result = _result(target, problem, machine, options)
    if classes or kinds:
        draw_classes(result, output, by="kind" if kinds else "map")
    else:
        (draw_addresses if addresses else draw)(result, output)
    _say(result, output, as_json)


plot = _drawing_command(_plot, outputs.check_picture)
plot.name = "plot"


def _trace(target: str, output: str, problem: str | None, as_json: bool, machine: Machine, options: Planning) -> None:
    """Write a trace for Perfetto or Chrome.

    ui.perfetto.dev and chrome://tracing open it.
    FILE is a result, a bare plan with --problem, or a PROBLEM to plan.

    \b
    memsched trace result.json -o trace.json
    """
    result = _result(target, problem, machine, options)
    write_document(output, make_trace(result))
    _say(result, output, as_json)


trace = _drawing_command(_trace, outputs.check_json)
trace.name = "trace"
