"""A look at a training step, and a trial of its plan, leave nothing behind in what the model and its loss reach."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
import memsched.torch as mt
from memsched.torch.profile import profile
from memsched.torch.recorder.record import graph

X = torch.randn(8, 4)
TABLE: torch.Tensor | None = None
ROWS: list[torch.Tensor] = []
CRITIC = nn.Linear(4, 1)


def plain(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def look_at(model: nn.Module, loss: Any) -> None:
    mt.plan(model, (X,), loss=loss, budget="100%")


def look_at_a_step(model: nn.Module, loss: Any) -> None:
    mt.plan_step(model, (X,), loss, budget="100%")


def look_in_vain(model: nn.Module, loss: Any) -> None:
    with pytest.raises(ms.InfeasibleError):
        mt.plan(model, (X,), loss=loss, budget="100B")


def profiled(model: nn.Module, loss: Any) -> None:
    profile(model, (X,))


LOOKS = [look_at, look_at_a_step, look_in_vain]


class Loss:
    """With a network, a running mean, a history and a scaler of its own."""

    shared: torch.Tensor | None = None

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.scaler = torch.amp.GradScaler("cpu")
        self.mean: torch.Tensor | None = None
        self.history: list[torch.Tensor] = []
        self.calls = torch.zeros(())

    def __call__(self, out: torch.Tensor) -> torch.Tensor:
        global TABLE
        if Loss.shared is None:
            Loss.shared = torch.linspace(0, 1, 4)
        if TABLE is None:
            TABLE = torch.ones(4)
        if not ROWS:
            ROWS.append(torch.ones(4))
        self.mean = out.detach().mean(0)
        self.history.append(self.mean)
        self.calls.add_(1)
        value = self.net(out * Loss.shared * TABLE * ROWS[0]) + CRITIC(out)
        scaled: torch.Tensor = self.scaler.scale(value.square().mean())
        return scaled


def reset() -> None:
    global TABLE
    TABLE, Loss.shared = None, None
    ROWS.clear()
    CRITIC.zero_grad()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", "")
    reset()
    torch._dynamo.reset()


def losses(model: nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], more: nn.Module | None = None) -> list[Any]:
    """Three steps of training, with gradients that are made at the end of a step, as in many loops."""
    parameters = [*model.parameters(), *CRITIC.parameters(), *(more.parameters() if more is not None else [])]
    optimizer = torch.optim.SGD(parameters, 1e-7)
    found: list[Any] = []
    for _ in range(3):
        value = loss(model(X))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [float(value.detach()), *(one.detach().clone() for one in parameters)]
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def made() -> tuple[nn.Module, Loss]:
    torch.manual_seed(0)
    model, loss = nn.Linear(4, 4), Loss()
    with torch.no_grad():
        CRITIC.weight.fill_(0.25)
        CRITIC.bias.fill_(0.0)
    return model, loss


@pytest.mark.parametrize("look", LOOKS)
def test_training_after_a_look_is_as_without_one(look: Callable[[nn.Module, Any], None]) -> None:
    """Gradients, a scale, tables and means without data stayed: nothing was trained, and no error told."""
    model, loss = made()
    look(model, loss)
    assert type(Loss.shared) is type(TABLE) is type(loss.mean) is type(loss.scaler._scale) is type(None)
    assert (ROWS, loss.history, CRITIC.weight.grad) == ([], [], None)
    assert loss.net[0].num_batches_tracked == loss.calls == 0
    after = losses(model, loss, loss.net)
    reset()
    model, loss = made()
    assert same(after, losses(model, loss, loss.net))


@pytest.mark.parametrize("look", [*LOOKS, profiled])
@pytest.mark.parametrize("wrap", [lambda old: lambda x: old(x).tanh(), lambda old: functools.partial(old)])
def test_a_forward_that_leads_to_the_model_itself_leaves_no_gradient(
    look: Callable[[nn.Module, Any], None], wrap: Callable[[Any], Any]
) -> None:
    model = nn.Linear(4, 4)
    model.forward = wrap(model.forward)  # type: ignore[method-assign]
    look(model, plain)
    assert [one.grad for one in model.parameters()] == [None, None]


def test_gradients_that_are_there_stay() -> None:
    model, loss = made()
    loss(model(X)).backward()
    before = [one.grad for one in (*CRITIC.parameters(), *loss.net.parameters())]
    copies = [one.clone() for one in before if one is not None]
    look_at_a_step(model, loss)
    after = [one.grad for one in (*CRITIC.parameters(), *loss.net.parameters())]
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, copies, strict=True) if a is not None)


def test_a_comparison_leaves_the_network_of_the_loss_as_it_was() -> None:
    torch.manual_seed(0)
    model, net = nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    plan = mt.plan_step(model, (X,), lambda out: net(out).square().mean(), budget="100%")
    plan.step(X)
    before = [one.clone() for one in (*net.state_dict().values(), *(p.grad for p in net.parameters()))]
    plan.verify(X)
    after = [*net.state_dict().values(), *(p.grad for p in net.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert net[0].num_batches_tracked == 1


def test_objects_that_refuse_to_be_asked_are_passed_by() -> None:
    class Shy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"nobody asks for {name}")

    shy = Shy()
    look_at(nn.Linear(4, 4), lambda out: (out.square().mean(), shy)[0])


def sparse() -> torch.Tensor:
    return torch.eye(4).to_sparse()


@pytest.mark.parametrize("kept", [sparse, lambda: torch.empty(1, device="meta"), lambda: nn.LazyLinear(3).weight])
def test_tensors_that_cannot_be_compared_are_passed_by(kept: Callable[[], torch.Tensor]) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.kept = nn.Linear(4, 4), [kept()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(x).tanh()
            return found

    other, model = Keeping(), nn.Linear(4, 4)
    plan = mt.plan_step(model, (X,), lambda out: (out + other(out)).square().mean(), budget="100%")
    plan.verify(X)


class Seeding(nn.Module):
    """A forward that seeds all global generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return nn.functional.dropout(self.layer(x), 0.2).exp()


@pytest.mark.parametrize(
    "work",
    [
        lambda model: mt.plan(model, (X,), budget="100%"),
        lambda model: mt.plan_step(model, (X,), lambda out: out.mean(), budget="100%"),
        lambda model: mt.profile(model, (X,)),
        lambda model: graph(model, (X,)),
    ],
    ids=["plan", "plan_step", "profile", "recorder"],
)
def test_a_forward_that_seeds_leaves_the_generators_as_they_were(work: Callable[[nn.Module], object]) -> None:
    """Training after a look drew other numbers."""
    model = Seeding()
    torch.manual_seed(100)
    before = torch.get_rng_state()
    work(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == 100
