"""docs/api.md is what tools/api_docs.py writes, and names all that is public."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
import memsched.testing

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "api_docs.py"
PAGE = ROOT / "docs" / "api.md"


def run(tool: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)


def test_the_page_is_up_to_date() -> None:
    done = run(TOOL)
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "python").symlink_to(ROOT / "python", target_is_directory=True)
    tool = tmp_path / "tools" / TOOL.name
    tool.write_text(TOOL.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "docs" / PAGE.name).write_text("# API reference\n", encoding="utf-8")
    done = run(tool)
    assert done.returncode == 1
    assert re.fullmatch(r"docs/api\.md is stale: .*; run: python tools/api_docs\.py\n", done.stderr)


@pytest.mark.parametrize("name", [*ms.__all__, *(f"testing.{name}" for name in memsched.testing.__all__)])
def test_every_public_name_has_its_place(name: str) -> None:
    headings = re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert name in headings or any(heading.startswith(f"{name}.") for heading in headings)


@pytest.mark.parametrize("name", [name for name in ms.__all__ if inspect.isfunction(getattr(ms, name))])
def test_defaults_are_those_of_the_function(name: str) -> None:
    """Constants of other modules with the same name were shown: `selective` had the moves of `plan`."""
    found = re.search(
        rf"^ms\.{name}(\(.*?\))( -> .+)?\n```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    names: dict[str, Any] = {"math": math}
    exec(f"from __future__ import annotations\ndef shown{found[1]}: pass", names)
    shown, own = (inspect.signature(one).parameters for one in (names["shown"], getattr(ms, name)))
    assert {key: one.default for key, one in shown.items()} == {key: one.default for key, one in own.items()}


def test_the_links_of_the_contents_lead_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    slugs = [re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    reached = {slug + (f"-{slugs[:i].count(slug)}" if slug in slugs[:i] else "") for i, slug in enumerate(slugs)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= reached
