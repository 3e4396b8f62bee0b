"""The claims of moDNN's authors against our figures, one row each."""

from __future__ import annotations

import numpy as np
from bench.common import Row
from bench.goals_report import percent

GIB = 2**30
SAME = 1 + 1e-9
NEAR = 1.34  # a figure is confirmed where ours is at most a third above or below
HEAD = ("claim (section of the paper)", "paper", "ours", "verdict", "why")


def like(ours: float, paper: float) -> str:
    """Whether a figure is the paper's; the relation that it stands for is looked at apart."""
    return "confirmed" if paper / NEAR <= ours <= paper * NEAR else "changed"


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def span(values: list[float], form: str = "{:.2f}") -> str:
    """Least and largest."""
    return f"{form.format(min(values))} to {form.format(max(values))}"


def main_of(rows: list[Row], planner: str) -> list[Row]:
    return [row for row in rows if row["planner"] == planner]


def losses(rows: list[Row], planner: str) -> list[float]:
    """Overheads above the ideal case, in networks that have a plan."""
    return [row["time"] / row["ideal"] - 1 for row in main_of(rows, planner) if row["time"] is not None]


def moved(rows: list[Row], planner: str) -> dict[str, int]:
    """Bytes out and in by network."""
    return {row["network"]: row["bytes_out"] + row["bytes_in"] for row in main_of(rows, planner) if row["time"]}


def both(rows: list[Row], first: str, second: str) -> list[Row]:
    return [row for row in rows if row[first] is not None and row[second] is not None]


def claim_need(rows: list[Row]) -> list[str]:
    """Which networks fit nowhere."""
    sizes = {row["network"]: row["everything"] for row in rows}
    above = all(size > 12 * GIB for size in sizes.values())
    split = all((size > 24 * GIB) == name.startswith("vgg") for name, size in sizes.items())
    ours = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in sizes.items()) + " GB"
    fits = [row["network"] for row in rows if row["peak"] <= 12 * GIB]
    why = "The ideal case holds all data at once. "
    if fits:
        why += f"Freed after the last use, {' and '.join(fits)} would run in 12 GiB as they are."
    return [
        "All need more than 12 GB in the ideal case, the VGGs more than 24 GB, the others not (V.A)",
        "> 12 GB, VGGs > 24 GB",
        ours,
        "confirmed" if above and split else "changed" if above else "refuted",
        why,
    ]


def claim_bound(rows: list[Row]) -> list[str]:
    """Eq. (2) against the ideal case."""
    found = [row["everything"] / row["least"] for row in rows]
    bare = [row["everything"] / (row["least"] - row["weights"]) for row in rows]
    return [
        "The least memory is 50 times below the ideal case on average (V.A)",
        "50",
        f"{mean(found):.0f} ({', '.join(f'{value:.0f}' for value in found)})",
        like(mean(found), 50),
        f"Weights and their gradients count as resident; without the gradients it is {mean(bare):.0f}.",
    ]


def claim_vgg101(rows: list[Row]) -> list[str]:
    """The largest network."""
    own = [row for row in rows if row["network"] == "vgg101"]
    if not own:
        return []
    everything, least, bare = own[0]["everything"], own[0]["least"], own[0]["least"] - own[0]["weights"]
    return [
        "VGG-101 needs nearly 100 GB in the ideal case and 1.4 GB at least (V.A)",
        "100 GB, 1.4 GB",
        f"{everything / 1e9:.1f} GB, {least / 1e9:.2f} GB",
        "confirmed" if like(everything, 1e11) == like(least, 1.4e9) == "confirmed" else "changed",
        f"The paper does not say where VGG-101 has its layers; without the weights' gradients ours needs "
        f"{bare / 1e9:.2f} GB.",
    ]


def claim_loss(rows: list[Row]) -> list[str]:
    """moDNN in 12 GiB."""
    found = losses(rows, "moDNN")
    stays = [name for name, size in moved(rows, "moDNN").items() if size == 0]
    verdict = like(mean(found), 0.08)
    return [
        "moDNN loses 8 % in 12 GB on average (V.B)",
        "8 %",
        f"{percent(mean(found), 1)} ({span([100 * value for value in found])} %)",
        verdict if verdict == "confirmed" or mean(found) <= 0.08 else "refuted",
        f"Smaller: sub-batches lose little in our profile, which has no cost of the runtime, and {', '.join(stays)} "
        "then fit without any transfer.",
    ]


def claim_vdnn(main: list[Row], links: list[Row]) -> list[str]:
    """vDNN in 12 GiB."""
    found = losses(main, "vDNN")
    own = main_of(main, "vDNN")
    slower = [row["compute"] / row["ideal"] - 1 for row in own if row["time"]]
    waits = [(row["time"] - row["compute"]) / row["ideal"] for row in own if row["time"]]
    large = [row for row in both(links, "vDNN", "moDNN") if row["memory"] == 12 * GIB]
    by_link = {
        link: mean([row["vDNN"] / row["ideal"] - 1 for row in large if row["link"] == link])
        for link in sorted({row["link"] for row in large})
    }
    speeds = ", ".join(f"{percent(value, 0)} at {link / 1e9:g}" for link, value in by_link.items())
    verdict = like(mean(found), 0.4)
    return [
        "vDNN loses 40 % in 12 GB on average (V.B)",
        "40 %",
        f"{percent(mean(found), 1)} ({span([100 * value for value in found], '{:.1f}')} %)",
        verdict if verdict == "confirmed" or mean(found) > 2 * mean(losses(main, "moDNN")) else "refuted",
        f"The better of vDNN_all and vDNN_conv, in memory without holes. {percent(mean(slower), 1)} is slower "
        f"algorithms, for which workspace is missing, {percent(mean(waits), 1)} is waiting. The paper does not give "
        f"the speed of its link; by ours (GB/s) the loss is {speeds}.",
    ]


def claim_bytes(rows: list[Row]) -> list[str]:
    """Transferred data."""
    ours, theirs = moved(rows, "moDNN"), moved(rows, "vDNN")
    own = {name: theirs[name] / size for name, size in ours.items() if size and name in theirs}
    total = sum(theirs.values()) / max(1, sum(ours.values()))
    nothing = [name for name, size in ours.items() if size == 0]
    each = ", ".join(f"{name} {value:.1f}" for name, value in own.items())
    return [
        "moDNN moves 5 times less than vDNN on average (V.B)",
        "5",
        (f"{total:.1f} in sum" if sum(ours.values()) else "nothing moves") + (f"; {each}" if each else ""),
        like(total, 5) if sum(ours.values()) >= sum(theirs.values()) / 10 else "changed",
        f"More than the paper's on {', '.join(nothing)}, where moDNN moves nothing, and less on the rest."
        if nothing
        else "",
    ]


def claim_any(memory: list[Row], budgets: list[Row]) -> list[str]:
    """Any budget from eq. (2) on."""
    least = {row["network"]: row["least"] for row in memory}
    fails = [row for row in budgets if row["moDNN"] is None]
    at_least = [row["moDNN"] / row["ideal"] for row in budgets if row["memory"] == least[row["network"]]]
    vdnn = [row["vdnn"] / row["least"] for row in memory]
    return [
        "moDNN runs with any memory from the least on; vDNN fails below some value (V.B)",
        "any",
        f"plans at {len(budgets) - len(fails)} of {len(budgets)} points; vDNN needs {span(vdnn, '{:.0f}')} times more",
        "confirmed" if not fails and min(vdnn) > 1 else "refuted",
        f"At exactly the least memory moDNN takes {span(at_least, '{:.1f}')} times the ideal time: one sample a round, "
        "algorithms without workspace, memory moved out and back.",
    ]


def claim_plus(budgets: list[Row], memory: list[Row]) -> list[str]:
    """vDNN+ against vDNN."""
    own = both(budgets, "vDNN+", "vDNN")
    better = [row["vDNN+"] < row["vDNN"] / SAME for row in own]
    worse = [row for row in own if row["vDNN+"] > row["vDNN"] * SAME]
    more = [row["network"] for row in memory if row["vdnn_plus"] > 1.01 * row["least"]]
    lost = [row for row in budgets if row["vDNN"] is not None and row["vDNN+"] is None]
    why = f"Equal on the others: there eq. (3) gives one round. vDNN+ has no plan, but vDNN has, at {len(lost)} points."
    if more:
        why += f" On {', '.join(more)} vDNN+ needs more than moDNN: eq. (3) makes each op fit alone, vDNN holds more."
    return [
        "vDNN+, on moDNN's sub-batches, is better than vDNN with the same memory (V.B)",
        "better",
        f"better at {sum(better)} of {len(own)} points, worse at {len(worse)}",
        "confirmed" if not worse and not lost and any(better) else "changed" if len(worse) < sum(better) else "refuted",
        why,
    ]


def claim_better(budgets: list[Row], other: str) -> list[str]:
    """moDNN against one of the others."""
    own = both(budgets, "moDNN", other)
    worse = [row for row in own if row["moDNN"] > row[other] * SAME]
    still = [row for row in own if row["moDNN, more rounds"] > row[other] * SAME]
    top = max(own, key=lambda row: row["moDNN"] / row[other])
    names = ", ".join(dict.fromkeys(row["network"] for row in worse))
    why = "Also where vDNN has all the memory that it needs. vDNN's memory has no holes here, moDNN's has."
    if worse:
        why = (
            f"Slower on {names}, at most by {percent(top['moDNN'] / top[other] - 1, 1)} ({top['network']}, "
            f"{top['memory'] / GIB:.3g} GiB). moDNN pays for holes in its memory, which our {other} does not have, and "
            f"eq. (3) does not count transfers: with more rounds moDNN is slower at {len(still)} points."
        )
    return [
        f"moDNN is always better than {other} (V.B)",
        "always",
        f"not worse at {len(own) - len(worse)} of {len(own)} points, on average "
        f"{mean([r['moDNN'] / r[other] for r in own]):.3f} of its time",
        "confirmed" if not worse else "changed" if len(worse) < len(own) / 2 else "refuted",
        why,
    ]


def claim_two(rows: list[Row]) -> list[list[str]]:
    """Two GPUs: three claims on VGG-16 and VGG-19."""
    own = [row for row in rows if row["network"] in ("vgg16", "vgg19") and row["link"] == rows[0]["link"]]
    total = [row["two"] + row["exchange"] for row in own]
    ideal = mean([row["ideal"] / time for row, time in zip(own, total, strict=True)])
    one = mean([row["one"] / time for row, time in zip(own, total, strict=True)])
    exchange = [row["exchange"] / time for row, time in zip(own, total, strict=True)]
    still = all(row["moved_two"] == 0 for row in own)
    near = "one GPU is near the ideal case already, and " if mean([r["one"] / r["ideal"] for r in own]) < 1.05 else ""
    return [
        [
            "Two GPUs are 1.5 times faster than the ideal case on one, VGG-16 and VGG-19 (V.C)",
            "1.5",
            f"{ideal:.2f}",
            like(ideal, 1.5) if ideal < 1.75 else "changed",
            f"Larger: {near}half the batch moves {'nothing' if still else 'less'}, so the shared bus has little to "
            "slow down.",
        ],
        [
            "Two GPUs are 1.84 times faster than moDNN on one (V.C)",
            "1.84",
            f"{one:.2f}",
            like(one, 1.84) if one > 1.5 else "refuted",
            f"The exchange of gradients takes {percent(min(exchange), 1)} to {percent(max(exchange), 1)} of the time.",
        ],
        [
            "The shared bus and the sum of the gradients do not cost too much with two GPUs (V.C)",
            "not too high",
            f"{percent(1 - one / 2, 1)} in all",
            "confirmed" if one > 1.6 else "refuted",
            "Both transfer at the same moments, each at half the speed. " + shared_bus(rows),
        ],
    ]


def shared_bus(rows: list[Row]) -> str:
    """Where transfers remain, on the slower link."""
    found = [
        f"{row['network']} at {row['link'] / 1e9:g} GB/s {row['one'] / (row['two'] + row['exchange']):.2f} times faster"
        for row in rows
        if row["moved_two"]
    ]
    return f"With transfers {'; '.join(found)}." if found else "No network needs transfers with half the batch."


def claims(parts: dict[str, list[Row]]) -> list[list[str]]:
    """All rows, in the order of the paper."""
    memory, main, budgets = parts["memory"], parts["main"], parts["budgets"]
    found = [
        claim_need(memory),
        claim_bound(memory),
        claim_vgg101(memory),
        claim_loss(main),
        claim_vdnn(main, parts["links"]),
        claim_bytes(main),
        claim_any(memory, budgets),
        claim_plus(budgets, memory),
        claim_better(budgets, "vDNN"),
        claim_better(budgets, "vDNN+"),
        *claim_two(parts["gpus"]),
    ]
    return [claim for claim in found if claim]
