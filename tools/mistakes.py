"""Write docs/mistakes.md: what newcomers mistype, and what memsched says; or check that it is up to date.

    python tools/mistakes.py           writes
    python tools/mistakes.py --check   fails when the page is stale

Every mistake is made anew, in Python or on the command line, and must end in one clear sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

import memsched as ms
from memsched.cli.app import command_line

PAGE = Path(__file__).resolve().parent.parent / "docs" / "mistakes.md"
CHAIN, OTHER = "resnet101-224-b32", "resnet18-224-b32"

HEAD = """# Mistakes, and what memsched says

Each of these was typed by somebody. The messages name what is wrong, its value and the remedy, and nothing is left half
written. `tools/mistakes.py` makes them all again and writes this page.

In Python, `chain` is the profile `resnet101-224-b32`, `other` the profile `resnet18-224-b32`, and `graph` the graph
`resnet50-224-b128-f32`.
"""

QUANTITIES = [
    'ms.plan(chain, 40, "12GB/s")',
    'ms.plan(chain, "40", "12GB/s")',
    'ms.dynprog(chain, "40%", 12.2)',
    'ms.plan(chain, "6 gigs", "12GB/s")',
    'ms.plan(chain, "6GiB", "12Gb/s")',
    'ms.plan(chain, "6GiB", "12GB")',
    'ms.plan(chain, "-5%", "12GB/s")',
    'ms.plan(chain, 0.4, "12GB/s")',
    'ms.plan(chain, None, "12GB/s")',
    'ms.plan(chain, "12GB/s", "6GiB")',
    'ms.plan(chain, "6GiB", "12GB/s", time_limit="fast")',
    'ms.plan(chain, "6GiB", "12GB/s", chunk="sixteen")',
    'ms.Device("16GiB", bandwidth="fast")',
    'ms.Device("16GiB", "12GB/s", latency="10 parsecs")',
    'ms.Device("lots")',
    'ms.frontier(chain, "12GB/s", memory=["40%", "x"])',
    'ms.sweep(chain, ["rotor"], memory=[20, 40])',
    'ms.plan(chain, "6Gb", "12GB/s")',
    'ms.plan(chain, "0,5GB", "12GB/s")',
    'ms.dynprog(chain, "40%", device=ms.Device("16GiB", 12))',
]
NAMES = [
    'ms.plan(chain, "40%", "12GB/s", planner="dynprg")',
    'ms.compare(chain, "40%", "12GB/s", planners=["greedy", "dynprgo"])',
    'ms.compare(chain, "40%", "12GB/s", planners="greedy,rottor")',
    'ms.sweep(chain, budgets=["40%"])',
    'ms.write_placement(ms.place([ms.Buffer(0, 2, 3)]), "placed.csv")',
    'ms.write_report("page.html", ms.greedy(chain, "60%", "12GB/s"))',
    'ms.profiles.load("resnet101")',
    'ms.profiles.load("resnet-18")',
    "ms.Buffer(start=0, stop=3, size=4)",
    'ms.profiles.load_graph("resnet50-224")',
    'ms.min_memory(chain, "rottor")',
    'ms.dynprog(chain, "40%", "12GB/s", method="fast")',
    'ms.plan(chain, memory="40%", bandwidth="12GB/s")',
    'ms.sweep(chain, memory=["40%"], bandwidth=["12GB/s"])',
    'ms.plan(chain, "40%", "12GB/s", "greedy")',
    'ms.profiles.load("graph:resnet18-224-b32")',
]
PROBLEMS = [
    'ms.plan("resnet101-224-b32", "40%", "12GB/s")',
    'ms.dynprog(graph, "40%", "12GB/s")',
    'ms.plan({"forward_time": [1]}, "40%", "12GB/s")',
    'ms.plan("40%", chain)',
    'ms.Chain.load("~/chain.json")',
    "ms.Chain([1, 1], [1], [4, 4, 4], [0, 4, 4])",
    "ms.Chain([1, 1], [1, 1], [4, 4], [0, 4])",
    'ms.Chain([1, 1], [1, 1], ["4 mebi", 4, 4], [0, 4, 4])',
    "ms.Chain([1, -1], [1, 1], [4, 4, 4], [0, 4, 4])",
    "ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4], saved=[1, 1])",
    'ms.Chain.from_json({"format": "memsched-chain/1", "name": "mine"})',
    'ms.Chain.from_json({"name": "mine"})',
    'ms.Chain.load("no/such/file.json")',
    'ms.Chain.from_csv("times.csv")',
    'ms.Chain.from_frame({"forward": [None, 1], "backward": [None, 1], "activations": [4, 4]})',
    'ms.Chain.load("snapshot.pickle")',
    'ms.Chain.load("rows.sqlite")',
    'ms.read_snapshot("bare.json")',
    'ms.Graph([{"name": "x", "size": 4, "role": "output"}], [])',
    'ms.Graph([], [{"name": "F", "phase": "fwd", "reads": ["x"], "writes": [], "choices": []}])',
    "ms.Graph.from_networkx({1: [2]})",
    'ms.Graph.from_onnx("model.onnx")',
    'ms.read_snapshot("times.csv")',
    "ms.Buffer(3, 1, 4096)",
    'ms.place([(0, 1, "4MiB")])',
    'ms.place([ms.Buffer(0, 2, "4MiB"), ms.Buffer(1, 3, "4MiB")], capacity="6MiB")',
]
RESULTS = [
    'ms.plan(chain, "10MiB", "12GB/s")',
    'ms.greedy(chain, "6MB", "12GB/s")',
    'ms.rotor(chain, "0%")',
    'ms.Result.load("bare.json")',
    'ms.sweep(chain, ["greedy", "dynprg"], memory=["40%"])',
    'ms.read_store("none.sqlite")',
    'ms.read_store("bare.json")',
    'ms.validate(chain, ms.greedy(chain, "60%", "12GB/s"))',
    'ms.validate(chain, ms.greedy(other, "60%", "12GB/s").schedule, ms.Device("4GiB", "12GB/s"))',
    'ms.simulate(chain, ms.greedy(chain, "60%", "12GB/s").schedule, ms.Device("2GB", "12GB/s"))',
    'ms.dynprog(chain, "40%")',
    'ms.dynprog(chain, "40%", "12GB/s", slots=0)',
    "ms.validate(chain)",
    'ms.simulate(chain, ms.greedy(chain, "60%", "12GB/s"), ms.Device("4GiB"))',
    'ms.plot(ms.greedy(chain, "60%", "12GB/s"), "plan.docx")',
    'chain.save("chain.csv")',
    'ms.greedy(chain, "60%", "12GB/s").save("no/such/folder/plan.json")',
]
COMMANDS = [
    "plan resnet101 -m 40%",
    f"plan {CHAIN}",
    f"plan {CHAIN} -m 40",
    f"plan {CHAIN} -m 40% -b 12 --planner greedy",
    f"plan {CHAIN} -m 40% --planner dynprg",
    f"plan {CHAIN} -m 40% -b 12Gb/s",
    f"plan {CHAIN} -m 6gigs",
    f"plan {CHAIN} --memroy 40%",
    f"plann {CHAIN} -m 40%",
    f"plan {CHAIN} -m 10MiB",
    f"plan {CHAIN} 40%",
    f"frontier {CHAIN} -m 40%",
    f"compare {CHAIN} -m 40% -m 50%",
    f"order {CHAIN} --method lsted",
    f"plan {CHAIN} -m",
    "-m 40% plan",
    "plan missing.json -m 40%",
    "plan rows.sqlite -m 40%",
    "plan empty.json -m 40%",
    "report bare.json -o report.html",
    "plan times.csv -m 40%",
    f"compare {CHAIN} -m 40% --planners dynprg",
    "report plan.json -o report.pdf",
    f"plot {CHAIN} -m 40% -o plan.docx",
    "validate times.csv",
    "sweep missing.toml -o rows.csv",
    "sweep bad.toml -o rows.csv",
    "sweep plain.toml -o rows.csv",
    f"compare {CHAIN} -m 40% -o figures.png",
    "sweep plain.toml --store rows.csv",
    f"plan {CHAIN} -m 40% -o no/such/folder/plan.json",
    f"plan {CHAIN} -m 40% --time-limit fast",
    "place times.csv",
    "frontier graph:nonesuch",
]
SECTIONS = {
    "Quantities": QUANTITIES,
    "Names": NAMES,
    "Problems": PROBLEMS,
    "Results": RESULTS,
    "On the command line": COMMANDS,
}


def said_in_python(line: str, names: dict[str, object]) -> str:
    """The error or the warning that a line ends in."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            eval(line, names)
        except ms.MemschedError as error:
            return f"{type(error).__name__}: {error}"
    if not told:
        raise SystemExit(f"nobody objects to {line}")
    return f"{told[0].category.__name__}: {told[0].message}"


def said_on_the_command_line(arguments: str) -> str:
    """What a command prints, and its status."""
    outcome = CliRunner().invoke(command_line, arguments.split(), prog_name="memsched", env={"COLUMNS": "1000"})
    lines = [" ".join(line.split()) for line in outcome.output.splitlines() if line.strip()]
    warned = [line for line in lines if line.startswith("warning")]
    if not outcome.exit_code and not warned:
        raise SystemExit(f"nobody objects to memsched {arguments}")
    return " ".join(warned if not outcome.exit_code else lines) + f" (exit status {outcome.exit_code})"


@contextlib.contextmanager
def among_files() -> Iterator[None]:
    """In a folder with files that are no good, or good for something else."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("times.csv").write_text("layer,forward,backward\nconv1,0.1,0.2\n", encoding="utf-8")
        Path("empty.json").touch()
        Path("snapshot.pickle").write_bytes(pickle.dumps({"segments": []}))
        Path("bad.toml").write_text('problms = "gpt2"\nplanners = "gredy"\nmemory = "lots"\n', encoding="utf-8")
        Path("plain.toml").write_text(f'problems = "{CHAIN}"\nmemory = 50\n', encoding="utf-8")
        ms.sweep(CHAIN, "greedy", memory=["100%"], store="rows.sqlite")
        ms.greedy(ms.profiles.load(CHAIN), "60%", "12GB/s").schedule.save("bare.json")
        try:
            yield
        finally:
            os.chdir(before)


def page() -> str:
    """The text of the page."""
    names = {"ms": ms, "chain": ms.profiles.load(CHAIN), "graph": ms.profiles.load_graph("resnet50-224-b128-f32")}
    names["other"] = ms.profiles.load(OTHER)
    parts = [HEAD]
    with among_files():
        for title, lines in SECTIONS.items():
            shell = title == "On the command line"
            rows = [f"## {title}\n", "| Typed | memsched says |", "|---|---|"]
            for line in lines:
                said = said_on_the_command_line(line) if shell else said_in_python(line, names)
                typed = f"memsched {line}" if shell else line
                rows.append(f"| {as_code(typed)} | {as_text(said)} |")
            parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def as_code(text: str) -> str:
    """For a cell of a table."""
    return "`" + text.replace("|", "\\|") + "`"


def as_text(text: str) -> str:
    """The same for text, in which nothing is markup."""
    return re.sub(r"([\\<>*_`\[\]$|])", r"\\\1", " ".join(text.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check, text = parser.parse_args().check, page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is stale; run python tools/mistakes.py")


if __name__ == "__main__":
    main()
