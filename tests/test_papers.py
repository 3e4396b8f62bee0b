"""The page that says where each item of the papers is: whatever it names exists, and its verdicts are the results'."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from test_api_docs import slugs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "papers.md"
FOLDERS = (ROOT / "cpp" / "memsched", ROOT / "python" / "memsched", ROOT)
PAPERS = {  # heading -> page of results, and what the paper numbers, counted in its text
    "Euro-Par 2020": ("europar2020", {"Equation": 10, "Algorithm": 1, "Figure": 19, "Table": 0}),
    "NeurIPS 2021": ("pofo2021", {"Equation": 0, "Algorithm": 0, "Figure": 1, "Table": 2}),
    "moDNN": ("modnn2018", {"Equation": 5, "Algorithm": 1, "Figure": 9, "Table": 0}),
    "PoocH": ("pooch2019", {"Equation": 1, "Algorithm": 0, "Figure": 22, "Table": 3}),
    "OLLA": ("olla2022", {"Equation": 15, "Function": 5, "Figure": 14, "Table": 0}),
}
VERDICT = re.compile(r"\*(confirmed|changed|refuted|not comparable)\*: (.+?) …")
LINK = re.compile(r"\]\(([^)#]+)#([^)]+)\)")
NONE = "-"


class Row(NamedTuple):
    """A row of the page."""

    item: str
    code: str
    test: str
    results: str
    verdict: str


@cache
def section(paper: str) -> str:
    """What the page says of a paper."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {paper}\n")
    assert found, paper
    return rest.partition("\n## ")[0]


@cache
def rows(paper: str) -> list[Row]:
    """The rows of its table."""
    lines = [line for line in section(paper).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert cells[0] == ["in the paper", "code", "test", "results", "verdict, and what is thinner"]
    assert all(len(row) == 5 for row in cells), paper
    return [Row(*row) for row in cells[2:]]


@cache
def names_of(path: Path) -> frozenset[str]:
    """All names that a Python file defines at its top level and in its classes: NAME, and CLASS.NAME."""
    found = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for one in body:
            if isinstance(one, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + one.name)
                if isinstance(one, ast.ClassDef):
                    collect(one.body, f"{prefix}{one.name}.")
            elif isinstance(one, ast.Assign):
                found.update(prefix + target.id for target in one.targets if isinstance(target, ast.Name))

    collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def defines(path: Path, name: str) -> bool:
    """Whether a file of code has a function or class; in C++, where its type and name stand at the begin of a line."""
    if path.suffix == ".py":
        return name in names_of(path)
    text = path.read_text(encoding="utf-8")
    owner, _, own = name.rpartition("::")
    typed = r"[\w:<>,&* ]*[\w>&*] "
    if owner:
        body = re.search(rf"^(?:class|struct) {owner}\b[^;{{]*{{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
        inside = body is not None and re.search(rf"^ +{typed}{own}\(", body[1], re.MULTILINE)
        return bool(inside or re.search(rf"^{typed}{owner}::{own}\(", text, re.MULTILINE))
    return bool(re.search(rf"^(?:(?:class|struct) {own} {{|{typed}{own}\()", text, re.MULTILINE))


@cache
def claims(page: str) -> dict[str, str]:
    """Claim -> verdict, as a page of results has them."""
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8").partition("\n## Claims\n")[2]
    lines = [line[2:].split(" | ") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return {line[0]: line[3] for line in lines[2:]}


def numbers(text: str) -> set[int]:
    """All numbers of "(Figure 6-8)", "Figures: 15 to 18" or "Figures 4, 21 and 22"."""
    for first, last in re.findall(r"(\d+) ?(?:-|to) ?(\d+)", text):
        text += " " + " ".join(map(str, range(int(first), int(last))))
    return {int(one) for one in re.findall(r"\d+", text)}


def numbered(item: str, kind: str) -> set[int]:
    """The numbers that an item has: 6 and 7 of "Equations (6), (7a), (7b), no overlap"."""
    found = re.search(rf"\b{kind}s? ((?:\(?\d+[a-z]?\)?(?:, )?)+)", item)
    return {int(one) for one in re.findall(r"\d+", found[1])} if found else set()


@pytest.mark.parametrize("paper", PAPERS)
def test_no_number_is_missing(paper: str) -> None:
    told = re.search(r"^The paper numbers (.+)\.$", section(paper), re.MULTILINE)
    assert told is not None
    for kind, count in PAPERS[paper][1].items():
        said = re.search(rf"(\d+|no) {kind.lower()}s?\b", told[1])
        assert said is not None, kind
        assert (0 if said[1] == "no" else int(said[1])) == count, kind
        found = sorted(number for row in rows(paper) for number in numbered(row.item, kind))
        assert found == list(range(1, count + 1)), kind


@pytest.mark.parametrize("paper", PAPERS)
def test_a_row_has_targets_or_one_sentence_about_its_absence(paper: str) -> None:
    assert len({row.item for row in rows(paper)}) == len(rows(paper))
    for row in rows(paper):
        if row.code == "absent":
            assert (row.test, row.results) == (NONE, NONE), row.item
            assert not VERDICT.findall(row.verdict), row.item
            assert re.fullmatch(r"[A-Z][^.]+(?:\.[a-z][^.]*)*\.", row.verdict), row.item
        else:
            assert "absent" not in "".join(row), row.item
            assert NONE not in (row.code, row.test), row.item


@pytest.mark.parametrize("paper", PAPERS)
def test_code_exists(paper: str) -> None:
    for row in rows(paper):
        for target in row.code.split("; ") if row.code != "absent" else []:
            found = re.fullmatch(r"`([\w/.]+)`: `([\w:.]+)`", target)
            assert found is not None, target
            paths = [folder / found[1] for folder in FOLDERS if (folder / found[1]).is_file()]
            assert len(paths) == 1, target
            assert defines(paths[0], found[2]), target


@pytest.mark.parametrize("paper", PAPERS)
def test_tests_exist(paper: str) -> None:
    for row in rows(paper):
        for target in row.test.split("; ") if row.test != NONE else []:
            found = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", target)
            assert found is not None, target
            assert found[2] in names_of(ROOT / "tests" / found[1]), target


@pytest.mark.parametrize("paper", PAPERS)
def test_results_exist(paper: str) -> None:
    """Where headings name figures, they are those of the row, and there is a picture or a table."""
    page = PAPERS[paper][0]
    for row in rows(paper):
        links = LINK.findall(row.results)
        assert bool(links) == (row.results != NONE), row.item
        for target, anchor in links:
            reached = PAGE.parent / target
            assert (target, anchor in slugs(reached)) == (f"results/{page}.md", True), anchor
        parts = [part(PAGE.parent / target, anchor) for target, anchor in links]
        shown = [(numbers(title.rpartition("(Figure")[2]), text) for title, text in parts if "(Figure" in title]
        own = numbered(row.item, "Figure")
        assert not own or not shown or own <= set[int]().union(*(named for named, _ in shown)), row.item
        for named, text in shown:
            assert not own or own & named, row.item
            pictures = re.findall(r"^!\[.*\]\((.+)\)$", text, re.MULTILINE)
            assert pictures or re.search(r"^\|", text, re.MULTILINE), row.item
            assert all((PAGE.parent / "results" / picture).is_file() for picture in pictures), row.item


def test_links_lead_somewhere() -> None:
    for target, anchor in LINK.findall(PAGE.read_text(encoding="utf-8")):
        assert anchor in slugs(PAGE.parent / target), f"{target}#{anchor}"


def part(page: Path, anchor: str) -> tuple[str, str]:
    """The heading with this anchor, and what stands below it, up to the next heading."""
    seen: dict[str, int] = {}
    for chunk in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = chunk.partition("\n")
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        if anchor == slug + (f"-{seen[slug]}" if seen[slug] else ""):
            return title, text
    raise AssertionError(anchor)


@pytest.mark.parametrize("paper", PAPERS)
def test_verdicts_are_those_of_the_results(paper: str) -> None:
    """Each claim of the page of results stands in one row, with its verdict."""
    found = claims(PAPERS[paper][0])
    told: list[str] = []
    for row in rows(paper):
        for verdict, begin in VERDICT.findall(row.verdict):
            meant = [claim for claim in found if claim.startswith(begin)]
            assert len(meant) == 1, begin
            assert found[meant[0]] == verdict, begin
            assert row.results != NONE, row.item
            told += meant
    assert sorted(told) == sorted(found)


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("cpp/memsched/planners/offload/fluid_chain.h", "FluidStage::advance", True),
        ("cpp/memsched/planners/offload/fluid_chain.h", "FluidStage::retreat", False),
        ("cpp/memsched/planners/offload/fluid_chain.h", "FluidBound::advance", False),
        ("cpp/memsched/planners/offload/fluid_chain.h", "FluidModel", True),
        ("cpp/memsched/planners/offload/fluid_chain.cpp", "FluidModel::turn_idle", True),
        ("cpp/memsched/planners/offload/fluid_chain.cpp", "fluid_makespan", True),
        ("cpp/memsched/planners/offload/fluid_chain.cpp", "lower_bound", False),  # it is called, not defined
        ("python/memsched/arena/ilp/spans.py", "Plan.order", True),
        ("python/memsched/arena/ilp/spans.py", "order", False),
    ],
)
def test_what_counts_as_defined(path: str, name: str, expected: bool) -> None:
    assert defines(ROOT / path, name) == expected


def test_what_counts_as_a_number() -> None:
    assert numbered("Equations (6), (7a), (7b), no overlap", "Equation") == {6, 7}
    assert numbered("Section 4.2, Figure 5, edge precedence", "Figure") == {5}
    assert numbered("Theorem 1, Figure 2, strong NP-completeness", "Equation") == set()
    assert numbers("4, 21 and 22") == {4, 21, 22}
    assert numbers("6-8") == {6, 7, 8}
