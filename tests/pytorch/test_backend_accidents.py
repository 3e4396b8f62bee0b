"""What steps leave behind that are done, dropped or broken off: nothing, and a model that trains on."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memsched as ms
from memsched.torch.compiled import copies, group, groups, unit
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unit import counted
from memsched.torch.lanes import CudaLanes, EmulatedLanes
from pytorch.compiled_models import layers
from pytorch.fake_cuda import FakeCuda

CPU, MEMORY = torch.device("cpu"), torch.OutOfMemoryError
OPTIONS = {"recomputes": {"budget": "60%"}, "offloads": {"budget": "30%", "bandwidth": "1GB/s"}}
OPTIONS |= {"directly": OPTIONS["recomputes"]}  # without what AOTAutograd does around the graph
INPUT = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


class AccidentError(Exception):
    pass


class Net(nn.Module):
    """Layers, statistics and dropout; a layer is used twice."""

    def __init__(self, *, statistics: bool = True) -> None:
        super().__init__()
        self.first, self.last = layers(3), layers(3)
        self.norm, self.drop = nn.BatchNorm1d(32) if statistics else nn.LayerNorm(32), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        return self.last(self.first[0](self.drop(self.norm(self.first(x)))))


@pytest.fixture(autouse=True)
def _late(_fresh: None) -> None:
    copies.use(CPU, EmulatedLanes(early=lambda: False))


@pytest.fixture(params=["recomputes", "directly", pytest.param("offloads", marks=pytest.mark.slow)])
def nets(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, Any]:
    """A plain model, and the same compiled: model and call, after a first step."""
    torch.manual_seed(0)
    plain = Net(statistics=request.param != "directly")
    planned = copy.deepcopy(plain)
    run = torch.compile(planned, backend="memsched", options=OPTIONS[request.param])
    assert step(plain, plain) == step(planned, run)
    result = plans()[-1].result
    assert result.offloaded if request.param == "offloads" else result.recomputed
    return plain, planned, run


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is there by now is not looked at, which makes a collection by hand cheap."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def step(model: nn.Module, run: Any, seed: int = 0) -> list[Any]:
    """A step's loss, gradients, buffers and random state, as bytes."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = run(INPUT).square().mean()
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()]
    return [one.numpy().tobytes() for one in found if one is not None]


def statistics_of(model: nn.Module, like: nn.Module) -> None:
    """The buffers of another: a step that was broken off may have changed them, as it may in plain training."""
    for mine, its in zip(model.buffers(), like.buffers(), strict=True):
        mine.copy_(its)


def tensors() -> int:
    """Tensors that Python knows, that are alive, and that were not there at the beginning."""
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


def held_after(again: Callable[[int], object]) -> list[tuple[int, int]]:
    """Tensors, and bytes that planned steps made, at three times in a hundred."""
    counts = []
    with counted(CPU) as meter:
        for number in range(100):
            again(number)
            if number % 45 == 9:
                counts.append((tensors(), meter.live))
    assert len(counts) == 3
    return counts


def test_a_hundred_steps_leave_nothing(nets: Any, no_collector: None) -> None:
    _, planned, run = nets
    assert len(set(held_after(lambda seed: step(planned, run, seed)))) == 1


def test_a_hundred_forwards_without_backward_leave_nothing(nets: Any, no_collector: None) -> None:
    plain, planned, run = nets
    assert len(set(held_after(lambda seed: run(INPUT)))) == 1
    statistics_of(planned, plain)
    assert step(plain, plain) == step(planned, run)


def test_a_hundred_backwards_that_fail_leave_nothing(nets: Any, no_collector: None) -> None:
    plain, planned, run = nets

    def fail(gradient: Any) -> None:
        raise AccidentError

    def broken(number: int) -> None:
        parameter = list(planned.parameters())[number % 5]
        handle = parameter.register_hook(fail)
        try:
            with pytest.raises(AccidentError):
                step(planned, run)
        finally:
            handle.remove()
            gc.collect()  # pytest keeps an error's frames in cycles

    assert len(set(held_after(broken))) == 1
    statistics_of(planned, plain)
    assert step(plain, plain) == step(planned, run)


class Failing(TorchDispatchMode):
    """Fails at the operation of a number, and counts."""

    def __init__(self, at: int | None, fail: Callable[[], object]) -> None:
        super().__init__()
        self.at, self.fail, self.count = at, fail, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.count == self.at:
            self.fail()
        self.count += 1
        return func(*args, **(kwargs or {}))


def broken_off(planned: nn.Module, run: Any, at: int | None, fail: Callable[[], object]) -> int:
    """A step in which an operation of the planned forward or backward fails; how many operations there are."""
    mode = Failing(at, fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "_counting", lambda: mode)
        step(planned, run)
    return mode.count


@pytest.mark.parametrize(
    "error",
    [AccidentError, *(pytest.param(e, marks=pytest.mark.slow) for e in (KeyboardInterrupt, RuntimeError, MEMORY))],
)
def test_an_error_at_any_operation_leaves_the_model_usable(nets: Any, error: Any, no_collector: None) -> None:
    """Forward and backward break off in many places, and the step after each is a plain one and leaves nothing."""
    plain, planned, run = nets

    def fail() -> None:
        raise error

    count = broken_off(planned, run, None, fail)
    statistics_of(planned, plain)
    assert count > 40
    live, traffic = set(), copies.traffic_on(CPU)
    for at in range(0, count, 1 + count // 25):
        with pytest.raises(error):
            broken_off(planned, run, at, fail)
        gc.collect()
        for lane in ("out", "in"):  # what is late ends, and then is let go of
            traffic.finish(lane)
        traffic.tidy()
        assert not traffic._coming
        assert not traffic._hosts
        statistics_of(planned, plain)
        with counted(CPU) as meter:
            assert step(plain, plain) == step(planned, run), at
        live.add(meter.live)
        statistics_of(planned, plain)
        assert traffic.spare_bytes <= 1.1 * plans()[-1].result.timeline.bytes_out
    assert len(live) == 1


def test_an_interrupt_by_a_signal_leaves_the_model_usable(nets: Any) -> None:
    plain, planned, run = nets
    for at in (2, 30, 45):
        with pytest.raises(KeyboardInterrupt):
            broken_off(planned, run, at, lambda: os.kill(os.getpid(), signal.SIGINT))
        statistics_of(planned, plain)
        assert step(plain, plain) == step(planned, run)
        statistics_of(planned, plain)


def test_a_loss_that_is_kept_and_never_used(nets: Any) -> None:
    plain, planned, run = nets
    kept = [run(INPUT).sum() for _ in range(3)]
    statistics_of(planned, plain)
    for seed in range(3):
        assert step(plain, plain, seed) == step(planned, run, seed)
    kept.pop().backward()
    assert all(p.grad is not None for p in planned.parameters())


def test_steps_beside_a_loss_that_is_kept_cost_no_more_and_more(nets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step ever ends then."""
    monkeypatch.setattr(group, "_MOST_CALLS", 8)
    plain, planned, run = nets
    kept = run(INPUT).sum()
    statistics_of(planned, plain)
    made = []
    for _ in range(40):
        assert step(plain, plain) == step(planned, run)
        made.append(sum(len(one._planned) + len(one._calls) + len(one._known) for one in groups._GROUPS.values()))
    assert max(made[20:]) <= max(made[:20])
    kept.backward()
    assert all(p.grad is not None for p in planned.parameters())


def test_a_model_that_is_dropped_is_gone(no_collector: None) -> None:
    model = Net()
    run = torch.compile(model, backend="memsched", options=OPTIONS["offloads"])
    step(model, run)
    kept = run(INPUT).sum()
    parts = [weakref.ref(one) for one in (model, *model.parameters(), *model.buffers())]
    del model, run, kept
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in parts if one() is not None] == []


def test_models_that_train_in_threads_of_their_own() -> None:
    """A step at a time, as all draw from one generator; each thread has its own model."""
    torch.manual_seed(0)
    plain = [Net(), Net()]
    planned, found, lock = copy.deepcopy(plain), dict[int, list[Any]](), threading.Lock()

    def work(number: int) -> None:
        run = torch.compile(planned[number], backend="memsched", options=OPTIONS["recomputes"])
        for seed in range(3):
            with lock:
                found[number] = step(planned[number], run, seed)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, net in enumerate(plain):
        assert found[number] == [step(net, net, seed) for seed in range(3)][-1]


def test_a_step_within_the_step_of_another_thread_is_refused() -> None:
    """Under equal options both would have one plan, which is for one step at a time."""
    nets = [Net(), Net()]
    runs = [torch.compile(net, backend="memsched", options=OPTIONS["recomputes"]) for net in nets]
    for net, run in zip(nets, runs, strict=True):
        step(net, run)
    said: list[str] = []

    def work() -> None:
        try:
            step(nets[1], runs[1])
            said.append("it ran")
        except ms.MemschedError as error:
            said.append(str(error))

    def elsewhere() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)

    loss = runs[0](INPUT).sum()
    elsewhere()
    loss.backward()
    elsewhere()
    assert said[1:] == ["it ran"]
    assert "another thread is within a training step under the same options" in said[0]
    assert "give each thread a budget of its own" in said[0]


def test_of_steps_that_threads_begin_at_once_one_goes_on() -> None:
    """Both went on, and the next step ended in an error."""
    net, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(32, 64)
    run = torch.compile(net, backend="memsched", options={"budget": "100%"})
    run(x).sum().backward()
    for _ in range(20):
        both = threading.Barrier(2)

        def work(both: threading.Barrier = both) -> None:
            both.wait()
            held = [run(x) for _ in range(3)]
            del held

        with ThreadPoolExecutor(2) as threads:
            errors = [one.exception() for one in [threads.submit(work) for _ in range(2)]]
        assert all(error is None or isinstance(error, ms.MemschedError) for error in errors), errors
        assert None in errors
        run(x).sum().backward()


class Breaking(FakeCuda):
    """CUDA's streams, which break off at the operation of a number."""

    at = -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.at -= 1
        if self.at == 0:
            raise AccidentError
        return super().__torch_dispatch__(func, types, args, kwargs)


def broken_on_streams(monkeypatch: pytest.MonkeyPatch, every: int) -> Breaking:
    """Steps that end early, at some operations, on streams that are watched."""
    cuda = Breaking()
    cuda.install(monkeypatch)
    copies.use(CPU, CudaLanes(CPU))
    torch.manual_seed(0)
    plain = Net()
    planned = copy.deepcopy(plain)
    run = torch.compile(planned, backend="memsched", options=OPTIONS["offloads"])
    assert step(plain, plain) == step(planned, run)
    monkeypatch.setattr(unit, "_METERS", [cuda])
    for at in range(1, 200, every):
        cuda.at = at
        with pytest.raises(AccidentError):
            step(planned, run)
        statistics_of(planned, plain)
        assert step(plain, plain) == step(planned, run)
        statistics_of(planned, plain)
    return cuda


@pytest.mark.parametrize("every", [20, pytest.param(6, marks=pytest.mark.slow)])
def test_steps_that_end_early_have_no_race(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies under way when a step is given up do not write to memory that others get."""
    cuda = broken_on_streams(monkeypatch, every)
    assert cuda.races == []
    assert {name for name, _, _ in cuda.log} == {"compute", "stream 1", "stream 2"}


def test_a_step_that_does_not_clean_up_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies.Traffic, "_given_up", lambda traffic, key, coming: None)
    assert "given back" in str(broken_on_streams(monkeypatch, 20).races)
