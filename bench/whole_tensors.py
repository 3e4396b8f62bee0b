"""A lower bound for plans whose tensors travel whole, exact enough to say when no plan can come closer to `bounds`.

The fractional bound of `memsched.bounds` lets any byte of any tensor travel. Where few large tensors travel, whole
ones cost more; this bound says how much, for graphs of chains with up to about 24 tensors that may travel, by a search
over all 2^24 sets of them. On other graphs it is no bound: there tapes may go unread and be skipped, and tensors may
travel between two forward ops.

Let p be the op at which memory exceeds the budget most, and t its start in some schedule that runs each op once, in
graph order. Let P be the tensors that are on the host alone at t: their bytes are at least p's excess, their first
offloads have ended by t and their last prefetches start no earlier than t.

* Before t, let A be the tensors offloaded so far. When an op starts, those of A that it does not touch must have at
  least the bytes of its excess. The link copies one tensor at a time, each after the op that makes it. Whatever else
  the link carries, and that a tensor may have to come back before p, is left out, which can only be faster. The least
  t over all orders of copies whose set contains P is f(P).
* After t the same holds in reversed time for last prefetches, each "made" by its first reader after p; g(P) is the
  least time between t and the end.

So no schedule is faster than the minimum of f(P) + g(P) over all P of enough bytes. Sets that cannot be part of a
makespan below `limit` are skipped: what has been copied must come back over the same link, and the rest of the
compute must still run.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt
from bench.native import load

import memsched as ms
from memsched import _core

MAX_TENSORS = 24


@cache
def _half() -> ctypes._CFuncPtr:
    function = load("whole_tensors.cpp").half
    reals, words = np.ctypeslib.ndpointer(np.float64), np.ctypeslib.ndpointer(np.int64)
    steps, sets = np.ctypeslib.ndpointer(np.int32), np.ctypeslib.ndpointer(np.uint32)
    number, integer, real = ctypes.c_int, ctypes.c_int64, ctypes.c_double
    function.argtypes = [
        number,
        reals,
        words,
        steps,
        number,
        reals,
        words,
        sets,
        real,
        real,
        integer,
        real,
        real,
        reals,
    ]
    function.restype = None
    return function


def whole_tensor_bound(graph: ms.Graph, device: ms.Device, limit: float) -> float:
    """Least makespan in seconds of plans that move whole tensors over one link, in the relaxation above.

    The graph is that of a chain.

    Infinite where every such plan is above `limit`.
    """
    movable = list(_core.movable_tensors(graph))
    if len(movable) > MAX_TENSORS or device.duplex or device.latency or device.d2h != device.h2d:
        raise ValueError(f"needs one link without latency and at most {MAX_TENSORS} tensors, not {len(movable)}")
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    uses: dict[str, list[int]] = {t["name"]: [-1] if t["role"] in ("input", "weight") else [] for t in graph.tensors}
    for at, op in enumerate(graph.ops):
        for name in [*op["writes"], *op["reads"]]:
            uses[name].append(at)
    live = {name: (at[0], at[-1]) for name, at in uses.items() if at}
    count = len(graph.ops)
    held = [sum(sizes[name] for name, (born, dead) in live.items() if born <= at <= dead) for at in range(count)]
    workspace = [op["choices"][0]["workspace"] for op in graph.ops]
    excess = np.array(held) + workspace - (device.memory - graph.resident)
    tightest = int(np.argmax(excess))
    if excess[tightest] <= 0:
        return float(sum(op["choices"][0]["time"] for op in graph.ops))

    names = [graph.tensors[tensor]["name"] for tensor in movable]
    time = np.array([op["choices"][0]["time"] for op in graph.ops])
    away_at_no = [
        [bit for bit, name in enumerate(names) if at in uses[name] or not uses[name][0] < at < uses[name][-1]]
        for at in range(count)
    ]
    touched = np.array([sum(1 << bit for bit in bits) for bits in away_at_no], dtype=np.uint32)
    made = np.array([uses[name][0] for name in names], dtype=np.int32)
    after = [[at for at in uses[name] if at > tightest] for name in names]
    made_reversed = np.array([count - 1 - at[0] if at else count for at in after], dtype=np.int32)

    total = np.zeros(1 << len(names))
    for ready, order, tail in (
        (made, slice(0, tightest), 0.0),
        (made_reversed, slice(count, tightest, -1), float(time[tightest])),
    ):
        reached = np.empty(1 << len(names))
        _half()(
            len(names),
            np.array([sizes[name] / device.d2h for name in names]),
            np.array([sizes[name] for name in names], dtype=np.int64),
            ready,
            len(time[order]),
            time[order].copy(),
            excess[order].copy(),
            touched[order].copy(),
            tail,
            float(time.sum() - time[order].sum() - tail),
            int(excess[tightest]),
            device.d2h,
            limit,
            reached,
        )
        total += reached
    total[_bytes(names, sizes, int(touched[tightest])) < excess[tightest]] = np.inf
    return float(total.min())


def _bytes(names: list[str], sizes: dict[str, int], touched: int) -> npt.NDArray[np.int64]:
    """Bytes of every set of tensors, without those that the op touches."""
    sets = np.arange(1 << len(names))
    away = np.zeros(len(sets), dtype=np.int64)
    for bit, name in enumerate(names):
        if not touched >> bit & 1:
            away += (sets >> bit & 1) * sizes[name]
    return away
