"""Pictures can be read: names have room, colours contrast, and what is compared has one scale."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched.planners.registry import PLANNERS
from memsched.show.plots import classes as classes_module
from memsched.show.plots import palette
from memsched.show.plots.bars import Bar, draw_bars
from memsched.show.plots.figure import NOISE, bar_names, drawing, readable
from memsched.show.plots.frontier import plot_frontier
from memsched.show.plots.plan import plot
from memsched.show.report.sweep_page import sweep_page
from test_plot import words

to_hex = pytest.importorskip("matplotlib.colors").to_hex
to_rgba = pytest.importorskip("matplotlib.colors").to_rgba


def of_chain(names: list[str] | None, **options: Any) -> ms.Result:
    chain = ms.Chain([3, 5, 4], [6, 8, 5], [4, 6, 5, 3], [0, 6, 5, 3], saved=[9, 5, 4], names=names, name="named")
    return ms.greedy(chain, **options)


def bars(figure: Any) -> list[Any]:
    """The rectangles of the streams, in pixels."""
    axes = figure.axes[0]
    paths = [path for drawn in axes.collections for path in drawn.get_paths()]
    return [axes.transData.transform_path(path).get_extents() for path in paths]


@pytest.mark.parametrize("draw", ["toy", "resnet101-224-b32", "gpt"])
def test_names_are_inside_their_bars(draw: str) -> None:
    """So they never overlap."""
    if draw == "toy":
        result = of_chain(
            ["embed", "block.0..block.1", "a stage whose name is far too long to be written in a bar"], M=31, beta=2
        )
    elif draw == "gpt":
        result = ms.swap_all(ms.profiles.load_graph("gpt-1024-b8-bf16"), "60%", 12e9)
    else:
        result = ms.pofo(ms.profiles.load(draw), "40%", 12e9)
    figure = plot(result)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert len(axes.texts) > 1
    for text in axes.texts:
        box, (x, y) = text.get_window_extent(), axes.transData.transform(text.get_position())
        (around,) = [bar for bar in bars(figure) if bar.x0 <= x <= bar.x1 and bar.y0 <= y <= bar.y1]
        assert around.x0 - 1 <= box.x0 <= box.x1 <= around.x1 + 1, text.get_text()
        assert around.y0 - 1 <= box.y0 <= box.y1 <= around.y1 + 1, text.get_text()


def test_bars_are_named_by_their_stages() -> None:
    shown = {
        text.get_text()
        for text in plot(of_chain(["embed", "block.0..block.1", "x" * 300], M=100, beta=2)).axes[0].texts
    }
    assert {"F1 embed", "B1 embed", "F2 block", "B2 block"} <= shown
    assert "F3" in shown
    shown = {text.get_text() for text in plot(of_chain(None, M=100, beta=2)).axes[0].texts}
    assert shown == {"F1", "F2", "F3", "B1", "B2", "B3"}


def test_streams_without_transfers_are_left_out() -> None:
    still, moving = plot(of_chain(None, M=100, beta=2)), plot(of_chain(None, M=24, beta=2))
    assert [label.get_text() for label in still.axes[0].get_yticklabels()] == ["compute"]
    assert len(moving.axes[0].get_yticklabels()) == 3
    assert "no transfers" in words(still)
    assert "no transfers" not in words(moving)
    assert still.get_figheight() < moving.get_figheight()
    heights = [figure.axes[1].get_window_extent().height for figure in (still, moving)]
    assert heights[0] == pytest.approx(heights[1])


def test_a_plan_whose_copies_never_come_back_says_so() -> None:
    chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    steps = [{"run": "F1"}, {"run": "F2"}, {"run": "loss"}, {"run": "B2"}, {"run": "B1"}]
    document = ms.greedy(chain, 100, 2.0).schedule.to_json() | {"steps": [*steps[:2], {"offload": "a1"}, *steps[2:]]}
    schedule, device = ms.Schedule.from_json(document), ms.Device(100, bandwidth=2.0)
    timeline = ms.simulate(chain, schedule, device)
    result = replace(
        of_chain(None, M=100, beta=2),
        problem=chain,
        schedule=schedule,
        device=device,
        timeline=timeline,
        lower_bound=0.0,
    )
    assert "no transfers from host to device" in words(plot(result))


def test_every_colour_of_data_is_seen_on_white_and_its_names_on_it() -> None:
    """3:1 for marks and 4.5:1 for text, by WCAG 2."""
    tables = (palette.STREAMS, palette.CLASSES, palette.ROLES)
    colours = {colour for table in tables for colour in table.values()}
    colours |= {*palette.LINES, palette.MEMORY, palette.RESIDENT, palette.IDEAL}
    for colour in colours:
        assert contrast(1.0, palette.luminance(colour)) >= 3, colour
        text = {"black": 0.0, "white": 1.0}[palette.ink(colour)]
        assert contrast(text, palette.luminance(colour)) >= 4.5, colour
    assert palette.luminance("#ffffff") == pytest.approx(1)
    assert palette.luminance("#808080") == pytest.approx(0.2158605)
    for table in (*tables, dict(enumerate(palette.LINES))):
        assert len({*table.values()}) >= len(table) - (table is palette.ROLES)  # buffers are drawn as activations


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_only_colours_of_the_palette_are_in_pictures_of_data() -> None:
    """A colour that is written elsewhere is not checked."""
    for page in Path(palette.__file__).parent.glob("*.py"):
        found = re.findall(r"#[0-9a-fA-F]{6}", page.read_text(encoding="utf-8"))
        assert page.name == "palette.py" or not found, page.name


def rows(problems: list[str], links: list[float], planners: list[str]) -> list[Any]:
    return list(ms.sweep(problems, planners, memory=["20%", "60%"], beta=links).rows)


def test_panels_of_a_sweep_share_their_axes() -> None:
    figure = ms.plot_sweep(rows(["resnet18-224-b32", "resnet101-224-b32"], [6e9, 12e9], ["greedy", "rotor"]))
    assert len(figure.axes) == 4
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert [axes.get_ylabel() for axes in figure.axes] == ["over the ideal", ""] * 2
    assert [axes.get_xlabel() for axes in figure.axes] == ["memory (MiB)"] * 2 + ["memory (GiB)"] * 2
    limits: dict[str, set[Any]] = {}
    for axes in figure.axes:
        limits.setdefault(axes.get_title(loc="left").partition(",")[0], set()).add(axes.get_xlim())
    assert [len(found) for found in limits.values()] == [1, 1]
    assert "each problem has its own range of memory" in words(figure)
    alike = ms.plot_sweep(rows(["resnet50-224-b32", "resnet101-224-b32"], [6e9], ["rotor"]))
    assert len({axes.get_xlim() for axes in alike.axes}) == 1
    assert "each problem" not in words(alike)
    for drawn in (figure, alike):
        for axes in drawn.axes:
            (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
            for line in axes.get_lines()[:-1]:
                assert all(x0 < x < x1 for x in line.get_xdata())
                assert all(y0 < y < y1 for y in line.get_ydata())


@pytest.mark.parametrize(("problems", "links"), [(1, 1), (1, 2), (2, 1), (2, 4), (5, 3), (20, 1)])
def test_a_sweep_is_at_most_1600_pixels_wide(problems: int, links: int) -> None:
    (row,) = ms.sweep(of_chain(None, M=100, beta=2).problem, ["greedy"], memory=["50%"], beta=[2.0]).rows
    speeds = [{"bandwidth": 1.0 + k, "device": row["device"] | {"d2h": 1.0 + k, "h2d": 1.0 + k}} for k in range(links)]
    many = [row | {"problem": f"problem {k}"} | speed for k in range(problems) for speed in speeds]
    figure = ms.plot_sweep(many)
    assert figure.get_figwidth() * figure.dpi <= 1600
    assert len(figure.axes) == problems * links
    if links in (2, 4):  # a row of panels has one problem
        heights = {axes.get_position().y0 for axes in figure.axes}
        lines = [[axes.get_title(loc="left") for axes in figure.axes if axes.get_position().y0 == y] for y in heights]
        assert all(len({title.partition(",")[0] for title in line}) == 1 for line in lines)


@pytest.mark.parametrize("by", ["map", "kind"])
def test_bars_of_classes_stay_below_the_title_and_share_a_scale(by: Any) -> None:
    graph = ms.profiles.analytic("resnet50", 256).graph
    results = [ms.swap_all(graph, share, 12e9) for share in ("40%", "80%")]
    figure = ms.plot_classes(results, by=by)
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes in figure.axes:
        assert max(bar.get_y() + bar.get_height() for bar in axes.patches) <= 0.95 * axes.get_ylim()[1]


@pytest.mark.parametrize(("count", "step"), [(1, 1), (20, 1), (333, 5)])
def test_feature_maps_are_named_or_the_picture_says_which(count: int, step: int) -> None:
    chain = ms.Chain([1] * count, [1] * count, [4] * (count + 1), [4] * (count + 1))
    figure = ms.plot_classes(ms.greedy(chain, "100%", 4.0))
    (axes,) = figure.axes
    named = [label.get_text() for label in axes.get_xticklabels()]
    assert named == [f"a{k + 1}" for k in range(0, count, step)]
    said = {1: "writes them", 5: "every 5th is named"}[step]
    assert axes.get_xlabel().endswith(said)
    figure.draw_without_rendering()
    found = sorted((label.get_window_extent() for label in axes.get_xticklabels()), key=lambda box: box.x0)
    assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(found))
    assert found[0].y0 > axes.xaxis.label.get_window_extent().y1


@pytest.mark.parametrize("others", ["pieces", "another network"])
def test_each_row_of_other_feature_maps_has_its_own_names(others: str) -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    results = [ms.greedy(chain, "60%", "12GB/s"), ms.greedy(chain, "60%", "12GB/s", chunk="16MiB")]
    if others == "another network":
        graphs = [ms.profiles.analytic(name, 32).graph for name in ("resnet50", "vgg16")]
        results = [ms.swap_all(graph, "100%", 12e9) for graph in graphs]
    figure = ms.plot_classes(results)
    figure.draw_without_rendering()
    boxes = []
    for axes, result in zip(figure.axes, results, strict=True):
        title = axes.get_title(loc="left")
        assert title.startswith(f"{result.planner} on {result.problem.name}: ") == (others == "another network")
        maps = list(ms.feature_map_classes(result))
        at = [round(place) for place in axes.get_xticks()]
        labels = [label for label in axes.get_xticklabels() if label.get_visible()]
        assert [label.get_text() for label in labels] == [classes_module.shortened(maps[k], 32) for k in at]
        assert axes.get_xlim() == (-0.5, len(maps) - 0.5)
        boxes.append(min(label.get_window_extent().y0 for label in labels))
    assert boxes[0] > figure.axes[1].title.get_window_extent().y1
    assert boxes[0] > figure.axes[0].xaxis.label.get_window_extent().y1 > figure.axes[1].title.get_window_extent().y1


@pytest.mark.parametrize(
    ("number", "said"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (113, "113th")],
)
def test_ordinals(number: int, said: str) -> None:
    assert classes_module._ordinal(number) == said


def test_one_of_a_kind_is_not_told_as_several() -> None:
    chain = ms.Chain([1], [1], [4, 4], [0, 4])
    graph = ms.Graph(
        [],
        [
            {
                "name": "o",
                "phase": "fwd",
                "reads": [],
                "writes": [],
                "choices": [{"alg": "a", "time": 1, "workspace": 0}],
            }
        ],
    )
    for problem, said in ((chain, "1 stage, "), (graph, "1 op, ")):
        planner = "greedy" if problem is chain else "swap_all"
        assert said in words(plot_frontier(ms.frontier(problem, 1.0, planner=planner, memory=[30])))
    assert "addresses of 1 buffer |" in f"{words(ms.plot_addresses(ms.place([ms.Buffer(0, 1, 1)])))} |"


def test_a_planner_has_one_colour_and_marker_in_all_pictures() -> None:
    assert set(palette.PLANNERS) == set(PLANNERS)
    styles = palette.line_styles(palette.PLANNERS)
    assert len({*styles}) == len(styles)
    for kind in ("chain", "graph"):  # at most two of those that compare runs have a colour
        colours = [palette.line_styles([name])[0][0] for name, one in PLANNERS.items() if kind in one.problems]
        assert max(colours.count(colour) for colour in colours) <= 2
    assert len({*palette.line_styles(["rotor", "rotor", "mine", "rotor"])}) == 4
    chain = ms.profiles.load("resnet18-224-b32")
    curve = ms.frontier(chain, 12e9, planner="rotor", points=2)
    lines = [ms.plot_frontier(curve).axes[0].get_lines()[0]]
    for planners in (["rotor"], ["greedy", "rotor"], ["rotor", "greedy"]):
        drawn = ms.plot_sweep(rows(["resnet18-224-b32"], [12e9], planners))
        (handle,) = [one for one in drawn.legends[0].get_lines() if one.get_label() == "rotor"]
        lines += [drawn.axes[0].get_lines()[planners.index("rotor")], handle]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 1
    found = ms.Comparison(rotor=ms.rotor(chain, "50%"))
    assert found.plot().axes[0].patches[0].get_facecolor() == to_rgba(lines[0].get_color())


def test_a_sweep_says_what_is_drawn() -> None:
    figure = ms.plot_sweep(rows(["resnet18-224-b32"], [12e9], ["greedy"]))
    said = words(figure)
    assert "makespan against memory" in said
    assert "a point is a plan" in said
    assert "the ideal: computation alone" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert figure.axes[0].get_xlabel() == "memory (MiB)"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_scaled_dot_product_flash_attention_for_cpu_2:0", "flash_attention_2:0"),
        ("_scaled_dot_product_efficient_attention_backward", "efficient_attention_backward"),
        ("native_layer_norm_backward_1:2", "layer_norm_backward_1:2"),
        ("_native_batch_norm_legit_functional", "batch_norm"),
        ("_native_batch_norm_legit_no_training_3", "batch_norm_3"),
        ("_log_softmax", "log_softmax"),
        ("transformer/addmm_1", "transformer/addmm_1"),
        ("alternative_mm", "alternative_mm"),
        ("_", "_"),
        ("F12", "F12"),
    ],
)
def test_names_of_pytorch_are_short(name: str, short: str) -> None:
    assert readable(name) == short


BAR_NAMES = {
    ("F4", "layer1.0"): ["F4 layer1.0", "F4"],
    ("F4", None): ["F4"],
    ("layer1.0.bn1/native_batch_norm+relu_", None): [
        *("layer1.0.bn1/batch_norm+relu_", "layer1.0.bn1", "…0.bn1", "…bn1"),
    ],
    ("layer2.0.downsample.1/_to_copy#2", None): [
        *("layer2.0.downsample.1/to_copy#2", "layer2.0.downsample.1", "…0.downsample.1", "…downsample.1"),
    ],
    ("conv1/convolution", None): ["conv1/convolution", "conv1"],
    ("0/addmm", None): ["0/addmm", "0"],
    ("transformation/addmm", None): ["transformation/addmm", "transformation", "transformat…", "transfo…"],
    ("convolution_backward_12", None): ["convolution_backward_12", "convolution…", "convolu…"],
    ("_log_softmax", None): ["log_softmax", "log_sof…"],
}


def test_names_in_bars_lose_first_what_tells_least() -> None:
    for given, names in BAR_NAMES.items():
        assert bar_names(*given) == names


def test_most_wide_bars_of_a_graph_are_named_by_their_modules() -> None:
    """No op of an order was named, and reports wrote "conv…tion"."""
    axes = plot(ms.selective(ms.profiles.load_graph("resnet18-224-b32"), "100%", 12e9)).axes[0]
    shown = [text.get_text() for text in axes.texts]
    assert sum(name.startswith("layer") and name.endswith(("conv1", "conv2")) for name in shown) > 20


def test_reports_shorten_names_as_pictures_do() -> None:
    script = files("memsched.show.report").joinpath("format.js").read_text(encoding="utf-8")
    assert f"/{NOISE.pattern}/g" in script


def test_buffers_that_one_line_allocates_have_one_colour() -> None:
    """The picture of a memory snapshot has hundreds of buffers that are too thin for names."""
    sites = ["a.py:1 f", "b.py:2 g"]
    buffers = [ms.Buffer(k, k + 300, 4, name=sites[k % 2]) for k in range(200)] + [ms.Buffer(0, 9, 1, name="once")]
    figure = ms.plot_addresses(ms.place(buffers, method="greedy"))
    (legend,) = figure.legends
    handles = dict(zip([text.get_text() for text in legend.get_texts()], legend.get_patches(), strict=False))
    assert set(handles) == {*sites, "others"}
    colours = {name: to_hex(patch.get_facecolor()) for name, patch in handles.items()}
    assert len({*colours.values()}) == 3
    faces = [to_hex(one) for one in figure.axes[0].collections[0].get_facecolors()]
    assert [faces.count(colours[name]) for name in (*sites, "others")] == [100, 100, 1]
    assert "the names of most bytes in colour" in figure.texts[1].get_text()
    single = ms.plot_addresses(ms.place([ms.Buffer(0, 2, 3, name=f"b{k}") for k in range(9)]))
    assert single.legends[0].get_texts()[0].get_text() == "buffer"
    assert ms.plot_addresses(ms.place([])).axes


def test_a_comparison_is_drawn_with_its_bounds_and_what_has_no_plan() -> None:
    chain = of_chain(None, M=100, beta=2).problem
    found = ms.compare(chain, 24, 2.0, time_limit=0.0)
    found["mine"] = ms.InfeasibleError("too little", 99)
    figure = found.plot()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found)
    plans = [one for one in found.values() if isinstance(one, ms.Result)]
    assert [bar.get_width() for bar in axes.patches if bar.get_width()] == pytest.approx(
        [one.makespan for one in plans]
    )
    marks = [line.get_xdata()[0] for line in axes.get_lines()]
    assert marks == pytest.approx([one.lower_bound for one in plans])
    assert "no plan; fits in 99 B" in words(figure)
    with pytest.raises(ms.InvalidInputError, match="no planner has a plan"):
        ms.Comparison(mine=found["mine"]).plot()


def test_curves_that_coincide_are_all_seen() -> None:
    """Each has marks of one size but where another one lies on them; widths mean nothing."""
    chain = of_chain(None, M=100, beta=2).problem
    curve = ms.frontier(chain, 2.0, planner="greedy", points=4)
    curves = [replace(curve, planner=name) for name in ("pofo", "greedy", "rotor")]
    figure = plot_frontier(curves)
    lines = [line for line in figure.axes[0].get_lines() if line.get_label() in ("pofo", "greedy", "rotor")]
    assert len({(line.get_linewidth(), line.get_markersize()) for line in lines}) == 1
    count = len(lines[0].get_xdata())
    rings = figure.axes[0].collections
    assert [to_hex(ring.get_facecolor()[0]) for ring in rings] == [line.get_color() for line in lines[1:]]
    sizes = [[lines[0].get_markersize() ** 2] * count, *(ring.get_sizes().tolist() for ring in rings)]
    assert [len(found) for found in sizes] == [count] * 3
    assert all(above < below for upper, lower in pairwise(sizes) for above, below in zip(upper, lower, strict=True))
    assert "one lies inside the other" in words(figure)
    alone = plot_frontier(curve)
    assert not alone.axes[0].collections
    assert "one lies inside the other" not in words(alone)


def test_a_sweep_shows_what_good_planners_differ_in() -> None:
    """Beside a planner that takes twice as long, they lay on the line of the ideal."""
    (row,) = ms.sweep(of_chain(None, M=100, beta=2).problem, ["greedy"], memory=["100%"], beta=[2.0]).rows
    above = {"bad": 1.2, "good": 0.02, "better": 0.005, "best": 0.0}
    slow = [
        row
        | {"planner": name, "makespan": row["ideal"] * (1 + over), "gap": over, "optimal": not over}
        | {"lower_bound": row["ideal"]}
        for name, over in above.items()
    ]
    (axes,) = ms.plot_sweep(slow).axes
    bottom, top = axes.get_ylim()
    assert bottom < 0 < max(above.values()) < top
    heights = [axes.transAxes.inverted().transform(axes.transData.transform((1, over)))[1] for over in above.values()]
    assert heights == sorted(heights, reverse=True)
    assert all(higher - lower > 0.1 for higher, lower in pairwise(heights))
    assert axes.yaxis.get_major_formatter()(0.03) == "3 %"
    near = ms.plot_sweep(slow[2:]).axes[0]
    assert near.get_ylim()[1] < 0.006
    assert len(near.get_yticks()) >= 3


def test_labels_leave_the_line_of_the_load_whole() -> None:
    """They stand beside it; where there is no room beside it, only letters have an edge."""
    chain = ms.profiles.load("resnet18-224-b32")
    buffers = [ms.Buffer(k, k + 5, (k % 3 + 1) * 7, name=f"buffer{k}") for k in range(8)]
    beside = 0
    for placement in (ms.place(buffers), ms.place(ms.offload(chain, "40%", "12GB/s", moves=9), method="greedy")):
        axes = ms.plot_addresses(placement).axes[0]
        load = axes.transData.transform_path(axes.lines[0].get_path())
        assert len(axes.texts) >= 8
        for text in axes.texts:
            assert text.get_bbox_patch() is None
            crossed = load.intersects_bbox(text.get_window_extent(), filled=False)
            assert bool(text.get_path_effects()) >= crossed
            beside += not crossed
    assert beside > 20


def test_an_arena_without_buffers_says_so() -> None:
    axes = ms.plot_addresses(ms.place([])).axes[0]
    assert [text.get_text() for text in axes.texts] == ["no buffer is ever alive"]
    assert not [*axes.get_xticks(), *axes.get_yticks()]


@pytest.mark.parametrize(
    ("above", "said"), [(0, "proven lowest"), (3, "at most 3 B above"), (900, "at least 3.12 MiB")]
)
def test_a_bound_beside_a_height_is_another_figure(above: int, said: str) -> None:
    size = 2**20 * 3 + 2**17 if above < 900 else 2**20 * 4
    bound = size - above if above < 900 else 2**20 * 3 + 2**17
    placed = ms.Placement(
        buffers=(ms.Buffer(0, 1, size),), offsets=(0,), height=size, lower_bound=bound, method="search", runtime=0.0
    )
    assert said in str(placed)
    assert said in ms.plot_addresses(placed).texts[1].get_text()


@pytest.mark.parametrize("points", [31, 400])
def test_all_curves_have_marks_at_the_same_share_of_their_plans(points: int) -> None:
    """Of 31 points, and one curve of 30, one had all marks and the other half of them."""
    chain = of_chain(None, M=100, beta=2).problem
    least, most = ms.min_memory(chain), ms.peak_memory(chain)
    memory = [least * 1000 + k * (most - least) * 1000 // points for k in range(points)]
    large = ms.Chain(chain.forward_time, chain.backward_time, *(1000 * chain.activation, 1000 * chain.gradient))
    curves = [ms.frontier(large, 2e3, planner="greedy", memory=own) for own in (memory, memory[1:])]
    figure = plot_frontier(curves)
    every = {one.get_markevery()[1] for one in figure.axes[0].lines[:2]}
    assert len(every) == 1
    told = re.search(r"one plan in (\d+) has a mark", words(figure))
    assert (int(told[1]) if told else 1) == every.pop() == (1 if points == 31 else 5)


def test_a_sweep_says_which_curves_rise_and_why() -> None:
    chain = of_chain(None, M=100, beta=2).problem
    rows = ms.sweep(chain, ["greedy", "rotor"], memory=["80%", "90%", "100%"], beta=[2.0]).rows
    assert "slower" not in words(ms.plot_sweep(rows))
    worse = max(row["makespan"] for row in rows) + 1
    gaps = {"makespan": worse, "lower_bound": worse, "gap": 0.0, "optimal": True}
    rising = [row | gaps if (row["planner"], row["memory"]) == ("greedy", rows[2]["memory"]) else row for row in rows]
    assert "greedy is slower with more memory at some points" in words(ms.plot_sweep(rising))
    assert "greedy is slower with more memory at some points" in sweep_page(rising)
    assert "slower with more memory" not in sweep_page(rows)


def test_a_comparison_names_memories_as_its_table_does() -> None:
    found = ms.compare(ms.profiles.load("resnet18-224-b32"), "40%", "12GB/s", planners="greedy,tflms")
    needs = re.search(r"no plan; fits in \S+", str(found))
    assert needs is not None
    assert needs[0] in words(found.plot())


def test_a_chain_has_no_kinds_to_draw() -> None:
    """One bar, "stage", told nothing."""
    with pytest.raises(ms.InvalidInputError, match="have no kinds; use by='map'"):
        ms.plot_classes(of_chain(None, M=100, beta=2), by="kind")


def test_the_bars_of_a_lane_are_equally_high() -> None:
    """Edges, which wide and thin bars had of different widths, made their tops jagged."""
    wide_and_thin = [3.0, 0.01, 0.02, 2.0, 0.01, 1.5] * 6
    chain = ms.Chain(wide_and_thin, wide_and_thin, [4] * 37, [0] + [4] * 36, name="jagged")
    figure = plot(ms.greedy(chain, ms.peak_memory(chain), 0.0))
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    box = figure.axes[0].get_window_extent()
    rows = slice(len(pixels) - int(box.y1), len(pixels) - int(box.y0))
    lane = pixels[rows, int(box.x0) + 3 : int(box.x1) - 12]
    ink = (255 - lane).sum(axis=2)
    quarter = len(ink) // 4  # names are in the middle
    inside = ink[:, ink[quarter] > 200]
    assert inside.shape[1] > 600
    share = inside / inside[quarter]  # of a pixel that is covered
    assert np.ptp(share[: quarter + 1], axis=1).max() < 0.5
    assert np.ptp(share[-quarter:], axis=1).max() < 0.5


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_loss_is_in_the_legend_where_it_is_seen(seconds: float) -> None:
    ops = [
        ("f", "fwd", "matmul", 5.0, ["x"], ["a"]),
        ("l", "fwd", "nll_loss", seconds, ["a"], ["e"]),
        ("b", "bwd", "matmul", 5.0, ["a", "e"], ["d"]),
    ]
    graph = ms.Graph(
        tensors=[{"name": name, "size": 4, "role": "input" if name == "x" else "activation"} for name in "xaed"],
        ops=[
            {
                **{"name": name, "phase": phase, "kind": kind, "reads": reads, "writes": writes},
                "choices": [{"alg": "plain", "time": time, "workspace": 0}],
            }
            for name, phase, kind, time, reads, writes in ops
        ],
    )
    (legend,) = plot(ms.swap_all(graph, ms.peak_memory(graph), 1.0)).legends
    named = [text.get_text() for text in legend.get_texts()]
    assert ("loss" in named) == (seconds > 0)
    assert {"forward", "backward"} <= {*named}


@pytest.mark.parametrize(
    "words", ["", "4.274 ms if it fit, batch up to 104857600", "for larger inputs, batch up to 94475"]
)
def test_words_beside_bars_are_within_the_picture(words: str) -> None:
    with drawing(None, "MB") as figure:
        draw_bars(
            figure, [Bar("recompute and offload", 1.0, "0.5", words), Bar("plain", 2.0, "0.5", "8 ms")], "MB", 2.0
        )
        figure.canvas.draw()
        edges = [text.get_window_extent().x1 for text in figure.axes[0].texts]
        assert max(edges) <= figure.bbox.x1
