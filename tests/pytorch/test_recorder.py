"""Recorded steps: bytes against a slow meter and against torch's own allocator, and what the graphs say."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memsched as ms
from memsched.torch import weightless
from memsched.torch.recorder.assemble import Tape, assemble
from memsched.torch.recorder.record import graph, graph_all, record, record_all
from memsched.torch.recorder.tape import Recorder
from pytorch.recorder_reference import SlowMeter

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
NEEDS_TORCHVISION = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed; its models are tried here"
)


class Residual(nn.Module):
    """Operations without scratch memory; gradients meet at every block."""

    def __init__(self, blocks: int = 3, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x).relu()
        return x


class Block(nn.Module):
    """One block of a decoder such as GPT-2, with dropout, an in-place activation and tied embeddings."""

    def __init__(self, width: int = 32, vocabulary: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.act = nn.Dropout(0.1), nn.ReLU(inplace=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        x = self.drop(self.embed(ids))
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        x = x + self.drop(self.out(attended[:, 0]))
        x = x + self.drop(self.down(self.act(self.up(self.norm2(x)))))
        return self.head(x)


class Loop(nn.Module):
    """A recurrence in plain Python that writes its states into one tensor, and an LSTM on top."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cell, self.lstm = nn.Linear(2 * width, width), nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Any) -> Any:
        state = torch.zeros_like(x[:, 0])
        states = torch.empty_like(x)
        for now in range(x.shape[1]):
            state = torch.tanh(self.cell(torch.cat([x[:, now], state], dim=1)))
            states[:, now] = state
        return self.lstm(states)[0]


def torchvision_model(name: str) -> Any:
    from memsched.torch.zoo import torchvision

    return torchvision().models.get_model(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step of the tests; `doubled`: whether the graph has to hold some tensor twice."""

    name: str
    build: Callable[[], Any]
    args: Callable[[], Any] = lambda: torch.randn(2, 3, 64, 64)
    optimizer: Any = SGD
    fake: bool = False
    micro: int = 1
    doubled: bool = False
    marks: tuple[Any, ...] = ()


def ids() -> Any:
    return torch.randint(0, 50, (4, 16))


CASES = [
    Case(name="residual", build=Residual, args=lambda: torch.randn(64, 32)),
    Case(
        name="residual-foreach",
        build=Residual,
        args=lambda: torch.randn(8, 32),
        optimizer=functools.partial(ADAMW, foreach=True),
    ),
    Case(name="residual-micro", build=Residual, args=lambda: torch.randn(64, 32), micro=2),
    Case(name="block", build=Block, args=ids, optimizer=functools.partial(ADAMW, fused=True)),
    Case(name="block-foreach", build=Block, args=ids, optimizer=functools.partial(ADAMW, foreach=True)),
    Case(name="block-micro", build=Block, args=ids, micro=2, optimizer=functools.partial(ADAMW, foreach=True)),
    Case(name="loop", build=Loop, args=lambda: torch.randn(4, 5, 16), doubled=True),
]
VISION = [
    Case(name="resnet18", build=functools.partial(torchvision_model, "resnet18")),
    Case(name="resnet18-fake-micro", build=functools.partial(torchvision_model, "resnet18"), fake=True, micro=2),
    Case(
        name="densenet121-fake",
        marks=(pytest.mark.slow,),
        build=functools.partial(torchvision_model, "densenet121"),
        fake=True,
        optimizer=functools.partial(ADAMW, fused=True),
    ),
    Case(
        name="vit_b_16-fake",
        build=functools.partial(torchvision_model, "vit_b_16"),
        fake=True,
        args=lambda: torch.randn(1, 3, 224, 224),
        optimizer=functools.partial(ADAMW, foreach=True),
    ),
]
ALL = [
    *(pytest.param(case, id=case.name) for case in CASES),
    *(pytest.param(case, id=case.name, marks=[NEEDS_TORCHVISION, *case.marks]) for case in VISION),
]


@contextlib.contextmanager
def prepared(case: Case) -> Iterator[tuple[Callable[[], object], list[Any]]]:
    """A step whose optimiser has its state, no gradients, and what stays for good: all that exists before."""
    torch.manual_seed(0)
    fake = FakeTensorMode() if case.fake else None
    model = weightless.construct(case.build) if fake else case.build()
    if fake:
        weightless.make_fake(model, fake, torch.device("cpu"))
    with fake or contextlib.nullcontext():
        args = [case.args() for _ in range(case.micro)]
        optimizer = case.optimizer(model.parameters())

        def step() -> object:
            for x in args:
                loss = model(x).sum()
                loss.backward()
            optimizer.step()
            return loss

        step()
        optimizer.zero_grad()
        state = [value for values in optimizer.state.values() for value in values.values()]
        tensors = [value for value in state if isinstance(value, torch.Tensor)]
        yield step, [*model.parameters(), *model.buffers(), *args, *tensors]
        optimizer.zero_grad()


def taped(step: Callable[[], object], resident: list[Any]) -> Tape:
    """What is recorded under a dispatch mode, as a meter that is one sees it too."""
    recorder = Recorder(resident, None, {})
    with recorder:
        kept = step()
    tape = recorder.close()
    del kept
    return tape


def plain_run(problem: ms.Graph) -> ms.Timeline:
    """All ops in order, each tensor freed after its last use."""
    last: dict[str, int] = {}
    for position, op in enumerate(problem.ops):
        last.update(dict.fromkeys(op["reads"], position))
    steps: list[dict[str, Any]] = []
    for position, op in enumerate(problem.ops):
        steps.append({"run": op["name"]})
        steps += [{"free": tensor} for tensor in op["reads"] if last[tensor] == position]
    budget = ms.peak_memory(problem)
    schedule = ms.Schedule(steps, budget=budget, graph=problem.name, rounds=[(problem.batch, 1)])
    device = ms.Device(budget, 1e9)
    timeline = ms.simulate(problem, schedule, device)
    assert ms.validate(problem, schedule, device).peak_memory == timeline.peak_memory
    return timeline


@pytest.mark.parametrize("case", ALL)
def test_bytes_are_those_of_a_slow_meter(case: Case) -> None:
    with prepared(case) as (step, resident):
        tape = taped(step, resident)
    with prepared(case) as (step, resident):
        meter = SlowMeter(resident).measure(step)
    made, doubled = assemble(tape, case.name, 2)
    assert tape.eager_peak() == max(meter.eager)
    assert bool(doubled) == case.doubled
    if doubled:
        assert ms.peak_memory(made) >= max(meter.needed)
    else:
        assert ms.peak_memory(made) == max(meter.needed)
    assert plain_run(made).peak_memory == ms.peak_memory(made)


@pytest.mark.parametrize("case", ALL)
def test_the_graph_needs_no_more_than_the_step_did(case: Case) -> None:
    with prepared(case) as (step, resident):
        recording = record_all(step, resident=resident)
    assert ms.peak_memory(recording.graph) <= recording.eager_peak
    assert plain_run(recording.graph).peak_memory == ms.peak_memory(recording.graph)


def allocator_peak(step: Callable[[], object]) -> int:
    """The peak of what torch's CPU allocator hands out, when nothing is recorded."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


# With few rows the peak is in the optimiser, where foreach loops wrap numbers into tensors that no dispatcher sees.
@pytest.mark.parametrize(
    ("optimizer", "rows"),
    [
        (SGD, 4),
        (SGD, 256),
        (functools.partial(ADAMW, foreach=True), 256),
        (functools.partial(ADAMW, fused=True), 4),
        (functools.partial(ADAMW, fused=True), 256),
    ],
)
@pytest.mark.parametrize("micro", [1, 2])
def test_the_allocator_agrees(optimizer: Any, rows: int, micro: int) -> None:
    """Without a recorder autograd sums gradients in place: `record` knows, and is exact to the byte."""
    case = Case(name="", build=Residual, args=lambda: torch.randn(rows, 32), optimizer=optimizer, micro=micro)
    with prepared(case) as (step, resident):
        recording = record_all(step, resident=resident)
    with prepared(case) as (step, _):
        assert allocator_peak(step) == recording.eager_peak - recording.graph.resident
    assert not recording.doubled


def test_a_step_that_holds_nothing_longer_than_needed_is_matched_exactly() -> None:
    """backward() keeps its own first gradient until it returns; here it is a result."""
    weights = [torch.randn(32, 32, requires_grad=True) for _ in range(4)]
    x = torch.randn(64, 32)

    def step() -> object:
        y = x
        for weight in weights:
            y = (y @ weight).relu_()
        root = torch.ones(y.shape)
        y.backward(root)
        return y, root

    recording = record_all(step, resident=[*weights, x])
    for weight in weights:
        weight.grad = None
    assert recording.eager_peak - recording.graph.resident == allocator_peak(step)
    assert ms.peak_memory(recording.graph) == recording.eager_peak
    assert [op["name"] for op in recording.graph.ops if op["phase"] == "fwd"][:2] == ["mm+relu_", "mm+relu_#2"]


ACTION = st.tuples(
    st.sampled_from(["add", "add_", "relu_", "half_", "clone", "drop", "new"]), st.integers(0, 9), st.integers(0, 9)
)


@given(st.lists(ACTION, max_size=25))
def test_random_programs_in_place(actions: list[tuple[str, int, int]]) -> None:
    def step() -> object:
        live = [*inputs, torch.zeros(8)]
        for verb, i, j in actions:
            a, b = live[i % len(live)], live[j % len(live)]
            if verb == "new":
                live.append(torch.ones(4 if j % 2 else 8))
            elif verb == "drop" and len(live) > 1:
                live.pop(i % len(live))
            elif verb == "relu_":
                a.relu_()
            elif verb == "clone":
                live.append(a.clone())
            elif verb == "half_":
                a[: a.numel() // 2].mul_(2.0)
            elif a.shape == b.shape:
                live.append(a + b) if verb == "add" else a.add_(b)
            del a, b
        return live

    inputs = [torch.ones(4), torch.ones(8), torch.ones(8)]
    made, doubled = assemble(taped(step, []), "program", 1)
    meter = SlowMeter([]).measure(step)
    peak = ms.peak_memory(made)
    assert peak == max(meter.needed) if not doubled else max(meter.needed) <= peak <= max(meter.needed) + 32
    assert plain_run(made).peak_memory == peak


def names(made: ms.Graph) -> list[str]:
    return [op["name"] for op in made.ops]


def test_names_phases_layers_and_kinds() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
    made = graph(model, (torch.randn(2, 3, 8, 8),), optimizer=SGD, name="small")
    ops = {op["name"]: op for op in made.ops}
    assert (made.name, made.batch) == ("small", 2)
    forward = [op["name"] for op in made.ops if op["phase"] == "fwd"]
    assert forward[:2] == ["0/convolution", "1/add_"]
    assert "1/native_batch_norm+relu_" in forward
    for name, layer in (
        ("0/convolution", "0/convolution_backward"),
        ("1/native_batch_norm+relu_", "1/native_batch_norm_backward"),
    ):
        assert ops[name]["layer"] == ops[layer]["layer"]
        assert (ops[name]["phase"], ops[layer]["phase"]) == ("fwd", "bwd")
    once = {name for name, op in ops.items() if op.get("once")}
    assert {"1/native_batch_norm+relu_", "1/add_", "end"} <= once
    assert any("bernoulli_" in name or "dropout" in name for name in once)
    assert not {"0/convolution", "0/convolution_backward"} & once
    assert all(op["kind"] == "optimizer" and op.get("once") for op in made.ops if op["name"].startswith("optimizer/"))
    assert {t["role"] for t in made.tensors} == {"input", "activation", "gradient"}
    state = 2 * sum(p.numel() for p in model.parameters()) + 2 * 4
    assert made.resident == 4 * state + 8  # weights, momentum, running statistics and their counter
    assert ms.Graph.from_json(made.to_json()) == made
    assert names(graph(model, (torch.randn(2, 3, 8, 8),), optimizer=SGD)) == names(made)


def test_attention_without_dropout_may_run_again() -> None:
    made = graph(Block(), (ids(),))
    attention = [op for op in made.ops if "scaled_dot_product" in op["kind"] and op["phase"] == "fwd"]
    assert attention
    assert not any(op.get("once") for op in attention)


@pytest.mark.parametrize("build", [Block, Loop])
def test_the_model_is_left_as_it_was(build: Any) -> None:
    model = build()
    args = (ids(),) if build is Block else (torch.randn(2, 3, 16),)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objects = [{key: id(value) for key, value in vars(module).items()} for module in model.modules()]
    random = torch.random.get_rng_state()
    graph(model, args, optimizer=SGD)
    with pytest.raises(ZeroDivisionError):
        graph(model, args, loss=lambda out: out.sum() / 0 if isinstance(out, int) else 1 / 0)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert objects == [{key: id(value) for key, value in vars(module).items()} for module in model.modules()]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(hasattr(value, "fake_mode") for value in (*model.parameters(), *model.buffers()))


def test_real_and_fake_steps_give_the_same_graph() -> None:
    """But for a write in place to a view, whose backward replays the view on fake tensors: one gradient copy less."""
    model, x = Block(), ids()
    model.act = nn.ReLU()
    optimizer = ADAMW(model.parameters())

    def step() -> object:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    step()
    optimizer.zero_grad()
    state = [value for values in optimizer.state.values() for value in values.values()]
    real = record_all(
        step,
        resident=[*model.parameters(), *state],
        paths={module: path for path, module in model.named_modules()},
        name="Block",
        batch=4,
    )
    optimizer.zero_grad()
    fake = graph_all(model, (x,), optimizer=ADAMW)
    assert real.graph.to_json() == fake.graph.to_json()
    assert real.eager_peak == fake.eager_peak


def test_a_model_without_memory_for_its_weights() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(10**6, 10**6), torch.empty(8, 10**6)
    assert graph(model, (x,)).resident == 4 * (10**12 + 10**6)


def test_autocast_and_losses() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    mixed = graph(model, (x,), autocast=torch.bfloat16)
    assert "_to_copy" in {op["kind"] for op in mixed.ops}
    assert "mean" in {op["kind"] for op in graph(model, (x,), loss=lambda out: out.mean()).ops}


def test_times_come_from_the_caller() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    made = graph(model, (x,), times=lambda func, args, kwargs, out: 2.0)
    seconds = {op["name"]: op["choices"][0]["time"] for op in made.ops}
    assert seconds.pop("end") == 0.0
    assert set(seconds.values()) == {2.0}


def test_times_come_from_a_mode() -> None:
    from memsched.torch.machines import MACHINES
    from memsched.torch.roofline import Roofline

    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    roofline = Roofline(next(iter(MACHINES.values())))
    made = graph(model, (x,), times=roofline, optimizer=SGD)
    total = sum(op["choices"][0]["time"] for op in made.ops)
    assert 0 < total == pytest.approx(roofline.seconds)  # the step before the recorded one does not count


def test_gradients_that_are_clipped_are_doubled_one_at_a_time() -> None:
    """Norms were read before the gradients are scaled in place."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    x = torch.randn(2, 16)

    def step() -> None:
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)

    recording = record_all(step, resident=[*model.parameters(), x])
    assert len([name for name in recording.doubled if name.startswith("_foreach_mul_")]) == 6


def test_a_clone_saved_for_the_backward_costs_no_third_copy() -> None:
    """Autograd clones what hardtanh_ and silu_ overwrite: the graph has the old and the new tensor, as there were."""
    weight, x = torch.randn(16, 16, requires_grad=True), torch.randn(4, 16)

    def step() -> object:
        y = nn.functional.silu(x @ weight, inplace=True)
        y.sum().backward()
        return y

    recording = record_all(step, resident=[weight, x])
    assert not recording.doubled
    assert [op["name"] for op in recording.graph.ops][:3] == ["mm", "clone+silu_", "sum"]


def test_what_is_made_and_never_read_is_workspace() -> None:
    def step() -> object:
        x = torch.ones(8)
        x.exp()
        return x.sin()

    made = record(step)
    assert {op["name"]: op["choices"][0]["workspace"] for op in made.ops} == {"ones": 0, "exp": 32, "sin": 0, "end": 0}


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4, sparse=True)

    def forward(self, ids: Any) -> Any:
        return self.embed(ids)


class Choosy(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x


class Whole(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.argmax()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: graph(Residual, (torch.ones(2, 32),)), "model is of type type"),
        (lambda: graph(Residual(), torch.ones(2, 32)), "args is of type Tensor"),
        (lambda: graph(Residual(), (torch.ones(2, 32),), loss=lambda out: out), r"loss is \(2, 32\)"),
        (lambda: graph(Residual(), (torch.ones(2, 32),), loss=lambda out: out.detach().sum()), "needs no gradient"),
        (lambda: graph(Whole(), (torch.ones(2, 32),)), "no floating tensor"),
        (lambda: graph(Choosy(), (torch.ones(2, 32),)), r"with record\(\)"),
        (lambda: graph(Sparse(), (ids(),)), "sparse=False"),
        (lambda: graph(Residual(), (torch.ones(2, 32),), times=3), "times is 3"),
        (lambda: record(lambda: None), "no operation"),
        (lambda: record(lambda: torch.ones(1), batch=0), "batch is 0"),
    ],
)
def test_errors_say_what_to_do(call: Any, words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        call()


def test_an_error_in_the_step_leaves_no_hooks() -> None:
    from torch.nn.modules import module as hooks

    def step() -> None:
        nn.Linear(2, 2)(torch.ones(1, 2))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(step)
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
