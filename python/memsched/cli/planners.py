"""`memsched planners`."""

from __future__ import annotations

import click

from memsched.cli.inputs import csv_option, json_option, quiet_option
from memsched.cli.show import new_table, print_csv, print_json, print_rich
from memsched.planners.registry import PLANNERS


@click.command()
@quiet_option
@csv_option
@json_option
def planners(as_csv: bool, as_json: bool) -> None:
    """List the planners: what each takes, and what it does.

    `memsched compare` runs those for a problem side by side, and `memsched plan -p NAME` one of them.
    """
    rows = [
        {
            "name": name,
            "problems": " ".join(known.problems),
            "summary": known.summary + (f"; by name only: {known.by_name}" if known.by_name else ""),
        }
        for name, known in PLANNERS.items()
    ]
    if as_json:
        return print_json(rows)
    if as_csv:
        return print_csv(rows)
    table = new_table("planner", "for", "what it does")
    for row in rows:
        table.add_row(row["name"], row["problems"].replace(" ", ", "), row["summary"])
    for column in table.columns:
        column.justify = "left"
    print_rich(table)
