"""The bound by pauses: between two ops that run once, what the second reads must come."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.testing import chains, devices, graphs
from memsched.validation.bounds import Facts, ancestors, descendants
from memsched.validation.pauses import passes, pause, pauses_to_come, until
from oracles.exhaustive import least_makespan

CHAIN = ms.Chain([2, 1], [1, 1], [1, 1, 1], [2, 2, 1], saved=[6, 3])


def limited(chain: ms.Chain, device: ms.Device, share: float) -> tuple[ms.Graph, ms.Device]:
    graph = ms.to_graph(chain)
    memory = max(1, int(share * ms.peak_memory(graph)))
    return graph, ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex)


def test_by_hand() -> None:
    """B2 leaves no room for the 5 bytes of tape1, which take 10 seconds to fetch, and F1 runs again in 2.

    All ops take 5 seconds. The bound for parts of tensors is 5.33, and the best plan takes 7.
    """
    graph, device = ms.to_graph(CHAIN), ms.Device(11, 0.5, duplex=True)
    names = [op["name"] for op in graph.ops]
    facts = Facts(graph.to_json(), device.to_json())
    assert names == ["F1", "F2", "loss", "B2", "B1"]
    assert passes(facts) == [0, 1, 2, 3, 4]
    assert pause(facts, names.index("B2")) == 2.0
    assert _core.pause_bound(graph, device, device.memory) == (7.0, names.index("B2"))
    assert _core.cut_bound(graph, device, device.memory)[0] == pytest.approx(16 / 3)
    found = least_makespan(graph.to_json(), device.memory, device.to_json(), any_plan=True)
    assert found is not None
    assert found.makespan == 7.0
    best = ms.plan(CHAIN, device=device)
    assert best.optimal
    assert best.lower_bound == 7.0
    assert ms.validate(best).optimal


@given(graphs(), devices())
def test_passes_are_in_order_with_all_others(graph: ms.Graph, device: ms.Device) -> None:
    facts = Facts(graph.to_json(), device.to_json())
    count = len(graph.ops)
    expected = [
        op
        for op in range(count)
        if ancestors(facts, op) == set(range(op)) and descendants(facts, op) == set(range(op + 1, count))
    ]
    assert passes(facts) == expected


@given(chains(), devices(), st.floats(0, 1))
def test_the_validator_derives_what_the_core_says(chain: ms.Chain, device: ms.Device, share: float) -> None:
    graph, device = limited(chain, device, share)
    seconds, op = _core.pause_bound(graph, device, device.memory)
    facts = Facts(graph.to_json(), device.to_json())
    own, rest = pauses_to_come(facts)
    assert own == op
    if op < 0:
        assert seconds == 0
        return
    head = ms.Graph.from_json(until(graph.to_json(), op))
    expected = _core.cut_bound(head, device, device.memory)[0] + rest
    assert seconds == expected or math.isclose(seconds, expected, rel_tol=1e-9)


def lined(draw: st.DrawFn) -> ms.Graph:
    """A line of ops that may run again, and then of ops that run once and read what those have written."""
    tensors = [{"name": "x", "size": draw(st.integers(0, 2)), "role": "input"}]
    ops, last = [], "x"
    for k in range(first := draw(st.integers(1, 2))):
        tape = {f"tape{k}"} if draw(st.booleans()) else set[str]()
        names = [f"a{k}", *tape]
        tensors += [{"name": name, "size": draw(st.integers(0, 5)), "role": "activation"} for name in names]
        ops.append({"reads": [last], "writes": names, "tape": sorted(tape), "phase": "fwd", "once": False})
        last = f"a{k}"
    made = [tensor["name"] for tensor in tensors]
    for k in range(2):
        reads = {last, *(name for name in made if draw(st.booleans()))}
        tensors.append({"name": f"d{k}", "size": draw(st.integers(0, 3)), "role": "gradient"})
        ops.append({"reads": sorted(reads), "writes": [f"d{k}"], "phase": "bwd", "once": True})
        last = f"d{k}"
    for k, op in enumerate(ops):
        times = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=2))
        choices = [{"alg": f"{n}", "time": time, "workspace": work} for n, (time, work) in enumerate(times)]
        op |= {"name": f"o{k}", "kind": "op", "layer": min(k, first), "choices": choices}
    header = {"format": "memsched-graph/1", "name": "lined", "batch": 1, "resident": 0}
    return ms.Graph.from_json({**header, "tensors": tensors, "ops": ops})


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.composite(lined)(), devices(), st.floats(0, 0.5), st.none() | st.integers(0, 9))
def test_no_plan_is_faster(graph: ms.Graph, device: ms.Device, share: float, host: int | None) -> None:
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    memory = max(1, int(least + share * (peak - least)))
    device = ms.Device(memory, d2h=device.d2h, h2d=device.h2d, duplex=device.duplex, host_memory=host)
    seconds, op = _core.pause_bound(graph, device, memory)
    assume(op >= 0)
    below = math.inf if seconds == math.inf else seconds * (1 - 1e-9)
    try:
        found = least_makespan(graph.to_json(), memory, device.to_json(), any_plan=True, below=below, max_states=4000)
    except RuntimeError:
        assume(False)
    assert found is None
