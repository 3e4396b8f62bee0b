"""moDNN (Chen et al., DATE 2018), Algorithm 1 for one graph, as slowly and plainly as it can be said.

Contiguous memory is one list of segments. Feature maps go to the lowest address that fits, gradients and workspaces to
the highest. The planner keeps its own clock: the time of every step is worked out when the step is written. An offload
is written into the past, right behind the last transfer of its stream or the step that made the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]
WORKSPACE = ""  # the owner of the workspace's segment


class DoesNotFitError(Exception):
    """The budget is below the need of an op, or of the tensors that are on the device from the start."""


class Memory:
    """Segments (first byte, byte after the last, owner or None) in the order of their addresses, none of them empty."""

    def __init__(self, capacity: int) -> None:
        self.segments: list[tuple[int, int, str | None]] = [(0, capacity, None)] if capacity > 0 else []

    def copy(self) -> Memory:
        other = Memory(0)
        other.segments = list(self.segments)
        return other

    def where(self, owner: str) -> tuple[int, int] | None:
        return next(((low, high) for low, high, name in self.segments if name == owner), None)

    def owners(self) -> list[str]:
        return [name for _, _, name in self.segments if name is not None]

    def first_fit(self, size: int, top: bool) -> int | None:
        """Lowest address with room, or the highest."""
        fits = [(low, high) for low, high, name in self.segments if name is None and high - low >= size]
        if not fits:
            return None
        return fits[-1][1] - size if top else fits[0][0]

    def place(self, owner: str, address: int, size: int) -> None:
        """Take a part of a free segment."""
        end = address + size
        inside = [k for k, (low, high, _) in enumerate(self.segments) if low <= address and end <= high]
        assert size > 0
        assert [self.segments[k][2] for k in inside] == [None]
        low, high, _ = self.segments[inside[0]]
        parts = [(low, address, None), (address, end, owner), (end, high, None)]
        self.segments[inside[0] : inside[0] + 1] = [part for part in parts if part[0] < part[1]]

    def remove(self, owner: str) -> None:
        """Make a block free and join it with free neighbours. What is not here is ignored."""
        joined: list[tuple[int, int, str | None]] = []
        for low, high, name in self.segments:
            left = None if name == owner else name
            if joined and left is None and joined[-1][2] is None:
                joined[-1] = (joined[-1][0], high, None)
            else:
                joined.append((low, high, left))
        self.segments = joined

    def windows(self, size: int, movable: Callable[[str], bool]) -> Iterator[tuple[int, int, list[str]]]:
        """From every start the fewest neighbouring free or movable segments of enough bytes: first, end, blocks."""
        for first in range(len(self.segments)):
            blocks: list[str] = []
            for _, high, name in self.segments[first:]:
                if name is not None:
                    if not movable(name):
                        break
                    blocks.append(name)
                start = self.segments[first][0]
                if high - start >= size:
                    yield start, high, blocks
                    break


class Scheme(NamedTuple):
    """An offloading scheme. The smallest tuple is the best one."""

    delay: float
    moved: int  # bytes to offload + bytes evicted
    haste: float  # minus the next use of the soonest-needed victim
    address: int
    victims: list[str]


class Modnn:
    """A plan for one graph.

    Parameters
    ----------
    graph : memsched-graph/1
    device : memsched-device/1, bandwidths above 0
    budget : bytes, resident included

    Attributes
    ----------
    steps : steps of memsched-plan/1, contiguous
    makespan : seconds, of the planner's own clock
    """

    def __init__(self, graph: Json, device: Json, budget: int) -> None:
        self.ops: list[Json] = graph["ops"]
        self.size: dict[str, int] = {tensor["name"]: tensor["size"] for tensor in graph["tensors"]}
        self.role: dict[str, str] = {tensor["name"]: tensor["role"] for tensor in graph["tensors"]}
        self.reads: list[list[str]] = [list(dict.fromkeys(op["reads"])) for op in self.ops]
        self.writes: list[list[str]] = [list(op["writes"]) for op in self.ops]
        self.base = [min(op["choices"], key=lambda choice: choice["workspace"]) for op in self.ops]
        self.fastest: list[float] = [min(choice["time"] for choice in op["choices"]) for op in self.ops]
        self.latency: float = device.get("latency", 0.0)
        self.rate = {"out": float(device["d2h"]), "in": float(device["h2d"])}
        self.stream = {"out": "D", "in": "H"} if device.get("duplex") else {"out": "link", "in": "link"}
        capacity = min(budget, device["memory"]) - graph.get("resident", 0)
        sources = [name for name in self.size if self.role[name] in ("input", "weight")]
        self._check(capacity, sources)

        self.memory = Memory(capacity)
        self.released: list[tuple[int, int, float]] = []  # ranges that were given back, and when
        self.here = set(sources)  # on the device in the order of the list
        self.ready = dict.fromkeys(sources, 0.0)  # when the device copy is complete
        self.touch = dict.fromkeys(sources, 0.0)  # end of the last step that touches the device copy
        self.used = dict.fromkeys(sources, False)  # since it was made or last fetched
        self.host: dict[str, float] = {}  # when the host copy is complete
        self.maker: dict[str, Json] = {}  # the step that made the device copy
        self.steps: list[Json] = []
        self.busy = dict.fromkeys(self.stream.values(), 0.0)  # end of the last transfer of each stream
        self.last: dict[str, Json] = {}  # the last transfer of each stream
        self.clock = 0.0  # T: end of the last run
        self.issued = 0.0  # start of the last run
        address = 0
        for name in sources:
            if self.size[name]:
                self.memory.place(name, address, self.size[name])
                address += self.size[name]
        for i in range(len(self.ops)):
            self._plan(i)
        self.makespan = max(self.clock, *self.busy.values())

    def _check(self, capacity: int, sources: list[str]) -> None:
        needs = [sum(self.size[name] for name in sources)]
        for i, base in enumerate(self.base):
            needs.append(sum(self.size[name] for name in (*self.reads[i], *self.writes[i])) + base["workspace"])
        if capacity < max(needs):
            raise DoesNotFitError

    # Small questions.

    def _time(self, direction: str, name: str) -> float:
        return self.latency + self.size[name] / self.rate[direction]

    def _next_use(self, name: str, after: int) -> float:
        """Position of the next op that reads a tensor, without end if there is none."""
        return next((k for k in range(after + 1, len(self.ops)) if name in self.reads[k]), math.inf)

    def _finished(self, name: str, i: int) -> bool:
        """May be freed after op i: results that nobody reads and weights stay."""
        result = self.role[name] != "input" and not any(name in reads for reads in self.reads)
        return self.role[name] != "weight" and not result and self._next_use(name, i) == math.inf

    def _at_top(self, owner: str) -> bool:
        return owner == WORKSPACE or self.role[owner] == "gradient"

    def _missing(self, i: int) -> list[str]:
        """Inputs that exist and are off the device."""
        return [name for name in self.reads[i] if name in self.host and name not in self.here]

    def _back_at(self, address: int, size: int) -> float:
        """When the last owner of any byte of a range has given it back."""
        return max((time for low, high, time in self.released if low < address + size and address < high), default=0.0)

    def _needs(self, i: int, memory: Memory) -> list[tuple[str, int]]:
        """What lines 3 to 8 allocate: absent inputs, outputs (larger first), the least workspace."""
        absent = [name for name in self.reads[i] if memory.where(name) is None]
        found = [(name, self.size[name]) for name in sorted(absent, key=lambda name: -self.size[name])]
        found += [(name, self.size[name]) for name in sorted(self.writes[i], key=lambda name: -self.size[name])]
        return [one for one in (*found, (WORKSPACE, self.base[i]["workspace"])) if one[1] > 0]

    # Steps. Each changes the clock as the simulator will.

    def _insert_offload(self, name: str) -> None:
        """Right behind the later of: last transfer of its stream, step that made the tensor (Fig. 3)."""
        stream, step = self.stream["out"], {"offload": name}
        behind = [one for one in (self.last.get(stream), self.maker.get(name)) if one is not None]
        position = max((k for k, one in enumerate(self.steps) if any(one is it for it in behind)), default=-1) + 1
        self.steps.insert(position, step)
        end = max(self.busy[stream], self.ready[name]) + self._time("out", name)
        self.busy[stream] = self.host[name] = end
        self.touch[name] = max(self.touch[name], end)
        self.last[stream] = step

    def _free(self, name: str) -> None:
        self.steps.append({"free": name})
        spot = self.memory.where(name)
        if spot is not None:
            self.released.append((*spot, max(self.issued, self.touch[name])))
            self.memory.remove(name)
        self.here.remove(name)

    def _evict(self, victims: Sequence[str]) -> None:
        """In the order in which they were complete, then of their addresses."""
        spots = {name: self.memory.where(name) for name in victims}
        for name in sorted(victims, key=lambda name: (self.ready[name], spots[name])):
            if name not in self.host:
                self._insert_offload(name)
            self._free(name)

    def _prefetch(self, name: str, address: int) -> None:
        """Fetch into a range that is reserved already."""
        stream, step = self.stream["in"], {"prefetch": name, "at": address}
        start = max(self.busy[stream], self.host[name], self._back_at(address, self.size[name]), self.issued)
        end = start + self._time("in", name)
        self.busy[stream] = self.ready[name] = self.touch[name] = end
        self.used[name] = False
        self.maker[name] = self.last[stream] = step
        self.here.add(name)
        self.steps.append(step)

    def _run(self, i: int, choice: Json, start: float) -> None:
        op, end = self.ops[i], start + choice["time"]
        spots = {name: self.memory.where(name) for name in (*self.writes[i], WORKSPACE)}
        step: Json = {"run": op["name"], "at": {name: spot[0] for name, spot in spots.items() if spot is not None}}
        if len(op["choices"]) > 1:
            step["alg"] = choice["alg"]
        self.steps.append(step)
        self.clock, self.issued = end, start
        for name in self.reads[i]:
            self.touch[name], self.used[name] = end, True
        for name in self.writes[i]:
            self.ready[name] = self.touch[name] = end
            self.used[name], self.maker[name] = False, step
            self.here.add(name)
        scratch = spots[WORKSPACE]
        if scratch is not None:
            self.released.append((*scratch, end))
            self.memory.remove(WORKSPACE)
        for name in self.size:
            if name in self.here and self._finished(name, i):
                self._free(name)

    # Offloading schemes.

    def _scheme(self, owner: str, size: int, protect: set[str], i: int, now: float) -> Scheme | None:
        """The neighbouring blocks to evict for one allocation that delay the least."""
        found = []
        for first, end, victims in self.memory.windows(size, lambda name: self._movable(name, protect, self.used)):
            address = end - size if self._at_top(owner) else first
            stream = self.busy[self.stream["out"]]
            latest = self._back_at(address, size)
            for name in sorted(victims, key=lambda name: self.ready[name]):
                latest = max(latest, self.touch[name])
                if name not in self.host:
                    stream = max(stream, self.ready[name]) + self._time("out", name)
                    latest = max(latest, stream)
            moved = sum(self.size[name] * (1 if name in self.host else 2) for name in victims)
            haste = -min((self._next_use(name, i) for name in victims), default=math.inf)
            found.append(Scheme(max(0.0, latest - now), moved, haste, address, victims))
        return min(found, key=lambda one: one[:4], default=None)

    def _movable(self, name: str, protect: set[str], used: dict[str, bool]) -> bool:
        """Neither needed now (criterion a) nor unused since it was made or fetched (b)."""
        return name != WORKSPACE and name not in protect and used.get(name, False)

    def _find(self, owner: str, size: int, protect: set[str], i: int, now: float) -> Scheme | None:
        """A free segment, else a scheme, else nothing."""
        address = self.memory.first_fit(size, self._at_top(owner))
        if address is not None:
            return Scheme(max(0.0, self._back_at(address, size) - now), 0, -math.inf, address, [])
        return self._scheme(owner, size, protect, i, now)

    # Algorithm 1.

    def _plan(self, i: int) -> None:
        """One op: memory and inputs, algorithm, prefetches for later ops, run."""
        self._prepare(i)
        start = max([self.clock, *(self.ready[name] for name in self.reads[i])])
        for name in self.writes[i]:
            spot = self.memory.where(name)
            if spot is not None:
                start = max(start, self._back_at(spot[0], spot[1] - spot[0]))
        choice = self._choose(i, start)
        spot = self.memory.where(WORKSPACE)
        if spot is not None:
            start = max(start, self._back_at(spot[0], spot[1] - spot[0]))
        self._look_ahead(i, start, choice["time"])
        self._run(i, choice, start)

    def _prepare(self, i: int) -> None:
        """Lines 3 to 8."""
        protect = {*self.reads[i], *self.writes[i]}
        absent = self._missing(i)
        for owner, size in self._needs(i, self.memory):
            found = self._find(owner, size, protect, i, self.clock)
            if found is None:
                return self._defragment(i)
            self._evict(found.victims)
            self.memory.place(owner, found.address, size)
            if owner in absent:
                self._prefetch(owner, found.address)
        return None

    def _defragment(self, i: int) -> None:
        """Everything out, then the inputs from the bottom, the outputs and the workspace."""
        for owner in (*self.writes[i], WORKSPACE):
            self.memory.remove(owner)
        self._evict(self.memory.owners())
        inputs = [name for name in self.reads[i] if self.size[name]]
        address = 0
        for name in sorted(inputs, key=lambda name: -self.size[name]):
            self.memory.place(name, address, self.size[name])
            self._prefetch(name, address)
            address += self.size[name]
        for owner, size in self._needs(i, self.memory):
            found = self.memory.first_fit(size, self._at_top(owner))
            assert found is not None
            self.memory.place(owner, found, size)

    def _choose(self, i: int, start: float) -> Json:
        """Lines 9 to 14: the algorithm of the largest gain, eq. (5). Reserves its workspace."""
        base = self.base[i]
        reserved = self.memory.where(WORKSPACE)
        self.memory.remove(WORKSPACE)
        best: tuple[float, Json, Scheme | None] | None = None
        for choice in self.ops[i]["choices"]:
            if choice is not base and not choice["time"] < base["time"]:
                continue
            size, place = choice["workspace"], None
            if choice is base and reserved is not None:
                wait = max(0.0, self._back_at(reserved[0], size) - start)
                place = Scheme(wait, 0, -math.inf, reserved[0], [])
            elif size > 0:
                place = self._find(WORKSPACE, size, {*self.reads[i], *self.writes[i]}, i, start)
                if place is None:
                    continue
            t_off = 0.0 if place is None else place.delay
            t_pre = self._late(i, start, choice, place)
            gain = base["time"] - choice["time"] - t_off - t_pre
            if best is None or gain > best[0]:
                best = gain, choice, place
        assert best is not None
        _, choice, place = best
        if place is not None:
            self._evict(place.victims)
            self.memory.place(WORKSPACE, place.address, choice["workspace"])
        return choice

    def _expected(self, i: int, s: int, start: float, time: float) -> float:
        """EST(s), when op i starts at `start` and takes `time`."""
        return start + time + sum(self.fastest[i + 1 : s], 0.0)

    def _late(self, i: int, start: float, choice: Json, place: Scheme | None) -> float:
        """T_pre of eq. (5): how much later the next op that needs prefetches starts for want of this workspace."""
        s = next((s for s in range(i + 1, len(self.ops)) if self._missing(s)), None)
        if s is None or place is None:
            return 0.0
        missing, link = self._missing(s), self.busy[self.stream["in"]]
        time: float = choice["time"]
        total = sum(self._time("in", name) for name in missing)
        expected = self._expected(i, s, start, time)
        if not max(link, start + time) + total > expected:  # eq. (4)
            return 0.0
        taken = self.memory.copy()
        for name in place.victims:
            taken.remove(name)
        taken.place(WORKSPACE, place.address, choice["workspace"])
        delayed = [
            name
            for name in missing
            if self.memory.first_fit(self.size[name], False) is not None
            and taken.first_fit(self.size[name], False) is None
        ]
        late = sum(self._time("in", name) for name in delayed)
        return max(0.0, max(link, start + place.delay + time) + late - max(expected, max(link, start) + total))

    def _look_ahead(self, i: int, start: float, time: float) -> None:
        """Lines 15 to 27: prefetches that start before op i."""
        for s in range(i + 1, len(self.ops)):
            missing = self._missing(s)
            if not missing:
                continue
            total = sum(self._time("in", name) for name in missing)
            if not max(self.busy[self.stream["in"]], start + time) + total > self._expected(i, s, start, time):
                return
            protect = {name for u in range(i, s + 1) for name in self.reads[u]} | set(self.writes[i])
            for name in missing:
                found = self._find(name, self.size[name], protect, s, start)
                if found is None or not self._foresee(i, s, name, found):
                    return
                self._evict(found.victims)
                self.memory.place(name, found.address, self.size[name])
                self._prefetch(name, found.address)

    def _foresee(self, i: int, s: int, fetched: str, found: Scheme) -> bool:
        """Line 16: will the ops up to s find room without a defragmentation, if a tensor is fetched now?"""
        memory, used = self.memory.copy(), dict(self.used)
        for name in found.victims:
            memory.remove(name)
        memory.place(fetched, found.address, self.size[fetched])
        used[fetched] = False
        for u in range(i, s + 1):
            protect = {*self.reads[u], *self.writes[u]}
            for owner, size in self._needs(u, memory) if u > i else []:
                address = self._room(memory, owner, size, protect, used)
                if address is None:
                    return False
                memory.place(owner, address, size)
                used[owner] = False
            used |= dict.fromkeys(self.reads[u], True) | dict.fromkeys(self.writes[u], False)
            memory.remove(WORKSPACE)
            for name in memory.owners():
                if self._finished(name, u):
                    memory.remove(name)
        return True

    def _room(self, memory: Memory, owner: str, size: int, protect: set[str], used: dict[str, bool]) -> int | None:
        """First fit, else the eviction of the fewest bytes."""
        address = memory.first_fit(size, self._at_top(owner))
        if address is not None:
            return address
        windows = list(memory.windows(size, lambda name: self._movable(name, protect, used)))
        if not windows:
            return None
        first, end, victims = min(windows, key=lambda one: (sum(self.size[name] for name in one[2]), one[0]))
        for name in victims:
            memory.remove(name)
        return end - size if self._at_top(owner) else first
