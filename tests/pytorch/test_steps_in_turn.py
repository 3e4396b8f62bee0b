"""Steps of several graphs in many orders and turns, and under hooks that keep what is saved: all within the budget."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from memsched.errors import InfeasibleError
from memsched.torch.compiled.copies import traffic_on
from memsched.torch.compiled.unit import counted
from memsched.torch.compiled.unplanned import UnplannedWarning

pytestmark = pytest.mark.filterwarnings("ignore:the last step .*exceeded the budget, as its graphs were planned")
CPU = torch.device("cpu")
Kind = tuple[Sequence[int], Sequence[int]]  # which networks run forward, and in which order their losses run backward


class Steps:
    """Networks that share a budget, and the bytes of each of their steps."""

    def __init__(self, lengths: Sequence[int], budget: int | str, **options: Any) -> None:
        torch.manual_seed(0)
        torch._dynamo.reset()
        self.given = torch.randn(256, 48)
        self.nets = [nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(n))) for n in lengths]
        told = {"budget": budget, "bandwidth": 0} | options
        self.calls = [torch.compile(net, backend="memsched", options=told) for net in self.nets]

    def peak(self, forwards: Sequence[int], backwards: Sequence[int]) -> int:
        """Of one step, of the whole process."""
        for net in self.nets:
            net.zero_grad()
        held = sum(one.nbytes for k in set(forwards) for one in self.nets[k].parameters())
        with counted(CPU) as meter:
            losses = [self.calls[k](self.given).sum() for k in forwards]
            for k in backwards:
                losses[k].backward()
        return self.given.nbytes + held + meter.peak


@pytest.mark.parametrize(
    ("lengths", "budget"), [((3, 3), 450_000), ((3, 3), 560_000), ((3, 3), 900_000), ((2, 4, 1), 480_000)]
)
def test_a_first_step_above_the_budget_is_told(lengths: tuple[int, ...], budget: int) -> None:
    steps = Steps(lengths, budget)
    forwards = range(len(lengths))
    peaks, told = [], []
    for _ in range(4):  # what a step exceeded is told when the next begins
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            peaks.append(steps.peak(forwards, forwards[::-1]))
        told.append([one for one in caught if "the last step exceeded the budget" in str(one.message)])
    assert [len(one) for one in told] == [0, int(peaks[0] > budget), 0, 0]
    assert max(peaks[1:]) <= budget


@pytest.mark.parametrize("budget", [450_000, 480_000, 560_000, 900_000])
def test_a_first_step_after_others_that_begin_alike_is_told(budget: int) -> None:
    steps = Steps((3, 3), budget)
    for _ in range(4):  # of one graph: such steps are no longer counted
        assert steps.peak([0], [0]) <= budget
    peaks, told = [], []
    for _ in range(5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            peaks.append(steps.peak([0, 1], [1, 0]))
        told.append([one for one in caught if "the last step may have exceeded the budget" in str(one.message)])
    above = [k for k, peak in enumerate(peaks) if peak > budget]
    assert sum(map(len, told)) == bool(above)
    assert max(peaks[2:]) <= budget  # one step is recorded, the next plan spans


@contextlib.contextmanager
def most_on_host() -> Iterator[list[int]]:
    traffic, most = type(traffic_on(CPU)), [0]
    before = traffic.offload

    def offload(self: Any, *args: Any) -> Any:
        found = before(self, *args)
        most[0] = max(most[0], self._used)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(traffic, "offload", offload)
        yield most


@pytest.mark.parametrize("budget", [560_000, 600_000])
def test_steps_that_begin_alike_leave_room_for_each_other(budget: int) -> None:
    """Of what they share, the version that kept less was taken, whatever its backward and its copies needed."""
    steps = Steps((5, 4, 3), budget, bandwidth="50GB/s", host_memory=300_000)
    short, long = ((0, 1), (1, 0)), ((0, 1, 2), (0, 1, 2))
    first = [steps.peak(*kind) for kind in [short] * 3 + [long] * 3]
    assert first[3] > budget
    assert max(first[2], first[5]) <= budget
    with most_on_host() as most:
        assert max(steps.peak(*kind) for kind in (short, long) * 3) <= budget
    assert most[0] <= 300_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_turns(seed: int) -> None:
    """A kind of step that has come twice fits from then on, whatever comes between; or the budget is refused."""
    chance = random.Random(seed)
    for _ in range(6):
        kinds: list[Kind] = []
        for _ in range(chance.randint(2, 4)):
            forwards = [chance.randrange(4) for _ in range(chance.randint(1, 3))]
            kinds.append((forwards, chance.sample(range(len(forwards)), len(forwards))))
        lengths = [chance.randint(1, 6) for _ in range(4)]
        free = Steps(lengths, 10**10)
        budget = int(max(free.peak(*kind) for kind in kinds) * chance.uniform(0.75, 1))
        link = chance.choice([{}, {"bandwidth": "50GB/s", "host_memory": 200_000}])
        steps, seen = Steps(lengths, budget, **link), [0] * len(kinds)
        with contextlib.suppress(InfeasibleError):
            for k in (chance.randrange(len(kinds)) for _ in range(30)):
                found = steps.peak(*kinds[k])
                assert found <= budget or seen[k] < 2, (seed, lengths, kinds, budget)
                seen[k] += 1


def test_the_error_names_a_budget_for_the_orders_so_far() -> None:
    """It named the one that it refused."""
    orders = [(2, 1, 0), (0, 1, 2), (1, 0, 2), (2, 0, 1)]
    budgets, said = [520_000], list[str]()
    while True:
        steps = Steps((3, 2, 4), budgets[-1])
        try:
            found = [steps.peak(range(3), order) for order in orders for _ in range(3)]
        except InfeasibleError as error:
            budgets.append(error.min_memory)
            said.append(str(error))
        else:
            break
        assert len(budgets) <= 1 + len(orders)
    assert any("each order of its backwards" in one for one in said)
    assert budgets == sorted(set(budgets))
    assert max(found[2::3]) <= budgets[-1]


@pytest.mark.parametrize("around", [checkpoint, None], ids=["checkpoint", "hooks"])
def test_gradients_count_where_hooks_keep_what_is_saved(around: Callable[..., Any] | None) -> None:
    """A call followed the version of its first run there, whatever gradients it had."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(6)))
    given, budget = torch.randn(256, 128), 1_850_000
    call = torch.compile(net, backend="memsched", options={"budget": budget, "bandwidth": 0})
    for step in range(6):
        if step % 2 == 0:
            net.zero_grad()
        held = given.nbytes + sum(one.nbytes for p in net.parameters() for one in (p, p.grad) if one is not None)
        hooks = saved_tensors_hooks(lambda x: x, lambda x: x) if around is None else contextlib.nullcontext()
        with counted(CPU) as meter, hooks:
            loss = (checkpoint(call, given, use_reentrant=False) if around else call(given)).sum()
            loss.backward()
        assert held + meter.peak <= budget


def test_one_plan_spans_graphs_under_hooks() -> None:
    steps = Steps((5, 4), 520_000)
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        found = [steps.peak((0, 1), (0, 1)) for _ in range(4)]
    assert found[0] > 520_000 >= max(found[1:])


@pytest.mark.parametrize("kinds", ["1 2", "1 2 2", "1 1 1 2", "1 s1", "1 1 s1", "1 2 s1"])
def test_kinds_of_steps_that_take_turns(kinds: str) -> None:
    """The calls of the second kind were never seen together: those that it shares with the first were known.

    "s": the backward is left out, and the loss is still alive in the forward that follows.
    """
    torch.manual_seed(0)
    nets = [nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(n))) for n in (5, 4)]
    given = torch.randn(256, 48)
    options = {"budget": 510_000, "bandwidth": 0}
    calls = [torch.compile(net, backend="memsched", options=options) for net in nets]
    peaks = []
    for kind in kinds.split() * 4:
        for net in nets:
            net.zero_grad()
        with counted(given.device) as meter:
            alive = calls[0](given).sum() if "s" in kind else None
            loss = calls[0](given).sum()
            if kind == "2":
                loss = loss + calls[1](given).sum()
            loss.backward()
            del loss, alive
        held = sum(one.nbytes for net in nets[: 1 + (kind == "2")] for one in net.parameters())
        peaks.append(given.nbytes + held + meter.peak)
    assert max(peaks[len(peaks) // 2 :]) <= options["budget"] < max(peaks)


@pytest.mark.parametrize(
    ("lengths", "budget", "orders"),
    [((5, 4), 540_000, [(0, 1), (1, 0)]), ((3, 2, 4), 535_000, [(2, 1, 0), (0, 1, 2), (1, 0, 2), (2, 0, 1)])],
)
def test_a_plan_fits_in_each_order_of_the_backwards(
    lengths: Sequence[int], budget: int, orders: Sequence[Sequence[int]]
) -> None:
    """The plan was for the order of the first step, and others needed more than the budget in silence."""
    torch.manual_seed(0)
    nets = [nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(n))) for n in lengths]
    given = torch.randn(256, 48)
    held = given.nbytes + sum(one.nbytes for net in nets for one in net.parameters())
    calls = [torch.compile(net, backend="memsched", options={"budget": budget, "bandwidth": 0}) for net in nets]

    def peak(order: Sequence[int]) -> int:
        for net in nets:
            net.zero_grad()
        with counted(given.device) as meter:
            losses = [call(given).sum() for call in calls]
            for k in order:
                losses[k].backward()
        return held + meter.peak

    met = [[peak(order) for _ in range(3)] for order in orders]
    assert met[0][0] > budget  # before the first plan
    assert len(nets) > 2 or met[1][0] > budget
    assert all(found[2] <= budget for found in met)
    assert all(peak(order) <= budget for order in [*orders, *orders])


def test_steps_whose_backwards_come_in_ever_new_orders_are_warned_of() -> None:
    net = nn.Linear(4, 4)
    call = torch.compile(net, backend="memsched", options={"budget": "100%"})

    def in_all_orders() -> None:
        for order in itertools.permutations(range(4)):
            losses = [call(torch.randn(2, 4)).sum() for _ in order]
            for k in order:
                losses[k].backward()

    with pytest.warns(UnplannedWarning, match="a step of 4 graphs run in more than 8 orders"):
        in_all_orders()


def refused(step: Callable[[], None]) -> list[bool]:
    found = []
    for _ in range(4):
        try:
            step()
        except InfeasibleError:
            found.append(True)
        else:
            found.append(False)
    return found


class Scaled(nn.Module):
    """A layer between two that may be others'."""

    def __init__(self, first: nn.Module, middle: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = first, middle, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return found


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own
def test_blocks_that_share_their_first_and_last_parameters_are_not_one() -> None:
    """They followed the plan of one block that is called as often, and held twice their budget."""
    torch._dynamo.reset()
    first, last = nn.Linear(8, 96, bias=False), nn.Linear(96, 8, bias=False)
    blocks = [Scaled(first, nn.Linear(96, 96, bias=False), last) for _ in range(6)]
    calls = [torch.compile(one, backend="memsched", options={"budget": 240_000}) for one in blocks]

    def step(chosen: Sequence[int]) -> None:
        for one in blocks:
            one.zero_grad()
        h = torch.randn(16, 8)
        for k in chosen:
            h = calls[k](h)
        h.sum().backward()

    assert not any(refused(lambda: step([0] * 6)))
    assert refused(lambda: step(range(6)))[2:] == [True, True]  # parameters and gradients alone are more


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own
def test_a_new_tensor_made_of_a_result_is_not_that_result() -> None:
    """Steps in which the caller changes what lies between graphs followed the plan of steps in which it does not."""

    def ran(*kinds: bool) -> list[bool]:
        steps = Steps((1,) * 6, 840_000)

        def step(changed: bool) -> None:
            for net in steps.nets:
                net.zero_grad()
            h = steps.given
            for call in steps.calls:
                h = call(h) * 1.01 if changed else call(h)
            h.sum().backward()

        return [refused(lambda kind=kind: step(kind))[-1] for kind in kinds]  # type: ignore[misc]

    assert ran(False) == [False]
    assert ran(True) == [True]
    assert ran(False, True) == [False, True]


def test_a_step_of_very_many_calls_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut in silence, and held more than its budget from then on."""
    monkeypatch.setattr("memsched.torch.compiled.group._MOST_CALLS", 4)
    steps = Steps((1,), 600_000)
    with pytest.warns(UnplannedWarning, match="more than 4 graphs are due"):
        steps.peak([0] * 6, range(6))
