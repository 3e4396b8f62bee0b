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

    def __init__(self, graph: Json, border: dict[str, str], capacity: int) -> None:
        self.ops = {op["name"]: op for op in graph["ops"]}
        self.size = {t["name"]: t["size"] for t in graph["tensors"]}
        self.persistent = {t["name"] for t in graph["tensors"] if t["role"] == "persistent"}
        self.written = {t: op["name"] for op in graph["ops"] for t in op["writes"]}
        self.capacity = capacity
        self.begin = frozenset(t for t in self.size if t not in self.written and border.get(t) != "host")
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

    def fits(self, held: frozenset[str], more: int = 0) -> bool:
        return sum(self.size[t] for t in held) + more <= self.capacity

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
                device = state.device | set(op["writes"])
                if self.fits(device, op["choices"][0]["workspace"]):
                    updates = set(op.get("updates", ()))
                    ran = (*state.ran, name)
                    new = State(
                        (*state.steps, ("run", name)), ran, device, state.host - updates, state.fresh - set(op["reads"])
                    )
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
            if (self.wanted(t, state) or t in self.begin) and self.fits(state.device | {t}):
                fresh = state.fresh | {t} if self.wanted(t, state) else state.fresh
                yield state._replace(steps=(*state.steps, ("prefetch", t)), device=state.device | {t}, fresh=fresh)

    def all(self) -> Iterator[list[Json]]:
        if not self.fits(self.begin):
            return
        open_ = [State((), (), self.begin, self.kept, frozenset())]
        while open_:
            state = open_.pop()
            done = state.device == self.begin and self.kept <= state.host
            if done and set(state.ran) == set(self.ops):
                yield [{verb: name} for verb, name in state.steps]
            if len(state.steps) < 6 * len(self.ops) + 4:
                open_ += self.after(state)


def least_period(graph: ms.Graph, device: ms.Device) -> tuple[float, ms.Schedule | None, int]:
    """The least period of all borders and lists, a schedule that has it, and how many ran before it was proven."""
    document, best, found, runs = graph.to_json(), inf, None, 0
    bound = ms.bounds(graph, device=device).best
    for places in product(("device", "host", "both"), repeat=len(graph.persistent)):
        border = dict(zip(graph.persistent, places, strict=True))
        for steps in Lists(document, border, device.memory - graph.resident).all():
            schedule = ms.Schedule(steps, budget=device.memory, border=border)
            try:
                took = ms.simulate(graph, schedule, device).makespan
            except ms.ScheduleError:
                continue
            runs += 1
            if took < best:
                best, found = took, schedule
            if best <= bound * (1 + 1e-12):
                return best, found, runs
    return best, found, runs
