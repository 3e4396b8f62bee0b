"""Types that many signatures share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Progress = Callable[[float], object] | None
"""What long work calls with a fraction from 0 to 1."""

Flags = npt.NDArray[np.uint8]
"""One entry a tensor, or a row of them a set: 1 where it is chosen."""
