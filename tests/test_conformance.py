"""What every planner of chains must do. A new planner passes these tests as they stand."""

from __future__ import annotations

import contextlib
import inspect
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from listed import CHAIN_PLANNERS
from memsched.planners.entry import takes
from memsched.planners.registry import PLANNERS
from memsched.testing import chains, devices

FEW = settings(max_examples=max(10, settings().max_examples // 3))
TINY = 1e-9
ALL = pytest.mark.parametrize("planner", CHAIN_PLANNERS)
LINK_DECIDES = {"tflms"}  # what the planner needs depends on the link, min_memory takes the profile's


def run(planner: str, *arguments: Any, **options: Any) -> ms.Result:
    """With a time limit that leaves nothing to the speed of the machine."""
    plan = PLANNERS[planner].plan
    if "time_limit" in inspect.signature(plan).parameters:
        options = {"time_limit": 0.0, **options}
    return plan(*arguments, **options)


def least_memory(planner: str, chain: ms.Chain, device: ms.Device, chunk: Any = None) -> int:
    """What the planner says that it needs on this device."""
    if planner not in LINK_DECIDES:
        return max(1, ms.min_memory(chain, planner))
    try:
        run(planner, chain, 1, device=device, chunk=chunk)
    except ms.InfeasibleError as error:
        return error.min_memory
    return 1


@st.composite
def cases(draw: st.DrawFn) -> tuple[ms.Chain, ms.Device, Any]:
    """A chain with or without tapes, a device whose memory is still open, and a chunk."""
    chain = draw(chains(max_stages=6, paper_form=draw(st.booleans()), integer_times=draw(st.booleans())))
    chunk: st.SearchStrategy[Any] = st.none() | st.integers(1, 9)
    if chain.pieces is not None:
        chunk = chunk | st.just("storage")
    return chain, draw(devices(memory=1)), draw(chunk)


def check(result: ms.Result, memory: int) -> None:
    """What holds for every result."""
    report = ms.validate(result)
    assert report.makespan == pytest.approx(result.makespan, rel=TINY)
    assert report.peak_memory == result.peak_memory <= memory
    assert report.recomputed == result.recomputed
    assert 0 <= result.lower_bound <= result.makespan * (1 + TINY)
    assert result.makespan >= report.compute_time - TINY
    assert result.gap >= -TINY
    assert result.runtime >= 0
    if result.optimal:
        assert result.makespan <= result.lower_bound * (1 + 1e-6) or result.params.get("proven")
    text = json.dumps(result.to_json(), allow_nan=False)
    assert ms.Result.from_json(text) == result
    assert result.schedule.planner["name"] == result.planner
    assert result.schedule.budget == memory
    assert result.schedule.chunk == result.params.get("chunk")
    assert result.timeline == ms.simulate(result.problem, result.schedule, result.device)


@ALL
@FEW
@given(case=cases(), share=st.floats(0, 1))
def test_results_are_what_they_say(planner: str, case: tuple[ms.Chain, ms.Device, Any], share: float) -> None:
    chain, device, chunk = case
    least = least_memory(planner, chain, device, chunk)
    memory = int(least + share * max(0, ms.peak_memory(chain) - least))
    result = run(planner, chain, memory, device=device, chunk=chunk)
    assert result.planner == planner
    assert result.problem == chain
    assert (result.device.memory, result.device.d2h, result.device.h2d) == (memory, device.d2h, device.h2d)
    check(result, memory)


@ALL
@FEW
@given(case=cases(), more=st.sampled_from([0, 1, 2**40]))
def test_with_enough_memory_nothing_moves(planner: str, case: tuple[ms.Chain, ms.Device, Any], more: int) -> None:
    chain, device, chunk = case
    memory = max(1, ms.peak_memory(chain)) + more
    result = run(planner, chain, memory, device=device, chunk=chunk)
    check(result, memory)
    assert result.offloaded == result.recomputed == ()
    assert result.makespan == pytest.approx(float(chain.forward_time.sum() + chain.backward_time.sum()))
    assert result.peak_memory == ms.peak_memory(chain)
    assert result.optimal
    assert result.gap == pytest.approx(0)


@ALL
@FEW
@given(case=cases())
def test_the_least_memory_is_enough_and_one_byte_less_is_not(
    planner: str, case: tuple[ms.Chain, ms.Device, Any]
) -> None:
    chain, device, chunk = case
    least = least_memory(planner, chain, device, chunk)
    check(run(planner, chain, least, device=device, chunk=chunk), least)
    if least > 1:
        with pytest.raises(ms.InfeasibleError, match=str(least)) as caught:
            run(planner, chain, least - 1, device=device, chunk=chunk)
        assert caught.value.min_memory == least


@ALL
@FEW
@given(case=cases())
def test_without_a_link_everything_stays_or_nothing_runs(planner: str, case: tuple[ms.Chain, ms.Device, Any]) -> None:
    chain, _, chunk = case
    peak = ms.peak_memory(chain)
    assert run(planner, chain, max(1, peak), 0, chunk=chunk).offloaded == ()
    least = ms.min_memory(chain, "rotor") if PLANNERS[planner].recomputes else peak
    if planner == "selective":  # it may have a plan below, and does not know its least
        with contextlib.suppress(ms.InfeasibleError):
            assert run(planner, chain, max(1, least - 1), 0, chunk=chunk).offloaded == ()
    elif least > 1:
        with pytest.raises(ms.InfeasibleError) as caught:
            run(planner, chain, least - 1, 0, chunk=chunk)
        assert caught.value.min_memory == least


@ALL
@FEW
@given(case=cases(), share=st.floats(0, 1))
def test_same_input_same_plan(planner: str, case: tuple[ms.Chain, ms.Device, Any], share: float) -> None:
    chain, device, chunk = case
    least = least_memory(planner, chain, device, chunk)
    memory = int(least + share * max(0, ms.peak_memory(chain) - least))
    once, again = (run(planner, chain, memory, device=device, chunk=chunk) for _ in range(2))
    assert once.schedule == again.schedule
    assert once.timeline == again.timeline
    assert (once.estimate, once.lower_bound, once.optimal) == (
        again.estimate,
        again.lower_bound,
        again.optimal,
    )
    assert {**once.params, "evaluations": 0} == {**again.params, "evaluations": 0}


@ALL
@FEW
@given(case=cases(), share=st.floats(0, 1))
def test_a_device_is_the_same_as_m_and_beta(planner: str, case: tuple[ms.Chain, ms.Device, Any], share: float) -> None:
    chain, device, chunk = case
    plain = ms.Device(1, device.d2h)
    least = least_memory(planner, chain, plain, chunk)
    memory = int(least + share * max(0, ms.peak_memory(chain) - least))
    by_numbers = run(planner, chain, memory, plain.d2h, chunk=chunk)
    by_device = run(planner, chain, device=ms.Device(memory, plain.d2h), chunk=chunk)
    assert by_numbers.device == by_device.device
    assert by_numbers.schedule == by_device.schedule


@ALL
def test_the_plan_is_the_same_in_coarser_units(planner: str) -> None:
    """Bytes in KiB and time in milliseconds: nothing but the units changes."""
    chain = ms.profiles.random(8, seed=5)
    columns = ("activation", "gradient", "saved", "forward_overhead", "backward_overhead")
    sizes = {key: getattr(chain, key) for key in columns}
    finer = ms.Chain(chain.forward_time, chain.backward_time, **{key: v * 1024 for key, v in sizes.items()})
    plain = ms.Chain(chain.forward_time, chain.backward_time, **sizes)
    memory = int(0.4 * least_memory(planner, plain, ms.Device(1, 1e9)) + 0.6 * ms.peak_memory(plain))
    one, other = run(planner, plain, memory, 1e9), run(planner, finer, memory * 1024, 1024e9)
    assert one.offloaded == other.offloaded
    assert one.makespan == pytest.approx(other.makespan, rel=TINY)


@ALL
def test_limits_without_end_stay_json(planner: str) -> None:
    """inf is a legal number of seconds, and Result is a JSON document all the same, or inf is refused."""
    plan = PLANNERS[planner].plan
    if "time_limit" not in inspect.signature(plan).parameters:
        return
    try:
        result = plan(ms.profiles.homogeneous(3), 1000, 1.0, time_limit=float("inf"))
    except ms.InvalidInputError:
        return
    json.dumps(result.to_json(), allow_nan=False)


def test_the_registry_and_the_package_agree() -> None:
    for name, entry in PLANNERS.items():
        assert getattr(ms, name) is entry.plan
        assert name in ms.__all__
        assert entry.summary
        parameters = list(inspect.signature(entry.plan).parameters.values())
        assert [p.name for p in parameters[1:4]] == ["M", "beta", "device"]
        for option in parameters[3:]:
            assert option.kind is option.KEYWORD_ONLY
            assert option.default is not option.empty
        assert "Examples" in (entry.plan.__doc__ or "")


def test_compare_and_plan() -> None:
    chain = ms.profiles.random(7, seed=2)
    memory = int(0.5 * ms.min_memory(chain) + 0.5 * ms.peak_memory(chain))
    seen: list[str] = []
    found = ms.compare(chain, memory, 1e9, time_limit=0.02, progress=seen.append)
    begun = [*dict.fromkeys(name for line in seen if "%" not in (name := line.rpartition("; ")[2]))]
    assert list(found) == CHAIN_PLANNERS == begun
    results = {name: value for name, value in found.items() if isinstance(value, ms.Result)}
    for name, result in results.items():
        assert result.planner == name
        check(result, memory)
    best = ms.plan(chain, memory, 1e9, time_limit=0.0)
    assert best.makespan <= min(result.makespan for name, result in results.items() if name != "offload")
    assert ms.plan(chain, memory, 1e9, planner="greedy").schedule == results["greedy"].schedule
    below = ms.compare(chain, ms.min_memory(chain) - 1, 1e9, planners=["greedy", "dynprog"])
    assert all(isinstance(error, ms.InfeasibleError) for error in below.values())
    with pytest.raises(ms.InfeasibleError) as caught:
        ms.plan(chain, ms.min_memory(chain) - 1, 1e9)
    assert caught.value.min_memory == ms.min_memory(chain)


@pytest.mark.parametrize("name", CHAIN_PLANNERS)
def test_options_may_be_numbers_of_numpy(name: str) -> None:
    """`plan` left out those that refused them, so that its plan was slower."""
    chain = ms.profiles.homogeneous(4)
    given = {"chunk": 3, "moves": 20, "seed": 2, "slots": 40, "workspace_limit": 5, "walks": 2}
    options = takes(PLANNERS[name].plan, given)
    plans = [
        PLANNERS[name].plan(chain, 12, 1.0, **{option: kind(value) for option, value in options.items()})
        for kind in (int, np.int64)
    ]
    assert plans[0].schedule == plans[1].schedule
    assert plans[0].params.keys() == plans[1].params.keys()
    assert ms.Result.from_json(json.dumps(plans[1].to_json())).makespan == plans[0].makespan
