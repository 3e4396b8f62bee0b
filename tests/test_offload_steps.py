"""Where the prefetches of a set stand, against a walk that moves them one op at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.testing import chains, graphs

Steps = list[dict[str, Any]]


def fits(graph: ms.Graph, steps: Steps, budget: int) -> bool:
    """Whether a list holds at most `budget` bytes at every run."""
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    ops = {op["name"]: op for op in graph.ops}
    written = {name for op in graph.ops for name in op["writes"]}
    held = graph.resident + sum(bytes_ for name, bytes_ in size.items() if name not in written)
    for step in steps:
        if "run" in step:
            op = ops[step["run"]]
            held += sum(size[name] for name in op["writes"])
            if held + op["choices"][0]["workspace"] > budget:
                return False
        held += size[step["prefetch"]] if "prefetch" in step else 0
        held -= size[step["free"]] if "free" in step else 0
    return True


def moved(graph: ms.Graph, steps: Steps, budget: int, ahead: int | None) -> Steps | None:
    """The same steps with each prefetch as early as the rule says; None where some run has no room."""
    reads = {op["name"]: op["reads"] for op in graph.ops}
    fetched = [step for step in steps if "prefetch" in step]
    others = [step for step in steps if "prefetch" not in step]
    runs = [k for k, step in enumerate(others) if "run" in step]
    gone = {step["free"]: k for k, step in reversed(list(enumerate(others))) if "free" in step}
    sent = max((k for k, step in enumerate(others) if "offload" in step), default=-1)

    def need(step: dict[str, Any]) -> int:
        """The run that reads it after it was freed, as a number of the runs."""
        name = step["prefetch"]
        return next(r for r, k in enumerate(runs) if k > gone[name] and name in reads[others[k]["run"]])

    needs = [need(step) for step in fetched]
    places = list(needs)

    def whole(count: int) -> Steps:
        """With the first `count` of them where they stand now, and each other one right before its need."""
        made: Steps = []
        r = 0
        for step in others:
            if "run" in step:
                at = [place if i < count else needs[i] for i, place in enumerate(places)]
                made += [one for one, place in zip(fetched, at, strict=True) if place == r]
                r += 1
            made.append(step)
        return made

    if not fits(graph, whole(0), budget):
        return None
    for i, step in enumerate(fetched):
        before = places[i - 1] if i else 0
        down_to = max(before, next((r for r, k in enumerate(runs) if k > max(sent, gone[step["prefetch"]])), len(runs)))
        if ahead is not None:
            places[i] = min(needs[i], max(down_to, needs[i] - ahead))
            continue
        while places[i] > down_to:
            places[i] -= 1
            if not fits(graph, whole(i + 1), budget):
                places[i] += 1
                break
    made = whole(len(fetched))
    return made if fits(graph, made, budget) else None


def plain(steps: Steps) -> Steps:
    return [{verb: step[verb] for verb in ("run", "offload", "prefetch", "free") if verb in step} for step in steps]


@settings(max_examples=4 * settings().max_examples)
@given(
    st.one_of(chains(max_stages=7).map(ms.to_graph), graphs(choices=False)),
    st.integers(0, 2**24),
    st.integers(0, 12),
    st.sampled_from([None, None, 1, 2, 5]),
)
def test_prefetches_stand_where_the_rule_says(graph: ms.Graph, flags: int, more: int, ahead: int | None) -> None:
    """One set, at the least budget with which its list builds, and at more."""
    travels = np.array([flags >> k & 1 for k in range(len(graph.tensors))], np.uint8)
    all_of_it = 1 + graph.resident + sum(tensor["size"] for tensor in graph.tensors)
    all_of_it += max(op["choices"][0]["workspace"] for op in graph.ops)
    try:
        late = plain(_core.offload_set_schedule(graph, all_of_it, travels, {}, None, 0).steps)
    except ms.InvalidInputError:
        return  # a tensor that cannot travel
    budget = next(m for m in range(1, all_of_it + 1) if fits(graph, late, m)) + more
    expected = moved(graph, late, budget, ahead)
    try:
        found = plain(_core.offload_set_schedule(graph, budget, travels, {}, None, ahead).steps)
    except ms.InfeasibleError:
        assert expected is None
        return
    assert found == expected


def test_the_examples_travel() -> None:
    """The walk itself: with room for one of them, the second of two fetches waits for the first one's last reader."""
    graph = ms.to_graph(ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4]))
    travels = np.array([tensor["name"] in ("a0", "a1") for tensor in graph.tensors], np.uint8)
    late = plain(_core.offload_set_schedule(graph, 100, travels, {}, None, 0).steps)
    assert [step for step in late if "prefetch" in step]
    positions = []
    for budget in (100, 16, 12):
        steps = moved(graph, late, budget, None)
        positions.append(None if steps is None else [k for k, step in enumerate(steps) if "prefetch" in step])
    tried = [one for one in positions if one is not None]
    assert len(tried) > 1
    assert all(earlier <= later for earlier, later in pairwise(tried))
