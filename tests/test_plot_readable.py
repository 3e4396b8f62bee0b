"""Pictures can be read: names have room, colours contrast, and what is compared has one scale."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.planners.registry import PLANNERS
from memsched.show.plots import classes as classes_module
from memsched.show.plots import palette
from memsched.show.plots.figure import NOISE, readable
from memsched.show.plots.frontier import plot_frontier
from memsched.show.plots.plan import plot
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
    assert "the names of most bytes in colour" in figure.axes[0].get_title(loc="left")
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
    assert "no plan: it needs 99 B" in words(figure)
    with pytest.raises(ms.InvalidInputError, match="no planner has a plan"):
        ms.Comparison(mine=found["mine"]).plot()
