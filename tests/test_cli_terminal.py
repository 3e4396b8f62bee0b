"""The command line on terminals of any width, in shells that complete words, in pipes and odd environments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import memsched as ms
from memsched.cli import inputs, show
from memsched.cli.app import command_line

SMALL = "resnet18-224-b32"
SPEC = f"""problems = ["{SMALL}"]\nplanners = ["greedy", "rotor"]\nmemory = ["30%", "60%"]\n"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in its own folder, with some inputs in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("times.csv").touch()
    Path("spec.toml").write_text(SPEC)
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
    Path("r.json").write_text(json.dumps(ms.greedy(chain, 24, 2.0).to_json()))
    return tmp_path


def run(line: str, status: int = 0, **more: Any) -> Result:
    outcome = CliRunner().invoke(command_line, line.split(), prog_name="memsched", **more)
    assert outcome.exit_code == status, outcome.output
    return outcome


WORDS = {
    *("planner", "makespan", "bound", "peak", "moved", "recomputed", "in", "memory", "over", "ideal"),
    *("lower", "gap", "profile", "stages", "graph", "ops", "min_memory", "peak_memory", "resident", "compute"),
    *("points", "planned", "best", "mean", "claimed"),
}


class TestTables:
    @pytest.mark.parametrize("columns", [40, 60, 80])
    @pytest.mark.parametrize(
        "command",
        [
            f"compare {SMALL} -m 40% --time-limit 0.01",
            f"frontier {SMALL} -p rotor -p by_kind --points 2",
            "profiles resnet",
            "sweep spec.toml --store s.sqlite",
        ],
    )
    def test_no_word_of_a_header_is_broken(self, command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = run(command).stdout.splitlines()
        assert max(map(len, lines)) <= columns
        rules = [at for at, line in enumerate(lines) if re.fullmatch("─+", line)]
        assert rules
        for rule in rules:
            above = takewhile(lambda line: line and not re.search(r"\d", line), reversed(lines[:rule]))
            header = " ".join(above).split()
            assert len(header) >= 2
            assert set(header) <= WORDS

    @pytest.mark.parametrize("columns", [30, 40, 50, 60, 70])
    @pytest.mark.parametrize(
        "command", ["compare {} -m 40% --time-limit 0.01", "frontier {} -b 0 --points 3", "profiles resnet"]
    )
    def test_no_figure_is_apart_from_its_unit(
        self, command: str, columns: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        text = run(command.format(SMALL)).stdout
        table = re.search(r"─\n(.*?)\n(?:\* |not |$)", text, re.DOTALL)
        assert table is not None
        assert re.search(r"\d (MiB|ms)", table[1])
        for line in table[1].splitlines():
            assert not re.search(r"(^ *|  )([KMG]?i?B|m?s|us|%|\*)( |$)", line)

    def test_columns_that_are_left_out_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        line = f"compare {SMALL} -m 40% -p greedy"
        monkeypatch.setenv("COLUMNS", "40")
        text = " ".join(run(line).stdout.split())
        assert re.search("not shown: .*planned in; a wider terminal, --csv or --json has all columns", text)
        monkeypatch.setenv("COLUMNS", "100")
        assert "not shown" not in run(line).stdout

    @pytest.mark.parametrize("option", [inputs.json_option, inputs.csv_option])
    def test_only_forms_that_a_command_has_are_told(
        self, option: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @click.command()
        @option
        def wide(**_: bool) -> None:
            table = show.new_table("name", *(f"column{k}" for k in range(9)))
            table.add_row(*"0123456789")
            show.print_rich(table)

        monkeypatch.setenv("COLUMNS", "40")
        said = " ".join(CliRunner().invoke(wide).stdout.split())
        form = "--json" if option is inputs.json_option else "--csv"
        assert said.endswith(f"; a wider terminal or {form} has all columns")

    def test_names_of_planners_after_a_comma_and_a_space(self) -> None:
        outcome = CliRunner().invoke(command_line, ["compare", SMALL, "-m", "40%", "-p", "greedy, vdnn", "--json"])
        assert outcome.exit_code == 0, outcome.output
        assert {"greedy", "vdnn"} <= set(re.findall(r"\w+", outcome.stdout))

    def test_a_frontier_without_a_link_says_so(self) -> None:
        assert "no link: nothing can be offloaded" in run(f"frontier {SMALL} -b 0 -p greedy --points 2").stdout
        assert "no link" not in run(f"frontier {SMALL} -p greedy --points 2").stdout

    def test_figures_are_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        text = run(f"frontier {SMALL} -p rotor --points 2").stdout
        assert re.search(r"^rotor +597\.6 MiB +49\.19 ms", text, re.MULTILINE)


class TestCompletion:
    def completed(self, *words: str) -> list[str]:
        environment = {
            "_MEMSCHED_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("memsched", *words)),
            "COMP_CWORD": str(len(words)),
        }
        return run("", env=environment).stdout.split()

    def test_the_shell_gets_a_function(self) -> None:
        assert "complete -o nosort -F" in run("", env={"_MEMSCHED_COMPLETE": "bash_source"}).stdout

    def test_words(self) -> None:
        assert self.completed("pl") == ["plain,place", "plain,plan", "plain,planners", "plain,plot"]
        assert "plain,--time-limit" in self.completed("plan", "--")
        assert self.completed("plan", "resnet18-224-b3") == [f"plain,{SMALL}"]
        assert self.completed("plan", "vit-224-b64") == ["plain,vit-224-b64-bf16", "plain,vit-224-b64-f32"]
        assert self.completed("plan", "x", "-p", "a") == ["plain,auto", "plain,autoswap"]
        assert self.completed("compare", "x", "-p", "a") == ["plain,auto", "plain,autoswap"]

    def test_problems_with_a_colon_as_bash_takes_them_apart(self) -> None:
        shipped = [f"plain,{name}" for name in ms.profiles.graph_names()]
        assert self.completed("plan", "graph", ":") == shipped
        assert self.completed("plan", "graph:") == [f"plain,graph:{name}" for name in ms.profiles.graph_names()]
        assert self.completed("plan", "graph", ":", "resnet18-224-b3") == [f"plain,{SMALL}"]
        assert self.completed("plan", "gra")[-1] == f"plain,graph:{ms.profiles.graph_names()[-1]}"
        assert self.completed("plan", "analytic", ":", "vgg1") == [
            "plain,vgg16:32",
            "plain,vgg19:32",
            "plain,vgg101:32",
        ]
        assert self.completed("plan", "analytic", ":", "vgg16", ":", "64", ":", "k") == ["plain,k40m"]
        assert self.completed("plan", "graph", ":", SMALL, "--pla") == ["plain,--plan-only", "plain,--planner"]

    def test_files_of_this_folder_come_after_what_is_shipped(self) -> None:
        Path("resnet18-224-b32-mine.json").write_text("{}")
        assert self.completed("plan", "resnet18-224-b3") == [f"plain,{SMALL}", "plain,resnet18-224-b32-mine.json"]
        assert self.completed("plan", "tim") == ["plain,times.csv"]

    @pytest.mark.parametrize(
        "environment",
        [
            {"COMP_WORDS": "memsched plan \udcff", "COMP_CWORD": "2"},
            {"COMP_WORDS": "memsched plan a -o \udcff", "COMP_CWORD": "4"},
            {"COMP_WORDS": "memsched plan", "COMP_CWORD": "x"},
            {},
        ],
    )
    def test_what_cannot_be_completed_is_not_told(self, environment: dict[str, str]) -> None:
        """In a process of its own, since the environment is what is broken."""
        environment = {**os.environ, "_MEMSCHED_COMPLETE": "bash_complete", **environment}
        done = subprocess.run([sys.executable, "-m", "memsched"], env=environment, capture_output=True, check=False)
        assert (done.returncode in (0, 1), done.stdout in (b"", b"file,\n"), done.stderr) == (True, True, b"")

    def test_files(self) -> None:
        for words in (("plan", "./c"), ("plan", "~/"), ("simulate", "r"), ("plan", "x", "-o", "r"), ("sweep", "s")):
            assert self.completed(*words) == [f"file,{words[-1]}"]


@pytest.mark.parametrize(
    "environment",
    [{"COLUMNS": "20"}, {"COLUMNS": "abc"}, {"COLUMNS": "-5"}, {"NO_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
)
def test_odd_environments_get_the_plan(environment: dict[str, str]) -> None:
    """In a process of its own, whose output is no terminal."""
    Path("plän €.json").write_bytes(Path("r.json").read_bytes())
    command = [sys.executable, "-m", "memsched", "simulate", "plän €.json"]
    outcome = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, b"")
    assert b"makespan" in outcome.stdout
    assert b"\x1b" not in outcome.stdout


def test_a_reader_that_has_seen_enough_ends_a_command_quietly() -> None:
    script = f"{sys.executable} -m memsched profiles | head -1; echo ${{PIPESTATUS[0]}}"
    outcome = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert outcome.stdout.startswith("profile")
    assert (outcome.stdout.splitlines()[1:], outcome.stderr) == (["0"], "")
