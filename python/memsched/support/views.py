"""How a value shows itself: in notebooks, printed, as a picture and as a data frame.

The views are in `show/`, which knows the classes that derive from these; here it is loaded by name when first used, as
are the packages that it needs.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from memsched.errors import InvalidInputError
from memsched.support.csv_rows import write_csv
from memsched.support.interrupt import optional

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.figure import Figure

Columns = dict[str, tuple[type, list[Any]]]
"""Name -> float, int, bool or str, and one value a row; None where there is none."""

_PANDAS = {float: "float64", int: "Int64", bool: "boolean"}


def _views() -> Any:
    return importlib.import_module("memsched.show.notebook")


class Shown:
    """A value that is a table in notebooks and where it is printed; in notebooks with its picture, if there is one."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(_views().html(self))

    def __str__(self) -> str:
        return str(_views().text(self))


class Drawn(Shown):
    """A value with a picture."""

    __slots__ = ()

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw it, and save the picture if a path is given: .png, .svg or .pdf; needs matplotlib (memsched[plot])."""
        figure: Figure = _views().draw(self, path)
        return figure


class Tabular(ABC):
    """A value with rows, for data frames."""

    __slots__ = ()

    @abstractmethod
    def _columns(self) -> Columns: ...

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas (memsched[sweep]); integers with missing values have type Int64."""
        made = needed("pandas", "sweep")
        found: pandas.DataFrame = made.DataFrame(
            {
                name: made.Series(_plain(kind, values), dtype=_PANDAS.get(kind) or (None if values else "object"))
                for name, (kind, values) in self._columns().items()
            }
        )
        return found

    def to_polars(self) -> polars.DataFrame:
        """The rows as a data frame of polars (memsched[polars])."""
        made = needed("polars", "polars")
        kinds = {float: made.Float64, int: made.Int64, bool: made.Boolean, str: made.String}
        found: polars.DataFrame = made.DataFrame(
            [made.Series(name, _plain(*column), dtype=kinds[column[0]]) for name, column in self._columns().items()]
        )
        return found


class Figures(Tabular):
    """A value whose rows are figures of plans."""

    __slots__ = ()

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as a CSV file, as `--csv` prints them: with units in the names of the columns.

        Text that begins with =, +, - or @ is prefixed with an apostrophe, since a spreadsheet would take it for a
        formula. Numbers are not changed.
        """
        write_csv(path, rows_of(self))


def rows_of(table: Tabular) -> list[dict[str, Any]]:
    """The rows, for CSV: every one has all columns."""
    columns = table._columns()
    return [
        dict(zip(columns, row, strict=True)) for row in zip(*(values for _, values in columns.values()), strict=True)
    ]


def needed(package: str, extra: str) -> Any:
    """A package that tables need; InvalidInputError if it is not installed."""
    missing = f"the table needs {package}, which is not installed; pip install 'memsched[{extra}]'"
    return optional(package, InvalidInputError(missing))


def _plain(kind: type, values: list[Any]) -> list[Any]:
    return [None if value is None else kind(value) for value in values]
