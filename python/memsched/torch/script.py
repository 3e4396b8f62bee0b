"""A schedule, resolved to the stages and the storages of a staged model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memsched._core import Chain, Schedule, to_graph
from memsched.errors import InvalidInputError

Kind = Literal["forward", "backward", "loss", "offload", "prefetch", "free"]
_MOVES: tuple[Kind, ...] = ("offload", "prefetch", "free")
Key = tuple[Literal["activation", "tape", "gradient"], int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step of the schedule.

    Attributes
    ----------
    kind
    stage : int
        Index of the stage that runs; -1 for other steps.
    saving : bool
        A forward that keeps its tape.
    first : bool
        The first forward of its stage.
    needs : int
        Bytes that it allocates, scratch included.
    scratch : int
        The part of `needs` that it gives back when it ends.
    reads, writes : tuple of Key
        The storages that a run finds on the device, and that it puts there.
    moves : tuple of Key
        The storages that a transfer moves, or that are freed.
    after : tuple of int
        Steps that must have ended.
    prefetches : tuple of int
        Of a run: the prefetches between it and the next run.
    """

    kind: Kind
    stage: int = -1
    saving: bool = False
    first: bool = False
    needs: int = 0
    scratch: int = 0
    reads: tuple[Key, ...] = ()
    writes: tuple[Key, ...] = ()
    moves: tuple[Key, ...] = ()
    after: tuple[int, ...] = ()
    prefetches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The steps of a schedule, and where in them each stage's forward and backward ends.

    Attributes
    ----------
    actions : tuple of Action
        In the order of the schedule's steps.
    forward_end, backward_end : tuple of int
        For each stage the number of actions that are done once its first forward (its backward) has run and all that
        stands before the next run is issued.
    repeated : frozenset of int
        Stages whose forward runs more than once.
    host : dict of Key to int
        Offset in host memory of every storage that is ever offloaded.
    host_bytes, device_bytes : int
        Host memory in all, and device memory for what the schedule moves about (the budget less what is resident).
    sizes : dict of Key to int
        Bytes of every storage.
    """

    actions: tuple[Action, ...]
    forward_end: tuple[int, ...]
    backward_end: tuple[int, ...]
    repeated: frozenset[int]
    host: dict[Key, int]
    host_bytes: int
    device_bytes: int
    sizes: dict[Key, int]


def compile_schedule(chain: Chain, schedule: Schedule, pieces: Sequence[Sequence[int]]) -> Script:
    """Resolve a schedule.

    Parameters
    ----------
    chain : Chain
        n stages.
    schedule : Schedule
        Legal on `to_graph(chain, schedule.chunk)`.
    pieces : n sequences of int
        Bytes of each storage that a stage keeps for its backward.

    Raises
    ------
    InvalidInputError
        The schedule cuts storages into smaller pieces, which PyTorch cannot give back one by one.
    """
    document = schedule.to_json()
    if isinstance(document["chunk"], int):
        raise InvalidInputError(
            f"the schedule moves pieces of {document['chunk']} bytes, and PyTorch can give back whole storages only; "
            'plan with chunk="storage" or chunk=None'
        )
    graph = to_graph(chain, chunk=schedule.chunk).to_json()
    names = _Names(graph, pieces)
    actions: list[Action] = []
    ran: dict[str, int] = {}
    for step in document["steps"]:
        after = tuple(step.get("after", ()))
        if "run" in step:
            actions.append(names.run(step["run"], bool(step.get("skip")), ran.get(step["run"], 0) == 0, after))
            ran[step["run"]] = ran.get(step["run"], 0) + 1
        else:
            for kind in _MOVES:
                if kind in step:
                    moves = names.keys[step[kind]]
                    needs = sum(names.sizes[key] for key in moves) if kind == "prefetch" else 0
                    actions.append(Action(kind=kind, moves=moves, needs=needs, after=after))
    actions = with_prefetches(actions)
    host, host_bytes = host_places(actions, names.sizes)
    return Script(
        actions=tuple(actions),
        forward_end=_ends(actions, "forward", chain.n),
        backward_end=_ends(actions, "backward", chain.n),
        repeated=frozenset(int(name[1:]) - 1 for name, times in ran.items() if name.startswith("F") and times > 1),
        host=host,
        host_bytes=host_bytes,
        device_bytes=int(document["budget"]) - chain.resident,
        sizes=names.sizes,
    )


class _Names:
    """Which storages stand behind the tensors of a chain's graph."""

    def __init__(self, graph: dict[str, Any], pieces: Sequence[Sequence[int]]) -> None:
        self.ops = {op["name"]: op for op in graph["ops"]}
        self.tensor_bytes = {tensor["name"]: int(tensor["size"]) for tensor in graph["tensors"]}
        # The caller holds the inputs: nothing stands behind them.
        self.keys: dict[str, tuple[Key, ...]] = {t["name"]: () for t in graph["tensors"] if t["role"] == "input"}
        self.sizes: dict[Key, int] = {}
        for op in graph["ops"]:
            tape = list(op.get("tape", ()))
            for name in op["writes"]:
                if name not in tape:
                    self.keys[name] = (_boundary_key(name),)
                    self.sizes[self.keys[name][0]] = self.tensor_bytes[name]
            if op["kind"] == "stage" and op["phase"] == "fwd":
                self._tape(int(op["layer"]) - 1, tape, pieces)

    def _tape(self, stage: int, names: list[str], pieces: Sequence[Sequence[int]]) -> None:
        found = [(("tape", stage, i), size) for i, size in enumerate(pieces[stage])]
        keys: list[Key] = [key for key, size in found if size]  # type: ignore[misc]
        self.sizes.update(zip(keys, [size for _, size in found if size], strict=True))
        if len(names) == 1:
            self.keys[names[0]] = tuple(keys)
        else:
            assert len(names) == len(keys), "the chain's pieces are those of another model"
            self.keys.update({name: (key,) for name, key in zip(names, keys, strict=True)})

    def of(self, names: Sequence[str]) -> tuple[Key, ...]:
        return tuple(key for name in names for key in self.keys.get(name, ()) if self.sizes[key])

    def run(self, name: str, skip: bool, first: bool, after: tuple[int, ...]) -> Action:
        op = self.ops[name]
        if op["kind"] == "loss":
            return Action(kind="loss", after=after)
        skipped = set(op.get("tape", ())) if skip else set()
        writes = [tensor for tensor in op["writes"] if tensor not in skipped]
        scratch = op.get("skip_workspace") if skip else None
        if scratch is None:
            scratch = op["choices"][0]["workspace"]
        return Action(
            kind="forward" if op["phase"] == "fwd" else "backward",
            stage=int(op["layer"]) - 1,
            saving=not skip,
            first=first,
            needs=sum(self.tensor_bytes[tensor] for tensor in writes) + int(scratch),
            scratch=int(scratch),
            reads=self.of(op["reads"]),
            writes=self.of(writes),
            after=after,
        )


def _boundary_key(name: str) -> Key:
    """Of a3 or d3: the activation or the gradient that stage 2 (counted from 0) hands over or receives."""
    return ("activation" if name.startswith("a") else "gradient", int(name[1:]) - 1, 0)


def with_prefetches(actions: Sequence[Action]) -> list[Action]:
    """Tell every run of the prefetches behind it."""
    behind: list[int] = []
    told: list[Action] = []
    for step in range(len(actions) - 1, -1, -1):
        action = actions[step]
        if action.kind == "prefetch":
            behind.insert(0, step)
        elif action.kind in ("forward", "backward", "loss"):
            action = dataclasses.replace(action, prefetches=tuple(behind))
            behind = []
        told.append(action)
    return told[::-1]


def _ends(actions: Sequence[Action], kind: Kind, n: int) -> tuple[int, ...]:
    ends = [len(actions)] * n
    runs = [i for i, action in enumerate(actions) if action.kind in ("forward", "backward", "loss")]
    for here, following in zip(runs, [*runs[1:], len(actions)], strict=True):
        action = actions[here]
        if action.kind == kind and (kind == "backward" or action.first):
            ends[action.stage] = following
    return tuple(ends)


def host_places(actions: Sequence[Action], sizes: dict[Key, int]) -> tuple[dict[Key, int], int]:
    """A host copy stays to the end of the step, so each storage has a place of its own."""
    places: dict[Key, int] = {}
    end = 0
    for action in actions:
        for key in action.moves if action.kind == "offload" else ():
            if key not in places:
                places[key] = end
                end += sizes[key]
    return places, end
