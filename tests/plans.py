"""Graphs, devices and plans as JSON documents: by hand, and random ones that are legal by construction."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]


def tensor(name: str, size: int, role: str = "activation") -> Json:
    return {"name": name, "size": size, "role": role}


def op(name: str, reads: list[str], writes: list[str], time: float, workspace: int = 0, **more: Any) -> Json:
    choices = more.pop("choices", [{"alg": "default", "time": time, "workspace": workspace}])
    return {
        "name": name,
        "phase": "fwd",
        "kind": "op",
        "layer": 1,
        "reads": reads,
        "writes": writes,
        "choices": choices,
        **more,
    }


def graph(tensors: list[Json], ops: list[Json], resident: int = 0) -> Json:
    return {
        "format": "memsched-graph/1",
        "name": "g",
        "batch": 1,
        "resident": resident,
        "tensors": tensors,
        "ops": ops,
    }


def plan(steps: list[Json], budget: int, **more: Any) -> Json:
    document = {
        "format": "memsched-plan/1",
        "planner": {"name": "by hand"},
        "graph": "g",
        "chunk": None,
        "rounds": [[1, 1]],
        "budget": budget,
        "memory": "fluid",
        "steps": steps,
    }
    return {**document, **more}


def device(memory: int = 1000, d2h: Any = 1.0, h2d: Any = 1.0, **more: Any) -> Json:
    defaults = {"duplex": False, "latency": 0.0, "host_memory": None, "name": "d"}
    return {"format": "memsched-device/1", "memory": memory, "d2h": d2h, "h2d": h2d, **defaults, **more}


class Writer:
    """Writes a random legal plan: whatever is dropped has a host copy or can be computed again."""

    def __init__(self, document: Json, rnd: Any, contiguous: bool) -> None:
        self.rnd, self.contiguous = rnd, contiguous
        self.steps: list[Json] = []
        self.sizes = {t["name"]: t["size"] for t in document["tensors"]}
        self.producer = {t: o for o in document["ops"] for t in o["writes"]}
        self.here: dict[str, tuple[int, int]] = {}
        self.host: set[str] = set()
        self.need = self.top = 0
        for t in document["tensors"]:
            if t["role"] in ("input", "weight"):
                self.here[t["name"]] = (self.top, self.top + t["size"])
                self.top += t["size"]
        self.need = self.top
        for o in document["ops"]:
            self.run(o)
            for _ in range(rnd.randint(0, 3)):
                self.wander()

    def spot(self, size: int, others: list[tuple[int, int]]) -> tuple[int, int]:
        lows = sorted({0, *(high for _, high in others)})
        low = next(a for a in lows if all(max(a, p) >= min(a + size, q) for p, q in others))
        self.top = max(self.top, low + size)
        return low, low + size

    def emit(self, step: Json, names: list[str], workspace: int = 0) -> None:
        others = list(self.here.values())
        spots = {}
        for name in names:
            spots[name] = self.spot(self.sizes[name], others)
            others.append(spots[name])
        room = self.spot(workspace, others)
        live = sum(high - low for low, high in others)
        self.need = max(self.need, live + workspace)
        self.here |= spots
        if self.contiguous and names and "prefetch" in step:
            step["at"] = spots[names[0]][0]
        elif self.contiguous and "run" in step:
            step["at"] = {name: low for name, (low, _) in spots.items()} | {"": room[0]}
        if self.steps and self.rnd.random() < 0.15 and "free" not in step:
            step["after"] = [self.rnd.randrange(len(self.steps))]
        self.steps.append(step)

    def drop(self, name: str) -> None:
        del self.here[name]
        self.steps.append({"free": name})

    def run(self, o: Json, wanted: str | None = None) -> None:
        for name in o["reads"]:
            self.ensure(name)
        tape = o.get("tape", [])
        skip = bool(tape) and not o.get("once") and wanted not in tape and self.rnd.random() < 0.5
        writes = [name for name in o["writes"] if not (skip and name in tape)]
        for name in writes:
            if name in self.here:
                self.drop(name)
        choice = self.rnd.choice(o["choices"])
        workspace = o.get("skip_workspace", choice["workspace"]) if skip else choice["workspace"]
        step: Json = {"run": o["name"]}
        if len(o["choices"]) > 1:
            step["alg"] = choice["alg"]
        if skip:
            step["skip"] = list(tape)
        self.emit(step, writes, workspace)

    def ensure(self, name: str) -> None:
        if name in self.here:
            return
        again = name in self.producer and not self.producer[name].get("once")
        if name in self.host and (not again or self.rnd.random() < 0.7):
            self.emit({"prefetch": name}, [name])
        else:
            self.run(self.producer[name], name)

    def wander(self) -> None:
        name = self.rnd.choice(sorted(self.sizes))
        if name in self.here and self.rnd.random() < 0.5:
            self.host.add(name)
            self.emit({"offload": name}, [])
        again = name in self.producer and not self.producer[name].get("once")
        if name in self.here and (name in self.host or again) and self.rnd.random() < 0.7:
            self.drop(name)
        elif name not in self.here and name in self.host:
            self.emit({"prefetch": name}, [name])


@st.composite
def instances(draw: Any, contiguous: bool | None = None) -> tuple[Json, Json, Json, int]:
    rnd = draw(st.randoms(use_true_random=False))
    tensors = [tensor("x", rnd.randint(0, 4), "input"), tensor("w", rnd.randint(0, 2), "weight")]
    ops: list[Json] = []
    for k in range(draw(st.integers(1, 6))):
        reads = [t["name"] for t in rnd.sample(tensors, rnd.randint(0, min(3, len(tensors))))]
        writes = [f"t{k}", f"u{k}"][: rnd.randint(1, 2)]
        tensors += [tensor(name, rnd.randint(0, 4)) for name in writes]
        choices = [
            {"alg": str(n), "time": rnd.choice([0, 0.1, 0.5, 1, 2, 3]), "workspace": rnd.randint(0, 3)}
            for n in range(rnd.randint(1, 2))
        ]
        more: Json = {"once": True} if rnd.random() < 0.2 else {}
        if len(writes) == 2 and rnd.random() < 0.6:
            more |= {"tape": writes[1:], "skip_workspace": rnd.randint(0, 4)}
        ops.append(op(f"o{k}", reads, writes, 0, choices=choices, **more))
    document = graph(tensors, ops, resident=rnd.randint(0, 3))
    places = draw(st.booleans()) if contiguous is None else contiguous
    writer = Writer(document, rnd, places)
    budget = document["resident"] + (writer.top if places else writer.need) + draw(st.integers(0, 3))
    machine = device(
        budget + rnd.randint(0, 1),
        rnd.choice([0.5, 1, 3, "inf"]),
        rnd.choice([0.7, 1, 2, "inf"]),
        duplex=rnd.random() < 0.5,
        latency=rnd.choice([0, 0.3]),
    )
    mode = "contiguous" if places else "fluid"
    return document, plan(writer.steps, budget, memory=mode), machine, document["resident"] + writer.need
