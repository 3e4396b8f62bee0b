"""Comparison: the results of several planners on one problem."""

from __future__ import annotations

from dataclasses import replace

from memsched.errors import InvalidInputError, MemschedError, shown
from memsched.problems.bounds import certified
from memsched.problems.family import GraphFamily
from memsched.problems.problem import ChunkLike, fields_of
from memsched.result import Result
from memsched.support.formats import counted, exact_bytes, format_link, format_seconds, unit_written
from memsched.support.views import Columns, Drawn, Figures


def _point(plan: Result) -> str:
    """The memory of a plan, and its link."""
    return f"{exact_bytes(plan.device.memory, unit_written(plan.device))} and {format_link(plan.device)}"


class Comparison(dict[str, Result | MemschedError], Figures, Drawn):
    """What `compare` returns: a dict, planner name -> Result or the error that the planner raised.

    A notebook shows it, and `print` prints it, as a table of the planners: makespan, gap to a lower bound on the plans
    that the planner can make, peak, bytes moved, ops recomputed; or why there is no plan. `plot` draws the makespans.
    `to_pandas` and `to_polars` give a row for each planner, with the columns of a `Sweep`, and `to_csv` writes them.
    Comparisons are equal if their results are, and their errors are of the same kind and say the same.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as of dict

    def __eq__(self, other: object) -> bool:
        return self._facts() == other._facts() if isinstance(other, Comparison) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:  # that of dict does not ask __eq__
        return not self == other

    def _facts(self) -> dict[str, object]:
        """What is compared: exceptions themselves are equal to nothing else."""
        return {name: one if isinstance(one, Result) else (type(one), one.args) for name, one in self.items()}

    @property
    def best(self) -> Result | None:
        """The result with the least makespan, the first of several; None if no planner has a plan."""
        plans = (one for one in self.values() if isinstance(one, Result))
        return min(plans, key=lambda one: one.makespan, default=None)

    def share_bounds(self) -> None:
        """Hold each plan against the largest bound on all plans that another one has been held against.

        Such a bound covers plans that run each op once, too, where they cut the problem alike. Of families it would
        have to be that of the same rounds.
        """
        most: dict[ChunkLike, float] = {}
        plans = {name: one for name, one in self.items() if isinstance(one, Result)}
        for one in plans.values():
            if one.bound_on == "all":
                most[one.schedule.chunk] = max(one.lower_bound, most.get(one.schedule.chunk, 0.0))
        for name, one in plans.items():
            known = most.get(one.schedule.chunk, 0.0)
            if known > one.lower_bound and not isinstance(one.problem, GraphFamily):
                self[name] = replace(one, lower_bound=certified(known, one.makespan), bound_on="all")

    def copy(self) -> Comparison:
        """A comparison of the same results, which may be changed without changing this one."""
        return Comparison(self)

    def _columns(self) -> Columns:
        from memsched.study.sweep.rows import MEASURES, planned, point_of, unplanned  # sweeps compare
        from memsched.study.sweep.table import columns_of

        best = self.best  # an error knows nothing of these
        point = {} if best is None else point_of(best.problem, best.device) | {"memory": best.device.memory}
        figures = ((name, planned(one) if isinstance(one, Result) else unplanned(one)) for name, one in self.items())
        rows = [{"planner": name, **point, **row} for name, row in figures]
        return columns_of(rows, "problem", "planner", "memory", "bandwidth", "status", *MEASURES)

    def __setitem__(self, name: str, one: Result | MemschedError) -> None:
        """Add or replace one, which must be of the same memory and link as the others."""
        best = self.best
        if isinstance(one, Result) and best is not None and fields_of(one.device) != fields_of(best.device):
            raise InvalidInputError(
                f"{shown(name)} is a plan for {_point(one)}, and this compares plans for {_point(best)}; "
                "write_report([one, other]) puts plans for several devices side by side"
            )
        super().__setitem__(name, one)

    def __missing__(self, name: object) -> Result | MemschedError:
        raise KeyError(f"{name!r} was not compared; {', '.join(self)} were")

    def __repr__(self) -> str:
        best = self.best
        said = "no plan" if best is None else f"best: {best.planner}, {format_seconds(best.makespan)}"
        return f"Comparison({counted(len(self), 'planner')}, {said})"
