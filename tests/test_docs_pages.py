"""What the pages for newcomers say agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import memsched as ms
from memsched.planners.registry import PLANNERS

DOCS = Path(ms.__file__).parents[2] / "docs"
PLURALS = {"chain": "chains", "graph": "graphs"}


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, found, section = text.partition(f"\n## {heading}\n")
    assert found, heading
    table = re.search(r"(?:^\|.*\n)+", section.partition("\n## ")[0], re.MULTILINE)
    assert table is not None
    lines = [line.strip("|").split(" | ") for line in table[0].splitlines()]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_each_planner_has_a_row_that_says_what_its_entry_says() -> None:
    listed = rows("which_planner.md", "What each planner decides")
    assert [row[0] for row in listed] == [f"[`{name}`](api/planners.md#{name})" for name in PLANNERS]
    for (_, summary, may, problems), entry in zip(listed, PLANNERS.values(), strict=True):
        assert summary == entry.summary
        assert ("recompute" in may) == entry.recomputes, entry.name
        assert "reorder" in may or not entry.reorders, entry.name
        assert entry.uses_link or "offload" not in may, entry.name
        kinds = [PLURALS[kind] for kind in entry.problems]
        assert problems == ", ".join([*kinds, *(["by name only"] if entry.by_name else [])]), entry.name


def test_each_planner_has_a_row_that_says_when_to_use_it() -> None:
    listed = rows("which_planner.md", "When to use which")
    assert [row[0] for row in listed] == [f"`{name}`" for name in PLANNERS]
    assert all(len(row) == 5 and all(row) for row in listed)


def test_the_contents_of_the_cookbook_are_its_recipes() -> None:
    text = (DOCS / "cookbook.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. \[(.+)\]\(#", text, re.MULTILINE)
    assert listed == re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert len(listed) == 12


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_no_line_is_taken_for_a_comment(page: Path) -> None:
    """The site leaves out lines that begin with a per cent sign, and the rest of their paragraph with them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^%.*$", text, re.MULTILINE) == []


def test_planners_that_are_named_exist() -> None:
    """A name in code that is called, or that stands alone, is public."""
    text = (DOCS / "which_planner.md").read_text(encoding="utf-8")
    known = {*PLANNERS, *ms.__all__, "plan", "compare", "auto", "gap", "optimal", "time_limit"}
    for name in re.findall(r"`(?:ms\.)?([a-z_]+)(?:\([^`]*\))?`", text):
        assert name in known, name


def test_what_offloads_in_the_table_offloads() -> None:
    """On a small graph with little memory, plans move tensors only if their row says so, and so on."""
    graph = ms.to_graph(ms.Chain([1] * 6, [2] * 6, [4] * 7, [0, *[4] * 6], saved=[8] * 6))
    for name, _, may, _ in rows("which_planner.md", "What each planner decides"):
        planner = re.sub(r"\W*`(\w+)`.*", r"\1", name)
        entry = PLANNERS[planner]
        problem = graph if entry.takes_graphs else ms.profiles.homogeneous(6)
        for share in ("20%", "60%", "100%"):
            try:
                found = ms.plan(problem, share, 4, planner=planner, time_limit=0.1)
            except ms.MemschedError:
                continue
            assert "offload" in may or not found.offloaded, planner
            assert "recompute" in may or not found.recomputed, planner
