"""Models whose parameters are on the host when their steps are planned."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from updating import Tied, loss, mlp, plain_step, planned, same

import memsched.torch as mt
from memsched.errors import InvalidInputError
from memsched.torch.compiled import parameters, plain_updates

OFFLOAD: dict[str, Any] = {"offload_parameters": True}
HOSTED: dict[str, Any] = {"update_on_host": "1 TB/s"}


def adam(learned: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(learned, lr=0.01)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes to the device."""
    found: list[Any] = []
    fetch = parameters._Copies.prefetch

    def noted(self: Any) -> None:
        found.append(self)
        fetch(self)

    monkeypatch.setattr(parameters._Copies, "prefetch", noted)
    return found


@pytest.mark.parametrize("hollow", [(), ("cpu",)])
@pytest.mark.parametrize(
    ("make", "more"),
    [
        (lambda: mlp(6, 48), OFFLOAD),
        (lambda: mlp(6, 48), HOSTED),
        pytest.param(Tied, HOSTED, marks=pytest.mark.slow),
        pytest.param(Tied, OFFLOAD, marks=pytest.mark.slow),
    ],
)
def test_planning_fetches_nothing_and_steps_have_the_bits_of_plain_ones(
    make: Any, more: dict[str, Any], hollow: tuple[str, ...], fetched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "HOLLOW", hollow)
    monkeypatch.setattr(plain_updates, "OTHER_KERNELS", hollow)
    model = make()
    x = torch.randint(0, 40, (4, 8)) if make is Tied else torch.randn(4, 48)
    other = copy.deepcopy(model)
    assert mt.on_host(model, "cpu") is model
    same(model, other, adam(model.parameters()), adam(other.parameters()))
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = planned(model, x, optimizer, **more)
    second = planned(model, x, optimizer, "60%", **more)  # while they are away
    assert fetched == []
    assert make is Tied or plan.peak_memory < sum(one.nbytes for one in model.parameters())
    for k in range(4):
        assert torch.equal((second if k == 1 else plan).step(x), plain_step(other, x, plain))
        same(model, other, optimizer, plain)
    assert fetched
    plan.verify(x)
    same(model, other, optimizer, plain)


def test_a_plan_without_travel_brings_them(fetched: list[Any]) -> None:
    model = mt.on_host(mlp(2), "cpu")
    planned(model, torch.randn(4, 24), adam(model.parameters()), "100%")
    assert len(fetched) == 4


class HandsOn(nn.Module):
    """Returns one weight, and leaves another out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.unused = (nn.Linear(24, 24) for _ in range(3))
        self.register_buffer("scale", torch.ones(24))

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(torch.tanh(self.first(x))) * self.scale, self.second.weight


def both(found: Any) -> torch.Tensor:
    return loss(found[0]) + loss(found[1])


@pytest.mark.parametrize("hollow", [(), ("cpu",)])
def test_what_the_step_hands_on_comes_and_what_it_does_not_read_stays(
    hollow: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "HOLLOW", hollow)
    model, x = HandsOn(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    mt.on_host(model, "cpu")
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    given: dict[str, Any] = {"device": "v100:pcie3", "optimizer": optimizer, "update": True}
    plan = mt.plan_step(model, (x,), both, budget="100%", **OFFLOAD, **given)
    away = [name for name, one in model.named_parameters() if parameters._is_away(one)]
    assert {"unused.weight", "unused.bias", "first.weight"} <= {*away}
    for _ in range(3):
        found = both(other(x))
        found.backward()
        plain.step()
        plain.zero_grad()
        assert torch.equal(plan.step(x), found.detach())
        same(model, other, optimizer, plain)


def test_tied_weights_and_parts_of_others_go_to_the_device() -> None:
    model = mlp(3)
    flat = torch.randn(2, 24, 24)
    model[0][0].weight.data, model[1][0].weight.data = flat
    model[2][0].weight = model[1][0].weight
    mt.on_host(model, "cpu")
    away = {name for name, one in model.named_parameters() if parameters._is_away(one)}
    assert away == {"0.0.bias", "1.0.bias", "2.0.bias"}
    assert model[2][0].weight is model[1][0].weight


def test_wrong_calls_are_a_sentence() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (3, "cpu", "model is 3; give a torch.nn.Module"),
        (mlp(1), "nowhere", "device is 'nowhere', which is none here"),
        (mlp(1), None, "device is None; give one to train on"),
        (mlp(1), "meta", 'device is "meta", where nothing runs'),
        (mlp(1).to("meta"), "cpu", "0.0.weight is on meta; load the model on the CPU"),
    ]
    for given, device, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            mt.on_host(given, device)
    model = mlp(1)
    loss(model(torch.randn(2, 24))).backward()
    with pytest.raises(InvalidInputError, match=r"0\.0\.weight has a gradient; call model\.zero_grad\(\)"):
        mt.on_host(model, "cpu")
