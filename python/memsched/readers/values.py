"""What readers of tables and graphs share: which cells are empty, and how names are listed in an error."""

from __future__ import annotations

from collections.abc import Iterable

from memsched.support import checks


def is_empty(value: object) -> bool:
    """Whether a cell is empty: None, NaN, the marks of pandas for what is missing, or a blank text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return not value.strip()
    return checks.is_number(value) and value != value


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names in quotes, to be shown in an error; no more than `most` of them.

    Examples
    --------
    >>> listed(["time", "size"])
    "'time', 'size'"
    """
    texts = [f"'{name}'" for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
