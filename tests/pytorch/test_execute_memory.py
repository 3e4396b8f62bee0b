"""The bytes that a planned step holds, looked at from outside after every step of its schedule.

`Alive` shares no code with the product's meter. It follows the storages that are born while a step of the schedule is
carried out. What the executor does not decide about is taken off: results, values beside the chain, gradients of
parameters and of results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import memsched as ms
from memsched.testing import schedules_of
from memsched.torch.script import Action
from pytorch.models import CASES
from pytorch.steps import (
    Prepared,
    buffers_restored,
    copies,
    installed,
    planner_schedules,
    prepare,
    prepared,
    train_step,
)

# Scalars, such as the number that a normalisation divides by.
CLOSE = 64
NAMED = {case.name: case for case in CASES}


class Alive(TorchDispatchMode):
    """The storages that operations make or meet while `counting`, and that are still alive.

    Autograd adds gradients up in place if nobody else holds the first, but not while a dispatch mode looks on. So an
    addition in a backward whose first operand is gone when the next operation begins counts no result (test_meter.py
    compares this with the allocator's own log).
    """

    def __init__(self) -> None:
        super().__init__()
        self.counting = False
        self.known: set[int] = set()
        self.sizes: dict[int, int] = {}
        self.total = self.highest = 0
        self.sum: tuple[Any, int, int] | None = None  # the first operand, weakly, and the total with the result and not

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.highest = self.most()
        before = self.total
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor):
                self.meet(leaf.untyped_storage())
        in_backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()  # and no repeated forward
        if func is torch.ops.aten.add.Tensor and in_backward and not args[0]._is_view():
            self.sum = weakref.ref(args[0].untyped_storage()), self.total, before
        else:
            self.highest = max(self.highest, self.total)
        return out

    def most(self) -> int:
        """The largest total since it was last set."""
        if self.sum is not None:
            first, whole, without = self.sum
            self.highest = max(self.highest, without if first() is None else whole)
            self.sum = None
        return self.highest

    def meet(self, storage: Any) -> None:
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        if self.counting:
            self.sizes[key] = storage.nbytes()
            self.total += self.sizes[key]
        weakref.finalize(storage, self.forget, key).atexit = False

    def forget(self, key: int) -> None:
        self.known.discard(key)
        self.total -= self.sizes.pop(key, 0)

    def leave_out(self, tensors: Iterator[Any]) -> None:
        """Count the storages of these no longer."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self.total -= self.sizes.pop(tensor.untyped_storage()._cdata, 0)


class Watch:
    """An observer that writes down, for each step, what is held before and after it, and the most in between."""

    def __init__(self, p: Prepared, alive: Alive, run: Callable[[], Any]) -> None:
        self.p, self.alive, self.run = p, alive, run
        self.held: list[int] = []  # planned bytes after each step
        self.most: list[int] = []  # the most during each step; what turns out to be resident counts until its end
        self.rise: list[int] = []  # of these bytes, above those before the step

    def resident(self) -> Iterator[Any]:
        run = self.run()
        yield from run.environment.values()
        yield from run.outputs.values()
        yield from (p.grad for p in self.p.model.parameters())
        yield from (gradient for gradients in run.leaf_gradients.values() for gradient in gradients)
        yield from pytree.tree_leaves([vars(state) for state in run._random if state is not None])

    def before(self, step: int, action: Action) -> None:
        self.alive.counting = True
        self.alive.most()
        self.start = self.alive.highest = self.alive.total

    def after(self, step: int, action: Action, event: Any) -> None:
        self.alive.counting = False
        self.most.append(self.alive.most())
        self.rise.append(self.most[-1] - self.start)
        self.alive.leave_out(self.resident())
        self.held.append(self.alive.total)


def watch(
    p: Prepared, schedule: ms.Schedule, early: Callable[[], bool] = lambda: True, *, overlap: bool = False
) -> Watch:
    """One planned step, watched."""
    installing = installed(p, schedule, early=early, overlap=overlap)
    with buffers_restored(p.model), installing as forward, Alive() as alive:
        observer = Watch(p, alive, lambda: forward._active())
        forward.observe = lambda: observer
        for tensor in (
            *p.model.parameters(),
            *p.model.buffers(),
            *p.staged.constants.values(),
            *pytree.tree_leaves((p.args, p.kwargs)),
            forward._host,
        ):
            if isinstance(tensor, torch.Tensor):
                alive.meet(tensor.untyped_storage())
        train_step(p)
    return observer


def walk(chain: ms.Chain, schedule: ms.Schedule) -> Iterator[tuple[int, int]]:
    """For each step of the list the bytes on the device after it, and the most during it: the language's own rule."""
    graph = ms.to_graph(chain, chunk=schedule.chunk).to_json()
    size = {tensor["name"]: tensor["size"] for tensor in graph["tensors"]}
    ops = {op["name"]: op for op in graph["ops"]}
    device = {tensor["name"] for tensor in graph["tensors"] if tensor["role"] == "input"}
    for step in schedule.to_json()["steps"]:
        workspace = 0
        if "run" in step:
            op, skip = ops[step["run"]], step.get("skip") or []
            device |= set(op["writes"]) - set(skip)
            workspace = op["choices"][0]["workspace"]
            workspace = op.get("skip_workspace", workspace) if skip else workspace
        elif "prefetch" in step:
            device.add(step["prefetch"])
        elif "free" in step:
            device.discard(step["free"])
        held = sum(size[name] for name in device)
        yield held, held + workspace


def check_bytes(p: Prepared, schedule: ms.Schedule) -> None:
    """With copies that happen at once, every step holds what the list says, and each run needs what it says.

    The last stage makes the results, which the caller holds: they come on top of what its runs need.
    """
    script = p.script(schedule)
    seen = watch(p, schedule)
    expected = list(walk(p.chain, schedule))
    for step, (action, (held, most)) in enumerate(zip(script.actions, expected, strict=True)):
        assert abs(seen.held[step] - held) <= CLOSE, (step, action)
        results = results_of(p, action)
        if action.kind in ("forward", "backward"):
            assert abs(seen.rise[step] - action.needs - results) <= CLOSE, (step, action)
            assert abs(seen.most[step] - most - results) <= CLOSE, (step, action)
        else:
            assert seen.rise[step] <= action.needs + CLOSE, (step, action)
    assert max(most for _, most in expected) <= schedule.budget


def results_of(p: Prepared, action: Action) -> int:
    last = action.kind == "forward" and action.stage == p.chain.n - 1
    return p.bytes.stages[-1].outputs if last else 0


def check_budget(p: Prepared, schedule: ms.Schedule, early: Callable[[], bool]) -> None:
    """Whenever copies happen, no moment of the step holds more than the budget."""
    seen = watch(p, schedule, early, overlap=True)
    for step, action in enumerate(p.script(schedule).actions):
        assert seen.held[step] <= schedule.budget + CLOSE, (step, action)
        assert seen.most[step] <= schedule.budget + results_of(p, action) + CLOSE, (step, action)


def check_plans(p: Prepared) -> None:
    for _, schedule in planner_schedules(p, ("rotor", "greedy"), (0.05,)):
        check_bytes(p, schedule)
        check_budget(p, schedule, copies(1))


BIG = [pytest.param(name, marks=pytest.mark.slow) for name in ("torchvision-resnet18", "transformers-llama", "lstm")]


@pytest.mark.parametrize(
    "name",
    [
        *(case.name for case in CASES if case.exportable and case.family is None and case.name != "lstm"),
        "torchvision-small_densenet",
        *BIG,
        pytest.param("torchvision-mobilenet_v3_large", marks=pytest.mark.slow),
        pytest.param("timm-deit_tiny_patch16_224", marks=pytest.mark.slow),
        pytest.param("torchvision-googlenet", marks=pytest.mark.slow),
        pytest.param("transformers-t5", marks=pytest.mark.slow),
    ],
)
def test_plans_hold_what_the_simulator_says(name: str) -> None:
    check_plans(prepared(NAMED[name]))


@pytest.mark.parametrize("name", ["in_place_batch_norm", "unet", *BIG])
def test_plans_hold_what_the_simulator_says_in_bfloat16(name: str) -> None:
    check_plans(prepared(NAMED[name], torch.bfloat16))


class ResultsOnTheWay(nn.Module):
    """Every layer gives out a large result of its own, which a repeated run makes again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(32, 128) for _ in range(4))

    def forward(self, x: Any) -> Any:
        results = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = torch.tanh(layer(x))
            results.append(head(x))
        return results


def test_repeated_runs_count_the_results_that_they_make_again() -> None:
    p = prepare(ResultsOnTheWay().train(), (torch.randn(16, 32),))
    assert sum(bool(stage.outputs) for stage in p.staged.stages[:-1]) >= 3
    check_plans(p)


@pytest.mark.parametrize("name", ["dropout_mlp", "in_place_batch_norm", "dict_output", "spectral_norm", "unet"])
def test_random_schedules_hold_what_the_simulator_says(name: str) -> None:
    p = prepared(NAMED[name])

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from([None, "storage"]), label="chunk")
        schedule = data.draw(schedules_of(p.chain, chunk=chunk, after=False), label="schedule")
        check_bytes(p, schedule)
        check_budget(p, schedule, copies(data.draw(st.integers(1, 9), label="copies")))

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.exportable and case.family is None])
def test_many_random_schedules_hold_what_the_simulator_says(name: str) -> None:
    p = prepared(NAMED[name])

    @settings(max_examples=20, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        schedule = data.draw(schedules_of(p.chain, chunk="storage"), label="schedule")
        check_bytes(p, schedule)
        check_budget(p, schedule, copies(data.draw(st.integers(1, 9), label="copies")))

    check()
