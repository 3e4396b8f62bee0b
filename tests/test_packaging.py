"""What a release says of itself: one version, its Pythons, a changelog in order, a tutorial without stale output."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched import _core

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
HEADINGS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")

pytestmark = pytest.mark.skipif(not PROJECT.is_file(), reason="needs the repository")


def project() -> dict[str, Any]:
    if sys.version_info < (3, 11):
        tomllib = pytest.importorskip("tomli")
    else:
        import tomllib
    loaded: dict[str, Any] = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    return loaded


def test_the_version_stands_in_one_place() -> None:
    """And the installed metadata and the extension took it from there."""
    read = project()
    assert read["project"]["dynamic"] == ["version"]
    assert "version" not in read["project"]
    source = ROOT / read["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert f'__version__ = "{ms.__version__}"' in source.read_text(encoding="utf-8").splitlines()
    assert metadata.version("memsched") == ms.__version__
    assert _core.__version__ == ms.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", ms.__version__)


def test_every_python_with_a_wheel_is_a_classifier() -> None:
    read = project()
    named = {text.rpartition(" ")[2] for text in read["project"]["classifiers"] if re.search(r":: 3\.\d+$", text)}
    built = {
        f"3.{found[1]}"
        for found in map(re.compile(r"cp3(\d+)-\*").fullmatch, read["tool"]["cibuildwheel"]["build"])
        if found
    }
    assert named == built
    least = min(built, key=lambda version: int(version.partition(".")[2]))
    assert read["project"]["requires-python"] == f">={least}"
    assert read["tool"]["mypy"]["python_version"] == least


def test_what_a_wheel_is_tested_with_is_there() -> None:
    read = project()
    command = " ".join(read["tool"]["cibuildwheel"]["test-command"])
    found = re.findall(r"tests/\S+", command)
    assert len(found) > 5
    assert all((ROOT / path).is_file() for path in found)
    assert set(read["tool"]["cibuildwheel"]["test-extras"]) <= set(read["project"]["optional-dependencies"])


def test_the_licences_of_all_that_is_packed_are_named() -> None:
    """Also that of the library in reports, whose folder says where it comes from."""
    read = project()
    named = set(read["project"]["license-files"])
    package = ROOT / "python"
    assert named == {"LICENSE", *(path.relative_to(ROOT).as_posix() for path in package.rglob("LICENSE*"))}
    for path in named - {"LICENSE"}:
        assert "licence" in (ROOT / path).with_name("README.md").read_text(encoding="utf-8")
        assert "MIT License" in (ROOT / path).read_text(encoding="utf-8")
    assert read["project"]["license"] == "MIT"


def test_the_changelog_keeps_its_form() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    sections = [line for line in lines if line.startswith("## ")]
    assert sections[0] == "## [Unreleased]"
    assert all(re.fullmatch(r"## \[\d+\.\d+\.\d+\S*\] - \d{4}-\d\d-\d\d", line) for line in sections[1:])
    assert {line.removeprefix("### ") for line in lines if line.startswith("### ")} <= set(HEADINGS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_output(path: Path) -> None:
    """The site runs it; a stored output would be that of some other day."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


def test_all_tests_can_run_in_one_process() -> None:
    """Of two files of one name, pytest collects the first alone: every night ended there."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_every_page_is_on_the_site() -> None:
    """Each stands in a table of contents of docs/index.md."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    listed = {line for block in blocks for line in block.splitlines() if line and not line.startswith(":")}
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in [*(ROOT / "docs").glob("*.md"), *NOTEBOOKS]
    }
    assert pages - {"index"} == {name for name in listed if not name.startswith(("../", "results/", "api/"))}
    assert "results/*" in listed
