"""A model as a chain: against the shipped profiles, what is resident, and how long it takes."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

import memsched as ms
from memsched.errors import InvalidInputError
from memsched.torch import weightless
from memsched.torch.machines import MACHINES
from memsched.torch.profile import profile, profile_spec
from memsched.torch.roofline import Roofline
from pytorch import handmade

V100 = MACHINES["v100"]


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
    """They were made by a profiler that cut at all of these activations, and at some more that no backward needs."""
    found, shipped = profile_spec(spec, input, device="v100:pcie3"), ms.profiles.load(name)
    cuts, left = iter(found.activation.tolist()), []
    cut = next(cuts)
    for size in shipped.activation.tolist():
        if size == cut:
            cut = next(cuts, None)
        else:
            left.append(size)
    assert cut is None
    assert len(left) == shipped.n - found.n == (4 if name.startswith("densenet") else 0)
    assert found.saved.sum() == shipped.saved.sum() - sum(left)
    if not left:
        assert found.names == shipped.names
        assert found.pieces == shipped.pieces
        assert found.gradient.tolist() == shipped.gradient.tolist()
        assert found.provenance is not None
        assert shipped.provenance is not None
        assert found.provenance["stage_gradients"] == shipped.provenance["stage_gradients"]
    # The gradient of a block's first concatenation, which is of one tensor, was a copy, and is a view.
    copies = sum(2 * size / (0.75 * V100.memory_bandwidth) + V100.launch for size in left)
    assert found.forward_time.sum() == pytest.approx(shipped.forward_time.sum(), rel=1e-4)
    assert found.backward_time.sum() == pytest.approx(shipped.backward_time.sum() - copies, rel=1e-4)
    assert found.provenance is not None
    assert shipped.provenance is not None
    repeated, before = (one.provenance["resident"]["repeated"] for one in (found, shipped))
    assert found.resident - repeated == shipped.resident - before
    assert found.provenance["link_bandwidth"] == 12.2e9
    assert "not a measurement" in found.provenance["times"]


@pytest.mark.parametrize("make", [handmade.dropout_mlp, handmade.two_outputs, handmade.shared_mask])
def test_a_profile_can_be_planned(make: Callable[[], Any]) -> None:
    model, args = make()
    chain = profile(model, args)
    assert chain.n == len(chain.names) > 3
    assert ms.Chain.from_json(chain.to_json()) == chain
    result = ms.greedy(chain, M=ms.peak_memory(chain), beta=1e9, chunk="storage")
    assert result.makespan == pytest.approx(sum(chain.forward_time) + sum(chain.backward_time))
    assert chain.provenance is not None
    assert chain.provenance["times"].startswith("measured on this CPU")
    assert chain.provenance["link_bandwidth"] > 0


def test_what_learns_in_each_stage() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 4, bias=False), nn.Tanh())
    model[0].weight.requires_grad_(requires_grad=False)
    chain = profile(model, (torch.randn(4, 8),), device="v100")
    assert chain.provenance is not None
    learning = {name: 4 * one.numel() for name, one in model.named_parameters() if one.requires_grad}
    assert sum(chain.provenance["stage_gradients"]) == sum(learning.values())
    found = dict(zip(chain.names, chain.provenance["stage_gradients"], strict=True))
    for k in (0, 2, 3):
        (own,) = (size for name, size in found.items() if str(k) in name.split(".."))
        assert own == sum(size for name, size in learning.items() if name.startswith(f"{k}."))
    step = ms.whole_step(chain, 2, "900 GB/s")
    assert {one["name"] for one in step.tensors if one["role"] == "persistent"} > {"w1", "m1"}
    assert step.resident + sum(learning.values()) * 2 == chain.resident


class Twice(nn.Module):
    """The first and the last layer have the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.tanh(self.first(x)))
        return found


class Added(nn.Module):
    """What is added is as large as the batch: its gradient is the one that arrives, which the next stage has made."""

    def __init__(self, *, twice: bool = False, last: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Identity() if last else nn.Linear(8, 8)
        self.own = nn.ParameterList([torch.randn(4, 8) for _ in range(1 + twice)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        for one in self.own:
            hidden = hidden + one
        found: torch.Tensor = self.second(hidden)
        return found


class Summed(nn.Module):
    """Its gradient is one number, seen as many."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.own = nn.Linear(8, 8), nn.Parameter(torch.randn(100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.tanh(self.first(x)) * self.own.sum()
        return found


@pytest.mark.parametrize(
    "model", [Twice(), Added(), Added(twice=True), Added(last=True), Summed()], ids=lambda one: type(one).__name__
)
def test_parameters_without_a_stage_of_their_own_are_no_whole_step(model: nn.Module) -> None:
    """A plan could have the weight on the host while another stage reads it, or count other bytes."""
    chain = profile(model, (torch.randn(4, 8),), device="v100")
    with pytest.raises(ms.InvalidInputError, match="does not tell the parameters of each"):
        ms.whole_step(chain, 2, "900 GB/s")


def test_nor_are_inputs_that_learn() -> None:
    chain = profile(nn.Linear(8, 8), (torch.randn(4, 8, requires_grad=True),), device="v100")
    with pytest.raises(ms.InvalidInputError, match="does not tell the parameters of each"):
        ms.whole_step(chain, 2, "900 GB/s")


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
    assert parts(nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True))["gradients"] == 4 * (8 * 8 + 8 + 4 * 8)
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


def test_the_machine_decides_what_attention_saves() -> None:
    """Here the mask is saved as it is; CUDA's kernel takes one whose rows are aligned, of the shape of all scores."""
    model, args = handmade.position_bias()
    here, cuda = (int(profile(model, args, device=device).saved.sum()) for device in ("here", "a100"))
    assert cuda > here


@pytest.mark.parametrize("make", [handmade.in_place_batch_norm, handmade.tied_weights, handmade.spectral_norm])
@pytest.mark.parametrize("device", ["here", "v100"])
def test_the_model_is_left_as_it_was(make: Callable[[], Any], device: str) -> None:
    model, args = make()
    for count, parameter in enumerate(model.parameters()):
        if count % 2:
            parameter.grad = torch.ones_like(parameter)
    before, inputs, random = copy.deepcopy(model.state_dict()), copy.deepcopy(args), torch.get_rng_state()
    profile(model, args, device=device)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for count, parameter in enumerate(model.parameters()):
        assert torch.equal(parameter.grad, torch.ones_like(parameter)) if count % 2 else parameter.grad is None
    assert all(map(torch.equal, args, inputs))
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("device", ["here", "v100"])
def test_a_backward_that_computes_nothing_takes_no_time(device: str) -> None:
    model, args = handmade.frozen_prefix()
    chain = profile(model, args, device=device)
    assert chain.names[0] == "0..1"  # frozen
    assert chain.backward_time[0] == 0
    assert chain.gradient[1] == 0
    assert min(*chain.backward_time[1:], *chain.forward_time) > 0


def test_an_input_that_needs_a_gradient_gets_one_in_the_time_of_the_first_backward() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh())
    times = [
        profile(model, (torch.randn(64, 64, requires_grad=needs),), device="v100").backward_time[0]
        for needs in (False, True)
    ]
    assert times[1] >= times[0] + 2 * 64**3 / (0.6 * V100.float32)


def test_a_matrix_product_by_hand() -> None:
    chain = profile(nn.Linear(2048, 2048, bias=False), (torch.randn(2048, 2048),), device="v100")
    product = 2 * 2048**3 / (0.6 * 14e12) + V100.launch
    assert chain.forward_time.tolist() == [pytest.approx(product)]
    assert chain.backward_time.tolist() == [pytest.approx(product)]  # the input needs no gradient


@pytest.mark.parametrize("make", [handmade.in_place_batch_norm, handmade.two_outputs, handmade.tied_weights])
@pytest.mark.parametrize("machine", ["v100", "h100"])
def test_the_stages_take_what_the_whole_takes(make: Callable[[], Any], machine: str) -> None:
    """The model of all stages is that of a plain step: one forward, and the gradients of the parameters."""
    model, args = make()
    fake, here = FakeTensorMode(), torch.device("cpu")
    weightless.make_fake(model, fake, here)
    args = tuple(weightless.fake_like(one, fake, here) for one in args)
    chain = profile(model, args, device=machine)
    with fake, Roofline(MACHINES[machine]) as roofline:
        out = [one for one in pytree.tree_leaves(model(*args)) if one.requires_grad]
        forward = roofline.lap()
        gradients = [torch.empty_like(one) for one in out]
        roofline.lap()
        torch.autograd.grad(out, list(model.parameters()), gradients, allow_unused=True)
        backward = roofline.lap()
    assert sum(chain.forward_time) == pytest.approx(forward, rel=1e-4)
    assert sum(chain.backward_time) == pytest.approx(backward, rel=1e-4)


def test_keyword_arguments_and_those_that_are_no_tensors() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any, scale: float, *, mask: Any) -> Any:
            for layer in self.layers:
                x = torch.tanh(layer(x)) * scale + mask
            return x

    chain = profile(Scaled(), (torch.randn(4, 8), 2.0), {"mask": torch.zeros(8)}, device="v100")
    assert chain.n == 6
    assert chain.activation[0] == 4 * 8 * 4 + 8 * 4


def test_an_unknown_machine() -> None:
    with pytest.raises(InvalidInputError, match="no machine is named 'v101'"):
        profile(nn.Linear(2, 2), (torch.ones(2, 2),), device="v101")


def test_a_model_that_cannot_be_profiled() -> None:
    with pytest.raises(InvalidInputError, match="eval mode"):
        profile(nn.Linear(2, 2).eval(), (torch.ones(2, 2),))
    with FakeTensorMode():
        model, args = nn.Linear(2, 2), (torch.ones(2, 2),)
    assert profile(model, args).n == profile(model, args, device="v100").n == 1  # times are those of made-up values


def test_a_spec_with_autocast() -> None:
    with pytest.raises(InvalidInputError, match="bf16 or fp16"):
        profile_spec("torchvision:resnet18", autocast="fp8")


@pytest.mark.parametrize(
    ("input", "said"), [("2x1x64x64", "float32 2x1x64x64: .*3 channels"), ("2,3", "takes .x.: too many")]
)
def test_what_the_model_cannot_take_is_one_sentence(input: str, said: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=f"torchvision:resnet18: .*{said}.*sizes are written as") as caught:
        profile_spec("torchvision:resnet18", input, device="v100:pcie3")
    assert "\n" not in str(caught.value)
