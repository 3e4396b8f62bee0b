"""The values of the package: immutable, equal by content, picklable, and the same after their JSON form."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import memsched as ms
from memsched.problems.bounds import bound_of
from memsched.testing import chains, devices, schedules
from oracles.to_graph_py import to_graph_py
from published import SCHEMAS, conforms

FEW = settings(max_examples=max(10, settings().max_examples // 4))
COLUMNS = ("forward_time", "backward_time", "activation", "gradient", "saved")
OVERHEADS = ("forward_overhead", "transient_overhead", "backward_overhead")


def example() -> ms.Chain:
    return ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])


def full() -> ms.Chain:
    """Every argument given."""
    return ms.Chain(
        forward_time=[1.5, 2],
        backward_time=[2, 3],
        activation=[4, 6, 5],
        gradient=[0, 6, 5],
        saved=[9, 5],
        forward_overhead=[1, 0],
        transient_overhead=[7, 2],
        backward_overhead=[0, 3],
        names=["conv", "head"],
        resident=10,
        pieces=[[1, 2], []],
        name="small",
        provenance={"link_bandwidth": 2.0, "source": "by hand"},
    )


def samples() -> dict[str, Any]:
    result = ms.greedy(full(), 38, 2.0)
    return {
        "chain": full(),
        "graph": ms.to_graph(full(), chunk="storage"),
        "device": ms.Device(20, d2h=2.0, h2d=float("inf"), duplex=True, latency=0.5, host_memory=7, name="d"),
        "plan": ms.Schedule.from_json({**result.schedule.to_json(), "rounds": [[1, 3]]}),
        "result": result,
        "result of a graph": ms.Result(
            planner="by hand",
            problem=ms.to_graph(example()),
            device=ms.Device(40),
            schedule=ms.greedy(example(), 40).schedule,
            timeline=ms.greedy(example(), 40).timeline,
            lower_bound=ms.bounds(ms.to_graph(example()), 40).best,
            runtime=0.0,
            placement=ms.place(ms.greedy(example(), 40)),
            estimate=1.0,
        ),
    }


KINDS = ["chain", "graph", "device", "plan", "result", "result of a graph"]


def round_trip(kind: str, value: Any) -> None:
    """The same again from the dict, the text and the pickle."""
    document = value.to_json()
    conforms(kind, document)
    for again in (
        type(value).from_json(document),
        type(value).from_json(json.dumps(document)),
        type(value).from_json("\ufeff" + json.dumps(document)),
        pickle.loads(pickle.dumps(value)),
        copy.deepcopy(value),
    ):
        assert again == value
        assert again.to_json() == document
        assert type(again) is type(value)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_schemas_are_schemas(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_of_samples(kind: str, tmp_path: Path) -> None:
    value = samples()[kind]
    round_trip(kind, value)
    file = tmp_path / "value.json"
    file.write_text(json.dumps(value.to_json()), encoding="utf-8")
    assert type(value).from_json(file) == value
    assert type(value).from_json(str(file)) == value


@given(chains(), st.none() | st.integers(1, 9))
def test_round_trip_of_chains_and_graphs(chain: ms.Chain, chunk: int | None) -> None:
    round_trip("chain", chain)
    round_trip("graph", ms.to_graph(chain, chunk=chunk))


@given(devices())
def test_round_trip_of_devices(device: ms.Device) -> None:
    round_trip("device", device)


@FEW
@given(schedules(max_stages=3))
def test_round_trip_of_schedules_and_results(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    problem, schedule, device = case
    round_trip("plan", schedule)
    timeline = ms.simulate(problem, schedule, device)
    assert ms.Timeline.from_json(timeline.to_json()) == timeline
    assert pickle.loads(pickle.dumps(timeline)) == timeline
    result = ms.Result(
        planner="random",
        problem=problem,
        device=device,
        schedule=schedule,
        timeline=timeline,
        lower_bound=min(bound_of(problem, schedule, device, "once"), timeline.makespan),
        runtime=0.25,
        params={"chunk": schedule.chunk},
    )
    round_trip("result", result)
    assert ms.validate(ms.Result.from_json(result.to_json())).makespan == pytest.approx(result.makespan)


@given(chains())
def test_chain_defaults(chain: ms.Chain) -> None:
    document = chain.to_json()
    kept = {key: document[key] for key in ("format", *COLUMNS[:4])}
    plain = ms.Chain.from_json(kept)
    assert plain.saved.tolist() == chain.activation[1:].tolist()
    assert not plain.forward_overhead.any()
    assert not plain.backward_overhead.any()
    assert plain.resident == 0
    kept |= {"saved": document["saved"], "forward_overhead": document["forward_overhead"]}
    tape = chain.saved - chain.activation[1:]
    assert ms.Chain.from_json(kept).transient_overhead.tolist() == (tape + chain.forward_overhead).tolist()
    assert ms.Chain.from_json({**kept, "parameters": 21}).resident == 42
    assert ms.Chain.from_json({**kept, "parameters": 21, "resident": 5}).resident == 5


def test_gradients_are_by_default_as_large_as_what_they_are_of() -> None:
    assert ms.Chain([1, 2], [2, 3], [4, 6, 5]) == ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5])
    with pytest.raises(ms.InvalidInputError, match="activation has 0 entries"):
        ms.Chain([1], [1], [])


def test_print_is_a_summary() -> None:
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5])
    assert str(chain).startswith("chain: a chain of 2 stages\ncomputation ")
    assert str(ms.to_graph(chain)).startswith("chain: a graph of ")
    assert str(ms.greedy(chain, "100%", 2.0).schedule).startswith("a plan by greedy for chain\nsteps ")


def test_device_defaults() -> None:
    assert (ms.Device(5).d2h, ms.Device(5).h2d) == (0, 0)
    assert (ms.Device(5, 3).d2h, ms.Device(5, 3).h2d) == (3, 3)
    given_twice = ms.Device.from_json('{"format": "memsched-device/1", "memory": 5, "d2h": "inf", "h2d": 1}')
    assert given_twice == ms.Device(5, d2h=float("inf"), h2d=1)
    plain = ms.Device(5)
    assert (plain.duplex, plain.latency, plain.host_memory, plain.name) == (False, 0, None, None)


def test_columns_are_read_only_copies_that_outlive_their_owner() -> None:
    source = np.array([4, 6, 5])
    chain = ms.Chain([1, 2], [2, 3], source, [0, 6, 5])
    source[0] = 99
    column = chain.activation
    for name in (*COLUMNS, *OVERHEADS):
        array = getattr(chain, name)
        assert array.dtype == (np.float64 if name.endswith("time") else np.int64)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    timeline = ms.greedy(chain, 24, 2.0).timeline
    arrays = (timeline.start, timeline.end, *timeline.memory)
    del chain, timeline
    gc.collect()
    assert column.tolist() == [4, 6, 5]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_cannot_be_set(kind: str) -> None:
    value = samples()[kind]
    for name in [name for name in dir(value) if not name.startswith("_") and not callable(getattr(value, name))]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, getattr(value, name))
    with pytest.raises((AttributeError, TypeError)):
        value.a_new_attribute = 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_value_hands_out_is_not_the_value(kind: str) -> None:
    value = samples()[kind]
    before = copy.deepcopy(value.to_json())

    def spoil(part: Any) -> None:
        if isinstance(part, dict):
            for inner in part.values():
                spoil(inner)
            part.clear()
        elif isinstance(part, list):
            for inner in part:
                spoil(inner)
            part.clear()
        elif isinstance(part, tuple):
            for inner in part:
                spoil(inner)

    spoil(value.to_json())
    for name in ("provenance", "pieces", "tensors", "ops", "steps", "rounds", "planner"):
        spoil(getattr(value, name, None))
    assert value.to_json() == before


def test_no_two_results_share_their_params() -> None:
    """A result and its copy with addresses had one dict, and all plans from one cached draft one list in it."""
    given = {"weights": [1.0, 2.0]}
    result = replace(ms.greedy(example(), 24, 2.0), params=given)
    placed = ms.with_addresses(result)
    given["weights"].clear()
    placed.params["weights"].append(3.0)
    placed.params["more"] = 1
    assert result.params == {"weights": [1.0, 2.0]}


CHANGES: dict[str, dict[str, Any]] = {
    "chain": {
        **{
            "forward_time": [1.5, 2.5],
            "backward_time": [0, 3],
            "activation": [5, 6, 5],
            "gradient": [1, 6, 5],
        },
        **{"transient_overhead": [7, 3], "forward_overhead": [1, 1], "backward_overhead": [1, 3]},
        **{"names": ["conv", "tail"], "resident": 11, "pieces": [[2, 1], []], "name": "other"},
        "provenance": None,
    },
    "graph": {"name": "other", "resident": 11, "batch": 2},
    "device": {
        **{"memory": 21, "d2h": 3.0, "h2d": 1.0, "duplex": False, "latency": 0.0, "host_memory": None},
        "name": None,
    },
    "plan": {
        "budget": 35,
        "rounds": [[1, 2]],
        "memory": "contiguous",
        "graph": "g",
        "steps": [{"run": "F1"}],
    },
    "result": {"planner": "other", "params": {"a": 1}, "estimate": 1.0, "runtime": 1e9},
}


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in CHANGES.items() for key in keys])
def test_equal_by_content(kind: str, key: str) -> None:
    value = samples()[kind]
    other = type(value).from_json({**value.to_json(), key: CHANGES[kind][key]})
    assert other != value
    assert not other == value  # noqa: SIM201 -- both operators
    assert value != "something else"


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_not_keys(kind: str) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(samples()[kind])


def test_repr_says_what_it_is() -> None:
    expected = {
        "chain": ("Chain", "small", "n=2", "resident=10"),
        "graph": ("Graph", "small", "ops=5"),
        "device": ("Device", "20", "inf", "duplex=True"),
        "plan": ("Schedule", "small", "budget=38"),
        "result": ("Result", "greedy", "makespan"),
    }
    for kind, words in expected.items():
        for word in words:
            assert word in repr(samples()[kind])
    assert "makespan" in repr(samples()["result"].timeline)


def test_result_figures() -> None:
    result = samples()["result"]
    timeline = result.timeline
    assert (result.makespan, result.peak_memory) == (timeline.makespan, timeline.peak_memory)
    assert result.gap == pytest.approx((result.makespan - result.lower_bound) / result.lower_bound)
    assert result.offloaded == ("a0",)
    assert result.recomputed == ()
    assert samples()["result of a graph"].gap == 0
    assert (result.optimal, result.bounded) == (True, "plans that run each op once, in graph order")
    worse = replace(result, lower_bound=0.0, bound_on="all")
    assert (worse.optimal, worse.bounded, worse == result) == (False, "all plans with whole tensors", False)
    plan = result.schedule.to_json()
    again = ms.Schedule.from_json({**plan, "steps": [{"run": "F1"}, {"run": "F2"}, {"run": "F1"}, {"run": "F1"}]})
    times = ms.Timeline.from_json({**timeline.to_json(), "start": [0.0] * 4, "end": [9.0] * 4})
    assert replace(result, schedule=again, timeline=times).recomputed == ("F1",)


def test_to_graph_of_the_documented_example() -> None:
    def op(name: str, phase: str, layer: int, reads: list[str], writes: list[str], time: float, **more: Any) -> Any:
        kind = "loss" if name == "loss" else "stage"
        choices = [{"alg": "default", "time": time, "workspace": 0}]
        head = {"name": name, "phase": phase, "kind": kind, "layer": layer, "reads": reads, "writes": writes}
        return {**head, **more, "choices": choices}

    sizes = {"a0": 4, "a1": 6, "tape1": 3, "a2": 5, "d2": 5, "d1": 6, "d0": 0}
    roles = {"a0": "input"} | dict.fromkeys(["a1", "tape1", "a2"], "activation")
    assert ms.to_graph(example()).to_json() == {
        "format": "memsched-graph/1",
        "name": "chain",
        "batch": 1,
        "resident": 0,
        "tensors": [{"name": name, "size": size, "role": roles.get(name, "gradient")} for name, size in sizes.items()],
        "ops": [
            op("F1", "fwd", 1, ["a0"], ["a1", "tape1"], 1.0, tape=["tape1"], skip_workspace=3),
            op("F2", "fwd", 2, ["a1"], ["a2"], 2.0),
            op("loss", "bwd", 3, ["a2"], ["d2"], 0.0),
            op("B2", "bwd", 2, ["a1", "a2", "d2"], ["d1"], 3.0, once=True),
            op("B1", "bwd", 1, ["a0", "a1", "tape1", "d1"], ["d0"], 2.0, once=True),
        ],
    }


@pytest.mark.parametrize("name", ["resnet18-224-b32", "densenet121-500-b8", "gpt2-1024-b8"])
@pytest.mark.parametrize("chunk", [None, 64 << 20, 16e6])
def test_to_graph_of_profiles_is_the_oracle(name: str, chunk: float | None) -> None:
    document = ms.profiles.document(name)
    graph = ms.to_graph(ms.Chain.from_json(document), chunk=chunk).to_json()
    assert graph == to_graph_py(document, None if chunk is None else int(chunk))


@pytest.mark.parametrize("convert", [np.array, tuple, iter, lambda values: [np.int32(v) for v in values]])
def test_columns_of_any_kind(convert: Any) -> None:
    chain = ms.Chain(*(convert(values) for values in ([1, 2], [2, 3], [4, 6, 5], [0, 6, 5])), saved=convert([9, 5]))
    assert chain == example()


def test_whole_numbers_of_any_kind() -> None:
    for number in (16e9, np.float64(16e9), np.float32(2**34), np.int64(16 * 10**9), 16 * 10**9):
        assert ms.Device(number).memory == int(number)
        assert isinstance(ms.Device(number).memory, int)
    chain = ms.Chain([np.float32(1), 2], [2, 3], [4.0, np.float64(6), 5], [0, 6, 5], resident=np.uint8(3))
    assert chain.activation.tolist() == [4, 6, 5]
    assert chain.resident == 3
    assert ms.greedy(chain, np.float64(1e6), np.int64(5)).device == ms.Device(10**6, 5.0)


@pytest.mark.parametrize("value", [1.5, True, "3 apples", None, np.True_, b"3", [3], 1j])
def test_what_is_not_a_whole_number(value: Any) -> None:
    for build in (
        lambda: ms.Device(value),
        lambda: ms.Chain([1, 2], [2, 3], [4, value, 5], [0, 6, 5]),
        lambda: ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], resident=value),
        lambda: ms.Schedule([], budget=value),
    ):
        with pytest.raises(ms.InvalidInputError):
            build()


@pytest.mark.parametrize("value", [True, "3 apples", None, np.True_, b"3", [3], 1j])
def test_what_is_not_a_number(value: Any) -> None:
    for build in (
        lambda: ms.Chain([1, value], [2, 3], [4, 6, 5], [0, 6, 5]),
        lambda: ms.Device(5, 1.0, latency=value),
        lambda: ms.Device(5, d2h=value, h2d=1),
    ):
        with pytest.raises(ms.InvalidInputError):
            build()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_values_are_pickled_by_every_protocol(protocol: int) -> None:
    """By the first two, Python used to end at the base type of the core's classes, and the process with it."""
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    result = ms.greedy(chain, 20, 8.0)
    for value in (chain, ms.to_graph(chain), result.device, result.schedule, result.timeline, result):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    curve = ms.frontier(chain, 8.0, points=3)
    assert pickle.loads(pickle.dumps(curve, protocol)) == curve
    assert curve != ms.frontier(chain, 8.0, points=2)
