"""The largest size that fits: the same by guesses as one size after another, in fewer tries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.torch.batches import OtherSizeError, PlannedSizes, largest_aligned, largest_size, largest_within


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


@given(
    start=st.integers(1, 600),
    unit=st.sampled_from([1, 8]),
    more=st.sampled_from([-10, 0, 2, 20]),
    limit=st.integers(0, 8000),
    end=st.none() | st.integers(1, 4000),
)
def test_the_next_size_does_not_fit_nor_does_the_next_multiple(
    start: int, unit: int, more: int, limit: int, end: int | None
) -> None:
    """Sizes that are no multiple of a unit run by other operations, need more or less, and none runs beyond an end."""

    def runs(size: int) -> bool:
        return end is None or size <= end

    def fits(size: int) -> bool:
        return runs(size) and size + (size * more // 100 if size % unit else 0) <= limit

    captured: set[int] = set()

    def at(size: int) -> ms.Graph:
        captured.add(size)
        if not runs(size):
            raise OtherSizeError("too long")
        choice = {"alg": "only", "time": float(size), "workspace": 0}
        kind = "multiple" if size % unit == 0 else "other"
        return ms.Graph(
            tensors=[{"name": "y", "size": size, "role": "activation"}],
            ops=[{"name": kind, "phase": "fwd", "reads": [], "writes": ["y"], "choices": [choice]}],
        )

    def search(step: int, first: int, known: int) -> int | None:
        sizes = PlannedSizes(
            lambda k: at(step * k),
            first,
            ms.Device(1 << 40),
            known=[start // step] if start % step == 0 else [],
            runs=lambda k: runs(step * k),
            fits=lambda k: fits(step * k),
            say=lambda what, k: None,
        )
        return sizes.largest(known)

    found = largest_aligned(search, start, unit)
    assert len(captured) <= 60
    if found is None:
        assert end is not None  # sizes end before two are alike
        return
    assert fits(found) or found == 0
    assert not fits(found + 1)
    assert not fits((found // unit + 1) * unit)
    assert more != 0 or found == max((size for size in range(1, limit + 1) if fits(size)), default=0)
