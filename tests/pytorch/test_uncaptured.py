"""Functions of which Dynamo captures nothing reach no backend: a warning tells of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memsched.torch as mt
from memsched.torch.compiled.unplanned import UnplannedWarning


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


SAID = r"PyTorch captures nothing of (Looking\.)?forward \(.*test_uncaptured\.py:\d+\) but functions that it calls, .*"
SAID += r"data-dependent"


@pytest.mark.parametrize("layer", [Layer, nn.Linear])
def test_a_look_within_a_loop_is_told(layer: type[nn.Module]) -> None:
    before = len(mt.plans())
    model = Looking(layer)
    x = torch.randn(64, 32)
    with pytest.warns(UnplannedWarning, match=SAID):
        found = torch.compile(model, backend="memsched", options={"budget": "90%"})(x)
    assert torch.equal(found, model(x))
    found.sum().backward()
    assert (len(mt.plans()) > before) == (layer is Layer)  # PyTorch captures functions of others, not its own


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
        assert re.search(r"breaks the graph at .*test_uncaptured.py:\d+, within a module of its own", " ".join(said))
        assert "(container.py)" in " ".join(said)


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
        assert not any("module of its own" in one for one in said), said


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
