"""Whole steps whose parameters travel, too: they are on the device or on the host, in the step and between steps."""

from __future__ import annotations

import copy
import gc
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from updating import V100, Tied, cnn, loss, mlp, plain_step, planned, same, trains_alike

import memsched as ms
import memsched.torch as mt
from memsched.errors import InvalidInputError, MemschedError
from memsched.torch import StepPlan
from memsched.torch.compiled import copies, parameters
from memsched.torch.lanes import EmulatedLanes

OFFLOAD: dict[str, Any] = {"offload_parameters": True}
CPU = torch.device("cpu")


def adam(learned: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(learned, lr=0.01)


def places(plan: StepPlan) -> dict[str, str]:
    """Where the parameters of a plan are between steps."""
    assert plan._updates is not None
    border = plan.result.schedule.border
    return {
        one: border.get(parameters.parameter_called(one), "device") for one in plan._updates.lasting.parameters.named
    }


class Adapted(nn.Module):
    """Most of its weights are frozen, as with adapters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.ModuleList(nn.Linear(24, 24).requires_grad_(False) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(24, 2, bias=False) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(2, 24, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            x = torch.tanh(base(x) + up(down(x)))
        return x


@pytest.mark.parametrize(
    ("make", "inputs", "budget"),
    [
        (lambda: mlp(6, 24), lambda: torch.randn(4, 24), "0%"),
        pytest.param(lambda: mlp(6, 24), lambda: torch.randn(4, 24), "40%", marks=pytest.mark.slow),
        (Tied, lambda: torch.randint(0, 40, (4, 8)), "30%"),
        pytest.param(Tied, lambda: torch.randint(0, 40, (4, 8)), "0%", marks=pytest.mark.slow),
        (Adapted, lambda: torch.randn(4, 24), "0%"),
        pytest.param(Adapted, lambda: torch.randn(4, 24), "50%", marks=pytest.mark.slow),
        pytest.param(cnn, lambda: torch.randn(2, 3, 8, 8), "0%", marks=pytest.mark.slow),
    ],
)
def test_steps_have_the_bits_of_plain_ones_and_keep_to_their_budget(
    make: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor], budget: str
) -> None:
    trains_alike(make(), inputs(), adam, budget, **OFFLOAD)


@pytest.mark.parametrize("make", [lambda: mlp(6, 64), Adapted])
def test_the_model_needs_less_than_its_weights(make: Callable[[], nn.Module]) -> None:
    model = make()
    x = torch.randn(1, next(model.parameters()).shape[1])
    weights = sum(one.nbytes for one in model.parameters())
    least, without = (
        planned(model, x, adam([one for one in model.parameters() if one.requires_grad]), "0%", **more).peak_memory
        for more in (OFFLOAD, {})
    )
    assert least < weights < without


def test_no_parameter_is_on_both_sides_between_steps() -> None:
    model, x = Adapted(), torch.randn(8, 24)
    optimizer = adam([one for one in model.parameters() if one.requires_grad])
    for budget in ("0%", "20%", "50%"):
        plan = planned(model, x, optimizer, budget, **OFFLOAD)
        assert set(places(plan).values()) <= {"device", "host"}
        ms.validate(plan.result)


def written(one: torch.Tensor) -> torch.Tensor:
    return torch.full_like(one, 0.25)


def give_other_data(model: nn.Module) -> None:
    for one in model.parameters():
        one.data = written(one)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "data in place": lambda m: [one.data.mul_(0.5) for one in m.parameters()],
    "other data": give_other_data,
    "copied to": lambda m: [one.detach().copy_(written(one)) for one in m.parameters()],
    "loaded": lambda m: m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()}),
    "some": lambda m: next(iter(m.parameters())).data.zero_(),
}


@pytest.mark.parametrize(
    "change", [n if n == "data in place" else pytest.param(n, marks=pytest.mark.slow) for n in CHANGES]
)
@pytest.mark.parametrize("budget", ["0%", "20%", pytest.param("60%", marks=pytest.mark.slow)])
def test_what_is_written_between_steps_counts(change: str, budget: str) -> None:
    """Of trained and frozen ones, in ways that leave a note with the tensor and in ways that leave none."""
    model, x = Adapted(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = (adam([one for one in m.parameters() if one.requires_grad]) for m in (model, other))
    plan = planned(model, x, optimizer, budget, **OFFLOAD)
    for _ in range(3):
        assert torch.equal(plan.step(x), plain_step(other, x, plain))
        CHANGES[change](model)
        CHANGES[change](other)
        same(model, other, optimizer, plain)
    assert torch.equal(plan.step(x), plain_step(other, x, plain))
    same(model, other, optimizer, plain)


@pytest.mark.parametrize("budget", ["0%", "60%"])
def test_whoever_else_has_the_memory_of_a_parameter_is_told_of(budget: str) -> None:
    """What they have would not follow the step: it was stale in silence."""
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), budget, **OFFLOAD)
    plan.step(x)
    for hold in (
        lambda: model[2][0].weight.detach(),
        lambda: model[2][0].weight.detach().numpy(),
        lambda: model.state_dict(),
    ):
        held = hold()
        with pytest.raises(InvalidInputError, match="shares its memory with another tensor"):
            plan.step(x)
        with pytest.raises(InvalidInputError, match="shares its memory with another tensor"):
            plan.verify(x)
        del held
        plan.step(x)
    frozen = model[0][0].weight
    frozen.data = model[2][0].weight.data
    with pytest.raises(InvalidInputError, match=r"shares? its memory|lie in the same memory"):
        plan.step(x)


def test_who_had_the_memory_when_it_was_planned_has_it_ever_after() -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    own, others = model[2][0].weight.data, other[2][0].weight.data
    more: dict[str, Any] = {"device": V100, "bandwidth": "12GB/s", "optimizer": optimizer, "update": True, **OFFLOAD}
    plan = mt.plan_step(model, (x,), lambda out: loss(out) + own.square().sum(), budget="10%", **more)
    assert "2.0.weight" not in places(plan)
    assert "host" in places(plan).values()
    for _ in range(3):
        found = loss(other(x)) + others.square().sum()
        assert torch.equal(plan.step(x), found.detach())
        found.backward()
        plain.step()
        plain.zero_grad()
    model[1][0].weight.share_memory_()
    assert "1.0.weight" not in places(planned(model, x, optimizer, **OFFLOAD))


class Averages(nn.Module):
    """Its forward writes a parameter."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean = nn.Parameter(torch.zeros(24), requires_grad=trained)
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return self.inner(x - self.mean.detach())


@pytest.mark.parametrize("hollow", [(), ("cpu",)])
def test_what_the_forward_writes_stays(hollow: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "HOLLOW", hollow)
    plan = trains_alike(Averages(False), torch.randn(4, 24), adam, **OFFLOAD)
    assert "mean" not in places(plan)
    table = nn.Sequential(nn.Embedding(30, 24, max_norm=1.0).requires_grad_(False), *mlp().children())
    trains_alike(table, torch.randint(0, 30, (8,)), adam, **OFFLOAD)


def test_tensors_without_memory_stand_for_parameters_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA; the step is traced and run with them."""
    monkeypatch.setattr(parameters, "HOLLOW", ("cpu",))
    for make in (mlp, Adapted):
        trains_alike(make(), torch.randn(4, 24), adam, **OFFLOAD)
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    torch._dynamo.reset()  # so that it is traced once more, while parameters are away
    plan.step(x)
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in model.parameters())


def test_reading_a_parameter_in_the_middle_of_a_step_gives_its_values() -> None:
    """A logger, a custom operator or another thread did read memory that was not there."""
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    with torch.compiler.set_stance("force_eager"), pytest.raises(MemschedError):
        plan.step(x)
    for one in model.parameters():
        one.grad = None
    plan.step(x)


class Switched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.on = mlp(), nn.Linear(24, 24), False

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        return self.second(x) if self.on else x


def test_a_parameter_that_the_planned_step_did_not_read_may_be_read_later() -> None:
    model, x = Switched(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = planned(model, x, optimizer, "60%", **OFFLOAD)
    for on in (False, True, False):
        model.on = other.on = on
        assert torch.equal(plan.step(x), plain_step(other, x, plain))
        same(model, other, optimizer, plain)


def test_a_model_that_was_changed_can_be_planned_again() -> None:
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    plan.bring_back()
    model.to(torch.bfloat16)
    trains_alike(model, x.bfloat16(), adam, **OFFLOAD)


def test_brought_back_for_inference_they_can_be_trained() -> None:
    model, x = mlp(), torch.randn(4, 24)
    optimizer = adam(model.parameters())
    plan = planned(model, x, optimizer, **OFFLOAD)
    plan.step(x)
    with torch.inference_mode():
        plan.bring_back()
        model(x)
    plain_step(model, x, optimizer)
    plan.step(x)


def test_ctrl_c_at_the_end_of_a_step_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left parameters without memory, which then were saved."""
    monkeypatch.setattr(parameters, "HOLLOW", ("cpu",))
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    rest = parameters._Copies.rest

    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        rest(*args)

    monkeypatch.setattr(parameters._Copies, "rest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plan.step(x)
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in model.parameters())


def test_plain_steps_and_other_plans_between() -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plans = [planned(model, x, optimizer, "0%", **OFFLOAD), planned(model, x, optimizer, "30%", **OFFLOAD)]
    plans.append(planned(model, x, optimizer, "50%"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds its budget
        for plan in (*plans, plans[0], None, plans[0], plans[2], plans[1]):
            if plan is plans[2]:
                plans[0].bring_back()
            found = plain_step(model, x, optimizer) if plan is None else plan.step(x)
            assert torch.equal(found, plain_step(other, x, plain))
            same(model, other, optimizer, plain)


def test_bring_back_has_all_on_the_device() -> None:
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    away = [one for one in model.parameters() if parameters._COPIES[one].is_away(one)]
    assert len(away) == list(places(plan).values()).count("host") > 0
    before = [one.detach().clone() for one in model.parameters()]
    plan.bring_back()
    assert not any(parameters._COPIES[one].is_away(one) for one in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))


class StepError(Exception):
    pass


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_fails_leaves_each_parameter_with_values(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it fails: those that were updated have their new values, the others those of before."""
    model, x = mlp(3), torch.randn(4, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with copies.using(CPU, EmulatedLanes(early=lambda: not late)):
        plan = planned(model, x, optimizer, **OFFLOAD)
        plan.step(x)
        arrive, free = parameters._Copies.arrive, parameters._Copies.free
        count, stop = 0, 0

        def noted(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                nonlocal count
                count += 1
                if count == stop:
                    raise StepError
                return call(*args)

            return run

        monkeypatch.setattr(parameters._Copies, "arrive", noted(arrive))
        monkeypatch.setattr(parameters._Copies, "free", noted(free))
        for stop in range(1, 40):
            count, before = 0, [one.detach().clone() for one in model.parameters()]
            other = copy.deepcopy(model)
            plain_step(other, x, torch.optim.SGD(other.parameters(), lr=0.1))
            try:
                plan.step(x)
                failed = False
            except StepError:
                failed = True
            for one, old, new in zip(model.parameters(), before, other.parameters(), strict=True):
                assert torch.equal(one, new) or (failed and torch.equal(one, old))
            if not failed:
                assert stop > 10
                break
            optimizer.zero_grad()
        assert not failed


def test_clipping_and_a_scaler() -> None:
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = adam(model.parameters()), adam(other.parameters())
    plan = planned(model, x, optimizer, max_norm=0.01, **OFFLOAD)
    assert "host" in places(plan).values()
    for _ in range(3):
        plan.step(x)
        loss(other(x)).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.01)
        plain.step()
        plain.zero_grad()
        same(model, other, optimizer, plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaled = planned(model, x, optimizer, scaler=scaler, **OFFLOAD)
    assert scaled.verify(x).peak_memory <= scaled.result.schedule.budget


def test_parameters_that_share_memory_stay() -> None:
    model, x = mlp(2), torch.randn(4, 24)
    flat = torch.randn(2, 24, 24)
    for k, layer in enumerate(model.children()):
        layer[0].weight.data = flat[k]
    model[0][0].bias.data = torch.randn(24, 2)[:, 0]
    plan = trains_alike(model, x, adam, **OFFLOAD)
    assert [*places(plan)] == ["1.0.bias"]


def test_what_the_model_returns_stays() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = mlp(2), nn.Parameter(torch.ones(24))

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x) * self.scale, self.scale.view(4, 6)

    model, x = Returns(), torch.randn(4, 24)
    more: dict[str, Any] = {
        "device": V100,
        "bandwidth": "12GB/s",
        "optimizer": adam(model.parameters()),
        "update": True,
    }
    plan = mt.plan_step(model, (x,), lambda out: loss(out[0]) + loss(out[1]), budget="0%", **more, **OFFLOAD)
    assert plan.verify(x).reordered is None


def test_without_a_link_none_travels() -> None:
    plan = trains_alike(mlp(), torch.randn(4, 24), adam, "50%", 0, **OFFLOAD)
    assert set(places(plan).values()) == {"device"}


def test_a_dropped_model_is_gone() -> None:
    model, x = mlp(), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    known = len(parameters._COPIES)
    del model, plan
    gc.collect()
    torch._dynamo.reset()
    gc.collect()
    assert len(parameters._COPIES) <= known - 8


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"offload_parameters": 1}, "offload_parameters is 1; give True or False"),
        ({"offload_parameters": True, "update": False}, "offload_parameters is True and update is not"),
    ],
)
def test_wrong_calls_are_a_sentence(more: dict[str, Any], said: str) -> None:
    model, x = mlp(1), torch.randn(4, 24)
    options = {"update": True, "optimizer": adam(model.parameters())} | more
    with pytest.raises(InvalidInputError, match=said):
        mt.plan_step(model, (x,), loss, budget="50%", device=V100, **options)


def test_another_shape_is_refused_by_name() -> None:
    model, x = mlp(2), torch.randn(4, 24)
    plan = planned(model, x, adam(model.parameters()), **OFFLOAD)
    plan.step(x)
    model[1][0].weight.data = torch.randn(24, 24).t()
    with pytest.raises(InvalidInputError, match=r"1\.0\.weight has another shape, type, layout or device"):
        plan.step(x)
