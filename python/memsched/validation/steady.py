"""The steady state of a list of steps that is repeated without end, proved from times that need not be trusted.

The times of one repetition are a function of those of the one before. It is monotone, and later by as much as those
are later, so if it maps some times to the same times P later, then P is the period, whatever times it starts from. So
the first of three repetitions is played as given, and the next two must come out one and two periods later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memsched.errors import ScheduleError
from memsched.validation.bounds import Facts
from memsched.validation.execution import check_intervals, execute
from memsched.validation.replay import Json, Replay

_ROUNDING = 1e-9  # relative to the times of one repetition


def check_steady(replay: Replay, given: Sequence[float], period: float) -> tuple[int, list[tuple[float, int]]]:
    """Check that the steps of a repetition start at the given times, and the next repetition a period later.

    Returns the peak, and the bytes after each event of one period from the first start on, both without resident.
    """
    if not all(map(math.isfinite, (*given, period))):
        raise ScheduleError("The times of the steady state are not finite; is the bandwidth too small?")
    count = replay.count
    last = max(moment + step.seconds for moment, step in zip(given, replay.steps, strict=False))
    start, end = execute(replay, given, last - period)
    slack = _ROUNDING * max(last, period)
    for k in range(count, len(start)):
        due = given[k % count] + (k // count) * period
        if abs(start[k] - due) > slack:
            text = f"{k // count} repetitions after {given[k % count]}, in periods of {period}, it starts at {start[k]}"
            raise ScheduleError(f"Step {k % count} is not in a steady state: {text}; please report this.", k % count)
    events = check_intervals(replay, start, end, count, slack)
    peak = max(held for _, held, k in events if k // count == 1)
    first = min(start[count : 2 * count])
    before = [held for moment, held, _ in events if moment <= first + slack]
    within = [(moment - first, held) for moment, held, _ in events if first + slack < moment < first + period - slack]
    return max(peak, before[-1]), [(0.0, before[-1]), *within]


def bound_of_period(graph: Json, device: Json) -> float:
    """A lower bound in seconds on the period of every plan of a graph with persistent tensors.

    While an op runs, what does not fit beside it is away, and comes back in each repetition if an op reads it or if it
    is at the border. An input, a weight, or what is updated also leaves in each.
    """
    facts = Facts(graph, device)
    role = {tensor["name"]: tensor["role"] for tensor in graph["tensors"]}
    updated = {name for op in graph["ops"] for name in op.get("updates", ())}
    fixed = {name for name in role if role[name] in ("input", "weight")}
    travels = fixed | {name for name in role if role[name] == "persistent" and facts.readers[name]}
    kept = travels - updated - fixed  # unchanged
    of_travels, of_kept = (sum(facts.size[name] for name in names) for names in (travels, kept))
    best = math.fsum(facts.time)
    for op, names in enumerate(facts.reads):
        unchanged = of_kept - sum(facts.size[name] for name in kept & names)
        idle = of_travels - sum(facts.size[name] for name in travels & names)
        back = max(0, facts.need[op] + idle - facts.capacity)
        out = max(0, back - unchanged)
        if facts.need[op] > facts.capacity or (back and not facts.back) or (out and not facts.out):
            return math.inf
        seconds = (back / facts.back if back else 0.0, out / facts.out if out else 0.0)
        best = max(best, max(seconds) if device.get("duplex") else sum(seconds))
    return best
