"""The claims of moDNN's authors against our figures, one row each."""

from __future__ import annotations

import math

import numpy as np
from bench.common import Row
from bench.goals_report import percent
from bench.papers.page import Parts
from bench.papers.verdict import SAME, Cases, Claim, Figure, Ordering, Runs, Setting

GIB = 2**30
NO_LINK = "the paper does not give the speed of its link"
NO_LAYERS = "the paper does not give the layers of VGG-101 and FCN"
KNOWN = ("vgg16", "vgg19", "resnet34")  # networks of which everybody knows the layers
ANY = "On all networks, and at links of 3 to 16 GB/s, so that the paper's is among them."
OVERHEAD = Setting(hardware=NO_LINK, network=NO_LAYERS)
TWO = Setting(hardware=NO_LINK)


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def known(rows: list[Row]) -> list[Row]:
    """Of networks whose layers the paper need not give."""
    return [row for row in rows if row["network"] in KNOWN]


def main_of(rows: list[Row], planner: str) -> list[Row]:
    return [row for row in rows if row["planner"] == planner]


def losses(rows: list[Row], planner: str) -> list[float]:
    """Percent above the ideal case, in networks that have a plan."""
    return [100 * (row["time"] / row["ideal"] - 1) for row in main_of(rows, planner) if row["time"] is not None]


def moved(rows: list[Row], planner: str) -> dict[str, int]:
    """Bytes out and in by network."""
    return {row["network"]: row["bytes_out"] + row["bytes_in"] for row in main_of(rows, planner) if row["time"]}


def claim_need(rows: list[Row]) -> Claim:
    """Which networks fit nowhere."""
    fits = [row["network"] for row in rows if row["peak"] <= 12 * GIB]
    vgg = [row["everything"] / 1e9 for row in known(rows) if row["network"].startswith("vgg")]
    rest = [row["everything"] / 1e9 for row in known(rows) if not row["network"].startswith("vgg")]
    why = "The ideal case holds all data at once; VGG-101 and FCN, whose layers the paper does not give, do not count. "
    if fits:
        why += f"Freed after the last use, {' and '.join(fits)} would run in 12 GiB as they are."
    return Claim(
        text="All need more than 12 GB in the ideal case, the VGGs more than 24 GB, the others not (V.A)",
        paper="> 12 GB, VGGs > 24 GB",
        evidence=(
            ("VGG-16, VGG-19 (GB)", Figure(values=vgg, low=24 * GIB / 1e9, high=math.inf, form="{:.1f}")),
            (
                "ResNet-34 (GB), more than 12",
                Figure(values=rest, low=12 * GIB / 1e9, high=math.inf, form="{:.1f}"),
            ),
            ("not more than 24", Figure(values=rest, low=-math.inf, high=24 * GIB / 1e9, form="{:.1f}")),
        ),
        more=", ".join(f"{row['network']} {row['everything'] / 1e9:.1f}" for row in rows) + " GB",
        why=why,
    )


def claim_bound(rows: list[Row]) -> Claim:
    """Eq. (2) against the ideal case."""
    found = [row["everything"] / row["least"] for row in rows]
    bare = [row["everything"] / (row["least"] - row["weights"]) for row in rows]
    return Claim(
        text="The least memory is 50 times below the ideal case on average (V.A)",
        paper="50",
        setting=Setting(network=NO_LAYERS),
        evidence=(("", Figure(values=found, low=50, high=50, of="mean", nothing=1, form="{:.0f}")),),
        why=f"Weights and their gradients count as resident; without the gradients it is {mean(bare):.0f}.",
    )


def claim_vgg101(rows: list[Row]) -> Claim:
    """The largest network."""
    own = [row for row in rows if row["network"] == "vgg101"]
    everything = [row["everything"] / 1e9 for row in own]
    least = [row["least"] / 1e9 for row in own]
    bare = ", ".join(f"{(row['least'] - row['weights']) / 1e9:.2f} GB" for row in own)
    return Claim(
        text="VGG-101 needs nearly 100 GB in the ideal case and 1.4 GB at least (V.A)",
        paper="100 GB, 1.4 GB",
        setting=Setting(network="the paper does not say where VGG-101 has its layers"),
        evidence=(
            ("ideal case (GB)", Figure(values=everything, low=100, high=100, form="{:.1f}")),
            ("least (GB)", Figure(values=least, low=1.4, high=1.4)),
        ),
        why=f"Ours are chosen to come near 100 GB. Without the weights' gradients it needs {bare}.",
    )


def claim_loss(rows: list[Row]) -> Claim:
    """moDNN in 12 GiB."""
    stays = [name for name, size in moved(rows, "moDNN").items() if size == 0]
    return Claim(
        text="moDNN loses 8 % in 12 GB on average (V.B)",
        paper="8 %",
        setting=OVERHEAD,
        evidence=(("percent", Figure(values=losses(rows, "moDNN"), low=8, high=8, of="mean")),),
        why=f"Our profile has no cost of the runtime, and {', '.join(stays)} fit without any transfer once the "
        "batch is split.",
    )


def claim_vdnn(main: list[Row], links: list[Row]) -> Claim:
    """vDNN in 12 GiB."""
    own = main_of(main, "vDNN")
    slower = [row["compute"] / row["ideal"] - 1 for row in own if row["time"]]
    waits = [(row["time"] - row["compute"]) / row["ideal"] for row in own if row["time"]]
    large = [row for row in links if row["memory"] == 12 * GIB and row["vDNN"] is not None]
    by_link = {
        link: mean([row["vDNN"] / row["ideal"] - 1 for row in large if row["link"] == link])
        for link in sorted({row["link"] for row in large})
    }
    speeds = ", ".join(f"{percent(value, 0)} at {link / 1e9:g}" for link, value in by_link.items())
    return Claim(
        text="vDNN loses 40 % in 12 GB on average (V.B)",
        paper="40 %",
        setting=OVERHEAD,
        evidence=(("percent", Figure(values=losses(main, "vDNN"), low=40, high=40, of="mean", form="{:.1f}")),),
        why=f"The better of vDNN_all and vDNN_conv, in memory without holes. {percent(mean(slower), 1)} is slower "
        f"algorithms, for which workspace is missing, {percent(mean(waits), 1)} is waiting. By link (GB/s) the loss is "
        f"{speeds}.",
    )


def claim_bytes(rows: list[Row]) -> Claim:
    """Transferred data; more than five times where moDNN moves nothing."""
    ours, theirs = moved(rows, "moDNN"), moved(rows, "vDNN")
    own = [theirs[name] / size if size else math.inf for name, size in ours.items() if theirs.get(name)]
    total = sum(theirs.values()) / sum(ours.values()) if any(ours.values()) else math.inf
    return Claim(
        text="moDNN moves 5 times less than vDNN on average (V.B)",
        paper="5",
        setting=Setting(network=NO_LAYERS),
        evidence=(
            ("bytes of vDNN over moDNN's", Figure(values=own, low=5, high=5, of="median", nothing=1, form="{:.1f}")),
        ),
        more=f"{total:.1f} in sum" if math.isfinite(total) else "nothing moves",
        why=f"moDNN moves nothing on {', '.join(name for name, size in ours.items() if size == 0) or 'none'}.",
    )


def claim_any(memory: list[Row], budgets: list[Row]) -> Claim:
    """Any budget from eq. (2) on."""
    least = {row["network"]: row["least"] for row in memory}
    at_least = [row["moDNN"] / row["ideal"] for row in budgets if row["memory"] == least[row["network"]]]
    times = f"takes {min(at_least):.1f} to {max(at_least):.1f} times the ideal time: " if at_least else "is slow: "
    runs = [row["moDNN"] is not None for row in budgets]
    return Claim(
        text="moDNN runs with any memory from the least on; vDNN fails below some value (V.B)",
        paper="any",
        evidence=(
            ("moDNN", Runs(expected=[True] * len(runs), found=runs)),
            (
                "least memory, moDNN's against vDNN's",
                Ordering(pairs=[(row["least"], row["vdnn"]) for row in memory]),
            ),
        ),
        why=f"Whether a plan exists depends on bytes alone. At exactly the least memory moDNN {times}one sample a "
        "round, algorithms without workspace, memory moved out and back.",
    )


def any_link(budgets: list[Row], links: list[Row]) -> list[Row]:
    """All points, so that an ordering has to hold at every speed of the link that the paper can have had."""
    return [*budgets, *links]


def claim_plus(rows: list[Row], memory: list[Row]) -> Claim:
    """vDNN+ against vDNN."""
    more = [row["network"] for row in memory if row["vdnn_plus"] > 1.01 * row["least"]]
    why = ANY + " Equal where eq. (3) gives one round."
    if more:
        why += f" On {', '.join(more)} vDNN+ needs more than moDNN: eq. (3) makes each op fit alone, vDNN holds more."
    return Claim(
        text="vDNN+, on moDNN's sub-batches, is better than vDNN with the same memory (V.B)",
        paper="better",
        evidence=(("", Ordering(pairs=[(row["vDNN+"], row["vDNN"]) for row in rows if row["vDNN"]])),),
        why=why,
    )


def claim_better(rows: list[Row], other: str) -> Claim:
    """moDNN against one of the others."""
    both = [row for row in rows if row["moDNN"] is not None and row[other] is not None]
    worse = [row for row in both if row["moDNN"] > row[other] * (1 + SAME)]
    still = [row for row in both if row["moDNN, more rounds"] > row[other] * (1 + SAME)]
    why = ANY
    if worse:
        top = max(worse, key=lambda row: row["moDNN"] / row[other])
        why += (
            f" Slower on {', '.join(dict.fromkeys(row['network'] for row in worse))}, at most by "
            f"{percent(top['moDNN'] / top[other] - 1, 1)} ({top['network']}, {top['memory'] / GIB:.3g} GiB, "
            f"{top['link'] / 1e9:g} GB/s). moDNN pays for holes in its memory, which our {other} does not have, and "
            f"eq. (3) does not count transfers: with more rounds moDNN is slower at {len(still)} points."
        )
    return Claim(
        text=f"moDNN is always better than {other} (V.B)",
        paper="always",
        evidence=(("", Ordering(pairs=[(row["moDNN"], row[other]) for row in rows])),),
        why=why,
    )


def claim_two(rows: list[Row]) -> list[Claim]:
    """Two GPUs: three claims on VGG-16 and VGG-19."""
    own = [row for row in rows if row["network"] in ("vgg16", "vgg19")]
    total = [row["two"] + row["exchange"] for row in own]
    ideal = [row["ideal"] / time for row, time in zip(own, total, strict=True)]
    one = [row["one"] / time for row, time in zip(own, total, strict=True)]
    cost = [100 * (1 - value / 2) for value in one]
    exchange = [row["exchange"] / time for row, time in zip(own, total, strict=True)]
    links = " and ".join(f"{link / 1e9:g}" for link in sorted({row["link"] for row in own}))
    told = f"The exchange of gradients takes {percent(min(exchange), 1)} to {percent(max(exchange), 1)} of the time."
    return [
        Claim(
            text="Two GPUs are 1.5 times faster than the ideal case on one, VGG-16 and VGG-19 (V.C)",
            paper="1.5",
            setting=TWO,
            evidence=(("", Figure(values=ideal, low=1.5, high=1.5, of="mean", nothing=1)),),
            why=f"Links of {links} GB/s. One GPU is near the ideal case already, and half the batch moves less.",
        ),
        Claim(
            text="Two GPUs are 1.84 times faster than moDNN on one (V.C)",
            paper="1.84",
            setting=TWO,
            evidence=(("", Figure(values=one, low=1.84, high=1.84, of="mean", nothing=1)),),
            why=told if exchange else "",
        ),
        Claim(
            text="The shared bus and the sum of the gradients do not cost too much with two GPUs (V.C)",
            paper="not too high",
            setting=TWO,
            evidence=(
                ("", Cases(holds=[value <= 20 for value in cost], what="at most 20 % of two GPUs' speed is lost:")),
            ),
            more=f"{min(cost):.1f} to {max(cost):.1f} %" if cost else "",
            why="Both transfer at the same moments, each at half the speed. " + shared_bus(rows),
        ),
    ]


def shared_bus(rows: list[Row]) -> str:
    """Where transfers remain, on the slower link."""
    found = [
        f"{row['network']} at {row['link'] / 1e9:g} GB/s {row['one'] / (row['two'] + row['exchange']):.2f} times faster"
        for row in rows
        if row["moved_two"]
    ]
    return f"With transfers {'; '.join(found)}." if found else "No network needs transfers with half the batch."


def claims(parts: Parts) -> list[Claim]:
    """All rows, in the order of the paper."""
    memory, main, budgets = parts["memory"], parts["main"], parts["budgets"]
    every = any_link(budgets, parts["links"])
    return [
        claim_need(memory),
        claim_bound(memory),
        claim_vgg101(memory),
        claim_loss(main),
        claim_vdnn(main, parts["links"]),
        claim_bytes(main),
        claim_any(memory, budgets),
        claim_plus(every, memory),
        claim_better(every, "vDNN"),
        claim_better(every, "vDNN+"),
        *claim_two(parts["gpus"]),
    ]
