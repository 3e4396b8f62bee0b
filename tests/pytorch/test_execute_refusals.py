"""What a planned model refuses: other inputs, a changed model or tensor, and steps that its budget does not cover."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.planned import PlannedForward
from pytorch.steps import (
    Prepared,
    differences,
    installed,
    mlp,
    own,
    plain_step,
    prepare,
    sum_of_squares,
    tight,
    train_step,
)


def test_other_inputs_are_refused(planner: str) -> None:
    p = mlp()
    with installed(p, tight(p, planner)):
        for x, words in [
            (torch.randn(3, 32), "float32 3x32, and the plan is for float32 8x32"),
            (torch.randn(8, 32, dtype=torch.float64), "float64 8x32, and"),
            (torch.randn(8, 32, requires_grad=True), "float32 8x32 that needs a gradient, and"),
        ]:
            with pytest.raises(InvalidInputError, match=words):
                p.model(x)
        assert differences(plain_step_of(p), train_step(p)) == []


def plain_step_of(p: Prepared) -> Any:
    """The plain step of a model that has a plan just now."""
    forward = p.model.__dict__.pop("forward")
    try:
        return plain_step(p)
    finally:
        p.model.forward = forward


def test_a_changed_model_is_refused(planner: str) -> None:
    p = own(mlp())
    with installed(p, tight(p, planner)):
        p.model[2].eval()
        with pytest.raises(MemschedError, match="'2' went to eval mode"):
            p.model(*p.args)
        p.model.train()
        p.model[0].weight.requires_grad_(False)
        with pytest.raises(MemschedError, match=r"'0.weight' was .*True.* and is .*False"):
            p.model(*p.args)
        p.model[0].weight.requires_grad_(True)
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            pytest.raises(MemschedError, match="planned with no autocast"),
        ):
            p.model(*p.args)
        p.model.to(torch.float64)
        with pytest.raises(MemschedError, match=r"'0.weight' was .*float32.* and is .*float64"):
            p.model(p.args[0])
        p.model.to(torch.float32)
        assert differences(plain_step_of(p), train_step(p)) == []


def test_a_second_backward_is_refused(planner: str) -> None:
    p = mlp()
    with installed(p, tight(p, planner)):
        loss = sum_of_squares(p.model(*p.args))
        loss.backward(retain_graph=True)
        with pytest.raises(MemschedError, match="one backward, and it has run"):
            loss.backward()
        assert differences(plain_step_of(p), train_step(p)) == []


def test_second_derivatives_are_refused(planner: str) -> None:
    p = mlp()
    with installed(p, tight(p, planner)):
        loss = sum_of_squares(p.model(*p.args))
        with pytest.raises(MemschedError, match="create_graph"):
            torch.autograd.grad(loss, list(p.model.parameters()), create_graph=True)
        assert differences(plain_step_of(p), train_step(p)) == []


def test_a_forward_while_another_waits_is_refused(planner: str) -> None:
    p = mlp()
    want = plain_step(p)
    with installed(p, tight(p, planner)):
        torch.manual_seed(0)
        result = p.model(*p.args)
        with pytest.raises(MemschedError, match="waits for its backward"):
            p.model(*p.args)
        sum_of_squares(result).backward()
        assert all(torch.equal(q.grad, want.gradients[name]) for name, q in p.model.named_parameters())
        result = p.model(*p.args)
        del result  # never followed by a backward
        assert differences(want, train_step(p)) == []


def tanh_mlp() -> Prepared:
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return prepare(nn.Sequential(*layers).train(), (torch.randn(4, 8),))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("input 'input_1'", lambda p, result: p.args[0].mul_(1)),
        ("'2.weight' of the model", lambda p, result: nn.init.ones_(p.model[2].weight)),
        ("output 0 of the model", lambda p, result: result.detach().mul_(2)),
    ],
)
def test_changes_in_place_of_what_the_backward_reads_are_errors_as_in_autograd(
    name: str, change: Callable[[Prepared, Any], object], planner: str
) -> None:
    p = tanh_mlp()
    schedule = tight(p, planner)
    result = p.model(*p.args)
    change(p, result)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    with installed(p, schedule):
        result = p.model(*p.args)
        change(p, result)
        with pytest.raises(MemschedError, match=f"{name} was changed in place after the forward"):
            result.sum().backward()
        assert differences(plain_step_of(p), train_step(p)) == []


class GivesMask(nn.Module):
    """Returns what later stages read, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any, pad: Any) -> Any:
        mask = (~pad).float()
        for layer in self.layers:
            x = (layer(x) * mask).tanh()
        return x, mask


def test_changes_of_a_result_that_later_stages_read_are_errors_as_in_autograd(planner: str) -> None:
    p = prepare(GivesMask().train(), (torch.randn(4, 8), torch.zeros(4, 8, dtype=torch.bool)))
    with installed(p, tight(p, planner)):
        result, mask = p.model(*p.args)
        mask.zero_()
        with pytest.raises(MemschedError, match="output 1 of the model was changed in place"):
            result.sum().backward()
        assert differences(plain_step_of(p), train_step(p)) == []


class GivesHidden(nn.Module):
    """Returns an activation on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        hidden = []
        for layer in self.layers:
            x = layer(x).tanh()
            hidden.append(x)
        return hidden


@pytest.mark.parametrize("which", range(4))
def test_changes_of_returned_activations_are_errors_as_in_autograd(which: int, planner: str) -> None:
    p = prepare(GivesHidden().train(), (torch.randn(4, 8),))
    with installed(p, tight(p, planner)):
        hidden = p.model(*p.args)
        hidden[which].detach().zero_()
        with pytest.raises(MemschedError, match=f"output {which} of the model was changed in place"):
            hidden[-1].sum().backward()
        assert differences(plain_step_of(p), train_step(p)) == []


def test_changes_of_what_only_the_forward_read_are_refused_only_where_it_is_repeated(planner: str) -> None:
    p = own(tanh_mlp())
    result = p.model(*p.args)
    bias = p.model[0].bias
    before = bias.detach().clone()
    with torch.no_grad():
        bias.add_(1)
    result.sum().backward()
    want = {name: q.grad.clone() for name, q in p.model.named_parameters()}
    with torch.no_grad():
        bias.copy_(before)
    p.model.zero_grad()
    schedule = tight(p, planner)
    with installed(p, schedule):
        result = p.model(*p.args)
        with torch.no_grad():
            bias.add_(1)
        if 0 in p.script(schedule).repeated:
            with pytest.raises(MemschedError, match=r"'0.bias' of the model was changed.*the plan repeats reads it"):
                result.sum().backward()
        else:
            result.sum().backward()
            assert all(torch.equal(q.grad, want[name]) for name, q in p.model.named_parameters())


def test_changes_in_place_of_what_no_backward_reads_are_allowed(planner: str) -> None:
    p = mlp()
    want = plain_step(p)
    with installed(p, tight(p, planner)):
        torch.manual_seed(0)
        loss = sum_of_squares(result := p.model(*p.args))
        gradients = torch.autograd.grad(loss, result, retain_graph=True)
        result.detach().zero_()
        result.backward(gradients)
    assert all(torch.equal(q.grad, want.gradients[name]) for name, q in p.model.named_parameters())


def test_a_nesting_is_shown_with_stars(planner: str) -> None:
    p = mlp()
    with (
        installed(p, tight(p, planner)),
        pytest.raises(InvalidInputError, match=re.escape("nested as ((*,), {}) and got ((*,), {'mask': *})")),
    ):
        p.model(*p.args, mask=None)


def test_another_memory_format_is_refused(planner: str) -> None:
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(3))).train()
    x = torch.randn(2, 3, 16, 16)
    p = prepare(model, (x,))
    with installed(p, tight(p, planner)):
        with pytest.raises(
            InvalidInputError, match="2x3x16x16 in channels_last, and the plan is for float32 2x3x16x16"
        ):
            p.model(x.to(memory_format=torch.channels_last))
        with pytest.raises(InvalidInputError, match="2x3x16x16 with strides 768, 256, 1, 16, and"):
            p.model(x.transpose(2, 3))
        with pytest.raises(InvalidInputError, match="lay it out alike"):
            p.model(x.transpose(2, 3))
        assert differences(plain_step_of(p), train_step(p)) == []


def test_slices_of_whole_numbers_are_like_dense_ones(planner: str) -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11)).train()
    p = prepare(model, (torch.zeros(4, 6, dtype=torch.long),))
    tokens = torch.randint(0, 11, (4, 7))[:, :-1]
    p.model.zero_grad()
    p.model(tokens).square().sum().backward()
    want = [q.grad for q in p.model.parameters()]
    p.model.zero_grad()
    with installed(p, tight(p, planner)):
        p.model(tokens).square().sum().backward()
    assert all(torch.equal(a, q.grad) for a, q in zip(want, p.model.parameters(), strict=True))


def test_copies_are_plain_and_pickles_are_refused(planner: str) -> None:
    p = mlp()
    with installed(p, tight(p, planner)):
        copied = copy.deepcopy(p.model)
        assert not isinstance(copied.forward, PlannedForward)
        assert copied.forward.__self__ is copied
        assert copied(torch.randn(2, 32)).shape == (2, 4)
        with pytest.raises(MemschedError, match="cannot be pickled; call remove"):
            pickle.dumps(p.model)
    assert pickle.loads(pickle.dumps(p.model)).training
