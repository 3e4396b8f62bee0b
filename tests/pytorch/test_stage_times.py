"""Times of stages, measured and modelled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from memsched.errors import InvalidInputError
from memsched.torch import weightless
from memsched.torch.machines import MACHINES
from memsched.torch.meter import Meter
from memsched.torch.roofline import Roofline
from memsched.torch.stage_times import StageTimes, dry_walk, measure_times, model_times
from memsched.torch.stages import stage
from pytorch import handmade
from pytorch.models import CASES, Case

V100 = MACHINES["v100"]
NETWORKS = [
    pytest.param(case, id=case.name, marks=() if case.family is None else pytest.mark.slow)
    for case in CASES
    if case.exportable
]


def made_fake(model: Any, args: Any) -> Any:
    """The args as fake tensors; the parameters and buffers of the model become fake too."""
    fake, here = FakeTensorMode(), torch.device("cpu")
    weightless.make_fake(model, fake, here)
    return tree_map_only(torch.Tensor, lambda tensor: weightless.fake_like(tensor, fake, here), args)


def check(times: StageTimes, n: int) -> None:
    assert len(times.forward) == len(times.backward) == n
    assert all(seconds > 0 for seconds in times.forward)
    assert all(seconds >= 0 for seconds in times.backward)


@pytest.mark.parametrize("case", NETWORKS)
def test_measuring_leaves_the_model_as_it_was(case: Case) -> None:
    model, args = case.make()
    for count, parameter in enumerate(model.parameters()):
        if count % 2:
            parameter.grad = torch.ones_like(parameter)
    staged = stage(model, args)
    state, inputs = copy.deepcopy(model.state_dict()), copy.deepcopy(args)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    check(measure_times(staged, model, args, repeat=1), len(staged.stages))
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0, equal_nan=True)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)
    for now, then in zip(tree_leaves(args), tree_leaves(inputs), strict=True):
        assert now is None if then is None else torch.equal(now, then)


def test_a_backward_that_computes_nothing_takes_no_time() -> None:
    model, args = handmade.frozen_prefix()
    staged = stage(model, args)
    measured = measure_times(staged, model, args, repeat=1)
    modelled = model_times(staged, model, args, machine=V100)
    # The first two layers are frozen: the Linear and the Tanh, which is one stage each.
    assert measured.backward[:2] == modelled.backward[:2] == [0.0, 0.0]
    assert min(*measured.backward[2:], *modelled.backward[2:]) > 0


def test_an_input_that_needs_a_gradient_gets_one_in_the_time_of_the_first_backward() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh())
    without, args = torch.randn(64, 64), (torch.randn(64, 64, requires_grad=True),)
    flops = 2 * 64**3 / (0.6 * V100.float32)
    times = [model_times(stage(model, a), model, a, machine=V100).backward[0] for a in ((without,), args)]
    assert times[1] >= times[0] + flops
    measure_times(stage(model, args), model, args, repeat=1)
    assert args[0].grad is None


def test_keyword_arguments_and_those_that_are_no_tensors() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any, scale: float, *, mask: Any) -> Any:
            for layer in self.layers:
                x = layer(x) * scale + mask
            return x

    model, args, kwargs = Scaled(), (torch.randn(4, 8), 2.0), {"mask": torch.zeros(8)}
    staged = stage(model, args, kwargs)
    check(measure_times(staged, model, args, kwargs, repeat=2), len(staged.stages))
    check(model_times(staged, model, args, kwargs, machine=V100), len(staged.stages))


def test_one_stage_at_a_time_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer keeps for its backward is gone when the next one runs."""
    model = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.GELU())))
    args = (torch.randn(4096, 8),)
    activation = 4096 * 8 * 4
    staged = stage(model, args)
    dry = dry_walk(staged, args, staged.fetch_state(model), Roofline(V100))
    monkeypatch.setattr("memsched.torch.stage_times.dry_walk", lambda *_: dry)  # the meter would count its tensors
    with Meter() as meter:
        measure_times(staged, model, args, repeat=1)
    assert 2 * activation < meter.peak < 8 * activation


@pytest.mark.parametrize("make", [handmade.dropout_mlp, handmade.in_place_batch_norm, handmade.unet])
@pytest.mark.parametrize("machine", ["v100", "h100"])
def test_the_stages_take_what_the_whole_takes(make: Any, machine: str) -> None:
    """The model of all stages is that of a plain step: one forward, and the gradients of the parameters."""
    model, args = make()
    args = made_fake(model, args)
    times = model_times(stage(model, args), model, args, machine=MACHINES[machine])
    parameters = list(model.parameters())
    with parameters[0].fake_mode, Roofline(MACHINES[machine]) as roofline:  # type: ignore[attr-defined]
        out = model(*args)
        forward = roofline.lap()
        gradient = torch.empty_like(out)
        torch.autograd.grad(out, parameters, gradient)
        backward = roofline.lap()
    assert sum(times.forward) == pytest.approx(forward, rel=1e-4)
    assert sum(times.backward) == pytest.approx(backward, rel=1e-4)


def test_a_matrix_product_by_hand() -> None:
    model, args = nn.Linear(2048, 2048, bias=False), (torch.randn(2048, 2048),)
    times = model_times(stage(model, args), model, args, machine=V100)
    product = 2 * 2048**3 / (0.6 * 14e12) + V100.launch
    assert times.forward == [pytest.approx(product)]
    assert times.backward == [pytest.approx(product)]  # the input needs no gradient


def test_tensors_without_data_can_be_modelled_and_not_measured() -> None:
    model, args = handmade.dropout_mlp()
    real = model_times(stage(model, args), model, args, machine=V100)
    args = made_fake(model, args)
    staged = stage(model, args)
    assert model_times(staged, model, args, machine=V100) == real
    with pytest.raises(InvalidInputError, match=r"without data.*device="):
        measure_times(staged, model, args)


@pytest.mark.parametrize("repeat", [0, -1, 1.5, True])
def test_what_is_no_number_of_repeats_is_refused(repeat: Any) -> None:
    model, args = nn.Linear(2, 2), (torch.ones(2, 2),)
    with pytest.raises(InvalidInputError, match="repeat"):
        measure_times(stage(model, args), model, args, repeat=repeat)
