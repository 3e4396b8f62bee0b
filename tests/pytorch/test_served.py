"""Steps that an arena serves at planned addresses: they train as before, and nothing is overwritten."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn import functional as F  # noqa: N812

import memsched
from memsched.errors import InvalidInputError, MemschedError
from memsched.torch import Arena
from memsched.torch.arena import native
from memsched.torch.arena.lifetimes import Recorder, placed
from pytorch.models import CASES

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="the allocator needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given back is filled with NaN, so that reading it shows."""
    monkeypatch.setattr(Arena, "_checked", True)


# Addresses, with a player that knows nothing of how they were found.


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[tuple[str, int]], dict[int, int]]:
    """A step that is repeated: ("ask", bytes) and ("back", request), the request of this step or of the one before.

    The second says by how many steps later the others are given back.
    """
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=9))
    program: list[tuple[str, int]] = [("ask", k) for k in range(len(sizes))]
    for k in range(len(sizes)):
        if draw(st.booleans()):
            program.insert(draw(st.integers(0, len(program))), ("back", k))
    return program, dict(enumerate(sizes))


@given(steps(), st.sampled_from([1, 64]))
@settings(deadline=None)
def test_addresses_of_repeated_steps(given: tuple[list[tuple[str, int]], dict[int, int]], alignment: int) -> None:
    """No two requests share a byte while both are alive, in any of many steps."""
    program, sizes = given
    recorder, fresh = Recorder(), iter(range(10_000))
    mine: dict[int, int] = {}  # request -> address, of the present step
    older: dict[int, int] = {}
    recorded = []
    for _ in range(4):
        older, mine = mine, {}
        events = []
        for kind, k in program:
            if kind == "ask":
                mine[k] = next(fresh)
                events.append((mine[k], sizes[k]))
            elif k in mine or k in older:
                events.append((mine.pop(k) if k in mine else older.pop(k), 0))
        recorded.append(recorder.step([], events))
    assert recorded[2] == recorded[3]
    addresses, placement = placed(recorded[3], alignment, None)
    order = [k for kind, k in program if kind == "ask"]
    at = {k: address for k, address in zip(order, addresses, strict=True) if address is not None}
    held: list[tuple[int, int, int]] = []  # step, request, address
    most = 0
    for step in range(4):
        for kind, k in program:
            if kind == "ask" and k in at:
                assert at[k] % alignment == 0
                assert all(at[k] + sizes[k] <= low or low + sizes[other] <= at[k] for _, other, low in held)
                held.append((step, k, at[k]))
                most = max(most, at[k] + sizes[k])
            elif kind == "back":
                oldest = [one for one in held if one[1] == k and one[0] == max(h[0] for h in held if h[1] == k)]
                held = [one for one in held if one not in oldest]
    assert most <= placement.height
    least = memsched.place(list(placement.buffers)).height
    assert placement.lower_bound <= least
    assert not placement.optimal or placement.height == least


LIVES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=9)


@given(LIVES, st.data())
@settings(deadline=None)
def test_where_a_step_begins_does_not_matter(given: list[tuple[int, int, int]], data: st.DataObject) -> None:
    moments = [(start, 1, k, size) for k, (start, _, size) in enumerate(given)]
    moments += [(start + length, 0, k, 0) for k, (start, length, _) in enumerate(given)]
    program = [(k, size) for _, _, k, size in sorted(moments, key=lambda one: (one[0], -one[1]))]
    first = data.draw(st.integers(0, len(program) - 1))
    least = memsched.place([memsched.Buffer(*one) for one in alive_in(program)]).height
    assert height_repeated(program) == height_repeated(program[first:] + program[:first]) == least


def test_gradients_that_are_dropped_as_the_next_step_begins_make_no_gaps() -> None:
    """They lay at the bottom, which was no address for others while one of them was gone and the next still there."""
    assert height_repeated([(3, 0), (0, 4), (0, 0), (2, 0), (3, 3), (1, 3), (1, 0), (2, 4)]) == 8


def height_repeated(program: list[tuple[int, int]]) -> int:
    """Of a step that asks for bytes, or gives back, with 0, what it or the step before it has asked for."""
    recorder, fresh, held, done = Recorder(), itertools.count(), dict[int, int](), []
    for _ in range(4):
        events = []
        for k, size in program:
            if size:
                held[k] = next(fresh)
            if k in held:
                events.append((held[k] if size else held.pop(k), size))
        done.append(recorder.step([], events))
    assert done[2] == done[3]
    addresses, placement = placed(done[3], 1, None)
    assert None not in addresses
    return placement.height


def alive_in(program: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Start, end and bytes of the requests of a list that gives all back."""
    begun = {k: (moment, size) for moment, (k, size) in enumerate(program) if size}
    return [(begun[k][0], moment, begun[k][1]) for moment, (k, size) in enumerate(program) if not size]


def test_what_is_given_back_between_steps_is_free_for_the_next() -> None:
    recorder = Recorder()
    for _ in range(3):
        step = recorder.step([(7, 0)], [(7, 100), (8, 50), (8, 0)])
    addresses, placement = placed(step, 1, None)
    assert addresses == [0, 100]
    assert placement.height == 150


def test_what_the_next_step_asks_for_before_it_is_gone_has_no_address() -> None:
    recorder = Recorder()
    for k in range(3):
        step = recorder.step([], [(k, 100), (k - 1, 0)])
    assert placed(step, 1, None)[0] == [None]
    assert placed(recorder.step([], [(9, 100)]), 1, None)[0] == [None]  # kept for good


# Training.


class Attention(nn.Module):
    """With dropout, views, and weights that are used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.norm, self.query = nn.LayerNorm(width), nn.Linear(width, 3 * width)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        q, k, v = self.query(self.norm(x)).chunk(3, dim=-1)
        x = x + F.dropout(F.scaled_dot_product_attention(q, k, v), 0.1, self.training)
        return F.cross_entropy((x @ self.words.weight.T).flatten(0, 1), ids.flatten())


def attention() -> tuple[nn.Module, tuple[Any, ...]]:
    return Attention(24), (torch.randint(0, 50, (3, 10)),)


def convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    parts = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3))
    return nn.Sequential(*parts, nn.Flatten(), nn.LazyLinear(4)), (torch.randn(2, 3, 12, 12),)


def recurrent() -> tuple[nn.Module, tuple[Any, ...]]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(6, 12, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.cells(x)[0][:, -1]

    return Last(), (torch.randn(4, 7, 6),)


MODELS = {"attention": attention, "convolutions": convolutions, "recurrent": recurrent}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
}


def trained(
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    arena: Arena | None,
    *,
    many: int = 8,
    prepare: Callable[[nn.Module], Any] = lambda model: model,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Losses and parameters after some steps, with an arena or without."""
    torch.manual_seed(0)
    model, args = make()
    model(*args)  # lazy layers
    called = prepare(model)
    opt, losses = optimizer(model.parameters()), []

    def closure() -> Any:
        opt.zero_grad()
        value = called(*args)
        value = value if value.dim() == 0 else value.square().mean()
        value.backward()
        return value

    for _ in range(many):
        if arena is None:
            losses.append(opt.step(closure))
        else:
            with arena:
                losses.append(opt.step(closure))
    return [one.detach() for one in losses], [one.detach().clone() for one in model.parameters()]


def counts(arena: Arena) -> native.Counts:
    assert arena.counts is not None
    return arena.counts


def placement(arena: Arena) -> memsched.Placement:
    assert arena.placement is not None
    return arena.placement


def is_served(arena: Arena) -> bool:
    """All that the last step asked for had its planned address, but for a result that is kept for a step."""
    return counts(arena).planned[0] + counts(arena).let_pass[0] == counts(arena).calls and counts(arena).let_pass[0] < 2


def same(one: tuple[list[torch.Tensor], ...], other: tuple[list[torch.Tensor], ...]) -> bool:
    pairs = [pair for x, y in zip(one, other, strict=True) for pair in zip(x, y, strict=True)]
    return all(torch.equal(a.nan_to_num(3), b.nan_to_num(3)) for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_has_the_same_bits(name: str, optimizer: str) -> None:
    """Though all losses are kept with their graphs' leaves, and what is given back is NaN."""
    arena = Arena()
    found = trained(MODELS[name], OPTIMIZERS[optimizer], arena)
    assert same(found, trained(MODELS[name], OPTIMIZERS[optimizer], None))
    assert counts(arena).planned[0] > 0.9 * counts(arena).calls
    assert counts(arena).strange == (0, 0)
    assert counts(arena).damaged == 0
    assert placement(arena).height == placement(arena).load


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_networks_train_with_the_same_bits(case: Any) -> None:
    def outputs(model: nn.Module) -> Any:
        def call(*args: Any) -> Any:
            found = [one for one in torch.utils._pytree.tree_leaves(model(*args)) if isinstance(one, torch.Tensor)]
            return sum(one.float().square().mean() for one in found if one.is_floating_point())

        return call

    def step(arena: Arena | None) -> Any:
        return trained(case.make, OPTIMIZERS["SGD"], arena, many=6, prepare=outputs)

    arena = Arena()
    assert same(step(arena), step(None))
    assert counts(arena).damaged == 0


@pytest.mark.parametrize("budget", ["100%", "60%"])
def test_planned_steps(budget: str) -> None:
    """The height of the arena is what the plan holds beside what stays, and a little of kernels and rounding."""

    def prepare(model: nn.Module) -> Any:
        return torch.compile(model, backend="memsched", options={"budget": budget}, dynamic=False)

    plain, arena = Arena(), Arena()
    expected = trained(attention, OPTIMIZERS["AdamW"], plain)
    found = trained(attention, OPTIMIZERS["AdamW"], arena, prepare=prepare)
    assert same(found, expected)
    assert counts(arena).strange == (0, 0)
    assert placement(arena).height <= placement(plain).height


def test_a_step_that_updates_takes_less() -> None:
    """Updates as early as gradients are there: the arena is lower than that of the plain step."""
    torch.manual_seed(0)
    sizes = [3, 16, 32, 64, 128]
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for a, b in itertools.pairwise(sizes)
    ]
    model, x = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)), torch.randn(1, 3, 32, 32)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(found: Any) -> Any:
        return found.square().mean()

    plain, ours = Arena(), Arena()
    for _ in range(5):
        with plain:
            opt.zero_grad()
            loss(model(x)).backward()
            opt.step()
    opt.zero_grad()
    plan = memsched.torch.plan_step(model, (x,), loss, budget="100%", optimizer=opt, update=True)
    for _ in range(5):
        with ours:
            plan.step(x)
    assert placement(ours).height < 0.85 * placement(plain).height


# Steps that come otherwise.


def small(size: int = 64) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[int], torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, size), nn.Tanh(), nn.Linear(size, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: int) -> torch.Tensor:
        opt.zero_grad()
        found: torch.Tensor = model(torch.ones(batch, 8))
        found.square().mean().backward()
        opt.step()
        return found

    return model, opt, step


def served(arena: Arena, step: Callable[[int], Any], batch: int = 16) -> Any:
    for _ in range(5):
        with arena:
            found = step(batch)
    assert placement(arena).height > 0
    return found


def test_results_that_are_kept_stay_as_they_are() -> None:
    """Longer than when addresses were planned: the place is taken then, and another allocator serves."""
    _, _, step = small()
    arena, kept = Arena(), []
    served(arena, step)
    for _ in range(4):
        with arena:
            kept.append(step(16))
    was = [one.detach().clone() for one in kept]
    for _ in range(4):
        with arena:
            step(16)
    assert all(torch.equal(one, other) for one, other in zip(kept, was, strict=True))
    assert counts(arena).damaged == 0


def test_another_size_is_served_by_pytorch_and_told_once() -> None:
    _, _, step = small()
    arena = Arena()
    served(arena, step)
    with (
        pytest.warns(UserWarning, match=r"another one than was placed: PyTorch's own allocator served \d+ of its"),
        arena,
    ):
        step(7)
    with arena:
        step(7)
    with arena:
        step(16)
    assert counts(arena).strange == (0, 0)


def test_an_error_within_a_step() -> None:
    _, _, step = small()
    arena = Arena()
    served(arena, step)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), arena:
        step(16) @ torch.ones(3, 3)
    gc.collect()  # what the traceback holds
    for _ in range(2):
        with arena:
            step(16)
    assert is_served(arena)


def test_one_at_a_time() -> None:
    """Another one that begins, in this thread or another, ends the step."""
    _, _, step = small()
    one, other = Arena(), Arena()
    served(one, step)
    served(other, step)
    with one:
        with other:
            step(16)
        outside = step(16)
    assert is_served(other)
    with one:
        thread = threading.Thread(target=lambda: served(other, step))
        thread.start()
        thread.join()
        step(16)
    assert is_served(other)
    with one:
        step(16)
    assert is_served(one)
    one.__exit__(None, None, None)
    del outside


def test_entered_here_and_left_there() -> None:
    _, _, step = small()
    arena = Arena()
    served(arena, step)
    arena.__enter__()
    thread = threading.Thread(target=arena.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    step(16)
    assert counts(arena).calls == 0


def test_an_arena_that_is_gone_while_it_serves() -> None:
    _, _, step = small()
    arena = Arena()
    served(arena, step)
    arena.__enter__()
    found = step(16)
    was = found.detach().clone()
    del arena
    gc.collect()
    for _ in range(3):
        step(16)
    assert torch.equal(found, was)
    served(Arena(), step)


def test_steps_of_two_kinds_in_turn() -> None:
    _, _, first = small(64)
    _, _, second = small(48)
    arenas = Arena(), Arena()
    for _ in range(6):
        for arena, step in zip(arenas, (first, second), strict=True):
            with arena:
                step(16)
    for arena in arenas:
        assert is_served(arena)


def test_other_threads_are_left_alone() -> None:
    _, _, step = small()
    arena = Arena()
    served(arena, step)
    stop, wrong = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            one = torch.full((1000,), 3.0)
            if not torch.equal(one, torch.full((1000,), 3.0)):
                wrong.append(one)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        with arena:
            step(16)
    stop.set()
    thread.join()
    assert not wrong
    assert is_served(arena)


def test_tensors_outlive_their_arena() -> None:
    _, _, step = small()
    arena = Arena()
    found = served(arena, step)
    was, gone = found.detach().clone(), weakref.ref(arena)
    del arena
    gc.collect()
    assert gone() is None
    assert torch.equal(found, was)
    del found
    _, _, step = small()
    served(Arena(), step)


def test_it_is_not_copied() -> None:
    with pytest.raises(InvalidInputError, match="an Arena is memory of this process"):
        copy.deepcopy(Arena(torch.device("cpu")))


def test_it_says_how_it_is_served() -> None:
    _, _, step = small()
    arena = Arena()
    assert "no two steps in succession have been alike yet" in repr(arena)
    served(arena, step)
    assert "0 B are lost between tensors; 22 of 23 requests in the last step had planned addresses" in repr(arena)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN")
def test_libraries_may_give_memory_back_after_the_step() -> None:
    """They do so through the allocator that is there then."""
    weight, arena, kept = torch.randn(64, 64), Arena(), None
    for _ in range(6):
        with arena:
            del kept
            kept = (weight @ weight).relu().to_mkldnn()
    del kept
    with arena:
        kept = (weight @ weight).relu().to_mkldnn()
    assert torch.equal(kept.to_dense(), (weight @ weight).relu())


def test_memory_that_comes_back_while_events_are_read() -> None:
    """As in a collection of garbage in between: the events are read the next time."""
    library = native.cpu()
    library.take_events()
    library.begin(recorded=True)
    tensors = [torch.ones(16) for _ in range(8)]
    room = library.number_of_events()
    del tensors
    found = (ctypes.c_int64 * (2 * room))()
    assert library.library.arena_take_events(found, room) == room == 8
    assert [nbytes for _, nbytes in library.take_events()] == [0] * 8
    library.end()


FORKED = """
import os, threading, torch, memsched.torch
arena, kept = memsched.torch.Arena(), []

def step():
    x = torch.ones(30_000, requires_grad=True)
    y = x
    for _ in range(50):
        y = y + 1  # waits for no other thread within the backward
    y.sum().backward()
    kept.append(y)

def child():
    kept.clear()  # gives back what was made in steps
    for _ in range(3):
        with memsched.torch.Arena():
            step()
    return memsched.torch.arena.native.cpu().number_of_events()

def run(fork):
    pid = fork()
    if pid == 0:
        os._exit(0 if child() >= 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

with arena:  # in the thread that steps
    step()
    run(os.fork)
stop = threading.Event()

def forks():
    for _ in range(20):
        run(os.fork)
    stop.set()

thread = threading.Thread(target=forks)
thread.start()
while not stop.is_set():
    with arena:
        step()
    del kept[5:]
thread.join()
print("done")
"""


def test_processes_may_be_forked_within_steps() -> None:
    """No lock is held in them, and no step goes on."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "done\n", done.stderr


def test_steps_that_never_repeat_are_let_alone() -> None:
    _, _, step = small()
    arena = Arena()
    for k in range(31):
        with arena:
            step(k + 1)
    with pytest.warns(UserWarning, match="no two steps in succession have been alike in 32"), arena:
        step(32)
    was = arena.counts
    for _ in range(4):
        with arena:
            step(16)
    assert arena.placement is None
    assert arena.counts is was


def test_without_memory_for_an_arena_steps_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> int:
        raise MemoryError

    _, _, step = small()
    arena = Arena()
    monkeypatch.setattr(native.CpuNative, "make", none)
    for _ in range(2):
        with arena:
            step(16)
    with pytest.warns(UserWarning, match=r"there is no memory for an arena of 1[0-9.]+ KiB, so PyTorch's own"), arena:
        step(16)
    with arena:
        step(16)
    assert arena.placement is None
    assert "there is no memory" in repr(arena)


def test_a_step_without_memory() -> None:
    arena = Arena()
    for _ in range(4):
        with arena:
            pass
    assert arena.placement is None


@pytest.mark.parametrize("device", ["tpu", None, 3])
def test_another_device(device: Any) -> None:
    with pytest.raises(InvalidInputError, match="device is"):
        Arena(device)


def test_another_argument() -> None:
    with pytest.raises(InvalidInputError, match="Arena has no argument 'budget'; Arena takes device, time_limit"):
        Arena(budget="1GB")  # type: ignore[call-arg]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_no_gpu() -> None:
    with pytest.raises(MemschedError, match="no GPU is there for an arena on 'cuda'"):
        Arena("cuda")


def compiled_in(home: Path, code: str = "", **more: str) -> str:
    """What a process says that makes an arena, with caches of its own."""
    code = f"""
import memsched
try:
    memsched.torch.Arena()
    print(memsched.torch.arena.native.cpu().path)
except memsched.MemschedError as error:
    print(error)
{code}"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "MEMSCHED_CACHE": str(home / "plans"), **more}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_no_compiler(tmp_path: Path) -> None:
    told = compiled_in(tmp_path, CXX="no-such-compiler -O1")
    assert "an arena needs a C++ compiler with C++20, and 'no-such-compiler -O1' failed" in told
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.slow
def test_the_library_is_kept_where_nobody_else_may_write(tmp_path: Path) -> None:
    """And never where plans are, which may be shared. What is damaged is made anew."""
    compiler = f"{os.environ.get('CXX', 'c++')} -g0"
    path = Path(compiled_in(tmp_path, CXX=compiler))
    assert path.parent == tmp_path / "memsched" / "arena"
    before = path.stat().st_mtime_ns
    assert Path(compiled_in(tmp_path, CXX=compiler)) == path
    assert path.stat().st_mtime_ns == before
    path.write_bytes(path.read_bytes()[:4096])
    assert Path(compiled_in(tmp_path, CXX=compiler)) == path
    assert path.stat().st_size > 4096
    assert "which is no command (No closing quotation)" in compiled_in(tmp_path, CXX="c++ '")
    path.parent.chmod(0o777)
    other = Path(compiled_in(tmp_path, CXX=compiler))
    assert tmp_path not in other.parents
    assert not other.parent.exists()  # once that process has ended
