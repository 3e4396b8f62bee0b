"""Odd graphs, families and devices: planners of graphs end, and say what would help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memsched as ms
from listed import GRAPH_PLANNERS
from memsched.cli.app import command_line
from memsched.planners.registry import PLANNERS

pytestmark = pytest.mark.filterwarnings("ignore:the device's link is")  # so slow that its unit seems to be missing
ALL = pytest.mark.parametrize("planner", GRAPH_PLANNERS)


def op(name: str, phase: str, reads: list[str], writes: list[str], time: float = 1.0, **more: Any) -> dict[str, Any]:
    choices = more.pop("choices", [{"alg": "default", "time": time, "workspace": 0}])
    return {"name": name, "phase": phase, "reads": reads, "writes": writes, "choices": choices, **more}


def wide(maps: int, size: int) -> ms.Graph:
    """One forward that writes so many maps, and one backward that reads them all."""
    names = [f"a{k}" for k in range(maps)]
    tensors = [{"name": name, "size": size, "role": "activation"} for name in names]
    return ms.Graph(tensors, [op("F", "fwd", [], names), op("B", "bwd", names, [])], name="wide")


def run(planner: str, *arguments: Any, **options: Any) -> ms.Result:
    return PLANNERS[planner].plan(*arguments, **options)


def helped(planner: str, problem: Any, memory: int, device: ms.Device) -> ms.Result:
    """A plan, at the memory that the planner asks for where it has none at the one given."""
    needed = memory
    try:
        return run(planner, problem, memory, device=device)
    except ms.InfeasibleError as error:
        needed = error.min_memory
    assert needed > memory
    return run(planner, problem, needed, device=device)


@ALL
@pytest.mark.parametrize("maps", [400, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_ops_with_very_many_maps(planner: str, maps: int) -> None:
    graph = wide(maps, 1)
    assert ms.validate(helped(planner, graph, maps // 2, ms.Device(maps // 2, 1.0))).peak_memory == maps
    pieces = ms.to_graph(ms.profiles.load("resnet18-224-b32"), chunk=1 << 22)
    ms.validate(helped(planner, pieces, ms.min_memory(pieces), ms.Device(1, 12e9)))


@ALL
def test_sizes_near_the_largest_number(planner: str) -> None:
    graph = wide(3, 2**51)
    found = helped(planner, graph, 10, ms.Device(10, 1e18))
    assert found.peak_memory == 3 * 2**51
    without = helped(planner, graph, 10, ms.Device(10, 0.0))
    assert without.offloaded == ()


@ALL
@pytest.mark.parametrize(
    "device",
    [
        ms.Device(1, 1e9, latency=1e308),
        ms.Device(1, 3e-300),
        ms.Device(1, 1e-306),
        ms.Device(1, 5e-324, latency=1.7e308),
    ],
)
def test_links_on_which_nothing_ever_arrives(planner: str, device: ms.Device) -> None:
    graph = ms.profiles.analytic("alexnet", 64).graph
    memory = int(0.9 * ms.min_memory(graph, "pooch") + 0.1 * ms.peak_memory(graph))
    ms.validate(helped(planner, graph, memory, device))


def test_an_infinite_delay_does_not_leave_modnn_without_an_algorithm() -> None:
    choices = [{"alg": "slow", "time": 2.0, "workspace": 4}, {"alg": "fast", "time": 1.0, "workspace": 9}]
    tensors = [{"name": n, "size": 10, "role": "activation"} for n in ("a", "b", "c")]
    ops = [
        op("F1", "fwd", [], ["a"]),
        op("F2", "fwd", ["a"], ["b"]),
        op("F3", "fwd", ["b"], ["c"], choices=choices),
        op("B", "bwd", ["c", "a"], []),
    ]
    graph = ms.Graph(tensors, ops, name="slow")
    for memory in range(24, 45):
        helped("modnn", graph, memory, ms.Device(1, 1e-300, latency=1.7e308))


def two_inputs(batch: int) -> ms.Graph:
    """x is gone after F1, while y and c stay: packed from 0, they lie elsewhere at another batch."""
    sizes = {"x": 10 * batch, "y": 10 * batch, "a": 12 * batch, "b": 3 * batch}
    roles = {"x": "input", "y": "input", "c": "input"}
    tensors = [{"name": n, "size": s, "role": roles.get(n, "activation")} for n, s in sizes.items()]
    tensors.insert(1, {"name": "c", "size": 30, "role": "input"})
    ops = [
        op("F1", "fwd", ["x"], ["a"]),
        op("F2", "fwd", ["a", "c"], ["b"]),
        op("B2", "bwd", ["b", "a", "y", "c"], []),
    ]
    return ms.Graph(tensors, ops, name="two inputs", batch=batch)


@pytest.mark.parametrize("rounds", ["fewest", "search"])
def test_rounds_of_a_step_with_several_inputs(rounds: str) -> None:
    family = ms.GraphFamily(two_inputs, 5)
    for memory in range(62, 220, 3):
        try:
            result = ms.modnn(family, memory, 10.0, rounds=rounds)
        except ms.InfeasibleError as error:
            result = ms.modnn(family, error.min_memory, 10.0, rounds=rounds)
        assert sum(batch * times for batch, times in result.schedule.rounds) == 5, memory
        ms.validate(result)


def apart(batch: int) -> ms.Graph:
    """Two inputs that no op reads together, so that they need more than any op does."""
    tensors = [{"name": n, "size": batch, "role": "input"} for n in ("x", "y")]
    return ms.Graph(tensors, [op("F", "fwd", ["x"], []), op("B", "bwd", ["y"], [])], name="apart", batch=batch)


@pytest.mark.parametrize("memory", range(2, 14))
def test_a_batch_must_hold_its_inputs(memory: int) -> None:
    family = ms.GraphFamily(apart, 6)
    assert ms.modnn(family, memory, 1.0).peak_memory <= memory
    assert ms.vdnn_plus(family, memory, 1.0).peak_memory <= memory
    with pytest.raises(ms.InfeasibleError) as caught:
        ms.modnn(family, 1, 0.0)
    assert ms.modnn(family, caught.value.min_memory, 0.0).offloaded == ()


@ALL
def test_a_host_that_is_too_small(planner: str) -> None:
    graph = ms.profiles.analytic("alexnet", 64).graph
    least, most = ms.min_memory(graph, planner), ms.peak_memory(graph)
    device = ms.Device(1, 12e9, host_memory=1 << 20)
    for share in (0.1, 0.5, 0.9):
        ms.validate(helped(planner, graph, int(least + share * (most - least)), device))
    ms.validate(ms.plan(graph, 2 * most, device=device, time_limit=0.01))


def test_bytes_must_not_fall_between_batches_that_are_known() -> None:
    def make(batch: int) -> ms.Graph:
        size = {7: 100, 4: 50, 3: 80}.get(batch, 10 * batch)
        tensors = [{"name": "a", "size": size, "role": "activation"}]
        return ms.Graph(tensors, [op("F", "fwd", [], ["a"]), op("B", "bwd", ["a"], [])], batch=batch)

    family = ms.GraphFamily(make, 7)
    family.at(4)
    with pytest.raises(ms.InvalidInputError, match="'a' needs more bytes at batch 3 than at 4"):
        family.at(3)


def test_saved_families_can_be_planned(tmp_path: Path) -> None:
    family = ms.profiles.analytic("alexnet", 64)
    path = tmp_path / "family.json"
    path.write_text(json.dumps(family.to_json([32])), encoding="utf-8")
    read = ms.GraphFamily.from_json(str(path))
    assert ms.min_memory(read) == ms.min_memory(family)
    for command in ("compare", "plan"):
        found = CliRunner().invoke(command_line, [command, str(path), "-m", "2GB", "-b", "10GB/s", "--time-limit", "0"])
        assert found.exit_code == 0, found.output
    saved = ms.Result.from_json(json.dumps(ms.modnn(family, 10**10, 1e9).to_json()))
    assert ms.plan(saved.problem, 10**10, 1e9, time_limit=0).makespan <= saved.makespan
    with pytest.raises(ms.InvalidInputError, match="to_json"):
        read.at(5)


@pytest.mark.parametrize("value", ["no", None, 0, 1])
def test_flags_are_true_or_false(value: Any) -> None:
    graph = ms.profiles.analytic("alexnet", 64).graph
    calls: list[tuple[str, Any]] = [("fill", ms.pooch), ("scheduled", ms.swap_all), ("foresee", ms.modnn)]
    for name, planner in calls:
        with pytest.raises(ms.InvalidInputError, match=f"{name} is {value!r}"):
            planner(graph, 10**10, 1e9, **{name: value})


@pytest.mark.parametrize("value", [None, -1, 0.5, "8 apples", True, float("inf")])
def test_bad_workspace_limits(value: Any) -> None:
    graph = ms.profiles.analytic("alexnet", 64).graph
    for planner in (ms.pooch, ms.swap_opt, ms.swap_all, ms.by_kind, ms.autoswap, ms.tflms):
        with pytest.raises(ms.InvalidInputError, match="workspace_limit is"):
            planner(graph, 10**10, 1e9, workspace_limit=value)
    assert ms.pooch(graph, 10**10, 1e9, workspace_limit=8e6).params["workspace_limit"] == 8_000_000


@pytest.mark.parametrize("planner", [ms.selective, ms.modnn, ms.autoswap])
def test_weights_that_are_tensors_may_be_offloaded(planner: Any) -> None:
    """As the guide says. It used to say that none are."""
    sizes = {"w": (5, "weight"), "x": (5, "activation"), "g": (9, "gradient")}
    tensors = [{"name": name, "size": size, "role": role} for name, (size, role) in sizes.items()]
    choice = {"alg": "default", "time": 1.0, "workspace": 6}
    middle = op("F2", "fwd", ["x"], [], choices=[choice])
    graph = ms.Graph(tensors, [op("F1", "fwd", ["w"], ["x"]), middle, op("B", "bwd", ["w"], ["g"])])
    assert "w" in planner(graph, ms.min_memory(graph), 2.0).offloaded
