"""What the abstract of Wang et al., SuperNeurons, PPoPP 2018, claims, on networks by formula: depth, batches, peaks.

python -m bench.papers.superneurons2018                 # about a minute
python -m bench.papers.superneurons2018 --quick --out /tmp/superneurons2018
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.common import Row, environment_line, table
from bench.papers.page import Drawn, Parts, arguments, claims_section, publish
from bench.papers.superneurons2018_claims import PLAIN, PLANNED, claims

import memsched as ms
from memsched.problems.analytic.builder import Builder
from memsched.problems.analytic.kernels import gpu_named
from memsched.problems.analytic.networks import resnet

MEMORY = 12 * 10**9
LINK = 12.2e9  # bytes per second, of PCIe 3.0 x16
BLOCKS = (6, 32, 6)  # of the residual network's other stages; the third one grows
BATCHES = (1, 16)  # of the deep networks
NETWORKS = ("alexnet", "vgg16", "vgg19", "resnet34", "resnet50")
MOST = 1 << 13  # blocks, and samples


def deep(blocks: int, batch: int) -> ms.Graph:
    """A residual network of bottlenecks, with so many blocks in its third stage."""
    builder = Builder(gpu_named("k40m"), batch)
    resnet(builder, counts=(*BLOCKS[:2], blocks, BLOCKS[2]), bottleneck=True)
    return builder.graph(f"resnet{depth_of(blocks)}")


def depth_of(blocks: int) -> int:
    """Layers with weights: three a block, the first convolution and the classifier."""
    return 3 * (sum(BLOCKS) + blocks) + 2


def needs(way: str, graph: ms.Graph) -> int:
    """Bytes."""
    return ms.peak_memory(graph) if way == PLAIN else ms.min_memory(graph, "superneurons")


def most(way: str, build: Callable[[int], ms.Graph]) -> int:
    """The largest number whose graph fits, or 0; what a graph needs grows with it."""
    low, top = 0, 1
    while top < MOST and needs(way, build(top)) <= MEMORY:  # large graphs take long
        low, top = top, 2 * top
    high = min(top, MOST) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if needs(way, build(middle)) <= MEMORY:
            low = middle
        else:
            high = middle - 1
    return low


def largest(way: str, build: Callable[[int], ms.Graph]) -> Row:
    """The largest that fits, and the plan of its step: bytes, and by how much it takes longer than its ops."""
    found = most(way, build)
    row: Row = {"way": way, "found": found, "ops": None, "bytes": None, "overhead": None, "recomputed": None}
    if not found:
        return row
    graph = build(found)
    row["ops"] = len(graph.ops)
    if way == PLAIN:
        return row | {"bytes": ms.peak_memory(graph), "overhead": 0.0, "recomputed": 0}
    result = ms.superneurons(graph, MEMORY, LINK)
    ms.validate(result)  # which raises
    fastest = sum(min(choice["time"] for choice in op["choices"]) for op in graph.ops)
    return row | {
        "bytes": result.peak_memory,
        "overhead": result.makespan / fastest - 1,
        "recomputed": len(result.recomputed),
    }


def peaks(network: str, graph: ms.Graph) -> Row:
    """What a plan holds at the least memory, beside what the largest op touches; resident bytes are in all of them."""
    result = ms.superneurons(graph, needs(PLANNED, graph), LINK)
    ms.validate(result)
    sizes = {one["name"]: one["size"] for one in graph.tensors}
    touched = [
        sum(sizes[name] for name in {*op["reads"], *op["writes"]}) + min(one["workspace"] for one in op["choices"])
        for op in graph.ops
    ]
    return {
        "network": network,
        "batch": graph.batch,
        "plain": ms.peak_memory(graph),
        "op": graph.resident + max(touched),
        "planned": result.peak_memory,
    }


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All rows."""
    batches, networks, deepest = BATCHES, NETWORKS, 600
    if given.quick:
        batches, networks, deepest = BATCHES[-1:], NETWORKS[:1], 4
    ways = (PLAIN, PLANNED)

    def wide(network: str) -> Callable[[int], ms.Graph]:
        return lambda batch: ms.profiles.analytic(network, batch, gpu="k40m").graph

    depths = []
    for batch in batches:
        for way in ways[: 1 if given.quick else 2]:
            row = largest(way, partial(deep, batch=batch))
            depths.append({"batch": batch, "depth": depth_of(row["found"]) if row["found"] else None, **row})
    widths = [{"network": network, **largest(way, wide(network))} for network in networks for way in ways]
    lows = [peaks(network, wide(network)(64)) for network in networks]
    lows.append(peaks(f"resnet{depth_of(deepest)}", deep(deepest, 16)))
    return {"depths": depths, "widths": widths, "peaks": lows}, {}


def picture(parts: Parts, folder: Path) -> Drawn:
    """Depth by batch, and batches by network, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    colours = {PLAIN: "#999999", PLANNED: "#0072B2"}
    drawn, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    panels = (
        (axes[0], parts["depths"], lambda row: f"batch {row['batch']}", "depth", "layers of the deepest network"),
        (axes[1], parts["widths"], lambda row: row["network"], "found", "largest batch"),
    )
    for one, rows, group, column, label in panels:
        groups = list(dict.fromkeys(map(group, rows)))
        for side, (way, colour) in enumerate(colours.items()):
            own = {group(row): row[column] or 0 for row in rows if row["way"] == way}
            places = [place + 0.4 * (side - 0.5) for place in range(len(groups))]
            bars = one.bar(places, [own.get(name, 0) for name in groups], 0.38, label=way, color=colour)
            one.bar_label(bars, fmt="{:,.0f}", fontsize=7)
        one.set_xticks(range(len(groups)), groups, fontsize=8)
        one.set_ylabel(label, fontsize=8)
        one.tick_params(axis="y", labelsize=7)
        one.spines[["top", "right"]].set_visible(False)
        one.margins(y=0.12)
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    content = io.BytesIO()
    drawn.savefig(content, dpi=100)
    pyplot.close(drawn)
    (folder / "largest.png").write_bytes(content.getvalue())
    return ["largest.png"]


def cells(row: Row) -> list[str]:
    """The columns that both tables of the largest have."""
    if row["bytes"] is None:
        return [row["way"], "none", "-", "-", "-"]
    return [
        row["way"],
        f"{row['ops']:,}",
        f"{row['bytes'] / 1e9:.2f} GB",
        f"{100 * row['overhead']:.1f} %",
        str(row["recomputed"]),
    ]


def report(parts: Parts, drawn: Drawn, environment: Row) -> str:
    """The Markdown of docs/results/superneurons2018.md."""
    head = ["ops", "peak", "over the time of all ops", "ops run again"]
    sections = [
        "# SuperNeurons, PPoPP 2018",
        "Wang et al.: SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks. It is not one "
        "of the five papers, but a baseline of two of them. Written by `python -m bench.papers.superneurons2018`; "
        "points.json has every number. Only the paper's abstract is compared: its other figures were not at hand.",
        environment_line(environment) + " Nothing here depends on the machine.",
        f"Networks are by formula ([profiles](../profiles.md)) on a K40m with {MEMORY / 1e9:g} GB and a link of "
        f"{LINK / 1e9:g} GB/s, times from a roofline, parameters and their gradients resident, the host without "
        "limit. `superneurons` chooses among its four plans; every plan was validated. The plain run moves and "
        "recomputes nothing, and frees what nobody reads again. The overhead is over all ops with their fastest "
        "algorithms, so smaller workspaces are a part of it.",
        *claims_section(claims(parts)),
        "## The deepest network",
        f"Residual networks of bottlenecks with stages of {BLOCKS[0]}, {BLOCKS[1]}, n and {BLOCKS[2]} blocks on "
        "images of 224 x 224.",
        table(
            ["batch", "depth", "way", *head],
            [[row["batch"], f"{row['depth'] or 0:,}", *cells(row)] for row in parts["depths"]],
        ),
        "## The largest batch",
        table(
            ["network", "batch", "way", *head],
            [[row["network"], f"{row['found']:,}", *cells(row)] for row in parts["widths"]],
        ),
        *(f"![The deepest networks and the largest batches](superneurons2018/{file})" for file in drawn),
        "## The least memory",
        "What the plain run holds at its peak, what the largest op touches, and the peak of the plan with the "
        "least memory, in MB; resident bytes are in all three.",
        table(
            ["network", "batch", "plain run", "largest op", "planned"],
            [
                [
                    row["network"],
                    row["batch"],
                    *(f"{row[key] / 1e6:,.1f}" for key in ("plain", "op", "planned")),
                ]
                for row in parts["peaks"]
            ],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    """Compute the rows, draw, and write the claims."""
    publish("superneurons2018", arguments("superneurons2018", __doc__).parse_args(), measure, picture, report)


if __name__ == "__main__":
    main()
