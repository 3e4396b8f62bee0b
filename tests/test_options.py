"""Options of planners, given to `plan`, `compare` and on the command line, are those of the planner's own function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line

CHAIN = ms.profiles.load("resnet18-224-b32")
POINT = ("40%", "12GB/s")
SMALL = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])


def run(line: str, status: int = 0) -> str:
    outcome = CliRunner().invoke(command_line, line.split(), prog_name="memsched", env={"COLUMNS": "200"})
    assert outcome.exit_code == status, outcome.output
    return outcome.output


def same(one: object, other: ms.Result) -> bool:
    """But for how long planning took."""
    return isinstance(one, ms.Result) and replace(one, runtime=0.0) == replace(other, runtime=0.0)


def test_each_planner_gets_its_own() -> None:
    coarse = ms.pofo(CHAIN, *POINT, slots=20)
    assert coarse.makespan != ms.pofo(CHAIN, *POINT).makespan  # so that it can be seen
    found = ms.compare(CHAIN, *POINT, planners=["pofo", "rotor"], options={"pofo": {"slots": 20}})
    assert same(found["pofo"], coarse)
    assert same(found["rotor"], ms.rotor(CHAIN, *POINT))
    assert same(ms.plan(CHAIN, *POINT, planner="pofo", options={"slots": 20}), coarse)


def test_an_option_is_more_than_what_all_are_given() -> None:
    cut = ms.greedy(CHAIN, *POINT, chunk="1MiB")
    found = ms.compare(
        CHAIN, *POINT, planners=["greedy", "vdnn"], chunk="storage", options={"greedy": {"chunk": "1MiB"}}
    )
    assert same(found["greedy"], cut)
    assert same(found["vdnn"], ms.vdnn(CHAIN, *POINT, chunk="storage"))


def test_planners_may_be_separated_by_blanks() -> None:
    assert [*ms.compare(SMALL, 20, 1, planners="pofo rotor, dynprog")] == ["pofo", "rotor", "dynprog"]


@pytest.mark.parametrize("command", ["validate", "simulate"])
def test_a_profile_is_no_saved_plan(command: str) -> None:
    assert "is a shipped profile, and this takes what a command saved" in run(f"{command} llama-2048-b2-bf16", 2)


def test_none_is_a_value() -> None:
    """Of slots it asks for the exact table; it was taken for the default, and the plan was of 500 slots."""
    exact = ms.dynprog(SMALL, 20, 1, slots=None)
    assert exact.params["slots"] is None
    assert same(ms.plan(SMALL, 20, 1, planner="dynprog", options={"slots": None}), exact)
    assert same(ms.compare(SMALL, 20, 1, planners=["dynprog"], options={"dynprog": {"slots": None}})["dynprog"], exact)


def test_the_command_line_takes_them() -> None:
    coarse = ms.pofo(CHAIN, *POINT, slots=20)
    line = "resnet18-224-b32 -m 40% -b 12GB/s --json -p pofo"
    assert json.loads(run(f"plan {line} -O slots=20"))["timeline"]["makespan"] == coarse.makespan
    assert json.loads(run(f"plan {line} -O slots=20 -O labels=real"))["params"]["labels"] == "real"
    assert json.loads(run(f"plan {line} -O anneal=true"))["params"]["anneal"] is True
    compared = json.loads(run(f"compare {line},rotor -O pofo.slots=20"))
    assert compared["planners"]["pofo"]["makespan"] == coarse.makespan


def test_a_sweep_takes_quantities_as_the_planner_does() -> None:
    graph = ms.to_graph(SMALL)
    (row,) = ms.sweep([graph], ["pooch"], memory=[20], beta=[2.0], options={"pooch": {"search": "1ms"}}).rows
    assert row["makespan"] == ms.pooch(graph, 20, 2.0, search="1ms").makespan
    with pytest.raises(ms.InvalidInputError, match="search is -1"):
        ms.sweep([graph], ["pooch"], memory=[20], beta=[2.0], options={"pooch": {"search": -1}})


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: ms.compare(CHAIN, *POINT, planners=["rotor"], options={"pofo": {"slots": 20}}),
        "options has 'pofo', which is not among the planners rotor",
    ),
    (
        lambda: ms.compare(CHAIN, *POINT, planners=["pofo"], options={"pofo": {"slot": 20}}),
        "pofo has no option 'slot'; did you mean 'slots'? it takes slots, ",
    ),
    (
        lambda: ms.compare(CHAIN, *POINT, planners=["greedy"], options={"greedy": {"M": 20}}),
        "greedy has no option 'M'; it takes chunk",
    ),
    (
        lambda: ms.compare(CHAIN, *POINT, options={"slots": 20}),  # type: ignore[dict-item]
        "options of 'slots' is 20; it must be a mapping: option -> value",
    ),
    (
        lambda: ms.compare(CHAIN, *POINT, options="slots=20"),  # type: ignore[arg-type]
        "options is 'slots=20'; it must be a mapping: planner -> its options",
    ),
    (
        lambda: ms.plan(CHAIN, *POINT, options={"slots": 20}),
        "options are those of one planner, and auto runs all; name the planner",
    ),
    (
        lambda: ms.plan(CHAIN, *POINT, planner="pofo", chunk="1MiB", options={"chunk": "2MiB"}),
        "chunk is given twice, as 1048576 and as '2MiB' among the options; leave one out",
    ),
    (
        lambda: ms.plan(CHAIN, *POINT, planner="pofo", time_limit=1, options={"time_limit": 2}),
        "time_limit is given twice, as 1.0 and as 2 among the options; leave one out",
    ),
    (
        lambda: ms.plan(CHAIN, *POINT, planner="pofo", options={"progress": print}),
        "pofo has no option 'progress'",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED)
def test_what_no_planner_takes_is_refused_before_any_runs(call: Callable[[], object], told: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=re.escape(told)):
        call()


def test_the_command_line_takes_none_and_lists(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "chain.json")
    exact = json.loads(run(f"plan {tmp_path}/chain.json -m 20 -b 1 -p dynprog -O slots=none --json"))
    assert exact["params"]["slots"] is None
    line = f"plan {tmp_path}/chain.json -m 20 -b 1 -p olla -O keep="
    assert "olla on chain" in run(line + "[]")
    assert "must be a list" not in run(line + '["x"]', 2)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plan {} -p pofo --slots 20", "there is no option --slots, but planners have one: write -O slots=VALUE"),
        ("compare {} -p pofo --slots 20", "write -O PLANNER.slots=VALUE"),
        ("plan {} -p pofo -O slots", "--option is 'slots'; write NAME=VALUE, as in -O slots=2000"),
        ("plan {} -p pofo -O pofo.slots=20", "--option is 'pofo.slots=20'; write NAME=VALUE, as in -O slots=2000"),
        ("compare {} -p pofo -O slots=20", "write PLANNER.NAME=VALUE, as in -O pofo.slots=2000"),
        ("plan {} -p pofo -O slots=many", "slots is 'many'; it must be a whole number from 1 to 1000000"),
        ("plan {} -p pofo -O slots=[1]", "slots is [1]; it must be a whole number"),
    ],
)
def test_the_command_line_tells_how_to_write_them(line: str, told: str) -> None:
    assert told in run(line.format("resnet18-224-b32 -m 40%"), 2)
