"""Recorded steps: their bytes against a slow meter and against PyTorch's own allocator."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.torch.recorder.assemble import assemble
from memsched.torch.recorder.record import record_all
from pytorch.allocator import allocator_peak
from pytorch.recorder_reference import SlowMeter
from pytorch.recorder_steps import ADAMW, ALL, SGD, Case, Residual, plain_run, prepared, taped


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
