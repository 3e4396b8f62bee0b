"""Tensors that lie in memory, or are read there, otherwise than PyTorch traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import memsched.torch as mt
from memsched.errors import InfeasibleError, MemschedError
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.look import look
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.times import _Tried, measured_costs
from memsched.torch.compiled.unit import counted
from memsched.torch.compiled.unplanned import UnplannedWarning
from pytorch.allocator import allocator_peak
from pytorch.test_compiled_models import compared, gradients

SMALL = 1024  # bytes of one-element tensors and of the marker between forward and backward

# Read as conjugated, or as negated

BITS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"conjugated": torch.conj, "negated": torch._neg_view}


@torch.library.custom_op("layouts::twice", mutates_args=())
def twice(given: torch.Tensor, bit: str) -> torch.Tensor:
    return BITS[bit](given * 2)


@twice.register_fake
def _(given: torch.Tensor, bit: str) -> torch.Tensor:
    return torch.empty_like(given)


def _backward_of_twice(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    doubled = gradient * 2
    return doubled.conj().resolve_conj() if ctx.bit == "conjugated" else -doubled, None


def _note_bit(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.bit = inputs[1]


twice.register_autograd(_backward_of_twice, setup_context=_note_bit)


class Complex(nn.Module):
    """What arrives at its end is wanted again at the very end of the backward; with a bit, so are its activations."""

    def __init__(self, bit: str | None) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(32, 32, dtype=torch.cfloat) * 0.1) for _ in range(6))
        self.up, self.down = (nn.Parameter(torch.randn(*s, dtype=torch.cfloat) * 0.1) for s in ((32, 128), (128, 32)))
        self.bit = bit

    def forward(self, given: Any) -> Any:
        skip = torch.tanh(given @ self.weights[0])
        for weight in self.weights:
            given = given @ weight
            bent = given if self.bit is None else twice(given, self.bit)
            given = torch.tanh(bent if self.bit is None else bent * bent)
        return torch.tanh(given @ self.up) @ self.down + skip


@pytest.mark.filterwarnings("ignore:the last step exceeded the budget")  # by copies without the bit
@pytest.mark.parametrize("bit", BITS)
@pytest.mark.parametrize("where", ["gradient", "result"])
def test_what_travels_is_read_as_before(where: str, bit: str) -> None:
    """Only the bytes came back: gradients were those of what had not been conjugated, or negated."""

    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given, arriving = torch.randn(2, 256, 32, dtype=torch.cfloat)
        result = run(given)
        assert result.isfinite().all()
        result.backward(BITS[bit](arriving) if where == "gradient" else arriving)
        return gradients(model)

    made = compared(scenario, lambda: Complex(bit if where == "result" else None), bandwidth="100GB/s")
    away = {name for plan in made for name in plan.result.offloaded}
    assert any(("tangents" if where == "gradient" else "twice") in name for name in away)


# A copy of what changes


class Strided(nn.Module):
    """A buffer in the midst of other memory, which the forward reads in its own way, and then changes."""

    def __init__(self, *, beyond: bool) -> None:
        super().__init__()
        self.first, self.last, self.beyond = nn.Linear(32, 32), nn.Linear(32, 32), beyond
        self.register_buffer("scale", torch.randn(256, 64)[2:, ::2])

    def forward(self, given: Any) -> Any:
        column = self.scale[:64]
        if self.beyond:
            column = torch.as_strided(self.scale, (64, 32), (64, 2), 64)  # begins before the buffer does
        given = self.last(torch.tanh(self.first(given)) * column.cos()).tanh() * column.sin()
        with torch.no_grad():
            self.scale.mul_(0.5)
        return given.tanh()


@pytest.mark.parametrize("beyond", [False, True])
def test_a_buffer_that_changes_is_kept_as_it_lies(beyond: bool) -> None:
    """It was kept densely, from offset 0 on, and read with the strides and the offset of before."""

    def scenario(model: Any, run: Any) -> list[Any]:
        found = []
        for _ in range(2):
            result = run(torch.randn(64, 32))
            result.square().sum().backward()
            found += [result.detach(), model.scale.clone()]
        return [*found, *gradients(model)]

    compared(scenario, lambda: Strided(beyond=beyond))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own
def test_compiled_code_cannot_keep_a_buffer_that_is_read_anyhow() -> None:
    run = torch.compile(Strided(beyond=True), backend="memsched", options={"budget": "80%", "mode": "inductor"})
    with pytest.warns(UnplannedWarning, match="changes an input that it reads by as_strided"):
        run(torch.randn(64, 32)).sum().backward()


# Gradients with other strides

TARGET, WEIGHT = torch.randint(0, 256, (32, 64)), torch.randn(32, 256, 64)
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number": torch.mean,
    "transposed": lambda out: (out.transpose(1, 2) * WEIGHT).sum(),
    "classes": lambda out: functional.cross_entropy(out.transpose(1, 2), TARGET),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)), nn.Linear(64, 256))


@pytest.mark.parametrize("budget", ["60%", "100%"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_that_is_copied_on_arrival_is_counted(name: str, budget: str) -> None:
    """The peak was a fifth above the budget, and no meter saw it."""
    model, x, loss = network(), torch.randn(32, 64, 64), LOSSES[name]
    plan = mt.plan(model, (x,), budget=budget, loss=loss, bandwidth=0)
    plan.apply(model)

    def step() -> None:
        model.zero_grad()
        result = model(x)
        loss(result).backward()

    if name == "transposed":
        with pytest.warns(UnplannedWarning, match="a gradient arrives with other strides than PyTorch traced"):
            step()
    else:
        step()
    step()
    model.zero_grad()
    peak, follows = allocator_peak(step), plans()[-1]
    assert follows.process_bytes(peak) <= follows.result.schedule.budget + SMALL
    assert follows.peak_memory <= 1.02 * follows.process_bytes(peak)
    plan.verify(model, (x,))


def test_a_budget_that_has_no_room_for_the_copy_is_too_small() -> None:
    model, x = network(), torch.randn(32, 64, 64)
    budget = mt.plan(model, (x,), budget="5%", bandwidth=0).result.schedule.budget
    run = torch.compile(model, backend="memsched", options={"budget": budget})
    with pytest.warns(UnplannedWarning, match="exceeds the budget by up to"):
        LOSSES["transposed"](run(x)).backward()
    model.zero_grad()
    with pytest.raises(InfeasibleError, match="too small for the step") as caught:
        run(x)
    assert caught.value.min_memory > budget


@pytest.mark.filterwarnings("ignore:a gradient arrives")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own
def test_gradients_between_graphs_are_counted_when_they_are_copied() -> None:
    first, last, x = network(), nn.Sequential(nn.Linear(64, 8), nn.Tanh()), torch.randn(32, 64, 64)
    options = {"budget": "100%", "bandwidth": 0}
    calls = [torch.compile(one, backend="memsched", options=options) for one in (first, last)]

    def step() -> None:
        calls[1](calls[0](x).transpose(1, 2)).sum().backward()

    for _ in range(2):
        step()
        first.zero_grad()
        last.zero_grad()
    plan = plans()[-1]
    assert plan.visits == 2
    assert plan.process_bytes(allocator_peak(step)) <= plan.result.schedule.budget + SMALL


# Results that kernels write otherwise than PyTorch traces, as elementwise backwards of two layouts do. The
# backward of group normalisation takes what arrives to lie as its input, and read it in a wrong order, as in aot_eager.

OTHERWISE = ("hardswish", "elu", "softplus", "hardtanh", "hardsigmoid", "selu", "relu6")


class Grouped(nn.Module):
    def __init__(self, after: str, count: int = 2) -> None:
        super().__init__()
        parts = (part for k in range(count) for part in (nn.Conv2d(8 if k else 3, 8, 3, padding=1), nn.GroupNorm(2, 8)))
        self.parts, self.after = nn.ModuleList(parts), getattr(functional, after)

    def forward(self, x: Any) -> Any:
        for convolution, norm in zip(self.parts[::2], self.parts[1::2], strict=True):
            x = self.after(norm(convolution(x)))
        return x.square().mean()


def grouped(after: str) -> tuple[Grouped, torch.Tensor]:
    torch.manual_seed(0)
    return Grouped(after).to(memory_format=torch.channels_last), torch.randn(4, 3, 16, 16)


def trained_once(model: nn.Module, run: Callable[[Any], Any], x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    run(x).backward()
    return [one for one in gradients(model) if one is not None]


@pytest.mark.parametrize("budget", ["30%", "100%"])
@pytest.mark.parametrize("after", OTHERWISE)
def test_results_lie_as_traced(after: str, budget: str) -> None:
    model, x = grouped(after)
    exact = trained_once(model, model, x)
    run = torch.compile(model, backend="memsched", options={"budget": budget, "bandwidth": 0})
    for _ in range(2):
        with counted(torch.device("cpu")) as meter:
            found = trained_once(model, run, x)
        for one, other in zip(exact, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4 * float(one.abs().max()))
    (plan,) = plans()[-1:]
    assert plan.process_bytes(meter.peak) <= plan.result.schedule.budget
    assert plan.process_bytes(meter.peak) >= 0.95 * plan.peak_memory


def test_what_is_not_in_the_last_digits_is_no_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` took a gradient that is 140 % off, as that of aot_eager, for one that was summed in another order."""
    model, x = grouped("hardswish")
    plan = mt.plan(model, (x,), budget="50%")
    assert plan.verify(model, (x,)).difference < 1e-5
    monkeypatch.setattr("memsched.torch.compiled.rewrite.order_of", lambda example: None)
    with pytest.raises(MemschedError, match=r"captured step changes the gradient of parts\.\d\.\w+ by \d\d+%, also"):
        plan.verify(model, (x,))


class Moved(nn.Module):
    """An operation whose result PyTorch traces in rows, and writes as it read, and a random one after it."""

    def __init__(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.norm(self.move(self.layer(x))), 0.5, self.training)


ROLLS: list[tuple[Any, Any]] = [(1, 2), ((1, -2), (2, 3)), (3, None), ((-7, 2, 1), (0, 1, 3)), ((1, 1), (2, 2))]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("roll", ROLLS)
def test_a_roll_lies_as_its_kernel_writes_it(roll: tuple[Any, Any], layout: torch.memory_format) -> None:
    """Random numbers were drawn in another order after it, in silence."""
    model = Moved(lambda y: torch.roll(y, *roll)).to(memory_format=layout)
    x = torch.randn(4, 8, 6, 6).contiguous(memory_format=layout)
    torch.manual_seed(1)
    plain, found = model(x), []
    for run in (
        torch.compile(model, backend="aot_eager"),
        torch.compile(model, backend="memsched", options={"budget": "100%"}),
    ):
        model.zero_grad()
        torch.manual_seed(1)
        result = run(x)
        assert result.stride() == plain.stride()
        assert torch.equal(result, plain)
        result.square().sum().backward()
        found.append(gradients(model))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_random_numbers_after_another_order_are_told() -> None:
    model = Moved(lambda y: functional.channel_shuffle(y, 2)).to(memory_format=torch.channels_last)
    x = torch.randn(4, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    run = torch.compile(model, backend="memsched", options={"budget": "100%"})
    with pytest.warns(UserWarning, match="channel_shuffle.default writes its result in another order of dimensions"):
        run(x)


@pytest.mark.parametrize("mode", ["eager", "inductor"])
def test_what_lies_as_traced_with_one_size_may_not_with_another(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once seen to lie so, an operation was left alone for good."""
    model, x = grouped("hardswish")
    options = Options(budget="100%", mode=mode, device="here")
    (visit,) = look(model, (x,), {}, options).visits
    every = {op.node for op in visit.joint.operations}
    assert visit.joint.looked_at == (every if mode == "eager" else None)
    for size, known in ((0, set()), (8, every), (None, every), (0, set())):
        monkeypatch.setattr("memsched.torch.compiled.times._tried", lambda *_, size=size: _Tried(1.0, 1.0, size))
        costs, _ = measured_costs(visit.joint, visit.sizes)
        assert visit.joint.looked_at == (known if mode == "eager" else None)
        assert {cost.workspace for cost in costs} == {(size or 0) if mode == "eager" else 0}
