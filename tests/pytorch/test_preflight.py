"""The look before training, against real steps and plans of their own."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import memsched as ms
import memsched.torch
from memsched.cli.app import command_line
from memsched.show.words import time_of
from memsched.study.fit import OFFLOADED, UPDATED, Fit, Steady, Way
from memsched.torch import preflight, zoo
from memsched.torch.batches import OtherSizeError, told_of
from memsched.torch.meter import Meter
from memsched.torch.optimizer_state import optimizer_named
from memsched.torch.preflight import fit, fit_spec
from memsched.torch.steady import steady

pytestmark = pytest.mark.usefixtures("few_moves")

Loss = Callable[[Any], torch.Tensor]

MODELS = [  # spec, input, optimiser; those without convolutions come first
    ("transformers:gpt2?n_layer=2&vocab_size=500&n_embd=64&n_head=4", "4x64:int", "adamw"),
    ("transformers:llama?num_hidden_layers=2&hidden_size=64&intermediate_size=96&vocab_size=300", "2x48:int", "adam"),
    ("transformers:bert?num_hidden_layers=2&hidden_size=48&intermediate_size=96&vocab_size=300", "3x32:int", "sgd"),
    ("transformers:t5?num_layers=2&d_model=64&d_ff=96&vocab_size=300", "2x24:int", "adagrad"),
    (
        "transformers:mixtral?num_hidden_layers=1&hidden_size=64&intermediate_size=96&vocab_size=300",
        "2x16:int",
        "adamw",
    ),
    ("timm:mixer_s32_224", "2x3x224x224", "rmsprop"),
    ("torchvision:resnet18", "2x3x64x64", "sgd?momentum=0.9"),
    ("torchvision:vit_b_16", "2x3x224x224", "adamw"),
    ("timm:convnext_atto", "2x3x64x64", "adam?amsgrad=true"),
    ("torchvision:densenet121", "2x3x64x64", "sgd"),
    ("torchvision:mobilenet_v3_small", "2x3x64x64", "nadam"),
    ("torchvision:vgg11", "1x3x64x64", "sgd?momentum=0.9"),
    ("torchvision:googlenet?aux_logits=false&init_weights=false", "2x3x96x96", "adamw"),
    ("torchvision:shufflenet_v2_x0_5", "2x3x64x64", "radam"),
    ("torchvision:squeezenet1_1", "2x3x64x64", "adamax"),
    ("torchvision:efficientnet_b0", "2x3x64x64", "adamw"),
    ("torchvision:regnet_y_400mf", "2x3x64x64", "adam"),
    ("torchvision:swin_t", "1x3x64x64", "adamw"),
    ("timm:efficientformer_l1", "2x3x224x224", "adamw"),
    ("timm:resmlp_12_224", "1x3x224x224", "adadelta"),
]


def first(out: Any) -> torch.Tensor:
    """A number from whatever a model returns."""
    one = next(
        leaf for leaf in tree_leaves(getattr(out, "logits", out)) if torch.is_tensor(leaf) and leaf.requires_grad
    )
    return one.float().square().mean()


def step(model: nn.Module, args: Any, optimizer: torch.optim.Optimizer, loss: Loss, parts: int = 1) -> None:
    for _ in range(parts):
        out = model(*args)
        loss(out).backward()
        del out  # as at the end of a function
    optimizer.step()
    optimizer.zero_grad()


def held(model: nn.Module, args: Any, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    there = [*model.parameters(), *model.buffers(), *args]
    there += [one for state in optimizer.state.values() for one in state.values()]
    return [one for one in there if torch.is_tensor(one)]


def counted(model: nn.Module, args: Any, optimizer: torch.optim.Optimizer, parts: int = 1) -> int:
    """The peak of the second of two real steps, tensor by tensor."""
    step(model, args, optimizer, first, parts)
    with Meter() as meter:
        meter.count(held(model, args, optimizer))
        step(model, args, optimizer, first, parts)
    return meter.peak


def allocated(model: nn.Module, args: Any, optimizer: torch.optim.Optimizer, parts: int = 1) -> int:
    """The same by what PyTorch's allocator hands out, scratch memory of kernels included."""
    step(model, args, optimizer, first, parts)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        step(model, args, optimizer, first, parts)
    now = most = 0
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    for one in sorted(events, key=lambda one: one.start_ns()):
        now += one.nbytes()
        most = max(most, now)
    storages = {one.untyped_storage()._cdata: one.untyped_storage() for one in held(model, args, optimizer)}
    return most + sum(one.nbytes() for one in storages.values())


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "shape", "optimizer"), MODELS, ids=[spec.split("?")[0] for spec, _, _ in MODELS])
def test_the_peak_is_that_of_a_real_step(spec: str, shape: str, optimizer: str) -> None:
    built = zoo.build(spec, shape)
    stepping = optimizer_named(optimizer, built.model.parameters())
    found = steady(built.model, built.args, {}, stepping, first)
    assert found.peak_memory == pytest.approx(counted(built.model, built.args, stepping), rel=0.02)
    if spec in [one[0] for one in MODELS[:5]]:  # kernels of convolutions have scratch memory, which no tensor is
        assert found.peak_memory == pytest.approx(allocated(built.model, built.args, stepping), rel=0.02)


class Experts(nn.Module):
    """A mixture of experts with a fixed routing, by products in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = (nn.Parameter(torch.randn(4, *size) / 8) for size in ((32, 128), (128, 32)))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.grouped_mm(x, self.into, offs=ends)
        return x + nn.functional.grouped_mm(torch.tanh(hidden), self.out, offs=ends)


def test_experts_in_float32_are_counted() -> None:
    """PyTorch knows such products without data in bfloat16 alone: to count a step of Mixtral ended in an error."""
    model, args = Experts(), (torch.randn(256, 32), torch.tensor([10, 100, 180, 256], dtype=torch.int32))
    stepping = torch.optim.SGD(model.parameters())
    assert steady(model, args, {}, stepping, first).peak_memory == counted(model, args, stepping)


def layers(width: int = 32, depth: int = 6) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Tanh()) for _ in range(depth)))


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_is_what_the_allocator_hands_out(parts: int, optimizer: str) -> None:
    model, args = layers(), (torch.randn(64, 32),)
    stepping = optimizer_named(optimizer, model.parameters())
    found = steady(model, args, {}, stepping, first, micro_batches=parts)
    assert found.peak_memory == pytest.approx(allocated(model, args, stepping, parts), abs=200)
    assert found.gradients == found.parameters == 6 * (32 * 32 + 32) * 4
    assert found.optimizer == pytest.approx(2 * found.parameters if optimizer == "adamw" else 0, abs=200)


def test_nothing_is_touched() -> None:
    model, args = layers(), (torch.randn(64, 32),)
    stepping = torch.optim.AdamW(model.parameters())
    step(model, args, stepping, first)
    first(model(*args)).backward()
    before = [one.clone() for one in (*held(model, args, stepping), *(p.grad for p in model.parameters()))]  # type: ignore[union-attr]  # there is one
    state = torch.get_rng_state()
    fit(model, args, memory="1MB", device="v100", optimizer=stepping)
    after = [*held(model, args, stepping), *(p.grad for p in model.parameters())]
    assert all(b is not None and torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("memory", [*(pytest.param(one, marks=pytest.mark.slow) for one in (60_000, 400_000)), 100_000])
def test_the_largest_batches_fit_and_no_larger_ones_do(memory: int) -> None:
    model, shape = layers(), (8, 32)
    stepping = torch.optim.SGD(model.parameters())
    found = fit(model, (torch.randn(shape),), memory=memory, device="v100:pcie3", optimizer=stepping, time_limit=1)
    largest = {one.name: one.largest_batch for one in found.ways}
    plain = largest["plain"]
    assert plain is not None
    needs = [
        steady(model, (torch.randn(size, 32),), {}, stepping, None).peak_memory for size in (plain or 1, plain + 1)
    ]
    assert plain == 0 or needs[0] <= memory
    assert needs[1] > memory
    for name, bandwidth in (("recompute", 0), ("recompute and offload", None)):
        batch = largest[name]
        assert batch is not None
        assert batch >= plain
        for size, fits in ((batch, True), (batch + 1, False)):
            if size:
                assert fits == _has_a_plan(model, size, memory, stepping, bandwidth)


class Sequences(nn.Module):
    """Attention over all positions, of which there are 300: what it holds is no multiple of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, 16), nn.Embedding(300, 16)
        self.query, self.out = nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        q, k, v = self.query(x).chunk(3, dim=-1)
        return self.out(x + torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v).square().mean()


@pytest.mark.parametrize("memory", [250_000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_the_longest_sequences_fit_and_no_longer_ones_do(memory: int) -> None:
    model = Sequences()

    def ids(length: int) -> Any:
        return torch.randint(0, 50, (4, length))

    asked: dict[str, Any] = {"memory": memory, "device": "v100:pcie3"}
    found = fit(model, (ids(40),), largest="length", time_limit=1, **asked)
    assert found.searched == "length"
    plain, *planned = (one.largest_length for one in found.ways if "batches" not in one.name)
    assert plain is not None
    lengths = (plain, plain + 1, (plain // 8 + 1) * 8)
    needs = [fit(model, (ids(length),), largest=False, **asked).peak_memory for length in lengths]
    assert needs[0] <= memory < min(needs[1:])
    for length, bandwidth in zip(planned, (0, None), strict=False):
        assert length is not None
        assert length >= plain
        for size in (length, length + 1, (length // 8 + 1) * 8):
            try:
                memsched.torch.plan(model, (ids(size),), budget=memory, device="v100:pcie3", bandwidth=bandwidth)
            except ms.InfeasibleError:
                assert size > length
            else:
                assert size == length
    assert found.to_pandas()["largest_length"][0] == plain
    assert found.to_pandas()["largest_batch"].isna().all()


def test_sequences_end_where_the_positions_do() -> None:
    found = fit(Sequences(), (torch.randint(0, 50, (2, 40)),), largest="length", memory="1GB", device="v100:pcie3")
    assert found.fits
    assert found.ways[0].largest_length == 300


class Learned(Sequences):
    """Tensors without data do not tell that there are no more positions."""

    def forward(self, ids: Any) -> Any:
        return self.out(self.words(ids) + self.positions(torch.arange(ids.shape[1]))).square().mean()


def test_sequences_end_where_learned_positions_do() -> None:
    given = (torch.randint(0, 50, (2, 40)),)
    found = fit(Learned(), given, largest="length", memory="1GB", device="v100:pcie3")
    assert found.ways[0].largest_length == 300
    small = fit(Learned(), given, largest="length", memory=60_000, device="v100:pcie3")
    assert not small.fits
    plain, *planned = (one.largest_length for one in small.ways if "batches" not in one.name)
    assert plain is not None
    assert all(one is not None and plain <= one < 300 for one in planned)


def test_a_size_at_which_nothing_can_be_captured_is_no_size_that_does_not_fit() -> None:
    class Odd(Sequences):
        def forward(self, ids: Any) -> Any:
            if ids.shape[1] == 8:
                torch._dynamo.graph_break()
                return self.out(torch.compiler.disable(torch.tanh)(self.words(ids))).square().mean()
            return super().forward(ids)

    found = fit(Odd(), (torch.randint(0, 50, (4, 9)),), largest="length", memory=100_000, device="v100:pcie3")
    assert any("recompute" in one and "not found: at another length, a part" in one for one in found.assumed)


def test_no_common_length_is_told() -> None:
    with pytest.raises(ms.InvalidInputError, match=r"largest is 'length' and the inputs have the shapes \(64,\)"):
        fit(nn.Bilinear(4, 4, 2), (torch.randn(64),), memory="1GB", device="v100", largest="length")
    with pytest.raises(ms.InvalidInputError, match="largest is 'widest'"):
        fit(Sequences(), (torch.zeros(2, 4, dtype=torch.long),), memory="1GB", device="v100", largest="widest")


def _has_a_plan(model: nn.Module, batch: int, memory: int, optimizer: Any, bandwidth: float | None) -> bool:
    try:
        memsched.torch.plan(
            model,
            (torch.randn(batch, 32),),
            budget=memory,
            device="v100:pcie3",
            optimizer=optimizer,
            bandwidth=bandwidth,
        )
    except ms.InfeasibleError:
        return False
    return True


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("name", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_the_step_that_updates_is_that_of_plan_step(name: str) -> None:
    """It needs neither all gradients nor all states at once; its largest batch is the largest that is planned."""
    model, x = layers(64, 4), torch.randn(32, 64)
    make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    stepping = make(model.parameters())

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    given: dict[str, Any] = {"device": "v100:pcie3", "optimizer": stepping, "loss": loss}
    plain = fit(model, (x,), memory="1GB", largest=False, **given).peak_memory
    memory = plain * (6 if name == "adamw" else 7) // 10  # SGD has no states that could travel
    found = fit(model, (x,), memory=memory, **given)
    (way,) = (one for one in found.ways if one.name == UPDATED)
    assert way.fits
    assert way.peak_memory <= memory < min(one.peak_memory for one in found.ways if one.name == "plain")
    asked: dict[str, Any] = {"budget": memory, "device": "v100:pcie3", "optimizer": stepping, "update": True}
    planned = memsched.torch.plan_step(model, (x,), loss, **asked)
    assert way.makespan == pytest.approx(planned.result.makespan, rel=0.05)
    assert planned.verify(x).peak_memory <= memory
    batch = way.largest_batch
    assert batch is not None
    more = {one.name: one.largest_batch or 0 for one in found.ways if one is not way}
    assert more.pop(OFFLOADED, batch) >= batch > max(more.values())  # there, parameters may be on the host, too
    assert memsched.torch.plan_step(model, (torch.randn(batch, 64),), loss, **asked).peak_memory <= memory
    with pytest.raises(ms.InfeasibleError):
        memsched.torch.plan_step(model, (torch.randn(batch + 1, 64),), loss, **asked)
    if found.next_step.startswith(UPDATED):
        assert f"plan_step(model, args, loss, budget={memory}, optimizer=optimizer, update=True)" in found.next_step
    assert UPDATED in {one.name for one in fit(model, (x,), memory=2 * plain, **given).ways}
    for change in ({"optimizer": None}, {"optimizer": 4096}, {"loss": None}):
        ways = fit(model, (x,), memory=memory, largest=False, **{**given, **change}).ways
        assert UPDATED not in {one.name for one in ways}


def test_ways_keep_what_they_say() -> None:
    """Each fits and is planned by `plan` alike, or the memory is too small for it."""
    model, args = layers(64, 10), (torch.randn(512, 64),)
    stepping = torch.optim.AdamW(model.parameters())
    plain = steady(model, args, {}, stepping, None).peak_memory
    found = fit(model, args, memory=plain // 2, device="v100:pcie3", optimizer=stepping, largest=False)
    assert found.peak_memory == plain
    assert not found.fits
    by_name = {one.name: one for one in found.ways}
    assert next(one.name for one in found.ways) == "plain"
    assert by_name["plain"].makespan is not None  # on a device with enough memory
    assert time_of(by_name["plain"]).endswith(" if it fit")
    assert by_name["plain"].peak_memory == plain
    for one in found.ways:
        assert one.fits == (one.peak_memory <= found.memory)
        assert one.largest_batch is None
    planned = memsched.torch.plan(model, args, budget=plain // 2, device="v100:pcie3", optimizer=stepping, bandwidth=0)
    assert by_name["recompute"].fits
    assert by_name["recompute"].makespan is not None
    assert by_name["recompute"].makespan == pytest.approx(planned.result.makespan, rel=0.05)
    assert by_name["optimizer on the host"].peak_memory < plain
    parts = next(one for one in found.ways if "micro-batches" in one.name)
    count = int(parts.name.split()[0])
    rest = steady(model, (torch.randn(512 // count, 64),), {}, stepping, None, micro_batches=count)
    assert parts.fits
    assert parts.peak_memory == rest.peak_memory + args[0].nbytes - rest.inputs


def test_the_host_may_update() -> None:
    """Where the device has no room for the states of one parameter, and what is told is a plan that runs."""
    model, args = layers(64, 6), (torch.randn(4, 64),)
    stepping = torch.optim.AdamW(model.parameters())
    asked: dict[str, Any] = {"device": "v100:pcie3", "optimizer": stepping, "loss": lambda out: out.square().mean()}
    found = fit(model, args, memory="50kB", **asked, largest=False)
    by_name = {one.name: one for one in found.ways}
    assert not by_name["parameters travel, too"].fits
    own = by_name[OFFLOADED]
    assert own.fits
    assert "updates on the host, at 100 GB/s" in own.note
    assert found.next_step.startswith(f"{OFFLOADED}: memsched.torch.plan_step(model, args, loss, ")
    assert "update=True, update_on_host=True)" in found.next_step
    asked |= {"update": True, "update_on_host": "100 GB/s", "budget": "50kB"}
    plan = memsched.torch.plan_step(model, args, asked.pop("loss"), **asked)
    assert plan.verify(*args).peak_memory <= 50_000
    assert plan.result.makespan == pytest.approx(own.makespan, rel=0.2)


def test_a_model_without_data_has_the_same_ways() -> None:
    """As the command looks at models: there no parameter was one that may travel."""
    found = []
    for mode in (contextlib.nullcontext(), FakeTensorMode()):
        with mode:
            model, args = layers(64, 6), (torch.randn(4, 64),)
        stepping = torch.optim.AdamW(model.parameters())
        given: dict[str, Any] = {"device": "v100:pcie3", "optimizer": stepping, "loss": lambda out: out.square().mean()}
        made = fit(model, args, memory="50kB", **given, largest=False)
        found.append([(one.name, one.peak_memory, one.makespan) for one in made.ways])
    assert found[0] == found[1]


class Positions(nn.Module):
    """It takes four samples at most."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.inner = nn.Parameter(torch.zeros(4, 16)), layers(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + self.places[: len(x)])


class Branches(nn.Module):
    """It runs other operations for many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        return x.tanh().exp().sin() if len(x) > 10 else x


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("make", [Positions, Branches, lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh())])
def test_other_batches_may_run_otherwise_or_not_at_all(
    make: Callable[[], nn.Module], batch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a raw error, or in one that blamed the input that was given."""
    found = fit(make(), (torch.randn(batch, 16),), memory="20kB", device="v100")
    largest, told = found.ways[0].largest_batch, [one for one in found.assumed if "the model cannot run" in one]
    assert (largest is None) == bool(told) == (make is Positions and batch == 4)
    assert all(one.largest_batch is None or one.largest_batch >= 0 for one in found.ways[:3])
    if make is Positions:
        assert all((one.largest_batch or 0) <= 4 for one in found.ways[:3])
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_ours_at_another_batch_is_not_taken_for_the_models() -> None:
    with pytest.raises(AssertionError), told_of("batch 2", given=False):
        raise AssertionError
    with (
        pytest.raises(OtherSizeError, match="at batch 2 the model cannot run: a shape"),
        told_of("batch 2", given=False),
    ):
        raise ValueError("a shape")
    with pytest.raises(ValueError, match="a shape"), told_of("batch 1", given=True):
        raise ValueError("a shape")


def test_where_the_plain_step_fits_there_is_nothing_to_do() -> None:
    """It listed ways that are of no use, with a micro-batch that needs more."""
    model, args = layers(), (torch.randn(64, 32),)
    stepping = torch.optim.AdamW(model.parameters())
    asked: dict[str, Any] = {"memory": "1MB", "device": "v100", "optimizer": stepping}
    found = fit(model, args, **asked)
    assert found.fits
    assert found.next_step == "nothing: train as it is"
    plain, *others = found.ways
    assert [one.name for one in others] == ["recompute", "recompute and offload"]
    assert all(one.note == "for larger inputs" for one in others)
    assert all((one.largest_batch or 0) > (plain.largest_batch or 0) >= 64 for one in others)
    assert [one.name for one in fit(model, args, **asked, largest=False).ways] == ["plain"]


@pytest.mark.usefixtures("few_moves")
def test_where_it_does_not_fit_the_next_step_is_told() -> None:
    model, args = layers(64, 10), (torch.randn(512, 64),)
    stepping = torch.optim.SGD(model.parameters(), momentum=0.9)
    asked: dict[str, Any] = {"device": "v100:pcie3", "optimizer": stepping, "largest": False}
    needed = fit(model, args, memory="1GB", **asked).peak_memory
    for memory, written in ((needed * 3 // 4, str(needed * 3 // 4)), ("2.1MB", '"2.1MB"')):
        found = fit(model, args, memory=memory, **asked)
        assert not found.fits
        best = min((one for one in found.ways if one.fits), key=lambda one: one.makespan or 0)
        assert found.next_step.startswith(f"{best.name}: torch.compile(")
        assert f'{{"budget": {written}, "optimizer": optimizer' in found.next_step
    alone = fit(model, args, memory=needed * 3 // 4, device="v100:pcie3", largest=False).next_step

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    lossy = fit(model, args, memory=needed * 3 // 4, device="v100:pcie3", largest=False, loss=loss)
    assert lossy.with_loss
    assert f"memsched.torch.plan(model, args, loss=loss, budget={needed * 3 // 4}).apply(model)" in lossy.next_step
    assert '"budget": ' in alone  # torch.compile sees no loss outside of the model
    assert "optimizer" not in alone
    found = fit(model, args, memory="20kB", device="v100:pcie3", optimizer=stepping)
    least = min(one.peak_memory for one in found.ways)
    assert found.next_step.startswith("give at least ")
    assert f" kB ({least:,} bytes), with '" in found.next_step


@pytest.mark.parametrize(
    ("way", "words"),
    [("4 micro-batches", "split the batch into 4 parts"), (OFFLOADED, "state on the host, by a library")],
)
def test_each_way_that_fits_may_be_the_next_step(way: str, words: str) -> None:
    part = dict.fromkeys(("parameters", "buffers", "inputs", "optimizer", "gradients"), 0)
    ways = (
        Way(name="plain", fits=False, peak_memory=9_000, makespan=0.5),
        Way(name=way, fits=True, peak_memory=4_000, makespan=1.0),
        # The host's updates take time that nobody knows: another way that fits is preferred.
        Way(name="recompute", fits=way != OFFLOADED, peak_memory=4_000, makespan=2.0),
    )
    counted = Steady(**part, peak_forward_backward=9_000, peak_update=0)
    found = Fit(name="model", memory=5_000, times="made up", steady=counted, ways=ways)
    assert words in found.next_step


def test_what_is_reserved_counts() -> None:
    model, args = layers(64, 6), (torch.randn(8, 64),)
    plain = fit(model, args, memory="250kB", device="v100", largest=False)
    found = fit(model, args, memory="250kB", device="v100", largest=False, reserve="100kB")
    assert found.peak_memory == plain.peak_memory + 100_000
    assert plain.fits
    assert not found.fits


def test_a_link_without_a_unit_is_told() -> None:
    with pytest.warns(UserWarning, match="bandwidth is 12 B/s"):
        fit(layers(512, 12), (torch.randn(4096, 512),), memory="64MB", device="v100", bandwidth=12, largest=False)


def test_a_model_without_data_is_as_before_after_each_look() -> None:
    """The first look left gradients on it, which the second counted as the caller's: 47 MB of ResNet-18."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model, args = layers(), (torch.randn(64, 32),)
    looks = [memsched.torch.plan(model, args, budget="1GiB", device="v100").resident for _ in range(2)]
    assert looks[0] == looks[1]
    assert all(one.grad is None for one in model.parameters())


def test_inputs_without_a_common_batch_have_no_largest() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * scale

    found = fit(Two(), (torch.randn(4, 8), torch.ones(8)), memory="1MB", device="v100")
    assert all(one.largest_batch is None for one in found.ways)
    assert not any("micro-batches" in one.name for one in found.ways)


def test_what_cannot_be_is_refused() -> None:
    model, args = layers(), (torch.randn(8, 32),)
    with pytest.raises(ms.InvalidInputError, match="memory is None and the model is on the CPU"):
        fit(model, args)
    with pytest.raises(ms.InvalidInputError, match="eval mode"):
        fit(layers().eval(), args, memory="1MB", device="v100")
    with pytest.raises(ms.InvalidInputError, match="one number"):
        fit(model, args, memory="1MB", device="v100", loss=lambda out: out)
    with pytest.raises(ms.InvalidInputError, match="did you mean 'adamw'"):
        optimizer_named("adamww", model.parameters())
    with pytest.raises(ms.InvalidInputError, match="optimizer is 'sgd\\?nothing=1'"):
        optimizer_named("sgd?nothing=1", model.parameters())
    with pytest.raises(ms.InvalidInputError, match="largest is 1"):
        fit(model, args, memory="1MB", device="v100", largest=1)  # type: ignore[arg-type]  # it is wrong on purpose


def test_state_that_is_there_from_the_start_counts() -> None:
    """Adagrad has some for frozen parameters, too."""
    model, args = layers(), (torch.randn(64, 32),)
    model[0].requires_grad_(False)
    stepping = torch.optim.Adagrad(model.parameters())
    assert steady(model, args, {}, stepping, first).peak_memory == counted(model, args, stepping)


def test_what_has_no_fixed_bytes_is_refused() -> None:
    sparse = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2))
    with pytest.raises(memsched.torch.CaptureError, match=r"gradient of 0\.weight is sparse"):
        fit(sparse, (torch.arange(6),), memory="1MB", device="v100")

    class Part(nn.Module):  # a recurrent layer is left out by torch.compile, and no fake tensor tells its bytes
        def __init__(self) -> None:
            super().__init__()
            self.first, self.then = nn.Linear(8, 8), nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.then(self.first(x))[0]

    with pytest.raises(memsched.torch.CaptureError, match=r"LSTM|cannot be planned"):
        fit(Part(), (torch.randn(4, 2, 8),), memory="1MB", device="v100")


def test_a_batch_at_which_the_model_cannot_run_is_no_way() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 4))
    found = fit(model, (torch.randn(8, 16),), memory="1kB", device="v100")
    assert [one.largest_batch for one in found.ways[:3]] == [0, 0, 0]
    assert found.ways[-1].name == "4 micro-batches"  # of two samples; of one there is no normalisation


def test_what_does_not_run_without_data_is_told() -> None:
    class Values(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * float(x.sum())

    class Wrong(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) @ x

    with pytest.raises(memsched.torch.CaptureError, match="looks at values of tensors"):
        steady(Values(8, 8), (torch.randn(4, 8),), {}, None, None)
    with pytest.raises(ms.InvalidInputError, match=r"Wrong cannot run on float32 4x8: .*test_preflight\.py, line"):
        fit(Wrong(8, 8), (torch.randn(4, 8),), memory="1MB", device="v100")


def test_on_a_gpu_that_is_named_its_kernels_count() -> None:
    """Attention keeps no scores there, and dropout a byte an element."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (one.unflatten(-1, (2, 16)).transpose(1, 2) for one in self.inner(x).chunk(3, -1))
            return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    args = (torch.randn(2, 256, 32),)
    here, there = (steady(Attention(), args, {}, None, None, capability=one) for one in (None, (9, 0)))
    assert (
        there.peak_forward_backward < here.peak_forward_backward - 2 * 2 * 256 * 256 * 4
    )  # the scores of one sample and head, at least


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\n\ndef make():\n    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), "
        "torch.nn.Tanh()) for _ in range(6)))\n    return net, (torch.randn(128, 64),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)  # of another test
    given = ["fit", "--model", "own:make", "--device", "v100", "-m", "600kB", "--optimizer", "adamw"]
    assert command_line([*given, "-o", "a.png"], standalone_mode=False) in (None, 0)
    said = capsys.readouterr().out
    assert "does not fit" in said
    assert "what to do" in said
    assert "recompute" in said
    assert "largest batch" in said
    assert "saved in a.png" in said
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    command_line([*given, "--no-largest", "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document == fit_spec("own:make", device="v100", memory="600kB", optimizer="adamw", largest=False).to_json()
    assert document["assumed"] == [
        "no loss was given, and none is counted; give --loss FILE.py:FUNCTION, or a model that returns it"
    ]
    assert not document["fits"]
    assert document["ways"][0]["name"] == "plain"


def test_the_command_says_what_is_wrong_before_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(64, 64), (torch.randn(8, 64),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = CliRunner()
    said = run.invoke(command_line, ["fit", "--model", "gone:gone", "--device", "v100", "-o", "a.jpg"])
    assert said.exit_code == 2
    assert "a picture ends in .png" in said.output
    said = run.invoke(command_line, ["fit", "--model", "small:make", "--device", "v100", "-m", "8"])
    assert said.exit_code == 2
    assert "write the unit" in said.output
    said = run.invoke(command_line, ["fit", "--model", "small:make", "--device", "v100", "-m", "1kB", "--no-largest"])
    assert said.exit_code == 3
    assert "Linear on 8x64" in said.output
    assert "no optimizer was given" in said.output


def test_a_loss_that_knows_its_batch_has_no_other() -> None:
    """It ended in a raw error of PyTorch's."""
    wanted = torch.randint(0, 32, (8,))
    found = fit(
        layers(),
        (torch.randn(8, 32),),
        memory="1MB",
        device="v100",
        loss=lambda out: nn.functional.cross_entropy(out, wanted),
    )
    assert found.ways[0].largest_batch is None
    assert any("the largest batch of plain" in one and "the model cannot run" in one for one in found.assumed)
    assert not any("micro-batches" in one.name for one in found.ways)


def test_it_shows_itself() -> None:
    found = fit(layers(), (torch.randn(64, 32),), memory="150kB", device="v100", largest=False)
    assert "recompute" in str(found)
    assert "<table>" in found._repr_html_()
    assert list(found.to_pandas()["way"]) == [one.name for one in found.ways]


def test_a_loss_with_targets_of_its_own_leaves_the_largest_batch_unknown() -> None:
    """It was said to be 0, and micro-batches were not listed, without a word."""
    model, x, own = nn.Linear(16, 8), torch.randn(32, 16), torch.randn(32, 8)
    more: dict[str, Any] = {"device": "v100", "optimizer": torch.optim.AdamW(model.parameters())}
    enough = fit(model, (x,), memory="1MB", largest=False, **more).peak_memory
    more["memory"] = enough * 9 // 10
    found = fit(model, (x,), **more, loss=lambda out: (out - own).square().mean())
    assert {one.largest_batch for one in found.ways} == {None}
    (said,) = [one for one in found.assumed if "largest batch of plain" in one]
    assert "the model cannot run" in said
    assert "make them of the shape of the model's result" in said
    assert any(one.startswith("micro-batches were not tried: at batch 16 the model") for one in found.assumed)
    free = fit(model, (x,), **more, loss=lambda out: out.square().mean())
    assert free.ways[0].largest_batch is not None


def test_the_update_in_the_step_says_how_much_of_it_is_the_loss() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    stepping = torch.optim.AdamW(model.parameters())
    more: dict[str, Any] = {"memory": "400kB", "device": "v100", "optimizer": stepping, "largest": False}
    found = fit(model, (torch.randn(256, 64),), **more, loss=lambda out: out.sigmoid().square().mean())
    (way,) = [one for one in found.ways if one.name == "update in the step"]
    if way.makespan is not None:
        assert " the loss; other times have neither" in way.note
    assert any("results count until the step ends" in one for one in found.assumed)


def test_parameters_travel_where_nothing_else_on_the_device_fits() -> None:
    model, x = nn.Sequential(*(nn.Linear(96, 96) for _ in range(8))), torch.randn(1, 96)
    weights = sum(one.nbytes for one in model.parameters())
    stepping = torch.optim.AdamW(model.parameters())
    more: dict[str, Any] = {
        "device": "v100",
        "optimizer": stepping,
        "largest": False,
        "time_limit": 0.5,
        "loss": lambda out: out.mean(),
    }
    found = fit(model, (x,), memory=weights, **more)
    fits = {one.name: one.fits for one in found.ways}
    assert fits.pop("parameters travel, too")
    assert fits.pop(OFFLOADED)
    assert not any(fits.values())
    assert "offload_parameters=True)" in found.next_step or "update_on_host=True)" in found.next_step
    given: dict[str, Any] = {"budget": weights, "device": "v100", "optimizer": stepping, "update": True}
    plan = memsched.torch.plan_step(model, (x,), more["loss"], **given, offload_parameters=True)
    assert plan.verify(x).peak_memory <= weights
    none = fit(model, (x,), memory=weights, bandwidth=0, **more)
    assert "parameters travel, too" not in {one.name for one in none.ways}
    less = fit(model, (x,), memory=weights // 8, **more)
    assert not any(one.fits for one in less.ways)
    assert less.next_step.startswith("give at least")


def test_a_long_search_tells_on_stderr_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    fit(model, (x,), memory="1MB", device="v100", largest=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(preflight, "_EVERY", 0.0)
    fit(model, (x,), memory="1MB", device="v100", largest=False)
    assert capsys.readouterr().err.startswith("memsched: ")


def test_searches_end_when_their_time_is_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    asked: dict[str, Any] = {"memory": 60_000, "device": "v100"}
    whole = fit(model, (torch.ones(64, 32),), **asked)
    assert all(way.largest_batch for way in whole.ways if "micro" not in way.name)
    assert fit(model, (torch.ones(64, 32),), **asked, search_limit=3600).to_json() == whole.to_json()
    short = fit(model, (torch.ones(64, 32),), **asked, search_limit=1e-9)
    assert all(way.largest_batch is None for way in short.ways)
    assert [replace(way, largest_batch=None) for way in whole.ways] == list(short.ways)
    assert any("was not found: in 1 ns; raise search_limit" in one for one in short.assumed)
    with pytest.raises(ms.InvalidInputError, match="search_limit is -1"):
        fit(model, (torch.ones(64, 32),), **asked, search_limit=-1)
