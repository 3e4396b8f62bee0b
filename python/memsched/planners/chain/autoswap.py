"""AUTOSWAP (Zhang et al., 2019): offload by a weighted sum of four priority scores until the memory fits."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, Device
from memsched.planners.chain.bayes import minimise
from memsched.planners.classes import WORKSPACE_LIMIT
from memsched.planners.entry import Planner
from memsched.planners.sets import ChainCall, SetCall, begin_sets, need_of_moving_all
from memsched.problems.bounds import graph_bound
from memsched.problems.problem import ChunkLike, Problem, graph_of, least_memory
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Flags, Progress, Quantity, Size

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.int64]

STARTS = np.vstack([np.eye(4), np.full((1, 4), 0.25)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The candidates for offloading, relative to the plain run.

    In a chain, candidate x_k is a^k and tape^k on the run F_1 .. F_n, loss, B_n .. B_1. It is absent, in the paper's
    sense, from the end of F_{k+1} to the start of B_{k+1}; its tape is also absent during these two, which do not read
    it. In a graph each candidate is one tensor, absent between its last forward and its first backward use.
    """

    # One entry per op.
    seconds: Array
    excess: Bytes  # by which the load during the op exceeds M
    # One entry per candidate.
    begin: Bytes  # the first op during which it is absent
    end: Bytes  # and the op after the last
    size: Bytes
    tape: Bytes  # of its size; also absent during the ops begin - 1 and end
    transfer: Array  # seconds to offload and prefetch it


def candidates_of(call: SetCall) -> Candidates:
    """The candidates, their transfers, and the load curve of the plain run."""
    return chain_candidates(call) if isinstance(call, ChainCall) else graph_candidates(call)


def chain_candidates(call: ChainCall) -> Candidates:
    """The candidates of a chain."""
    chain, device = call.chain, call.device
    held = np.cumsum([chain.activation[0], *chain.saved])[1:]
    forward = held + chain.forward_overhead
    backward = held + chain.gradient[1:] + chain.gradient[:-1] + chain.backward_overhead
    load = np.concatenate([forward, [held[-1] + chain.gradient[-1]], backward[::-1]]) + chain.resident
    size = np.array([chain.activation[0], *chain.saved[:-1]], dtype=np.int64)
    copies = np.bincount(call.stage[(call.stage >= 0) & (_core.tensor_bytes(call.graph) > 0)], minlength=chain.n)
    first = np.arange(chain.n)
    return Candidates(
        seconds=np.concatenate([chain.forward_time, [0.0], chain.backward_time[::-1]]),
        excess=np.asarray(load - device.memory, dtype=np.int64),
        begin=first + 1,
        end=2 * chain.n - first,
        size=size,
        tape=size - chain.activation[:-1],
        transfer=transfer_times(device, copies, size),
    )


def graph_candidates(call: SetCall) -> Candidates:
    """The candidates of a graph."""
    graph, device = call.graph, call.device
    lives = _core.Lifetimes(graph)
    movable = np.array(_core.movable_tensors(graph), dtype=np.int64)
    size = np.asarray(_core.tensor_bytes(graph), dtype=np.int64)[movable]
    return Candidates(
        seconds=_core.op_seconds(graph),
        excess=np.asarray(lives.usage, dtype=np.int64) + graph.resident - device.memory,
        begin=np.maximum(np.asarray(lives.last_forward, dtype=np.int64)[movable], 0) + 1,
        end=np.asarray(lives.first_backward, dtype=np.int64)[movable],
        size=size,
        tape=np.zeros_like(size),
        transfer=transfer_times(device, size > 0, size),
    )


def transfer_times(device: Device, copies: npt.NDArray[Any], size: Bytes) -> Array:
    """To the host and back, at most the largest double."""
    with np.errstate(over="ignore"):
        seconds = 2 * (device.latency * copies) + size / device.d2h + size / device.h2d
    capped: Array = np.minimum(seconds, sys.float_info.max)
    return capped


def scaled_times(candidates: Candidates) -> Candidates:
    """The candidates with times scaled by a power of two, so that no score overflows; scores do not depend on it."""
    unit = -math.frexp(max(candidates.seconds.max(), candidates.transfer.max(initial=0.0)))[1]
    seconds, transfer = np.ldexp(candidates.seconds, unit), np.ldexp(candidates.transfer, unit)
    return dataclasses.replace(candidates, seconds=seconds, transfer=transfer)


def over_absences(candidates: Candidates, rate: Array | Bytes) -> Array:
    """The integral of a rate (one entry per op) over the absence of each candidate."""
    total = np.concatenate([[0.0], np.cumsum(rate * candidates.seconds)])
    integral: Array = total[candidates.end] - total[candidates.begin]
    return integral


def scores(candidates: Candidates) -> Array:
    """DOA, AOA and WDOA, shape [3, n]. SWDOA is WDOA on the remaining load."""
    doa = over_absences(candidates, np.ones(len(candidates.seconds))) - candidates.transfer
    size = np.maximum(candidates.size, 1)
    aoa = np.where(doa >= 0, doa * size, doa / size)
    return np.array([doa, aoa, over_absences(candidates, candidates.excess)])


def normalised(values: Array) -> Array:
    """Min-max normalised along the last axis; 0 where all are equal."""
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    unit: Array = (values - low) / np.where(high > low, high - low, 1.0)
    return unit


def remove(candidates: Candidates, excess: Bytes, k: int) -> None:
    """Lower `excess` by the bytes that the absence of x_k frees during each op."""
    begin, end = int(candidates.begin[k]), int(candidates.end[k])
    excess[begin:end] -= candidates.size[k]
    if candidates.tape[k]:
        excess[[begin - 1, end]] -= candidates.tape[k]


def select(candidates: Candidates, weights: Array, until: float = math.inf) -> Flags:
    """Choose the candidate with the largest weighted score until the load fits everywhere; one flag per candidate.

    DOA, AOA and WDOA are normalised once over all candidates, SWDOA at each choice over those that remain. Candidates
    without bytes stay. Ties go to the first candidate. If nothing less fits, all are chosen. From time.perf_counter()
    == `until` on, the scores are no longer updated.
    """
    chosen = np.zeros(len(candidates.size), np.uint8)
    left = np.flatnonzero(candidates.size > 0)
    if len(left) == 0:
        return chosen
    fixed = weights[:3] @ normalised(scores(candidates)[:, left])
    excess = candidates.excess.copy()
    while len(left) > 0 and excess.max() > 0:
        total = fixed + weights[3] * normalised(over_absences(candidates, excess)[left])
        top = int(np.argmax(total))
        chosen[left[top]] = 1
        remove(candidates, excess, int(left[top]))
        kept = np.arange(len(left)) != top
        left, fixed, total = left[kept], fixed[kept], total[kept]
        _core.hear()
        if time.perf_counter() >= until:
            chosen[_enough(candidates, excess, left[np.argsort(-total, kind="stable")])] = 1
            break
    return chosen


def _enough(candidates: Candidates, excess: Bytes, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The shortest prefix of `order` after which the load fits, or all candidates if none does."""

    def fits(count: int) -> bool:
        taken, change = order[:count], np.zeros(len(excess) + 2, np.int64)
        for begin, end, size in (
            (candidates.begin, candidates.end, candidates.size),
            (candidates.begin - 1, candidates.begin, candidates.tape),
            (candidates.end, candidates.end + 1, candidates.tape),
        ):
            np.subtract.at(change, begin[taken], size[taken])
            np.add.at(change, end[taken], size[taken])
        return bool((excess + np.cumsum(change)[: len(excess)]).max() <= 0)

    return order[: bisect_left(range(len(order)), True, key=fits)]


def _needs(problem: Problem) -> int:
    if isinstance(problem, Chain):
        return least_memory(problem)
    return need_of_moving_all(_core.fixed_choices(graph_of(problem), WORKSPACE_LIMIT))


@Planner("four priority scores, tuned weights", needs=_needs, problems=("chain", "graph"), seconds_an_op=(6e-6, 6e-6))
def autoswap(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
    workspace_limit: Size = WORKSPACE_LIMIT,
    evaluations: int = 40,
    seed: int = 0,
    time_limit: Quantity | None = None,
    progress: Progress = None,
) -> Result:
    """Offload the activations with the largest weighted sum of four scores, with weights from Bayesian optimisation.

    The scores of an activation are its duration of absence (DOA: from its last forward use to its first backward use,
    less its two transfers), area of absence (AOA: DOA times bytes, or over bytes if negative), weighted duration of
    absence (WDOA: the integral of load - M over the absence) and submodular WDOA (SWDOA: WDOA on the load that remains
    after the activations chosen so far). Each is scaled to [0, 1]. Activations are chosen by largest sum until the load
    is at most M everywhere. The weights tried are each score alone, then all equal, then by expected improvement of the
    simulated makespan. O(evaluations x n^2) time, plus one simulation per new set.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        The candidates are x_0 .. x_{n-1} of a chain, or all activations, inputs and weights of a graph that forward and
        backward read. For a family: its graph at full batch.
    evaluations : int
        How many weights to try; the search stops early at the lower bound.

    Returns
    -------
    Result
        params["weights"] are the best weights of DOA, AOA, WDOA and SWDOA (None: nothing is offloaded);
        params["evaluations"] counts the weights tried.

    References
    ----------
    Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems", arXiv:1903.06631, 2019;
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, section 6.1.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.autoswap(chain, M=20, beta=4).offloaded
    ('a0',)
    """
    evaluations = checks.count("evaluations", evaluations, 1, 1000)
    seed = checks.count("seed", seed, 0, 2**63 - 1)
    checks.progress(progress)
    time_limit = quantities.time_limit(time_limit) or None
    call = begin_sets(autoswap, problem, M, beta, device, chunk, workspace_limit)
    params = {"chunk": call.chunk, "seed": seed}
    if call.excess <= 0:
        nothing = call.schedule(np.zeros(len(call.stage), np.uint8), {"name": "autoswap"})
        return call.result({**params, "evaluations": 0, "weights": None}, nothing)
    candidates = scaled_times(candidates_of(call))
    simulated: dict[bytes, float] = {}
    sets: list[Flags] = []  # one per evaluation

    def makespan(weights: Array) -> float:
        chosen = select(candidates, weights, until)
        sets.append(chosen)
        if chosen.tobytes() not in simulated:
            simulated[chosen.tobytes()] = float(call.makespans(call.tensors(chosen[None]))[0])
        return simulated[chosen.tobytes()]

    target = graph_bound(call.graph, call.device) * (1 + 1e-12)
    until = call.until(time_limit)
    search = minimise(
        makespan, STARTS, evaluations=evaluations, seed=seed, target=target, until=until, progress=progress
    )
    weights = search.points[search.best].tolist()
    schedule = call.schedule(call.tensors(sets[search.best]), {"name": "autoswap", "weights": weights})
    return call.result({**params, "evaluations": len(search.values), "weights": weights}, schedule)
