"""rotor against the published recurrence, cell by cell, and against the program in exact arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.planners.remat.recompute import FIRST_LAYERS, MOST_LAYERS, Tables, make_table
from memsched.planners.sets import begin_chain
from memsched.testing import chains
from oracles.pofo_dp import Instance, rotor_value
from oracles.rotor_published import published

INT = st.integers


@st.composite
def layers(draw: st.DrawFn, *, max_layers: int = 5) -> tuple[ms.Chain, Instance]:
    """A chain of small integers, tapes and scratches included, and the same for the oracle; M of the latter is open."""
    n = draw(INT(1, max_layers))

    def numbers(most: int, count: int = n) -> list[int]:
        return draw(st.lists(INT(0, most), min_size=count, max_size=count))

    a, more, scratch = numbers(6, n + 1), numbers(4), numbers(3)
    saved = [output + tape for output, tape in zip(a[1:], more, strict=True)]
    extra = numbers(3)
    transient = [own + (plus if tape else 0) for own, plus, tape in zip(scratch, extra, more, strict=True)]
    forward, backward, gradient, back = numbers(4), numbers(5), numbers(5, n + 1), numbers(3)
    chain = ms.Chain(
        forward,
        backward,
        a,
        gradient,
        saved=saved,
        forward_overhead=scratch,
        transient_overhead=transient,
        backward_overhead=back,
    )
    return chain, Instance(
        a=a,
        abar=[*saved, 0],
        delta=gradient,
        oF=[*scratch, 0],
        tF=[*transient, 0],
        oB=[*back, 0],
        uF=[*forward, 0],
        uB=[*backward, 0],
        M=1,
        beta=0,
    )


def at(p: Instance, memory: int, beta: float = 0) -> Instance:
    return Instance(a=p.a, abar=p.abar, delta=p.delta, oF=p.oF, tF=p.tF, oB=p.oB, uF=p.uF, uB=p.uB, M=memory, beta=beta)


@given(data=st.data(), n=INT(1, 6), slots=INT(4, 20))
def test_every_cell_is_the_published_solvers(data: st.DataObject, n: int, slots: int) -> None:
    """Where that one is right: no scratch, sizes of at least 1."""

    def numbers(least: int, most: int, count: int) -> list[int]:
        return data.draw(st.lists(INT(least, most), min_size=count, max_size=count))

    forward, backward, x = numbers(0, 4, n), numbers(0, 4, n), numbers(1, 4, n + 1)
    saved = [size + more for size, more in zip(x, numbers(0, 4, n + 1), strict=True)]
    none = [0] * n
    opt = published(fw=forward, bw=backward, x=x, xb=saved, ftmp=none, btmp=none)
    chain = ms.Chain(forward, backward, x, x, saved=saved[1:], transient_overhead=none)
    table = _core.RematTable(chain, slots, slots, 1)
    assert (table.slots, table.width) == (slots, 1)
    for first in range(n):
        for last in range(first, n):
            for free in range(slots + 1):
                assert table.time(first + 1, last + 1, free) == opt(free, first, last)


@given(case=layers(), memory=INT(1, 60))
def test_the_optimum_of_the_class(case: tuple[ms.Chain, Instance], memory: int) -> None:
    chain, instance = case
    expected = rotor_value(at(instance, memory))
    if memory >= ms.peak_memory(chain):
        assert ms.rotor(chain, memory).makespan == sum(chain.forward_time) + sum(chain.backward_time)
    elif expected is None:
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.rotor(chain, memory)
        assert caught.value.min_memory > memory
    else:
        result = ms.rotor(chain, memory, slots=memory)
        assert result.estimate == result.makespan == expected
        assert ms.validate(result).peak_memory <= memory


@given(layers())
def test_the_minimum_is_exact(case: tuple[ms.Chain, Instance]) -> None:
    chain, instance = case
    least = ms.min_memory(chain, "rotor")
    if least == ms.peak_memory(chain):
        return
    assert rotor_value(at(instance, least)) is not None
    assert rotor_value(at(instance, max(1, least) - 1)) is None
    assert ms.rotor(chain, max(1, least)).peak_memory <= least


@given(chains(max_stages=8, max_bytes=60), INT(1, 40), st.floats(0, 1))
def test_few_slots_are_enough_for_some_plan(chain: ms.Chain, slots: int, share: float) -> None:
    """Rounding up may leave no plan, close to the minimum; then there are more slots, or a plan that just fits."""
    least, peak = max(1, ms.min_memory(chain, "rotor")), ms.peak_memory(chain)
    memory = int(least + share * max(0, peak - least))
    result = ms.rotor(chain, memory, slots=slots)
    assert ms.validate(result).peak_memory <= memory
    if result.estimate is not None:
        assert result.estimate == pytest.approx(result.makespan)


def test_more_slots_and_more_memory_do_not_hurt() -> None:
    chain = ms.profiles.load("resnet50-224-b32")
    low, high = ms.min_memory(chain, "rotor"), ms.peak_memory(chain)
    spans = [ms.rotor(chain, int(memory)).makespan for memory in np.linspace(low, high, 12)]
    assert all(after <= before * 1.0001 for before, after in itertools.pairwise(spans))
    middle = (low + high) // 2
    assert ms.rotor(chain, middle, slots=4000).makespan <= ms.rotor(chain, middle, slots=50).makespan
    assert spans[-1] == pytest.approx(float(chain.forward_time.sum() + chain.backward_time.sum()))


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_nothing(threads: int) -> None:
    chain = ms.profiles.random(60, seed=3)
    memory = (ms.min_memory(chain, "rotor") + ms.peak_memory(chain)) // 2
    one, more = (ms.rotor(chain, memory, threads=count) for count in (1, threads))
    assert one.schedule == more.schedule
    assert one.estimate == more.estimate


def test_nothing_travels_whatever_the_link() -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    memory = ms.min_memory(chain, "rotor")
    plans = [ms.rotor(chain, memory, beta) for beta in (None, 0, 1e9, inf)]
    assert all(plan.offloaded == () and plan.schedule.steps == plans[0].schedule.steps for plan in plans)
    assert plans[0].recomputed
    assert plans[0].timeline.recompute_time == pytest.approx(plans[0].makespan - ms.bounds(chain, memory).compute)


@pytest.mark.parametrize(
    ("stages", "until", "quick"), [(130, 1e9, True), (20, 1e9, False), (130, inf, False), (20, inf, False)]
)
def test_only_long_chains_of_limited_time_are_planned_quickly_first(stages: int, until: float, quick: bool) -> None:
    chain = ms.profiles.random(stages, seed=3)
    task = begin_chain(ms.rotor, chain, ms.peak_memory(chain), 1.0, None)
    tables = Tables(threads=1, progress=None, until=until)
    assert tables.layers(task) == ((FIRST_LAYERS, MOST_LAYERS) if quick else (MOST_LAYERS,))
    assert replace(tables, shared=make_table(chain, 100, 10, threads=1)).layers(task) == (MOST_LAYERS,)


def test_three_layers_by_hand() -> None:
    """Without gradients 12 of 16 bytes hold a0, a2 and a3 for B3; then F1 and F2 run again, and all fits."""
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 0, 0, 0])
    assert ms.min_memory(chain, "rotor") == 12
    found = ms.rotor(chain, 12)
    assert (found.makespan, found.recomputed) == (8, ("F1", "F2"))
    runs = [step["run"] for step in found.schedule.steps if "run" in step]
    assert runs == ["F1", "F2", "F3", "loss", "B3", "F1", "F2", "B2", "B1"]
    assert ms.rotor(chain, 16).makespan == 6
