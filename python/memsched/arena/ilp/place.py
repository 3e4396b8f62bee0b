"""OLLA's addresses (Steiner et al., 2022): equations 6 to 8 and 15, solved by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from memsched.arena.buffers import Buffer, height
from memsched.arena.ilp.buffers import check_fixed, is_live, load, meeting, overlap, settle, unit_of
from memsched.arena.ilp.model import Model, Scale, TimeUpError, left, until_after
from memsched.arena.ilp.model import load as load_highs
from memsched.arena.placement import columns_of, place_columns
from memsched.errors import InfeasibleError
from memsched.support.units import exact_bytes, unit_written


def place_ilp(
    buffers: Sequence[Buffer], capacity: int | None = None, time_limit: float | None = None
) -> tuple[list[int], int, bool]:
    """Find addresses for buffers with known lifetimes, so that the highest end is as low as possible.

    A greedy placement comes first. If it is higher than the load, the integer program looks for a lower one. Sizes
    are scaled as in `order_ilp`. A buffer without bytes or time is put at its offset or at 0; it counts for the height
    but conflicts with none. After `time_limit` seconds the best placement so far is returned.

    Returns offsets; a bound, below which no placement ends; and whether this one ends there. InfeasibleError: it needs
    more than the capacity; min_memory is the height found, which is the least one if the message says so.
    InvalidInputError: fixed buffers overlap or are not aligned.
    """
    load_highs()
    until = until_after(time_limit)
    check_fixed(buffers)
    offsets, _, _ = place_columns(columns_of(buffers), None, time_limit=left(until), method="greedy")
    idle = [offset + one.size for one, offset in zip(buffers, offsets, strict=True) if not is_live(one)]
    bound = max([load(buffers), *idle])
    if height(buffers, offsets) > bound:
        with suppress(TimeUpError):
            offsets, bound = _by_program(buffers, offsets, bound, until)
    top = height(buffers, offsets)
    if capacity is not None and top > capacity:
        unit = unit_written(capacity)
        need = f"{exact_bytes(top, unit, up=True)} and the capacity is {exact_bytes(capacity, unit)}"
        if top > bound:
            raise InfeasibleError(
                f"the placement found needs {need}; only below {exact_bytes(bound, unit)} it is proven that none ends",
                top,
            )
        raise InfeasibleError(f"the buffers need {need}; no placement ends below that", top)
    return offsets, bound, top == bound


def _by_program(buffers: Sequence[Buffer], best: list[int], bound: int, until: float) -> tuple[list[int], int]:
    """(offsets, lower bound), given a placement and a bound."""
    top = height(buffers, best)
    unit, plain = unit_of(buffers)
    scale = Scale.of([unit], top)
    model = Model(until)
    limit = top - unit
    highest = model.variable(scale.down(bound), scale.down(limit), cost=1.0, integer=scale.whole)
    live = [k for k, one in enumerate(buffers) if is_live(one)]
    addresses = {k: address_of(model, scale, buffers[k], limit, plain) for k in live}
    common = 1 if plain else math.gcd(*(buffers[k].alignment for k in live))
    pairs = []
    for pair in meeting(buffers):
        model.check_time()
        pairs.append(pair)
    mirrored = plain and all(buffers[k].offset is None for k in live)
    for k in live:
        model.row(scale.down(buffers[k].size), float("inf"), [(highest, 1.0), (addresses[k], -1.0)])
    for i, j in sorted(pairs, key=lambda pair: (-buffers[pair[0]].size * buffers[pair[1]].size, pair)):
        if buffers[i].offset is not None and buffers[j].offset is not None:
            continue
        below = model.variable(1 if mirrored else 0, 1, integer=True)  # by mirror symmetry, the first pair may be fixed
        mirrored = False
        for low, high, factor, constant in ((i, j, 1.0, 0.0), (j, i, -1.0, 1.0)):
            padded = -(-buffers[low].size // common) * common
            apart(
                model, scale, (addresses[low], padded, addresses[high]), ([(below, factor)], constant), limit + common
            )
    outcome = model.solve(time_limit=left(until), gap=scale.gap)
    if outcome.infeasible:
        return best, max(bound, min(scale.bound(scale.down(top)), top))
    if outcome.values is not None:
        found = settle(buffers, [outcome.values[addresses[k]] if k in addresses else 0.0 for k in range(len(buffers))])
        if found is not None and height(buffers, found) < top:
            best, top = found, height(buffers, found)
    assert overlap(buffers, best) is None
    return best, max(bound, min(scale.bound(outcome.bound), top))


def address_of(model: Model, scale: Scale, one: Buffer, limit: int, plain: bool) -> int:
    """A variable for an address, in HiGHS's bytes: fixed, or a multiple of the alignment.

    If the scale is not whole, multiples are finer than doubles and HiGHS might find none. Then any address is allowed:
    this can only lower the bound, and `settle` aligns the result.
    """
    if one.offset is not None:
        return model.variable(scale.down(one.offset), scale.down(one.offset))
    address = model.variable(0, scale.down(limit - one.size))
    if not plain and scale.whole:
        multiple = model.variable(0, (limit - one.size) // one.alignment, integer=True)
        model.row(0, 0, [(address, 1.0), (multiple, -scale.down(one.alignment))])
    return address


def apart(
    model: Model, scale: Scale, ends: tuple[int, int, int], below: tuple[list[tuple[int, float]], float], limit: int
) -> None:
    """Equation 7: if `below` (terms and a constant) is 1, then address + size <= the other address."""
    low, size, high = ends
    terms, constant = below
    slack = scale.down(limit)
    row = [(low, 1.0), (high, -1.0), *((variable, slack * factor) for variable, factor in terms)]
    model.row(-float("inf"), slack * (1 - constant) - scale.down(size), row)
