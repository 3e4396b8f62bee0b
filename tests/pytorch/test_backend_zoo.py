"""Real networks under the backend, in float32 and in bfloat16: the bits of plain training, and the counted peak.

The whole grid is for before a release: it takes the better part of an hour on two cores.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memsched.errors import InfeasibleError
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unit import counted
from memsched.torch.meter import Meter
from pytorch.compiled_models import squares
from pytorch.models import CASES, Case
from pytorch.test_compiled_models import Trained, assert_same, assert_within, made_since, record

CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16
BUDGETS = ("20%", "50%", "80%", "100%")
NAMED = {case.name: case for case in CASES}
QUICK = (*("torchvision-alexnet", "torchvision-small_densenet", "transformers-bert", "transformers-t5"),)
SMALL = [
    pytest.param(case.name, marks=() if case.name in ("dict_output", "in_place_batch_norm") else pytest.mark.slow)
    for case in CASES
    if case.family is None
]
STOCK_DIFFERS: dict[torch.dtype | None, set[str]] = {
    None: {"timm-coat_tiny"},
    BFLOAT16: {
        *("dropout_mlp", "position_bias", "tied_weights", "timm-coat_tiny", "torchvision-googlenet"),
        *(f"transformers-{name}" for name in ("bert", "distilbert", "gpt2", "llama", "mistral", "opt", "qwen2", "t5")),
        "transformers-xlm-roberta",
    },
}
"""AOTAutograd adds gradients up in another order than autograd, and its dropout rounds otherwise in bfloat16: there its
own steps without a plan are the referee."""
SEVERAL_GRAPHS = {"transformers-opt", "transformers-qwen2"}
"""Dynamo captures these in several graphs; the first step may need more than the budget."""


class _Copies(TorchDispatchMode):
    """Counts gradients that autograd copies after the backward, as they lie otherwise than their parameters."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.new_empty_strided.default:
            self._meter.count((out,))
        return out


def trained(case: Case, dtype: torch.dtype | None, backend: str | None = None, steps: int = 2, **more: Any) -> Trained:
    """Train a new network with a backend; plainly without one."""
    torch._dynamo.reset()
    model, args = case.make()
    run = model if backend is None else torch.compile(model, backend=backend, **more)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    known, records, peaks = plans(), [], []
    for step in range(steps):
        torch.manual_seed(step + 1)
        optimizer.zero_grad()
        with counted(CPU) as meter:
            with torch.autocast("cpu", dtype=dtype) if dtype is not None else contextlib.nullcontext():
                result = run(*args)
            loss = squares(result)
            with _Copies(meter):
                loss.backward()
        peaks.append(meter.peak)
        optimizer.step()
        records.append(record(model, loss, args))
    return Trained(records, made_since(known), peaks)


def planned(case: Case, dtype: torch.dtype | None, budget: str, steps: int = 2, **options: Any) -> Trained:
    """With a budget, or the next that is enough."""
    for larger in BUDGETS[BUDGETS.index(budget) :]:
        try:
            return trained(case, dtype, "memsched", steps, options={"budget": larger, **options})
        except InfeasibleError:
            continue
    raise AssertionError("the plain step does not fit its own peak")


def referee(case: Case, dtype: torch.dtype | None, steps: int = 2) -> Trained:
    """Plain training, or, where its bits are others, and nowhere else, that of AOTAutograd."""
    plain = trained(case, dtype, None, steps)
    if case.name not in STOCK_DIFFERS[dtype]:
        return plain
    stock = trained(case, dtype, "aot_eager", steps)
    with pytest.raises(AssertionError, match="differs in step"):
        assert_same(plain.records, stock.records)
    return stock


def check(case: Case, wanted: Trained, found: Trained) -> None:
    assert_same(wanted.records, found.records)
    assert (len(found.plans) > 1) == (case.name in SEVERAL_GRAPHS)
    assert_within(found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUICK)
def test_a_step_of_a_network(name: str) -> None:
    case = NAMED[name]
    check(case, referee(case, None, 1), planned(case, None, "20%", 1, device="v100:pcie3", bandwidth=0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [None, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [case.name for case in CASES if case.family is not None])
def test_training_of_each_network(name: str, dtype: torch.dtype | None) -> None:
    case = NAMED[name]
    wanted = referee(case, dtype)
    for budget in BUDGETS[:3]:
        check(case, wanted, planned(case, dtype, budget))
    if dtype is None:  # what moves is the same in all
        check(case, wanted, planned(case, dtype, "20%", bandwidth="1GB/s"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [None, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", SMALL)
def test_training_of_a_small_network(name: str, dtype: torch.dtype | None) -> None:
    case = NAMED[name]
    wanted = referee(case, dtype)
    for options in ({}, {"bandwidth": "1GB/s"}):
        check(case, wanted, planned(case, dtype, "20%", **options))
