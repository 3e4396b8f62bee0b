"""Functions of which Dynamo captures nothing reach no backend: a warning tells of them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_compiled_models import made_since
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import memsched.torch as mt
from memsched.errors import InfeasibleError
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.meter import Meter


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)).relu()


class Looking(nn.Module):
    """Looks at values within a loop."""

    def __init__(self, layer: type[nn.Module] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() if layer is Layer else nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 0:
                x = x * 0.5
        return x


def trained(model: nn.Module, backend: str, **more: Any) -> list[str]:
    """What is said."""
    torch._dynamo.reset()
    x = torch.randn(64, 32)
    compiled = torch.compile(model, backend=backend, **more)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = compiled(x)
    assert torch.equal(found, model(x))
    found.sum().backward()
    return [str(one.message) for one in told if one.category is UnplannedWarning]


SAID = (
    r"no graph that has .*; it captures nothing of (Looking\.)?forward \(.*test_uncaptured\.py:\d+\) but functions .*"
)
SAID += r"data-dependent"


@pytest.mark.parametrize("layer", [Layer, nn.Linear])
def test_a_look_within_a_loop_is_told(layer: type[nn.Module]) -> None:
    known = mt.plans()
    model = Looking(layer)
    x = torch.randn(64, 32)
    with pytest.warns(UnplannedWarning, match=SAID):
        found = torch.compile(model, backend="memsched", options={"budget": "90%"})(x)
    assert torch.equal(found, model(x))
    found.sum().backward()
    assert bool(made_since(known)) == (layer is Layer)  # PyTorch captures functions of others, not its own


class Breaking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x * 0.5


class Wrapped(nn.Module):
    """Its forward calls a container, as many do."""

    def __init__(self) -> None:
        super().__init__()
        parts = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), Breaking()) for _ in range(2)]
        self.body = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return found


@pytest.mark.parametrize("model", [Wrapped, lambda: Wrapped().body])
def test_a_break_within_a_container_is_told_for_each_model(model: Callable[[], nn.Module]) -> None:
    """PyTorch then captures none of its own modules: all of it trained without a plan, in silence."""
    for _ in range(2):
        said = trained(model(), "memsched", options={"budget": "90%"})
        (one,) = said
        assert re.search(r"no graph that has .*Addmm.*; it breaks the graph at .*test_uncaptured.py:\d+: User-ins", one)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Breaking(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_break_that_leaves_graphs_is_not_told() -> None:
    """Breaks in a module and between modules of one's own: what is around them is captured."""
    within = nn.ModuleDict({"first": Layer(), "then": Breaking(), "last": Layer()})

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = within

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.parts["first"](x)
            x = self.parts["then"](x)
            found: torch.Tensor = self.parts["last"](x)
            return found

    for model in (Outer(), Stack()):
        said = trained(model, "memsched", options={"budget": "100%"})
        assert said == []


def hooked(module: nn.Module) -> nn.Module:
    module.register_full_backward_hook(lambda *_: None)
    return module


class Inner(nn.Module):
    """A module in the middle of a captured one."""

    def __init__(self, inner: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(32, 32), inner, nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.inner(torch.tanh(self.first(x))))
        return found


@torch.compiler.disable  # type: ignore[untyped-decorator]
def disabled(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def with_variance(x: torch.Tensor) -> torch.Tensor:
    return x + nn.functional.gaussian_nll_loss(x, torch.zeros_like(x), torch.exp(x), reduction="none")


def aligned(x: torch.Tensor) -> torch.Tensor:
    labels = torch.ones(8, 2, dtype=torch.long)
    return x + nn.functional.ctc_loss(x.view(8, 8, 32).log_softmax(2), labels, (8,) * 8, (2,) * 8)


def printed(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return torch.sin(x)


OUTSIDE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hooked": (lambda: Inner(hooked(nn.Sequential(nn.Linear(32, 32), nn.GELU()))), r"Addmm.*backwards hooks require"),
    "all hooked": (lambda: hooked(nn.Sequential(nn.Linear(32, 32), nn.GELU())), r"Addmm.*backwards hooks require"),
    "traced": (lambda: Inner(torch.jit.trace(Layer(), torch.zeros(64, 32))), r"Addmm"),
    "disabled": (lambda: Inner(disabled), r"Sin; it breaks the graph at .*torch\.compiler\.disable"),
    "gaussian": (lambda: Inner(with_variance), r"Log.*_local_scalar_dense"),
    "ctc": (lambda: Inner(aligned), r"CtcLoss.*; it breaks the graph at .*_ctc_loss"),
}


@pytest.mark.filterwarnings("ignore:.torch.jit", "ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", OUTSIDE)
def test_operations_outside_of_graphs_are_told(name: str) -> None:
    """Hooks, TorchScript and some operations break the graph, and what PyTorch then calls by itself had no word."""
    model, said = OUTSIDE[name]
    for expected in (1, 0):  # once, as the second call compiles nothing
        found = trained(model(), "memsched", options={"budget": "100%"}) if expected else []
        assert len(found) == expected
        assert re.search(f"captures no graph that has .*{said}", found[0]) if expected else True


@pytest.mark.parametrize("inner", [printed, torch.sin, hooked(Layer())])
def test_where_graphs_have_all_nothing_is_told(inner: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert trained(Inner(inner), "memsched", options={"budget": "100%"}) == []


@dataclasses.dataclass
class Odd:
    tensor: torch.Tensor
    unset: int = dataclasses.field(init=False)


def endless(x: torch.Tensor) -> list[Any]:
    found: list[Any] = [x]
    found.append(found)
    return found


class Returning(nn.Module):
    def __init__(self, made: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.body, self.made = Inner(printed), made

    def forward(self, x: torch.Tensor) -> Any:
        return self.made(self.body(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("made", [Odd, endless])
def test_odd_results_are_returned(made: Callable[[torch.Tensor], Any]) -> None:
    torch._dynamo.reset()
    found = torch.compile(Returning(made), backend="memsched", options={"budget": "100%"})(torch.randn(64, 32))
    (found.tensor if made is Odd else found[0]).sum().backward()


def test_what_is_compiled_no_more_is_told() -> None:
    """PyTorch compiles a function so many times, and then runs it as it is."""
    torch._dynamo.reset()
    model = torch.compile(Layer(), backend="memsched", options={"budget": "100%"}, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in (8, 16):
            model(torch.randn(size, 32)).sum().backward()
        with pytest.warns(UnplannedWarning, match=r"graph that has Addmm, Tanh.*recompile_limit \(2\) is reached"):
            model(torch.randn(24, 32)).sum().backward()
        model(torch.randn(8, 32)).sum().backward()


def test_another_warning_hides_none() -> None:
    """A part that needs no gradient is told of, too."""

    def logged(x: torch.Tensor) -> torch.Tensor:
        x = disabled(x)
        x.detach().mul(100).mean().item()
        return torch.tanh(x)

    said = trained(Inner(logged), "memsched", options={"budget": "100%"})
    assert any("captures no graph that has Sin" in one for one in said), said


def test_what_the_caller_computes_is_none_of_its_business() -> None:
    torch._dynamo.reset()
    x = torch.randn(64, 32, requires_grad=True).sin()
    model = torch.compile(Inner(printed), backend="memsched", options={"budget": "100%"})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (model(x).sin() + x.exp()).sum().backward()
    assert [one for one in said if one.category is UnplannedWarning] == []


def test_a_function_given_up_is_told_without_gradients_too() -> None:
    """PyTorch does not try it again in training."""
    torch._dynamo.reset()
    model = torch.compile(Looking(nn.Linear), backend="memsched", options={"budget": "90%"})
    with torch.no_grad(), pytest.warns(UnplannedWarning, match=r"captures nothing of (Looking\.)?forward"):
        model(torch.randn(64, 32))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:Using .torch.compile.module.. when there are global hooks")
@pytest.mark.parametrize("mode", [Watching, lambda: FlopCounterMode(display=False)])
def test_a_step_under_a_mode_is_told(mode: Callable[[], TorchDispatchMode]) -> None:
    """PyTorch runs nothing there that it compiled, and does not say so."""
    layers, x = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)], torch.randn(256, 64)
    model = nn.Sequential(*layers)
    run = torch.compile(model, backend="memsched", options={"budget": "40%"})
    run(x).sum().backward()
    followed = mt.plans()[-1]
    with mode():
        with pytest.warns(UnplannedWarning, match="under a TorchDispatchMode"):
            run(x).sum().backward()
        run(x).sum().backward()  # told once
    with Meter() as meter:  # is a mode, too
        run(x).sum().backward()
    assert meter.peak > followed.peak_memory - followed.resident.total
    run(x).sum().backward()


def test_other_backends_are_none_of_its_business() -> None:
    assert trained(Looking(nn.Linear), "aot_eager") == []


def test_after_a_reset_it_still_hears() -> None:
    torch._dynamo.reset()
    with pytest.warns(UnplannedWarning, match=SAID):
        torch.compile(Looking(nn.Linear), backend="memsched", options={"budget": "90%"})(torch.randn(64, 32))


def test_where_warnings_are_errors_pytorch_is_left_in_order() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Looking(nn.Linear)
        torch.compile(model, backend="memsched", options={"budget": "90%"})(torch.randn(64, 32)).sum().backward()
    torch._dynamo.reset()  # which asserts that no callback is pending
    test_after_a_reset_it_still_hears()


def test_an_error_that_somebody_handles_is_not_ours() -> None:
    """Under one of another compilation, or of fullgraph, nothing is unplanned."""
    x = torch.randn(64, 32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            torch.compile(Looking(nn.Linear), backend="eager", fullgraph=True)(x)
        except torch._dynamo.exc.Unsupported:
            model = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
            torch.compile(model, backend="memsched", options={"budget": "100%"})(x).sum().backward()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(Looking(nn.Linear), backend="memsched", options={"budget": "90%"}, fullgraph=True)(x)
    assert [one for one in told if one.category is UnplannedWarning] == []


def test_a_break_outside_of_loops_is_captured_in_parts() -> None:
    def looking(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        if y.sum() > 1e9:
            y = y * 0.5
        return torch.tanh(y)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.compile(looking, backend="memsched", options={"budget": "100%"})(
            torch.randn(64, 32, requires_grad=True)
        ).sum().backward()
    assert not any(re.search("captures nothing", str(one.message)) for one in told)


class Broken(nn.Module):
    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.layers, self.breaks = nn.ModuleList(nn.Linear(32, 32) for _ in range(6)), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:3]:
            x = layer(x).tanh()
        if self.breaks:
            torch._dynamo.graph_break()
        for layer in self.layers[3:]:
            x = layer(x).tanh()
        return x


def test_only_what_breaks_a_graph_of_the_step_is_named() -> None:
    """The first break of the process was, whose ever it was: here of another model with the same options."""
    x = torch.randn(512, 32)

    def told(budget: int, *models: nn.Module) -> list[str]:
        torch._dynamo.reset()
        options: dict[str, Any] = {"budget": budget, "device": "v100"}
        calls = [torch.compile(model, backend="memsched", options=options) for model in models]
        with warnings.catch_warnings(record=True) as heard, contextlib.suppress(InfeasibleError):
            warnings.simplefilter("always")
            for _ in range(2):
                sum(call(x).sum() for call in calls).backward()
                for model in models:
                    model.zero_grad()
        return [str(one.message) for one in heard if "first ran together" in str(one.message)]

    def first_told(*breaks: bool) -> str:
        budgets = range(480_000, 800_000, 10_000)
        found = (told(budget, *(Broken(breaks=one) for one in breaks)) for budget in budgets)
        return next(said[0] for said in found if said)

    one, other = first_told(True), first_told(False, False)
    assert re.search(r"PyTorch breaks the graph at .*test_uncaptured\.py:\d+: User-inserted graph break", one)
    assert "break" not in other
