"""The largest size that fits: the same by guesses as one size after another, in fewer tries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsched.torch.batches import largest_size, largest_within


def one_after_another(needs: list[float], most: int) -> int:
    return next((size for size, need in enumerate(needs, 1) if need > most), len(needs) + 1) - 1


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(0, 30_000), st.integers(1, 60), st.integers()
)
def test_any_growth(steps: list[int], most: int, start: int, fixed: int) -> None:
    """Needs that grow anyhow, and what is said to be fixed is anything."""
    needs = [float(sum(steps[:k])) for k in range(1, len(steps) + 1)]

    def need(size: int) -> float:
        return needs[size - 1] if size <= len(needs) else math.inf

    assert largest_within(need, most, start, fixed) == one_after_another(needs, most)
    assert largest_size(lambda size: need(size) <= most, start) == one_after_another(needs, most)


@pytest.mark.parametrize("start", [1, 64, 1000])
@pytest.mark.parametrize("most", [99, 100, 107, 7_000, 100_000, 12_345_678])
def test_needs_on_a_line_take_few_tries(start: int, most: int) -> None:
    asked: list[int] = []

    def need(size: int) -> float:
        asked.append(size)
        return 100 + 7 * size + (3 if size % 2 else 0)

    found = largest_within(need, most, start, 100)
    assert found == max((k for k in range(2_000_000) if 100 + 7 * k + (3 if k % 2 else 0) <= most and k), default=0)
    assert len(asked) <= 7
