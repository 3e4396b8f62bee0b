"""The picture of ways to run a training step: what memory each needs, beside that of the device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memsched.show.plots.bars import Bar, draw_bars
from memsched.show.plots.figure import byte_unit, drawing, heading, shortened
from memsched.show.plots.palette import BUDGET, CLASSES, IDEAL
from memsched.show.words import time_of, unit_of
from memsched.study.fit import LARGER, Fit, Way
from memsched.support.formats import exact_bytes, unit_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_fit(found: Fit, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a bar for each way to run a training step, and the memory of the device as a line.

    Parameters
    ----------
    found : Fit
    path : path, optional
        Where to save the picture: .png, .svg or .pdf.

    Raises
    ------
    InvalidInputError
        The path ends otherwise.
    MemschedError
        matplotlib is not installed.
    """
    memory = found.memory
    most = max(memory, *(one.peak_memory for one in found.ways))
    colours = {True: CLASSES["keep"], False: IDEAL}
    with drawing(path, unit_of(found)) as figure:
        factor, unit = byte_unit(most)
        bars = [
            Bar(one.name, one.peak_memory / factor, colours[one.fits], _said(one, found.searched)) for one in found.ways
        ]
        axes = draw_bars(figure, bars, f"peak memory of the process ({unit})", most / factor)
        axes.axvline(memory / factor, **BUDGET)
        told = f"dashed: the device has {exact_bytes(memory, unit_written(memory))}; grey bars do not fit"
        heading(figure, f"What a training step of {shortened(found.name, 60)} needs", told)
    return figure


def _said(one: Way, searched: str | None) -> str:
    time = one.note if one.note == LARGER else time_of(one)  # what that needs for this batch is of no use
    return time if one.largest is None else f"{time}, {searched} up to {one.largest}"
