"""Readers of a newcomer's own data: tables, graphs of networkx, ONNX models, and snapshots of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names in quotes, to be shown in an error; no more than `most` of them.

    Examples
    --------
    >>> listed(["time", "size"])
    "'time', 'size'"
    """
    texts = [f"'{name}'" for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
