"""Memory budgets, in bytes or as a percentage of what a problem needs."""

from __future__ import annotations

from memsched.problems.problem import Problem, least_memory, peak_memory
from memsched.support.units import MEMORY_FORMS, parse_bytes, parse_share, whole_bytes


def parse_memory(value: str | float, problem: Problem, what: str = "the memory") -> int:
    """A memory budget M in bytes, resident included, from a size as in `parse_bytes` or a percentage.

    "40%" is min_memory + 0.4 (peak_memory - min_memory) of the problem, rounded down to whole bytes. 0% is the least
    memory of any plan without recomputation; at 100% the plain run fits; more is allowed. Errors call the value `what`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> ms.min_memory(chain), ms.peak_memory(chain)
    (16, 20)
    >>> parse_memory("0%", chain), parse_memory("50%", chain), parse_memory("100 B", chain)
    (16, 18, 100)
    """
    if not isinstance(value, str) or not value.rstrip().endswith("%"):
        return parse_bytes(value, what, MEMORY_FORMS)
    least, most = least_memory(problem), peak_memory(problem)
    return whole_bytes(least + parse_share(value, what) * (most - least), what, value, MEMORY_FORMS)


def memory_percent(memory: int, problem: Problem) -> float | None:
    """The inverse of a percentage in `parse_memory`; None if min_memory equals peak_memory.

    Examples
    --------
    >>> import memsched as ms
    >>> memory_percent(18, ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]))
    50.0
    """
    least, most = least_memory(problem), peak_memory(problem)
    return None if most == least else 100 * (memory - least) / (most - least)
