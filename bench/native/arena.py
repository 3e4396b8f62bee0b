"""One block of memory from which PyTorch on the CPU takes its tensors, at addresses that were planned.

c10::SetCPUAllocator puts arena_allocator.cpp before PyTorch's own allocator, which goes on serving all that no list
names. There is one arena in a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.native import BUILD

PASS = -1  # the address of what PyTorch's own allocator is to serve
_NUMBERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the watched thread asked for. Each of the first four is a number of requests and their bytes.

    Attributes
    ----------
    planned : (int, int)
        Served at planned addresses.
    let_pass : (int, int)
        Named by the list, and left to PyTorch's own allocator by it.
    strange : (int, int)
        Asked for while there was a list, and not what it named next.
    other : (int, int)
        Asked for while there was none.
    given_back : int
    overlaps : int
        Planned ranges that held something when they were served; only if that was checked.
    allocating, giving_back : float
        Seconds, the clock's own time among them; only if that was timed.
    """

    planned: tuple[int, int]
    let_pass: tuple[int, int]
    strange: tuple[int, int]
    other: tuple[int, int]
    given_back: int
    overlaps: int
    allocating: float
    giving_back: float

    @property
    def calls(self) -> int:
        """Requests of all kinds."""
        return self.planned[0] + self.let_pass[0] + self.strange[0] + self.other[0]


class Requests:
    """A list of requests to come: the bytes of each, and its address or PASS."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        flat = [number for pair in pairs for number in pair]
        self.count = len(pairs)
        self.numbers = (ctypes.c_int64 * len(flat))(*flat)


@functools.cache
def _library() -> ctypes.CDLL:
    """Compiled for the installed PyTorch where it is missing or older."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    source = Path(__file__).with_name("arena_allocator.cpp")
    target = BUILD / f"arena_allocator-{torch.__version__}.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")  # two processes may compile at once
        headers = [option for path in include_paths() for option in ("-isystem", path)]
        links = [option for path in library_paths() for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
        options = ["-std=c++20", "-O3", "-shared", "-fPIC", abi, *headers]
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, *options, "-o", made, source, *links, "-lc10"], check=True)
        made.replace(target)
    library = ctypes.CDLL(str(target))
    library.arena_make.argtypes = [ctypes.c_int64]
    library.arena_expect.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.arena_clock_ns.argtypes = [ctypes.c_int64]
    library.arena_clock_ns.restype = ctypes.c_double
    for name in ("arena_make", "arena_position", "arena_events"):
        getattr(library, name).restype = ctypes.c_int64
    return library


@contextlib.contextmanager
def watched(*, checked: bool = False, timed: bool = False, recorded: bool = False) -> Iterator[None]:
    """Meanwhile the requests of this thread are counted, and served as `expect` says.

    Parameters
    ----------
    checked : bool
        Fill what is given back with NaN, and see to it that what is served holds nothing.
    timed : bool
        Measure how long allocating and giving back takes.
    recorded : bool
        Keep all events.
    """
    library = _library()
    library.arena_use(1)
    library.arena_watch(int(checked), int(timed), int(recorded))
    try:
        yield
    finally:
        library.arena_expect(None, 0)
        library.arena_unwatch()
        library.arena_use(0)


def make(nbytes: int) -> int:
    """An arena of exactly so many bytes, full of NaN, in the place of the one before; its address, a multiple of 4096.

    No tensor of the one before may be alive.
    """
    address = int(_library().arena_make(nbytes))
    if address == 0:
        raise MemoryError(f"an arena of {nbytes} bytes does not fit")
    return address


def expect(requests: Requests | None) -> None:
    """What this thread will ask for from now on, in this order. Keep the list until the next one is given."""
    if requests is None:
        _library().arena_expect(None, 0)
    else:
        _library().arena_expect(ctypes.addressof(requests.numbers), requests.count)


def position() -> int:
    """How many requests of the list have come."""
    return int(_library().arena_position())


def counts() -> Counts:
    """Since the watch began."""
    found = (ctypes.c_int64 * _NUMBERS)()
    _library().arena_counts(found)
    return Counts(
        planned=(found[0], found[1]),
        let_pass=(found[2], found[3]),
        strange=(found[4], found[5]),
        other=(found[6], found[7]),
        given_back=found[8],
        overlaps=found[9],
        allocating=found[10] * 1e-9,
        giving_back=found[11] * 1e-9,
    )


def number_of_events() -> int:
    """Recorded since the watch began."""
    return int(_library().arena_events())


def events() -> list[tuple[int, int]]:
    """Pairs (address, bytes) of what was allocated, and (address, 0) of what was given back."""
    many = number_of_events()
    found = (ctypes.c_int64 * (2 * many))()
    _library().arena_read_events(found)
    return list(zip(found[::2], found[1::2], strict=True))


def is_sound() -> bool:
    """Whether nobody wrote to the bytes right before and right behind the arena."""
    return bool(_library().arena_is_sound())


def clock_seconds(times: int = 100_000) -> float:
    """How long measuring nothing takes, which each timed request and each timed giving back contains."""
    return float(_library().arena_clock_ns(times)) * 1e-9
