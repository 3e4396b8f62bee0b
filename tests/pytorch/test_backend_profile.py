"""Steps that are timed as they run, and planned anew by these times, while training goes on."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
import memsched.torch as mt
from memsched.torch.compiled import laps
from memsched.torch.compiled.laps import Laps
from memsched.torch.compiled.options import read_options


class Net(nn.Module):
    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = (nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(48)) for _ in range(6))
        self.blocks = nn.Sequential(*blocks)
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[:3](x)
        if self.broken:
            torch._dynamo.graph_break()
        out: torch.Tensor = self.blocks[3:](x)
        return out


def train(steps: int, broken: bool = False, **options: Any) -> list[str]:
    """Where the times of the last plan come from, after each step of a loop that is compared with a plain one."""
    model = Net(broken)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.AdamW(one.parameters()) for one in (model, other))
    gc.collect()
    model.compile(backend="memsched", options={"budget": "60%", "optimizer": optimizer} | options)
    found = []
    for step in range(steps):
        x = torch.randn(32, 48)
        for one, own in ((model, optimizer), (other, plain)):
            torch.manual_seed(step)
            one(x).square().mean().backward()
            own.step()
            own.zero_grad()
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        found.append(mt.plans()[-1].times)
        assert mt.plans()[-1].peak_memory <= mt.plans()[-1].result.schedule.budget
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"bandwidth": "12GB/s"}, {"planner": "pooch", "bandwidth": "12GB/s", "time_limit": 0.5}],
    ids=["alone", "linked", "pooch"],
)
def test_a_step_is_planned_by_its_own_times_while_it_trains(options: dict[str, Any]) -> None:
    """The first step is counted, which slows it down, and is not timed."""
    found = train(6, profile_steps=2, **options)
    assert [one.endswith("this CPU, as it trains") for one in found] == [False, False, False, True, True, True]


def test_pooch_swaps_all_while_its_steps_are_timed() -> None:
    """Where not all fits, and there is a link; what is kept on disk is no plan of `pooch`."""
    model, x = Net(), torch.randn(32, 48)
    options = {"planner": "pooch", "bandwidth": "12GB/s", "time_limit": 0.5, "profile_steps": 2}
    for budget, linked, first in (("60%", True, "swap_all"), ("60%", False, "pooch"), ("100%", True, "pooch")):
        given = {**options, "budget": budget} | ({} if linked else {"bandwidth": 0})
        torch._dynamo.reset()
        run, found = torch.compile(model, backend="memsched", options=given), []
        for _ in range(5):
            run(x).square().mean().backward()
            model.zero_grad()
            found.append(mt.plans()[-1].result.planner)
        assert (found[0], found[-1]) == (first, "pooch")
    torch._dynamo.reset()
    torch.compile(model, backend="memsched", options={**options, "budget": "60%", "profile_steps": 0})(x).sum()
    assert mt.plans()[-1].result.planner == "pooch"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_step_of_several_graphs_is_one_plan_again() -> None:
    found = train(12, broken=True, profile_steps=2)
    assert found[-1].endswith("this CPU, as it trains")
    assert mt.plans()[-1].visits == 2


def test_times_that_drift_are_planned_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation takes twice the time from some step on; what varies less is left as it is."""
    factor, marks = [1.0], [0.0]

    def mark(device: torch.device) -> float:
        marks[0] += 1e-3 * factor[0]
        return marks[0]

    monkeypatch.setattr(Laps, "_mark", staticmethod(mark))
    monkeypatch.setattr(laps, "_PAUSE", 1)
    model, x = Net(), torch.randn(32, 48)
    model.compile(backend="memsched", options={"budget": "100%", "profile_steps": 2})
    known = set(map(id, mt.plans()))
    makespans = []
    for step in range(20):
        factor[0] = 1.0 if step < 4 else 1.1 if step < 9 else 2.0
        model(x).sum().backward()
        makespans.append([one for one in mt.plans() if id(one) not in known][-1].result.makespan)
    assert makespans[4] == makespans[9] != makespans[0]
    assert makespans[19] == pytest.approx(2 * makespans[4])


def test_each_model_is_timed_though_all_share_a_budget() -> None:
    """Models with the same options share one group; the second was not timed until the pause of the first was over."""
    first, second = train(4, profile_steps=1), train(4, profile_steps=1)
    assert first == second


def test_between_two_looks_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    plain = Laps.lap
    monkeypatch.setattr(Laps, "lap", lambda self, name: (looked.append(name), plain(self, name)))
    model, x = Net(), torch.randn(32, 48)
    model.compile(backend="memsched", options={"budget": "60%", "profile_steps": 1})
    seen = []
    for _ in range(56):
        looked.clear()
        model(x).sum().backward()
        model.zero_grad()  # gradients from before would be another step
        seen.append(bool(looked))
    assert seen == [True, True, *[False] * 50, True, *[False] * 3]


def test_only_steps_that_count_are_timed() -> None:
    device = torch.device("cpu")
    own = Laps(device)
    for counts in (False, True, True):
        own.lap("")
        own.lap("a")
        own.end(counts=counts)
    assert len(own._kept["a"]) == 2
    assert set(own.medians()) == {"a"}
    assert not own._kept


def test_a_gpu_is_asked_for_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: Any) -> None:
            assert stream == "current"
            now[0] += 5.0
            self.at = now[0]

        def elapsed_time(self, other: Event) -> float:
            assert waited
            return other.at - self.at

    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    own = Laps(torch.device("cuda"))
    own.lap("")
    own.lap("a")
    own.lap("b")
    own.end(counts=True)
    assert own.medians() == {"a": 0.005, "b": 0.005}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"profile_steps": -1}, "profile_steps is -1; it must be a whole number from 0"),
        ({"profile_steps": 2, "mode": "inductor"}, "steps are timed in mode"),
        ({"profile_steps": 2, "device": "v100"}, "on the device that is here"),
    ],
)
def test_what_is_not_timed_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        read_options({"budget": "50%"} | options)
