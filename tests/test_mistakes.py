"""What newcomers mistype ends in a sentence that names the value and the remedy; docs/mistakes.md has them all."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

mistakes = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "tools" / "mistakes.py")))


def rows() -> list[tuple[str, str]]:
    """What was typed and what was said, as the page has them."""
    lines = mistakes.PAGE.read_text(encoding="utf-8").splitlines()
    cells = (line.removeprefix("| ").removesuffix(" |").split(" | ", 1) for line in lines if line.startswith("| `"))
    return [(typed.strip("`"), said) for typed, said in cells]


def test_the_page_tells_what_is_said_now() -> None:
    pytest.importorskip("onnx")
    assert mistakes.PAGE.read_text(encoding="utf-8") == mistakes.page()


def test_there_are_sixty_of_them() -> None:
    assert len({typed for typed, _ in rows()}) == sum(map(len, mistakes.SECTIONS.values())) >= 60


@pytest.mark.parametrize(("typed", "said"), rows())
def test_each_is_one_sentence_without_the_insides(typed: str, said: str) -> None:
    for inside in ("Traceback", "Errno", "object at 0x", "/tmp/", "NoneType", "tuple index"):
        assert inside not in said, typed
    assert len(said) < 500, typed
