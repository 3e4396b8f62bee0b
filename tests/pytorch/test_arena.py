"""Addresses are honoured for real: a step on the CPU whose tensors lie in one block of memory, where the plan says.

The block has exactly the bytes that the plan needs beside what is resident. Memory that is given back is filled with
NaN, and a range must be full of it when it is served again.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

import memsched as ms
from memsched.torch.graph_step.as_graph import op_names, tensor_names
from memsched.torch.graph_step.resolve import key_of
from memsched.torch.graph_step.runner import StepRunner
from memsched.torch.script import Action
from pytorch.graph_step_models import QUICK, Captured, captured, fresh, plain_step
from pytorch.orders import ordered, placed, random_order
from pytorch.steps import differences

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.native import arena
from bench.native.arena_step import ALIGNMENT, ArenaStep, allocator_times

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="the allocator needs a C++ compiler"
)


SLOW = ("dropout_mlp", "tied_weights", "unet", "two_towers", "spectral_norm", "resnet18")


@functools.cache
def prepared(name: str) -> tuple[Captured, ArenaStep]:
    c = captured(name)
    return c, ArenaStep(c.step, c.args)


class Places:
    """An observer that compares where every tensor lies with where the schedule puts it."""

    def __init__(self, step: ArenaStep, runner: StepRunner, schedule: ms.Schedule, base: int) -> None:
        self.runner, self.schedule, self.base = runner, schedule, base
        program = step.captured.program
        self.names = {key_of(block): name for block, name in tensor_names(program, op_names(program)).items()}
        self.expected = accumulate(len(run) for run in step.runs(schedule))
        self.at = {self.names[key_of(s.block)]: at for s, (_, at) in zip(program.inputs, step.inputs(), strict=True)}
        self.seen = 0

    def before(self, step: int, action: Action) -> None: ...

    def after(self, step: int, action: Action, event: Any) -> None:
        what = self.schedule.steps[step]
        if "run" in what:
            self.at |= what.get("at", {})
            assert arena.position() == next(self.expected), what
        one = self.runner.passed
        assert one is not None
        for key, slot in one._transfers.slots.items():
            if slot.storage is not None and slot.storage.nbytes():
                assert slot.storage.data_ptr() - self.base == self.at[self.names[key]], (what, self.names[key])
                self.seen += 1


def run_in_arena(c: Captured, step: ArenaStep, schedule: ms.Schedule) -> Any:
    """One step that is watched; what it leaves behind."""
    height = schedule.budget - step.graph.resident
    base = arena.make(height)
    runner = step.runner(schedule)
    places = Places(step, runner, schedule, base)
    runner.observe = lambda: places
    inputs, requests = arena.Requests(step.inputs()), arena.Requests([r for run in step.runs(schedule) for r in run])

    def one() -> Any:
        with arena.watched(checked=True):
            given = list(step.load(c.args, inputs))
            arena.expect(requests)
            return runner.take(given)

    found = fresh(one, c.model)
    counts = arena.counts()
    program = c.step.program
    results = [block.bytes for block in program.blocks if block.role == "result"]
    assert counts.let_pass == (len(results), sum(results))
    assert counts.planned[0] == len(step.inputs()) + requests.count - len(results)
    assert counts.strange == counts.other == (0, 0)
    assert counts.overlaps == 0
    assert arena.is_sound()
    assert ctypes.string_at(base, height) == b"\xff" * height  # all has been given back
    assert places.seen > len(c.graph.ops)
    return found


def check(name: str, seeds: int) -> None:
    c, step = prepared(name)
    want = plain_step(c)
    for seed in range(seeds):
        schedule = placed(step.graph, random_order(step.graph, seed))
        assert differences(want, run_in_arena(c, step, schedule)) == [], seed


@pytest.mark.parametrize("name", ["residual", "transformer", "dropout_mlp"])
def test_a_step_in_one_block(name: str) -> None:
    check(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, "resnet18"])
def test_many_steps_in_one_block(name: str) -> None:
    check(name, 10)


@pytest.mark.parametrize("name", ["residual", "transformer", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_plans_of_olla_in_one_block(name: str) -> None:
    c, step = prepared(name)
    result = ms.olla(step.graph, 2**40, alignment=ALIGNMENT, time_limit=1.0)
    least = step.graph.resident + result.placement.height
    schedule = ms.Schedule.from_json({**result.schedule.to_json(), "budget": least})
    assert least <= placed(step.graph, [op["name"] for op in step.graph.ops]).budget
    assert differences(plain_step(c), run_in_arena(c, step, schedule)) == []


def test_memory_inside_operations_is_workspace() -> None:
    """What kernels take shows in the graph, so that a plan has room for it."""
    c, step = prepared("residual")
    plain, seen = ({op["name"]: op["choices"][0]["workspace"] for op in graph.ops} for graph in (c.graph, step.graph))
    assert all(seen[name] >= plain[name] for name in plain)
    assert any(seen[name] > plain[name] for name in plain if "convolution" in name)
    kinds = {request.kind for requests in step.rehearsal.requests for request in requests}
    assert kinds == {"tensor", "inside", "result"}


def test_a_request_that_no_list_names_is_counted() -> None:
    """A step of another order asks for other memory than the list says."""
    c, step = prepared("dropout_mlp")
    one, other = (placed(step.graph, random_order(step.graph, seed)) for seed in (0, 1))
    arena.make(one.budget - step.graph.resident)
    requests = arena.Requests([request for run in step.runs(one) for request in run])
    runner = step.runner(ordered(step.graph, [s["run"] for s in other.steps if "run" in s]))

    def wrong() -> Any:
        with arena.watched():
            arena.expect(requests)
            return runner.step(*c.args)

    fresh(wrong, c.model)
    assert arena.counts().strange[0] > 0


def test_times_of_both_allocators() -> None:
    c, step = prepared("dropout_mlp")
    schedule = placed(step.graph, random_order(step.graph, 0))
    state = {name: buffer.clone() for name, buffer in c.model.named_buffers()}
    found = allocator_times(step, schedule, c.args, repeat=2)
    assert found.arena_bytes == schedule.budget - step.graph.resident
    assert found.default_step > 0 < found.arena_step
    requests = sum(len(run) for run in step.runs(schedule)) + len(step.inputs())
    assert found.calls == requests > found.planned > 0
    for name, buffer in c.model.named_buffers():
        buffer.copy_(state[name])


# The allocator itself.


@pytest.fixture
def base() -> Iterator[int]:
    yield arena.make(1024)
    assert arena.is_sound()


def bytes_at(address: int, many: int) -> bytes:
    return ctypes.string_at(address, many)


def test_requests_are_served_in_order(base: int) -> None:
    requests = arena.Requests([(64, 128), (256, arena.PASS), (100, 0)])
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
        found = arena.counts()
    assert found.planned == (2, 164)
    assert found.let_pass == (1, 256)
    assert found.strange == (1, 28)
    assert found.other == (1, other.nbytes)
    assert (found.calls, found.given_back, found.overlaps) == (5, 1, 0)
    assert found.allocating > 0 < found.giving_back


def test_ranges_that_are_held_show(base: int) -> None:
    requests = arena.Requests([(64, 0), (64, 32), (64, 64), (64, 512)])
    with arena.watched(checked=True):
        arena.expect(requests)
        kept = [torch.empty(16) for _ in range(3)]
        assert arena.counts().overlaps == 2
        ctypes.memset(base + 540, 0, 1)  # somebody writes to memory that holds nothing
        kept.append(torch.empty(16))
        assert arena.counts().overlaps == 3
        kept.clear()


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
    requests = arena.Requests([(64, 0)])
    with arena.watched():
        arena.expect(requests)
        thread = threading.Thread(target=lambda: found.append(torch.empty(16).data_ptr()))
        thread.start()
        thread.join()
        assert arena.position() == 0
        mine = torch.empty(16)
        assert mine.data_ptr() == base != found[0]
        del mine
    assert arena.counts().calls == 1
    assert torch.empty(16).data_ptr() != base


def test_tensors_grow_out_of_the_arena(base: int) -> None:
    """A storage that is resized asks the allocator that it came from."""
    requests = arena.Requests([(64, 0)])
    with arena.watched():
        arena.expect(requests)
        tensor = torch.arange(16.0)
        assert tensor.data_ptr() == base
        tensor.resize_(400)
        assert tensor.data_ptr() != base
        assert torch.equal(tensor[:16], torch.arange(16.0))
