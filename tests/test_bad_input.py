"""Bad input gets an error of ours that names the field, the index and the value, and nothing half-done."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from listed import CHAIN_PLANNERS
from memsched import errors
from memsched.errors import shown
from memsched.planners.registry import PLANNERS
from memsched.support import documents

BASE: dict[str, Any] = {
    "forward_time": [1, 2],
    "backward_time": [2, 3],
    "activation": [4, 6, 5],
    "gradient": [0, 6, 5],
}


def chain(**changes: Any) -> ms.Chain:
    return ms.Chain(**{**BASE, **changes})


def profile() -> ms.Chain:
    """Six stages that need 68 bytes when everything stays, and 36 at least."""
    sizes = [8, 9, 7, 10, 6, 8, 5]
    return ms.Chain([3, 1, 2, 4, 1, 2], [2, 2, 5, 3, 2, 4], sizes, [0, *sizes[1:]], resident=2)


def refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(ms.InvalidInputError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_all_errors_have_one_base() -> None:
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, Exception):
            assert issubclass(kind, ms.MemschedError) is (
                kind is not errors.InternalError
            )  # a fault of memsched itself
    assert issubclass(ms.InvalidInputError, ValueError)
    assert issubclass(ms.ScheduleError, ValueError)


NUMBER_COLUMNS = ("forward_time", "backward_time")
BYTE_COLUMNS = (
    *("activation", "gradient", "saved"),
    *("forward_overhead", "transient_overhead", "backward_overhead"),
)
START = {"saved": [6, 5], **{field: [0, 0] for field in BYTE_COLUMNS[3:]}, **BASE}


@pytest.mark.parametrize("field", [*NUMBER_COLUMNS, *BYTE_COLUMNS])
@pytest.mark.parametrize("index", [0, 1])
def test_bad_entries_of_a_chain(field: str, index: int) -> None:
    for value in (nan, inf, -inf, -1, -0.5, True, "three", None, 1j, [1], {}):
        column: list[Any] = list(START[field])
        column[index] = value
        refused(lambda column=column: chain(**{field: column}), f"{field}[{index}]", repr(value))


@pytest.mark.parametrize("value", [0.5, 2**63, 1e19, 10**400])
@pytest.mark.parametrize("field", BYTE_COLUMNS)
def test_bad_byte_counts_of_a_chain(field: str, value: Any) -> None:
    refused(lambda: chain(**{field: [*START[field][:-1], value]}), f"{field}[{len(START[field]) - 1}]", str(value))


@pytest.mark.parametrize("field", [*NUMBER_COLUMNS, *BYTE_COLUMNS, "names"])
@pytest.mark.parametrize("change", ["empty", "short", "long", "number", "text", "object", "nothing"])
def test_bad_columns_of_a_chain(field: str, change: str) -> None:
    column = list(START.get(field, ["a", "b"]))
    column = {
        **{"empty": [], "short": column[:-1], "long": [*column, column[0]], "number": 5, "text": "ab"},
        **{"object": {"a": 1}, "nothing": None},
    }[change]
    if change == "nothing" and field in ("gradient", *(one for one in START if one not in BASE), "names"):
        return
    refused(
        lambda: chain(**{field: column}),
        "" if field == "forward_time" and change in ("short", "long") else field,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"saved": [5, 5]}, ["saved[0]", "5", "activation[1]", "6"]),
        ({"activation": [2**52, 2**52 + 1, 5]}, ["activation[1]", "2^53"]),
        ({"saved": [2**52, 2**52]}, ["saved[1]", "2^53"]),
        ({"resident": 2**53}, ["activation[0]", "2^53"]),
        ({"resident": -1}, ["resident", "-1"]),
        ({"resident": nan}, ["resident", "nan"]),
        ({"resident": True}, ["resident", "True"]),
        ({"names": ["a", 5]}, ["names[1]", "5"]),
        ({"names": ["a", "b\ud800"]}, ["names[1]"]),
        ({"name": 5}, ["name", "5"]),
        ({"name": "\ud800"}, ["name"]),
        ({"saved": [9, 5], "pieces": [[1, 1], []]}, ["pieces[0]", "2", "3"]),
        ({"saved": [9, 5], "pieces": [[-1, 4], []]}, ["pieces[0][0]", "-1"]),
        ({"saved": [9, 5], "pieces": [[1.5, 1.5], []]}, ["pieces[0][0]", "1.5"]),
        ({"saved": [9, 5], "pieces": [[3]]}, ["pieces", "1", "2"]),
        ({"saved": [9, 5], "pieces": [3, []]}, ["pieces[0]", "3"]),
        ({"saved": [9, 5], "pieces": 3}, ["pieces", "3"]),
        ({"activation": {4, 5, 6}}, ["activation", "list"]),
        ({"names": {"a", "b"}}, ["names", "list"]),
        ({"provenance": {1, 2}}, ["provenance"]),
        ({"provenance": {1: "a", "1": "b"}}, ["provenance", "keys are text"]),
        ({"provenance": {"a": [{None: 1}]}}, ["provenance", "keys are text"]),
        ({"provenance": {"link_bandwidth": nan}}, ["provenance"]),
        ({"provenance": {"a": ["\ud800"]}}, ["provenance", "UTF-8"]),
        ({"provenance": {"\ud800": 1}}, ["provenance", "UTF-8"]),
        ({"provenance": functools.reduce(lambda inner, _: {"a": inner}, range(97), {})}, ["at most 96 levels"]),
        ({"provenance": "by hand"}, ["provenance", "by hand"]),
    ],
)
def test_bad_chains(changes: dict[str, Any], words: list[str]) -> None:
    refused(lambda: chain(**changes), *words)


@pytest.mark.parametrize(("step", "told"), [({"fre": "a"}, "but 'fre'"), ({"\ud800": 1}, "ud800"), ({3: 1}, "but 3")])
def test_a_step_without_a_verb_tells_what_it_has(step: Any, told: str) -> None:
    with pytest.raises(ms.ScheduleError, match=f"step 0: has no verb .*{told}"):
        ms.Schedule([step], budget=1)


def test_what_is_saved_can_be_read(tmp_path: Path) -> None:
    """Files were written that no load took, as they nested too deep or had no text of UTF-8."""
    deep: dict[str, Any] = functools.reduce(lambda inner, _: {"a": inner}, range(95), {})
    result = ms.greedy(chain(provenance=deep), 1000, 1.0)
    result.save(tmp_path / "result.json")
    assert ms.Result.load(tmp_path / "result.json").problem == result.problem
    refused(lambda: ms.Schedule([], budget=5, planner={"name": "x", "a": "\ud800"}), "UTF-8")


def test_times_that_add_up_to_nearly_infinity() -> None:
    """A bound of theirs was infinite."""
    refused(lambda: chain(forward_time=[1e308, 1e308]), "forward_time")
    refused(lambda: chain(forward_time=[6e301, 6e301]), "forward_time[1]", "1e+302")
    refused(lambda: chain(forward_time=[6e301, 1], backward_time=[6e301, 1]), "backward_time[0]", "1e+302")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(({"memory": value}, ["memory", str(value)]) for value in (0, -1, nan, inf, 0.5, True, "6 apples", 2**63)),
        *(({"bandwidth": value}, ["-1"]) for value in (-1,)),
        *(({"bandwidth": value}, ["bandwidth", str(value)]) for value in (True, "12 apples", [1])),
        *(({"bandwidth": value}, ["bandwidth", str(value)]) for value in (Decimal("1e5000"), Decimal("1e-5000"))),
        *(({"d2h": value, "h2d": 1}, ["d2h", str(value)]) for value in (-1, nan, True, "fast", -inf)),
        *(({"d2h": 1, "h2d": value}, ["h2d", str(value)]) for value in (-1, nan, True, "fast", -inf)),
        *(({"latency": value}, ["latency", str(value)]) for value in (-1, nan, inf, True, "1 apple")),
        *(({"host_memory": value}, ["host_memory", str(value)]) for value in (-1, nan, inf, 0.5, True, "1 apple")),
        *(({"duplex": value}, ["duplex", str(value)]) for value in ("no", 1, None)),
        ({"name": 5}, ["name", "5"]),
        ({"d2h": 1}, ["h2d"]),
        ({"h2d": 1}, ["d2h"]),
        ({"bandwidth": 1, "d2h": 1, "h2d": 1}, ["bandwidth", "d2h", "h2d"]),
    ],
)
def test_bad_devices(arguments: dict[str, Any], words: list[str]) -> None:
    refused(lambda: ms.Device(**{"memory": 5, **arguments}), *words)


GRAPH = ms.to_graph(chain(saved=[9, 5])).to_json()


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the document with another value at the path."""
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("tensors", 1, "size"), -1, ["a1", "-1"]),
        (("tensors", 1, "size"), nan, ["tensors[1]", "size", "nan"]),
        (("tensors", 1, "size"), 1.5, ["tensors[1]", "size", "1.5"]),
        (("tensors", 1, "size"), 2**63 - 1, ["tensors[1]", "size", "2^53"]),
        (("tensors", 6, "name"), "", ["d0"]),
        (("tensors", 2, "role"), "output", ["tensors[2]", "role", "output"]),
        (("tensors", 2, "colour"), "red", ["tensors[2]", "colour"]),
        (("tensors", 2), "a2", ["tensors[2]"]),
        (("tensors",), {}, ["tensors"]),
        (("ops", 1, "name"), "F1", ["ops[1]", "F1"]),
        (("ops", 1, "reads"), ["a9"], ["F2", "a9"]),
        (("ops", 0, "reads"), ["a0", "a0"], ["F1", "a0"]),
        (("ops", 0, "reads"), ["a2"], ["F1", "a2"]),
        (("ops", 0, "reads"), "a0", ["F1", "reads", "a0"]),
        (("ops", 1, "writes"), ["a0"], ["F2", "a0"]),
        (("ops", 1, "writes"), ["a1"], ["F2", "a1"]),
        (("ops", 0, "tape"), ["a2"], ["F1", "tape"]),
        (("ops", 0, "phase"), "test", ["F1", "phase", "test"]),
        (("ops", 0, "layer"), 1.5, ["F1", "layer", "1.5"]),
        (("ops", 0, "layer"), 2**40, ["F1", "layer", str(2**40)]),
        (("ops", 3, "once"), 1, ["B2", "once"]),
        (("ops", 0, "choices"), [], ["F1", "choices"]),
        (("ops", 0, "choices", 0, "time"), nan, ["F1", "time", "nan"]),
        (("ops", 0, "choices", 0, "time"), -1, ["F1", "time", "-1"]),
        (("ops", 0, "choices", 0, "workspace"), -1, ["F1", "workspace", "-1"]),
        (("ops", 0, "choices", 0, "workspace"), 2**63 - 1, ["F1", "workspace", "2^53"]),
        (("ops", 0, "skip_workspace"), -1, ["F1", "skip_workspace", "-1"]),
        (("ops", 0, "colour"), "red", ["ops[0]", "colour"]),
        (("ops",), [], ["ops"]),
        (("ops",), None, ["ops"]),
        (("batch",), 0, ["batch", "0"]),
        (("batch",), True, ["batch", "True"]),
        (("resident",), -1, ["resident", "-1"]),
        (("name",), None, ["name", "None"]),
    ],
)
def test_bad_graphs(path: tuple[Any, ...], value: Any, words: list[str]) -> None:
    refused(lambda: ms.Graph.from_json(changed(GRAPH, path, value)), *words)


VALUES = {
    "chain": chain(saved=[9, 5], pieces=[[1, 2], []], names=["a", "b"], provenance={"a": [1]}),
    "graph": ms.Graph.from_json(GRAPH),
    "device": ms.Device(20, 2.0, latency=0.5, host_memory=7, name="d"),
    "plan": ms.greedy(chain(saved=[9, 5]), 24, 2.0).schedule,
    "result": ms.greedy(chain(saved=[9, 5]), 24, 2.0),
}
KINDS = list(VALUES)
REQUIRED = {
    "chain": ["format", *BASE],
    "device": ["format", "memory"],
    **{kind: list(VALUES[kind].to_json()) for kind in ("graph", "plan", "result")},
}


def test_scalars_of_other_libraries_are_numbers() -> None:
    """Those whose dtype has no kind, as PyTorch's, ended in an AttributeError."""

    class Scalar:
        dtype = object()

        def __float__(self) -> float:
            return 2.0

    assert chain(forward_time=[Scalar(), 3]).forward_time.tolist() == [2, 3]
    assert ms.Device(8, Scalar()).d2h == 2


@pytest.mark.parametrize("given", [np.array([21], "m8[s]"), [np.timedelta64(21, "s")]])
def test_durations_are_no_numbers(given: Any) -> None:
    refused(lambda: ms.sweep(chain(), ["greedy"], memory=[29], beta=given), "21")
    refused(lambda: ms.validate_placement([ms.Buffer(0, 1, 1)], given), "offsets[0]", "whole number of bytes")


def test_a_key_twice_is_refused() -> None:
    """The last of the two counted."""
    text = json.dumps(chain(resident=7).to_json())
    refused(lambda: ms.Chain.from_json('{"resident": 1, ' + text[1:]), "the key 'resident' twice")


@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_are_none(kind: str, tmp_path: Path) -> None:
    read, document = type(VALUES[kind]).from_json, VALUES[kind].to_json()
    text = json.dumps(document)
    for length in (1, len(text) // 2, len(text) - 1):
        refused(lambda length=length: read(text[:length]), "truncated")
    for wrong in ("/0", "/2", "", "x"):
        refused(lambda wrong=wrong: read({**document, "format": wrong}), f"memsched-{kind}/1", repr(wrong))
    refused(lambda: read({key: value for key, value in document.items() if key != "format"}), "format")
    refused(lambda: read({**document, "colour": "red"}), "colour")
    refused(lambda: read('{"a":' * 100_000 + "1" + "}" * 100_000), "JSON")
    refused(lambda: read(tmp_path / "missing.json"), "missing.json")
    refused(lambda: read(str(tmp_path)), str(tmp_path))
    for content in ("", "[1, 2]", "null", '"text"', "{", "\x00", "\udcff"):
        file = tmp_path / "content.json"
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
        refused(lambda file=file: read(file), "content.json")
    for not_a_source in (None, 5, [1, 2], True):
        with pytest.raises(ms.MemschedError):
            read(not_a_source)


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, value in VALUES.items() for key in value.to_json()])
def test_documents_that_lack_a_key_or_have_nothing_there(kind: str, key: str) -> None:
    document = VALUES[kind].to_json()
    without = {name: value for name, value in document.items() if name != key}
    with pytest.raises(ms.MemschedError, match=key) if key in REQUIRED[kind] else suppress(ms.MemschedError):
        type(VALUES[kind]).from_json(without)
    with suppress(ms.MemschedError):
        type(VALUES[kind]).from_json({**document, key: None})


def some_path(document: Any, data: st.DataObject) -> tuple[Any, ...]:
    """The way to something in a document; what is near the top comes often."""
    path: tuple[Any, ...] = ()
    while document and isinstance(document, dict | list) and (not path or data.draw(st.booleans())):
        key = data.draw(st.sampled_from(list(document) if isinstance(document, dict) else range(len(document))))
        path, document = (*path, key), document[key]
    return path


STRANGE = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 1.5, 2**40, 2**63, -(2**63) - 1, 10**400, nan, inf, -inf, 1e308),
        *("", "x", "inf", "\ud800", "a0", "/dev/null", "{}"),
        *([], [[]], [None], [1], ["a0"], {}, {"a": 1}, {"": {}}),
    ]
)


@settings(max_examples=5 * settings().max_examples)
@given(st.sampled_from(KINDS), st.data())
def test_a_changed_document_is_read_or_refused_by_us(kind: str, data: st.DataObject) -> None:
    document = VALUES[kind].to_json()
    path = some_path(document, data)
    document = changed(document, path, data.draw(STRANGE))
    try:
        value = type(VALUES[kind]).from_json(document)
    except ms.MemschedError:
        return
    assert type(value).from_json(value.to_json()) == value or nan_inside(value.to_json())
    with suppress(ms.MemschedError):
        if kind == "graph":
            ms.peak_memory(value)
        elif kind == "plan":
            ms.simulate(VALUES["chain"], value, ms.Device(100, 2.0))
        elif kind == "result":
            ms.validate(value)


def nan_inside(document: Any) -> bool:
    return "NaN" in json.dumps(document)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_where_nothing_can_be(kind: str, tmp_path: Path) -> None:
    document = VALUES[kind].to_json()
    file = tmp_path / "a file"
    file.write_text("before")
    folder = tmp_path / "folder"
    folder.mkdir()
    for target in (tmp_path / "missing" / "out.json", file / "out.json", folder, tmp_path / ("x" * 300)):
        refused(lambda target=target: documents.write_document(target, document), str(target))
    assert sorted(os.listdir(tmp_path)) == ["a file", "folder"]
    assert os.listdir(folder) == []
    assert file.read_text() == "before"
    documents.write_document(file, document)
    assert type(VALUES[kind]).from_json(file) == VALUES[kind]


@pytest.mark.parametrize("document", [{"a": nan}, {"a": inf}, {"a": object()}, {"a": {1, 2}}])
def test_what_is_not_json_leaves_the_file_as_it_was(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text("before")
    with pytest.raises(ms.MemschedError):
        documents.write_document(file, document)
    assert os.listdir(tmp_path) == ["out.json"]
    assert file.read_text() == "before"


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ms.InvalidInputError, match=r"out\.json"):
            documents.write_document(file, {"a": "x" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["out.json"]
    assert file.read_text() == "before"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_the_file_as_it_was(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise stop

    file = tmp_path / "out.json"
    file.write_text("before")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises((KeyboardInterrupt, ms.InvalidInputError)):
        documents.write_document(file, {})
    assert os.listdir(tmp_path) == ["out.json"]
    assert file.read_text() == "before"


# Calls of planners.


@pytest.mark.parametrize("name", ["dynprog2", "Auto", "", None, 3, ["greedy"]])
def test_bad_names_of_planners(name: Any) -> None:
    words = r"must be one of auto, offload|did you mean '(dynprog|auto)'|give one name;"
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.plan(profile(), 60, 1.0, planner=name)
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.compare(profile(), 60, 1.0, planners=[name])
    if name is not None:
        with pytest.raises(ms.InvalidInputError, match=words):
            ms.min_memory(profile(), name)


ALL = pytest.mark.parametrize("planner", PLANNERS)
OF_CHAINS = pytest.mark.parametrize("planner", CHAIN_PLANNERS)


def run(planner: str, *arguments: Any, **options: Any) -> ms.Result:
    plan = PLANNERS[planner].plan
    if "time_limit" in inspect.signature(plan).parameters:
        options = {"time_limit": 0.02, **options}
    return plan(*arguments, **options)


@ALL
def test_bad_m(planner: str) -> None:
    for value in (0, -1, nan, inf, -inf, 40.5, True, np.True_, "40 apples", 2**63, [40], {}, 40j):
        with pytest.raises(ms.InvalidInputError, match=r"M is|memory is") as caught:
            run(planner, profile(), value, 1.0)
        assert repr(value) in str(caught.value)


@ALL
def test_bad_beta(planner: str) -> None:
    for value in (-1, -0.5, nan, -inf, True, np.True_, "12 apples", [1], {}, 1j, 10**400):
        with pytest.raises(ms.InvalidInputError, match=r"beta is|bandwidth is") as caught:
            run(planner, profile(), 60, value)
        assert shown(value) in str(caught.value)


@ALL
def test_bad_problem_and_device(planner: str) -> None:
    for problem in (None, 5, "resnet18-224-b32", {}):
        refused(lambda problem=problem: run(planner, problem, 60, 1.0), "problem")
    for device in (5, "v100", {}):
        refused(lambda device=device: run(planner, profile(), device=device), "device", repr(device))
    refused(lambda: run(planner, profile()), "M")
    refused(lambda: run(planner, profile(), None, 1.0), "M")


@OF_CHAINS
@pytest.mark.parametrize("chunk", [0, -1, 1.5, True, nan, "storage", "whole", [], {}])
def test_bad_chunk(planner: str, chunk: Any) -> None:
    with pytest.raises(ms.InvalidInputError, match="chunk"):
        run(planner, profile(), 60, 1.0, chunk=chunk)


@pytest.mark.parametrize("planner", ["offload", "dynprog", "selective"])
def test_progress_that_cannot_be_called(planner: str) -> None:
    refused(lambda: PLANNERS[planner].plan(ms.profiles.homogeneous(4), 20, 1.0, progress=3), "progress", "3")


class Unhashable(int):
    """A number that cannot be a key, as numpy's timedelta64 without a unit."""

    def __hash__(self) -> int:
        raise ValueError


def test_a_chunk_need_not_have_a_hash() -> None:
    chain = ms.profiles.homogeneous(3)
    plans = [ms.dynprog(chain, 1000, 1.0, chunk=chunk) for chunk in (20, Unhashable(20))]
    assert plans[0].schedule == plans[1].schedule


def test_a_chunk_that_makes_too_many_pieces() -> None:
    refused(lambda: ms.to_graph(ms.profiles.load("resnet152-224-b128"), chunk=1), "chunk", "1 byte")


@OF_CHAINS
def test_infeasible_names_the_least_memory(planner: str) -> None:
    for problem in (
        profile(),
        chain(saved=[9, 5]),
        ms.profiles.random(9, 4),
        ms.profiles.random(12, 5, tape=False),
    ):
        beta = 1.0 if problem.n < 9 else 1e9
        for chunk in (None, 5 if problem.n < 9 else 1 << 19):
            with pytest.raises(ms.InfeasibleError) as caught:
                run(planner, problem, 1, beta, chunk=chunk)
            least = caught.value.min_memory
            assert f"{least:,}" in str(caught.value)
            result = run(planner, problem, least, beta, chunk=chunk)
            assert ms.validate(result).peak_memory <= least
            with pytest.raises(ms.InfeasibleError) as caught:
                run(planner, problem, least - 1, beta, chunk=chunk)
            assert caught.value.min_memory == least
            assert f"{least - 1:,}" in str(caught.value)
            if planner != "tflms":  # its minimum depends on the link
                assert least == ms.min_memory(problem, planner)


@OF_CHAINS
def test_without_a_link_nothing_moves(planner: str) -> None:
    peak = ms.peak_memory(profile())
    recomputes = PLANNERS[planner].recomputes
    least = ms.min_memory(profile(), "rotor") if recomputes else peak
    one_way = ms.Device(least - 1, d2h=1.0, h2d=0.0)
    for arguments in ((least - 1, 0), (least - 1, None), (least - 1, 0.0), (1, 0), (None, None, one_way)):
        with pytest.raises(ms.InfeasibleError, match="fit" if recomputes else "link") as caught:
            run(planner, profile(), *arguments[:2], **({"device": one_way} if arguments[2:] else {}))
        if planner == "selective":  # it does not know its least without a link
            assert caught.value.min_memory == peak
            assert "less may do" in str(caught.value)
        else:
            assert caught.value.min_memory == least
    for beta in (0, None, 1.0, inf):
        result = run(planner, profile(), peak, beta)
        assert result.offloaded == ()
        assert result.timeline.bytes_in == 0
        assert ms.validate(result).makespan == 31


@OF_CHAINS
def test_a_free_link_costs_nothing(planner: str) -> None:
    least = ms.min_memory(profile(), planner)
    result = run(planner, profile(), least, inf)
    assert ms.validate(result).peak_memory <= least
    if planner not in ("tflms", "rotor", "pofo"):  # it fetches at fixed positions; those recompute at so little memory
        assert result.makespan == 31


@pytest.mark.parametrize(
    "slots", [0, -1, True, False, "500", 500.0, 0.5, nan, inf, 10**8, 10**30, [500], {}, np.float64(500)]
)
def test_bad_slots(slots: Any) -> None:
    refused(lambda: ms.dynprog(profile(), 60, 1.0, slots=slots), "slots", repr(slots))


@pytest.mark.parametrize("name", ["time_limit", "gap"])
@pytest.mark.parametrize("value", [-1, nan, -inf, True, "1 apple", [1], {}, 1j])
@pytest.mark.parametrize("memory", [60, 1000])
@pytest.mark.parametrize("planner", ["dynprog", "offload"])
def test_bad_limits(planner: str, memory: int, name: str, value: Any) -> None:
    refused(lambda: run(planner, profile(), memory, 1.0, **{name: value}), name, repr(value))


@pytest.mark.parametrize(
    ("planner", "name", "value"),
    [
        *(("dynprog", "method", value) for value in ("fast", None, 1)),
        *(("dynprog", "ties", value) for value in ("greedy", 1)),
        *(("dynprog", "max_rounds", value) for value in (0, -1, True, "5", 1.5)),
        *(("dynprog", "max_states", value) for value in (0, -1, True, "5", 1e6)),
        *(("offload", "seed", value) for value in (-1, True, "5", 1.5, 2**64)),
    ],
)
def test_bad_options(planner: str, name: str, value: Any) -> None:
    refused(lambda: run(planner, profile(), 60, 1.0, **{name: value}), name, repr(value))


@pytest.mark.parametrize("value", [-1, nan, True, "1 apple"])
def test_bad_options_of_bounds(value: Any) -> None:
    refused(lambda: ms.bounds(profile(), 60, value), repr(value))
    refused(lambda: ms.bounds(profile(), value, 1.0), repr(value))
    refused(lambda: ms.bounds(profile(), 60, 1.0, time_limit=value), "time_limit", repr(value))


def test_unknown_names() -> None:
    for call in (
        lambda: ms.plan(profile(), 60, 1.0, planner="fastest"),
        lambda: ms.compare(profile(), 60, 1.0, planners=["greedy", "fastest"]),
        lambda: ms.min_memory(profile(), "fastest"),
    ):
        refused(call, "fastest", "greedy")
    refused(lambda: ms.profiles.load("resnet18"), "resnet18", "resnet18-224-b32")
    for name in ("", "resnet18-224-b32.json", "../chains/resnet18-224-b32", "/etc/passwd"):
        refused(lambda name=name: ms.profiles.load(name), name)


def test_wrong_problem_of_a_verb() -> None:
    for verb in (ms.min_memory, ms.peak_memory):
        refused(lambda verb=verb: verb(5), "problem")
    refused(lambda: ms.bounds("resnet18", 5, 1.0), "problem")
    refused(lambda: ms.greedy(ms.to_graph(chain()), 50, 1.0), "Graph")
    refused(lambda: ms.to_graph(ms.to_graph(chain())), "chain", "Chain")
    plan = VALUES["plan"]
    refused(lambda: ms.validate(ms.Chain, plan, ms.Device(5)), "problem")
    refused(lambda: ms.validate(chain(), plan, ms.Device), "device")
    refused(lambda: ms.simulate(5, plan, ms.Device(5)), "problem")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({}, ["verb"]),
        ({"run": "F1", "free": "a0"}, ["run", "free"]),
        ({"run": "F1", "colour": 1}, ["colour"]),
        ({"free": "a0", "after": [0]}, ["after"]),
        ({"run": "F1", "after": [1]}, ["after", "1"]),
        ({"run": "F1", "after": [-1]}, ["after", "-1"]),
        ("run", ["1"]),
        (None, ["1"]),
    ],
)
def test_bad_steps_name_their_index(step: Any, words: list[str]) -> None:
    with pytest.raises(ms.ScheduleError, match="1") as caught:
        ms.Schedule([{"run": "F1"}, step], budget=10)
    assert caught.value.step == 1
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "step",
    [
        {"run": 5},
        {"run": None},
        {"run": "F1", "after": 0},
        {"run": "F1", "skip": "t"},
        {"run": "F1", "alg": 1},
    ],
)
def test_bad_types_in_steps_name_their_index(step: Any) -> None:
    with pytest.raises(ms.MemschedError, match="step 1"):
        ms.Schedule([{"run": "F1"}, step], budget=10)


@pytest.mark.parametrize("changes", [{"budget": 0}, {"budget": -1}, {"rounds": []}, {"rounds": [[1, 0]]}])
def test_bad_heads_of_schedules(changes: dict[str, Any]) -> None:
    with pytest.raises(ms.ScheduleError, match=next(iter(changes)).rstrip("s")) as caught:
        ms.Schedule([{"run": "F1"}], **{"budget": 5, **changes})
    assert caught.value.step is None


@pytest.mark.parametrize("judge", [ms.simulate, ms.validate])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_arguments_of_the_wrong_kind(judge: Any, place: int) -> None:
    result = ms.greedy(ms.profiles.homogeneous(3), 1000, 1.0)
    arguments: list[Any] = [result.problem, result.schedule, result.device]
    arguments[place] = 5
    refused(lambda: judge(*arguments), ("problem", "schedule", "device")[place], "5")


@pytest.mark.parametrize("key", ["makespan", "idle"])
def test_timelines_without_end(key: str) -> None:
    document = ms.greedy(ms.profiles.homogeneous(3), 1000, 1.0).to_json()
    document["timeline"][key] = nan
    refused(lambda: ms.Result.from_json(document), key, "nan")


def test_results_that_contradict_themselves() -> None:
    document = ms.greedy(ms.profiles.homogeneous(3), 1000, 1.0).to_json()
    with pytest.raises(ms.ScheduleError, match=r"lower_bound of the result is 1000000000"):
        ms.Result.from_json({**document, "lower_bound": 1e9})
    short = {**document["timeline"], "start": []}
    refused(lambda: ms.Result.from_json({**document, "timeline": short}), "timeline", "0")
    refused(lambda: ms.Result.from_json({**document, "device": "device.json"}), "device", "device.json")


def test_a_result_holds_what_json_can_write() -> None:
    plan = ms.greedy(ms.profiles.homogeneous(3), 1000, 1.0)
    counted = replace(plan, estimate=np.uint64(5))
    assert json.loads(json.dumps(counted.to_json()))["estimate"] == 5.0
    endless: list[Any] = []
    endless.append(endless)
    for params in ({"a": endless}, {"a": "\ud800"}, {"a": nan}, {"a": 10**5000}, {"a": object()}):
        refused(replace(plan, params=params).to_json, "params")


def test_addresses_in_a_fluid_plan() -> None:
    document = ms.greedy(ms.profiles.homogeneous(3), 1000, 1.0).schedule.to_json()
    document["steps"] = [{"run": "F1", "at": {"a1": 0}}]
    with pytest.raises(ms.ScheduleError, match="fluid") as caught:
        ms.Schedule.from_json(document)
    assert caught.value.step == 0


@pytest.mark.parametrize("planner", ["greedy", "dynprog", "vdnn", "offload", "autoswap"])
def test_a_link_that_takes_for_ever(planner: str) -> None:
    problem = ms.profiles.homogeneous(4, activation=10)
    with pytest.raises(ms.MemschedError, match=r"finite|link"):
        getattr(ms, planner)(problem, ms.min_memory(problem), 5e-324)


@pytest.mark.parametrize("beta", [1e300, 1e308])
def test_a_link_faster_than_numbers_count(beta: float) -> None:
    problem = ms.Chain([1e10] * 3, [1e10] * 3, [4] * 4, [0, 4, 4, 4])
    result = ms.dynprog(problem, 20, beta)
    assert result.makespan == pytest.approx(6e10)
    assert ms.bounds(problem, 20, beta).interruptible == pytest.approx(6e10)


def test_an_op_with_very_many_choices() -> None:
    choices = [{"alg": str(index), "time": float(index), "workspace": 0} for index in range(40_000)]
    tensors = [{"name": "x", "size": 1, "role": "input"}, {"name": "y", "size": 1, "role": "activation"}]
    op = {"name": "f", "phase": "fwd", "reads": ["x"], "writes": ["y"], "choices": choices}
    schedule = ms.Schedule([{"run": "f", "alg": "39999"}], budget=5)
    assert ms.simulate(ms.Graph(tensors, [op]), schedule, ms.Device(5)).makespan == 39999


def test_as_many_bytes_as_there_may_be() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = [int(size) for size in rng.integers(2**48, 2**49, 6)]
        problem = ms.Chain([1.0] * 5, [1.0] * 5, sizes, [0] * 6)
        ms.validate(ms.dynprog(problem, ms.min_memory(problem, "dynprog"), 1e17))


def test_so_many_rounds_overflow() -> None:
    result = ms.greedy(ms.profiles.homogeneous(4, activation=10), 50, 1.0)
    document = {**result.schedule.to_json(), "rounds": [[1, 2**62]]}
    with pytest.raises(ms.ScheduleError, match="rounds"):
        ms.simulate(result.problem, ms.Schedule.from_json(document), result.device)


class Raising:
    """A number, or a list of them, whose own code fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return "Raising"

    def __float__(self) -> float:
        raise self.error


class RaisingIndex(Raising):
    def __index__(self) -> int:
        raise self.error


class RaisingList(Raising):
    def __iter__(self) -> Any:
        raise self.error


USES_OF_A_NUMBER: list[Callable[[Any], Any]] = [
    lambda value: chain(forward_time=[1, value]),
    lambda value: chain(activation=[4, value, 5]),
    lambda value: chain(resident=value),
    lambda value: ms.Device(value, 1),
    lambda value: ms.Device(100, value),
    lambda value: ms.Device(100, 1, latency=value),
]


@pytest.mark.parametrize("use", USES_OF_A_NUMBER)
@pytest.mark.parametrize("kind", [Raising, RaisingIndex])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_what_the_code_of_a_value_raises_goes_through(
    use: Callable[[Any], Any], kind: type[Raising], error: type[BaseException]
) -> None:
    """A Ctrl-C that comes while a value becomes a number was taken for a value that is none."""
    with pytest.raises(error):
        use(kind(error()))


@pytest.mark.parametrize("use", USES_OF_A_NUMBER)
@pytest.mark.parametrize("kind", [Raising, RaisingIndex])
@pytest.mark.parametrize("error", [TypeError, ValueError, OverflowError])
def test_a_value_that_is_no_number_is_refused_by_name(
    use: Callable[[Any], Any], kind: type[Raising], error: type[Exception]
) -> None:
    refused(lambda: use(kind(error())), "Raising")


def test_what_the_code_of_a_list_raises_goes_through() -> None:
    for error in (KeyboardInterrupt, MemoryError, ZeroDivisionError):
        with pytest.raises(error):
            chain(forward_time=RaisingList(error()))
    refused(lambda: chain(forward_time=RaisingList(TypeError())), "forward_time", "a list")


RESULT = ms.greedy(profile(), 60, 8.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ms.plan("40%", profile()), "M is a Chain; the problem is the first argument, and M the second"),
        (lambda: ms.plan(profile(), RESULT.device), "write device= before it"),
        (lambda: ms.plan(profile(), "40%", RESULT.device), "write device= before it"),
        (lambda: ms.plan(RESULT, "40%"), "problem is a Result; it must be a Chain or a Graph; its .problem is one"),
        (lambda: ms.plan(ms.Chain, "40%"), "problem is the class Chain"),
        (lambda: ms.plan(profile().to_json(), "40%"), "Chain.from_json makes one"),
        (lambda: ms.plan(Path("chain.json"), "40%"), "Chain.load(path) make one"),
        (lambda: ms.rotor(ms.to_graph(profile()), "40%"), "compare lists the planners of graphs"),
        (lambda: ms.plan(profile(), "40,5%"), "'40,5%', with a comma for the decimal point"),
        (lambda: ms.plan(profile(), "40%", "1,5 GB/s"), "'1,5 GB/s', with a comma for the decimal point"),
        (lambda: ms.plan(profile(), "40%", "12 Gbit/s"), "reads as bits per second"),
        (lambda: ms.plan(profile(), "40%", "100Gbps"), "reads as bits per second"),
        (lambda: ms.plan(profile(), "40%", "100 Mbits/s"), "reads as bits per second"),
        (lambda: ms.plan(profile(), "6Gbit"), "reads as bits"),
        (lambda: ms.plan(profile(), "40%", planner=ms.greedy), "did you mean 'greedy'?"),
        (lambda: ms.plan(profile(), "40%", planner="GREEDY"), "did you mean 'greedy'?"),
        (lambda: ms.plot("result.json"), "Result.load(path) reads one from a file"),
        (lambda: ms.plot_frontier("frontier.json"), "'frontier.json'; give a Frontier"),
        (lambda: ms.trace(Path("result.json")), "Result.load(path) reads one"),
        (lambda: ms.sweep(profile(), ["greedy"], memory={"40%"}), "memory is {'40%'}; give a list, not empty"),
        (lambda: ms.sweep(profile(), ["greedy"], memory=["40%"], beta=[]), "beta is []; give a list, not empty"),
        (lambda: ms.frontier(profile(), 8.0, memory="40%"), "give a list of sizes, as in ['40%']"),
        (lambda: ms.frontier(profile(), 8.0, memory=[]), "give a list of sizes, not empty"),
        (lambda: ms.profiles.load("ResNet18_224_b32"), "similar names: resnet18-224-b32"),
        (lambda: ms.profiles.load(""), "no profile is named ''; profiles.names() and `memsched profiles` list them"),
    ],
)
def test_what_newcomers_mistake_is_told_with_its_remedy(call: Callable[[], Any], words: str) -> None:
    refused(call, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello, world", "is not JSON: it begins with 'hello, world'"),
        (b"\xff\xfe\x00", "is not UTF-8 text (byte 0)"),
        (b'{"format": ', "is not valid JSON"),
        (b"[1, 2]", "is not a JSON object"),
    ],
)
def test_files_that_are_no_documents(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    refused(lambda: ms.Chain.load(tmp_path / "x.json"), "x.json'", words)


def test_a_home_folder_is_for_shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(lambda: ms.Chain.load("~/x.json"), "only a shell knows '~'")
    refused(lambda: RESULT.save("~/x.json"), "only a shell knows '~'")
    assert not list(tmp_path.iterdir())
