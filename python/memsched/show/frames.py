"""The rows of values that know no data frames: `memsched` gives the classes these, and the methods of `Tabular`."""

from __future__ import annotations

from typing import Any

from memsched._core import Chain
from memsched.arena.placement import Placement


def chain_columns(chain: Chain) -> dict[str, tuple[type, list[Any]]]:
    """A row for each stage, after one for the input, as `Chain.from_frame` reads them.

    They hold all but the chain's name, provenance and pieces. `resident` stands in the row of the input.
    """

    def stages(kind: type, values: Any) -> tuple[type, list[Any]]:
        return kind, [None, *values]

    overheads = ("forward_overhead", "transient_overhead", "backward_overhead")
    return {
        "name": stages(str, chain.names),
        "forward_time": stages(float, chain.forward_time.tolist()),
        "backward_time": stages(float, chain.backward_time.tolist()),
        "activation": (int, chain.activation.tolist()),
        "gradient": (int, chain.gradient.tolist()),
        "saved": stages(int, chain.saved.tolist()),
        **{key: stages(int, getattr(chain, key).tolist()) for key in overheads},
        "resident": (int, [chain.resident, *[0] * chain.n]),
    }


def placement_columns(placement: Placement) -> dict[str, tuple[type, list[Any]]]:
    """A row for each buffer, with its offset."""
    buffers = placement.buffers
    moments = [moment for one in buffers for moment in (one.start, one.end)]
    kind = int if all(isinstance(moment, int) for moment in moments) else float
    return {
        "name": (str, [one.name for one in buffers]),
        "start": (kind, [one.start for one in buffers]),
        "end": (kind, [one.end for one in buffers]),
        "size": (int, [one.size for one in buffers]),
        "alignment": (int, [one.alignment for one in buffers]),
        "offset": (int, list(placement.offsets)),
    }
