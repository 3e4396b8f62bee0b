"""Functions of which Dynamo captures nothing reach no backend: a warning tells of them."""

from __future__ import annotations

import re
import warnings
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


def captured() -> None:
    """A model that is captured: where PyTorch has forgotten who listens, this reminds it."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
    torch.compile(model, backend="memsched", options={"budget": "100%"})(torch.randn(64, 32)).sum().backward()


SAID = r"PyTorch captures nothing of (Looking\.)?forward \(.*test_uncaptured\.py:\d+\) but functions that it calls, .*"
SAID += r"data-dependent"


@pytest.mark.parametrize("layer", [Layer, nn.Linear])
def test_a_look_within_a_loop_is_told(layer: type[nn.Module]) -> None:
    captured()
    before = len(mt.plans())
    model = Looking(layer)
    x = torch.randn(64, 32)
    with pytest.warns(UnplannedWarning, match=SAID):
        found = torch.compile(model, backend="memsched", options={"budget": "90%"})(x)
    assert torch.equal(found, model(x))
    found.sum().backward()
    assert (len(mt.plans()) > before) == (layer is Layer)  # PyTorch captures functions of others, not its own


def test_other_backends_are_none_of_its_business() -> None:
    assert trained(Looking(nn.Linear), "aot_eager") == []


def test_after_a_reset_it_hears_again_once_something_is_captured() -> None:
    torch._dynamo.reset()
    captured()
    with pytest.warns(UnplannedWarning, match=SAID):
        torch.compile(Looking(nn.Linear), backend="memsched", options={"budget": "90%"})(torch.randn(64, 32))


def test_where_warnings_are_errors_pytorch_is_left_in_order() -> None:
    captured()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Looking(nn.Linear)
        torch.compile(model, backend="memsched", options={"budget": "90%"})(torch.randn(64, 32)).sum().backward()
    torch._dynamo.reset()  # which asserts that no callback is pending
    test_after_a_reset_it_hears_again_once_something_is_captured()


def test_an_error_that_somebody_handles_is_not_ours() -> None:
    """Under one of another compilation, or of fullgraph, nothing is unplanned."""
    captured()
    x = torch.randn(64, 32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            torch.compile(Looking(nn.Linear), backend="eager", fullgraph=True)(x)
        except torch._dynamo.exc.Unsupported:
            captured()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(Looking(nn.Linear), backend="memsched", options={"budget": "90%"}, fullgraph=True)(x)
    assert [one for one in told if one.category is UnplannedWarning] == []


def test_a_break_outside_of_loops_is_captured_in_parts() -> None:
    captured()

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
