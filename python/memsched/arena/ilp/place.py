"""OLLA's addresses (Steiner et al., 2022): equations 6 to 8 and 15 over HiGHS."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from memsched.arena.ilp.blocks import Lifetime, check_fixed, greedy, height, is_live, load, meet, overlap, settle, step
from memsched.arena.ilp.model import Model, Scale, TimeUpError
from memsched.arena.ilp.model import load as load_highs
from memsched.arena.ilp.order import gap, left
from memsched.arena.ilp.pyramid import pyramid
from memsched.errors import InfeasibleError


def place_ilp(
    buffers: Sequence[Lifetime],
    capacity: int | None = None,
    time_limit: float | None = None,
    *,
    preplace: bool = False,
) -> tuple[list[int], int, bool]:
    """Find addresses for buffers of known lifetimes, such that the highest end is as low as possible.

    Greedy placements come first. If they are higher than the load, the program is asked for a lower one. Its sizes are
    scaled as those of `order_ilp`.

    Parameters
    ----------
    buffers : sequence
        Of objects with start, end (half-open), size (bytes), alignment (bytes) and offset (bytes, or None: any). One
        without bytes or time is put at its offset or at 0; there it counts for the height, and is in nobody's way.
    capacity : int, optional
        Bytes that are there.
    time_limit : float, optional
        Seconds; then the best placement so far.
    preplace : bool
        OLLA's function 5 first: a pyramid of buffers that lie within each other's lifetimes. Only the load is then a
        lower bound.

    Returns
    -------
    offsets : list of int
        Bytes.
    lower_bound : int
        Bytes below which no placement can end.
    optimal : bool
        Whether this one ends there.

    Raises
    ------
    InfeasibleError
        It needs more than the capacity. min_memory is the height that was found, the least one unless the time was up.
    InvalidInputError
        Fixed buffers overlap or are not aligned.
    MemschedError
        highspy is not installed.
    """
    load_highs()
    until = None if time_limit is None else time.monotonic() + time_limit
    check_fixed(buffers)
    offsets = [one.offset or 0 for one in buffers]
    live = [k for k, one in enumerate(buffers) if is_live(one)]
    blocks = [buffers[k] for k in live]
    found, bound = _lowest(pyramid(blocks) if preplace else blocks, until)
    for k, offset in zip(live, found, strict=True):
        offsets[k] = offset
    idle = max((offsets[k] + one.size for k, one in enumerate(buffers) if not is_live(one)), default=0)
    bound = max(load(blocks) if preplace else bound, idle)
    top = height(buffers, offsets)
    if capacity is not None and top > capacity:
        proof = (
            "no placement ends below" if top == bound else f"the time was up; no placement ends below {bound} bytes:"
        )
        raise InfeasibleError(f"the buffers need {top} bytes and the capacity is {capacity}; {proof} that", top)
    return offsets, bound, top == bound


def _lowest(blocks: Sequence[Lifetime], until: float | None) -> tuple[list[int], int]:
    """(offsets, lower bound)"""
    best = greedy(blocks)
    bound = load(blocks)
    if height(blocks, best) == bound:
        return best, bound
    try:
        return _by_program(blocks, best, bound, until)
    except TimeUpError:
        return best, bound


def _by_program(blocks: Sequence[Lifetime], best: list[int], bound: int, until: float | None) -> tuple[list[int], int]:
    """The same, where a placement and a bound are known."""
    top = height(blocks, best)
    unit, plain = step(blocks)
    scale = Scale.of([unit], top)
    model = Model(until)
    limit = top - unit
    highest = model.variable(scale.down(bound), scale.down(limit), cost=1.0, integer=scale.whole)
    live = [k for k, one in enumerate(blocks) if is_live(one)]
    addresses = {k: address_of(model, scale, blocks[k], limit, plain) for k in live}
    common = 1 if plain else math.gcd(*(blocks[k].alignment for k in live))
    pairs = [(i, j) for i in live for j in live if i < j and meet(blocks[i], blocks[j])]
    mirrored = plain and all(blocks[k].offset is None for k in live)
    for k in live:
        model.row(scale.down(blocks[k].size), float("inf"), [(highest, 1.0), (addresses[k], -1.0)])
    for i, j in sorted(pairs, key=lambda pair: (-blocks[pair[0]].size * blocks[pair[1]].size, pair)):
        if blocks[i].offset is not None and blocks[j].offset is not None:
            continue
        below = model.variable(1 if mirrored else 0, 1, integer=True)  # one pair may be either way up: a mirror image
        mirrored = False
        for low, high, factor, constant in ((i, j, 1.0, 0.0), (j, i, -1.0, 1.0)):
            padded = -(-blocks[low].size // common) * common
            apart(
                model, scale, (addresses[low], padded, addresses[high]), ([(below, factor)], constant), limit + common
            )
    outcome = model.solve(time_limit=left(until), gap=gap(scale))
    if outcome.infeasible:
        return best, max(bound, min(scale.bound(scale.down(top)), top))
    if outcome.values is not None:
        found = settle(blocks, [outcome.values[addresses[k]] if k in addresses else 0.0 for k in range(len(blocks))])
        if found is not None and height(blocks, found) < top:
            best, top = found, height(blocks, found)
    assert overlap(blocks, best) is None
    return best, max(bound, min(scale.bound(outcome.bound), top))


def address_of(model: Model, scale: Scale, one: Lifetime, limit: int, plain: bool) -> int:
    """A variable for an address, in HiGHS's bytes: fixed, or a multiple of the alignment.

    Where the scale is not whole, multiples are finer than doubles, and HiGHS would find none where there are some. Then
    any address may be taken: that can only lower the bound, and `settle` aligns what is found.
    """
    if one.offset is not None:
        return model.variable(scale.down(one.offset), scale.down(one.offset))
    address = model.variable(0, scale.down(limit - one.size))
    if not plain and scale.whole:
        multiple = model.variable(0, (limit - one.size) // one.alignment, integer=True)
        model.row(0, 0, [(address, 1.0), (multiple, -scale.down(one.alignment))])
    return address


def apart(
    model: Model,
    scale: Scale,
    ends: tuple[int, int, int],
    below: tuple[list[tuple[int, float]], float],
    limit: int,
) -> None:
    """Equation 7: where `below`, terms and a constant, is 1, address + size <= the other address."""
    low, size, high = ends
    terms, constant = below
    slack = scale.down(limit)
    row = [(low, 1.0), (high, -1.0), *((variable, slack * factor) for variable, factor in terms)]
    model.row(-float("inf"), slack * (1 - constant) - scale.down(size), row)
