"""A command line that cannot be read ends in one sentence: what is wrong, what was meant, and what to type."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line

SMALL = "resnet18-224-b32"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(line: str, status: int = 0) -> str:
    outcome = CliRunner().invoke(command_line, line.split(), prog_name="memsched")
    assert outcome.exit_code == status, outcome.output
    return outcome.output


MISTAKES = [
    ("plan", "PROBLEM is missing; write, for example, 'memsched plan resnet101-224-b32 "),
    (f"plan {SMALL}", "--memory is missing; write, for example, 'memsched plan .*--memory 40%"),
    (f"plot {SMALL} -o a.png", "--memory is missing; write, for example, 'memsched plot .*--memory 40%"),
    (f"plot {SMALL} -m 40%", "--output is missing; write, for example, 'memsched plot .*-o plan.png'"),
    (f"plan {SMALL} -m", r"-m needs a value, SIZE\|PERCENT; write, for example, 'memsched plan .*40%"),
    (f"plan {SMALL} -m 40% -o", "-o needs a value, FILE; write, for example, 'memsched plan .*-o result.json'"),
    ("plann x", "there is no command 'plann'; did you mean 'plan'. See 'memsched --help'"),
    ("colour", "there is no command 'colour'; the commands are compare, plan, "),
    (f"plan {SMALL} --memroy 40%", "there is no option --memroy; did you mean --memory. See 'memsched plan --help'"),
    (f"frontier {SMALL} --plot a.png", "there is no option --plot; did you mean --output"),
    (f"plan {SMALL} -z", "there is no option -z; see 'memsched plan --help'"),
    ("-m 40%", "the option -m comes after the command, as in 'memsched compare .. -m'"),
    (f"order {SMALL} --method lsted", "--method is 'lsted'; did you mean 'listed'. It must be one of search, ilp, "),
    (f"frontier {SMALL} --points many", "--points is many; it must be a whole number from 2 to 1000"),
    (f"frontier {SMALL} --points 1", "--points is 1; it must be a whole number from 2 to 1000"),
    (f"frontier {SMALL} -m 40%", "plans for many memories, .*--points, .*'memsched plan PROBLEM --memory 40%'"),
    (
        f"plan {SMALL} 40%",
        "unexpected argument '40%': plan takes PROBLEM and options; a memory is written --memory 40%",
    ),
    ("doctor me", "unexpected argument 'me': doctor takes options alone"),
    (f"plan {SMALL} -m 40% -p gredy", "--planner is 'gredy'; did you mean 'greedy'"),
    (f"compare {SMALL} -m 40% -p rotor,gredy", "--planner is 'gredy'; did you mean 'greedy'"),
    (f"plan {SMALL} -m 5gigs", "--memory is '5gigs', whose unit"),
    (f"plan {SMALL} -m 40% --chunk 16x", "--chunk is '16x', whose unit"),
    (f"plan {SMALL} -m 40% --latency 1x", "--latency is '1x', whose unit"),
]


@pytest.mark.parametrize(("line", "told"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_each_mistake_is_told_with_what_was_meant(line: str, told: str) -> None:
    said = run(line, status=2)
    assert re.match(f"error: .*{told}", said), said
    assert said.count("\n") == 1


ENDINGS = (".json", ".csv", ".png", ".html", ".parquet", ".sqlite", ".pickle", ".onnx", ".toml", ".txt", "")
TAKEN = {
    f"plan {SMALL} -m 100% -p greedy -o": (".json", ".txt", ""),
    f"plan {SMALL} -m 100% -p greedy --plan-only": (".json", ".txt", ""),
    f"order {SMALL} -o": (".json", ".txt", ""),
    f"trace {SMALL} -m 100% -p greedy -o": (".json", ".txt", ""),
    f"compare {SMALL} -m 100% -p greedy -o": (".json", ".csv"),
    f"plot {SMALL} -m 100% -p greedy -o": (".png",),
    f"frontier {SMALL} -p greedy --points 2 -o": (".png",),
    "sweep spec.toml -o": (".csv", ".parquet"),
    "sweep spec.toml --store": (".sqlite", ".txt", ""),
    "report r.json --no-compare -o": (".html",),
    "place r.json -o": (".json", ".csv"),
}


@pytest.mark.parametrize("command", TAKEN)
def test_no_file_is_named_as_what_it_is_not(command: str) -> None:
    """`compare -o x.csv` wrote JSON, and `sweep --store x.csv` a database."""
    Path("spec.toml").write_text(f'problems = "{SMALL}"\nplanners = "greedy"\nmemory = "100%"\n')
    ms.greedy(ms.profiles.load(SMALL), "100%", "12GB/s").save("r.json")
    for ending in ENDINGS:
        taken = ending in TAKEN[command]
        said = run(f"{command} out{ending}", status=0 if taken else 2)
        assert taken or said.startswith("error: "), ending
        assert Path(f"out{ending}").exists() == taken
        if taken and ending == ".csv":
            assert next(csv.reader(io.StringIO(Path("out.csv").read_text())))
        elif taken and ending == ".json":
            assert json.loads(Path("out.json").read_text())


def test_all_tables_name_their_columns_alike() -> None:
    """The columns of `sweep -o` had no units, those of `sweep --csv` had."""
    Path("spec.toml").write_text(f'problems = "{SMALL}"\nplanners = "greedy,rotor"\nmemory = "60%"\n')
    run("sweep spec.toml --store s.sqlite -o a.csv")
    printed = run("sweep spec.toml --store s.sqlite --csv")
    assert Path("a.csv").read_text() == printed
    run(f"compare {SMALL} -m 60% -p greedy -o c.csv")
    compared, known = (next(csv.reader(io.StringIO(text))) for text in (Path("c.csv").read_text(), printed))
    assert set(compared) <= set(known)
    assert {"makespan_seconds", "peak_memory_bytes", "bytes_out"} <= set(compared)


def test_what_is_written_in_gb_is_told_in_gb() -> None:
    """The bytes moved and the link's host memory were in GiB."""
    for line in (
        f"plan {SMALL} -m 700MB -p greedy --host-memory 1GB",
        f"compare {SMALL} -m 700MB -p greedy --host-memory 1GB",
    ):
        said = run(line)
        assert "MB" in said
        assert "iB" not in said
    assert "GB" not in run(f"plan {SMALL} -m 0.7GiB -p greedy").replace("GB/s", "")


def test_a_plan_says_how_long_planning_took_in_all() -> None:
    """auto gave the seconds of the planner that won, and the command none."""
    assert re.search(r"^planned in +[\d.]+ \w+$", run(f"plan {SMALL} -m 40% -p greedy"), re.MULTILINE)
    assert re.search(r"^planned in .*, by all planners that were asked$", run(f"plan {SMALL} -m 40%"), re.MULTILINE)
    chain = ms.profiles.load(SMALL)
    assert ms.plan(chain, "40%", "12GB/s").runtime >= ms.rotor(chain, "40%", "12GB/s").runtime


def test_a_report_says_why_it_takes_long(tmp_path: Path) -> None:
    """Without a terminal it said nothing for a minute."""
    result, page = tmp_path / "r.json", tmp_path / "r.html"
    run(f"plan {SMALL} -m 40% -p greedy -o {result}")
    said = "planning by every planner, for the comparison; --no-compare is quicker\n"
    assert run(f"report {result} -o {page}").startswith(said)
    assert said not in run(f"report {result} --no-compare -o {page}")
    assert run(f"report {result} -q -o {page}") == ""


def test_planners_are_named_alike_everywhere() -> None:
    chain = ms.profiles.load(SMALL)
    for named in ("greedy,rotor", "greedy, rotor", ["greedy", "rotor"], ("greedy", "rotor"), ["greedy,rotor"]):
        assert list(ms.compare(chain, "60%", "12GB/s", planners=named)) == ["greedy", "rotor"]
        assert [row["planner"] for row in ms.sweep(chain, named, memory=["60%"], beta=[1e9])] == ["greedy", "rotor"]
    assert list(ms.compare(chain, "60%", "12GB/s", planners="greedy")) == ["greedy"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("validate s.sqlite", "'s.sqlite' is an SQLite database, .* read_store and `memsched report` read"),
        ("plan s.sqlite -m 40%", "'s.sqlite' is an SQLite database"),
        ("plot p.pickle -o a.png", "'p.pickle' is a pickle, .* which read_snapshot reads"),
        ("place p.pickle", "'p.pickle' is not a pickle of plain data, or is truncated"),
        ("sweep r.json --csv", "'r.json' is a result, which Result.load and `memsched plot` read"),
        ("order r.csv", "'r.csv' is a result, .* expected a table"),
    ],
)
def test_a_file_of_another_kind_is_told_by_what_it_is(line: str, told: str) -> None:
    """It was no UTF-8 text, at some byte."""
    ms.sweep(SMALL, "greedy", memory=["100%"], store="s.sqlite")
    ms.greedy(ms.profiles.load(SMALL), "100%", "12GB/s").save("r.json")
    Path("r.csv").write_bytes(Path("r.json").read_bytes())
    Path("p.pickle").write_bytes(b"\x80\x04\x95\x00")
    assert re.search(told, run(line, status=2))


def test_stores_and_snapshots_tell_the_same_in_python() -> None:
    ms.sweep(SMALL, "greedy", memory=["100%"], store="s.sqlite")
    ms.profiles.load(SMALL).save("c.json")
    with pytest.raises(
        ms.StoreError, match=r"'c.json' is a chain, which Chain.load and .* read; a store is an SQLite database"
    ):
        ms.read_store("c.json")
    with pytest.raises(ms.InvalidInputError, match=r"'s.sqlite' is an SQLite database, .*; expected a memory snapshot"):
        ms.read_snapshot("s.sqlite")
    with pytest.raises(ms.InvalidInputError, match=r"'c.json' is a chain, .*; expected a memory snapshot"):
        ms.read_snapshot("c.json")


def test_a_device_remembers_the_unit_of_its_memory() -> None:
    """An error told 500 MB as 477 MiB."""
    chain = ms.profiles.load(SMALL)
    for device in (ms.Device("500MB", "12GB/s"), ms.Device(memory="500 mb", bandwidth="12GB/s")):
        with pytest.raises(ms.InfeasibleError, match=r"in 500 MB \(500,000,000 bytes\): .* at least 607.4 MB"):
            ms.greedy(chain, device=device)
        assert device == ms.Device(500_000_000, "12GB/s")
    with pytest.raises(ms.InfeasibleError, match=r"in 47\S+ MiB \(500,000,001 bytes\)"):
        ms.greedy(chain, device=ms.Device(500_000_001, "12GB/s"))


def test_what_a_number_may_have_meant_is_told_once() -> None:
    with pytest.raises(ms.InfeasibleError) as error:
        ms.plan(ms.profiles.load(SMALL), "40")
    assert str(error.value).count("did you mean") == 1
    nearest = r"one op alone needs at least [^()]+ \([^()]+\), [^,]+ of it resident, and pofo, which comes nearest, "
    assert re.search(nearest, str(error.value))


def test_percentages_are_of_one_thing_in_the_same_words() -> None:
    ends = "(0%: min_memory, 100%: peak of the plain run"
    assert ends in " ".join(run("--help").split())
    assert ends in run(f"plan {SMALL} -m x", status=2)
    assert f"40% {ends})" in " ".join(run(f"compare {SMALL} -m 40% -p greedy").split())


def test_who_was_not_asked_is_told_in_a_sentence_of_any_number() -> None:
    said = " ".join(run(f"compare {SMALL} -m 100% --time-limit 0.01").split())
    assert "not asked: modnn, olla, pooch, swap_opt, swap_all, by_kind, vdnn_sync, vdnn_plus (for graphs and" in said
    assert "(it " not in said


@pytest.mark.parametrize("call", ["ms.plot", "ms.write_report", "ms.plot_addresses", "ms.write_placement"])
def test_swapped_arguments_are_told_with_their_order(call: str) -> None:
    result = ms.greedy(ms.profiles.load(SMALL), "100%", "12GB/s")
    function = getattr(ms, call.removeprefix("ms."))
    given = (ms.place([ms.Buffer(0, 1, 2)]), "a.csv") if call == "ms.write_placement" else ("a.html", result)
    first, second = {"ms.write_placement": ("path", "placement"), "ms.plot": ("result", "path")}.get(call, ("", "path"))
    with pytest.raises(ms.InvalidInputError, match=rf"takes {first}\w*, then {second}; it is given 'a\.\w+' as \w+$"):
        function(*given)
