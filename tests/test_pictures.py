"""The pictures of README.md and docs/*.md are what the code above them draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import memsched as ms

matplotlib = pytest.importorskip("matplotlib")
tool = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "tools" / "pictures.py")))
DRAWN = {one.name: one for one in tool.pictures()}
BY_BROWSER = {"report"}  # of a page that `memsched report` writes; test_report_browser.py looks at such pages


def test_every_picture_is_used_and_every_used_one_exists() -> None:
    used = {one.name for one in tool.shown()}
    assert used == {path.stem for path in tool.IMAGES.iterdir()}
    assert used - set(DRAWN) == BY_BROWSER
    named = [name for page in tool.PAGES for name in re.findall(r"images/([\w-]+)\.\w+", page.read_text("utf-8"))]
    assert sorted(named) == sorted(one.name for one in tool.shown())


def test_the_pages_agree_on_what_draws_a_picture() -> None:
    for one in tool.pictures():
        assert one.code == DRAWN[one.name].code, one.page
        assert f"{one.name}.png" in one.code
    assert {one.language for one in DRAWN.values()} == {"sh", "python"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_code_draws_the_picture(name: str, tmp_path: Path) -> None:
    drawn = tool.draw(DRAWN[name], tmp_path)
    assert tool.difference(drawn, tool.IMAGES / f"{name}.png") <= tool.MOST_PIXELS, "run tools/pictures.py"


def plan(last: float, tmp_path: Path, *, resident: int = 7, **rc: Any) -> Path:
    chain = ms.Chain(
        [1, 2, 3], [2, 3, last], [4, 6, 5, 4], [0, 6, 5, 4], saved=[9, 5, 4], resident=resident, name="toy"
    )
    path = tmp_path / f"{last}-{resident}-{len(rc)}.png"
    with matplotlib.rc_context(rc):
        ms.plot(ms.greedy(chain, 50, 4.0), path)
    return path


@pytest.mark.slow
def test_a_bar_that_moves_is_seen_and_another_font_is_not(tmp_path: Path) -> None:
    drawn = plan(3, tmp_path)
    assert tool.difference(drawn, drawn) == 0
    assert tool.difference(drawn, plan(3, tmp_path, **{"font.family": "DejaVu Serif"})) <= tool.MOST_PIXELS
    assert tool.difference(drawn, plan(3.2, tmp_path)) > 10 * tool.MOST_PIXELS


def test_a_line_that_moves_is_seen(tmp_path: Path) -> None:
    """That of memory alone differs, by 3 of 40 bytes."""
    drawn = plan(3, tmp_path)
    assert tool.difference(drawn, plan(3, tmp_path, resident=10)) > 10 * tool.MOST_PIXELS


FIRST, *OTHERS = sorted(DRAWN)


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_all_that_moves_is_seen(name: str, tmp_path: Path) -> None:
    """By eight pixels of 1,500."""
    image = pytest.importorskip("PIL.Image")
    kept = tool.IMAGES / f"{name}.png"
    with image.open(kept) as read:
        page = read.convert("RGB")
        moved = image.new("RGB", page.size, "white")
        moved.paste(page, (8, 0))
    moved.save(tmp_path / kept.name)
    assert tool.difference(kept, tmp_path / kept.name) > tool.MOST_PIXELS
    page.crop((0, 0, page.width - 1, page.height)).save(tmp_path / kept.name)
    assert tool.difference(kept, tmp_path / kept.name) > tool.MOST_PIXELS
