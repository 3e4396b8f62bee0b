"""`memsched profiles`."""

from __future__ import annotations

from typing import Any

import click

from memsched import profiles as shipped
from memsched._core import Chain, Graph
from memsched.cli.inputs import json_option
from memsched.cli.show import new_table, print_json, print_rich, shown
from memsched.errors import InvalidInputError
from memsched.planners.registry import min_memory
from memsched.problems.problem import peak_memory
from memsched.support.units import format_bytes, format_seconds


def _chain_figures(name: str) -> dict[str, Any]:
    chain = shipped.load(name)
    seconds = float(chain.forward_time.sum() + chain.backward_time.sum())
    return {"name": name, "stages": chain.n} | _figures(chain, seconds, chain.provenance or {})


def _graph_figures(name: str) -> dict[str, Any]:
    graph = shipped.load_graph(name)
    seconds = sum(op["choices"][0]["time"] for op in graph.ops)
    return {"name": name, "ops": len(graph.ops)} | _figures(graph, seconds, shipped.provenance(name))


def _figures(problem: Chain | Graph, seconds: float, provenance: dict[str, Any]) -> dict[str, Any]:
    return {
        "min_memory": min_memory(problem),
        "peak_memory": peak_memory(problem),
        "resident": problem.resident,
        "compute_time": seconds,
        "link_bandwidth": provenance.get("link_bandwidth"),
    }


def _show(rows: list[dict[str, Any]], title: str, size: str) -> None:
    table = new_table(title, size, "min_memory", "peak_memory", "resident", "compute")
    for row in rows:
        sizes = (format_bytes(row[key]) for key in ("min_memory", "peak_memory", "resident"))
        cells = (row["name"], str(row[size]), *sizes, format_seconds(row["compute_time"]))
        table.add_row(*(shown(cell) for cell in cells))
    print_rich(table)


@click.command()
@click.argument("filter", required=False, default="", metavar="[FILTER]")
@json_option
def profiles(filter: str, as_json: bool) -> None:
    """List the shipped profiles, and the training steps that ship as graphs alone, whose name contains FILTER.

    \b
    memsched profiles resnet101
    memsched profiles bf16
    """
    known = shipped.names()
    chains = [_chain_figures(name) for name in known if filter.lower() in name]
    graphs = [_graph_figures(name) for name in shipped.graph_names() if filter.lower() in name and name not in known]
    if not chains and not graphs:
        raise InvalidInputError(f"no profile's name contains {filter!r}; `memsched profiles` lists all")
    if as_json:
        print_json(chains + graphs)
        return
    if chains:
        _show(chains, "profile", "stages")
    if graphs:
        _show(graphs, "graph", "ops")
