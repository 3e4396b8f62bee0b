"""The Markdown of docs/results/pooch2019.md."""

from __future__ import annotations

import numpy as np
from bench.common import Row, environment_line, table
from bench.goals_report import percent
from bench.papers.page import Parts, claims_section
from bench.papers.pooch2019_claims import claims, slower_links
from bench.papers.pooch2019_figures import link_name, links_of, size_name

COLUMNS = ("w/o scheduling", "swap-all", "swap-opt", "PoocH", "SuperNeurons")
BASELINES = ("swap-opt", "AUTOSWAP", "TFLMS", "vDNN")
SEARCHES = ("default", "tree 0", "tree 10", "beam 1", "beam 16", "fill")
TABLE_3 = (("x86, paper", "66/12/27", "66/21/18"), ("POWER9, paper", "66/36/3", "66/21/18"))


def speed(row: Row, name: str) -> str:
    """Images a second, four digits."""
    return "-" if row[name] is None else f"{row['batch'] / row[name]:.4g}"


def speeds_table(rows: list[Row], network: str) -> str:
    """Images (clips) a second by size and link, and classes."""
    cells = [
        [
            size_name(row),
            f"{row['link'] / 1e9:g}",
            f"{row['memory'] / 1e9:.1f}",
            speed(row, "bound"),
            "yes" if row["in-core"] else "no",
            *(speed(row, name) for name in COLUMNS),
            *("-" if row[name] is None else "/".join(map(str, row[name])) for name in CLASSES),
        ]
        for row in rows
        if row["network"] == network
    ]
    size = "clip" if network == "resnext101_3d" else "batch"
    head = [size, "GB/s", "plain run (GB)", "compute bound", "in-core", *COLUMNS]
    return table([*head, "PoocH's classes", "filled", "SuperNeurons'"], cells)


CLASSES = ("PoocH classes", "PoocH, filled classes", "SuperNeurons classes")


def table_3(rows: list[Row]) -> str:
    """Kept/swapped/recomputed at batch 512."""
    own = [row for row in rows if row["network"] == "resnet50" and row["batch"] == 512]
    cells = [
        [link_name(row["link"]), *("-" if row[name] is None else "/".join(map(str, row[name])) for name in CLASSES)]
        for row in sorted(own, key=lambda row: row["link"])
    ]
    return table(["", "PoocH", "filled", "SuperNeurons"], [*cells, *([a, b, "-", c] for a, b, c in TABLE_3)])


def crossed_table(rows: list[Row]) -> str:
    cells = [
        [
            row["batch"],
            f"{row['own'] / 1e9:g}",
            f"{row['other'] / 1e9:g}",
            "/".join(map(str, row["classes"])),
            speed(row, "time"),
            speed(row, "PoocH"),
        ]
        for row in rows
    ]
    return table(["batch", "link (GB/s)", "classes for (GB/s)", "classes", "images / s", "with its own"], cells)


def baselines_table(rows: list[Row]) -> str:
    cells = [
        [row["batch"], f"{row['link'] / 1e9:g}", speed(row, "PoocH"), *(speed(row, name) for name in BASELINES)]
        for row in rows
        if row["network"] == "resnet50" and row["in-core"] is None
    ]
    return table(["batch", "GB/s", "PoocH", *BASELINES], cells)


def slower_table(rows: list[Row]) -> str:
    factors = sorted({row["slower"] for row in rows})
    keyed = {(size_name(row), row["link"], row["slower"]): row for row in rows}
    cells = []
    for size in dict.fromkeys(size_name(row) for row in rows):
        for link in links_of(rows):
            own = [keyed[size, link, factor] for factor in factors]
            if own[0]["in-core"] is None and own[0]["PoocH"] is not None:
                cells.append([size, f"{link / 1e9:g}", *(kept(row, "PoocH") for row in own)])
                cells[-1] += [kept(row, "SuperNeurons") for row in own]
    names = [f"{name}, {factor:g}x" for name in ("PoocH", "SuperNeurons") for factor in factors]
    return table(["clip", "GB/s", *names], cells)


def kept(row: Row, name: str) -> str:
    """Percent of the speed of the bound."""
    return "-" if row[name] is None else percent(row["bound"] / row[name], 1)


def searches_table(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        line = [row["network"], size_name(row), f"{row['link'] / 1e9:g}", row["late"]]
        line.append(f"{row['swap-opt'] / row['bound']:.4f}")
        for name in SEARCHES:
            line.append(f"{row[name] / row['bound']:.4f} ({row[f'{name}: plans']})")
        cells.append(line)
    return table(["network", "size", "GB/s", "L_I", "swap-opt", *SEARCHES], cells)


def searches_text(rows: list[Row]) -> str:
    """What the options change."""
    told = []
    for name in SEARCHES[1:]:
        changes = [row[name] / row["default"] - 1 for row in rows]
        seconds = [row[f"{name}: plans"] / row["default: plans"] for row in rows]
        told.append(
            f"`{name}` changes the time by {100 * min(changes):+.2f} to {100 * max(changes):+.2f} %, with "
            f"{float(np.median(seconds)):.2f} times as many plans (median)"
        )
    return "; ".join(told) + "."


def growth_table(rows: list[Row]) -> str:
    cells = [
        [
            row["network"],
            size_name(row),
            row["maps"],
            row["ops"],
            row["late"],
            row["plans"],
            f"{1e3 * row['planning']:.2f}",
            f"{1e6 * row['planning'] / row['plans']:.1f}",
            f"{1e6 * row['simulation']:.0f}",
            f"{row['planning'] / row['simulation']:.0f}",
            percent(row["overhead"], 1),
        ]
        for row in sorted(rows, key=lambda row: row["maps"])
    ]
    head = ["network", "size", "maps", "ops", "L_I", "plans", "planning (ms)", "us per plan"]
    return table([*head, "one plan from Python (us)", "ratio", "overhead"], cells)


def exponent(rows: list[Row]) -> str:
    """Of planning time against maps."""
    maps, seconds = ([float(row[key]) for row in rows] for key in ("maps", "planning"))
    return f"{np.polyfit(np.log(maps), np.log(seconds), 1)[0]:.1f}"


def report(parts: Parts, drawn: list[tuple[str, str, str]], environment: Row) -> str:
    """Claims, tables, pictures."""
    rows, searched = parts["speeds"], parts["searches"]
    falls = slower_links(rows)
    sections = [
        "# PoocH, 2019",
        "Ito, Imai, Duc, Negishi, Kawachiya, Matsumiya, Endo: Profiling based Out-of-core Hybrid Method for Large "
        "Neural Networks. Written by `python -m bench.papers.pooch2019` for networks by formula on a V100 with 16e9 "
        "bytes and 8 MiB for workspaces. Links are duplex, at the nominal speeds of the paper's machines (16 GB/s on "
        "x86, 75 GB/s on POWER9) and at 75 % of them. Every plan is simulated, and checked by `memsched.validate`. "
        "points.json beside the pictures has every number.",
        environment_line(environment) + " Only planning times depend on the machine.",
        "What differs from the paper: times come from formulas, not from measurements (docs/profiles.md), without "
        "costs of synchronisation and allocation. Memory is counted in bytes, so it has no holes. The order of its "
        "steps decides whether a plan fits, durations do not. Large L_I are searched with a beam. The paper gives "
        "neither the batch of AlexNet nor the sizes of the clips, so these are ours; nor does its text give the "
        "numbers in its figures.",
        *claims_section(claims(parts)),
        "## ResNet-50 (Figures 15 to 18)",
        "Images per second. Classes are numbers of maps kept/swapped/recomputed. `filled` is `pooch(fill=True)`, "
        "which at the end keeps what still fits.",
        speeds_table(rows, "resnet50"),
        (
            f"The search is greedy, so a faster link can lead to a slower plan: {', '.join(falls)}."
            if falls
            else "A faster link never led to a slower plan."
        ),
        "## Classes (Table 3)",
        "ResNet-50, batch 512.",
        table_3(rows),
        "## Classes of the other machine",
        crossed_table(parts["crossed"]),
        "## AlexNet (Figures 19 and 20)",
        speeds_table(rows, "alexnet"),
        "## ResNeXt-101 (3D) (Figures 4, 21 and 22)",
        "One clip, frames x side; clips per second.",
        speeds_table(rows, "resnext101_3d"),
        "Speed in percent of the compute bound if grouped convolutions take one to several times as long as by "
        "formula, for clips that do not fit in-core:",
        slower_table(parts["slower"]),
        "## Planners of the Euro-Par 2020 paper",
        "ResNet-50, images per second. AUTOSWAP and TFLMS only swap, as swap-opt does. vDNN may use any workspace "
        "that fits, not only 8 MiB, so it can exceed the compute bound of the others.",
        baselines_table(rows),
        "## The search",
        "Makespan relative to the compute bound, with the number of simulated plans in brackets. By default, up to "
        f"12 maps of L_I are searched exhaustively, more with a beam of 4. {searches_text(searched)}",
        searches_table(searched),
        "## Planning time",
        "Memory is half-way between what swap-all needs and the peak of the plain run; the link has 12 GB/s. CPU "
        'time of one thread. "One plan from Python" is the time to build the schedule of swap-all and simulate it. '
        f"Over these networks planning time grows with about the power {exponent(parts['growth'])} of the number of "
        "maps. It depends as much on how many transfers the link cannot hide.",
        growth_table(parts["growth"]),
        "## Pictures",
    ]
    sections += [f"### {title} (Figures: {number})\n\n![{title}](pooch2019/{file})" for file, title, number in drawn]
    return "\n\n".join(sections) + "\n"
