"""As much of gurobipy as the published code of OLLA uses, over HiGHS, which is free."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["module"]

Constraint = tuple[dict[int, float], float, float]  # coefficients, least and most
_FAR = 1e30


class Expression:
    """A linear one."""

    def __init__(self, coefficients: dict[int, float], constant: float) -> None:
        self.coefficients, self.constant = coefficients, constant

    def plus(self, other: Any, factor: float) -> Expression:
        """The sum with so many of another expression, as a new one."""
        more, constant = _parts(other)
        found = dict(self.coefficients)
        for index, value in more.items():
            found[index] = found.get(index, 0.0) + factor * value
        return Expression(found, self.constant + factor * constant)

    def less(self, other: Any, least: float, most: float) -> Constraint:
        """That the difference to another expression is between two numbers."""
        difference = self.plus(other, -1.0)
        return difference.coefficients, least - difference.constant, most - difference.constant

    def __add__(self, other: Any) -> Expression:
        return self.plus(other, 1.0)

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Expression:  # sums of thousands of terms grow in place
        if isinstance(self, Variable):
            return self.plus(other, 1.0)
        more, constant = _parts(other)
        for index, value in more.items():
            self.coefficients[index] = self.coefficients.get(index, 0.0) + value
        self.constant += constant
        return self

    def __sub__(self, other: Any) -> Expression:
        return self.plus(other, -1.0)

    def __rsub__(self, other: Any) -> Expression:
        return (self * -1.0).plus(other, 1.0)

    def __neg__(self) -> Expression:
        return self * -1.0

    def __mul__(self, factor: float) -> Expression:
        return Expression({index: factor * value for index, value in self.coefficients.items()}, factor * self.constant)

    __rmul__ = __mul__

    def __le__(self, other: Any) -> Constraint:
        return self.less(other, -np.inf, 0.0)

    def __ge__(self, other: Any) -> Constraint:
        return self.less(other, 0.0, np.inf)

    def __eq__(self, other: Any) -> Any:
        return self.less(other, 0.0, 0.0)


class Variable(Expression):
    """One column."""

    def __init__(self, index: int, name: str, least: float, most: float, kind: str) -> None:
        super().__init__({index: 1.0}, 0.0)
        self.index, self.varName, self.least, self.most, self.VType = index, name, least, most, kind
        self.X = 0.0

    def __hash__(self) -> int:
        return self.index

    def getAttr(self, name: str) -> float:  # noqa: N802
        return self.X


def _parts(value: Any) -> tuple[dict[int, float], float]:
    return (value.coefficients, value.constant) if isinstance(value, Expression) else ({}, float(value))


class GRB:
    """The constants."""

    BINARY, INTEGER, CONTINUOUS, SEMICONT, SEMIINT = "BICSN"
    MINIMIZE, MAXIMIZE = 1, -1
    LOADED, OPTIMAL, INFEASIBLE, UNBOUNDED, TIME_LIMIT, SUBOPTIMAL = 1, 2, 3, 5, 9, 13
    Attr = types.SimpleNamespace(X="X")


class Model:
    """A problem; the last one that was solved is in `last`."""

    last: Model

    def __init__(self, name: str = "", env: Any = None) -> None:
        self.columns: list[Variable] = []
        self.rows: list[Constraint] = []
        self.parameters: dict[str, Any] = {}
        self.objective: Expression = Expression({}, 0.0)
        self.Status, self.SolCount, self.IsMIP = GRB.LOADED, 0, 1
        self.ObjBound = 0.0

    def addVar(self, name: str, vtype: str, lb: float = 0.0, ub: float = 1.0) -> Variable:  # noqa: N802
        self.columns.append(Variable(len(self.columns), name, max(lb, -_FAR), min(ub, _FAR), vtype))
        return self.columns[-1]

    def setObjective(self, expression: Expression, sense: int) -> None:  # noqa: N802
        assert sense == GRB.MINIMIZE
        self.objective = expression

    def addLConstr(self, constraint: Any, name: str = "") -> None:  # noqa: N802
        if isinstance(constraint, tuple):
            self.rows.append(constraint)
        elif not constraint:  # of two numbers
            raise ValueError(f"{name} can never hold")

    def setParam(self, name: str, value: Any) -> None:  # noqa: N802
        self.parameters[name] = value

    def getVars(self) -> Iterable[Variable]:  # noqa: N802
        return self.columns

    def optimize(self, callback: Any = None) -> None:
        """Solve with one thread."""
        highspy: Any = importlib.import_module("highspy")
        solver = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1)):
            solver.setOptionValue(name, value)
        solver.setOptionValue("time_limit", float(self.parameters.get("maxtime", np.inf)))
        solver.setOptionValue("mip_rel_gap", float(self.parameters.get("miprelstop", 0.0)))
        solver.passModel(self._problem(highspy))
        solver.run()
        kinds = highspy.HighsModelStatus
        known = {kinds.kOptimal: GRB.OPTIMAL, kinds.kInfeasible: GRB.INFEASIBLE, kinds.kTimeLimit: GRB.TIME_LIMIT}
        self.Status = known.get(solver.getModelStatus(), GRB.SUBOPTIMAL)
        about = solver.getInfo()
        self.SolCount, self.ObjBound = int(about.primal_solution_status == 2), float(about.mip_dual_bound)
        if self.SolCount:
            for column, value in zip(self.columns, solver.getSolution().col_value, strict=True):
                column.X = value
        Model.last = self

    def _problem(self, highspy: Any) -> Any:
        problem = highspy.HighsLp()
        problem.num_col_, problem.num_row_ = len(self.columns), len(self.rows)
        costs = np.zeros(len(self.columns))
        for index, value in self.objective.coefficients.items():
            costs[index] = value
        problem.col_cost_, problem.offset_ = costs, self.objective.constant
        problem.col_lower_ = np.array([column.least for column in self.columns])
        problem.col_upper_ = np.array([column.most for column in self.columns])
        problem.row_lower_ = np.array([row[1] for row in self.rows])
        problem.row_upper_ = np.array([row[2] for row in self.rows])
        matrix = problem.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.cumsum([0, *(len(row[0]) for row in self.rows)])
        matrix.index_ = np.array([index for row in self.rows for index in row[0]], dtype=np.int32)
        matrix.value_ = np.array([value for row in self.rows for value in row[0].values()], dtype=float)
        kinds = highspy.HighsVarType
        whole = [kinds.kContinuous if column.VType == GRB.CONTINUOUS else kinds.kInteger for column in self.columns]
        problem.integrality_ = whole
        return problem


def module() -> types.ModuleType:
    """To be put into sys.modules as gurobipy."""
    made = types.ModuleType("gurobipy")
    vars(made).update(GRB=GRB, Model=Model, Env=_Environment)
    return made


class _Environment:
    """Of licences; there is none."""

    @staticmethod
    def OtherEnv(*settings: Any) -> None:  # noqa: N802
        raise ValueError("HiGHS needs no licence")
