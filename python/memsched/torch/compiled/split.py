"""The steps of a schedule by who carries them out: the forward and the backward of each visit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from memsched._core import Graph
from memsched.torch.compiled.as_graph import (
    END,
    LEAVE,
    RETURN,
    Step,
    gradients_of,
    name_of,
    prefix,
)
from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.parameters import parameter_called, travelling_in


def lasting_in(joint: Joint) -> set[str]:
    """The tensors of a step that may travel after its end: what lasts, and what the host is given for its updates."""
    updates = [(op, op.update) for op in joint.operations if op.update is not None]
    found = {one.states_name for _, one in updates if one.state}
    found.update(one.gradient_name for _, one in updates if one.waiting)
    found.update(map(parameter_called, travelling_in(joint).values()))
    on_host = {n for op, one in updates if one.host_seconds is not None for n in gradients_of(op)}
    return found.union(name_of(joint, n) for n in on_host.difference(joint.storages_in(joint.gradients)))


def steps_of(
    steps: Iterable[Step], visit: int, visits: int, lasting: Collection[str] = ()
) -> tuple[list[Step], list[Step]]:
    """The steps that a visit's forward and its backward carry out, of those of a schedule for the whole step.

    Tensors called as `lasting` may also travel after the end of the step, as its backward carries out with all updates.

    Between the two other graphs run. What of this visit is listed there and makes room is done by its forward; a
    prefetch waits for its backward.
    """
    own = prefix(visit, visits)
    forward: list[Step] = []
    backward: list[Step] = []
    here, left, ended = forward, False, False
    for step in steps:
        verb, name = _read(step)
        if not name.startswith(own):
            continue
        name = name[len(own) :]
        if verb == "run" and name == END:
            ended = True
        elif ended:
            backward += [{verb: name}] if name in lasting or verb in ("run", "update") else []
        elif verb == "run" and name == LEAVE:
            left = True
            forward.append({verb: name})
        elif verb == "run" and name == RETURN:
            here = backward
        else:
            if left and verb in ("run", "prefetch", "update"):
                here = backward
            here.append({verb: name})
    return forward, backward


def in_order(steps: Iterable[Step], returns: Sequence[int]) -> list[Step]:
    """The steps of a schedule for several visits, as they run if the backwards come in another order."""
    forward: list[Step] = []
    backward: dict[str, list[Step]] = {prefix(k, len(returns)): [] for k in returns}
    left, returned = set[str](), set[str]()
    for step in steps:
        verb, name = _read(step)
        own = name[: name.index("/") + 1]
        if verb == "run" and name == own + RETURN:
            returned.add(own)
        late = own in returned or (own in left and verb in ("run", "prefetch"))
        (backward[own] if late else forward).append(step)
        if verb == "run" and name == own + LEAVE:
            left.add(own)
    return [*forward, *(step for part in backward.values() for step in part)]


def joined(
    graph: Graph, parts: Sequence[tuple[Sequence[Step], Sequence[Step]]], returns: Sequence[int]
) -> list[dict[str, Any]]:
    """The steps of a schedule for a graph of several visits, from those of each visit's forward and backward."""
    sizes = {one["name"]: one["size"] for one in graph.tensors}
    writes = {op["name"]: op["writes"] for op in graph.ops}
    found: list[dict[str, Any]] = []
    here: list[set[str]] = [set() for _ in parts]

    def take(visit: int, steps: Iterable[Step]) -> None:
        for step in steps:
            ((verb, name),) = step.items()
            name = prefix(visit, len(parts)) + name
            found.append({verb: name})
            here[visit].update(writes[name] if verb == "run" else [name] if verb == "prefetch" else ())
            here[visit] -= {name} if verb == "free" else set()

    for k, (forward, _) in enumerate(parts):
        take(k, forward)
    for k in returns:
        take(k, [{"run": RETURN}, *parts[k][1], {"run": END}])
        found += [{"free": name} for name in sorted(here[k]) if sizes[name] > 0]
    return found


def _read(step: Step) -> tuple[str, str]:
    """Verb and name of a step."""
    return next((key, str(step[key])) for key in ("run", "update", "offload", "prefetch", "free") if key in step)
