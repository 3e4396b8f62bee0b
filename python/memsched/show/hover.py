"""What a notebook shows of a placement where the pointer is: the name of a buffer, its bytes, and its stack."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from memsched.arena.buffers import Buffer
from memsched.arena.placement import Placement
from memsched.errors import visible
from memsched.show.arena import origin
from memsched.support.formats import counted, exact_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRID = 1000  # the picture is as wide and as high
_CALLS = 8  # of a stack
_LONGEST = 240  # letters of a line

# Drawn over the picture, in its coordinates.
STYLE = """\
.memsched .picture{position:relative}
.memsched svg{position:absolute;left:0;top:0;width:100%;height:100%}
.memsched rect{fill:transparent}
.memsched rect:hover{stroke:currentColor;stroke-width:2px;vector-effect:non-scaling-stroke}"""


def _words(buffer: Buffer, offset: int) -> str:
    more = len(buffer.stack) - _CALLS
    lines = [
        *([buffer.name] if buffer.name is not None else []),
        f"{exact_bytes(buffer.size)} at {offset}, from {buffer.start} to {buffer.end}",
        *buffer.stack[:_CALLS],
        *([f"… {counted(more, 'more call')}"] if more > 0 else []),
    ]
    shown = (visible(line) for line in lines)
    return "\n".join(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…" for line in shown)


def overlay(figure: Figure, placement: Placement, most: int) -> tuple[str, str]:
    """Invisible rectangles over the picture of a placement, with titles: at most so many letters; and a note.

    Those that are seen best come first. Empty if there are none.
    """
    (axes, *_), zero = figure.axes, origin(placement)
    box, (first, until), (_, top) = axes.get_position(), axes.get_xlim(), axes.get_ylim()
    highest = max((path.get_extents().y1 for path in axes.collections[0].get_paths()), default=0.0)
    if not highest:
        return "", ""
    byte = highest / max(offset + one.size for one, offset in _alive(placement)) / top * box.height * _GRID
    wide = box.width * _GRID / (until - first)
    rows = []
    for one, offset in _alive(placement):
        width, height = (one.end - one.start) * wide, one.size * byte
        left, upper = box.x0 * _GRID + (one.start - zero - first) * wide, (1 - box.y0) * _GRID - offset * byte - height
        rows.append((width * height, left, upper, width, height, one, offset))
    rows.sort(key=lambda row: -row[0])
    parts: list[str] = []
    size = 0
    for _, left, upper, width, height, one, offset in rows:
        place = f'x="{left:.5g}" y="{upper:.5g}" width="{width:.4g}" height="{height:.4g}"'
        parts.append(f"<rect {place}><title>{escape(_words(one, offset))}</title></rect>")
        size += len(parts[-1])
        if size > most:
            parts.pop()
            break
    if not parts:
        return "", ""
    note = "point at a buffer to see its name and bytes"
    if any(one.stack for one in placement.buffers):
        note = "point at a buffer to see where it was allocated"
    if len(parts) < len(rows):
        note += f", of the {len(parts)} largest of {len(rows)}"
    svg = f'<svg viewBox="0 0 {_GRID} {_GRID}" preserveAspectRatio="none">{"".join(parts)}</svg>'
    return svg, note


def _alive(placement: Placement) -> list[tuple[Buffer, int]]:
    pairs = zip(placement.buffers, placement.offsets, strict=True)
    return [(one, offset) for one, offset in pairs if one.size > 0 and one.end > one.start]
