"""The rule that judges the papers' claims, and the pages that it wrote."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.common import table
from bench.papers.page import points
from bench.papers.verdict import (
    CHANGED,
    CONFIRMED,
    HEAD,
    MUCH,
    NOT_COMPARABLE,
    OFTEN,
    REFUTED,
    RULE,
    THEIRS,
    TOLERANCE,
    VERDICTS,
    Cases,
    Claim,
    Evidence,
    Figure,
    Ordering,
    Runs,
    Setting,
    judge,
)
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]

PAGES = ("europar2020", "pofo2021", "modnn2018", "pooch2019", "olla2022", "superneurons2018")
VALUES = st.floats(0.01, 100)
OTHER = st.sampled_from(
    [Setting(algorithm="a beam"), Setting(hardware="another link"), Setting(network="another batch")]
)


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
    """Of any kind, with at least one case."""
    kind = draw(st.sampled_from(["figure", "ordering", "cases", "runs"]))
    if kind == "figure":
        low = draw(VALUES)
        high = draw(st.one_of(st.just(low), st.floats(low, 200), st.just(math.inf)))
        values = draw(st.lists(VALUES, min_size=1, max_size=6))
        return Figure(values=values, low=low, high=high, of=draw(st.sampled_from(["each", "mean", "median"])))
    if kind == "ordering":
        one = st.one_of(st.none(), VALUES)
        pairs = st.tuples(one, one).filter(lambda pair: pair != (None, None))
        return Ordering(pairs=draw(st.lists(pairs, min_size=1, max_size=6)), share=draw(st.sampled_from([1.0, OFTEN])))
    flags = draw(st.lists(st.booleans(), min_size=1, max_size=6))
    if kind == "cases":
        return Cases(holds=flags)
    return Runs(expected=flags, found=draw(st.lists(st.booleans(), min_size=len(flags), max_size=len(flags))))


@given(st.lists(evidence(), min_size=1, max_size=3), OTHER)
def test_another_setting_is_never_judged(found: list[Evidence], setting: Setting) -> None:
    assert judge(setting, *found) == NOT_COMPARABLE
    claim = Claim(text="", paper="", setting=setting, evidence=tuple(("", one) for one in found))
    assert claim.row()[3] == NOT_COMPARABLE
    assert setting.differences() in claim.row()[4]


@given(st.lists(evidence(), min_size=1, max_size=3))
def test_a_claim_is_as_good_as_its_worst_part(found: list[Evidence]) -> None:
    each = [judge(THEIRS, one) for one in found]
    assert all(one in VERDICTS for one in each)
    assert judge(THEIRS, *found) == max(each, key=[CONFIRMED, CHANGED, REFUTED, NOT_COMPARABLE].index)
    assert all(one.text() for one in found)


@pytest.mark.parametrize("empty", [Figure(values=[], low=1, high=1), Ordering(pairs=[]), Cases(holds=[])])
def test_nothing_measured_is_not_comparable(empty: Evidence) -> None:
    assert judge(THEIRS) == judge(THEIRS, empty) == judge(THEIRS, Cases(holds=[True]), empty) == NOT_COMPARABLE
    assert judge(THEIRS, Ordering(pairs=[(None, None)])) == NOT_COMPARABLE


@given(st.lists(VALUES, min_size=1, max_size=8), VALUES, st.floats(0, 50))
def test_a_confirmed_figure_has_all_its_cases_within_the_tolerance(ours: list[float], low: float, width: float) -> None:
    """The median case may be perfect: one case outside is enough."""
    found = judge(THEIRS, Figure(values=ours, low=low, high=low + width))
    widest = 1 + TOLERANCE
    assert (found == CONFIRMED) == all(low / widest <= value <= (low + width) * widest for value in ours)
    outside = [*ours, 1000 * (low + width)]
    assert judge(THEIRS, Figure(values=outside, low=low, high=low + width)) != CONFIRMED


@given(st.lists(VALUES, min_size=1, max_size=2), VALUES, st.sampled_from(["mean", "median"]))
def test_a_mean_needs_three_cases(ours: list[float], paper: float, of: str) -> None:
    assert judge(THEIRS, Figure(values=ours, low=paper, high=paper, of=of)) == NOT_COMPARABLE


@given(st.lists(VALUES, min_size=3, max_size=8), VALUES, st.sampled_from(["mean", "median"]))
def test_no_single_case_carries_a_confirmed_mean(ours: list[float], paper: float, of: str) -> None:
    pick: Callable[[list[float]], float] = statistics.fmean if of == "mean" else statistics.median
    every = [pick(ours), *(pick(ours[:k] + ours[k + 1 :]) for k in range(len(ours)))]
    found = judge(THEIRS, Figure(values=ours, low=paper, high=paper, of=of))
    widest = 1 + TOLERANCE
    assert (found == CONFIRMED) == all(paper / widest <= value <= paper * widest for value in every)


@pytest.mark.parametrize(
    ("ours", "found"),
    [
        ([1.45, 1.40, 1.50], CONFIRMED),
        ([1.03, 1.89, 2.56], CHANGED),  # the paper's figure is within the range, and nobody measured it
        ([1.45, 0.9, 0.8], REFUTED),  # mostly on the other side of no effect
        ([14.0, 15.0], REFUTED),
    ],
)
def test_a_ratio(ours: list[float], found: str) -> None:
    assert judge(THEIRS, Figure(values=ours, low=1.45, high=1.45, nothing=1)) == found


@pytest.mark.parametrize(
    ("ours", "found"),
    [([1.19, 1.0], CONFIRMED), ([1.21, 1.0, 1.0], CHANGED), ([1.21, 1.0], REFUTED)],
)
def test_a_bound_has_no_tolerance(ours: list[float], found: str) -> None:
    assert judge(THEIRS, Figure(values=ours, low=-math.inf, high=1.2)) == found


def test_a_bound_on_a_mean_needs_each_of_its_cases() -> None:
    values = [0.0, 0.0, 3.0]
    assert judge(THEIRS, Figure(values=values, low=-math.inf, high=1.2, of="mean")) == CHANGED


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9))
def test_an_ordering_counts_every_case(pairs: list[tuple[float, float]]) -> None:
    holds = [better <= other * (1 + 1e-5) for better, other in pairs]
    found = judge(THEIRS, Ordering(pairs=list(pairs)))
    if found == CONFIRMED:
        assert all(holds)
        assert statistics.median([other / better for better, other in pairs]) > 1
    assert (found == REFUTED) == (sum(holds) <= len(holds) / 2)
    assert judge(THEIRS, Ordering(pairs=[*pairs, (2.0, 1.0)])) != CONFIRMED


def test_equal_cases_confirm_nothing() -> None:
    assert judge(THEIRS, Ordering(pairs=[(1.0, 1.0)] * 5)) == CHANGED
    assert judge(THEIRS, Ordering(pairs=[(1.0, 1.0)] * 2 + [(1.0, 1.2)] * 3)) == CONFIRMED
    assert judge(THEIRS, Ordering(pairs=[(1.0, 1.01)] * 5)) == CONFIRMED
    assert judge(THEIRS, Ordering(pairs=[(1.0, 1.01)] * 5, margin=MUCH)) == CHANGED


def test_what_has_no_plan_has_lost() -> None:
    assert judge(THEIRS, Ordering(pairs=[(None, 1.0), (1.0, 2.0)])) == REFUTED
    assert judge(THEIRS, Ordering(pairs=[(1.0, None), (1.0, 2.0)])) == CONFIRMED
    assert "alone without a plan in 1" in Ordering(pairs=[(None, 1.0)]).text()


def test_out_of_memory_is_an_outcome() -> None:
    """It can be claimed, and either side can be wrong about it."""
    assert judge(THEIRS, Runs(expected=[True, False], found=[True, False])) == CONFIRMED
    assert judge(THEIRS, Runs(expected=[False, False], found=[True, True])) == REFUTED
    assert judge(THEIRS, Runs(expected=[True, True, True], found=[True, True, False])) == CHANGED
    cannot = Setting(algorithm="no plan can run out of memory there")
    assert judge(cannot, Runs(expected=[False], found=[True])) == NOT_COMPARABLE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Figure(values=[math.nan], low=1, high=1),
        lambda: Figure(values=[1.0], low=2, high=1),
        lambda: Figure(values=[1.0], low=1, high=1, of="best"),
        lambda: Ordering(pairs=[(1.0, math.nan)]),
    ],
)
def test_nothing_can_be_judged_by_what_is_no_number(wrong: Callable[[], Evidence]) -> None:
    with pytest.raises(ValueError, match=r"number|begin|of is"):
        wrong()


def rows_of(page: str) -> list[str]:
    """The lines of the table of claims in a committed page."""
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")
    return next(part for part in text.split("\n\n") if part.startswith("| claim ")).splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_the_kept_points_give_the_verdicts_of_the_page(page: str) -> None:
    claims = importlib.import_module(f"bench.papers.{page}_claims").claims(points(page)[1])
    assert all(isinstance(claim, Claim) for claim in claims)
    assert rows_of(page) == table(HEAD, [claim.row() for claim in claims]).splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_every_claim_of_a_page_has_a_verdict_of_the_rule(page: str) -> None:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in rows_of(page))
    assert tuple(header) == HEAD
    assert rows
    assert all(len(row) == len(HEAD) and row[3] in VERDICTS for row in rows)
    assert RULE in (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_no_page_writes_a_verdict_of_its_own(page: str) -> None:
    for file in (ROOT / "bench" / "papers").glob(f"{page}*.py"):
        text = file.read_text(encoding="utf-8")
        assert not any(f'"{one}"' in text for one in VERDICTS), file.name
