"""The least memory of planners, shared by the planners and the registry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from memsched._core import Chain
from memsched.errors import LimitError
from memsched.planners.sets import plans_of
from memsched.problems.problem import graph_of, least_of


def of_graph(chain: Chain) -> int:
    """The least memory of any plan. It suffices if every tensor may travel."""
    return least_of(graph_of(chain))


def of_fluid_model(chain: Chain) -> int:
    """The same in the paper's model, in which a stage saves a single activation; at most the plain peak."""
    return plans_of(chain).fluid_least


def by_bisection(runs: Callable[[int], bool], low: int, high: int, until: float = math.inf) -> int:
    """An M in (low, high] with a plan, while one byte less has none. There must be a plan at `high`.

    When time.perf_counter() reaches `until`, or `runs` raises a LimitError, the least M known to have a plan.
    """
    while high - low > 1 and time.perf_counter() < until:
        middle = (low + high) // 2
        try:
            low, high = (low, middle) if runs(middle) else (middle, high)
        except LimitError:
            break
    return high
