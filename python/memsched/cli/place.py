"""`memsched place`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from memsched.arena.buffers import Buffer, read_buffers
from memsched.arena.placement import Placement, write_placement
from memsched.cli import inputs, outputs
from memsched.cli.complete import complete_files
from memsched.cli.show import answer, facts, working
from memsched.errors import InvalidInputError
from memsched.problems.problem import name_of
from memsched.profiles import graph_names
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.show.plots.addresses import plot_addresses
from memsched.study.addresses import place as find_addresses
from memsched.study.addresses import with_addresses
from memsched.support import quantities
from memsched.support.documents import write_document
from memsched.support.formats import counted, exact_bytes, format_bytes, format_percent, format_seconds, unit_written
from memsched.support.units import parse_bytes

PLACEMENT = "memsched-placement/1"
METHODS = ("search", "greedy", "ilp")
ENDINGS = (".csv", ".json")

Buffers = tuple[Buffer, ...]


def _holds_json(file: str) -> bool:
    """Decided by its suffix, else by its first character."""
    path = Path(file)
    if file == "-" or path.suffix.lower() in ENDINGS:
        return file == "-" or path.suffix.lower() == ".json"
    return inputs.first_bytes(file).lstrip().startswith(b"{")


def _read(file: str) -> Result | Buffers:
    """A result, or the buffers of a CSV file, of a placement or of a memory snapshot of PyTorch."""
    if file in graph_names() and not Path(file).exists():
        raise InvalidInputError(
            f"'{file}' is a problem, which has no buffers before it is planned: memsched plan {file} -m 60% -o r.json, "
            "then memsched place r.json"
        )
    if inputs.first_bytes(file)[:1] == b"\x80":
        from memsched.readers.snapshot import read_snapshot

        return read_snapshot(inputs.check_input(file))
    if not _holds_json(file):
        return read_buffers(inputs.read_text(file))
    document = inputs.read_saved(file, *inputs.RESULTS, PLACEMENT)
    return Result.from_json(document) if document["format"] in inputs.RESULTS else Placement.from_json(document).buffers


def _report(found: Placement, before: Result | None, after: Result | None, capacity: int | None) -> Any:
    proof = "proven lowest" if found.optimal else f"gap {format_percent(found.gap)}"
    unit = unit_written(capacity if before is None else before.device)
    fixed = sum(buffer.offset is not None for buffer in found.buffers)
    named = sum(buffer.name is not None for buffer in found.buffers)
    rest = len(found.buffers) - named if before is not None else 0
    kinds = f": {counted(named, 'tensor')}, {counted(rest, 'workspace')}" if rest else ""
    where = f", {fixed} at {'a fixed offset' if fixed == 1 else 'fixed offsets'}" if fixed else ""
    rows = [
        ("buffers", f"{len(found.buffers)}{kinds}{where}"),
        ("load", exact_bytes(found.load, unit)),
        ("height", exact_bytes(found.height, unit)),
        ("lower bound", f"{exact_bytes(found.lower_bound, unit)}, {proof}"),
        ("fragmentation", format_percent(found.fragmentation)),
    ]
    if capacity is not None:
        rows.append(("capacity", exact_bytes(capacity, unit)))
    if before is not None:
        needed = format_bytes(found.height + before.graph.resident, unit)
        rows.append(("with resident", f"{needed} of {format_bytes(budget_of(before), unit)}"))
    if before is not None and after is not None:
        was, now = format_seconds(before.makespan), format_seconds(after.makespan)
        slower = f"{now}, {was} without addresses; a plan for a little less memory may wait less"
        rows.append(("makespan", now if was == now else slower))
    rows.append(("solved in", f"{format_seconds(found.runtime, 2)} by {found.method}"))
    name = None if before is None else name_of(before.problem)
    return facts(rows, "addresses" if before is None else f"addresses of {before.planner} on {name}")


@click.command()
@click.argument("file", shell_complete=complete_files)
@click.option(
    "--capacity",
    metavar="SIZE",
    callback=inputs.parsed(lambda text: parse_bytes(text, "--capacity")),
    help="Capacity of the arena; by default as low as possible.",
)
@inputs.SEARCH_LIMIT
@click.option("--method", type=click.Choice(METHODS), help="By default search. ilp: the paper's integer program.")
@click.option(
    "--alignment",
    metavar="SIZE",
    callback=inputs.parsed(quantities.alignment),
    help="Alignment of a result's buffers.",
)
@outputs.file_option(
    "-o",
    "--output",
    check=outputs.check_json_or_csv,
    help="Save the placement (.csv, .json) or the result with addresses.",
)
@outputs.file_option("--plot", "picture", check=outputs.check_picture, help="Draw it: .png, .svg or .pdf.")
@inputs.quiet_option
@inputs.json_option
def place(
    file: str,
    capacity: int | None,
    time_limit: float,
    method: str | None,
    alignment: int | None,
    output: str | None,
    picture: str | None,
    as_json: bool,
) -> None:
    """Give every buffer an offset in an arena as low as possible.

    FILE is a list of buffers in CSV (id,lower,upper,size), a memsched-placement/1 file, a memory snapshot of PyTorch
    (a pickle, which is read without running any of it), or a result, whose buffers are what its plan holds from step to
    step. A column `end` instead of `upper` is the last moment itself.

    \b
    memsched place buffers.csv -o placed.csv
    memsched place buffers.csv --capacity 1MiB --plot placed.png
    memsched place result.json -o placed.json

    Offsets in a CSV file are fixed. The suffix of the output selects what is saved: .csv the placement, one offset per
    line; .json the same as memsched-placement/1. For a result, .json is the result with addresses that fit its budget
    and, if possible, make no step wait. The exit status is 3 when the capacity or the budget is too small. With --json
    the placement is printed.
    """
    given = _read(file)
    before = given if isinstance(given, Result) else None
    after = found = None
    with working("placing") as say:
        if before is not None and output is not None and output.lower().endswith(".json"):
            if capacity is not None or method is not None:
                raise click.UsageError(
                    "-o saves a result with addresses within its budget; leave --capacity and --method out, "
                    "or save only the placement, as .csv"
                )
            after = with_addresses(before, time_limit=time_limit, alignment=alignment or 1)
            found = after.placement
        elif before is None and alignment is not None:
            raise click.UsageError(
                "the buffers of a list have their own alignments, as in the column alignment; leave --alignment out"
            )
        if found is None:
            found = find_addresses(
                given,
                capacity,
                time_limit=time_limit,
                method=method or "search",
                alignment=alignment or 1,
                progress=lambda share: say(f"placing, {share:.0%}"),
            )
    if output is not None and output.lower().endswith(".csv"):
        write_placement(output, found)
    elif output is not None:
        write_document(output, (found if after is None else after).to_json())
    if picture is not None:
        shown = after if before is None or after is not None else replace(before, placement=found)
        plot_addresses(found if shown is None else shown, picture)
    answer(as_json, found.to_json, _report(found, before, after, capacity), saved=[output, picture])
