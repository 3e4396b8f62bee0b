"""What the benchmark scripts share: where and when they ran, memory limits, a cache to resume from, Markdown tables."""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import memsched as ms

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"

Row = dict[str, Any]
T = TypeVar("T")


def environment() -> Row:
    """Date, machine in words, how many processes wanted its cores in the last minute, and versions."""
    model = platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "memsched": ms.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def environment_line(found: Row) -> str:
    """The environment as one sentence; older points do not know the load."""
    load = f" (load average {found['load']:g} at the end)" if "load" in found else ""
    return (
        f"Measured on {found['date']} on {found['cores']} cores ({found['cpu']}) shared with other work{load}; "
        f"memsched {found['memsched']}, Python {found['python']}, numpy {found['numpy']}."
    )


def budget(chain: ms.Chain, percent: float, planner: str | None = None) -> int:
    """`percent` of the way from the least memory (the planner's own, where one is named) to the peak, in bytes."""
    low, high = ms.min_memory(chain, planner), ms.peak_memory(chain)
    return int(low + percent / 100 * (high - low))


def bandwidth(chain: ms.Chain) -> float:
    """The link that the profile was made for, bytes per second."""
    return float((chain.provenance or {})["link_bandwidth"])


class Cache:
    """Rows by key in a file of JSON lines, so that an interrupted run resumes."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.rows[entry["key"]] = entry["row"]

    def add(self, key: str, row: Row) -> None:
        """Keep a row, on disk at once."""
        self.rows[key] = row
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "row": row}) + "\n")

    def through(self, keyed: Iterable[tuple[str, Callable[[], Row]]], label: str) -> list[Row]:
        """The rows of all keys in order, computing those that are missing, with a line of progress now and then."""
        work, told = list(keyed), time.monotonic()
        found = []
        for count, (key, compute) in enumerate(work, 1):
            if key not in self.rows:
                self.add(key, compute())
            found.append(self.rows[key])
            if time.monotonic() - told > 20 or count == len(work):
                told = time.monotonic()
                print(f"{label}: {count} of {len(work)}", flush=True)
        return found


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def best_of(work: Sequence[Callable[[], Any]], *, seconds: float = 0.3, least: int = 3) -> list[float]:
    """Least CPU seconds of each piece of work, run in turn at least `least` times, then until `seconds` are over."""
    best = [float("inf")] * len(work)
    began = time.perf_counter()
    rounds = 0
    while rounds < least or time.perf_counter() - began < seconds:
        rounds += 1
        for index, run in enumerate(work):
            best[index] = min(best[index], timed(run)[0])
    return best


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of a run, and what it returns.

    CPU time, for on a shared machine wall time says more about the neighbours, and most of all for long work. What is
    over before the clock goes on, which on some systems it does a hundred times a second, runs as often as it takes.
    """
    times = 1
    while True:
        began = time.thread_time()
        for _ in range(times):
            result = run()
        spent = time.thread_time() - began
        if spent >= 10 * _tick():
            return spent / times, result
        times *= 2


@cache
def _tick() -> float:
    """Seconds by which the clock of a thread goes on at least."""
    began = time.thread_time()
    while (ended := time.thread_time()) == began:
        pass
    return ended - began
