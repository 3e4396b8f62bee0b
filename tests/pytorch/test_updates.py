"""Whole steps: the optimiser's updates are operations of the plan, and its states travel."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
import memsched.torch as mt
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.torch import CaptureError, StepPlan
from memsched.torch.steady import steady

V100 = "v100:pcie3"
Make = Callable[[Any], torch.optim.Optimizer]

TOGETHER = ("LBFGS", "SparseAdam")
CLASSES = sorted(
    name
    for name, one in vars(torch.optim).items()
    if isinstance(one, type) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer
)


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def mlp(layers: int = 4, width: int = 24) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*parts, nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 64, 10))


class Tied(nn.Module):
    """Reads a weight twice, leaves one out, and has one that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(40, 16)
        self.middle = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.unused = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.table(tokens)
        x = x + self.frozen(torch.nn.functional.gelu(self.middle(x)))
        return self.norm(x) @ self.table.weight.t()


def planned(
    model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer, budget: Any = "0%", link: Any = "12GB/s"
) -> StepPlan:
    """With the budget, or the least that has a plan."""

    def within(given: Any) -> StepPlan:
        more: dict[str, Any] = {"device": V100, "bandwidth": link, "optimizer": optimizer, "planner": "selective"}
        return mt.plan_step(model, (x,), loss, budget=given, update=True, **more)

    try:
        return within(budget)
    except InfeasibleError as error:
        return within(error.min_memory)


def same(model: nn.Module, other: nn.Module, optimizer: Any, plain: Any) -> None:
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert (a.grad is None) == (b.grad is None), name
    for (name, a), b in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b), name
    assert optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]
    found, wanted = optimizer.state_dict()["state"], plain.state_dict()["state"]
    assert found.keys() == wanted.keys()
    for key, state in wanted.items():
        assert found[key].keys() == state.keys()
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[key][name], value), (key, name)
            else:
                assert found[key][name] == value, (key, name)


def plain_step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    found = loss(model(x))
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    return found.detach()


def counted_of(plan: StepPlan) -> int:
    """Its peak without what no meter sees."""
    return plan.peak_memory - plan.plan.resident.random - plan.plan.resident.updates


def trains_alike(
    model: nn.Module, x: torch.Tensor, make: Make, budget: Any = "0%", link: Any = "12GB/s", stepped: bool = False
) -> StepPlan:
    """Three steps of a plan beside three plain ones, and what `verify` says."""
    other = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(other.parameters())
    for one in ((model, optimizer), (other, plain)) if stepped else ():
        plain_step(one[0], x, one[1])
    plan = planned(model, x, optimizer, budget, link)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds the budget
        for step in range(3):
            torch.manual_seed(step)
            found = plan.step(x)
            torch.manual_seed(step)
            assert torch.equal(found, plain_step(other, x, plain))
            same(model, other, optimizer, plain)
    verified = plan.verify(x)
    same(model, other, optimizer, plain)
    assert verified.reordered is None
    assert 0.99 * counted_of(plan) <= verified.peak_memory <= plan.result.schedule.budget
    return plan


def of_class(name: str) -> Make:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    if name == "Muon":  # for matrices
        return lambda parameters: torch.optim.Muon([one for one in parameters if one.dim() == 2], lr=1e-2)
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=1e-2, **options)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "AdamW" else pytest.mark.slow) for n in CLASSES])
def test_every_optimizer_trains_as_ever_or_is_refused(name: str) -> None:
    """Those of torch.optim, which a new release may add to."""
    if name in TOGETHER:
        with pytest.raises(InvalidInputError, match=f"optimizer is {name}, whose updates may depend on each other"):
            planned(mlp(), torch.randn(8, 24), of_class(name)(mlp().parameters()))
        return
    stepped = name == "Adafactor"  # which asks for values, so that its first step cannot be looked at
    plan = trains_alike(mlp(), torch.randn(8, 24), of_class(name), stepped=stepped)
    states = [one for one in plan.result.graph.tensors if one["role"] == "persistent" and one["size"]]
    assert states or name == "Adafactor"  # its states are small
    assert plan.result.timeline.bytes_out > 0 or name == "Adafactor"


@pytest.mark.parametrize(
    ("budget", "link"),
    [
        ("0%", "12GB/s"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("0%", 0), ("60%", 0), ("60%", "12GB/s"), ("100%", 0))
        ),
    ],
)
def test_a_cnn_with_dropout_and_statistics(budget: str, link: Any) -> None:
    trains_alike(cnn(), torch.randn(4, 3, 8, 8), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), budget, link)


def test_tied_frozen_and_unused_weights() -> None:
    trains_alike(Tied(), torch.randint(0, 40, (4, 8)), lambda p: torch.optim.AdamW(p, lr=0.01))


@pytest.mark.slow
def test_weights_in_half_precision() -> None:
    trains_alike(mlp().bfloat16(), torch.randn(8, 24).bfloat16(), lambda p: torch.optim.Adam(p, lr=0.01))


class Sharing(nn.Module):
    """Gradients of its weights are one tensor, which its first layer's backward reads, too; one lies otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(8, 6)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.first(x) + self.a + self.b)
        return x @ self.c.t() + (self.c.t() @ x).sum()


@pytest.mark.parametrize("foreach", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_optimizer_may_write_to_gradients(foreach: bool) -> None:
    """PyTorch's foreach=True with nesterov=True adds to them in place; others read what is one gradient for several."""
    trains_alike(
        Sharing(),
        torch.randn(8, 6),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=foreach),
        "100%",
        link=0,
    )


def test_what_no_update_has_seen_is_told() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.SGD(model[:3].parameters(), lr=0.1)
    plan = planned(model, x, optimizer)
    plan.step(x)
    model.zero_grad()
    loss(model[:3](x)).backward()
    with pytest.raises(ms.MemschedError, match=r"0.0.weight got a gradient that no update of the plan has seen"):
        plan._updates.ended(model)  # type: ignore[union-attr]


def test_what_is_not_as_it_was_planned_is_refused() -> None:
    """A parameter that took the place of another was not updated, or another was with its gradient, in silence."""
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = planned(model, x, optimizer)
    plan.step(x)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(InvalidInputError, match="other options besides their values"):
        plan.step(x)
    optimizer.param_groups[0]["momentum"] = 0
    before = model[1][0].weight
    model[1][0].weight = nn.Parameter(torch.zeros(24, 24))
    with pytest.raises(InvalidInputError, match=r"1.0.weight is another tensor than when the step was planned"):
        plan.step(x)
    model[1][0].weight = before
    plan.step(x)
    model[1][0].weight = model[0][0].weight
    with pytest.raises(InvalidInputError, match=r"1.0.weight is another tensor"):
        plan.step(x)
    model[1][0].weight = before
    handle = optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(InvalidInputError, match="the step of SGD also calls <lambda>, which a step with update=True"):
        plan.step(x)
    handle.remove()
    with torch.no_grad(), pytest.raises(InvalidInputError, match="under no_grad"):
        plan.step(x)
    plan.step(x)
    groups = optimizer.param_groups
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    groups[1]["params"].append(groups[0]["params"].pop())
    with pytest.raises(InvalidInputError, match="other groups"):
        plan.step(x)


def test_a_loss_that_reads_weights_of_the_model_is_refused() -> None:
    model, x = mlp(), torch.randn(8, 24)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="the loss reads a parameter of the model, which would be updated twice"):
        mt.plan_step(
            model,
            (x,),
            lambda out: loss(out) + model[0][0].weight.square().sum(),
            budget="100%",
            device=V100,
            optimizer=sgd,
            update=True,
        )


def test_verify_leaves_no_states_behind() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters())
    plan = planned(model, x, optimizer)

    def alive() -> int:
        gc.collect()
        kinds = torch.Tensor, nn.Parameter  # none of those without data
        return sum(one.nbytes for one in gc.get_objects() if type(one) in kinds)

    plan.verify(x)
    before = alive()
    plan.verify(x)
    assert alive() == before


@pytest.mark.parametrize("fused", [False, True])  # whose kernels change tensors without a note
def test_what_is_written_to_states_between_steps_counts(fused: bool) -> None:
    """It was lost where a copy of them had come to the device already."""
    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    make: Make = lambda p: torch.optim.AdamW(p, lr=0.01, fused=fused)  # noqa: E731
    optimizer, plain = make(model.parameters()), make(other.parameters())
    plan = planned(model, x, optimizer, "50%")
    assert set(plan.result.schedule.border.values()) & {"both", "host"}

    def tensors(one: Any) -> list[torch.Tensor]:
        return [state["exp_avg"] for state in one.state.values()]

    for change in (
        lambda one: [t.zero_() for t in tensors(one)],
        lambda one: [setattr(t, "data", torch.ones_like(t)) for t in tensors(one)],
        lambda one: [state.update(exp_avg=torch.ones_like(state["exp_avg"])) for state in one.state.values()],
        lambda one: plain_step(model if one is optimizer else other, x, one),
    ):
        plan.step(x)
        plain_step(other, x, plain)
        change(optimizer)
        change(plain)
        plan.step(x)
        plain_step(other, x, plain)
        same(model, other, optimizer, plain)


@pytest.mark.slow
def test_a_loss_with_weights_of_its_own() -> None:
    model, x = mlp(), torch.randn(8, 24)
    head = nn.Linear(24, 3)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=torch.tensor(0.01))
    other, other_head = copy.deepcopy(model), copy.deepcopy(head)
    plain = torch.optim.AdamW([*other.parameters(), *other_head.parameters()], lr=torch.tensor(0.01))
    plan = mt.plan_step(
        model, (x,), lambda out: loss(head(out)), budget="50%", device=V100, optimizer=optimizer, update=True
    )
    for _ in range(3):
        plan.step(x)
        loss(other_head(other(x))).backward()
        plain.step()
        plain.zero_grad()
        same(model, other, optimizer, plain)
        same(head, other_head, optimizer, plain)
    assert plan.verify(x).peak_memory <= plan.result.schedule.budget


def test_states_that_were_loaded_are_verified() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    plan = planned(model, x, optimizer)
    plan.step(x)
    state = copy.deepcopy(optimizer.state_dict())
    for one in state["state"].values():
        one["exp_avg"].fill_(7.0)
    optimizer.load_state_dict(state)
    copied = plan._updates.copy().optimizer  # type: ignore[union-attr]
    assert all(bool((one["exp_avg"] == 7.0).all()) for one in copied.state.values())
    plan.verify(x)
    assert all(bool((one["exp_avg"] == 7.0).all()) for one in optimizer.state.values())


def test_groups_and_a_scheduler() -> None:
    """Each group has its options, which a scheduler changes; what is in no group keeps its gradient."""

    def make(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
        first, second, *_ = model.children()
        groups = [{"params": first.parameters(), "lr": 0.5}, {"params": second.parameters(), "weight_decay": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    (optimizer, scheduler), (plain, plain_scheduler) = make(model), make(other)
    plan = planned(model, x, optimizer)
    for _ in range(3):
        plan.step(x)
        scheduler.step()
        loss(other(x)).backward()
        plain.step()
        plain.zero_grad()
        plain_scheduler.step()
        same(model, other, optimizer, plain)
    assert model[3][0].weight.grad is not None


def test_states_can_be_saved_and_loaded_between_steps() -> None:
    make: Make = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731
    model, x = mlp(), torch.randn(8, 24)
    optimizer = make(model.parameters())
    plan = planned(model, x, optimizer)
    assert "host" in plan.result.schedule.border.values()
    plan.step(x)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    plan.step(x)
    after = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    plan.step(x)
    for name, one in model.state_dict().items():
        assert torch.equal(one, after[0][name]), name
    other = mlp()
    plain = make(other.parameters())
    other.load_state_dict(after[0])
    plain.load_state_dict(after[1])
    same(model, other, optimizer, plain)


def test_plans_of_one_optimizer_share_its_states() -> None:
    """A plan took states for its own that another had on the host, and exceeded its budget."""
    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    make: Make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    optimizer, plain = make(model.parameters()), make(other.parameters())
    plans = [planned(model, x, optimizer, budget) for budget in ("100%", "0%", "50%")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for plan in (*plans, *reversed(plans), *plans):
            plan.step(x)
            plain_step(other, x, plain)
            same(model, other, optimizer, plain)
    plans[1].step(x)
    plain_step(other, x, plain)
    plans[1].bring_back()
    plain_step(model, x, optimizer)
    plain_step(other, x, plain)
    same(model, other, optimizer, plain)


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)])
def test_the_executed_step_holds_the_least_peak_of_any_order(make: Make) -> None:
    """At batch 1, where gradients and states are most of the memory."""
    model, x = cnn(), torch.randn(1, 3, 8, 8)
    optimizer = make(model.parameters())
    at_ease = planned(model, x, optimizer, "100%", link=0)
    least = ms.order(at_ease.problem)
    assert least.optimal
    plan = planned(model, x, optimizer, least.peak_memory, link=0)
    assert plan.peak_memory <= least.peak_memory
    assert 0.99 * counted_of(plan) <= plan.verify(x).peak_memory <= least.peak_memory
    every = steady(model, (x,), {}, optimizer, loss)
    assert plan.peak_memory < max(every.peak_forward_backward, every.peak_update)


def test_a_step_that_was_interrupted_can_be_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, left = torch.optim.AdamW.step, [1000]

    def interrupted(self: Any, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return steps(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    plan = planned(model, x, optimizer)
    plan.step(x)
    left[0] = 4
    with pytest.raises(KeyboardInterrupt):
        plan.step(x)
    assert len(optimizer.param_groups[0]["params"]) == 8
    assert all(one.grad is None for one in model.parameters())
    other = copy.deepcopy(model)
    plain = torch.optim.AdamW(other.parameters(), lr=0.01)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    plan.step(x)
    plain_step(other, x, plain)
    same(model, other, optimizer, plain)


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.second(x))


class Own(torch.optim.SGD):
    pass


def test_what_cannot_be_a_part_of_the_step_is_refused() -> None:
    model, x = mlp(), torch.randn(8, 24)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def refused(match: str, kind: type[Exception] = InvalidInputError, **options: Any) -> None:
        given: dict[str, Any] = {"budget": "100%", "device": V100, "optimizer": sgd, "update": True, "model": model}
        given |= options
        with pytest.raises(kind, match=match):
            mt.plan_step(given.pop("model"), (x,), loss, **given)

    refused("update is 'yes'; give True or False", update="yes")
    refused("update is True and optimizer is None", optimizer=None)
    refused("update is True and optimizer is 4096", optimizer=4096)
    refused("optimizer is Own, whose updates may depend", optimizer=Own(model.parameters(), lr=0.1))
    refused("update is True and rounds is True", rounds=True)
    refused("update is True and planner is 'pooch'", planner="pooch")
    different = torch.optim.Adam(model.parameters(), differentiable=True)
    refused("make it with differentiable=False", optimizer=different)
    other = torch.optim.SGD(mlp(5, 16).parameters(), lr=0.1)
    refused("built for another model", optimizer=other)
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    refused("the optimizer updates no parameter of the step; was it built for another model", optimizer=other)
    broken = Broken()
    refused(
        "captured in 3 graphs",
        CaptureError,
        model=broken,
        optimizer=torch.optim.SGD(broken.parameters(), lr=0.1),
    )
    hook = sgd.register_step_pre_hook(lambda *_: None)
    refused("also calls <lambda>")
    hook.remove()
    handle = model[0][0].weight.register_hook(lambda one: one)
    refused("0.0.weight has a hook for its gradient")
    handle.remove()
    plan = mt.plan_step(model, (x,), loss, budget="100%", device=V100, optimizer=sgd, update=True)
    loss(model(x)).backward()
    with pytest.raises(InvalidInputError, match=r"0.0.weight has a gradient from before.*zero_grad"):
        plan.step(x)
    sgd.zero_grad()
    plan.step(x)


def test_the_report_tells_of_states() -> None:
    model, x = mlp(), torch.randn(8, 24)
    plan = planned(model, x, torch.optim.AdamW(model.parameters()))
    report = plan.report()
    assert {"0.0/states:0", "3.0/states:7"} <= set(plan.shown.schedule.border)
    assert ms.validate(plan.shown).makespan == plan.result.makespan
    assert "states           18.8 KiB of the optimiser" in report
    assert "of them on the host between steps" in report
    assert "what is updated\n  8 of 8 parameters, by AdamW" in report
