"""The ladder of a problem: smaller devices that `plan` also tries, since a plan for less runs on more."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator

from memsched import _core
from memsched._core import Chain, Device, Graph
from memsched.planners.registry import min_memory
from memsched.problems.bounds import recompute_bound
from memsched.problems.family import GraphFamily
from memsched.problems.problem import ChunkLike, Problem, altered, graph_of, peak_memory, profile_link
from memsched.support.memo import once_per_object

FINE = 18  # memories from the least to the peak, and octaves between links, if planning takes little time
COARSE = 9  # memories of longer chains; the least memory and every other octave are left out too
QUICK = 30  # stages, or half the ops: up to here the ladder is fine
LONG = 48  # ops of a graph: above, only memories are tried
LONGEST = 100  # ops of a graph: above, there is no ladder
OCTAVES = 6  # links up to 2^6 times slower and faster than the one that moves everything during the computation
_ROUNDING = 1e-12  # as of `Result.optimal`
HOST_PARTS = (2, 4, 8)  # rungs of the host memory: these fractions of the bytes of all tensors


def below(
    problem: Problem,
    device: Device,
    best: Callable[[], float],
    chunk: ChunkLike = None,
    until: float = math.inf,
) -> Iterator[Device]:
    """The rungs at or below a device, without the device itself, the nearest first; useless ones are left out.

    The memory of a rung is the device's own, or one of the ladder's that is no larger; likewise its link and its host
    memory. If the bound on all plans on a rung reaches best() seconds, neither it nor any rung below it has a faster
    plan. A device with the memory that rotor needs has no rungs with less; one with less has only rungs with its own
    link. Graphs of more than LONG ops have rungs of memory only; families and graphs of more than LONGEST have none.
    There are no more when time.perf_counter() reaches `until`.
    """
    if not isinstance(problem, Chain) and (isinstance(problem, GraphFamily) or _core.op_count(problem) > LONGEST):
        return
    enough = device.memory >= _least_of_rotor(problem)
    memories = [device.memory, *(one for one in _memories(problem) if one < device.memory)]
    if enough:
        memories = [one for one in memories if one >= _least_of_rotor(problem)]
    slowest = min(device.d2h, device.h2d)
    links = [(device.d2h, device.h2d)]
    hosts: list[int | None] = [device.host_memory]
    every = isinstance(problem, Chain) or _core.op_count(problem) <= LONG
    if every and enough:
        links += [(one, one) for one in _links(problem) if one <= slowest]
    if every and device.host_memory is not None:
        parts = dict.fromkeys(_bytes(graph_of(problem)) // part for part in HOST_PARTS)
        hosts += [one for one in parts if one < device.host_memory]
    for d2h, h2d in dict.fromkeys(links):
        for memory in memories:
            rung = altered(device, memory=memory, d2h=d2h, h2d=h2d)
            if time.perf_counter() >= until:
                return
            if best() <= reachable(recompute_bound(graph_of(problem, chunk), rung), problem):
                if memory == device.memory:
                    return
                break
            for host in hosts:
                if (memory, d2h, h2d, host) != (device.memory, device.d2h, device.h2d, device.host_memory):
                    yield altered(rung, host_memory=host)


def reachable(bound: float, problem: Problem) -> float:
    """The makespan of a plan that meets a bound: a period, a sum of the same times in another order, a bit more."""
    return bound * (1 + _ROUNDING) if isinstance(problem, Graph) and problem.persistent else bound


@once_per_object
def _memories(problem: Problem) -> list[int]:
    """In decreasing order: from the plain peak to the least memory of POFO, or of one op of a graph."""
    low = max(1, min_memory(problem, "pofo" if isinstance(problem, Chain) else None))
    high = max(low, peak_memory(problem))
    quick = size_of(problem) <= QUICK
    steps = FINE if quick else COARSE
    first = 0 if quick else 1
    return sorted({low + (high - low) * step // steps for step in range(first, steps + 1)}, reverse=True)


def size_of(problem: Problem) -> int:
    """Stages, or half the ops of a graph."""
    return problem.n if isinstance(problem, Chain) else _core.op_count(graph_of(problem)) // 2


@once_per_object
def _least_of_rotor(problem: Problem) -> int:
    """With less memory and a slow link, pofo has no first plan to prune by and takes minutes."""
    return min_memory(problem, "rotor") if isinstance(problem, Chain) else 0


@once_per_object
def _links(problem: Problem) -> list[float]:
    """In decreasing order: octaves of the profile's link, or of one byte per second, then no link."""
    known = profile_link(problem)
    unit = known if known is not None and 0 < known < math.inf else 1.0
    graph = graph_of(problem)
    moved = _bytes(graph)
    seconds = _core.compute_time(graph)
    if moved == 0 or seconds == 0:
        return [0.0]
    middle = round(math.log2(moved) - math.log2(seconds) - math.log2(unit))
    exponent, (least, most) = math.frexp(unit)[1], (sys.float_info.min_exp, sys.float_info.max_exp)
    octaves = range(middle + OCTAVES, middle - OCTAVES - 1, -1)
    doubles = [octave for octave in octaves if least <= exponent + octave <= most]  # as none may be for tiny times
    return [*(math.ldexp(unit, octave) for octave in doubles if octave % 2 == 0 or size_of(problem) <= QUICK), 0.0]


def _bytes(graph: Graph) -> int:
    return int(_core.tensor_bytes(graph).sum())
