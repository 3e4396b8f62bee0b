"""POFO against its program in exact arithmetic, against exhaustive search, and against rotor."""

from __future__ import annotations

import json
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.testing import chains, devices
from oracles.pofo_dp import Instance, in_slots, value
from oracles.pofo_exhaustive import best
from test_rotor import at, layers

VECTORS = json.loads((Path(__file__).parent / "vectors" / "pofo.json").read_text())
BETAS = st.sampled_from([0, 0.5, 1, 2, 3, inf])
TINY = 1e-6


def chain_of(vector: dict[str, Any]) -> ms.Chain:
    """The vector's loss is a stage of its own; behind it comes the chain's, of no time and size."""
    return ms.Chain(
        vector["uF"],
        vector["uB"],
        [*vector["a"], 0],
        [*vector["delta"], 0],
        saved=vector["abar"],
        forward_overhead=vector["oF"],
        transient_overhead=vector.get("tF", vector["oF"]),
        backward_overhead=vector["oB"],
    )


def least_time(p: Instance) -> float | None:
    found = value(p)
    return None if found is None else float(found)


# In m02 a loss that needs much scratch gains from being a layer, which may be run from a checkpoint.
NAMED = [*VECTORS["small"], *VECTORS["large"], *(one for one in VECTORS["misreadings"] if one["name"] != "m02")]


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in NAMED])
def test_vectors(vector: dict[str, Any]) -> None:
    beta = inf if vector["beta"] == "inf" else float(Fraction(vector["beta"]))
    chain, memory = chain_of(vector), vector["M"]
    if vector["expected"] == "inf":
        with pytest.raises(ms.InfeasibleError):
            ms.pofo(chain, memory, beta)
        return
    expected = float(Fraction(vector["expected"]))
    if memory >= ms.peak_memory(chain):
        assert ms.pofo(chain, memory, beta).makespan == pytest.approx(expected)
        return
    exact = ms.pofo(chain, memory, beta, labels="exact", slots=memory)
    assert exact.estimate == pytest.approx(expected)
    assert ms.pofo(chain, memory, beta, labels="real", slots=memory, beam=10_000).estimate == pytest.approx(expected)
    assert ms.validate(exact).peak_memory <= memory


@given(case=layers(max_layers=4), memory=st.integers(1, 50), beta=BETAS)
def test_the_optimum_of_the_class(case: tuple[ms.Chain, Instance], memory: int, beta: float) -> None:
    chain, instance = case
    if memory >= ms.peak_memory(chain):
        assert ms.pofo(chain, memory, beta).makespan == sum(chain.forward_time) + sum(chain.backward_time)
        return
    expected = least_time(at(instance, memory, beta))
    if expected is None:
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.pofo(chain, memory, beta)
        assert caught.value.min_memory > memory
        return
    # Slots of one byte: sizes are whole, and so is beta u but for half a byte a second.
    if beta != 0.5:
        exact = ms.pofo(chain, memory, beta, labels="exact", slots=memory)
        assert exact.estimate == pytest.approx(expected, rel=TINY)
        ms.validate(exact)
    real = ms.pofo(chain, memory, beta, labels="real", slots=memory, beam=10_000)
    assert real.estimate is not None
    assert real.estimate >= expected * (1 - TINY)
    assert ms.validate(real).peak_memory <= memory


@given(
    case=layers(max_layers=4), memory=st.integers(8, 50), beta=st.sampled_from([1, 2, inf]), slots=st.integers(3, 12)
)
def test_in_slots(case: tuple[ms.Chain, Instance], memory: int, beta: float, slots: int) -> None:
    """Rounded up are what stays and every Delta that a state carries; at the loss nothing is carried on."""
    chain, instance = case
    width = memory // slots
    memory = width * slots
    if width < 1 or memory >= ms.peak_memory(chain):
        return
    p = at(instance, memory, beta)
    least, most = in_slots(p, slots, rests=False), in_slots(p, slots, rests=True)
    try:
        result = ms.pofo(chain, memory, beta, labels="exact", slots=slots)
    except ms.InfeasibleError:
        assert least is None
        return
    if least is not None and most is not None:
        assert float(least) * (1 - TINY) <= result.estimate <= float(most) * (1 + TINY)


@given(case=layers(max_layers=3), memory=st.integers(1, 30), beta=st.sampled_from([1, 2, inf]))
def test_no_schedule_of_the_class_is_better(case: tuple[ms.Chain, Instance], memory: int, beta: float) -> None:
    """Exhaustive search over sequences of operations knows no blocks, trees or recurrences."""
    chain, instance = case
    if max(1, ms.min_memory(chain, "pofo")) <= memory < ms.peak_memory(chain):
        expected = best(at(instance, memory, beta))
        assert expected is not None
        assert ms.pofo(chain, memory, beta, labels="exact", slots=memory).estimate == pytest.approx(float(expected))


@given(case=layers(max_layers=5), memory=st.integers(1, 60), labels=st.sampled_from(["exact", "real"]))
def test_without_a_link_it_is_rotor(case: tuple[ms.Chain, Instance], memory: int, labels: str) -> None:
    chain, _ = case
    if memory >= max(1, ms.min_memory(chain, "rotor")):
        slots = min(memory, 200)
        without = ms.pofo(chain, memory, 0, labels=labels, slots=slots)
        assert without.estimate == ms.rotor(chain, memory, slots=slots).estimate == without.makespan
        assert without.offloaded == ()


@given(layers(), st.sampled_from([1, inf]))
def test_the_minimum_is_exact(case: tuple[ms.Chain, Instance], beta: float) -> None:
    chain, instance = case
    least = ms.min_memory(chain, "pofo")
    assert least <= ms.min_memory(chain, "rotor")
    if least < ms.peak_memory(chain):
        assert value(at(instance, least, beta)) is not None
        assert value(at(instance, max(1, least) - 1, beta)) is None
        assert ms.pofo(chain, max(1, least), beta).peak_memory <= least


@given(chain=chains(max_stages=5), data=st.data(), chunk=st.sampled_from([None, 1, 2]))
def test_auto_is_no_slower_than_what_it_tries(chain: ms.Chain, data: st.DataObject, chunk: int | None) -> None:
    """Exact labels wait for the last offload; with pieces that was faster, and "auto" tried them without waiting."""
    least = max(1, ms.min_memory(chain, "pofo"))
    memory = data.draw(st.integers(least, max(least, ms.peak_memory(chain))))
    device = data.draw(devices(memory=memory))
    tried = {}
    for labels in ("auto", "exact", "real"):
        try:
            tried[labels] = ms.pofo(chain, device=device, chunk=chunk, labels=labels).makespan
        except ms.InfeasibleError:
            tried[labels] = inf
    assert tried["auto"] <= min(tried.values()) * (1 + TINY)


def test_auto_waits_for_the_last_offload_where_that_is_faster() -> None:
    chain = ms.Chain([3, 2, 5], [1, 1, 5], [6, 6, 5, 4], [0, 4, 0, 0], saved=[6, 5, 4])
    device = ms.Device(16, 1, duplex=True)
    assert ms.pofo(chain, device=device, chunk=1, labels="real").makespan == 23
    best = ms.pofo(chain, device=device, chunk=1)
    assert (best.makespan, best.params["labels_used"]) == (22, "exact")
    searched = ms.pofo(chain, device=device, chunk=1, moves=50)
    assert searched.makespan <= 22


@given(
    chains(max_stages=7, paper_form=True, integer_times=True),
    st.floats(0, 1),
    st.sampled_from([0.25, 1 / 3, 0.5, 1, 1.5, 2, 3, inf]),
)
def test_the_estimate_bounds_the_simulation(chain: ms.Chain, share: float, beta: float) -> None:
    """Where nothing is rounded, sizes nor beta x times, and one activation is all that a stage saves."""
    least, peak = max(1, ms.min_memory(chain, "pofo")), ms.peak_memory(chain)
    memory = int(least + share * max(0, peak - least))
    whole = beta == inf or all((beta * time).is_integer() for time in (*chain.forward_time, *chain.backward_time))
    if memory <= 200 and whole:
        result = ms.pofo(chain, memory, beta, labels="exact", slots=memory)
        assert result.estimate is not None
        assert result.estimate <= result.makespan * (1 + TINY)


@given(case=layers(max_layers=4), memory=st.integers(1, 50), beta=st.sampled_from([0.25, 1 / 3, 0.5, 0.7, 1.5]))
def test_rounding_what_travels_never_gives_less_than_the_best_of_the_class(
    case: tuple[ms.Chain, Instance], memory: int, beta: float
) -> None:
    chain, instance = case
    expected = least_time(at(instance, memory, beta))
    if expected is not None and memory < ms.peak_memory(chain):
        result = ms.pofo(chain, memory, beta, labels="exact", slots=memory)
        assert result.estimate is not None
        assert result.estimate >= expected * (1 - TINY)


def test_annealing_changes_the_runs_where_the_bound_is_far() -> None:
    """With other transfers alone the gap is 2.6 %."""
    chain = ms.profiles.load("inception_v3-1000-b8")
    least, peak = ms.min_memory(chain, "pofo"), ms.peak_memory(chain)
    found, same = (ms.pofo(chain, least + (peak - least) // 9, 12.2e9, moves=8192, anneal=True) for _ in range(2))
    assert found.gap < 0.02
    assert found.schedule == same.schedule
    assert ms.validate(found).peak_memory <= found.device.memory


def test_where_the_link_moves_parts_of_slots_the_estimate_is_no_bound() -> None:
    """docs/algorithms.md gives these figures; 10 is the best of the class."""
    chain = ms.Chain([1, 1], [1, 1], [1, 1, 1], [1, 1, 1])
    result = ms.pofo(chain, 4, 0.25, labels="exact", slots=4)
    assert (result.estimate, result.makespan) == (12, 10)


@given(chains(max_stages=8, max_bytes=60), devices(memory=1), st.integers(1, 60), st.floats(0, 1))
def test_few_slots_and_any_device(chain: ms.Chain, device: ms.Device, slots: int, share: float) -> None:
    linked = min(device.d2h, device.h2d) > 0
    least, peak = max(1, ms.min_memory(chain, "pofo" if linked else "rotor")), ms.peak_memory(chain)
    memory = int(least + share * max(0, peak - least))
    try:
        result = ms.pofo(chain, memory, device=device, slots=slots, beam=5)
    except ms.InfeasibleError:
        assert device.host_memory is not None  # too small for what must leave
        return
    assert ms.validate(result).peak_memory <= memory
    if result.estimate is not None:
        assert result.estimate >= ms.bounds(chain, memory).compute * (1 - TINY)


def test_never_worse_than_rotor() -> None:
    for name in ("resnet50-224-b32", "densenet121-224-b32", "gpt2-1024-b8"):
        chain = ms.profiles.load(name)
        low, high = ms.min_memory(chain, "rotor"), ms.peak_memory(chain)
        for share in (0.1, 0.5, 0.9):
            memory = int(low + share * (high - low))
            with_link = ms.pofo(chain, memory, 12.2e9, slots=500, beam=3)
            assert with_link.makespan <= ms.rotor(chain, memory, slots=500).makespan * (1 + TINY)


@given(chains(max_stages=6, max_bytes=10**6), st.sampled_from((0, 1, 5)), st.sampled_from((0.01, 1.0, 100.0)))
def test_never_worse_than_rotor_where_that_just_fits(chain: ms.Chain, more: int, beta: float) -> None:
    memory = max(1, ms.min_memory(chain, "rotor") + more)
    assert ms.pofo(chain, memory, beta).makespan <= ms.rotor(chain, memory).makespan * (1 + TINY)


@pytest.mark.parametrize("labels", ["real", "exact"])
def test_threads_change_nothing(labels: str) -> None:
    chain = ms.profiles.load("resnet50-224-b32")
    memory = (ms.min_memory(chain, "pofo") + ms.peak_memory(chain)) // 2
    one, more = (ms.pofo(chain, memory, 6e9, labels=labels, slots=40, threads=count) for count in (1, 3))
    assert one.schedule == more.schedule
    assert (one.estimate, one.params["states"]) == (more.estimate, more.params["states"])


def test_the_search_only_improves_and_keeps_the_runs() -> None:
    chain = ms.profiles.load("resnet50-224-b32")
    memory = ms.min_memory(chain, "pofo") + (ms.peak_memory(chain) - ms.min_memory(chain, "pofo")) // 5
    plain, searched = (ms.pofo(chain, memory, 12.2e9, chunk=1 << 24, moves=moves) for moves in (0, 5000))
    assert searched.makespan <= plain.makespan
    runs = [[step for step in result.schedule.steps if "run" in step] for result in (plain, searched)]
    assert runs[0] == runs[1]
    assert searched.params["evaluations"] > 0
    ms.validate(searched)


def test_it_saves_what_the_docstring_says() -> None:
    """a0 leaves, and tape1 is made again: 28 of 36 bytes at no cost, where rotor repeats two forwards."""
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4], saved=[8, 8, 8])
    assert ms.peak_memory(chain) == 36
    found = ms.pofo(chain, 28, 8)
    assert (found.makespan, found.recomputed) == (6, ())
    assert "a0" in found.offloaded


def test_bad_options() -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    for options, words in (
        ({"labels": "best"}, "labels is 'best'"),
        ({"labels": "exact", "slots": 500}, "slots is 500; exact labels take at most"),
        ({"beam": 0}, "beam"),
        ({"slots": True}, "slots"),
        ({"threads": -1}, "threads"),
        ({"time_limit": float("nan")}, "time_limit"),
    ):
        with pytest.raises(ms.InvalidInputError, match=words):
            ms.pofo(chain, 1e9, 1e9, **options)
