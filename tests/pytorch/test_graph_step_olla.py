"""Steps in the order and at the addresses of the planner olla."""

from __future__ import annotations

import pytest

import memsched as ms
import memsched.torch as mt
from pytorch.graph_step_models import QUICK, SPEED, captured, loss, make, plain_step, planned_step
from pytorch.steps import differences
from pytorch.test_graph_step_memory import check_bytes


@pytest.mark.parametrize("name", [*QUICK, pytest.param("resnet18", marks=pytest.mark.slow)])
def test_steps_with_the_least_memory(name: str) -> None:
    c = captured(name)
    least = ms.min_memory(c.graph, "olla")
    assert least <= ms.peak_memory(c.graph)
    result = ms.plan(c.graph, least, SPEED, planner="olla")
    assert sorted(step["run"] for step in result.schedule.steps if "run" in step) == sorted(
        op["name"] for op in c.graph.ops
    )
    assert differences(plain_step(c), planned_step(c, result.schedule)) == []
    check_bytes(c, result.schedule)


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_the_public_way(name: str) -> None:
    least = ms.min_memory(captured(name).graph, "olla")
    model, args = make(name)
    plan = mt.plan_step(model, args, loss, budget=least, planner="olla", device="v100:pcie3")
    assert plan.result.planner == "olla"
    assert plan.result.peak_memory <= least == plan.result.schedule.budget
    plan.verify(*args)
    assert plan.result.placement is not None
    assert "of one arena of" in plan.report()
