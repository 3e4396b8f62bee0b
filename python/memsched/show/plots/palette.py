"""The colours of pictures. Each is at least 3:1 against a white page, and colour-blind readers can tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BLUE, _DARK_BLUE, _GREEN, _GOLD, _BROWN, _PINK, _GREY, _VIOLET = (
    *("#3b97d6", "#005a96", "#008a64", "#c08a00", "#a63c00", "#c2569a", "#767676", "#6a4fa3"),
)

# What the forward makes is blue, what the backward makes brown, what is computed again gold, what travels green;
# updates of the optimiser are grey.
STREAMS = {
    "forward": _BLUE,
    "loss": _VIOLET,
    "backward": _BROWN,
    "update": _GREY,
    "recompute": _GOLD,
    "offload": _GREEN,
    "prefetch": _PINK,
}
CLASSES = {"keep": _DARK_BLUE, "swap": _GREEN, "recompute": _GOLD}
ROLES = {
    "activation": _BLUE,
    "gradient": _BROWN,
    "input": _GREEN,
    "weight": _GREY,
    "workspace": _GOLD,
    "buffer": _BLUE,
}
MEMORY, RESIDENT = _DARK_BLUE, _GREY
IDEAL = "#8c8c8c"

# Of planners' lines. One marker fewer, so that pairs repeat late; no triangle, which marks least memories.
LINES = ("#c24e00", "#0060a8", "#009e73", "#cc6aa8", "#3f9bdc", "#c08a00", "#666666", "#332288")
MARKERS = ("o", "s", "D", "P", "X", "p", "h")

# Each has the same colour and marker in all pictures; the colours of those that are drawn together differ.
PLANNERS = (
    *("pofo", "rotor", "offload", "selective", "dynprog", "greedy", "vdnn", "autoswap"),
    *("tflms", "pooch", "swap_opt", "swap_all", "by_kind", "modnn", "olla", "vdnn_sync"),
    *("vdnn_plus", "checkmate", "superneurons"),
)

BUDGET: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 3)), "linewidth": 1.1}


def line_styles(planners: Sequence[str]) -> list[tuple[int, int]]:
    """Where the colour and the marker of each line are in LINES and MARKERS.

    A planner that has a line already, as with other options, and one that is not known have what is left.

    Examples
    --------
    >>> line_styles(["rotor", "mine", "rotor"])
    [(1, 1), (0, 0), (2, 2)]
    """
    places: list[int | None] = [
        PLANNERS.index(one) if one in PLANNERS and one not in planners[:at] else None for at, one in enumerate(planners)
    ]
    left = (place for place in range(len(PLANNERS) + len(planners)) if place not in places)
    chosen = [next(left) if place is None else place for place in places]
    return [(place % len(LINES), place % len(MARKERS)) for place in chosen]


def luminance(colour: str) -> float:
    """The relative luminance of a colour such as "#3b97d6", by WCAG 2: from 0 for black to 1 for white."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def ink(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    return "black" if luminance(colour) > 0.179 else "white"  # where both have the same contrast
