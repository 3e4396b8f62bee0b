"""What notebooks show of a value and what `print` prints: a small table of its figures, and its picture."""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING

from memsched.arena.placement import Placement
from memsched.errors import MemschedError, visible
from memsched.result import Result
from memsched.show.hover import STYLE, overlay
from memsched.show.plots.addresses import plot_addresses
from memsched.show.plots.comparison import plot_comparison
from memsched.show.plots.fit import plot_fit
from memsched.show.plots.frontier import plot_frontier
from memsched.show.plots.plan import plot
from memsched.show.plots.sweep import plot_sweep
from memsched.show.summaries import Table, known_of, table_of
from memsched.study.comparison import Comparison
from memsched.study.fit import Fit
from memsched.study.frontier import Frontier
from memsched.study.sweep.names import link_of, problem_of
from memsched.study.sweep.table import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 100  # characters of a cell
_MOST_MARKS = 5000  # in a picture that a notebook draws unasked: about a second
_MOST_PANELS = 12
_MOST_PIXELS = 1800  # in the width of a picture
_COLOURS = 128  # of a picture, with those of smooth edges
_MOST_BYTES = 140_000  # of a picture; a third more as text
_MOST_LETTERS = (60_000, 195_000)  # of what is shown where the pointer is, and with the picture

# Text has the colour of the notebook, so that it can be read on dark ones, where the light and dark of a picture change
# places (of Jupyter, VS Code, Colab, and pages of Sphinx).
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
body[data-jp-theme-light=false] .memsched img,body.vscode-dark .memsched img,html[theme=dark] .memsched img,\
html[data-theme=dark] .memsched img{filter:invert(.91) hue-rotate(180deg)}
@media(max-width:600px){.memsched table{font-size:.85em}.memsched th,.memsched td{padding:.2em .35em}\
.memsched .picture{min-width:0!important}}
"""


def html(shown: object) -> str:
    """The table of a value, and its picture if it is not too large and matplotlib is installed."""
    table = table_of(shown)
    picture, told = _image(shown, table.title)
    head = "".join(f"<th{_scope(k)}>{_cell(name)}</th>" for k, name in enumerate(table.head))
    notes = [part for part in (*table.note.splitlines(), told) if part]
    parts = [
        f'<div class="memsched"><style>\n{_STYLE}{STYLE}\n</style><table><caption>{_cell(table.title)}</caption>',
        f'<thead><tr class="faint">{head}</tr></thead>' if head else "",
        f"<tbody>{''.join(_row(table, k) for k in range(len(table.rows)))}</tbody></table>",
        *(f'<p class="faint">{escape(visible(note))}</p>' for note in notes),
        picture,
    ]
    return "".join(parts) + "</div>"


def text(shown: object) -> str:
    """The table of a value as lines of text."""
    table = table_of(shown)
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
    return "\n".join([*lines, *map(visible, note.splitlines())])  # with code to copy, perhaps


def draw(shown: object, path: str | os.PathLike[str] | None = None) -> Figure:
    """The picture of a value."""
    picture: Callable[..., Figure] = known_of(_PICTURES, shown)[0]
    return picture(shown.rows if isinstance(shown, Sweep) else shown, path)


# Class -> its picture, and what that has a mark for; "": a notebook does not draw it unasked, beside its table.
_PICTURES: Mapping[type, tuple[Callable[..., Figure], str]] = {
    Comparison: (plot_comparison, ""),
    Fit: (plot_fit, "ways"),
    Frontier: (plot_frontier, "results"),
    Placement: (plot_addresses, "buffers"),
    Result: (plot, "schedule"),
    Sweep: (plot_sweep, "rows"),
}


def _is_small(shown: object) -> bool:
    """Whether the value has a picture that is drawn within a second or so."""
    picture = known_of(_PICTURES, shown)
    if picture is None or not picture[1] or len(getattr(shown, picture[1])) > _MOST_MARKS:
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
        flat = image.convert("RGB")  # of the ways to choose colours, this keeps those of small areas, as in a legend
        few = flat.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(small, "png", optimize=True)
    return small.getvalue()


def _scope(column: int) -> str:
    return ' scope="col"' if column == 0 else ""


def _row(table: Table, at: int) -> str:
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
