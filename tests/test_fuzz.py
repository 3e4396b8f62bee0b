"""Damaged documents are refused by an error of ours, or read and good for all that follows. tools/fuzz.py does more."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import corpus, readers
from fuzzing.mutate import mutate
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.study.sources import find_problem, named_problem
from memsched.study.sweep.spec import parse_spec
from memsched.support import checks, units
from memsched.support.documents import read_document

ROOT = Path(__file__).resolve().parents[1]

KINDS = sorted(readers.READERS)
EXAMPLES = settings().max_examples


def refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(ms.InvalidInputError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_documents_are_accepted(kind: str) -> None:
    for data in corpus.documents()[kind]:
        assert readers.accepts(kind, data) or kind == "units"


def damaged(kind: str, numbers: list[tuple[int, int, int]]) -> bytes:
    """A document that was mutated a few times over; each time: its number, that of the donor, and a seed."""
    seeds = corpus.documents()[kind]
    document = seeds[numbers[0][0] % len(seeds)]
    for _, donor, seed in numbers:
        document = mutate(kind, document, seeds[donor % len(seeds)], seed)
    return document


SMALL = st.integers(0, 100)
NUMBERS = st.lists(st.tuples(SMALL, SMALL, st.integers(0, 2**32)), min_size=1, max_size=3)


@settings(max_examples=3 * EXAMPLES, derandomize=True)  # new ones are for tools/fuzz.py, whose seeds are told
@given(st.sampled_from(KINDS), NUMBERS)
def test_a_damaged_document_is_refused_or_good(kind: str, numbers: list[tuple[int, int, int]]) -> None:
    readers.accepts(kind, damaged(kind, numbers))


@settings(max_examples=EXAMPLES, derandomize=True)
@given(st.sampled_from(KINDS), st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode()))
def test_anything_at_all_is_refused_or_good(kind: str, data: bytes) -> None:
    readers.accepts(kind, data)


@pytest.mark.exhaustive
@settings(max_examples=100 * EXAMPLES, derandomize=True)
@given(st.sampled_from(KINDS), NUMBERS)
def test_many_damaged_documents_are_refused_or_good(kind: str, numbers: list[tuple[int, int, int]]) -> None:
    readers.accepts(kind, damaged(kind, numbers))


def test_the_same_seed_does_the_same_damage() -> None:
    for kind, (data, *_) in corpus.documents().items():
        for seed in range(50):
            assert mutate(kind, data, data, seed) == mutate(kind, data, data, seed)


@pytest.mark.slow
def test_the_tool_fuzzes_for_a_moment(tmp_path: Path) -> None:
    call = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--documents", "900", "--output", str(tmp_path / "out")]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert all(kind in done.stdout for kind in KINDS)


# What fuzzing found, and reading on from there.


def chain_text(**changes: Any) -> str:
    return json.dumps({**corpus.chain().to_json(), **changes})


def result_document(**changes: Any) -> dict[str, Any]:
    found = next(result for result in corpus.results() if result.offloaded)
    return {**found.to_json(), **changes}


@pytest.mark.parametrize("depth", [101, 500, 900, *range(960, 1000, 3), 100_000])
def test_deep_nesting(depth: int) -> None:
    """It used to depend on the depth of the stack whether what was read could be shown and written."""
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        deep = opened * depth + "1" + closed * depth
        for key in ("provenance", "forward_time", "activation", "names"):
            text = chain_text(**{key: 12345}).replace("12345", deep)
            refused(lambda text=text: ms.Chain.from_json(text))


def test_nesting_that_is_not_too_deep() -> None:
    shallow: Any = 1
    for _ in range(95):
        shallow = [shallow]
    found = ms.Chain.from_json(chain_text(provenance={"a": shallow}))
    assert found.provenance == {"a": shallow}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("key", ["forward_time", "provenance", "resident", "parameters"])
def test_numbers_that_json_does_not_have(number: str, key: str) -> None:
    refused(lambda: ms.Chain.from_json(chain_text(**{key: "@"}).replace('"@"', number)), number)


def test_numbers_of_thousands_of_digits() -> None:
    huge = 10**5000
    refused(lambda: ms.Buffer(0, 1, huge), "cannot be shown")
    refused(lambda: ms.Chain([huge], [1], [4, 4], [0, 4]), "cannot be shown")
    refused(lambda: ms.Chain([1], [1], [4, huge], [0, 4]), "cannot be shown")
    refused(lambda: ms.Chain.from_json(chain_text(resident="@").replace('"@"', "1" * 5000)), "digits")
    refused(lambda: units.parse_bytes(huge))


def test_long_values_are_cut_in_errors() -> None:
    for wrong in ("x" * 10**6, ["x"] * 10**5):
        with pytest.raises(ms.InvalidInputError) as caught:
            ms.Chain([1], [1], [4, 4], [0, wrong])
        assert len(str(caught.value)) < 2000
    with pytest.raises(ms.InvalidInputError) as caught:
        units.parse_bytes("1" * 10**6)
    assert len(str(caught.value)) < 2000


def test_numbers_of_very_many_digits_in_texts() -> None:
    """The pattern takes the square of the length: a thousand times longer took a million times as long."""
    for text in ("1" * 10**6 + "!", "1" + " " * 10**6 + "!", "1_" * 10**5, " " * 10**6):
        for parse in (units.parse_bytes, units.parse_bandwidth, units.parse_seconds, units.parse_chunk):
            refused(lambda parse=parse, text=text: parse(text))


def test_a_bandwidth_that_is_no_double() -> None:
    refused(lambda: units.parse_bandwidth(10**400), "too large")
    refused(lambda: units.parse_bytes(10**400), "2^53")


def test_the_largest_whole_number_that_is_allowed() -> None:
    assert checks.count("x", 2**63 - 1, 0, 2**63 - 1) == 2**63 - 1
    assert checks.count("x", 2**62 - 1, 0, 2**62 - 1) == 2**62 - 1
    for value in (2**63, True, 1.0, "1", None, -1):
        refused(lambda value=value: checks.count("x", value, 0, 2**63 - 1), "x is")


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b"])
def test_lone_surrogates(text: str, tmp_path: Path) -> None:
    refused(lambda: ms.Buffer(0, 1, 1, name=text), "UTF-8")
    placement = ms.place([ms.Buffer(0, 1, 1, name="@")]).to_json()
    for written in (json.dumps(placement), json.dumps(placement, ensure_ascii=False)):
        for escaped in (json.dumps(text)[1:-1], text):
            document = written.replace("@", escaped)
            refused(lambda document=document: ms.Placement.from_json(document), "UTF-8")
    refused(lambda: ms.Chain.from_json(chain_text(provenance={"by": text})), "UTF-8")
    refused(lambda: ms.Chain.from_json(chain_text(provenance={"by": text}).replace("\\ud", "\\uD")), "UTF-8")
    refused(lambda: ms.Result.from_json(result_document(planner=text)), "UTF-8")
    refused(lambda: ms.GraphFamily.from_json({**corpus.family().to_json(), "name": text}), "UTF-8")
    assert ms.Chain.from_json(chain_text(provenance={"by": "\U0001f600"})).provenance == {"by": "\U0001f600"}


def test_a_family_names_no_files(tmp_path: Path) -> None:
    """A graph of a family used to be read from any path that stood in its place."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(corpus.graph().to_json()))
    document = {"format": "memsched-family/1", "name": "f", "batch": 1}
    for wrong in (str(path), path.read_text(), 5, None, [1]):
        refused(lambda wrong=wrong: ms.GraphFamily.from_json({**document, "graphs": [wrong]}), "graphs[0]")


@pytest.mark.parametrize("value", [True, 7.5, "7"])
def test_a_height_that_is_no_whole_number(value: Any) -> None:
    document = ms.place([ms.Buffer(0, 1, 1)]).to_json()
    refused(lambda: ms.Placement.from_json({**document, "height": value}), "height")
    height = ms.Placement.from_json({**document, "height": 1.0}).height
    assert (height, type(height)) == (1, int)


def test_a_number_of_stages_that_is_true() -> None:
    document = ms.Chain([1], [1], [4, 4], [0, 4]).to_json()
    refused(lambda: ms.Chain.from_json({**document, "n": True}), "n is True")


def test_params_that_json_cannot_write() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for params in ({"a": math.nan}, {"a": [math.inf]}, {"a": {1, 2}}, {"a": deep}):
        refused(lambda params=params: ms.Result.from_json(result_document(params=params)), "params")
    chain = corpus.chain().to_json()
    refused(lambda: ms.Chain.from_json({**chain, "provenance": {"a": deep}}), "provenance")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        *(({key: -5}, key) for key in ("peak_memory", "bytes_out", "bytes_in")),
        *(({key: 1e400}, key) for key in ("makespan", "idle", "recompute_time")),
        ({"memory": {"times": [0], "bytes": []}}, "1 times and 0 bytes"),
        ({"memory": {"times": [0], "bytes": [-1]}}, "memory bytes"),
        ({"end": []}, "end 0"),
    ],
)
def test_timelines_that_no_simulation_makes(changes: dict[str, Any], word: str) -> None:
    document = result_document()
    refused(lambda: ms.Result.from_json({**document, "timeline": {**document["timeline"], **changes}}), word)


def test_rounds_that_take_longer_than_numbers_count() -> None:
    chain = ms.Chain([1e300], [1e300], [4, 4], [0, 4])
    result = ms.greedy(chain, 100, 8.0)
    schedule = ms.Schedule.from_json({**result.schedule.to_json(), "rounds": [[1, 2**40]]})
    with pytest.raises(ms.ScheduleError, match="finite"):
        ms.simulate(chain, schedule, result.device)


def test_more_bytes_moved_than_64_bits_count() -> None:
    chain = ms.Chain([1], [1], [2**51, 2**51], [0, 0])
    document = ms.greedy(chain, 2**52 + 10, math.inf).schedule.to_json()
    document["steps"] = [{"offload": "a0"}] * 4100 + document["steps"]
    with pytest.raises(ms.ScheduleError, match=r"2\^63"):
        ms.simulate(chain, ms.Schedule.from_json(document), ms.Device(2**53, math.inf))


def test_a_tiny_document_that_asks_for_very_many_pieces() -> None:
    """10 million pieces took 6 GB."""
    chain = ms.Chain([1], [1], [4, 9_900_000], [0, 4])
    refused(lambda: ms.to_graph(chain, chunk=1), "chunk", "100,000")


def test_names_of_algorithms_and_tapes_that_simulate_and_validate_read_differently() -> None:
    graph = corpus.graph().to_json()
    choices = [{"alg": name, "time": 1.0, "workspace": 0} for name in ("", "b")]
    graph["ops"][1]["choices"] = choices
    refused(lambda: ms.Graph.from_json(graph), "algorithm")
    graph = corpus.graph().to_json()
    graph["ops"][0]["tape"] = ["t", "t"]
    refused(lambda: ms.Graph.from_json(graph), "twice")


def test_very_many_rounds_of_a_family_cost_little() -> None:
    """Each round used to read the plan again."""
    result = next(result for result in corpus.results() if isinstance(result.problem, ms.Graph))
    graph, times = result.graph.to_json(), 20_000 * 20_001 // 2
    family = ms.GraphFamily(lambda batch: ms.Graph.from_json({**graph, "batch": batch}), times)
    document = {**result.schedule.to_json(), "rounds": [[1, times] for times in range(1, 20_001)]}
    schedule = ms.Schedule.from_json(document)
    makespan = times * result.makespan
    assert ms.simulate(family, schedule, result.device).makespan == pytest.approx(makespan)
    assert ms.validate(family, schedule, result.device).makespan == pytest.approx(makespan)


def test_a_tape_of_very_many_tensors_costs_little() -> None:
    """Each name that a run skips used to be looked for in all the others."""
    names = [f"t{k}" for k in range(60_000)]
    tensors = [{"name": name, "size": 1, "role": "activation"} for name in names]
    choices = [{"alg": "default", "time": 1.0, "workspace": 0}]
    op = {"name": "f", "phase": "fwd", "reads": [], "writes": names, "tape": names, "choices": choices}
    graph = ms.Graph(tensors, [op])
    skipping = ms.Schedule([{"run": "f", "skip": names[::-1]}], budget=10**6)
    assert ms.simulate(graph, skipping, ms.Device(10**6)).makespan == 1
    placed = {"run": "f", "at": {name: k for k, name in enumerate(names)}}
    contiguous = ms.Schedule([placed], budget=10**6, memory="contiguous")
    assert ms.simulate(graph, contiguous, ms.Device(10**6)).peak_memory == 60_000


def test_batches_that_python_cannot_read_as_a_number() -> None:
    refused(lambda: named_problem("analytic:resnet50:" + "1" * 5000), "analytic")


def test_documents_are_read_from_texts_and_files_alike(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text(chain_text(provenance=12345).replace("12345", '{"a":' * 200 + "1" + "}" * 200))
    refused(lambda: read_document(path, "memsched-chain/1"), "deep.json", "deeper than 100")


def test_a_family_that_cannot_be_written_again() -> None:
    """The graph at the full batch used to be missed, or one that does not fit the others, when it was needed."""
    document = corpus.family().to_json([2])
    without = [graph for graph in document["graphs"] if graph["batch"] != 4]
    refused(lambda: ms.GraphFamily.from_json({**document, "graphs": without}), "4")
    graphs = json.loads(json.dumps(document["graphs"]))
    graphs[1]["ops"][0]["name"] = "other"
    refused(lambda: ms.GraphFamily.from_json({**document, "graphs": graphs}), "batch 2")


@pytest.mark.parametrize(
    "line",
    [
        "slots_of_tables = " + "9" * 4400,
        "memory = 0x" + "f" * 4000,
        "a." * 400_000 + "b = 1",
        'device = "' + "x" * 100 + '"',
    ],
)
def test_descriptions_of_sweeps(line: str) -> None:
    refused(lambda: parse_spec(f'problems = ["a"]\n{line}\n'))


def test_a_result_in_rounds_that_its_family_does_not_have() -> None:
    family = ms.GraphFamily.from_json(ms.profiles.analytic("alexnet", 4).to_json())
    document = ms.swap_all(family, ms.peak_memory(family), 1e9).to_json()
    document["schedule"]["rounds"] = [[3, 1], [1, 1]]
    refused(lambda: ms.Result.from_json(document), "not 3; to_json(batches) saves more")
    document["schedule"]["rounds"] = [[2**62, 1]]
    with pytest.raises(ms.ScheduleError, match="the rounds process 4611686018427387904 of a batch of 4"):
        ms.Result.from_json(document)


def test_a_problem_with_a_name_that_no_file_can_have() -> None:
    name = "a" * 300
    assert parse_spec(f'problems = ["{name}"]\nmemory = [1]\n').problems == (name,)
    refused(lambda: find_problem(name), "no profile")
