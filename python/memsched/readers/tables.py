"""Chains from tables: data frames and dicts of columns."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from memsched._core import Chain
from memsched.errors import InvalidInputError, shown
from memsched.support import checks, quantities
from memsched.support.arguments import tell
from memsched.support.csv_rows import check_columns, listed
from memsched.support.documents import Document
from memsched.support.formats import format_bytes, format_seconds

_A_PAGE = 4096.0  # bytes
REQUIRED = ("forward_time", "backward_time", "activation")
OPTIONAL = ("gradient", "saved", "forward_overhead", "transient_overhead", "backward_overhead", "name")
COLUMNS = ("name", *REQUIRED, *OPTIONAL[:-1], "resident")
_TIMES = REQUIRED[:2]
_OF_INPUT = ("activation", "gradient", "resident", "name")

Columns = dict[str, Sequence[Any]]
_FAR = 1000  # times what other cells have: a unit is missing
_MOST_TOLD, _MOST_KEPT = 5, 1000  # wrong cells in one error, and of which it is made
SLOWEST = 20e6  # bytes that any device saves in a second


@dataclass(frozen=True, slots=True)
class Table:
    """What errors call a table and a row of it, and what is wrong with its cells."""

    name: str
    row: Callable[[int], str]
    wrong: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, row: int, told: object) -> None:
        """Remember what is wrong with a cell, so that all are told at once."""
        if len(self.wrong) < _MOST_KEPT:
            self.wrong.append((row, str(told)))

    def check(self) -> None:
        """Raise the error of all cells that are wrong, by row."""
        if self.wrong:
            self.wrong.sort(key=lambda one: one[0])
            told = "; also ".join(f"{self.row(row)}: {words}" for row, words in self.wrong[:_MOST_TOLD])
            more = len(self.wrong) - _MOST_TOLD
            rest = f"; and {more} {'or ' * (len(self.wrong) == _MOST_KEPT)}more" if more > 0 else ""
            raise InvalidInputError(f"{self.name}, {told}{rest}")


def chain_from_frame(
    frame: Any, *, name: str | None = None, resident: int | str = 0, provenance: Document | None = None
) -> Chain:
    """Make a chain from a table with one row per stage.

    The columns have the names of the parameters of `Chain`. `forward_time`, `backward_time` and `activation` are
    required; `gradient`, `saved`, `forward_overhead`, `transient_overhead`, `backward_overhead`, `resident` and `name`
    (of the stage) are optional. The first row is the input of the network: its two times are empty, and its
    `activation` and `gradient` are those of the input; its name is not kept. `resident` has the bytes of a stage that
    never move; the chain has their sum, and what the argument adds. Empty cells, and columns that are left out, have
    the defaults of `Chain`; the default of `gradient` is `activation`, but 0 for the input. Empty are None, NaN and,
    but for names, blank texts.
    An index that is named as a column, such as `name`, is that column. A data frame of `Chain.to_pandas` holds
    all but `name`, `provenance` and `pieces`: give the first two again.

    Parameters
    ----------
    frame : DataFrame of pandas or polars, or dict of sequences
        Times are seconds or texts such as "3 ms". Sizes are bytes or texts such as "12MiB".
    name : str, optional
        Of the chain.
    resident : int or str
        Bytes that never move: weights, their gradients, the state of the optimiser; beside those of the column.
    provenance : dict, optional
        Where the figures come from.

    Returns
    -------
    Chain

    Raises
    ------
    InvalidInputError
        Columns are missing, unknown or listed twice; the row of the input is missing; or cells are wrong: the message
        names the row, counted from 0, and the column of each.

    Warns
    -----
    UserWarning
        The times are so long for the bytes that other units were probably meant.

    Examples
    --------
    >>> import memsched as ms
    >>> table = {
    ...     "name": ["input", "conv", "fc"],
    ...     "forward_time": [None, "1 ms", "2 ms"],
    ...     "backward_time": [None, "2 ms", "3 ms"],
    ...     "activation": ["4MiB", "6MiB", "5MiB"],
    ... }
    >>> chain = ms.Chain.from_frame(table, resident="10MiB")
    >>> chain.n, chain.names, ms.peak_memory(chain)
    (2, ('conv', 'fc'), 37748736)
    """
    return chain_of(_columns_of(frame), Table("the frame", lambda row: f"row {row}"), name, resident, provenance)


def _columns_of(frame: Any) -> Columns:
    """The columns of a data frame or a dict as lists."""
    if type(frame).__name__ == "LazyFrame":
        raise InvalidInputError("frame is a LazyFrame, which has no rows yet; give frame.collect()")
    given: Any = frame.keys() if isinstance(frame, Mapping) else getattr(frame, "columns", None)
    if not checks.is_list(given):
        rows = checks.is_list(frame) and all(isinstance(row, Mapping) for row in frame)
        remedy = "; pandas.DataFrame(rows) makes one of rows" if rows else ""
        raise InvalidInputError(
            f"frame is {shown(frame)}; it must be a data frame of pandas or polars, or a dict of columns{remedy}"
        )
    index = _index_of(frame)
    check_columns([*index, *given], "the frame", COLUMNS, REQUIRED)
    columns: Columns = {}
    for key in (*index, *given):
        try:
            column = index[key] if key in index else frame[key]
        except (KeyError, TypeError, AttributeError) as error:  # it only looks like a data frame
            raise InvalidInputError(f"column '{key}' of the frame cannot be read: {error!r}") from error
        kind = getattr(getattr(column, "dtype", None), "kind", "")  # that of pandas makes numbers of some
        if kind not in ("m", "M") and not checks.is_list(column):
            raise InvalidInputError(f"column '{key}' of the frame is {shown(column)}; it must be a list")
        columns[key] = column.tolist() if hasattr(column, "tolist") else list(column)
        if kind in ("m", "M") or any(isinstance(one, datetime.timedelta | datetime.date) for one in columns[key]):
            raise InvalidInputError(f"column '{key}' of the frame has durations or dates; give seconds and bytes")
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"the columns of the frame have different lengths: {shown(lengths)}; give them as many")
    return columns


def _index_of(frame: Any) -> dict[str, Any]:
    """The index of a data frame of pandas where it is named as a column; one without a name only counts rows."""
    index = getattr(frame, "index", None)
    names = [name for name in getattr(index, "names", ()) if name is not None]
    if not names:
        return {}
    if len(names) > 1 or names[0] not in COLUMNS:
        raise InvalidInputError(
            f"the index of the frame is named {listed(names)}, which is no column; name it 'name' if it has the names "
            "of the stages, as by frame.rename_axis('name'), or drop it by frame.reset_index(drop=True)"
        )
    return {names[0]: index}


def chain_of(
    columns: Columns, table: Table, name: str | None, resident: int | str, provenance: Document | None
) -> Chain:
    """The chain of checked columns."""
    if not columns["activation"] or not all(_takes_no_time(columns[key][0]) for key in _TIMES):
        raise InvalidInputError(
            f"{table.name} has no row for the input of the network; put it before the stages, with forward_time and "
            "backward_time empty or 0, and the bytes of the input in activation"
        )
    for key, column in columns.items():
        if key not in _OF_INPUT and not is_empty(column[0]) and not (key in _TIMES and _takes_no_time(column[0])):
            table.refuse(0, f"{key} is {shown(column[0])}; it must be empty, as for any input")
    values: dict[str, list[Any]] = {key: _numbers(key, columns, table) for key in COLUMNS[1:] if key in columns}
    activation = values["activation"]
    gradient = [0, *activation[1:]]
    if "gradient" in values:
        gradient = [d if own is None else own for d, own in zip(gradient, values["gradient"], strict=True)]
    for k, (kept, output) in enumerate(zip(values.get("saved", ()), activation, strict=False)):
        if k and None not in (kept, output) and kept < output:
            cells = f"saved is {shown(columns['saved'][k])}, less than activation, {shown(columns['activation'][k])}"
            table.refuse(k, f"{cells}; it includes the stage's output, so give at least as much")
    names = None
    if "name" in columns:
        names = [_name(cell, f"stage {k}", k, table) for k, cell in enumerate(columns["name"]) if k]
    table.check()
    try:
        made = Chain(
            values["forward_time"][1:],
            values["backward_time"][1:],
            activation,
            gradient,
            **_optional(values),
            names=names,
            resident=quantities.size("resident", resident) + sum(filter(None, values.get("resident", ()))),
            name=name,
            provenance=provenance,
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"{table.name}: {error}") from error
    taken, saved = float(made.forward_time.sum() + made.backward_time.sum()), float(made.saved.sum())
    if taken * SLOWEST > saved > 0:
        tell(
            f"the stages of {table.name} take {format_seconds(taken)} together, and save {format_bytes(saved)}: "
            "numbers are seconds and bytes; where others are meant, write the units, such as 3.1ms and 64MiB"
        )
    return made


def is_empty(value: object) -> bool:
    """Whether a cell is empty: None, NaN, the marks of pandas for what is missing, or a blank text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return not value.strip()
    return checks.is_number(value) and value != value


def _takes_no_time(cell: object) -> bool:
    """Whether a time is empty or 0, as that of the input is."""
    if is_empty(cell):
        return True
    with suppress(InvalidInputError):
        return quantities.seconds("a time", cell) == 0
    return False


def _numbers(key: str, columns: Columns, table: Table) -> list[Any]:
    """The entries of a column; None where a cell that may be empty is, and where one is wrong."""
    parse, needed = quantities.seconds if key in _TIMES else quantities.size, key in REQUIRED
    found: list[Any] = []
    for row, cell in enumerate(columns[key]):
        if not is_empty(cell):
            found.append(_parsed(parse, cell, key, row, table))
            continue
        if needed and (row or key == "activation"):
            table.refuse(row, f"{key} is empty; give a number, or a text with a unit")
        found.append(None)
    _warn_of_units(key, columns[key], found, table)
    return found


def _warn_of_units(key: str, cells: Sequence[Any], found: Sequence[Any], table: Table) -> None:
    """Tell of a number without a unit that is far from those of the column that have one."""
    known = [one for cell, one in zip(cells, found, strict=True) if one and _plain(cell) is None]
    for row, (cell, one) in enumerate(zip(cells, found, strict=True)):
        if known and one and _plain(cell) is not None and not min(known) / _FAR < one < max(known) * _FAR:
            base = "seconds" if key in _TIMES else "bytes"
            told = f"{key} is {shown(cell)} {base}, and other cells have a unit; write it"
            tell(f"{table.name}, {table.row(row)}: {told}")


def _plain(cell: object) -> object:
    """A cell as a number, if it is written as one."""
    try:
        return float(cell.replace(",", "")) if isinstance(cell, str) else cell
    except ValueError:
        return None


def _parsed(parse: Callable[[str, object], Any], cell: object, key: str, row: int, table: Table) -> Any:
    number = _plain(cell)
    if parse is quantities.size and isinstance(number, float) and _A_PAGE <= number < math.inf and number % 1:
        cell = math.floor(number)  # a fraction of a byte is dropped, as of 4.4MiB; of less, a unit may be missing
    try:
        return parse(key, cell)
    except InvalidInputError as error:
        table.refuse(row, error)
    return None


def _name(cell: object, default: str, row: int, table: Table) -> str:
    """The name of a stage."""
    if is_empty(cell) and not isinstance(cell, str):
        return default
    number = checks.as_float(cell)  # pandas makes floats of numbers beside an empty cell
    if abs(number) < checks.EXACT_BYTES and number.is_integer():
        return str(int(number))
    try:
        return checks.text("name", cell)
    except InvalidInputError as error:
        table.refuse(row, error)
    return default


def _optional(values: dict[str, list[Any]]) -> dict[str, Any]:
    """The other columns of the stages, with the defaults of `Chain` in their empty cells."""
    stages = len(values["activation"]) - 1
    nothing = [None] * (stages + 1)
    output = values["activation"][1:]
    own = {key: values.get(key, nothing)[1:] for key in OPTIONAL[1:-1]}
    saved = [size if cell is None else cell for cell, size in zip(own["saved"], output, strict=True)]
    forward = [cell or 0 for cell in own["forward_overhead"]]
    rows = zip(own["transient_overhead"], saved, output, forward, strict=True)
    transient = [max(0, kept - size) + more if cell is None else cell for cell, kept, size, more in rows]
    backward = [cell or 0 for cell in own["backward_overhead"]]
    return {"saved": saved, "forward_overhead": forward, "transient_overhead": transient, "backward_overhead": backward}
