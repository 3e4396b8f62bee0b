"""All lists of a tiny repeated problem, activations that travel and ops that run again included, and the least period.

What cannot help is left out: a tensor is freed right after a step that touches it or never, and as soon as it is dead;
an offload comes right after a step that touches its tensor, or after another transfer, which it may be meant to follow;
what is fetched is read before it is freed; no op runs more than twice; each copy to the host is made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import memsched as ms

Json = dict[str, Any]
MOST_RUNS = 2


class State(NamedTuple):
    """What has been listed so far, and what follows from it."""

    steps: tuple[tuple[str, str], ...]
    ran: tuple[str, ...]  # each op as often as it ran
    device: frozenset[str]
    host: frozenset[str]  # with a good copy
    fresh: frozenset[str]  # fetched, and not yet read


class Lists:
    """The lists of one graph for one border."""

    def __init__(self, graph: Json, border: dict[str, str]) -> None:
        self.ops = {op["name"]: op for op in graph["ops"]}
        self.written = {t: op["name"] for op in graph["ops"] for t in op["writes"]}
        names = [t["name"] for t in graph["tensors"]]
        self.begin = frozenset(t for t in names if t not in self.written and border.get(t) != "host")
        self.kept = frozenset(t for t, place in border.items() if place != "device")
        listed = list(self.ops)
        self.before = {
            (name, t): frozenset(one for one in listed[:k] if t in self.ops[one].get("updates", ()))
            for k, name in enumerate(listed)
            for t in self.ops[name]["reads"]
        }

    def wanted(self, t: str, state: State) -> bool:
        """Whether an op that has not run reads the tensor, or one that may run again."""
        left = [name for name in self.ops if name not in state.ran]
        again = [name for name in state.ran if state.ran.count(name) < MOST_RUNS and not self.ops[name].get("once")]
        return any(t in self.ops[name]["reads"] for name in [*left, *again]) and bool(left)

    def may_run(self, name: str, state: State) -> bool:
        op = self.ops[name]
        if state.ran.count(name) >= (1 if op.get("once") else MOST_RUNS) or set(op["writes"]) & state.device:
            return False
        if name in state.ran and not any(
            t in self.ops[o]["reads"] for t in op["writes"] for o in set(self.ops) - set(state.ran)
        ):
            return False
        for t in op["reads"]:
            updates = {one for one in state.ran if t in self.ops[one].get("updates", ())}
            if t not in state.device or updates != self.before[name, t]:
                return False
        return True

    def may_update(self, name: str, state: State) -> bool:
        """Whether the op may run on the host."""
        op = self.ops[name]
        if "host_time" not in op or name in state.ran or set(op["updates"]) & state.device:
            return False
        done = [{one for one in state.ran if t in self.ops[one].get("updates", ())} for t in op["reads"]]
        return set(op["reads"]) <= state.host and done == [self.before[name, t] for t in op["reads"]]

    def freed(self, state: State, touched: set[str]) -> Iterator[State]:
        """The state without some of what the last step touched; what is dead goes."""
        here = sorted((touched & state.device) - state.fresh)
        dead = [t for t in here if t in self.written and not self.wanted(t, state)]
        free = [t for t in here if t not in dead and (t in state.host or t in self.written)]
        for some in chain.from_iterable(combinations(free, k) for k in range(len(free) + 1)):
            gone = [*dead, *some]
            steps = state.steps + tuple(("free", t) for t in gone)
            yield state._replace(steps=steps, device=state.device - set(gone))

    def after(self, state: State) -> Iterator[State]:
        for name in self.ops:
            op = self.ops[name]
            if self.may_run(name, state):
                device, host = state.device | set(op["writes"]), state.host - set(op.get("updates", ()))
                steps, ran = (*state.steps, ("run", name)), (*state.ran, name)
                new = State(steps, ran, device, host, state.fresh - set(op["reads"]))
                yield from self.freed(new, {*op["reads"], *op["writes"]})
            if self.may_update(name, state):
                host = state.host | set(op["writes"])
                yield state._replace(steps=(*state.steps, ("update", name)), ran=(*state.ran, name), host=host)
        last = next((step for step in reversed(state.steps) if step[0] != "free"), ("run", ""))
        used = (
            set(self.ops[last[1]]["reads"]) | set(self.ops[last[1]]["writes"])
            if last[0] == "run" and last[1]
            else set()
        )
        for t in sorted(state.device - state.host):
            soon = not state.steps or last[0] != "run" or t in used
            if soon and (self.wanted(t, state) or t in self.kept):
                new = state._replace(steps=(*state.steps, ("offload", t)), host=state.host | {t})
                yield from self.freed(new, {t})
        for t in sorted(state.host - state.device):
            if self.wanted(t, state) or t in self.begin:
                fresh = state.fresh | {t} if self.wanted(t, state) else state.fresh
                yield state._replace(steps=(*state.steps, ("prefetch", t)), device=state.device | {t}, fresh=fresh)

    def all(self) -> Iterator[tuple[tuple[str, str], ...]]:
        open_ = [State((), (), self.begin, self.kept, frozenset())]
        while open_:
            state = open_.pop()
            done = state.device == self.begin and self.kept <= state.host
            if done and set(state.ran) == set(self.ops):
                yield state.steps
            if len(state.steps) < 6 * len(self.ops) + 4:
                open_ += self.after(state)

    def held(self, steps: tuple[tuple[str, str], ...]) -> Iterator[tuple[frozenset[str], str]]:
        """What is on the device as each step allocates, and the op whose workspace comes on top."""
        here = set(self.begin)
        yield frozenset(here), ""
        for verb, name in steps:
            if verb == "free":
                here.remove(name)
            elif verb == "prefetch":
                here.add(name)
                yield frozenset(here), ""
            elif verb == "run":
                here.update(self.ops[name]["writes"])
                yield frozenset(here), name


class Structure:
    """All lists of graphs that differ in bytes and seconds alone, of all borders, as columns."""

    def __init__(self, graph: Json) -> None:
        names = [t["name"] for t in graph["tensors"]]
        persistent = [t["name"] for t in graph["tensors"] if t["role"] == "persistent"]
        verbs = [(verb, op["name"]) for op in graph["ops"] for verb in ("run", "update")]
        self.column = {
            step: k for k, step in enumerate([*verbs, *((v, t) for t in names for v in ("offload", "prefetch"))])
        }
        self.moments: dict[tuple[frozenset[str], str], int] = {}
        self.lists: list[tuple[dict[str, str], tuple[tuple[str, str], ...]]] = []
        counts, moments = [], []
        for places in product(("device", "host", "both"), repeat=len(persistent)):
            border = dict(zip(persistent, places, strict=True))
            lists = Lists(graph, border)
            for steps in lists.all():
                self.lists.append((border, steps))
                counts.append(np.zeros(len(self.column), np.uint8))
                for step in steps:
                    if step[0] != "free":
                        counts[-1][self.column[step]] += 1
                moments.append({self.moments.setdefault(one, len(self.moments)) for one in lists.held(steps)})
        self.counts = np.array(counts)
        self.there = np.zeros((len(moments), len(self.moments)), bool)
        for k, some in enumerate(moments):
            self.there[k, list(some)] = True

    def busy(self, graph: Json, device: ms.Device) -> npt.NDArray[Any]:
        """By list, the seconds of its busiest stream, less than no period of it; infinite where it does not fit."""
        size = {t["name"]: t["size"] for t in graph["tensors"]}
        ops = {op["name"]: op for op in graph["ops"]}
        capacity = device.memory - graph["resident"]
        need = [sum(size[t] for t in h) + (ops[op]["choices"][0]["workspace"] if op else 0) for h, op in self.moments]
        seconds = {verb: np.zeros(len(self.column)) for verb in ("run", "update", "offload", "prefetch")}
        for (verb, name), k in self.column.items():
            if verb in ("run", "update"):
                took = ops[name]["choices"][0]["time"] if verb == "run" else ops[name].get("host_time", 0)
            else:
                took = device.latency + size[name] / (device.d2h if verb == "offload" else device.h2d)
            seconds[verb][k] = took
        run, update, out, back = (self.counts @ one for one in seconds.values())
        streams = [run, update, *([out, back] if device.duplex else [out + back])]
        busy = np.max(streams, axis=0)
        busy[self.there[:, np.array(need) > capacity].any(axis=1)] = inf
        return busy


_known: dict[Any, Structure] = {}


def least_period(graph: ms.Graph, device: ms.Device) -> tuple[float, ms.Schedule | None, int]:
    """The least period of all borders and lists, a schedule that has it, and how many ran before it was proven.

    The least busy lists come first; those that are busy for longer than the best takes cannot be better.
    """
    document, best, found, runs = graph.to_json(), inf, None, 0
    key = repr(
        [(op["name"], op["reads"], op["writes"], op.get("updates"), "host_time" in op) for op in document["ops"]]
    )
    if key not in _known:
        _known[key] = Structure(document)
    structure = _known[key]
    busy = structure.busy(document, device)
    for k in np.argsort(busy, kind="stable"):
        if busy[k] >= best * (1 - 1e-12):
            break
        border, steps = structure.lists[k]
        schedule = ms.Schedule([{verb: name} for verb, name in steps], budget=device.memory, border=border)
        took = ms.simulate(graph, schedule, device).makespan
        runs += 1
        if took < best:
            best, found = took, schedule
    return best, found, runs
