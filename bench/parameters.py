"""Steps whose parameters travel, beside steps whose states alone do, and plain ones: the least memory and its time.

python -m bench.parameters               # docs/results/parameters.md and parameters.csv
python -m bench.parameters --quick --out /tmp/parameters
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from bench.common import RESULTS, Row, environment, environment_line, table
from bench.compiled_models import NETWORKS
from bench.updates import OPTIMIZERS, counted, network, stepper

import memsched as ms
import memsched.torch as mt

DEVICE = "h200"


def planned(name: str, budget: str | int, travel: bool) -> tuple[mt.StepPlan, tuple[torch.Tensor, ...]]:
    """A plan for a budget, or for the least that has one."""
    model, inputs = network(name)
    made = OPTIMIZERS["AdamW"](model.parameters())

    def within(budget: str | int) -> mt.StepPlan:
        return mt.plan_step(
            model, inputs, budget=budget, device=DEVICE, optimizer=made, update=True, offload_parameters=travel
        )

    try:
        return within(budget), inputs
    except ms.InfeasibleError as error:
        return within(error.min_memory), inputs


def measured(name: str) -> Row:
    """Bytes of a network: its weights, its plain step, and what the plans were counted to hold; and their periods."""
    model, _ = network(name)
    row: Row = {"network": name, "weights": sum(one.nbytes for one in model.parameters())}
    _, inputs = network(name)
    step, held = stepper(model, inputs, OPTIMIZERS["AdamW"], hooks=False)
    row["plain"] = counted(step, held)
    kept, _ = planned(name, "100%", travel=False)
    for what, travel in (("states", False), ("parameters", True)):
        plan, inputs = planned(name, "0%", travel)
        row[what] = plan.verify(*inputs).peak_memory
        row[f"{what} period"] = plan.result.makespan / kept.result.makespan
        row[f"{what} gap"] = plan.result.gap
        if what == "states":
            least = plan.result.schedule.budget
    same, inputs = planned(name, least, travel=True)
    same.verify(*inputs)
    row["same period"] = same.result.makespan / kept.result.makespan
    return row


def page(rows: Sequence[Row]) -> str:
    """The results in words and a table."""
    shares = [row["parameters"] / row["weights"] for row in rows]
    less = [1 - row["parameters"] / row["states"] for row in rows]
    faster = [1 - row["same period"] / row["states period"] for row in rows]
    cells = [
        [
            row["network"],
            *(f"{row[key] / 1e6:.1f}" for key in ("weights", "plain", "states", "parameters")),
            f"{row['parameters'] / row['weights']:.2f}",
            *(f"{row[key]:.2f}" for key in ("states period", "same period", "parameters period")),
        ]
        for row in rows
    ]
    heads = ["network", "weights", "plain", "states travel", "parameters too", "of the weights"]
    heads += ["period, states", "parameters too, same budget", "parameters too, least"]
    lines = [
        "# Parameters that travel",
        "",
        "Training steps with AdamW at batch 1, planned by `memsched.torch.plan_step(.., update=True)` for the least "
        "budget that has a plan: where only states travel, and with `offload_parameters=True`. Bytes are in MB. "
        "*Plain* is forward, backward and update as PyTorch runs them. All bytes are those of a steady step, counted "
        "operation by operation as it ran on a CPU. Each plan was verified: loss, parameters and states after a step "
        f"were compared with plain PyTorch's. Periods are modelled for an {DEVICE.upper()}, in units of the plan that "
        "keeps everything. These networks are small, and their operations take little more than their launches, "
        "beside which transfers are short. With larger weights transfers weigh more; what the plan of a model takes, "
        "`memsched.torch.fit` tells. FSDP2's `CPUOffloadPolicy`, which moves parameters block by block and updates "
        "them on the host, was not compared: less crosses the link there.",
        "",
        f"* The least memory is {statistics.mean(shares):.2f} of the weights alone on average ({min(shares):.2f} to "
        f"{max(shares):.2f}), and {statistics.mean(less):.0%} less than where only states travel ({min(less):.0%} to "
        f"{max(less):.0%}).",
        f"* In the least budget of plans whose states alone travel, plans whose parameters may travel too take "
        f"{statistics.mean(faster):.0%} less time on average ({min(faster):.0%} to {max(faster):.0%}).",
        "",
        table(heads, cells),
        "",
        environment_line(environment()),
    ]
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], out: Path) -> None:
    """The page and the table."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "parameters.md").write_text(page(rows), encoding="utf-8")
    with (out / "parameters.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[key.replace(" ", "_") for key in rows[0]])
        writer.writeheader()
        writer.writerows({key.replace(" ", "_"): value for key, value in row.items()} for row in rows)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="one small network")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = ["tiny"] if given.quick else list(NETWORKS)
    rows = []
    for name in names:
        rows.append(measured(name))
        print(rows[-1], flush=True)
    write(rows, given.out)


if __name__ == "__main__":
    main()
