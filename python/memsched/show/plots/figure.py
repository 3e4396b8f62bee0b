"""What all pictures share: units, the empty figure, axes, legends, headings, and the file."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memsched.errors import InvalidInputError, MemschedError, visible
from memsched.show.plots.palette import ink
from memsched.support.files import path_of, write_bytes
from memsched.support.formats import byte_units, written_like
from memsched.support.interrupt import not_lost, optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.text import Text

SUFFIXES = (".png", ".svg", ".pdf")
SIZE = (10.0, 5.2)  # inches
_SIZES = (8.0, 6.5, 5.5)  # points, of names in boxes; those that are written upwards have the second or the third
_CUTS = (12, 8)  # letters of a name that is cut at its end
_AIR = (2.0, 1.0)  # points, by which a box is longer and higher than its name
_SPARE = 1.03  # since letters of another size are rounded to pixels in another way
_TALL = "Fy"  # as high as names are: bars have the same room whatever their letters
_MEASURED = 10.0  # points, of a text that is measured
NOISE = re.compile(
    r"^_+|(?<![a-z])native_|scaled_dot_product_(?=\w*attention)|_legit(_functional|_no_training)?|_for_cpu"
)
_THINNEST = 0.25  # of the size of a text is the width of its letters at least


def time_unit(makespan: float) -> tuple[float, str]:
    """Units per second, and the name of the unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if makespan * factor >= 1:
            return factor, unit
    return (1.0, "s") if makespan == 0 else (1e9, "ns")


def byte_unit(most: int) -> tuple[int, str]:
    """Bytes per unit, and the name of the unit."""
    base, units = byte_units()
    power = max((power for power in range(1, 5) if most >= base**power), default=0)
    return base**power, units[power] if power else "bytes"


def clear(axes: Axes, grid: Literal["both", "x", "y"] | None = "both") -> None:
    """Put a light grid behind what is drawn, and take the frame away but at the axes."""
    if grid:
        axes.grid(axis=grid, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(figure: Figure, handles: Sequence[Any], columns: int | None = None, **style: Any) -> None:
    """A legend below the axes, on one line unless there are fewer columns."""
    style = {"fontsize": 9.5, "handlelength": 1.5, "columnspacing": 1.6, **style}
    figure.legend(handles=handles, loc="lower center", ncols=columns or len(handles), frameon=False, **style)


def heading(figure: Figure, title: str, subtitle: str = "") -> None:
    """A bold line at the top left, and a smaller one below."""
    inch = 1 / figure.get_figheight()
    figure.text(0.012, 1 - (0.286 if subtitle else 0.38) * inch, title, fontsize=13, weight="bold")
    if subtitle:
        figure.text(0.012, 1 - 0.572 * inch, subtitle, fontsize=10.5, color="0.25")


def text_size(figure: Figure | SubFigure, text: str, points: float, most: float) -> tuple[float, float]:
    """Width and height in points of a line of text of this size; a width above `most` may be too small."""
    from matplotlib.font_manager import FontProperties

    least = _THINNEST * points * len(text)
    if least > most:  # measuring a long name takes long
        return least, points
    font = FontProperties(size=_MEASURED)
    canvas: Any = figure.canvas  # of Agg, which measures
    with warnings.catch_warnings():  # of letters that the font lacks, which are told when the picture is written
        warnings.simplefilter("ignore")
        width, height, _ = canvas.get_renderer().get_text_width_height_descent(text, font, False)
    scale = points / _MEASURED * 72 / figure.dpi
    return scale * float(width), scale * float(height)


def has_room(box: tuple[float, float]) -> bool:
    """Whether a letter has room in a box of this width and height in points."""
    return min(box) > 0.7 * _SIZES[-1] and max(box) > _SIZES[-1]


def write_in(
    axes: Axes, names: Sequence[str], box: tuple[float, float], at: tuple[float, float], colour: str
) -> Text | None:
    """Write the first name that has room in a box of this width and height in points, from left to right or upwards.

    The middle of the box is at a place in the axes; the box has a colour. Returns None if no name had room.
    """
    figure = axes.get_figure()
    assert figure is not None
    ways = [(_SIZES[0], 0), (_SIZES[1], 0), (_SIZES[1], 90), (_SIZES[2], 0), (_SIZES[2], 90)]
    high = _SPARE * text_size(figure, _TALL, 1.0, math.inf)[1]
    for name in names:
        wide = _SPARE * text_size(figure, name, 1.0, max(box) / _SIZES[-1])[0]
        for size, rotation in ways:
            along, across = box if rotation == 0 else box[::-1]
            if size * wide <= along - _AIR[0] and size * high <= across - _AIR[1]:
                style: dict[str, Any] = {
                    "fontsize": size,
                    "rotation": rotation,
                    "color": ink(colour),
                    "parse_math": False,
                }
                return axes.text(*at, name, ha="center", va="center", **style)
    return None


def check_matplotlib() -> None:
    """MemschedError if it is not installed."""
    optional("matplotlib.backends.backend_agg", MemschedError("plots need matplotlib; pip install 'memsched[plot]'"))


@contextlib.contextmanager
def drawing(path: str | os.PathLike[str] | None, unit: str = "") -> Iterator[Figure]:
    """An empty figure to draw in, with sizes in a unit like this; it is written to `path`, always with the same bytes.

    MemschedError if matplotlib is not installed. Ctrl-C is not lost in code of matplotlib.
    """
    if path is not None:
        check_suffix(path)
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with not_lost(), written_like(unit):
        figure = Figure(figsize=SIZE, dpi=150)
        FigureCanvasAgg(figure)
        yield figure
        as_written(figure)
        if path is not None:
            _write(figure, path)


def readable(name: str) -> str:
    """The name of an op or a tensor without what only PyTorch needs in it.

    Examples
    --------
    >>> readable("_scaled_dot_product_flash_attention_for_cpu_2:0"), readable("native_layer_norm_backward")
    ('flash_attention_2:0', 'layer_norm_backward')
    """
    return NOISE.sub("", name) or name


def bar_names(name: str, layer: str | None = None) -> list[str]:
    """What a bar may be called, the longest first: an op of a chain with its layer, others with less and less.

    An op "module/op" has the names of its inner modules in the end, others are cut at their ends.

    Examples
    --------
    >>> bar_names("F4", "layer1.0"), bar_names("layer1.0.bn1/native_batch_norm")
    (['F4 layer1.0', 'F4'], ['layer1.0.bn1/batch_norm', 'layer1.0.bn1', '…0.bn1', '…bn1'])
    """
    if layer:
        return [f"{name} {layer}", name]
    module, _, op = name.rpartition("/")
    if not module:
        return [readable(name), *_cut(readable(name))]
    parts = module.split(".")
    words = next((at for at in reversed(range(len(parts))) if not parts[at].isdigit()), 0)  # numbers alone tell nothing
    inner = [f"…{'.'.join(parts[at:])}" for at in range(1, words + 1)]
    return [f"{module}/{readable(op)}", module, *(inner or _cut(module))]


def _cut(name: str) -> list[str]:
    return [f"{name[: most - 1]}…" for most in _CUTS if len(name) > most]


def shortened(name: str, most: int) -> str:
    """A name of at most so many letters: its middle is left out."""
    name = visible(name)
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - half]}…{name[-half:]}"


def as_written(figure: Figure) -> None:
    """Show each text as it is written: no formulas between dollars, and control characters as Python writes them."""
    from matplotlib.text import Text

    def plain(text: str) -> str:
        return "\n".join(map(visible, text.split("\n")))

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            if any(plain(label) != label for label in labels):
                axis.set_ticklabels(list(map(plain, labels)))
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(plain(text.get_text()))


def _write(figure: Figure, path: str | os.PathLike[str]) -> None:
    kind = check_suffix(path)
    import matplotlib

    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
    with matplotlib.rc_context({"svg.hashsalt": "memsched"}):  # else its names of parts are random
        figure.savefig(content, format=kind, metadata=metadata)
    write_bytes(path, content.getvalue())


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The picture format given by the suffix of a path; InvalidInputError unless it is .png, .svg or .pdf."""
    name = path_of(path)
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        ends = f"ends in {suffix!r}" if suffix else "has no ending"
        raise InvalidInputError(f"'{name}' {ends}; a picture ends in {', '.join(SUFFIXES)}")
    return suffix[1:]
