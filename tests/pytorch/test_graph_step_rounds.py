"""Steps in rounds: the batch is split, gradients add up, and each part is what autograd makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.errors import InvalidInputError
from memsched.torch.capture import CaptureError
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.lanes import EmulatedLanes
from pytorch.graph_step_models import SPEED, Captured, captured, fresh, loss, plain_step
from pytorch.steps import Outcome, copies, differences

ROUNDS = {"dropout_mlp": [[3, 2], [2, 1]], "transformer": [[2, 2]], "residual": [[3, 2]]}


def in_rounds(c: Captured, planner: str, rounds: Any) -> ms.Schedule:
    """The list of a plan for the whole batch, for smaller ones."""
    least = ms.min_memory(c.graph, planner)
    plan = ms.plan(c.graph, least, SPEED, planner=planner).schedule
    return ms.Schedule.from_json({**plan.to_json(), "rounds": rounds})


def planned(c: Captured, schedule: ms.Schedule, seed: int = 1) -> Outcome:
    runner = c.runner(schedule, EmulatedLanes(early=copies(seed), overlap=seed % 2 == 0))
    return fresh(lambda: runner.step(*c.args), c.model)


@pytest.mark.parametrize("planner", ["swap_all", pytest.param("superneurons", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["dropout_mlp", "residual", pytest.param("transformer", marks=pytest.mark.slow)])
def test_rounds_are_accumulation_by_hand(name: str, planner: str) -> None:
    c = captured(name, rounds=True)
    schedule = in_rounds(c, planner, ROUNDS[name])
    want = plain_step(c, ROUNDS[name])
    for seed in (1, 4):
        assert differences(want, planned(c, schedule, seed)) == []


def test_the_gradients_are_those_of_the_whole_batch() -> None:
    """Where no operation mixes samples and none draws numbers."""
    c = captured("unet", rounds=True)
    whole, split = plain_step(c), planned(c, in_rounds(c, "swap_all", [[1, 2]]))
    assert torch.allclose(whole.outputs[0], split.outputs[0])
    for name, gradient in whole.gradients.items():
        assert torch.allclose(gradient, split.gradients[name], rtol=1e-4, atol=1e-6), name


def test_batch_norm_sees_each_part_on_its_own() -> None:
    c = captured("residual", rounds=True)
    whole, split = plain_step(c), planned(c, in_rounds(c, "swap_all", [[3, 2]]))
    counts = [name for name in whole.buffers if name.endswith("num_batches_tracked")]
    assert counts
    assert all(split.buffers[name] == whole.buffers[name] + 1 for name in counts)
    assert not torch.allclose(whole.buffers["1.running_mean"], split.buffers["1.running_mean"])


@pytest.mark.parametrize(
    ("name", "planner", "part"),
    [
        ("dropout_mlp", "modnn", 0.05),
        pytest.param("residual", "modnn", 0.2, marks=pytest.mark.slow),
        ("residual", "vdnn_plus", 0.0),
        pytest.param("unet", "modnn", 0.1, marks=pytest.mark.slow),
    ],
)
def test_plans_that_split_the_batch(name: str, planner: str, part: float) -> None:
    c = captured(name, rounds=True)
    family = c.step.family()
    least = ms.min_memory(family, planner)
    memory = least + int(part * (ms.peak_memory(family) - least))
    result = ms.plan(family, memory, SPEED, planner=planner)
    assert sum(times for _, times in result.schedule.rounds) > 1
    want = plain_step(c, result.schedule.rounds)
    assert differences(want, planned(c, result.schedule)) == []


def test_the_whole_batch_at_once_is_the_plain_step() -> None:
    c = captured("transformer", rounds=True)
    schedule = in_rounds(c, "swap_all", [[c.step.batch, 1]])
    want = plain_step(c)
    assert differences(want, planned(c, schedule)) == []


def test_graphs_are_captured_when_they_are_asked_for() -> None:
    c = captured("dropout_mlp", rounds=True)
    family = c.step.family()
    sizes = {batch: family.at(batch).tensors[0]["size"] for batch in (8, 4, 1)}
    assert sizes == {8: 8 * 32 * 4, 4: 4 * 32 * 4, 1: 32 * 4}
    assert family.at(4).resident == family.at(8).resident


def test_all_batches_are_captured_under_the_same_autocast() -> None:
    model, x = nn.Linear(4, 4), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        family = CapturedStep(model, (x,), lambda out: loss(out.float()), rounds=True).family()
    assert [op["name"] for op in family.at(2).ops] == [op["name"] for op in family.graph.ops]
    assert any("_to_copy" in op["name"] for op in family.at(3).ops)


class OtherAtOne(nn.Module):
    """Leaves an operation out where the batch is one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = self.layer(x)
        return torch.tanh(x) if len(x) > 1 else x


def test_other_operations_at_another_batch_are_refused() -> None:
    family = CapturedStep(OtherAtOne(), (torch.randn(4, 4),), loss, rounds=True).family()
    assert family.at(2).batch == 2
    with pytest.raises(InvalidInputError, match="other operations at batch 1 than at batch 4"):
        family.at(1)


def test_a_batch_that_the_model_cannot_take_is_named() -> None:
    family = CapturedStep(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (torch.randn(4, 4),), loss, rounds=True
    ).family()
    with pytest.raises(CaptureError, match=r"at batch 1: .*more than 1 value per channel"):
        family.at(1)


def test_inputs_must_agree_on_a_batch() -> None:
    with pytest.raises(InvalidInputError, match=r"shapes \(4, 4\), \(3, 4\)"):
        CapturedStep(nn.Bilinear(4, 4, 2), (torch.randn(4, 4), torch.randn(3, 4)), loss, rounds=True)


def test_without_rounds_there_is_no_family() -> None:
    with pytest.raises(InvalidInputError, match="rounds=True"):
        captured("unet").step.family()
