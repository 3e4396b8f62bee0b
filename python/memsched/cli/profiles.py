"""`memsched profiles`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from memsched import profiles as shipped
from memsched._core import Chain, Graph
from memsched.cli.complete import complete_problems
from memsched.cli.inputs import csv_option, json_option, quiet_option
from memsched.cli.show import new_table, print_csv, print_json, print_rich, shown
from memsched.errors import InvalidInputError
from memsched.planners.registry import min_memory
from memsched.problems.problem import peak_memory
from memsched.support.formats import enough_bytes, format_bytes, format_seconds


def _figures(problem: Chain | Graph) -> dict[str, Any]:
    if isinstance(problem, Chain):
        size, provenance = {"stages": problem.n}, problem.provenance or {}
        seconds = float(problem.forward_time.sum() + problem.backward_time.sum())
    else:
        size, provenance = {"ops": len(problem.ops)}, shipped.provenance(problem.name)
        seconds = sum(op["choices"][0]["time"] for op in problem.ops)
    return {
        "name": problem.name,
        **size,
        "min_memory": min_memory(problem),
        "peak_memory": peak_memory(problem),
        "resident": problem.resident,
        "compute_time": seconds,
        "link_bandwidth": provenance.get("link_bandwidth"),
    }


def _show(rows: list[dict[str, Any]], title: str, size: str) -> None:
    table = new_table(title, size, "min_memory", "peak_memory", "resident", "compute")
    for row in rows:
        sizes = (enough_bytes(row["min_memory"]), *(format_bytes(row[key]) for key in ("peak_memory", "resident")))
        cells = (row["name"], str(row[size]), *sizes, format_seconds(row["compute_time"]))
        table.add_row(*(shown(cell) for cell in cells))
    print_rich(table)


@click.command()
@click.argument("filter", required=False, default="", metavar="[FILTER]", shell_complete=complete_problems)
@quiet_option
@csv_option
@json_option
def profiles(filter: str, as_csv: bool, as_json: bool) -> None:
    """List shipped profiles and graphs whose name contains FILTER.

    A star in FILTER stands for any text.

    \b
    memsched profiles resnet101
    memsched profiles 'resnet*b32'
    memsched profiles bf16
    """
    known, pattern = shipped.names(), f"*{filter.lower()}*"
    chains = [_figures(shipped.load(name)) for name in known if fnmatchcase(name, pattern)]
    alone = (name for name in shipped.graph_names() if name not in known)
    graphs = [_figures(shipped.load_graph(name)) for name in alone if fnmatchcase(name, pattern)]
    if not chains and not graphs:
        raise InvalidInputError(f"no profile's name contains {filter!r}; `memsched profiles` lists all")
    if as_json:
        return print_json(chains + graphs)
    if as_csv:
        return print_csv(chains + graphs)
    if chains:
        _show(chains, "profile", "stages")
    if chains and graphs:
        print_rich("")
    if graphs:
        _show(graphs, "graph", "ops")
