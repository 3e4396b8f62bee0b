"""DYNPROG against brute force, its two methods against each other, and what its limits leave true."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.problems.discretize import ceil_partial_sums
from memsched.problems.fluid import FluidInstance, fluid_chain, prefix_set
from memsched.testing import chains, devices, instances, two_partition_chain
from oracles.interruptible import best_fluid, fluid_makespan, paper_instance

MANY = settings(max_examples=2 * settings().max_examples)
VECTORS = json.loads((Path(__file__).parent / "vectors" / "interruptible.json").read_text())
TINY = 1e-9
Instance = tuple[ms.Chain, int, float]


def paper_chain(lists: dict[str, Any]) -> ms.Chain:
    columns = (lists[key] for key in ("uF", "uB", "x", "y"))
    return ms.Chain(*columns, forward_overhead=lists["exF"], backward_overhead=lists["exB"])


def brute(chain: ms.Chain, memory: int, beta: float) -> float:
    """The oracle's optimum of the interruptible model."""
    found = best_fluid(**paper_instance(chain, memory), beta=beta)
    assert found is not None
    return found[0]


@st.composite
def limited(draw: st.DrawFn, **options: Any) -> Instance:
    """A chain with tapes and resident bytes, M from DYNPROG's minimum to below the peak, and a bandwidth."""
    chain = draw(chains(min_bytes=1, **options).filter(lambda c: ms.min_memory(c, "dynprog") < ms.peak_memory(c)))
    memory = draw(st.integers(max(1, ms.min_memory(chain, "dynprog")), ms.peak_memory(chain) - 1))
    return chain, memory, float(draw(st.integers(1, 3)))


@pytest.mark.parametrize("vector", VECTORS)
def test_vectors(vector: dict[str, Any]) -> None:
    for method in ("pruned", "hash"):
        result = ms.dynprog(paper_chain(vector), vector["M"], vector["beta"], slots=None, method=method)
        assert result.estimate == pytest.approx(vector["makespan"], rel=TINY)
        assert result.params["proven"]


@MANY
@given(instances(max_stages=7))
def test_exact_is_brute_force(instance: Instance) -> None:
    chain, memory, beta = instance
    result = ms.dynprog(chain, memory, beta, slots=None)
    assert result.estimate == pytest.approx(brute(*instance), rel=TINY)
    assert result.params["proven"]
    assert result.params["model_lower_bound"] == pytest.approx(result.estimate, rel=TINY)
    assert result.estimate <= result.makespan + TINY
    ms.validate(result)


@given(limited(max_stages=6), st.booleans())
def test_exact_with_tapes_and_resident_bytes_is_brute_force(instance: Instance, hashed: bool) -> None:
    """x_k is saved[k-1], whole, in the paper's model; the simulated plan may be faster than that."""
    result = ms.dynprog(*instance, slots=None, method="hash" if hashed else "pruned")
    assert result.estimate == pytest.approx(brute(*instance), rel=TINY)
    ms.validate(result)


@given(limited(max_stages=6, integer_times=False, paper_form=True))
def test_exact_on_fractional_times_is_brute_force(instance: Instance) -> None:
    result = ms.dynprog(*instance, slots=None)
    assert result.estimate == pytest.approx(brute(*instance), rel=TINY, abs=TINY)
    assert result.estimate <= result.makespan + TINY * (1 + result.makespan)


@given(limited(max_stages=12, max_bytes=4))
def test_exact_is_hash(instance: Instance) -> None:
    by_hash = ms.dynprog(*instance, slots=None, method="hash")
    assert ms.dynprog(*instance, slots=None).estimate == pytest.approx(by_hash.estimate, rel=TINY)


def travels(result: ms.Result) -> list[int]:
    """The stages whose activation leaves, by the names of their tensors: a7, tape7."""
    return sorted({int(name.removeprefix("tape").removeprefix("a")) for name in result.offloaded})


@pytest.mark.parametrize("tape", [False, True])
@pytest.mark.parametrize("slots", [None, 60])
def test_hash_tables_take_the_set_of_the_dynamic_program_and_no_other(tape: bool, slots: int | None) -> None:
    """Also where GREEDY's set is worth as much in the model and more to the simulator."""
    substitutes = 0
    for seed in range(30):
        chain = ms.profiles.random(9, seed, tape=tape)
        least, peak = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
        device = ms.Device((least + peak) // 2, 2e8)
        found = ms.dynprog(chain, device=device, slots=slots, method="hash")
        if found.params["slots_used"] != slots:
            continue
        instance = fluid_chain(chain, device)
        if slots is None:
            chosen = _core.dynprog(instance.exact(), hash=True).offloaded
        elif found.params["rounds"] == 1:
            rounded_chain = rounded(instance, slots)
            assert rounded_chain is not None
            chosen = _core.dynprog(rounded_chain, hash=True).offloaded
        else:
            continue
        assert travels(found) == np.flatnonzero(chosen).tolist()
        greedy = ms.greedy(chain, device=device)
        same = instance.exact().makespan(prefix_set(instance, peak - device.memory)) / instance.bandwidth
        substitutes += same <= found.estimate * (1 + TINY) and greedy.makespan < found.makespan * (1 - TINY)
    assert substitutes > 0  # the rule about ties would have changed a plan


@given(limited(max_stages=9), st.sampled_from([None, 7, 500]))
def test_the_rule_about_ties_never_makes_a_plan_slower(instance: Instance, slots: int | None) -> None:
    plain = ms.dynprog(*instance, slots=slots, ties="paper")
    mended = ms.dynprog(*instance, slots=slots, ties="simulate")
    assert mended.makespan <= plain.makespan
    assert mended.estimate == plain.estimate
    by_default = ms.dynprog(*instance, slots=slots)
    assert by_default.makespan == mended.makespan
    assert (plain.params["ties"], by_default.params["ties"]) == ("paper", "simulate")


def test_hash_tables_have_one_rule_about_ties() -> None:
    chain, memory, beta = paper_chain(WITNESS), 14, 1.0
    assert ms.dynprog(chain, memory, beta, method="hash").params["ties"] == "paper"
    assert ms.dynprog(chain, memory, beta, method="hash", ties="paper").params["ties"] == "paper"
    with pytest.raises(ms.InvalidInputError, match="ties='simulate' needs method='pruned'"):
        ms.dynprog(chain, memory, beta, method="hash", ties="simulate")


def test_the_estimate_is_the_cost_of_the_set_that_travels() -> None:
    for vector in VECTORS[:40]:
        chain = paper_chain(vector)
        result = ms.dynprog(chain, vector["M"], vector["beta"], slots=7)
        lists = paper_instance(chain, vector["M"])
        offloaded = {int(name[1:]) for name in result.offloaded}
        offloaded |= {k for k in range(chain.n) if f"a{k}" in result.offloaded}
        value = fluid_makespan(**lists, beta=vector["beta"], offloaded=offloaded)
        assert value is not None
        assert result.estimate == pytest.approx(value, rel=TINY)


def rounded(instance: FluidInstance, slots: int) -> _core.FluidChain | None:
    """The first discretised instance of dynprog(slots=slots), if it is feasible."""
    width = instance.capacity / slots
    chain = instance.in_slots(width, slots, ceil_partial_sums(instance.activation, width))
    return chain if chain.min_capacity <= slots else None


@settings(max_examples=max(10, settings().max_examples // 4))
@given(
    st.integers(1, 40),
    st.integers(0, 10**6),
    st.booleans(),
    st.floats(0.05, 0.95),
    st.sampled_from([2, 7, 20, 60]),
)
def test_hash_is_pruned_in_slots(n: int, seed: int, tape: bool, share: float, slots: int) -> None:
    chain = ms.profiles.random(n, seed, tape=tape)
    least, peak = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
    device = ms.Device(int(least + share * (peak - least)), 2e8)
    instance = rounded(fluid_chain(chain, device), slots)
    if instance is not None:
        by_hash, pruned = _core.dynprog(instance, hash=True), _core.dynprog(instance)
        assert pruned.optimal
        assert pruned.makespan == pytest.approx(by_hash.makespan, rel=TINY)
        for found in (by_hash, pruned):
            assert instance.makespan(np.array(found.offloaded)) == pytest.approx(found.makespan, rel=TINY)
    for method in ("pruned", "hash"):
        ms.validate(ms.dynprog(chain, device=device, slots=slots, method=method))


@MANY
@given(
    limited(max_stages=9),
    st.sampled_from([1, 2, 3, 7, 50, 500]),
    st.sampled_from(["pruned", "hash"]),
    st.sampled_from([1, 2, 50]),
)
def test_discretised_plans_fit_the_real_sizes(instance: Instance, slots: int, method: str, rounds: int) -> None:
    result = ms.dynprog(*instance, slots=slots, method=method, max_rounds=rounds)
    assert ms.validate(result).peak_memory <= instance[1]
    assert result.estimate >= brute(*instance) - TINY
    assert result.params["rounds"] <= rounds
    assert result.params["slots_used"] in (None, slots)


@given(limited(max_stages=5), st.sampled_from([None, 1, 500]))
def test_any_memory_from_the_minimum_to_the_peak_will_do(instance: Instance, slots: int | None) -> None:
    chain, _, beta = instance
    least, peak = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
    for memory in {least, least + 1, (least + peak) // 2, peak - 1, peak, peak + 1}:
        result = ms.dynprog(chain, memory, beta, slots=slots)
        assert ms.validate(result).peak_memory <= memory
    assert ms.dynprog(chain, peak, beta, slots=slots).offloaded == ()
    if least > 1:
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.dynprog(chain, least - 1, beta, slots=slots)
        assert caught.value.min_memory == least


@given(limited(max_stages=5), devices())
def test_the_estimate_of_two_directions_is_that_of_their_harmonic_mean(instance: Instance, device: ms.Device) -> None:
    chain, memory, _ = instance
    link = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex)
    result = ms.dynprog(chain, device=link, slots=None)
    ms.validate(result)
    seconds_a_byte = (1 / link.d2h + 1 / link.h2d) / 2
    if seconds_a_byte > 0:
        assert result.estimate == pytest.approx(brute(chain, memory, 1 / seconds_a_byte), rel=TINY)
    else:
        assert result.estimate == pytest.approx(float(chain.forward_time.sum() + chain.backward_time.sum()))


WITNESS = {
    **{"uF": [0, 4, 1], "uB": [1, 3, 3], "x": [3, 4, 1, 3], "y": [3, 4, 3, 2]},
    **{"exF": [2, 0, 2], "exB": [0, 1, 2]},
}


@pytest.mark.parametrize("method", ["pruned", "hash"])
def test_the_witness_against_lemma_3(method: str) -> None:
    """17 in the class, 16 by offloading x_0 when x_1 is back already: so 17 bounds nothing."""
    chain = paper_chain(WITNESS)
    result = ms.dynprog(chain, 14, 1.0, slots=None, method=method)
    assert result.estimate == 17
    assert result.lower_bound <= 16
    found = ms.bounds(chain, 14, 1.0)
    assert found.interruptible == pytest.approx(17)
    assert found.interruptible_proven
    assert found.best <= 16


@given(st.lists(st.integers(1, 40), min_size=1, max_size=11).filter(lambda values: sum(values) % 2 == 0))
def test_two_partition(values: list[int]) -> None:
    sums = {0}
    for value in values:
        sums |= {total + value for total in sums}
    chain, memory, beta, seconds = two_partition_chain(values)
    result = ms.dynprog(chain, memory, beta, slots=None)
    assert result.params["proven"]
    assert (result.estimate == pytest.approx(seconds, rel=TINY)) is (sum(values) / 2 in sums)


def hard() -> Instance:
    """2-PARTITION of 40 even numbers with an odd half: nothing proves quickly that there is none."""
    values = [2 * int(v) for v in np.random.default_rng(1).integers(10**8, 10**9, 40)]
    values[0] += 2 * (1 - sum(values) // 2 % 2)
    chain, memory, beta, _ = two_partition_chain(values)
    return chain, memory, beta


@pytest.mark.parametrize("time_limit", [0, 0.05])
def test_a_time_limit_leaves_a_plan_and_a_bound(time_limit: float) -> None:
    result = ms.dynprog(*hard(), slots=None, time_limit=time_limit)
    ms.validate(result)
    assert result.params["model_lower_bound"] <= result.estimate
    assert result.params["model_lower_bound"] == pytest.approx(2, rel=0.1)
    assert not result.params["proven"]


@MANY
@given(instances(max_stages=9), st.sampled_from([{"time_limit": 0}, {"gap": 0.1}, {"gap": 1e9}]))
def test_what_stops_early_is_bounded_from_both_sides(instance: Instance, option: dict[str, Any]) -> None:
    exact = brute(*instance)
    result = ms.dynprog(*instance, slots=None, **option)
    ms.validate(result)
    bound = result.params["model_lower_bound"]
    assert bound <= exact * (1 + TINY)
    assert exact <= result.estimate * (1 + TINY)
    if option.get("gap") == 0.1:
        assert result.estimate <= 1.1 * bound * (1 + TINY)
    assert result.params["proven"] is (result.estimate <= bound * (1 + TINY))
    ms.validate(ms.dynprog(*instance, slots=7, **option))


@pytest.mark.parametrize("slots", [None, 500])
@pytest.mark.parametrize("n", [5, 40, 120])
def test_few_states_leave_a_plan_and_a_bound(n: int, slots: int | None) -> None:
    chain = ms.profiles.random(n, seed=3)
    least, peak = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
    for share in (0.0, 0.3, 0.7):
        memory = int(least + share * (peak - least))
        result = ms.dynprog(chain, memory, 1e9, slots=slots, max_states=1000)
        ms.validate(result)
        if slots is None:
            assert result.params["model_lower_bound"] <= result.estimate * (1 + TINY)


def test_hash_tables_stay_within_their_bound() -> None:
    with pytest.raises(ms.LimitError, match="1000"):
        ms.dynprog(*hard(), slots=None, method="hash", max_states=1000)


def test_no_link_and_a_free_one() -> None:
    chain = paper_chain(WITNESS)
    compute = 12
    peak = ms.peak_memory(chain)
    for slots in (None, 500):
        assert ms.dynprog(chain, peak, 0, slots=slots).estimate == compute
        free = ms.dynprog(chain, ms.min_memory(chain, "dynprog"), inf, slots=slots)
        assert (free.estimate, free.makespan) == (compute, compute)


def test_progress_is_reported_as_a_fraction() -> None:
    seen: list[float] = []
    ms.dynprog(*hard(), slots=None, time_limit=0.3, progress=seen.append)
    assert seen
    assert all(0 <= fraction <= 1 for fraction in seen)


def test_an_error_of_the_progress_callback_comes_through() -> None:
    def stop(_: float) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        ms.dynprog(*hard(), slots=None, time_limit=20, progress=stop)
