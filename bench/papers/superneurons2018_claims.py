"""What the abstract of SuperNeurons claims, against our figures."""

from __future__ import annotations

import math

from bench.papers.page import Parts
from bench.papers.verdict import Cases, Claim, Figure, Runs, Setting

PLAIN, PLANNED = "plain run", "SuperNeurons"


def claims(parts: Parts) -> list[Claim]:
    """Those of the abstract."""
    depths = {(row["batch"], row["way"]): row["depth"] for row in parts["depths"]}
    ratios = [
        depths[batch, PLANNED] / depths[batch, PLAIN]
        for batch, way in depths
        if way == PLANNED and depths[batch, PLAIN] and depths[batch, PLANNED]
    ]
    ours = Setting(
        algorithm="the plain run, which frees what nobody reads again, in place of four frameworks of that time",
        network="batch and stages are ours",
    )
    reached = [depth is not None and depth >= 2500 for (_, way), depth in depths.items() if way == PLANNED]
    low = [row["planned"] <= row["op"] for row in parts["peaks"]]
    return [
        Claim(
            text="Trains at least 3.2432 times deeper networks than the frameworks (abstract)",
            paper=">= 3.2432",
            setting=ours,
            evidence=(("", Figure(values=ratios, low=3.2432, high=math.inf, nothing=1.0)),),
            why="One case a batch.",
        ),
        Claim(
            text="Trains a residual network of 2500 layers on a K40c of 12 GB (abstract)",
            paper="runs",
            evidence=(("", Runs(expected=[True] * len(reached), found=reached)),),
            why="One case a batch; the abstract does not give one.",
        ),
        Claim(
            text="The peak of the network comes down to the most that one layer needs (abstract)",
            paper="the largest layer's",
            evidence=(("", Cases(holds=low, what="no more than what the largest op touches")),),
            why="With a host that is large enough. A layer here is an op, and resident bytes come on top.",
        ),
    ]
