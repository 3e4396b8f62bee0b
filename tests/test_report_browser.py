"""Reports in a real browser: what they show, zoom, tips, tables, light and dark; and the network is asked nothing."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.show.plots.figure import readable
from memsched.show.report import write_report, write_sweep_report
from memsched.support.formats import DECIMAL, format_bandwidth, format_bytes, format_percent, format_seconds
from memsched.testing import random_schedule
from test_plot_readable import BAR_NAMES

pytest.importorskip("jinja2", reason="reports need jinja2")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium on the PATH")

WICKED = """</script><script>window.hurt = 1</script><img src=x onerror="window.hurt = 2"> "é✓" & <b>'"""
SMALL = ms.Chain(
    [1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], resident=7, names=[WICKED, "two"], name=f"toy {WICKED}"
)


def half_by_day(names: str, *values: Sequence[Any]) -> pytest.MarkDecorator:
    """All combinations of two parameters, of which every other is left to the night."""
    return pytest.mark.parametrize(
        names.split(),
        [
            pytest.param(one, other, marks=[pytest.mark.exhaustive] if (k + j) % 2 else [])
            for k, one in enumerate(values[0])
            for j, other in enumerate(values[1])
        ],
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Opened:
    """A page, with what it said and asked for."""

    def __init__(self, browser: Any, path: Path, width: int = 1200, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        packed = base64.b64decode(self.page.locator("#memsched-data").text_content())
        self.data = json.loads(gzip.decompress(packed))

    def point(self, figure: str, x: float, y: float, axis: str = "yaxis") -> str:
        """Put the pointer at a place in the units of a figure's axes; returns what the tip says, or nothing."""
        self.page.locator(figure).scroll_into_view_if_needed()
        place = self.page.evaluate(
            """([figure, x, y, axis]) => {
                const div = document.querySelector(figure), layout = div._fullLayout, box = div.getBoundingClientRect();
                return [box.left + layout.xaxis._offset + layout.xaxis.c2p(x),
                        box.top + layout[axis]._offset + layout[axis].c2p(y)];
            }""",
            [figure, x, y, axis],
        )
        self.page.mouse.move(*place)
        tip = self.page.locator("#tip")
        return str(tip.inner_text()) if tip.is_visible() else ""

    def drag(self, figure: str, low: float, high: float) -> None:
        """Zoom into a part of the width of a figure's axis."""
        self.page.locator(figure).scroll_into_view_if_needed()
        ends = self.page.evaluate(
            """([figure, low, high]) => {
                const div = document.querySelector(figure), layout = div._fullLayout, box = div.getBoundingClientRect();
                return [low, high].map((share) => box.left + layout.xaxis._offset + share * layout.xaxis._length)
                    .concat(box.top + layout.yaxis._offset + layout.yaxis._length / 2);
            }""",
            [figure, low, high],
        )
        self.page.mouse.move(ends[0], ends[2])
        self.page.mouse.down()
        self.page.mouse.move(ends[1], ends[2], steps=4)
        self.page.mouse.up()

    def range(self, figure: str, axis: str = "xaxis") -> list[float]:
        found: list[float] = self.page.evaluate(
            "([figure, axis]) => document.querySelector(figure)._fullLayout[axis].range", [figure, axis]
        )
        return found

    def is_calm(self) -> None:
        """No errors, no warnings, and nothing but the file itself was asked for."""
        assert self.said == []
        assert [url for url in self.asked[1:] if not url.startswith(("data:", "blob:"))] == []
        assert self.page.evaluate("window.hurt") is None


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    found: list[Opened] = []

    def make(path: Path, **options: Any) -> Opened:
        found.append(Opened(browser, path, **options))
        return found[-1]

    yield make
    for one in found:
        one.is_calm()
        one.context.close()


@pytest.fixture(scope="module")
def result() -> ms.Result:
    chain = ms.profiles.load("resnet18-224-b32")
    memory = ms.min_memory(chain) + 3 * (ms.peak_memory(chain) - ms.min_memory(chain)) // 10
    return ms.pofo(chain, memory, 12e9)


@pytest.fixture(scope="module")
def report(result: ms.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(result, path, time_limit=0.0)
    return path


def figures_of(page: Any, selector: str) -> list[tuple[str, str]]:
    """(exact value, text) of the figures that an element shows."""
    found: list[tuple[str, str]] = page.eval_on_selector_all(
        f"{selector} [data-value]", "all => all.map((one) => [one.dataset.value, one.textContent])"
    )
    return found


def test_it_draws_and_the_figures_are_those_of_the_result(opened: Any, report: Path, result: ms.Result) -> None:
    one = opened(report)
    page, data = one.page, one.data["results"][0]
    document = result.to_json()
    shown = dict(figures_of(page, ".tiles"))
    for key in ("makespan", "lower_bound"):
        value = document["lower_bound"] if key == "lower_bound" else document["timeline"][key]
        assert data[key] == value
        assert shown[repr(value)] == format_seconds(value)
    assert shown[str(result.peak_memory)] == format_bytes(result.peak_memory)
    assert shown[str(result.timeline.bytes_out)] == format_bytes(result.timeline.bytes_out)
    assert page.locator("h1").inner_text() == "pofo on resnet18-224-b32"
    assert "% of any plan" in page.locator(".verdict").inner_text()
    for figure in ("timeline", "lifetimes", "frontier"):
        assert page.locator(f".figure.{figure} .main-svg").count() > 0
    assert page.locator(".figure.addresses").count() == 0
    # One trace a kind, however many steps there are; a bar has six points in its outline, hairs may share one.
    drawn = page.evaluate("document.querySelector('.timeline').data.map((trace) => [trace.name, trace.x.length])")
    assert len(drawn) <= 11
    kinds = [data["figures"]["timeline"]["kind"].count(kind) for kind in ("forward", "loss", "backward", "recompute")]
    assert all(0 < count // 6 <= kind for (_, count), kind in zip(drawn[:4], kinds, strict=True))
    # Rows of the table of tensors, against the data and the formats of Python.
    rows = page.eval_on_selector_all(
        '[data-table="tensors-0"] tbody tr',
        "all => all.map((row) => [...row.children].map((cell) => [cell.dataset.value ?? null, cell.textContent]))",
    )
    uses = one.data["tables"]["tensors-0"]["rows"]
    assert len(rows) == min(60, len(uses))
    for cells, use in zip(rows, uses, strict=False):
        assert cells[0][1] == use[0]
        assert cells[2] == [str(use[2]), format_bytes(use[2])]
        assert cells[4] == ([None, ""] if use[4] is None else [repr(use[4]), format_seconds(use[4])])


def test_numbers_are_written_as_python_writes_them(opened: Any, report: Path) -> None:
    page = opened(report).page
    draw = random.Random(1)
    floats = [0.0, 1.0, 0.5, 1e-9, 0.00005, 0.125, 0.99995, 59.999, 0.0009999999, 12345.5, 2.5e-7, 1e6]
    floats += [10 ** draw.uniform(-10, 5) for _ in range(2000)]
    floats += [draw.randrange(1, 4000) / 2 ** draw.randrange(1, 12) for _ in range(2000)]  # ties
    sizes = [0, 1, 1023, 1024, 1152, 1024**2 - 1, 1024**3 - 1, 2**50, *(draw.randrange(2**45) for _ in range(2000))]
    sizes += [draw.randrange(1, 2000) * 2 ** draw.randrange(30) for _ in range(2000)]
    like_mb = f"(count) => formatBytes(count, 3, [1000, {json.dumps(DECIMAL)}])"
    for name, write, values in (
        (f"({like_mb})", partial(format_bytes, like="MB"), sizes),
        ("formatSeconds", format_seconds, floats),
        ("formatPercent", format_percent, floats),
        ("formatBytes", format_bytes, sizes),
        ("formatBandwidth", format_bandwidth, [*floats, *(value * 1e9 for value in floats)]),
    ):
        written = page.evaluate(f"values => values.map((value) => {name}(value))", values)
        for value, text in zip(values, written, strict=True):
            assert text == write(value), (name, value)
    assert page.evaluate("[formatSeconds(Infinity), formatBandwidth(Infinity)]") == ["inf", "a free link"]


def test_zoom_moves_all_axes_of_time_and_double_click_brings_them_back(opened: Any, report: Path) -> None:
    one = opened(report)
    whole = one.range(".timeline")
    one.drag(".timeline", 0.25, 0.5)
    zoomed = one.range(".timeline")
    assert zoomed == pytest.approx([whole[1] / 4, whole[1] / 2], rel=0.02)
    # The memory curve stands on the very same axis, and its own scale stays.
    assert one.page.evaluate("document.querySelector('.timeline')._fullLayout.yaxis2.anchor") == "x"
    curves = one.page.evaluate(
        "document.querySelector('.timeline')._fullData.filter((t) => t.yaxis === 'y2').map((t) => t.xaxis)"
    )
    assert set(curves) == {"x"}
    assert one.range(".lifetimes") == pytest.approx(zoomed)
    one.drag(".lifetimes", 0.0, 0.5)
    assert one.range(".timeline") == pytest.approx(one.range(".lifetimes"))
    assert one.range(".timeline")[1] < zoomed[1]
    one.page.locator(".timeline").scroll_into_view_if_needed()
    box = one.page.locator(".timeline .nsewdrag").first.bounding_box()
    one.page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    one.page.wait_for_function(
        "end => document.querySelector('.lifetimes')._fullLayout.xaxis.range[1] === end", arg=whole[1]
    )
    assert one.range(".timeline") == whole


def test_resting_on_a_bar_says_what_it_is(opened: Any, report: Path, result: ms.Result) -> None:
    one = opened(report)
    figures = one.data["results"][0]["figures"]
    factor, columns = figures["time_unit"][0], figures["timeline"]
    for kind in ("forward", "backward", "offload", "prefetch"):
        at = max(
            (k for k, found in enumerate(columns["kind"]) if found == kind),
            key=lambda k: columns["end"][k] - columns["start"][k],
        )
        start, end = columns["start"][at], columns["end"][at]
        tip = one.point(".timeline", factor * (start + end) / 2, (0, 1.25, 2.25)[columns["lane"][at]])
        assert tip.startswith(columns["name"][at])
        for words in (kind, f"step {columns['step'][at]}", format_seconds(start), format_seconds(end - start)):
            assert words in tip
        assert (format_bytes(columns["bytes"][at] or 0) in tip) == (kind in ("offload", "prefetch"))
    # Over the memory: what is held then.
    memory = figures["memory"]
    moment = figures["until"] / 3
    held = [count for time, count in zip(memory["time"], memory["bytes"], strict=True) if time <= moment][-1]
    tip = one.point(".timeline", factor * moment, 0.1, "yaxis2")
    assert format_bytes(held) in tip
    assert format_bytes(memory["budget"] - held) in tip
    # Over a tensor.
    lives = figures["lifetimes"]
    at = lives["place"].index("host")
    name = one.data["tables"]["tensors-0"]["rows"][lives["tensor"][at]][0]
    tip = one.point(
        ".lifetimes", factor * (lives["start"][at] + lives["end"][at]) / 2, lives["order"].index(lives["tensor"][at])
    )
    assert tip.startswith(name)
    assert "on the host only" in tip
    # Over a point of the frontier, and beside it.
    frontier = one.data["results"][0]["frontier"]
    own = frontier["own"]
    tip = one.point(".frontier", own["memory"] / frontier["byte_unit"][0], own["makespan"] * frontier["time_unit"][0])
    assert format_seconds(own["makespan"]) in tip
    one.page.mouse.move(2, 2)
    assert one.point(".timeline", factor * figures["until"] * 1.004, 1) == ""


@pytest.fixture(scope="module")
def tensors() -> ms.Result:
    """A plan whose tensors do not all have room for their names."""
    graph = ms.profiles.load_graph("resnet18-224-b32")
    return ms.olla(graph, "100%", 0)


@half_by_day("kind scheme", ["one result", "two results", "addresses", "a placement", "a sweep"], ["light", "dark"])
def test_axe_finds_nothing(
    browser: Any, result: ms.Result, tensors: ms.Result, tmp_path: Path, kind: str, scheme: str
) -> None:
    """What screen readers need: headings in order, roles, names, contrast."""
    width = {"light": 1200, "dark": 375}[scheme]
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    path = tmp_path / "page.html"
    if kind == "a sweep":
        write_sweep_report(sweep_rows(40), path)
    elif kind == "a placement":
        write_report(ms.place([ms.Buffer(k, k + 9, 4, name=f"line {k % 2}") for k in range(30)]), path)
    else:
        results = {"one result": [result], "two results": [result, replace(result)], "addresses": [tensors]}[kind]
        write_report(results, path, compare=False)
    seen = Opened(browser, path, width, color_scheme=scheme)
    if kind == "addresses":
        seen.page.locator(".switch").click()
    found = axe.run(seen.page).response["violations"]
    assert [(one["id"], one["help"]) for one in found] == []
    assert seen.page.locator("h1:visible").count() == 1
    figures = seen.page.locator("figure:visible")
    assert figures.count() == {"one result": 2, "two results": 2, "addresses": 3, "a placement": 1, "a sweep": 1}[kind]
    for figure in figures.all():  # one image each, and its name is the sentence above it
        caption = figure.locator("figcaption").inner_text()
        assert len(caption) > 30
        assert figure.get_by_role("img", name=caption, exact=True).count() == 1
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    seen.context.close()


def boxes_of(page: Any, selector: str) -> list[dict[str, float]]:
    """Where the elements are in the window."""
    found: list[dict[str, float]] = page.eval_on_selector_all(
        selector, "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    return found


def names_in_bars(page: Any) -> list[str]:
    """The names that bars of the timeline have; none lies on another one."""
    drawn: list[str] = page.evaluate(
        """() => { const div = document.querySelector('.timeline');
            return [...div.data.find((one) => one.mode === 'text').text,
                    ...div.layout.annotations.filter((one) => one.textangle === -90).map((one) => one.text)]; }"""
    )
    places = boxes_of(page, ".timeline .textpoint text")
    places += boxes_of(page, ".timeline .annotation-text-g[transform^='rotate(-90'] text")
    assert len(places) == len(drawn)
    for one, other in itertools.combinations(places, 2):
        apart = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
        assert apart or one["bottom"] <= other["top"] + 1 or other["bottom"] <= one["top"] + 1
    return drawn


def test_bars_have_the_names_of_layers_where_there_is_room(opened: Any, report: Path) -> None:
    one = opened(report, width=1400)
    columns = one.data["results"][0]["figures"]["timeline"]
    layers = {layer for layer, lane in zip(columns["layer"], columns["lane"], strict=True) if layer and lane == 0}
    assert {"conv1", "layer1.0", "layer4.1"} <= layers
    found = names_in_bars(one.page)
    assert sum(any(name.endswith(layer) for layer in layers) for name in found) >= 5
    assert len(found) > len(names_in_bars(opened(report, width=375).page))
    one.drag(".timeline", 0.1, 0.3)
    start, end = one.range(".timeline")
    factor = one.data["results"][0]["figures"]["time_unit"][0]
    wide = [
        layer
        for layer, lane, begin, finish in zip(*(columns[key] for key in ("layer", "lane", "start", "end")), strict=True)
        if lane == 0 and min(finish * factor, end) - max(begin * factor, start) > 0.05 * (end - start)
    ]
    assert len(wide) > 3
    zoomed = names_in_bars(one.page)
    assert all(any(name.endswith(layer) for name in zoomed) for layer in wide)


def test_bars_of_graphs_are_named_by_their_modules(opened: Any, tmp_path: Path) -> None:
    """All were called "conv…tion", and the legend had a loss that was not to be seen."""
    graph = ms.selective(ms.profiles.load_graph("resnet18-224-b32"), "100%", 12e9)
    write_report(graph, tmp_path / "graph.html", compare=False)
    page = opened(tmp_path / "graph.html", width=1400).page
    found = names_in_bars(page)
    assert sum(name.startswith("layer") and name.endswith(("conv1", "conv2")) for name in found) > 15
    legend = page.locator("figure:has(.timeline) .legend li").all_inner_texts()
    assert "loss" not in legend
    assert {"forward", "backward"} <= set(legend)
    for given, names in BAR_NAMES.items():
        assert page.evaluate("([name, layer]) => barNames(name, layer)", list(given)) == names


def test_marks_of_curves_that_coincide_are_nested(opened: Any, tmp_path: Path) -> None:
    rows = list(ms.sweep(SMALL, ["greedy"], memory=["20%", "60%", "100%"], beta=[2.0]).rows)
    rows = [row | {"planner": name} for name in ("greedy", "pofo", "rotor") for row in rows]
    rows += ms.sweep(SMALL, ["offload"], memory=["40%"], beta=[2.0]).rows
    write_sweep_report(rows, tmp_path / "sweep.html")
    page = opened(tmp_path / "sweep.html").page
    sizes = page.evaluate("document.querySelector('.sweep.figure').data.map((one) => one.marker.size)")
    assert sizes == [[19] * 3, [13] * 3, [7] * 3, [7]]
    widths = [box["width"] for box in boxes_of(page, ".legend .mark")]
    assert max(widths) < 1.5 * min(widths)


@half_by_day("width share", [1200, 375], ["30%", "70%", "150%"])
def test_what_is_said_of_the_memory_hides_none_of_its_curve(
    opened: Any, tmp_path: Path, width: int, share: str
) -> None:
    """The box of the peak lay on the curve below it on a narrow screen."""
    chain = ms.profiles.load("resnet18-224-b32")
    write_report(ms.offload(chain, share, 12e9, moves=64), tmp_path / "a.html", compare=False)
    page = opened(tmp_path / "a.html", width=width).page
    said = boxes_of(page, ".timeline .annotation-text-g")[:2]  # the others are names of bars
    (first, second) = sorted(said, key=lambda box: box["x"])
    apart = first["x"] + first["width"] <= second["x"] or abs(first["y"] - second["y"]) >= 0.8 * first["height"]
    assert apart
    peak = page.evaluate(
        "(() => { const div = document.querySelector('.timeline.figure'), { yaxis2 } = div._fullLayout;"
        "return div.getBoundingClientRect().top + yaxis2._offset + yaxis2.d2p(div.data.at(-1).y[0]); })()"
    )
    assert all(box["y"] + box["height"] <= peak + 2 for box in said)


@pytest.mark.parametrize("width", [1200, 375])
def test_axes_of_makespans_say_what_they_show(opened: Any, report: Path, tmp_path: Path, width: int) -> None:
    write_sweep_report(ms.sweep(SMALL, ["greedy"], memory=["60%", "100%"], beta=[2.0]), tmp_path / "sweep.html")
    for path, figure, said in (
        (report, "frontier", "makespan (ms)"),
        (tmp_path / "sweep.html", "sweep", "makespan / computation alone"),
    ):
        page = opened(path, width=width).page
        assert page.locator(f".{figure}.figure .ytitle").text_content() == said
        title, ticks = boxes_of(page, f".{figure}.figure .ytitle"), boxes_of(page, f".{figure}.figure .ytick text")
        assert title[0]["x"] + title[0]["width"] <= min(tick["x"] for tick in ticks)
        assert title[0]["x"] >= 0


def test_streams_that_are_not_used_have_no_lane(opened: Any, report: Path, tensors: ms.Result, tmp_path: Path) -> None:
    path = tmp_path / "still.html"
    write_report(tensors, path, compare=False)
    still, busy = opened(path), opened(report)
    lanes = "document.querySelector('.timeline')._fullLayout.yaxis.ticktext"
    assert still.page.evaluate(lanes) == ["compute"]
    assert busy.page.evaluate(lanes) == ["compute", "device to host", "host to device"]
    heights = [one.page.locator(".timeline").bounding_box()["height"] for one in (still, busy)]
    assert heights[0] < heights[1] - 80


@pytest.mark.parametrize("width", [1200, 375])
def test_every_row_has_its_name(opened: Any, tensors: ms.Result, tmp_path: Path, width: int) -> None:
    path = tmp_path / "many.html"
    write_report(tensors, path, compare=False)
    one = opened(path, width=width)
    page, lives = one.page, one.data["results"][0]["figures"]["lifetimes"]
    names = [one.data["tables"]["tensors-0"]["rows"][tensor][0] for tensor in lives["order"]]
    assert len(names) > 150
    shown = "document.querySelector('.lifetimes')._fullLayout.yaxis.tickvals"
    at_once = page.evaluate(shown)
    assert 20 < len(at_once) < len(names) / 2
    assert page.evaluate("document.querySelector('.lifetimes')._fullLayout.yaxis.range") == [len(names) - 0.5, -0.5]
    page.get_by_role("button", name=f"Show the names of all {len(names)} tensors").click()
    low, high = page.evaluate("document.querySelector('.lifetimes')._fullLayout.yaxis.range")
    rows = low - high
    assert 15 < rows < 45
    region = page.get_by_role("region", name="rows of tensors")
    seen: dict[int, str] = {}
    top, far = 0, region.evaluate("one => one.scrollHeight - one.clientHeight")
    while True:
        region.evaluate("(one, top) => { one.scrollTop = top; }", top)
        first = "document.querySelector('.lifetimes')._fullLayout.yaxis.range[1] + 0.5"
        page.wait_for_function(f"share => Math.abs({first} - share) < 0.1", arg=top / far * (len(names) - rows))
        axis = page.evaluate("document.querySelector('.lifetimes').layout.yaxis")
        seen |= dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
        if top == far:
            break
        top = min(far, top + region.evaluate("one => one.clientHeight - 40"))
    assert sorted(seen) == list(range(len(names)))
    for row, text in seen.items():
        start, _, end = text.partition("…")
        assert readable(names[row]).startswith(start)
        assert readable(names[row]).endswith(end)
        assert (len(start) + len(end) >= 8) or text == readable(names[row])
    region.focus()
    page.keyboard.press("Home")
    page.wait_for_function(f"() => Math.abs({first}) < 0.1")
    page.get_by_role("button", name="Show all rows at once").click()
    assert page.evaluate(shown) == at_once


def test_plans_for_the_same_problem_have_the_same_scale(opened: Any, result: ms.Result, tmp_path: Path) -> None:
    chain = result.problem
    small = ms.greedy(ms.profiles.load("resnet34-224-b32"), "50%", 12e9)
    path = tmp_path / "scales.html"
    write_report([result, ms.rotor(chain, "90%"), small], path, compare=False)
    one = opened(path)
    ranges = []
    for at in range(3):
        one.page.locator("[data-tab]").nth(at).click()
        figure = f"#result-{at} .timeline"
        ranges.append((one.range(figure), one.range(figure, "yaxis2"), one.range(f"#result-{at} .lifetimes")))
        said = (
            "All plans for this problem are drawn to the same scale." in one.page.locator(f"#result-{at}").inner_text()
        )
        assert said == (at < 2)
    assert ranges[0] == ranges[1] != ranges[2]
    ends = [figures["figures"]["until"] for figures in one.data["results"]]
    assert ends[0] != ends[1]


def test_what_goes_on_beyond_the_edge_is_told(opened: Any, report: Path) -> None:
    one = opened(report, width=375)
    table = one.page.locator('[data-table="tensors-0"]')
    hint, frame = table.locator(".hint"), table.locator(".frame")
    assert hint.inner_text() == "Scroll sideways to see all columns →"
    shadows = "one => ['::before', '::after'].map((edge) => getComputedStyle(one, edge).opacity)"
    frame.evaluate("one => one.getAnimations({subtree: true}).forEach((each) => each.finish())")
    assert frame.evaluate(shadows) == ["0", "1"]
    table.locator(".scroll").evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    one.page.wait_for_function(
        "() => [...document.querySelectorAll('[data-table=\"tensors-0\"] .frame.before')].length === 1"
    )
    frame.evaluate("one => one.getAnimations({subtree: true}).forEach((each) => each.finish())")
    assert frame.evaluate(shadows) == ["1", "0"]
    assert opened(report, width=1400).page.locator('[data-table="tensors-0"] .hint').is_hidden()


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("wish", ["light", "dark"])
def test_light_and_dark_are_readable_and_can_be_changed(opened: Any, report: Path, wish: str) -> None:
    page = opened(report, color_scheme=wish).page

    def look() -> dict[str, str]:
        names = [
            *("page", "card", "ink", "muted", "accent", "good", "good-back", "best-back"),
            *("memory", "mark", "s0", "s1", "s2", "s3", "s6", "s7"),
        ]
        return {name: page.evaluate(f"colour('{name}')") for name in names}

    first = look()
    page.get_by_role("button", name="theme").click()
    second = look()
    assert (luminance(first["card"]) > 0.5) == (wish == "light")
    assert (luminance(second["card"]) > 0.5) == (wish == "dark")
    for found in (first, second):
        for text, back in (
            *(("ink", "page"), ("ink", "card"), ("muted", "page"), ("muted", "card"), ("ink", "mark")),
            *(("good", "good-back"), ("accent", "best-back")),
        ):
            assert contrast(found[text], found[back]) >= 4.5, (text, back)
        for line in ("memory", "s0", "s1", "s2", "s6", "s7"):
            assert contrast(found[line], found["card"]) >= 3, line
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == second["page"]
    assert page.evaluate("document.querySelector('.timeline')._fullLayout.paper_bgcolor") == second["card"]


def test_tables_are_searched_and_sorted(opened: Any, report: Path) -> None:
    one = opened(report)
    rows = one.data["tables"]["tensors-0"]["rows"]
    table = one.page.locator('[data-table="tensors-0"]')

    def column(k: int) -> list[str]:
        found: list[str] = table.locator(f"tbody td:nth-child({k + 1})").all_inner_texts()
        return found

    table.locator("input").fill("FETCHED activation")
    fetched = [row[0] for row in rows if row[3] == "fetched" and row[1] == "activation"]
    assert 0 < len(fetched) < len(rows)
    assert column(0) == fetched
    assert table.locator(".found").inner_text() == f"{len(fetched)} of {len(rows)} rows"
    table.locator("th", has_text="bytes").click()
    sizes = [row[2] for row in rows if row[0] in set(fetched)]
    assert column(2) == [format_bytes(size) for size in sorted(sizes, reverse=True)]
    table.locator("th", has_text="bytes").click()
    assert column(2) == [format_bytes(size) for size in sorted(sizes)]
    table.locator("input").fill("no tensor is called so")
    assert column(0) == []
    table.locator("input").fill("")
    table.locator("th", has_text="offloaded").focus()
    one.page.keyboard.press("Enter")
    assert table.locator("th[aria-sort]").inner_text().startswith("offloaded")
    known = sorted((row[5] for row in rows if row[5] is not None), reverse=True)
    assert column(5)[: len(known) + 1][: len(rows)] == [*map(format_seconds, known), ""][: len(column(5))]
    with one.page.expect_download() as waited:
        table.locator("button").click()
    lines = Path(waited.value.path()).read_bytes().decode().split("\r\n")
    assert len(lines) == len(rows) + 1
    assert lines[0].startswith('"tensor","role","bytes","what happens","written (seconds)"')
    assert waited.value.suggested_filename == "pofo-on-resnet18-224-b32-tensors.csv"
    assert one.page.evaluate("['=1+1', \"'@x\", '-3', 'plain', -3].map(spreadsheet)") == [
        "'=1+1",
        "''@x",
        "'-3",
        "plain",
        "-3",
    ]


def test_wicked_names_stay_text(opened: Any, tmp_path: Path) -> None:
    result = replace(ms.greedy(SMALL, 31, 2.0), planner=f"by {WICKED}")
    path = tmp_path / "wicked.html"
    write_report([result, ms.rotor(SMALL, 33)], path, compare=True, time_limit=0.0)
    one = opened(path)
    assert one.page.locator(".head h2").first.inner_text() == f"by {WICKED} on toy {WICKED}"
    assert one.page.locator("script").count() == 3
    assert one.page.locator("main img, main script").count() == 0
    assert one.page.locator(".result").nth(1).is_hidden()
    one.page.locator("[data-tab]").nth(1).click()
    assert one.page.locator(".result").nth(0).is_hidden()
    assert one.page.locator("#result-1 .timeline .main-svg").count() > 0
    graph = ms.Graph(
        [{"name": WICKED, "size": 4, "role": "activation"}],
        [
            {
                **{"name": f"{WICKED}{k}", "phase": "fwd", "reads": [WICKED] * k, "writes": [WICKED] * (1 - k)},
                **{"choices": [{"alg": "a", "time": 1.0, "workspace": 0}]},
            }
            for k in range(2)
        ],
        name=WICKED,
    )
    write_report(ms.olla(graph, 100, 0.0), path, compare=False)
    one = opened(path)
    assert one.point(".timeline", 0.5, 0).startswith(f"{WICKED}0")
    assert one.point(".addresses", 1.0, 2.0).startswith(WICKED)
    assert one.page.locator(".yaxislayer-above text, .ytick text").filter(has_text="</").count() > 0


@pytest.mark.parametrize(("bandwidth", "seconds"), [(math.inf, 1), (0.0, 0), (0.0, 1)])
def test_corners(opened: Any, tmp_path: Path, bandwidth: float, seconds: int) -> None:
    chain = ms.Chain([seconds] * 2, [seconds] * 2, [4, 4, 4], [0, 4, 4], name="corner")
    path = tmp_path / "corner.html"
    write_report(ms.greedy(chain, 16 if bandwidth else 20, bandwidth), path, time_limit=0.0)
    one = opened(path)
    assert one.page.locator(".tile .value").first.inner_text() == f"{4 * seconds} s"
    assert one.point(".timeline", 0.5 if seconds else 0.0, 0) != ""


def test_a_family_in_rounds_with_addresses(opened: Any, tmp_path: Path) -> None:
    family = ms.profiles.analytic("vgg16", 8, "k40m")
    memory = ms.min_memory(family) + (ms.peak_memory(family) - ms.min_memory(family)) // 3
    path = tmp_path / "family.html"
    write_report(ms.modnn(family, memory, 10e9), path, compare=False)
    one = opened(path, width=400)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 400
    figures = one.data["results"][0]["figures"]
    found = figures["addresses"]
    at = max(range(len(found["name"])), key=lambda k: (found["end"][k] - found["start"][k]) * found["bytes"][k])
    x = figures["time_unit"][0] * (found["start"][at] + found["end"][at]) / 2
    tip = one.point(".addresses", x, (found["low"][at] + found["bytes"][at] / 2) / found["unit"][0])
    assert tip.startswith(found["name"][at])
    assert str(found["low"][at]) in tip


@pytest.mark.parametrize("fault", ["an old browser", "damaged data"])
def test_a_page_that_cannot_draw_says_so(browser: Any, report: Path, tmp_path: Path, fault: str) -> None:
    text = report.read_text(encoding="utf-8")
    path = tmp_path / "fault.html"
    damaged = re.sub(r'(id="memsched-data"[^>]*>\s*.{400})', r"\1AAAAAAAA", text)
    path.write_text(damaged if fault == "damaged data" else text, encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    if fault == "an old browser":
        page.add_init_script("delete globalThis.DecompressionStream")
    page.goto(path.as_uri())
    said = page.locator("main > p[role=alert]")
    said.wait_for(timeout=10_000)
    assert "The pictures and tables cannot be shown" in said.inner_text()
    context.close()


def test_a_plan_of_thousands_of_steps_has_few_traces_and_still_answers(opened: Any, tmp_path: Path) -> None:
    n = 400
    draw = random.Random(3)
    chain = ms.Chain(
        [draw.random() for _ in range(n)],
        [draw.random() for _ in range(n)],
        [draw.randrange(1, 99) for _ in range(n + 1)],
        [draw.randrange(1, 99) for _ in range(n + 1)],
        name="long",
    )
    schedule = random_schedule(chain, seed=5)
    assert len(schedule) > 3000
    device = ms.Device(schedule.budget, 500.0)
    result = replace(
        ms.greedy(chain, ms.peak_memory(chain), 500.0),
        schedule=schedule,
        device=device,
        timeline=ms.simulate(chain, schedule, device),
        lower_bound=0.0,
    )
    path = tmp_path / "long.html"
    write_report(result, path, compare=False)
    one = opened(path)
    assert one.page.evaluate("document.querySelector('.timeline').data.length") <= 11
    assert one.page.evaluate("document.querySelectorAll('.figure path:not(.ticks)').length") < 60
    figures = one.data["results"][0]["figures"]
    columns, factor = figures["timeline"], figures["time_unit"][0]
    one.drag(".timeline", 0.5, 0.51)
    low, high = one.range(".timeline")
    at = next(
        k
        for k, kind in enumerate(columns["kind"])
        if kind == "backward" and low < factor * columns["start"][k] and factor * columns["end"][k] < high
    )
    tip = one.point(".timeline", factor * (columns["start"][at] + columns["end"][at]) / 2, 0)
    assert tip.startswith(columns["name"][at])
    drawn = one.page.evaluate("document.querySelector('.timeline').data.reduce((sum, t) => sum + t.x.length, 0)")
    assert drawn < 6 * len(columns["step"])  # only what is seen
    labels = one.page.evaluate("document.querySelector('.timeline').data.find((t) => t.mode === 'text').text")
    assert set(labels) <= set(columns["name"])


def sweep_rows(count: int) -> list[dict[str, Any]]:
    draw = random.Random(7)
    rows = []
    for k in range(count):
        planner = ("pofo", "rotor", "offload")[k % 3]
        bandwidth = (6e9, math.inf)[k // 3 % 2]
        memory = 2**30 + 2**20 * (k // 6)
        status = "failed" if k % 97 == 5 else "infeasible" if k % 41 == 3 else "planned"
        slower = 0.0 if k % 5 == 0 else 0.01 + draw.random()
        row = {
            **{"key": str(k), "problem": f"net{k // 6 % 3} {WICKED}", "planner": planner, "memory": memory},
            **{"bandwidth": bandwidth, "options": {}, "status": status, "min_memory": None, "error": None},
            **{"makespan": 1 + slower, "lower_bound": 1.0, "gap": slower, "optimal": slower == 0, "ideal": 1.0},
            **{"peak_memory": memory - 1, "estimate": None, "bytes_out": k, "bytes_in": k, "idle": 0.5},
            **{"recompute_time": 0.25, "offloaded": 3, "recomputed": 2, "runtime": draw.random()},
        }
        if status != "planned":
            unplanned = ("makespan", "lower_bound", "gap", "optimal", "peak_memory", "bytes_out", "bytes_in", "idle")
            row |= dict.fromkeys((*unplanned, "recompute_time", "offloaded", "recomputed", "runtime", "ideal"))
            row["error" if status == "failed" else "min_memory"] = WICKED if status == "failed" else memory + 5
        rows.append(row)
    return rows


def test_a_sweep_of_many_points_is_chosen_from_searched_and_scrolled(opened: Any, tmp_path: Path) -> None:
    rows = sweep_rows(5_000)
    path = tmp_path / "sweep.html"
    write_sweep_report(rows, path, title=WICKED)
    one = opened(path)
    page = one.page
    assert page.locator("h1").inner_text() == f"Sweep {WICKED} on 3 problems"
    planned = sum(row["status"] == "planned" for row in rows)
    assert dict(figures_of(page, ".tiles"))[str(planned)] == str(planned)
    options = page.locator("#problem option").all_inner_texts()
    assert options == [f"net{k} {WICKED}" for k in range(3)]
    assert page.locator("#link option").all_inner_texts() == ["6 GB/s", "a free link"]
    page.locator("#problem").select_option(index=1)
    page.locator("#link").select_option(label="a free link")
    drawn = page.evaluate("document.querySelector('.sweep.figure').data.map((trace) => trace.y)")
    for planner, ratios in zip(("pofo", "rotor", "offload"), drawn, strict=True):
        chosen = [
            row
            for row in rows
            if row["problem"].startswith("net1") and row["bandwidth"] == math.inf and row["planner"] == planner
        ]
        assert ratios == [row["makespan"] / row["ideal"] for row in chosen if row["status"] == "planned"]
    scale = [one.range(".sweep.figure", axis) for axis in ("xaxis", "yaxis")]
    page.locator("#link").select_option(label="6 GB/s")
    assert [one.range(".sweep.figure", axis) for axis in ("xaxis", "yaxis")] == scale
    page.locator("#link").select_option(label="a free link")
    points = page.locator('[data-table="points"]')
    assert points.locator("tbody tr").count() < 400  # the rest is written when it is scrolled to
    points.locator("th", has_text="makespan").click()
    first = points.locator("tbody tr").first.locator("td").nth(5)
    assert float(first.get_attribute("data-value")) == max(row["makespan"] or 0 for row in rows)
    before = points.locator("tbody tr").count()
    points.locator(".scroll").evaluate("scroll => { scroll.scrollTop = scroll.scrollHeight; }")
    page.wait_for_function(
        "count => document.querySelectorAll('[data-table=\"points\"] tbody tr').length > count", arg=before
    )
    points.locator("input").fill("infeasible rotor")
    found = sum(row["status"] == "infeasible" and row["planner"] == "rotor" for row in rows)
    assert points.locator(".found").inner_text() == f"{found} of 5000 rows"
    failed = sum(row["status"] == "failed" for row in rows)
    assert page.locator('[data-table="failures"] .found').inner_text() == f"{failed} rows"
    assert page.locator('[data-table="failures"] tbody td.long').nth(1).inner_text() == WICKED  # the first: its problem
    page.locator(".legend li", has_text="rotor").click()
    assert page.evaluate("document.querySelector('.sweep.figure').data.length") == 2


def test_a_curve_of_a_sweep_is_of_one_link(opened: Any, tmp_path: Path) -> None:
    """One curve went through the points of all links of the same bandwidth."""
    rows = []
    for duplex in (False, True):
        for latency in (0.0, 1e-3):
            device = ms.Device(1, duplex=duplex, latency=latency)
            rows += ms.sweep(SMALL, ["greedy"], memory=["20%", "60%", "100%"], beta=[2.0], device=device).rows
    write_sweep_report(rows, tmp_path / "sweep.html")
    page = opened(tmp_path / "sweep.html").page
    links = page.locator("#link option").all_inner_texts()
    assert links == [
        f"2 B/s{way}{latency}"
        for way in (" in both directions at once", ", one direction at a time")
        for latency in ("", ", latency 1 ms")
    ]
    for link, own in zip(links, (rows[6:9], rows[9:], rows[:3], rows[3:6]), strict=True):
        page.locator("#link").select_option(label=link)
        drawn = page.evaluate("document.querySelector('.sweep.figure').data.map((trace) => trace.y)")
        assert drawn == [[row["makespan"] / row["ideal"] for row in own]]


def test_the_legend_shows_lines_and_symbols_as_they_are_drawn(opened: Any, report: Path) -> None:
    """The star of the picture was a square in the legend, and two dashed lines looked alike."""
    page = opened(report).page
    page.locator(".frontier").scroll_into_view_if_needed()
    entries = page.locator("figure:has(.frontier) .legend li")
    swatches = {entry.inner_text(): entry.locator("svg") for entry in entries.all()}
    drawn = page.evaluate("document.querySelector('.frontier.figure').data.map((one) => one.marker.symbol ?? '')")
    shapes = {}
    for (name, swatch), symbol in zip(swatches.items(), drawn, strict=True):
        mark = swatch.locator(".mark")
        shapes[name] = mark.get_attribute("d") if mark.count() else None
        assert (shapes[name] is None) == (symbol == "")
        if symbol:
            points = page.locator(f".frontier .scatterlayer .trace >> nth={drawn.index(symbol)} >> .point").first
            assert points.get_attribute("d") == shapes[name]
    marks = [shape for shape in shapes.values() if shape]
    assert len({*marks}) == len(marks) > 3
    dashes = [swatch.locator("path").first.get_attribute("stroke-dasharray") for swatch in swatches.values()]
    bounds = [dash for name, dash in zip(swatches, dashes, strict=True) if name.startswith("lower bound")]
    assert len({*bounds}) == len(bounds) == 2
    assert None not in bounds
    page.locator("figure:has(.frontier) .legend button").first.click()
    assert page.locator("figure:has(.frontier) .legend .mark").count() == len(marks)
