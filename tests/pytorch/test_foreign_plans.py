"""Plans of steps of several graphs, given to models whose tensors are alike but are computed from others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import memsched as ms
import memsched.torch
from memsched.torch import TorchPlan

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"  # Dynamo's own
)


class Parts(nn.Module):
    """Two graphs. With `other` an operation of the first reads another tensor of the same size."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.first, self.second, self.other = nn.Linear(32, 32), nn.Linear(32, 32), other

    def _part(self, given: torch.Tensor, other: bool) -> torch.Tensor:
        a = given.sin()
        b = a.cos()
        return (a if other else b).exp().tanh() * b + a

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The mean square."""
        given = self._part(self.first(given), self.other)
        torch._dynamo.graph_break()
        return self._part(self.second(given), False).square().mean()


class Noisy(nn.Module):
    """Draws twice in its first graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The mean square."""
        given = self.first(given)
        a = torch.rand_like(given) + given.sin()
        b = torch.rand_like(given) * 2 + given.cos()
        given = a * b
        torch._dynamo.graph_break()
        return self.second(given).square().mean()


def _trained(step: nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(5)
    loss = step(given)
    loss.backward()
    return [loss.detach(), *(one.grad.clone() for one in step.parameters() if one.grad is not None)]


def _same(plain: nn.Module, planned: nn.Module, given: torch.Tensor) -> None:
    wanted, found = _trained(plain, given), _trained(planned, given)
    assert len(wanted) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize("budget", ["25%", "60%"])
def test_a_step_that_computes_otherwise_gets_a_plan_of_its_own(budget: str) -> None:
    """It followed the plan whose tensors have the same names and bytes, into an error that is ours alone."""
    torch.manual_seed(0)
    given = torch.randn(64, 32)
    plan = memsched.torch.plan(Parts(False), (given,), budget=budget, bandwidth=0, device="v100")
    plain, other = Parts(True), Parts(True)
    other.load_state_dict(plain.state_dict())
    _same(plain, plan.apply(other), given)


def test_a_forged_plan_that_draws_in_another_order_is_not_followed(tmp_path: Path) -> None:
    """Of the file's two plans the one that runs was changed; the first step had another loss."""
    torch.manual_seed(0)
    given = torch.randn(64, 32)
    plan = memsched.torch.plan(Noisy(), (given,), budget="90%", bandwidth=0, device="v100")
    document = json.loads(json.dumps(plan.to_json()))
    graph = document["result"]["problem"]
    names = [op["name"] for op in graph["ops"]]
    second = graph["ops"].pop(names.index("1/rand_like_1"))
    second["reads"].remove("1/after rand_like")
    graph["ops"].insert(names.index("1/rand_like"), second)
    graph["ops"][names.index("1/rand_like") + 1]["reads"].append("1/after rand_like_1")
    device = ms.Device.from_json(document["result"]["device"])
    document["result"] = ms.selective(ms.Graph.from_json(graph), device=device, reorder=False).to_json()
    (tmp_path / "forged.json").write_text(json.dumps(document), encoding="utf-8")
    plain, forged = Noisy(), Noisy()
    forged.load_state_dict(plain.state_dict())
    _same(plain, TorchPlan.load(tmp_path / "forged.json").apply(forged), given)
