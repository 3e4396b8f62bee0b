"""The bytes that a planned step of a graph holds, looked at from outside after every step of its schedule.

`Alive` is that of test_execute_memory.py. What the schedule does not decide about is taken off: results, and inputs
that the caller holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import memsched as ms
from memsched import _core
from memsched.torch.graph_step.runner import StepRunner
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.script import Action
from pytorch.graph_step_models import QUICK, SPEED, Captured, captured, fresh, schedules, staying
from pytorch.steps import copies
from pytorch.test_execute_memory import CLOSE, Alive


class Watch:
    """An observer that writes down, for each step, what is held after it and the most during it."""

    def __init__(self, runner: StepRunner, alive: Alive) -> None:
        self.runner, self.alive = runner, alive
        self.held: list[int] = []
        self.rise: list[int] = []  # the most during a step, above what was held before it
        self.most: list[int] = []

    def results(self) -> Iterator[Any]:
        one = self.runner.passed
        assert one is not None
        yield one.loss
        yield from one.buffers.values()
        yield from one._gradients.made()  # type: ignore[attr-defined]
        yield from pytree.tree_leaves([vars(state) for state in one.random.values()])

    def before(self, step: int, action: Action) -> None:
        self.alive.counting = True
        self.alive.most()
        self.start = self.alive.highest = self.alive.total

    def after(self, step: int, action: Action, event: Any) -> None:
        self.alive.counting = False
        self.most.append(self.alive.most())
        self.rise.append(self.most[-1] - self.start)
        self.alive.leave_out(self.results())
        self.held.append(self.alive.total)


def watch(c: Captured, schedule: ms.Schedule, early: Callable[[], bool], *, overlap: bool = False) -> Watch:
    """One planned step, watched."""
    return watches(c, schedule, early, overlap=overlap)[0]


def watches(c: Captured, schedule: ms.Schedule, early: Callable[[], bool], *, overlap: bool = False) -> list[Watch]:
    """The same for each of its passes."""
    runner = c.runner(schedule, EmulatedLanes(early=early, overlap=overlap))

    def step() -> Any:
        with Alive() as alive:
            for tensor in (*c.model.parameters(), *c.model.buffers(), *c.args, runner._host):
                if isinstance(tensor, torch.Tensor):
                    alive.meet(tensor.untyped_storage())

            def observer() -> Watch:
                observers.append(Watch(runner, alive))
                return observers[-1]

            runner.observe = observer
            return runner.step(*c.args)

    observers: list[Watch] = []
    fresh(step, c.model)
    return observers


def walk(graph: ms.Graph, schedule: ms.Schedule) -> Iterator[tuple[int, int]]:
    """For each step of the list the bytes on the device after it: where the step put them, and where the caller did."""
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    writes = {op["name"]: op["writes"] for op in graph.ops}
    device: set[str] = set()
    given = {tensor["name"] for tensor in graph.tensors if tensor["role"] == "input"}
    for step in schedule.to_json()["steps"]:
        if "run" in step:
            device |= set(writes[step["run"]])
        elif "prefetch" in step:
            device.add(step["prefetch"])
        elif "free" in step:
            device.discard(step["free"])
            given.discard(step["free"])
        yield sum(size[name] for name in device), sum(size[name] for name in given)


def check_bytes(c: Captured, schedule: ms.Schedule) -> None:
    """With copies that happen at once, every step holds what the list says, and each run needs what it says.

    What a run makes that stays is resident in the graph from the beginning.
    """
    seen = watch(c, schedule, lambda: True)
    ops = {op["name"]: op for op in c.graph.ops}
    size = {tensor["name"]: tensor["size"] for tensor in c.graph.tensors}
    results = {name: results_of(c, k) for k, name in enumerate(ops)}
    held = list(walk(c.graph, schedule))
    for step, (what, (expected, there)) in enumerate(zip(schedule.to_json()["steps"], held, strict=True)):
        assert abs(seen.held[step] - expected) <= CLOSE, (step, what)
        kept = results.get(what.get("run", ""), 0)
        if "run" in what:
            op = ops[what["run"]]
            needs = sum(size[name] for name in op["writes"]) + op["choices"][0]["workspace"]
            assert seen.rise[step] <= needs + kept + CLOSE, (step, what)
            assert seen.rise[step] >= needs - op["choices"][0]["workspace"] - CLOSE, (step, what)
        assert seen.most[step] - kept + there + c.graph.resident <= schedule.budget + CLOSE, (step, what)


def check_budget(c: Captured, schedule: ms.Schedule, early: Callable[[], bool]) -> None:
    """Whenever copies happen, no moment of the step holds more than the budget."""
    seen = watch(c, schedule, early, overlap=True)
    results = {op["name"]: results_of(c, k) for k, op in enumerate(c.graph.ops)}
    for step, (_, there) in enumerate(walk(c.graph, schedule)):
        kept = results.get(schedule.steps[step].get("run", ""), 0)
        assert seen.held[step] + there + c.graph.resident <= schedule.budget + CLOSE, step
        assert seen.most[step] - kept + there + c.graph.resident <= schedule.budget + CLOSE, step


def results_of(c: Captured, k: int) -> int:
    """Bytes that an operation makes and that stay."""
    program = c.step.program
    blocks = [program.blocks[number] for number in program.operations[k].makes]
    return sum(block.bytes for block in blocks if block.role == "result")


@pytest.mark.parametrize("name", [*QUICK, "resnet18"])
def test_a_plain_step_holds_what_its_graph_says(name: str) -> None:
    check_bytes(captured(name), staying(captured(name)))


SMALL = ("dropout_mlp", "residual", "transformer")


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(n, marks=pytest.mark.slow) for n in QUICK if n not in SMALL)])
def test_plans_hold_what_the_simulator_says(name: str) -> None:
    c = captured(name)
    for _, schedule in schedules(c, ("swap_all", "superneurons", "pooch"), (0.0,)):
        check_bytes(c, schedule)
        check_budget(c, schedule, copies(1))


@pytest.mark.slow
def test_plans_of_a_resnet_hold_what_the_simulator_says() -> None:
    c = captured("resnet18")
    for _, schedule in schedules(c, budgets=(0.0, 0.3)):
        check_bytes(c, schedule)
        check_budget(c, schedule, copies(3))


def check_classes(c: Captured, examples: int) -> None:
    maps = len(_core.feature_maps(c.graph))
    most = ms.peak_memory(c.graph)

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        classes = np.array(data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=maps, max_size=maps)), np.uint8)
        device = ms.Device(data.draw(st.sampled_from([most, 4 * most])), SPEED)
        schedule = _core.class_schedule(c.graph, device, 8 << 20, classes, planner={"name": "test"})
        if schedule is not None:
            check_bytes(c, schedule)
            check_budget(c, schedule, copies(data.draw(st.integers(1, 9), label="copies")))

    check()


@pytest.mark.parametrize("name", ["residual", pytest.param("transformer", marks=pytest.mark.slow)])
def test_random_classes_hold_what_the_simulator_says(name: str) -> None:
    check_classes(captured(name), 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_many_random_classes_hold_what_the_simulator_says(name: str) -> None:
    check_classes(captured(name), 30)


@pytest.mark.parametrize("name", ["dropout_mlp", pytest.param("residual", marks=pytest.mark.slow)])
def test_rounds_hold_what_the_simulator_says(name: str) -> None:
    """From the second on, gradients meet those that are there."""
    c = captured(name, rounds=True)
    whole = next(iter(schedules(c, ("swap_all",), (0.0,))))[1]
    batch = c.step.batch // 2
    schedule = ms.Schedule.from_json({**whole.to_json(), "rounds": [[batch, 2]]})
    graph = c.step.graph_at(batch)
    found = watches(c, schedule, lambda: True)
    assert len(found) == 2
    for seen in found:
        for step, (expected, there) in enumerate(walk(graph, schedule)):
            assert abs(seen.held[step] - expected) <= CLOSE, step
            if seen is found[-1]:
                assert seen.most[step] + there + graph.resident <= schedule.budget + CLOSE, step


def test_nothing_is_left_behind() -> None:
    """After a step only the gradients and the loss are there."""
    c = captured("residual")
    schedule = next(iter(schedules(c, ("swap_all",), (0.0,))))[1]
    runner = c.runner(schedule, EmulatedLanes(early=lambda: False))
    gradients = sum(parameter.nbytes for parameter in c.model.parameters())

    def step() -> Any:
        with Alive() as alive:
            for tensor in (*c.model.parameters(), *c.model.buffers(), *c.args, runner._host):
                alive.meet(tensor.untyped_storage())
            alive.counting = True
            value = runner.step(*c.args)
            assert abs(alive.total - gradients - value.nbytes) <= CLOSE
            return value

    fresh(step, c.model)
