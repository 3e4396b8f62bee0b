"""Gradients of micro-batches that wait for a step, and travel."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import re
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_updates_gradients import Mixed
from test_updates_on_host import FAST, Halves
from torch import nn
from updating import Make, Sharing, Tied, cnn, counted_of, loss, mlp, of_class, plain_step, planned, same

import memsched as ms
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.torch import StepPlan
from memsched.torch.compiled import copies, host_updates, parameters, plain_updates
from memsched.torch.compiled.copies import Traffic
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.lanes import EmulatedLanes

CPU = torch.device("cpu")
MOVES: dict[str, Any] = {"offload_parameters": True}
SLOWLY: dict[str, Any] = {"update_on_host": "30 GB/s"}  # about as fast as the device


def adam(learned: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(learned, lr=0.01)


def accumulating(model: nn.Module, x: torch.Tensor, optimizer: Any, budget: Any = "0%", **more: Any) -> StepPlan:
    """With the budget, or the least of step and micro-batches that has a plan."""
    for _ in range(2):
        try:
            return planned(model, x, optimizer, budget, accumulate=True, **more)
        except InfeasibleError as error:
            budget = error.min_memory
    return planned(model, x, optimizer, budget, accumulate=True, **more)


def gradients_on_host(plan: StepPlan | None) -> int:
    """How many wait there between two steps."""
    assert plan is not None
    return sum(name.startswith("gradient:") and it == "host" for name, it in plan.result.schedule.border.items())


def like(x: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 40)


def backward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = loss(model(x))
    found.backward()
    return found.detach()


def same_gradients(model: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or torch.equal(a.grad, b.grad), name


def steps_alike(
    plan: StepPlan, model: nn.Module, optimizer: Any, other: nn.Module, plain: Any, x: torch.Tensor, parts: int, k: int
) -> None:
    """A step of some micro-batches beside a plain one."""
    for part in range(parts):
        given = like(x)
        torch.manual_seed(10 * k + part)
        found = plan.step(given) if part == parts - 1 else plan.accumulate(given)
        torch.manual_seed(10 * k + part)
        assert torch.equal(found, backward(other, given))
    assert plan._updates is not None
    if (most := plan._updates.how.max_norm) is not None:
        assert torch.equal(nn.utils.clip_grad_norm_(other.parameters(), most), plan.norm)
    plain.step()
    plain.zero_grad()
    same(model, other, optimizer, plain)


def trains_alike(model: nn.Module, x: torch.Tensor, make: Make, budget: Any = "0%", **more: Any) -> StepPlan:
    """Steps of three, two and one micro-batches beside plain ones, and what `verify` says."""
    other = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(other.parameters())
    plan = accumulating(model, x, optimizer, budget, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnplannedWarning)  # none exceeds the budget
        for k, parts in enumerate((3, 1, 2, 2)):
            steps_alike(plan, model, optimizer, other, plain, x, parts, k)
    verified = plan.verify(x)
    same(model, other, optimizer, plain)
    assert verified.reordered is None
    assert plan.waiting is not None
    assert verified.peak_memory <= plan.result.schedule.budget == plan.waiting.result.schedule.budget
    for one in (plan, plan.waiting):
        assert set(one.result.schedule.border.values()) <= {"device", "host"}
        ms.validate(one.result)
    return plan


@pytest.mark.parametrize(
    ("make", "inputs", "budget", "options"),
    [
        (mlp, lambda: torch.randn(4, 24), "0%", MOVES),
        (mlp, lambda: torch.randn(4, 24), "0%", SLOWLY),
        pytest.param(lambda: mlp(6), lambda: torch.randn(4, 24), "30%", FAST, marks=pytest.mark.slow),
        (Tied, lambda: torch.randint(0, 40, (4, 8)), "0%", FAST),
        pytest.param(Tied, lambda: torch.randint(0, 40, (4, 8)), "0%", MOVES, marks=pytest.mark.slow),
        (Sharing, lambda: torch.randn(8, 6), "0%", FAST),
        pytest.param(Sharing, lambda: torch.randn(8, 6), "0%", MOVES, marks=pytest.mark.slow),
        pytest.param(cnn, lambda: torch.randn(2, 3, 8, 8), "0%", FAST, marks=pytest.mark.slow),
        pytest.param(cnn, lambda: torch.randn(2, 3, 8, 8), "0%", MOVES, marks=pytest.mark.slow),
    ],
)
def test_steps_have_the_bits_of_plain_ones(
    make: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor], budget: str, options: dict[str, Any]
) -> None:
    plan = trains_alike(make(), inputs(), adam, budget, **options)
    assert gradients_on_host(plan) + gradients_on_host(plan.waiting) > 0
    if options is FAST:
        assert plan._updates is not None
        assert plan._updates.hosted


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo
@pytest.mark.parametrize("chunks", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [FAST, pytest.param(MOVES, marks=pytest.mark.slow)])
def test_gradients_that_are_views_of_one_tensor(chunks: bool, options: dict[str, Any]) -> None:
    trains_alike(Halves(chunks), torch.randn(4, 24), adam, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGD", "Adafactor", "Adam", "Muon", "RMSprop", "Rprop"])
@pytest.mark.parametrize("options", [FAST, MOVES])
def test_any_optimizer_of_pytorch(name: str, options: dict[str, Any]) -> None:
    trains_alike(mlp(4, 24), torch.randn(4, 24), of_class(name), **options)


@pytest.mark.parametrize("options", [FAST, pytest.param(MOVES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("early", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_clipping_and_a_scaler(max_norm: float | None, early: bool, options: dict[str, Any]) -> None:
    """The second micro-batch of the first step is infinite, and nothing is updated in it."""
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    second = copy.deepcopy(scaler)
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = accumulating(model, x, optimizer, max_norm=max_norm, scaler=scaler, **options)
        for step in range(4):
            for part in range(3):
                given = torch.full_like(x, math.inf) if (step, part) == (0, 1) else torch.randn_like(x)
                (plan.accumulate if part < 2 else plan.step)(given)
                second.scale(loss(other(given))).backward()
            if max_norm is not None:
                second.unscale_(plain)
                nn.utils.clip_grad_norm_(other.parameters(), max_norm)
            second.step(plain)
            second.update()
            plain.zero_grad()
            same(model, other, optimizer, plain)
            assert scaler.get_scale() == second.get_scale()
        assert plan.verify(x).peak_memory <= plan.result.schedule.budget


@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_the_device_needs_less_than_all_gradients(max_norm: float | None) -> None:
    model, x = mlp(8, 256), torch.randn(1, 256)
    whole = sum(one.nbytes for one in model.parameters())
    plan = accumulating(model, x, adam(model.parameters()), max_norm=max_norm, **FAST)
    assert plan.peak_memory < (0.6 if max_norm is None else 1.6) * whole
    assert plan.waiting is not None
    assert plan.waiting.peak_memory < 0.5 * whole
    assert "added on the host" in plan.report()
    assert re.search(r"\n  gradients +2\.\d+ MiB that may wait, [12]\.\d+ MiB of them on the host", plan.report())
    assert re.search(r"\n  states +4\.\d+ MiB of the optimiser, [34]\.\d+ MiB of them on the host", plan.report())


def test_a_gradient_that_is_elsewhere_cannot_be_read_or_written_in_silence() -> None:
    model, x = mlp(), torch.randn(4, 24)
    optimizer = adam(model.parameters())
    plan = accumulating(model, x, optimizer, **FAST)
    assert gradients_on_host(plan.waiting) == 8
    plan.accumulate(x)
    for one in model.parameters():
        assert one.grad is not None
        assert one.grad.shape == one.shape
        assert one.grad.isnan().all()
        assert one.grad.untyped_storage().nbytes() == 8 * one.element_size()  # a number each
    for write in (
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: loss(model(x)).backward(),
        lambda: model[0][0].weight.grad.add_(1),
        lambda: model[0][0].weight.grad.__setitem__(0, 1.0),
        lambda: optimizer.zero_grad(set_to_none=False),
    ):
        with pytest.raises(RuntimeError, match=r"single memory location|Inplace update"):
            write()


def zeroed(model: nn.Module) -> None:
    """PyTorch raises here, but has written by then."""
    for one in model.parameters():
        with contextlib.suppress(RuntimeError):
            assert one.grad is not None
            one.grad.zero_()


def filled(model: nn.Module) -> None:
    for k, one in enumerate(model.parameters()):
        assert one.grad is not None
        one.grad.data.fill_(float(k))


def filled_for_inference(model: nn.Module) -> None:
    with torch.inference_mode():
        for one in [*model.parameters()][::2]:
            assert one.grad is not None
            one.grad.zero_()


@pytest.mark.parametrize("change", [zeroed, filled, filled_for_inference])
@pytest.mark.parametrize("hollow", [("cpu",), pytest.param((), marks=pytest.mark.slow)])
def test_what_is_written_to_a_stand_in_is_the_gradient(
    change: Callable[[nn.Module], None], hollow: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "HOLLOW", hollow)
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = accumulating(model, x, optimizer, "100%", **FAST)
    for k in range(3):
        plan.accumulate(x)
        backward(other, x)
        for one in (model, other):
            change(one)
        if k == 1:
            plan.bring_back()
            same_gradients(model, other)
        steps_alike(plan, model, optimizer, other, plain, x, 1 + k % 2, k)
    plan.accumulate(x)
    assert all(one.grad is not None and one.grad.isnan().all() for one in model.parameters())


def test_what_stands_for_a_gradient_is_not_converted() -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = accumulating(model, x, optimizer, **FAST)
    for part in range(2):
        plan.accumulate(x)
        backward(other, x)
        if part == 0:  # other values are taken
            for one in (model, other):
                for parameter in one.parameters():
                    assert parameter.grad is not None
                    parameter.grad.data = torch.full_like(parameter, 0.25)
    steps_alike(plan, model, optimizer, other, plain, x, 2, 0)
    plan.accumulate(x)
    for one in model.parameters():
        assert one.grad is not None
        one.grad.data = one.grad.data.double().float()  # as model.double().float() does
    for call in (lambda: plan.step(x), plan.bring_back):
        with pytest.raises(InvalidInputError, match=r"waits on the host, and what stands for it was converted"):
            call()
    optimizer.zero_grad()
    plan.bring_back()


def test_gradients_that_lie_in_one_tensor_are_refused() -> None:
    model, x = mlp(), torch.randn(4, 24)
    plan = accumulating(model, x, adam(model.parameters()), **FAST)
    flat = torch.zeros(sum(one.numel() for one in model.parameters()))
    given = flat.split([one.numel() for one in model.parameters()])
    for one, part in zip(model.parameters(), given, strict=True):
        one.grad = part.view_as(one)
    with pytest.raises(InvalidInputError, match=r"the gradient of 0\.0\.weight lies in a larger tensor"):
        plan.accumulate(x)


def test_a_gradient_that_waits_for_another_plan_is_told_of() -> None:
    model, x = mlp(), torch.randn(4, 24)
    named = dict(model.named_parameters())
    halves = [[one for name, one in named.items() if name.endswith(kind)] for kind in ("weight", "bias")]
    plans = [accumulating(model, x, adam(half), **FAST) for half in halves]
    for half in halves:
        for one in half:
            one.grad = None
    plans[0].accumulate(x)
    with pytest.raises(InvalidInputError, match="weight has a gradient on the host that waits for the step of another"):
        plans[1].accumulate(x)


def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that really go to the host, and come back."""
    found = {"offload": 0, "prefetch": 0}
    for name in found:
        method = getattr(Traffic, name)

        def counted(self: Traffic, value: torch.Tensor, name: str = name, method: Any = method) -> Any:
            found[name] += value.untyped_storage().nbytes()
            return method(self, value)

        monkeypatch.setattr(Traffic, name, counted)
    return found


@pytest.mark.parametrize(
    "options", [{}, FAST, pytest.param(MOVES, marks=pytest.mark.slow), {**FAST, "accumulate": True}]
)
def test_a_steady_step_moves_what_is_planned_and_nothing_else(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All states once came to the device before each step, and left again."""
    model, x = mlp(6, 64), torch.randn(1, 64)
    make: Any = accumulating if "accumulate" in options else planned
    plan = make(model, x, adam(model.parameters()), "0%", **{k: v for k, v in options.items() if k != "accumulate"})
    first = plan.accumulate if plan.waiting is not None else plan.step
    for _ in range(2):
        first(x)
        plan.step(x)
    found = moved(monkeypatch)
    states = plan._updates.lasting.states
    resident = sum(one.nbytes for place in plan.states for one in states.on_device(place))
    assert resident == sum(plan.states.values()) - sum(plan.on_host.values())
    plan.step(x)
    planned_bytes = plan.result.timeline.bytes_out, plan.result.timeline.bytes_in
    if plan.waiting is None:
        assert (found["offload"], found["prefetch"]) == planned_bytes
    else:  # no gradient waits here
        assert found["offload"] <= planned_bytes[0]
        assert found["prefetch"] <= planned_bytes[1]


@pytest.mark.parametrize("options", [FAST, MOVES])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_dropped_model_is_gone(options: dict[str, Any], dropped: bool) -> None:
    def trained() -> list[weakref.ref[Any]]:
        model, x = mlp(2), torch.randn(4, 24)
        plan = accumulating(model, x, adam(model.parameters()), **options)
        plan.accumulate(x)
        if dropped:
            model.zero_grad()
        return [weakref.ref(one) for one in model.parameters()]

    found = trained()
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in found] == [None] * len(found)


class Interrupting:
    """Raises Ctrl-C at a line of the modules that move gradients, where it is allowed."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(("compiled/states.py", "compiled/waiting.py", "compiled/copies.py")):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("options", [FAST, MOVES])
@pytest.mark.parametrize(
    "lines", [range(1, 900, 97), pytest.param(range(1, 2000, 3), marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_ctrl_c_at_any_line_loses_no_gradient(options: dict[str, Any], lines: range) -> None:
    """Each gradient is that of before the micro-batch, or of after it."""
    model, x = mlp(2), torch.randn(4, 24)
    plan = accumulating(model, x, adam(model.parameters()), **options)
    for _ in range(2):
        plan.accumulate(x)
        plan.step(x)
    for line in lines:
        model.zero_grad()
        other = copy.deepcopy(model)
        plan.accumulate(x)
        backward(other, x)
        before = [one.grad.clone() for one in other.parameters()]
        backward(other, x)
        trace, interrupting = sys.gettrace(), Interrupting(line)
        sys.settrace(interrupting)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                plan.accumulate(x)
        finally:
            sys.settrace(trace)
        plan.bring_back()
        for one, first, second in zip(model.parameters(), before, other.parameters(), strict=True):
            assert one.grad is not None, line
            assert torch.equal(one.grad, first) or torch.equal(one.grad, second.grad), line
        if interrupting.left > 0:
            break


@pytest.mark.parametrize(
    ("options", "early"),
    [
        (FAST, False),
        ({**FAST, "max_norm": 0.01}, True),
        pytest.param({**FAST, "max_norm": 0.01}, False, marks=pytest.mark.slow),
        pytest.param(FAST, True, marks=pytest.mark.slow),
    ],
)
def test_whoever_drops_or_replaces_gradients_between_does_it_for_good(options: dict[str, Any], early: bool) -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = accumulating(model, x, optimizer, **options)
        for k, change in enumerate((dropped, replaced, replaced_by_one, deleted)):
            plan.accumulate(x)
            backward(other, x)
            for one in (model, other):
                change(one)
            steps_alike(plan, model, optimizer, other, plain, x, 1 + k % 2, k)


def dropped(model: nn.Module) -> None:
    model.zero_grad()


def replaced(model: nn.Module) -> None:
    for one in model.parameters():
        one.grad = torch.full_like(one, 0.5)


def replaced_by_one(model: nn.Module) -> None:
    for one in [*model.parameters()][::2]:
        one.grad = None
    first, *_ = model.parameters()
    first.grad = torch.full_like(first, 0.25)


def deleted(model: nn.Module) -> None:
    for one in [*model.parameters()][1::2]:
        del one.grad


@pytest.mark.parametrize(
    ("options", "hollow"),
    [
        (MOVES, ()),
        (FAST, ("cpu",)),
        pytest.param(MOVES, ("cpu",), marks=pytest.mark.slow),
        pytest.param(FAST, (), marks=pytest.mark.slow),
    ],
)
def test_brought_back_they_are_those_of_a_plain_loop(
    options: dict[str, Any], hollow: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "HOLLOW", hollow)
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = accumulating(model, x, optimizer, **options)
    for k in range(3):
        plan.accumulate(x)
        backward(other, x)
        plan.verify(x)  # leaves no trace
        plan.bring_back()
        same_gradients(model, other)
        if k == 1:  # a plain micro-batch, and a plain step
            backward(model, x)
            backward(other, x)
            same_gradients(model, other)
        if k > 0:
            plan.accumulate(x)
            backward(other, x)
        if k == 2:
            plan.accumulate(x)
            backward(other, x)
            optimizer.step()
            optimizer.zero_grad()
            plain.step()
            plain.zero_grad()
            same(model, other, optimizer, plain)
        steps_alike(plan, model, optimizer, other, plain, x, 2, k)


def test_other_plans_and_plain_steps_between() -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plans = [accumulating(model, x, optimizer, "0%", **FAST), accumulating(model, x, optimizer, "20%", **MOVES)]
    plans += [accumulating(model, x, optimizer, "100%"), planned(model, x, optimizer, "0%", **FAST)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds its budget
        for first, second in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)):
            for one in (first, second):
                if plans[one] is plans[2]:  # a plan without travel finds all on the device
                    plans[0].bring_back()
                plans[one].accumulate(x)
                backward(other, x)
            steps_alike(plans[second], model, optimizer, other, plain, x, 1, 0)
    plans[0].accumulate(x)
    with pytest.raises(InvalidInputError, match="has a gradient from before"):
        plans[3].step(x)
    optimizer.zero_grad()
    assert torch.equal(plans[3].step(x), plain_step(other, x, plain))
    same(model, other, optimizer, plain)


@pytest.mark.parametrize("early", [False, True])
def test_a_sum_that_fails_on_the_host_is_told_and_the_next_step_goes_on(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = accumulating(model, x, optimizer, **FAST)
        plan.accumulate(x)
        with monkeypatch.context() as patch:
            patch.setattr(host_updates.Sum, "__call__", failing)
            with pytest.raises(MemschedError, match="an update on the host has failed: no such kernel"):
                plan.accumulate(x)
        optimizer.zero_grad()
        for k in range(2):
            steps_alike(plan, model, optimizer, other, plain, x, 3, k)


def failing(self: host_updates.Sum) -> None:
    self.error = ValueError("no such kernel")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(FAST, marks=pytest.mark.slow),
        pytest.param(MOVES, marks=pytest.mark.slow),
        {**FAST, "max_norm": 0.01},
    ],
)
def test_tensors_without_memory_stand_for_parameters_of_a_gpu(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "HOLLOW", ("cpu",))
    monkeypatch.setattr(plain_updates, "OTHER_KERNELS", ("cpu",))
    trains_alike(mlp(), torch.randn(4, 24), adam, **options)


class Scaled(nn.Module):
    """With parameters of a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(2)
        self.scale, self.one = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) * self.scale + self.one


def test_single_numbers_stay() -> None:
    """A stand-in of one number could be written to."""
    model, x = Scaled(), torch.randn(4, 24)
    plan = trains_alike(model, x, adam, **FAST)
    plan.accumulate(x)
    for one in (model.scale, model.one):
        assert one.grad is not None
        assert one.grad.isfinite().all()


def test_gradients_of_several_types() -> None:
    trains_alike(Mixed(), torch.randn(4, 6), adam, **FAST)


def test_the_peak_that_is_counted_is_the_one_that_is_planned() -> None:
    model, x = mlp(6, 48), torch.randn(4, 48)
    plan = accumulating(model, x, adam(model.parameters()), "30%", **MOVES)
    verified = plan.verify(x)
    assert 0.98 * max(map(counted_of, filter(None, (plan, plan.waiting)))) <= verified.peak_memory


class Several(nn.Module):
    """Each of a few single numbers has states of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(1)
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(0.5)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        for one in self.scales:
            x = torch.tanh(x * one)
        return self.inner(x)


def test_states_that_a_first_step_makes_are_counted_once() -> None:
    """Also those that do not travel, as single numbers do not."""
    model, x = Several(), torch.randn(4, 24)
    plan = planned(model, x, torch.optim.AdamW(model.parameters(), amsgrad=True), **MOVES)
    assert plan.verify(x).peak_memory <= plan.result.schedule.budget
