"""Whole steps of which the host computes some updates, beside the device."""

from __future__ import annotations

import copy
import math
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from updating import V100, Sharing, Tied, cnn, loss, mlp, of_class, plain_step, planned, same, trains_alike

import memsched as ms
import memsched.torch as mt
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.torch import StepPlan
from memsched.torch.compiled import copies, host_updates, parameters, plain_updates
from memsched.torch.compiled.copies import Traffic
from memsched.torch.compiled.update_costs import UpdateCosts
from memsched.torch.lanes import EmulatedLanes

FAST: dict[str, Any] = {"update_on_host": "1 TB/s"}  # than any device
CPU = torch.device("cpu")
OTHERS = ["ASGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop"]


def adam(learned: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(learned, lr=0.01)


def hosted(plan: StepPlan) -> frozenset[int]:
    assert plan._updates is not None
    return plan._updates.hosted


@pytest.mark.parametrize(
    ("make", "inputs", "budget", "link"),
    [
        (lambda: mlp(6, 24), lambda: torch.randn(4, 24), "0%", "12GB/s"),
        (lambda: mlp(6, 24), lambda: torch.randn(4, 24), "40%", "1GB/s"),
        (Tied, lambda: torch.randint(0, 40, (4, 8)), "0%", "12GB/s"),
        pytest.param(Tied, lambda: torch.randint(0, 40, (4, 8)), "50%", "2GB/s", marks=pytest.mark.slow),
        (Sharing, lambda: torch.randn(8, 6), "30%", "12GB/s"),
        pytest.param(Sharing, lambda: torch.randn(8, 6), "0%", "12GB/s", marks=pytest.mark.slow),
        (cnn, lambda: torch.randn(2, 3, 8, 8), "0%", "12GB/s"),
        pytest.param(cnn, lambda: torch.randn(2, 3, 8, 8), "100%", "12GB/s", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("stepped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_have_the_bits_of_plain_ones(
    make: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor], budget: str, link: str, stepped: bool
) -> None:
    """Whether the states are there before, or the host makes them."""
    stepped = stepped and make is not cnn  # which draws random numbers
    plan = trains_alike(make(), inputs(), adam, budget, link, stepped=stepped, **FAST)
    assert hosted(plan)
    assert set(plan.result.schedule.border.values()) <= {"device", "host"}
    ms.validate(plan.result)


@pytest.mark.parametrize(
    "name",
    [
        "SGD",
        "Adafactor",
        *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS),
    ],
)
def test_any_optimizer_of_pytorch(name: str) -> None:
    plan = trains_alike(mlp(4, 24), torch.randn(4, 24), of_class(name), "20%", **FAST)
    assert hosted(plan)


class _Halves(torch.autograd.Function):
    """Its gradients are views of two parts of one tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, a: Any, b: Any) -> Any:
        gap = torch.zeros(6, 24)
        weight = torch.cat([a, gap, b, gap])
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        of_a, of_b = (one[:24] for one in (gradient.t() @ x).chunk(2))
        return gradient @ weight, of_a, of_b


class Halves(nn.Module):
    def __init__(self, chunks: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.chunks = nn.Linear(24, 24), chunks
        self.a, self.b = (nn.Parameter(torch.randn(24, 24)) for _ in range(2))
        self.both = nn.Parameter(torch.randn(2, 24, 24))

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        if self.chunks:
            return torch.einsum("bi,kij->kbj", x, self.both + torch.stack([self.a, self.b]))
        return _Halves.apply(x, self.a, self.b) + self.both.sum()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo
@pytest.mark.parametrize("chunks", [False, True])
def test_gradients_that_are_views_of_one_tensor(chunks: bool) -> None:
    """One parameter was updated by the gradient of another, in silence."""
    model, x = Halves(chunks), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = planned(model, x, optimizer, **FAST)
    assert len(hosted(plan)) == 5
    for _ in range(3):
        assert torch.equal(plan.step(x), plain_step(other, x, plain))
        same(model, other, optimizer, plain)


def test_none_runs_on_a_slow_host_or_without_a_link() -> None:
    model, x = mlp(), torch.randn(64, 24)
    for more in ({"update_on_host": "1 MB/s", "link": "12GB/s"}, {**FAST, "link": 0}):
        assert not hosted(planned(model, x, adam(model.parameters()), "100%", **more))


def test_where_nothing_can_travel_for_want_of_a_link_it_is_told() -> None:
    model, x = mlp(), torch.randn(4, 24)
    with pytest.raises(InfeasibleError, match=r"no link to the host is known, .*give bandwidth, or name a device"):
        mt.plan_step(model, (x,), loss, budget="20%", optimizer=adam(model.parameters()), update=True, **FAST)


def test_measured_on_this_machine() -> None:
    plan = trains_alike(mlp(4, 64), torch.randn(4, 64), adam, "0%", update_on_host=True)
    times = [op["host_time"] for op in plan.result.graph.ops if "host_time" in op]
    assert len(times) == 8
    assert all(0 < one < 1 for one in times)
    assert f"{len(hosted(plan))} of these on the host, whose times were measured here" in plan.report()


def test_what_cannot_be_timed_on_the_host_stays_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(2)

    def failing(*_: Any) -> float:
        raise NotImplementedError("no kernel for the host\nand more")

    monkeypatch.setattr(UpdateCosts, "_timed", failing)
    plan = planned(model, torch.randn(4, 24), adam(model.parameters()), "50%", update_on_host=True)
    assert not hosted(plan)
    assert plan.report().endswith("\n  some stay on the device, as they failed on the host: no kernel for the host")


def test_a_plan_that_takes_less_than_all_on_the_device_says_so() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))
    plan = planned(model, torch.randn(4, 256), adam(model.parameters()), "10%", update_on_host="100 GB/s")
    kept = sum(op["choices"][0]["time"] for op in plan.result.graph.ops)
    assert plan.result.makespan < 0.9 * kept
    assert f"{100 * (1 - plan.result.makespan / kept):.2f} % less" in plan.report()


def test_the_device_needs_less_than_the_states() -> None:
    """It need not have room for the states of any parameter."""
    model, x = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)), torch.randn(1, 256)
    least, without = (
        planned(model, x, adam(model.parameters()), "0%", **more).peak_memory
        for more in (FAST, {"offload_parameters": True})
    )
    assert least < 0.7 * without


def momentum(learned: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(learned, lr=0.01, momentum=0.9)


@pytest.mark.parametrize("bad", [pytest.param((), marks=pytest.mark.slow), (0, 2)])
@pytest.mark.parametrize("max_norm", [None, 0.01])
@pytest.mark.parametrize("early", [False, True])
def test_clipping_and_a_scaler(early: bool, max_norm: float | None, bad: tuple[int, ...]) -> None:
    """The inputs of the `bad` steps are infinite, and nothing is updated in them."""
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = momentum(model.parameters()), momentum(other.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    second = copy.deepcopy(scaler)
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = planned(model, x, optimizer, max_norm=max_norm, scaler=scaler, **FAST)
        assert hosted(plan)
        for step in range(4):
            given = torch.full_like(x, math.inf) if step in bad else torch.randn_like(x)
            plan.step(given)
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


def test_a_scheduler_sees_the_steps_of_the_host() -> None:
    model, x = mlp(2), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = planned(model, x, optimizer, **FAST)
    assert len(hosted(plan)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as one that the scheduler steps before the optimiser
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in (optimizer, plain)]
        for _ in range(3):
            assert torch.equal(plan.step(x), plain_step(other, x, plain))
            for one in schedulers:
                one.step()
            same(model, other, optimizer, plain)


def test_plain_steps_other_plans_and_saved_states_between() -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plans = [planned(model, x, optimizer, budget, **FAST) for budget in ("0%", "30%")]
    plans += [planned(model, x, optimizer, "0%", offload_parameters=True), planned(model, x, optimizer, "60%")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds its budget
        for plan in (*plans[:3], plans[0], None, plans[0], plans[3], plans[1]):
            if plan is plans[3]:
                plans[0].bring_back()
            found = plain_step(model, x, optimizer) if plan is None else plan.step(x)
            assert torch.equal(found, plain_step(other, x, plain))
            same(model, other, optimizer, plain)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    plans[0].step(x)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    plans[0].step(x)
    plain_step(other, x, plain)
    same(model, other, optimizer, plain)


def written(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for one in model.parameters():
        one.data.mul_(0.5)
        for name, state in optimizer.state[one].items():
            if name != "step":
                state.data.add_(0.25)


def replaced(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for one in model.parameters():
        one.data = torch.full_like(one, 0.25)
        optimizer.state[one]["exp_avg"] = torch.full_like(one, 0.125)


@pytest.mark.parametrize("change", [written, replaced])
@pytest.mark.parametrize("early", [False, True])
def test_what_is_written_between_steps_counts(change: Callable[..., None], early: bool) -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = planned(model, x, optimizer, "10%", **FAST)
        for _ in range(3):
            assert torch.equal(plan.step(x), plain_step(other, x, plain))
            change(model, optimizer)
            change(other, plain)
        plan.step(x)
        plain_step(other, x, plain)
        same(model, other, optimizer, plain)


def test_tensors_without_memory_stand_for_parameters_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA; and a plain step is compared whose updates the host computes, too."""
    monkeypatch.setattr(parameters, "HOLLOW", ("cpu",))
    monkeypatch.setattr(plain_updates, "OTHER_KERNELS", ("cpu",))
    for make in (mlp, Tied):
        model = make()
        x = torch.randn(4, 24) if make is mlp else torch.randint(0, 40, (4, 8))
        plan = trains_alike(model, x, adam, **FAST)
        assert hosted(plan)
        assert all(one.untyped_storage().nbytes() == one.nbytes for one in model.parameters())
    model, x = mlp(), torch.randn(4, 24)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    plan = planned(model, x, adam(model.parameters()), scaler=scaler, max_norm=0.01, **FAST)
    assert plan.verify(x).reordered is None
    plan.step(x)
    assert plan.verify(x).reordered is None


def broken_step(self: host_updates.Stepper, *_: Any) -> Any:
    raise ValueError("no such kernel")


def plain_copy(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    other = copy.deepcopy(model)
    plain = adam(other.parameters())
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, plain


@pytest.mark.parametrize("early", [False, True])
def test_an_update_that_fails_on_the_host_is_told_and_the_next_step_goes_on(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = mlp(), torch.randn(4, 24)
    optimizer = adam(model.parameters())
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = planned(model, x, optimizer, **FAST)
        for _ in range(2):  # in the first step, and in a later one
            with monkeypatch.context() as patch:
                patch.setattr(host_updates.Stepper, "step", broken_step)
                with pytest.raises(MemschedError, match="an update on the host has failed: no such kernel") as told:
                    plan.step(x)
                assert isinstance(told.value.__cause__, ValueError)
            other, plain = plain_copy(model, optimizer)
            assert torch.equal(plan.step(x), plain_step(other, x, plain))
            same(model, other, optimizer, plain)


@pytest.mark.parametrize("early", [False, True])
def test_ctrl_c_while_the_host_computes(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update that has begun is ended, once."""
    model, x = mlp(), torch.randn(4, 24)
    optimizer = adam(model.parameters())
    with copies.using(CPU, EmulatedLanes(early=lambda: early)):
        plan = planned(model, x, optimizer, **FAST)
        plan.step(x)
        step, told, begun = host_updates.Stepper.step, [True], []

        def interrupted(self: Any, *args: Any) -> Any:
            begun.append(1)
            if told and told.pop():
                signal.raise_signal(signal.SIGINT)
            return step(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(host_updates.Stepper, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                plan.step(x)
        after = [int(one["step"]) for one in optimizer.state.values()]
        assert sum(after) - len(after) == len(begun) > 0
        optimizer.zero_grad()
        other, plain = plain_copy(model, optimizer)
        assert torch.equal(plan.step(x), plain_step(other, x, plain))
        same(model, other, optimizer, plain)


# The emulation can fail; what CUDA's streams wait for is in test_cuda_lanes.


def without_telling(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    known = {one: one.written for one in self._hosts.values()}
    _compute(self, work, reads, changes)
    for one, written in known.items():
        one.written = written


_compute = Traffic.compute


def test_a_fetch_that_does_not_wait_for_the_host_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    monkeypatch.setattr(Traffic, "compute", without_telling)
    with copies.using(CPU, EmulatedLanes(early=lambda: False)):
        plan = planned(model, x, optimizer, "10%", link="100GB/s", **FAST)
        verbs = [next(iter(one)) for one in plan.result.schedule.steps]
        assert "prefetch" in verbs[verbs.index("update") :]  # of one that was updated
        for _ in range(3):
            plan.step(x)
            plain_step(other, x, plain)
        with pytest.raises(AssertionError):
            same(model, other, optimizer, plain)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"update_on_host": "fast"}, "update_on_host is 'fast'; give True, or the bytes per second"),
        ({"update_on_host": "100"}, "update_on_host is '100'; give True, .*with their unit"),
        ({"update_on_host": 0}, "update_on_host is 0; give True, or the bytes per second"),
        ({"update_on_host": math.inf}, "update_on_host is inf; give True, or the bytes per second"),
        ({"update_on_host": None}, "update_on_host is None; give True"),
        ({"update_on_host": True, "update": False}, "update_on_host is True and update is not"),
    ],
)
def test_wrong_calls_are_a_sentence(more: dict[str, Any], said: str) -> None:
    model, x = mlp(1), torch.randn(4, 24)
    options = {"update": True, "optimizer": adam(model.parameters())} | more
    with pytest.raises(InvalidInputError, match=said):
        mt.plan_step(model, (x,), loss, budget="50%", device=V100, **options)


def test_what_cannot_run_on_the_host_stays() -> None:
    model, x = mlp(2), torch.randn(4, 24)
    assert not hosted(planned(model, x, torch.optim.AdamW(model.parameters(), fused=True), **FAST))
    flat = torch.randn(2, 24, 24)
    for k, layer in enumerate(model.children()):
        layer[0].weight.data = flat[k]
    plan = trains_alike(model, x, adam, **FAST)
    assert hosted(plan) == {1, 3}  # the biases; weights share their memory
