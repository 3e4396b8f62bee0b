"""The reader of pickles below that of snapshots: plain data is read, nothing is run."""

from __future__ import annotations

import ast
import contextlib
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.readers import plain_pickle
from memsched.readers.plain_pickle import plain_data
from memsched.readers.snapshot import read_snapshot
from test_readers_snapshot import USER, alloc, free, snapshot

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
        | inner.map(lambda one: [one, one])  # remembered, and recalled
    ),
    max_leaves=30,
)


@given(PLAIN, st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_data_is_what_pickle_reads(value: Any, protocol: int) -> None:
    assert plain_data(pickle.dumps(value, protocol), "it") == value
    assert plain_data(pickletools.optimize(pickle.dumps(value, protocol)), "it") == value


def test_long_lists_and_memos() -> None:
    value = {"a": [str(k % 300) for k in range(3000)], "b": {str(k): [k] for k in range(3000)}, "c": "x" * 70_000}
    assert plain_data(pickle.dumps(value, 2), "it") == value
    value["d"] = [value["a"], value["b"], b"y" * 300]  # protocol 2 has no bytes
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):
        assert plain_data(pickle.dumps(value, protocol), "it") == value


@given(st.binary(max_size=60) | st.lists(st.sampled_from(list(plain_pickle._STEPS)), max_size=40).map(bytes))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(ms.InvalidInputError):
        plain_data(content + b".", "it")


@given(st.data())
def test_any_damage_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(snapshot([alloc(1, 2, [USER]), free(1, 2)])))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with contextlib.suppress(ms.InvalidInputError):
        plain_data(bytes(content), "it")


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    path, trap = tmp_path / "s.pickle", tmp_path / "trap"
    path.write_bytes(pickle.dumps(snapshot([alloc(1, 2, [Evil(trap)])]), protocol))
    with pytest.raises(
        ms.InvalidInputError, match=r"asks for the class '(\w+\.getattr|pathlib\..*touch)'|not a pickle of plain data"
    ):
        read_snapshot(path)
    assert not trap.exists()
    pickle.loads(path.read_bytes())
    assert trap.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"cos\nsystem\n(X\x02\x00\x00\x00lstR.", r"asks for the class 'os\.system', which plain data does not need"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"asks for the class 'os\.system'"),
        (b"(ios\nsystem\n.", "asks for a class or a function"),
        (b"\x80\x02\x82\x01.", "asks for a class or a function"),  # registered by number
        (b"Pname\n.", "asks for a class or a function"),  # a persistent id
        (b"\x80\x04NQ.", "asks for a class or a function"),
        (b"NR.", "asks for a class or a function"),
        (b"Nb.", "asks for a class or a function"),
        (b"I1\n.", r"is not a pickle of plain data: byte 0 is b'I'"),  # protocol 0
        (b"\x80\x04\x8f.", "is not a pickle of plain data: byte 2"),  # a set
        (b"", "is truncated, at byte 0"),
        (b".", "is not a pickle of plain data, or is truncated"),
        (b"\x80\x04]", "is truncated, at byte 3"),
        (b"j\xff\xff\xff\xff.", "is not a pickle of plain data"),
        (b"Nj\x01\x00\x00", "is not a pickle of plain data"),
        (b"]e.", "is not a pickle of plain data"),
        (b"N(Ne.", "is not a pickle of plain data"),
        (b"}(Nu.", "is not a pickle of plain data"),
        (b"}(NNu.", "has a dict with a key that is no text"),
        (b"})Ns.", "has a dict with a key that is no text"),
        (b"(" * 101 + b".", "nests deeper than 100 levels"),
        (b"\x8c\x01\xff.", "is not a pickle of plain data"),
        (b"\x8a\x11" + b"\1" * 17 + b".", "has an integer of 17 bytes"),
        (b"\x8b\xff\xff\xff\x7f.", "has an integer of 2147483647 bytes"),
        (b"\x8d" + b"\xff" * 8 + b".", "is not a pickle of plain data"),  # a text of 2^64 bytes
        (b"\x8e" + b"\xff" * 7 + b"\x00.", "is not a pickle of plain data"),
        (b"Nr\xff\xff\xff\x3f.", "it leaves out places of its memo"),
        (b"PK\x03\x04", "is a zip archive"),
    ],
)
def test_refused_pickles(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(ms.InvalidInputError, match=told):
        read_snapshot(path)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of memory are POSIX's")
@pytest.mark.parametrize(
    "content",
    [
        "b'Nr' + b'\\xff\\xff\\xff\\x0f' + b'.'",  # Python's reader takes 4 GiB for its memo
        "b'C\\x01x' + b'\\x8e' + (1 << 40).to_bytes(8, 'little') + b'.'",  # and 1 TiB for these bytes
        pytest.param("b'}' * 6_000_000 + b'.'", marks=pytest.mark.slow),
        pytest.param("b')' + b'\\x85' * 6_000_000 + b'.'", marks=pytest.mark.slow),
        "b'(' * 6_000_000 + b'.'",
        "b'}\\x94X\\x01\\x00\\x00\\x00a]\\x94s' + b'h\\x01h\\x01' * 100 + b'.'",
    ],
)
def test_a_bomb_stays_small(content: str) -> None:
    """The limit is more than the largest of these may take: five million containers."""
    code = (
        "import resource\n"
        "from memsched.readers.plain_pickle import plain_data\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        f"content = {content}\n"
        "try:\n"
        "    plain_data(content, 'it')\n"
        "except ValueError as error:\n"
        "    assert 'memory' not in str(error), error\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_reader_of_python_is_used() -> None:
    imported: set[str] = set()
    for one in ast.walk(ast.parse(Path(plain_pickle.__file__).read_text(encoding="utf-8"))):
        if isinstance(one, ast.Import):
            imported.update(alias.name for alias in one.names)
        elif isinstance(one, ast.ImportFrom):
            imported.add(f"{one.module}")
        elif isinstance(one, ast.Name):
            imported.add(one.id)
    assert imported.isdisjoint({"pickle", "_pickle", "_compat_pickle", "importlib", "__import__", "eval", "exec"})
    assert {"re", "struct", "memsched.errors"} <= imported
