"""The rules of training that a planned model keeps, and what it refuses."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.planned import PlannedForward
from pytorch.models import CASES
from pytorch.steps import (
    Noting,
    Outcome,
    Prepared,
    buffers_restored,
    copies,
    differences,
    installed,
    mlp,
    outcome,
    own,
    plain_step,
    planned_step,
    prepare,
    prepared,
    sum_of_squares,
    tight,
    train_step,
)

NAMED = {case.name: case for case in CASES}


# Steps in a row


def test_running_statistics_move_once_a_step(planner: str) -> None:
    p = prepared(NAMED["in_place_batch_norm"])
    schedule = tight(p, planner)
    assert planner != "rotor" or p.script(schedule).repeated
    with buffers_restored(p.model):
        want = [train_step(p, seed=seed) for seed in range(3)]
    with buffers_restored(p.model), installed(p, schedule, early=copies(1)):
        got = [train_step(p, seed=seed) for seed in range(3)]
    assert [differences(a, b) for a, b in zip(want, got, strict=True)] == [[], [], []]
    assert [int(one.buffers["1.num_batches_tracked"]) for one in got] == [1, 2, 3]


def test_dropout_draws_once(planner: str) -> None:
    p = mlp()
    schedule = tight(p, planner)
    random = [k for k, stage in enumerate(p.staged.stages) if stage.random]
    assert planner != "rotor" or p.script(schedule).repeated & set(random)
    for seed in range(3):
        want = plain_step(p, seed=seed)
        assert differences(want, planned_step(p, schedule, seed=seed, early=copies(seed))) == []


def train(
    model: Any, optimizer: Any, inputs: list[Any], each: Callable[[Any], None] = lambda loss: loss.backward()
) -> Any:
    torch.manual_seed(0)
    for x in inputs:
        optimizer.zero_grad()
        loss = sum_of_squares(model(x))
        each(loss)
        optimizer.step()
    return model.state_dict()


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["in_place_batch_norm", "tied_weights", "spectral_norm"])
def test_five_steps_of_training(name: str, optimizer: str, planner: str) -> None:
    p = prepared(NAMED[name])
    plain, planned = copy.deepcopy(p.model), copy.deepcopy(p.model)
    x = p.args[0]
    inputs = [x if x.dtype == torch.int64 else x * (1 + k) for k in range(5)]
    want = train(plain, OPTIMIZERS[optimizer](plain.parameters()), inputs)
    planned.forward = PlannedForward(planned, p.staged, p.script(tight(p, planner)), EmulatedLanes(early=copies(5)))
    got = train(planned, OPTIMIZERS[optimizer](planned.parameters()), inputs)
    assert list(want) == list(got)
    assert [name for name in want if not torch.equal(want[name], got[name])] == []


@pytest.mark.parametrize("name", ["dropout_mlp", "tied_weights"])
def test_gradients_accumulate(name: str, planner: str) -> None:
    p = prepared(NAMED[name])
    x = p.args[0]
    inputs = [x.roll(k, 0) for k in range(3)]

    def accumulated() -> dict[str, Any]:
        torch.manual_seed(0)
        p.model.zero_grad()
        for x in inputs:
            (sum_of_squares(p.model(x)) / 3).backward()
        return {name: parameter.grad.clone() for name, parameter in p.model.named_parameters()}

    want = accumulated()
    with installed(p, tight(p, planner), early=copies(1)):
        got = accumulated()
    p.model.zero_grad()
    assert [name for name in want if not torch.equal(want[name], got[name])] == []


def test_scaled_losses_and_clipped_gradients(planner: str) -> None:
    p = mlp()
    results = []
    for with_plan in (False, True):
        model = copy.deepcopy(p.model)
        if with_plan:
            model.forward = PlannedForward(model, p.staged, p.script(tight(p, planner)), EmulatedLanes())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(sum_of_squares(model(*p.args))).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
        results.append((norm, scaler.get_scale(), model.state_dict()))
    (norm, scale, want), (planned_norm, planned_scale, got) = results
    assert torch.equal(norm, planned_norm)
    assert scale == planned_scale
    assert all(torch.equal(want[name], got[name]) for name in want)


# What stays as it is


def test_names_parameters_and_other_modes_stay(planner: str) -> None:
    p = mlp()
    names, parameters = list(p.model.state_dict()), list(p.model.parameters())
    with torch.no_grad():
        torch.manual_seed(1)
        trained = p.model(*p.args)
        evaluated = p.model.eval()(*p.args)
        p.model.train()
    steps: list[int] = []
    with installed(p, tight(p, planner)) as forward:
        forward.observe = lambda: Noting(lambda step, kind: steps.append(step))
        assert list(p.model.state_dict()) == names
        assert all(a is b for a, b in zip(p.model.parameters(), parameters, strict=True))
        with torch.no_grad():
            torch.manual_seed(1)
            assert torch.equal(p.model(*p.args), trained)
        p.model.eval()
        result = p.model(torch.cat(p.args * 2))  # of any shape, and with gradients
        assert torch.equal(result[: len(evaluated)].detach(), evaluated)
        assert result.requires_grad
        p.model.train()
    assert steps == []


def test_hooks_of_parameters_fire_once(planner: str) -> None:
    p = prepared(NAMED["tied_weights"])

    def seen() -> list[Any]:
        found: list[Any] = []
        handles = []
        for name, parameter in p.model.named_parameters():
            handles.append(parameter.register_hook(lambda g, name=name: found.append((name, "hook", g.clone()))))
            handles.append(
                parameter.register_post_accumulate_grad_hook(
                    lambda q, name=name: found.append((name, "after", q.grad.clone()))
                )
            )
        train_step(p)
        for handle in handles:
            handle.remove()
        return found

    want = seen()
    with installed(p, tight(p, planner)):
        got = seen()
    p.model.zero_grad()
    assert len(got) == len({(name, kind) for name, kind, _ in got}) == len(want)
    assert sorted(x[:2] for x in got) == sorted(x[:2] for x in want)
    by_name = {x[:2]: x[2] for x in want}
    assert all(torch.equal(by_name[name, kind], value) for name, kind, value in got)


def test_a_hook_may_change_the_gradient(planner: str) -> None:
    p = mlp()
    handle = p.model[0].weight.register_hook(lambda g: g * 2)
    try:
        assert differences(plain_step(p), planned_step(p, tight(p, planner))) == []
    finally:
        handle.remove()


def test_gradients_by_autograd_grad(planner: str) -> None:
    p = mlp()
    parameters = list(p.model.parameters())

    def gradients() -> tuple[Any, ...]:
        torch.manual_seed(0)
        return torch.autograd.grad(sum_of_squares(p.model(*p.args)), parameters)

    want = gradients()
    with installed(p, tight(p, planner)):
        got = gradients()
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert all(parameter.grad is None for parameter in parameters)


def test_gradients_of_a_part_leave_the_model_usable(planner: str) -> None:
    p = mlp()
    want = plain_step(p)
    last = list(p.model.parameters())[-1]
    with installed(p, tight(p, planner)):
        torch.manual_seed(0)
        loss = sum_of_squares(p.model(*p.args))
        (gradient,) = torch.autograd.grad(loss, [last])
        assert torch.equal(gradient, want.gradients["9.bias"])
        assert differences(want, train_step(p)) == []  # though `loss` is still there
        with pytest.raises((MemschedError, RuntimeError)):
            loss.backward()


def test_gradients_of_inputs(planner: str) -> None:
    model, (x,) = NAMED["dropout_mlp"].make()
    p = prepare(model, (x.requires_grad_(),))
    found = []
    for with_plan in (False, True):
        x.grad = None
        result = planned_step(p, tight(p, planner)) if with_plan else plain_step(p)
        found.append((result, x.grad))
    assert differences(found[0][0], found[1][0]) == []
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("used", [0, 1])
def test_only_one_of_two_results_is_used(used: int, planner: str) -> None:
    p = prepared(NAMED["two_outputs"])
    loss = lambda result: result[used].square().sum()  # noqa: E731
    want = plain_step(p, loss=loss)
    assert any(gradient is None for gradient in want.gradients.values())
    assert differences(want, planned_step(p, tight(p, planner), loss=loss)) == []


class Shift(nn.Module):
    """Hands the gradient that arrives on as it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one number, expanded": lambda y: y.sum(),
    "a row, expanded": lambda y: (y * torch.arange(y.shape[1])).sum(),
    "a part of a larger tensor": lambda y: torch.stack([y, y.detach()]).square().sum(),
    "transposed": lambda y: (y.t() * torch.arange(8.0)).square().sum(),
    "negated": lambda y: (-y).square().sum(),
}


@pytest.mark.parametrize("loss", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("layers", [(8, 8), (8, 8, 8)], ids=str)
def test_a_gradient_may_arrive_in_any_form(
    layers: tuple[int, ...], loss: Callable[[torch.Tensor], torch.Tensor], planner: str
) -> None:
    torch.manual_seed(0)
    blocks = [block for width in layers for block in (nn.Linear(8, width), nn.Tanh())]
    p = prepare(nn.Sequential(*blocks, nn.Linear(8, 4), Shift(), Shift()), (torch.randn(8, 8),))
    want = plain_step(p, loss=loss)
    for seed in range(2):
        assert differences(want, planned_step(p, tight(p, planner), loss=loss, early=copies(seed))) == []


def test_results_in_a_dict_keep_their_names(planner: str) -> None:
    p = prepared(NAMED["dict_output"])
    with installed(p, tight(p, planner)):
        result = p.model(*p.args)
    assert list(result) == ["logits", "hidden"]


class Named(nn.Module):
    """Takes one of its arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any, scale: Any = 1.0, *, shift: Any = None) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * scale
        return x if shift is None else x + shift


def test_arguments_by_name(planner: str) -> None:
    shift = torch.randn(4, 8)
    p = prepare(Named().train(), (torch.randn(4, 8),), {"shift": shift, "scale": 2.0})
    want = plain_step(p)
    schedule = tight(p, planner)
    assert differences(want, planned_step(p, schedule)) == []
    with installed(p, schedule):
        assert torch.equal(p.model(*p.args, scale=2.0, shift=shift), want.outputs[0])
    with installed(p, schedule), pytest.raises(InvalidInputError, match="nested"):
        p.model(*p.args)
    with installed(p, schedule), pytest.raises(InvalidInputError, match=r"'scale' is 3\.0, and the plan is for 2\.0"):
        p.model(*p.args, scale=3.0, shift=shift)


# Several models


def test_two_planned_models_take_turns(planner: str) -> None:
    p = mlp()
    first, second = copy.deepcopy(p.model), copy.deepcopy(p.model)
    for model in (first, second):
        model.forward = PlannedForward(model, p.staged, p.script(tight(p, planner)), EmulatedLanes(early=copies(1)))
    want = plain_step(p)
    torch.manual_seed(0)
    one = first(*p.args)
    torch.manual_seed(0)
    two = second(*p.args)
    sum_of_squares(one).backward()
    sum_of_squares(two).backward()
    for model, result in ((first, one), (second, two)):
        got = outcome(model, result)
        assert [name for name in differences(want, got) if not name.startswith("random")] == []


def in_parallel(p: Prepared) -> list[Outcome]:
    """Two steps. The process group must outlive its users: whoever frees it last waits for its threads, forever."""
    parallel = nn.parallel.DistributedDataParallel(p.model)
    try:
        return [train_step(p, model=parallel, seed=seed) for seed in range(2)]
    finally:
        del parallel
        gc.collect()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_distributed_data_parallel(planner: str, tmp_path: Any) -> None:
    p = own(prepared(NAMED["in_place_batch_norm"]))
    schedule = tight(p, planner)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with buffers_restored(p.model):
            want = in_parallel(p)
        with buffers_restored(p.model), installed(p, schedule, early=copies(1)):
            got = in_parallel(p)
        assert [differences(a, b) for a, b in zip(want, got, strict=True)] == [[], []]
    finally:
        torch.distributed.destroy_process_group()
