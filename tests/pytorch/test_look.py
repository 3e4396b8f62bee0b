"""Looking at a step leaves no trace, whatever the model does, and sees the step that is trained."""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import memsched.torch as mt
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.torch import CaptureError
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.meter import Meter
from memsched.torch.module_state import unchanged
from memsched.torch.profile import profile

WIDTH = 32
TABLES: dict[int, torch.Tensor] = {}
CALLS: list[int] = []

Middle = Callable[[Any, torch.Tensor], Any]


@pytest.fixture(autouse=True)
def _empty() -> None:
    TABLES.clear()
    CALLS.clear()


class Odd(nn.Module):
    """Some layers, and a forward of its own."""

    def __init__(self, middle: Middle) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)))
        self.middle = middle
        self.tables = [torch.randn(WIDTH), {"a": torch.randn(WIDTH)}]
        self.cache: dict[str, torch.Tensor] = {}
        self.calls = 0
        self.register_buffer("average", torch.zeros(WIDTH))
        self.turn = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))
        self.__dict__["own"] = self
        self.weak = weakref.ref(self.net)
        self.function = lambda x: self.net(x)

    def forward(self, x: torch.Tensor) -> Any:
        return self.middle(self, x)


@functools.lru_cache
def table(count: int) -> torch.Tensor:
    return torch.arange(count).float() / count


@dataclass
class Answer:
    """No container that PyTorch knows."""

    value: torch.Tensor
    number: int = 3


def tensors_among_attributes(self: Any, x: Any) -> Any:
    return self.net(x) * self.tables[0] + self.tables[1]["a"]


def table_of_a_function(self: Any, x: Any) -> Any:
    return self.net(x) + table(WIDTH)


def table_among_globals(self: Any, x: Any) -> Any:
    if WIDTH not in TABLES:
        TABLES[WIDTH] = torch.ones(WIDTH) * 2
    return self.net(x) * TABLES[WIDTH]


def table_of_its_own(self: Any, x: Any) -> Any:
    if "t" not in self.cache:
        self.cache["t"] = torch.ones(WIDTH) * 3
    return self.net(x) * self.cache["t"]


def counter(self: Any, x: Any) -> Any:
    self.calls += 1
    CALLS.append(1)
    return self.net(x)


def moving_average(self: Any, x: Any) -> Any:
    y = self.net(x)
    with torch.no_grad():
        self.average.lerp_(y.mean(0), 0.1)
    return y - self.average


def side_result(self: Any, x: Any) -> Any:
    y = self.net(x)
    self.aux = y.square().mean()
    return y


def complex_results(self: Any, x: Any) -> Any:
    return self.net(x) * self.turn


def data_class(self: Any, x: Any) -> Any:
    return Answer(self.net(x))


def inner_gradient(self: Any, x: Any) -> Any:
    w = torch.ones(WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad((w * 2).sum(), w)
    return self.net(x) * gradient


def weak_reference(self: Any, x: Any) -> Any:
    return self.weak()(x)


def cycle(self: Any, x: Any) -> Any:
    return self.own.net(x)


def closure(self: Any, x: Any) -> Any:
    return self.function(x)


def checkpoints(self: Any, x: Any) -> Any:
    return checkpoint(self.net, x, use_reentrant=False)


def partly_without_gradients(self: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = self.net(x).abs().max()
    return self.net(x) / scale


def writes_in_place(self: Any, x: Any) -> Any:
    y = self.net(x)
    y[:, :4] = 0
    return y.add_(1)


def writes_to_its_input(self: Any, x: Any) -> Any:
    x.add_(1)
    return self.net(x)


def views(self: Any, x: Any) -> Any:
    y = self.net(x)
    return y, y[0], y.t(), x


def returns_a_parameter(self: Any, x: Any) -> Any:
    return self.net(x), self.net[0][0].weight


def empty_result(self: Any, x: Any) -> Any:
    return self.net(x)[:0], self.net(x)


def python_chance(self: Any, x: Any) -> Any:
    return self.net(x) if random.random() < 2 else x


MIDDLES = [
    tensors_among_attributes,
    table_of_a_function,
    table_among_globals,
    table_of_its_own,
    counter,
    moving_average,
    side_result,
    complex_results,
    data_class,
    inner_gradient,
    weak_reference,
    cycle,
    closure,
    checkpoints,
    partly_without_gradients,
    writes_in_place,
    writes_to_its_input,
    views,
    returns_a_parameter,
    empty_result,
    pytest.param(
        python_chance,  # of which PyTorch 2.14 makes a graph
        marks=pytest.mark.filterwarnings("ignore:a part of the model runs without a plan.*nothing in it needs a grad"),
    ),
]


def seen(middle: Middle, **options: Any) -> tuple[Odd, tuple[torch.Tensor], mt.TorchPlan]:
    torch.manual_seed(0)
    model, args = Odd(middle).train(), (torch.randn(16, WIDTH),)
    try:
        plan = mt.plan(model, args, budget="50%", device="v100:pcie3", **options)
    except InfeasibleError:
        plan = mt.plan(model, args, budget="100%", device="v100:pcie3", **options)
    return model, args, plan


@pytest.mark.parametrize("middle", MIDDLES)
def test_a_look_leaves_no_trace_and_is_right(middle: Middle) -> None:
    model, args, plan = seen(middle)
    assert (model.calls, CALLS, model.cache, TABLES) == (0, [], {}, {})
    assert not hasattr(model, "aux")
    assert not any(isinstance(one, FakeTensor) for one in (*model.parameters(), *model.buffers(), table(WIDTH)))
    verified = plan.verify(model, args)
    assert verified.peak_memory <= plan.result.schedule.budget
    assert verified.reordered is None
    model(*args)


def test_keywords_and_containers_of_inputs() -> None:
    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, *, given: dict[str, torch.Tensor], other: Any = None) -> Any:
            return {"y": torch.tanh(self.layer(given["x"])), "n": 5, "z": (other,)}

    model, inputs = Keywords(), {"given": {"x": torch.randn(16, WIDTH)}, "other": None}
    plan = mt.plan(model, (), inputs, budget="100%", device="v100:pcie3")
    assert plan.verify(model, (), inputs).reordered is None


class Looking(nn.Module):
    """Its result depends on a value."""

    def __init__(self, way: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(WIDTH, WIDTH), way

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.way(x)


@pytest.mark.parametrize(
    "way", [lambda x: x.sum().item(), lambda x: x[x[:, 0] > 0].sum(), lambda x: 1 if x.sum() else 2]
)
def test_what_depends_on_values_is_named(way: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(CaptureError, match="looks at values"):
        mt.plan(Looking(way), (torch.randn(16, WIDTH),), budget="50%", device="v100:pcie3")


EVERY_LOOK = pytest.mark.parametrize(
    "work",
    [
        lambda model, x: mt.plan(model, (x,), budget="50%"),
        lambda model, x: mt.fit(model, (x,), device="v100"),
        lambda model, x: mt.profile(model, (x,), device="v100"),
        lambda model, x: mt.plan_step(model, (x,), torch.sum, budget="50%"),
    ],
    ids=["plan", "fit", "profile", "plan_step"],
)


@EVERY_LOOK
def test_parameters_without_a_shape_are_named(work: Callable[[nn.Module, torch.Tensor], Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"0\.weight has no shape yet"):
        work(nn.Sequential(nn.LazyLinear(4)), torch.randn(2, 3))


class Aside(nn.Module):
    """A part that torch.compile leaves out, with or without parameters, before or after one that it captures."""

    def __init__(self, part: nn.Module, *, first: bool) -> None:
        super().__init__()
        self.part, self.rest, self.first = part, nn.Linear(16, 16), first

    @torch.compiler.disable
    def aside(self, x: torch.Tensor) -> torch.Tensor:
        out = self.part(x)
        return out[0] if isinstance(out, tuple) else out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.aside(x)) if self.first else self.aside(self.rest(x))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("part", "name"), [(nn.Tanh(), "Tanh"), (nn.Linear(16, 16), "Addmm")], ids=["tanh", "linear"])
def test_what_is_in_no_graph_is_named(part: nn.Module, name: str, first: bool) -> None:
    """A plan of the whole step left it out, and said that it was of the whole process."""
    model, x = Aside(part, first=first), torch.randn(4, 16, requires_grad=True)
    told = f"captures no {name} of Aside, whose backward saves tensors"
    with pytest.raises(CaptureError, match=told):
        mt.plan_step(model, (x,), torch.sum, budget="100%", device="v100", planner="selective")
    with pytest.warns(UnplannedWarning, match=told):
        plan = mt.plan(model, (x,), budget="100%", device="v100")
    assert told in plan.report()


def test_a_number_that_an_operation_in_no_graph_saves_is_no_matter() -> None:
    scaler = torch.amp.GradScaler("cpu")  # whose product PyTorch does not capture
    plan = mt.plan_step(
        nn.Linear(16, 16), (torch.randn(4, 16),), lambda out: scaler.scale(out.square().mean()), budget="100%"
    )
    assert plan.result.peak_memory > 0


def test_a_recurrent_net_is_not_taken_for_its_loss() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    with pytest.raises(CaptureError, match="of Net, whose backward saves tensors"):
        mt.plan_step(Net(), (torch.randn(3, 4, 16),), lambda out: out.square().mean(), budget="100%", device="v100")


@EVERY_LOOK
@pytest.mark.parametrize("kind", ["nested", "sparse_coo", "sparse_csr"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
def test_inputs_whose_bytes_depend_on_values_are_named(work: Callable[[nn.Module, Any], Any], kind: str) -> None:
    dense = torch.randn(4, 4)
    x = {
        "nested": lambda: torch.nested.nested_tensor([dense, dense[:2]], layout=torch.jagged),
        "sparse_coo": dense.to_sparse,
        "sparse_csr": dense.to_sparse_csr,
    }[kind]()
    with pytest.raises(CaptureError, match=rf"Linear is given a .*{kind}.* tensor, whose bytes no plan knows"):
        work(nn.Linear(4, 4), x)


def test_a_failing_forward_is_the_users_own_error_and_leaves_no_trace() -> None:
    def failing(self: Any, x: Any) -> Any:
        CALLS.append(1)
        raise KeyError("mine")

    torch.manual_seed(0)
    with pytest.raises((KeyError, MemschedError), match="mine"):
        mt.plan(Odd(failing), (torch.randn(2, WIDTH),), budget="50%")
    assert CALLS == []
    x = torch.randn(3)
    assert not isinstance(x + 1, FakeTensor)
    assert torch.is_grad_enabled()


BIG: dict[str, torch.Tensor] = {}


def beside_data(self: Any, x: Any) -> Any:
    return self.net(x)


def test_tensors_of_others_are_not_copied() -> None:
    BIG["data"] = torch.zeros(1 << 20)
    model = Odd(beside_data)
    model.cache["own"] = torch.zeros(1 << 10)
    peaks = []
    for tensors in (True, False):
        with Meter() as meter, unchanged(model, tensors=tensors):
            pass
        peaks.append(meter.peak)
    del BIG["data"]
    assert 1 << 12 <= peaks[0] < 1 << 13
    assert peaks[1] == 0


def test_the_loss_of_a_data_class_is_counted() -> None:
    @dataclass
    class Output:
        logits: torch.Tensor
        again: torch.Tensor

    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            logits = super().forward(x).tanh()
            return Output(logits, logits)

    model, x = Model(8, 8), torch.randn(64, 8)
    without = mt.plan(model, (x,), budget="100%")
    with_loss = mt.plan(
        model, (x,), budget="100%", loss=lambda one: (one.logits * one.again).exp().log().exp().exp().exp().sum()
    )
    assert with_loss.peak_memory > without.peak_memory + 64 * 8 * 4


def test_tensors_in_objects_are_not_seen_and_that_is_said() -> None:
    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return Output(super().forward(x).tanh())

    with pytest.raises(InvalidInputError, match="in tuples, lists, dicts and data classes"):
        mt.plan(Model(8, 8), (torch.randn(4, 8),), budget="100%")


def test_modes_around_a_look() -> None:
    """detect_anomaly looks for NaN, and a default device is where tensors are made: both ended in raw errors."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), torch.randn(512, 8)
    with torch.device("meta"):
        chain = profile(model, (x,))
        found = mt.plan(model, (x,), budget="1MiB")
        found.verify(model, (x,))
    with torch.autograd.set_detect_anomaly(True):
        assert mt.plan(model, (x,), budget="1MiB").peak_memory == found.peak_memory
        assert profile(model, (x,)).activation.tolist() == chain.activation.tolist()
        assert torch.is_anomaly_enabled()
    with FakeTensorMode(), pytest.raises(InvalidInputError, match="verify outside of it"):
        found.verify(model, (x,))


def test_the_state_of_an_optimiser_is_measured_without_the_hooks_of_all_optimisers() -> None:
    called: list[str] = []
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: called.append("before")),
        register_optimizer_step_post_hook(lambda *_: called.append("after")),
    ]
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(64, 8)
    optimizer = torch.optim.Adam(model.parameters())
    assert mt.plan(model, (x,), budget="1MiB", optimizer=optimizer).resident.optimizer == 2 * 4 * 72 + 8
    assert called == []
    model(x).sum().backward()
    optimizer.step()
    assert called == ["before", "after"]
    for hook in hooks:
        hook.remove()
    optimizer.step()
    assert called == ["before", "after"]


class Broken(nn.Module):
    """A graph break: PyTorch compiles the code of its own forward, which all instances share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        torch._dynamo.graph_break()
        return self.second(y).tanh().sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch: of what comes from another graph
def test_looks_count_for_no_limit_of_pytorchs() -> None:
    """After eight of them training had no plan, in silence."""
    torch._dynamo.reset()
    peaks = [mt.plan(Broken(), (torch.randn(8 + k, WIDTH),), budget="1GB").plan.peak_memory for k in range(9)]
    assert len(set(peaks)) == 9
    for k in range(9):
        model, x = Broken(), torch.randn(8 + k, WIDTH)
        mt.plan(model, (x,), budget="1GB").apply(model)
        before = len(mt.plans())
        model(x).backward()
        assert len(mt.plans()) > before
    model = Broken()
    step = torch.compile(model, backend="memsched", options={"budget": "1GB"})
    before = len(mt.plans())
    step(torch.randn(40, WIDTH)).backward()
    assert len(mt.plans()) > before
