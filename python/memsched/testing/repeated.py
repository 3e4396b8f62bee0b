"""Training steps with persistent tensors, and schedules of them that are legal by construction."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from memsched._core import Device, Graph, Schedule
from memsched.support.checks import count
from memsched.testing.arguments import checked

_Below = Callable[[int], int]  # one of 0 .. count - 1
_PLACES = ("device", "host", "both")


@checked(max_layers=1, max_bytes=1)
@st.composite
def repeated_schedules(
    draw: st.DrawFn, *, max_layers: int = 3, recompute: bool = True, max_bytes: int = 6
) -> tuple[Graph, Schedule, Device]:
    """Draw (graph, schedule, device): a training step with persistent tensors, and a schedule of it that is legal.

    Each layer has a parameter, and some have a state of the optimiser; updates come right after the gradient or at the
    end, some of them on the host, and some parameters are updated twice or never. Between the runs, the schedule
    offloads, frees and prefetches at random. The budget is what the list needs, with or without slack; memory is
    counted in bytes ("fluid").

    Parameters
    ----------
    max_layers
        Largest number of layers.
    recompute
        Allow repeated forward runs.
    max_bytes
        Largest size of a tensor or a workspace, in bytes.

    Examples
    --------
    >>> import memsched as ms
    >>> from hypothesis import given
    >>> @given(repeated_schedules(max_layers=2))
    ... def test_takes_as_long_as_it_computes(case):
    ...     graph, schedule, device = case
    ...     assert ms.simulate(graph, schedule, device).makespan >= ms.bounds(graph, device=device).compute
    >>> test_takes_as_long_as_it_computes()
    """
    return _case(lambda count: draw(st.integers(0, count - 1)), max_layers, recompute, max_bytes)


def random_repeated(
    seed: int, *, max_layers: int = 3, recompute: bool = True, max_bytes: int = 6
) -> tuple[Graph, Schedule, Device]:
    """Make a case as `repeated_schedules` draws them, from a seed, for many or long cases.

    The same seed gives the same case. Options as in `repeated_schedules`.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.validate(*random_repeated(1)).makespan == ms.simulate(*random_repeated(1)).makespan
    True
    """
    count("seed", seed, 0, 2**63 - 1)
    count("max_layers", max_layers, 1, 10**6)
    count("max_bytes", max_bytes, 1, 10**6)
    return _case(random.Random(seed).randrange, max_layers, recompute, max_bytes)


def _case(below: _Below, max_layers: int, recompute: bool, max_bytes: int) -> tuple[Graph, Schedule, Device]:
    graph = _training_step(below, 1 + below(max_layers), max_bytes)
    writer = _ListWriter(below, graph.to_json(), recompute=recompute)
    slack = (0, 0, 0, 1, max_bytes)
    budget = max(1, graph.resident + writer.peak + slack[below(5)])
    host = (None, max(1, sum(writer.size[name] for name in writer.kept)))[below(2)]
    speeds = (0.5, 1.0, 1.0, 2.0, 3.0)
    device = Device(
        budget + slack[below(5)],
        d2h=speeds[below(5)],
        h2d=speeds[below(5)],
        duplex=bool(below(2)),
        latency=(0.0, 0.0, 0.25)[below(3)],
        host_memory=host,
    )
    schedule = Schedule(writer.steps, budget=budget, graph=graph.name, planner={"name": "random"}, border=writer.border)
    return graph, schedule, device


def _training_step(below: _Below, layers: int, max_bytes: int) -> Graph:
    """Layers in a row, each with a parameter that its forward and backward read and its update writes."""
    tensors: list[dict[str, Any]] = []
    ops: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []  # updates that wait for all gradients

    def tensor(name: str, role: str, most: int = max_bytes) -> str:
        tensors.append({"name": name, "size": below(most + 1), "role": role})
        return name

    def op(name: str, phase: str, reads: list[str], writes: list[str], **more: Any) -> dict[str, Any]:
        choices = [{"alg": "default", "time": below(9) / 4, "workspace": below(2) * below(max_bytes + 1)}]
        return {"name": name, "phase": phase, "reads": reads, "writes": writes, "choices": choices, **more}

    x = tensor("x", ("input", "weight", "persistent")[below(3)])
    for k in range(layers):
        tensor(f"p{k}", "persistent")
        ops.append(op(f"F{k}", "fwd", [f"a{k - 1}" if k else x, f"p{k}"], [tensor(f"a{k}", "activation")]))
    for k in reversed(range(layers)):
        reads = [*([f"d{k + 1}"] if k < layers - 1 else []), f"a{k}", *([f"p{k}"] if below(2) else [])]
        writes = [tensor(f"g{k}", "gradient"), *([tensor(f"d{k}", "gradient")] if k else [])]
        ops.append(op(f"B{k}", "bwd", reads, writes))
        for number in range((0, 1, 1, 1, 2)[below(5)]):
            states = [tensor(f"s{k}.{number}", "persistent")] if below(3) else []
            updates = states if states and not below(4) else [f"p{k}", *states]
            at = last if below(2) else ops
            done = []  # without bytes: what tells that the steps were counted
            if not below(4):
                done, count = [tensor(f"done{k}.{number}", "activation", 0)], tensor(f"n{k}.{number}", "persistent")
                at.append(op(f"N{k}.{number}", "bwd", [count], done, once=True, updates=[count]))
                at[-1] |= {"host_time": below(9) / 4} if below(2) else {}
            update = op(f"U{k}.{number}", "bwd", [f"g{k}", f"p{k}", *states, *done], [], once=True, updates=updates)
            update |= {"host_time": below(9) / 4} if below(2) else {}
            at.append(update)
    return Graph(tensors, [*ops, *last], name="step", resident=below(2) * below(max_bytes))


class _ListWriter:
    """A random legal list of steps for a graph with persistent tensors, and the memory that it needs."""

    def __init__(self, below: _Below, graph: dict[str, Any], *, recompute: bool) -> None:
        self.below, self.recompute = below, recompute
        self.ops = {op["name"]: op for op in graph["ops"]}
        self.size = {t["name"]: int(t["size"]) for t in graph["tensors"]}
        role = {t["name"]: t["role"] for t in graph["tensors"]}
        self.writer = {name: op["name"] for op in graph["ops"] for name in op["writes"]}
        self.border = {t: _PLACES[below(3)] for t in self.size if role[t] == "persistent" and below(4)}
        self.begin = {t for t in self.size if t not in self.writer and self.border.get(t) != "host"}
        self.device = set(self.begin)
        self.host = {t for t, place in self.border.items() if place != "device"}
        self.kept = set(self.host)  # has ever had bytes on the host
        self.left = [op["name"] for op in graph["ops"]]  # that have not run
        self.ran: list[str] = []
        self.steps: list[dict[str, Any]] = []
        self.peak = sum(self.size[t] for t in self.device)
        while self.left:
            self.random_steps()
            first = self.left[0]
            if "host_time" in self.ops[first] and below(2):
                self.update_on_host(first)
            else:
                self.bring_and_run(first)
        self.random_steps()
        self.come_full_circle()

    def comes_back(self, name: str) -> bool:
        """Whether a tensor can be freed: it has a copy on the host, is not read any more, or is computed again."""
        if name in self.host:
            return True
        if name not in self.writer:
            return False
        if not any(name in self.ops[op]["reads"] for op in self.left):
            return True
        op = self.writer[name]
        sources = [t for t in self.ops[op]["reads"] if t in self.writer]
        return self.recompute and self.ops[op]["phase"] == "fwd" and not sources and self.below(2) == 0

    def move(self, verb: str, name: str) -> None:
        """Write one step that is not a run."""
        gates = [k for k, step in enumerate(self.steps) if "free" not in step]
        after = {"after": [gates[self.below(len(gates))]]} if gates and verb != "free" and self.below(8) == 0 else {}
        self.steps.append({verb: name, **after})
        if verb == "free":
            self.device.remove(name)
        elif verb == "offload":
            self.host.add(name)
            self.kept.add(name)
        else:
            self.device.add(name)
            self.peak = max(self.peak, sum(self.size[t] for t in self.device))

    def run(self, name: str) -> None:
        op = self.ops[name]
        for tensor in op["writes"]:
            if tensor in self.device:
                self.move("free", tensor)
        self.steps.append({"run": name})
        self.device |= set(op["writes"])
        self.peak = max(self.peak, sum(self.size[t] for t in self.device) + int(op["choices"][0]["workspace"]))
        self.host -= set(op.get("updates", ()))

    def bring(self, tensor: str) -> None:
        if tensor in self.device:
            return
        if tensor in self.host:
            self.move("prefetch", tensor)
        else:
            self.bring_and_run(self.writer[tensor])

    def bring_and_run(self, name: str) -> None:
        for _ in range(2):  # what is brought last may free what was brought first, as a run writes both
            for tensor in self.ops[name]["reads"]:
                self.bring(tensor)
        self.run(name)
        self.has_run(name)

    def has_run(self, name: str) -> None:
        if name in self.left:
            self.left.remove(name)
            self.ran.append(name)

    def update_on_host(self, name: str) -> None:
        """Send what the op reads, and free what it changes."""
        op = self.ops[name]
        for tensor in op["reads"]:
            if tensor not in self.host:
                self.bring(tensor)
                self.move("offload", tensor)
        for tensor in op["updates"]:
            if tensor in self.device:
                self.move("free", tensor)
        self.steps.append({"update": name})
        self.host |= set(op["writes"])
        self.has_run(name)

    def random_steps(self) -> None:
        for _ in range(self.below(4)):
            choices = [("prefetch", t) for t in self.size if t in self.host - self.device]
            choices += [("offload", t) for t in self.size if t in self.device]
            # What an op wrote from a tensor that was updated since cannot be computed again.
            updated = {t for op in self.ran for t in self.ops[op].get("updates", ())}
            lost = {t for t in self.writer if updated.intersection(self.ops[self.writer[t]]["reads"])} - self.host
            needed = {t for op in self.left for t in self.ops[op]["reads"]}
            free = [t for t in self.size if t in self.device and self.comes_back(t)]
            choices += [("free", t) for t in free if t not in lost & needed]
            if choices:
                self.move(*choices[self.below(len(choices))])
        # What can be computed again now cannot after an update of what its op reads: bring it before.
        for op in self.left[:1]:
            for t in self.size:
                wanted = any(t in self.ops[one]["reads"] for one in self.left)
                missing = t in self.writer and t not in self.device | self.host and self.writer[t] in self.ran
                if wanted and missing and set(self.ops[op].get("updates", ())) & set(self.ops[self.writer[t]]["reads"]):
                    self.bring(t)

    def come_full_circle(self) -> None:
        """Bring each tensor back to where it began."""
        for t in sorted(self.size, key=lambda _: self.below(9)):
            if self.border.get(t, "device") != "device" and t not in self.host:
                self.move("offload", t)
            if t in self.device and t not in self.begin:
                self.move("free", t)
            if t in self.begin and t not in self.device:
                self.move("prefetch", t)
