"""The allocator's rules, on steps that are worked out by hand."""

from __future__ import annotations

import pytest
from bench.gpu.gaps import Event, FullError, live, played, row

PAGE = 20 << 20


def step(text: str) -> list[Event]:
    """`+a2` takes two pages, `-a` gives them back."""
    sizes: dict[str, int] = {}
    found: list[Event] = []
    for word in text.split():
        name = word[1]
        sizes.setdefault(name, int(word[2:] or 0) * PAGE)
        found.append(("take" if word[0] == "+" else "give", name, sizes[name]))
    return found


def test_a_gap_between_two_tensors_is_lost() -> None:
    """When `d` comes, `a` and `c` have left two gaps of two pages each, and three are needed."""
    gaps = step("+a2 +b1 +c2 +e1 -a -c +d3 -b -e -d")
    assert live(gaps) == 6 * PAGE
    *_, free = played(gaps, float("inf"))
    assert free.most == 9 * PAGE
    assert row(gaps, 0.5) == "none"
    assert [(one.retries, one.ever // PAGE) for one in played(gaps, 6.6 * PAGE)] == [(1, 9), (0, 1), (0, 0), (0, 0)]
    assert row(gaps, 0.1) == "none"  # once it repeats


def test_the_smallest_block_that_is_large_enough() -> None:
    *_, free = played(step("+a3 +b1 +c1 +d1 -a -c +e1 +f3 -b -d -e -f"), float("inf"))
    assert free.most == 6 * PAGE


def test_a_page_that_is_used_in_part_stays() -> None:
    """Half a page is no whole one: what is live fits, and still there is no room."""
    half = PAGE // 2
    words: list[Event] = [("take", "a", half), ("take", "b", half), ("give", "a", half), ("take", "c", PAGE)]
    words += [("give", "b", half), ("give", "c", PAGE)]
    assert live(words) == 1.5 * PAGE
    with pytest.raises(FullError):
        list(played(words, 1.5 * PAGE))
    assert row(words, 0.0) == "out of memory"
    assert row(words, 0.4) == "none"
