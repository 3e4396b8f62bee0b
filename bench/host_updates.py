"""selective on whole training steps whose updates may run on the host, beside plans without it and beside flags.

python -m bench.host_updates             # docs/results/host_updates.md and host_updates.csv; resumes
python -m bench.host_updates --quick --out /tmp/host_updates
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
from bench.common import Row, environment, environment_line, table
from bench.whole_step import BUDGETS, TIGHT, graph_of, run
from bench.whole_step_flags import schedules

import memsched as ms

HOST = "100GB/s"  # that the host reads and writes while it updates
SHARES = (0, 2, 4, 7)  # budgets, in tenths of the way
MOVES = 20


class Step:
    """A step with and without updates on the host, and what flags make of it."""

    def __init__(self, graph: ms.Graph) -> None:
        self.alone, self.both = graph, ms.with_host_updates(graph, HOST)
        self.flags = schedules(self.both)
        self.ideal = sum(op["choices"][0]["time"] for op in graph.ops)
        self.bounded = {"plan_bound": self.alone, "plan_host_bound": self.both}

    def point(self, link: float, k: int, moves: int) -> Row:
        """A budget as in `bench.whole_step`: the best flags without and with the host, and a plan of each kind."""
        least = min(need for label, need, _ in self.flags if "host" not in label)
        device = ms.Device(least + (ms.peak_memory(self.alone) - least) * k // BUDGETS, link, duplex=True)
        row: Row = {"graph": self.alone.name, "link": link / 1e9, "budget": k, "memory": device.memory}
        row |= {"by_hand": math.inf, "by_hand_host": math.inf}
        for label, need, schedule in self.flags:
            if need <= device.memory:
                took = ms.simulate(self.both, schedule.with_budget(device.memory), device).makespan / self.ideal
                key = "by_hand_host" if "host" in label else "by_hand"
                if took < row[key]:
                    row |= {key: took, key + "_flags": label}
        for key, graph in (("plan", self.alone), ("plan_host", self.both)):
            began = time.process_time()
            try:
                found = ms.selective(graph, device=device, moves=moves)
                assert ms.validate(found).proven
                row |= {key: found.makespan / self.ideal, key + "_bound": found.lower_bound / self.ideal}
                row[key + "_updates"] = sum("update" in step for step in found.schedule.steps)
            except ms.InfeasibleError:
                row |= {key: math.inf, key + "_bound": math.nan, key + "_updates": 0}
            row[key + "_seconds"] = round(time.process_time() - began, 2)
        return row


def _made(name: str, folder: Path) -> Step:
    return Step(graph_of(name, folder))


def _percent(one: float, other: float) -> str:
    """How much less the first is, in percent; two that have no plan are equal."""
    return "" if math.isinf(other) else f"{100 * (1 - one / other):.1f}"


def report(rows: list[Row], moves: int) -> str:
    """The page."""
    both = [row for row in rows if math.isfinite(row["plan"])]
    tight = [row for row in both if row["budget"] < TIGHT]
    less, less_tight = ([1 - row["plan_host"] / row["plan"] for row in some] for some in (both, tight))
    hand = [1 - row["plan_host"] / min(row["by_hand"], row["by_hand_host"]) for row in rows]
    slower, lost = [one for one in less if one < -1e-9], [one for one in hand if one < -1e-9]
    middle, least, most = (f"{100 * found(less_tight):.1f}" for found in (np.median, min, max))
    text = [
        "# Updates on the host",
        "",
        f"`ms.selective` with {moves} moves on {len({row['graph'] for row in rows})} captured training steps in "
        "bfloat16 with AdamW, one update for each parameter, as on [the page of whole steps](whole_step.md). Here "
        f"`ms.with_host_updates(graph, {HOST!r})` says that each update may run on the host, in the time to read and "
        f"write its bytes at {HOST}. That figure is an assumption, not a measurement. Plans are simulated, and no GPU "
        "has run them; `memsched.torch.plan_step(.., update_on_host=True)` would. Every plan was validated.",
        "",
        "By hand: the best of sixteen combinations of flags (checkpoints, activations on the host, states on the host, "
        "early updates), and of four more whose updates all run on the host as soon as their gradients are there, with "
        "checkpoints and activations on the host or not. Budgets are tenths of the way from the least that a "
        "combination without the host needs (0) to the peak of the plain run; the tighter half are those below "
        f"{TIGHT}. Times are those of a period, in units of the sum of all runs on the device, updates included.",
        "",
        f"With the host, plans take {100 * np.mean(less_tight):.1f} % less time on average in the tighter half "
        f"({middle} % in the median, {least} to {most} %), and {100 * np.mean(less):.1f} % less over all {len(both)} "
        f"points. They are slower at {len(slower)} of these. Beside the best flags, the host's included, they take "
        f"{100 * np.mean(hand):.1f} % less on average, and are slower at {len(lost)} of {len(rows)} points.",
        "",
    ]
    cells = []
    for row in rows:
        cells.append(
            [
                *(row["graph"].removesuffix("-bf16"), f"{row['link']:g}", str(row["budget"])),
                *(f"{row[key]:.2f}" for key in ("by_hand", "by_hand_host", "plan", "plan_host")),
                *(_percent(row["plan_host"], row["plan"]), str(row["plan_host_updates"])),
                f"{100 * (row['plan_host'] / row['plan_host_bound'] - 1):.0f}",
            ]
        )
    head = [
        *("step", "GB/s", "budget", "by hand", "by hand, host", "plan", "plan, host"),
        *("% less", "updates on the host", "% over bound"),
    ]
    text += [table(head, cells), "", environment_line(environment()), ""]
    return "\n".join(text)


if __name__ == "__main__":
    run("host_updates", _made, (SHARES, (1, 4)), MOVES, report)
