"""Forged results: each leaf of a saved result, changed on its own, is refused, harmless, or shown as a claim.

The walk goes over whatever a document holds. So a field that is added later is forged, too, and fails here until
somebody says who checks it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fuzzing import corpus

import memsched as ms

Way = tuple[str | int, ...]

INPUTS = {"problem", "device", "schedule"}  # another input gives another result, of which everything must be true
CLAIMS = {"planner", "params", "estimate", "runtime"}  # what only the planner knows; shown as its claim
DERIVED = {"lower_bound", "optimal"}  # less may be claimed than can be derived, which is then taken instead
MISSING = object()


@cache
def results() -> tuple[ms.Result, ...]:
    """One of every planner on a chain, a graph and a family, where it has one; and one with addresses."""
    chosen: dict[tuple[str, str], ms.Result] = {}
    for result in corpus.results():
        chosen.setdefault((result.planner, type(result.problem).__name__), result)
    found = [one for one in chosen.values() if not isinstance(one.timeline, str)]
    with suppress(ms.InfeasibleError):
        found.append(ms.with_addresses(next(one for one in found if one.offloaded)))
    return tuple(found)


def few() -> list[ms.Result]:
    """With and without addresses, recomputation and a bound on all plans."""
    kinds: dict[object, ms.Result] = {}
    for one in results():
        kinds.setdefault((one.bound_on, one.placement is None, bool(one.recomputed)), one)
    return list(kinds.values())


def ways(document: Any, way: Way = ()) -> Iterator[Way]:
    """To everything in a document, leaves and what holds them; the first and the last of a list stand for it."""
    if way:
        yield way
    if isinstance(document, dict):
        for key in document:
            yield from ways(document[key], (*way, key))
    elif isinstance(document, list) and document:
        for k in sorted({0, len(document) - 1}):
            yield from ways(document[k], (*way, k))


def forgeries(value: Any) -> list[Any]:
    """Other values for one place."""
    found: list[Any] = [MISSING, None, [], {}, "forged", math.nan]
    if isinstance(value, bool):
        return [*found, not value, 1 - value]
    if isinstance(value, int):
        found += [value + 1, value - 1, 2 * value, -value - 1, value + 0.5, True, 10**400]
    if isinstance(value, float):
        found += [math.nextafter(value, math.inf), math.nextafter(value, -math.inf), 2 * value, value / 2]
        found += [value * (1 + 1e-6), value + 1, -value - 1, 0.0, 1e300, math.inf, True]
    if isinstance(value, str):
        found += [value + "x", ""]
    if isinstance(value, list):
        found += [value[:-1], [*value, *value[-1:]], value[::-1], value[1:]]
    if isinstance(value, dict):
        found += [{**value, "extra": 1.0}]
    return found


def forged(document: Any, way: Way, value: Any) -> Any:
    """A copy that is changed in one place."""
    copied = copy.deepcopy(document)
    inside = copied
    for key in way[:-1]:
        inside = inside[key]
    if value is MISSING:
        del inside[way[-1]]
    else:
        inside[way[-1]] = value
    return copied


def judge(true: ms.Result, document: Any, way: Way, value: Any) -> str:
    """What becomes of a forgery."""
    where, top = f"{way} = {value!r:.80}", way[0]
    names = {str(key) for key in way if isinstance(key, str)}
    refusal = ""
    try:
        read = ms.Result.from_json(forged(document, way, value))
    except ms.MemschedError as error:
        refusal = str(error)
    if refusal:
        assert top in INPUTS or any(name in refusal for name in names), f"{where}: {refusal}"
        return "refused"
    if read == true and read.runtime == true.runtime and (read.placement is None) == (true.placement is None):
        return "harmless"
    if top in CLAIMS:
        assert replace(read, **{str(top): getattr(true, str(top))}) == true, where
        return "claimed"
    report = ms.validate(read)
    assert report.proven, where
    assert not read.optimal or report.optimal, where
    if read.placement is not None:
        ms.validate_placement(read.placement.buffers, read.placement.offsets)
        assert read.placement.lower_bound <= read.placement.load or read.placement.claimed, where
    if top == "placement":
        assert replace(read, placement=true.placement) == true, where
        return "claimed"
    if top in DERIVED:
        assert math.isclose(read.lower_bound, true.lower_bound, rel_tol=1e-8), where
        assert replace(read, lower_bound=true.lower_bound) == true, where
        return "derived"
    assert top in INPUTS or top == "bound_on", f"{where} is read, and nobody says who checks it"
    return "true of another input" if top in INPUTS else "a bound on others"


def all_forged(result: ms.Result) -> dict[str, set[str]]:
    """Each forgery of each place, and what became of it: by the first key."""
    document = json.loads(json.dumps(result.to_json()))
    assert ms.Result.from_json(document) == result
    outcomes: dict[str, set[str]] = {}
    for way in ways(document):
        inside = document
        for key in way:
            inside = inside[key]
        for value in forgeries(inside):
            outcomes.setdefault(str(way[0]), set()).add(judge(result, document, way, value))
    return outcomes


def name(result: ms.Result) -> str:
    return f"{result.planner}-{type(result.problem).__name__}-{result.schedule.memory}"


@pytest.mark.slow
@pytest.mark.parametrize("result", few(), ids=name)
def test_no_forged_field_is_believed(result: ms.Result) -> None:
    outcomes = all_forged(result)
    assert outcomes["timeline"] <= {"refused", "harmless"}
    assert outcomes["optimal"] <= {"refused", "harmless"}
    assert outcomes["planner"] == {"refused", "claimed"}


def some() -> list[Any]:
    """All, of which five sixths are left to the exhaustive tests."""
    return [pytest.param(one, marks=pytest.mark.exhaustive if k % 6 else ()) for k, one in enumerate(results())]


@pytest.mark.slow
@pytest.mark.parametrize("result", some(), ids=name)
def test_no_forged_field_of_any_planner_is_believed(result: ms.Result) -> None:
    all_forged(result)


@pytest.mark.parametrize("result", few(), ids=name)
def test_a_bound_up_to_the_makespan_is_refused(result: ms.Result) -> None:
    """It used to be shown as proven optimal."""
    document = result.to_json()
    if result.optimal:
        return
    for share in (1.0, 0.5):
        bound = result.lower_bound + share * (result.makespan - result.lower_bound)
        with pytest.raises(ms.ScheduleError, match="lower_bound"):
            ms.Result.from_json({**document, "lower_bound": bound, "optimal": share == 1.0})
    with pytest.raises(ms.ScheduleError, match="optimal"):
        ms.Result.from_json({**document, "optimal": True})


def test_a_bound_within_rounding_of_a_forged_one_proves_nothing() -> None:
    """A makespan 1e-10 above the bound was read as optimal."""
    tensors = [{"name": n, "size": 1, "role": "activation"} for n in "xy"]
    choice = [{"alg": "d", "time": 1.0, "workspace": 0}]
    ops = [
        {"name": "F", "phase": "fwd", "reads": [], "writes": ["x"], "choices": choice},
        {"name": "B", "phase": "bwd", "reads": ["x"], "writes": ["y"], "choices": choice},
    ]
    graph, device = ms.Graph(tensors, ops), ms.Device(9, 1e10)
    steps = [{"run": "F"}, {"offload": "x"}, {"free": "x"}, {"prefetch": "x", "after": [1]}, {"run": "B", "after": [3]}]
    schedule = ms.Schedule(steps, budget=9)
    timeline = ms.simulate(graph, schedule, device)
    facts: dict[str, Any] = {"planner": "hand", "problem": graph, "device": device, "schedule": schedule}
    result = ms.Result(**facts, timeline=timeline, lower_bound=2.0, runtime=0.0, bound_on="all")
    assert 2 < result.makespan < 2 + 1e-9
    assert not result.optimal
    forged = {**result.to_json(), "lower_bound": result.makespan}
    with pytest.raises(ms.ScheduleError, match="optimal"):
        ms.Result.from_json({**forged, "optimal": True})
    assert ms.Result.from_json({**forged, "optimal": False}).lower_bound == 2.0
    assert not ms.validate(replace(result, lower_bound=result.makespan)).optimal


@pytest.mark.parametrize("result", few(), ids=name)
def test_results_of_the_first_version_are_read(result: ms.Result) -> None:
    document = {key: value for key, value in result.to_json().items() if key != "bound_on"}
    document["format"] = "memsched-result/1"
    read = ms.Result.from_json(document)
    assert (read.timeline, read.schedule, read.lower_bound) == (result.timeline, result.schedule, result.lower_bound)
    assert ms.validate(read).proven
    false = ms.Result.from_json({**document, "lower_bound": result.makespan, "optimal": True})
    assert ms.validate(false).proven  # as much is kept as can be derived


def test_a_bound_of_plans_that_run_once_is_none_of_all_plans() -> None:
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [9, 9, 9, 9], [0, 4, 4, 4])
    result = ms.greedy(chain, M=ms.peak_memory(chain) - 4, beta=0.1)
    document = result.to_json()
    with pytest.raises(ms.ScheduleError, match="lower_bound"):
        ms.Result.from_json({**document, "bound_on": "all"})
    renamed = ms.Result.from_json({**document, "planner": "pofo"})
    assert renamed.bounded == result.bounded  # the name of a planner proves nothing


@pytest.mark.parametrize("result", few(), ids=name)
def test_validate_itself_refuses_another_timeline_and_another_placement(result: ms.Result) -> None:
    """It used to look at neither the memory over time nor the placement of a plan without addresses."""
    document = result.timeline.to_json()
    for key, values in document["memory"].items():
        for value in (values[-1] + 1, -1):
            memory = {**document["memory"], key: [*values[:-1], value]}
            with pytest.raises((ms.ScheduleError, ms.InvalidInputError)):
                ms.validate(replace(result, timeline=ms.Timeline.from_json({**document, "memory": memory})))
    placement = result.placement or ms.place(result)
    ms.validate(replace(result, placement=placement))
    first = next(k for k, one in enumerate(placement.buffers) if one.size)
    larger = replace(placement.buffers[first], size=placement.buffers[first].size + 1)
    changed = (*placement.buffers[:first], larger, *placement.buffers[first + 1 :])
    for buffers, offsets in (
        (placement.buffers[1:], placement.offsets[1:]),
        (placement.buffers[:-1], placement.offsets[:-1]),
        (changed, placement.offsets),
    ):
        height = max(offset + one.size for one, offset in zip(buffers, offsets, strict=True))
        other = replace(placement, buffers=buffers, offsets=offsets, height=height, lower_bound=0)
        with pytest.raises(ms.ScheduleError, match=r"buffers|bytes"):
            ms.validate(replace(result, placement=other))
        with pytest.raises((ms.ScheduleError, ms.InvalidInputError), match=r"buffers|bytes"):
            ms.Result.from_json(replace(result, placement=other).to_json())
