"""Families of graphs: one training step at any batch size, simulated and checked round by round."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.cli.app import command_line
from plans import instances
from published import conforms

Json = dict[str, Any]


def make(batch: int) -> ms.Graph:
    """x -> F1 -> a -> F2 -> b; B reads a and b, writes g. Times have a part that does not shrink with the batch."""

    def op(name: str, reads: list[str], writes: list[str], workspace: int = 0) -> Json:
        choices = [
            {"alg": "slow", "time": 1 + 2 * batch, "workspace": 0},
            {"alg": "fast", "time": 1 + batch, "workspace": workspace * batch},
        ]
        return {"name": name, "phase": "fwd", "reads": reads, "writes": writes, "choices": choices}

    sizes = {"x": 2, "a": 4, "b": 3, "g": 4}
    tensors = [
        {"name": t, "size": size * batch, "role": "input" if t == "x" else "activation"} for t, size in sizes.items()
    ]
    ops = [op("F1", ["x"], ["a"]), op("F2", ["a"], ["b"], workspace=1), op("B", ["a", "b"], ["g"])]
    return ms.Graph(tensors, ops, resident=10, name="small", batch=batch)


STEPS: list[Json] = [
    {"run": "F1", "alg": "slow"},
    {"offload": "a"},
    {"run": "F2", "alg": "fast"},
    {"free": "a"},
    {"prefetch": "a"},
    {"run": "B", "alg": "fast"},
]


def schedule(rounds: list[tuple[int, int]], budget: int = 1000) -> ms.Schedule:
    return ms.Schedule(STEPS, budget=budget, graph="small", rounds=rounds)


def test_rounds_add_up() -> None:
    family, device = ms.GraphFamily(make, 8), ms.Device(1000, 2.0)
    rounds = [(3, 2), (2, 1)]
    timeline, report = ms.simulate(family, schedule(rounds), device), ms.validate(family, schedule(rounds), device)
    one = [ms.simulate(family.at(batch), schedule([(batch, 1)]), device) for batch, _ in rounds]
    assert timeline.makespan == 2 * one[0].makespan + one[1].makespan == pytest.approx(report.makespan)
    assert timeline.bytes_out == 2 * one[0].bytes_out + one[1].bytes_out == report.bytes_out
    assert timeline.idle == pytest.approx(2 * one[0].idle + one[1].idle)
    assert timeline.peak_memory == one[0].peak_memory == report.peak_memory
    assert timeline.start.tolist() == one[0].start.tolist()


@pytest.mark.parametrize("rounds", [[(4, 1)], [(8, 2)], [(8, 1), (1, 1)], [(3, 2), (1, 1)]])
def test_rounds_that_do_not_work_through_the_batch(rounds: list[tuple[int, int]]) -> None:
    """A part of the step used to pass for all of it, with a makespan and a bound of that part."""
    family, device = ms.GraphFamily(make, 8), ms.Device(1000, 2.0)
    for judge in (ms.simulate, ms.validate):
        with pytest.raises(ms.ScheduleError, match="add up to"):
            judge(family, schedule(rounds), device)


@pytest.mark.parametrize("times", [2**61, 2**63 - 1])
def test_rounds_that_move_more_than_can_be_counted_are_refused_as_by_the_simulator(times: int) -> None:
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    result = ms.greedy(chain, ms.min_memory(chain, "greedy"), 1.0)
    often = result.schedule.with_rounds([(1, times)])
    for judge in (ms.simulate, ms.validate):
        with pytest.raises(ms.ScheduleError, match=r"move .*bytes"):
            judge(chain, often, result.device)


def test_a_result_keeps_the_graphs_that_it_uses() -> None:
    family, device = ms.GraphFamily(make, 8), ms.Device(1000, 2.0)
    plan = schedule([(4, 1), (2, 2)])
    result = ms.Result(
        planner="by hand",
        problem=family,
        device=device,
        schedule=plan,
        timeline=ms.simulate(family, plan, device),
        lower_bound=ms.bounds(family.at(4), device=device).best + 2 * ms.bounds(family.at(2), device=device).best,
        runtime=0.0,
    )
    assert ms.validate(result).makespan == pytest.approx(result.makespan)
    assert result.graph == family.at(4)
    conforms("result", result.to_json())
    again = ms.Result.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert again != result  # it has no other batches
    assert ms.simulate(again.problem, again.schedule, again.device) == result.timeline
    assert isinstance(again.problem, ms.GraphFamily)
    with pytest.raises(ms.InvalidInputError, match="saved with its graphs at batch 1, 2, 4, 8, not 3"):
        again.problem.at(3)


def test_a_family_cannot_be_changed() -> None:
    family: Any = ms.GraphFamily(make, 8)
    for name in ("batch", "name", "batches", "graph"):
        with pytest.raises(AttributeError):
            setattr(family, name, 3)


def test_families_are_values() -> None:
    family = ms.GraphFamily(make, 8, name="mine")
    saved = ms.GraphFamily.from_json(family.to_json([2]))
    conforms("family", family.to_json([1, 5]))
    for one in (family, saved, ms.profiles.analytic("alexnet", 8)):
        for copied in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert copied == one
            assert hash(copied) == hash(one)
            assert (copied.name, copied.batches, copied.at(2)) == (one.name, one.batches, one.at(2))
    assert ms.profiles.analytic("alexnet", 8) == ms.profiles.analytic("alexnet", 8)
    assert ms.profiles.analytic("alexnet", 8) != ms.profiles.analytic("alexnet", 8, "k40m")
    assert len({family, saved}) == 2  # a saved one lacks batches
    assert saved == ms.GraphFamily.from_json(family.to_json([2]))
    assert saved != ms.GraphFamily.from_json(family.to_json())
    family = ms.GraphFamily(make, 8)
    assert family != ms.GraphFamily(make, 7)
    assert family != ms.GraphFamily(lambda batch: make(batch), 8)  # who knows
    assert repr(family) == "GraphFamily(name='small', batch=8, ops=3)"
    assert ms.min_memory(family) == ms.min_memory(family.at(1))
    assert ms.peak_memory(family) == ms.peak_memory(family.at(8))


def test_what_was_read_is_written_again_whole(tmp_path: Path) -> None:
    """A file of a file had the full batch and 1 alone, and its plans were slower."""
    family = ms.GraphFamily.from_json(ms.GraphFamily(make, 6).to_json(range(1, 7)))
    family.save(tmp_path / "family.json")
    again = ms.GraphFamily.load(tmp_path / "family.json")
    assert again == family
    assert again.batches == (1, 2, 3, 4, 5, 6)
    result = ms.modnn(family, 60, 4)
    assert ms.Result.from_json(result.to_json()) == result


def test_a_pickle_loses_no_batches_in_silence() -> None:
    """It kept the graphs that happened to be made, and planners then split the batch otherwise, or not at all."""
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(ms.GraphFamily(lambda batch: make(batch), 8))


def test_a_bound_says_that_it_holds_in_the_same_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a plan in one round, where plans in more rounds may be faster, even than the bound."""
    monkeypatch.chdir(tmp_path)
    family = ms.GraphFamily(make, 2)
    for problem, words in (
        (family, " in the same rounds"),
        (ms.GraphFamily.from_json(family.to_json()), " in the same rounds"),
        (ms.GraphFamily(make, 1), ""),  # it has no other rounds
        (with_batches(7, 2, 4, 7), ""),
        (family.graph, ""),
    ):
        memory = ms.peak_memory(problem)
        once, free = ms.modnn(problem, memory, 1.0), ms.selective(problem, memory, 1.0)
        assert (once.bounded, free.bounded) == (
            f"plans that run each op once, in graph order{words}",
            f"all plans{words}",
        )
        Path("r.json").write_text(json.dumps(free.to_json()))
        for command in ("validate", "simulate"):
            said = CliRunner().invoke(command_line, [command, "r.json"]).output
            assert f"of all plans{words}: proven optimal" in said
        lines = ms.plot_frontier(ms.frontier(problem, 1.0)).axes[0].get_lines()
        assert f"lower bound of all plans{words}" in [line.get_label() for line in lines]
        assert ("in the same rounds" in " ".join(text.get_text() for text in ms.plot(free).texts)) == bool(words)


@given(instances(), st.integers(1, 3))
def test_a_plan_runs_round_after_round(instance: tuple[Json, Json, Json, int], times: int) -> None:
    document, plan, machine, _ = instance

    def same(batch: int) -> ms.Graph:
        return ms.Graph.from_json({**document, "batch": batch})

    family = ms.GraphFamily(same, 2 * times + 1)
    plan = {**plan, "budget": plan["budget"] + 1, "rounds": [[2, times], [1, 1]]}
    device = ms.Device.from_json({**machine, "memory": machine["memory"] + 1})
    listed = ms.Schedule.from_json(plan)
    timeline, report = ms.simulate(family, listed, device), ms.validate(family, listed, device)
    assert timeline.makespan == pytest.approx(report.makespan)
    assert timeline.peak_memory == report.peak_memory
    assert (timeline.bytes_out, timeline.bytes_in) == (report.bytes_out, report.bytes_in)


def other(change: str) -> Any:
    def made(batch: int) -> ms.Graph:
        document = make(batch).to_json()
        if batch < 8:
            if change == "op":
                document["ops"][0]["name"] = "F0"
            elif change == "alg":
                document["ops"][0]["choices"][0]["alg"] = "other"
            elif change == "size":
                document["tensors"][1]["size"] = 100
            elif change == "workspace":
                document["ops"][1]["choices"][1]["workspace"] = 100
            elif change == "skip_workspace":
                document["ops"][1] |= {"tape": [], "skip_workspace": 100}
            elif change == "batch":
                document["batch"] = 5
        elif change == "skip_workspace":
            document["ops"][1] |= {"tape": [], "skip_workspace": 0}
        return ms.Graph.from_json(document)

    return made


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ms.GraphFamily(3, 8), "make is 3; it must be a function"),
        (lambda: ms.GraphFamily(make, 0), "batch is 0"),
        (lambda: ms.GraphFamily(lambda batch: 5, 8), r"make\(8\) returned 5"),
        (lambda: ms.GraphFamily(make, 8).at(9), "batch is 9; it must be a whole number from 1 to 8"),
        (lambda: ms.GraphFamily(other("op"), 8).at(2), "other tensors, ops or algorithms than that of batch 8"),
        (lambda: ms.GraphFamily(other("alg"), 8).at(2), "other tensors, ops or algorithms"),
        (lambda: ms.GraphFamily(other("size"), 8).at(2), "'a' needs more bytes at batch 2 than at 8"),
        (lambda: ms.GraphFamily(other("workspace"), 8).at(2), "'F2' needs more bytes at batch 2"),
        (lambda: ms.GraphFamily(other("skip_workspace"), 8).at(2), "'F2' needs more bytes at batch 2"),
        (lambda: ms.GraphFamily(other("batch"), 8).at(2), r"make\(2\) returned a graph of batch 5"),
        (lambda: ms.GraphFamily.from_json({"format": "memsched-family/1"}), "the family lacks 'name'"),
    ],
)
def test_errors_say_what_to_do(call: Any, words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        call()


def swept(make: Any, memory: int, path: Path) -> dict[str, Any]:
    [row] = ms.sweep(ms.GraphFamily(make, 6), ["modnn"], memory=[memory], beta=[1.0], store=path)
    return row


def test_a_sweep_plans_with_the_graphs_that_identify_a_family(tmp_path: Path) -> None:
    """A store keeps the graphs at powers of two. A plan of two rounds of three was made again as three of two, in
    silence; and of two families that differ at batch 3 only, one got the row of the other.
    """

    def make(batch: int, seconds: float = 1.0) -> ms.Graph:
        choices = [{"alg": "a", "time": seconds, "workspace": 0}]
        op = {"name": "F", "phase": "fwd", "reads": ["x"], "writes": [], "choices": choices}
        return ms.Graph([{"name": "x", "size": 4 * batch, "role": "input"}], [op], batch=batch)

    path, family = tmp_path / "a.sqlite", ms.GraphFamily(make, 6)
    assert ms.modnn(family, 12, 1.0).makespan == 2
    kept = ms.GraphFamily.from_json(family.to_json([2, 4]))
    for memory in (8, 12):
        row = swept(make, memory, path)
        assert row["makespan"] == ms.modnn(kept, memory, 1.0).makespan == 3
        assert ms.plan_again(path, row["key"]).makespan == 3
    other = swept(lambda batch: make(batch, 100.0 if batch == 3 else 1.0), 12, path)
    assert (other["key"], other["makespan"]) == (row["key"], 3)
    assert swept(lambda batch: make(batch, 100.0 if batch == 2 else 1.0), 12, path)["key"] != row["key"]
    whole = ms.GraphFamily.from_json(family.to_json(range(1, 7)))  # with all its graphs
    [row] = ms.sweep(whole, ["modnn"], memory=[12], beta=[1.0], store=path, options={"modnn": {"time_limit": 5}})
    assert row["makespan"] == ms.plan_again(path, row["key"]).makespan == 2


def with_batches(batch: int, *stored: int) -> ms.GraphFamily:
    def made(batch: int) -> ms.Graph:
        tensors = [{"name": name, "size": 10 * batch, "role": "activation"} for name in "xy"]
        names = [("F", "fwd", [], ["x"]), ("G", "fwd", ["x"], ["y"]), ("B", "bwd", ["y"], [])]
        ops = [
            {
                "name": n,
                "phase": phase,
                "reads": reads,
                "writes": writes,
                "choices": [{"alg": "d", "time": 1.0, "workspace": 0}],
            }
            for n, phase, reads, writes in names
        ]
        return ms.Graph(tensors, ops, batch=batch)

    document = ms.GraphFamily(made, batch).to_json(stored)
    graphs = [graph for graph in document["graphs"] if graph["batch"] in stored]
    return ms.GraphFamily.from_json({**document, "graphs": graphs})


@pytest.mark.parametrize(
    ("batches", "least", "rounds"),
    [
        ((7, 2, 4, 7), 140, ((7, 1),)),  # no rounds of 2 and 4 make 7
        ((5, 2, 3, 5), 60, ((3, 1), (2, 1))),
        ((10, 4, 5, 10), 100, ((5, 2),)),
        ((4, 2, 4), 40, ((2, 2),)),
        ((7, 3, 4, 5, 7), 80, ((4, 1), (3, 1))),  # also the fewest up to 5
    ],
)
@pytest.mark.parametrize("search", ["fewest", "search"])
def test_a_family_with_some_batches_names_the_least_memory_of_its_rounds(
    batches: tuple[int, ...], least: int, rounds: tuple[tuple[int, int], ...], search: Any
) -> None:
    """That of its smallest batch was named, though no rounds may have it; then `modnn` blamed the times."""
    family = with_batches(*batches)
    assert ms.min_memory(family) <= ms.min_memory(family, "modnn") == least
    assert ms.modnn(family, least, 10.0, rounds=search).schedule.rounds == rounds
    with pytest.raises(ms.InfeasibleError, match=f"it needs at least .*{least:,}"):
        ms.modnn(family, least - 1, 10.0, rounds=search)


def test_rounds_of_several_sizes_may_need_less_than_equal_ones() -> None:
    assert ms.min_memory(with_batches(7, 3, 4, 7)) == 80
    assert ms.min_memory(with_batches(7, 2, 3, 7)) == 60
    assert ms.min_memory(with_batches(7, 2, 4, 7)) == 140


def test_a_batch_has_one_graph() -> None:
    document = with_batches(4, 2, 4).to_json([2])
    with pytest.raises(ms.InvalidInputError, match=r"graphs\[2\] of the family has the batch 2, as another has"):
        ms.GraphFamily.from_json({**document, "graphs": [*document["graphs"], document["graphs"][-1]]})
