"""Hypothesis strategies for chains and devices."""

from __future__ import annotations

from math import inf
from typing import Any

from hypothesis import strategies as st

from memsched._core import Chain, Device
from memsched.testing.arguments import checked
from memsched.testing.exact import paper_sizes


@checked(max_stages=1, max_bytes=0, max_time=0, min_bytes=0)
@st.composite
def chains(
    draw: st.DrawFn,
    *,
    max_stages: int = 8,
    max_bytes: int = 9,
    max_time: int = 6,
    min_bytes: int = 0,
    integer_times: bool = True,
    paper_form: bool = False,
) -> Chain:
    """Draw a small chain.

    Parameters
    ----------
    max_stages
        Largest number of stages.
    max_bytes, min_bytes
        Bounds of each activation; gradients, overheads and tapes are between 0 and `max_bytes`.
    max_time
        Largest duration of an op, in seconds.
    integer_times
        Whole seconds only, so that sums of durations are exact.
    paper_form
        saved == activation[1:] and no resident bytes: the chains of the Euro-Par 2020 paper.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(chains(max_stages=3))
    ... def test_has_stages(chain):
    ...     assert len(chain.forward_time) >= 1
    """
    n = draw(st.integers(1, max_stages))
    whole = st.integers(0, max_time).map(float)
    time = whole if integer_times else st.floats(0.0, max_time, allow_subnormal=False)
    spare = st.integers(0, max_bytes)

    def column(values: st.SearchStrategy[Any], length: int = n) -> list[Any]:
        return draw(st.lists(values, min_size=length, max_size=length))

    activation = column(st.integers(min_bytes, max_bytes), n + 1)
    required = (column(time), column(time), activation, column(spare, n + 1))
    forward_overhead, backward_overhead = column(spare), column(spare)
    if paper_form:
        return Chain(*required, forward_overhead=forward_overhead, backward_overhead=backward_overhead)
    pieces = column(st.lists(st.integers(1, max(1, max_bytes)), max_size=3))
    return Chain(
        *required,
        saved=[activation[k + 1] + sum(pieces[k]) for k in range(n)],
        forward_overhead=forward_overhead,
        backward_overhead=backward_overhead,
        transient_overhead=draw(st.none() | st.lists(spare, min_size=n, max_size=n)),
        resident=draw(spare),
        pieces=pieces if draw(st.booleans()) else None,
    )


@checked(max_memory=1, max_latency=0)
@st.composite
def devices(
    draw: st.DrawFn,
    *,
    memory: int | None = None,
    duplex: bool | None = None,
    host_memory: int | None = None,
    max_memory: int = 100,
    max_latency: int = 2,
) -> Device:
    """Draw a device with a link: positive or infinite bandwidth, separate for each direction, or one for both.

    Parameters
    ----------
    memory, host_memory
        Bytes. If not given, the memory is drawn up to `max_memory` and the host memory is unlimited.
    duplex
        Whether both directions may be busy at once; drawn if not given.
    max_memory
        Largest memory drawn, in bytes.
    max_latency
        Largest latency of a transfer, in seconds.

    Examples
    --------
    >>> devices(memory=10).example().memory  # doctest: +SKIP
    10
    """
    bandwidth = st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0, inf])
    d2h = draw(bandwidth)
    return Device(
        draw(st.integers(1, max_memory)) if memory is None else memory,
        d2h=d2h,
        h2d=draw(st.just(d2h) | bandwidth),
        duplex=draw(st.booleans()) if duplex is None else duplex,
        latency=float(draw(st.integers(0, max_latency))),
        host_memory=host_memory,
    )


@checked(max_stages=1, max_bytes=1, max_bandwidth=1)
@st.composite
def instances(
    draw: st.DrawFn, *, max_stages: int = 5, max_bytes: int = 9, max_bandwidth: int = 3
) -> tuple[Chain, int, float]:
    """Draw (chain, M, beta): small integers, saved == activation[1:], M from the least feasible to the peak.

    Parameters
    ----------
    max_stages
        Largest number of stages.
    max_bytes
        Largest size, in bytes.
    max_bandwidth
        Largest bandwidth, in bytes per second.

    Returns
    -------
    SearchStrategy[tuple[Chain, int, float]]
        `brute_force` is feasible on each of them.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(instances(max_stages=3))
    ... def test_is_feasible(instance):
    ...     makespan, offloaded = brute_force(*instance)
    """
    chain = draw(chains(max_stages=max_stages, max_bytes=max_bytes, min_bytes=1, paper_form=True))
    x, _, needs = paper_sizes(chain)
    least = max(x[i] + needs[i] for i in range(len(needs)))
    peak = max(sum(x[: i + 1]) + needs[i] for i in range(len(needs)))
    return chain, draw(st.integers(least, peak)), float(draw(st.integers(1, max_bandwidth)))
