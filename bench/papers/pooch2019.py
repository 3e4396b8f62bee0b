"""The evaluation of Ito et al., PoocH, 2019, on networks by formula: Figures 3, 4, 15 to 22, Table 3 and its claims.

python -m bench.papers.pooch2019                 # about two minutes; resumes from build/bench/pooch2019.jsonl
python -m bench.papers.pooch2019 --quick --out /tmp/pooch2019
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
from bench.common import Cache, Row, best_of
from bench.papers.page import Parts, arguments, publish
from bench.papers.pooch2019_figures import pictures
from bench.papers.pooch2019_report import report

import memsched as ms
from memsched import _core
from memsched.planners.classes import WORKSPACE_LIMIT, all_swap

MEMORY = 16 * 10**9
PCIE, NVLINK, REACHED = 16e9, 75e9, 0.75
LINKS = (PCIE, REACHED * PCIE, NVLINK, REACHED * NVLINK)
PLANNERS: dict[str, Callable[..., ms.Result]] = {
    "w/o scheduling": partial(ms.swap_all, scheduled=False),
    "swap-all": ms.swap_all,
    "swap-opt": ms.swap_opt,
    "PoocH": ms.pooch,
    "PoocH, filled": partial(ms.pooch, fill=True),
    "SuperNeurons": ms.by_kind,
    "vDNN": ms.vdnn,
    "AUTOSWAP": ms.autoswap,
    "TFLMS": ms.tflms,
}
CLASSIFIED = ("PoocH", "PoocH, filled", "SuperNeurons")
SEARCHES = {
    "default": {},
    "tree 0": {"tree": 0},
    "tree 10": {"tree": 10},
    "beam 1": {"beam": 1},
    "beam 16": {"beam": 16},
    "fill": {"fill": True},
}
PARTS = ("speeds", "crossed", "slower", "searches", "growth")
Size = tuple[int, ...]  # a batch, or frames and side of one clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run: networks with their sizes, links (bytes per second), how much slower grouped convolutions are."""

    sizes: dict[str, tuple[Size, ...]]
    links: tuple[float, ...] = LINKS
    slower: tuple[float, ...] = (1, 2, 4, 8)
    searched: tuple[tuple[str, Size], ...] = (
        ("resnet50", (256,)),
        ("resnet50", (384,)),
        ("resnet50", (512,)),
        ("resnet50", (640,)),
        ("alexnet", (4096,)),
        ("resnext101_3d", (128, 448)),
    )
    grown: tuple[tuple[str, Size], ...] = (
        ("alexnet", (4096,)),
        ("vgg16", (256,)),
        ("vgg19", (256,)),
        ("resnet34", (512,)),
        ("resnet50", (512,)),
        ("vgg101", (128,)),
        ("resnext101_3d", (128, 448)),
    )


FULL: dict[str, tuple[Size, ...]] = {
    "resnet50": tuple((batch,) for batch in (128, 192, 256, 320, 384, 448, 512, 576, 640)),
    "alexnet": tuple((batch,) for batch in (1024, 2048, 3072, 3584, 4096, 4352)),
    "resnext101_3d": (
        *((64, side) for side in (224, 320, 448)),
        *((frames, 448) for frames in (96, 128)),
        *((frames, 512) for frames in (128, 160, 176, 224)),
    ),
}


@cache
def graph_of(network: str, size: Size, slower: float = 1) -> ms.Graph:
    """The step of a batch, or of one clip; grouped convolutions so many times slower."""
    if len(size) == 1:
        return ms.profiles.analytic(network, size[0]).graph
    graph = ms.profiles.analytic(network, 1, clip=(size[0], size[1])).graph
    if slower == 1:
        return graph
    document = graph.to_json()
    for op in document["ops"]:
        if ".conv2." in op["name"]:
            for choice in op["choices"]:
                choice["time"] *= slower
    return ms.Graph.from_json(document)


def compute(graph: ms.Graph) -> float:
    """Seconds of all ops with the algorithms that the workspace limit allows, nothing moved."""
    return sum(op["choices"][0]["time"] for op in _core.fixed_choices(graph, WORKSPACE_LIMIT).ops)


def in_core_bytes(graph: ms.Graph) -> int:
    """What the plain run takes."""
    return _core.least_budget(graph, WORKSPACE_LIMIT, 0 * all_swap(graph))


def classes_of(result: ms.Result) -> list[int]:
    """Keep, swap, recompute."""
    found = Counter(ms.feature_map_classes(result).values())
    return [found[name] for name in ("keep", "swap", "recompute")]


def machine(link: float) -> ms.Device:
    """The V100 with a duplex link."""
    return ms.Device(MEMORY, link, duplex=True)


def speeds(network: str, size: Size, link: float, slower: float = 1, planners: Sequence[str] = tuple(PLANNERS)) -> Row:
    """Seconds of all planners and classes of some, each plan checked; None without a plan."""
    graph = graph_of(network, size, slower)
    row: Row = {"network": network, "size": list(size), "link": link, "slower": slower, "batch": graph.batch}
    row |= {"bound": compute(graph), "memory": in_core_bytes(graph), "maps": len(_core.feature_maps(graph))}
    row["largest op"] = _core.graph_min_memory(graph)
    row["in-core"] = row["bound"] if row["memory"] <= MEMORY else None
    row["late"] = late_fetches(graph, machine(link))
    for name in planners:
        try:
            result = PLANNERS[name](graph, device=machine(link))
        except ms.InfeasibleError as error:
            row |= {name: None, f"{name} needs": error.min_memory, f"{name} classes": None}
            continue
        ms.validate(result)  # which raises
        row[name] = result.makespan
        if name in CLASSIFIED:
            row[f"{name} classes"] = classes_of(result)
    return row


def late_fetches(graph: ms.Graph, device: ms.Device) -> int | None:
    """PoocH's L_I where all maps are swapped: those whose fetch meets a gap of the compute stream."""
    schedule = _core.class_schedule(graph, device, WORKSPACE_LIMIT, all_swap(graph))
    if schedule is None:
        return None
    line = ms.simulate(graph, schedule, device)
    times = list(zip(schedule.steps, line.start.tolist(), line.end.tolist(), strict=True))
    runs, fetches = ([(a, b) for step, a, b in times if verb in step] for verb in ("run", "prefetch"))
    gaps = [(a[1], b[0]) for a, b in pairwise(runs) if b[0] > a[1]]

    def waits(begin: float, end: float) -> bool:
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in gaps) > 1e-3 * (end - begin)

    return sum(waits(*fetch) for fetch in fetches)


def crossed(size: Size, own: float, other: float) -> Row:
    """ResNet-50 with PoocH's classes for the link `other`, run on `own`."""
    graph = graph_of("resnet50", size)
    tensors = graph.tensors
    names = [tensors[one]["name"] for one in _core.feature_maps(graph)]
    foreign = ms.feature_map_classes(ms.pooch(graph, device=machine(other)))
    numbers = [("keep", "swap", "recompute").index(foreign[name]) for name in names]
    schedule = _core.class_schedule(graph, machine(own), WORKSPACE_LIMIT, np.array(numbers, np.uint8))
    row: Row = {"size": list(size), "own": own, "other": other, "batch": graph.batch, "time": None}
    if schedule is not None:
        ms.validate(graph, schedule, machine(own))
        row["time"] = ms.simulate(graph, schedule, machine(own)).makespan
    row["classes"] = [numbers.count(number) for number in range(3)]
    row["PoocH"] = ms.pooch(graph, device=machine(own)).makespan
    return row


def searches(network: str, size: Size, link: float) -> Row:
    """How the options of the search change a plan: seconds of the plan, simulated plans, seconds of planning."""
    graph = graph_of(network, size)
    row: Row = {"network": network, "size": list(size), "link": link, "late": late_fetches(graph, machine(link))}
    row["bound"], row["swap-opt"] = compute(graph), ms.swap_opt(graph, device=machine(link)).makespan
    for name, options in SEARCHES.items():
        result = ms.pooch(graph, device=machine(link), **options)
        ms.validate(result)
        row[name], row[f"{name}: plans"] = result.makespan, result.params["evaluations"]
        row[f"{name}: seconds"] = result.runtime
    return row


def growth(network: str, size: Size) -> Row:
    """Seconds of planning half-way between the least memory and that of the plain run."""
    graph = graph_of(network, size)
    least = _core.least_budget(graph, WORKSPACE_LIMIT, all_swap(graph))
    device = ms.Device((least + in_core_bytes(graph)) // 2, REACHED * PCIE, duplex=True)

    def one() -> None:
        schedule = _core.class_schedule(graph, device, WORKSPACE_LIMIT, all_swap(graph))
        assert schedule is not None  # above the least memory
        ms.simulate(graph, schedule, device)

    planning, simulation = best_of([partial(ms.pooch, graph, device=device), one], seconds=0.5)
    result = ms.pooch(graph, device=device)
    ms.validate(result)
    row: Row = {"network": network, "size": list(size), "maps": len(_core.feature_maps(graph)), "ops": len(graph.ops)}
    row |= {"plans": result.params["evaluations"], "planning": planning, "simulation": simulation}
    return {**row, "late": late_fetches(graph, device), "overhead": result.makespan / compute(graph) - 1}


def work_of(part: str, settings: Settings) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Keys of the cache and what computes their rows."""
    sizes, links = settings.sizes, settings.links
    if part == "speeds":
        for network, size, link in ((n, s, link) for n, own in sizes.items() for s in own for link in links):
            yield f"speeds {network} {size} {link}", partial(speeds, network, size, link)
    elif part == "crossed":
        for size in (size for size in sizes["resnet50"] if size[0] >= 256):
            for share in sorted({1.0, REACHED} & {link / PCIE for link in links}):
                yield f"crossed {size} {share}", partial(crossed, size, share * PCIE, share * NVLINK)
    elif part == "slower":
        for size in sizes.get("resnext101_3d", ()):
            for factor in settings.slower:
                for link in (REACHED * PCIE, REACHED * NVLINK):
                    planners = ("PoocH", "SuperNeurons")
                    yield (
                        f"slower {size} {factor} {link}",
                        partial(speeds, "resnext101_3d", size, link, factor, planners),
                    )
    elif part == "searches":
        for network, size in settings.searched:
            for link in (REACHED * PCIE, REACHED * NVLINK):
                yield f"searches {network} {size} {link}", partial(searches, network, size, link)
    else:
        for network, size in settings.grown:
            yield f"growth {network} {size}", partial(growth, network, size)


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All parts."""
    settings, known = Settings(sizes=FULL), Cache(given.cache)
    if given.quick:
        settings = Settings(
            sizes={
                "resnet50": ((512,), (640,)),
                "alexnet": ((4096,),),
                "resnext101_3d": ((96, 448),),
            },
            links=(REACHED * PCIE, REACHED * NVLINK),
            slower=(1, 4),
            searched=(("resnet50", (512,)),),
            grown=(("alexnet", (4096,)), ("resnet50", (256,))),
        )
        known = Cache(None)
    return {part: known.through(work_of(part, settings), part) for part in PARTS}, {}


def main(given: Sequence[str] | None = None) -> None:
    """Compute, draw, then write the claims."""
    publish("pooch2019", arguments("pooch2019", __doc__).parse_args(given), measure, pictures, report)


if __name__ == "__main__":
    main()
