"""moDNN: a slow one and the core's make the same plans, whose clock is the simulator's; rounds, and two GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.planners.rounds import balanced, rounds_of
from memsched.testing import families, graphs
from oracles.modnn import DoesNotFitError, Modnn


def fastest(graph: ms.Graph) -> float:
    return float(sum(min(choice["time"] for choice in op["choices"]) for op in graph.ops))


@st.composite
def devices(draw: st.DrawFn, memory: int) -> ms.Device:
    rates = st.sampled_from([0.5, 1.0, 3.0, float("inf")])
    return ms.Device(
        memory, d2h=draw(rates), h2d=draw(rates), duplex=draw(st.booleans()), latency=draw(st.sampled_from([0.0, 0.25]))
    )


def planned(graph: ms.Graph, device: ms.Device, budget: int) -> tuple[Modnn, Any]:
    """The plan, measured by the simulator and the validator."""
    plan = Modnn(graph.to_json(), device.to_json(), budget)
    schedule = ms.Schedule(plan.steps, budget=budget, graph=graph.name, memory="contiguous", rounds=[(graph.batch, 1)])
    timeline, report = ms.simulate(graph, schedule, device), ms.validate(graph, schedule, device)
    assert report.makespan == pytest.approx(timeline.makespan, rel=1e-9)
    assert report.peak_memory == timeline.peak_memory <= budget
    assert plan.makespan == pytest.approx(timeline.makespan, rel=1e-9)
    core, clock = _core.modnn(graph, device, True, {"name": "modnn"})
    assert clock == pytest.approx(timeline.makespan, rel=1e-9)
    assert core.to_json()["steps"] == schedule.to_json()["steps"]
    return plan, timeline


@given(graph=graphs(max_layers=8), share=st.floats(0, 1), data=st.data())
def test_plans_are_legal_and_keep_time(graph: ms.Graph, share: float, data: st.DataObject) -> None:
    least = ms.min_memory(graph)
    budget = max(1, least + int(share * (ms.peak_memory(graph) - least)))
    planned(graph, data.draw(devices(budget)), budget)


@given(graph=graphs(max_layers=8), data=st.data())
def test_runs_exactly_from_the_minimum(graph: ms.Graph, data: st.DataObject) -> None:
    least = ms.min_memory(graph)
    device = data.draw(devices(max(1, least)))
    planned(graph, device, max(1, least))
    assert _core.modnn_min_memory(graph) == least
    with pytest.raises(DoesNotFitError):
        Modnn(graph.to_json(), device.to_json(), least - 1)
    if least > 1:
        with pytest.raises(ms.InfeasibleError, match=str(least)):
            _core.modnn(graph, ms.Device(least - 1, 1.0), True, {"name": "modnn"})


@given(graph=graphs(max_layers=8), share=st.floats(0, 1), host=st.sampled_from([None, 0, 1, 5]))
def test_without_room_on_the_host_it_names_a_memory_that_is_enough(
    graph: ms.Graph, share: float, host: int | None
) -> None:
    """It decides greedily, so less may do and more may not; it once said "at least"."""
    least = ms.min_memory(graph)
    memory = max(1, least, int(share * ms.peak_memory(graph)))
    link = 0.0 if host is None else 1.0
    (found,) = ms.compare(graph, device=ms.Device(memory, link, host_memory=host), planners=["modnn"]).values()
    if isinstance(found, ms.InfeasibleError):
        assert "is enough, and less may do" in str(found)
        ms.modnn(graph, device=ms.Device(found.min_memory, link, host_memory=host))


@given(graph=graphs(max_layers=8), data=st.data())
def test_plentiful_memory_moves_nothing(graph: ms.Graph, data: st.DataObject) -> None:
    budget = 10 * ms.peak_memory(graph) + 100
    plan, timeline = planned(graph, data.draw(devices(budget)), budget)
    assert not any("offload" in step or "prefetch" in step for step in plan.steps)
    assert timeline.makespan == pytest.approx(fastest(graph), rel=1e-9)


@given(family=families(max_batch=9), share=st.floats(0, 1.2), data=st.data())
def test_rounds_work_through_the_batch(family: ms.GraphFamily, share: float, data: st.DataObject) -> None:
    """And the list of steps, which is planned for the larger batch, runs at the smaller one too."""
    least = ms.min_memory(family)
    memory = max(1, ms.min_memory(family, "modnn"), least + int(share * (ms.peak_memory(family) - least)))
    device = data.draw(devices(memory))
    fewest, search = (ms.modnn(family, device=device, rounds=rounds) for rounds in ("fewest", "search"))
    for result in (fewest, search):
        report = ms.validate(result)
        assert report.makespan == pytest.approx(result.makespan, rel=1e-9)
        assert report.peak_memory == result.peak_memory <= memory
        assert sum(batch * times for batch, times in result.schedule.rounds) == family.batch
        assert ms.Result.from_json(result.to_json()).to_json() == result.to_json()
    assert search.makespan <= fewest.makespan * (1 + 1e-9)


@given(family=families(max_batch=9), share=st.floats(0, 1.2), data=st.data())
def test_the_data_frame_has_all_rounds(family: ms.GraphFamily, share: float, data: st.DataObject) -> None:
    pytest.importorskip("pandas")
    memory = max(1, ms.min_memory(family, "modnn"), int(share * ms.peak_memory(family)))
    result = ms.modnn(family, device=data.draw(devices(memory)))
    steps, end, number = result.to_pandas(), 0.0, 0
    for batch, times in result.schedule.rounds:
        alone = ms.simulate(family.at(batch), result.schedule.with_rounds([(batch, 1)]), result.device)
        for _ in range(times):
            number += 1
            own = steps[steps["round"] == number]
            assert len(own) == len(result.schedule)
            assert (own["start"] - end).tolist() == pytest.approx(alone.start.tolist(), rel=1e-9, abs=1e-9)
            assert (own["end"] - end).tolist() == pytest.approx(alone.end.tolist(), rel=1e-9, abs=1e-9)
            end += alone.makespan
    assert len(steps) == number * len(result.schedule)
    assert steps["end"].max() == pytest.approx(result.makespan, rel=1e-9)


@given(family=families(max_batch=9), share=st.floats(0, 1.2), data=st.data())
def test_vdnn_takes_the_same_rounds(family: ms.GraphFamily, share: float, data: st.DataObject) -> None:
    """It can fail with more memory, where eq. (3) gives fewer rounds; then it says what will do."""
    least = ms.min_memory(family)
    memory = max(1, least + int(share * (ms.peak_memory(family) - least)))
    device = data.draw(devices(memory))
    try:
        result = ms.vdnn_plus(family, device=device)
    except ms.InfeasibleError as error:
        result = ms.vdnn_plus(family, error.min_memory, device=device)
    assert ms.validate(result).makespan == pytest.approx(result.makespan, rel=1e-9)
    assert list(result.schedule.rounds) == rounds_of(family, result.device.memory)


def test_vdnn_plus_tells_what_it_needs_once() -> None:
    with pytest.raises(ms.InfeasibleError) as refused:
        ms.vdnn_plus(ms.profiles.analytic("vgg16", 2, "k40m"), 10**6, 10e9)
    assert str(refused.value).count("it needs at least") == 1
    assert "other rounds" not in str(refused.value)
    assert f"({refused.value.min_memory:,} bytes)" in str(refused.value)


@given(family=families(max_batch=9), share=st.floats(0, 1.2))
def test_the_batch_is_the_largest_that_fits_around_it(family: ms.GraphFamily, share: float) -> None:
    memory = int(share * ms.peak_memory(family))
    rounds = rounds_of(family, memory)
    assert rounds == balanced(family.batch, sum(times for _, times in rounds))
    needs = [family.at(b).resident + _core.need_of_fastest(family.at(b)) for b in range(1, family.batch + 1)]
    largest = max((b for b, need in enumerate(needs, 1) if need <= memory), default=1)
    assert sum(times for _, times in rounds) == -(-family.batch // largest)


def test_a_batch_that_proportion_does_not_find() -> None:
    """The inputs together are larger than the need of any op, so eq. (3) stops far above; down by ones took minutes."""

    def make(batch: int) -> ms.Graph:
        tensors: list[Any] = [{"name": f"x{k}", "size": 100 * batch, "role": "input"} for k in range(3)]
        tensors += [{"name": f"y{k}", "size": batch, "role": "activation"} for k in range(3)]
        choices = [{"alg": "c", "time": 1e-3 * batch, "workspace": 0}]
        ops: list[Any] = [
            {"name": f"f{k}", "phase": "fwd", "reads": [f"x{k}"], "writes": [f"y{k}"], "choices": choices}
            for k in range(3)
        ]
        return ms.Graph(tensors, ops, name="inputs", batch=batch)

    made = []
    family = ms.GraphFamily(lambda batch: made.append(batch) or make(batch), 2**40)
    memory = 7_000_000
    (most, _), *_ = ms.modnn(family, memory, 1e6).schedule.rounds
    assert _core.modnn_min_memory(make(most)) <= memory
    assert len(made) < 200


@pytest.mark.parametrize(("batch", "rounds"), [(256, 3), (7, 7), (9, 2), (1, 1), (128, 5)])
def test_rounds_are_balanced(batch: int, rounds: int) -> None:
    found = balanced(batch, rounds)
    assert sum(size * times for size, times in found) == batch
    assert sum(times for _, times in found) == rounds
    assert found[0][0] - found[-1][0] <= 1


def test_two_gpus_share_the_link_and_the_batch() -> None:
    family = ms.profiles.analytic("vgg16", 256, "k40m")
    one, two = (ms.modnn(family, 12 * 2**30, 10e9, gpus=gpus, memory_bandwidth=216e9) for gpus in (1, 2))
    assert (two.problem.batch, two.device.d2h, two.device.memory) == (128, 5e9, 12 * 2**30)
    gradients = family.graph.resident / 2
    assert two.params["exchange_time"] == pytest.approx(2 * gradients / 10e9 + 3 * gradients / 216e9)
    assert 1.5 < one.makespan / (two.makespan + two.params["exchange_time"]) < 2
    for problem, beta in ((family.graph, 1e9), (ms.profiles.analytic("alexnet", 3), 1e9), (family, 0)):
        with pytest.raises(ms.InvalidInputError, match="gpus is 2"):
            ms.modnn(problem, 12 * 2**30, beta, gpus=2)


def test_half_a_saved_family_is_saved_with_its_plan() -> None:
    family = ms.profiles.analytic("alexnet", 8)
    saved = ms.GraphFamily.from_json(family.to_json(batches=[2, 4]))
    assert ms.modnn(family, "3GiB", 10e9, gpus=2).problem.batch == 4
    result = ms.modnn(saved, "3GiB", 10e9, gpus=2)
    assert result.problem.batches == (1, 2, 4)
    assert ms.Result.from_json(result.to_json()) == result
    with pytest.raises(ms.InvalidInputError, match="saved with its graphs at batch"):
        ms.modnn(ms.GraphFamily.from_json(family.to_json(batches=[2])), "3GiB", 10e9, gpus=2)


def test_a_link_or_a_host_that_is_too_small() -> None:
    """At 4 GiB two rounds of ResNet-34 move nothing, and one does."""
    family = ms.profiles.analytic("resnet34", 256, "k40m")
    assert ms.modnn(family, 4 * 2**30, 10e9).offloaded
    with pytest.raises(ms.InfeasibleError, match="without a link") as caught:
        ms.modnn(family, 4 * 2**30, 0)
    assert ms.modnn(family, caught.value.min_memory, 0).offloaded == ()
    assert ms.modnn(family, 4 * 2**30, 0, rounds="search").offloaded == ()
    small = ms.Device(4 * 2**30, 10e9, host_memory=1000)
    assert ms.modnn(family, device=small, rounds="search").offloaded == ()


@pytest.mark.parametrize("rounds", ["most", 3, None])
def test_bad_rounds(rounds: Any) -> None:
    with pytest.raises(ms.InvalidInputError, match="rounds is"):
        ms.modnn(ms.profiles.analytic("alexnet", 8), 12 * 2**30, 1e9, rounds=rounds)


@pytest.mark.parametrize(
    ("network", "batch", "gib", "over_ideal", "moved"),
    [
        ("vgg16", 256, 12, 1.006, 0.0),
        ("vgg101", 128, 12, 1.004, 51.4e9),
        ("vgg101", 128, 4, 1.080, None),
        ("resnet34", 256, 12, 1.0, 0.0),
        ("resnet34", 256, 4, 1.218, None),
        ("fcn", 128, 12, 1.012, 0.0),
    ],
)
def test_networks_of_the_paper(network: str, batch: int, gib: int, over_ideal: float, moved: float | None) -> None:
    """Figures of an earlier implementation, which shares no code, on a profile made by the same formulas."""
    family = ms.profiles.analytic(network, batch, "k40m")
    result = ms.modnn(family, gib * 2**30, 10e9)
    assert result.makespan / fastest(family.graph) == pytest.approx(over_ideal, rel=0.01)
    if moved is not None:
        assert result.timeline.bytes_out + result.timeline.bytes_in == pytest.approx(moved, rel=0.01)


def test_rounds_whose_times_overflow_are_named() -> None:
    """The error named a memory below the given one, and said that some op does not fit."""

    def make(batch: int) -> ms.Graph:
        tensors = [
            {"name": name, "size": 2 * batch, "role": role} for name, role in (("x", "input"), ("a", "activation"))
        ]
        ways = [{"alg": "a", "time": 1e300, "workspace": 0}]
        forward = {"name": "F", "phase": "fwd", "reads": ["x"], "writes": ["a"], "choices": ways}
        backward = {"name": "B", "phase": "bwd", "reads": ["a"], "writes": [], "choices": ways}
        return ms.Graph(tensors, [forward, backward], batch=batch)

    family = ms.GraphFamily(make, 2**40)
    with pytest.raises(ms.LimitError, match="the times of so many rounds overflow"):
        ms.modnn(family, 11, 2.0)
    with pytest.raises(ms.InfeasibleError, match="it needs at least 4"):
        ms.modnn(family, 3, 2.0)
