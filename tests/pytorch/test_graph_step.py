"""Steps that follow plans of their graphs do what plain autograd does, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.torch.lanes import EmulatedLanes
from pytorch.graph_step_models import (
    PLANNERS,
    QUICK,
    SPEED,
    Captured,
    captured,
    loss,
    make,
    plain_step,
    planned_step,
    schedules,
    staying,
)
from pytorch.steps import copies, differences

LIMIT = 8 << 20


@pytest.mark.parametrize("name", [*QUICK, "resnet18"])
def test_a_step_where_nothing_moves(name: str) -> None:
    c = captured(name)
    schedule = staying(c)
    assert not any("offload" in step for step in schedule.steps)
    assert differences(plain_step(c), planned_step(c, schedule)) == []


@pytest.mark.parametrize("name", [*QUICK[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in QUICK[4:])])
def test_plans_of_every_planner(name: str) -> None:
    check_planners(captured(name), PLANNERS, (0.0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, "resnet18"])
def test_plans_of_every_planner_at_more_budgets(name: str) -> None:
    check_planners(captured(name), PLANNERS, (0.15, 0.4, 0.8))


def test_plans_of_a_resnet() -> None:
    check_planners(captured("resnet18"), ("swap_all", "superneurons"), (0.0,))


def check_planners(c: Captured, planners: Any, budgets: Any) -> None:
    want = plain_step(c)
    found = list(schedules(c, planners, budgets))
    assert found
    for number, (name, schedule) in enumerate(found):
        seed = number % 3 * number
        got = planned_step(c, schedule, early=copies(seed), overlap=number % 4 > 1)
        assert differences(want, got) == [], (name, seed)


def check_classes(c: Captured, examples: int) -> None:
    """Any feature map kept, swapped or computed again."""
    want = plain_step(c)
    maps = len(_core.feature_maps(c.graph))
    least, most = ms.min_memory(c.graph), ms.peak_memory(c.graph)
    seen = {"fits": 0, "moves": 0, "repeats": 0}

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        classes = np.array(data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=maps, max_size=maps)), np.uint8)
        part = data.draw(st.floats(0.3, 1.2), label="budget")
        device = ms.Device(least + int(part * (most - least)), SPEED)
        schedule = _core.class_schedule(c.graph, device, LIMIT, classes, fetch="eager", planner={"name": "test"})
        seen["fits"] += schedule is not None
        if schedule is None:  # the classes do not fit: recomputation may need more than the plain step
            device = ms.Device(4 * most, SPEED)
            schedule = _core.class_schedule(c.graph, device, LIMIT, classes, fetch="demand", planner={"name": "test"})
            assert schedule is not None
        runs = [step["run"] for step in schedule.steps if "run" in step]
        seen["repeats"] += len(runs) > len(set(runs))
        seen["moves"] += any("prefetch" in step for step in schedule.steps)
        early = data.draw(st.integers(0, 9), label="copies")
        overlap = data.draw(st.booleans(), label="overlap")
        assert differences(want, planned_step(c, schedule, early=copies(early), overlap=overlap)) == []

    check()
    assert all(seen.values()), seen


@pytest.mark.parametrize("name", QUICK)
def test_random_classes(name: str) -> None:
    check_classes(captured(name), 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, "resnet18"])
def test_many_random_classes(name: str) -> None:
    check_classes(captured(name), 60 if name != "resnet18" else 10)


def test_gradients_are_added_to_those_that_are_there() -> None:
    c = captured("residual")
    before = [torch.randn_like(parameter) for parameter in c.model.parameters()]

    def with_gradients(step: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        state = {name: buffer.clone() for name, buffer in c.model.named_buffers()}
        for parameter, gradient in zip(c.model.parameters(), before, strict=True):
            parameter.grad = gradient.clone()
        step()
        for name, buffer in c.model.named_buffers():
            buffer.copy_(state[name])
        found = [parameter.grad for parameter in c.model.parameters()]
        c.model.zero_grad(set_to_none=True)
        return found

    runner = c.runner(staying(c), EmulatedLanes())
    want = with_gradients(lambda: loss(c.model(*c.args)).backward())
    got = with_gradients(lambda: runner.step(*c.args))
    assert all(map(torch.equal, want, got))


def test_several_steps_train_alike() -> None:
    """Parameters change between the steps, and so do running statistics."""
    results = []
    for planned in (False, True):
        model, args = make("residual")
        c = captured("residual")
        own = Captured(model=model, args=args, step=type(c.step)(model, args, loss))
        schedule = next(iter(schedules(own, ("superneurons",), (0.0,))))[1]
        runner = own.runner(schedule, EmulatedLanes(early=lambda: False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(3)
        for _ in range(3):
            optimizer.zero_grad()
            if planned:
                runner.step(*args)
            else:
                loss(model(*args)).backward()
            optimizer.step()
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
