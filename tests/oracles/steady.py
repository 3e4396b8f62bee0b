"""The rules of docs/schedule.md played literally, for a list that is repeated: exact fractions, one step after another.

Slow on purpose: each step looks at all that came before it. The period is exact where times recur, which they do after
a few repetitions of most small cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import inf
from typing import Any

Json = dict[str, Any]
ZERO = Fraction(0)


class IllegalError(Exception):
    """The list breaks a rule."""


@dataclass
class Copy:
    """A copy of a tensor on the device or the host."""

    ready: Fraction = ZERO
    uses: list[Fraction] = field(default_factory=list)  # when each use ends


class Endless:
    """A list that is repeated; `repeat` plays it once more."""

    def __init__(self, graph: Json, plan: Json, device: Json) -> None:
        self.sizes = {t["name"]: t["size"] for t in graph["tensors"]}
        self.roles = {t["name"]: t["role"] for t in graph["tensors"]}
        self.ops = {op["name"]: op for op in graph["ops"]}
        self.listed = [op["name"] for op in graph["ops"]]
        self.steps, self.machine = plan["steps"], device
        self.border = {t: "device" for t, role in self.roles.items() if role == "persistent"} | plan.get("border", {})
        self.capacity = min(plan["budget"], device["memory"]) - graph["resident"]
        sources = [t for t, role in self.roles.items() if role in ("input", "weight", "persistent")]
        self.begin = {t for t in sources if self.border.get(t) != "host"}
        self.here = {t: Copy() for t in self.begin}
        self.away = {t: Copy() for t, place in self.border.items() if place != "device"}
        self.read_there: dict[str, list[Fraction]] = {t: [] for t in self.sizes}  # ends of reads of its host copies
        self.sent: dict[str, list[Fraction]] = {t: [] for t in self.sizes}  # ends of its offloads
        self.pending: list[tuple[Fraction, int]] = []  # all bytes ever released
        self.starts: list[Fraction] = []  # of all steps so far
        self.ends: list[Fraction] = []
        self.stream: dict[str, Fraction] = {}
        self.issue = ZERO

    def need(self, truth: bool) -> None:
        if not truth:
            raise IllegalError

    def live(self) -> int:
        return sum(self.sizes[t] for t in self.here)

    def seconds(self, verb: str, tensor: str) -> Fraction:
        rate = self.machine["d2h" if verb == "offload" else "h2d"]
        self.need(rate != 0)
        own = ZERO if rate in (inf, "inf") else Fraction(self.sizes[tensor]) / Fraction(rate)
        return Fraction(self.machine["latency"]) + own

    def room(self, start: Fraction, live: int) -> Fraction:
        """E7: the first moment from `start` on at which what is held in time fits, `live` bytes being held in order."""
        self.need(live <= self.capacity)
        for moment in [start, *sorted(done for done, _ in self.pending if done > start)]:
            if live + sum(size for done, size in self.pending if done > moment) <= self.capacity:
                return moment
        raise AssertionError

    def repeat(self) -> None:
        self.need(self.live() <= self.capacity)
        runs: dict[str, int] = {}
        self.kept = {t for t, place in self.border.items() if place != "device"}
        self.away = {t: copy for t, copy in self.away.items() if t in self.kept}
        first = len(self.starts)
        for number, step in enumerate(self.steps):
            verb = next(one for one in ("run", "offload", "prefetch", "free", "update") if one in step)
            starts = [self.issue, *(self.ends[first + k] for k in step.get("after", []))]
            starts += self.ends[: first + number + 1 - len(self.steps)]  # E9
            if verb == "run":
                self.run(step, starts, runs)
            elif verb == "update":
                self.update(step["update"], starts, runs)
            elif verb == "free":
                self.need(step["free"] in self.here)
                copy = self.here.pop(step["free"])
                done = max(*starts, copy.ready, *copy.uses, ZERO)
                self.pending.append((done, self.sizes[step["free"]]))
                self.write(done, done)
            else:
                self.transfer(verb, step[verb], starts)
        self.need(set(runs) == set(self.ops))
        self.need(set(self.here) == self.begin)
        self.need(all(t in self.away for t, place in self.border.items() if place != "device"))

    def write(self, start: Fraction, end: Fraction) -> None:
        self.starts.append(start)
        self.ends.append(end)

    def version(self, op: str, tensor: str) -> int:
        before = self.listed[: self.listed.index(op)]
        return sum(tensor in self.ops[one].get("updates", []) for one in before)

    def in_order(self, name: str, runs: dict[str, int]) -> None:
        for t in self.ops[name]["reads"]:
            if self.roles[t] == "persistent":
                updated = sum(t in self.ops[one].get("updates", []) for one in runs)
                self.need(updated == self.version(name, t))

    def update(self, name: str, starts: list[Fraction], runs: dict[str, int]) -> None:
        """E12: on the host."""
        op = self.ops[name]
        self.need("host_time" in op and name not in runs)
        changed = [*op["updates"], *op["writes"]]
        self.need(all(t in self.away for t in op["reads"]) and not any(t in self.here for t in changed))
        self.in_order(name, runs)
        starts += [self.away[t].ready for t in op["reads"]]
        for t in changed:
            starts += self.read_there[t] + self.sent[t]
        start = max(*starts, self.stream.get("host", ZERO))
        end = start + Fraction(op["host_time"])
        for t in op["reads"]:
            self.read_there[t].append(end)
        for t in changed:
            self.away[t] = Copy(end)
        runs[name] = 1
        self.stream["host"] = end
        self.write(start, end)

    def run(self, step: Json, starts: list[Fraction], runs: dict[str, int]) -> None:
        name, op = step["run"], self.ops[step["run"]]
        self.need(not (op.get("once") and name in runs))
        for t in op["reads"]:
            self.need(t in self.here)
            starts.append(self.here[t].ready)
        self.in_order(name, runs)
        for t in op.get("updates", []):
            starts += self.here[t].uses
        self.need(not any(t in self.here for t in op["writes"]))
        choice = op["choices"][0]
        start = max(*starts, self.stream.get("compute", ZERO))
        asked = sum(self.sizes[t] for t in op["writes"]) + choice["workspace"]
        start = self.room(start, self.live() + asked) if asked else start
        end = start + Fraction(choice["time"])
        for t in op["reads"]:
            self.here[t].uses.append(end)
        for t in op.get("updates", []):
            self.here[t].ready = end
            self.away.pop(t, None)
        for t in op["writes"]:
            self.here[t] = Copy(end)
        self.pending.append((end, choice["workspace"]))
        runs[name] = 1
        self.stream["compute"], self.issue = end, start
        self.write(start, end)

    def transfer(self, verb: str, t: str, starts: list[Fraction]) -> None:
        stream = verb if self.machine["duplex"] else "link"
        starts.append(self.stream.get(stream, ZERO))
        if verb == "offload":
            self.need(t in self.here)
            start = max(*starts, self.here[t].ready, *([] if t in self.away else self.read_there[t]))
            end = start + self.seconds(verb, t)
            self.here[t].uses.append(end)
            self.sent[t].append(end)
            self.away.setdefault(t, Copy(end))
            self.kept = self.kept | {t}
            limit = self.machine["host_memory"]
            self.need(limit is None or sum(self.sizes[one] for one in self.kept) <= limit)
        else:
            self.need(t in self.away and t not in self.here)
            start = max(*starts, self.away[t].ready)
            start = self.room(start, self.live() + self.sizes[t]) if self.sizes[t] else start
            end = start + self.seconds(verb, t)
            self.here[t] = Copy(end)
            self.read_there[t].append(end)
        self.stream[stream] = end
        self.write(start, end)


def period(graph: Json, plan: Json, device: Json, most: int = 60) -> tuple[Fraction | None, Endless]:
    """The exact period, or None if times did not recur within `most` repetitions."""
    endless, n, seen = Endless(graph, plan, device), len(plan["steps"]), dict[Any, tuple[int, Fraction]]()
    for repetition in range(most):
        earlier = max(endless.ends, default=ZERO)
        endless.repeat()
        base = endless.starts[-n]
        # By rule E9 the repetition to come depends on nothing else.
        state = (*(start - base for start in endless.starts[-n:]), earlier - base)
        if state in seen:
            before, moment = seen[state]
            return (base - moment) / (repetition - before), endless
        seen[state] = (repetition, base)
    return None, endless


def lists(graph: Json, border: dict[str, str]) -> Iterator[list[Json]]:
    """All lists of a tiny graph in which no step is useless and each tensor travels once in each direction at most.

    Ops in every order that data and updates allow, once each, on the device or, if they may, on the host. A copy to the
    host is made where there is none, and a tensor is freed when it may be needed again only from the host.
    """
    ops = {op["name"]: op for op in graph["ops"]}
    listed = list(ops)
    persistent = {t["name"] for t in graph["tensors"] if t["role"] == "persistent"}
    begin = {t for t in persistent if border.get(t, "device") != "host"}
    kept = {t for t in persistent if border.get(t, "device") != "device"}

    def ready(name: str, ran: frozenset[str], place: frozenset[str]) -> bool:
        for t in ops[name]["reads"]:
            updates = [one for one in listed if t in ops[one].get("updates", [])]
            earlier = [one for one in updates if listed.index(one) < listed.index(name)]
            if t not in place or [one for one in updates if one in ran] != earlier:
                return False
        return name not in ran

    def go(
        steps: list[Json], ran: frozenset[str], device: frozenset[str], host: frozenset[str]
    ) -> Iterator[list[Json]]:
        if len(ran) == len(ops) and device == begin and kept <= host:
            yield steps
        done = [next(iter(step.items())) for step in steps]
        for name in listed:
            if ready(name, ran, device):
                op = ops[name]
                after = (device | set(op["writes"]), host - set(op.get("updates", [])))
                yield from go([*steps, {"run": name}], ran | {name}, *after)
            if "host_time" in ops[name] and ready(name, ran, host) and not device & set(ops[name]["updates"]):
                yield from go([*steps, {"update": name}], ran | {name}, device, host | set(ops[name]["writes"]))
        for t in sorted(device):
            used = any(t in ops[one]["reads"] for one in listed if one not in ran)
            read_there = any(t in ops[one]["reads"] for one in listed if one not in ran and "host_time" in ops[one])
            if t not in host and (t in persistent or read_there) and ("offload", t) not in done:
                yield from go([*steps, {"offload": t}], ran, device, host | {t})
            if (t in host or (t not in persistent and not used)) and ("free", t) not in done:
                yield from go([*steps, {"free": t}], ran, device - {t}, host)
        for t in sorted(host - device):
            if ("prefetch", t) not in done:
                yield from go([*steps, {"prefetch": t}], ran, device | {t}, host)

    yield from go([], frozenset(), frozenset(begin), frozenset(kept))


def least_period(graph: Json, device: Json) -> tuple[Fraction | float, int]:
    """The least period over all borders and `lists`, and how many of them run; infinite if none does."""
    persistent = [t["name"] for t in graph["tensors"] if t["role"] == "persistent"]
    best: Fraction | float = inf
    runs = 0
    for places in product(("device", "host", "both"), repeat=len(persistent)):
        border = dict(zip(persistent, places, strict=True))
        for steps in lists(graph, border):
            try:
                found, _ = period(graph, {"steps": steps, "budget": device["memory"], "border": border}, device)
            except IllegalError:
                continue
            runs += 1
            best = best if found is None else min(best, found)
    return best, runs
