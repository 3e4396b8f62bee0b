"""Plans of a whole training step as flags make them: combinations of switches, each a list of steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import memsched as ms

_BLOCK = re.compile(r"(.*?\d+)[./]")
SMALL = 1 << 20  # bytes; smaller activations are not worth a transfer
AHEAD = (5, 20, 60)  # runs by which a fetch comes before its reader; the best counts


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What a user can switch on."""

    checkpoint: bool  # each block runs again before its backward, but for what it passes on
    offload: bool  # activations that the backward reads are on the host between
    states: bool  # states of the optimiser are on the host but for their update
    early: bool  # each update as soon as its gradient is there, and not after the backward
    host: bool = False  # all updates run on the host, as soon as their gradients are there

    def __str__(self) -> str:
        names = [name for name in ("checkpoint", "offload", "states", "early", "host") if getattr(self, name)]
        return " + ".join(names) or "plain"


ALL = tuple(
    Flags(checkpoint=one, offload=two, states=three, early=four)
    for one, two, three, four in itertools.product((False, True), repeat=4)
)
HOST = tuple(
    Flags(checkpoint=one, offload=two, states=False, early=False, host=True)
    for one, two in itertools.product((False, True), repeat=2)
)
"""Further ones, for graphs whose updates may run on the host."""


def block_of(name: str) -> str:
    """The block that an op belongs to: its module up to the first number."""
    found = _BLOCK.match(name)
    return found[1] if found else name.split("/")[0]


class _Writer:
    """The list of one combination."""

    def __init__(self, graph: ms.Graph, flags: Flags, ahead: int) -> None:
        self.flags, self.ahead = flags, ahead
        self.ops = {op["name"]: op for op in graph.ops}
        self.size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
        self.role = {tensor["name"]: tensor["role"] for tensor in graph.tensors}
        self.writer = {t: op["name"] for op in graph.ops for t in op["writes"]}
        self.there = [name for name, op in self.ops.items() if flags.host and "host_time" in op]
        self.order = [name for name in (self._early() if flags.early else self.ops) if name not in self.there]
        self.runs = self._with_recomputation() if flags.checkpoint else list(self.order)
        self.away = self._away()

    def _early(self) -> list[str]:
        """Updates right after the last op that they wait for."""
        listed = list(self.ops)
        place = {name: k for k, name in enumerate(listed)}
        readers: dict[str, list[str]] = {}
        for name in listed:
            for tensor in self.ops[name]["reads"]:
                readers.setdefault(tensor, []).append(name)
        after: dict[str, float] = {name: float(k) for k, name in enumerate(listed)}
        for name in listed:
            op = self.ops[name]
            if op["kind"] != "optimizer":
                continue
            known = [self.writer[t] for t in op["reads"] if t in self.writer]
            known += [r for t in op.get("updates", ()) for r in readers[t] if place[r] < place[name]]
            after[name] = max((after[one] for one in known), default=-1.0) + 1e-9 * (1 + place[name])
        return sorted(listed, key=lambda name: after[name])

    def _with_recomputation(self) -> list[str]:
        """Before the first backward op that reads what a block has dropped, all of the block that is needed runs."""
        forward = [name for name in self.order if self.ops[name]["phase"] == "fwd"]
        blocks = [list(names) for _, names in itertools.groupby(forward, block_of)]
        number = {name: k for k, names in enumerate(blocks) for name in names}
        crosses = {
            tensor
            for name in forward
            for tensor in self.ops[name]["reads"]
            if tensor in self.writer and number[self.writer[tensor]] != number[name]
        }
        lost = {
            tensor: number[name]
            for name in forward
            for tensor in self.ops[name]["writes"]
            if tensor not in crosses and not self.ops[name].get("once") and self.size[tensor] > 0
        }
        wanted: dict[int, set[str]] = {}
        for name in self.order:
            for tensor in self.ops[name]["reads"] if self.ops[name]["phase"] != "fwd" else ():
                if tensor in lost:
                    wanted.setdefault(lost[tensor], set()).add(tensor)
        runs: list[str] = []
        back: set[int] = set()
        for name in self.order:
            if self.ops[name]["phase"] != "fwd":
                for block in dict.fromkeys(lost[t] for t in self.ops[name]["reads"] if t in lost):
                    if block not in back:
                        back.add(block)
                        runs += self._again(blocks[block], wanted[block], lost)
            runs.append(name)
        return runs

    def _again(self, block: list[str], wanted: set[str], lost: dict[str, int]) -> list[str]:
        need, again = set(wanted), list[str]()
        for name in reversed(block):
            if need & set(self.ops[name]["writes"]):
                again.append(name)
                need |= {tensor for tensor in self.ops[name]["reads"] if tensor in lost}
        return again[::-1]

    def _away(self) -> set[str]:
        """Tensors that travel."""
        away = {t for t in self.size if self.flags.states and self.role[t] == "persistent" and t.startswith("state")}
        away |= {t for name in self.there for t in self.ops[name]["updates"]}
        if self.flags.offload:
            made = {t for t, op in self.writer.items() if self.ops[op]["phase"] == "fwd" and self.size[t] >= SMALL}
            away |= made & {t for op in self.ops.values() if op["phase"] != "fwd" for t in op["reads"]}
        return away

    def steps(self) -> Iterator[dict[str, Any]]:
        """The list: what is not read before it is written again is freed; what travels comes `ahead` runs before."""
        touches: dict[str, list[int]] = {}
        for k, name in enumerate(self.runs):
            for tensor in (*self.ops[name]["reads"], *self.ops[name]["writes"]):
                touches.setdefault(tensor, []).append(k)
        after: list[list[dict[str, Any]]] = [[] for _ in self.runs]
        before: list[list[dict[str, Any]]] = [[] for _ in self.runs]
        changed = {t for name in self.there for t in self.ops[name]["updates"]}
        read = {t for name in self.there for t in self.ops[name]["reads"]}  # on the host
        backward = (k for k, name in enumerate(self.runs) if self.ops[name]["phase"] != "fwd")
        first_backward = next(k for k in backward if self.ops[self.runs[k]]["kind"] != "optimizer")
        for tensor, at in touches.items():
            if self.role[tensor] == "persistent":
                if tensor in self.away:
                    before[max(0, at[0] - self.ahead)].append({"prefetch": tensor})
                    after[at[-1]] += [] if tensor in changed else [{"offload": tensor}]
                    after[at[-1]].append({"free": tensor})
                continue
            if tensor not in self.writer:
                continue
            writes = [k for k in at if tensor in self.ops[self.runs[k]]["writes"]]
            for begin, end in zip(writes, [*writes[1:], len(self.runs)], strict=True):
                stay = [k for k in at if begin <= k < end]
                back = [k for k in stay if k >= first_backward]
                forth = [k for k in stay if k < first_backward]
                if tensor in self.away and back and forth and len(writes) == 1 and back[0] > forth[-1] + self.ahead:
                    after[forth[-1]] += [{"offload": tensor}, {"free": tensor}]
                    before[max(forth[-1] + 1, back[0] - self.ahead)].append({"prefetch": tensor})
                after[stay[-1]] += [{"offload": tensor}] if tensor in read and stay[-1] == at[-1] else []
                after[stay[-1]].append({"free": tensor})
        for name in self.there:  # in the order of the graph, so that what one of them writes is there
            at = max((touches[t][-1] for t in self.ops[name]["reads"] if t in touches), default=0)
            after[at].append({"update": name})
        for k, name in enumerate(self.runs):
            yield from before[k]
            yield {"run": name}
            yield from after[k]

    def peak(self, steps: list[dict[str, Any]], resident: int) -> int:
        """Bytes that the list needs."""
        live = resident + sum(
            size for t, size in self.size.items() if t not in self.writer and not self._starts_away(t)
        )
        peak = live
        for step in steps:
            if "run" in step:
                op = self.ops[step["run"]]
                live += sum(self.size[t] for t in op["writes"])
                peak = max(peak, live + op["choices"][0]["workspace"])
            elif "prefetch" in step:
                live += self.size[step["prefetch"]]
                peak = max(peak, live)
            elif "free" in step:
                live -= self.size[step["free"]]
        return peak

    def _starts_away(self, tensor: str) -> bool:
        return self.role[tensor] == "persistent" and tensor in self.away


def schedules(graph: ms.Graph) -> list[tuple[str, int, ms.Schedule]]:
    """By combination and distance of the fetches: its name, the bytes that it needs, and its schedule."""
    found = []
    for flags in (*ALL, *(HOST if any("host_time" in op for op in graph.ops) else ())):
        for ahead in AHEAD if flags.offload or flags.states or flags.host else AHEAD[:1]:
            writer = _Writer(graph, flags, ahead)
            steps = list(writer.steps())
            peak = writer.peak(steps, graph.resident)
            border = {t: "host" for t in writer.away if writer.role[t] == "persistent"}
            planner = {"name": str(flags), "ahead": ahead}
            found.append(
                (
                    str(flags),
                    peak,
                    ms.Schedule(
                        steps, budget=peak, graph=graph.name, border=border, planner=planner, rounds=[(graph.batch, 1)]
                    ),
                )
            )
    return found
