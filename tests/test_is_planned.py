"""`is_planned` says what `selective` would find, sooner; what is proven to have no plan is not searched for."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.planners.graph import selective as module
from memsched.planners.graph.selective import is_planned
from memsched.testing import devices, graphs, repeated_schedules


@given(graphs() | repeated_schedules().map(lambda case: case[0]), devices(), st.floats(0, 1.1), st.booleans())
def test_it_is_what_the_search_finds(graph: ms.Graph, device: ms.Device, share: float, reorder: bool) -> None:
    memory = max(1, int(share * ms.peak_memory(graph)))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex, host_memory=device.host_memory)
    found = False
    with contextlib.suppress(ms.InfeasibleError):
        found = bool(ms.selective(graph, device=device, moves=0, reorder=reorder))
    assert is_planned(graph, device, reorder=reorder) == found


def test_what_no_plan_fits_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ms.whole_step(ms.profiles.load("resnet18-224-b32"), states=2, update_time="900 GB/s")
    device = ms.Device(ms.min_memory(graph, "selective"), 1e9, host_memory=2**20)  # its weights and states do not fit
    monkeypatch.setattr(module._core, "selective", None)  # which would fail
    assert not is_planned(graph, device, reorder=True)
    with pytest.raises(ms.InfeasibleError, match="no plan exists: what must be held does not fit"):
        ms.selective(graph, device=device)
