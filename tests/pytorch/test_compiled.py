"""Training steps under torch.compile(backend="memsched"): the bits of plain PyTorch, within the budget."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memsched.torch.compiled import copies
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.plan import _Problem
from memsched.torch.compiled.unit import counted
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.lanes import EmulatedLanes, Lanes, trial_lanes
from memsched.torch.meter import Meter
from memsched.torch.trial import first_difference, trial_step


class Block(nn.Module):
    """A transformer's block, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.drop(self.out(mixed))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Embedding, blocks, batch normalisation and a loss inside."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 50)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embedding(ids)).flatten(0, 1)
        return nn.functional.cross_entropy(self.head(self.norm(x)), labels.flatten())


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1, groups=4),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 10),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Sequence[Any]]]] = {
    "transformer": (Transformer, lambda: (torch.randint(0, 50, (4, 16)), torch.randint(0, 50, (4, 16)))),
    "convolutions": (conv_net, lambda: (torch.randn(8, 3, 16, 16),)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "options",
    [
        {"budget": "100%"},
        {"budget": "40%"},
        {"budget": "15%", "bandwidth": "1GB/s", "device": "v100"},
        {"budget": "60%", "device": "a100:pcie4"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_a_planned_step_has_the_bits_of_a_plain_one(case: str, options: dict[str, Any]) -> None:
    build, inputs = CASES[case]
    torch.manual_seed(0)
    plain, args = build(), inputs()
    planned = copy.deepcopy(plain)
    torch.manual_seed(1)
    expected = trial_step(plain, plain, args, {}, torch.device("cpu"))
    compiled = torch.compile(planned, backend="memsched", options=options)
    with counted(torch.device("cpu")) as meter:
        torch.manual_seed(1)
        found = trial_step(planned, compiled, args, {}, torch.device("cpu"))
    assert first_difference(expected, found) is None
    plan = plans()[-1]
    assert plan.process_bytes(meter.peak) <= plan.result.schedule.budget
    small = plan.resident.random + plan.resident.updates  # reserved, whether they are needed or not
    assert plan.process_bytes(meter.peak) >= 0.99 * plan.result.peak_memory - small


@pytest.mark.parametrize("lanes", trial_lanes(torch.device("cpu")).values(), ids=trial_lanes(torch.device("cpu")))
@pytest.mark.parametrize("case", CASES)
def test_copies_may_come_at_any_legal_moment(case: str, lanes: Lanes) -> None:
    """At the latest and at the earliest, with NaN in memory that holds nothing yet or no longer."""
    build, inputs = CASES[case]
    torch.manual_seed(0)
    plain, args = build(), inputs()
    planned = copy.deepcopy(plain)
    compiled = torch.compile(planned, backend="memsched", options={"budget": "5%", "bandwidth": "100MB/s"})
    cpu = torch.device("cpu")
    before = copies.traffic_on(cpu).lanes
    traffic = copies.use(cpu, lanes)
    try:
        for step in range(3):
            torch.manual_seed(step)
            expected = trial_step(plain, plain, args, {}, cpu)
            with counted(cpu) as meter:
                torch.manual_seed(step)
                found = trial_step(planned, compiled, args, {}, cpu)
            assert first_difference(expected, found) is None
            plan = plans()[-1]
            assert plan.result.timeline.bytes_out > 0
            assert plan.process_bytes(meter.peak) <= plan.result.schedule.budget
        assert 0 < traffic.spare_bytes <= plan.result.timeline.bytes_out  # used in every step again
    finally:
        copies.use(cpu, before)


def test_plans_of_many_sizes_share_their_host_memory() -> None:
    """Each size left its own behind: eighty times what a plan offloads, and far above `host_memory`."""
    cpu = torch.device("cpu")
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    run = torch.compile(model, backend="memsched", options={"budget": "30%", "bandwidth": "1GB/s"})
    lanes, known = copies.traffic_on(cpu).lanes, plans()
    traffic = copies.use(cpu, EmulatedLanes())
    traffic.most = 0
    try:
        for rows in range(2000, 600, -100):
            run(torch.randn(rows, 64)).sum().backward()
        made = [plan.result.timeline.bytes_out for plan in plans() if all(plan is not one for one in known)]
        assert len(set(made)) > 3
        assert 0 < traffic.spare_bytes <= max(made)
    finally:
        copies.use(cpu, lanes)


class Broken(Transformer):
    """The same in several graphs: Dynamo breaks after every block."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return nn.functional.cross_entropy(self.head(self.norm(x.flatten(0, 1))), labels.flatten())


def compiled_by_block(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend="memsched", options=options)  # type: ignore[union-attr]
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own
@pytest.mark.parametrize("budget", ["60%", "80%"])
@pytest.mark.parametrize(
    "compiled",
    [lambda model, options: torch.compile(model, backend="memsched", options=options), compiled_by_block],
    ids=["graph breaks", "by block"],
)
def test_one_plan_spans_all_graphs_of_a_step(
    budget: str, compiled: Callable[[nn.Module, dict[str, Any]], nn.Module]
) -> None:
    torch.manual_seed(0)
    plain = Broken(64, 4)
    args = CASES["transformer"][1]()
    planned = copy.deepcopy(plain)
    call = compiled(planned, {"budget": budget, "reserve": 1})  # a program of its own
    for step in range(3):
        torch.manual_seed(step)
        expected = trial_step(plain, plain, args, {}, torch.device("cpu"))
        with counted(torch.device("cpu")) as meter:
            torch.manual_seed(step)
            found = trial_step(planned, call, args, {}, torch.device("cpu"))
        assert first_difference(expected, found) is None
        if step > 0:  # the first records which graphs there are
            plan = plans()[-1]
            assert sum(op["kind"] == "leave" for op in plan.result.problem.ops) >= 4
            assert plan.process_bytes(meter.peak) <= plan.result.schedule.budget
            assert plan.process_bytes(meter.peak) >= 0.9 * plan.result.peak_memory


def planned_once(options: dict[str, Any]) -> CompiledPlan:
    """The plan of a new capture of the same model."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = conv_net()
    torch.compile(model, backend="memsched", options=options)(torch.randn(8, 3, 16, 16)).sum().backward()
    return plans()[-1]


def test_a_plan_is_found_again_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", str(tmp_path / "plans"))
    options = {"budget": "70%", "device": "v100", "reserve": 1}
    made = planned_once(options)
    (file,) = (tmp_path / "plans").iterdir()

    def none(*args: Any, **rest: Any) -> None:
        raise AssertionError("it is planned anew")

    with monkeypatch.context() as patch:
        patch.setattr(_Problem, "solved", none)
        again = planned_once(options)
    assert again.result.schedule.steps == made.result.schedule.steps
    assert again.result.makespan == made.result.makespan
    assert again.result.lower_bound == made.result.lower_bound
    planned_once({**options, "budget": "71%"})
    assert len(list((tmp_path / "plans").iterdir())) == 2
    for damaged in ("", "{}", file.read_text().replace('"run"', '"ran"'), file.read_text().replace("convolution", "x")):
        file.write_text(damaged)
        assert planned_once(options).result.schedule.steps == made.result.schedule.steps
        assert file.read_text() != damaged, "what is damaged is replaced"


def test_times_of_a_plan_that_was_kept_are_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", str(tmp_path / "plans"))
    monkeypatch.setattr("memsched.torch.compiled.plan.disturbed", lambda source: False)
    first, second = (planned_once({"budget": "70%"}).times for _ in range(2))
    assert first.startswith("measured on this CPU")
    assert second == f"{first}, for an earlier plan that was kept"


def test_no_plan_is_kept_where_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = {"budget": "70%", "device": "v100", "reserve": 2}
    closed = tmp_path / "closed"

    def is_file(path: Path) -> bool:  # a user who is root may look into each folder
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return os.path.isfile(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    for place in ("", "/proc/nowhere", str(closed), "/tmp/" + "x" * 5000, "/dev/null/\udcff"):
        monkeypatch.setenv("MEMSCHED_CACHE", place)
        assert planned_once(options).result.peak_memory > 0

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("MEMSCHED_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert planned_once(options).result.peak_memory > 0


@pytest.mark.parametrize(
    "link",
    [pytest.param({}, id="alone"), pytest.param({"bandwidth": "100MB/s"}, id="with a link", marks=pytest.mark.slow)],
)
def test_every_size_keeps_the_budget(link: dict[str, Any]) -> None:
    """The first sizes have plans of their own; later ones follow the plan of larger sizes."""
    torch.manual_seed(0)
    plain = Transformer(32, 2)
    planned = copy.deepcopy(plain)
    sizes = [(6, 24), *((2 + k % 4, 10 + k) for k in range(12)), (6, 25)]
    largest = planned_bytes(Transformer(32, 2), (6, 25))
    budget = int(0.7 * largest)
    compiled = torch.compile(planned, backend="memsched", options={"budget": budget, **link}, dynamic=True)
    counts, known = [], plans()
    for step, shape in enumerate(sizes):
        args = torch.randint(0, 50, shape), torch.randint(0, 50, shape)
        torch.manual_seed(step)
        expected = trial_step(plain, plain, args, {}, torch.device("cpu"))
        with counted(torch.device("cpu")) as meter:
            torch.manual_seed(step)
            found = trial_step(planned, compiled, args, {}, torch.device("cpu"))
        assert first_difference(expected, found) is None
        assert plans()[-1].process_bytes(meter.peak) <= budget
        counts.append(sum(all(one is not other for other in known) for one in plans()))
    assert counts[9:13] == counts[9:10] * 4, "no more plans"
    assert counts[13] == counts[12] + 1, "but for a larger size"


def planned_bytes(model: nn.Module, shape: tuple[int, int]) -> int:
    """The peak of a step that keeps everything."""
    compiled = torch.compile(model, backend="memsched", options={"budget": "100%", "reserve": 3})
    compiled(torch.randint(0, 50, shape), torch.randint(0, 50, shape)).backward()
    torch._dynamo.reset()
    return plans()[-1].result.peak_memory


def test_nothing_is_held_once_a_model_is_gone() -> None:
    model = conv_net()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="memsched", options={"budget": "80%", "optimizer": optimizer})
    compiled(torch.randn(8, 3, 16, 16)).sum().backward()
    optimizer.step()
    parts = [weakref.ref(one) for one in (*model.parameters(), optimizer)]
    del model, optimizer, compiled
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in parts if one() is not None] == []


def momentum(optimizer: torch.optim.Optimizer, _: nn.Parameter) -> None:
    optimizer.param_groups[0]["momentum"] = 0.9


def other_group(optimizer: torch.optim.Optimizer, more: nn.Parameter) -> None:
    optimizer.param_groups[1]["params"] = [nn.Parameter(torch.zeros(2 * more.numel()))]


def unfreeze(_: torch.optim.Optimizer, more: nn.Parameter) -> None:
    more.requires_grad_(True)


@pytest.mark.parametrize("change", [momentum, other_group, unfreeze])
def test_other_state_of_the_optimiser_is_planned_for(change: Callable[..., None]) -> None:
    model = conv_net()
    more = nn.Parameter(torch.zeros(100), requires_grad=change is not unfreeze)
    groups = [{"params": list(model.parameters())}, {"params": [more]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.0 if change is momentum else 0.9)
    compiled = torch.compile(model, backend="memsched", options={"budget": "100%", "optimizer": optimizer})
    counts = []
    for step in range(4):
        if step == 2:
            change(optimizer, more)
        compiled(torch.randn(8, 3, 16, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(plans()[-1].resident.optimizer)
    parameters = sum(one.nbytes for one in model.parameters())
    before, after = {
        momentum: (0, parameters),
        other_group: (parameters + 400, parameters + 800),
        unfreeze: (parameters, parameters + 400),
    }[change]
    assert counts == [before] * 2 + [after] * 2


def test_a_group_that_is_added_to_the_optimiser_is_planned_for() -> None:
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    compiled = torch.compile(model, backend="memsched", options={"budget": "100%", "optimizer": optimizer})
    counts = []
    for _ in range(2):
        for _ in range(2):
            compiled(torch.randn(8, 3, 16, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(plans()[-1].resident.optimizer)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(100))]})
    assert counts == [counts[0]] * 2 + [counts[0] + 400] * 2


def test_a_part_without_a_backward_is_told() -> None:
    backbone, head = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)
    options = {"budget": "100%", "reserve": 7}
    frozen, trained = (torch.compile(one, backend="memsched", options=options) for one in (backbone, head))
    with pytest.warns(UnplannedWarning, match="nothing in it needs a gradient"):
        hidden = frozen(torch.ones(2, 8))
    trained(hidden).sum().backward()
    torch._dynamo.reset()
    with torch.no_grad():  # no training
        frozen(torch.ones(2, 8))


def test_gradients_that_autograd_lays_out_anew_are_counted() -> None:
    """The gradient of a convolution of channels-last images lies otherwise than its weight: autograd copies it."""
    torch.manual_seed(0)
    model = nn.Conv2d(64, 256, 2, 2).train()
    x = torch.randn(2, 64, 4, 4).to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="memsched", options={"budget": "100%"})
    loss = compiled(x).square().sum()
    with Meter() as meter:
        loss.backward()
    weight = model.weight.untyped_storage().nbytes()
    assert meter.peak >= 2 * weight
    plan = plans()[-1]
    assert plan.result.peak_memory - plan.resident.total >= 2 * weight
