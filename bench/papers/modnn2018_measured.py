"""moDNN's choice of convolution algorithms among those of this CPU, measured on captured training steps.

python -m bench.papers.modnn2018_measured                 # about five minutes; needs torch and torchvision
python -m bench.papers.modnn2018_measured --quick --out /tmp/modnn2018_measured
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import torch
from bench.common import Row, environment_line, table
from bench.papers.page import Drawn, Parts, arguments, publish

import memsched as ms
from memsched.torch import algorithms, zoo

NETWORKS = {
    "torchvision:vgg11": "8x3x112x112",
    "torchvision:resnet18": "16x3x112x112",
    "torchvision:resnet50": "8x3x112x112",
    "torchvision:densenet121": "8x3x112x112",
    "torchvision:mobilenet_v2": "16x3x112x112",
}
SMALL = {"torchvision:resnet18": "4x3x64x64"}
SHARES = (0, 10, 25, 50, 100)  # percent of the way from the least memory with a choice to the plain run's peak
LINK = 12.2e9
WAYS = ("default", "gemm", "by sample")


def alone(graph: ms.Graph) -> ms.Graph:
    """The same step with what PyTorch runs, and no choice."""
    document = graph.to_json()
    for op in document["ops"]:
        op["choices"] = op["choices"][:1]
    return ms.Graph.from_json(document)


def convolutions(graph: ms.Graph) -> dict[str, list[dict[str, float]]]:
    """The algorithms of each convolution, by op."""
    return {op["name"]: op["choices"] for op in graph.ops if len(op["choices"]) > 1}


def facts(network: str, size: str, graph: ms.Graph) -> Row:
    """What was measured of a network."""
    found = convolutions(graph)
    row: Row = {"network": network, "input": size, "convolutions": len(found)}
    for way in WAYS:
        own = [one for choices in found.values() for one in choices if one["alg"] == way]
        row |= {f"{way} seconds": sum(one["time"] for one in own), f"{way} most": max(one["workspace"] for one in own)}
    fastest = Counter(min(choices, key=lambda one: one["time"])["alg"] for choices in found.values())
    leanest = Counter(min(choices, key=lambda one: one["workspace"])["alg"] for choices in found.values())
    row |= {f"{way} fastest": fastest[way] for way in WAYS} | {f"{way} leanest": leanest[way] for way in WAYS}
    return row | {"fastest seconds": sum(min(one["time"] for one in choices) for choices in found.values())}


def plans(network: str, graph: ms.Graph) -> list[Row]:
    """moDNN with the choice, and with the default alone, at several memories."""
    default, found = alone(graph), convolutions(graph)
    least, most = ms.min_memory(graph, "modnn"), ms.peak_memory(default)
    rows = []
    for share in SHARES:
        memory = int(least + share / 100 * (most - least))
        row: Row = {"network": network, "share": share, "memory": memory, "default": None}
        chosen = ms.modnn(graph, memory, LINK)
        ms.validate(chosen)  # which raises
        used = Counter(step.get("alg") for step in chosen.schedule.steps if step.get("run") in found)
        row |= {"choice": chosen.makespan} | {f"{way} used": used[way] for way in WAYS}
        if memory >= ms.min_memory(default, "modnn"):
            row["default"] = ms.modnn(default, memory, LINK).makespan
        rows.append(row)
    return rows


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All rows; one network after the other, on one thread."""
    torch.set_num_threads(1)
    parts: Parts = {"facts": [], "plans": []}
    for network, size in (SMALL if given.quick else NETWORKS).items():
        built = zoo.build(network, size)
        graph = algorithms(built.model.train(), built.args)
        parts["facts"].append(facts(network, size, graph))
        parts["plans"] += plans(network, graph)
        print(network, flush=True)
    return parts, {"torch": torch.__version__.partition("+")[0]}


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def report(parts: Parts, _: Drawn, environment: Row) -> str:
    """The Markdown of docs/results/modnn2018_measured.md."""
    fact_rows = [
        [
            row["network"],
            row["input"],
            row["convolutions"],
            *(f"{row[f'{way} seconds']:.3f}" for way in WAYS),
            f"{row['fastest seconds']:.3f}",
            *(megabytes(row[f"{way} most"]) for way in WAYS),
            "/".join(str(row[f"{way} fastest"]) for way in WAYS),
            "/".join(str(row[f"{way} leanest"]) for way in WAYS),
        ]
        for row in parts["facts"]
    ]
    plan_rows = [
        [
            row["network"],
            f"{row['share']} %",
            megabytes(row["memory"]),
            f"{row['choice']:.3f}",
            "none" if row["default"] is None else f"{row['default']:.3f}",
            "/".join(str(row[f"{way} used"]) for way in WAYS),
        ]
        for row in parts["plans"]
    ]
    both = [row["choice"] / row["default"] for row in parts["plans"] if row["default"] is not None]
    only = sum(row["default"] is None for row in parts["plans"])
    ratio = f"{sum(both) / len(both):.3f} on average, {min(both):.3f} to {max(both):.3f}" if both else "not known"
    order = "/".join(WAYS)
    sections = [
        "# moDNN's choice among measured algorithms",
        "Equation (5) of [moDNN](modnn2018.md) chooses among convolution algorithms by their seconds and workspaces. "
        "Here they are measured: `memsched.torch.algorithms` captures a training step and runs each convolution, "
        "forward and backward, by each algorithm that PyTorch offers on this CPU, on made-up values. Written by "
        "`python -m bench.papers.modnn2018_measured`; points.json has every number.",
        environment_line(environment) + f" torch {environment['torch']}, one thread.",
        "*default* is what PyTorch runs, mostly oneDNN; *gemm* unfolds the patches of all samples and multiplies; *by "
        "sample* is default, one sample after the other. Workspaces are what PyTorch's allocator gave and got back.",
        "## What was measured",
        f"Seconds and MB; counts are of convolutions, {order}.",
        table(
            [
                *("network", "input", "convolutions"),
                *(f"{way}, s" for way in WAYS),
                "fastest of each, s",
                *(f"{way}, largest workspace" for way in WAYS),
                *("fastest is", "least workspace has"),
            ],
            fact_rows,
        ),
        "## What moDNN makes of it",
        "Seconds of a step, at memories from the least with which moDNN has a plan to the peak of the plain run with "
        f"default workspaces; the link has {LINK / 1e9:g} GB/s. With the choice a step takes {ratio} of the time that "
        f"it takes with the default alone; at {only} of {len(parts['plans'])} memories the default alone has no plan.",
        table(["network", "share", "MB", "with the choice, s", "default alone, s", f"used: {order}"], plan_rows),
    ]
    return "\n\n".join(sections) + "\n"


def _no_pictures(_: Parts, folder: Path) -> Drawn:
    folder.mkdir(parents=True, exist_ok=True)
    return []


def main() -> None:
    """Measure, plan and write."""
    given = arguments("modnn2018_measured", __doc__).parse_args()
    publish("modnn2018_measured", given, measure, _no_pictures, report)


if __name__ == "__main__":
    main()
