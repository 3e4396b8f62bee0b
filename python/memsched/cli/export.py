"""`memsched export`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from memsched.cli.complete import complete_files
from memsched.cli.inputs import json_option, quiet_option, read_text
from memsched.cli.models import autocast_option, input_option, model_option
from memsched.cli.outputs import check_writable, file_option
from memsched.cli.show import answer, facts, working
from memsched.errors import InvalidInputError, MemschedError
from memsched.study.fit import check_asked
from memsched.support.files import check_named, same_file
from memsched.support.formats import exact_bytes


def _check_program(path: str) -> str:
    return check_writable(check_named(path, "a Python program", ".py"))


@click.command()
@click.argument("plan", metavar="PLAN", shell_complete=complete_files)
@model_option
@input_option("as they were planned.")
@autocast_option
@file_option("-o", "--output", check=_check_program, required=True, help="The program to write: .py.")
@quiet_option
@json_option
def export(plan: str, model: str, input: str | None, autocast: str | None, output: str, as_json: bool) -> None:
    """Write a planned step of a PyTorch model as a Python program.

    The program needs PyTorch alone, and computes the same bits. PLAN is what `save` of a plan of memsched.torch wrote.

    \b
    memsched export plan.json --model nets.py:make -o step.py
    python -c "import step, nets; model, inputs = nets.make(); print(step.step(model, *inputs))"

    A plan holds no operations: the model is captured again. SPEC as in `memsched profile`. Needs memsched[torch].
    """
    check_asked(model, input, device="here", autocast=autocast)
    if same_file(output, model.partition("?")[0].rpartition(":")[0] or model):
        raise InvalidInputError(f"--output is '{output}', which holds the model; give another name")
    source = read_text(plan)
    try:
        from memsched.torch.export import export_spec
    except ImportError as error:
        if error.name != "torch":
            raise
        raise MemschedError("exporting a step needs PyTorch: pip install 'memsched[torch]'") from error
    with working(f"exporting: {model}"):
        found = export_spec(output, source, model, input, autocast=autocast)
    document: dict[str, Any] = {
        "program": output,
        "planner": found.result.planner,
        "budget": found.result.schedule.budget,
        "peak_memory": found.peak_memory,
    }
    answer(as_json, lambda: document, _summary(model, document), saved=[output])


def _summary(model: str, document: dict[str, Any]) -> Table:
    rows = [
        ("planner", document["planner"]),
        ("budget", exact_bytes(document["budget"])),
        ("peak_memory", f"{exact_bytes(document['peak_memory'])}, of the whole process"),
    ]
    return facts(rows, model)
