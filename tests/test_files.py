"""Files: what is read under a cap, what is refused at once, and how a file is replaced."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.cli.app import command_line
from memsched.errors import visible
from memsched.study.sweep.spec import read_spec
from memsched.support import files
from memsched.support.documents import write_document
from memsched.support.files import plain_cell, read_cell, read_text, write_bytes

ROOT = Path(__file__).resolve().parents[1]
CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], name="c")
READERS: list[Callable[[Any], Any]] = [
    ms.Chain.from_json,
    ms.Graph.from_json,
    ms.GraphFamily.from_json,
    ms.Result.from_json,
    ms.Placement.from_json,
    ms.read_buffers,
    read_spec,
    lambda path: ms.sweep(str(path), ["greedy"], memory=[10**9], beta=[1e9]),
]
POSIX = pytest.mark.skipif(os.name != "posix", reason="there are no such files here")


@POSIX
@pytest.mark.parametrize("kind", ["zero", "pipe", "folder", "socket", "huge", "missing", "circle"])
def test_only_regular_files_under_the_cap_are_read(kind: str, tmp_path: Path) -> None:
    """A pipe nobody writes used to be waited for without end, and /dev/zero to fill the memory."""
    path = tmp_path / "a.json"
    endpoint = socket.socket(socket.AF_UNIX)
    word = {"zero": "a device", "pipe": "a pipe", "folder": "a directory", "socket": "a socket"}.get(kind, "")
    match kind:
        case "zero":
            path = Path("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            os.chdir(tmp_path)  # the path of a socket is short
            endpoint.bind("a.json")
        case "huge":
            path.touch()
            os.truncate(path, files.MOST_BYTES + 1)
            word = f"more than {files.MOST_BYTES} bytes"
        case "circle":
            path.symlink_to(path)
    for read in READERS:
        with pytest.raises(ms.InvalidInputError, match=f"'{re.escape(str(path))}' cannot be read: .*{word}"):
            read(path)
    endpoint.close()


def test_a_file_that_grows_stays_under_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 11)
    assert read_text(path, most=11) == "x" * 11
    small = os.stat_result((stat.S_IFREG, *[0] * 9))
    monkeypatch.setattr(files, "check_regular", lambda _: small)  # as in /proc, where sizes are 0
    with pytest.raises(ms.InvalidInputError, match="more than 10 bytes"):
        read_text(path, most=10)


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "circle", "nul"])
def test_commands_refuse_paths_that_lead_nowhere(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report waited for a pipe without end, and links in a circle were a RuntimeError."""
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text('problems = ["resnet18-224-b32"]\nplanners = ["greedy"]\nmemory = ["50%"]\n')
    name = "a\0b" if kind == "nul" else "there"
    if kind == "pipe":
        os.mkfifo(name)
    if kind == "circle":
        Path(name).symlink_to(name)
    commands = [("report", name, "-o", "r.html"), ("sweep", "spec.toml", "--store", name)]
    commands += [("sweep", "spec.toml", "-o", "t.csv", "--plot", name), ("sweep", name, "-o", "t.csv")]
    for command in commands:
        outcome = CliRunner().invoke(command_line, command, prog_name="memsched")
        assert outcome.exit_code in (1, 2), (command, outcome.output)
        assert outcome.stderr.startswith("error: "), (command, outcome.stderr)
    assert not Path("r.html").exists()
    assert not Path("t.csv").exists()


@pytest.mark.parametrize("name", ["", "a\0b", 5, None, [1], 1.5])
def test_what_is_no_path_is_refused(name: Any) -> None:
    for use in (read_text, lambda path: write_bytes(path, b""), ms.read_buffers, ms.read_store, lambda path: ms.sweep(
        "resnet18-224-b32", ["greedy"], memory=["50%"], store=path
    )):  # fmt: skip
        if name is None and use is not read_text:
            continue
        with pytest.raises(ms.InvalidInputError, match=r"(must be|give) the path of a file"):
            use(name)


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755, 0o666])
def test_a_replaced_file_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link"
    link.symlink_to(path)
    path.write_text("old")
    path.chmod(mode)
    for name in (path, link):
        write_document(name, {"a": str(name)})
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert json.loads(path.read_text()) == {"a": str(name)}
    assert link.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.json", "link"]


@POSIX
def test_a_new_file_has_the_permissions_of_the_process(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@POSIX
def test_a_secret_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.touch(mode=0o600)
    seen: list[int] = []
    chmod = os.chmod
    monkeypatch.setattr(files.os, "chmod", lambda name, mode: (seen.append(os.stat(name).st_mode), chmod(name, mode)))
    write_bytes(path, b"secret")
    assert [stat.S_IMODE(mode) for mode in seen] == [0o600]


@POSIX
def test_a_file_is_on_the_disk_before_its_name_is_and_its_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    events: list[str] = []
    replace = os.replace

    def sync(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        events.append("folder" if folder else f"file of {os.fstat(handle).st_size} bytes")

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", lambda old, new: (events.append("replaced"), replace(old, new)))
    write_bytes(path, b"12345")
    assert events == ["file of 5 bytes", "replaced", "folder"]


@pytest.mark.parametrize("length", [1, 200, 246, 247, 250, 255])
def test_long_names_are_written(length: int, tmp_path: Path) -> None:
    """The temporary name was the name and nine letters more, and names have at most 255."""
    path = tmp_path / ("x" * length)
    for content in (b"1", b"2"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_no_file_can_have_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ms.InvalidInputError, match="cannot be written"):
        write_bytes(tmp_path / ("x" * 256), b"1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod", "fdopen"])
def test_a_write_that_fails_leaves_what_was_there(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, step, fail)
        with pytest.raises(ms.InvalidInputError, match=r"'.*a' cannot be written: .*No space left"):
            write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


ANY = st.text(st.characters(), max_size=20)


@given(ANY)
def test_visible_texts_hold_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = visible(text)
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)
    assert not set(shown) & set("\u2028\u2029\u202e\u2066\u200b\ufeff")
    assert shown.encode() is not None
    assert visible(shown) == shown
    assert str(ms.InvalidInputError(text)) == str(ms.InfeasibleError(text, 1)) == str(ms.ScheduleError(text)) == shown


@given(ANY | st.text(st.sampled_from("'=+-@\t\rab"), max_size=4))
def test_a_cell_is_no_formula_and_is_read_as_it_was(text: str) -> None:
    cell = plain_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert read_cell(cell) == text
    assert cell == text or cell == f"'{text}"


NAMES = ["=1+1", "+1", "-1", "@SUM(A1)", "'=1", "''=1", "'", "''", "a=1", "=cmd|' /C calc'!A0"]


def test_names_of_buffers_are_no_formulas_and_survive(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    buffers = tuple(ms.Buffer(0, 2, 3, name=name) for name in NAMES)
    ms.place(buffers).to_csv(path)
    with path.open(newline="") as file:
        cells = [row[0] for row in csv.reader(file)][1:]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert [buffer.name for buffer in ms.read_buffers(path)] == NAMES


def test_tables_of_sweeps_hold_no_formulas_and_numbers_stay_numbers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="memsched[sweep] is not installed")
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], name="=HYPERLINK(1)")
    table = ms.sweep([chain], ["greedy"], memory=["0%", "100%"], beta=[1.5])
    table.to_csv(tmp_path / "a.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [row["problem"] for row in rows] == ["'=HYPERLINK(1)"] * 2
    assert [float(row["makespan_seconds"]) for row in rows] == [row["makespan"] for row in table]
    read = pandas.read_csv(tmp_path / "a.csv")
    for name, kind in (
        *(("makespan_seconds", "f"), ("memory_bytes", "i")),
        *(("bandwidth_bytes_per_second", "f"), ("gap", "f")),
    ):
        assert read[name].dtype.kind == kind


@pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="the workflows are not here")
def test_every_action_is_pinned_by_its_hash() -> None:
    uses = [
        line
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 10
    for line in uses:
        assert re.fullmatch(r" *- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
