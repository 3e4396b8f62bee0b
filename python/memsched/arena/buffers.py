"""Buffer: bytes with a lifetime, to be placed in an arena; and the CSV files that store buffers."""

from __future__ import annotations

import csv
import io
import math
import numbers
import operator
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memsched.errors import InvalidInputError, shown
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.support.csv_rows import check_columns, read_table
from memsched.support.files import plain_cell, read_cell, write_bytes
from memsched.support.kinds import BUFFERS
from memsched.support.types import Size
from memsched.support.units import parse_bytes

# MiniMalloc's column names and their older names; "end" is the last tick, "upper" the one after it.
_ALIASES = {"buffer": "id", "buffer_id": "id", "start": "lower", "begin": "lower", "end": "upper"}
_REQUIRED = ("id", "lower", "upper", "size")
_KNOWN = (*_REQUIRED, "alignment", "offset", "hint", "gaps")
_MOST = 1e300  # moments; their differences are finite
_MOST_BYTES = 2**62  # of an arena
_MOST_TOLD = 5  # wrong lines in one error


def _moment(name: str, value: object) -> int | float:
    if type(value) is int and -_MOST <= value <= _MOST:  # the common case; there may be 100,000 of them
        return value
    number = checks.as_float(value)
    if -_MOST <= number <= _MOST:
        return int(value) if isinstance(value, numbers.Integral) else number
    raise InvalidInputError(f"{name} is {shown(value)}; it must be a finite number, from -1e300 to 1e300")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that are alive from `start` until `end`, end excluded.

    Parameters
    ----------
    start, end : int or float
        In any unit of time, from -1e300 to 1e300; only their order matters. If equal, the buffer is never alive.
    size : int or str
        Bytes.
    alignment : int or str
        Its offset must be a multiple of this many bytes.
    offset : int or str, optional
        A fixed offset; by default any offset is allowed.
    name : str, optional
        A name to show.
    stack : sequence of str, optional
        The calls that led to its allocation, the innermost first, as `read_snapshot` finds them. Notebooks show them
        where the pointer is. They are not compared, and not saved with a placement.

    Raises
    ------
    InvalidInputError

    Examples
    --------
    >>> import memsched as ms
    >>> ms.Buffer(0, 3, 4096, alignment=256).size
    4096
    """

    start: int | float
    end: int | float
    size: int
    alignment: int = 1
    offset: int | None = None
    name: str | None = field(default=None, kw_only=True)
    stack: Sequence[str] = field(default=(), kw_only=True, compare=False, repr=False)

    if TYPE_CHECKING:  # the constructor takes texts, and the fields are numbers

        def __init__(
            self,
            start: float,
            end: float,
            size: Size,
            alignment: Size = 1,
            offset: Size | None = None,
            *,
            name: str | None = None,
            stack: Sequence[str] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "start", _moment("start", self.start))
        put(self, "end", _moment("end", self.end))
        if self.end < self.start:
            raise InvalidInputError(f"end is {shown(self.end)}; it must be at least start, {shown(self.start)}")
        put(self, "size", quantities.size("size", self.size))
        put(self, "alignment", quantities.alignment(self.alignment, _MOST_BYTES - 1))
        if self.offset is not None:
            text = isinstance(self.offset, str)
            given = quantities.size("offset", self.offset) if text else self.offset
            put(self, "offset", checks.size("offset", given, most=_MOST_BYTES))
            if self.offset % self.alignment:
                raise InvalidInputError(
                    f"offset is {self.offset}; it must be a multiple of alignment, which is {self.alignment}"
                )
        if self.name is not None:
            checks.text("name", self.name)
        if self.stack != ():
            if not checks.is_list(self.stack):
                raise InvalidInputError(f"stack is {shown(self.stack)}; it must be a list of texts, the calls")
            put(self, "stack", tuple(self.stack))  # many buffers share one
            for k, call in enumerate(self.stack):
                checks.text(f"stack[{k}]", call)


_PUT = tuple(getattr(Buffer, name).__set__ for name in ("start", "end", "size", "alignment", "offset", "name", "stack"))


def height(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    """Bytes from address 0 to the highest end of a buffer."""
    return max(map(operator.add, offsets, map(operator.attrgetter("size"), buffers)), default=0)


def made(rows: Iterable[tuple[int, int, int, int, int | None, str | None]]) -> list[Buffer]:
    """Buffers from values that the core has checked: start, end, size, alignment, offset and name.

    A plan of 50,000 ops holds 75,000 buffers; checking them again would take twice as long as making them.
    """
    new, (start, end, size, alignment, offset, name, stack), found = object.__new__, _PUT, []
    for row in rows:
        buffer = new(Buffer)
        start(buffer, row[0])
        end(buffer, row[1])
        size(buffer, row[2])
        alignment(buffer, row[3])
        offset(buffer, row[4])
        name(buffer, row[5])
        stack(buffer, ())
        found.append(buffer)
    return found


def _number(key: str, text: str, where: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if key in ("size", "alignment", "offset") and text[:1].isdigit():
        return parse_bytes(text, f"{where}: {key}")
    raise InvalidInputError(f"{where}: {key} is {shown(text)}; it must be a number")


@public
def read_buffers(path: str | os.PathLike[str]) -> tuple[Buffer, ...]:
    """Read buffers from a CSV file in MiniMalloc's format.

    Its columns are `id,lower,upper,size` and optionally `alignment` and `offset` (a fixed one; empty or -1 means
    none). Sizes may have units, as in 4KiB. `hint` is ignored, since it is not binding. `gaps` must be empty. The older
    names `buffer`, `start` and `end` are accepted too; `end` is the last tick itself. A leading apostrophe before a
    name that begins with =, +, - or @ is dropped: `Placement.to_csv` adds it, since a spreadsheet would take such a
    name for a formula. White space around numbers is dropped, too. Commas, semicolons or tabs separate the cells. An id
    that two lines have is told in a warning.

    Raises
    ------
    InvalidInputError
        The file cannot be read or has another format; the message names the line.

    Examples
    --------
    >>> import memsched as ms, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "buffers.csv"
    >>> _ = path.write_text("id,lower,upper,size\\na,0,2,3\\nb,1,3,4\\n")
    >>> ms.place(ms.read_buffers(path)).height
    7
    """
    header, rows = read_table(path, BUFFERS, _KNOWN)
    names, more = [_ALIASES.get(name, name) for name in header], int("end" in header)
    check_columns(names, f"'{path}'", _KNOWN, _REQUIRED)
    found, faults, lines, told = [], list[str](), dict[str, int](), ""
    for number, row in rows:
        where = f"'{path}', line {number}"
        fields = {key: text if key == "id" else text.strip() for key, text in zip(names, row, strict=True)}
        try:
            found.append(_buffer(fields, where, more))
        except InvalidInputError as error:
            faults.append(str(error))
            if len(faults) == _MOST_TOLD:
                break
        if lines.setdefault(fields["id"], number) != number and not told:
            told = f"{where}: id is {shown(fields['id'])}, as in line {lines[fields['id']]}; give each buffer its own"
    if faults:
        raise InvalidInputError("; ".join(faults))
    if told:
        warnings.warn(told, stacklevel=3)
    return tuple(found)


def _buffer(fields: Mapping[str, str], where: str, more: int) -> Buffer:
    """A buffer from the cells of a line; `more` is added to its end."""
    if fields.get("gaps"):
        raise InvalidInputError(f"{where} has gaps; memsched knows none: split the buffer or leave them empty")
    numeric = {key: _number(key, text, where) for key, text in fields.items() if key in _KNOWN[1:6] and text}
    if numeric.get("offset", 0) == -1:
        del numeric["offset"]
    start, end = (numeric.pop(key, math.nan) for key in ("lower", "upper"))
    if end + more < start:
        raise InvalidInputError(f"{where}: it ends at {end}, before it begins, at {start}")
    try:
        return Buffer(start, end + more, name=read_cell(fields["id"]), **numeric)  # type: ignore[arg-type]
    except (InvalidInputError, TypeError) as error:
        raise InvalidInputError(f"{where}: {error}") from error


def write_buffers(path: str | os.PathLike[str], buffers: Sequence[Buffer], offsets: Sequence[int | None]) -> None:
    """Write buffers and their offsets to a CSV file in MiniMalloc's format, each with an id of its own."""
    text = io.StringIO()
    writer, quoting = (
        csv.writer(text, lineterminator="\n", quoting=kind) for kind in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    aligned = any(buffer.alignment != 1 for buffer in buffers)
    writer.writerow([*_REQUIRED, *(["alignment"] if aligned else []), "offset"])
    for name, buffer, offset in zip(_ids(buffers), buffers, offsets, strict=True):
        row: list[object] = [plain_cell(name), buffer.start, buffer.end, buffer.size]
        row += [*([buffer.alignment] if aligned else []), -1 if offset is None else offset]
        (quoting if "\r" in name else writer).writerow(row)
    write_bytes(path, text.getvalue().encode())


def _ids(buffers: Sequence[Buffer]) -> Iterator[str]:
    """Their names; of buffers with the same, as a tensor has that came back, the others are a#2, a#3, .."""
    times, taken = Counter[str](), {buffer.name for buffer in buffers}
    for index, buffer in enumerate(buffers):
        name = own = str(index) if buffer.name is None else buffer.name
        times[name] += 1
        while times[name] > 1 and own in taken:
            own = f"{name}#{times[name]}"
            times[name] += own in taken
        taken.add(own)
        yield own
