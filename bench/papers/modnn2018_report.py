"""The Markdown of docs/results/modnn2018.md."""

from __future__ import annotations

from itertools import pairwise

from bench.common import Row, environment_line, table
from bench.goals_report import percent
from bench.papers.modnn2018_claims import GIB, claims
from bench.papers.page import Parts, claims_section
from bench.papers.verdict import SAME

PLANNERS = ("moDNN", "moDNN, more rounds", "vDNN+", "vDNN")
VARIANTS = ("moDNN", "no foresight", "one round", "one round, no foresight", "first algorithms", "more rounds")


def memory_table(rows: list[Row]) -> str:
    """Figure 6 in numbers."""
    sizes = [
        [
            row["network"],
            row["batch"],
            *(f"{row[key] / 1e9:.3f}" for key in ("everything", "peak", "least")),
            f"{row['everything'] / row['least']:.0f}",
            f"{row['everything'] / (row['least'] - row['weights']):.0f}",
            *(f"{row[key] / 1e9:.3f}" for key in ("vdnn", "vdnn_plus")),
        ]
        for row in rows
    ]
    head = ["network", "batch", "ideal case (GB)", "plain run", "moDNN, eq. (2)", "reduction"]
    head += ["without gradients of weights", "vDNN needs", "vDNN+ needs"]
    return table(head, sizes)


def gpus_table(rows: list[Row]) -> str:
    """Figure 9 in numbers."""
    gpus = [
        [
            row["network"],
            f"{row['link'] / 1e9:g}",
            *(f"{row[key]:.3f}" for key in ("ideal", "one", "two", "exchange")),
            f"{row['one'] / (row['two'] + row['exchange']):.2f}",
            f"{row['ideal'] / (row['two'] + row['exchange']):.2f}",
        ]
        for row in rows
    ]
    return table(["network", "GB/s", "ideal", "one", "two", "exchange", "faster than one", "than ideal"], gpus)


def main_table(rows: list[Row]) -> str:
    """Figure 7 in numbers."""
    cells = []
    for row in rows:
        if row["time"] is None:
            cells.append([row["network"], row["planner"], *["-"] * 7])
            continue
        cells.append(
            [
                row["network"],
                row["planner"] + (f" ({row['moved']})" if row["moved"] else ""),
                f"{row['time']:.3f}",
                percent(row["time"] / row["ideal"] - 1, 1),
                percent(row["compute"] / row["ideal"] - 1, 1),
                percent((row["time"] - row["compute"]) / row["ideal"], 1),
                f"{row['bytes_out'] / 1e9:.1f}",
                row["rounds"],
                f"{row['peak'] / 1e9:.2f}",
            ]
        )
    head = ["network", "planner", "seconds", "overhead", "of it algorithms and sub-batches", "waiting", "GB out"]
    return table([*head, "rounds", "peak (GB)"], cells)


def moving(rows: list[Row]) -> int:
    """Plans that transfer something."""
    return sum(bool(row["time"] and row["bytes_out"]) for row in rows)


def transfers(parts: Parts) -> str:
    """How many networks move anything in the memory of the paper."""
    own = [row for row in parts["main"] if row["planner"] == "moDNN"]
    return f"In 12 GiB moDNN transfers something for {moving(own)} of {len(own)} networks."


def ratio_table(rows: list[Row], names: tuple[str, ...], first: str, cell: dict[str, float]) -> str:
    """Time over ideal, a row per point; `cell` is the unit of each key that names the point."""
    cells = [
        [
            row["network"],
            *(f"{row[key] / unit:.3g}" for key, unit in cell.items()),
            *("-" if row[name] is None else f"{row[name] / row['ideal']:.3f}" for name in names),
        ]
        for row in rows
    ]
    return table([*first.split("; "), *names], cells)


def falls(rows: list[Row], name: str) -> str:
    """How often more memory is slower."""
    worse = steps = 0
    for network in dict.fromkeys(row["network"] for row in rows):
        own = sorted((r for r in rows if r["network"] == network and r[name]), key=lambda row: row["memory"])
        worse += sum(b[name] > a[name] * (1 + SAME) for a, b in pairwise(own))
        steps += len(own) - 1
    return f"{worse} of {steps}"


def foresight(rows: list[Row]) -> str:
    """Where it helps, and where it does harm."""
    pairs = [(row["moDNN"], row["no foresight"]) for row in rows if row["moDNN"]]
    pairs += [(row["one round"], row["one round, no foresight"]) for row in rows if row["one round"]]
    helps, harms = (sum(a * (1 + SAME) < b for a, b in found) for found in (pairs, [(b, a) for a, b in pairs]))
    return f"Foresight is a heuristic: it makes {helps} of {len(pairs)} plans faster and {harms} slower."


def report(parts: Parts, drawn: list[tuple[str, str, str]], environment: Row) -> str:
    """Claims, tables, pictures."""
    budgets, links = parts["budgets"], parts["links"]
    sections = [
        "# moDNN, DATE 2018",
        "Chen, Chen, Hu: moDNN: Memory Optimal DNN Training on GPUs. Written by `python -m bench.papers.modnn2018` "
        "for the paper's networks and batches, by formula on a K40m. Unless said otherwise, the link has 10 GB/s and "
        "is not duplex. Every plan is simulated, and checked by `memsched.validate`. The ideal time is the sum of "
        "all ops at the full batch with their fastest algorithms. points.json beside the pictures has every number.",
        environment_line(environment) + " No figure below depends on the machine.",
        "What differs from the paper: times come from formulas, not from measurements (docs/profiles.md), and do not "
        "include costs of the runtime. The paper gives neither the speed of its link nor the layers of VGG-101 and "
        "FCN. moDNN has contiguous memory; for vDNN and vDNN+ only bytes are counted, which favours them. vDNN is "
        'the better of vDNN_all and vDNN_conv. `more rounds` is `modnn(rounds="search")`, an extension.',
        *claims_section(claims(parts)),
        "## Memory",
        memory_table(parts["memory"]),
        "## With 12 GiB",
        main_table(parts["main"]),
        "## With the least memory",
        f"{transfers(parts)} With the least memory of eq. (2), one sample a round, "
        f"{moving(parts['least'])} of {len(parts['least'])} do. As soon as two samples fit, a smaller batch takes less "
        "time than a transfer on most.",
        main_table(parts["least"]),
        "## Two GPUs",
        "Seconds; both GPUs have 12 GiB. The exchange sends the gradients of the weights over the bus, adds them and "
        "sends them back.",
        gpus_table(parts["gpus"]),
        "## What the parts of moDNN do",
        "Time relative to the ideal case. One round: the batch is not split. First algorithms: each op uses the one "
        "without workspace. With foresight a tensor is prefetched early only if all ops until its use still find "
        f"room, which a scan of the layout decides. {foresight(parts['ablation'])}",
        ratio_table(parts["ablation"], VARIANTS, "network; GiB", {"memory": GIB}),
        "## Time against memory",
        "More memory is not always faster. From one point to the next, moDNN gets slower on "
        f"{falls(budgets, 'moDNN')}, moDNN with more rounds on {falls(budgets, 'moDNN, more rounds')}, and vDNN+ on "
        f"{falls(budgets, 'vDNN+')}. Eq. (3) chooses the largest sub-batch whose ops fit, whatever that causes in "
        "transfers. With a little more memory it chooses fewer rounds, which may have to move what smaller "
        "sub-batches did not. Lines that leave the picture cost more.",
    ]
    sections += [f"### {title} (Figure: {number})\n\n![{title}](modnn2018/{file})" for file, title, number in drawn]
    sections += [
        "## Time over the ideal case by link",
        ratio_table(links, PLANNERS, "network; GiB; GB/s", {"memory": GIB, "link": 1e9}),
    ]
    return "\n\n".join(sections) + "\n"
