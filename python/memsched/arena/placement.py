"""Placement: the offset of every buffer in one arena, and how low the arena can be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, overload

from memsched.arena.buffers import Buffer, height, write_buffers
from memsched.arena.search import columns_of, load_of, place_columns
from memsched.errors import InvalidInputError, shown
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.support.documents import Document, Source, check_keys, fields, file_of, read_document, write_document
from memsched.support.files import check_named, path_of
from memsched.support.formats import counted
from memsched.support.types import Progress, Quantity, Size
from memsched.support.units import parse_bytes
from memsched.support.views import Drawn
from memsched.validation.placement import validate_placement as check_placement

if TYPE_CHECKING:
    from typing_extensions import Self

_FORMAT = "memsched-placement/1"
_METHODS = ("search", "greedy", "ilp")
_MAKERS = (*_METHODS, "schedule")  # "schedule": the addresses come with a schedule
_KEYS = ("buffers", "offsets", "height", "lower_bound", "optimal", "method", "runtime")


class _Load(property):
    """The load of a placement; called as `Placement.load(path)` it reads a file, as `load` of all that is saved."""

    @overload
    def __get__(self, one: None, kind: type, /) -> Self: ...
    @overload
    def __get__(self, one: Placement, kind: type | None = None, /) -> int: ...
    def __get__(self, one: Placement | None, kind: type | None = None, /) -> Self | int:
        found: Self | int = super().__get__(one, kind)
        return found

    def __call__(self, path: str | os.PathLike[str]) -> Placement:
        return Placement.from_json(file_of(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(Drawn):
    """Buffers and their offsets; `plot` draws them as `plot_addresses` does.

    Attributes
    ----------
    buffers : tuple of Buffer
    offsets : tuple of int
        Bytes, in the order of the buffers.
    height : int
        Bytes that the arena needs: the highest end of a buffer, including buffers that are never alive.
    lower_bound : int
        Bytes; it is proven that no placement is lower.
    method : str
        How it was found: "search", "greedy", "ilp", or "schedule" if a plan came with its own addresses.
    runtime : float
        Seconds that finding it took.
    claimed : bool
        Whether lower_bound was read from a file and is above the load. Then the file claims that a search has proven
        it, but nothing here has.
    """

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    height: int
    lower_bound: int
    method: str
    runtime: float = field(compare=False)
    claimed: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "buffers", _checked(self.buffers))
        if not checks.is_list(self.offsets):
            raise InvalidInputError(f"offsets is {shown(self.offsets)}; it must be a list of bytes")
        put(self, "offsets", checks.counts("offsets", self.offsets, 0, 2**63 - 1))
        if len(self.offsets) != len(self.buffers):
            raise InvalidInputError(f"offsets has {len(self.offsets)} entries; it must have {len(self.buffers)}")
        top = height(self.buffers, self.offsets)
        if not checks.is_number(self.height) or self.height != top:
            raise InvalidInputError(f"height is {shown(self.height)}; by the offsets it must be {top}")
        put(self, "height", top)
        put(self, "lower_bound", checks.count("lower_bound", self.lower_bound, 0, 2**63 - 1))
        if self.lower_bound > top:
            raise InvalidInputError(f"lower_bound is {self.lower_bound}; it must be at most height, which is {top}")
        checks.choice("method", self.method, _MAKERS)
        put(self, "runtime", checks.non_negative("runtime", self.runtime, "seconds"))

    @property
    def optimal(self) -> bool:
        """Whether no placement is lower; proven, or `claimed`."""
        return self.height == self.lower_bound

    @_Load
    def load(self) -> int:
        """The largest number of bytes alive at once. Of the class, `Placement.load(path)` reads what `save` wrote."""
        return load_of(self.buffers)

    @property
    def fragmentation(self) -> float:
        """(height - load) / height, in 0..1: (MR - RS) / MR of Steiner et al. (2022), section 5.4."""
        return (self.height - self.load) / self.height if self.height else 0.0

    @property
    def gap(self) -> float:
        """(height - lower_bound) / height: at most this much lower is possible."""
        return (self.height - self.lower_bound) / self.height if self.height else 0.0

    def __repr__(self) -> str:
        return (
            f"Placement({counted(len(self.buffers), 'buffer')}, height={self.height}, lower_bound={self.lower_bound}, "
            f"optimal={self.optimal}{', claimed' if self.claimed else ''})"
        )

    def to_json(self) -> Document:
        """The form `memsched-placement/1`."""
        buffers = [fields(one, "start", "end", "size", "alignment", "offset", "name") for one in self.buffers]
        return {"format": _FORMAT, **fields(self, *_KEYS), "buffers": buffers, "offsets": list(self.offsets)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON form to a file, which is replaced as a whole; `Placement.load` reads it."""
        write_document(path, self.to_json())

    @classmethod
    def from_json(cls, source: Source) -> Placement:
        """Read `memsched-placement/1` from a dict, a JSON text or a file.

        Raises
        ------
        ScheduleError
            Two buffers overlap, or one is not at its fixed offset.
        """
        document = read_document(source, _FORMAT)
        check_keys(document, "the placement", _KEYS)
        for key in ("buffers", "offsets"):
            if not isinstance(document[key], list):
                raise InvalidInputError(f"{key} of the placement is {shown(document[key])}; it must be a list")
        buffers = []
        for k, one in enumerate(document["buffers"]):
            if not isinstance(one, dict):
                raise InvalidInputError(f"buffers[{k}] of the placement is {shown(one)}; it must be an object")
            check_keys(one, f"buffers[{k}] of the placement", ("start", "end", "size"), ("alignment", "offset", "name"))
            for key in ("size", "alignment", "offset"):
                if isinstance(one.get(key), str):  # Buffer takes texts such as "4KiB", documents do not
                    raise InvalidInputError(f"{key} of buffers[{k}] is {shown(one[key])}; it must be a number")
            buffers.append(Buffer(**{key: value for key, value in one.items() if key != "format"}))
        values = {key: document[key] for key in ("height", "lower_bound", "method", "runtime")}
        found = cls(buffers=tuple(buffers), offsets=tuple(document["offsets"]), **values)
        if found.optimal is not document["optimal"]:
            said = shown(document["optimal"])
            raise InvalidInputError(f"optimal of the placement is {said}; its bound says otherwise")
        check_placement(found.buffers, found.offsets)
        return replace(found, claimed=found.lower_bound > found.load)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the placement to a CSV file, as `write_placement` does."""
        write_placement(path, self)


@public
def validate_placement(buffers: Sequence[Buffer], offsets: Sequence[int], capacity: Size | None = None) -> int:
    """Check that no two buffers share a byte while both are alive, and that alignments and fixed offsets hold.

    Parameters
    ----------
    buffers : sequence of Buffer
    offsets : sequence of int
        Bytes, in the order of the buffers.
    capacity : int or str, optional
        Bytes; no buffer may end above.

    Returns
    -------
    int
        The height in bytes: the highest end of a buffer, including buffers that are never alive.

    Raises
    ------
    ScheduleError
        The placement is wrong; the message names the buffers.
    InvalidInputError
        There is not one offset per buffer, or an offset is not a whole number.

    Examples
    --------
    >>> import memsched as ms
    >>> buffers = [ms.Buffer(0, 2, 3), ms.Buffer(1, 3, 4)]
    >>> ms.validate_placement(buffers, [0, 3])
    7
    >>> ms.validate_placement(buffers, [0, 2])
    Traceback (most recent call last):
    memsched.errors.ScheduleError: buffers[0] and buffers[1] share bytes at 2 while both are alive, from 1.
    """
    most = parse_bytes(capacity, "capacity") if isinstance(capacity, str) else capacity
    return check_placement(buffers, offsets, most)


@public
def write_placement(path: str | os.PathLike[str], placement: Placement) -> None:
    """Write a placement to a CSV file in MiniMalloc's format: id, lower, upper, size, offset, and alignment if needed.

    `read_buffers` reads these offsets as fixed ones.

    Raises
    ------
    InvalidInputError
        The file cannot be written.

    Examples
    --------
    >>> import memsched as ms, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "placed.csv"
    >>> ms.write_placement(path, ms.place([ms.Buffer(0, 2, 3), ms.Buffer(1, 3, 4)]))
    >>> [buffer.offset for buffer in ms.read_buffers(path)]
    [0, 3]
    """
    checks.kind("placement", placement, Placement)
    write_buffers(check_named(path_of(path), "CSV", ".csv"), placement.buffers, placement.offsets)


def _reader(buffers: object) -> str:
    """What reads buffers from a file that was given for them."""
    found = "; read_buffers(path) reads one from a CSV file, read_snapshot(path) from a memory snapshot of PyTorch"
    return found if isinstance(buffers, str | os.PathLike) else ""


def _checked(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    if not checks.is_list(buffers):
        needed = f"it must be a list of Buffer(start, end, size){_reader(buffers)}"
        raise InvalidInputError(f"buffers is {shown(buffers)}; {needed}")
    found = tuple(buffers)
    for k, buffer in enumerate(found if set(map(type, found)) != {Buffer} else ()):
        if not isinstance(buffer, Buffer):
            raise InvalidInputError(f"buffers[{k}] is {shown(buffer)}; it must be a Buffer(start, end, size)")
    return found


def place_buffers(
    buffers: Iterable[Buffer],
    capacity: Size | None = None,
    *,
    time_limit: Quantity | None = 10.0,
    method: str = "search",
    progress: Progress = None,
) -> Placement:
    """Place buffers in one arena, so that no two share a byte while both are alive.

    See `memsched.place`.
    """
    found = _checked(buffers)
    limit = quantities.time_limit(time_limit)
    most = None if capacity is None else quantities.limit("capacity", capacity)
    checks.choice("method", method, _METHODS)
    begin = time.perf_counter()
    if method == "ilp":
        from memsched.arena.ilp.place import place_ilp

        offsets, bound, _ = place_ilp(found, most, limit)
        top = height(found, offsets)
    else:
        offsets, top, bound = place_columns(columns_of(found), most, time_limit=limit, method=method, progress=progress)
    return Placement(
        buffers=found,
        offsets=tuple(offsets),
        height=top,
        lower_bound=min(bound, top),
        method=method,
        runtime=time.perf_counter() - begin,
    )
