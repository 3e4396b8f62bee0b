"""The evaluation of Steiner et al., OLLA, 2022, on captured training steps: Figures 7 to 14 and the claims about them.

python -m bench.papers.olla2022                 # resumes from build/bench/olla2022.jsonl
python -m bench.papers.olla2022 --part shipped  # measures this anew, and keeps the other parts of the page
python -m bench.papers.olla2022 --quick --out /tmp/olla2022
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.common import Cache, Row, environment
from bench.papers.olla2022_allocator import largest_first, replay
from bench.papers.olla2022_arena import allocating
from bench.papers.olla2022_figures import pictures
from bench.papers.olla2022_graphs import BATCHES, NETWORKS, OPTIMIZERS, Captured, captured
from bench.papers.olla2022_orders import RULES, Flow, Lifetime
from bench.papers.olla2022_published import published
from bench.papers.olla2022_report import report
from bench.papers.page import Parts, arguments, points, publish

import memsched as ms

PARTS = ("orders", "addresses", "longer", "anytime", "ilp", "allocator", "published", "shipped")
ORDER_LIMIT, PLACE_LIMIT = 0.9, 1.9  # seconds, so that calls end within those of our goals, 1 and 2
LONG_LIMIT = 60.0  # for what is open after that
BRIEF = 0.5  # what takes less is timed three times
Case = tuple[str, int, str]  # network, batch, optimiser


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run, and for how many seconds.

    Attributes
    ----------
    cases : all captured steps
    ordered, solved, placed : those whose curves over time are drawn, for orders, for the ILP's and for addresses
    limits, ilp_limits : the time limits of these curves
    small, small_limit : those that the ILP tries to solve to the end, and its seconds
    shipped : the training steps of memsched's own
    allocated, repeat : steps whose time in the allocator is measured, and in how many steps
    published, published_limit : a checkout of the authors' code, and the seconds that its solver has
    """

    cases: tuple[Case, ...]
    ordered: tuple[Case, ...] = tuple(
        (name, batch, "sgd") for name in ("efficientnet", "googlenet") for batch in BATCHES
    )
    solved: tuple[Case, ...] = (("efficientnet", 1, "sgd"), ("efficientnet", 32, "sgd"))
    placed: tuple[Case, ...] = tuple(
        (name, batch, "sgd") for name in ("efficientnet", "googlenet") for batch in BATCHES
    )
    limits: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    ilp_limits: tuple[float, ...] = (10.0, 30.0, 100.0)
    small: tuple[Case, ...] = tuple(
        (name, batch, "sgd")
        for name in ("alexnet", "vgg11", "vgg16", "vgg19", "transformer", "resnet18")
        for batch in (1, 32)
    )
    small_limit: float = 60.0
    allocated: tuple[Case, ...] = tuple(
        (name, batch, optimizer)
        for name in ("alexnet", "googlenet", "mnasnet", "mobilenet", "resnet18", "transformer", "transformer_dflt")
        for batch in (1, 32)
        for optimizer in OPTIMIZERS
    )
    repeat: int = 5
    shipped: tuple[str, ...] = tuple(ms.profiles.graph_names())
    published: Path | None = None
    published_limit: float = 60.0


class Steps:
    """Captured steps and their best orders, each made once."""

    def __init__(self, folder: Path) -> None:
        self.capture = cache(partial(captured, folder=folder))
        self.best = cache(self._best)

    def step(self, case: Case) -> Captured:
        return self.capture(*case)

    def flow(self, case: Case) -> Flow:
        return Flow(self.step(case).graph)

    def _best(self, case: Case) -> tuple[Any, float]:
        """The default order, and the least seconds of up to three calls."""
        graph = self.step(case).graph
        return timed(lambda: ms.order(graph, time_limit=ORDER_LIMIT))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the least seconds that a call took; only what is brief is called three times."""
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    for _ in range(2 if seconds < BRIEF else 0):
        begin = time.perf_counter()
        call()
        seconds = min(seconds, time.perf_counter() - begin)
    return result, seconds


def row_of(case: Case) -> Row:
    return {"network": case[0], "batch": case[1], "optimizer": case[2]}


def orders(steps: Steps, case: Case) -> Row:
    """Peaks of PyTorch's order, of Inductor's rules and of ours, each counted here from the order alone."""
    flow = steps.flow(case)
    row = row_of(case) | {"ops": len(flow.names), "resident": flow.graph.resident}
    row["control"] = sum(count == 0 for count in flow.bytes)
    row["pytorch"] = flow.peak(flow.listed())
    begin = time.perf_counter()
    row |= {name: flow.peak(rule(flow)) for name, rule in RULES.items()}
    row["rules seconds"] = time.perf_counter() - begin
    row["inductor"] = min(row["pytorch"], *(row[name] for name in RULES))
    result, seconds = steps.best(case)
    row["ours"] = flow.peak(flow.numbers(result.order))
    if row["ours"] != result.peak_memory:
        raise ValueError(f"the order of {case} needs {row['ours']} bytes, not {result.peak_memory} as it says")
    return {**row, "bound": result.lower_bound, "optimal": result.optimal, "seconds": seconds}


def buffers(lifetimes: Sequence[Lifetime]) -> list[Any]:
    """What `memsched.place` is to place."""
    return [ms.Buffer(one.start, one.end, one.bytes) for one in lifetimes]


def load_of(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes alive at once."""
    change: dict[int, int] = {}
    for one in lifetimes:
        change[one.start] = change.get(one.start, 0) + one.bytes
        change[one.end] = change.get(one.end, 0) - one.bytes
    live = most = 0
    for position in sorted(change):
        live += change[position]
        most = max(most, live)
    return most


def height_of(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    """The end of the highest buffer.

    Raises
    ------
    ValueError
        Two buffers overlap.
    """
    placed = sorted(zip(lifetimes, offsets, strict=True), key=lambda pair: pair[0].start)
    alive: list[tuple[Lifetime, int]] = []
    for one, offset in placed:
        alive = [(other, at) for other, at in alive if other.end > one.start]
        if any(at < offset + one.bytes and offset < at + other.bytes for other, at in alive) or offset < 0:
            raise ValueError(f"the buffer of {one.bytes} bytes at {offset} overlaps another")
        alive.append((one, offset))
    return max((offset + one.bytes for one, offset in placed), default=0)


def addresses(steps: Steps, case: Case) -> Row:
    """PyTorch's allocator, emulated, on its order and on ours; and planned addresses on our order."""
    flow, resident = steps.flow(case), steps.step(case).resident
    plain = replay(resident, flow.lifetimes(flow.listed()))
    lifetimes = flow.lifetimes(flow.numbers(steps.best(case)[0].order))
    row = row_of(case) | {"buffers": len(lifetimes), "resident": sum(resident)}
    grown = replay(resident, flow.lifetimes(flow.listed()), expandable=True)
    row |= {
        "expandable": grown.reserved,
        "reserved": plain.reserved,
        "resident set": plain.resident_set,
        "in use": plain.peak,
    }
    reordered = replay(resident, lifetimes)
    row |= {"reserved, ordered": reordered.reserved, "in use, ordered": reordered.peak}
    given = buffers(lifetimes)
    result, seconds = timed(lambda: ms.place(given, time_limit=PLACE_LIMIT))
    row |= {"load": load_of(lifetimes), "height": height_of(lifetimes, list(result.offsets)), "seconds": seconds}
    row["by size"] = height_of(lifetimes, largest_first(lifetimes))
    return {**row, "bound": result.lower_bound, "optimal": result.optimal}


def longer(steps: Steps, case: Case) -> Row:
    """What is open after the short limits, with a long one; nothing is run where nothing is open."""
    flow, found = steps.flow(case), steps.best(case)[0]
    row = row_of(case) | {"proven before": found.optimal, "before": found.peak_memory}
    begin = time.perf_counter()
    best = found if found.optimal else ms.order(flow.graph, time_limit=LONG_LIMIT)
    row |= {"seconds": time.perf_counter() - begin, "ours": flow.peak(flow.numbers(best.order))}
    return {**row, "bound": max(best.lower_bound, found.lower_bound), "optimal": best.optimal}


def anytime(steps: Steps, case: Case, kind: str, limit: float) -> Row:
    """The best that is known after so many seconds: "order" or "place", "order ilp" or "place ilp"."""
    flow = steps.flow(case)
    row = row_of(case) | {"kind": kind, "limit": limit}
    begin = time.perf_counter()
    if kind.startswith("place"):
        lifetimes = flow.lifetimes(flow.numbers(steps.best(case)[0].order))
        given, begin = buffers(lifetimes), time.perf_counter()
        placed = ms.place(given, time_limit=limit, method="search" if kind == "place" else "ilp")
        row |= {"seconds": time.perf_counter() - begin, "bound": placed.lower_bound, "optimal": placed.optimal}
        return {**row, "found": height_of(lifetimes, list(placed.offsets)), "least": load_of(lifetimes)}
    found = ms.order(flow.graph, time_limit=limit, method="search" if kind == "order" else "ilp")
    row |= {"seconds": time.perf_counter() - begin, "bound": found.lower_bound, "optimal": found.optimal}
    return {**row, "found": flow.peak(flow.numbers(found.order)), "least": flow.peak(flow.listed())}


def shipped(name: str) -> Row:
    """The order and the addresses of a training step that ships with memsched."""
    graph = ms.profiles.load_graph(name)
    flow, row = Flow(graph), {"name": name, "ops": len(graph.ops), "captured": name not in ms.profiles.names()}
    found, seconds = timed(lambda: ms.order(graph, time_limit=ORDER_LIMIT))
    row |= {"pytorch": flow.peak(flow.listed()), "ours": flow.peak(flow.numbers(found.order)), "seconds": seconds}
    row |= {"inductor": min(row["pytorch"], *(flow.peak(rule(flow)) for rule in RULES.values()))}
    lifetimes = flow.lifetimes(flow.numbers(found.order))
    placed, seconds = timed(lambda: ms.place(buffers(lifetimes), time_limit=PLACE_LIMIT))
    row |= {"bound": found.lower_bound, "optimal": found.optimal, "load": load_of(lifetimes)}
    return row | {"height": height_of(lifetimes, list(placed.offsets)), "place seconds": seconds}


def peer(steps: Steps, case: Case, settings: Settings) -> Row:
    """The order that the authors' code finds."""
    assert settings.published is not None
    return row_of(case) | published(steps.flow(case), settings.published, settings.published_limit)


def work_of(part: str, settings: Settings, steps: Steps) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Keys of the cache and what computes their rows."""
    if part in ("orders", "addresses", "longer"):
        compute = {"orders": orders, "addresses": addresses, "longer": longer}[part]
        for case in settings.cases:
            yield f"{part} {case}", partial(compute, steps, case)
    elif part == "anytime":
        for kind, cases, limits in (
            ("order", settings.ordered, settings.limits),
            ("order ilp", settings.solved, settings.ilp_limits),
            ("place", settings.placed, settings.limits),
            ("place ilp", settings.placed, settings.ilp_limits[:2]),
        ):
            for case in cases:
                for limit in limits:
                    yield f"{part} {kind} {case} {limit}", partial(anytime, steps, case, kind, limit)
    elif part == "allocator":
        for case in settings.allocated:
            yield f"{part} {case}", partial(allocating, *case, settings.repeat, ORDER_LIMIT)
    elif part == "shipped":
        for name in settings.shipped:
            yield f"{part} {name}", partial(shipped, name)
    elif part == "published":
        for case in settings.cases if settings.published else ():
            if case[2] == "sgd":
                yield f"{part} {case} {settings.published_limit}", partial(peer, steps, case, settings)
    else:
        for kind, case in ((kind, case) for kind in ("order ilp", "place ilp") for case in settings.small):
            yield f"{part} {kind} {case}", partial(anytime, steps, case, kind, settings.small_limit)


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All parts."""
    settings, known = (
        Settings(cases=tuple((n, b, o) for o in OPTIMIZERS for n in NETWORKS for b in BATCHES)),
        Cache(given.cache),
    )
    if given.quick:
        small = (("alexnet", 1, "sgd"), ("transformer", 32, "sgd"))
        settings = Settings(
            cases=tuple((n, b, o) for o in OPTIMIZERS for n in ("alexnet", "transformer") for b in BATCHES),
            ordered=small,
            solved=small,
            placed=small,
            limits=(0.01, 0.1),
            ilp_limits=(2.0,),
            small=small[:1],
            small_limit=5.0,
            allocated=(("transformer", 2, "adam"),),
            repeat=2,
            shipped=("resnet18-224-b32", "graphnet-40k-b1-f32"),
            published_limit=5.0,
        )
        known = Cache(None)
    settings, steps = replace(settings, published=given.published), Steps(given.graphs)
    if given.part:
        where, parts = points("olla2022")
        parts[given.part] = known.through(work_of(given.part, settings, steps), given.part)
        return parts, {**where, given.part: environment()}
    parts = {part: known.through(work_of(part, settings, steps), part) for part in PARTS}
    if given.published is None:  # what an earlier run found
        parts["published"] = [row for key, row in known.rows.items() if key.startswith("published ")]
    return parts, {**versions(), "limits": [ORDER_LIMIT, PLACE_LIMIT]}


def main(given: Sequence[str] | None = None) -> None:
    """Compute, draw, then write the claims."""
    parser = arguments("olla2022", __doc__)
    parser.add_argument("--published", type=Path, help="a checkout of the authors' code, to run that as well")
    parser.add_argument("--part", choices=PARTS, help="measure this alone, and keep the points of all others")
    parser.add_argument("--graphs", type=Path, default=Path(tempfile.gettempdir()) / "memsched-olla2022")
    publish("olla2022", parser.parse_args(given), measure, pictures, report)


def versions() -> Row:
    """Of the packages that the networks come from."""
    from importlib.metadata import version

    return {package: version(package) for package in ("torch", "torchvision", "transformers")}


if __name__ == "__main__":
    main()
