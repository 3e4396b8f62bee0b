"""`memsched frontier`: the table, the figures, the picture, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line

CHAIN = ms.Chain(
    [0, 4, 1], [1, 3, 3], [3, 4, 1, 3], [3, 4, 3, 2], forward_overhead=[2, 0, 2], backward_overhead=[0, 1, 2]
)
FEW = ("-p", "rotor", "-p", "greedy", "-p", "rotor", "--points", "3", "-b", "1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in its own folder, with a chain and a graph in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("c.json").write_text(json.dumps(CHAIN.to_json()))
    Path("g.json").write_text(json.dumps(ms.to_graph(CHAIN).to_json()))
    return tmp_path


def run(*arguments: str, status: int = 0) -> str:
    outcome = CliRunner().invoke(command_line, ["frontier", *arguments], prog_name="memsched")
    assert outcome.exit_code == status, outcome.output
    assert "Traceback" not in outcome.output
    return outcome.output


def fails(*arguments: str) -> str:
    text = run(*arguments, status=2)
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_a_row_for_each_planner_and_memory() -> None:
    text = run("c.json", *FEW)
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if line.startswith(("rotor", "greedy"))]
    assert [row[:3] for row in rows] == [
        ["rotor", "14", "B"],
        ["rotor", "16", "B"],
        ["rotor", "18", "B"],
        ["greedy", "14", "B"],
        ["greedy", "16", "B"],
        ["greedy", "18", "B"],
    ]
    assert [" ".join(row[3:5]) for row in rows] == ["none found", "16 s", "12 s", "21 s", "12 s", "12 s"]
    assert [row[5] == "*" for row in rows[1:]] == [False, True, True, True, True]
    assert " ".join(rows[1]).endswith("16 s 33.33 % 12 s 33.33 %")
    assert rows[2][-1] == "optimal"
    for word in ("3 stages", "1 B/s", "ideal", "peak of the plain run 18 B"):
        assert word in text


def test_the_figures_are_those_of_frontier() -> None:
    document = json.loads(run("c.json", *FEW, "--json"))
    assert document["memory"] == [14, 16, 18]
    assert (document["ideal"], document["min_memory"], document["peak_memory"]) == (12, 14, 18)
    assert document["bandwidth_from"] == "--bandwidth"
    assert "memory" not in document["device"]
    assert list(document["planners"]) == ["rotor", "greedy"]
    for name, figures in document["planners"].items():
        curve = ms.frontier(CHAIN, 1.0, planner=name, memory=document["memory"])
        assert figures["min_memory"] == ms.min_memory(CHAIN, name)
        for at, result in enumerate(curve.results):
            for key in ("makespan", "lower_bound", "estimate", "peak_memory", "optimal"):
                assert figures[key][at] == (None if result is None else getattr(result, key))


def test_the_memories_hold_the_least_of_each_planner() -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    document = json.loads(run("resnet18-224-b32", "--points", "2", "--time-limit", "0", "--json"))
    assert list(document["planners"]) == ["pofo", "rotor", "offload", "selective"]
    least = {ms.min_memory(chain, name) for name in document["planners"]}
    assert document["memory"] == sorted({*least, ms.peak_memory(chain)})
    assert document["bandwidth_from"] == "the profile's link_bandwidth"


def test_options_of_the_link() -> None:
    assert json.loads(run("c.json", *FEW[:-2], "-b", "0", "--json"))["planners"]["greedy"]["makespan"] == [
        None,
        None,
        12,
    ]
    device = ms.Device(5, d2h=2.0, h2d=3.0, name="d")
    Path("d.json").write_text(json.dumps(device.to_json()))
    given: dict[str, Any] = json.loads(run("c.json", *FEW[:-2], "--device", "d.json", "--duplex", "--json"))["device"]
    assert (given["d2h"], given["h2d"], given["duplex"]) == (2, 3, True)


def test_a_picture_is_saved(folder: Path) -> None:
    text = run("c.json", *FEW, "-o", "f.svg")
    assert text.endswith("saved in f.svg\n")
    assert Path("f.svg").read_text().startswith("<?xml")
    assert json.loads(run("c.json", *FEW, "-o", "f.png", "--json"))
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_refused_before_planning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsched.cli.frontier.plan_frontier", lambda *_, **__: pytest.fail("planned"))
    before = sorted(folder.rglob("*"))
    assert "picture" in fails("c.json", "-o", "f.gif")
    assert "cannot be written" in fails("c.json", "-o", "none/f.png")
    assert "'magic'" in fails("c.json", "-p", "magic")
    assert "16MiB" in fails("c.json", "--chunk", "half")
    assert "--points" in fails("c.json", "--points", "1")
    assert "problem is a Graph; rotor plans a Chain" in fails("g.json", "-b", "1", "-p", "rotor")
    assert "--memory" in fails("c.json", "--memory", "40%")
    assert sorted(folder.rglob("*")) == before
