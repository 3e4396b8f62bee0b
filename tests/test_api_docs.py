"""docs/api.md and docs/api/ are what tools/api_docs.py writes, and name all that is public."""

from __future__ import annotations

import inspect
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
import memsched.testing

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "api_docs.py"
DOCS = ROOT / "docs"
PAGE = DOCS / "api.md"
TOPICS = sorted((DOCS / "api").glob("*.md"))


def topics() -> str:
    """All pages but the first."""
    return "\n".join(page.read_text(encoding="utf-8") for page in TOPICS)


def slugs(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub gives them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in shown]
    return {slug + (f"-{plain[:i].count(slug)}" if slug in plain[:i] else "") for i, slug in enumerate(plain)}


def run(tool: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)


def test_the_pages_are_up_to_date() -> None:
    done = run(TOOL)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("which", ["api/plans.md", "api/gone.md"])
def test_a_stale_page_is_told_in_one_sentence(tmp_path: Path, which: str) -> None:
    shutil.copytree(DOCS / "api", tmp_path / "docs" / "api")
    shutil.copy(PAGE, tmp_path / "docs")
    (tmp_path / "tools").mkdir()
    (tmp_path / "python").symlink_to(ROOT / "python", target_is_directory=True)
    tool = tmp_path / "tools" / TOOL.name
    tool.write_text(TOOL.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "docs" / which).write_text("# API reference\n", encoding="utf-8")
    done = run(tool)
    assert done.returncode == 1
    assert re.fullmatch(rf"docs/{re.escape(which)} is stale: .*; run: python tools/api_docs\.py\n", done.stderr)


@pytest.mark.parametrize("name", [*ms.__all__, *(f"testing.{name}" for name in memsched.testing.__all__)])
def test_every_public_name_has_its_place(name: str) -> None:
    headings = re.findall(r"^##+ `(.+)`$", topics(), re.MULTILINE)
    rows = re.findall(r"^\| <a id=.+?></a>\[`(.+?)`\]", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(set(headings)) == sorted(rows)
    assert name in headings or any(heading.startswith(f"{name}.") for heading in headings)


@pytest.mark.parametrize("name", [name for name in ms.__all__ if inspect.isfunction(getattr(ms, name))])
def test_defaults_are_those_of_the_function(name: str) -> None:
    """Constants of other modules with the same name were shown: `selective` had the moves of `plan`."""
    found = re.search(rf"^ms\.{name}(\(.*?\))( -> .+)?\n```$", topics(), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"math": math}
    exec(f"from __future__ import annotations\ndef shown{found[1]}: pass", names)
    shown, own = (inspect.signature(one).parameters for one in (names["shown"], getattr(ms, name)))
    assert {key: one.default for key, one in shown.items()} == {key: one.default for key, one in own.items()}


@pytest.mark.parametrize("name", ["Chain", "Graph", "GraphFamily", "Device", "Schedule", "Result"])
def test_methods_that_a_class_has_from_another_are_listed(name: str) -> None:
    section = re.split(r"^##+ ", topics().partition(f"# `{name}`\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    for method in ("save", "load", "to_json", "from_json"):
        assert f"\n- `{method}(" in section, method


@pytest.mark.parametrize("page", [PAGE, *TOPICS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        reached = (page.parent / target).resolve() if target else page
        assert reached.is_file(), target
        assert not anchor or anchor in slugs(reached), f"{target}#{anchor}"


def test_links_to_the_page_from_before_it_was_split_still_lead_to_the_name() -> None:
    """`api.md#NAME` was the place of a name: its row is there now."""
    text = PAGE.read_text(encoding="utf-8")
    for topic in TOPICS:
        for anchor in re.findall(rf"\(api/{topic.name}#([^)]+)\)", text):
            assert f'<a id="{anchor}"></a>' in text
    ids = re.findall(r'<a id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert not set(ids) & slugs(PAGE)
