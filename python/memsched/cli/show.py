"""Output of the commands: tables and reports on stdout, progress on stderr; or JSON only."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from memsched._core import Device, Graph
from memsched.errors import visible
from memsched.planners.registry import min_memory
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, name_of, peak_memory, stages_or_ops
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.study.feature_maps import CLASSES, feature_map_classes
from memsched.support.documents import plain
from memsched.support.units import format_bytes, format_link, format_percent, format_seconds

_UNFOLDED = 200  # columns, if stdout is not a terminal


def print_json(document: Any) -> None:
    """One line of JSON on stdout."""
    click.echo(json.dumps(plain(document), allow_nan=False))


def shown(text: str, **more: Any) -> Text:
    """A text for rich: without markup, and with control characters escaped."""
    return Text(visible(text), **more)


def print_rich(*things: Table | Text | str) -> None:
    """Print to stdout: in colour on a terminal, plain and unfolded anywhere else."""
    columns = os.environ.get("COLUMNS")  # 0 where a terminal does not know
    width = _UNFOLDED if columns == "0" or (columns is None and not sys.stdout.isatty()) else None
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as captured:
        console.print(*(shown(one) if isinstance(one, str) else one for one in things), sep="\n")
    click.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def say(text: str) -> None:
    """One line on stderr; errors of stderr itself are ignored."""
    with suppress(OSError):
        click.echo(visible(text), err=True)


def complain(text: str) -> None:
    """One line on stderr: an error."""
    say(f"error: {' '.join(text.split())}")


def new_table(name: str, *figures: str) -> Table:
    """A table with a column of names at the left, and columns of figures, which are never cut short."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column(shown(name), overflow="fold")
    for title in figures:
        table.add_column(shown(title), justify="right", overflow="fold")
    return table


def answer(as_json: bool, document: Callable[[], Any], *things: Table | str, saved: Sequence[str | None] = ()) -> None:
    """Print the document as JSON and nothing else; or things to read, and where files were saved."""
    if as_json:
        print_json(document())
    else:
        print_rich(*things, *(f"saved in {path}" for path in saved if path is not None))


def facts(rows: Sequence[tuple[str, str]], title: str) -> Table:
    """A report: a bold title, and lines of a name and its value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.title = shown(title, style="bold")
    table.title_justify = "left"
    for name, value in rows:
        table.add_row(shown(name), shown(value))
    return table


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr, if that is a terminal; yields a function that changes its text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(visible(text))
        yield lambda said: progress.update(task, description=visible(said))


def exact_bytes(count: int) -> str:
    """A readable size, with the exact bytes if they differ."""
    return format_bytes(count) if count < 1024 else f"{format_bytes(count)} ({count} bytes)"


def describe_problem(problem: Problem) -> str:
    """How large a problem is, and the memory between which its plans are."""
    least, most = format_bytes(min_memory(problem)), format_bytes(peak_memory(problem))
    return f"{stages_or_ops(problem)}, min_memory {least}, peak of the plain run {most}"


def describe_link(device: Device, origin: str) -> str:
    """The link of a device, and where its bandwidth comes from."""
    return f"{format_link(device)} ({origin})"


def offloaded_bytes(result: Result) -> int:
    """Bytes of the distinct tensors that are offloaded."""
    sizes = {tensor["name"]: tensor["size"] for tensor in result.graph.tensors}
    return sum(sizes[name] for name in result.offloaded)


def report(result: Result, origin: str) -> Table:
    """The main figures of a plan, and what is proven about it."""
    timeline = result.timeline
    budget = budget_of(result)
    standing = "proven optimal" if result.optimal else f"gap {format_percent(result.gap)}"
    rows = [
        ("link", describe_link(result.device, origin)),
        ("makespan", format_seconds(result.makespan)),
        ("lower bound", f"{format_seconds(result.lower_bound)} of {result.bounded}: {standing}"),
        ("peak memory", f"{exact_bytes(result.peak_memory)} of {exact_bytes(budget)}"),
        ("moved", f"{format_bytes(timeline.bytes_out)} out, {format_bytes(timeline.bytes_in)} in"),
        ("idle", f"{format_seconds(timeline.idle)} of the compute stream"),
        ("offloaded", f"{len(result.offloaded)} tensors, {format_bytes(offloaded_bytes(result))}"),
    ]
    if result.recomputed:
        seconds = format_seconds(timeline.recompute_time)
        rows.append(("recomputed", f"{len(result.recomputed)} ops, {seconds}"))
    classes = Counter(feature_map_classes(result).values())
    if isinstance(result.problem, Graph | GraphFamily):
        rows.append(("feature maps", ", ".join(f"{classes[kind]} {kind}" for kind in CLASSES)))
    if isinstance(result.problem, GraphFamily) and result.schedule.rounds != ((result.problem.batch, 1),):
        rows.append(("rounds", " and ".join(f"{times} x {batch}" for batch, times in result.schedule.rounds)))
    if result.estimate is not None:
        rows.append(("estimate", f"{format_seconds(result.estimate)}, as the planner claims in the model of its paper"))
    rows.append(("steps", str(len(result.schedule.steps))))
    return facts(rows, f"{result.planner} on {name_of(result.problem)}")
