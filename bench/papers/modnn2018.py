"""The evaluation of Chen, Chen, Hu, moDNN, DATE 2018, on networks by formula: Figures 6 to 9 and its claims.

python -m bench.papers.modnn2018                 # under a minute; resumes from build/bench/modnn2018.jsonl
python -m bench.papers.modnn2018 --quick --out /tmp/modnn2018
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from bench.common import Cache, Row
from bench.papers.modnn2018_figures import GIB, pictures
from bench.papers.modnn2018_report import report
from bench.papers.page import Parts, arguments, publish

import memsched as ms
from memsched import _core
from memsched.problems.analytic.kernels import gpu_named

GPU = "k40m"
BATCHES = {"vgg16": 256, "vgg19": 256, "vgg101": 128, "resnet34": 256, "fcn": 128}  # those of the paper
MEMORY, LINK = 12 * GIB, 10e9
PLANNERS: dict[str, Callable[..., ms.Result]] = {
    "moDNN": ms.modnn,
    "moDNN, more rounds": partial(ms.modnn, rounds="search"),
    "vDNN+": ms.vdnn_plus,
    "vDNN": ms.vdnn_sync,
}
PARTS = ("memory", "main", "least", "budgets", "gpus", "links", "ablation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run.

    Attributes
    ----------
    networks : names
    budgets : GiB, of every network from its least memory on
    steps : further memories between the least one and the largest budget, in equal ratios
    links : bytes per second
    link_memories, ablation_memories : GiB
    """

    networks: tuple[str, ...]
    budgets: tuple[float, ...] = (1.5, 2, 3, 4, 6, 8, 12, 16)
    steps: int = 16
    links: tuple[float, ...] = (3e9, 4.5e9, 6e9, 8e9, 10e9, 12e9, 16e9)
    link_memories: tuple[float, ...] = (12, 4)
    ablation_memories: tuple[float, ...] = (12, 8, 6, 4, 3, 2)


@cache
def family_of(network: str) -> ms.GraphFamily:
    """On the paper's GPU, at its batch."""
    return ms.profiles.analytic(network, BATCHES[network], GPU)


@cache
def ideal(network: str) -> float:
    """Seconds: each op with its fastest algorithm at the full batch, nothing moved."""
    return sum(min(choice["time"] for choice in op["choices"]) for op in family_of(network).graph.ops)


def plan(planner: Callable[..., ms.Result], problem: Any, memory: float, link: float) -> ms.Result | None:
    """A checked plan; None where there is none."""
    try:
        result = planner(problem, int(memory), link)
    except ms.InfeasibleError:
        return None
    ms.validate(result)  # which raises
    return result


def seconds(planner: Callable[..., ms.Result], problem: Any, memory: float, link: float) -> float | None:
    """Its makespan."""
    result = plan(planner, problem, memory, link)
    return None if result is None else result.makespan


def memory_row(network: str) -> Row:
    """Bytes of the ideal case, of the plain run, and that no plan can do without."""
    family = family_of(network)
    graph = family.graph
    return {
        "network": network,
        "batch": family.batch,
        "everything": graph.resident + int(_core.tensor_bytes(graph).sum()),
        "peak": ms.peak_memory(family),
        "least": ms.min_memory(family, "modnn"),
        "weights": graph.resident // 2,
        "vdnn": ms.min_memory(graph, "vdnn_sync"),
        "vdnn_plus": ms.min_memory(family, "vdnn_plus"),
    }


def main_row(network: str, name: str, memory: float = MEMORY) -> Row:
    """One planner with a memory; what it lost to slower algorithms and small batches, and what to waiting."""
    row: Row = {"network": network, "planner": name, "ideal": ideal(network)}
    result = plan(PLANNERS[name], family_of(network), memory, LINK)
    if result is None:
        return {**row, "time": None}
    return {
        **row,
        "time": result.makespan,
        "compute": ms.validate(result).compute_time,
        "bytes_out": result.timeline.bytes_out,
        "bytes_in": result.timeline.bytes_in,
        "rounds": sum(times for _, times in result.schedule.rounds),
        "moved": result.params.get("moved"),
        "peak": result.peak_memory,
    }


def point(network: str, memory: float, link: float) -> Row:
    """Seconds of all planners."""
    times = {name: seconds(planner, family_of(network), memory, link) for name, planner in PLANNERS.items()}
    return {"network": network, "memory": int(memory), "link": link, "ideal": ideal(network), **times}


def gpus_row(network: str, link: float) -> Row:
    """One GPU and two, each with the paper's memory, on the same bus."""
    family, added = family_of(network), gpu_named(GPU).bandwidth
    one = plan(ms.modnn, family, MEMORY, link)
    two = plan(partial(ms.modnn, gpus=2, memory_bandwidth=added), family, MEMORY, link)
    assert one is not None  # M is far above the least
    assert two is not None
    return {
        "network": network,
        "link": link,
        "ideal": ideal(network),
        "one": one.makespan,
        "two": two.makespan,
        "exchange": two.params["exchange_time"],
        "moved_one": one.timeline.bytes_out + one.timeline.bytes_in,
        "moved_two": two.timeline.bytes_out + two.timeline.bytes_in,
    }


@cache
def first_algorithms(network: str) -> ms.GraphFamily:
    """Without the choice of algorithms."""
    family = family_of(network)
    return ms.GraphFamily(lambda batch: _core.fixed_choices(family.at(batch), -1), family.batch)


def ablation_row(network: str, memory: float) -> Row:
    """Parts of moDNN left out."""
    family = family_of(network)
    return {
        "network": network,
        "memory": int(memory),
        "ideal": ideal(network),
        "moDNN": seconds(ms.modnn, family, memory, LINK),
        "no foresight": seconds(partial(ms.modnn, foresee=False), family, memory, LINK),
        "one round": seconds(ms.modnn, family.graph, memory, LINK),
        "one round, no foresight": seconds(partial(ms.modnn, foresee=False), family.graph, memory, LINK),
        "first algorithms": seconds(ms.modnn, first_algorithms(network), memory, LINK),
        "more rounds": seconds(PLANNERS["moDNN, more rounds"], family, memory, LINK),
    }


def memories(network: str, settings: Settings) -> list[int]:
    """The least of moDNN, the round ones above, and others in equal ratios."""
    least, top = ms.min_memory(family_of(network), "modnn"), max(settings.budgets) * GIB
    found = {least, *(int(budget * GIB) for budget in settings.budgets)}
    found |= {int(memory) for memory in np.geomspace(least, top, settings.steps + 1)[1:-1]}
    return sorted(memory for memory in found if memory >= least)


def work_of(part: str, settings: Settings) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Keys of the cache and what computes their rows."""
    for network in settings.networks:
        if part == "memory":
            yield f"memory {network}", partial(memory_row, network)
        elif part == "main":
            for name in PLANNERS:
                yield f"main {network} {name}", partial(main_row, network, name)
        elif part == "least":
            least = ms.min_memory(family_of(network), "modnn")
            yield f"least {network}", partial(main_row, network, "moDNN", least)
        elif part == "budgets":
            for memory in memories(network, settings):
                yield f"budgets {network} {memory}", partial(point, network, memory, LINK)
        elif part == "gpus":
            for link in (LINK, 0.6 * LINK):
                yield f"gpus {network} {link}", partial(gpus_row, network, link)
        elif part == "links":
            for size in settings.link_memories:
                for link in settings.links:
                    yield f"links {network} {size} {link}", partial(point, network, size * GIB, link)
        else:
            for size in settings.ablation_memories:
                yield f"ablation {network} {size}", partial(ablation_row, network, size * GIB)


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All parts."""
    settings, known = Settings(networks=tuple(given.networks)), Cache(given.cache)
    if given.quick:
        settings = Settings(
            networks=("vgg16", "vgg101", "resnet34"),
            budgets=(4, 12),
            steps=2,
            links=(6e9, 10e9),
            ablation_memories=(4,),
        )
        known = Cache(None)
    return {part: known.through(work_of(part, settings), part) for part in PARTS}, {}


def main(given: Sequence[str] | None = None) -> None:
    """Compute, draw, then write the claims."""
    parser = arguments("modnn2018", __doc__)
    parser.add_argument("--networks", nargs="+", choices=BATCHES, default=list(BATCHES))
    publish("modnn2018", parser.parse_args(given), measure, pictures, report)


if __name__ == "__main__":
    main()
