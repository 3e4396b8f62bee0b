"""What a first day at the command line ends in: each file is told by what it is, and each mistake with its remedy."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import memsched as ms
from memsched.cli import show
from memsched.cli.app import command_line
from memsched.problems import specs
from memsched.support import files

SMALL = "resnet18-224-b32"
STAGES = "name,forward_time,backward_time,activation\nx,,,4MiB\nconv,1 ms,2 ms,6MiB\nfc,2 ms,3 ms,5MiB\n"
BUFFERS = "id,lower,upper,size\na,0,3,4KiB\nb,1,5,1000\n"
IS_STAGES = "is a table of stages, which Chain.from_csv and `memsched plan` read"
IS_BUFFERS = "is a list of buffers, which read_buffers and `memsched place` read"
FILES = {
    "times.csv": STAGES,
    "times.tsv": STAGES.replace(",", "\t"),
    "times.txt": STAGES.replace(",", "\t"),
    "less.csv": STAGES.replace("activation", "activation,saved")
    .replace("MiB\n", "MiB,\n")
    .replace("6MiB,", "6MiB,4MB"),
    "untitled_times.csv": STAGES.partition("\n")[2],
    "b.csv": BUFFERS,
    "semicolons.csv": BUFFERS.replace(",", ";"),
    "tabs": BUFFERS.replace(",", "\t"),
    "named.csv": BUFFERS.replace("id,lower,upper,size", "name,start,stop,bytes"),
    "untitled.csv": BUFFERS.partition("\n")[2],
    "wrong.csv": BUFFERS + "c,7,2,4\nd,1,x,4\ne,1,2,-4\n",
    "twice.csv": BUFFERS.replace("\nb,", "\na,"),
    "r.json": '{"format": "memsched-result/2"}',
    "spec.toml": f'problems = "{SMALL}"\nmemory = "50%"\n',
    "empty.toml": "",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


def run(line: str, status: int = 0, stdin: str | None = None) -> str:
    outcome = CliRunner().invoke(command_line, line.split(), prog_name="memsched", input=stdin)
    assert outcome.exit_code == status, outcome.output
    return " ".join(outcome.output.split())


REMEDIES = {
    "plan times.txt -m 40%": f"'times.txt' {IS_STAGES}; let its name end in .csv",
    "plan b.csv -m 40%": f"'b.csv' {IS_BUFFERS}; expected a table of stages",
    "plan less.csv -m 40%": "'less.csv', line 3: saved is '4MB', less than activation, '6MiB'; it includes",
    "plan untitled_times.csv -m 40%": "unknown columns 'x', '', '', '4MiB'; the first line must name the columns",
    "place times.csv": f"'times.csv' {IS_STAGES}; expected a list of buffers",
    "place named.csv": (
        "unknown columns 'name', 'stop', 'bytes'; did you mean 'id' for 'name', 'upper' for 'stop', 'size' for 'bytes'?"
    ),
    "place untitled.csv": "unknown columns 'a', '0', '3', '4KiB'; the first line must name the columns; the columns",
    "place wrong.csv": "line 4: it ends at 2, before it begins, at 7; .*, line 5: upper is 'x'; .*, line 6: size is -4",
    "place b.csv --alignment 256": "have their own alignments, as in the column alignment",
    "place b.csv -o b.txt": "'b.txt' must end in .json or .csv",
    "validate times.csv": f"'times.csv' {IS_STAGES}; expected a result",
    "simulate b.csv": f"'b.csv' {IS_BUFFERS}; expected a result",
    "report spec.toml -o r.html": "'spec.toml' is not JSON: it begins with 'problems.*; `memsched sweep` reads TOML",
    "sweep times.csv": f"'times.csv' {IS_STAGES}; `memsched sweep --help` shows a description",
    "sweep empty.toml": "it lacks 'problems'",
    f"plan {SMALL} -m 40% -p rotor,pofo": "--planner is rotor,pofo; .*'memsched compare' takes several",
    f"plan {SMALL} -m 40% -p rotor -p pofo": "--planner is given 2 times, rotor and pofo; .*'memsched compare'",
    f"plot {SMALL} -m 40% -p rotor,pofo -o a.png": "--planner is rotor,pofo; a plan is by one planner",
    f"plan {SMALL} -m 40% --device 16GB": "--device is '16GB', which is no file; .*; a memory is written --memory 16GB",
    f"plan {SMALL} -m 40% --device v100": "is no file; names of machines are for 'memsched fit' and 'memsched profile'",
    f"plan {SMALL} -m 40% --device d.json": "--device is 'd.json', which is no file; Device.save writes one$",
    "plan torchvision:resnet50 -m 40%": "`memsched profile --model torchvision:resnet50 -o chain.json` makes a chain",
    "plot nets.py:make?n=4 -m 40% -o a.png": r"`memsched profile --model 'nets.py:make\?n=4' -o chain.json` makes",
    "plan llama -m 40%": "no profile is named 'llama'; similar names: llama-2048-b2-bf16",
    "order llama": "no profile is named 'llama'; similar names: llama-2048-b2-bf16",
    "plan model.onnx:x -m 40%": "'model.onnx:x' cannot be read",
    "sweep nothere.toml": "'nothere.toml' cannot be read: No such file",
    f"place {SMALL}": f"'{SMALL}' is a problem, which has no buffers before it is planned: memsched plan {SMALL}",
    "sweep r.json": "'r.json' is a result, .*`memsched sweep --help` shows a description",
    "fit gpt:make --device t4": "--model is missing, and 'gpt:make' belongs to no option; write --model gpt:make$",
    "profile --seed 2 8GB": "--model is missing, and '8GB' belongs to no option; write --memory 8GB$",
    "fit --device t4": "--model is missing; write, for example, 'memsched fit --model ",
    "fit --model nets:make --device t4 --optimizer AdamW(lr=1e-3,eps=0)": r"write AdamW\?lr=1e-3&eps=0$",
    "fit --model transformers:gpt2(n_layer=4) --device t4": r"write transformers:gpt2\?n_layer=4$",
    f"plan graph:{SMALL} -m 40% -p rotor": "rotor plans chains, and this is a graph; leave 'graph:' out for the chain",
    f"compare graph:{SMALL} -m 40% -p rotor,pofo": "rotor and pofo plan chains, and this is a graph; leave 'graph:'",
    "compare analytic:vgg16:64 -m 40% -p rotor": "rotor plans chains, and this is a family of graphs; .* pooch,",
    "plan vit-224-b64-f32 -m 40% -p rotor": "rotor plans chains, and this is a graph; .* pooch, .* graphs",
    f"plot {SMALL} -m 40% -o plan": "'plan' has no ending; a picture ends in .png, .svg, .pdf",
    f"compare {SMALL} -m 40% -p greedy -o c.txt": "'c.txt' must end in .json or .csv, which decides what it holds",
    f"compare {SMALL} -m 40% -p greedy -o c.png": "'c.png' would hold JSON, but is named as a picture",
    f"frontier {SMALL} -o c.csv": "'c.csv' ends in '.csv', and -o draws a picture; --csv prints the table: > c.csv$",
    f"compare {SMALL} -m 40% -b 25GB/s,50GB/s": "--bandwidth is 25GB/s,50GB/s; .*'memsched sweep' plans for many$",
    f"plan {SMALL} -m 40% -b 25GB/s -b 50GB/s": "--bandwidth is given 2 times, 25GB/s and 50GB/s; .*'memsched sweep'",
    f"plan {SMALL} -m 40% --host-memory 30%": "is '30%', a percentage, of which nothing is known here to be a share",
    "fit --model nets:make --device t4 --optimizer sgd:0.9": r"its options stand after '\?': sgd\?lr=0.01$",
    "--json doctor": "the option --json comes after the command, as in ",
    "help foo": "there is no command 'foo'; the commands are",
}


@pytest.mark.parametrize("line", REMEDIES)
def test_a_mistake_is_told_with_its_remedy(line: str) -> None:
    said = run(line, status=2)
    assert re.search(REMEDIES[line], said.partition("; see 'memsched")[0]), said


@pytest.mark.parametrize(("text", "told"), [(STAGES, IS_STAGES), (BUFFERS, IS_BUFFERS), ("x", "is not a JSON object")])
@pytest.mark.parametrize("command", ["plan - -m 40%", "place -", "validate -"])
def test_a_table_is_a_file(command: str, text: str, told: str) -> None:
    assert f"the standard input {told}" in run(command, status=2, stdin=text)


def test_tables_are_read_with_any_separator() -> None:
    assert run("plan times.tsv -m 100% --json -b 0").partition('"device"')[2]
    assert {run(f"place {name} --json").partition('"runtime"')[0] for name in ("b.csv", "semicolons.csv", "tabs")} == {
        run("place b.csv --json").partition('"runtime"')[0]
    }


@pytest.mark.parametrize(
    ("line", "means"), [("help", "--help"), ("help plan", "plan --help"), ("plan help", "plan --help")]
)
def test_help_is_a_word_too(line: str, means: str) -> None:
    assert run(line) == run(means)


def test_a_star_stands_for_any_text() -> None:
    assert run("profiles resnet18*") == run("profiles resnet18")
    assert run("profiles resnet18*b32 --csv") != run("profiles resnet18 --csv")


def test_an_option_is_named_as_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise ms.LimitError("no plan within the time_limit; give more than 'time_limit'")

    monkeypatch.setattr("memsched.cli.plan.best_plan", late)
    assert "error: no plan within the --time-limit; give more than 'time_limit'" in run(
        f"plan {SMALL} -m 40%", status=1
    )
    assert '"no plan within the --time-limit' in run(f"plan {SMALL} -m 40% --json", status=1)


def test_all_packages_that_a_model_needs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ms.InvalidInputError, match=r"needs the package timm and PyTorch.*memsched\[torch\]', and pip .*timm"
    ):
        specs.parse_model("timm:deit_tiny_patch16_224")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    with pytest.raises(
        ms.InvalidInputError, match=r"needs the package timm, which is not installed; pip install .*timm"
    ):
        specs.parse_model("timm:deit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("compare x -p rotor,po", ["rotor,pofo", "rotor,pooch"]),
        ("frontier x -p rotor,greedy,vdnn_", ["rotor,greedy,vdnn_sync", "rotor,greedy,vdnn_plus"]),
        ("plan x --chunk s", ["storage"]),
        ("compare x --chunk n", ["none"]),
        ("plan x -p rotor,po", []),
        ("plan times.t", ["times.tsv"]),
        ("fit --device t", ["t4"]),
        ("profile --device a100 : pcie", ["pcie3", "pcie4", "pcie5"]),
        ("profile --autocast f", ["fp16"]),
        ("compare x -p greedy,ro", ["greedy,rotor"]),
    ],
)
def test_lists_and_words_are_completed(words: str, completed: list[str]) -> None:
    environment = {"_MEMSCHED_COMPLETE": "bash_complete", "COMP_WORDS": f"memsched {words}"}
    environment["COMP_CWORD"] = str(len(words.split()))
    said = CliRunner().invoke(command_line, [], prog_name="memsched", env=environment).stdout.split()
    assert said == [f"plain,{word}" for word in completed]


def test_an_id_of_two_buffers_is_told_and_told_apart() -> None:
    with pytest.warns(UserWarning, match=r"'twice.csv', line 3: id is 'a', as in line 2; give each buffer its own"):
        found = ms.place(ms.read_buffers("twice.csv"))
    assert [one.name for one in found.buffers] == ["a", "a"]
    names = ["a", "a", "a#2", None, "3", "3", "a"]
    placed = ms.place([ms.Buffer(0, 1, 8, name=name) for name in names])
    placed.to_csv("out.csv")
    assert [one.name for one in ms.read_buffers("out.csv")] == ["a", "a#3", "a#2", "3", "3#2", "3#3", "a#4"]


def test_a_capacity_is_a_text_in_both() -> None:
    buffers = ms.read_buffers("b.csv")
    placed = ms.place(buffers, capacity="8KiB")
    assert ms.validate_placement(buffers, placed.offsets, capacity="8KiB") == placed.height
    with pytest.raises(ms.ScheduleError, match="above capacity, which is 1024"):
        ms.validate_placement(buffers, placed.offsets, capacity="1KiB")
    with pytest.raises(ms.InvalidInputError, match="capacity is '1 Kiwi', whose unit"):
        ms.validate_placement(buffers, placed.offsets, capacity="1 Kiwi")


@pytest.mark.parametrize("ending", [".csv", ".json", ".parquet", ".png", ".toml"])
def test_writers_refuse_names_of_other_kinds(ending: str) -> None:
    """`Sweep.to_parquet` wrote a Parquet file into tab.csv, and `write_placement` wrote CSV into anything."""
    result = ms.greedy(ms.profiles.load(SMALL), "100%", "12GB/s")
    writers = {
        "Parquet": ms.sweep(SMALL, "greedy", memory=["100%"]).to_parquet,
        "CSV": ms.place([ms.Buffer(0, 1, 2)]).to_csv,
        "JSON": result.save,
    } | {f"CSV of {type(one).__name__}": one.to_csv for one in (ms.compare(result.problem, "100%", planners="greedy"),)}
    for kind, write in writers.items():
        holds, path = kind.partition(" ")[0], f"out{ending}"
        if files.named_as(path) == holds:
            pytest.importorskip("pyarrow") if holds == "Parquet" else None
            write(path)
            assert os.path.getsize(path)
        else:
            with pytest.raises(ms.InvalidInputError, match=f"'{path}' would hold {holds}, but is named as "):
                write(path)


def test_a_line_that_is_too_long_is_wrapped(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(show, "live", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    line = "best by_kind 1234.5 ms, bound 1234.5 ms, gap 12.34 %; by_kind, 50%"
    with show.working("planning") as say:
        say(line)
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", capfd.readouterr().err)
    assert "…" not in told
    assert {*line.split()} <= {*told.split()}


def test_long_work_tells_how_far_it_is_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 1.0, 16.0, 16.0, 17.0, 40.0, 40.0])
    monkeypatch.setattr(show.time, "monotonic", lambda: next(now))
    with show.working("planning") as say:
        for line in ("a second", "16 seconds", "a second later", "much later"):
            say(line)
    assert capfd.readouterr().err.splitlines() == ["16 seconds", "much later"]


def test_optimizers_are_completed() -> None:
    pytest.importorskip("torch")
    test_lists_and_words_are_completed("fit --optimizer adamw", ["adamw"])


@pytest.mark.parametrize("name", sorted(command_line.commands))
def test_a_help_names_options_that_there_are(name: str) -> None:
    """The help of --quiet named --csv where there is none."""
    command = command_line.commands[name]
    options = [one for one in command.params if isinstance(one, click.Option)]
    told = {word for one in options for word in re.findall(r"--[a-z-]+", one.help or "")}
    assert told <= {word for one in options for word in (*one.opts, *one.secondary_opts)}


def test_a_model_may_be_one_of_a_package_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only models of installed packages were offered for resnet50."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "transformers" or None)
    monkeypatch.setattr(specs, "known_models", lambda family: ("resnet", "gpt2"))
    with pytest.raises(ms.InvalidInputError, match=r":resnet, or torchvision:resnet50 or timm:resnet50 \(not inst"):
        specs.parse_model("resnet50")
    with pytest.raises(ms.InvalidInputError, match=r"'gpt2-large'; near: gpt2; .*gpt2\?n_layer=36, and names on a hub"):
        specs.parse_model("transformers:gpt2-large")


def test_a_file_is_told_in_the_unit_in_which_its_memory_is_round() -> None:
    """`plan -m 700MB` told MB; what read its file, and Python, told 668 MiB."""
    found = ms.greedy(ms.profiles.load(SMALL), "700MB", "12GB/s")
    found.save("k.json")
    assert "memory       700 MB\n" in str(found)
    assert str(found) == str(ms.Result.load("k.json"))
    assert "700 MB, 12 GB/s" in str(ms.compare(found.problem, "700MB", "12GB/s", planners="greedy"))
    assert "MiB" not in f"{found}{run('simulate k.json')}{run('validate k.json')}"
    assert "of 700 MB (700,000,000 bytes)" in run("simulate k.json")
    assert "of 700 MB (700,000,000 bytes)" in run("validate k.json")


def test_the_origin_of_a_link_covers_both_of_its_directions() -> None:
    """`simulate -b` of a plan for a duplex link called --bandwidth the origin of all of it."""
    ms.greedy(ms.profiles.load(SMALL), device=ms.Device("1GiB", "6GB/s", duplex=True)).save("k.json")
    told = "12 GB/s in both directions at once (--bandwidth; the rest: the result's)"
    assert told in run("simulate k.json -b 12GB/s")
    assert "one direction at a time (--bandwidth, --no-duplex; the rest" in run("validate k.json -b 1GB/s --no-duplex")
    assert "(--host-memory; the rest: the result's)" in run("validate k.json --host-memory 8GiB")
    assert "one direction at a time (--bandwidth)" in run(f"plan {SMALL} -m 100% -b 12GB/s -p greedy")


@pytest.mark.skipif(os.name != "posix", reason="a folder in use cannot be removed")
def test_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, gone = tmp_path / "sweep.toml", tmp_path / "gone"
    spec.write_text(
        'problems = ["resnet18-224-b32"]\nplanners = ["greedy"]\nmemory = ["50%"]\nbandwidth = ["12GB/s"]\n'
    )
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = CliRunner().invoke(command_line, ["sweep", str(spec), "--store", "q.sqlite"], env={"COLUMNS": "200"})
    monkeypatch.chdir(tmp_path)
    assert said.exit_code == 1
    assert said.output.strip().endswith("error: the current folder is not there any more; change to one that is")


def test_a_file_that_is_not_there_is_taken_for_one_of_nearly_that_name(tmp_path: Path) -> None:
    ms.Chain([1], [1], [4, 4], [0, 4]).save(tmp_path / "chain.json")
    assert "did you mean 'chain.json'?" in run("plan chian.json -m 50%", 2)
    told = run(f"plan {tmp_path / 'chain.jsn'} -m 50%", 2)
    assert f"did you mean '{tmp_path / 'chain.json'}'?" in told
    assert "did you mean" not in run("plan other.json -m 50%", 2)


def test_units_in_the_head_of_a_table_are_told_to_stand_in_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "stages.csv"
    for name in ("forward (ms)", "activation_MB", "saved MiB"):
        path.write_text(f"name,{name}\ninput,\n")
        assert "other units stand in the cells: 3.1ms, 200MB" in run("plan stages.csv -m 50%", 2)
    path.write_text("name,forwards\ninput,\n")
    assert "other units" not in run("plan stages.csv -m 50%", 2)
