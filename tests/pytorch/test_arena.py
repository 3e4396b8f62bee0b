"""Addresses are honoured for real: a step on the CPU whose tensors lie in one block of memory, where the plan says.

The block has exactly the bytes that the plan needs beside what is resident. Memory that is given back is filled with
NaN, and a range must be full of it when it is served again.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from bench.native import arena
from bench.native.arena_step import ALIGNMENT, ArenaStep, Half, first_fit
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812

import memsched as ms
from memsched.torch.arena.native import PASS, Requests, cpu
from memsched.torch.trial import Step, first_difference, random_state, untouched
from pytorch.handmade import Made
from pytorch.models import CASES, Case

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="the allocator needs a C++ compiler"
)

CPU = torch.device("cpu")


class Residual(nn.Module):
    """Two convolutions and a skip, one of them strided; activations are overwritten where they stand."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(channels, out, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.first(x)), inplace=True)
        y = self.norm2(self.second(y))
        y += self.skip(x)
        return F.relu(y, inplace=True)


def residual() -> Made:
    blocks = (Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1))
    stem = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return model, (torch.randn(6, 3, 16, 16),)


class Block(nn.Module):
    """Attention and two layers, with dropout in both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        q, k, v = self.query(self.norm1(x)).chunk(3, dim=-1)
        weight = F.dropout(torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1), 0.1, self.training)
        x = x + self.drop(self.out(weight @ v))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


def transformer() -> Made:
    return nn.Sequential(Block(16), Block(16), nn.Linear(16, 7)), (torch.randn(4, 6, 16),)


class TwoTowers(nn.Module):
    """Several inputs, one of them whole numbers; a frozen layer, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen, self.idle = nn.Linear(8, 8).requires_grad_(False), nn.Linear(3, 3)
        self.shift = nn.Parameter(torch.randn(4, 5, 8))

    def forward(self, ids: Any, x: Any, scale: float) -> Any:
        both = self.left(self.words(ids)) * scale + torch.tanh(self.frozen(self.right(x)))
        return both + self.shift


def two_towers() -> Made:
    return TwoTowers(), (torch.randint(0, 20, (4, 5)), torch.randn(4, 5, 8), 0.5)


OWN = {"residual": residual, "transformer": transformer, "two_towers": two_towers}
OTHERS = ("dropout_mlp", "tied_weights", "unet", "spectral_norm", "torchvision-resnet18")
CASES_BY_NAME = {case.name: case for case in CASES} | {name: Case(name=name, build=OWN[name]) for name in OWN}
COPIES = {"spectral_norm": 4}  # vectors of 64 bytes that the backward reads as they were before the step
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("two_towers", *OTHERS)]


def loss(out: Any) -> Any:
    """A mean over the batch in which all values count."""
    return (out.square() + out).mean()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """A step that was compiled once serves many tests."""


@functools.cache
def prepared(name: str) -> ArenaStep:
    """The step of one of the models. Tests share it: they leave the model as they found it."""
    return ArenaStep(*CASES_BY_NAME[name].make(), loss)


def outcome(step: ArenaStep, take: Callable[[], Any]) -> Step:
    """What a step leaves behind. The model is as before afterwards."""
    with untouched(step.model, step.args):
        torch.manual_seed(0)
        value = take()
        gradients = {name: one.grad for name, one in step.model.named_parameters()}
        return Step(
            outputs=[value],
            gradients={name: one if one is None else one.clone() for name, one in gradients.items()},
            buffers={name: one.clone() for name, one in step.model.named_buffers()},
            random=random_state(CPU),
            form=[None if one is None else strides(one) for one in gradients.values()],
        )


def strides(tensor: Any) -> list[int]:
    """Those that matter: a dimension of one element may have any."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@functools.cache
def plain(name: str) -> Step:
    """The same in plain PyTorch."""
    step = prepared(name)

    def take() -> Any:
        value = loss(step.model(*step.args))
        value.backward()
        return value.detach()

    return outcome(step, take)


def random_order(graph: ms.Graph, seed: int) -> list[str]:
    """The names of the operations in a random topological order."""
    numbers = random.Random(seed)
    writer = {tensor: op["name"] for op in graph.ops for tensor in op["writes"]}
    waits = {op["name"]: {writer[tensor] for tensor in op["reads"]} for op in graph.ops}
    order: list[str] = []
    while waits:
        ready = [name for name, before in waits.items() if before.isdisjoint(waits)]
        order.append(numbers.choice(ready))
        del waits[order[-1]]
    return order


def placed(graph: ms.Graph, order: Sequence[str]) -> ms.Schedule:
    """A schedule in this order: each range begins at the lowest multiple of ALIGNMENT where it fits."""
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    ops = {op["name"]: op for op in graph.ops}
    last = {tensor: name for name in order for tensor in (*ops[name]["writes"], *ops[name]["reads"])}
    held: dict[str, tuple[int, int]] = {}
    height, steps = 0, []
    for name in order:
        (choice,) = ops[name]["choices"]
        wanted = {**{tensor: size[tensor] for tensor in ops[name]["writes"]}, "": choice["workspace"]}
        at = {}
        for tensor, nbytes in wanted.items():
            if nbytes:
                at[tensor] = first_fit(sorted(held.values()), nbytes)
                held[tensor] = (at[tensor], at[tensor] + nbytes)
                height = max(height, at[tensor] + nbytes)
        over = [tensor for tensor in (*ops[name]["writes"], *ops[name]["reads"]) if last[tensor] == name]
        for tensor in ("", *over):
            held.pop(tensor, None)
        steps += [{"run": name, "at": at}, *({"free": tensor} for tensor in over)]
    budget = graph.resident + height
    made = ms.Schedule(steps, budget=budget, graph=graph.name, memory="contiguous", planner={"name": "test"})
    ms.simulate(graph, made, ms.Device(budget, 0.0))
    return made


class Places:
    """Compares where every tensor lies with where the schedule puts it, after each call."""

    def __init__(self, step: ArenaStep, halves: Sequence[Half], schedule: ms.Schedule, base: int) -> None:
        self.step, self.base, self.seen = step, base, 0
        self.at = {name: at for one in schedule.steps for name, at in one.get("at", {}).items() if name}
        self.expected: dict[fx.Node, int] = {}
        for half in halves:
            self.expected |= zip(half.asked, accumulate(len(asked) for asked in half.asked.values()), strict=True)

    def __call__(self, node: fx.Node, values: Mapping[fx.Node, Any], before: int) -> None:
        assert cpu().position() == self.expected[node], node
        for other, value in values.items():
            for name, storage in self.step.places(other, value):
                assert storage.data_ptr() - self.base == self.at[name], (node, name)
                self.seen += 1


def run_in_arena(name: str, schedule: ms.Schedule, *, call_by_call: bool) -> Step:
    """One step that is watched; what it leaves behind."""
    step = prepared(name)
    height = schedule.budget - step.graph.resident
    base = arena.make(height)
    halves = step.halves(schedule)
    places = Places(step, halves, schedule, base)

    def take() -> Any:
        with arena.watched(checked=True):
            return step.take(halves, watch=places if call_by_call else None)

    found = outcome(step, take)
    counts = cpu().counts()
    size = [tensor["size"] for tensor in step.graph.tensors if tensor["size"]]
    inside = [one for requests in step.requests.values() for one in requests if one.name == ""]
    assert counts.planned == (len(size) + len(inside), sum(size) + sum(one.bytes for one in inside))
    copies = COPIES.get(name, 0)
    assert counts.let_pass == (1 + copies, 4 + 64 * copies)  # the loss, and the copies
    marked = any(True for _ in step.model.buffers())  # AOTAutograd calls a graph that changes buffers
    assert counts.other == ((2, 16 + 4) if marked else (1, 4))  # its marker, and the gradient of the loss
    assert counts.strange == (0, 0)
    assert counts.blocked == (0, 0)
    assert counts.damaged == 0
    assert arena.is_sound()
    assert ctypes.string_at(base, height) == b"\xff" * height  # all has been given back
    assert not call_by_call or places.seen > len(step.graph.ops)
    return found


def check(name: str, seeds: int) -> None:
    step = prepared(name)
    for seed in range(seeds):
        schedule = placed(step.graph, random_order(step.graph, seed))
        for call_by_call in (True, False):
            found = run_in_arena(name, schedule, call_by_call=call_by_call)
            assert first_difference(plain(name), found) is None, (seed, call_by_call)


@pytest.mark.parametrize("name", ["residual"])
def test_a_step_in_one_block(name: str) -> None:
    check(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN, *OTHERS])
def test_many_steps_in_one_block(name: str) -> None:
    check(name, 10)


@pytest.mark.parametrize("name", ["residual", "transformer", *SLOW])
def test_plans_of_olla_in_one_block(name: str) -> None:
    step = prepared(name)
    result = ms.olla(step.graph, 2**40, alignment=ALIGNMENT, time_limit=1.0)
    least = step.graph.resident + result.placement.height
    schedule = ms.Schedule.from_json({**result.schedule.to_json(), "budget": least})
    assert least <= placed(step.graph, [op["name"] for op in step.graph.ops]).budget
    found = run_in_arena(name, schedule, call_by_call=True)
    assert first_difference(plain(name), found) is None


def test_memory_inside_operations_is_workspace() -> None:
    """What kernels take shows in the graph, so that a plan has room for it."""
    step = prepared("residual")
    least, seen = ({op["name"]: op["choices"][0]["workspace"] for op in one.ops} for one in (step.plain, step.graph))
    assert all(seen[name] >= least[name] for name in least)
    assert any(seen[name] > least[name] for name in least if "convolution" in name)


def test_a_request_that_no_list_names_is_counted() -> None:
    """A step of another order asks for other memory than the list says."""
    step = prepared("dropout_mlp")
    one, other = (placed(step.graph, random_order(step.graph, seed)) for seed in (0, 1))
    arena.make(max(one.budget, other.budget) - step.graph.resident)
    pairs = zip(step.halves(one), step.halves(other), strict=True)
    first, second = (replace(half, requests=wrong.requests) for half, wrong in pairs)

    def take() -> Any:
        with arena.watched():
            return step.take((first, second))

    outcome(step, take)
    assert cpu().counts().strange[0] > 0


# The allocator itself.


@pytest.fixture
def base() -> Iterator[int]:
    yield arena.make(1024)
    assert arena.is_sound()


def bytes_at(address: int, many: int) -> bytes:
    return ctypes.string_at(address, many)


def test_requests_are_served_in_order(base: int) -> None:
    requests = Requests([(64, 128), (256, PASS), (100, 0)])
    with arena.watched(checked=True, timed=True):
        arena.expect(requests)
        first = torch.zeros(16)
        passing, strange, last = torch.empty(64), torch.empty(7), torch.empty(25)
        assert [first.data_ptr() - base, last.data_ptr() - base] == [128, 0]
        for tensor in (passing, strange):
            assert not base <= tensor.data_ptr() < base + 1024
            assert tensor.data_ptr() % ALIGNMENT == 0
        arena.expect(None)
        other = torch.empty(3)
        assert bytes_at(base + 128, 64) == bytes(64)
        del first
        assert bytes_at(base + 128, 64) == b"\xff" * 64
        found = cpu().counts()
    assert found.planned == (2, 164)
    assert found.let_pass == (1, 256)
    assert found.strange == (1, 28)
    assert found.other == (1, other.nbytes)
    assert (found.calls, found.given_back, found.damaged) == (5, 1, 0)
    assert found.allocating > 0 < found.giving_back


def test_ranges_that_are_held_are_left_alone(base: int) -> None:
    requests = Requests([(64, 0), (64, 32), (64, 64), (64, 512), (128, 960)])
    with arena.watched(checked=True):
        arena.expect(requests)
        kept = [torch.empty(16) for _ in range(3)]
        assert [one.data_ptr() - base for one in kept[::2]] == [0, 64]
        assert cpu().counts().blocked == (1, 64)
        assert not base <= kept[1].data_ptr() < base + 1024
        ctypes.memset(base + 540, 0, 1)  # somebody writes to memory that holds nothing
        assert cpu().counts().damaged == 0
        kept += [torch.empty(16), torch.empty(32)]
        assert cpu().counts().damaged == 1
        assert cpu().counts().blocked == (2, 192)  # the last would end behind the arena
        kept.clear()


def test_requests_that_are_missing_are_passed_over(base: int) -> None:
    """And one that comes too often is served by PyTorch's own allocator."""
    requests = Requests([(64, 0), (128, 128), (256, 256)])
    with arena.watched():
        arena.expect(requests)
        first, again, last = torch.empty(16), torch.empty(16), torch.empty(64)
        assert [first.data_ptr() - base, last.data_ptr() - base] == [0, 256]
        assert cpu().counts().strange == (1, 64)
        del first, again, last


def test_writes_beside_the_arena_show() -> None:
    base = arena.make(100)
    for place in (-1, 100):
        assert arena.is_sound()
        before = bytes_at(base + place, 1)
        ctypes.memset(base + place, 0, 1)
        assert not arena.is_sound()
        ctypes.memset(base + place, before[0], 1)
    assert arena.is_sound()


def test_other_threads_are_left_alone(base: int) -> None:
    found: list[int] = []
    requests = Requests([(64, 0)])
    with arena.watched():
        arena.expect(requests)
        thread = threading.Thread(target=lambda: found.append(torch.empty(16).data_ptr()))
        thread.start()
        thread.join()
        assert cpu().position() == 0
        mine = torch.empty(16)
        assert mine.data_ptr() == base != found[0]
        del mine
    assert cpu().counts().calls == 1
    assert torch.empty(16).data_ptr() != base


def test_tensors_grow_out_of_the_arena(base: int) -> None:
    """A storage that is resized asks the allocator that it came from."""
    requests = Requests([(64, 0)])
    with arena.watched():
        arena.expect(requests)
        tensor = torch.arange(16.0)
        assert tensor.data_ptr() == base
        tensor.resize_(400)
        assert tensor.data_ptr() != base
        assert torch.equal(tensor[:16], torch.arange(16.0))
