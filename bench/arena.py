"""Training steps in an arena, beside PyTorch's own allocators: what is reserved, and how long a step takes.

python -m bench.arena               # docs/results/arena.md and arena.csv; resumes with --points FILE
python -m bench.arena --quick --out /tmp/arena
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from bench.common import RESULTS, Cache, Row, environment, environment_line, table
from bench.compiled_models import NETWORKS as COMPILED
from bench.compiled_models import Network, WithLoss, images
from bench.papers.olla2022_allocator import CachingAllocator
from bench.updates import OPTIMIZERS, Keyed
from torch import nn

import memsched as ms
import memsched.torch as mt
from memsched.torch import zoo

ROUNDS, REPEATS, MOST = 9, 4, 10
LIMIT = 10.0  # seconds of a plan
LARGER = 64  # times, to be as large as steps on a GPU
BATCHES = {"one sample": 1, "a batch": None}


def _densenet() -> nn.Module:
    return WithLoss(zoo.torchvision().models.DenseNet(16, (4, 8, 12, 8), 32, num_classes=100))


NETWORKS = COMPILED | {"densenet": Network(make=_densenet, inputs=images(8, 64, 100), blocks=lambda model: [])}
WAYS = ("plain PyTorch", "planned, 60 %")


def step_of(name: str, make: Callable[..., torch.optim.Optimizer], batch: int | None, way: str) -> Callable[[], None]:
    """A training step with its updates."""
    torch.manual_seed(0)
    inputs = {key: value[:batch] for key, value in NETWORKS[name].inputs().items()}
    model, given = Keyed(NETWORKS[name].make().train(), list(inputs)), tuple(inputs.values())
    optimizer = make(model.parameters())

    def plain() -> None:
        model(*given).backward()

    forward_and_backward: Callable[[], object] = plain
    if way != WAYS[0]:
        plan = mt.plan_step(model, given, budget="60%", bandwidth=0, optimizer=optimizer, time_limit=LIMIT)

        def forward_and_backward() -> object:
            return plan.step(*given)

    def step() -> None:
        optimizer.zero_grad()
        forward_and_backward()
        optimizer.step()

    return step


def reserved(placement: ms.Placement, *, expandable: bool) -> int:
    """Bytes that PyTorch's allocator for CUDA would have, were these requests those of a GPU and LARGER.

    The step is repeated; what is alive from one into the next is given back there.
    """
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    size = {one.name: one.size for one in placement.buffers}
    for one in placement.buffers:
        times[one.name or ""].append((one.start, one.end))
    last = max(end for spans in times.values() for _, end in spans)
    events = []
    for name, spans in times.items():
        start = max(start for start, _ in spans)
        end = min(end for start, end in spans) if len(spans) > 1 else spans[0][1]
        events += [(start, 1, name), (end, 0, name)]
    allocator, held = CachingAllocator(expandable=expandable), dict[str, object]()
    for _ in range(REPEATS):
        for when, asked, name in sorted(events):
            if asked:
                held[name] = allocator.malloc(LARGER * size[name])
            elif name in held:
                allocator.free(held.pop(name))
            assert when <= last
    return allocator.reserved // LARGER


def measured(name: str, optimizer: str, batch: str, way: str) -> Row:
    """One step, with and without an arena in turn."""
    step = step_of(name, OPTIMIZERS[optimizer], BATCHES[batch], way)
    arena = mt.Arena(time_limit=10)
    for _ in range(MOST):
        with arena:
            step()
        if arena.placement is not None:
            break
    row: Row = {"network": name, "optimizer": optimizer, "batch": batch, "way": way}
    if arena.placement is None:
        return {**row, "height": 0}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    faults: dict[bool, list[int]] = {False: [], True: []}
    for _ in range(ROUNDS + 1):
        for served in (False, True):
            before, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.thread_time()
            if served:
                with arena:
                    step()
            else:
                step()
            seconds[served].append(time.thread_time() - began)
            faults[served].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    counts, placement = arena.counts, arena.placement
    assert counts is not None
    return row | {
        "requests": counts.calls,
        "planned": counts.planned[0],
        "otherwise": counts.strange[0] + counts.blocked[0],
        "height": placement.height,
        "load": placement.load,
        "optimal": placement.optimal,
        "placing": placement.runtime,
        "caching": reserved(placement, expandable=False),
        "expandable": reserved(placement, expandable=True),
        "seconds": statistics.median(seconds[False][1:]),
        "share": statistics.median(b / a for a, b in zip(seconds[False][1:], seconds[True][1:], strict=True)),
        "faults": statistics.median(faults[False][1:]),
        "faults served": statistics.median(faults[True][1:]),
    }


def page(rows: Sequence[Row]) -> str:
    """The results in words and a table."""
    placed = [row for row in rows if row["height"]]
    shares = [row["share"] for row in placed]
    whole = sum(row["height"] == row["load"] for row in placed)
    told = [
        f"{len(placed)} of {len(rows)} steps repeat, and are served. In {whole} of them the arena has exactly the "
        "bytes that are alive at the peak, so that nothing is lost; "
        f"{sum(row['optimal'] for row in placed)} are proven optimal.",
        f"A step takes {statistics.mean(shares):.3f} of its CPU time on average ({min(shares):.2f} to "
        f"{max(shares):.2f}); it is slower in {sum(share > 1 for share in shares)} of {len(shares)}.",
        f"PyTorch's allocator for CUDA, emulated on the same requests {LARGER} times as large, would have reserved "
        f"{statistics.mean(row['caching'] / row['height'] for row in placed):.3f} times as much on average (at most "
        f"{max(row['caching'] / row['height'] for row in placed):.3f}), and with expandable segments "
        f"{statistics.mean(row['expandable'] / row['height'] for row in placed):.3f} times (at most "
        f"{max(row['expandable'] / row['height'] for row in placed):.3f}).",
        f"Finding the addresses took {max(row['placing'] for row in placed):.2f} s at most.",
    ]
    lines = [
        "# Steps in an arena",
        "",
        "Training steps on a CPU with one thread, forward to update, which `memsched.torch.Arena` serves from one "
        "block of memory at planned addresses. *Planned* steps are those of `memsched.torch.plan_step` with 60 % of "
        "the plain peak, without a link. Every request of a step counts: tensors, and what kernels take from PyTorch's "
        f"allocator. CPU time is the median of {ROUNDS} rounds in turn, with the arena as a share of without; page "
        "faults are those of a step.",
        "",
        *(f"* {one}" for one in told),
        "",
        results(rows),
        "",
    ]
    return "\n".join([*lines, environment_line(environment())]) + "\n"


def results(rows: Sequence[Row]) -> str:
    """The table."""
    heads = ["network", "optimiser", "inputs", "step", "requests", "arena, MB", "lost", "emulated CUDA allocator", "ms"]
    cells = []
    for row in rows:
        cell = [row[key] for key in ("network", "optimizer", "batch", "way")]
        if not row["height"]:
            cells.append([*cell, "does not repeat", *["" for _ in heads[5:]], "", ""])
            continue
        loss = row["height"] - row["load"]
        others = f"{row['caching'] / row['height']:.3f}; expandable {row['expandable'] / row['height']:.3f}"
        cell += [str(row["requests"]), f"{row['height'] / 1e6:.1f}", f"{100 * loss / row['height']:.2f} %", others]
        cell += [
            f"{1e3 * row['seconds']:.0f}",
            f"{row['share']:.3f}",
            f"{row['faults']:.0f} / {row['faults served']:.0f}",
        ]
        cells.append(cell)
    return table([*heads, "time in the arena", "page faults without / with"], cells)


def write(rows: Sequence[Row], out: Path) -> None:
    """The page and the table."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "arena.md").write_text(page(rows), encoding="utf-8")
    with (out / "arena.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


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
    keyed = [
        (f"{name} {optimizer} {batch} {way}", lambda n=name, o=optimizer, b=batch, w=way: measured(n, o, b, w))
        for name in names
        for optimizer in OPTIMIZERS
        for batch in BATCHES
        for way in (WAYS if batch == "a batch" else WAYS[:1])
    ]
    write(Cache(given.points).through(keyed, "arena"), given.out)


if __name__ == "__main__":
    main()
