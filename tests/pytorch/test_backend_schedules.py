"""Code that follows a schedule does what plain autograd does: random legal schedules, and those of all planners."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from memsched import Device, Graph
from memsched.errors import InfeasibleError
from memsched.torch.compiled import copies
from memsched.torch.compiled.as_graph import no_costs
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.plan import _Problem
from memsched.torch.lanes import EmulatedLanes
from pytorch.compiled_models import CASES
from pytorch.test_compiled_models import assert_same, trained

CPU = torch.device("cpu")
MODELS = ("normalised", "cached", "tied", "random_many", "several_results", "unet", "attention_with_dropout")
PLANNERS = (
    "auto",
    "pooch",
    "swap_opt",
    "swap_all",
    "superneurons",
    "by_kind",
    "vdnn_sync",
    "autoswap",
    "tflms",
    "vdnn_plus",
)


class RandomSteps:
    """A legal list of steps: between the runs tensors leave and are dropped at random, and come back when read."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.choice = random.Random(seed)
        self.size = {one["name"]: one["size"] for one in graph.tensors}
        self.ops = {op["name"]: op for op in graph.ops}
        self.writer = {name: op["name"] for op in graph.ops for name in op["writes"]}
        self.last = {name: k for k, op in enumerate(graph.ops) for name in op["reads"]}
        self.here, self.host, self.steps = set[str](), set[str](), list[dict[str, Any]]()
        for k, op in enumerate(graph.ops):
            self.disturb(k)
            self.run(op["name"])

    def again(self, name: str) -> bool:
        """Whether a tensor can be made once more."""
        op = self.ops[self.writer[name]]
        return not op.get("once") and all(one in self.host or self.again(one) for one in op["reads"])

    def disturb(self, k: int) -> None:
        for name in sorted(self.here):
            if self.size[name] == 0 or self.choice.random() < 0.8:
                continue
            if name not in self.host and self.choice.random() < 0.5:
                self.steps.append({"offload": name})
                self.host.add(name)
            elif name in self.host or self.last.get(name, -1) < k or self.again(name):
                self.drop(name)

    def drop(self, name: str) -> None:
        self.steps.append({"free": name})
        self.here.discard(name)

    def bring(self, name: str) -> None:
        if name in self.here:
            return
        if name in self.host:
            self.steps.append({"prefetch": name})
            self.here.add(name)
        else:
            self.run(self.writer[name])

    def run(self, name: str) -> None:
        op = self.ops[name]
        while any(one not in self.here for one in op["reads"]):
            for one in op["reads"]:
                self.bring(one)
        for one in op["writes"]:
            if one in self.here:
                self.drop(one)
        self.steps.append({"run": name})
        self.here |= set(op["writes"])


def randomly(seed: int) -> Any:
    """In place of planning: a random schedule, as a plan of the cache."""

    def solved(problem: Any, memory: int, **rest: Any) -> tuple[CompiledPlan, dict[str, Any]]:
        graph = problem.untimed[0]
        document = {
            "format": "memsched-compiled/2",
            "costs": [[list(cost[:2]) for cost in no_costs(visit)] for visit in problem._visits],
            "source": "a test",
            "device": Device(memory, 1e9, host_memory=1 << 40).to_json(),
            "planner": "random",
            "params": {},
            "steps": RandomSteps(graph, seed).steps,
        }
        return problem.usable(document, memory), document

    return solved


def check_random(name: str, seed: int, early: bool) -> tuple[int, int]:
    """Two steps under a random schedule; how many operations run again, and how many tensors travel."""
    case = CASES[name]
    wanted = trained(case, {"budget": "100%"} if case.sums_differ else None)
    copies.use(CPU, EmulatedLanes(early=lambda: early))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Problem, "solved", randomly(seed))
        found = trained(case, {"budget": "1GiB", "bandwidth": "1GB/s"})
    assert_same(wanted.records, found.records)
    (plan,) = found.plans
    assert plan.process_bytes(found.peaks[0]) <= plan.result.peak_memory
    return len(plan.result.recomputed), len(plan.result.offloaded)


@pytest.mark.parametrize("name", [m if m in MODELS[:2] else pytest.param(m, marks=pytest.mark.slow) for m in MODELS])
def test_random_schedules(name: str) -> None:
    found = [check_random(name, seed, early=seed % 2 == 0) for seed in range(2)]
    assert all(again > 0 and moved > 0 for again, moved in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_random_schedules(name: str) -> None:
    @settings(max_examples=10, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32), st.booleans())
    def check(seed: int, early: bool) -> None:
        check_random(name, seed, early)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", ["normalised", "unet", "tied"])
def test_plans_of_every_planner(name: str, planner: str) -> None:
    wanted = trained(CASES[name], None)
    copies.use(CPU, EmulatedLanes(early=lambda: planner > "s"))
    options = {"device": "v100:pcie3", "planner": planner, "time_limit": 0.2}
    for budget in ("50%", "100%"):
        try:
            found = trained(CASES[name], {"budget": budget, **options})
        except InfeasibleError:
            continue
        assert_same(wanted.records, found.records)
        (plan,) = found.plans  # which may free later than the code does
        assert plan.process_bytes(found.peaks[0]) <= plan.result.peak_memory <= plan.result.schedule.budget
        return
    raise AssertionError("the plain step does not fit its own peak")


# The emulation can fail: each of these takes one precaution away.


@pytest.mark.parametrize("broken", ["gone", "arrived"])
def test_without_waiting_nan_shows(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {
        "gone": lambda traffic, value, host, owned: traffic.lanes.give_back(value.untyped_storage()) if owned else None,
        "arrived": lambda traffic, value, host: value,
    }
    monkeypatch.setattr(copies.Traffic, broken, missing[broken])
    with pytest.raises(AssertionError, match="differs in step"):
        check_random("normalised", 0, early=False)
