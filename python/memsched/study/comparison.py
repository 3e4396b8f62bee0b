"""Comparison: the results of several planners on one problem."""

from __future__ import annotations

from memsched.errors import MemschedError
from memsched.result import Result
from memsched.support.units import counted, format_seconds
from memsched.support.views import Columns, Drawn, Tabular


class Comparison(dict[str, Result | MemschedError], Tabular, Drawn):
    """What `compare` returns: a dict, planner name -> Result or the error that the planner raised.

    A notebook shows it, and `print` prints it, as a table of the planners: makespan, gap to a lower bound on the plans
    that the planner can make, peak, bytes moved, ops recomputed; or why there is no plan. `plot` draws the makespans.
    `to_pandas` and `to_polars` give a row for each planner, with the columns of a `Sweep`.
    """

    __slots__ = ()

    @property
    def best(self) -> Result | None:
        """The result with the least makespan, the first of several; None if no planner has a plan."""
        plans = (one for one in self.values() if isinstance(one, Result))
        return min(plans, key=lambda one: one.makespan, default=None)

    def copy(self) -> Comparison:
        """A comparison of the same results, which may be changed without changing this one."""
        return Comparison(self)

    def _columns(self) -> Columns:
        from memsched.study.sweep.rows import MEASURES, planned, unplanned  # sweeps compare
        from memsched.study.sweep.table import columns_of

        figures = ((name, planned(one) if isinstance(one, Result) else unplanned(one)) for name, one in self.items())
        return columns_of([{"planner": name, **row} for name, row in figures], "planner", "status", *MEASURES)

    def __repr__(self) -> str:
        best = self.best
        said = "no plan" if best is None else f"best: {best.planner}, {format_seconds(best.makespan)}"
        return f"Comparison({counted(len(self), 'planner')}, {said})"
