"""The classes of feature maps that a plan stands for, and their picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.show.plots.classes import plot_classes
from memsched.show.plots.plan import plot
from memsched.study.feature_maps import classes_by_kind
from memsched.testing import graphs

DEVICE = ms.Device(16 * 10**9, 12e9, duplex=True)


def with_ways(*ways: tuple[float, int]) -> ms.Graph:
    """A convolution whose backward has algorithms of these seconds and workspaces."""
    sizes = {"x": (2, "input"), "a": (4, "activation"), "d": (4, "gradient"), "e": (4, "gradient")}
    ops = [
        ("F", "fwd", "conv", ["x"], ["a"]),
        ("L", "bwd", "loss", ["a"], ["d"]),
        ("B", "bwd", "conv", ["x", "a", "d"], ["e"]),
    ]
    algorithms = [{"alg": f"a{k}", "time": time, "workspace": space} for k, (time, space) in enumerate(ways)]
    only = [{"alg": "only", "time": 1.0, "workspace": 0}]
    return ms.Graph(
        [{"name": name, "size": size, "role": role} for name, (size, role) in sizes.items()],
        [
            {"name": name, "phase": phase, "kind": kind, "layer": k, "reads": reads, "writes": writes}
            | {"choices": algorithms if name == "B" else only}
            for k, (name, phase, kind, reads, writes) in enumerate(ops)
        ],
    )


@pytest.mark.parametrize("memory", [14, 17, 20])
@pytest.mark.parametrize("planner", [ms.vdnn_sync, ms.vdnn_plus])
def test_vdnn_takes_a_slower_algorithm_where_the_first_finds_no_room(planner: Any, memory: int) -> None:
    result = planner(with_ways((1.0, 6), (5.0, 0)), memory, 1.0)
    assert [step["alg"] for step in result.schedule.steps if step.get("run") == "B"] == ["a0" if memory == 20 else "a1"]
    assert ms.validate(result).peak_memory <= memory


@pytest.mark.parametrize("name", ["swap_all", "swap_opt", "pooch", "by_kind", "tflms", "autoswap", "vdnn_sync"])
def test_of_equally_fast_algorithms_that_with_less_workspace_is_taken(name: str) -> None:
    result = ms.plan(with_ways((1.0, 6), (1.0, 0)), 14, 1.0, planner=name)
    assert ms.validate(result).peak_memory == 14


@given(graphs(), st.data())
def test_a_plan_from_classes_tells_its_classes(graph: ms.Graph, data: st.DataObject) -> None:
    """With memory for all nothing is dropped twice, and with no map of no bytes none is passed over."""
    maps = _core.feature_maps(graph)
    wanted = [data.draw(st.sampled_from(["keep", "swap", "recompute"])) for _ in maps]
    codes = np.array([("keep", "swap", "recompute").index(one) for one in wanted], np.uint8)
    device = ms.Device(4 * ms.peak_memory(graph) + 100, 1.0)
    schedule = _core.class_schedule(graph, device, 0, codes, planner={"name": "by hand"})
    assert schedule is not None
    result = ms.Result(
        planner="by hand",
        problem=graph,
        device=device,
        schedule=schedule,
        timeline=ms.simulate(graph, schedule, device),
        lower_bound=0.0,
        runtime=0.0,
    )
    found = list(ms.feature_map_classes(result).values())
    for one, other in zip(wanted, found, strict=True):
        assert one == other or other == "recompute"  # a second output of an op that runs again


def test_an_output_that_is_there_does_not_keep_its_op_from_running_again() -> None:
    """B reads both outputs of F, of which one has no bytes and stays."""
    op = {"phase": "fwd", "kind": "conv", "layer": 0, "choices": [{"alg": "a", "time": 1.0, "workspace": 0}]}
    tensors = {"x": (0, "input"), "y": (0, "activation"), "mask": (1, "activation"), "z": (0, "activation")}
    graph = ms.Graph.from_json(
        {
            "format": "memsched-graph/1",
            "name": "two outputs",
            "batch": 1,
            "resident": 0,
            "tensors": [{"name": name, "size": size, "role": role} for name, (size, role) in tensors.items()],
            "ops": [
                op | {"name": "F", "reads": ["x"], "writes": ["y", "mask"]},
                op | {"name": "G", "reads": ["y"], "writes": ["z"]},
                op | {"name": "B", "phase": "bwd", "reads": ["y", "mask", "z"], "writes": []},
            ],
        }
    )
    assert _core.feature_maps(graph) == [2]  # the mask
    codes = np.array([2], np.uint8)
    schedule = _core.class_schedule(graph, ms.Device(10, 1.0), 0, codes, planner={"name": "by hand"})
    assert schedule is not None
    assert [step["run"] for step in schedule.steps if "run" in step] == ["F", "G", "F", "B"]


def test_classes_of_planners() -> None:
    graph = ms.profiles.analytic("resnet50", 256).graph
    classes = ms.feature_map_classes(ms.swap_all(graph, device=DEVICE))
    assert len(classes) == 105
    assert set(classes.values()) == {"swap"}
    counted = Counter(ms.feature_map_classes(ms.by_kind(graph, device=DEVICE)).values())
    assert counted == {"keep": 95, "swap": 5, "recompute": 5}
    chain = ms.profiles.load("resnet18-224-b32")
    rotor = ms.feature_map_classes(ms.rotor(chain, ms.min_memory(chain, "rotor")))
    assert set(rotor.values()) == {"keep", "recompute"}


def test_the_picture_counts_what_it_shows(tmp_path: Path) -> None:
    family = ms.profiles.analytic("resnet50", 256)
    results = [ms.swap_all(family, device=DEVICE), ms.by_kind(family, device=DEVICE)]
    figure = plot_classes(results, tmp_path / "classes.svg")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "105 swap" in titles[0]
    assert "95 keep" in titles[1]
    assert "5 recompute" in titles[1]
    assert sum(len(axes.patches) for axes in figure.axes) == 2 * 105
    assert (tmp_path / "classes.svg").stat().st_size > 1000
    rounds = ms.modnn(ms.profiles.analytic("vgg16", 256, "k40m"), 8 * 2**30, 10e9)
    assert "in 4 rounds" in plot_classes(rounds).axes[0].get_title(loc="left")
    shown = plot(rounds)
    assert shown.axes[0].get_xlim()[1] < 1000 * rounds.makespan
    assert "the first of 4 rounds" in " ".join(text.get_text() for text in shown.texts)


def test_kinds_add_up_to_the_classes(tmp_path: Path) -> None:
    graph = ms.profiles.load_graph("gpt-1024-b8-bf16")
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    result = ms.selective(graph, least + (peak - least) // 5, 12e9, moves=0)
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    writer = {name: op for op in graph.ops for name in op["writes"]}
    found = classes_by_kind(result)
    counted: Counter[tuple[str, str]] = Counter()
    for name, chosen in ms.feature_map_classes(result).items():
        counted[writer[name]["kind"], chosen] += sizes[name]
    assert {(kind, one): size for kind, row in found.items() for one, size in row.items() if size} == +counted
    assert list(found)[:2] == ["_log_softmax", "addmm"]
    assert found["gelu"]["recompute"] > 0  # costs almost nothing to run again
    axes = plot_classes(result, tmp_path / "kinds.svg", by="kind").axes[0]
    assert sum(bar.get_height() for bar in axes.patches) * 2**30 == pytest.approx(sum(counted.values()))
    assert [label.get_text() for label in axes.get_xticklabels()][-1].endswith("others")
    with pytest.raises(ms.InvalidInputError, match="by is 'tensor'"):
        plot_classes(result, by="tensor")  # type: ignore[arg-type]


def test_bad_input(tmp_path: Path) -> None:
    result = ms.swap_all(ms.profiles.analytic("alexnet", 512), 10**10, 1e9)
    for results in ([], [result] * 7):
        with pytest.raises(ms.InvalidInputError, match="results are"):
            plot_classes(results)
    with pytest.raises(ms.InvalidInputError, match=r"\.gif"):
        plot_classes(result, tmp_path / "classes.gif")


def test_a_map_that_the_second_run_of_its_op_leaves_alone_is_kept() -> None:
    """It counted as recomputed."""
    tensors = [{"name": n, "size": 4, "role": "activation"} for n in "ytd"]
    choice = [{"alg": "d", "time": 1.0, "workspace": 0}]
    ops = [
        {"name": "F", "phase": "fwd", "reads": [], "writes": ["y", "t"], "tape": ["t"], "choices": choice},
        {"name": "G", "phase": "fwd", "reads": ["y"], "writes": [], "choices": choice},
        {"name": "B", "phase": "bwd", "reads": ["y", "t"], "writes": ["d"], "choices": choice},
    ]
    steps = [{"run": "F"}, {"run": "G"}, {"free": "y"}, {"run": "F", "skip": ["t"]}, {"run": "B"}]
    graph, device, schedule = ms.Graph(tensors, ops), ms.Device(100), ms.Schedule(steps, budget=100)
    timeline = ms.simulate(graph, schedule, device)
    facts: dict[str, Any] = {"planner": "hand", "problem": graph, "device": device, "schedule": schedule}
    result = ms.Result(**facts, timeline=timeline, lower_bound=3.0, runtime=0.0, bound_on="all")
    assert ms.feature_map_classes(result) == {"y": "recompute", "t": "keep"}


def test_the_fastest_algorithms_that_find_room_run_without_a_link_too() -> None:
    """vgg16 took 4.4 s without a link and 2.1 s with one, in memory for everything."""
    graph = ms.profiles.analytic("vgg16", 64, "k40m").graph
    most = 2 * ms.peak_memory(graph)
    with_link = ms.vdnn_sync(graph, most, 1e12)
    without = ms.vdnn_sync(graph, most, 0.0)
    assert without.params["moved"] is None
    assert without.makespan <= with_link.makespan
    assert without.makespan == pytest.approx(ms.bounds(graph, most, 0.0).compute)
