"""The oracles of POFO and rotor: known vectors, examples worked out by hand, and each oracle against the others."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.pofo_dp import Instance, in_slots, rotor_value, segment_value, value
from oracles.pofo_exhaustive import best, makespan, sequences
from oracles.rotor_published import Opt, published, table

VECTORS = json.loads((Path(__file__).parent / "vectors" / "pofo.json").read_text())
LISTS = ("a", "abar", "delta", "oF", "oB", "uF", "uB")
BETAS = (0, Fraction(1, 3), Fraction(1, 2), Fraction(2, 3), 1, 2, 3, inf)
FINITE = BETAS[1:-1]

# One layer and the loss.  With a^0 on the device, B_2 has 9 bytes: a^0 2, abar^1 2, delta^1 1, scratch 4.
SMALL = {
    "a": (2, 1),
    "abar": (2, 0),
    "delta": (0, 1),
    "oF": (1, 4),
    "oB": (0, 4),
    "uF": (3, 1),
    "uB": (5, 5),
    "M": 8,
}


def from_vector(vector: dict[str, Any]) -> Instance:
    beta = inf if vector["beta"] == "inf" else Fraction(vector["beta"])
    return Instance(**{name: vector[name] for name in LISTS}, tF=vector.get("tF"), M=vector["M"], beta=beta)


def expected(vector: dict[str, Any]) -> Fraction | None:
    return None if vector["expected"] == "inf" else Fraction(vector["expected"])


def named(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


def ideal(p: Instance) -> Fraction:
    return sum((*p.uF, *p.uB), Fraction(0))


def changed(p: Instance, **changes: Any) -> Instance:
    fields = (*LISTS, "tF", "M", "beta")
    return Instance(**{**{name: getattr(p, name) for name in fields}, **changes})


def needs(p: Instance) -> tuple[Fraction, Fraction]:
    """The most memory that one operation takes with nothing else there, and the peak when everything is kept."""
    delta = (*p.delta, Fraction(0))
    scratch = [max(p.oF[i], delta[i] + delta[i + 1] + p.oB[i]) for i in range(p.L + 1)]
    kept = [p.a[0] + sum(p.abar[: i + 1]) for i in range(p.L + 1)]
    alone = [p.abar[i] + scratch[i] for i in range(p.L + 1)]
    return max(p.a[0], *alone), max(k + s for k, s in zip(kept, scratch, strict=True))


def build(pick: Callable[[Sequence[Any]], Any], betas: Sequence[Any], max_layers: int, unit: int = 1) -> Instance:
    """Small integers, times in multiples of `unit`, and a memory from a byte below the least one upwards."""
    layers = pick(range(1, max_layers + 1))

    def numbers(*choices: int) -> list[int]:
        return [pick(choices) for _ in range(layers + 1)]

    a, more, scratch, extra = numbers(*range(7)), numbers(0, 0, 1, 3, 6), numbers(0, 0, 1, 2, 5), numbers(0, 0, 0, 1, 3)
    p = Instance(
        a=a,
        abar=[a[k] + more[k] for k in range(1, layers + 1)] + [pick((0, 1))],
        delta=a if pick((False, True)) else numbers(*range(7)),
        oF=scratch,
        tF=[o + t for o, t in zip(scratch, extra, strict=True)],
        oB=numbers(0, 0, 1, 2, 4),
        uF=[u * unit for u in numbers(*range(5))],
        uB=[u * unit for u in numbers(*range(7))],
        M=0,
        beta=pick(betas),
    )
    least, most = (int(memory) for memory in needs(p))
    enough = next((m for m in range(least, most) if value(changed(p, M=m)) is not None), most)
    return changed(p, M=max(1, enough + pick((-1, 0, 0, 0, 1, 1, 2, 3, 5, 8))))


@st.composite
def instances(draw: st.DrawFn, *, betas: Sequence[Any] = BETAS, max_layers: int = 3) -> Instance:
    return build(lambda choices: draw(st.sampled_from(choices)), betas, max_layers)


def seeded(count: int, *, betas: Sequence[Any] = BETAS, max_layers: int = 3, unit: int = 1) -> Iterator[Instance]:
    """The same instances in every run, for tests that count what they have seen."""
    rng = random.Random(0)
    for _ in range(count):
        yield build(rng.choice, betas, max_layers, unit)


@pytest.mark.parametrize("vector", named(VECTORS["small"] + VECTORS["witnesses"]))
def test_small_vectors(vector: dict[str, Any]) -> None:
    p = from_vector(vector)
    assert value(p) == best(p) == expected(vector)
    assert in_slots(p, vector["slots"]) == expected(vector)
    if p.beta == 0:
        assert rotor_value(p) == expected(vector)


@pytest.mark.parametrize("vector", named(VECTORS["misreadings"]))
def test_where_a_misread_recurrence_fails(vector: dict[str, Any]) -> None:
    p = from_vector(vector)
    assert value(p) == best(p) == in_slots(p, vector["slots"]) == expected(vector)
    assert vector["misread"] != vector["expected"]


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(one, id=one["name"], marks=pytest.mark.exhaustive if k else pytest.mark.slow)
        for k, one in enumerate(VECTORS["large"])
    ],
)
def test_larger_vectors(vector: dict[str, Any]) -> None:
    p = from_vector(vector)
    assert value(p) == expected(vector)
    rotor = rotor_value(p)
    assert rotor is not None
    assert rotor > expected(vector)


@pytest.mark.parametrize("vector", named(VECTORS["small"] + VECTORS["large"] + VECTORS["witnesses"]))
def test_the_vectors_schedules(vector: dict[str, Any]) -> None:
    p, sample = from_vector(vector), vector["sample_optimal"]
    assert makespan(p, **sample) == expected(vector)
    ops, offloaded, features = sample["ops"], sample["offloaded"], set(vector["features"])
    times = [(p.uB if op[0] == "B" else p.uF)[int(op.lstrip("Falckn B")) - 1] for op in ops]
    assert sum(times) == vector["compute_time"]
    assert ideal(p) == vector["ideal"] <= expected(vector)
    if vector in VECTORS["witnesses"]:
        return
    assert ("offload" in features) == bool(offloaded)
    assert ("off_abar" in features) == any(item.startswith("abar") for item in offloaded)
    assert ("remat" in features) == (len(ops) > 2 * (p.L + 1))
    assert ("idle" in features) == (vector["compute_time"] < expected(vector))
    assert ("Fnone_fwd" in features) == any(op.startswith("Fn") for op in ops[: p.L + 1])


@pytest.mark.parametrize("vector", named(VECTORS["witnesses"]))
def test_witness_outside_the_class(vector: dict[str, Any]) -> None:
    p, better = from_vector(vector), vector["better_outside_class"]
    found = makespan(p, better["ops"], better["offloaded"])
    assert found == Fraction(better["makespan"])
    assert found < expected(vector)
    assert better["ops"] not in sequences(p.L)


@pytest.mark.parametrize(
    ("beta", "least"), [(0, 17), (Fraction(1, 2), 16), (1, 15), (2, Fraction(29, 2)), (4, Fraction(57, 4)), (inf, 14)]
)
def test_small_by_hand(beta: Any, least: Any) -> None:
    """B_2 lacks one byte, so one byte of a^0 comes back after it: 14 s and 1 / beta, or F_1 twice in 17 s.

    With half a byte per second the 2 bytes of a^0 leave in the 4 s of the forward phase and return in the last 4 s
    before B_1: one of them while B_2 runs.
    """
    p = Instance(**SMALL, beta=beta)
    assert value(p) == best(p) == least
    assert rotor_value(p) == 17


def test_a_slow_link_by_hand() -> None:
    """1/3 byte per second: 4 s of forward and 2 s more to be rid of a^0, 3 s to wait for its last byte."""
    p = Instance(**SMALL, beta=Fraction(1, 3))
    assert makespan(p, ["Fall1", "Fall2", "B2", "B1"], ["a0"]) == 14 + 2 + 3
    assert makespan(p, ["Fall1", "Fall2", "B2", "B1"], []) is None
    assert makespan(p, ["Fck1", "Fall2", "B2", "Fall1", "B1"], []) == 17
    assert makespan(p, ["Fck1", "Fall2", "B2", "Fall1", "B1"], ["a0"]) == 17 + 2 + 1
    assert value(p) == best(p) == 17


@pytest.mark.parametrize(("tF", "least"), [(1, 17), (5, 17), (6, None)])
def test_scratch_of_forwards_that_do_not_save(tF: int, least: int | None) -> None:
    """F_ck^1 has a^0, a^1 and its scratch in 8 bytes; without a link it is needed."""
    p = Instance(**SMALL, tF=(tF, 0), beta=0)
    assert value(p) == best(p) == rotor_value(p) == least


def test_less_memory_by_hand() -> None:
    """B_2 takes 7 bytes beside a^0, or 6 after F_ck^1: with 7, all of a^0 is away, and with 6, F_1 runs twice."""
    for memory, least in ((5, None), (6, 14 + 3 + 2), (7, 14 + 2), (8, 14 + 1), (9, 14)):
        p = Instance(**{**SMALL, "M": memory}, beta=1)
        assert value(p) == best(p) == least


def test_backward_part_by_hand() -> None:
    """F_ck^1 F_empty^2, F_all^3 B^3, F_all^1 F_all^2 B^2 B^1 takes 4 s; abar^1 and abar^3 together have 6 bytes.

    With Delta = 3 bytes to arrive by the end, 2 of them arrive during the last four operations, one stands beside
    abar^3 and arrives during F_empty^2, and none is there during F_ck^1, which takes all 5 bytes.  Each byte more
    is waited for after B^1, which has 2 bytes.
    """
    p = Instance(
        a=(0, 2, 0, 0),
        abar=(2, 0, 4, 0),
        delta=(0, 0, 0, 0),
        oF=(0, 0, 0, 0),
        tF=(3, 0, 0, 0),
        oB=(0, 0, 0, 0),
        uF=(1, 1, 0, 0),
        uB=(0, 0, 0, 0),
        M=5,
        beta=1,
    )
    assert [segment_value(p, 1, 3, 0, Delta) for Delta in range(6)] == [4, 4, 4, 4, 5, 6]
    assert segment_value(p, 1, 3, 1, 0) is None


@pytest.mark.parametrize(
    ("beta", "reading", "least"),
    [
        (1, {}, Fraction(47, 3)),
        (1, {"inputs": True}, Fraction(49, 3)),
        (1, {"rests": False}, Fraction(47, 3)),
        (Fraction(1, 4), {}, 34),
        (Fraction(1, 4), {"rests": False}, Fraction(91, 3)),
    ],
)
def test_three_slots_by_hand(beta: Any, reading: dict[str, bool], least: Any) -> None:
    """Slots of 8/3 bytes: a^0 and abar^1 have 3/4 of a slot, so that a^0 counts as 1 when it is to be back.

    beta = 1: B_2 needs 15/8 + 3/4 + 1 slots (with abar^1 rounded up too: + 1/4) of 3, 5/8 (7/8) too many.
    beta = 1/4, 3/32 of a slot per second: after F_1, 15/32 of a^0 counts as 1, F_2 lacks 1/4 and is over after
    11/3 s, when 21/32 or, rounded up again, all of it is left; B_2 waits for 5/8, and a^0 is back in time.
    """
    assert in_slots(Instance(**SMALL, beta=beta), 3, **reading) == least


def test_rounding_what_is_held_by_hand() -> None:
    """Without a link: abar^1 or abar^2, 3 bytes each, and a^1 fill 4 bytes; F_ck^1 F_all^2 F_all^3 B^3 B^2 F_all^1 B^1.

    In 3 slots of 4/3 bytes a^1 takes a whole slot of the 3, and abar^2 2 1/4.
    """
    p = Instance(
        a=(0, 1, 1),
        abar=(3, 3, 0),
        delta=(0, 0, 0),
        oF=(0, 0, 0),
        oB=(0, 0, 0),
        uF=(1, 1, 1),
        uB=(1, 1, 1),
        M=4,
        beta=0,
    )
    assert value(p) == best(p) == rotor_value(p) == 7
    assert [in_slots(p, slots) for slots in (3, 4, 8)] == [None, 7, 7]


def test_makespan_rejects_what_cannot_run() -> None:
    p = Instance(**SMALL, beta=1)
    for ops, offloaded, message in (
        (["Fn1", "Fall2", "B2", "Fall1", "B1"], [], "Fall1 cannot run"),
        (["Fall1", "Fn2", "B2", "B1"], [], "Fn2 cannot run"),
        (["Fall1", "Fall2", "B1"], [], "B1 cannot run"),
        (["Fall1", "Fall2", "B2"], [], "not propagated"),
        (["Fall1", "Fall2", "B2", "B1"], ["a1"], "not there"),
    ):
        with pytest.raises(ValueError, match=message):
            makespan(p, ops, offloaded)


@pytest.mark.parametrize("L", [1, 2, 3, 4])
def test_number_of_sequences(L: int) -> None:
    """back[n] ways to go back over n layers from their input, all_[n] schedules of n layers and the loss.

    Going back over n layers saves the first one, or goes m < n of them ahead; a block saves one layer, or keeps the
    input of j layers.
    """
    back, all_ = [0, 1], [1, 2]
    for n in range(2, L + 1):
        back.append(back[n - 1] + sum(back[m] * back[n - m] for m in range(1, n)))
        all_.append(all_[n - 1] + sum(back[j] * all_[n - j] for j in range(1, n + 1)))
    found = sequences(L)
    assert len(found) == len({tuple(ops) for ops in found}) == all_[L]


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(instances())
def test_the_program_is_the_best_schedule(p: Instance) -> None:
    assert value(p) == best(p)


def compare(count: int, max_layers: int) -> Counter[str]:
    """The program and the search on seeded instances; counts what kinds there were."""
    seen: Counter[str] = Counter()
    for p in seeded(count, max_layers=max_layers):
        found, rotor = value(p), rotor_value(p)
        assert best(p) == found, p
        seen["infeasible"] += found is None
        if found is not None and found > ideal(p):
            seen["costs"] += 1
            seen["waits"] += found.denominator > 1
            seen["link helps"] += rotor is None or found < rotor
    return seen


def test_the_program_is_the_best_schedule_of_every_kind() -> None:
    seen = compare(125, 3)
    assert seen["costs"] > 30
    assert seen["link helps"] > 20
    assert min(seen["waits"], seen["infeasible"]) > 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_program_is_the_best_schedule_of_many() -> None:
    seen = compare(700, 4)
    assert seen["costs"] > 200
    assert seen["link helps"] > 120
    assert min(seen["waits"], seen["infeasible"]) > 15


def test_without_a_link_the_program_is_rotors() -> None:
    costs = 0
    for p in seeded(60, betas=(0,), max_layers=4):
        found = value(p)
        assert rotor_value(p) == found
        assert rotor_value(changed(p, beta=1)) == found
        costs += found is not None and found > ideal(p)
    assert costs > 15


def test_with_a_free_link_only_single_operations_must_fit() -> None:
    """Nothing costs time exactly when every operation fits beside its stage's input, everything saved."""
    seen: Counter[bool] = Counter()
    for q in seeded(60, betas=(inf,), max_layers=4):
        p = changed(q, uF=[u + 1 for u in q.uF])  # else recomputing may be free
        delta, inputs = (*p.delta, Fraction(0)), (p.a[0], *p.abar)
        fits = all(
            inputs[i] + p.abar[i] + max(p.oF[i], delta[i] + delta[i + 1] + p.oB[i]) <= p.M for i in range(p.L + 1)
        )
        assert (value(p) == ideal(p)) == fits, p
        seen[fits] += 1
    assert min(seen[False], seen[True]) > 10


@given(instances(max_layers=4), st.integers(0, 3))
def test_enough_memory_costs_nothing(p: Instance, more: int) -> None:
    assert value(changed(p, M=needs(p)[1] + more)) == ideal(p)


def test_more_memory_or_a_faster_link_never_hurts() -> None:
    seen: Counter[str] = Counter()
    for p in seeded(50):
        ways = {
            "faster": [changed(p, beta=beta) for beta in BETAS if beta >= p.beta],
            "larger": [changed(p, M=p.M + more) for more in range(4)],
        }
        for way, better in ways.items():
            found = [inf if v is None else v for v in map(value, better)]
            assert found == sorted(found, reverse=True), p
            seen[way] += found[0] > found[-1]
    assert min(seen["faster"], seen["larger"]) > 10


READINGS = [{}, {"rests": False}, {"inputs": True}, {"rests": False, "inputs": True}]


def test_whole_slots_are_exact() -> None:
    costs = 0
    for p in seeded(60, betas=(0, Fraction(1, 2), 1, 2, 3, inf), unit=2):
        found = value(p)
        for reading in READINGS:
            assert in_slots(p, int(p.M), **reading) == found, (p, reading)
        costs += found is not None and found > ideal(p)
    assert costs > 10


def test_rounding_up_to_slots_never_gains() -> None:
    seen: Counter[str] = Counter()
    slots = 0
    for p in seeded(100, betas=FINITE):
        slots = slots % 12 + 2
        least = value(p)
        found = [in_slots(p, slots, **reading) for reading in READINGS]
        assert all(v is None or (least is not None and v >= least) for v in found), (p, slots)
        if least is not None:
            seen["infeasible"] += found[0] is None
            seen["same"] += found[0] == least
            seen["loses"] += found[0] not in (None, least)
            seen["reading matters"] += len(set(found)) > 1
    assert min(seen["infeasible"], seen["same"], seen["loses"]) > 2
    assert seen["reading matters"] > 20


def chain_of(lists: dict[str, list[int]], slots: int) -> Instance:
    """The published solver's chain, and behind it a loss that is not used."""
    return Instance(
        a=lists["x"],
        abar=[*lists["xb"][1:], 0],
        delta=lists["x"],
        oF=[*lists["ftmp"], 0],
        oB=[*lists["btmp"], 0],
        uF=[*lists["fw"], 0],
        uB=[*lists["bw"], 0],
        M=slots,
        beta=0,
    )


def cells(opt: Opt, p: Instance, stages: int) -> list[tuple[float, Fraction | None]]:
    """What the published recurrence and ours say about every cell."""
    found = table(opt, stages, int(p.M))
    return [(v, segment_value(p, first + 1, last + 1, p.M - m, 0)) for (m, first, last), v in found.items()]


@st.composite
def published_lists(draw: st.DrawFn, *, scratch: int = 0) -> dict[str, list[int]]:
    n = draw(st.integers(1, 4))

    def numbers(least: int, most: int, count: int = n) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))

    x = numbers(1, 4, n + 1)
    x[n] = draw(st.integers(0, 4))  # nothing behind the loss
    return {
        "fw": numbers(0, 4),
        "bw": numbers(0, 4),
        "x": x,
        "xb": [0, *(size + more for size, more in zip(x[1:], numbers(0, 3), strict=True))],
        "ftmp": numbers(0, scratch),
        "btmp": numbers(0, 3),
    }


def test_published_rotor_is_the_backward_part_without_scratch() -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=25, deadline=None)
    @given(published_lists())
    def agree(lists: dict[str, list[int]]) -> None:
        for theirs, ours in cells(published(**lists), chain_of(lists, 20), len(lists["fw"])):
            assert theirs == (inf if ours is None else ours)
            seen[ours is None] += 1

    agree()
    assert min(seen[False], seen[True]) > 100


@settings(max_examples=25, deadline=None)
@given(published_lists(), st.integers(0, 20))
def test_published_rotor_of_a_chain_with_a_loss(lists: dict[str, list[int]], slots: int) -> None:
    """Its last stage is the loss, with nothing behind it: the whole chain's answer is `rotor_value`."""
    n = len(lists["fw"])
    lists["x"][n] = lists["fw"][n - 1] = 0
    p = Instance(
        a=lists["x"][:n],
        abar=lists["xb"][1:],
        delta=lists["x"][:n],
        oF=lists["ftmp"],
        oB=lists["btmp"],
        uF=lists["fw"],
        uB=lists["bw"],
        M=slots,
        beta=0,
    )
    ours = rotor_value(p)
    assert published(**lists)(slots - lists["x"][0], 0, n - 1) == (inf if ours is None else ours)


def test_published_rotor_can_exceed_its_budget() -> None:
    """F_all of the first of two stages holds the gradient of the second: 2 + 5 + 8 bytes, but 14 are found enough."""
    lists = {"fw": [3, 2], "bw": [1, 1], "x": [1, 1, 5], "xb": [0, 2, 5], "ftmp": [8, 0], "btmp": [0, 0]}
    opt = published(**lists)
    assert [opt(m, 0, 0) for m in (10, 11)] == [inf, 4]
    for free, theirs, ours in ((13, inf, None), (14, 7, 10), (15, 7, 7)):
        assert opt(free, 0, 1) == theirs
        assert segment_value(chain_of(lists, 20), 1, 2, 20 - free, 0) == ours


def test_published_rotor_by_hand() -> None:
    """Stage 1 takes 7 bytes and stage 2 takes 6; with the 2 of a^1 or, stage 1 saved, the 4 of abar^1 beside it.

    With 8 and 9 bytes stage 1 runs forward twice, with 10 once.
    """
    lists = {"fw": [3, 2], "bw": [5, 4], "x": [1, 2, 1], "xb": [0, 4, 3], "ftmp": [0, 0], "btmp": [0, 0]}
    opt = published(**lists)
    assert [opt(m, 0, 0) for m in (6, 7)] == [inf, 8]
    assert [opt(m, 1, 1) for m in (5, 6)] == [inf, 6]
    assert [opt(m, 0, 1) for m in (7, 8, 9, 10)] == [inf, 17, 17, 14]
