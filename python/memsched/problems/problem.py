"""What every planner needs of its problem: the graph to simulate on, the memory needs, the device."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any, TypeAlias

import numpy as np

from memsched import _core
from memsched._core import Chain, Device, Graph, Schedule, Timeline
from memsched.errors import InvalidInputError, ScheduleError, shown
from memsched.problems.family import GraphFamily
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.support.documents import Document, fields, read_chain, read_graph
from memsched.support.formats import Bytes, counted, exact_bytes, unit_written
from memsched.support.kinds import told_maker
from memsched.support.memo import once_per_object
from memsched.support.units import parse_bandwidth

Problem: TypeAlias = Chain | Graph | GraphFamily
ChunkLike: TypeAlias = int | str | None

_OF_A_STAGE = re.compile(r"(?:F|B|a|tape|d)([1-9]\d*)(?:/\d+)?$")
_BYTES = re.compile(r"('[^']*')|(\d{5,})(?: bytes)?")  # names, and numbers that are hard to read
_UNNAMED = re.compile(r"stage \d+")  # what a chain calls a stage without a name


@once_per_object
def _chain_graph(chain: Chain, chunk: ChunkLike) -> Graph:
    return _core.to_graph(chain, chunk)


@public
def to_graph(chain: Chain, chunk: ChunkLike = None) -> Graph:
    """The graph on which every plan of a chain is simulated and checked.

    Ops F1 .. Fn, loss, Bn .. B1; tensors a0 .. an, tape1 .. tapen (what stage k saves besides its output; left out
    where that is nothing) and d0 .. dn.

    Parameters
    ----------
    chain : Chain
    chunk : None, int or str
        None: tensors travel whole; bytes: in pieces of at most that size, a1/0, a1/1, ..; "storage": by chain.pieces.

    Examples
    --------
    >>> import memsched as ms
    >>> [op["name"] for op in ms.to_graph(ms.Chain([1], [1], [4, 4], [0, 4])).ops]
    ['F1', 'loss', 'B1']
    """
    checks.kind("chain", chain, Chain)
    return _core.to_graph(chain, quantities.chunk(chunk))


def problem_from(document: Document) -> Problem:
    """A chain, a graph or a family from its JSON form."""
    if document.get("format") == "memsched-graph/1":
        return read_graph(document)
    if document.get("format") == "memsched-family/1":
        return GraphFamily.from_json(document)
    return read_chain(document)


def name_of(problem: Problem) -> str:
    """The name of a problem, to be shown."""
    return problem.name or "a problem without a name"


def stages_or_ops(problem: Problem) -> str:
    """How large a problem is, to be shown."""
    return counted(problem.n, "stage") if isinstance(problem, Chain) else counted(len(graph_of(problem).ops), "op")


def stage_of(problem: Problem, name: str) -> str | None:
    """The name of the stage that an op or a tensor of a chain's graph belongs to; None for others, loss and input."""
    if not isinstance(problem, Chain):
        return None
    found = _OF_A_STAGE.match(name)
    return _stage_names(problem)[int(found[1]) - 1] if found else None


@once_per_object
def _stage_names(chain: Chain) -> tuple[str, ...]:
    return tuple(chain.names)


def short_stage_of(problem: Problem, name: str) -> str | None:
    """The same to be drawn: of modules such as "layer1.0.conv1..layer1.0.relu" what they share; None if not named."""
    stage = stage_of(problem, name)
    if not stage or _UNNAMED.fullmatch(stage):
        return None
    first, dots, last = stage.partition("..")
    pairs = zip(first.split("."), last.split("."), strict=False)
    same = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return ".".join(same) if dots and same else stage


def graph_of(problem: Problem, chunk: ChunkLike = None) -> Graph:
    """The graph that plans of the problem are simulated on: a chain's cut as `chunk` says, a family's at full batch."""
    if isinstance(problem, GraphFamily):
        problem = problem.graph
    if isinstance(chunk, np.ndarray):
        raise InvalidInputError(f"chunk is {shown(chunk)}; it must be a whole number of bytes, at most 2^53")
    if isinstance(problem, Chain):
        known = chunk is None or isinstance(chunk, int | str)
        return _chain_graph(problem, chunk) if known else _core.to_graph(problem, chunk)  # which refuses what is not
    if isinstance(problem, Graph):
        if chunk is not None:
            raise InvalidInputError(f"chunk is {shown(chunk)}, but a graph is not cut; leave it out")
        return problem
    what = f"the class {problem.__name__}" if isinstance(problem, type) else f"a {type(problem).__name__}"
    raise InvalidInputError(f"problem is {what}; it must be a Chain or a Graph{_remedy(problem)}")


def no_chain(problem: Problem, planner: str) -> InvalidInputError:
    """The error of a planner of chains that is given another problem; what is no problem is refused as such."""
    graph_of(problem)
    return InvalidInputError(
        f"problem is a {type(problem).__name__}; {planner} plans a Chain; compare lists the planners of graphs"
    )


def _remedy(problem: object) -> str:
    """What makes a problem of what was given for one."""
    if hasattr(problem, "problem") and not isinstance(problem, type):  # a result, or what is made of one
        return "; its .problem is one"
    if any(one.__module__ == "torch.nn.modules.module" for one in type(problem).__mro__):
        return "; memsched.torch.plan plans a model of PyTorch"
    made = told_maker(problem)
    return f"; {made}" if made else ""


def largest_graph(problem: Problem, schedule: Schedule) -> Graph:
    """The graph whose buffers a plan's arena must hold; for a family, at the largest batch of the rounds."""
    if isinstance(problem, GraphFamily):
        return problem.at(max(batch for batch, _ in schedule.rounds))
    return graph_of(problem, schedule.chunk)


def profile_link(problem: Problem) -> float | None:
    """Bytes per second of the link that the profile of a chain was made for; None if it names none."""
    found = (problem.provenance or {}).get("link_bandwidth") if isinstance(problem, Chain) else None
    return None if found is None else parse_bandwidth(found, "provenance.link_bandwidth of the problem")


@once_per_object
def least_of(graph: Graph) -> int:
    """The least memory of any plan of a graph, in bytes, resident included."""
    return _core.graph_min_memory(graph)


@once_per_object
def peak_of(graph: Graph) -> int:
    """The peak of a graph's plain run, in bytes, resident included."""
    return _core.graph_peak_memory(graph)


def least_memory(problem: Problem) -> int:
    """The least memory of any plan, in bytes, resident included; `min_memory` says when it suffices.

    For a family at batch 1, since a plan may split its batch into rounds of one.
    """
    return least_of(problem.smallest if isinstance(problem, GraphFamily) else graph_of(problem))


@public
def peak_memory(problem: Problem) -> int:
    """Peak of the plain run (all is kept until its last use), in bytes, resident included; for a family at full batch.

    A tensor that no op reads counts until the end, or from the beginning if no op writes it, as the caller has it.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.peak_memory(ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]))
    20
    """
    return peak_of(graph_of(problem))


def fields_of(device: Device) -> dict[str, Any]:
    """The fields of a device, which is not hashable itself."""
    return fields(device, "memory", "d2h", "h2d", "duplex", "latency", "host_memory", "name")


def altered(device: Device, **changes: Any) -> Device:
    """The device with other values of some fields; its memory keeps the unit that it was written in."""
    memory = Bytes(device.memory, unit_written(device))
    return Device(**(fields_of(device) | {"memory": memory} | changes))


def check_kinds(problem: object, schedule: object, device: object) -> None:
    """Check the types of a problem, a schedule and a device."""
    if not isinstance(problem, Chain | Graph | GraphFamily):
        needed = f"it must be a Chain, a Graph or a GraphFamily{_remedy(problem)}"
        raise InvalidInputError(f"problem is {shown(problem)}; {needed}")
    checks.kind("schedule", schedule, Schedule)
    checks.kind("device", device, Device)


@public
def simulate(problem: Problem, schedule: Schedule, device: Device) -> Timeline:
    """Time a schedule on a problem and a device.

    The smaller of `schedule.budget` and `device.memory` is enforced. docs/schedule.md has the rules.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        A chain is cut as `schedule.chunk` says. For a family, the list runs on the graph of each round's batch.
    schedule : Schedule
    device : Device

    Returns
    -------
    Timeline
        start and end of each step (seconds), makespan, peak_memory (bytes, resident included), ... With several rounds,
        times and bytes moved are sums over all rounds; steps and the memory over time are those of the first round.

    Raises
    ------
    ScheduleError
        The schedule cannot run (`.step` is the failing step), or the rounds do not add up to the family's batch.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> result = ms.greedy(chain, M=20, beta=8)
    >>> ms.simulate(chain, result.schedule, result.device).makespan
    4.0
    """
    check_kinds(problem, schedule, device)
    try:
        if isinstance(problem, GraphFamily):
            adds_up = sum(batch * times for batch, times in schedule.rounds) == problem.batch
            graphs = {batch: problem.at(batch) for batch, _ in schedule.rounds if adds_up}
            return _core.simulate_rounds(graphs, problem.batch, schedule, device)
        graph = graph_of(problem, schedule.chunk if isinstance(problem, Chain) else None)
        return _core.simulate_graph(graph, schedule, device)
    except ScheduleError as error:
        raise ScheduleError(_explained(str(error), problem, schedule), error.step) from None


def _explained(text: str, problem: Problem, schedule: Schedule) -> str:
    """The text of an error of the core with bytes in a unit, and with what is wrong first, if it is the problem."""
    if " bytes" in text:
        text = _BYTES.sub(lambda found: found[1] or exact_bytes(int(found[2])), text)
    own = problem.name or ""
    known = schedule.graph in ("", own)
    return text if known else f"the schedule was made for '{schedule.graph}', not for '{own}'; {text}"
