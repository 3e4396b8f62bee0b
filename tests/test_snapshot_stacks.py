"""Where the buffers of a snapshot were allocated: `Buffer.stack`, and what a notebook shows where the pointer is."""

from __future__ import annotations

import pickle
import re
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.readers.snapshot import BEFORE, read_snapshot
from test_readers_snapshot import CPP, LIBRARY, MAIN, USER, alloc, free, snapshot, written

pytest.importorskip("matplotlib")


def stack(frames: Any, folder: Path) -> tuple[str, ...]:
    (buffer,) = read_snapshot(written(folder, snapshot([alloc(0, 1) | {"frames": frames}])))
    return tuple(buffer.stack)


def called(frame: dict[str, Any]) -> str:
    return f"{frame['filename']}:{frame['line']} {frame['name']}"


def test_the_stack_has_the_calls_of_python_the_innermost_first(tmp_path: Path) -> None:
    assert stack([CPP, LIBRARY, USER, MAIN], tmp_path) == (called(LIBRARY), called(USER), called(MAIN))
    assert stack([CPP], tmp_path) == (called(CPP),)
    for none in ([], None, [3, {}, {"filename": 7}]):
        assert stack(none, tmp_path) == ()
    assert stack([{"filename": "a.py"}, {"filename": "b.py", "line": "x", "name": 3}], tmp_path) == ("a.py", "b.py")


def test_blocks_have_stacks_and_what_is_from_before_has_none(tmp_path: Path) -> None:
    blocks = [{"address": 9, "size": 512, "requested_size": 40, "state": "active_allocated", "frames": [USER]}]
    made = snapshot([free(2048, 50)], [{"address": 9, "device": 0, "blocks": blocks}])
    found = read_snapshot(written(tmp_path, made))
    assert [(one.name, one.stack) for one in found] == [(BEFORE, ()), ("model.py:31 forward", (called(USER),))]


def test_deep_stacks_and_long_names_are_cut(tmp_path: Path) -> None:
    deep = stack([USER | {"line": k} for k in range(5000)], tmp_path)
    assert deep[:-1] == tuple(called(USER | {"line": k}) for k in range(24))
    assert deep[-1] == "…"
    assert stack([USER] * 24, tmp_path) == (called(USER),) * 24
    (long,) = stack([{"filename": "/" + "d" * 10**6 + "/end.py", "line": 2, "name": "f" * 10**6}], tmp_path)
    assert len(long) < 220
    assert "/end.py:2 ffff" in long


def test_stacks_of_many_events_share_their_memory(tmp_path: Path) -> None:
    """A few bytes name the same long frame again and again, in many lists."""
    frame = {"filename": "/" + "d" * 100 + ".py", "line": 1, "name": "f" * 80}
    events = [alloc(k, 1) | {"frames": [frame] * 24} for k in range(1000)]
    path = written(tmp_path, snapshot(events))
    tracemalloc.start()
    try:
        found = read_snapshot(path)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(found) == 1000
    assert held < 1000 * 1000  # 24 texts of 190 letters would take 4,600 bytes


def test_stacks_are_neither_compared_nor_saved(tmp_path: Path) -> None:
    plain, known = ms.Buffer(0, 1, 8), ms.Buffer(0, 1, 8, stack=["a.py:1 f"])
    assert plain == known
    assert hash(plain) == hash(known)
    assert known.stack == ("a.py:1 f",)
    placed = ms.place([known])
    assert placed.buffers[0].stack == ("a.py:1 f",)
    assert pickle.loads(pickle.dumps(known)).stack == known.stack
    again = ms.Placement.from_json(placed.to_json())
    assert again == placed
    assert again.buffers[0].stack == ()
    for bad in ("a.py", 7, [3], ["\ud800"]):
        with pytest.raises(ms.InvalidInputError, match="stack"):
            ms.Buffer(0, 1, 8, stack=bad)  # type: ignore[arg-type]  # what is refused


class Titles(HTMLParser):
    """The titles of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside = tag == "title"
        if self.inside:
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.titles[-1] += data


def test_a_notebook_shows_where_a_buffer_was_allocated(tmp_path: Path) -> None:
    trace = [alloc(0, 2**20, [CPP, LIBRARY, USER, MAIN]), alloc(2**20, 2**19, [USER]), free(0, 2**20)]
    placed = ms.place(read_snapshot(written(tmp_path, snapshot(trace))))
    page = placed._repr_html_()
    first, second = Titles(page).titles
    assert first.splitlines() == [
        "model.py:31 forward",
        f"1 MiB (1,048,576 bytes) at {placed.offsets[0]}, from 1 to 3",
        *map(called, (LIBRARY, USER, MAIN)),
    ]
    assert second.splitlines()[2:] == [called(USER)]
    assert "point at a buffer to see where it was allocated" in page


def test_what_is_pointed_at_lies_where_it_is_drawn() -> None:
    """The rectangles in the thousandths of the picture are those of the pixels in its colour."""
    buffers = [ms.Buffer(0, 4, 3 << 20), ms.Buffer(4, 8, 5 << 20), ms.Buffer(2, 4, 2 << 20)]
    placed = ms.place(buffers)
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)">', placed._repr_html_())
    figure = placed.plot()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    drawn = [axes.transData.transform_path(path).get_extents() for path in axes.collections[0].get_paths()]
    wide, high = figure.bbox.width / 1000, figure.bbox.height / 1000
    expected = sorted((box.x0 / wide, 1000 - box.y1 / high, box.width / wide, box.height / high) for box in drawn)
    for one, other in zip(sorted(tuple(map(float, row)) for row in found), expected, strict=True):
        assert one == pytest.approx(other, abs=0.2)


EVIL = "</title></svg><script>alert(1)</script>&\"'\x00\x1b[2J\u202e\n"


def test_hostile_stacks_are_escaped_and_bounded(tmp_path: Path) -> None:
    frames = [{"filename": f"/{EVIL}{k}.py", "line": 10**30, "name": EVIL * 50} for k in range(100)]
    trace = [alloc(k * 10**6, 10**6 - k, frames[k:]) for k in range(90)]
    placed = ms.place(read_snapshot(written(tmp_path, snapshot(trace))))
    page = placed._repr_html_()
    read = Titles(page)
    assert "script" not in read.tags
    assert not re.search(r"[\x00\x1b\u202e]", page)
    assert 0 < len(read.titles) < 90
    assert f"of the {len(read.titles)} largest of 90" in page
    assert len(page) < 200_000
    assert max(map(len, read.titles)) < 12 * 250
    assert all(title.endswith("more calls") for title in read.titles)
    for name in ("name", None):
        assert len(Titles(ms.place([ms.Buffer(0, 1, 1, name=name, stack=["x" * 10**6])])._repr_html_()).titles) == 1
