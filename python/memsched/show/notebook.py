"""What notebooks show of a value and what `print` prints: a small table of its figures, and its picture."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from memsched._core import Device
from memsched.arena.order import Order
from memsched.arena.placement import Placement
from memsched.errors import InfeasibleError, MemschedError, visible
from memsched.problems.bounds import Bounds
from memsched.problems.family import count_rounds
from memsched.problems.problem import name_of
from memsched.result import Result, as_fast
from memsched.show.arena import budget_of
from memsched.show.hover import STYLE, overlay
from memsched.show.plots.addresses import plot_addresses
from memsched.show.plots.fit import plot_fit
from memsched.show.plots.frontier import plot_frontier
from memsched.show.plots.plan import plot
from memsched.show.plots.sweep import plot_sweep
from memsched.show.report.sweep_rows import standings
from memsched.study.comparison import Comparison
from memsched.study.fit import Fit
from memsched.study.frontier import Frontier
from memsched.study.sweep.names import link_of, problem_of
from memsched.study.sweep.table import Sweep
from memsched.support.units import counted, format_bytes, format_link, format_percent, format_seconds
from memsched.validation.plan import ValidationReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 100  # characters of a cell
_MOST_ROWS = 24
_MOST_MARKS = 5000  # in a picture that a notebook draws unasked: about a second
_MOST_PANELS = 12
_MOST_PIXELS = 1800  # in the width of a picture
_COLOURS = 128  # of a picture, with those of smooth edges
_MOST_BYTES = 140_000  # of a picture; a third more as text
_MOST_LETTERS = (60_000, 195_000)  # of what is shown where the pointer is, and with the picture

# Text has the colour of the notebook, so that it can be read on dark ones; a picture has a white page of its own.
_STYLE = """\
.memsched{overflow-x:auto}
.memsched table{border-collapse:collapse;color:inherit;margin:.3em 0}
.memsched caption{caption-side:top;text-align:left;font-weight:600;padding:.2em .6em;color:inherit}
.memsched tr{background:none!important}
.memsched th,.memsched td{text-align:right;padding:.2em .6em;border:0;border-top:1px solid rgba(128,128,128,.35);\
font-weight:inherit;font-variant-numeric:tabular-nums;color:inherit;background:none;white-space:nowrap}
.memsched th[scope],.memsched .words{text-align:left}
.memsched .words{white-space:normal}
.memsched .faint{opacity:.7}
.memsched p{margin:.3em .6em}
.memsched img{display:block;width:100%;height:auto;background:#fff;border-radius:4px}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A title, rows of cells, and a note below. A row with fewer cells than the head ends with words."""

    title: str
    rows: Sequence[tuple[str, ...]]
    head: tuple[str, ...] = ()  # none: each row is a name and words
    note: str = ""
    best: frozenset[int] = frozenset()  # rows to stress


def html(shown: object) -> str:
    """The table of a value, and its picture if it is not too large and matplotlib is installed."""
    table = _table(shown)
    picture, told = _image(shown, table.title)
    head = "".join(f"<th{_scope(k)}>{_cell(name)}</th>" for k, name in enumerate(table.head))
    note = "; ".join(part for part in (table.note, told) if part)
    parts = [
        f'<div class="memsched"><style>\n{_STYLE}{STYLE}\n</style><table><caption>{_cell(table.title)}</caption>',
        f'<thead><tr class="faint">{head}</tr></thead>' if head else "",
        f"<tbody>{''.join(_row(table, k) for k in range(len(table.rows)))}</tbody></table>",
        f'<p class="faint">{_cell(note)}</p>' if note else "",
        picture,
    ]
    return "".join(parts) + "</div>"


def text(shown: object) -> str:
    """The table of a value as lines of text."""
    table = _table(shown)
    listed = [(f"{name} *" if k in table.best else name, *cells) for k, (name, *cells) in enumerate(table.rows)]
    rows = [tuple(map(_short, row)) for row in ([table.head] if table.head else []) + listed]
    count = len(table.head) or 2
    full = [row for row in rows if len(row) == count]
    wide = [max((len(row[k]) for row in (rows if k == 0 else full)), default=0) for k in range(count)]
    lines = [_short(table.title)]
    for row in rows:
        cells = [row[0].ljust(wide[0])]
        words = not table.head or len(row) < count
        cells += [cell if words else cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=False)]
        lines.append("  ".join(cells).rstrip())
    note = ("* the fastest; " if table.best else "") + table.note
    return "\n".join([*lines, *([_short(note)] if note else [])])


def draw(shown: object, path: str | os.PathLike[str] | None = None) -> Figure:
    """The picture of a value."""
    picture: Callable[..., Figure] = _of(_PICTURES, shown)[0]
    return picture(shown.rows if isinstance(shown, Sweep) else shown, path)


# Class -> its picture, and what that has a mark for.
_PICTURES: Mapping[type, tuple[Callable[..., Figure], str]] = {
    Fit: (plot_fit, "ways"),
    Frontier: (plot_frontier, "results"),
    Placement: (plot_addresses, "buffers"),
    Result: (plot, "schedule"),
    Sweep: (plot_sweep, "rows"),
}


def _is_small(shown: object) -> bool:
    """Whether the value has a picture that is drawn within a second or so."""
    picture = _of(_PICTURES, shown)
    if picture is None or len(getattr(shown, picture[1])) > _MOST_MARKS:
        return False
    panels = {(problem_of(row), link_of(row)) for row in shown.rows} if isinstance(shown, Sweep) else ()
    return len(panels) <= _MOST_PANELS


def _image(shown: object, title: str) -> tuple[str, str]:
    """The picture of a value, and a note about it."""
    if not _is_small(shown):
        return "", ""
    page = io.BytesIO()
    with warnings.catch_warnings():  # of letters that the font lacks, for instance
        warnings.simplefilter("ignore")
        try:
            figure = draw(shown)
        except MemschedError:  # no matplotlib, or nothing to draw
            return "", ""
        wide = figure.get_figwidth()
        figure.savefig(page, format="png", dpi=min(figure.dpi, _MOST_PIXELS / wide))
    found = _few_colours(page)
    if len(found) > _MOST_BYTES:
        return "", ""
    size = f"min-width:{3.6 * wide:.3g}em;max-width:{8 * wide:.3g}em"
    source = f"data:image/png;base64,{base64.b64encode(found).decode()}"
    image = f'<img alt="{_cell(f"picture: {title}")}" src="{source}">'
    pointed, told = "", ""
    if isinstance(shown, Placement):
        pointed, told = overlay(figure, shown, min(_MOST_LETTERS[0], _MOST_LETTERS[1] - len(image)))
    return f'<div class="picture" style="{size}">{image}{pointed}</div>', told


def _few_colours(page: io.BytesIO) -> bytes:
    """A PNG with as many colours as a picture needs, a third as large."""
    from PIL import Image  # of which matplotlib has need, too

    small = io.BytesIO()
    with Image.open(page) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def _scope(column: int) -> str:
    return ' scope="col"' if column == 0 else ""


def _row(table: _Table, at: int) -> str:
    name, *cells = table.rows[at]
    missing = len(table.head) - 1 - len(cells)
    words = not table.head or missing
    span = f' colspan="{1 + missing}"' if words and missing > 0 else ""
    kind = ' class="words"' if words else ""
    shown = [f"<td{kind}{span if k == len(cells) - 1 else ''}>{_cell(cell)}</td>" for k, cell in enumerate(cells)]
    style = ' style="font-weight:600"' if at in table.best else ' class="faint"' if table.head and missing else ""
    return f'<tr{style}><th scope="row">{_cell(name)}</th>{"".join(shown)}</tr>'


def _short(words: str) -> str:
    """Words that can be shown, on one line."""
    words = visible(words)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


def _cell(words: str) -> str:
    return escape(_short(words))


def _table(shown: object) -> _Table:
    table: _Table = _of(_TABLES, shown)(shown)
    return table


def _of(known: Mapping[type, Any], shown: object) -> Any:
    """What is known for the class of a value, or for the first that it derives from."""
    return next((known[kind] for kind in type(shown).__mro__ if kind in known), None)


def _result(result: Result) -> _Table:
    schedule, timeline = result.schedule, result.timeline
    rounds = count_rounds(schedule.rounds)
    rows = {
        "memory": format_bytes(budget_of(result)),
        "link": format_link(result.device),
        "makespan": _makespan(result),
        "peak": format_bytes(result.peak_memory),
        "moved": _moved(timeline.bytes_out, timeline.bytes_in),
        "recomputed": _recomputed(len(result.recomputed), timeline.recompute_time),
        **({"rounds": f"{rounds}, of batch {_listed(batch for batch, _ in schedule.rounds)}"} if rounds > 1 else {}),
        "planned in": format_seconds(result.runtime, 2),
    }
    return _Table(title=f"{result.planner} on {name_of(result.problem)}", rows=[*rows.items()])


def _makespan(result: Result) -> str:
    said = format_seconds(result.makespan)
    if result.optimal:
        return f"{said}, the least of {result.bounded}"
    if result.lower_bound == 0:
        return f"{said}, no bound is known"
    bound = format_seconds(result.lower_bound)
    return f"{said}, {format_percent(result.gap)} above {bound}, a lower bound on {result.bounded}"


def _listed(numbers: Iterable[object]) -> str:
    return " and ".join(dict.fromkeys(map(str, numbers)))


def _moved(out: int, back: int) -> str:
    return f"{format_bytes(out)} out, {format_bytes(back)} in" if out or back else "nothing"


def _recomputed(ops: int, seconds: float) -> str:
    return f"{counted(ops, 'op')}, {format_seconds(seconds)}" if ops else "nothing"


def _comparison(found: Comparison) -> _Table:
    plans = {name: one for name, one in found.items() if isinstance(one, Result)}
    best = found.best
    rows: list[tuple[str, ...]] = []
    for name, one in found.items():
        if isinstance(one, Result):
            rows.append((name, *_figures(one)))
        elif isinstance(one, InfeasibleError):
            rows.append((name, f"no plan: it needs {format_bytes(one.min_memory)}"))
        else:
            rows.append((name, f"failed: {one}"))
    least = best.makespan if best else 0.0
    head = ("planner", "makespan", "gap", "peak", "moved", "recomputed")
    return _Table(
        title=f"{name_of(best.problem)}, {_machine(best.device)}" if best else "no planner has a plan",
        head=head,
        rows=rows,
        note="gap: above a lower bound on the plans that the planner can make" if plans else "",
        best=frozenset(k for k, name in enumerate(found) if name in plans and as_fast(plans[name].makespan, least)),
    )


def _machine(device: Device) -> str:
    return f"{format_bytes(device.memory)}, {format_link(device)}"


def _figures(one: Result) -> tuple[str, ...]:
    timeline = one.timeline
    return (
        format_seconds(one.makespan),
        "optimal" if one.optimal else format_percent(one.gap) if one.lower_bound > 0 else "",
        format_bytes(one.peak_memory),
        format_bytes(timeline.bytes_out + timeline.bytes_in),
        counted(len(one.recomputed), "op") if one.recomputed else "0",
    )


def _frontier(found: Frontier) -> _Table:
    count = len(found.results)
    most = min(count, _MOST_ROWS)
    chosen = [k * (count - 1) // max(1, most - 1) for k in range(most)]
    rows: list[tuple[str, ...]] = []
    for k in chosen:
        memory, one = format_bytes(int(found.memory[k])), found.results[k]
        rows.append((memory, "no plan") if one is None else (memory, *_figures(one)))
    ideal = f"ideal: {format_seconds(found.ideal)}, with enough memory"
    return _Table(
        title=f"{found.planner} on {name_of(found.problem)}, {format_link(found.device)}",
        head=("memory", "makespan", "gap", "peak", "moved", "recomputed"),
        rows=rows,
        note=ideal if most == count else f"{ideal}; {most} of {count} memories are shown",
    )


def _fit(found: Fit) -> _Table:
    rows: list[tuple[str, ...]] = []
    for one in found.ways:
        largest = "" if one.largest_batch is None else str(one.largest_batch)
        time = "does not fit" if one.makespan is None else format_seconds(one.makespan)
        rows.append((one.name, format_bytes(one.peak_memory), time, largest))
    verdict = "fit" if found.fits else "do not fit"
    return _Table(
        title=f"{found.name}: {format_bytes(found.peak_memory)} {verdict} into {format_bytes(found.memory)}",
        head=("way", "peak", "forward, backward", "largest batch"),
        rows=rows,
        note="; ".join([found.times, *found.notes]),
    )


def _sweep(found: Sweep) -> _Table:
    rows = [(one.name, *map(str, (one.planned, one.infeasible, one.failed, one.best))) for one in standings(found.rows)]
    note = "fastest: where no other planner was faster" + (
        "; the file that was read claims it" if found.claimed else ""
    )
    return _Table(
        title=f"{counted(len(found), 'point')} of {counted(len({problem_of(row) for row in found.rows}), 'problem')}",
        head=("planner", "planned", "infeasible", "failed", "fastest"),
        rows=rows[:_MOST_ROWS],
        note=note if len(rows) <= _MOST_ROWS else f"{note}; {_MOST_ROWS} of {len(rows)} planners are shown",
    )


def _order(found: Order) -> _Table:
    bound = "no order has less" if found.optimal else f"no order has less than {format_bytes(found.lower_bound)}"
    rows = {
        "peak": f"{format_bytes(found.peak_memory)}, {bound}",
        "ops": _beginning(found.order),
        "found by": f"{found.method}, in {format_seconds(found.runtime, 2)}",
    }
    return _Table(title=f"order of {counted(len(found.order), 'op')}", rows=[*rows.items()])


def _beginning(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f", .. {names[-1]}" if len(names) > 4 else "")


def _placement(found: Placement) -> _Table:
    known = "claimed" if found.claimed else "proven"
    bound = f"{known} lowest" if found.optimal else f"{known} to be at least {format_bytes(found.lower_bound)}"
    rows = {
        "height": f"{format_bytes(found.height)}, {bound}",
        "load": format_bytes(found.load),
        "fragmentation": format_percent(found.fragmentation),
        "found by": f"{found.method}, in {format_seconds(found.runtime, 2)}",
    }
    return _Table(title=f"addresses of {counted(len(found.buffers), 'buffer')}", rows=[*rows.items()])


def _bounds(found: Bounds) -> _Table:
    names = ("best", "compute", "transfer", "fractional", "recompute")
    rows = {name: format_seconds(getattr(found, name)) for name in names}
    if found.interruptible is not None:
        proven = "" if found.interruptible_proven else ", or more"
        rows["interruptible"] = f"{format_seconds(found.interruptible)}{proven}"
    return _Table(title="lower bounds", rows=[*rows.items()])


def _validation(found: ValidationReport) -> _Table:
    on = "all plans" if found.bound_on == "all" else "plans that run each op once, in graph order"
    rows = {
        "makespan": format_seconds(found.makespan),
        "lower bound": f"{format_seconds(found.lower_bound)}, on {on}",
        "peak": format_bytes(found.peak_memory),
        "moved": _moved(found.bytes_out, found.bytes_in),
        "recomputed": _recomputed(len(found.recomputed), found.recompute_time),
    }
    if found.claimed_lower_bound is not None:
        confirmed = "confirmed" if found.proven else "not confirmed"
        rows["claimed bound"] = f"{format_seconds(found.claimed_lower_bound)}, {confirmed}"
    return _Table(title=f"a valid plan of {counted(len(found.start), 'step')}", rows=[*rows.items()])


_TABLES: Mapping[type, Callable[[Any], _Table]] = {
    Bounds: _bounds,
    Comparison: _comparison,
    Fit: _fit,
    Frontier: _frontier,
    Order: _order,
    Placement: _placement,
    Result: _result,
    Sweep: _sweep,
    ValidationReport: _validation,
}
