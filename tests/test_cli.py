"""The command line: every command, what it prints, what it saves, and how it ends."""

from __future__ import annotations

import builtins
import csv
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import memsched as ms
from memsched.cli import main
from memsched.cli.app import command_line

SMALL = "resnet18-224-b32"
CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
COMMANDS = (
    *(
        "compare",
        "plan",
        "frontier",
        "sweep",
        "order",
        "place",
        "profile",
        "simulate",
        "validate",
        "profiles",
        "plot",
        "trace",
        "report",
        "doctor",
    ),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in its own folder, with a chain and a device in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("c.json").write_text(json.dumps(CHAIN.to_json()))
    Path("d.json").write_text(json.dumps(ms.Device(24, bandwidth=2.0).to_json()))
    return tmp_path


def run(*arguments: str, status: int = 0, stdin: str | None = None) -> Result:
    outcome = CliRunner().invoke(command_line, list(arguments), prog_name="memsched", input=stdin)
    assert outcome.exit_code == status, outcome.output
    assert "Traceback" not in outcome.output
    assert "\x1b" not in outcome.output
    return outcome


def run_json(*arguments: str, status: int = 0, stdin: str | None = None) -> Any:
    """With status 0, all of stdout and stderr is one line of JSON."""
    outcome = run(*arguments, "--json", status=status, stdin=stdin)
    text = outcome.output if status == 0 else outcome.output.splitlines()[0]
    return json.loads(text)


def fails(*arguments: str, status: int = 2, stdin: str | None = None) -> str:
    """One line on stderr, nothing else."""
    text = run(*arguments, status=status, stdin=stdin).output
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_a_result_and_its_plan_are_two_files(tmp_path: Path) -> None:
    """The bare plan replaced the result, and both were said to be saved."""
    path = tmp_path / "x.json"
    said = fails("plan", SMALL, "-p", "greedy", "-m", "40%", "-o", str(path), "--plan-only", str(path))
    assert f"'{path}' is given twice" in said
    assert not path.exists()


@pytest.mark.parametrize(
    "command",
    [
        "plan {} -m 40% -b 0 -o {}",
        "plan {} -m 40% -b 0 --plan-only {}",
        "plan gpt2-1024-b8 --device {} -o {}",
        "compare {} -m 40% -b 0 -o {}",
        "order {} -o {}",
        "trace {} -m 40% -b 0 -o {}",
        "place {} -o {}",
    ],
)
def test_an_input_is_not_replaced(tmp_path: Path, command: str) -> None:
    """`trace result.json -o result.json` left a trace and no result."""
    path, link = tmp_path / "x.json", tmp_path / "link.json"
    path.write_text("{}")
    link.symlink_to(path)
    said = fails(*command.format(path, link).split())
    assert "is an input" in said
    assert path.read_text() == "{}"


@pytest.mark.parametrize(("name", "option"), [("x.csv", "-o"), ("x.png", "--plot")])
def test_buffers_are_not_replaced(tmp_path: Path, name: str, option: str) -> None:
    path, buffers = tmp_path / name, "id,lower,upper,size\na,0,2,3\n"
    path.write_text(buffers)
    assert "is an input" in fails("place", str(path), option, str(path))
    assert path.read_text() == buffers


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A real process; `memsched` is this interpreter's."""
    line = command.replace("memsched", f'"{sys.executable}" -W error -m memsched')
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


class TestProgram:
    def test_a_closed_input_is_named(self) -> None:
        outcome = shell("memsched plan - -m 40% <&-")
        assert outcome.returncode == 2
        assert outcome.stderr == "error: the standard input cannot be read: it is closed\n"

    @pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
    def test_a_name_that_the_terminal_cannot_show_is_escaped(self, encoding: str) -> None:
        named = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4], name="\u6a21\u578b")
        Path("n.json").write_text(json.dumps(named.to_json()))
        outcome = shell("memsched plan n.json -m 18 -b 8 -p greedy", PYTHONIOENCODING=encoding)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert "u6a21" in outcome.stdout

    def test_a_terminal_that_does_not_know_its_width_shows_something(self) -> None:
        assert SMALL in shell(f"memsched profiles {SMALL}", COLUMNS="0").stdout

    def test_version_and_help(self) -> None:
        assert run("--version").output == f"memsched {ms.__version__}\n"
        assert run().output == run("--help").output == run("-h").output
        for name in COMMANDS:
            assert name in run("--help").output
            assert "--json" in run(name, "--help").output
        assert "Exit status" in run("--help").output

    def test_bad_usage_is_one_line_and_says_where_the_help_is(self) -> None:
        assert "see 'memsched --help'" in fails("--bogus")
        assert "comprae" in fails("comprae", "x")
        assert "see 'memsched plan --help'" in fails("plan")
        assert "--memory" in fails("plan", SMALL, "--memroy", "40%")
        assert "--output" in fails("plot", SMALL, "-m", "40%")

    def test_as_a_process_it_prints_plainly(self) -> None:
        outcome = shell(f"memsched compare {SMALL} -m 40% -p greedy", COLUMNS="80", TERM="xterm-256color")
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert "\x1b" not in outcome.stdout
        assert max(map(len, outcome.stdout.splitlines())) <= 80

    def test_an_ascii_terminal_is_served(self) -> None:
        outcome = shell("memsched profiles resnet18", PYTHONIOENCODING="ascii")
        assert (outcome.returncode, outcome.stderr) == (0, "")

    @pytest.mark.parametrize("command", ["memsched profiles --json", "memsched --help"])
    def test_a_reader_that_leaves_early_is_no_error(self, command: str) -> None:
        outcome = shell(f"exec 3>&1; {{ {command} 2>&3; }} | true")
        assert outcome.stdout == outcome.stderr == ""

    def test_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("memsched.cli.plan.best_plan", interrupt)
        assert run("plan", SMALL, "-m", "40%", status=130).output == "error: interrupted\n"
        monkeypatch.setattr("memsched.cli.app.as_typed", interrupt)  # while an error is told
        assert run("simulate", SMALL, "-m", "10MiB", status=130).output == "error: interrupted\n"

    def test_interrupt_while_modules_are_loaded(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Python before 3.12 makes a RuntimeError of it where a class is made."""

        class Loading(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                try:
                    raise KeyboardInterrupt
                except KeyboardInterrupt as error:
                    raise RuntimeError("Error calling __set_name__") from error

        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setitem(sys.modules, "memsched.cli.app", Loading("memsched.cli.app"))
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGINT, before)
        assert (ended.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")

    def test_limits_and_a_full_disk_are_errors_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for error in (
            ms.LimitError("too many\nstates"),
            MemoryError(),
            OSError(28, "No space left on device"),
        ):

            def stop(*_: Any, error: BaseException = error, **__: Any) -> None:
                raise error

            monkeypatch.setattr("memsched.cli.plan.best_plan", stop)
            fails("plan", SMALL, "-m", "40%", status=1)

    def test_without_click_one_sentence_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        original = builtins.__import__

        def refuse(name: str, *args: Any, **options: Any) -> Any:
            if name == "click":
                raise ImportError(name, name=name)
            return original(name, *args, **options)

        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert capsys.readouterr().err == "error: the command line needs click; pip install 'memsched[cli]'\n"


class TestProfiles:
    def test_table_filter_and_json(self) -> None:
        text = run("profiles").output
        assert all(name in text for name in ms.profiles.graph_names())
        table = run("profiles", "RESNET18").output
        assert "resnet18-224-b32" in table
        assert "resnet34" not in table
        entries = run_json("profiles", "resnet18")
        chosen = next(entry for entry in entries if entry["name"] == SMALL)
        chain = ms.profiles.load(SMALL)
        assert chosen["stages"] == chain.n
        assert chosen["min_memory"] == ms.min_memory(chain)
        assert chosen["peak_memory"] == ms.peak_memory(chain)

    def test_graphs_without_a_chain(self) -> None:
        name = "vit-224-b64-bf16"
        (entry,) = run_json("profiles", "VIT-224-b64-bf16")
        graph = ms.profiles.load_graph(name)
        assert (entry["name"], entry["ops"]) == (name, len(graph.ops))
        assert entry["min_memory"] == ms.min_memory(graph)
        assert entry["peak_memory"] == ms.peak_memory(graph)
        assert entry["compute_time"] == pytest.approx(sum(op["choices"][0]["time"] for op in graph.ops))
        given = ("-m", "100%", "-b", "inf", "-p", "swap_all")
        alone, prefixed = (run_json("plan", source, *given) for source in (name, f"graph:{name}"))
        assert alone["problem"] == prefixed["problem"] == graph.to_json()

    def test_no_match(self) -> None:
        assert "'alexnet'" in fails("profiles", "alexnet")


class TestCompare:
    def test_every_planner_has_a_row(self) -> None:
        text = run("compare", SMALL, "--memory", "40%", "--time-limit", "0.05").output
        document = run_json("compare", SMALL, "--memory", "40%", "--time-limit", "0.05", "-o", "figures.json")
        for name, outcome in document["planners"].items():
            row = next(line for line in text.splitlines() if line.startswith(name))
            if outcome["status"] == "infeasible":
                assert "no plan" in row
                assert outcome["min_memory"] > document["memory"]
            else:
                bound = document["bounds"]["recompute" if name in ("pofo", "rotor") else "best"]
                assert outcome["lower_bound"] == pytest.approx(bound)
                assert outcome["makespan"] >= bound * (1 - 1e-9)
        assert "12.2 GB/s" in text
        assert "the profile's link_bandwidth" in text
        assert document["not_asked"] == ms.not_asked(ms.profiles.load(SMALL))
        assert all(name in text for name in document["not_asked"])
        assert document["memory_percent"] == pytest.approx(40)
        assert json.loads(Path("figures.json").read_text())["problem"] == SMALL
        best = document["planners"][document["best"]]["makespan"]
        assert best == min(one["makespan"] for one in document["planners"].values() if "makespan" in one)

    def test_chosen_planners_and_a_device_file(self) -> None:
        given = ("compare", "c.json", "--device", "d.json", "-p", "vdnn", "-p", "greedy", "-p", "vdnn")
        document = run_json(*given)
        assert list(document["planners"]) == ["vdnn", "greedy"]
        assert document["device"]["memory"] == 24
        assert document["bandwidth_from"] == "'d.json'"
        document = run_json(*given, "-m", "100%", "-b", "3", "--duplex", "--latency", "1ms", "--host-memory", "1kB")
        assert document["memory"] == 29
        device = document["device"]
        assert (device["d2h"], device["h2d"], device["duplex"]) == (3, 3, True)
        assert (device["latency"], device["host_memory"]) == (0.001, 1000)

    def test_rows_call_an_error_as_all_other_tables_do(self) -> None:
        run("compare", "resnet101-224-b32", "-m", "40%", "-p", "tflms", "-p", "greedy", "-o", "x.csv")
        with open("x.csv", encoding="utf-8", newline="") as file:
            rows = {row["planner"]: row for row in csv.DictReader(file)}
        assert "message" not in rows["tflms"]
        assert "tflms has no plan" in rows["tflms"]["error"]
        assert rows["greedy"]["error"] == ""

    def test_no_planner_has_a_plan(self) -> None:
        outcome = run("compare", "c.json", "-m", "3", "-b", "1", status=3)
        assert "fits in 22 B" in outcome.output
        for planner, memory in (("tflms", "1.2GB"), ("tflms", "40%")):
            text = run("compare", "resnet101-224-b32", "-m", memory, "-p", planner, "-p", "greedy").output
            needed = re.search(rf"{planner} +no plan +fits in (\S+(?: \S+)?)\n", text)
            assert needed is not None
            assert needed[1].endswith(memory[-1])
            typed = needed[1].replace(" ", "")
            assert "no plan" not in run("compare", "resnet101-224-b32", "-m", typed, "-p", planner).output
        assert "error: no planner has a plan" in outcome.output
        document = run_json("compare", "c.json", "-m", "25", "-b", "0", status=3)
        assert document["best"] is None
        assert document["bounds"]["best"] == "inf"

    def test_one_plan_is_enough_for_success(self) -> None:
        document = run_json("compare", "c.json", "-m", "24", "-b", "inf", "-p", "greedy", "-p", "dynprog")
        assert {one["status"] for one in document["planners"].values()} == {"planned", "infeasible"}

    def test_a_planner_that_gives_up_is_a_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outcomes = ms.Comparison(greedy=ms.greedy(CHAIN, 24, 2.0), dynprog=ms.LimitError("raise max_states"))
        monkeypatch.setattr("memsched.cli.compare.run_planners", lambda *_, **__: outcomes)
        text = run("compare", "c.json", "-m", "24", "-b", "2").output
        assert "dynprog failed: raise max_states" in text
        assert run_json("compare", "c.json", "-m", "24", "-b", "2")["planners"]["dynprog"]["status"] == "failed"

    def test_bad_input(self) -> None:
        assert "resnet18-1000-b2" in fails("compare", "resnet18-1", "-m", "40%")
        assert "missing.json" in fails("compare", "missing.json", "-m", "40%")
        assert "--memory is missing" in fails("compare", SMALL)
        assert "'-40%', which is negative" in fails("compare", SMALL, "-m", "-40%")
        assert "8GiB" in fails("compare", SMALL, "-m", "lots")
        assert "'0'" in fails("compare", SMALL, "-m", "0")
        assert "12GB/s" in fails("compare", SMALL, "-m", "40%", "-b", "fast")
        assert "offload" in fails("compare", SMALL, "-m", "40%", "-p", "magic")
        assert "16MiB" in fails("compare", SMALL, "-m", "40%", "--chunk", "half")
        Path("cut.json").write_text('{"format": "memsched-chain/1", "n"')
        assert "truncated" in fails("compare", "cut.json", "-m", "40%")

    @pytest.mark.parametrize("said", ["2 furlongs", 10**400], ids=["unit", "huge"])
    def test_a_bandwidth_in_the_provenance_is_checked(self, said: object) -> None:
        document = {**CHAIN.to_json(), "provenance": {"link_bandwidth": said}}
        Path("odd.json").write_text(json.dumps(document))
        assert "provenance.link_bandwidth" in fails("compare", "odd.json", "-m", "24")
        assert "provenance.link_bandwidth" in fails("frontier", "odd.json", "-p", "tflms")


class TestPlan:
    def test_report(self) -> None:
        text = run("plan", "c.json", "--device", "d.json", "-p", "greedy").output
        assert text.startswith("greedy on chain\n")
        for word in ("18 s", "gap 71.43 %", "22 B of 24 B", "13 B out, 13 B in", "3 tensors, 13 B"):
            assert word in text

    def test_what_one_command_saves_the_next_one_reads(self) -> None:
        run("plan", SMALL, "-p", "greedy", "-m", "40%", "-o", "r.json", "--plan-only", "p.json")
        result = ms.Result.from_json("r.json")
        assert result.planner == "greedy"
        assert ms.Schedule.from_json("p.json") == result.schedule
        for file in (["r.json"], ["p.json", "--problem", SMALL]):
            assert run_json("simulate", *file)["makespan"] == result.makespan
            assert run_json("validate", *file)["makespan"] == pytest.approx(result.makespan)
            run("plot", *file, "-o", "a.svg")
            assert run_json("trace", *file, "-o", "t.json")["makespan"] == result.makespan
        assert Path("a.svg").read_text().startswith("<?xml")
        assert json.loads(Path("t.json").read_text())["otherData"]["planner"] == "greedy"
        assert run_json("simulate", "p.json", "--problem", SMALL)["lower_bound"] <= result.makespan

    def test_json_is_the_result_and_flows_through_a_pipe(self) -> None:
        document = run_json("plan", "c.json", "--device", "d.json", "-p", "greedy")
        assert ms.Result.from_json(document).makespan == 18
        assert run_json("simulate", "-", stdin=json.dumps(document))["makespan"] == 18
        assert run_json("plan", "-", "-m", "24", "-b", "2", "-p", "vdnn", stdin=json.dumps(CHAIN.to_json()))
        assert "not a JSON object" in fails("simulate", "-", stdin="")

    def test_auto_is_the_default(self) -> None:
        document = run_json("plan", "c.json", "--device", "d.json", "--time-limit", "400ms")
        assert document["timeline"]["makespan"] == 11
        assert document["planner"] == "pofo"  # it runs F1 again; offload alone takes 12
        without = run_json("plan", "c.json", "--device", "d.json", "--time-limit", "400ms", "-p", "offload")
        assert without["timeline"]["makespan"] == 12

    def test_infeasible_says_how_much_is_needed(self) -> None:
        assert "needs at least 22 B" in fails("plan", "c.json", "-m", "3", "-b", "1", "-p", "greedy", status=3)
        error = run_json("plan", "c.json", "-m", "3", "-b", "1", "-p", "greedy", status=3)["error"]
        assert (error["kind"], error["min_memory"]) == ("InfeasibleError", 22)

    def test_unwritable_outputs_are_refused_before_planning(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("memsched.cli.plan.best_plan", lambda *_, **__: pytest.fail("planned"))
        (folder / "there").mkdir()
        before = sorted(folder.rglob("*"))
        for output in ("none/r.json", "there", os.devnull, "c.json/r.json", "new/", "x" * 256, "-"):
            for option in ("-o", "--plan-only"):
                assert "cannot be written" in fails("plan", SMALL, "-m", "40%", option, output)
            assert "cannot be written" in fails("compare", SMALL, "-m", "40%", "-o", output)
            assert "cannot be written" in fails("trace", SMALL, "-m", "40%", "-o", output)
        assert "no permission" in self.refused_without_permission(monkeypatch)
        assert sorted(folder.rglob("*")) == before

    @staticmethod
    def refused_without_permission(monkeypatch: pytest.MonkeyPatch) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda *_: False)
            return fails("plan", SMALL, "-m", "40%", "-o", "r.json")

    def test_a_failed_write_leaves_what_was_there(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("r.json").write_text("old")
        before = sorted(folder.iterdir())

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            assert "No space left" in fails("plan", SMALL, "-m", "40%", "-p", "greedy", "-o", "r.json")
        assert Path("r.json").read_text() == "old"
        assert sorted(folder.iterdir()) == before

    def test_bad_input(self) -> None:
        assert "is a device" in fails("plan", "d.json", "-m", "40%")
        assert "'magic'" in fails("plan", SMALL, "-m", "40%", "-p", "magic")
        assert "1.5" in fails("plan", SMALL, "-m", "1.5")


class TestSavedPlans:
    @pytest.fixture(autouse=True)
    def saved(self, folder: Path) -> None:
        result = ms.greedy(CHAIN, 24, 2.0)
        Path("r.json").write_text(json.dumps(result.to_json()))
        Path("p.json").write_text(json.dumps(result.schedule.to_json()))

    def test_simulate_on_another_device(self) -> None:
        assert "18 s" in run("simulate", "r.json").output
        faster = run_json("simulate", "r.json", "-b", "inf")
        assert faster["makespan"] == 8 >= faster["lower_bound"]
        assert faster["device"]["d2h"] == "inf"
        assert run_json("simulate", "p.json", "--problem", "c.json", "-b", "2")["makespan"] == 18
        assert run_json("simulate", "p.json", "--problem", "c.json", "--device", "d.json")["makespan"] == 18

    def test_a_plan_with_recomputation(self) -> None:
        plan = ms.greedy(CHAIN, 100, 2.0).schedule.to_json()
        at = plan["steps"].index({"run": "F2"})
        plan["steps"][at + 1 : at + 1] = [{"free": "a1"}, {"free": "tape1"}, {"run": "F1"}]
        Path("again.json").write_text(json.dumps(plan))
        given = ("again.json", "--problem", "c.json", "-b", "0")
        assert "recomputed   1 op runs again, 1 s" in run("simulate", *given).output
        assert run_json("simulate", *given)["lower_bound"] == 8
        assert run_json("validate", *given)["recomputed"] == ["F1"]

    def test_too_little_memory_is_an_illegal_schedule(self) -> None:
        for command in ("simulate", "validate"):
            assert "the plan needs 22 B, more than 20 B" in fails(command, "r.json", "-m", "20", status=4)
            error = run_json(command, "r.json", "-m", "20", status=4)["error"]
            assert error["kind"] == "ScheduleError"
            assert error["step"] is not None

    def test_validate_notices_a_false_result(self) -> None:
        assert run("validate", "r.json").output.startswith("valid: 20 steps\n")
        document = json.loads(Path("r.json").read_text())
        document["timeline"]["makespan"] = 17.0
        Path("r.json").write_text(json.dumps(document))
        assert "makespan" in fails("validate", "r.json", status=4)
        assert "makespan" in fails("simulate", "r.json", status=4)

    def test_an_illegal_plan_is_not_drawn(self, folder: Path) -> None:
        plan = json.loads(Path("p.json").read_text())
        plan["steps"] = plan["steps"][:4]
        Path("p.json").write_text(json.dumps(plan))
        for command in (["plot", "-o", "a.png"], ["trace", "-o", "a.json"], ["validate"], ["simulate"]):
            fails(*command, "p.json", "--problem", "c.json", "-b", "2", status=4)
        assert not list(folder.glob("a.*"))

    def test_plans_and_results_are_told_apart(self) -> None:
        for command in (["simulate"], ["validate"], ["plot", "-o", "a.png"]):
            assert "give --problem" in fails(*command, "p.json")
            assert "leave --problem out" in fails(*command, "r.json", "--problem", "c.json")
        assert "is a chain" in fails("simulate", "c.json")
        assert "leave --planner" in fails("plot", "r.json", "-p", "greedy", "-o", "a.png")
        assert "leave --problem out" in fails("plot", "c.json", "--problem", "c.json", "-m", "24", "-o", "a.png")

    def test_plot_and_trace_plan_a_problem_too(self) -> None:
        given = ("c.json", "--device", "d.json", "-p", "greedy")
        assert "saved in a.png" in run("plot", *given, "-o", "a.png").output
        assert Path("a.png").read_bytes().startswith(b"\x89PNG")
        assert run_json("trace", *given, "-o", "t.json")["output"] == "t.json"
        assert "picture" in fails("plot", *given, "-o", "a.gif")
        assert "picture" in fails("plot", *given, "-o", "a")

    def test_a_name_too_long_for_a_file_is_bad_input(self) -> None:
        long = "x" * 300
        for command in (["plan"], ["order"], ["report", "-o", "a.html"], ["simulate", "p.json", "--problem"]):
            assert long[:60] in fails(*command, long, status=2)
