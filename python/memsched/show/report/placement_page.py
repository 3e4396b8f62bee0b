"""The page for a placement alone."""

from __future__ import annotations

from memsched.arena.placement import Placement
from memsched.show.arena import columns_of, origin
from memsched.show.plots.addresses import axis_of, kind_among, sites_of
from memsched.show.plots.figure import byte_unit
from memsched.show.report.captions import address_caption
from memsched.show.report.figures import Columns
from memsched.show.report.page import html_page
from memsched.show.report.summary import Tile
from memsched.show.report.tables import Column, Table
from memsched.show.text import Number, text
from memsched.support.formats import counted

_BUFFERS = (
    Column(title="buffer"),
    Column(title="from", kind="count", hint="as in start of the buffers"),
    Column(title="until", kind="count", hint="as in end of the buffers, which is excluded"),
    Column(title="bytes", kind="bytes"),
    Column(title="offset", kind="count", hint="its first byte in the arena"),
    Column(title="allocated in", hint="the innermost call, where a snapshot tells it"),
)


def _figure(placement: Placement) -> Columns:
    """What addresses.js draws; `kinds` are pairs of words and a colour of the style sheet."""
    zero, sites = origin(placement), sites_of([placement])
    spans = [(one.start - zero, one.end - zero) for one in placement.buffers]
    names = [kind for kind in sites if kind != "others"]
    css = {**{name: f"s{at}" for at, name in enumerate(names)}, "others": "resident", "buffer": "buffer"}
    found = columns_of(placement, spans, lambda name: kind_among(sites, name))
    top = 1.04 * max(placement.height, 1)
    return found | {
        "kinds": [[kind, css[kind]] for kind in (*names, "others", "buffer") if kind in found["kind"]],
        "along": axis_of(placement),
        "in_time": False,
        "axis_end": max((end for _, end in spans), default=0),
        "height": placement.height,
        "lower_bound": placement.lower_bound,
        "claimed": placement.claimed,
        "fragmentation": placement.fragmentation,
        "capacity": placement.height,
        "top": top,
        "unit": list(byte_unit(int(top))),
    }


def placement_page(placement: Placement) -> str:
    """The page as HTML."""
    rows = [
        [one.name or "", one.start, one.end, one.size, offset, one.stack[0] if one.stack else ""]
        for one, offset in zip(placement.buffers, placement.offsets, strict=True)
    ]
    last = len(_BUFFERS) if any(one.stack for one in placement.buffers) else -1
    buffers = Table(name="buffers-0", columns=_BUFFERS[:last], rows=[row[:last] for row in rows])
    known = "claimed" if placement.claimed else "proven"
    bound = text("{} lowest", known)
    if not placement.optimal:
        bound = text("{} to be at least {}", known, Number("bytes", placement.lower_bound))
    seconds = text("by {}, in {}", placement.method, Number("seconds", placement.runtime))
    tiles = [
        Tile(title="Height", number=Number("bytes", placement.height), note=bound),
        Tile(title="Load", number=Number("bytes", placement.load), note=text("the most that is alive at once")),
        Tile(title="Fragmentation", number=Number("percent", placement.fragmentation), note=text("lost to gaps")),
        Tile(title="Buffers", number=Number("count", len(rows)), note=seconds),
    ]
    count = counted(len(rows), "buffer")
    called = f"{count} placed by {placement.method}"
    return html_page(
        "placement.html",
        {
            "results": [{"called": called, "figures": {"addresses": _figure(placement)}}],
            "tables": {buffers.name: buffers.to_json()},
        },
        title=called,
        count=count,
        all_tiles=tiles,
        summary=address_caption(placement),
        buffers=buffers,
    )
