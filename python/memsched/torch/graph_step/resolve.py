"""A schedule of a program's graph, resolved to operations and blocks."""

from __future__ import annotations

from typing import Any

from memsched._core import Graph, Schedule
from memsched.torch.graph_step.as_graph import op_names, tensor_names
from memsched.torch.graph_step.program import Program
from memsched.torch.script import Action, Key, Kind, Script, host_places, with_prefetches

_MOVES: tuple[Kind, ...] = ("offload", "prefetch", "free")


def key_of(block: int) -> Key:
    """How a script calls a block."""
    return ("activation", block, 0)


def resolve(program: Program, graph: Graph, schedule: Schedule) -> Script:
    """The steps of a schedule in terms of a program. `stage` of an action is the number of the operation.

    Parameters
    ----------
    program : Program
    graph : Graph
        From `as_graph` of this program.
    schedule : Schedule
        Legal on the graph.
    """
    ops = op_names(program)
    places = {name: k for k, name in enumerate(ops)}
    keys = {name: key_of(block) for block, name in tensor_names(program, ops).items()}
    sizes = {key_of(block): program.blocks[block].bytes for block in tensor_names(program, ops)}
    scratch = [int(op["choices"][0]["workspace"]) for op in graph.ops]
    actions: list[Action] = []
    ran: set[int] = set()
    repeated: set[int] = set()
    for step in schedule.to_json()["steps"]:
        after = tuple(step.get("after", ()))
        if "run" not in step:
            actions.append(_move(step, keys, sizes, after))
            continue
        k = places[step["run"]]
        actions.append(_run(program, k, sizes, scratch[k], first=k not in ran, after=after))
        (repeated if k in ran else ran).add(k)
    actions = with_prefetches(actions)
    host, host_bytes = host_places(actions, sizes)
    return Script(
        actions=tuple(actions),
        forward_end=(),
        backward_end=(),
        repeated=frozenset(repeated),
        host=host,
        host_bytes=host_bytes,
        device_bytes=schedule.budget - graph.resident,
        sizes=sizes,
    )


def _run(
    program: Program, k: int, sizes: dict[Key, int], scratch: int, *, first: bool, after: tuple[int, ...]
) -> Action:
    operation = program.operations[k]
    writes = tuple(key for key in map(key_of, operation.makes) if key in sizes)
    return Action(
        kind="backward" if operation.place.backward else "forward",
        stage=k,
        first=first,
        needs=sum(sizes[key] for key in writes) + scratch,
        scratch=scratch,
        reads=tuple(map(key_of, operation.reads)),
        writes=writes,
        after=after,
    )


def _move(step: dict[str, Any], keys: dict[str, Key], sizes: dict[Key, int], after: tuple[int, ...]) -> Action:
    kind = next(kind for kind in _MOVES if kind in step)
    if step[kind] not in keys:  # it has no bytes, and only says that an operation has run
        return Action(kind="free", after=after)
    key = keys[step[kind]]
    return Action(kind=kind, moves=(key,), needs=sizes[key] if kind == "prefetch" else 0, after=after)
