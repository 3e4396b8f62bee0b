"""The description of a sweep as a TOML file, and `memsched sweep`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

import memsched as ms
from memsched.cli.app import command_line
from memsched.problems.budget import parse_memory
from memsched.study.sweep.spec import parse_spec, read_spec

SMALL = 'problems = ["resnet18-224-b32"]\nplanners = ["greedy", "rotor"]\nmemory = ["20%", "60%"]\n'


def run(*arguments: str, status: int = 0) -> Result:
    outcome = CliRunner().invoke(command_line, ["sweep", *arguments], prog_name="memsched")
    assert outcome.exit_code == status, outcome.output
    assert "Traceback" not in outcome.output
    return outcome


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    Path("spec.toml").write_text(SMALL)
    return tmp_path


def test_all_keys() -> None:
    spec = parse_spec(
        'problems = "gpt2-1024-b8"\nplanners = ["pofo"]\nmemory = [1_000, "8GiB"]\nbandwidth = ["12GB/s", inf, 0]\n'
        "shared_tables = false\nslots_of_tables = 700\n"
        '[device]\nduplex = true\nlatency = "10us"\nhost_memory = "64GiB"\n'
        "[options.pofo]\ntime_limit = 0.5\n[options.all]\nchunk = 16777216\n"
    )
    assert (spec.problems, spec.planners, spec.memory) == (("gpt2-1024-b8",), ("pofo",), (1000, "8GiB"))
    assert spec.bandwidth == ("12GB/s", float("inf"), 0)
    assert spec.options == {"pofo": {"time_limit": 0.5}, "all": {"chunk": 16777216}}
    assert (spec.shared_tables, spec.slots_of_tables) == (False, 700)
    assert spec.device is not None
    assert (spec.device.duplex, spec.device.latency, spec.device.host_memory) == (True, 1e-5, 64 * 2**30)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(2, 50))
def test_ranges_go_from_end_to_end_in_even_steps(first: int, last: int, points: int) -> None:
    spec = parse_spec(f'problems = "x"\nmemory = {{from = {first}, to = "{last} B", points = {points}}}')
    memory = [int(value) for value in spec.memory]
    assert (memory[0], memory[-1], len(memory)) == (first, last, points)
    steps = {late - early for early, late in pairwise(memory)}
    assert max(steps) - min(steps) <= 1


def test_percentages_in_ranges() -> None:
    spec = parse_spec('problems = "x"\nmemory = {from = "0%", to = "100%", points = 5}')
    assert spec.memory == ("0%", "25%", "50%", "75%", "100%")


THOUSANDTHS = st.integers(0, 120_000).map(lambda count: Fraction(count, 1000))


@given(THOUSANDTHS, THOUSANDTHS, st.integers(2, 50))
@example(Fraction("0.4"), Fraction(100), 4)
def test_percentages_in_ranges_are_exact(first: Fraction, last: Fraction, points: int) -> None:
    """Of 0.4% to 100% in 4 points the last was 99.99999999999999%, one byte below."""
    chain = ms.profiles.homogeneous(9, activation=27720)  # so that many shares of it are whole bytes
    low, high = ms.min_memory(chain), ms.peak_memory(chain)
    text = f'{{from = "{float(first)}%", to = "{float(last)}%", points = {points}}}'
    asked = [first + (last - first) * at / (points - 1) for at in range(points)]
    assert [parse_memory(one, chain) for one in parse_spec(f'problems = "x"\nmemory = {text}').memory] == [
        int(low + percent / 100 * (high - low)) for percent in asked
    ]


def test_files_are_found_beside_the_description(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.json").write_text(json.dumps(ms.profiles.homogeneous(5).to_json()))
    (tmp_path / "sub" / "spec.toml").write_text('problems = ["mine.json", "resnet18-224-b32"]\nmemory = ["50%"]')
    assert read_spec(tmp_path / "sub" / "spec.toml").problems == (
        str(tmp_path / "sub" / "mine.json"),
        "resnet18-224-b32",
    )


@pytest.mark.parametrize(
    ("written", "own"), [("resnet18-224-b32", False), ("./resnet18-224-b32", True), ("a:b.json", True)]
)
def test_a_name_means_the_same_from_any_folder(written: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the name of a profile was read, or was not, as the folder was."""
    Path("sub").mkdir()
    for name in ("sub/resnet18-224-b32", "sub/a:b.json"):
        Path(name).write_text(json.dumps(ms.profiles.homogeneous(5).to_json()))
    Path("sub/spec.toml").write_text(
        f'problems = ["{written}"]\nplanners = ["greedy"]\nmemory = ["100%"]\nbandwidth = [2e9]'
    )
    for folder, spec in ((".", "sub/spec.toml"), ("sub", "spec.toml")):
        monkeypatch.chdir(folder)
        (row,) = json.loads(run(spec, "-o", "a.csv", "--json").output)["rows"]
        assert row["problem"] == ("homogeneous-5" if own else "resnet18-224-b32")
    run("spec.toml", "--store", written, status=2 if own else 1)  # an input, or no store


def test_a_name_that_is_none_is_told_with_similar_ones() -> None:
    Path("sub").mkdir()
    Path("sub/spec.toml").write_text('problems = ["resnet18-225-b32"]\nmemory = ["100%"]')
    said = run("sub/spec.toml", "-o", "a.csv", status=2).output
    assert "no profile is named 'sub/resnet18-225-b32'; similar names: resnet18-" in said


BAD = {
    "no TOML": ("problems = [", "is not valid TOML"),
    "nothing": ("", "lacks 'problems'"),
    "no memory": ('problems = ["x"]', "lacks 'memory'"),
    "unknown key": (SMALL + "memroy = 3", "unknown key 'memroy'; did you mean 'memory'"),
    "unknown key of the device": (
        SMALL + "[device]\nspeed = 3",
        "device has the unknown key 'speed'; the keys are duplex",
    ),
    "problems": ("problems = 3\nmemory = [1]", "'spec.toml': problems is 3"),
    "empty problems": ("problems = []\nmemory = [1]", "'spec.toml': problems is \\[\\]"),
    "planners": (SMALL.replace('["greedy", "rotor"]', "[1]"), "'spec.toml': planners is \\[1\\]"),
    "memory": ('problems = ["x"]\nmemory = [true]', "'spec.toml': memory is \\[True\\]"),
    "a date": ('problems = ["x"]\nmemory = 1979-05-27', "'spec.toml': memory is datetime"),
    "half a range": ('problems = ["x"]\nmemory = {from = 1, to = 2}', "lacks 'points'"),
    "one point": ('problems = ["x"]\nmemory = {from = 1, to = 2, points = 1}', "points of memory is 1"),
    "mixed range": ('problems = ["x"]\nmemory = {from = "1%", to = 2, points = 3}', "both must be percentages"),
    "bad percentage": (
        'problems = ["x"]\nmemory = {from = "x%", to = "2%", points = 3}',
        "'x%', which is not a num",
    ),
    "nan": ('problems = ["x"]\nmemory = {from = "nan%", to = "2%", points = 3}', "'nan%', which is not a number"),
    "options": (SMALL + "options = 3", "options is 3"),
    "flat options": (SMALL + "[options]\nslots = 3", "write a table for each planner"),
    "flag": (SMALL + "shared_tables = 1", "shared_tables is 1"),
    "duplex": (SMALL + "[device]\nduplex = 1", "duplex of device is 1"),
    "device": (SMALL + "device = 3", "device is 3"),
    "planner": (SMALL.replace("rotor", "motor"), "planner is 'motor'"),
    "profile": (SMALL.replace("resnet18", "resnet19"), "resnet19"),
    "bandwidth": (SMALL + 'bandwidth = ["12GB"]', "not bytes per second"),
    "plain numbers": ('problems = ["resnet18-224-b32"]\nmemory = [50]', 'memory has 50, .* did you mean "50%"'),
    "a plain range": (
        'problems = ["resnet18-224-b32"]\nmemory = {from = 10, to = 90, points = 3}',
        'did you mean "10%"',
    ),
    "several, in the order of the file": (
        'problms = ["resnet18-224-b32"]\nplanners = ["gredy"]\nmemory = ["lots"]\nbandwidth = ["12Gb/s"]\n',
        "'problms'; did you mean 'problems'.*'gredy'; did you mean 'greedy'.*'lots'.*'12Gb/s'.*it lacks 'problems'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_descriptions_are_told_in_one_line_and_leave_nothing(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    Path("spec.toml").write_text(text)
    output = run("spec.toml", "--store", "a.sqlite", "-o", "a.csv", status=2).output
    assert output.startswith("error: ")
    assert output.count("\n") == 1
    assert re.search(message, output)
    assert [path.name for path in tmp_path.iterdir()] == ["spec.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml", "-o", "a.csv"], "'nowhere.toml' cannot be read"),
        (["spec.toml", "-o", "a.xls"], "must end in .parquet or .csv"),
        (["spec.toml", "-o", "no/a.csv"], "'no' is not a directory"),
        (["spec.toml", "--store", "no/a.sqlite"], "'no' is not a directory"),
        (["spec.toml", "--store", "other"], "not a database"),
        (["spec.toml", "-o", "a.csv", "--plot", "a.gif"], "a.gif"),
        (
            ["spec.toml", "--store", "a.csv", "-o", "b.csv"],
            "'a.csv' would hold an SQLite database, but is named as CSV",
        ),
        (["spec.toml", "--plot", "./a.png", "-o", "a.csv", "--store", "a.png"], "named as a picture"),
        (["spec.toml", "-o", "a.csv", "--jobs", "0"], "--jobs"),
        (["spec.toml", "-o", "a.csv", "--processes", "--dask", "tcp://x:1"], "not both"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    expected = 1 if message == "not a database" else 2
    Path("other").write_text("This is no database. " * 100)
    assert message in run(*arguments, status=expected).output


def test_a_problem_is_not_replaced_by_the_table() -> None:
    Path("problem.csv").write_text("{}")
    Path("own.toml").write_text('problems = ["problem.csv"]\nmemory = "40%"\n')
    assert "is an input" in run("own.toml", "-o", "problem.csv", status=2).output
    assert Path("problem.csv").read_text() == "{}"


def test_a_sweep_from_start_to_end() -> None:
    text = run("spec.toml", "--store", "a.sqlite", "-o", "a.csv", "--plot", "a.png", "--jobs", "2").output
    assert "4 points in" in text
    assert "4 planned, 0 infeasible, 0 failed" in text
    assert "saved in a.sqlite: memsched report a.sqlite -o sweep.html shows them" in text
    assert text.splitlines()[-2:] == ["saved in a.csv", "saved in a.png"]
    assert len(Path("a.csv").read_text().splitlines()) == 5
    assert Path("a.png").stat().st_size > 10_000
    table = ms.read_store("a.sqlite")
    assert {row["bandwidth"] for row in table} == {12.2e9}  # the profile's
    assert "4 points, of which 4 were in the store, in" in run("spec.toml", "--store", "a.sqlite").output
    told: dict[str, Any] = json.loads(run("spec.toml", "--store", "a.sqlite", "--json").output)
    assert told == {"points": 4, "planned": 4, "infeasible": 0, "failed": 0, "rows": None}
    told = json.loads(run("spec.toml", "-o", "b.csv", "--json").output)
    assert [row["makespan"] for row in told["rows"]] == [row["makespan"] for row in table]


def test_the_exit_status_tells_what_became_of_the_whole() -> None:
    Path("spec.toml").write_text('problems = ["resnet18-224-b32"]\nplanners = ["greedy"]\nmemory = ["1kB", "2kB"]\n')
    output = run("spec.toml", "-o", "a.csv", status=3).output
    assert "2 infeasible" in output
    assert output.splitlines()[-1].startswith("error: no point has a plan: greedy has no plan")
    Path("spec.toml").write_text(SMALL.replace('"rotor"', '"dynprog"') + "[options.dynprog]\nslots = -3\n")
    output = run("spec.toml", "-o", "a.csv").output
    assert "failed: dynprog on resnet18-224-b32" in output
    Path("spec.toml").write_text(SMALL.replace('"greedy", "rotor"', '"dynprog"') + "[options.dynprog]\nslots = -3\n")
    assert (
        "error: no point has a plan: InvalidInputError: slots is -3" in run("spec.toml", "-o", "a.csv", status=1).output
    )


def test_a_report_of_one_point_shows_its_plan() -> None:
    run("spec.toml", "--store", "a.sqlite")
    row = next(row for row in ms.read_store("a.sqlite") if row["planner"] == "rotor")

    def report(*arguments: str, status: int) -> str:
        outcome = CliRunner().invoke(command_line, ["report", *arguments, "-o", "a.html"], prog_name="memsched")
        assert outcome.exit_code == status, outcome.output
        return outcome.output

    told = json.loads(report("a.sqlite", "--point", row["key"][:12], "--no-compare", "--json", status=0))
    assert told["results"] == [{"problem": row["problem"], "planner": "rotor", "makespan": row["makespan"]}]
    assert "What happens to each tensor" in Path("a.html").read_text(encoding="utf-8")
    assert "no keys of 'a.sqlite' begin" in report("a.sqlite", "--point", "xyz", status=2)
    assert "4 keys of 'a.sqlite' begin" in report("a.sqlite", "--point", "", status=2)
    Path("r.json").write_text(json.dumps(ms.plan_again("a.sqlite", row["key"]).to_json()))
    assert "leave it out" in report("r.json", "--point", row["key"], status=2)
    Path("a.html").write_bytes(Path("a.sqlite").read_bytes())
    assert "write to another file" in report("a.html", status=2)


LONG = (
    'problems = ["densenet121-224-b32"]\nplanners = ["pofo"]\nmemory = {from = "2%", to = "99%", points = 40}\n'
    'bandwidth = ["12GB/s"]\n[options.pofo]\nlabels = "real"\nslots = 200\n'
)


def test_ctrl_c_leaves_a_store_from_which_the_sweep_goes_on(tmp_path: Path) -> None:
    """On a terminal, with the bar, whose text is looked at too."""
    pty = pytest.importorskip("pty", reason="there are no pseudo terminals here")
    Path("spec.toml").write_text(LONG)
    command = [sys.executable, "-m", "memsched", "sweep", "spec.toml", "--store", "a.sqlite", "--jobs", "2"]
    inside, outside = pty.openpty()
    sweep = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=outside,
        env={**os.environ, "COLUMNS": "120"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    )
    os.close(outside)
    shown = b""
    while not (b"left" in shown and _points()):
        shown += _read(inside)
        assert sweep.poll() is None
    sweep.send_signal(signal.SIGINT)
    asked = time.monotonic()
    while chunk := _read(inside):
        shown += chunk
    assert sweep.wait() == 130
    told = shown.decode()
    assert "points/s" in told
    assert "left" in told
    assert "interrupted; finished points are in 'a.sqlite': run the same command to continue" in " ".join(told.split())
    assert "Traceback" not in told
    assert time.monotonic() - asked < 60
    kept = _points()
    assert 0 < kept < 40
    Path("spec.toml").write_text(LONG.replace("40}", "2}"))
    run("spec.toml", "--store", "a.sqlite")
    assert kept <= _points() <= kept + 2


def _points() -> int:
    try:
        return len(ms.read_store("a.sqlite"))
    except ms.StoreError:
        return 0


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_a_sweep_of_too_many_points_is_refused_before_it_takes_their_memory() -> None:
    """A file of 20 kB asked for 4 x 10^8 points, which filled the memory before any check."""
    bandwidths = ",".join(["12e9"] * 3900)
    Path("spec.toml").write_text(
        f'problems = ["resnet18-224-b32"]\nplanners = ["greedy"]\nbandwidth = [{bandwidths}]\n'
        "memory = {from = '0%', to = '100%', points = 100000}\n"
    )
    assert "390000000 points" in " ".join(run("spec.toml", "--store", "x.sqlite", status=1).output.split())
    assert not Path("x.sqlite").exists()
    given = read_spec("spec.toml")
    with pytest.raises(ms.LimitError, match="at most 1000000; give shorter lists"):
        ms.sweep(given.problems, given.planners, memory=given.memory, beta=given.bandwidth)
