"""What values show of themselves: in notebooks, printed, as pictures and as data frames."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.show.summaries import table_of
from memsched.show.words import plain
from memsched.study.sweep.table import COLUMNS
from test_hostile_names import HOSTILE, check, hostile_problem

pytest.importorskip("matplotlib")

CHAIN = ms.Chain([1, 2, 1], [2, 3, 1], [4, 6, 5, 3], [0, 6, 5, 3], saved=[9, 5, 4], name="small")
REAL = "resnet101-224-b32"
DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES = {"result", "frontier", "sweep", "placement"}
TAGS = {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "img", "svg", "rect", "title"}
ATTRIBUTES = {"class", "scope", "colspan", "style", "alt", "src"}
ATTRIBUTES |= {"viewbox", "preserveaspectratio", "x", "y", "width", "height"}  # of what is over a picture


def values(problem: ms.Chain | ms.Graph, beta: float | str = 2.0) -> dict[str, Any]:
    """A value of each kind that shows itself."""
    result = ms.pofo(problem, "50%", beta) if isinstance(problem, ms.Chain) else ms.swap_all(problem, "80%", beta)
    planner = "greedy" if isinstance(problem, ms.Chain) else "swap_all"
    memory = ["10%", "50%", "100%"]
    return {
        "chain or graph": problem,
        "schedule": result.schedule,
        "result": result,
        "comparison": ms.compare(problem, "30%", beta, time_limit=0.02),
        "frontier": ms.frontier(problem, beta, planner=planner, memory=[1, *memory]),
        "sweep": ms.sweep(problem, [planner, "tflms"], memory=memory, beta=[beta]),
        "order": ms.order(problem),
        "placement": ms.place(result, method="greedy"),
        "bounds": ms.bounds(problem, "50%", beta),
        "report": ms.validate(result),
    }


@cache
def small() -> dict[str, Any]:
    return values(CHAIN)


@cache
def real() -> dict[str, Any]:
    return values(ms.profiles.load(REAL), "12GB/s")


KINDS = sorted(small())


class Page(HTMLParser):
    """The tags, attributes and text of a page; an error if tags are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "img":
            self.open.append(tag)
        for name, value in attrs:
            assert value is not None
            self.attributes.setdefault(name, []).append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", [small, real])
def test_a_notebook_shows_a_table_and_the_picture(of: Callable[[], dict[str, Any]], kind: str) -> None:
    page = of()[kind]._repr_html_()
    assert len(page) < 200_000
    read = Page(page)
    assert set(read.tags) <= TAGS
    assert set(read.attributes) <= ATTRIBUTES
    assert read.tags.count("table") == 1
    assert read.tags.count("img") == (kind in PICTURES)
    assert all(source.startswith("data:image/png;base64,") for source in read.attributes.get("src", []))


def test_the_figures_are_there() -> None:
    shown = {kind: Page(value._repr_html_()).text for kind, value in real().items()}
    assert f"pofo on {REAL}" in shown["result"]
    for kind, words in {
        "chain or graph": (f"{REAL}: a chain of 38 stages", "forward", "GiB at least", "12.2 GB/s"),
        "schedule": ("a plan by pofo", " run, ", "prefetch", "budget", "GiB"),
        "result": ("makespan", "gap", "GiB", "ops run again,"),
        "comparison": ("selective", "no plan; fits in 76.93%", "ms", "GiB"),
        "frontier": ("no plan", "ms", "ideal"),
        "sweep": ("6 points of 1 problem", "fastest"),
        "order": ("found by search", "no order has less"),
        "placement": ("height", "fragmentation"),
        "bounds": ("fractional", "ms"),
        "report": ("claimed bound", "confirmed"),
    }.items():
        for word in words:
            assert word in re.sub(r"\s+", " ", shown[kind]), (kind, word)


def test_text_takes_its_colour_from_the_notebook() -> None:
    """Black text on a dark notebook cannot be read."""
    for value in small().values():
        page = re.sub(r"data:[^\"]+", "", value._repr_html_())
        assert set(re.findall(r"(?<![-\w])color:\s*([^;}\"]+)", page)) == {"inherit"}
        plain = re.sub(r"\.memsched img\{[^}]*\}", "", page)
        assert set(re.findall(r"background(?:-color)?:\s*([^;}\"]+)", plain)) == {"none", "none!important"}


EVIL = "<script>alert(1)</script>&\"'</td></table><img src=x onerror=alert(2)>"


NAMES = [EVIL, " ".join(HOSTILE), "x" * 400, "$x^2$ \\frac"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("chain", EVIL),
        *(pytest.param("chain", name, marks=pytest.mark.slow) for name in NAMES[1:]),
        pytest.param("graph", EVIL, marks=pytest.mark.slow),
        *(pytest.param("graph", name, marks=pytest.mark.exhaustive) for name in NAMES[1:]),
    ],
)
def test_names_are_shown_as_they_are(kind: str, name: str) -> None:
    found = values(hostile_problem(name)[kind])
    document = found["result"].to_json()
    document["planner"] = name
    found["claimed"] = ms.Result.from_json(document)
    found["named"] = ms.Comparison({name: found["result"], f"{name}2": ms.MemschedError(name)})
    rows = [{**row, "planner": name, "options": {name[:99]: name[:99]}} for row in found["sweep"].rows]
    found["rows"] = ms.Sweep(rows=rows)
    found["buffers"] = ms.place([ms.Buffer(0, 2, 3, name=name), ms.Buffer(1, 3, 4, name=name)])
    for value in (*found.values(), hostile_problem(name)["graph"]):
        page = value._repr_html_()
        read = Page(page)
        assert set(read.tags) <= TAGS
        assert set(read.attributes) <= ATTRIBUTES
        check(read.text)
        assert len(page) < 200_000
        assert read.tags.count("img") <= 1
    for value in (found["claimed"], found["named"]):
        check(str(value))
        assert max(map(len, str(value).splitlines())) < 250


@pytest.mark.parametrize("steps", [4000, 10_000])
def test_a_long_plan_takes_little_time_and_little_room(steps: int) -> None:
    count = steps // 7
    chain = ms.Chain([1.0] * count, [2.0] * count, [4] * (count + 1), [4] * (count + 1), saved=[8] * count)
    result = ms.greedy(chain, "60%", 4.0)
    small()["result"]._repr_html_()  # imports matplotlib
    begin = time.process_time()
    page = result._repr_html_()
    assert time.process_time() - begin < 2
    assert ("<img" in page) == (len(result.schedule) <= 5000)
    assert len(page) < (200_000 if "<img" in page else 5000)


def test_many_rows_are_not_all_shown() -> None:
    curve = ms.frontier(CHAIN, 2.0, planner="greedy", memory=list(range(20, 60)))
    page = Page(curve._repr_html_())
    assert page.tags.count("tr") == 25
    assert "24 of 40 memories are shown" in page.text
    (row,) = ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[2.0]).rows
    table = ms.Sweep(rows=[{**row, "options": {"slots": k}} for k in range(30)])
    page = Page(table._repr_html_())
    assert page.tags.count("tr") == 25
    assert "24 of 30 planners are shown" in page.text
    assert "<img" not in ms.Sweep(rows=[{**row, "problem": f"p{k}"} for k in range(13)])._repr_html_()
    assert "<img" not in ms.Sweep(rows=[])._repr_html_()


def test_without_matplotlib_there_is_thetable_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))]:
        monkeypatch.setitem(sys.modules, name, None)
    for kind, value in small().items():
        assert Page(value._repr_html_()).tags.count("img") == 0
        if kind in PICTURES:
            with pytest.raises(ms.MemschedError, match=r"memsched\[plot\]"):
                value.plot()


def test_plot_draws_what_the_functions_draw(tmp_path: Path) -> None:
    drawn = {"result": ms.plot, "frontier": ms.plot_frontier, "placement": ms.plot_addresses}
    functions = {**drawn, "sweep": lambda table, path: ms.plot_sweep(table.rows, path)}
    assert set(functions) == PICTURES
    for kind, function in functions.items():
        value = small()[kind]
        function(value, tmp_path / "a.svg")
        figure = value.plot(tmp_path / "b.svg")
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
        assert type(figure).__name__ == "Figure"
        assert value.plot().axes
    with pytest.raises(ms.InvalidInputError, match="png"):
        small()["result"].plot("a.txt")


def test_a_comparison_is_a_dict() -> None:
    found = ms.compare(CHAIN, "50%", 2.0, planners=["greedy", "pofo", "dynprog"])
    assert isinstance(found, dict)
    assert isinstance(found, ms.Comparison)
    assert found == dict(found)
    assert dict(found) == found
    assert list(found) == ["greedy", "pofo", "dynprog"]
    for same in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert type(same) is ms.Comparison
        assert same == found
        assert list(same) == list(found)
    assert found.best in found.values()
    assert all(found.best.makespan <= one.makespan for one in found.values() if isinstance(one, ms.Result))
    assert json.loads(json.dumps({**found}, default=repr)).keys() == found.keys()


def test_a_comparison_is_printed_as_atable_of() -> None:
    title, head, *rows, note = str(real()["comparison"]).splitlines()
    assert title.startswith(f"{REAL}, ")
    assert head.split() == ["planner", "makespan", "gap", "peak", "moved", "recomputed", "planned", "in"]
    assert [row.split()[0] for row in rows] == list(real()["comparison"])
    stars = [row.split()[0] for row in rows if row.split()[1] == "*"]
    assert stars == [real()["comparison"].best.planner]
    assert [row.split()[0] for row in rows if "no plan" in row] == ["tflms"]
    once, on_all = "plans that run each op once, in graph order (", "on all plans with whole tensors ("
    assert note.startswith(f"* the fastest; gap: to the largest bound that any of these planners proves on {once}")
    assert note.partition(f"), {on_all}")[2].startswith("pofo, rotor")
    assert max(map(len, rows)) == len(head)


def test_sums_in_another_order_are_as_fast() -> None:
    """A planner is not slower by the last bit of its makespan."""
    slower = ms.Chain([1, 2], [2, 3 * (1 + 1e-12)], [4, 6, 5], [0, 6, 5], saved=[9, 5])
    first, second = (ms.greedy(one, "100%", 2.0) for one in (ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5]), slower))
    assert first.makespan < second.makespan
    rows = str(ms.Comparison(first=first, second=second)).splitlines()[2:4]
    assert [row.split()[1] for row in rows] == ["*", "*"]
    swept = ms.sweep("resnet18-224-b32", ["greedy", "rotor"], memory=["100%"]).rows
    for factor, fastest in ((1 + 1e-12, ["1", "1"]), (1 + 1e-6, ["1", "0"])):
        makespans = (swept[0]["makespan"], swept[0]["makespan"] * factor)
        rows = [{**row, "makespan": makespan} for row, makespan in zip(swept, makespans, strict=True)]
        assert [row[-1] for row in table_of(ms.Sweep(rows)).rows] == fastest


def test_a_comparison_without_plans_says_why() -> None:
    none = ms.compare(CHAIN, 1, 2.0, planners=["greedy", "pofo"])
    assert none.best is None
    assert repr(none) == "Comparison(2 planners, no plan)"
    title, _, *rows = str(none).splitlines()
    assert title == "no planner has a plan"
    assert all("no plan; fits in" in row for row in rows)
    failed = ms.Comparison(greedy=ms.LimitError("it took too long"))
    assert "greedy   failed: it took too long" in str(failed)
    assert Page(failed._repr_html_()).attributes["colspan"] == ["6"]
    assert "no planner has a plan" in str(ms.Comparison())
    assert Page(ms.Comparison()._repr_html_()).tags.count("tr") == 1


def test_a_result_is_printed_as_a_summary() -> None:
    result = real()["result"]
    lines = str(result).splitlines()
    assert len(lines) <= 11
    assert lines[0] == f"pofo on {REAL}"
    for name in ("memory", "makespan", "peak", "moved", "recomputed"):
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
    assert f"of {result.bounded}: gap" in str(result)
    assert "\n" not in repr(result)
    best = ms.greedy(CHAIN, "100%", 2.0)
    assert f"of {best.bounded}: proven optimal" in str(best)
    assert "moved        nothing travels\nrecomputed   every op runs once" in str(best)
    family = ms.GraphFamily(step, 4)
    split = ms.modnn(family, ms.min_memory(family, "modnn"), 1e9)
    assert re.search(r"^rounds +\d+, of batch \d", str(split), re.MULTILINE)
    assert len(str(split).splitlines()) <= 11


def step(batch: int) -> ms.Graph:
    chain = ms.Chain([1] * 4, [1] * 4, [8 * batch] * 5, [8 * batch] * 5)
    return ms.Graph.from_json({**ms.to_graph(chain).to_json(), "batch": batch, "name": "family"})


def instances() -> list[Any]:
    result = real()["result"]
    return [
        *(result, result.problem, result.graph, result.device, result.schedule, result.timeline),
        *(value for kind, value in real().items() if kind not in ("chain or graph", "schedule")),
        real()["placement"].buffers[0],
        ms.GraphFamily(step, 4, name=REAL),
        ms.SweepProgress(points=10**6, kept=12345, planned=10**5, infeasible=10**4, failed=10**3, seconds=12345.678),
    ]


def test_the_repr_of_every_class_is_short() -> None:
    """That of a report had 34,222 characters."""
    public = {value for name in ms.__all__ if inspect.isclass(value := getattr(ms, name))}
    assert {type(one) for one in instances()} == {one for one in public if not issubclass(one, Exception)}
    for one in instances():
        assert len(repr(one)) < 200, type(one)
        assert "\n" not in repr(one)
        assert type(one).__name__ in repr(one)


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    steps = real()["result"].to_pandas()
    assert list(steps.columns) == ["kind", "name", "stage", "start", "end", "round"]
    assert set(steps["round"]) == {1}
    assert len(steps) == len(real()["result"].schedule)
    assert set(steps["kind"]) == {"forward", "backward", "recompute", "offload", "prefetch", "free"}
    stages = dict(zip(steps["name"], steps["stage"], strict=True))
    names = real()["result"].problem.names
    assert {stages[name] for name in ("F1", "B1", "a1")} == {names[0]} == {"conv1"}
    assert stages["F38"] == stages["B38"] == names[37]
    assert {name for name, stage in stages.items() if pandas.isna(stage)} == {"loss"} | ({"a0"} & {*stages})
    assert ms.swap_all(ms.to_graph(CHAIN), "100%", 2.0).to_pandas()["stage"].isna().all()
    assert "layer1.0" in stages["tape4/0" if "tape4/0" in stages else "tape4"]
    assert steps["end"].max() == real()["result"].makespan
    assert (steps["start"].dtype, steps["end"].dtype) == ("float64", "float64")
    table = real()["comparison"].to_pandas()
    assert list(table["planner"]) == list(real()["comparison"])
    assert set(table["status"]) == {"planned", "infeasible"}
    assert [str(table[name].dtype) for name in ("makespan", "peak_memory", "optimal", "min_memory")] == [
        *("float64", "Int64", "boolean", "Int64")
    ]
    assert table["min_memory"].notna().sum() == (table["status"] == "infeasible").sum()
    curve = real()["frontier"].to_pandas()
    assert list(curve["memory"]) == real()["frontier"].memory.tolist()
    assert curve["makespan"].isna().tolist() == [True, False, False, False]
    buffers, placed = real()["placement"].to_pandas(), real()["placement"]
    assert buffers["offset"].tolist() == [*placed.offsets]
    assert buffers["size"].tolist() == [one.size for one in placed.buffers]
    assert {str(buffers[name].dtype) for name in ("start", "end", "size", "alignment", "offset")} == {"Int64"}
    assert ms.place([ms.Buffer(0.5, 2, 3)]).to_pandas()["start"].tolist() == [0.5]
    assert (curve["memory"].dtype, curve["peak_memory"].dtype) == ("Int64", "Int64")
    assert set(curve["planner"]) == {"greedy"}
    assert ms.Comparison().to_pandas().empty
    bounds, order = small()["bounds"], small()["order"]
    named = dict(bounds.to_pandas().itertuples(index=False))
    assert named.pop("interruptible") == bounds.interruptible
    assert named == {name: getattr(bounds, name) for name in ("best", "compute", "transfer", "fractional", "recompute")}
    assert order.to_pandas()["op"].tolist() == [*order.order]


def test_frames_of_polars_have_the_same_cells() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    types = {"float64": polars.Float64, "Int64": polars.Int64, "boolean": polars.Boolean}
    for kind in ("chain or graph", "placement", "result", "comparison", "frontier", "sweep"):
        ours, theirs = real()[kind].to_polars(), real()[kind].to_pandas()
        assert ours.columns == list(theirs.columns)
        assert ours.height == len(theirs)
        for name in ours.columns:
            assert ours[name].dtype == types.get(str(theirs[name].dtype), polars.String)
            assert ours[name].to_list() == [None if pandas.isna(one) else one for one in theirs[name].tolist()]
    assert real()["sweep"].to_polars().columns == list(COLUMNS)
    assert ms.Sweep(rows=[]).to_polars().schema["memory"] == polars.Int64


@pytest.mark.parametrize(("package", "extra"), [("pandas", "sweep"), ("polars", "polars")])
def test_a_missing_package_is_told_with_its_extra(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = f"the table needs {package}, which is not installed; pip install 'memsched[{extra}]'"
    for kind in ("result", "comparison", "frontier", "sweep"):
        with pytest.raises(ms.InvalidInputError, match=re.escape(said)):
            getattr(small()[kind], f"to_{package}")()


def test_views_are_loaded_when_first_used() -> None:
    code = (
        "import sys, memsched as ms; r = ms.greedy(ms.Chain([1], [1], [1, 1], [0, 1]), 9, 1.0); repr(r);"
        "before = 'memsched.show.notebook' in sys.modules; print(before, ' on ' in str(r), 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]


def test_a_picture_is_as_wide_as_a_screen_and_its_page_is_white() -> None:
    image = pytest.importorskip("PIL.Image")
    import base64

    for kind in PICTURES:
        (source,) = Page(small()[kind]._repr_html_()).attributes["src"]
        with image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as read:
            assert 600 < read.width <= 1800
            assert read.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_in_a_dark_notebook_a_picture_is_dark() -> None:
    """A white page shone in it. Jupyter, VS Code, Colab and Sphinx each tell otherwise that they are dark."""
    shown = ms.greedy(ms.profiles.load("resnet18-224-b32"), "40%", "12GB/s")._repr_html_()
    for where in ("body[data-jp-theme-light=false]", "body.vscode-dark", "html[theme=dark]", "html[data-theme=dark]"):
        assert f"{where} .memsched img" in shown
    assert "invert(" in shown


def test_tables_of_problems_and_schedules_are_small() -> None:
    graph = ms.profiles.load_graph("resnet18-224-b32")
    family = ms.GraphFamily(step, 4)
    schedules = [ms.Schedule([], budget=3), ms.modnn(family, "100%", 1e9).schedule]
    for value in (ms.profiles.load(REAL), graph, *schedules):
        page = Page(value._repr_html_())
        assert page.tags.count("table") == 1
        assert page.tags.count("tr") <= 6
    assert "a graph of" in Page(graph._repr_html_()).text
    assert "a plan by user" in Page(schedules[0]._repr_html_()).text


def test_a_device_and_a_timeline_have_short_tables() -> None:
    device = ms.Device("16GB", "12GB/s", latency="10us", host_memory="64GB", name="v100")
    timeline = small()["result"].timeline
    for value, words in (
        (device, ("v100", "16 GB", "12 GB/s", "one direction at a time", "latency 10 us", "host memory")),
        (ms.Device(5), ("a device", "5 B", "no link")),
        (timeline, (f"a timeline of {len(timeline.start)} steps", "makespan", "peak", "moved", "idle", "recomputed")),
    ):
        page = Page(value._repr_html_())
        assert page.tags.count("tr") <= 6
        for word in words:
            assert word in str(value)
            assert word in page.text
        assert str(value).splitlines()[0] == table_of(value).title
        assert repr(value).startswith(type(value).__name__)


def test_every_table_of_a_notebook_is_also_printed() -> None:
    for kind in ("frontier", "sweep", "order", "placement", "bounds", "report"):
        value = small()[kind]
        assert str(value).splitlines()[0] == table_of(value).title
        assert repr(value) != str(value)


def test_a_sweep_has_rows_by_number() -> None:
    table = small()["sweep"]
    assert table[0] is table.rows[0]
    assert table[-1] == table.rows[-1]
    assert table[1:3] == table.rows[1:3]
    with pytest.raises(IndexError):
        table[len(table)]


def test_figures_are_worded_alike_in_all_views(tmp_path: Path) -> None:
    pytest.importorskip("click")
    from click.testing import CliRunner

    from memsched.cli.app import command_line
    from memsched.show.report.summary import summarize, tiles

    for result in (real()["result"], ms.greedy(CHAIN, "100%", 2.0), ms.offload(CHAIN, "50%", 2.0)):
        result.save(tmp_path / "r.json")
        told = CliRunner().invoke(command_line, ["simulate", str(tmp_path / "r.json")], env={"COLUMNS": "200"}).output
        printed = dict(re.split(r" {2,}", line, maxsplit=1) for line in str(result).splitlines()[1:])
        notes = {tile.title: plain(tile.note) for tile in tiles(result, summarize(result))}
        assert notes["Moved"] == printed["moved"]
        assert printed["lower bound"].endswith(notes["Lower bound"])
        assert printed["recomputed"].startswith(notes["Recomputed"])
        for name in ("moved", "lower bound", *(["recomputed"] if result.recomputed else [])):
            assert re.search(rf"^{name} +{re.escape(printed[name])}$", told, re.MULTILINE), (name, told)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_use_public_names_alone(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert set(re.findall(r"from (memsched\S*) import (\w+)", code)) <= {("memsched", "Schedule")}
    assert set(re.findall(r"import (memsched\S*)", code)) == {"memsched"}
    assert set(re.findall(r"\bms\.(\w+)", code)) <= {*ms.__all__}
