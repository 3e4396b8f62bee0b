"""Selective on small captured training steps without a link, beside Checkmate's integer program.

python -m bench.selective_ilp    # docs/results/selective_ilp.md, a minute; needs the extras torch and ilp
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from bench.common import RESULTS, Row, environment, environment_line, table
from torch import nn

import memsched as ms
from memsched.torch.machines import machine
from memsched.torch.recorder.record import graph_all
from memsched.torch.roofline import Roofline

SHARES = (0.3, 0.5, 0.7)  # from the graph's least memory without recomputation to its peak
SECONDS, MOVES = 8.0, 1000


def perceptron(blocks: int, norm: bool) -> nn.Module:
    """Blocks of two matrix products."""
    norms = [nn.LayerNorm(256)] if norm else []
    pairs = (nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), *norms) for _ in range(blocks))
    return nn.Sequential(*pairs, nn.Linear(256, 1))


def convolutions(blocks: int) -> nn.Module:
    """Half the side and twice the channels each."""
    widths = [3, *(32 * 2**block for block in range(blocks))]
    layers = (
        (nn.Conv2d(before, after, 3, padding=1, stride=2), nn.BatchNorm2d(after), nn.ReLU())
        for before, after in pairwise(widths)
    )
    return nn.Sequential(*(nn.Sequential(*layer) for layer in layers))


MODELS = {
    "2 linear blocks": (perceptron(2, False), (4096, 256)),
    "3 linear blocks": (perceptron(3, False), (4096, 256)),
    "3 linear blocks with norms": (perceptron(3, True), (4096, 256)),
    "3 convolutions": (convolutions(3), (32, 3, 64, 64)),
    "4 convolutions": (convolutions(4), (32, 3, 64, 64)),
}


def points(name: str) -> list[Row]:
    """Overheads of both planners."""
    model, shape = MODELS[name]
    times = Roofline(machine("a100:pcie4")[0])
    options = {"loss": torch.sum, "times": times, "name": name, "reorderable": True, "repeatable": True}
    graph = graph_all(model, (torch.ones(shape),), **options).graph
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    found = []
    for share in SHARES:
        device = ms.Device(int(least + share * (peak - least)), 0.0)
        ideal = ms.bounds(graph, device=device, time_limit=0.0).compute
        exact = ms.checkmate(graph, device=device, time_limit=SECONDS)
        ours = ms.selective(graph, device=device, moves=MOVES)
        ratio = ours.makespan / exact.makespan - 1
        row = {"model": name, "ops": len(graph.ops), "share": share, "ended": exact.params["class_optimal"]}
        found.append(row | {"exact": exact.makespan / ideal - 1, "ours": ours.makespan / ideal - 1, "ratio": ratio})
    return found


def report(rows: list[Row]) -> str:
    """The page."""
    ended = [row for row in rows if row["ended"]]
    slower = [row for row in ended if row["ratio"] > 1e-7]  # the program itself is exact to one part in 10^7
    faster = sum(row["ratio"] < -1e-7 for row in ended)
    verdict = (
        f"Checkmate's program ended at {len(ended)} of {len(rows)} points. There `selective` is slower at {len(slower)}"
        f" (by {100 * max((row['ratio'] for row in slower), default=0.0):.2f} % at most) and faster, by another order "
        f"or other runs than the class has, at {faster}. Wanted: never slower, which is "
        f"{'**not met**' if slower else 'met'}."
    )
    cells = (
        [
            *(row["model"], row["ops"], row["share"], "yes" if row["ended"] else "no"),
            *(f"{100 * row[key]:.3f}" for key in ("exact", "ours", "ratio")),
        ]
        for row in rows
    )
    header = ["model", "ops", "share", "ended", "checkmate", "selective", "selective over checkmate"]
    title = "# Selective beside Checkmate's integer program\n\nWritten by `python -m bench.selective_ilp`. "
    intro = (
        "Training steps of small models, captured in float32 without an optimiser, no link; memory is the graph's "
        f"least without recomputation plus a share of the way to its peak. `ms.checkmate` had {SECONDS:g} s, "
        f"`ms.selective` {MOVES} moves. Percent over the ideal time."
    )
    return "\n\n".join((title + environment_line(environment()), intro, verdict, table(header, cells))) + "\n"


def main() -> None:
    """Plan all points, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of selective_ilp.md")
    given = parser.parse_args()
    rows = [row for name in MODELS for row in points(name)]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "selective_ilp.md").write_text(report(rows), encoding="utf-8")
    print(f"wrote {given.out / 'selective_ilp.md'}")


if __name__ == "__main__":
    main()
