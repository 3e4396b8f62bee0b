"""A model as a chain: bytes against the shipped profiles, and what is resident."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

import memsched as ms
from memsched.errors import InvalidInputError
from memsched.torch import weightless
from memsched.torch.profile import profile, profile_spec
from memsched.torch.stages import stage
from pytorch import handmade
from pytorch.models import CASES, Case

NETWORKS = [
    pytest.param(case, id=case.name, marks=() if case.family is None else pytest.mark.slow)
    for case in CASES
    if case.exportable
]
COLUMNS = ("activation", "saved", "gradient", "forward_overhead", "transient_overhead", "backward_overhead")


class TwoHeads(nn.Module):
    """As in Inception: a second result is ready long before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side = nn.Linear(16, 16), nn.Linear(16, 2)
        self.tail = nn.Sequential(nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        side = self.side(hidden)
        return self.tail(hidden), side


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
@pytest.mark.parametrize(
    ("spec", "input", "name"),
    [
        ("torchvision:resnet18", "32x3x224x224", "resnet18-224-b32"),
        pytest.param("torchvision:densenet121", "32x3x224x224", "densenet121-224-b32", marks=pytest.mark.slow),
        pytest.param("torchvision:resnet152", "8x3x1000x1000", "resnet152-1000-b8", marks=pytest.mark.slow),
    ],
)
def test_the_shipped_profiles(spec: str, input: str, name: str) -> None:
    """Equal: what ships was made so, with seconds of six digits."""
    found, shipped = profile_spec(spec, input, device="v100:pcie3"), ms.profiles.load(name)
    assert found.names == shipped.names
    assert found.pieces == shipped.pieces
    assert found.resident == shipped.resident
    for column in COLUMNS:
        assert getattr(found, column).tolist() == getattr(shipped, column).tolist(), column
    for column in ("forward_time", "backward_time"):
        assert getattr(found, column) == pytest.approx(getattr(shipped, column), rel=1e-5), column
    assert found.provenance is not None
    assert found.provenance["link_bandwidth"] == 12.2e9
    assert "not a measurement" in found.provenance["times"]


@pytest.mark.parametrize("case", NETWORKS)
def test_without_data_the_profile_is_the_same(case: Case) -> None:
    if case.name == "lstm":
        pytest.skip("whether its weights are flat, and so its kernel, depends on their addresses")
    model, args = case.make()
    real = profile(model, args, device="a100")
    fake, here = FakeTensorMode(), torch.device("cpu")
    weightless.make_fake(model, fake, here)
    args = tree_map_only(torch.Tensor, lambda tensor: weightless.fake_like(tensor, fake, here), args)
    assert profile(model, args, device="a100") == real


@pytest.mark.parametrize("make", [handmade.dropout_mlp, handmade.two_outputs, handmade.shared_mask])
def test_a_profile_can_be_planned(make: Callable[[], Any]) -> None:
    model, args = make()
    chain = profile(model, args, repeat=1)
    assert chain.n == len(chain.names) == len(stage(model, args).stages)
    assert ms.Chain.from_json(chain.to_json()) == chain
    result = ms.greedy(chain, M=ms.peak_memory(chain), beta=1e9, chunk="storage")
    assert result.makespan == pytest.approx(sum(chain.forward_time) + sum(chain.backward_time))
    assert chain.provenance is not None
    assert chain.provenance["times"].startswith("measured on this CPU")
    assert chain.provenance["link_bandwidth"] > 0


def test_every_byte_of_two_layers() -> None:
    """A batch of 4, 8 numbers each, through Linear(8, 16), Tanh, Linear(16, 2): float32 throughout."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    chain = profile(model, (torch.randn(4, 8),), device="v100")
    assert chain.activation.tolist() == [128, 256, 256, 32]
    assert chain.gradient.tolist() == [0, 256, 256, 32]
    assert chain.saved.tolist() == [256, 256, 32]
    assert chain.pieces == [[], [], []]
    assert chain.forward_overhead.tolist() == chain.transient_overhead.tolist() == [0, 0, 0]
    weights = [4 * (8 * 16 + 16), 0, 4 * (16 * 2 + 2)]
    assert chain.backward_overhead.tolist() == weights
    assert chain.resident == 2 * sum(weights)
    assert chain.provenance is not None
    assert chain.provenance["resident"] == {"parameters": sum(weights), "gradients": sum(weights)}


def test_what_is_resident_besides_the_parameters() -> None:
    def parts(model: nn.Module, *args: Any) -> dict[str, int]:
        found = profile(model, args, device="v100")
        assert found.provenance is not None
        resident: dict[str, int] = found.provenance["resident"]
        assert sum(resident.values()) == found.resident
        return resident

    model, args = handmade.shared_mask()
    assert parts(model, *args)["environment"] == 6 * 6 * 4
    assert parts(TwoHeads(), torch.randn(8, 16))["early_results"] == 2 * 8 * 2 * 4  # and its gradient
    assert parts(nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True))["input_gradients"] == 4 * 8 * 4
    model, args = handmade.in_place_batch_norm()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert parts(model, *args)["buffers"] == len(norms) * (2 * 8 * 4 + 8)
    model, args = handmade.frozen_prefix()
    found = parts(model, *args)
    assert found["parameters"] - found["gradients"] == sum(p.nbytes for p in model[:2].parameters())


def test_an_early_result_is_made_again_by_a_repeated_run_of_its_stage() -> None:
    """The first one stays with the caller; the second is scratch."""
    chain = profile(TwoHeads(), (torch.randn(8, 16),), device="v100")
    assert chain.activation.tolist()[-1] == chain.gradient.tolist()[-1] == 8 * 4 * 4
    assert max(chain.transient_overhead) == max(chain.forward_overhead) >= 8 * 2 * 4


def test_autocast_is_that_of_the_call() -> None:
    model, args = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), (torch.randn(8, 64),)
    plain = profile(model, args, device="h100")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = profile(model, args, device="h100")
    assert half.activation.tolist() == [8 * 64 * 4, 8 * 64 * 2, 8 * 64 * 2]
    assert plain.activation.tolist() == [8 * 64 * 4] * 3
    assert half.provenance is not None
    assert "autocast to bfloat16" in half.provenance["source"]


def test_the_machine_decides_what_dropout_and_attention_save() -> None:
    model, args = handmade.dropout_mlp()
    here, cuda = (sum(map(sum, profile(model, args, device=d, repeat=1).pieces or [])) for d in ("here", "v100"))
    assert cuda < here  # a byte an element, not four


def test_the_model_is_left_as_it_was() -> None:
    model, args = handmade.in_place_batch_norm()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    profile(model, args, repeat=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "v101"}, "no machine is named 'v101'"),
        ({"repeat": 0}, "repeat is 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        profile(nn.Linear(2, 2), (torch.ones(2, 2),), **options)


def test_a_model_that_cannot_be_profiled() -> None:
    with pytest.raises(InvalidInputError, match="eval mode"):
        profile(nn.Linear(2, 2).eval(), (torch.ones(2, 2),))
    with FakeTensorMode():
        model, args = nn.Linear(2, 2), (torch.ones(2, 2),)
    with pytest.raises(InvalidInputError, match='device="v100"'):
        profile(model, args)
    assert profile(model, args, device="v100").n == 1


def test_a_spec_with_autocast() -> None:
    with pytest.raises(InvalidInputError, match="bf16 or fp16"):
        profile_spec("torchvision:resnet18", autocast="fp8")
