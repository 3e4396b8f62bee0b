"""The command line for those who do not know it yet: warnings, defaults, files of others, and forms of output."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import memsched as ms
from memsched.cli import show
from memsched.cli.app import command_line
from memsched.planners.registry import PLANNERS
from memsched.problems.machines import DEFAULT_LINK_FROM, LINKS

SMALL = "resnet18-224-b32"
CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
TABLE = "name,forward_time,backward_time,activation\nx,,,4MiB\nconv,1 ms,2 ms,6MiB\nfc,2 ms,3 ms,5MiB\n"
SPEC = f"""problems = ["{SMALL}"]\nplanners = ["greedy", "rotor"]\nmemory = ["30%", "60%"]\n"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in its own folder, with some inputs in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("c.json").write_text(json.dumps(CHAIN.to_json()))
    Path("g.json").write_text(json.dumps(ms.to_graph(CHAIN).to_json()))
    Path("times.csv").write_text(TABLE)
    Path("spec.toml").write_text(SPEC)
    Path("r.json").write_text(json.dumps(ms.greedy(CHAIN, 24, 2.0).to_json()))
    return tmp_path


def run(line: str, status: int = 0, **more: Any) -> Result:
    outcome = CliRunner().invoke(command_line, line.split(), prog_name="memsched", **more)
    assert outcome.exit_code == status, outcome.output
    return outcome


class TestLink:
    @pytest.mark.parametrize(
        "command", ["plan {} -m 40% -p greedy", "compare {} -m 40% -p greedy", "frontier {} -p rotor"]
    )
    def test_a_slow_link_is_told_once_in_one_line(self, command: str) -> None:
        with pytest.warns(UserWarning, match="beta is 12 B/s") as told:
            ms.greedy(ms.profiles.load(SMALL), "40%", 12)
        outcome = run(command.format(SMALL) + " -b 12 --json")
        assert outcome.stderr == f"warning: {told[0].message}\n".replace("beta", "--bandwidth")
        assert json.loads(outcome.stdout)
        assert run(command.format(SMALL) + " -b 12GB/s").stderr == ""

    def test_a_saved_plan_on_a_slow_link(self) -> None:
        run(f"plan {SMALL} -m 40% -p greedy -o s.json")
        assert run("simulate s.json").stderr == ""
        assert run("simulate s.json -b 12").stderr.startswith("warning: --bandwidth is 12 B/s, which takes ")

    def test_the_default_is_measured_and_says_so(self) -> None:
        source = LINKS["pcie3"].source
        assert all(words in source for words in ("measured in the Euro-Par 2020 paper", "PCIe 3.0 x16"))
        for file in ("c.json", "g.json"):
            text = " ".join(run(f"plan {file} -m 24 -p selective").stdout.split())
            assert f"12.2 GB/s, one direction at a time (default: {DEFAULT_LINK_FROM})" in text
        document = json.loads(run("compare c.json -m 24 -p vdnn --json").stdout)
        assert (document["bandwidth_from"], document["device"]["d2h"]) == (f"default: {DEFAULT_LINK_FROM}", 12.2e9)
        assert ms.plan(CHAIN, 29, planner="vdnn").device.d2h == 0

    @pytest.mark.parametrize("more", ["", "[device]\nduplex = true\n", 'bandwidth = ["profile"]\n'])
    def test_a_sweep_says_that_it_takes_the_default(self, more: str) -> None:
        Path("own.toml").write_text('problems = ["c.json"]\nplanners = ["greedy"]\nmemory = [24]\n' + more)
        outcome = run("sweep own.toml --json")
        assert json.loads(outcome.stdout)["rows"][0]["bandwidth"] == 12.2e9
        assert outcome.stderr.startswith("warning: chain has no link of its own")
        assert DEFAULT_LINK_FROM in outcome.stderr

    def test_a_sweep_on_a_slow_link(self) -> None:
        Path("spec.toml").write_text(SPEC + "bandwidth = [12]\n")
        outcome = run("sweep spec.toml --json")
        assert outcome.stderr.startswith("warning: a bandwidth of the sweep is 12 B/s, which takes ")
        assert outcome.stderr.count("\n") == 1
        assert run("sweep spec.toml --json -q").stderr == ""


class TestUnits:
    def test_a_plan_is_told_in_the_unit_of_its_memory(self) -> None:
        peak = json.loads(run(f"plan {SMALL} -m 700MB -p greedy -o s.json --json").stdout)["timeline"]["peak_memory"]
        for command in (f"plan {SMALL} -m 700MB -p greedy", "simulate s.json -m 700MB", "validate s.json -m 700MB"):
            assert f"{peak / 1e6:.1f} MB ({peak:,} bytes) of 700 MB (700,000,000 bytes)" in run(command).stdout
        assert re.search(r"of 40% \(666 MiB, [\d,]+ bytes\)", run(f"plan {SMALL} -m 40% -p greedy").stdout)
        assert "memory   0.7 GB (700,000,000 bytes)" in run(f"compare {SMALL} -m 0.7gb -p greedy").stdout

    @pytest.mark.parametrize("command", ["plan", "plan -p greedy", "compare -p greedy"])
    def test_so_is_what_it_needs(self, command: str) -> None:
        name, *options = command.split()
        text = run(f"{name} {SMALL} -m 6MB {' '.join(options)}", status=3).stderr
        assert "6 MB (6,000,000 bytes)" in text
        assert re.search(r"needs at least 607.4 MB \(607,359,968 bytes\)(, 93.6 MB of it resident)?\n$", text)

    def test_no_memory_is_no_missing_option(self) -> None:
        assert "--memory is '0B'; it must be more than 0 bytes" in run(f"plan {SMALL} -m 0B", status=2).stderr


class TestFilesOfOthers:
    def test_a_plan_of_a_model_is_its_result(self) -> None:
        document = {"format": "memsched-torch-plan/2", "result": json.loads(Path("r.json").read_text())}
        Path("model.json").write_text(json.dumps(document))
        for command in ("simulate {} --json", "validate {} --json", "place {} --json", "trace {} -o t.json --json"):
            told = [json.loads(run(command.format(file)).stdout) for file in ("model.json", "r.json")]
            for one in told:
                one.pop("runtime", None)
            assert told[0] == told[1]
        run("plot model.json -o x.png")
        said = "'model.json' is a plan of a PyTorch model (format 'memsched-torch-plan/2'), which "
        assert said in run("plan model.json -m 40%", status=2).stderr
        for inner in ("r.json", None, {}):
            Path("model.json").write_text(json.dumps({**document, "result": inner}))
            assert run("validate model.json", status=2).stderr.startswith("error: result of 'model.json'")

    def test_a_chain_from_csv(self) -> None:
        assert "vdnn on times" in run("plan times.csv -m 100% -p vdnn").stdout
        assert json.loads(run("order times.csv --json").stdout)["problem"] == "times"
        run("trace times.csv -m 100% -p vdnn -o t.json")
        Path("own.toml").write_text(
            'problems = ["./times.csv"]\nplanners = ["vdnn"]\nmemory = ["100%"]\nbandwidth = [1e9]\n'
        )
        assert json.loads(run("sweep own.toml -o t.csv --json").stdout)["planned"] == 1

    def test_it_is_not_replaced(self) -> None:
        assert "is an input" in run("compare times.csv -m 40% -o times.csv", status=2).output
        assert Path("times.csv").read_text() == TABLE

    def test_bad_ones_are_named(self) -> None:
        Path("bad.csv").write_text("layer,forward,backward\nconv1,0.1,0.2\n")
        assert "'bad.csv' has the unknown columns" in run("plan bad.csv -m 40%", status=2).output
        assert "'none.csv' cannot be read" in run("plan none.csv -m 40%", status=2).output

    def test_a_graph_from_onnx(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths: list[str] = []

        def read(path: str, dims: dict[str, int]) -> ms.Graph:
            paths.append(path)
            return ms.to_graph(CHAIN)

        monkeypatch.setattr("memsched.readers.onnx.model.graph_from_onnx", read)
        assert json.loads(run("order Net.ONNX --json").stdout)["peak_memory"] == ms.peak_memory(CHAIN)
        assert paths == ["Net.ONNX"]


@pytest.mark.parametrize("name", ["x.pdf", "x", "x.html.gz"])
def test_a_report_is_html(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsched.cli.report.write_report", lambda *_, **__: pytest.fail("worked"))
    text = run(f"report r.json -o {name}", status=2).output
    assert text == f"error: the output is '{name}'; a report is a page of HTML, which ends in .html or .htm\n"


class TestForms:
    @pytest.mark.parametrize(
        ("command", "saved"),
        [
            ("plan c.json -m 24 -b 2 -p greedy", "-o x.json"),
            ("compare c.json -m 24 -b 2 -p greedy", "-o x.json"),
            ("frontier c.json -b 2 -p greedy --points 2", "-o x.png"),
            ("order c.json", "-o x.json"),
            ("place r.json", "-o x.csv"),
            ("trace r.json", "-o x.json"),
            ("sweep spec.toml", "-o x.csv"),
            ("simulate r.json", ""),
            ("validate r.json", ""),
            ("profiles resnet101", ""),
            ("place r.json --alignment 4KiB", "-o y.csv"),
        ],
    )
    def test_quiet_says_nothing_and_saves(self, command: str, saved: str) -> None:
        assert run(f"{command} -q {saved}").output == ""
        assert not saved or Path(saved.split()[-1]).stat().st_size > 0

    def test_quiet_tells_errors_and_what_is_asked_for(self) -> None:
        assert run("plan c.json -m 3 -b 2 -p greedy -q", status=3).output.startswith("error: ")
        outcome = run(f"plan {SMALL} -m 40% -b 12 -p greedy -q --json")
        assert outcome.stderr == ""
        assert json.loads(outcome.stdout)["planner"] == "greedy"

    def rows(self, command: str) -> list[dict[str, str]]:
        outcome = run(f"{command} --csv")
        assert outcome.stderr == ""
        return list(csv.DictReader(io.StringIO(outcome.stdout)))

    def test_csv_of_compare(self) -> None:
        vdnn, rotor = self.rows("compare c.json -m 24 -b 2 -p vdnn -p rotor")
        assert (vdnn["planner"], vdnn["status"], vdnn["min_memory_bytes"]) == ("vdnn", "planned", "")
        assert float(vdnn["makespan_seconds"]) == ms.vdnn(CHAIN, 24, 2.0).makespan
        assert int(vdnn["peak_memory_bytes"]) <= 24
        assert int(vdnn["bytes_out"]) == ms.vdnn(CHAIN, 24, 2.0).timeline.bytes_out
        assert (rotor["status"], rotor["min_memory_bytes"], rotor["makespan_seconds"]) == ("infeasible", "26", "")

    def test_csv_of_frontier(self) -> None:
        rows = self.rows("frontier c.json -b 2 -p rotor -p vdnn --points 2")
        assert [(row["planner"], row["memory_bytes"]) for row in rows] == [
            (name, memory) for name in ("rotor", "vdnn") for memory in ("22", "26", "29")
        ]
        assert rows[0]["makespan_seconds"] == ""
        assert (float(rows[-1]["makespan_seconds"]), rows[-1]["optimal"]) == (8, "True")

    @pytest.mark.parametrize("memory", ["22", "26", "29"])
    def test_tables_have_the_same_columns_whoever_has_a_plan(self, memory: str) -> None:
        """The columns once began with those of the first planner."""
        run(f"compare c.json -m {memory} -b 2 -p rotor -p vdnn -o saved.csv")
        planners = ms.compare(CHAIN, int(memory), 2.0, planners=["rotor", "vdnn"])
        planners.to_csv("own.csv")
        printed = run(f"compare c.json -m {memory} -b 2 -p rotor -p vdnn --csv").stdout
        heads = {
            text.partition("\n")[0] for text in (printed, Path("saved.csv").read_text(), Path("own.csv").read_text())
        }
        assert heads == {",".join(self.rows("compare c.json -m 29 -b 2 -p vdnn")[0])}
        curve = ms.frontier(CHAIN, 2.0, planner="rotor", points=2)
        curve.to_csv("curve.csv")
        printed = run("frontier c.json -b 2 -p vdnn -p rotor --points 2 --csv").stdout
        assert printed.partition("\n")[0] == Path("curve.csv").read_text().partition("\n")[0]

    def test_csv_of_profiles(self) -> None:
        rows = {row["name"]: row for row in self.rows("profiles 224-b")}
        assert int(rows[SMALL]["peak_memory_bytes"]) == ms.peak_memory(ms.profiles.load(SMALL))
        assert float(rows[SMALL]["link_bandwidth_bytes_per_second"]) == 12.2e9
        assert rows["vit-224-b64-bf16"]["stages"] == rows[SMALL]["ops"] == ""

    def test_csv_of_a_sweep(self) -> None:
        rows = self.rows("sweep spec.toml --store s.sqlite")
        assert len(rows) == 4
        kept = {row["key"]: row for row in ms.read_store("s.sqlite")}
        for row in rows:
            known = kept[row["key"]]
            assert (row["planner"], row["memory_bytes"]) == (known["planner"], str(known["memory"]))
            assert float(row["makespan_seconds"]) == known["makespan"]
            assert float(row["bandwidth_bytes_per_second"]) == 12.2e9
            assert float(row["ideal_seconds"]) == known["ideal"]
            assert json.loads(row["device"]) == known["device"]

    def test_one_form_at_a_time(self) -> None:
        for both in ("--json --csv", "--csv --json"):
            outcome = run(f"profiles {both}", status=2)
            assert outcome.stderr.startswith("error: give --json or --csv, not both")

    @pytest.mark.parametrize(
        ("line", "word"),
        [
            ("plan --json", "PROBLEM is missing"),
            (f"plan {SMALL} --json", "--memory"),
            (f"plan {SMALL} --memroy 40% --json", "--memroy"),
            ("plann x --json", "'plan'"),
            ("--bogus --json", "--bogus"),
            (f"compare {SMALL} --json --csv", "not both"),
            (f"plan {SMALL} -m lots --json", "lots"),
            ("report r.json --json -o x.pdf", ".html"),
        ],
    )
    def test_json_tells_bad_usage_too(self, line: str, word: str) -> None:
        outcome = run(line, status=2)
        told = json.loads(outcome.stdout)["error"]
        assert told["kind"] in ("UsageError", "InvalidInputError")
        assert word in told["message"]
        assert outcome.stderr == f"error: {told['message']}\n"


@pytest.mark.parametrize("command", ["plan", "compare", "frontier", "plot -o x.png"])
def test_a_mistyped_planner_is_recognised(command: str) -> None:
    memory = "" if command == "frontier" else "-m 40%"
    assert "did you mean 'dynprog'?" in run(f"{command} {SMALL} {memory} -p dynprg", status=2).output


class TestLive:
    @pytest.fixture
    def said(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What the live line says, as if on a terminal."""
        lines: list[str] = []

        @contextmanager
        def working(text: str) -> Iterator[Callable[[str], None]]:
            lines.append(text)
            yield lines.append

        for place in ("memsched.cli.show", "memsched.cli.plan"):
            monkeypatch.setattr(sys.modules[place], "working", working)
        return lines

    def test_the_best_plan_so_far(self, said: list[str]) -> None:
        run("compare c.json -m 24 -b 2 -p greedy -p rotor -p vdnn")
        assert said[:2] == ["planning", "greedy"]
        best = "best greedy 18 s, bound 10.5 s, gap 71.43 %"
        assert f"{best}; rotor" in said
        assert f"{best}; vdnn" in said

    def test_the_plan_is_the_same(self, said: list[str]) -> None:
        watched = ms.Result.from_json(json.loads(run(f"plan {SMALL} -m 40% --json").stdout))
        assert watched.schedule == ms.plan(ms.profiles.load(SMALL), "40%", 12.2e9).schedule
        assert said[0] == "planning: auto"
        assert any(re.fullmatch(r"best .*, bound .*, gap .* %; autoswap, \d+%", line) for line in said)

    def test_the_line_fits_and_moves_on(self, said: list[str]) -> None:
        """It was cut at 80 columns where the gap began, and stayed at "selective, 0%" until the end."""
        run(f"plan {SMALL} -m 5%")
        assert max(map(len, said)) <= 80 - len("/  0:00:00")
        assert not any(line.endswith(" 0%") for line in said)
        assert said[-1].endswith("; smaller devices")

    def test_nothing_is_live_without_a_terminal_or_when_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not show.live()
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        assert show.live()
        context = command_line.make_context("memsched", ["plan"])
        with context:
            context.meta["memsched.quiet"] = True
            assert not show.live()


@pytest.mark.parametrize("name", ["plan.png", "plan.SVG", "plan.html"])
@pytest.mark.parametrize(
    "command",
    [
        f"plan {SMALL} -m 40%",
        f"compare {SMALL} -m 40% -p greedy",
        "order g.json",
        "trace r.json",
        "profile --model torchvision:alexnet --device v100",
    ],
)
def test_a_document_is_not_written_over_a_picture(command: str, name: str) -> None:
    Path(name).write_text("a picture")
    assert "would hold JSON" in run(f"{command} -o {name}", status=2).stderr
    assert Path(name).read_text() == "a picture"


def test_a_share_of_a_byte_was_meant_as_percent() -> None:
    assert 'less than a byte; did you mean "40%"?' in run(f"plan {SMALL} -m 0.4", status=2).stderr


def test_rows_of_a_sweep_need_no_file() -> None:
    rows = list(csv.DictReader(io.StringIO(run("sweep spec.toml --csv").stdout)))
    assert len({(row["planner"], row["memory_bytes"]) for row in rows}) == len(rows) == 4
    assert len(json.loads(run("sweep spec.toml --json").stdout)["rows"]) == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"plan {SMALL} 40%", "a memory is written --memory 40%"),
        (f"plan {SMALL} 8GiB", "a memory is written --memory 8GiB"),
        (f"plan {SMALL}.json -m 40%", f"there is no file '{SMALL}.json'; the shipped profile is {SMALL}"),
        (f"plan {SMALL.upper()} -m 40%", f"similar names: {SMALL}"),
        ("trace r.json -o trace.html", "'trace.html' would hold JSON"),
        ("plan r.json -m 40%", "'r.json' is a result (format 'memsched-result/2'), which Result.load and"),
        ("simulate c.json", "'c.json' is a chain (format 'memsched-chain/1'), which Chain.load and"),
        ("plan . -m 40%", "it is a directory"),
        ("help nosuch", "there is no command 'nosuch'; the commands are compare"),
        (f"plan {SMALL} -m 40% --output=", "the name of the file to write is empty"),
        ("report . -o x.html", "'.' is not a file"),
    ],
)
def test_mistakes_of_a_first_command(line: str, words: str) -> None:
    before = sorted(Path().iterdir())
    text = run(line, status=2).stderr
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert words in text
    assert sorted(Path().iterdir()) == before


def test_planners_may_have_commas() -> None:
    rows = json.loads(run("compare c.json -m 24 -b 2 -p greedy,vdnn -p rotor --json").stdout)["planners"]
    assert list(rows) == ["greedy", "vdnn", "rotor"]


class TestMemoryInPlaceOfAnother:
    @pytest.mark.parametrize("memory", ["-m 40% -m 50%", "-m 40%,60%", "--memory 1GiB,2GiB"])
    def test_several_memories_are_for_frontier(self, memory: str) -> None:
        """The last was taken in silence."""
        assert "'memsched frontier' plans for many" in run(f"compare {SMALL} {memory}", status=2).output

    @pytest.mark.parametrize("command", ["simulate", "validate"])
    def test_what_a_saved_plan_needs_is_told(self, command: str) -> None:
        run(f"plan {SMALL} -m 40% -p greedy --plan-only plan.json -o result.json -q")
        needed = ms.validate(ms.Result.load("result.json")).logical_peak
        for file in (f"plan.json --problem {SMALL}", "result.json"):
            told = run(f"{command} {file} -m 600MiB", status=4).output
            assert f"{needed:,} bytes), more than 600 MiB (629,145,600 bytes); give it that" in told
            assert "the plan needs 33.99% (" in run(f"{command} {file} -m 10%", status=4).output
            run(f"{command} {file} -m {needed}")

    def test_one_comparison_has_one_unit(self) -> None:
        assert "fits in 56.43%" in run(f"compare {SMALL} -m 40% -p greedy,tflms").output


def test_a_memory_snapshot_is_placed() -> None:
    trace = [{"action": "alloc", "addr": 512, "size": 400, "stream": 0, "frames": []}]
    Path("snap").write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    assert "buffers        1\n" in run("place snap").output
    Path("bad").write_bytes(pickle.dumps(Path("x")))
    assert "'bad' " in run("place bad", status=2).output


def test_buffers_without_a_name_are_told() -> None:
    run("plan resnet101-224-b32 -m 40% -p greedy -o result.json -q")
    placed = json.loads(run("place result.json --json --time-limit 0.1").stdout)["buffers"]
    nameless = sum(one["name"] is None for one in placed)
    assert 0 < nameless < len(placed)
    told = run("place result.json --time-limit 0.1").output
    kinds = f"{len(placed) - nameless} tensors, {nameless} workspaces"
    assert f"buffers        {len(placed)}: {kinds}, 1 at a fixed offset\n" in told


def test_the_list_of_commands_is_of_whole_sentences() -> None:
    commands = run("--help").output.partition("Commands:")[2].splitlines()
    assert not [line for line in commands if line.endswith("...")]


def test_planners_are_listed() -> None:
    rows = json.loads(run("planners --json").stdout)
    assert [row["name"] for row in rows] == list(PLANNERS)
    assert all(row["summary"] and set(row["problems"].split()) <= {"chain", "graph"} for row in rows)
    shown = run("planners").stdout
    assert all(f"\n{name} " in shown for name in PLANNERS)
    assert run("planners --csv").stdout.startswith("name,problems,summary\n")


def test_one_planner_has_its_bound_explained() -> None:
    assert "gap: to the bound on plans that run each op once" in run("compare resnet18-224-b32 -m 40% -p greedy").stdout
    said = run("frontier resnet18-224-b32 -b 12GB/s --points 2 -p greedy").stdout
    assert "gap: to the bound on plans that run each op once" in said
    assert "rotor" not in said


def test_a_sweep_shows_its_table_though_nothing_is_kept() -> None:
    outcome = run("sweep spec.toml")
    assert "nothing is kept but the table below; --store FILE keeps each point" in outcome.stderr
    assert re.search(r"^rotor +2 +2 ", outcome.stdout, re.MULTILINE)
    Path("spec.toml").write_text(SPEC.replace('"30%"', '"0%"').replace("rotor", "tflms"))
    said = " ".join(run("sweep spec.toml").stdout.split())
    assert "some have fewer than 2, at other points: tflms 1; best compares point by point" in said


def test_memories_in_tables_are_enough_where_they_are_typed() -> None:
    """A planner was said to fit in 1.05 GiB, and needed 1.051."""
    told = re.search(
        r"^pofo .*fits in ([\d.]+) (\w+)$", run("compare resnet101-224-b32 -m 1GiB -p pofo", 3).stdout, re.M
    )
    assert told is not None
    run(f"plan resnet101-224-b32 -p pofo -m {told[1]}{told[2]}")
    first = re.search(r"^rotor +([\d.]+) (\w+)", run(f"frontier {SMALL} -p rotor --points 2").stdout, re.M)
    assert first is not None
    run(f"plan {SMALL} -p rotor -m {first[1]}{first[2]}")


def test_a_frontier_says_why_it_has_more_points() -> None:
    said = run(f"frontier {SMALL} -p rotor,offload --points 3").stdout
    assert "3 memories at equal distances, and the least memory of each planner" in said
    assert "equal distances" not in run(f"frontier {SMALL} -p rotor --points 3").stdout
