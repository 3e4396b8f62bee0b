"""`memsched order` and `memsched place`: what they print, what they save, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line

VGG = "graph:vgg16-224-b32"
CHAIN = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4], resident=7)
CSV = "id,lower,upper,size\na,0,2,3\nb,1,3,4\nc,2,4,3\n"


def small_graph() -> ms.Graph:
    """In the listed order its peak is 11, in the best one 10."""

    def op(name: str, reads: list[str], writes: list[str]) -> dict[str, Any]:
        choices = [{"alg": "default", "time": 1.0, "workspace": 0}]
        return {
            "name": name,
            "phase": "fwd",
            "kind": "op",
            "layer": 0,
            "reads": reads,
            "writes": writes,
            "choices": choices,
        }

    tensors = [{"name": name, "size": size, "role": "activation"} for name, size in (("a", 1), ("b", 9), ("c", 1))]
    ops = [op("A", [], ["a"]), op("B", [], ["b"]), op("C", ["b"], ["c"]), op("D", ["a", "c"], [])]
    return ms.Graph(tensors, ops, name="small")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in its own folder, with a graph, a result and a list of buffers in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("g.json").write_text(json.dumps(small_graph().to_json()))
    Path("r.json").write_text(json.dumps(ms.offload(CHAIN, M=27, beta=1).to_json()))
    Path("b.csv").write_text(CSV)
    return tmp_path


def run(*arguments: str, status: int = 0, stdin: str | None = None) -> str:
    outcome = CliRunner().invoke(command_line, list(arguments), prog_name="memsched", input=stdin)
    assert outcome.exit_code == status, outcome.output
    assert "Traceback" not in outcome.output
    return outcome.output


def fails(*arguments: str, status: int = 2, stdin: str | None = None) -> str:
    """One line, and no file more than there was."""
    before = sorted(Path().rglob("*"))
    text = run(*arguments, status=status, stdin=stdin)
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return text


class TestOrder:
    def test_report(self) -> None:
        text = run("order", "g.json")
        for word in ("order of small", "4 ops", "listed peak  11 B", "peak         10 B", "9.09 %", "proven optimal"):
            assert word in text

    def test_the_figures_are_those_of_order(self) -> None:
        for method in ("search", "listed"):
            found = ms.order(small_graph(), method=method)
            document = json.loads(run("order", "g.json", "--method", method, "--json"))
            for key in ("method", "peak_memory", "lower_bound", "optimal", "gap"):
                assert document[key] == getattr(found, key)
            assert document["order"] == list(found.order)
            assert document["listed_peak"] == 11
            assert document["reduction"] == pytest.approx(1 - found.peak_memory / 11)

    def test_what_is_proven_of_the_listed_order_is_a_gap(self) -> None:
        assert "gap 10.00 %" in run("order", "g.json", "--method", "listed")

    @pytest.mark.parametrize("problem", [VGG, "analytic:alexnet:512", "resnet18-224-b32", "g.json"])
    def test_the_saved_plan_runs_with_that_peak(self, problem: str) -> None:
        found = json.loads(run("order", problem, "-o", "p.json", "--json"))
        given = ("p.json", "--problem", problem, "--bandwidth", "0")
        simulated = json.loads(run("simulate", *given, "--json"))
        assert simulated["peak_memory"] == found["peak_memory"]
        assert json.loads(run("validate", *given, "--json"))["valid"]
        runs = [step["run"] for step in json.loads(Path("p.json").read_text())["steps"] if "run" in step]
        assert runs == found["order"]
        run("plot", *given, "--addresses", "-o", "p.svg")

    def test_kept_tensors_stay(self) -> None:
        assert json.loads(run("order", "g.json", "--keep", "b", "--keep", "c", "--json"))["peak_memory"] == 11
        run("order", "g.json", "--keep", "b", "-o", "p.json")
        assert not [step for step in json.loads(Path("p.json").read_text())["steps"] if step.get("free") == "b"]

    def test_bad_input(self) -> None:
        assert "'nope'" in fails("order", "nope")
        assert "missing.json" in fails("order", "missing.json")
        assert "'z', which is no tensor of 'small'" in fails("order", "g.json", "--keep", "z", "-o", "p.json")
        assert "one of search, ilp, published, listed" in fails("order", "g.json", "--method", "magic")
        assert "negative" in fails("order", "g.json", "--time-limit", "-1")
        assert "cannot be written" in fails("order", "g.json", "-o", "none/p.json")
        assert "memsched-result/2" in fails("order", "r.json")


class TestPlace:
    def test_report(self) -> None:
        text = run("place", "b.csv")
        for word in ("buffers        3\n", "load           7 B", "height         7 B", "proven lowest", "0.00 %"):
            assert word in text

    def test_a_list_is_saved_as_the_ending_says(self) -> None:
        assert run("place", "b.csv", "-o", "p.csv", "--plot", "p.svg").endswith("saved in p.csv\nsaved in p.svg\n")
        placed = ms.read_buffers("p.csv")
        assert ms.validate_placement(placed, [buffer.offset for buffer in placed]) == 7
        assert "3, 3 at fixed offsets" in run("place", "p.csv")
        run("place", "b.csv", "-o", "p.json", "--method", "greedy")
        assert ms.Placement.from_json("p.json").method == "greedy"
        again = json.loads(run("place", "p.json", "--json"))
        assert again["height"] == 7
        assert json.loads(run("place", "-", "--json", stdin=json.dumps(again)))["offsets"] == again["offsets"]
        assert Path("p.svg").read_text().startswith("<?xml")

    def test_a_result_is_saved_with_addresses_within_its_budget(self) -> None:
        text = run("place", "r.json", "-o", "p.json", "--plot", "p.png")
        for word in ("addresses of offload on chain", "27 B of 27 B", "makespan"):
            assert word in text
        placed = ms.Result.from_json("p.json")
        assert placed.schedule.memory == "contiguous"
        assert placed.placement is not None
        run("validate", "p.json")
        run("place", "p.json", "-o", "again.json")
        assert run("plot", "p.json", "--addresses", "-o", "again.png").endswith("saved in again.png\n")
        assert Path("p.png").read_bytes().startswith(b"\x89PNG")

    def test_the_placement_of_a_result(self) -> None:
        found = json.loads(run("place", "r.json", "--json", "--capacity", "1KiB"))
        assert ms.Placement.from_json(found).height <= 1024
        run("place", "r.json", "--alignment", "4", "--method", "greedy", "-o", "p.csv", "--plot", "p.svg")
        assert all(buffer.offset is not None and buffer.offset % 4 == 0 for buffer in ms.read_buffers("p.csv"))

    def test_what_does_not_fit_ends_with_status_3(self) -> None:
        assert "they fit in 7" in fails("place", "b.csv", "--capacity", "6", "-o", "p.csv", status=3)
        outcome = run("place", "b.csv", "--capacity", "6", "--json", status=3)
        assert json.loads(outcome.splitlines()[0])["error"]["min_memory"] == 7
        result = ms.Result.from_json("r.json")
        tight = ms.offload(CHAIN, M=27, beta=1, time_limit=0)
        Path("tight.json").write_text(json.dumps(tight.to_json()))
        assert result.peak_memory == 27
        assert "its budget is 27" in fails("place", "tight.json", "--alignment", "16", "-o", "p.json", status=3)

    def test_nothing_to_place(self) -> None:
        Path("none.csv").write_text("id,lower,upper,size\n")
        ops = [{**small_graph().ops[0], "writes": []}]
        made = ms.olla(ms.Graph([], ops, name="nothing"), M=1)
        Path("none.json").write_text(json.dumps(made.to_json()))
        for file in ("none.csv", "none.json"):
            text = run("place", file, "-o", f"p{Path(file).suffix}", "--plot", "p.svg")
            assert "height         0 B" in text

    def test_the_saved_order_of_nothing_has_a_budget(self) -> None:
        Path("zero.json").write_text(json.dumps(ms.Chain([1], [1], [0, 0], [0, 0]).to_json()))
        run("order", "zero.json", "-o", "p.json")
        assert json.loads(run("validate", "p.json", "--problem", "zero.json", "-b", "1", "--json"))["budget"] == 1
        assert "1 B" in run("frontier", "zero.json", "-b", "1")

    def test_bad_input(self) -> None:
        Path("odd.csv").write_text("colour,size\nred,1\n")
        Path("line.csv").write_text(CSV + "d,1,two,3\n")
        for file, word in (("missing.csv", "missing.csv"), ("missing", "missing"), (".", "directory")):
            assert word in fails("place", file)
        assert "'colour'" in fails("place", "odd.csv")
        assert "line 5" in fails("place", "line.csv")
        assert "memsched-graph/1" in fails("place", "g.json")
        Path("result").write_text(Path("g.json").read_text())
        assert "memsched-graph/1" in fails("place", "result")
        assert "a list of buffers, which" in fails("place", "-", stdin=CSV)
        assert "1e9" in fails("place", "b.csv", "--capacity", "lots")
        assert "negative" in fails("place", "b.csv", "--time-limit", "-1")
        assert "--alignment" in fails("place", "b.csv", "--alignment", "4")
        assert "alignment is 0; it must be a whole number from 1" in fails("place", "r.json", "--alignment", "0")
        assert "one of search, greedy, ilp" in fails("place", "b.csv", "--method", "magic")
        assert "must end in .json or .csv" in fails("place", "b.csv", "-o", "p.txt")
        assert ".png, .svg, .pdf" in fails("place", "b.csv", "-o", "p.csv", "--plot", "p.gif")
        assert "cannot be written" in fails("place", "b.csv", "-o", "none/p.csv")
        assert "cannot be written" in fails("place", "b.csv", "-o", "p.csv", "--plot", "none/p.png")
        for option in (("--capacity", "1KiB"), ("--method", "greedy")):
            assert "within its budget" in fails("place", "r.json", "-o", "p.json", *option)
        assert "are 2 pictures" in fails("plot", "r.json", "--classes", "--addresses", "-o", "p.png")
        assert "are 3 pictures" in fails("plot", "r.json", "--kinds", "--classes", "--addresses", "-o", "p.png")
