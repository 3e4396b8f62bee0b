"""Where each tensor is and when, read from a schedule and its timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from memsched.result import Result
from memsched.show.arena import roles_of, round_end

FATES = ("kept", "fetched", "recomputed", "offloaded", "freed early", "never written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A span of time, in seconds, that a tensor spends in one place.

    On the device since it was first written (or since the start), was fetched, or was written again; or only on the
    host.
    """

    place: str  # "device", "fetched", "recomputed" or "host"
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorUse:
    """What happens to one tensor in one round of a plan."""

    name: str
    role: str  # as `roles_of` tells it
    bytes: int
    # One of FATES. "fetched": it came back from the host. "recomputed": another run of its op than the first writes it.
    # "offloaded": it went to the host and never came back. "freed early": it is gone before the backward begins.
    # "kept": it stays from its first write to its last use.
    fate: str
    # End of the first run that writes it, seconds; None for inputs and weights, and if no run writes it.
    written: float | None
    offloaded: float | None  # end of the first offload, seconds
    prefetched: float | None  # end of the first prefetch, seconds
    freed: float | None  # when the last free released its bytes, seconds; None if the plan never frees it
    runs: int  # how often its op runs; 0 for inputs and weights
    # In the order in which they begin. Stays on the host lie between two on the device; the last one is on the
    # host only if the tensor never comes back.
    stays: tuple[Stay, ...]


class _Scan:
    """One scan of the steps; what is known of each tensor, by name."""

    def __init__(self, result: Result) -> None:
        graph = result.graph
        self.ops: dict[str, dict[str, Any]] = {op["name"]: op for op in graph.ops}
        self.writer: dict[str, str] = {tensor: op["name"] for op in graph.ops for tensor in op["writes"]}
        self.tensors: list[dict[str, Any]] = graph.tensors
        self.roles = roles_of(graph)
        self.runs = dict.fromkeys(self.ops, 0)
        self.written: dict[str, float] = {}
        self.offloaded: dict[str, float] = {}
        self.prefetched: dict[str, float] = {}
        self.freed: dict[str, float] = {}
        self.since = {one["name"]: ("device", 0.0) for one in self.tensors if one["name"] not in self.writer}
        self.stays: dict[str, list[Stay]] = {one["name"]: [] for one in self.tensors}
        self.again: set[str] = set()  # tensors that a run writes which is not the first of its op
        self.early: set[str] = set()  # tensors that are off the device when the backward begins
        self.backward = False
        border = result.schedule.border
        for name in [name for name in self.since if border.get(name) == "host"]:
            del self.since[name]
        starts, ends = result.timeline.start.tolist(), result.timeline.end.tolist()
        for step, start, end in zip(result.schedule.steps, starts, ends, strict=True):
            self._apply(step, start, end)
        until = round_end(result)
        given = [name for name in self.stays if graph.persistent and name not in self.writer]  # in each repetition
        for name in list(self.since):
            if name in given and self.stays[name]:  # until it is freed in the next repetition
                self._end_stay(name, until + self.stays[name].pop(0).end)
            else:
                self._end_stay(name, max(until, self.since[name][1]))
        for stays in self.stays.values():  # a useless prefetch may end after the next stay has begun
            stays.sort(key=lambda stay: stay.start)
        for name in self.offloaded.keys() - given:
            self.stays[name] = _with_host(self.stays[name], self.offloaded[name], until)
        if graph.persistent:
            self.stays = {name: _in_a_period(stays, until) for name, stays in self.stays.items()}
        for name in given:
            self.stays[name] = _beside_the_host(self.stays[name], until)

    def _apply(self, step: dict[str, Any], start: float, end: float) -> None:
        if "run" in step:
            op = self.ops[step["run"]]
            if op["phase"] != "fwd" and not self.backward:
                self.backward = True
                self.early = {name for name in self.freed if name not in self.since}
            self.runs[op["name"]] += 1
            skipped = step.get("skip", ())
            for name in op["writes"]:
                if name not in skipped:
                    again = self.runs[op["name"]] > 1  # of a tape, perhaps, that the first run did not write
                    self.since[name] = ("recomputed" if again else "device", start)
                    self.again |= {name} if again else set()
                    self.written.setdefault(name, end)
        elif "offload" in step:
            self.offloaded.setdefault(step["offload"], end)
        elif "prefetch" in step:
            self.since[step["prefetch"]] = ("fetched", start)
            self.prefetched.setdefault(step["prefetch"], end)
        elif "free" in step:
            self._end_stay(step["free"], end)
            self.freed[step["free"]] = end

    def _end_stay(self, name: str, end: float) -> None:
        place, start = self.since.pop(name)
        self.stays[name].append(Stay(place=place, start=start, end=end))

    def use(self, tensor: dict[str, Any]) -> TensorUse:
        name = tensor["name"]
        return TensorUse(
            name=name,
            role=self.roles[name],
            bytes=int(tensor["size"]),
            fate=self.fate(name),
            written=self.written.get(name),
            offloaded=self.offloaded.get(name),
            prefetched=self.prefetched.get(name),
            freed=self.freed.get(name),
            runs=self.runs.get(self.writer.get(name, ""), 0),
            stays=tuple(self.stays[name]),
        )

    def fate(self, name: str) -> str:
        if name in self.prefetched:
            return "fetched"
        if name not in self.written and name in self.writer:
            return "never written"
        if name in self.again:
            return "recomputed"
        if name in self.offloaded or all(stay.place == "host" for stay in self.stays[name]):
            return "offloaded"
        return "freed early" if name in self.early else "kept"


def _with_host(stays: list[Stay], first: float, until: float) -> list[Stay]:
    """Insert the stays that are only on the host, where a copy exists from `first` on."""
    found: list[Stay] = []
    back = any(stay.place == "fetched" for stay in stays)
    start = first
    for stay, end in zip(stays, [*(stay.start for stay in stays[1:]), 0.0 if back else until], strict=True):
        found.append(stay)
        start = max(start, stay.end)
        if start < end:
            found.append(Stay(place="host", start=start, end=end))
    return found


def _in_a_period(stays: list[Stay], period: float) -> list[Stay]:
    """Of a plan that is repeated: what goes on beyond the end of a period is seen at the start of the next."""
    if not 0.0 < period < math.inf:
        return stays
    found: list[Stay] = []
    for stay in stays:
        copies, rest = divmod(stay.end - stay.start, period)  # of as many repetitions at once
        found += [replace(stay, start=0.0, end=period)] * int(copies)
        first = stay.start % period
        last = first + rest
        found.append(replace(stay, start=first, end=min(last, period)))
        if last > period:
            found.append(replace(stay, start=0.0, end=last - period))
    return sorted((stay for stay in found if stay.start < stay.end), key=lambda stay: stay.start)


def _beside_the_host(stays: list[Stay], period: float) -> list[Stay]:
    """With the spans in which a persistent tensor is on the host alone: whenever it is not on the device."""
    found: list[Stay] = []
    end = 0.0
    for stay in [*stays, Stay(place="host", start=period, end=period)]:
        if stay.start > end:
            found.append(Stay(place="host", start=end, end=stay.start))
        if stay.start < stay.end:
            found.append(stay)
        end = max(end, stay.end)
    return found


def tensor_uses(result: Result) -> list[TensorUse]:
    """What happens to each tensor with bytes, in the order of the graph; of a plan in rounds, in the first round.

    Of a plan that is repeated without end, in one period of its steady state.
    """
    scan = _Scan(result)
    return [scan.use(tensor) for tensor in scan.tensors if tensor["size"] > 0]
