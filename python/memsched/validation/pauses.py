"""The bound by pauses: between two ops that run once, what the second reads must come, and what comes takes time.

docs/algorithms.md has the proof.
"""

from __future__ import annotations

import heapq
import math
from itertools import accumulate

from memsched.validation.bounds import Facts, Json

MOST_STATES = 2000  # of the search for one pause; what it has then is a bound, too


def passes(facts: Facts) -> list[int]:
    """The ops that are in order with all others: all that are listed before must run before, and those after, after."""
    count = len(facts.time)
    next_reader = [
        min((reader for name in names for reader in facts.readers[name]), default=count) for names in facts.writes
    ]
    last_writer = [max((facts.writer.get(name, -1) for name in names), default=-1) for names in facts.reads]
    furthest = [-1, *accumulate(next_reader, max)]  # of the readers of those before each
    earliest = [*reversed([count, *accumulate(reversed(last_writer), min)])]  # of the writers for those from each on
    return [op for op in range(count) if furthest[op] <= op <= earliest[op + 1]]


def pause(facts: Facts, op: int) -> float:
    """The least seconds from the end of an op to the start of the next one listed; both are passes and run once.

    Each tensor that the next op reads was there when the op ended, beside what that touches; or is prefetched; or its
    writer runs again, for which its own reads must be there likewise. A search by cost.
    """
    room, touched = facts.capacity - facts.need[op], facts.reads[op] | facts.writes[op]
    wanted = frozenset(facts.reads[op + 1] - touched)
    states = [(0.0, 0, 0.0, 0.0, 0, wanted)]  # cost, order of arrival, seconds of link and of runs, bytes held
    arrived = 0
    for _ in range(MOST_STATES):
        cost, _, link, runs, held, wanted = heapq.heappop(states)
        if not wanted:
            return cost
        name = max(wanted, key=facts.rank.__getitem__)  # nothing wanted so far needs an earlier run of its writer
        rest, writer, size = wanted - {name}, facts.writer.get(name, -1), facts.size[name]
        following = []
        if held + size <= room:
            following.append((link, runs, held + size, rest))
        if min(facts.out, facts.back) > 0:
            following.append((link + size / facts.back, runs, held, rest))
        if writer >= 0 and not facts.once[writer]:
            own = facts.reads[writer] - touched
            following.append((link, runs + facts.time[writer], held, rest - facts.writes[writer] | own))
        for one in following:
            arrived += 1
            heapq.heappush(states, (max(one[0], one[1]), arrived, *one))
        if not states:
            return math.inf
    return states[0][0]


def pauses_to_come(facts: Facts) -> tuple[int, float]:
    """The last op with all pauses after it, and the least seconds from its end on: the ops and the pauses; -1: none."""
    once = {op for op in passes(facts) if facts.once[op]}
    pauses = {op: seconds for op in once if op + 1 in once and (seconds := pause(facts, op)) > 0}
    op = min(pauses, default=-1)
    return op, math.fsum([*facts.time[op + 1 :], *pauses.values()])


def until(graph: Json, op: int) -> Json:
    """The graph up to the end of a pass."""
    ops = graph["ops"][: op + 1]
    gone = {name for later in graph["ops"][op + 1 :] for name in later["writes"]}
    return {**graph, "tensors": [tensor for tensor in graph["tensors"] if tensor["name"] not in gone], "ops": ops}
