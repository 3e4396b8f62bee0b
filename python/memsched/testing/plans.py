"""Schedules that are legal by construction: drawn by hypothesis, or from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from hypothesis import strategies as st

from memsched._core import Chain, Device, Schedule, to_graph
from memsched.support.checks import count, kind
from memsched.testing.arguments import checked
from memsched.testing.problems import chains, devices


@checked(max_stages=1, max_bytes=0)
@st.composite
def schedules(
    draw: st.DrawFn,
    *,
    max_stages: int = 4,
    recompute: bool = True,
    chunks: bool = True,
    after: bool = True,
    max_bytes: int = 9,
) -> tuple[Chain, Schedule, Device]:
    """Draw (problem, schedule, device) where the schedule is legal by construction.

    Between the runs it offloads, frees and prefetches at random; a missing input of a run comes back from the host or
    by recomputation. The budget is what the list needs, with or without slack; memory is counted in bytes ("fluid").

    Parameters
    ----------
    max_stages
        Largest number of stages.
    recompute
        Allow repeated forward runs and runs that skip their tape.
    chunks
        Allow tensors in pieces: schedules with `chunk` a number of bytes or "storage".
    after
        Allow `after` entries.
    max_bytes
        Largest size of a part, in bytes.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(schedules(max_stages=2))
    ... def test_runs(case):
    ...     problem, schedule, device = case
    """
    chain = draw(chains(max_stages=max_stages, max_bytes=max_bytes))
    in_pieces: st.SearchStrategy[int | str | None] = st.none() | st.integers(1, max(1, max_bytes))
    if chain.pieces is not None:
        in_pieces = in_pieces | st.just("storage")
    chunk = draw(in_pieces) if chunks else None
    writer = _PlanWriter(_drawn(draw), to_graph(chain, chunk=chunk).to_json(), recompute=recompute, after=after)
    slack = st.sampled_from([0, 0, 1, max_bytes])
    budget = max(1, writer.resident + writer.peak + draw(slack))
    host_memory = draw(st.sampled_from([None, max(1, sum(writer.size[t] for t in writer.host))]))
    device = draw(devices(memory=budget + draw(slack), host_memory=host_memory))
    return chain, writer.schedule(chunk, budget), device


@st.composite
def schedules_of(
    draw: st.DrawFn,
    chain: Chain,
    *,
    recompute: bool = True,
    chunk: Literal["storage"] | int | None = None,
    after: bool = True,
) -> Schedule:
    """Draw a schedule of a given chain that is legal by construction, as `schedules` does for chains that it draws.

    Its budget is exactly what the list needs; memory is counted in bytes ("fluid").

    Parameters
    ----------
    chain
        The larger it is, the longer the lists: about four steps per run.
    recompute, after
        As in `schedules`.
    chunk
        How the chain's tensors are cut, as in `to_graph`.

    Examples
    --------
    >>> import memsched as ms
    >>> from hypothesis import given
    >>> chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
    >>> @given(schedules_of(chain))
    ... def test_fits(schedule):
    ...     device = ms.Device(schedule.budget, 1.0)
    ...     assert ms.simulate(chain, schedule, device).peak_memory <= schedule.budget
    >>> test_fits()
    """
    writer = _PlanWriter(_drawn(draw), to_graph(chain, chunk=chunk).to_json(), recompute=recompute, after=after)
    return writer.schedule(chunk, max(1, writer.resident + writer.peak))


def random_schedule(
    chain: Chain,
    seed: int = 0,
    *,
    recompute: bool = True,
    chunk: Literal["storage"] | int | None = None,
    after: bool = True,
) -> Schedule:
    """Write a random schedule of a given chain that is legal by construction: `schedules_of` without hypothesis.

    For long chains, whose lists hypothesis takes minutes to draw. The same seed gives the same schedule.

    Parameters
    ----------
    chain
        The larger it is, the longer the list: about four steps per run.
    seed
        Seed of the random numbers.
    recompute, chunk, after
        As in `schedules_of`.

    Returns
    -------
    Schedule
        Its budget is exactly what the list needs; memory is counted in bytes ("fluid").

    Examples
    --------
    >>> import memsched as ms
    >>> from memsched.testing import random_schedule
    >>> chain = ms.profiles.load("resnet101-224-b32")
    >>> schedule = random_schedule(chain, seed=1)
    >>> ms.simulate(chain, schedule, ms.Device(schedule.budget, 12e9)).peak_memory == schedule.budget
    True
    """
    kind("chain", chain, Chain)
    count("seed", seed, 0, 2**63 - 1)
    numbers = random.Random(seed)
    writer = _PlanWriter(numbers.randrange, to_graph(chain, chunk=chunk).to_json(), recompute=recompute, after=after)
    return writer.schedule(chunk, max(1, writer.resident + writer.peak))


def _drawn(draw: st.DrawFn) -> Callable[[int], int]:
    """Choices made by hypothesis, which shrinks them to 0."""
    return lambda count: draw(st.integers(0, count - 1))


class _PlanWriter:
    """A random legal list of steps for the graph of a chain, and the memory that it needs.

    `below(count)` makes every choice: one of 0 .. count - 1.
    """

    def __init__(self, below: Callable[[int], int], graph: dict[str, Any], *, recompute: bool, after: bool) -> None:
        self.below, self.graph, self.recompute, self.after = below, graph, recompute, after
        self.resident = int(graph["resident"])
        self.size = {t["name"]: int(t["size"]) for t in graph["tensors"]}
        self.gradients = {t["name"] for t in graph["tensors"] if t["role"] == "gradient"}
        self.inputs = [t["name"] for t in graph["tensors"] if t["role"] == "input"]
        self.op = {op["name"]: op for op in graph["ops"]}
        self.stages = sum(op["phase"] == "fwd" for op in graph["ops"])
        self.device, self.host, self.dead = set(self.inputs), set[str](), set[str]()
        self.steps: list[dict[str, Any]] = []
        self.peak = self.live()
        self.write()

    def schedule(self, chunk: int | str | None, budget: int) -> Schedule:
        """The list as a schedule."""
        planner, rounds = {"name": "random"}, [(self.graph["batch"], 1)]
        return Schedule(
            self.steps, budget=budget, graph=self.graph["name"], planner=planner, chunk=chunk, rounds=rounds
        )

    def live(self) -> int:
        return sum(self.size[t] for t in self.device)

    def boundary(self, k: int) -> list[str]:
        """The tensors of a^k."""
        if k == 0:
            return self.inputs
        return [t for t in self.op[f"F{k}"]["writes"] if t not in self.tape(k)]

    def tape(self, k: int) -> list[str]:
        return list(self.op[f"F{k}"].get("tape", [])) if k > 0 else []

    def write(self) -> None:
        """All runs in order, with random steps around them."""
        for k in range(1, self.stages + 1):
            self.random_steps()
            self.bring(k - 1, with_tape=False)
            skipped = self.tape(k) if self.recompute and self.below(4) == 0 else []
            self.run(f"F{k}", skipped)
        self.random_steps()
        self.bring(self.stages, with_tape=False)
        self.run("loss")
        for k in range(self.stages, 0, -1):
            self.random_steps()
            if f"d{k}" not in self.device:
                self.move("prefetch", f"d{k}")
            self.bring(k - 1, with_tape=False)
            self.bring(k, with_tape=True)
            self.run(f"B{k}")
            self.dead |= {f"d{k}", *self.boundary(k), *self.tape(k), *(self.inputs if k == 1 else [])}
            if self.below(2):
                for tensor in sorted(self.dead & self.device):
                    self.move("free", tensor)
        self.random_steps()

    def bring(self, k: int, *, with_tape: bool) -> None:
        """Put a^k, and its tape if wanted, on the device: from the host, or by running F_k again."""
        wanted = self.boundary(k) + (self.tape(k) if with_tape else [])
        missing = [t for t in wanted if t not in self.device]
        if not missing:
            return
        from_host = self.host.issuperset(missing)
        if from_host and (k == 0 or not self.recompute or self.below(2)):
            while missing:
                self.move("prefetch", missing.pop(self.below(len(missing))))
            return
        self.bring(k - 1, with_tape=False)
        tape = self.tape(k)
        skipped = tape if not with_tape and self.below(2) else []
        for tensor in self.boundary(k) + ([] if skipped else tape):
            if tensor in self.device:
                self.move("free", tensor)
        self.run(f"F{k}", skipped)

    def random_steps(self) -> None:
        """Add up to three steps that are not needed."""
        for _ in range(self.below(4)):
            choices = [("prefetch", t) for t in self.size if t in self.host - self.device]
            for tensor in (t for t in self.size if t in self.device):
                if tensor not in self.host and self.size[tensor] > 0:
                    choices.append(("offload", tensor))
                redone = self.recompute and tensor not in self.gradients and tensor not in self.inputs
                if tensor in self.host or tensor in self.dead or redone:
                    choices.append(("free", tensor))
            if choices:
                self.move(*choices[self.below(len(choices))])

    def move(self, verb: str, tensor: str) -> None:
        """Write one step that is not a run."""
        self.steps.append({verb: tensor, **({} if verb == "free" else self.gate())})
        if verb == "free":
            self.device.remove(tensor)
        elif verb == "offload":
            self.host.add(tensor)
        else:
            self.device.add(tensor)
            self.peak = max(self.peak, self.live())

    def run(self, name: str, skipped: Sequence[str] = ()) -> None:
        """Write one run."""
        op = self.op[name]
        workspace = int(op["choices"][0]["workspace"])
        if skipped:
            workspace = int(op.get("skip_workspace", workspace))
        self.steps.append({"run": name, **({"skip": list(skipped)} if skipped else {}), **self.gate()})
        self.device |= set(op["writes"]) - set(skipped)
        self.peak = max(self.peak, self.live() + workspace)

    def gate(self) -> dict[str, list[int]]:
        """Sometimes an `after` with one earlier step."""
        if not self.after or self.below(6) < 5:
            return {}
        earlier = [index for index, step in enumerate(self.steps) if "free" not in step]
        return {"after": [earlier[self.below(len(earlier))]]} if earlier else {}
