"""Integer programs for HiGHS: variables, rows, and a bound that can be trusted."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memsched.errors import MemschedError
from memsched.support.interrupt import optional
from memsched.support.memory import demand_memory

Terms = list[tuple[int, float]]  # (variable, coefficient)

LARGEST = 1e3  # bytes are scaled so that no bound on the objective is above it: at 1e6 HiGHS cut off what fits
TOLERANCE = 1e-9  # of rows and of integrality, at that scale
_GRACE = 0.05  # seconds, in which HiGHS ends by itself
_LEAST_MEMORY = (
    128 << 20
)  # bytes to begin with: with less HiGHS takes seconds where it takes a tenth, or ends the process
_NO_MEMORY = "the integer program does not fit into the memory that this process may have"
_ENTRY_MEMORY = 1 << 10  # and for each entry of the matrix
SLACK = 1e-5  # a generous limit on what violations of rows by TOLERANCE can add up to in the objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bytes as HiGHS sees them: multiples of `unit`, also divided by `divisor` if there are more than LARGEST.

    All bytes of a problem are multiples of their greatest common divisor. Up to a thousand of them, the figures are
    whole numbers and a bound rounds up exactly. Beyond that a bound is good to one part in 10^8.
    """

    unit: int
    divisor: float

    @classmethod
    def of(cls, sizes: Sequence[int], most: int) -> Scale:
        """The scale for sums of `sizes` up to `most` bytes, which HiGHS sees as at most LARGEST."""
        unit = max(math.gcd(*sizes), 1)
        return cls(unit=unit, divisor=max(most / unit / LARGEST, 1.0))

    @property
    def whole(self) -> bool:
        return self.divisor == 1.0

    @property
    def gap(self) -> float:
        """The absolute gap: bounds closer than one unit are equal."""
        return 0.9 if self.whole else 1e-3

    def down(self, size: int) -> float:
        return size / self.unit / self.divisor

    def bound(self, value: float) -> int:
        """A lower bound in bytes from HiGHS's bound: less the tolerance, rounded up to a multiple of the unit."""
        return math.ceil((value - SLACK) * self.divisor) * self.unit if math.isfinite(value) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """HiGHS's answer: values of the best solution, a bound (-inf: none), if it is infeasible, and if time was up."""

    values: list[float] | None
    bound: float
    infeasible: bool
    time_up: bool = False


class TimeUpError(Exception):
    """Time ran out before the integer program was solved, often while it was being written."""


class Model:
    """Minimise the sum of cost times variable. Writing a model can take long: after `until` it raises TimeUpError."""

    def __init__(self, until: float = math.inf) -> None:
        self.until = until  # a time of time.monotonic()
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.cost: list[float] = []
        self.integer: list[bool] = []
        self.rows: list[tuple[float, float, Terms]] = []

    def variable(self, low: float, high: float, *, cost: float = 0.0, integer: bool = False) -> int:
        self.check_time()
        self.lower.append(low)
        self.upper.append(high)
        self.cost.append(cost)
        self.integer.append(integer)
        return len(self.lower) - 1

    def row(self, low: float, high: float, terms: Terms) -> None:
        """low <= terms <= high."""
        self.check_time()
        self.rows.append((low, high, terms))

    def check_time(self) -> None:
        check_time(self.until)

    def solve(self, *, time_limit: float | None, gap: float, rules_off: int = 0) -> Outcome:
        """Solve on one thread, until the bound is within `gap` of the best solution or time is up.

        `rules_off` are HiGHS's rules to simplify the program that it does not apply, as bits.
        """
        until = until_after(time_limit)
        highspy = load()
        solver = _silent_solver(highspy)
        options: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "random_seed": 0,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": gap,
            "mip_feasibility_tolerance": TOLERANCE,
            "primal_feasibility_tolerance": TOLERANCE,
            "presolve_rule_off": rules_off,
        }
        for name, value in options.items():
            solver.setOptionValue(name, value)
        demand_memory(_NO_MEMORY, _LEAST_MEMORY + _ENTRY_MEMORY * sum(len(terms) for _, _, terms in self.rows))
        solver.passModel(self._assembled())
        solver.setOptionValue("time_limit", left(until))
        best: list[Any] = []
        if not _run(solver, until, best):
            values = [float(value) for value in best[-1]] if best else None
            return Outcome(values=values, bound=-math.inf, infeasible=False, time_up=True)
        status = solver.getModelStatus()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return Outcome(values=None, bound=math.inf, infeasible=True)
        info = solver.getInfo()
        found = info.primal_solution_status == 2
        time_up = status in (highspy.HighsModelStatus.kTimeLimit, highspy.HighsModelStatus.kInterrupt)
        values = [float(value) for value in solver.getSolution().col_value] if found else None
        return Outcome(values=values, bound=float(info.mip_dual_bound), infeasible=False, time_up=time_up)

    def _assembled(self) -> Any:
        import numpy as np

        highspy = load()
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.lower), len(self.rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = (np.array(c) for c in (self.cost, self.lower, self.upper))
        lp.row_lower_ = np.array([low for low, _, _ in self.rows])
        lp.row_upper_ = np.array([high for _, high, _ in self.rows])
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.integer]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        merged = []
        for _, _, terms in self.rows:
            self.check_time()
            row: dict[int, float] = {}
            for column, factor in terms:
                row[column] = row.get(column, 0.0) + factor
            merged.append({column: factor for column, factor in row.items() if factor})
        lp.a_matrix_.start_ = np.cumsum([0, *map(len, merged)])
        lp.a_matrix_.index_ = np.array([column for row in merged for column in row], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([factor for row in merged for factor in row.values()], dtype=np.float64)
        return lp


def until_after(time_limit: float | None) -> float:
    """The time of time.monotonic() at which a limit is over; infinite without one."""
    return math.inf if time_limit is None else time.monotonic() + time_limit


def check_time(until: float) -> None:
    """Raise TimeUpError after that time."""
    if time.monotonic() > until:
        raise TimeUpError


def left(until: float) -> float:
    """Seconds left until then."""
    return max(until - time.monotonic(), 0.0)


def load() -> Any:
    """The package highspy, imported when needed."""
    return optional("highspy", MemschedError("integer programs need HiGHS: pip install 'memsched[ilp]'"))


def _silent_solver(highspy: Any) -> Any:
    """A solver that prints nothing: HiGHS 1.16 prints a banner when callbacks are enabled, which is when it is made."""

    class Silent(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:  # noqa: N802 - the name in HiGHS
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return Silent()


def _run(solver: Any, until: float, best: list[Any]) -> bool:
    """Run HiGHS in a thread; whether it ended by `until`, a time of the monotonic clock, or just after.

    So Ctrl-C works, and a limit holds though HiGHS may not look at the clock for seconds. `best` gets its solutions.
    What ends the wait stops HiGHS at its next look, and Python exits only after that: it aborts if a thread is in C++
    then. `Thread.join` would not do: before Python 3.13 an interrupt there makes the thread look ended.
    """
    stop, ended = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def check(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def improve(event: Any) -> None:
        best[:] = [list(event.data_out.mip_solution)]

    def work() -> None:
        try:
            solver.run()
        except BaseException as error:  # of a callback, or of HiGHS: raised where it is waited for
            failed.append(error)
        finally:
            ended.set()

    solver.cbMipInterrupt += check
    solver.cbSimplexInterrupt += check
    solver.cbMipImprovingSolution += improve
    try:
        try:
            threading.Thread(target=work, daemon=False).start()
        except RuntimeError as error:  # what Python makes of a thread that cannot start
            raise MemoryError(_NO_MEMORY) from error
        while not ended.wait(0.1) and time.monotonic() < until + _GRACE:
            pass
    finally:
        stop.set()
        ended.wait(0.1)
    if failed:
        raise failed[0]
    return ended.is_set()
