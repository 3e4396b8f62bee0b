"""Reports: what they say about a plan and a sweep, held against slow walks; escaping, errors, and the command."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import itertools
import json
import re
import sqlite3
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.cli.app import command_line
from memsched.show.plots import palette
from memsched.show.plots.sweep import plot_sweep
from memsched.show.report import figures, page, write_report, write_sweep_report
from memsched.show.report.comparison import POINTS, Study, _agreed, studies, study
from memsched.show.report.results_page import _kind_table, results_page
from memsched.show.report.summary import summarize, verdict
from memsched.show.report.sweep_page import sweep_page
from memsched.show.report.sweep_rows import standings
from memsched.show.report.tables import Column, Table
from memsched.show.report.tensors import FATES, tensor_uses
from memsched.show.text import Number, shown
from memsched.study.sweep.rows import checked
from memsched.testing import graphs, schedules

pytest.importorskip("jinja2", reason="reports need jinja2")

NUMBERS = ("count", "bytes", "seconds", "bandwidth", "percent", "ratio")
CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], resident=7, name="toy")
RESULT = ms.greedy(CHAIN, 31, 2.0)
WICKED = """</script><script>alert('1')</script><!-- "é✓" & <b>'"""


def result_of(chain: ms.Chain, schedule: ms.Schedule, device: ms.Device) -> ms.Result:
    timeline = ms.simulate(chain, schedule, device)
    return ms.Result(
        planner="drawn",
        problem=chain,
        device=device,
        schedule=schedule,
        timeline=timeline,
        lower_bound=0.0,
        runtime=0.0,
    )


def data_of(text: str) -> Any:
    """The figures in a page."""
    return json.loads(unpacked(text, "memsched-data"))


def unpacked(text: str, name: str) -> str:
    """What is compressed in an element of a page."""
    (found,) = re.findall(rf'<script type="application/gzip" id="{name}">(.*?)</script>', text, re.DOTALL)
    return gzip.decompress(base64.b64decode(found, validate=True)).decode()


def written(macro: str, value: Any) -> str:
    """A value as a macro of parts.html writes it."""
    template = page.environment().from_string(f"{{% from 'parts.html' import {macro} %}}{{{{ {macro}(value) }}}}")
    return str(template.render(value=value))


class Reader(HTMLParser):
    """The elements of a page, and its texts outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.raw = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.raw = False

    def handle_data(self, data: str) -> None:
        if not self.raw:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


# What happens to each tensor.


def walk(result: ms.Result, name: str) -> dict[str, Any]:
    """One tensor, step by step, with nothing but the rules of docs/schedule.md."""
    ops = {op["name"]: op for op in result.graph.ops}
    writer = next((op["name"] for op in result.graph.ops if name in op["writes"]), None)
    start, end = result.timeline.start, result.timeline.end
    facts: dict[str, Any] = dict.fromkeys(("written", "offloaded", "prefetched", "freed"))
    facts |= {"runs": 0, "again": False, "device": [], "early": None}
    begin = 0.0 if writer is None else None
    for at, step in enumerate(result.schedule.steps):
        op = ops.get(step.get("run", ""))
        if op is not None and op["phase"] == "bwd" and facts["early"] is None:
            facts["early"] = begin is None and facts["freed"] is not None
        if op is not None and step["run"] == writer:
            facts["runs"] += 1
            facts["again"] |= facts["runs"] > 1 and name not in step.get("skip", ())
            if name not in step.get("skip", ()):
                assert begin is None
                begin = float(start[at])
                facts["written"] = float(end[at]) if facts["written"] is None else facts["written"]
        if step.get("offload") == name and facts["offloaded"] is None:
            facts["offloaded"] = float(end[at])
        if step.get("prefetch") == name:
            assert begin is None
            begin = float(start[at])
            facts["prefetched"] = float(end[at]) if facts["prefetched"] is None else facts["prefetched"]
        if step.get("free") == name:
            facts["device"].append((begin, float(end[at])))
            begin, facts["freed"] = None, float(end[at])
    if begin is not None:
        facts["device"].append((begin, float(end.max())))
    return facts


def fetched_in_vain() -> tuple[ms.Chain, ms.Schedule, ms.Device]:
    """x is fetched, freed and computed again; the link is slow, and all of that is computed before x arrives."""
    chain = ms.Chain([0], [0], [0, 0], [0, 0], saved=[1])
    names = [tensor["name"] for tensor in ms.to_graph(chain).tensors]
    (tape,) = (name for name in names if name.startswith("tape"))
    runs = [{"run": "F1"}, {"run": "loss"}, {"offload": tape}, {"free": tape}, {"prefetch": tape}, {"free": tape}]
    steps = [*runs, {"free": "a1"}, {"run": "F1"}, {"run": "B1"}]
    return chain, ms.Schedule(steps, budget=9, graph=chain.name), ms.Device(9, 0.5)


def test_a_copy_that_is_fetched_in_vain_may_come_after_the_next_one() -> None:
    (use,) = (use for use in tensor_uses(result_of(*fetched_in_vain())) if use.name.startswith("tape"))
    stays = [(stay.place, stay.start, stay.end) for stay in use.stays]
    assert stays == [("device", 0.0, 2.0), ("recomputed", 0.0, 4.0), ("fetched", 2.0, 4.0)]


@example(fetched_in_vain())
@given(schedules())
def test_what_each_tensor_does_is_what_a_slow_walk_finds(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    result = result_of(*case)
    uses = tensor_uses(result)
    assert [(use.name, use.bytes, use.role) for use in uses] == [
        (one["name"], one["size"], one["role"]) for one in result.graph.tensors if one["size"] > 0
    ]
    for use in uses:
        facts = walk(result, use.name)
        for key in ("written", "offloaded", "prefetched", "freed", "runs"):
            assert getattr(use, key) == facts[key], key
        assert [(stay.start, stay.end) for stay in use.stays if stay.place != "host"] == sorted(
            facts["device"], key=lambda stay: stay[0]
        )
        fate = (
            "fetched"
            if facts["prefetched"] is not None
            else "never written"
            if not facts["device"]
            else "recomputed"
            if facts["again"]
            else "offloaded"
            if facts["offloaded"] is not None
            else "freed early"
            if facts["early"]
            else "kept"
        )
        assert use.fate == fate
        assert fate in FATES
        for one, other in itertools.pairwise(use.stays):
            assert one.place in ("device", "fetched", "recomputed", "host")
            assert one.start <= other.start
            if "host" in (one.place, other.place):
                assert one.end <= other.start
            if other.place == "host":
                assert facts["offloaded"] is not None
                assert other.start >= facts["offloaded"]


@given(schedules())
def test_fates_agree_with_the_classes_of_feature_maps(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    result = result_of(*case)
    fates = {use.name: use.fate for use in tensor_uses(result)}
    for name, kind in ms.feature_map_classes(result).items():
        fate = fates[name]
        assert kind == {"fetched": "swap", "recomputed": "recompute"}.get(fate, "keep")


@given(schedules())
def test_runs_of_all_kinds_of_op_add_up(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    result = result_of(*case)
    rows = _kind_table("kinds-0", result).rows
    assert sum(row[5] for row in rows) == pytest.approx(result.timeline.recompute_time)
    sizes = {tensor["name"]: tensor["size"] for tensor in result.graph.tensors}
    maps = ms.feature_map_classes(result)
    for at, kind in enumerate(("keep", "swap", "recompute"), start=2):
        assert sum(row[at] for row in rows) == sum(sizes[name] for name, found in maps.items() if found == kind)


@given(schedules())
def test_stays_and_workspaces_add_up_to_the_memory_of_the_simulator(
    case: tuple[ms.Chain, ms.Schedule, ms.Device],
) -> None:
    result = result_of(*case)
    graph = result.graph
    ops = {op["name"]: op for op in graph.ops}
    stays = [
        (stay.start, stay.end, use.bytes) for use in tensor_uses(result) for stay in use.stays if stay.place != "host"
    ]
    for step, start, end in zip(result.schedule.steps, result.timeline.start, result.timeline.end, strict=True):
        if "run" in step:
            op = ops[step["run"]]
            stays.append((start, end, op["skip_workspace"] if step.get("skip") else op["choices"][0]["workspace"]))
    times, counts = result.timeline.memory
    moments = sorted({*times.tolist(), *(moment for start, end, _ in stays for moment in (start, end))})
    for low, high in itertools.pairwise(moments):
        middle = (low + high) / 2
        if not low < middle < high:
            continue
        held = graph.resident + sum(size for start, end, size in stays if start <= middle < end)
        assert held == counts[np.searchsorted(times, middle, "right") - 1]


@settings(max_examples=20)
@given(graphs(max_layers=4))
def test_graphs_are_walked_too(graph: ms.Graph) -> None:
    result = ms.swap_all(graph, ms.peak_memory(graph) + 100, 4.0)
    for use in tensor_uses(result):
        facts = walk(result, use.name)
        assert (use.written, use.prefetched, use.freed) == (facts["written"], facts["prefetched"], facts["freed"])


def test_a_plan_that_does_everything() -> None:
    steps: list[dict[str, Any]] = [{"run": "F1"}, {"free": "a1"}, {"free": "tape1"}, {"offload": "a0"}, {"run": "F1"}]
    steps += [{"free": "a0"}, {"run": "F2"}, {"run": "loss"}, {"run": "B2"}, {"prefetch": "a0"}, {"run": "B1"}]
    schedule = ms.Schedule(steps, budget=100)
    fates = {use.name: use.fate for use in tensor_uses(result_of(CHAIN, schedule, ms.Device(100, 2.0)))}
    assert fates == {
        **{"a0": "fetched", "a1": "recomputed", "tape1": "recomputed"},
        **dict.fromkeys(("a2", "d2", "d1"), "kept"),  # d0 has no bytes
    }


# Figures.


@given(schedules())
def test_columns_have_one_entry_a_step_or_a_stay(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    result = result_of(*case)
    uses = tensor_uses(result)
    found = figures.figures(result, uses)
    timed = [at for at, step in enumerate(result.schedule.steps) if "free" not in step]
    assert found["timeline"]["step"] == timed
    assert found["timeline"]["start"] == result.timeline.start[timed].tolist()
    assert found["timeline"]["end"] == result.timeline.end[timed].tolist()
    assert {len(column) for column in found["timeline"].values()} == {len(timed)}
    shown_rows = {at for at, use in enumerate(uses) if use.bytes and use.stays}
    assert set(found["lifetimes"]["order"]) == set(found["lifetimes"]["tensor"]) == shown_rows
    assert found["memory"]["peak"] == result.peak_memory == max(found["memory"]["bytes"])
    assert found["addresses"] is None
    json.dumps(found, allow_nan=False)


@settings(max_examples=20)
@given(graphs(max_layers=4))
def test_addresses_are_those_of_the_placement(graph: ms.Graph) -> None:
    result = ms.olla(graph, ms.peak_memory(graph) + 100, 0.0)
    assert result.placement is not None
    found = figures.addresses(result)
    assert found is not None
    assert (found["height"], found["lower_bound"]) == (result.placement.height, result.placement.lower_bound)
    placed = {(b.name, o, b.size) for b, o in zip(result.placement.buffers, result.placement.offsets, strict=True)}
    assert set(zip(found["name"], found["low"], found["bytes"], strict=True)) <= placed
    corners = list(zip(found["start"], found["end"], found["low"], found["bytes"], strict=True))
    for (s, e, low, size), (s2, e2, low2, size2) in itertools.combinations(corners, 2):  # no two overlap
        assert e <= s2 or e2 <= s or low + size <= low2 or low2 + size2 <= low


def test_a_fluid_plan_that_was_placed_is_drawn_by_op() -> None:
    result = replace(RESULT, placement=ms.place(RESULT))
    found = figures.addresses(result)
    assert found is not None
    assert not found["in_time"]
    assert found["until"] == sum("run" in step for step in RESULT.schedule.steps)
    assert "Where everything lies" in results_page([result], [None])


# Words.


def test_the_verdict_says_what_is_proven() -> None:
    def said(result: ms.Result) -> str:
        parts = verdict(result, summarize(result))
        return "".join(part.shown if isinstance(part, Number) else part for part in parts)

    assert said(ms.greedy(CHAIN, 100, 2.0)) == "proven optimal: no plan with whole tensors within this budget is faster"
    assert said(ms.greedy(CHAIN, 100, 2.0, chunk=1)).startswith("proven optimal: no plan in the same pieces within")
    assert said(ms.selective(ms.to_graph(CHAIN), 100, 2.0)) == "proven optimal: no plan within this budget is faster"
    family = ms.profiles.analytic("alexnet", 2)
    assert said(ms.selective(family, ms.peak_memory(family), 1e9)).endswith(" of any plan in the same rounds")
    chain = ms.profiles.load("resnet18-224-b32")
    device = ms.Device(ms.min_memory(chain) + (ms.peak_memory(chain) - ms.min_memory(chain)) // 10, 12e9)
    for planner in ("offload", "rotor", "pofo"):
        result = ms.plan(chain, device=device, planner=planner)
        summary = summarize(result)
        assert summary.any_bound <= result.makespan
        assert summary.any_gap is not None
        assert f"{100 * summary.any_gap:.2f} % of any plan" in said(result)
        assert ("each op once" in said(result)) == (planner == "offload")


def test_nothing_that_takes_no_time_divides_by_it() -> None:
    chain = ms.Chain([0, 0], [0, 0], [0, 0, 0], [0, 0, 0], name="nothing")
    result = ms.greedy(chain, 1, 0.0)
    text = results_page([result], [study(result, 0.0)])
    assert "proven optimal" in text
    assert "No tensor of this problem has any bytes." in text
    assert data_of(text)["results"][0]["makespan"] == 0.0


def test_a_family_in_rounds_names_them() -> None:
    family = ms.profiles.analytic("vgg16", 8, "k40m")
    result = ms.modnn(family, ms.min_memory(family) + (ms.peak_memory(family) - ms.min_memory(family)) // 3, 10e9)
    assert sum(times for _, times in result.schedule.rounds) > 1
    text = Reader(results_page([result], [None])).text
    for batch, times in result.schedule.rounds:
        assert f"{times} × {batch} sample{'' if batch == 1 else 's'}" in text
    assert "the first round is shown" in text
    assert "in the same rounds" in text
    saved = ms.Result.from_json(json.loads(json.dumps(result.to_json())))
    note = "so other planners could not choose other rounds"
    assert note in results_page([saved], [study(saved, 0.0)])
    assert note not in results_page([result], [study(result, 0.0)])


# The page.


@pytest.mark.parametrize("results", [[RESULT], [RESULT, ms.rotor(CHAIN, 33)]], ids=["one", "two"])
def test_the_page_holds_the_exact_figures_and_says_them(results: list[ms.Result]) -> None:
    text = results_page(results, [None] * len(results))
    found = data_of(text)
    assert found["format"] == "memsched-report/2"
    read = Reader(text)
    values = {attributes.get("data-value") for _, attributes in read.tags}
    for result, one in zip(results, found["results"], strict=True):
        for key in ("makespan", "lower_bound", "gap", "peak_memory", "optimal", "planner", "runtime"):
            assert one[key] == getattr(result, key)
        for key in ("bytes_out", "bytes_in", "idle", "recompute_time"):
            assert one[key] == getattr(result.timeline, key)
        assert {repr(result.makespan), str(result.peak_memory), repr(result.lower_bound)} <= values
        assert one["device"] == result.device.to_json()
    assert text == results_page(results, [None] * len(results))
    assert ("Side by side" in text) == (len(results) > 1)


@pytest.mark.parametrize(
    ("names", "called"), [(None, ["greedy 1", "greedy 2", "rotor"]), (["a, b", "<c>", "d"], ["a, b", "&lt;c&gt;", "d"])]
)
def test_results_side_by_side_have_names_of_their_own(
    tmp_path: Path, names: list[str] | None, called: list[str]
) -> None:
    """Two plans of one planner were "greedy" both, in the tabs and in the table."""
    results = [ms.greedy(CHAIN, 33, 2.0), ms.greedy(CHAIN, 40, 2.0), ms.rotor(CHAIN, 33)]
    write_report(results, tmp_path / "a.html", names=names)
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert re.findall(r'<button type="button" role="tab"[^>]*>(.*?)<small>', text) == called
    assert [row[0] for row in data_of(text)["tables"]["results"]["rows"]] == (names or called)
    with pytest.raises(ms.InvalidInputError, match="names has 1 names; it must have one per result: 3"):
        write_report(results, tmp_path / "a.html", names=["a"])


def test_scripts_are_those_that_the_page_allows_and_nothing_is_fetched() -> None:
    read = Reader(results_page([RESULT], [None]))
    scripts = [attributes for tag, attributes in read.tags if tag == "script"]
    assert scripts == [*({"type": "application/gzip", "id": name} for name in ("memsched-data", "plotly")), {}]
    assert not [
        tag for tag, attributes in read.tags if {"src", "href", "srcset", "onclick", "onload"} & set(attributes)
    ]
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in read.tags}
    policy = next(a["content"] or "" for _, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "connect-src" not in policy
    assert "unsafe-eval" not in policy
    assert not re.search(r"url\(|@import|https?:", files("memsched.show.report").joinpath("page.css").read_text())


def test_templates_write_the_html_and_escape_what_they_are_given() -> None:
    package = files("memsched.show.report")
    for path in package.iterdir():
        if path.name.endswith(".py"):
            assert not re.search(r"</?[a-z][a-z0-9]*[ >]", path.read_text(encoding="utf-8")), path.name
    assert not re.search(r"</script|<!--", "".join(package.joinpath(name).read_text() for name in page.SCRIPTS))
    assert written("words", (WICKED, Number("count", 3))).startswith("&lt;/script&gt;")
    with pytest.raises(pytest.importorskip("jinja2").UndefinedError, match="'nothing' is undefined"):
        page.environment().from_string("{{ nothing }}").render()
    safe = [
        text
        for path in package.joinpath("templates").iterdir()
        for text in re.findall(r"(\w+)\|safe", path.read_text())
    ]
    assert sorted(safe) == ["hashes", "script", "style"]  # our own files


def test_the_library_is_the_file_that_npm_has() -> None:
    folder = files("memsched.show.report").joinpath("vendor")
    library, readme = folder.joinpath("plotly-basic.min.js").read_bytes(), folder.joinpath("README.md").read_text()
    digest = hashlib.sha256(library).hexdigest()
    assert digest == "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert f"| `{digest}` |" in readme
    version = re.search(rb"plotly\.js \(basic - minified\) v([\d.]+)", library)
    assert version is not None
    assert f"| version | {version[1].decode()} |" in readme
    assert folder.joinpath("LICENSE").read_text().startswith("MIT License\n\nCopyright (c) 2016-2024 Plotly")
    assert library.decode() == unpacked(results_page([RESULT], [None]), "plotly")


MOST_BYTES = 1_500_000  # of a page


def largest_graph() -> ms.Graph:
    """The shipped training step with the most tensors."""
    listed = (ms.profiles.load_graph(name) for name in ms.profiles.graph_names() if name.startswith("densenet201"))
    return max(listed, key=lambda graph: len(graph.tensors))


@pytest.mark.slow
def test_no_shipped_network_is_larger() -> None:
    name = max(ms.profiles.graph_names(), key=lambda name: len(ms.profiles.load_graph(name).tensors))
    assert name.startswith("densenet201")


@pytest.mark.parametrize("kind", ["plan", "tensors", "addresses", "sweep"])
def test_a_page_about_the_largest_example_can_be_mailed(kind: str) -> None:
    """They had 5 to 7 MB."""
    if kind == "sweep":
        sizes = [2**30 + k for k in range(1000)]
        text = sweep_page([{**ROW, "memory": size, "peak_memory": size - 1} for size in sizes])
    elif kind == "plan":
        chain = ms.profiles.load("densenet201-224-b32")
        outcomes = {name: ms.plan(chain, "40%", 12e9, planner=name) for name in ("greedy", "dynprog", "vdnn")}
        curve = ms.frontier(chain, planner="greedy", beta=12e9, points=POINTS)
        text = results_page([outcomes["dynprog"]], [Study(outcomes=outcomes, curves=(curve, curve, curve, curve))])
    elif kind == "tensors":
        graph = largest_graph()
        result = ms.by_kind(graph, ms.peak_memory(graph), 12e9)
        text = results_page([result], [Study(outcomes={"by_kind": result}, curves=())])
    else:
        text = results_page([ms.olla(largest_graph(), "100%", 0)], [None])
    assert 600_000 < len(text.encode()) < MOST_BYTES


def wicked_results() -> list[ms.Result]:
    names = [WICKED, "<img src=x onerror=alert(2)>"]
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], names=names, name=WICKED)
    first = replace(ms.greedy(chain, 24, 2.0), planner=WICKED, params={WICKED: [WICKED]})
    tensors = [{"name": f"{WICKED}{k}", "size": 4, "role": "activation"} for k in range(2)]
    ops = [
        {
            **{"name": f"{WICKED}-{phase}", "phase": phase, "reads": [one["name"] for one in tensors[:k]]},
            **{"writes": [tensors[k]["name"]], "choices": [{"alg": WICKED, "time": 1.0, "workspace": 1}]},
        }
        for k, phase in enumerate(("fwd", "bwd"))
    ]
    return [first, ms.olla(ms.Graph(tensors, ops, name=WICKED), 100, 0.0)]


@pytest.mark.parametrize("result", wicked_results(), ids=["chain", "graph"])
def test_names_are_text_wherever_they_stand(result: ms.Result) -> None:
    text = results_page([result, RESULT], [study(result, 0.0), None])
    read = Reader(text)
    assert [tag for tag, _ in read.tags].count("script") == 3
    assert [tag for tag, _ in read.tags].count("b") <= 6  # the fates' own
    assert "img" not in {tag for tag, _ in read.tags}
    assert "alert('1')" in read.text
    assert data_of(text)["results"][0]["problem"] == WICKED
    row = {**ROW, "problem": WICKED, "planner": WICKED, "options": {WICKED: WICKED}}
    sweep = sweep_page([row, {**row, **UNPLANNED, "status": "failed", "error": WICKED, "options": {}}], title=WICKED)
    assert [tag for tag, _ in Reader(sweep).tags].count("script") == 3
    assert data_of(sweep)["tables"]["points"]["rows"][0][1] == WICKED


@given(
    st.sampled_from(NUMBERS),
    st.floats(0, 1e15) | st.integers(0, 2**50) | st.just(float("inf")),
)
def test_a_figure_is_shown_with_its_exact_value(kind: str, value: float) -> None:
    if kind == "bytes" and value == float("inf"):
        return
    table = Table(name="t", columns=(Column(title="x", kind=kind),), rows=[[value]])
    read = Reader(written("table", table))
    cell = next(attributes for tag, attributes in read.tags if tag == "td")
    assert float(cell["data-value"] or "") == value
    assert (cell["title"] or "").startswith(repr(value))
    assert read.text.endswith(shown(kind, value))
    assert Number(kind, value).plain == repr(value)


def test_a_long_table_has_its_first_rows_in_the_page_and_all_in_the_data() -> None:
    table = Table(name="t", columns=(Column(title="x", kind="count"),), rows=[[k] for k in range(500)])
    assert written("table", table).count("<tr>") == 61
    assert len(table.to_json()["rows"]) == 500


CSS = files("memsched.show.report").joinpath("page.css").read_text(encoding="utf-8")
DAY_AND_NIGHT = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)[;\n ]")
LINES = [f"s{at}" for at in range(8)]


def test_colours_are_those_of_the_other_pictures() -> None:
    day = {name: light for name, light, _ in DAY_AND_NIGHT.findall(CSS)}
    shared = {**palette.STREAMS, **palette.ROLES, "memory": palette.MEMORY, "resident": palette.RESIDENT}
    assert {name: day[name] for name in shared} == shared
    assert [day[name] for name in LINES] == list(palette.LINES)


def test_every_colour_of_data_stands_out_by_day_and_by_night() -> None:
    """3:1, as WCAG 2 asks of what is needed to understand a picture. The old yellow had 1.2 on a light page."""
    colours = {name: (light, dark) for name, light, dark in DAY_AND_NIGHT.findall(CSS)}
    data = [*palette.STREAMS, *palette.ROLES, "loss", "memory", "resident", *LINES]
    for name in dict.fromkeys(data):
        for back in ("page", "card"):
            for by, (colour, behind) in enumerate(zip(colours[name], colours[back], strict=True)):
                low, high = sorted((palette.luminance(colour), palette.luminance(behind)))
                assert (high + 0.05) / (low + 0.05) >= 3, (name, back, ("day", "night")[by])


# Comparing.


def test_a_study_runs_all_planners_of_the_problem() -> None:
    found = study(RESULT, 0.0)
    assert list(found.outcomes) == list(ms.compare(CHAIN, device=RESULT.device, time_limit=0.0))
    assert [curve.planner for curve in found.curves] == ["selective", "pofo", "rotor", "offload", "greedy"]
    assert all(31 in curve.memory for curve in found.curves)
    text = results_page([RESULT], [found])
    rows = data_of(text)["tables"]["planners-0"]["rows"]
    assert rows[0][:2] == ["greedy", RESULT.makespan]
    assert rows[0][-1] == "this plan"
    assert len({row[0] for row in rows}) == len(rows)
    makespans = [row[1] for row in rows[1:] if row[1] is not None]
    assert makespans == sorted(makespans)
    for row in rows[1:]:
        outcome = found.outcomes[row[0]]
        assert row[1] == (outcome.makespan if isinstance(outcome, ms.Result) else None)
        assert (row[-2] is not None) == isinstance(outcome, ms.InfeasibleError)
    curves = data_of(text)["results"][0]["frontier"]
    assert curves["own"] == {"name": "greedy", "memory": 31, "makespan": RESULT.makespan}
    assert [len(one["memory"]) for one in curves["planners"]] == [
        int(np.isfinite(curve.makespan).sum()) for curve in found.curves
    ]


def test_studies_are_shared_and_report_progress() -> None:
    said: list[str] = []
    found = studies([RESULT, RESULT], 0.0, said.append)
    assert found[0] is found[1]
    assert sum(re.match(r"planning: (best .*; )?greedy$", line) is not None for line in said) == 1
    assert "frontier: pofo" in said
    graph = ms.olla(ms.to_graph(CHAIN), 100, 0.0)
    assert [curve.planner for curve in study(graph, 0.0).curves] == ["selective", "pooch", "olla"]


def test_a_very_large_graph_has_no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point would take seconds."""
    monkeypatch.setattr("memsched.show.report.comparison.MOST_OPS", 4)
    assert study(ms.olla(ms.to_graph(CHAIN), 100, 0.0), 0.0).curves == ()


# Sweeps.

ROW: dict[str, Any] = {
    **{"key": "k", "problem": "p", "planner": "pofo", "memory": 2**30, "bandwidth": 12e9, "options": {}},
    **{"status": "planned", "makespan": 1.5, "lower_bound": 1.2, "gap": 0.25, "optimal": False, "ideal": 1.0},
    **{"peak_memory": 2**29, "estimate": 1.4, "runtime": 0.1, "bytes_out": 5, "bytes_in": 4, "idle": 0.1},
    **{"recompute_time": 0.2, "offloaded": 3, "recomputed": 2, "min_memory": None, "error": None},
}
MEASURED = ("makespan", "lower_bound", "gap", "optimal", "peak_memory", "estimate", "runtime", "bytes_out", "bytes_in")
UNPLANNED = {**dict.fromkeys((*MEASURED, "idle", "recompute_time", "offloaded", "recomputed", "ideal"))}


@st.composite
def sweeps(draw: st.DrawFn) -> list[dict[str, Any]]:
    points = st.tuples(
        st.sampled_from(["pofo", "rotor", "greedy"]),
        st.sampled_from(["p", "q"]),
        st.integers(1, 4),
        st.sampled_from([1.0, float("inf")]),
    )
    rows = []
    for planner, problem, memory, bandwidth in draw(st.lists(points, max_size=30, unique=True)):
        row = {**ROW, "planner": planner, "problem": problem, "memory": memory, "bandwidth": bandwidth}
        row["peak_memory"] = memory
        status = draw(st.sampled_from(["planned", "planned", "infeasible", "failed"]))
        if status == "planned":
            makespan, bound = draw(st.integers(1, 9)), draw(st.integers(1, 9))
            row |= {"makespan": makespan / 4, "lower_bound": min(makespan, bound) / 4}
            row |= {"gap": makespan / min(makespan, bound) - 1, "optimal": makespan <= bound}
            row["runtime"] = draw(st.integers(0, 9)) / 8
        else:
            row |= {**UNPLANNED, "status": status}
            row |= {"min_memory": 9} if status == "infeasible" else {"error": "it broke"}
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    "changes", [{"lower_bound": 1.6}, {"lower_bound": 1.5}, {"optimal": True}, {"gap": 0.2}, {"gap": None}]
)
def test_a_row_whose_proof_its_makespan_contradicts_is_refused(changes: dict[str, Any]) -> None:
    key = "optimal" if changes == {"lower_bound": 1.5} else next(iter(changes))
    with pytest.raises(ms.InvalidInputError, match=f"{key} of row 1 of the sweep"):
        checked([ROW, {**ROW, **changes}])


@pytest.mark.parametrize("key", ["makespan", "lower_bound", "gap", "optimal"])
def test_a_row_without_a_plan_has_no_figures_of_one(key: str) -> None:
    row = {**ROW, **UNPLANNED, "status": "infeasible"}
    assert checked([row]) == [row]
    with pytest.raises(ms.InvalidInputError, match=f"{key} of row 0 of the sweep is .* must be None"):
        checked([{**row, key: ROW[key]}])


@given(sweeps())
def test_standings_are_what_counting_one_by_one_finds(rows: list[dict[str, Any]]) -> None:
    def rivals(row: dict[str, Any]) -> list[float]:
        same = ("problem", "memory", "bandwidth")
        return [one["makespan"] for one in rows if one["makespan"] and all(one[key] == row[key] for key in same)]

    for one in standings(rows):
        own = [row for row in rows if row["planner"] == one.name]
        planned = [row for row in own if row["status"] == "planned"]
        assert (one.points, one.planned) == (len(own), len(planned))
        assert one.points == one.planned + one.infeasible + one.failed
        assert one.optimal == sum(row["optimal"] for row in planned)
        contested = [row for row in own if rivals(row)]
        won = [row for row in planned if row["makespan"] == min(rivals(row))]
        assert one.best_share == (pytest.approx(len(won) / len(contested)) if contested else None)
        if planned:
            ratios = [row["makespan"] / min(rivals(row)) for row in planned]
            assert (one.mean_ratio, one.worst_ratio) == (pytest.approx(sum(ratios) / len(ratios)), max(ratios))
            assert one.worst_gap == max(row["gap"] for row in planned)
            assert one.mean_gap == pytest.approx(np.mean([row["gap"] for row in planned]))
            assert one.median_runtime == np.median([row["runtime"] for row in planned])


def test_plans_for_other_devices_are_no_rivals() -> None:
    """Greedy was the best on 0 % where another planner had a duplex link of the same bandwidth."""
    device = {"memory": 2**30, "d2h": 12e9, "h2d": 12e9, "duplex": False}
    rows = [
        {**ROW, "planner": "greedy", "makespan": 1.5, "device": device},
        {
            **ROW,
            "planner": "vdnn",
            "makespan": 1.2,
            "gap": 0.0,
            "lower_bound": 1.2,
            "optimal": True,
            "device": {**device, "duplex": True},
        },
    ]
    assert [one.best_share for one in standings(rows)] == [1.0, 1.0]
    drawn = plot_sweep(rows)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["p, 12 GB/s", "p, 12 GB/s, duplex"]


@settings(max_examples=10)
@given(sweeps())
def test_a_sweep_page_holds_every_point(rows: list[dict[str, Any]]) -> None:
    text = sweep_page(rows, title="drawn")
    found = data_of(text)
    counts = {status: sum(row["status"] == status for row in rows) for status in ("planned", "infeasible", "failed")}
    assert found["sweep"] == {"title": "drawn", "points": len(rows), **counts}
    columns = [column["title"] for column in found["tables"]["points"]["columns"]]
    for row, shown_row in zip(rows, found["tables"]["points"]["rows"], strict=True):
        by_title = dict(zip(columns, shown_row, strict=True))
        assert by_title["makespan"] == row["makespan"]
        assert by_title.get("bandwidth", by_title["link"]) == (
            "inf" if row["bandwidth"] == float("inf") else row["bandwidth"]
        )
        assert by_title["needs"] == row["min_memory"]
    assert len(found["tables"]["failures"]["rows"]) == counts["failed"]
    assert ("What failed" in text) == (counts["failed"] > 0)


def test_a_link_is_told_once() -> None:
    """Two columns had the same text."""
    for device, titles in ((None, ["link", "memory"]), ({"latency": 1e-3}, ["link", "bandwidth"])):
        rows = [ROW, ROW | ({"device": DEVICE | device} if device else {"planner": "rotor"})]
        columns = data_of(sweep_page(rows))["tables"]["points"]["columns"]
        assert [one["title"] for one in columns[2:4]] == titles


def test_planners_with_several_sets_of_options_are_told_apart() -> None:
    rows = [{**ROW, "options": {"chunk": 2**24}}, ROW, {**ROW, "planner": "rotor", "options": {"slots": 9}}]
    assert [one.name for one in standings(rows)] == ["pofo (chunk=16 MiB)", "pofo (defaults)", "rotor"]


INFINITE = float("inf")
DEVICE = {"memory": 2**30, "d2h": 12e9, "h2d": 12e9, "duplex": False, "latency": 0.0, "host_memory": None}
FREE = DEVICE | {"d2h": "inf", "h2d": "inf"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"options": {"chunk": size}} for size in (16_000_000, 16_010_000)], ["chunk=16000000", "chunk=16010000"]),
        ([{"options": {"x": one}} for one in (1, "1", None)], ["x=1", "x='1'", "x=None"]),
        ([{"table_slots": one} for one in (None, 200)], ["defaults, no shared table", "shared table of 200 slots"]),
        ([{"version": one} for one in ("1", "2")], ["no shared table, memsched 1", "no shared table, memsched 2"]),
        ([{"problem_key": one} for one in ("12345678a", "12345679a")], ["p (key 12345678)", "p (key 12345679)"]),
        ([{"device": DEVICE | {"duplex": one}} for one in (False, True)], ["12 GB/s", "12 GB/s, duplex"]),
        ([{"device": DEVICE | {"latency": one}} for one in (0.0, 1e-3)], ["one direction at a time", "latency 1 ms"]),
        ([{"device": DEVICE | {"host_memory": one}} for one in (5, 6)], ["host memory 5 B", "host memory 6 B"]),
        ([{"device": DEVICE | {"h2d": one}} for one in (12e9, "inf")], ["one direction", "a free link back"]),
        (
            [{"device": DEVICE | {"h2d": back, "duplex": one}} for back in (5e9, 7e9) for one in (False, True)],
            [f"{back} GB/s back, {way}" for back in (5, 7) for way in ("one direction", "both directions")],
        ),
        (
            [
                {"bandwidth": INFINITE, "device": FREE | {"duplex": o, "latency": s}}
                for s in (1, 2)
                for o in (False, True)
            ],
            [f"{way} at {at}, latency {s} s" for s in (1, 2) for way, at in (("direction", "a time"), ("s", "once"))],
        ),
        ([{"bandwidth": one} for one in (12000001e3, 12000002e3)], ["12000001000.0 B/s", "12000002000.0 B/s"]),
    ],
)
def test_what_differs_has_names_that_differ_in_tables_curves_and_pictures(
    changes: list[dict[str, Any]], words: list[str]
) -> None:
    """One curve went through plans with other options, or for other links."""
    rows = [{**ROW, **change} for change in changes]
    points = data_of(sweep_page(rows))["tables"]["points"]
    assert [column["title"] for column in points["columns"][:3]] == ["planner", "problem", "link"]  # of curves.js
    kind = points["columns"][2]["kind"]  # a bandwidth if the links have no more to say
    names = [(*row[:2], shown(kind, row[2])) for row in points["rows"]]
    assert len(set(names)) == len(rows)
    assert all(word in " | ".join(name) for name, word in zip(names, words, strict=True))
    drawn = plot_sweep(rows)
    titles = {axes.get_title(loc="left").replace("\n", " ") for axes in drawn.axes}
    assert titles == {f"{problem}, {link}" for _, problem, link in names}
    *planners, ideal = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert planners == list(dict.fromkeys(one for one, *_ in names))
    assert ideal == "the ideal: computation alone"
    assert list(data_of(sweep_page(rows))["styles"]) == planners
    assert {one.name for one in standings(rows)} == {one for one, *_ in names}


def test_the_slots_of_shared_tables_of_other_problems_are_no_other_options() -> None:
    """They are as many as fit, so they depend on the problem."""
    rows = [{**ROW, "problem": name, "table_slots": slots} for name, slots in (("p", 2000), ("q", 1800))]
    assert [one.name for one in standings(rows)] == ["pofo"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "fine"}, ["status of row 1", "'fine'", "planned, infeasible, failed"]),
        ({"memory": "8GiB"}, ["memory of row 1", "'8GiB'", "number >= 0"]),
        ({"makespan": None}, ["makespan of row 1", "None"]),
        ({"options": None}, ["options of row 1"]),
        ({"gap": float("nan")}, ["gap of row 1", "nan"]),
        ({"gap": 10**400}, ["gap of row 1", "below 2^63"]),
        ({"key": 5}, ["key of row 1", "a string or None"]),
        ({"problem_key": [1]}, ["problem_key of row 1", "a string or None"]),
        ({"version": {}}, ["version of row 1", "a string or None"]),
        ({"error": ["x"]}, ["error of row 1", "a string or None"]),
        ({"table_slots": [1]}, ["table_slots of row 1", "whole number from 1"]),
        ({"table_slots": 0}, ["table_slots of row 1", "whole number from 1"]),
        ({"options": {"chunk": 10**400}}, ["options of row 1", "short"]),
        ({"options": {"chunk": [1]}}, ["options of row 1", "option -> "]),
        ({"options": {None: 1, "a": 2}}, ["options of row 1", "option -> "]),
        ({"device": "abc"}, ["device of row 1", "'abc'", "mapping"]),
        ({"device": {"latency": [1]}}, ["device of row 1", "latency is [1]"]),
        ({"device": {"duplex": {}}}, ["device of row 1", "duplex is {}"]),
        ({"device": {"h2d": [1]}}, ["device of row 1", "h2d is [1]"]),
        ({"device": {"host_memory": 10**400}}, ["device of row 1", "host_memory is 1000"]),
        ({"device": {"memory": 5}}, ["device of row 1", "1073741824"]),
        ({"device": {"d2h": 5.0}}, ["device of row 1", "12000000000.0"]),
        ({"memory": 0.5}, ["device of row 1", "memory is 0.5"]),
    ],
)
def test_a_bad_row_is_named(change: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ms.InvalidInputError) as raised:
        write_sweep_report([ROW, {**ROW, **change}], tmp_path / "s.html")
    assert all(word in str(raised.value) for word in words)
    with pytest.raises(ms.InvalidInputError, match="row 0 of the sweep lacks 'planner'"):
        sweep_page([{key: value for key, value in ROW.items() if key != "planner"}])
    assert not list(tmp_path.iterdir())


# Files and errors.


@pytest.mark.parametrize("name", ["x.pdf", "x", "x.html.gz"])
def test_a_report_is_a_page_of_html(name: str, tmp_path: Path) -> None:
    for write, drawn in ((write_report, RESULT), (write_sweep_report, [ROW])):
        with pytest.raises(ms.InvalidInputError, match=f"{name}'; a report is a page of HTML, which ends in .html or"):
            write(drawn, tmp_path / name)  # type: ignore[operator]
    assert not list(tmp_path.iterdir())
    write_sweep_report([ROW], tmp_path / "x.HTM")


def test_what_a_sweep_returns_is_a_report(tmp_path: Path) -> None:
    found = ms.sweep(CHAIN, ["greedy"], memory=[31, 40], beta=[2.0])
    write_sweep_report(found, tmp_path / "a.html")
    write_sweep_report(found.rows, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(RESULT, path, compare=False)
    assert data_of(path.read_text(encoding="utf-8"))["results"][0]["planner"] == "greedy"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    before = path.read_bytes()
    for wrong in ([], "result.json", [RESULT, None], None):
        with pytest.raises(ms.InvalidInputError, match="results is"):
            write_report(wrong, path)  # type: ignore[arg-type]
    with pytest.raises(ms.InvalidInputError, match="time_limit"):
        write_report(RESULT, path, time_limit=-1.0)
    with pytest.raises(ms.InvalidInputError, match="cannot be written"):
        write_report(RESULT, tmp_path / "nowhere" / "report.html", compare=False)
    assert path.read_bytes() == before


def test_without_jinja2_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr("memsched.show.report.studies", None)  # nothing is planned in vain
    for write in (lambda path: write_report(RESULT, path), lambda path: write_sweep_report([ROW], path)):
        with pytest.raises(ms.MemschedError, match=r"reports need jinja2; pip install 'memsched\[report\]'"):
            write(tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def run(*arguments: str, status: int = 0) -> str:
    outcome = CliRunner().invoke(command_line, ["report", *arguments], prog_name="memsched")
    assert outcome.exit_code == status, outcome.output
    assert "Traceback" not in outcome.output
    if status:
        assert outcome.output.startswith("error: ")
        assert outcome.output.count("\n") == 1
        assert not Path("r.html").exists()
    return outcome.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_text(json.dumps(RESULT.to_json()))
    Path("r2.json").write_text(json.dumps(ms.rotor(CHAIN, 33).to_json()))
    return tmp_path


class TestCommand:
    def test_one_result_is_compared_and_several_are_not(self, folder: Path) -> None:
        said = "planning by every planner, for the comparison; --no-compare is quicker\n"
        told = run("g.json", "-o", "r.html", "--time-limit", "0")
        assert told == f"{said}greedy on toy, makespan 18 s\nsaved in r.html\n"
        assert data_of(Path("r.html").read_text())["results"][0]["frontier"] is not None
        run("g.json", "-o", "r.html", "--no-compare")
        assert list(data_of(Path("r.html").read_text())["tables"]) == ["tensors-0"]
        run("g.json", "r2.json", "-o", "r.html")
        assert list(data_of(Path("r.html").read_text())["tables"]) == ["tensors-0", "tensors-1", "results"]
        document = json.loads(run("g.json", "r2.json", "-o", "r.html", "--compare", "--time-limit", "0", "--json"))
        assert [one["planner"] for one in document["results"]] == ["greedy", "rotor"]
        assert document["results"][0]["makespan"] == RESULT.makespan
        assert "planners-1" in data_of(Path("r.html").read_text())["tables"]

    def test_errors_name_the_file_and_the_remedy(self, folder: Path) -> None:
        assert "'none.json' is not a file" in run("none.json", "-o", "r.html", status=2)
        Path("half.json").write_text('{"format": ')
        assert "'half.json'" in run("g.json", "half.json", "-o", "r.html", status=2)
        Path("plan.json").write_text(json.dumps(RESULT.schedule.to_json()))
        assert "'plan.json' is a bare plan" in run("plan.json", "-o", "r.html", status=2)
        document = RESULT.to_json()
        del document["schedule"]["steps"][0]
        document["timeline"]["start"].pop()
        document["timeline"]["end"].pop()
        Path("bad.json").write_text(json.dumps(document))
        assert "'bad.json'" in run("bad.json", "-o", "r.html", status=4)
        Path("short.json").write_text('{"format": "memsched-result/1"}')
        assert "'short.json': the result lacks" in run("short.json", "-o", "r.html", status=2)
        assert "--output" in run("g.json", status=2)
        assert "FILE..." in run("-o", "r.html", status=2)
        assert "'nowhere'" in run("g.json", "-o", "nowhere/r.html", status=2)
        assert "--time-limit is 'soon'" in run("g.json", "-o", "r.html", "--time-limit", "soon", status=2)

    def test_a_store_is_known_by_its_first_bytes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with sqlite3.connect("grid.json") as store:  # whatever its name
            store.execute("create table points (x)")
        store.close()
        module = ModuleType("memsched.study.sweep")
        module.read_store = lambda path: SimpleNamespace(rows=[ROW])  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "memsched.study.sweep", module)
        assert run("grid.json", "-o", "s.html") == "1 point, 1 of them planned: saved in s.html\n"
        assert data_of(Path("s.html").read_text())["sweep"]["title"] == "grid"
        assert json.loads(run("grid.json", "-o", "s.html", "--json"))["planned"] == 1
        assert "'grid.json' is a sweep's store" in run("g.json", "grid.json", "-o", "r.html", status=2)
        assert "not planned again" in run("grid.json", "-o", "r.html", "--compare", status=2)

    def test_a_real_store(self, folder: Path) -> None:
        module = pytest.importorskip("memsched.study.sweep")
        module.sweep([CHAIN], ["greedy", "rotor"], memory=[24, 31, 40], beta=[2.0], store="real.sqlite")
        run("real.sqlite", "-o", "s.html")
        assert data_of(Path("s.html").read_text())["sweep"]["points"] == 6

    def test_without_jinja2(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jinja2", None)
        assert "pip install 'memsched[report]'" in run("g.json", "-o", "r.html", status=1)


class Holder:
    """What has a result, as a plan of memsched.torch."""

    def __init__(self, result: ms.Result) -> None:
        self.result = result


def test_what_has_a_result_is_reported_as_its_result(tmp_path: Path) -> None:
    write_report(Holder(RESULT), tmp_path / "held.html", compare=False)
    write_report(RESULT, tmp_path / "own.html", compare=False)
    assert (tmp_path / "held.html").read_text() == (tmp_path / "own.html").read_text()
    write_report([Holder(RESULT), RESULT], tmp_path / "two.html")
    assert len(data_of((tmp_path / "two.html").read_text())["results"]) == 2


def test_a_placement_alone_has_a_page(tmp_path: Path) -> None:
    buffers = [ms.Buffer(0, 4, 8, name=WICKED), ms.Buffer(2, 6, 8), ms.Buffer(5, 9, 3, name="c", stack=("c.py:1 g",))]
    placement = ms.place(buffers)
    write_report(placement, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    found = data_of(text)
    rows = found["tables"]["buffers-0"]["rows"]
    assert [row[1:5] for row in rows] == [
        [one.start, one.end, one.size, offset] for one, offset in zip(buffers, placement.offsets, strict=True)
    ]
    assert [row[5] for row in rows] == ["", "", "c.py:1 g"]
    drawn = found["results"][0]["figures"]["addresses"]
    assert (drawn["height"], drawn["low"], drawn["bytes"]) == (placement.height, [*placement.offsets], [8, 8, 3])
    assert [tag for tag, _ in Reader(text).tags].count("script") == 3
    assert "3 buffers" in Reader(text).text
    with pytest.raises(ms.InvalidInputError, match="compare is True, but a Placement"):
        write_report(placement, tmp_path / "r.html", compare=True)
    write_report(ms.place([]), tmp_path / "r.html")


def test_tensors_are_counted_in_one_way() -> None:
    """The table had a row for tensors without bytes, which the words above it did not count."""
    text = results_page([RESULT], [None])
    rows = data_of(text)["tables"]["tensors-0"]["rows"]
    count = len(rows)
    assert all(row[2] > 0 for row in rows)
    assert count == sum(one["size"] > 0 for one in RESULT.graph.tensors) < len(RESULT.graph.tensors)
    said = re.sub(r"\s+", " ", Reader(text).text)
    assert f"{count} tensors in the order of their first appearance" in said
    assert f"ops, {count} tensors" in said


def test_ops_of_a_chain_are_not_sorted_by_kind() -> None:
    """They are all of the kind stage."""
    assert "What each kind of op gives up" not in Reader(results_page([RESULT], [None])).text
    graph = ms.swap_all(ms.profiles.analytic("vgg16", 8).graph, "80%", 12e9)
    assert "What each kind of op gives up" in Reader(results_page([graph], [None])).text


def test_the_table_and_the_curve_of_a_planner_agree() -> None:
    """pooch had no plan in the table and points in the picture, as each had a time limit of its own."""
    curve = ms.frontier(CHAIN, 2.0, planner="greedy", memory=[29, 31, 33])
    slow, known, fast = curve.results
    assert slow is not None
    assert known is not None
    assert fast is not None
    assert fast.makespan < slow.makespan
    outcomes: Any = ms.Comparison(greedy=ms.InfeasibleError("too little", 10**6))
    assert _agreed(curve, outcomes, 31) == curve
    assert outcomes["greedy"] is known
    outcomes["greedy"] = ms.InfeasibleError("too little", 10**6)
    late = replace(curve, results=(None, None, fast))
    assert _agreed(late, outcomes, 31) == late
    assert outcomes["greedy"].min_memory == 33
    outcomes["greedy"] = known
    found = _agreed(replace(curve, results=(None, None, None)), outcomes, 31)
    first, own, more = found.results
    assert (first, own) == (None, known)
    assert more is not None
    assert more.makespan <= known.makespan
    assert more.device.memory == 33
    failed: Any = ms.Comparison(greedy=ms.LimitError("too long"))
    _agreed(curve, failed, 31)
    assert failed["greedy"] is known


def test_a_page_of_a_sweep_says_what_it_is_about() -> None:
    rows = ms.sweep(["resnet18-224-b32", "resnet34-224-b32"], ["greedy"], memory=["50%"], beta=[12e9]).rows
    said = re.sub(r"\s+", " ", Reader(sweep_page(rows)).text)
    assert "sweep on resnet18-224-b32 and resnet34-224-b32" in said
    assert "In the whole sweep, 2 plans of 1 planner take" in said
    many = [{**rows[0], "problem": f"p{k}"} for k in range(3)]
    assert "grid on 3 problems" in re.sub(r"\s+", " ", Reader(sweep_page(many, title="grid")).text)


def test_names_with_control_characters_are_escaped(tmp_path: Path) -> None:
    """They stood as they are in the title and the headings; HTML has no zero character."""
    name = "a\x00b\x1b[31mc"
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], names=[name, "k"], name=name)
    ms.write_report([ms.selective(chain, device=ms.Device(100, 2, name=name))], tmp_path / "page.html", compare=False)
    page = (tmp_path / "page.html").read_bytes()
    assert b"a\\x00b\\x1b[31mc" in page
    assert b"\x00" not in page
    assert b"\x1b" not in page


def test_the_table_of_planners_says_which_were_not_asked() -> None:
    (result,) = [ms.greedy(CHAIN, 31, 2.0)]
    page = html.unescape(results_page([result], [study(result, 0.0)]))
    assert "All planners" not in page
    told = page.partition("Not asked: ")[2].partition("</p>")[0]
    missing = [name for name in ms.not_asked(CHAIN) if name not in told]
    assert not missing
    assert "where marks coincide, one lies inside the other" in page.lower()


def test_the_gap_to_all_plans_has_a_name_of_the_field() -> None:
    page = results_page([RESULT, RESULT], [None, None])
    titles = [column["title"] for column in data_of(page)["tables"]["results"]["columns"]]
    assert "optimality gap" in titles
    assert "of any plan" not in titles


def test_a_comparison_is_a_page_of_its_plans(tmp_path: Path) -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    found = ms.compare(chain, "40%", "12GB/s", planners=["greedy", "rotor", "vdnn"])
    ms.write_report(found, tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    assert all(name in page for name, one in found.items() if isinstance(one, ms.Result))
