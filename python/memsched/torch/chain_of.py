"""From a captured training step to the stages of a chain: where to cut, and what each stage holds and takes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from torch import fx

from memsched._core import Chain
from memsched.torch.compiled.as_graph import Cost, held_storages
from memsched.torch.compiled.joint import Joint, Operation
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.nests import tensors_of


@dataclass(frozen=True, slots=True)
class Stage:
    """Operations that follow each other in the forward, and those of the backward that belong to them."""

    name: str  # the first and the last module in it
    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    exit: int | None  # the storage that it hands to the next stage; None for the last stage


def stages_of(joint: Joint) -> list[Stage]:
    """Cut a training step into the longest chain of stages.

    The forward is cut where exactly one storage that learns crosses, if the backward reads it and it is no result. A
    storage learns if it holds floating numbers that depend on what needs a gradient; before there is any, all floating
    numbers count. All else that crosses, such as masks, passes beside the chain.

    Autograd numbers its operations in the order of the forward, and the backward's operations carry these numbers. They
    run in reverse, so each stage has a part of the backward to itself; the additions of gradients, which autograd does
    not number, belong to what runs before them.
    """
    forward = [op for op in joint.operations if not op.backward]
    cuts = list(_cuts(joint, forward))
    starts, ends = [0, *(at for at, _ in cuts)], [*(at for at, _ in cuts), len(forward)]
    parts = [forward[start:end] for start, end in zip(starts, ends, strict=True)]
    numbers: list[int] = []  # the largest of each stage and those before it
    for part in parts:
        numbers.append(max([*numbers[-1:], *(_number(op) for op in part)], default=-1))
    backward: list[list[Operation]] = [[] for _ in parts]
    k = len(parts) - 1
    for op in joint.operations:
        if op.backward:
            k = min(k, bisect_left(numbers, _number(op)))
            backward[k].append(op)
    exits = [*(storage for _, storage in cuts), None]
    return [
        Stage(_name(part), tuple(part), tuple(late), exit_)
        for part, late, exit_ in zip(parts, backward, exits, strict=True)
    ]


def _cuts(joint: Joint, forward: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """Pairs: an operation before which to cut, and the storage that crosses there."""
    needed = {n for op in joint.operations if op.backward for n in op.reads} - held_storages(joint)
    last_read = {n: k for k, op in enumerate(forward) for n in op.reads}
    learning, floating = _learning(joint, forward), _floating(joint)
    alive: list[int] = []
    before = None
    for k, op in enumerate(forward):
        crossing = [n for n in alive if last_read.get(n, -1) >= k]
        candidates = [n for n in crossing if n in learning] or [n for n in crossing if n in floating]
        if len(candidates) == 1 and candidates[0] in needed and candidates[0] != before:
            before = candidates[0]
            yield k, before
        alive = [*crossing, *op.writes]


def _learning(joint: Joint, forward: Sequence[Operation]) -> set[int]:
    """The storages of floating numbers that depend on what needs a gradient."""
    found = set(joint.storages_in(primal for primal, _ in _learned(joint)))
    floating = _floating(joint)
    for op in forward:
        if not found.isdisjoint(op.reads):
            found.update(floating.intersection(op.writes))
    return found


def _learned(joint: Joint) -> list[tuple[fx.Node, fx.Node]]:
    """What the step returns a gradient for, and that."""
    given = zip(joint.primals, joint.gradients, strict=False)
    return [(primal, gradient) for primal, gradient in given if gradient is not None]


def _floating(joint: Joint) -> set[int]:
    return {
        number
        for storage in joint.storages
        for number, one in zip(joint.storages_of(storage.base), tensors_of(storage.base.meta["val"]), strict=True)
        if one.dtype.is_floating_point or one.dtype.is_complex
    }


def _places(parts: Sequence[Sequence[Operation]]) -> tuple[dict[int, int], defaultdict[int, set[int]]]:
    """In which part each storage is written, and in which ones it is read."""
    written: dict[int, int] = {}
    read: defaultdict[int, set[int]] = defaultdict(set)
    for k, part in enumerate(parts):
        for op in part:
            written |= dict.fromkeys(op.writes, k)
            for n in op.reads:
                read[n].add(k)
    return written, read


def _number(op: Operation) -> int:
    return int(op.node.meta.get("seq_nr", -1))


def _name(part: Sequence[Operation]) -> str:
    """The modules of the first and the last operation, as a path in the model."""
    paths = [path for op in part if (path := _module_path(op.node))]
    if not paths:
        return part[0].node.name if part else "nothing"
    return paths[0] if paths[0] == paths[-1] else f"{paths[0]}..{paths[-1]}"


def _module_path(node: fx.Node) -> str:
    entries = list((node.meta.get("nn_module_stack") or {}).values())
    return str(entries[-1][0]).removeprefix("L['model']").removeprefix(".") if entries else ""


class Bytes:
    """What the stages of a step hold, by storage.

    `saved` is of each stage what it keeps for its backward, beside its exit and the results; `handed` of each but the
    last the gradients that the next one hands to its backward. `results` and `arriving` are what the last stage returns
    and the gradients that its backward is given. `learning` are bytes, of what learns in each stage; None where not all
    of it has a stage of its own, and a gradient of its own that this stage writes.

    Beside the chain pass `environment`, what other stages read; `early_results`, what is returned before the last stage
    with the gradients that arrive for it; `updates`, new values of buffers; `gradients` that the step returns; and
    `shared_gradients`, parts of gradients that wait for their sum.
    """

    def __init__(self, joint: Joint, sizes: Sizes, stages: Sequence[Stage]) -> None:
        self._sizes, self._stages = sizes, stages
        last = len(stages) - 1
        made, read = _places([one.forward for one in stages])
        born, late = _places([one.backward for one in stages])
        results = made.keys() & held_storages(joint)
        self.results = sorted(n for n in results if made[n] == last)
        self.updates = made.keys() & joint.storages_in(joint.copied)
        own = made.keys() - results - self.updates - {one.exit for one in stages}
        self.environment = {n for n in own if (read[n] | late[n]) - {made[n]}}
        kept = sorted(n for n in own - self.environment if late[n])
        self.saved = [[n for n in kept if made[n] == k] for k in range(len(stages))]

        returned = joint.storages_in(joint.gradients)
        self.gradients = {n for n in returned if joint.storages[n].writer is not None}
        self.learning = self._learning(joint, read, late, born)
        given = joint.storages_in(joint.tangents)
        self.arriving = sorted({n for n in given if max(late[n], default=last) == last})
        self.early_results = {n for n in (*results, *given) if n not in self.results and n not in self.arriving}
        born |= dict.fromkeys(self.arriving, last)
        waiting = {n: k for n, k in born.items() if late[n] and n not in self.gradients}
        crossing = [{n for n, k in waiting.items() if min(late[n]) <= at < k} for at in range(last)]
        handed = [{n for n in found if at in late[n]} or found for at, found in enumerate(crossing)]
        self.shared_gradients = {n for found, some in zip(crossing, handed, strict=True) for n in found - some}
        self.handed = [sorted(some - self.shared_gradients) for some in handed]

    def _learning(
        self, joint: Joint, read: Mapping[int, Set[int]], late: Mapping[int, Set[int]], born: Mapping[int, int]
    ) -> list[int] | None:
        found, seen = [0] * len(self._stages), set[int]()
        for primal, gradient in _learned(joint):
            pair = [*joint.storages_in([primal]), *joint.storages_in([gradient])]
            sizes = set(map(self._sizes.bytes_of, pair))
            if len(pair) != 2 or len(sizes) > 1 or not seen.isdisjoint(pair):
                return None
            stages = {*read.get(pair[0], ()), *late.get(pair[0], ())}
            if stages != {born.get(pair[1])}:
                return None
            seen.update(pair)
            found[stages.pop()] += sizes.pop()
        return found

    def of(self, storages: Iterable[int]) -> int:
        """Bytes of some storages."""
        return self._sizes.total(storages)

    def chain(
        self, inputs: int, costs: Sequence[Cost], resident: dict[str, int], name: str, provenance: dict[str, Any]
    ) -> Chain:
        """The chain, given the bytes of the inputs, the costs of each operation, and what no plan moves."""
        stages, last = self._stages, len(self._stages) - 1
        exits = [[one.exit] if one.exit is not None else self.results for one in stages]
        gradients = [*self.handed, self.arriving]
        activation, gradient = [inputs, *map(self.of, exits)], [0, *map(self.of, gradients)]
        pieces = [[size for n in one if (size := self._sizes.bytes_of(n))] for one in self.saved]
        forward, transient, backward = [], [], []
        for k, one in enumerate(stages):
            leaves, kept = set(exits[k]), {*exits[k], *self.saved[k]}
            forward.append(self._most(one.forward, costs, (), kept) - self.of(kept))
            transient.append(self._most(one.forward, costs, (), leaves) - self.of(leaves))
            held, handed = {*kept, *gradients[k]}, set(gradients[k - 1] if k else ())
            most = self._most(one.backward, costs, held, handed | leaves if k == last else handed)
            backward.append(max(0, most - self.of(held) - self.of(handed)))
        return Chain(
            [sum(costs[op.number].seconds for op in one.forward) for one in stages],
            [sum(costs[op.number].seconds for op in one.backward) for one in stages],
            activation,
            gradient,
            saved=[size + sum(own) for size, own in zip(activation[1:], pieces, strict=True)],
            forward_overhead=forward,
            transient_overhead=transient,
            backward_overhead=backward,
            pieces=pieces,
            names=[one.name for one in stages],
            resident=sum(resident.values()),
            name=name,
            provenance=provenance,
        )

    def _most(
        self, operations: Sequence[Operation], costs: Sequence[Cost], held: Iterable[int], stays: Set[int]
    ) -> int:
        """The most bytes while some operations run.

        What is held at first and what they write is freed after its last reader, but for what stays. Gradients that
        pass beside the chain are not counted.
        """
        last_use = {n: k for k, op in enumerate(operations) for n in (*op.reads, *op.writes)}
        alive = set(held)
        live = most = self.of(alive)
        for k, op in enumerate(operations):
            new = set(op.writes) - self.gradients - self.shared_gradients
            alive |= new
            live += self.of(new)
            most = max(most, live + costs[op.number].workspace)
            gone = {n for n in (*op.reads, *op.writes) if last_use[n] == k} & alive - stays
            alive -= gone
            live -= self.of(gone)
        return most
