"""Buffers from a snapshot of the allocator of PyTorch."""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from memsched.arena.buffers import Buffer
from memsched.errors import InvalidInputError, shown
from memsched.readers.plain_pickle import plain_data
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.files import MOST_BYTES, named_as, path_of, read_bytes
from memsched.support.formats import counted
from memsched.support.kinds import told_kind

_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_LIBRARY = re.compile(
    r"^<(?:frozen|eval_with_key)"
    r"|[/\\](?:(?:site|dist)-packages|lib[/\\]python\d|torch[/\\](?:nn|optim|autograd|utils|cuda|_\w+))[/\\.]"
)
_PYTHON = re.compile(r"\.py$|^<")  # files, and what was typed in, such as "<stdin>"; frames of C++ have neither
_RECORD = "torch.cuda.memory._record_memory_history()"
_LESS = '_record_memory_history has the options max_entries and stacks="python"'
_DEEPEST = 24  # calls of a stack that are kept
_FILE, _FUNCTION = 120, 80  # letters of a file, its end, and of a function, its beginning
_PART = 1000  # addresses that are moved for a new one, at most
_LIKE = "record without a break, and with all actions"
BEFORE = "before the trace"
"""The name of buffers that were allocated before the trace begins, where nothing tells more."""

Record = dict[str, Any]
Origin = tuple[str | None, tuple[str, ...]]
"""The name and the stack of a buffer."""

_BEFORE: Origin = (BEFORE, ())


@public
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

    `Buffer.stack` has the calls, the innermost first, as in "/home/me/model.py:31 forward": those of Python code, or
    all where there are none; at most 24, and of long names a part. The picture of a placement in a notebook shows them
    where the pointer is.

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
        The file cannot be read, is no snapshot, asks for code to be run, has events of several devices, or has none; or
        its events contradict each other, as when two allocations share bytes at one time.

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
    content = read_bytes(path, MOST_BYTES, f"record less: {_LESS}")
    if content[:1] != b"\x80":  # as any pickle that _dump_snapshot writes
        named = named_as(path_of(path))
        kind = told_kind(content[:200]) or (f"named as {named}" if named not in (None, "a binary file") else None)
        if kind is not None:
            raise InvalidInputError(f"{where} is {kind}; expected a memory snapshot of PyTorch, which is a pickle")
    snapshot = plain_data(content, where)
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
        told = ", ".join(f"{number} ({counted(events[number], 'event')})" for number in busy)
        raise InvalidInputError(f"{where} has events of several devices: {told}; choose one with device=")
    if device is not None and checks.count("device", device, 0, 2**31) not in busy:
        raise InvalidInputError(f"device is {device}, of which {where} has no events; those with events are {busy}")
    return busy[0] if device is None else int(device)


@dataclass(frozen=True, slots=True)
class _Call:
    """A frame: what the name of its file tells, and the texts that it is shown as."""

    python: bool
    library: bool
    name: str  # without folders
    text: str


class _Replay:
    """The events of one device, one after the other."""

    def __init__(self, where: str, device: int) -> None:
        self.where, self.device = where, device
        self.found: list[tuple[int, int | None, int, Origin]] = []  # start, end, size, origin
        self.live: dict[int, tuple[int, int, Origin]] = {}  # by address: start, size, origin
        self.addresses = _Sorted()  # of those
        self.asked: dict[int, int] = {}  # by address: when its free was requested
        self.freed: set[int] = set()  # addresses where nothing has been allocated since
        self.touched = _Ranges()  # bytes that any event so far is about
        self.completes = False  # whether any free is told to be complete
        self.origins: dict[int, Origin] = {}  # by the identity of a list of frames
        self.calls: dict[int, _Call | None] = {}  # by the identity of a frame
        self.files: dict[int, tuple[bool, bool, str]] = {}  # by the identity of a name, which may be long, and in many
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
            self.alloc(address, size, self.origin(event), k + 1, what)
        elif action == "free_requested":
            self.known(address, size, what)
            if address in self.asked:
                raise InvalidInputError(f"{what} frees what another event has freed; {_LIKE}")
            self.asked[address] = k + 1
        else:
            self.completes = True
            self.known(address, size, what)
            self.free(address, k + 1)
        return address

    def alloc(self, address: int, size: int, origin: Origin, time: int, what: str) -> None:
        """Hold a block, where none is. A free that was requested, and is not told to be complete, is complete now."""
        while (other := self.meets(address, size)) is not None:
            if other not in self.asked:
                raise InvalidInputError(f"{what} allocates at an address that is not free; {_LIKE}")
            self.free(other, self.asked[other])
        self.hold(address, time, size, origin)

    def hold(self, address: int, time: int, size: int, origin: Origin) -> None:
        self.touched.add(address, size)
        self.live[address] = time, size, origin
        self.addresses.add(address)
        self.freed.discard(address)

    def meets(self, address: int, size: int) -> int | None:
        """The address of a block that is held and shares bytes, or its address, with this one."""
        if address in self.live:
            return address
        before, after = self.addresses.around(address)
        if before is not None and before + self.live[before][1] > address:
            return before
        return after if after is not None and address + size > after else None

    def known(self, address: int, size: int, what: str) -> None:
        """Refuse a free of what is not held. What no event has told of was held before the trace."""
        if address in self.freed:
            raise InvalidInputError(f"{what} frees what another event has freed; {_LIKE}")
        if address not in self.live:
            if self.meets(address, size) is not None:
                raise InvalidInputError(f"{what} frees a part of what another event has allocated; {_LIKE}")
            if self.touched.meets(address, size):
                raise InvalidInputError(f"{what} frees what was there before the trace, and lies in another; {_LIKE}")
            self.hold(address, 0, size, _BEFORE)
        own = self.live[address][1]
        if own != size:
            raise InvalidInputError(f"{what} frees {size} bytes where {own} are allocated; {_LIKE}")

    def free(self, address: int, time: int) -> None:
        start, size, origin = self.live.pop(address)
        self.addresses.remove(address)
        self.asked.pop(address, None)
        self.freed.add(address)
        self.found.append((start, time, size, origin))

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
                if self.touched.meets(at, size):
                    raise InvalidInputError(f"{what} has a block at {at} that shares bytes with others; {_LIKE}")
                self.touched.add(at, size)
                name, stack = self.origin(block)
                self.found.append((0, None, size, (name or BEFORE, stack)))

    def buffers(self, end: int) -> tuple[Buffer, ...]:
        """All buffers, where the trace ends at this time."""
        for address, (start, size, origin) in self.live.items():
            asked = None if self.completes else self.asked.get(address)
            self.found.append((start, asked, size, origin))
        ordered = sorted(self.found, key=lambda row: row[0])  # stable: those from before as they are freed
        return tuple(
            Buffer(start, end if until is None else until, size, name=name, stack=stack)
            for start, until, size, (name, stack) in ordered
        )

    def origin(self, record: Record) -> Origin:
        """Where an event or a block was allocated. Many events share a list of frames.

        The name is of the innermost call of the user's Python code, or of any Python code. The stack has the innermost
        calls of Python code, or of any code if there is none.
        """
        frames = record.get("frames")
        key = id(frames)
        if key not in self.origins:
            calls = [self.call(frame) for frame in (frames if isinstance(frames, list | tuple) else ())]
            known = [call for call in calls if call is not None]
            python = [call for call in known if call.python]
            named = next((call for call in python if not call.library), python[0] if python else None)
            chosen = python or known
            stack = [call.text for call in chosen[:_DEEPEST]]
            more = ["…"] if len(chosen) > _DEEPEST else []
            self.origins[key] = (named.name if named else None, (*stack, *more))
        return self.origins[key]

    def call(self, frame: Any) -> _Call | None:
        """What a frame tells; None if it names no file. Many lists share a frame."""
        key = id(frame)
        if key not in self.calls:
            filename = frame.get("filename") if isinstance(frame, dict) else None
            self.calls[key] = self.called(frame, filename) if isinstance(filename, str) else None
        return self.calls[key]

    def called(self, frame: Record, filename: str) -> _Call:
        if id(filename) not in self.files:
            path = filename if len(filename) <= _FILE else f"…{filename[1 - _FILE :]}"  # of a long one the end is shown
            told = (_PYTHON.search(filename) is not None, _LIBRARY.search(filename) is not None, path)
            self.files[id(filename)] = told
        python, library, path = self.files[id(filename)]
        line, function = frame.get("line"), frame.get("name")
        rest = f":{line}" if isinstance(line, int) else ""
        if isinstance(function, str):
            rest += f" {function}" if len(function) <= _FUNCTION else f" {function[: _FUNCTION - 1]}…"
        name, text = (
            (part + rest).encode("utf-8", "replace").decode() for part in (re.split(r"[/\\]", path)[-1], path)
        )
        return _Call(python, library, name, text)


class _Sorted:
    """Numbers in order, in parts of a bounded length: a new one moves few others."""

    def __init__(self) -> None:
        self.parts: list[list[int]] = [[]]
        self.firsts: list[int] = [-1]  # no number of a part is less

    def part(self, number: int) -> int:
        """Which part a number belongs to."""
        return bisect_right(self.firsts, number) - 1

    def add(self, number: int) -> None:
        k = self.part(number)
        part = self.parts[k]
        part.insert(bisect_left(part, number), number)
        if len(part) > _PART:
            half = len(part) // 2
            self.parts[k : k + 1] = [part[:half], part[half:]]
            self.firsts.insert(k + 1, part[half])

    def remove(self, number: int) -> None:
        k = self.part(number)
        part = self.parts[k]
        del part[bisect_left(part, number)]
        if not part and k:
            del self.parts[k], self.firsts[k]

    def around(self, number: int) -> tuple[int | None, int | None]:
        """The next lower and the next higher number; only the first part can be empty."""
        k = self.part(number)
        at = bisect_left(self.parts[k], number)
        lower = self.parts[k][at - 1 : at] if at else self.parts[k - 1][-1:] if k else []
        higher = self.parts[k][at : at + 1] or (self.parts[k + 1][:1] if k + 1 < len(self.parts) else [])
        return next(iter(lower), None), next(iter(higher), None)


class _Ranges:
    """Ranges of addresses; those that meet are one."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}  # by the first address
        self.starts = _Sorted()

    def meets(self, address: int, size: int) -> bool:
        """Whether bytes of a range are in one of these."""
        return size > 0 and any(start < address + size and end > address for start, end in self._near(address))

    def add(self, address: int, size: int) -> None:
        """Include a range."""
        end = address + size
        while size and (near := [one for one in self._near(address) if one[0] <= end and one[1] >= address]):
            for start, until in near:
                self.starts.remove(start)
                del self.ends[start]
                address, end = min(address, start), max(end, until)
        if size:
            self.ends[address] = end
            self.starts.add(address)

    def _near(self, address: int) -> list[tuple[int, int]]:
        """The ranges that begin at an address, before it, and after it."""
        found = {address, *self.starts.around(address)}
        return [(start, self.ends[start]) for start in found if start is not None and start in self.ends]


def _whole(record: Record, key: str, what: str) -> int:
    """A whole number >= 0 of a record: an address or a size."""
    value = record.get(key)
    if type(value) is int and 0 <= value < 2**64:
        return value
    raise InvalidInputError(f"{key} of {what} is {_brief(value)}; it must be a whole number >= 0")


def _brief(value: Any) -> str:
    """A value to be shown; not what is in a container: a small file can say that it is endless."""
    return shown(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"
