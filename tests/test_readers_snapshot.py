"""Buffers from snapshots of PyTorch's allocator, and the reader of pickles below it."""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.readers import plain_pickle
from memsched.readers.plain_pickle import plain_data
from memsched.readers.snapshot import BEFORE, read_snapshot

LIBRARY = {"filename": "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 9, "name": "forward"}
CPP = {"filename": "??", "line": 0, "name": "at::empty(c10::ArrayRef<long>)"}
SOURCE = {"filename": "/pytorch/aten/src/ATen/Context.cpp", "line": 7, "name": "at::empty"}
USER = {"filename": "/home/me/model.py", "line": 31, "name": "forward"}
MAIN = {"filename": "/home/me/train.py", "line": 5, "name": "<module>"}
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
        ms.InvalidInputError, match=r"asks for the class '(\w+\.getattr|pathlib\..*touch)'|no pickle of plain data"
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
        (b"I1\n.", r"is no pickle of plain data: byte 0 is b'I'"),  # protocol 0
        (b"\x80\x04\x8f.", "is no pickle of plain data: byte 2"),  # a set
        (b"", "is truncated, at byte 0"),
        (b".", "is no pickle of plain data, or is truncated"),
        (b"\x80\x04]", "is truncated, at byte 3"),
        (b"j\xff\xff\xff\xff.", "is no pickle of plain data"),
        (b"Nj\x01\x00\x00", "is no pickle of plain data"),
        (b"]e.", "is no pickle of plain data"),
        (b"N(Ne.", "is no pickle of plain data"),
        (b"}(Nu.", "is no pickle of plain data"),
        (b"}(NNu.", "has a dict with a key that is no text"),
        (b"})Ns.", "has a dict with a key that is no text"),
        (b"(" * 101 + b".", "nests deeper than 100 levels"),
        (b"\x8c\x01\xff.", "is no pickle of plain data"),
        (b"\x8a\x11" + b"\1" * 17 + b".", "has an integer of 17 bytes"),
        (b"\x8b\xff\xff\xff\x7f.", "has an integer of 2147483647 bytes"),
        (b"\x8d" + b"\xff" * 8 + b".", "is no pickle of plain data"),  # a text of 2^64 bytes
        (b"\x8e" + b"\xff" * 7 + b"\x00.", "is no pickle of plain data"),
        (b"Nr\xff\xff\xff\x3f.", "it leaves out places of its memo"),
        (b"PK\x03\x04", "no pickle of plain data|asks for a class"),
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
        "b'}\\x94X\\x01\\x00\\x00\\x00a]\\x94s.' + b''.join(b'h\\x01h\\x01' for _ in range(100))",
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


def test_shared_lists_do_not_multiply(tmp_path: Path) -> None:
    """A few bytes name the same list of blocks, or of frames, again and again."""
    blocks = [{"address": 512 * k, "size": 512, "state": "active_allocated"} for k in range(5000)]
    segment = {"address": 0, "device": 0, "blocks": blocks}
    with pytest.raises(ms.InvalidInputError, match="a segment has the blocks of another one"):
        read_snapshot(written(tmp_path, snapshot([alloc(1, 1)], [dict(segment) for _ in range(5000)])))
    frames = [LIBRARY] * 5000
    events = [alloc(k, 1) | {"frames": frames} for k in range(5000)]
    begin = time.perf_counter()
    assert len(read_snapshot(written(tmp_path, snapshot(events)))) == 5000
    assert time.perf_counter() - begin < 5


# Snapshots.


def alloc(address: int, size: int, frames: list[Any] | None = None) -> dict[str, Any]:
    return event("alloc", address, size, frames)


def event(action: str, address: int, size: int, frames: list[Any] | None = None) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 7, "frames": frames or []}


def free(address: int, size: int) -> dict[str, Any]:
    return event("free_completed", address, size)


def snapshot(trace: list[Any], segments: list[Any] | None = None) -> dict[str, Any]:
    return {"segments": segments or [], "device_traces": [trace], "allocator_settings": {"a": True, "b": [1, (0, 1)]}}


def written(folder: Path, made: Any) -> Path:
    path = folder / "s.pickle"
    path.write_bytes(pickle.dumps(made))
    return path


def rows(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    return [(one.start, one.end, one.size, one.name) for one in read_snapshot(path, **options)]


def test_what_each_event_does(tmp_path: Path) -> None:
    trace = [
        event("segment_alloc", 0, 4096),
        alloc(0, 100, [CPP, SOURCE, LIBRARY, USER, MAIN]),
        alloc(512, 200, [CPP]),
        event("free_requested", 0, 100),
        {"action": "snapshot", "addr": 0, "size": 0, "frames": []},
        event("free_completed", 0, 100),
        alloc(0, 300, [LIBRARY]),
        event("free_requested", 2048, 50),  # from before the trace
        event("free_completed", 2048, 50),
        event("free_requested", 512, 200),  # pending at the end
        {"action": "oom", "size": 1 << 40, "device_free": 0, "frames": []},
        event("free", 0, 300),  # of old versions
    ]
    blocks = [
        {"address": 0, "size": 512, "requested_size": 300, "state": "inactive", "frames": []},
        {"address": 512, "size": 512, "requested_size": 200, "state": "active_pending_free", "frames": []},
        {"address": 1024, "size": 512, "requested_size": 40, "state": "active_allocated", "frames": [USER]},
        {"address": 1536, "size": 512, "requested_size": 30, "state": "active_allocated"},
    ]
    elsewhere = {"address": 9999, "device": 1, "blocks": [{"address": 9999, "size": 1, "state": "active_allocated"}]}
    path = written(tmp_path, snapshot(trace, [{"address": 0, "device": 0, "blocks": blocks}, elsewhere]))
    assert rows(path) == [
        (0, 9, 50, BEFORE),
        (0, 13, 40, "model.py:31 forward"),
        (0, 13, 30, BEFORE),
        (2, 6, 100, "model.py:31 forward"),
        (3, 13, 200, None),
        (7, 12, 300, "linear.py:9 forward"),
    ]


def test_traces_without_one_kind_of_free(tmp_path: Path) -> None:
    """`skip_actions` leaves them out."""
    trace = [alloc(0, 1), event("free_requested", 0, 1), alloc(0, 2), event("free_requested", 0, 2)]
    assert rows(written(tmp_path, snapshot(trace))) == [(1, 2, 1, None), (3, 4, 2, None)]
    trace = [alloc(0, 1), free(0, 1), alloc(0, 2), free(0, 2)]
    assert rows(written(tmp_path, snapshot(trace))) == [(1, 2, 1, None), (3, 4, 2, None)]
    with pytest.raises(ms.InvalidInputError, match="event 1 of device 0 allocates at an address that is not free"):
        rows(written(tmp_path, snapshot([alloc(0, 1), alloc(0, 2)])))


def test_old_snapshots_do_not_tell_where_blocks_are(tmp_path: Path) -> None:
    blocks = [{"size": 512, "state": state} for state in ("inactive", "active_allocated", "active_allocated")]
    path = written(tmp_path, snapshot([alloc(1024 + 4096, 7)], [{"address": 4096, "blocks": blocks}]))
    assert rows(path) == [(0, 2, 512, BEFORE), (1, 2, 7, None)]


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([], None),
        (None, None),
        ([CPP, SOURCE], None),
        ([LIBRARY], "linear.py:9 forward"),
        ([LIBRARY, MAIN, USER], "train.py:5 <module>"),
        ([{"filename": "<stdin>", "line": 1, "name": "<module>"}], "<stdin>:1 <module>"),
        ([{"filename": "<eval_with_key>.3", "line": 8, "name": "forward"}, USER], "model.py:31 forward"),
        ([{"filename": "C:\\me\\net.py", "line": 2, "name": "f"}], "net.py:2 f"),
        ([{"filename": "/me/torch/train.py", "line": 2, "name": "f"}], "train.py:2 f"),
        ([{"filename": "/me/pytorch/torch/_tensor.py", "line": 2, "name": "f"}, USER], "model.py:31 forward"),
        ([{"filename": "a.py"}], "a.py"),
        ([{"filename": 3}, 7, {"filename": "a\ud800.py", "line": 1}], "a?.py:1"),
    ],
)
def test_names(frames: Any, name: str | None, tmp_path: Path) -> None:
    trace = [alloc(0, 1) | {"frames": frames}]
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot(trace)) if "\ud800" not in repr(frames) else surrogates(trace))
    assert rows(path) == [(1, 2, 1, name)]


def surrogates(trace: list[Any]) -> bytes:
    return pickle.dumps(snapshot(trace), 4)


def test_several_devices(tmp_path: Path) -> None:
    made = snapshot([])
    made["device_traces"] = [[], [alloc(0, 1)], []]
    assert rows(written(tmp_path, made)) == rows(written(tmp_path, made), device=1) == [(1, 2, 1, None)]
    with pytest.raises(
        ms.InvalidInputError, match=r"device is 0, of which .* has no events; those with events are \[1"
    ):
        rows(written(tmp_path, made), device=0)
    with pytest.raises(ms.InvalidInputError, match=r"device is -1; it must be a whole number"):
        rows(written(tmp_path, made), device=-1)
    made["device_traces"][2] = [alloc(0, 5), alloc(8, 6)]
    with pytest.raises(ms.InvalidInputError, match=r"several devices: 1 \(1 events\), 2 \(2 events\); choose one"):
        rows(written(tmp_path, made))
    assert len(rows(written(tmp_path, made), device=2)) == 2


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ([], "is no snapshot"),
        ({}, "is no snapshot"),
        ({"segments": [], "device_traces": {}}, "is no snapshot"),
        (snapshot([]), "has no events; call torch"),
        ({"segments": [], "device_traces": [3]}, "has no events"),
        (snapshot([3]), "event 0 of device 0 has no action"),
        (snapshot([{"action": []}]), "event 0 of device 0 has no action"),
        (
            snapshot([{"action": "alloc", "size": 1}]),
            "addr of .* event 0 of device 0 is None; it must be a whole number",
        ),
        (snapshot([alloc(0, -1)]), "size of .* is -1"),
        (snapshot([alloc(0, 1), free(0, True)]), "size of .* is True"),
        (snapshot([alloc(0, 2**60)]), "size is 1152921504606846976"),
        (snapshot([event("alloc", [], 1)]), "addr of .* is a list"),
        (snapshot([alloc(0, 1)], [3]), "a segment has no list called blocks"),
        (snapshot([alloc(0, 1)], [{"blocks": []}]), "address of .* a segment is None"),
        (snapshot([alloc(0, 1)], [{"address": 0, "blocks": [[]]}]), "a segment has a block that is a list"),
        (snapshot([alloc(0, 1)], [{"address": 0, "blocks": [{}]}]), "size of a block of .* is None"),
    ],
)
def test_what_is_no_snapshot(made: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        read_snapshot(written(tmp_path, made))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ms.InvalidInputError, match="cannot be read"):
            read_snapshot(path)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", (1 << 28) + 1)
    with pytest.raises(ms.InvalidInputError, match="has more than 268435456 bytes"):
        read_snapshot(tmp_path / "large")


def replayed_peak(made: dict[str, Any]) -> int:
    """The most bytes that are held at once, counted event by event from the end to the beginning."""
    held = {
        b["address"]: b["requested_size"] for s in made["segments"] for b in s["blocks"] if b["state"] != "inactive"
    }
    most = total = sum(held.values())
    for one in reversed(made["device_traces"][0]):
        if one["action"] == "free_completed":
            total += one["size"]
        elif one["action"] == "alloc":
            total -= one["size"]
        most = max(most, total)
    return most


def recorded(rng: random.Random, count: int, skipped: int) -> dict[str, Any]:
    """A program that allocates and frees, of whose events the first ones are lost."""
    live: dict[int, int] = {}
    trace: list[dict[str, Any]] = []
    while len(trace) < count + skipped:
        if live and rng.random() < 0.5:
            address = rng.choice(list(live))
            trace += [event(kind, address, live[address]) for kind in ("free_requested", "free_completed")]
            del live[address]
        else:
            address = rng.choice([k for k in range(0, 512 * (len(live) + 4), 512) if k not in live])
            live[address] = rng.randint(1, 512)
            trace.append(alloc(address, live[address], [USER]))
    blocks = [
        {"address": address, "size": 512, "requested_size": size, "state": "active_allocated", "frames": []}
        for address, size in sorted(live.items())
    ]
    return snapshot(trace[skipped:], [{"address": 0, "device": 0, "blocks": blocks}])


@given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(0, 30))
def test_the_load_is_the_peak_of_the_replay(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, count: int, skipped: int
) -> None:
    made = recorded(rng, count, skipped)
    buffers = read_snapshot(written(tmp_path_factory.mktemp("s"), made))
    assert ms.place(buffers, time_limit=0.01).load == replayed_peak(made)
    assert [one.start for one in buffers] == sorted(one.start for one in buffers)


@pytest.mark.slow
def test_a_hundred_thousand_events(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [USER | {"line": k} for k in range(1000)]
    stacks = [rng.choices(lines, k=30) for _ in range(1000)]
    trace = []
    for k in range(50_000):
        trace.append(alloc(512 * k, 100, list(stacks[k % 1000])))
        if k >= 100:
            trace.append(free(512 * (k - 100), 100))
    path = written(tmp_path, snapshot(trace))
    begin = time.perf_counter()
    assert len(read_snapshot(path)) == 50_000
    assert time.perf_counter() - begin < 30


def test_a_profile_of_torch_is_read_too(tmp_path: Path) -> None:
    """torch's own writer of snapshots, from a profile of the CPU."""
    torch = pytest.importorskip("torch")
    from torch.cuda import _memory_viz

    profile = torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True)
    with profile:
        torch.ones(1000) @ torch.ones(1000, 10)
    trace = _memory_viz._profile_to_snapshot(profile)
    path = tmp_path / "s.pickle"
    with open(path, "wb") as file:
        pickle.dump(trace, file)
    assert max(one.size for one in read_snapshot(path)) >= 40_000


def test_no_reader_of_python_is_used() -> None:
    source = Path(plain_pickle.__file__).read_text(encoding="utf-8")
    assert "import pickle" not in source.replace(">>> import pickle", "")


def test_a_long_name_in_many_frames_is_looked_at_once(tmp_path: Path) -> None:
    frame = {"filename": "/site-packages/" + "x" * 100_000 + ".py", "line": 1, "name": "f"}
    path = written(tmp_path, snapshot([alloc(512, 512, [frame] * 50_000)]))
    began = time.perf_counter()
    assert len(rows(path)) == 1
    assert time.perf_counter() - began < 2
