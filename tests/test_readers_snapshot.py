"""Buffers from snapshots of PyTorch's allocator."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.readers import snapshot as reader
from memsched.readers.snapshot import BEFORE, read_snapshot

LIBRARY = {"filename": "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 9, "name": "forward"}
CPP = {"filename": "??", "line": 0, "name": "at::empty(c10::ArrayRef<long>)"}
SOURCE = {"filename": "/pytorch/aten/src/ATen/Context.cpp", "line": 7, "name": "at::empty"}
USER = {"filename": "/home/me/model.py", "line": 31, "name": "forward"}
MAIN = {"filename": "/home/me/train.py", "line": 5, "name": "<module>"}


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
    with pytest.raises(ms.InvalidInputError, match=r"several devices: 1 \(1 event\), 2 \(2 events\); choose one"):
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
    assert len(read_snapshot(written(tmp_path, snapshot(trace)))) == 50_000


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


def test_shared_lists_do_not_multiply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes name the same list of blocks, or of frames, again and again."""
    blocks = [{"address": 512 * k, "size": 512, "state": "active_allocated"} for k in range(5000)]
    segment = {"address": 0, "device": 0, "blocks": blocks}
    with pytest.raises(ms.InvalidInputError, match="a segment has the blocks of another one"):
        read_snapshot(written(tmp_path, snapshot([alloc(10**8, 1)], [dict(segment) for _ in range(5000)])))
    frames = [LIBRARY] * 5000
    events = [alloc(k, 1) | {"frames": frames} for k in range(5000)]
    calls, looked = reader._Replay.call, []

    def counting(replay: Any, frame: Any) -> Any:
        looked.append(frame)
        return calls(replay, frame)

    monkeypatch.setattr(reader._Replay, "call", counting)
    assert len(read_snapshot(written(tmp_path, snapshot(events)))) == 5000
    assert len(looked) == 5000


class Pattern:
    """A pattern that counts the letters that are looked at."""

    def __init__(self, pattern: Any) -> None:
        self.pattern, self.letters = pattern, 0

    def search(self, text: str) -> Any:
        self.letters += len(text)
        return self.pattern.search(text)


def test_a_long_name_is_looked_at_once_and_shown_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many frames, of which many lists have some; a few bytes each."""
    pattern = Pattern(reader._LIBRARY)
    monkeypatch.setattr(reader, "_LIBRARY", pattern)
    name, function = "/site-packages/" + "x" * 200_000 + ".py", "f" * 100_000
    frames = [{"filename": name, "line": 1 + k % 3, "name": function} for k in range(600)]
    path = written(tmp_path, snapshot([alloc(512 * k, 512, [frame] * 20) for k, frame in enumerate(frames)]))
    tracemalloc.start()
    try:
        found = rows(path)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pattern.letters == len(name)
    assert held < most < 10_000_000  # the names would take 180 MB
    assert {row[3] for row in found} == {f"…{'x' * 116}.py:{k} {'f' * 79}…" for k in (1, 2, 3)}


# Traces that contradict themselves.


def requested(address: int, size: int) -> dict[str, Any]:
    return event("free_requested", address, size)


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ([requested(0, 8), free(0, 8)] * 2, "event 2 .* frees what another event has freed; record without a break"),
        ([free(0, 8), free(0, 8)], "event 1 .* frees what another event has freed"),
        ([alloc(0, 8), requested(0, 8), requested(0, 8)], "event 2 .* frees what another event has freed"),
        ([alloc(0, 8), free(0, 8), event("free", 0, 8)], "event 2 .* frees what another event has freed"),
        ([alloc(0, 8), alloc(0, 8)], "event 1 .* allocates at an address that is not free"),
        ([alloc(0, 800), alloc(512, 8)], "event 1 .* allocates at an address that is not free"),
        ([alloc(512, 8), alloc(0, 800)], "event 1 .* allocates at an address that is not free"),
        ([alloc(512, 8), alloc(0, 8), alloc(100, 500)], "event 2 .* allocates at an address that is not free"),
        ([alloc(0, 800), free(512, 8)], "event 1 .* frees a part of what another event has allocated"),
        ([alloc(0, 800), requested(0, 80)], "event 1 .* frees 80 bytes where 800 are allocated"),
        ([alloc(0, 800), free(0, 800), free(512, 8)], "event 2 .* there before the trace, and lies in another"),
        ([free(512, 800), free(0, 800)], "event 1 .* there before the trace, and lies in another"),
        ([alloc(0, 800), free(0, 801)], "event 1 .* frees 801 bytes where 800 are allocated"),
    ],
)
def test_traces_that_contradict_themselves(trace: list[Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        rows(written(tmp_path, snapshot(trace)))


def test_what_was_freed_can_be_taken_in_other_parts(tmp_path: Path) -> None:
    """Also where no event tells that a free is complete."""
    trace = [alloc(0, 1000), requested(0, 1000), alloc(512, 10), alloc(0, 512), requested(0, 512), alloc(0, 500)]
    assert rows(written(tmp_path, snapshot(trace))) == [
        *((1, 2, 1000, None), (3, 7, 10, None), (4, 5, 512, None), (6, 7, 500, None)),
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans()), max_size=60))
def test_overlaps_are_found_as_byte_by_byte(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, int, bool]]
) -> None:
    """Allocations in any place, of which those that are not free are refused, against a map of all bytes."""
    held: dict[int, int] = {}  # by byte: the address of its block
    trace: list[dict[str, Any]] = []
    folder = tmp_path_factory.mktemp("s")
    for address, size, ends in wanted:
        taken = range(address, address + size)
        if held.keys() & set(taken):
            with pytest.raises(ms.InvalidInputError, match=f"event {len(trace)} .* not free"):
                rows(written(folder, snapshot([*trace, alloc(address, size)])))
            continue
        trace.append(alloc(address, size))
        held |= dict.fromkeys(taken, address)
        if ends:
            trace.append(free(address, size))
            held = {byte: owner for byte, owner in held.items() if owner != address}
    if trace:
        assert len(rows(written(folder, snapshot(trace)))) == sum(one["action"] == "alloc" for one in trace)


@pytest.mark.parametrize("held", [[alloc(0, 1000), free(0, 1000)], [alloc(4096, 8)]])
def test_blocks_that_nobody_tells_of_lie_beside_all_others(held: list[Any], tmp_path: Path) -> None:
    first, second = ({"address": at, "size": 512, "state": "active_allocated"} for at in (0, 256))
    segment = {"address": 0, "device": 0, "blocks": [second] if held[0]["addr"] == 0 else [first, second]}
    with pytest.raises(ms.InvalidInputError, match="a segment has a block at 256 that shares bytes with others"):
        rows(written(tmp_path, snapshot(held, [segment])))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=40))
def test_ranges_are_found_as_byte_by_byte(wanted: list[tuple[int, int]]) -> None:
    ranges, bytes_ = reader._Ranges(), set[int]()
    for address, size in wanted:
        taken = set(range(address, address + size))
        assert ranges.meets(address, size) == bool(taken & bytes_)
        ranges.add(address, size)
        bytes_ |= taken
    assert sum(end - start for start, end in ranges.ends.items()) == len(bytes_)


@given(st.lists(st.integers(0, 60), max_size=200))
def test_numbers_in_order(numbers: list[int]) -> None:
    """Each number is added, or removed where it is there, in parts of at most four."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_PART", 4)
        kept, there = reader._Sorted(), set[int]()
        for number in numbers:
            (kept.remove if number in there else kept.add)(number)
            there ^= {number}
            assert [one for part in kept.parts for one in part] == sorted(there)
            assert max(map(len, kept.parts)) <= 4
            for asked in set(range(62)) - there:
                lower = max((one for one in there if one < asked), default=None)
                assert kept.around(asked) == (lower, min((one for one in there if one > asked), default=None))
