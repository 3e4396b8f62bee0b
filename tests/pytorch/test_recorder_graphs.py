"""Graphs of recorded steps: what they say, where their times come from, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.torch.recorder.record import graph, graph_all, record, record_all
from pytorch.recorder_steps import ADAMW, SGD, Block, Loop, Residual, ids


def names(made: ms.Graph) -> list[str]:
    return [op["name"] for op in made.ops]


def test_names_phases_layers_and_kinds() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
    made = graph(model, (torch.randn(2, 3, 8, 8),), optimizer=SGD, name="small")
    ops = {op["name"]: op for op in made.ops}
    assert (made.name, made.batch) == ("small", 2)
    forward = [op["name"] for op in made.ops if op["phase"] == "fwd"]
    assert forward[:2] == ["0/convolution", "1/add_"]
    assert "1/native_batch_norm+relu_" in forward
    for name, layer in (
        ("0/convolution", "0/convolution_backward"),
        ("1/native_batch_norm+relu_", "1/native_batch_norm_backward"),
    ):
        assert ops[name]["layer"] == ops[layer]["layer"]
        assert (ops[name]["phase"], ops[layer]["phase"]) == ("fwd", "bwd")
    once = {name for name, op in ops.items() if op.get("once")}
    assert {"1/native_batch_norm+relu_", "1/add_", "end"} <= once
    assert any("bernoulli_" in name or "dropout" in name for name in once)
    assert not {"0/convolution", "0/convolution_backward"} & once
    assert all(op["kind"] == "optimizer" and op.get("once") for op in made.ops if op["name"].startswith("optimizer/"))
    assert {t["role"] for t in made.tensors} == {"input", "activation", "gradient"}
    state = 2 * sum(p.numel() for p in model.parameters()) + 2 * 4
    assert made.resident == 4 * state + 8  # weights, momentum, running statistics and their counter
    assert ms.Graph.from_json(made.to_json()) == made
    assert names(graph(model, (torch.randn(2, 3, 8, 8),), optimizer=SGD)) == names(made)


def test_repeatable_ops_pay_for_their_second_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
    x = torch.randn(2, 3, 8, 8)
    strict = {op["name"]: op for op in graph(model, (x,), optimizer=SGD).ops}
    free = {op["name"]: op for op in graph(model, (x,), optimizer=SGD, repeatable=True).ops}
    assert list(free) == list(strict)
    changed = {name for name in free if free[name] != strict[name]}
    assert changed == {name for name, op in strict.items() if op.get("once") and op["name"] in changed}
    assert "1/native_batch_norm+relu_" in changed
    assert any("bernoulli_" in name or "dropout" in name for name in changed)
    assert not any(free[name].get("once") for name in changed)
    for name in changed:
        more = 2 * 4 * 4 if "batch_norm" in name else 0  # two statistics of four channels
        assert free[name]["choices"][0]["workspace"] == strict[name]["choices"][0]["workspace"] + more
    kept = {name for name, op in free.items() if op.get("once")}
    assert {"1/add_", "end"} <= kept  # the count of batches is no statistic of the op
    assert all(name in kept for name in free if name.startswith("optimizer/"))


def test_what_draws_into_resident_bytes_is_not_repeatable() -> None:
    weight, x = torch.ones(4), torch.ones(4)
    made = record(lambda: weight.bernoulli_(0.5) * x.clone().bernoulli_(0.5), resident=[weight], repeatable=True)
    assert [op["name"] for op in made.ops if op.get("once")] == ["bernoulli_", "end"]


def test_attention_without_dropout_may_run_again() -> None:
    made = graph(Block(), (ids(),))
    attention = [op for op in made.ops if "scaled_dot_product" in op["kind"] and op["phase"] == "fwd"]
    assert attention
    assert not any(op.get("once") for op in attention)


@pytest.mark.parametrize("build", [Block, Loop])
def test_the_model_is_left_as_it_was(build: Any) -> None:
    model = build()
    args = (ids(),) if build is Block else (torch.randn(2, 3, 16),)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objects = [{key: id(value) for key, value in vars(module).items()} for module in model.modules()]
    random = torch.random.get_rng_state()
    graph(model, args, optimizer=SGD)
    with pytest.raises(ZeroDivisionError):
        graph(model, args, loss=lambda out: out.sum() / 0 if isinstance(out, int) else 1 / 0)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert objects == [{key: id(value) for key, value in vars(module).items()} for module in model.modules()]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(hasattr(value, "fake_mode") for value in (*model.parameters(), *model.buffers()))


def test_a_module_in_two_places_keeps_its_tensors() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.append(model[1])
    graph(model, (torch.randn(8, 4),))
    assert not any(hasattr(value, "fake_mode") for value in (*model.parameters(), *model.buffers()))
    assert model(torch.randn(8, 4)).shape == (8, 4)


def test_real_and_fake_steps_give_the_same_graph() -> None:
    """But for a write in place to a view, whose backward replays the view on fake tensors: one gradient copy less."""
    model, x = Block(), ids()
    model.act = nn.ReLU()
    optimizer = ADAMW(model.parameters())

    def step() -> object:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    step()
    optimizer.zero_grad()
    state = [value for values in optimizer.state.values() for value in values.values()]
    real = record_all(
        step,
        resident=[*model.parameters(), *state],
        paths={module: path for path, module in model.named_modules()},
        name="Block",
        batch=4,
    )
    optimizer.zero_grad()
    fake = graph_all(model, (x,), optimizer=ADAMW)
    assert real.graph.to_json() == fake.graph.to_json()
    assert real.eager_peak == fake.eager_peak


def test_a_model_without_memory_for_its_weights() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(10**6, 10**6), torch.empty(8, 10**6)
    assert graph(model, (x,)).resident == 4 * (10**12 + 10**6)


def test_autocast_and_losses() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    mixed = graph(model, (x,), autocast=torch.bfloat16)
    assert "_to_copy" in {op["kind"] for op in mixed.ops}
    assert "mean" in {op["kind"] for op in graph(model, (x,), loss=lambda out: out.mean()).ops}


def test_times_come_from_the_caller() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    made = graph(model, (x,), times=lambda func, args, kwargs, out: 2.0)
    seconds = {op["name"]: op["choices"][0]["time"] for op in made.ops}
    assert seconds.pop("end") == 0.0
    assert set(seconds.values()) == {2.0}


def test_times_come_from_a_mode() -> None:
    from memsched.torch.machines import MACHINES
    from memsched.torch.roofline import Roofline

    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    roofline = Roofline(next(iter(MACHINES.values())))
    made = graph(model, (x,), times=roofline, optimizer=SGD)
    total = sum(op["choices"][0]["time"] for op in made.ops)
    assert 0 < total == pytest.approx(roofline.seconds)  # the step before the recorded one does not count


def test_gradients_that_are_clipped_are_doubled_one_at_a_time() -> None:
    """Norms were read before the gradients are scaled in place."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    x = torch.randn(2, 16)

    def step() -> None:
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)

    recording = record_all(step, resident=[*model.parameters(), x])
    assert len([name for name in recording.doubled if name.startswith("_foreach_mul_")]) == 6


def test_a_clone_saved_for_the_backward_costs_no_third_copy() -> None:
    """Autograd clones what hardtanh_ and silu_ overwrite: the graph has the old and the new tensor, as there were."""
    weight, x = torch.randn(16, 16, requires_grad=True), torch.randn(4, 16)

    def step() -> object:
        y = nn.functional.silu(x @ weight, inplace=True)
        y.sum().backward()
        return y

    recording = record_all(step, resident=[weight, x])
    assert not recording.doubled
    assert [op["name"] for op in recording.graph.ops][:3] == ["mm", "clone+silu_", "sum"]


def test_what_is_made_and_never_read_is_workspace() -> None:
    def step() -> object:
        x = torch.ones(8)
        x.exp()
        return x.sin()

    made = record(step)
    assert {op["name"]: op["choices"][0]["workspace"] for op in made.ops} == {"ones": 0, "exp": 32, "sin": 0, "end": 0}


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4, sparse=True)

    def forward(self, ids: Any) -> Any:
        return self.embed(ids)


class Choosy(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x


class Whole(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.argmax()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: graph(Residual, (torch.ones(2, 32),)), "model is of type type"),
        (lambda: graph(Residual(), torch.ones(2, 32)), "args is of type Tensor"),
        (lambda: graph(Residual(), (torch.ones(2, 32),), loss=lambda out: out), r"loss is \(2, 32\)"),
        (lambda: graph(Residual(), (torch.ones(2, 32),), loss=lambda out: out.detach().sum()), "needs no gradient"),
        (lambda: graph(Whole(), (torch.ones(2, 32),)), "no floating tensor"),
        (lambda: graph(Choosy(), (torch.ones(2, 32),)), r"with record\(\)"),
        (lambda: graph(Sparse(), (ids(),)), "sparse=False"),
        (lambda: graph(Residual(), (torch.ones(2, 32),), times=3), "times is 3"),
        (lambda: record(lambda: None), "no operation"),
        (lambda: record(lambda: torch.ones(1), batch=0), "batch is 0"),
    ],
)
def test_errors_say_what_to_do(call: Any, words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        call()


def test_an_error_in_the_step_leaves_no_hooks() -> None:
    from torch.nn.modules import module as hooks

    def step() -> None:
        nn.Linear(2, 2)(torch.ones(1, 2))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(step)
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
