"""Inputs that change from step to step: numbers that are no sizes, and memory in which inputs lie."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from memsched.errors import InfeasibleError
from memsched.torch import plans
from memsched.torch.compiled.unit import counted


@pytest.fixture(autouse=True)
def _no_plans_of_before() -> None:
    """What is gone, but not yet collected, has plans that would end while they are counted."""
    gc.collect()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor, k: int, cut: int | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x[:cut]) * (1 + k / 100) + k % 7)
        return x.square().mean()


@pytest.mark.parametrize("number", [lambda step: step + 2, lambda step: 90 - 3 * step])
def test_a_number_that_is_no_size_shares_a_plan(number: Callable[[int], int]) -> None:
    """Each value had a plan of its own, and took the time to make one."""
    torch._dynamo.reset()
    model = Scaled()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="memsched", options={"budget": "120KiB"})
    traced = torch.compile(plain, backend="aot_eager")
    before = len(plans())
    for step in range(12):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        losses = [call(x, number(step)) for call in (compiled, traced)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert len(plans()) - before <= 2  # a plan for the first value, before Dynamo lets it vary, and one for all


def test_a_number_that_is_a_size_does_not() -> None:
    torch._dynamo.reset()
    model = Scaled()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="memsched", options={"budget": "120KiB"}, dynamic=True)
    before = len(plans())
    for step, cut in enumerate((60, 50, 40)):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        losses = [call(x, step, cut) for call in (compiled, plain)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    assert len(plans()) - before == 3


def network() -> nn.Module:
    torch._dynamo.reset()
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))


class Trainer:
    """Steps of a compiled network within a budget, which must hold what the caller has, too."""

    def __init__(self, budget: int) -> None:
        self.model, self.budget = network(), budget
        self.compiled = torch.compile(self.model, backend="memsched", options={"budget": budget})

    def fits(self, *inputs: torch.Tensor) -> bool:
        """A step, all forwards before the backwards; whether it ran."""
        leaves = [*self.model.parameters(), *inputs]
        given = [*leaves, *(leaf.grad for leaf in leaves if leaf.grad is not None)]
        held = sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in given}.values())
        with counted(torch.device("cpu")) as meter:
            try:
                sum(self.compiled(x).square().mean() for x in inputs).backward()
            except InfeasibleError:
                self.model.zero_grad()
                return False
        assert meter.peak + held <= self.budget
        return True


LEAST = 900_000  # a budget for 512 samples


def test_inputs_in_larger_memory_are_planned_anew() -> None:
    """The first step's inputs lie in memory of their own, later ones in that of all batches."""
    small, batches = torch.randn(512, 64), torch.randn(5 * 512, 64)
    trainer = Trainer(LEAST + batches.nbytes)
    before = len(plans())
    for x in (small, batches[:512], small, batches[512:1024]):
        assert trainer.fits(x)
        trainer.model.zero_grad()
    assert [one.resident.inputs for one in plans()[before:]] == [small.nbytes, batches.nbytes]


def test_what_was_refused_stays_refused() -> None:
    """After the refusal of a batch in larger memory and a step in less, the refused one ran above the budget."""
    small, batches = torch.randn(512, 64), torch.randn(20 * 512, 64)
    trainer = Trainer(LEAST)
    for x, fits in ((batches[:512], False), (small, True), (batches[:512], False), (batches[512:1024], False)):
        assert trainer.fits(x) is fits
        trainer.model.zero_grad()


@pytest.mark.parametrize("budget", [LEAST + 20 * 131_072, LEAST + 20 * 131_072 + 500_000])
def test_accumulation_counts_the_memory_of_each_batch(budget: int) -> None:
    """A second batch in larger memory followed the plan of a first one, which gradients were not beside."""
    small, batches = torch.randn(512, 64), torch.randn(20 * 512, 64)
    trainer = Trainer(budget)
    for pair in ((batches[:512], small), (small, small), (small, batches[:512]), (batches[:512], batches[512:1024])):
        for x in pair:
            trainer.fits(x)
        trainer.model.zero_grad()


@pytest.mark.filterwarnings("ignore:the last step exceeded the budget, as its graphs were planned")
def test_two_batches_of_a_step_in_one_memory_or_in_two() -> None:
    """Both are as large; the second way needs more, and followed the plan of the first."""
    one, other = torch.randn(10 * 512, 64), torch.randn(10 * 512, 64)
    trainer = Trainer(2_000_000 + one.nbytes // 2)
    for second, fits in ((one[512:1024], True), (other[:512], False)):
        for _ in range(2):  # the first steps of a kind, of several graphs, may exceed the budget
            with contextlib.suppress(AssertionError):
                trainer.fits(one[:512], second)
            trainer.model.zero_grad()
        for _ in range(2):
            assert trainer.fits(one[:512], second) is fits
            trainer.model.zero_grad()


def test_the_gradient_that_an_input_keeps_is_counted() -> None:
    x = torch.randn(512, 64, requires_grad=True)
    trainer = Trainer(1_500_000)
    for _ in range(3):
        trainer.fits(x)
        trainer.model.zero_grad()


def test_a_plan_that_leaves_room_serves_inputs_in_larger_memory() -> None:
    """A buffer that grows with each step had a plan a step."""
    trainer = Trainer(64 * 2**20)
    before = len(plans())
    for step in range(12):
        assert trainer.fits(torch.randn(600 + 20 * step, 64)[-512:])
        trainer.model.zero_grad()
    assert len(plans()) == before + 1


def test_many_sizes_in_larger_memory() -> None:
    """From the ninth size on, nothing was planned: the size of that memory is a symbol of its own."""
    model = network()
    gc.collect()
    compiled = torch.compile(lambda x: model(x[:32]), backend="memsched", options={"budget": "2MiB"})
    before = len(plans())
    for rows in range(60, 44, -1):
        x = torch.randn(rows + 500, 64)[:rows]
        compiled(x).sum().backward()  # a warning would be an error
    assert len(plans()) - before <= 9


class Rows(nn.Module):
    """Writes a row of its input, for which PyTorch copies all memory in which the input lies."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.select_scatter(torch.ones(64), 0, 3)) + x * 1.5


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("budget", "fits"), [(1_000_000, False), (1_400_000, False), (4_000_000, True)])
def test_memory_that_is_copied_whole_is_counted_as_it_is(budget: int, fits: bool, dynamic: bool) -> None:
    """The copy of the first input was counted, also for inputs in larger memory."""
    trainer, batches = Trainer(budget), torch.randn(3000, 64)
    trainer.model = Rows()
    trainer.compiled = torch.compile(trainer.model, backend="memsched", options={"budget": budget}, dynamic=dynamic)
    for x, expected in ((torch.randn(32, 64), True), (batches[2900:2932], fits), (torch.randn(32, 64), True)):
        assert trainer.fits(x) is expected
        trainer.model.zero_grad()


def test_tokens_of_effects_come_before_the_inputs() -> None:
    """Each parameter was taken for the one before it, and gradients that were there for others'."""
    torch._dynamo.reset()

    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
            return torch.linalg.solve(self.a(x).t() @ self.a(x) + k * torch.eye(8), self.b.weight.t()).sum()

    model, x = Solver(), torch.randn(16, 8)
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="memsched", options={"budget": "100%"})
    for k in (1, 2, 3):
        losses = [call(x, k) for call in (compiled, plain)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    (plan, *_) = reversed(plans())
    held = sum(one.nbytes for one in (model.a.weight, model.a.bias, model.b.weight))
    assert (plan.resident.parameters, plan.resident.inputs, plan.resident.gradients) == (held, x.nbytes, held)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # as Inductor is imported
@pytest.mark.slow
def test_after_a_step_that_was_cut_another_way_to_begin_is_looked_at() -> None:
    """What a step began with after its cut was taken to be known, though nothing was planned for such a beginning."""
    first, second = network(), network()
    options = {"budget": "256MiB", "mode": "inductor"}  # in mode "eager" a step that is over is planned as a whole
    calls = [torch.compile(one, backend="memsched", options=options) for one in (first, second)]
    x, batches = torch.randn(8, 64), torch.randn(4000, 64)
    kept = [calls[k % 2](x).square().mean() for k in range(301)]
    sum(kept).backward()
    kept.clear()
    for given in (x, batches[:8], x):
        with counted(torch.device("cpu")):
            for call in calls:
                first.zero_grad()
                second.zero_grad()
                call(given).square().mean().backward()
    sum(call(batches[8:16]).square().mean() for call in reversed(calls)).backward()


@pytest.mark.filterwarnings("ignore:the last step exceeded the budget")  # by the second backward
@pytest.mark.parametrize("batches", [(64,), (64, 32, 48)])
def test_a_backward_twice_where_sizes_vary(batches: tuple[int, ...]) -> None:
    """PyTorch took what is saved for given away, and refused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
    run = torch.compile(model, backend="memsched", options={"budget": "100%"}, dynamic=True)
    for batch in batches:
        x, found = torch.randn(batch, 32), []
        for call in (run, model):
            model.zero_grad()
            loss = call(x).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            found.append([one.grad.clone() for one in model.parameters()])
        assert all(map(torch.equal, *found))
