"""From a recorded step to a chain: one stage for every storage that may leave.

A storage may leave once the forward holds it no longer. Stage k is the work from where storage k - 1 was let go to
where storage k is; what lives meanwhile beside the storages let go before is its overhead. Its backward begins where
the backward first reads storage k or an earlier one, so that the backwards of the stages follow one another in the
reverse order, whatever the order in which autograd reads. A storage that lives on after its stage's backward is part of
the overheads of the stages that follow. A last stage without a storage stands for the rest of the forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsched._core import Chain
from memsched.torch.hooked.record import RecordedStep

_STAYS = 0.01
"""The smallest storages stay on the device, up to this share of all bytes: moving them costs more than it frees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What a step is recognised by, and where in it the stages end.

    Attributes
    ----------
    saves : tuple of (int, int)
        For every tensor that the forward saves, in order, the number of its storage and its bytes; (-1, 0) for tensors
        that are kept as they are.
    ends : tuple of int, shape [n]
        The save with which the forward of each stage ends; len(saves) is the end of the forward.
    numbers : tuple of int, shape [n - 1]
        The storage of each stage but the last.
    """

    saves: tuple[tuple[int, int], ...]
    ends: tuple[int, ...]
    numbers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"saves": [list(one) for one in self.saves], "ends": list(self.ends), "numbers": list(self.numbers)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Flow:
        """What `to_json` wrote."""
        return cls(
            saves=tuple((int(number), int(nbytes)) for number, nbytes in document["saves"]),
            ends=tuple(map(int, document["ends"])),
            numbers=tuple(map(int, document["numbers"])),
        )


class Stages:
    """The columns of the chain of a recorded step.

    Attributes
    ----------
    flow : Flow
    environment : int
        Bytes alive at the end of the forward that do not move, beside the results.
    """

    def __init__(self, step: RecordedStep) -> None:
        self._step, self._marks = step, step.marks
        self._end = next(i for i, mark in enumerate(step.marks) if mark.kind == "forward")
        self._released = {number: i for i, mark in enumerate(step.marks) for number in mark.released}
        self._read: dict[int, int] = {}
        for i, mark in enumerate(step.marks):
            if mark.kind == "read":
                self._read.setdefault(mark.number, i)
        self._last = len(step.marks)
        self._numbers = self._movable()
        self._sizes = [*(step.sizes[number] for number in self._numbers), 0]
        self._staying = [number for number in self._released if number not in set(self._numbers)]
        ends = [*(self._released[number] for number in self._numbers), self._end]
        self.flow = Flow(
            saves=tuple((mark.number, mark.nbytes) for mark in step.marks[: self._end]),
            ends=tuple(ends),
            numbers=tuple(self._numbers),
        )
        self.environment = step.marks[self._end].after + self._kept(self._end + 1) - step.outputs
        self._forward_time, self._forward_need = self._forward(ends)
        self._backward_time, self._backward_need = self._backward()

    def chain(self, *, resident: int, counted: int, name: str, provenance: dict[str, Any]) -> Chain:
        """The chain.

        Parameters
        ----------
        resident : int
            Bytes that no plan moves.
        counted : int
            Those among them that the recording saw as living beside the saved storages.
        """
        sizes, names = self._sizes, self._step.names
        forward, backward = (
            [max(0, need - size - counted) for need, size in zip(needs, sizes, strict=True)]
            for needs in (self._forward_need, self._backward_need)
        )
        boundaries = [0] * (len(sizes) + 1)
        return Chain(
            self._forward_time,
            self._backward_time,
            boundaries,
            boundaries,
            saved=sizes,
            forward_overhead=forward,
            backward_overhead=backward,
            pieces=[[size] if size else [] for size in sizes],
            names=[*(f"{names[n]} (storage {n})" for n in self._numbers), "the rest"],
            resident=resident,
            name=name,
            provenance=provenance,
        )

    def _movable(self) -> list[int]:
        """The storages that may leave, in the order in which the forward lets them go.

        Of those that it lets go at once, the one that the backward reads last is the first.
        """
        outlive = [n for n in self._released if self._died(n) > self._end]
        budget = _STAYS * sum(self._step.sizes[n] for n in outlive)
        moved = []
        for number in sorted(outlive, key=lambda n: self._step.sizes[n]):
            budget -= self._step.sizes[number]
            if budget < 0:
                moved.append(number)
        return sorted(moved, key=lambda n: (self._released[n], -self._read.get(n, self._last), n))

    def _died(self, number: int) -> int:
        return self._step.died.get(number, self._last)

    def _kept(self, mark: int) -> int:
        """Bytes that the recording put away before a mark, and that a step that follows the plan has on the device."""
        sizes = self._step.sizes
        return sum(
            sizes[n]
            for n in self._staying
            if self._released[n] < mark <= min(self._died(n), self._read.get(n, self._last))
        )

    def _forward(self, ends: list[int]) -> tuple[list[float], list[int]]:
        """Seconds of every forward, and the most bytes that live during it beside the storages let go before."""
        seconds, needs = [], []
        start = 0
        for k, end in enumerate(ends):
            work = range(start, end + 1)
            seconds.append(sum(self._marks[i].seconds for i in work))
            if work:
                needs.append(max(self._marks[i].most + self._kept(i) for i in work))
            else:
                # Let go together with the one before: they leave one by one, and no work is done meanwhile.
                together = sum(size for size, other in zip(self._sizes[k:], ends[k:], strict=True) if other == end)
                needs.append(self._marks[end].after + self._kept(end + 1) + together)
            start = end + 1
        return seconds, needs

    def _backward(self) -> tuple[list[float], list[int]]:
        """Seconds of every backward, and the most bytes that live during it beside the storages of stages before."""
        n = len(self._numbers)
        stage_of = {number: k for k, number in enumerate(self._numbers)}
        seconds, needs = [0.0] * (n + 1), [0] * (n + 1)
        current = n
        for i in range(self._end + 1, self._last):
            mark = self._marks[i]
            if i > self._end + 1:  # what stands before is the caller's loss
                seconds[current] += mark.seconds
            needs[current] = max(needs[current], mark.most + self._kept(i) + self._waiting(current, i))
            k = stage_of.get(mark.number, n) if mark.kind == "read" else n
            for begun in range(current - 1, k - 1, -1):
                needs[begun] = max(needs[begun], mark.before + self._kept(i) + self._waiting(begun, i))
            current = min(current, k)
        return seconds, needs

    def _waiting(self, k: int, mark: int) -> int:
        """Bytes of the storages of stage k and later that the recording had put away still when it came to a mark."""
        return sum(
            size
            for number, size in zip(self._numbers[k:], self._sizes[k:], strict=False)
            if mark <= min(self._died(number), self._read.get(number, self._last))
        )
