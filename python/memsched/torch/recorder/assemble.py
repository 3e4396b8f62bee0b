"""From what a step did to its storages, operation by operation, to a graph in which each tensor is written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from memsched._core import Graph
from memsched.torch.recorder.control import Effects, control_edges

_NAMES_SHOWN = 3  # of operations that joined another one


@dataclass(slots=True, kw_only=True)
class Storage:
    """A block of memory that tensors and their views share."""

    bytes: int
    born: int  # the event that made it; -1: it was there before the step
    died: int | None = None  # how many events had happened when its last tensor was dropped; None: it outlives the step
    resident: bool = False  # whether it stays for good and is no tensor of the graph


@dataclass(slots=True, kw_only=True)
class Event:
    """One operation of the dispatcher that computes; views are none."""

    kind: str
    path: str = ""  # the module that called it
    layer: int = 0
    backward: bool  # whether the first backward had begun
    once: bool  # whether it must not be repeated
    seconds: float = 0.0
    reads: list[int]  # storages that are not resident, each once; those that are written in place are among them
    changes: list[int] = field(default_factory=list)
    makes: list[int] = field(default_factory=list)
    random: bool = False  # whether it draws random numbers, which must not be repeated
    resident_reads: list[int] = field(default_factory=list)  # storages that are
    resident_changes: list[int] = field(default_factory=list)
    parts: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """How it splits where it treats lists element by element: what each part changes, and what it reads."""
    optimizer: bool = False  # whether an optimiser did it
    node: int | None = None  # the autograd node that ran when it happened
    sum_so_far: int | None = None  # the storage that `sum_in_place` may write the result to
    again: int | None = None
    """Where `once` may be overruled: bytes that another run needs for what it must not write twice."""


@dataclass(slots=True)
class Tape:
    """Everything that a recorder wrote down; `storages` are numbered as in the events."""

    events: list[Event] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)

    def resident_bytes(self) -> int:
        """Of the storages that are no tensors of the graph."""
        return sum(storage.bytes for storage in self.storages if storage.resident)

    def eager_peak(self) -> int:
        """The largest number of bytes alive when an operation had just run, resident included."""
        change = [0] * (len(self.events) + 1)
        for storage in self.storages:
            if not storage.resident:
                change[max(storage.born, 0)] += storage.bytes
                change[len(self.events) if storage.died is None else storage.died] -= storage.bytes
        live = peak = 0
        for step in change[:-1]:
            live += step
            peak = max(peak, live)
        return self.resident_bytes() + peak


@dataclass(slots=True)
class _Tensor:
    bytes: int
    role: str
    writer: int  # -1: an input
    reader: int = -1  # the last op that reads it


@dataclass(slots=True)
class _Op:
    event: Event
    reads: list[int]
    writes: list[int]
    control: list[int] = field(default_factory=list)  # tensors without bytes that it writes
    joined: list[Event] = field(default_factory=list)
    seconds: float = 0.0
    once: bool = False


def assemble(
    tape: Tape, name: str, batch: int, *, reorderable: bool = False, persistent: bool = False
) -> tuple[Graph, tuple[str, ...]]:
    """The graph of a tape, and the names of the ops while which a tensor exists twice, though it did not.

    A storage is one tensor until it is written in place. Such a write joins the op that made what it writes or what it
    adds to it, where nobody read the half-made tensor in between: the bytes then exist once, as they did. Where that is
    not so, the op reads the old tensor and writes a new one, which holds the bytes once more while it runs.

    A tensor that is made, never read and dropped is workspace of its op, for a graph never frees what nobody reads.

    Where the ops may be reordered, tensors without bytes keep those in order that no other tensor does. With
    `persistent`, what an optimiser changes is no resident byte, but a persistent tensor.
    """
    builder = _Builder(tape)
    for index, event in enumerate(tape.events):
        builder.add(index, event)
    builder.end()
    if reorderable:
        builder.control()
    return builder.graph(name, batch, builder.changed_by_optimizer() if persistent else {})


class _Builder:
    """Ops and tensors so far; `current` has the tensor that is now in each storage."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.ops: list[_Op] = []
        self.tensors: list[_Tensor] = []
        self.current: dict[int, int] = {}
        self.doubled: set[int] = set()
        self.last_use: dict[int, int] = {}
        for index, event in enumerate(tape.events):
            for storage in event.reads:
                self.last_use[storage] = index

    def add(self, index: int, event: Event) -> None:
        """One event: an op of its own, or a part of an earlier one."""
        if not event.changes:
            self.emit(event, event.reads, [])
            return
        for storage in event.changes:
            self.keep_old(storage)
        found = None if event.makes else self.place(index, event)
        if found is not None:
            self.join(index, event, *found)
        elif event.parts and not event.makes:
            for changes, reads in event.parts:
                self.emit(event, reads, changes, share=1 / len(event.parts))
        else:
            self.emit(event, event.reads, event.changes)

    def tensor(self, storage: int) -> int:
        """The tensor that is in a storage; what nobody made is an input."""
        if storage not in self.current:
            self.current[storage] = self.new(storage, "input", -1)
        return self.current[storage]

    def new(self, storage: int, role: str, writer: int) -> int:
        self.tensors.append(_Tensor(self.tape.storages[storage].bytes, role, writer))
        return len(self.tensors) - 1

    def read(self, op: int, tensors: Iterable[int]) -> None:
        for tensor in tensors:
            if tensor not in self.ops[op].reads and tensor not in self.ops[op].writes:
                self.ops[op].reads.append(tensor)
                self.tensors[tensor].reader = max(self.tensors[tensor].reader, op)

    def emit(self, event: Event, reads: Iterable[int], changes: Iterable[int], share: float = 1.0) -> None:
        """An op of its own; what it changes becomes a new tensor."""
        op = len(self.ops)
        self.ops.append(_Op(event, [], [], seconds=event.seconds * share, once=event.once))
        self.read(op, [self.tensor(storage) for storage in reads])
        role = "gradient" if event.backward else "activation"
        for storage in [*changes, *(event.makes if share == 1.0 else [])]:
            if storage in self.current:
                self.doubled.add(op)
            self.current[storage] = self.new(storage, role, op)
            self.ops[op].writes.append(self.current[storage])

    def keep_old(self, storage: int) -> None:
        """Where a clone saved what is now changed, the old tensor is as good a clone: the change gets the new bytes."""
        old = self.tensor(storage)
        reader = self.tensors[old].reader
        if reader < 0 or self.ops[reader].event.kind != "clone" or self.ops[reader].joined:
            return
        made, writes = self.ops[reader].event.makes, self.ops[reader].writes
        if len(made) != 1 or self.current[made[0]] != writes[0] or self.tensors[writes[0]].reader >= 0:
            return
        if self.tensors[writes[0]].bytes == self.tensors[old].bytes:
            self.current[storage], self.current[made[0]] = writes[0], old

    def place(self, index: int, event: Event) -> tuple[int, dict[int, int]] | None:
        """The op that an in-place event can join, and by storage the tensor that then holds the result; or None."""
        options = {storage: self.options(index, event, storage) for storage in event.changes}
        for op in sorted(set.intersection(*map(set, options.values())), reverse=True):
            held = {storage: options[storage][op] for storage in event.changes}
            if len(set(held.values())) == len(held) and self.may_move(event, op):
                return op, held
        return None

    def options(self, index: int, event: Event, storage: int) -> dict[int, int]:
        """By op that a change of one storage can join: the tensor that would hold the result."""
        old = self.tensor(storage)
        writer = self.tensors[old].writer
        options = {writer: old} if writer >= 0 and self.tensors[old].reader <= writer else {}
        for other in event.reads:
            # An operand of the same size that nobody needs any more can take the result: the bytes are the same.
            made = self.tensors[self.tensor(other)]
            spent = self.last_use[other] == index and self.tape.storages[other].died is not None
            fits = made.bytes == self.tensors[old].bytes and made.reader <= made.writer and writer < made.writer
            if other not in event.changes and spent and fits:
                options.setdefault(made.writer, self.tensor(other))
        return options

    def may_move(self, event: Event, op: int) -> bool:
        """Whether the event may happen right after `op`: what it reads is there, and effects keep their order."""
        if any(self.tensors[self.tensor(storage)].writer > op for storage in event.reads):
            return False
        later = self.ops[op + 1 :]
        if event.once:
            return not later
        return not (event.resident_reads and any(other.once for other in later))

    def join(self, index: int, event: Event, op: int, held: dict[int, int]) -> None:
        """Make the event a part of an op that ran before."""
        before = {storage: self.tensor(storage) for storage in event.reads}
        replaced = [before[storage] for storage, tensor in held.items() if before[storage] != tensor]
        self.read(op, before.values())
        self.current.update(held)
        # Between the two, memory is as it was: what nobody needs after the event stays until its old place.
        if op < len(self.ops) - 1:
            # Inputs are freed after their last use although the caller holds them; results stay until the end anyway.
            freed = [s for s in before if self.tape.storages[s].died is not None or self.tape.storages[s].born < 0]
            spent = [s for s in freed if self.last_use[s] == index]
            gone = [self.current[s] for s in spent if s in held or before[s] not in held.values()]
            self.read(len(self.ops) - 1, gone + replaced)
        joined = self.ops[op]
        joined.joined.append(event)
        joined.seconds += event.seconds
        joined.once = joined.once or event.once

    def end(self) -> None:
        """A last op without cost reads the results: what the step made or changed, and the caller still holds."""
        results = [
            number
            for number, tensor in self.current.items()
            if (self.tape.storages[number].born >= 0 or self.tensors[tensor].writer >= 0)
            and self.tape.storages[number].died is None
        ]
        if results:
            layer = max(event.layer for event in self.tape.events)
            self.emit(Event(kind="end", layer=layer, backward=True, once=True, reads=results), results, [])

    def control(self) -> None:
        """A tensor without bytes from each op that others must follow without reading from it."""
        effects = []
        for op in self.ops:
            events = [op.event, *op.joined]
            writers = (self.tensors[tensor].writer for tensor in op.reads)
            effects.append(
                Effects(
                    needs=[writer for writer in writers if writer >= 0],
                    reads={storage for event in events for storage in event.resident_reads},
                    changes={storage for event in events for storage in event.resident_changes},
                    random=any(event.random for event in events),
                )
            )
        ends = bool(self.ops) and self.ops[-1].event.kind == "end"
        tensors = dict[int, int]()
        for number, earlier in enumerate(control_edges(effects, last=len(self.ops) - 1 if ends else None)):
            for other in earlier:
                if other not in tensors:
                    role = "gradient" if self.ops[other].event.backward else "activation"
                    tensors[other] = len(self.tensors)
                    self.tensors.append(_Tensor(0, role, other))
                    self.ops[other].control.append(tensors[other])
                self.read(number, [tensors[other]])

    def changed_by_optimizer(self) -> dict[int, str]:
        """Names of the resident storages that an optimiser changes; other ops read "parameter:0", but not "state:1"."""
        events = [event for op in self.ops for event in (op.event, *op.joined)]
        read = {storage for event in events if not event.optimizer for storage in event.resident_reads}
        changed = dict.fromkeys(storage for event in events if event.optimizer for storage in event.resident_changes)
        return {storage: f"{'parameter' if storage in read else 'state'}:{k}" for k, storage in enumerate(changed)}

    def graph(self, name: str, batch: int, persistent: dict[int, str]) -> tuple[Graph, tuple[str, ...]]:
        """Names for everything, and the graph."""
        labels = unique(_label(op) for op in self.ops)
        names = dict[int, str]()  # of the tensors; what nobody reads has none
        for number, tensor in enumerate(self.tensors):
            if tensor.writer < 0:
                names[number] = f"input:{len(names)}"
        for label, op in zip(labels, self.ops, strict=True):
            read = [tensor for tensor in op.writes if self.tensors[tensor].reader >= 0]
            names.update({tensor: f"{label}:{position}" for position, tensor in enumerate(read)})
            names.update(dict.fromkeys(op.control, f"{label}:done"))
        tensors = [
            {"name": label, "size": self.tensors[number].bytes, "role": self.tensors[number].role}
            for number, label in names.items()
        ]
        kept = {storage: self.tape.storages[storage].bytes for storage in persistent}
        tensors += [{"name": persistent[k], "size": size, "role": "persistent"} for k, size in kept.items()]
        ops = [self.document(label, op, names, persistent) for label, op in zip(labels, self.ops, strict=True)]
        graph = Graph(tensors, ops, name=name, batch=batch, resident=self.tape.resident_bytes() - sum(kept.values()))
        return graph, tuple(labels[op] for op in sorted(self.doubled))

    def document(self, label: str, op: _Op, names: dict[int, str], persistent: dict[int, str]) -> dict[str, Any]:
        """One op in the form of the graph's JSON."""
        workspace = sum(self.tensors[tensor].bytes for tensor in op.writes if tensor not in names)
        events = [op.event, *op.joined]
        workspace += sum(event.again or 0 for event in events)
        updates = [persistent[k] for event in events for k in event.resident_changes if k in persistent]
        kept = [persistent[k] for event in events for k in event.resident_reads if k in persistent]
        document = {
            "name": label,
            "phase": "bwd" if op.event.backward else "fwd",
            "kind": "optimizer" if op.event.optimizer else op.event.kind,
            "layer": op.event.layer,
            "reads": [*(names[tensor] for tensor in op.reads), *dict.fromkeys(kept + updates)],
            "writes": [names[tensor] for tensor in [*op.writes, *op.control] if tensor in names],
            "choices": [{"alg": "default", "time": op.seconds, "workspace": workspace}],
            "once": any(event.once and event.again is None for event in events),
        }
        return {**document, "once": True, "updates": list(dict.fromkeys(updates))} if updates else document


def _label(op: _Op) -> str:
    """Such as "layer1.0.bn1/native_batch_norm+relu_"."""
    joined = [kind for kind in dict.fromkeys(event.kind for event in op.joined) if kind != op.event.kind]
    shown = [op.event.kind, *joined[:_NAMES_SHOWN], *(["..."] if len(joined) > _NAMES_SHOWN else [])]
    return f"{op.event.path}/{'+'.join(shown)}" if op.event.path else "+".join(shown)


def unique(labels: Iterable[str]) -> list[str]:
    """The second of a name is name#2."""
    seen: Counter[str] = Counter()
    unique = []
    for label in labels:
        seen[label] += 1
        unique.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return unique
