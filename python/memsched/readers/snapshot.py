"""Buffers from a snapshot of the allocator of PyTorch."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from memsched.arena.buffers import Buffer
from memsched.errors import InvalidInputError, shown
from memsched.readers.plain_pickle import plain_data
from memsched.support import checks
from memsched.support.files import MOST_BYTES, path_of, read_bytes

_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_LIBRARY = re.compile(
    r"^<(?:frozen|eval_with_key)"
    r"|[/\\](?:(?:site|dist)-packages|lib[/\\]python\d|torch[/\\](?:nn|optim|autograd|utils|cuda|_\w+))[/\\.]"
)
_PYTHON = re.compile(r"\.py$|^<")  # files, and what was typed in, such as "<stdin>"; frames of C++ have neither
_RECORD = "torch.cuda.memory._record_memory_history()"
_LESS = '_record_memory_history has the options max_entries and stacks="python"'
BEFORE = "before the trace"
"""The name of buffers that were allocated before the trace begins, where nothing tells more."""

Record = dict[str, Any]


def read_snapshot(path: str | os.PathLike[str], *, device: int | None = None) -> tuple[Buffer, ...]:
    """Read buffers from a snapshot that `torch.cuda.memory._dump_snapshot` wrote.

    The file is a pickle. It is read without running anything that it may contain, and without PyTorch. Its history must
    have been recorded: `torch.cuda.memory._record_memory_history()`.

    Times are numbers of events: the first event of the trace is at time 1, and the end of the trace comes one after the
    last event. A buffer lives from its allocation until other allocations may take its place, the event
    "free_completed"; where the trace has none of these, until "free_requested". What was allocated before the trace
    begins lives from time 0, and what is never freed until the end. Sizes are the bytes that the program asked for; the
    allocator rounds them up to multiples of 512. Buffers are in the order of their starts, without alignment and
    without fixed offsets.

    `Buffer.name` is where the bytes were allocated, as in "model.py:31 forward": the innermost line of Python code that
    is neither the standard library's nor an installed package's; else the innermost line of Python code. It is None
    where the trace knows no Python code, as in most of the backward, and "before the trace" where nothing is known.

    Parameters
    ----------
    path : str or path
        At most 256 MiB; `max_entries` and `stacks="python"` of `_record_memory_history` keep a snapshot small.
    device : int, optional
        Number of the GPU; needed if the trace has events of several.

    Returns
    -------
    tuple of Buffer

    Raises
    ------
    InvalidInputError
        The file cannot be read, is no snapshot, asks for code to be run, has events of several devices, or has none.

    Examples
    --------
    >>> import memsched as ms, pathlib, pickle, tempfile
    >>> from memsched.readers.snapshot import read_snapshot
    >>> frames = [{"filename": "/home/me/model.py", "line": 31, "name": "forward"}]
    >>> trace = [
    ...     {"action": "alloc", "addr": 512, "size": 400, "stream": 0, "frames": frames},
    ...     {"action": "alloc", "addr": 1024, "size": 100, "stream": 0, "frames": frames},
    ...     {"action": "free_requested", "addr": 512, "size": 400, "stream": 0, "frames": []},
    ...     {"action": "free_completed", "addr": 512, "size": 400, "stream": 0, "frames": []},
    ... ]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "snapshot.pickle"
    >>> _ = path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    >>> for buffer in read_snapshot(path):
    ...     print(buffer.start, buffer.end, buffer.size, buffer.name)
    1 4 400 model.py:31 forward
    2 5 100 model.py:31 forward
    >>> ms.place(read_snapshot(path)).height
    500
    """
    where = f"'{path_of(path)}'"
    snapshot = plain_data(read_bytes(path, MOST_BYTES, f"record less: {_LESS}"), where)
    if not isinstance(snapshot, dict) or not all(
        type(snapshot.get(key)) is list for key in ("segments", "device_traces")
    ):
        raise InvalidInputError(
            f"{where} is no snapshot: it is no dict with lists called segments and device_traces; write one with "
            "torch.cuda.memory._dump_snapshot"
        )
    number = _device(snapshot["device_traces"], device, where)
    replay = _Replay(where, number)
    trace = snapshot["device_traces"][number]
    known = {replay.read(event, k) for k, event in enumerate(trace)}
    for segment in snapshot["segments"]:
        replay.read_segment(segment, known)
    return replay.buffers(len(trace) + 1)


def _device(traces: list[Any], device: int | None, where: str) -> int:
    """The device that is asked for, or the only one with events."""
    events = [len(trace) if type(trace) is list else 0 for trace in traces]
    busy = [number for number, count in enumerate(events) if count]
    if not busy:
        raise InvalidInputError(f"{where} has no events; call {_RECORD} before what is to be recorded")
    if device is None and len(busy) > 1:
        told = ", ".join(f"{number} ({events[number]} events)" for number in busy)
        raise InvalidInputError(f"{where} has events of several devices: {told}; choose one with device=")
    if device is not None and checks.count("device", device, 0, 2**31) not in busy:
        raise InvalidInputError(f"device is {device}, of which {where} has no events; those with events are {busy}")
    return busy[0] if device is None else int(device)


class _Replay:
    """The events of one device, one after the other."""

    def __init__(self, where: str, device: int) -> None:
        self.where, self.device = where, device
        self.found: list[tuple[int, int | None, int, str | None]] = []  # start, end, size, name
        self.live: dict[int, tuple[int, int, str | None]] = {}  # by address: start, size, name
        self.asked: dict[int, int] = {}  # by address: when its free was requested
        self.completes = False  # whether any free is told to be complete
        self.names: dict[int, str | None] = {}  # by the identity of a list of frames
        self.seen: set[int] = set()  # identities of lists of blocks

    def read(self, event: Any, k: int) -> int | None:
        """Replay event k; returns its address, if it is about a block."""
        what = f"{self.where}: event {k} of device {self.device}"
        action = event.get("action") if isinstance(event, dict) else None
        if not isinstance(action, str):
            raise InvalidInputError(f"{what} has no action; is it a snapshot of torch.cuda.memory?")
        if action not in ("alloc", "free", "free_requested", "free_completed"):
            return None  # about segments, or a mark
        address, size = _whole(event, "addr", what), _whole(event, "size", what)
        if action == "alloc":
            self.alloc(address, size, self.name(event), k + 1, what)
        elif action == "free_requested":
            self.asked[address] = k + 1
            self.live.setdefault(address, (0, size, BEFORE))
        else:
            self.completes = True
            self.free(address, size, k + 1)
        return address

    def alloc(self, address: int, size: int, name: str | None, time: int, what: str) -> None:
        if address in self.live:
            if address not in self.asked:
                raise InvalidInputError(
                    f"{what} allocates at an address that is not free; record without a break, and with all actions"
                )
            self.free(address, size, self.asked[address])
        self.live[address] = (time, size, name)

    def free(self, address: int, size: int, time: int) -> None:
        start, own, name = self.live.pop(address, (0, size, BEFORE))
        self.asked.pop(address, None)
        self.found.append((start, time, own, name))

    def read_segment(self, segment: Any, known: set[int | None]) -> None:
        """Add the blocks of a segment that no event is about: they live from the beginning to the end."""
        what = f"{self.where}: a segment"
        if not isinstance(segment, dict) or type(segment.get("blocks")) is not list:
            raise InvalidInputError(f"{what} has no list called blocks; is it a snapshot of torch.cuda.memory?")
        if segment.get("device", self.device) != self.device:
            return
        if id(segment["blocks"]) in self.seen:  # a short file could name a long list again and again
            raise InvalidInputError(f"{what} has the blocks of another one; is it a snapshot of torch.cuda.memory?")
        self.seen.add(id(segment["blocks"]))
        address = _whole(segment, "address", what)
        for block in segment["blocks"]:
            if not isinstance(block, dict):
                raise InvalidInputError(f"{what} has a block that is {_brief(block)}; it must be a dict")
            rounded = _whole(block, "size", f"a block of {what}")
            at = _whole(block, "address", what) if "address" in block else address
            address = at + rounded  # old snapshots do not tell the addresses of blocks, which lie side by side
            if block.get("state") in _ACTIVE and at not in known:
                size = _whole(block, "requested_size", what) if "requested_size" in block else rounded
                self.found.append((0, None, size, self.name(block) or BEFORE))

    def buffers(self, end: int) -> tuple[Buffer, ...]:
        """All buffers, where the trace ends at this time."""
        for address, (start, size, name) in self.live.items():
            asked = None if self.completes else self.asked.get(address)
            self.found.append((start, asked, size, name))
        ordered = sorted(self.found, key=lambda row: row[0])  # stable: those from before as they are freed
        return tuple(Buffer(row[0], end if row[1] is None else row[1], row[2], name=row[3]) for row in ordered)

    def name(self, record: Record) -> str | None:
        """Where an event or a block was allocated. Many events share a list of frames."""
        frames = record.get("frames")
        key = id(frames)
        if key not in self.names:
            self.names[key] = _innermost(frames)
        return self.names[key]


@lru_cache(maxsize=4096)  # a long name may stand in many frames
def _is_python(filename: str) -> bool:
    return _PYTHON.search(filename) is not None


@lru_cache(maxsize=4096)
def _is_library(filename: str) -> bool:
    return _LIBRARY.search(filename) is not None


def _innermost(frames: Any) -> str | None:
    """The innermost frame of the user's code as a text; frames begin with the innermost."""
    outer = None
    for frame in frames if isinstance(frames, list | tuple) else ():
        filename = frame.get("filename") if isinstance(frame, dict) else None
        if not isinstance(filename, str) or not _is_python(filename):
            continue
        if not _is_library(filename):
            return _text(frame)
        outer = outer or frame
    return _text(outer) if outer else None


def _text(frame: Record) -> str:
    """A frame of Python code as a text."""
    file, line, function = re.split(r"[/\\]", frame["filename"])[-1], frame.get("line"), frame.get("name")
    place = f"{file}:{line}" if isinstance(line, int) else file
    text = f"{place} {function}" if isinstance(function, str) else place
    return text.encode("utf-8", "replace").decode()


def _whole(record: Record, key: str, what: str) -> int:
    """A whole number >= 0 of a record: an address or a size."""
    value = record.get(key)
    if type(value) is int and 0 <= value < 2**64:
        return value
    raise InvalidInputError(f"{key} of {what} is {_brief(value)}; it must be a whole number >= 0")


def _brief(value: Any) -> str:
    """A value to be shown; not what is in a container: a small file can say that it is endless."""
    return shown(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"
