"""Steps whose plan updates the parameters, beside plain PyTorch and updates in hooks, at equal measured peaks.

python -m bench.updates               # docs/results/updates.md and updates.csv; resumes with --points FILE
python -m bench.updates --quick --out /tmp/updates
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench.common import RESULTS, Cache, Row, environment, environment_line, table
from bench.compiled import checkpointed
from bench.compiled_models import NETWORKS
from torch import nn

import memsched as ms
import memsched.torch as mt
from memsched.torch.meter import Meter
from memsched.torch.nests import tensors_of

ROUNDS = 7
WAYS = ("plain", "hooks", "hooks, every block checkpointed")
CLIPPED = ("plain", "every block checkpointed")
KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "clipped": {"max_norm": 1.0},
    "clipped, in two micro-batches": {"max_norm": 1.0, "accumulate": True},
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
}


class Keyed(nn.Module):
    """A network whose inputs have places instead of names, and whose result is its loss."""

    def __init__(self, inner: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.inner, self.names = inner, list(names)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        found = self.inner(**dict(zip(self.names, given, strict=True)))
        loss: torch.Tensor = found if isinstance(found, torch.Tensor) else found["loss"]
        return loss


def network(name: str) -> tuple[Keyed, tuple[torch.Tensor, ...]]:
    """With the batch of its inputs cut to one sample, where gradients and states are most of the memory."""
    torch.manual_seed(0)
    inputs = {key: value[:1] for key, value in NETWORKS[name].inputs().items()}
    return Keyed(NETWORKS[name].make().train(), list(inputs)), tuple(inputs.values())


def stepper(
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    make: Callable[[Any], torch.optim.Optimizer],
    hooks: bool,
    kind: str = "",
) -> tuple[Callable[[], None], Callable[[], list[torch.Tensor]]]:
    """What runs a step, and what gives the tensors that are there between steps."""
    options = KINDS[kind]
    learning = [one for one in model.parameters() if one.requires_grad]
    optimizers = [make([one]) for one in learning] if hooks else [make(learning)]
    if hooks:  # each update as soon as its gradient is there: three lines of PyTorch's tutorials

        def updated(parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        for one, optimizer in zip(learning, optimizers, strict=True):
            one.register_post_accumulate_grad_hook(lambda p, o=optimizer: updated(p, o))

    def step() -> None:
        for _ in range(2 if options.get("accumulate") else 1):
            model(*inputs).backward()
        if "max_norm" in options:
            nn.utils.clip_grad_norm_(learning, options["max_norm"])
        for one in () if hooks else optimizers:
            one.step()
            one.zero_grad()

    def held() -> list[torch.Tensor]:
        states = [one for optimizer in optimizers for one in tensors_of(dict(optimizer.state))]
        return [*model.parameters(), *model.buffers(), *inputs, *states]

    return step, held


def counted(step: Callable[[], None], held: Callable[[], list[torch.Tensor]]) -> int:
    """The most bytes that are there at a time in a steady step."""
    step()
    with Meter() as meter:
        meter.count(held())
        step()
    return meter.peak


def planned(name: str, make: Any, budget: Any, kind: str) -> mt.StepPlan | None:
    model, inputs = network(name)
    options: Any = {
        **KINDS[kind],
        "bandwidth": 0,
        "optimizer": make(model.parameters()),
        "update": True,
        "planner": "selective",
    }
    try:
        return mt.plan_step(model, inputs, budget=budget, **options)
    except ms.InfeasibleError:
        return None


def taken(plan: mt.StepPlan, inputs: Sequence[torch.Tensor]) -> Callable[[], None]:
    """What runs a planned step."""

    def step() -> None:
        if plan.waiting is not None:
            plan.accumulate(*inputs)
        plan.step(*inputs)

    return step


def measured(name: str, optimizer: str, kind: str = "") -> Row:
    """Peaks, and CPU times in turn as shares of the plain step's."""
    make, ways = OPTIMIZERS[optimizer], CLIPPED if kind else WAYS
    runs: dict[str, Callable[[], Any]] = {}
    peaks: dict[str, int] = {}
    for way in ways:
        model, inputs = network(name)
        if "checkpointed" in way:
            checkpointed(model, NETWORKS[name].blocks(model.inner), 1)
        runs[way], held = stepper(model, inputs, make, "hooks" in way, kind)
        peaks[way] = counted(runs[way], held)
    differs = ""
    for way, budget in (("ours, everything kept", "100%"), *((f"ours at {one}", peaks[one]) for one in ways[1:])):
        plan = planned(name, make, budget, kind)
        if plan is None:
            continue
        _, inputs = network(name)
        verified = plan.verify(*inputs)
        differs = differs or verified.reordered or ""
        peaks[way] = verified.peak_memory
        runs[way] = taken(plan, inputs)
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(ROUNDS + 1):
        for way, run in runs.items():
            began = time.thread_time()
            run()
            seconds[way].append(time.thread_time() - began)
    shares = {
        way: statistics.median(a / b for a, b in zip(each[1:], seconds["plain"][1:], strict=True))
        for way, each in seconds.items()
    }
    row = {"network": name, "optimizer": optimizer, "peaks": peaks, "shares": shares, "differs": differs}
    return {**row, "kind": kind} if kind else row


def page(rows: Sequence[Row]) -> str:
    """The results in words and tables."""
    each = {kind: [row for row in rows if row.get("kind", "") == kind] for kind in KINDS}
    lines = [
        "# Updates as a part of the step",
        "",
        "Training steps at batch 1, on a CPU with one thread, without a link. *Plain*: forward, backward, then the "
        "optimiser. *Hooks*: one optimiser a parameter, which steps in a hook of its gradient: three lines of PyTorch. "
        "*Ours*: `memsched.torch.plan_step(.., update=True)`, with everything kept, and for the peaks that hooks were "
        "measured to have, with and without every block checkpointed.",
        "",
        "Peaks are those of a steady step, counted operation by operation, of all that it has: parameters, states, "
        "inputs, gradients, activations and workspaces. They are shares of the plain step's, before the slash. Behind "
        f"it is CPU time, the median of {ROUNDS} rounds in turn, as a share of the plain step's. Every plan was "
        "verified: loss, parameters and states after a step were compared with plain PyTorch's.",
        "",
        *summary(each[""], WAYS),
        "",
        *results(each[""], WAYS),
        "",
        *differing(each[""]),
    ]
    for kind, some in list(each.items())[1:]:
        if some:
            lines += [
                f"## Gradients {kind}",
                "",
                "Hooks cannot clip by a common norm, as no gradient may be gone before the last is there. So *plain* "
                "is `clip_grad_norm_` between backward and update"
                + (", after two backwards" if "micro" in kind else "")
                + ", and three lines checkpoint every block of it.",
                "",
                *summary(some, CLIPPED),
                "",
                *results(some, CLIPPED),
                "",
                *differing(some),
            ]
    return "\n".join([*lines, environment_line(environment())]) + "\n"


def results(rows: Sequence[Row], plain: Sequence[str]) -> list[str]:
    """A table."""
    ways = [*plain[1:], "ours, everything kept", *(f"ours at {way}" for way in plain[1:])]

    def cell(row: Row, way: str) -> str:
        if way not in row["shares"]:
            return "no plan"
        return f"{row['peaks'][way] / row['peaks']['plain']:.3f} / {row['shares'][way]:.2f}"

    cells = [
        [row["network"], row["optimizer"], f"{row['peaks']['plain'] / 1e6:.1f}", *(cell(row, way) for way in ways)]
        for row in rows
    ]
    return [table(["network", "optimiser", "plain, MB", *ways], cells)]


def summary(rows: Sequence[Row], ways: Sequence[str]) -> list[str]:
    """Means, and where it loses."""
    lines = []
    for way in ways[1:]:
        both = [row for row in rows if f"ours at {way}" in row["shares"]]
        ratios = [row["shares"][f"ours at {way}"] / row["shares"][way] for row in both]
        slower = [f"{row['network']} with {row['optimizer']}" for row, k in zip(both, ratios, strict=True) if k > 1]
        told = f"the plan takes {statistics.mean(ratios):.2f} of its CPU time on average ({min(ratios):.2f} to "
        told += f"{max(ratios):.2f})" if ratios else ""
        none = f"; there is no plan for {len(rows) - len(both)} of {len(rows)}" if len(both) < len(rows) else ""
        lines.append(f"* At the peak of *{way}* {told}{none}. Slower: {', '.join(slower) or 'nowhere'}.")
    kept = [row["peaks"]["ours, everything kept"] / row["peaks"]["plain"] for row in rows]
    lines.append(f"* With everything kept, a plan has {statistics.mean(kept):.3f} of the plain peak on average.")
    return lines


def differing(rows: Sequence[Row]) -> list[str]:
    """What has other bits than plain PyTorch."""
    told = [f"{row['network']} with {row['optimizer']} ({row['differs']})" for row in rows if row["differs"]]
    said = "AOTAutograd adds up in another order, with a plan or without, in: "
    return [said + ", ".join(dict.fromkeys(told)) + ". All others have the bits of plain PyTorch.", ""] if told else []


def write(rows: Sequence[Row], out: Path) -> None:
    """The page and the table."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "updates.md").write_text(page(rows), encoding="utf-8")
    with (out / "updates.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["network", "optimizer", "gradients", "way", "peak_bytes", "share_of_plain_time"])
        for row in rows:
            for way, share in row["shares"].items():
                kind = row.get("kind", "")
                writer.writerow([row["network"], row["optimizer"], kind, way, row["peaks"][way], f"{share:.4f}"])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="one network")
    parser.add_argument("--points", type=Path, help="kept points, to resume from")
    given = parser.parse_args()
    names = given.networks[:1] if given.quick else given.networks
    torch.set_num_threads(1)
    keyed = [(f"{n} {o}", lambda n=n, o=o: measured(n, o)) for n in names for o in OPTIMIZERS]
    keyed += [(f"{n} AdamW {k}", lambda n=n, k=k: measured(n, "AdamW", k)) for n in names for k in list(KINDS)[1:]]
    write(Cache(given.points).through(keyed, "updates"), given.out)


if __name__ == "__main__":
    main()
