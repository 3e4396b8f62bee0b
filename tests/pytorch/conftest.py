"""Tests of memsched.torch; skipped where torch is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="memsched.torch needs torch, which is not installed")
# The models are small: threads that wait for each other on a busy machine cost more than they bring.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plan, group or compiled code from before; what copies read or leave without content is filled with NaN."""
    monkeypatch.setenv("MEMSCHED_CACHE", "")
    _begin_anew()
    yield
    _begin_anew()


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `fit` plans takes a number of moves, and not seconds, which are many for models as small as those here."""
    from memsched.torch import ways

    plan_within = ways.plan_within

    def planned(graph: Any, device: Any, time_limit: Any, **more: Any) -> Any:
        return plan_within(graph, device, None, **{"moves": 1000, **more})

    monkeypatch.setattr(ways, "plan_within", planned)


def _begin_anew() -> None:
    if "torch._dynamo" in sys.modules:  # it takes seconds to import
        torch._dynamo.reset()
    if "memsched.torch.compiled.group" in sys.modules:
        from memsched.torch.compiled import groups

        groups._GROUPS.clear()  # one whose results are not collected yet would be in the midst of a step
    if "memsched.torch.compiled.copies" in sys.modules:
        from memsched.torch.compiled import copies
        from memsched.torch.lanes import EmulatedLanes

        copies.use(torch.device("cpu"), EmulatedLanes())
