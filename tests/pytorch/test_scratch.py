"""Memory that kernels take inside themselves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from memsched.torch.scratch import kernel_scratch
from memsched.torch.stages import stage
from pytorch import handmade


def test_a_convolution_in_double_writes_out_its_patches() -> None:
    """No library serves float64: PyTorch's own kernel copies every patch of 8 x 3 x 3 numbers, of all images."""
    model, args = (
        nn.Sequential(nn.Tanh(), nn.Conv2d(8, 16, 3, bias=False)).double(),
        (torch.randn(4, 8, 32, 32).double(),),
    )
    found = kernel_scratch(stage(model, args), model, args)
    patches = 4 * (30 * 30) * (8 * 3 * 3) * 8
    assert found.forward[-1] == patches
    assert found.backward[-1] >= patches
    assert found.most == max(found.forward + found.backward)


@pytest.mark.parametrize("make", [handmade.dropout_mlp, handmade.dict_output, handmade.frozen_prefix])
def test_matrix_products_and_pointwise_operations_take_nothing(make: object) -> None:
    """The two counts agree to the byte, so what differs elsewhere is scratch."""
    model, args = make()  # type: ignore[operator]
    staged = stage(model, args)
    assert kernel_scratch(staged, model, args).most == 0


def test_the_model_is_left_as_it_was() -> None:
    model, args = handmade.in_place_batch_norm()
    staged, before, random = stage(model, args), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    kernel_scratch(staged, model, args)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
