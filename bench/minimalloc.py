"""Measure placement, on MiniMalloc's challenging instances and on large plans; write docs/results/placement.{md,json}.

python -m bench.minimalloc FOLDER --minimalloc build/minimalloc   # FOLDER has its *.CAPACITY.csv; both in one run

MiniMalloc is https://github.com/google/minimalloc; its instances are in benchmarks/challenging.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.common import RESULTS, Row, environment, environment_line, table

import memsched as ms

SCALE = (500, 1000, 2000, 5000, 10_000, 18_700, 40_000)
VALIDATED = 5000  # buffers up to which large plans are checked too: the checker is naive
PATIENCE = 300.0  # seconds for one run of the other


def cpu_of(work: Callable[[], object], *, children: bool = False) -> float:
    """Seconds of processor time, of this process or of those that it waits for."""

    def spent() -> float:
        now = os.times()
        return now.children_user + now.children_system if children else now.user + now.system

    before = time.process_time() if not children else spent()
    work()
    return (time.process_time() if not children else spent()) - before


def reference(binary: Path, file: Path, capacity: int) -> float:
    """CPU seconds of MiniMalloc, its start and its reading and writing included; checks what it finds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.csv"
        command = [str(binary), f"--capacity={capacity}", f"--input={file}", f"--output={out}"]
        seconds = cpu_of(
            lambda: subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE), children=True
        )
        ms.validate_placement(ms.read_buffers(file), [b.offset or 0 for b in ms.read_buffers(out)], capacity)
    return seconds


def challenge(file: Path, binary: Path | None, repeats: int) -> Row:
    """One instance: both in turns, at the capacity that the file's name says."""
    capacity = int(file.stem.rpartition(".")[2])
    buffers = ms.read_buffers(file)
    ours, wall, theirs = [], [], []
    for _ in range(repeats):
        if binary is not None:
            theirs.append(reference(binary, file, capacity))
        begin = time.perf_counter()
        ours.append(cpu_of(lambda: ms.place(buffers, capacity, time_limit=None)))
        wall.append(time.perf_counter() - begin)
    placement = ms.place(buffers, capacity, time_limit=None)
    ms.validate_placement(buffers, placement.offsets, capacity)
    least = ms.place(buffers, time_limit=10.0)
    ms.validate_placement(buffers, least.offsets)
    return {
        "name": file.stem.partition(".")[0],
        "buffers": len(buffers),
        "capacity": capacity,
        "load": placement.load,
        "ours": ours,
        "ours_wall": wall,
        "theirs": theirs,
        "least": least.height,
        "bound": least.lower_bound,
        "least_seconds": least.runtime,
    }


def training_step(count: int, seed: int) -> list[ms.Buffer]:
    """About `count` buffers as in a training step: activations, their gradients, weight gradients and scratch.

    Sizes are log-normal multiples of 512 bytes; a fifth of the activations has a second life, short or long.
    """
    chance = random.Random(seed)
    ops = count // 4
    end = 2 * ops

    def size(scale: float) -> int:
        return 512 * max(1, round(scale * chance.lognormvariate(0, 1.5)))

    buffers = []
    for k in range(ops):
        bytes_of_k = size(1000)
        buffers.append(ms.Buffer(k, end - k, bytes_of_k))
        buffers.append(ms.Buffer(end - k - 1, end - k + 1, bytes_of_k))
        buffers.append(ms.Buffer(end - k - 1, min(end, end - k + chance.randrange(1, 40)), size(300)))
        where = chance.randrange(end)
        life = chance.choice((1, 2, 5, 50))
        buffers.append(ms.Buffer(where, min(end, where + life), size(500)))
    return buffers


def uniform(count: int, seed: int) -> list[ms.Buffer]:
    """Lifetimes and sizes without any structure; about 60 alive at once."""
    chance = random.Random(seed)
    buffers = []
    for _ in range(count):
        start = chance.randrange(count)
        buffers.append(ms.Buffer(start, start + chance.randrange(1, 120), 512 * chance.randrange(1, 2000)))
    return buffers


def grow(kind: str, make: Callable[[int, int], list[ms.Buffer]], count: int, seeds: int) -> Row:
    greedy, gaps, after = [], [], []
    for seed in range(seeds):
        buffers = make(count, seed)
        placement = ms.place(buffers, method="greedy", time_limit=1.0)
        if count <= VALIDATED:
            ms.validate_placement(buffers, placement.offsets)
        greedy.append(placement.runtime)
        gaps.append(placement.gap)
        better = ms.place(buffers, time_limit=1.0)
        if count <= VALIDATED:
            ms.validate_placement(buffers, better.offsets)
        after.append(better.gap)
    return {"kind": kind, "buffers": count, "greedy": greedy, "gap": gaps, "searched": after}


def report(rows: list[Row], grown: list[Row], found: Row) -> str:
    def challenge_line(row: Row) -> tuple[object, ...]:
        ours = min(row["ours"])
        theirs = min(row["theirs"]) if row["theirs"] else None
        best = f"{row['least']}" + ("" if row["least"] == row["bound"] else f", not below {row['bound']}")
        return (
            row["name"],
            row["buffers"],
            row["load"],
            f"{1e3 * ours:.1f} ms",
            f"{1e3 * statistics.median(row['ours']):.1f} ms",
            "-" if theirs is None else f"{theirs:.2f} s",
            "-" if theirs is None else f"{statistics.median(row['theirs']):.2f} s",
            "-" if theirs is None else f"{theirs / ours:.0f}",
            best,
            f"{row['least_seconds']:.2f} s",
        )

    def grown_line(row: Row) -> tuple[object, ...]:
        return (
            row["kind"],
            row["buffers"],
            f"{max(row['greedy']):.2f} s",
            f"{100 * max(row['gap']):.2f} %",
            f"{100 * max(row['searched']):.2f} %",
        )

    both = [row for row in rows if row["theirs"]]
    lines = [
        "# Placement",
        "",
        "Written by `python -m bench.minimalloc`; placement.json beside it has every point. " + environment_line(found),
        "",
        "## MiniMalloc's challenging instances",
        "",
        "Seconds of processor time to find a placement within the capacity of 1048576 bytes, on one thread; best and "
        "median of several runs, the two taking turns. MiniMalloc's time is that of the whole command, ours that of "
        "the call. All placements passed `validate_placement`. The search's orders for breaking ties were tuned on "
        "these instances. The last two columns are a run without a capacity, limited to 10 s.",
        "",
        table(
            ("instance", "buffers", "load", "ours", "median", "MiniMalloc", "median", "ratio", "least height", "in"),
            [challenge_line(row) for row in rows],
        ),
        "",
    ]
    if both:
        ratios = [min(row["theirs"]) / min(row["ours"]) for row in both]
        sums = [sum(min(row[key]) for row in both) for key in ("theirs", "ours")]
        lines += [f"In all {sums[0]:.1f} s and {sums[1]:.2f} s; the least ratio is {min(ratios):.0f}.", ""]
    lines += [
        "## Large plans",
        "",
        'Seconds of wall time of `method="greedy"` with a limit of 1 s, how far above the lower bound it is, and '
        'how far `method="search"` is after 1 s; the worst of several random lists.',
        "",
        table(("lifetimes", "buffers", "greedy", "above the bound", "search, 1 s"), [grown_line(row) for row in grown]),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minimalloc", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=int, nargs="*", default=SCALE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = [challenge(file, options.minimalloc, options.repeats) for file in sorted(options.folder.glob("*.csv"))]
    grown = [grow("training step", training_step, count, 3) for count in options.scale]
    grown += [grow("no structure", uniform, count, 3) for count in options.scale]
    found = environment()
    text = report(rows, grown, found)
    print(text)
    document = {"environment": found, "challenging": rows, "large": grown}
    (options.out / "placement.md").write_text(text, encoding="utf-8")
    (options.out / "placement.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
