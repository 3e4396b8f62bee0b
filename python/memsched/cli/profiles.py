"""`memsched profiles`."""

from __future__ import annotations

from typing import Any

import click

from memsched import profiles as shipped
from memsched.cli.inputs import json_option
from memsched.cli.show import new_table, print_json, print_rich, shown
from memsched.errors import InvalidInputError
from memsched.planners.registry import min_memory
from memsched.problems.problem import peak_memory
from memsched.support.units import format_bytes, format_seconds


def _figures(name: str) -> dict[str, Any]:
    chain = shipped.load(name)
    return {
        "name": name,
        "stages": chain.n,
        "min_memory": min_memory(chain),
        "peak_memory": peak_memory(chain),
        "resident": chain.resident,
        "compute_time": float(chain.forward_time.sum() + chain.backward_time.sum()),
        "link_bandwidth": (chain.provenance or {}).get("link_bandwidth"),
    }


@click.command()
@click.argument("filter", required=False, default="", metavar="[FILTER]")
@json_option
def profiles(filter: str, as_json: bool) -> None:
    """List the shipped profiles whose name contains FILTER.

    \b
    memsched profiles resnet101
    """
    found = [_figures(name) for name in shipped.names() if filter.lower() in name]
    if not found:
        raise InvalidInputError(f"no profile's name contains {filter!r}; `memsched profiles` lists all")
    if as_json:
        print_json(found)
        return
    table = new_table(
        ("profile", "left"),
        ("stages", "right"),
        ("min_memory", "right"),
        ("peak_memory", "right"),
        ("resident", "right"),
        ("compute", "right"),
    )
    for row in found:
        sizes = (format_bytes(row[key]) for key in ("min_memory", "peak_memory", "resident"))
        cells = (row["name"], str(row["stages"]), *sizes, format_seconds(row["compute_time"]))
        table.add_row(*(shown(cell) for cell in cells))
    print_rich(table)
