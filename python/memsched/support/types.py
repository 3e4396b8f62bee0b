"""Types shared by many signatures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Progress = Callable[[float], object] | None
"""A callback that long work calls with a fraction from 0 to 1."""

VERBS = ("run", "offload", "prefetch", "free", "update")
"""Of the steps of a schedule; each step has one of them as a key."""

Flags = npt.NDArray[np.uint8]
"""One entry per tensor, or one such row per set: 1 if the tensor is chosen."""

Size = int | str
"""Bytes: a whole number, or a text with a unit, such as "6GiB"."""

Quantity = float | str
"""Bytes, bytes per second or seconds: a number, or a text with a unit, such as "6GiB", "12GB/s" or "2 ms"."""
