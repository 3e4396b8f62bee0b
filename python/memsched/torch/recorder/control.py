"""Which operations must keep their order though no tensor of the graph passes between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What one op does beside its tensors."""

    needs: Sequence[int]  # earlier ops that made what it reads
    reads: set[int] = field(default_factory=set)  # storages that are no tensors of the graph
    changes: set[int] = field(default_factory=set)  # those that are written in place
    random: bool = False  # whether it draws random numbers


def control_edges(ops: Sequence[Effects], *, last: int | None = None) -> list[list[int]]:
    """By op: the earlier ops that it must follow, beside those that it reads from.

    In every order that respects these and the tensors, each storage sees the same reads and writes in the same order,
    but for reads between two writes, and random numbers are drawn in the same order. No edge follows from the tensors
    and the other edges.

    The ops are in the order in which they ran; `last` is one that must follow all others. Each list increases.
    """
    history = _History()
    follow: list[list[int]] = []
    before: list[int] = []  # bit sets of ancestors
    followed = 0
    for index, op in enumerate(ops):
        wanted = history.conflicts(index, op)
        if index == last:
            wanted |= {other for other in range(index) if not followed >> other & 1}
        known, edges = 0, []
        for other in op.needs:
            known |= before[other] | 1 << other
        for other in sorted(wanted, reverse=True):  # what an edge implies comes before it
            if not known >> other & 1:
                edges.append(other)
                known |= before[other] | 1 << other
        follow.append(edges[::-1])
        before.append(known)
        followed |= known
    return follow


class _History:
    """Who touched what last."""

    def __init__(self) -> None:
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}  # since the last write
        self.drawn: int | None = None

    def conflicts(self, index: int, op: Effects) -> set[int]:
        """The nearest earlier ops whose order with this one matters; then the op is one of them."""
        found = {self.writer[storage] for storage in op.reads | op.changes if storage in self.writer}
        for storage in op.changes:
            found.update(self.readers.get(storage, ()))
            self.writer[storage], self.readers[storage] = index, []
        for storage in op.reads - op.changes:
            self.readers.setdefault(storage, []).append(index)
        if op.random:
            found |= set() if self.drawn is None else {self.drawn}
            self.drawn = index
        return found
