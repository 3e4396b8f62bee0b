"""GREEDY's rule, from section 4.2 of the Euro-Par 2020 paper: the shortest prefix that is enough."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import memsched as ms


@st.composite
def columns(draw: st.DrawFn) -> dict[str, list[int]]:
    """A chain in the form of the paper, which saves nothing but activations."""
    n = draw(st.integers(1, 6))
    size, some = st.integers(1, 9), st.integers(0, 5)
    return {
        "forward_time": draw(st.lists(some, min_size=n, max_size=n)),
        "backward_time": draw(st.lists(some, min_size=n, max_size=n)),
        "activation": draw(st.lists(size, min_size=n + 1, max_size=n + 1)),
        "gradient": draw(st.lists(some, min_size=n + 1, max_size=n + 1)),
        "forward_overhead": draw(st.lists(some, min_size=n, max_size=n)),
        "backward_overhead": draw(st.lists(some, min_size=n, max_size=n)),
    }


@given(columns(), st.floats(0, 1), st.integers(1, 4))
def test_it_offloads_the_first_activations_up_to_what_exceeds_the_memory(
    given_: dict[str, list[int]], share: float, beta: int
) -> None:
    chain, x, y = ms.Chain(**given_), given_["activation"], given_["gradient"]  # type: ignore[arg-type]
    forwards = [scratch + sum(x[: i + 2]) for i, scratch in enumerate(given_["forward_overhead"])]
    backwards = [scratch + y[i] + y[i + 1] + sum(x[: i + 2]) for i, scratch in enumerate(given_["backward_overhead"])]
    peak = max(forwards + backwards)  # M_peak
    assert ms.peak_memory(chain) == peak
    memory = int(ms.min_memory(chain, "greedy") + share * (peak + 1 - ms.min_memory(chain, "greedy")))
    enough = next(k for k in range(len(x) + 1) if sum(x[:k]) >= peak - memory)
    assert set(ms.greedy(chain, memory, beta).offloaded) == {f"a{k}" for k in range(enough)}
