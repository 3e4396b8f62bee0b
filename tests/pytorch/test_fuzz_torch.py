"""Damaged plans of PyTorch models are refused by an error of ours, or read and good for all that follows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing.mutate import mutate
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import memsched as ms
from memsched.torch import TorchPlan


@cache
def saved() -> str:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)])
    plan = ms.torch.plan(model, (torch.zeros(2, 8),), budget="100%", device="v100:pcie3")
    return json.dumps(plan.to_json())


def load(text: str) -> TorchPlan:
    """What is read can be shown, and written again."""
    plan = TorchPlan.load(text)
    json.dumps(plan.to_json(), allow_nan=False)
    plan.report()
    return plan


@given(st.integers(0, 2**32))
def test_a_damaged_plan_is_refused_or_good(seed: int) -> None:
    try:
        text = mutate("torch", saved().encode(), saved().encode(), seed).decode()
        if text.lstrip().startswith("{"):
            load(text)
    except (ms.MemschedError, UnicodeDecodeError):
        pass


@pytest.mark.parametrize(
    "changes",
    [
        *({"options": wrong} for wrong in (5, [], {}, {"budget": "nn"}, {"budget": "40%", "shoes": 5})),
        *({"loss": wrong} for wrong in (-1, 1.5, True, None)),
        *({"on": wrong} for wrong in ("nn", "", 5)),
        {"unplanned": [5]},
        {"unplanned": 5},
        {"plan": 5},
        {"plan": {}},
    ],
)
def test_wrong_values_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ms.InvalidInputError):
        TorchPlan.load(json.dumps({**json.loads(saved()), **changes}))


@pytest.mark.parametrize("value", ["1", -1, 1.5, True, None, [1]])
def test_resident_bytes_that_are_none(value: Any) -> None:
    document = json.loads(saved())
    with pytest.raises(ms.InvalidInputError, match="parameters"):
        TorchPlan.load({**document, "resident": {**document["resident"], "parameters": value}})


def test_a_plan_names_no_files(tmp_path: Path) -> None:
    """A result used to be read from any path that stood in its place."""
    document = json.loads(saved())
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document["result"]))
    for wrong in (str(path), path.read_text()):
        with pytest.raises(ms.InvalidInputError, match="object"):
            TorchPlan.load({**document, "result": wrong})
