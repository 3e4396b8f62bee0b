"""Pebbles: a plan of any small graph, or the proof that there is none."""

from __future__ import annotations

from memsched import _core
from memsched._core import Device
from memsched.errors import InfeasibleError, LimitError
from memsched.planners.call import begin, no_link, without_link
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem, graph_of, least_memory, peak_of
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.formats import counted
from memsched.support.types import Quantity

MOST: int = _core.most_pebbles  # ops, and tensors
STATES = 50_000  # about 50 ms, and 5 MB


def suits(problem: Problem) -> bool:
    """Whether the graph is small enough."""
    graph = graph_of(problem)
    return max(_core.op_count(graph), _core.tensor_count(graph)) <= MOST


@Planner("every plan, state by state", needs=least_memory, problems=("chain", "graph"), recomputes=True, reorders=True)
def pebbles(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    states: int = STATES,
    time_limit: Quantity | None = None,
) -> Result:
    """Search all plans state by state, as in the game of red and blue pebbles.

    A state says which ops have run and which tensors are on the device and on the host; nothing else matters for what
    can follow. The plan found takes the least time of all if nothing overlapped; it is then simulated. If there are too
    many states, a greedy search follows.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        With up to 64 ops and 64 tensors. For a family: its graph at full batch.
    states : int
        Limit on the states of each of the two searches.
    time_limit : float or str, optional
        Seconds.

    Raises
    ------
    InfeasibleError
        There is no plan: every state was searched.
    LimitError
        There may be a plan, but the graph is too large or has too many states.

    References
    ----------
    Hong and Kung, "I/O complexity: the red-blue pebble game", STOC 1981.

    Examples
    --------
    >>> import memsched as ms
    >>> from memsched.planners.remat.pebbles import pebbles
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    >>> pebbles(chain, M=20, beta=0).recomputed  # rotor's plan runs F2 again, too
    ('F1',)
    """
    call = begin(pebbles, problem, M, beta, device)
    states = checks.count("states", states, 1, 10_000_000)
    limit, graph = quantities.time_limit(time_limit), call.graph
    if not suits(problem):
        raise LimitError(
            f"'{graph.name}' has {len(graph.ops)} ops and {len(graph.tensors)} tensors; pebbles takes {MOST} of each"
        )
    planner = {"name": "pebbles", "states": states}
    schedule, proven, seen = _core.play_pebbles(graph, call.device, states, limit, planner)
    if schedule is not None:
        return call.result({"states": states, "seen": seen}, schedule)
    where = f"'{graph.name}' in {call.budget}"
    if proven:
        alone = without_link(call.device, peak_of(graph))
        how = f"{no_link(problem)}, however much is recomputed" if alone else "with any transfers and recomputation"
        raise InfeasibleError(
            f"there is no plan for {where}, {how}: all {seen} states were searched; "
            f"on any device {call.told(peak_of(graph))} is enough",
            peak_of(graph),
        )
    raise LimitError(f"pebbles found no plan for {where} in {counted(seen, 'state')}; give more")
