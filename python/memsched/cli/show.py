"""Output of the commands: tables and reports on stdout, progress on stderr; or JSON only."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from memsched._core import Device, Graph
from memsched.errors import visible
from memsched.planners.registry import min_memory
from memsched.problems.budget import told_bytes
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, name_of, peak_memory, stages_or_ops
from memsched.result import Result
from memsched.show import words
from memsched.show.arena import budget_of
from memsched.study.feature_maps import CLASSES, feature_map_classes
from memsched.support.csv_rows import csv_of
from memsched.support.documents import plain
from memsched.support.formats import (
    counted,
    enough_bytes,
    exact_bytes,
    format_bytes,
    format_link,
    format_number,
    format_seconds,
)

if TYPE_CHECKING:
    from memsched.show import summaries

OTHER, USAGE, INFEASIBLE, ILLEGAL, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit statuses."""

_EVERY = 15.0  # seconds between lines of progress without a terminal
_UNFOLDED = 200  # columns, if stdout is not a terminal
_WITHIN = re.compile(r"(?<=\d) (?=\S)| (?=\*)")  # spaces within a figure, and before the star of the best


class Built(NamedTuple):
    """A device, where its link comes from, and the unit in which its memory was written on the command line."""

    device: Device
    origin: str
    unit: str = ""


def quiet() -> bool:
    """Whether only errors are wanted, and what --json or --csv asks for."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get("memsched.quiet"))


def live() -> bool:
    """Whether somebody watches the work."""
    return sys.stderr.isatty() and not quiet()


def print_json(document: Any) -> None:
    """One line of JSON on stdout."""
    click.echo(json.dumps(plain(document), allow_nan=False))


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows on stdout as CSV."""
    click.echo(csv_of(rows), nl=False)


def shown(text: str, **more: Any) -> Text:
    """A text for rich: without markup, and with control characters escaped."""
    return Text(visible(text), **more)


def print_rich(*things: Table | Text | str) -> None:
    """Print to stdout: in colour on a terminal, plain and unfolded anywhere else; nothing if only errors are wanted."""
    if quiet():
        return
    columns = os.environ.get("COLUMNS")  # 0 where a terminal does not know
    width = _UNFOLDED if columns == "0" or (columns is None and not sys.stdout.isatty()) else None
    console = Console(file=sys.stdout, width=width, highlight=False)
    said: list[Table | Text] = []
    for one in things:
        said.append(shown(one) if isinstance(one, str) else one)
        dropped = _fit(one, console.width) if isinstance(one, Table) else []
        if dropped:
            said += [
                Text(),
                shown(f"not shown: {', '.join(dropped)}; {_wider()} has all columns"),
            ]
    with console.capture() as captured:
        console.print(*said, sep="\n")
    click.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def _wider() -> str:
    """Where all columns of a table are: the forms that the command has."""
    context = click.get_current_context(silent=True)
    options = [option for one in context.command.params for option in one.opts] if context is not None else []
    *others, last = ["a wider terminal", *(form for form in ("--csv", "--json") if form in options)]
    return f"{', '.join(others)} or {last}" if others else last


def _fit(table: Table, room: int) -> list[str]:
    """Give a table of `new_table` widths that break no word and no figure, long names apart; returns what is left out.

    Where it is too wide, the gaps become narrower, then texts are wrapped, and then the last columns are left out.
    """
    texts = [[str(text) for text in (column.header, *column.cells)] for column in table.columns]
    wide = [max(map(cell_len, of)) for of in texts]
    if not table.show_header:  # of `facts`: names that stay, two spaces, and values
        _wrap(table.columns[1], max(1, room - wide[0] - 2))
        return []
    if sum(wide) + 3 * (len(wide) - 1) <= room:
        return []
    parts = [[cell_len(word) for text in of for word in _words(text)] for of in texts]
    dropped: list[str] = []
    least = [max(of) for of in parts]
    least[0] = max(parts[0][0], min(least[0], room // 3))
    while len(least) > 2 and sum(least) + len(least) - 1 > room:
        dropped.insert(0, str(table.columns.pop().header).strip())
        del wide[-1], least[-1]
    while sum(wide) + len(wide) - 1 > room and wide != least:
        spare = [have - need for have, need in zip(wide, least, strict=True)]
        wide[spare.index(max(spare))] -= 1
    table.padding = 0
    for column, width in zip(table.columns, wide, strict=True):
        column.width = width
        _wrap(column, width)
    return dropped


def _wrap(column: Column, width: int) -> None:
    """Break the cells of a column, since rich breaks lines at any space."""
    column._cells[:] = [_wrapped(str(cell), width) for cell in column.cells]


def _words(text: str) -> list[str]:
    """The words of a cell, where a number with its unit is one, and so is what has a star."""
    return [word.replace("\0", " ") for word in _WITHIN.sub("\0", text).split()]


def _wrapped(text: str, width: int) -> Text:
    """A cell in lines that break no figure."""
    if cell_len(text) <= width:
        return Text(text)
    lines: list[str] = []
    for word in _words(text):
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return Text("\n".join(lines))


def say(text: str) -> None:
    """One line on stderr; errors of stderr itself are ignored."""
    with suppress(OSError):
        click.echo(visible(text), err=True)


def complain(text: str) -> None:
    """One line on stderr: an error."""
    say(f"error: {' '.join(text.split())}")


def warn(text: str | None) -> None:
    """One line on stderr: a warning, if there is one."""
    if text is not None and not quiet():
        say(f"warning: {' '.join(text.split())}")


def new_table(name: str, *figures: str) -> Table:
    """A table with a column of names at the left, and columns of figures, which are never cut short."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column(shown(name), overflow="fold")
    for title in figures:
        table.add_column(shown(title), justify="right", overflow="fold")
    return table


def table_like(known: summaries.Table) -> Table:
    """The table that Python shows of a value: words of a row without figures stand where there is room."""
    table = new_table(*known.head)
    for k, (name, *cells) in enumerate(known.rows):
        style = "bold green" if k in known.best else ""
        if len(cells) < len(known.head) - 1:
            first, _, rest = cells[0].partition(": ")[0].partition("; ")
            cells, style = [first, "", rest], "dim"
        table.add_row(*map(shown, (f"{name} *" if k in known.best else name, *cells)), style=style)
    return table


def where_saved(*paths: str | None) -> list[str]:
    """A line for each file that was written."""
    return [f"saved in {path}" for path in paths if path is not None]


def answer(as_json: bool, document: Callable[[], Any], *things: Table | str, saved: Sequence[str | None] = ()) -> None:
    """Print the document as JSON and nothing else; or things to read, and which files were written."""
    if as_json:
        print_json(document())
    else:
        print_rich(*things, *where_saved(*saved))


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


def now_and_then() -> Callable[[], bool]:
    """Tells whether a line on stderr is due again, where there is no terminal; never if only errors are wanted."""
    said = time.monotonic()

    def due() -> bool:
        nonlocal said
        if quiet() or time.monotonic() - said < _EVERY:
            return False
        said = time.monotonic()
        return True

    return due


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr, if somebody watches, or a line now and then; yields a function that changes its text.

    What a model prints goes to stderr, too.
    """
    if not live():
        due = now_and_then()
        with redirect_stdout(sys.stderr):
            yield lambda said: say(said) if due() else None
        return
    wrapped = TextColumn("{task.description}", markup=False, table_column=Column())
    columns = (SpinnerColumn(), wrapped, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(visible(text))
        yield lambda said: progress.update(task, description=visible(said))


def describe_problem(problem: Problem, unit: str) -> str:
    """How large a problem is, and the memory between which its plans are, in a unit like this one."""
    least, most = enough_bytes(min_memory(problem), unit), format_bytes(peak_memory(problem), unit)
    return f"{stages_or_ops(problem)}, min_memory {least}, peak of the plain run {most}"


def describe_link(built: Built) -> str:
    """The link of a device, and where its bandwidth comes from."""
    return f"{format_link(built.device, partial(format_number, like=built.unit))} ({built.origin})"


def moved(out: int, back: int, unit: str) -> str:
    """The bytes that a plan moves, in a unit like this one."""
    return words.plain(words.moved(out, back), unit)


def peak_of_budget(peak: int, budget: int, problem: Problem, unit: str) -> str:
    """A peak and its budget, in the unit that the memory was written in."""
    return f"{exact_bytes(peak, unit)} of {told_bytes(budget, unit, problem)}"


def report(result: Result, built: Built, planners: str = "") -> Table:
    """The main figures of a plan, and what is proven about it; `planners`: who was asked, if not its own alone."""
    timeline, unit = result.timeline, built.unit
    sizes = {tensor["name"]: tensor["size"] for tensor in result.graph.tensors}
    offloaded = sum(sizes[name] for name in result.offloaded)
    rows = [
        ("link", describe_link(built)),
        ("makespan", format_seconds(result.makespan)),
        ("plain run", words.plain(words.of_plain_run(result), unit)),
        ("lower bound", f"{format_seconds(result.lower_bound)} {words.plain(words.bounded(result))}"),
        ("peak memory", peak_of_budget(result.peak_memory, budget_of(result), result.problem, unit)),
        ("moved", moved(timeline.bytes_out, timeline.bytes_in, unit)),
        ("idle", f"{format_seconds(timeline.idle)} of the compute stream"),
        ("offloaded", f"{counted(len(result.offloaded), 'tensor')}, {format_bytes(offloaded, unit)}"),
    ]
    if result.recomputed:
        again = words.recomputed(len(result.recomputed), timeline.recompute_time)
        rows.append(("recomputed", words.plain(again)))
    classes = Counter(feature_map_classes(result).values())
    if isinstance(result.problem, Graph | GraphFamily):
        rows.append(("feature maps", ", ".join(f"{classes[kind]} {kind}" for kind in CLASSES)))
    if isinstance(result.problem, GraphFamily) and result.schedule.rounds != ((result.problem.batch, 1),):
        rows.append(("rounds", " and ".join(f"{times} x {batch}" for batch, times in result.schedule.rounds)))
    if result.estimate is not None:
        rows.append(("estimate", f"{format_seconds(result.estimate)}, as the planner claims in the model of its paper"))
    rows.append(("steps", str(len(result.schedule.steps))))
    if result.runtime:  # 0 of a bare plan
        rows.append(("planned in", format_seconds(result.runtime, 2) + planners))
    return facts(rows, f"{result.planner} on {name_of(result.problem)}")
