"""Chains whose optimum is known, or found by exhaustive search."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, isnan

from memsched._core import Chain
from memsched.errors import InfeasibleError, InvalidInputError, shown
from memsched.problems.budget import memory_of
from memsched.support import quantities
from memsched.support.checks import as_float, kind


def three_partition_chain(values: Sequence[int], target: int) -> tuple[Chain, int, float, float]:
    """Build the chain that hides a 3-PARTITION instance in Problem 1 (whole transfers, one shared link).

    The forward pass first makes activations of the given sizes, which fill the memory; then, m times, an op
    of one second is followed by one that needs `target` bytes at once, so the transfers of that second must
    free exactly `target` bytes. The paper's sizes would need (m + 1) target bytes at time 0; here the large
    activations are the outputs of the zero-time ops, as its proof requires.

    Parameters
    ----------
    values
        3 m integers in bytes, each strictly between target/4 and target/2, with sum m target.
    target
        The sum V of each triple, in bytes.

    Returns
    -------
    chain, M, beta, T : Chain, int, float, float
        The least makespan of whole transfers is T seconds exactly when the values split into triples of sum `target`.

    Raises
    ------
    ValueError
        If the values are not an instance of 3-PARTITION.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, Theorem 1 and Figure 2.

    Examples
    --------
    >>> chain, M, beta, T = three_partition_chain([7, 7, 7], 21)
    >>> M, beta, T
    (21, 21.0, 2.0)
    """
    m, rest = divmod(len(values), 3)
    if rest or m == 0 or sum(values) != m * target or not all(target < 4 * v < 2 * target for v in values):
        raise ValueError(
            f"{len(values)} values of sum {sum(values)} are not a 3-PARTITION instance with target {target}: "
            "there must be 3 m of them, of sum m target, each strictly between target/4 and target/2."
        )
    forward = [0.0] * (3 * m) + [1.0, 0.0] * m
    backward = [0.0] * len(forward)
    backward[3 * m] = float(m)
    activation = [*values, 0, *([0, target] * m)]
    chain = Chain(forward, backward, activation, [0] * len(activation), name=f"three-partition-{m}")
    return chain, m * target, float(target), 2.0 * m


def two_partition_chain(values: Sequence[int]) -> tuple[Chain, int, float, float]:
    """Build the chain that hides a 2-PARTITION instance in Problem 2 (transfers may pause).

    Parameters
    ----------
    values
        Positive integers in bytes with an even sum 2 V.

    Returns
    -------
    chain, M, beta, T : Chain, int, float, float
        The interruptible makespan is T seconds exactly when the values split into two parts of sum V.

    Raises
    ------
    ValueError
        If a value is not positive or the sum is odd.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, Theorem 3 and Figure 3.

    Examples
    --------
    >>> chain, M, beta, T = two_partition_chain([1, 2, 3])
    >>> brute_force(chain, M, beta)
    (2.0, (2,))
    """
    half, odd = divmod(sum(values), 2)
    if odd or not values or min(values) <= 0:
        raise ValueError(f"2-PARTITION needs positive values with an even sum; the sum is {sum(values)}.")
    time = [0.0] * len(values) + [1.0, 0.0, 0.0]
    activation = [*values, 0, 0, half, 0]
    chain = Chain(time, time, activation, [0] * len(activation), name=f"two-partition-{len(values)}")
    return chain, 2 * half, float(half), 2.0


def brute_force(chain: Chain, M: float | str, beta: float | str) -> tuple[float, tuple[int, ...]]:
    """Find the interruptible optimum of a tiny chain by trying every offload set.

    Transfers may pause and memory is released continuously; x_i is offloaded whole or not at all; and no
    prefetch starts before the last offload ends. Time 2^n, so keep n below 16 or so.

    Parameters
    ----------
    chain
        n stages; x_0 = activation[0], x_i = saved[i-1], y_i = gradient[i].
    M
        Bytes of device memory, resident bytes included; or a text such as "6GiB" or "40%".
    beta
        Bytes per second of the one link, positive and finite; or a text such as "12GB/s".

    Returns
    -------
    makespan : float
        Seconds.
    offloaded : tuple of int
        The indices i in [0, n) of the offloaded x_i; on ties the fewest, then the lowest.

    Raises
    ------
    InfeasibleError
        If no set fits in M bytes.
    InvalidInputError
        M or beta is no such number.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, equations (1) to (10), with their misprints corrected.

    Examples
    --------
    >>> from memsched import Chain
    >>> brute_force(Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5]), 100, 1.0)
    (8.0, ())
    """
    kind("chain", chain, Chain)
    room = as_float(memory_of(M, chain, "M") if isinstance(M, str) else M)
    speed = quantities.bandwidth("beta", beta) if isinstance(beta, str) else as_float(beta)
    if isnan(room):
        raise InvalidInputError(f"M is {shown(M)}; it must be a number of bytes")
    if not 0 < speed < inf:
        raise InvalidInputError(f"beta is {shown(beta)}; it must be a positive and finite number of bytes per second")
    x, _, needs = paper_sizes(chain)
    least = int(chain.resident) + max(x[i] + needs[i] for i in range(len(needs)))
    if least > room:
        raise InfeasibleError(f"No offload set fits in {M} bytes; {least} are needed.", min_memory=least)
    best: tuple[float, tuple[int, ...]] = (inf, ())
    for count in range(len(needs) + 1):
        for offloaded in combinations(range(len(needs)), count):
            best = min(best, (_makespan(chain, room, speed, offloaded), offloaded), key=lambda found: found[0])
    return best


def _makespan(chain: Chain, M: float, beta: float, offloaded: Collection[int]) -> float:
    """Makespan if exactly `offloaded` are offloaded: two halves that meet; infinite if it does not fit."""
    x, y, _ = paper_sizes(chain)
    room = M - float(chain.resident)
    extra_forward = [int(v) for v in chain.forward_overhead]
    extra_backward = [int(v) + y[i] + y[i + 1] for i, v in enumerate(chain.backward_overhead)]
    forward = _Half([float(v) for v in chain.forward_time], x, extra_forward, room, beta)
    backward = _Half([float(v) for v in chain.backward_time], x, extra_backward, room, beta)
    length_f, queue_f = forward.length(offloaded, mirrored=False)
    length_b, queue_b = backward.length(offloaded, mirrored=True)
    if queue_f > 0 and queue_b > 0:
        gap = (queue_f + queue_b) / beta
    elif queue_f > 0:
        gap = backward.join(offloaded, queue_f, -queue_b / beta)
    elif queue_b > 0:
        gap = forward.join(offloaded, queue_b, -queue_f / beta)
    else:
        gap = 0.0
    return length_f + gap + length_b


def paper_sizes(chain: Chain) -> tuple[list[int], list[int], list[int]]:
    """The paper's x and y, and the bytes that stage i needs in addition to x_0..x_i (the larger of F and B)."""
    x = [int(chain.activation[0]), *(int(v) for v in chain.saved)]
    y = [int(v) for v in chain.gradient]
    needs = []
    for i in range(len(x) - 1):
        backward = int(chain.backward_overhead[i]) + y[i] + y[i + 1]
        needs.append(x[i + 1] + max(int(chain.forward_overhead[i]), backward))
    return x, y, needs


@dataclass(frozen=True, slots=True)
class _Half:
    """One phase, the backward one in reversed time; `extra` are the bytes of stage i in addition to x_0..x_{i+1}."""

    time: list[float]
    x: list[int]
    extra: list[int]
    room: float
    beta: float

    def length(self, offloaded: Collection[int], *, mirrored: bool) -> tuple[float, float]:
        """Length of the phase, and the bytes still to move at its end (negative: spare ones)."""
        length, queue, kept = 0.0, 0.0, 0
        for i, extra in enumerate(self.extra):
            over = kept + self.x[i] + self.x[i + 1] + extra - self.room
            if over > 0:
                return inf, 0.0
            seconds = max(0.0, (over + max(queue, 0.0)) / self.beta) + self.time[i]  # equations (1) and (6)
            moved = seconds * self.beta
            length += seconds
            if i not in offloaded:
                queue, kept = queue - moved, kept + self.x[i]  # (4) and (8)
            elif mirrored:
                queue = self.x[i] + max(0.0, queue - moved)  # (7): x_i must be back before its B starts
            else:
                queue = max(queue, 0.0) + self.x[i] - moved  # (2)
        return length, queue

    def join(self, offloaded: Collection[int], queue: float, spare: float) -> float:
        """Equations (9) and (10): the gap if the queue of the other phase moves in spare link time."""
        gap, until = max(0.0, queue / self.beta - spare), 0.0
        kept = sum(size for i, size in enumerate(self.x) if i not in offloaded)
        for j in range(len(self.extra) - 1, -1, -1):
            if until < spare:
                over = kept + queue + self.extra[j] - sum(self.x[j + 2 :]) - self.room
                gap = max(gap, over / self.beta - until)
            until += self.time[j]
        return gap
