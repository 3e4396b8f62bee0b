"""The allocators that serve a step from one block, compiled for the installed PyTorch when one is first used."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from memsched.errors import MemschedError
from memsched.support.formats import counted, format_bytes

PASS = -1
"""The address of what PyTorch's own allocator is to serve."""

_SOURCES = ("serve.h", "calls.h", "cpu.cpp", "cuda.cpp")
_NUMBERS = 14  # of Counts in serve.h
_KINDS = ("planned", "let_pass", "strange", "blocked", "other")
_TOLD = 600  # characters of what a compiler says


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a step asked for. Each of the first five is a number of requests and their bytes.

    Attributes
    ----------
    planned : (int, int)
        Served at planned addresses.
    let_pass : (int, int)
        Named by the list, and left to PyTorch's own allocator by it.
    strange : (int, int)
        Asked for while there was a list, and not what it named next.
    blocked : (int, int)
        Named by the list, where something else still lay; PyTorch's own allocator served them.
    other : (int, int)
        Asked for while there was no list.
    given_back : int
    damaged : int
        Planned ranges to which somebody had written while they held nothing; only if that was checked.
    allocating, giving_back : float
        Seconds, the clock's own time among them; only if that was timed.
    """

    planned: tuple[int, int]
    let_pass: tuple[int, int]
    strange: tuple[int, int]
    blocked: tuple[int, int]
    other: tuple[int, int]
    given_back: int
    damaged: int
    allocating: float
    giving_back: float

    @property
    def calls(self) -> int:
        """Requests of all kinds."""
        return sum(getattr(self, kind)[0] for kind in _KINDS)

    def __str__(self) -> str:
        told = {kind: getattr(self, kind) for kind in _KINDS}
        parts = [f"{kind.replace('_', ' ')} {calls} ({format_bytes(size)})" for kind, (calls, size) in told.items()]
        return f"{counted(self.calls, 'request')}: {', '.join(parts)}"


class Requests:
    """A list of requests to come: the bytes of each, and its address or PASS."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        flat = [number for pair in pairs for number in pair]
        self.count = len(pairs)
        self.numbers = (ctypes.c_int64 * len(flat))(*flat)


class Native:
    """One of the two libraries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.arena_make.argtypes = [ctypes.c_int64, ctypes.c_int]
        self.library.arena_free.argtypes = [ctypes.c_int64]
        self.library.arena_expect.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        self.library.arena_clock_ns.argtypes = [ctypes.c_int64]
        self.library.arena_clock_ns.restype = ctypes.c_double
        self.library.arena_take_events.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for name in ("arena_make", "arena_position", "arena_events", "arena_take_events"):
            getattr(self.library, name).restype = ctypes.c_int64

    def make(self, nbytes: int, *, checked: bool = False) -> int:
        """An arena of exactly so many bytes; its address, a multiple of 4096."""
        address = int(self.library.arena_make(nbytes, int(checked)))
        if address == 0:
            raise MemoryError(f"an arena of {nbytes} bytes does not fit")
        return address

    def free(self, address: int) -> None:
        """Give an arena back, now or when nothing lies there any more."""
        self.library.arena_free(address)

    def expect(self, address: int, requests: Requests | None) -> None:
        """What will be asked for from now on, in this order."""
        if requests is None:
            self.library.arena_expect(0, None, 0)
        else:
            self.library.arena_expect(address, ctypes.addressof(requests.numbers), requests.count)

    def end(self) -> None:
        """Nothing is served any more."""
        self.library.arena_end()

    def position(self) -> int:
        """How many requests of the list have come."""
        return int(self.library.arena_position())

    def counts(self) -> Counts:
        """Since the step began."""
        found = (ctypes.c_int64 * _NUMBERS)()
        self.library.arena_counts(found)
        return Counts(
            planned=(found[0], found[1]),
            let_pass=(found[2], found[3]),
            strange=(found[4], found[5]),
            blocked=(found[6], found[7]),
            other=(found[8], found[9]),
            given_back=found[10],
            damaged=found[11],
            allocating=found[12] * 1e-9,
            giving_back=found[13] * 1e-9,
        )

    def number_of_events(self) -> int:
        """Recorded and not yet taken."""
        return int(self.library.arena_events())

    def take_events(self) -> list[tuple[int, int]]:
        """Pairs (address, bytes) of what was allocated, and (address, 0) of what was given back."""
        room = self.number_of_events()  # more may come meanwhile: they are taken the next time
        found = (ctypes.c_int64 * (2 * room))()
        taken = self.library.arena_take_events(found, room)
        return list(zip(found[: 2 * taken : 2], found[1 : 2 * taken : 2], strict=True))


class CpuNative(Native):
    """For tensors on the CPU, of the thread that begins a step."""

    def begin(self, *, checked: bool = False, timed: bool = False, recorded: bool = False) -> None:
        """Serve this thread from now on, as `expect` says.

        Parameters
        ----------
        checked : bool
            Fill what is given back with NaN, and see to it that what is served is full of it. The arena was made so.
        timed : bool
            Measure how long allocating and giving back takes.
        recorded : bool
            Keep all events.
        """
        self.library.arena_begin(int(checked), int(timed), int(recorded))

    def is_sound(self, address: int, nbytes: int) -> bool:
        """Whether nobody wrote to the bytes right before and right behind the arena."""
        self.library.arena_is_sound.argtypes = [ctypes.c_int64, ctypes.c_int64]
        return bool(self.library.arena_is_sound(address, nbytes))


class CudaNative(Native):
    """For all that the process has on CUDA devices."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name in ("allocated", "peak", "reserved"):
            getattr(self.library, f"arena_cuda_{name}").restype = ctypes.c_int64

    def use(self, runtime: Any) -> None:
        """Take blocks from this runtime, which has functions of these names."""
        names = ("cudaMalloc", "cudaFree", "cudaDeviceSynchronize")
        self.library.arena_runtime(*(ctypes.cast(getattr(runtime, name), ctypes.c_void_p) for name in names))

    def begin(self, device: int, stream: int, *, recorded: bool = False) -> None:
        """Serve this stream from now on, as `expect` says."""
        self.library.arena_cuda_begin(device, ctypes.c_void_p(stream), int(recorded))


@functools.cache
def cpu() -> CpuNative:
    """The library for the CPU. MemschedError: there is no compiler."""
    from torch.utils.cpp_extension import include_paths, library_paths  # takes a while

    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    flags += [option for path in include_paths() for option in ("-isystem", path)]
    links = [option for path in library_paths() for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
    return CpuNative(_compiled("cpu", flags, [*links, "-lc10"]))


@functools.cache
def cuda() -> CudaNative:
    """The library for CUDA devices. MemschedError: there is no compiler."""
    return CudaNative(_compiled("cuda", [], []))


def _compiled(name: str, flags: Sequence[str], links: Sequence[str]) -> Path:
    """The library of a source, compiled where no process has done so before."""
    here = Path(__file__).parent
    asked = os.environ.get("CXX") or "c++"
    try:
        compiler = shlex.split(asked)
    except ValueError as error:
        raise MemschedError(f"CXX is {asked!r}, which is no command ({error}); set it to a C++ compiler") from error
    command = [*compiler, "-std=c++20", "-O2", "-shared", "-fPIC", *flags]
    known = repr((command, torch.__version__, *((here / one).read_bytes() for one in _SOURCES)))
    place = _own_folder()
    start = f"{name}-{_digest(known.encode())}"
    for found in [] if place is None else place.glob(f"{start}-*.so"):
        with suppress(OSError):
            if _digest(found.read_bytes()) == found.stem.rpartition("-")[2]:
                return found
            found.unlink()  # damaged: loading it may end the process
    if place is None:
        place = Path(tempfile.mkdtemp(prefix="memsched-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    made = place / f"{start}.{os.getpid()}"  # two processes may compile at once
    try:
        subprocess.run([*command, "-o", made, here / f"{name}.cpp", *links], check=True, capture_output=True, text=True)
        target = place / f"{start}-{_digest(made.read_bytes())}.so"
        made.replace(target)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()[-_TOLD:]
        raise MemschedError(
            f"an arena needs a C++ compiler with C++20, and {shlex.join(compiler)!r} failed: {said}; set CXX to another"
        ) from error
    return target


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _own_folder() -> Path | None:
    """Where libraries are kept, which nobody else may write to; None if there is no such folder, or none is wanted.

    Not where plans are kept: others may share that folder, and what lies here is run.
    """
    if os.environ.get("MEMSCHED_CACHE") == "":
        return None
    with suppress(OSError, RuntimeError):
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        place = caches / "memsched" / "arena"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = place.stat()
        if state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(place, os.W_OK | os.X_OK):
            return place
    return None
