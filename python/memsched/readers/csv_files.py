"""Chains in CSV files."""

from __future__ import annotations

import os
from pathlib import Path

from memsched._core import Chain
from memsched.errors import InvalidInputError
from memsched.readers.tables import COLUMNS, REQUIRED, Columns, Table, chain_of
from memsched.support.csv_rows import check_columns, read_table
from memsched.support.documents import Document
from memsched.support.files import path_of, read_cell
from memsched.support.kinds import STAGES


def chain_from_csv(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    resident: int | str = 0,
    provenance: Document | None = None,
) -> Chain:
    """Read a chain from a CSV file with one line per stage.

    The first line names the columns, as for `Chain.from_frame`; the second one is the input of the network, whose times
    are empty. Commas, semicolons or tabs separate the cells. Lines without any text are skipped. An apostrophe before a
    name that begins with =, +, - or @ is dropped, as in `read_buffers`, and so is one before a blank name.

    Parameters
    ----------
    path : str or path
    name : str, optional
        Of the chain; by default that of the file, without its suffix.
    resident : int or str
        Bytes that never move: weights, their gradients, the state of the optimiser.
    provenance : dict, optional
        Where the figures come from.

    Returns
    -------
    Chain

    Raises
    ------
    InvalidInputError
        The file cannot be read, or its contents are wrong as for `Chain.from_frame`; the message names the lines.

    Examples
    --------
    >>> import memsched as ms, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.csv"
    >>> _ = path.write_text("name,forward_time,backward_time,activation\\nx,,,4\\nconv,1 ms,2 ms,6\\nfc,2 ms,3 ms,5\\n")
    >>> chain = ms.Chain.from_csv(path)
    >>> chain.name, chain.forward_time.tolist(), chain.activation.tolist(), chain.gradient.tolist()
    ('small', [0.001, 0.002], [4, 6, 5], [0, 6, 5])
    """
    if hasattr(path, "columns") or isinstance(path, dict):
        raise InvalidInputError(f"path is a {type(path).__name__}; Chain.from_frame takes tables")
    where = f"'{path_of(path)}'"
    header, cells = read_table(path, STAGES, COLUMNS)
    check_columns(header, where, COLUMNS, REQUIRED)
    rows = [*cells]
    lines = [line for line, _ in rows]
    columns: Columns = {key: [row[k] for _, row in rows] for k, key in enumerate(header)}
    if "name" in columns:
        columns["name"] = [_read_name(text) for text in columns["name"]]
    title = Path(path_of(path)).stem if name is None else name
    return chain_of(columns, Table(where, lambda row: f"line {lines[row]}"), title, resident, provenance)


def _read_name(cell: str) -> str | None:
    """The name in a cell; None if it is empty. An apostrophe tells a blank name from none."""
    if not cell.strip():
        return None
    return read_cell(cell) if cell.lstrip("'").strip() else cell[1:]
