"""Names that would command a terminal: of problems, ops, tensors, planners and files, through every command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line
from memsched.errors import visible

HOSTILE = [
    "\x1b[2J\x1b[1;1Hgone",  # clears the screen
    "\x1b]0;title\x07",  # sets the title
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m",  # the same controls in one byte
    "a\rb",
    "a\b\b\bb",
    "fine\nerror: not so",  # forges a line
    "\u202egnp.exe",
    "[red]markup[/red][/x]",
    "\x7f\x07",
]


def hostile_problem(name: str) -> dict[str, ms.Chain | ms.Graph]:
    chain = ms.Chain(
        [1, 2, 1],
        [2, 3, 1],
        [4, 6, 5, 3],
        [0, 6, 5, 3],
        saved=[9, 5, 4],
        name=name,
        names=[f"{name}{k}" for k in range(3)],
        provenance={"link_bandwidth": 2.0},
    )
    document = ms.to_graph(chain).to_json()
    document["name"] = name
    text = json.dumps(document)
    for key in [one["name"] for one in document["tensors"]] + [one["name"] for one in document["ops"]]:
        text = text.replace(json.dumps(key), json.dumps(f"{name}{key}"))
    return {"chain": chain, "graph": ms.Graph.from_json(text)}


def check(output: str) -> None:
    for letter in output:
        assert letter == "\n" or 32 <= ord(letter) < 127 or ord(letter) > 160, repr(output)
    assert "\u202e" not in output
    assert "\nerror: not so" not in output
    assert "Traceback" not in output


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(command_line, list(arguments), prog_name="memsched")
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), (arguments, outcome.exception)
    check(outcome.output)
    return outcome.output


ALL = [
    pytest.param(" ".join(HOSTILE), id="all"),
    *(pytest.param(name, marks=pytest.mark.exhaustive) for name in HOSTILE),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_no_name_reaches_a_terminal_as_a_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    for kind, problem in hostile_problem(name).items():
        Path(f"{kind}.json").write_text(json.dumps(problem.to_json()))
        link = () if kind == "chain" else ("--bandwidth", "2")
        seen += [
            run("compare", f"{kind}.json", "-m", "100%", *link),
            run("plan", f"{kind}.json", "-m", "100%", *link, "-o", f"{kind}.plan.json"),
            run("plan", f"{kind}.json", "-m", "0%", *link),
            run("plan", f"{kind}.json", "-m", "1", *link),
            run("frontier", f"{kind}.json", *link, "--points", "3"),
            run("order", f"{kind}.json"),
            run("place", f"{kind}.plan.json"),
            run("simulate", f"{kind}.plan.json", "-m", "1"),
            run("simulate", f"{kind}.plan.json"),
            run("validate", f"{kind}.plan.json"),
        ]
        Path("spec.toml").write_text(f'problems = ["{kind}.json"]\nmemory = ["0%", "100%"]\nbandwidth = [2]\n')
        seen.append(run("sweep", "spec.toml", "--store", f"{kind}.sqlite"))
    assert any(visible(name)[:8] in output for output in seen)


@pytest.mark.parametrize("name", ALL)
def test_no_name_of_a_file_planner_or_option_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = name.replace("/", "_")
    chain = hostile_problem("plain")["chain"]
    Path(file).write_text(json.dumps(chain.to_json()))
    Path(f"{file}.json").write_text("{")
    run("plan", file, "-m", "100%", "-o", f"{file}.plan")
    run("plan", f"{file}.json", "-m", "100%")
    run("plan", f"{file}.missing", "-m", "100%")
    for command in [
        "compare",
        "frontier",
        "order",
        "place",
        "simulate",
        "validate",
        "plot",
        "trace",
        "report",
        "sweep",
    ]:
        run(command, file)
        run(command, f"{file}.missing", "-o", file)
        run(command, f"--{name}")
    run("plan", file, "-m", "100%", "--planner", name)
    run("plan", file, "-m", name)
    run("profiles", name)
    run(name)
    result: dict[str, Any] = ms.greedy(chain, 10**3, 1.0).to_json()
    result["planner"] = name
    Path("result.json").write_text(json.dumps(result))
    run("simulate", "result.json")
    run("validate", "result.json")
    Path("buffers.csv").write_text(f"id,lower,upper,size\n{json.dumps(name)},0,1,x\n")
    run("place", "buffers.csv")
    Path("spec.toml").write_text(f"problems = [{json.dumps(file)}]\nmemory = [{json.dumps(name)}]\n")
    run("sweep", "spec.toml", "--store", f"{file}.sqlite")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no terminals of this kind here")
def test_on_a_terminal_too(tmp_path: Path) -> None:
    """There rich colours what it prints: no other controls may come."""
    import pty

    (tmp_path / "c.json").write_text(json.dumps(hostile_problem(HOSTILE[0])["chain"].to_json()))
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "memsched", "plan", str(tmp_path / "c.json"), "-m", "100%"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment) as started:
        os.close(child)
        output = b""
        try:
            while chunk := os.read(parent, 65536):
                output += chunk
        except OSError:  # the other end is closed
            pass
        assert started.wait() == 0
    os.close(parent)
    text = output.decode()
    assert "\\x1b[2J\\x1b[1;1Hgone" in text
    bar = text[: text.index("gone")].rindex("\x1b[") if "\x1b[2J" in text else 0
    assert not bar, "the screen was cleared"
    assert "\x1b]" not in text
    assert not re.search(r"\x1b\[[\d;]*[JH]", text.replace("\x1b[2K", ""))
