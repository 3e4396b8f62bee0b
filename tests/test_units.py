"""Sizes, bandwidths and durations as people write them."""

from __future__ import annotations

import doctest
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import memsched as ms
from memsched.problems import budget
from memsched.problems.budget import memory_percent, parse_memory
from memsched.study.sweep.names import link_of
from memsched.support import formats, units
from memsched.support.documents import write_device
from memsched.support.formats import exact_bytes, format_bandwidth, format_bytes, format_link, format_seconds
from memsched.support.units import parse_bandwidth, parse_bytes, parse_chunk, parse_seconds
from memsched.testing import problems

UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])


def test_the_examples_of_the_docstrings_hold() -> None:
    for module, least in ((units, 5), (formats, 8), (budget, 4)):
        outcome = doctest.testmod(module)
        assert outcome.attempted > least
        assert outcome.failed == 0


@given(count=st.integers(0, 8), unit=st.sampled_from(sorted(UNITS)), gap=st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit(count: int, unit: str, gap: str) -> None:
    assert parse_bytes(f"{count}{gap}{unit}") == count * UNITS[unit]
    small = unit if unit in ("B", "kB") else unit.lower()  # b and kb are bits
    assert parse_bytes(f" {count}{gap}{small} ") == count * UNITS[unit]


@given(count=st.integers(0, 2**53))
def test_whole_bytes_survive_exactly(count: int) -> None:
    assert parse_bytes(str(count)) == parse_bytes(count) == count


@given(thousandths=st.integers(0, 10**6))
def test_fractions_of_a_unit_are_exact(thousandths: int) -> None:
    assert parse_bytes(f"{thousandths // 1000}.{thousandths % 1000:03}kB") == thousandths
    assert parse_bandwidth(f"{thousandths}e-3kB/s") == thousandths


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "8G",
        "8 Gib/s",
        "-1",
        "-1GB",
        "1.5",
        "1e-1",
        "nan",
        "inf",
        "1e30",
        str(2**53 + 1),
        "1,5GB",
        "1 2",
        "0x10",
        "8GiB8",
        "5%",
        "1e999",
        "1e9999999999",
        "1__0",
        "²",
    ],
)
def test_bad_sizes_are_refused_with_the_value_and_the_forms(text: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=r"8GiB \(1024\^3\)") as error:
        parse_bytes(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1,234,500MB", 1_234_500 * 10**6),
        ("1,500 B", 1500),
        ("607,359,968 bytes", 607_359_968),
        ("1,234.5 kB", 1_234_500),
        ("1,024", 1024),
    ],
)
def test_commas_between_thousands_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_bytes, "1,500MB"), (parse_seconds, "1,500 ms"), (parse_seconds, "2,750"), (parse_bandwidth, "12,200 MB/s")],
)
def test_a_comma_that_may_be_a_decimal_point_is_refused(parse: Callable[[str], float], text: str) -> None:
    """Of "1,500 ms" and "1,5 ms" in one column the first was a thousand times too long."""
    number = text.partition(" ")[0].removesuffix("MB")
    with pytest.raises(
        ms.InvalidInputError, match=f"may mean {number.replace(',', '')} and {number.replace(',', '.')}"
    ):
        parse(text)


@pytest.mark.parametrize("text", ["1,5GB", "0,500GB", "1,50MB", "1500,000kB"])
def test_other_commas_must_be_points(text: str) -> None:
    with pytest.raises(ms.InvalidInputError, match="with a comma for the decimal point"):
        parse_bytes(text)


@given(count=st.integers(0, 2**53), unit=st.sampled_from(["kB", "MB", "KiB", "MiB"]), up=st.booleans())
@example(9_999_990, "kB", False)
@example(9_999_001, "kB", True)
@example(9_999_999_999, "MB", False)
def test_a_size_in_a_unit_is_shown_below_ten_thousand(count: int, unit: str, up: bool) -> None:
    number, shown = exact_bytes(count, unit, up=up).split()[:2]
    assert float(number) < 10_000 or shown in ("PB", "PiB")


@pytest.mark.parametrize("value", [True, 1.5, -1, math.nan, math.inf, None, 2**63])
def test_bad_numbers_of_bytes_are_refused(value: float) -> None:
    with pytest.raises(ms.InvalidInputError, match="8GiB"):
        parse_bytes(value)
    with pytest.raises(ms.InvalidInputError, match="40%"):
        parse_memory(value, CHAIN)


@pytest.mark.parametrize("text", ["", "12GB", "12Gb/s", "12/s", "-1", "nan", "1e999", "12 GB / s", "fast", "5%"])
def test_bad_bandwidths_are_refused_with_the_value_and_the_forms(text: str) -> None:
    with pytest.raises(ms.InvalidInputError, match="12GB/s") as error:
        parse_bandwidth(text)
    assert repr(text) in str(error.value)


def test_bandwidths() -> None:
    assert parse_bandwidth("12GiB/s") == 12 * 2**30
    assert parse_bandwidth(" INF ") == parse_bandwidth("infinity") == parse_bandwidth(math.inf) == math.inf
    assert parse_bandwidth(0) == parse_bandwidth("0GB/s") == 0
    with pytest.raises(ms.InvalidInputError, match="True"):
        parse_bandwidth(True)


@given(chain=problems.chains())
def test_percentages_run_from_the_least_memory_to_the_peak(chain: ms.Chain) -> None:
    least, most = ms.min_memory(chain), ms.peak_memory(chain)
    assert parse_memory("0%", chain) == max(1, least)
    assert parse_memory("100%", chain) == max(1, most)
    assert parse_memory("200 %", chain) == max(1, most + (most - least))
    assert parse_memory("40%", chain) == max(1, least + 2 * (most - least) // 5)
    if most > least:
        assert memory_percent(most, chain) == 100
    else:
        assert memory_percent(most, chain) is None


@pytest.mark.parametrize("text", ["%", "-1%", "40%%", "40 percent", "4GiB%", "1e30%", "nan%"])
def test_bad_percentages_are_refused(text: str) -> None:
    with pytest.raises(ms.InvalidInputError, match="40%") as error:
        parse_memory(text, CHAIN)
    assert repr(text) in str(error.value)


def test_seconds_and_chunks() -> None:
    assert parse_seconds("1") == 1
    assert parse_seconds("2.5ms") == parse_seconds("2500 us") == 0.0025
    for text in ("", "-1", "1h", "inf", "1e999"):
        with pytest.raises(ms.InvalidInputError, match="10ms"):
            parse_seconds(text)
    assert parse_chunk("1MiB") == 2**20
    for text in ("0", "half", "-1", "40%"):
        with pytest.raises(ms.InvalidInputError, match="storage or none"):
            parse_chunk(text)


@given(count=st.integers(0, 2**52))
def test_a_printed_size_reads_back_within_its_digits(count: int) -> None:
    text = format_bytes(count)
    assert re.fullmatch(r"\d{1,4}(\.\d+)? ([KMGTP]i)?B", text)
    assert float(text.split()[0]) < 1024
    assert parse_bytes(text) == pytest.approx(count, rel=0.006)
    assert format_bytes(-count) in (f"-{text}", text)


@given(seconds=st.floats(1e-9, 1e6))
def test_a_printed_duration_reads_back_within_its_digits(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=6e-4)
    assert "e" not in format_seconds(seconds)


@given(bandwidth=st.floats(1, 1e15))
def test_a_printed_bandwidth_reads_back_within_its_digits(bandwidth: float) -> None:
    assert parse_bandwidth(format_bandwidth(bandwidth)) == pytest.approx(bandwidth, rel=6e-4)


def test_a_link_has_words_for_all_that_it_is() -> None:
    """Links that differ in `duplex` only had the same words, if they had two bandwidths or were free."""
    known = [
        ms.Device(1, d2h=there, h2d=back, duplex=duplex, latency=latency, host_memory=host)
        for there in (0, 2, math.inf)
        for back in (0, 2, math.inf)
        for duplex in (False, True)
        for latency in (0, 1)
        for host in (None, 5)
    ]
    told = [format_link(one) for one in known]
    assert len(set(told)) == len({link_of({"bandwidth": one.d2h, "device": write_device(one)}) for one in known})
    assert format_link(ms.Device(1, 0.0, duplex=True, latency=1.0, host_memory=5)) == "no link"
    assert {"no link", "a free link", "2 B/s, one direction at a time", "2 B/s in both directions at once"} < {*told}
    assert "2 B/s to the host, a free link back, both directions at once, latency 1 s" in told


@pytest.mark.parametrize("value", [1.7976931348623157e308, 1e308, 2.3e-308])
def test_the_largest_and_the_least_numbers_are_shown(value: float) -> None:
    amount, unit = format_bandwidth(value).split()
    assert Fraction(amount) * {"TB/s": 10**12, "B/s": 1}[unit] == pytest.approx(Fraction(value), rel=6e-4)
    assert format_seconds(value)


def test_what_shows_a_plan_writes_sizes_as_its_budget_was_written(tmp_path: Path) -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    for memory, base, unit in (("700MB", 1000, "MB"), ("600MiB", 1024, "MiB"), ("50%", 1024, "MiB")):
        plan = ms.greedy(chain, memory, "12GB/s")
        shown: list[Any] = [plan, ms.validate(plan), ms.compare(chain, memory, "12GB/s", planners="greedy")]
        shown.append(ms.frontier(chain, memory=[memory], beta="12GB/s", planner="greedy"))
        wrong = re.compile(r"\d [kMG]B\b(?!/s)" if base == 1024 else r"\d [KMG]iB\b")
        for one in shown:
            assert not wrong.search(str(one)), memory
            assert unit in str(one) or one is shown[1]  # 50% of a memory alone is no percentage
        assert [axes.get_ylabel() for axes in plan.plot(picture).axes][1] == f"memory ({unit})"
        assert shown[3].plot().axes[0].get_xlabel() == f"memory ({unit})"
        ms.write_report(plan, page, compare=False)
        text = page.read_text()
        assert f"{format_bytes(plan.peak_memory, unit)}" in text
        assert not wrong.search(re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S))
    assert format_bytes(700_000_000) == "668 MiB"  # nothing of it is left


def test_a_percentage_of_nothing_is_a_byte() -> None:
    """M is at least 1, and where nothing has bytes every plan fits it: 50 % of 0 was refused as a memory of 0."""
    chain = ms.Chain([1], [1], [0, 0], [0, 0])
    for problem in (chain, ms.to_graph(chain)):
        assert [parse_memory(share, problem) for share in ("0%", "50%", "200%")] == [1, 1, 1]
        assert ms.plan(problem, "50%", 1).schedule.budget == 1
