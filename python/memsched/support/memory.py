"""Memory that is asked for beforehand: libraries that end the process where they get none."""

from __future__ import annotations


def demand_memory(reason: str, size: int) -> None:
    """Raise MemoryError with this reason unless the process may have `size` more bytes."""
    import numpy as np

    try:
        np.empty(size, dtype=np.uint8)  # asked for, and not written to
    except (MemoryError, ValueError) as error:
        raise MemoryError(reason) from error
