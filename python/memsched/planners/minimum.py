"""The least memory of each planner, shared by the planners and the registry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from memsched._core import Chain
from memsched.errors import LimitError
from memsched.planners.sets import plans_of
from memsched.problems.problem import graph_of, least_of


def of_graph(chain: Chain) -> int:
    """What no plan can do without: enough where every tensor may travel."""
    return least_of(graph_of(chain))


def of_fluid_model(chain: Chain) -> int:
    """The same in the paper's model, where what a stage saves is one activation; at most the peak."""
    return plans_of(chain).fluid_least


def by_bisection(runs: Callable[[int], bool], low: int, high: int, until: float = math.inf) -> int:
    """An M in (low, high] with a plan, where one byte less has none; at `high` there must be a plan.

    When time.perf_counter() is at `until`, or runs raises a LimitError, the least M that is known to have a plan.
    """
    while high - low > 1 and time.perf_counter() < until:
        middle = (low + high) // 2
        try:
            low, high = (low, middle) if runs(middle) else (middle, high)
        except LimitError:
            break
    return high
