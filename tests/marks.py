"""Parameters that only some runs of the tests have."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: Any) -> list[Any]:
    """More of the same kind, left to the exhaustive tests."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]
