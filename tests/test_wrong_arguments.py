"""Each argument of each public function, of a wrong kind or out of range: accepted, or refused by an error of ours."""

from __future__ import annotations

import contextlib
import inspect
import math
import pickle
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched.errors import shown

CHAIN = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4], saved=[8, 8, 8])
RESULT = ms.greedy(CHAIN, 30, 8.0)
BUFFERS = [ms.Buffer(0, 2, 3), ms.Buffer(1, 3, 4)]
FAMILY = ms.GraphFamily(lambda batch: ms.to_graph(CHAIN), 1)
SWEEP = ms.sweep(CHAIN, ["greedy"], memory=[30], beta=[8.0])
RIGHT: dict[str, Any] = {
    "problem": CHAIN,
    "chain": CHAIN,
    "graph": ms.to_graph(CHAIN),
    "M": 30,
    "beta": 8.0,
    "device": ms.Device(40, 8.0),
    "schedule": RESULT.schedule,
    "result": RESULT,
    "timeline": RESULT.timeline,
    "buffers": BUFFERS,
    "offsets": [0, 3],
    "placement": ms.place(BUFFERS),
    "memory": None,
    "planner": "greedy",
    "points": 2,
    "time_limit": 0.01,
    "results": RESULT,
    "arenas": RESULT,
    "frontiers": ms.frontier(CHAIN, 8.0, planner="greedy", points=2),
    "problems": [CHAIN],
    "rows": SWEEP.rows,
}
OBJECTS: list[Any] = [
    *(CHAIN, ms.to_graph(CHAIN), RESULT, RESULT.schedule, RESULT.timeline, ms.Device(40, 8.0), FAMILY),
    *(RIGHT["placement"], RIGHT["frontiers"], SWEEP),
]


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]
WRONG: list[Any] = [
    *(RESULT, RESULT.timeline, CHAIN, BUFFERS[0], object(), float, lambda *given: 1),
    *(-1, 1, 2.5, math.nan, math.inf, -math.inf, 10**400, True, 1j),
    *("x", "\ud800", b"x", [], {}, (), [5], {"a": 1}, {1}, np.array([1, 2]), np.array(3)),
    *([None], ["a"], [[1]], [-1], DEEP, Unshowable(), np.void(b"abc"), np.complex64(1 + 5j)),
    *(np.timedelta64(5, "ms"), np.timedelta64("NaT"), np.array([1, 2], "timedelta64[ns]"), Decimal("1.5")),
    *(10**5000, -(10**5000), Fraction(10**5000, 3), Decimal("1e5000")),
]


def functions() -> list[str]:
    """The public functions and types that are called with Python arguments."""
    found = []
    for name in sorted(ms.__all__):
        value = getattr(ms, name)
        if callable(value) and not (inspect.isclass(value) and issubclass(value, BaseException)):
            try:
                inspect.signature(value)
            except (TypeError, ValueError):
                continue
            found.append(name)
    return [*found, *(f"profiles.{name}" for name in ms.profiles.__all__)]


def arguments(call: Callable[..., Any], path: Path) -> dict[str, Any]:
    """What the function needs, right."""
    parameters = inspect.signature(call).parameters
    needed = {name for name, one in parameters.items() if one.default is one.empty}
    useful = {"beta", "points", "time_limit", *(["M"] if "beta" in parameters else [])} & set(parameters)
    if call in [getattr(ms.profiles, name) for name in ms.profiles.__all__]:
        network = "alexnet" if call is ms.profiles.analytic else "resnet18-224-b32"
        known = {"name": network, "network": network, "n": 3, "seed": 1, "batch": 2}
        return {name: known[name] for name in needed}
    if call in (ms.whole_step, ms.update_in_backward):
        chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], resident=12)
        return {"chain": chain, "states": 2, "update_time": "10 B/s", "parameters": [1, 2, 3]}
    if call is ms.plan_again:
        ms.sweep(CHAIN, ["greedy"], memory=[30], beta=[8.0], store=path)
    own = {"path": path, "key": RIGHT["rows"][0]["key"], "memory": [30], "beta": [8.0], "planners": ["greedy"]}
    if call is not ms.sweep:
        own = {"path": path, "key": own["key"], "compare": False}
    return {name: own.get(name, RIGHT.get(name)) for name in needed | useful | (set(own) & set(parameters))}


@pytest.mark.parametrize("name", functions())
def test_wrong_arguments_end_in_an_error_of_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is a path
    call = attrgetter(name)(ms)
    right = arguments(call, tmp_path / "file")
    for parameter, one in inspect.signature(call).parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        try_wrong_values(name, parameter, lambda value, name=parameter: call(**{**right, name: value}))


def methods() -> dict[str, Callable[[Any], Any]]:
    """The public methods of one argument."""
    found = {}
    for one in OBJECTS:
        for name in dir(one):
            if not name.startswith("_") and callable(method := getattr(one, name)):
                try:
                    count = len(inspect.signature(method).parameters)
                except ValueError:  # of the core: its documentation begins with the types
                    takes = method.__doc__.split("->")[0]
                    count = takes.count(": ") - takes.count("self: ")
                if count == 1:
                    found[f"{type(one).__name__}.{name}"] = method
    return found


@pytest.mark.parametrize("name", methods())
def test_wrong_arguments_of_methods_do_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = name.split(".")[1] in ("plot", "to_csv", "to_parquet")
    try_wrong_values(name, "path" if files else "argument", methods()[name])


def try_wrong_values(name: str, parameter: str, call: Callable[[Any], Any]) -> None:
    for value in WRONG:
        if parameter == "path" and isinstance(value, int):
            continue  # a file descriptor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                call(value)
            except ms.MemschedError:
                pass
            except Exception as error:
                text = type(value).__name__ if value is DEEP or isinstance(value, Unshowable) else shown(value)
                raise AssertionError(f"{name}({parameter}={text}) raises {error!r}") from error


@pytest.mark.parametrize("one", OBJECTS[:-2], ids=lambda one: type(one).__name__)
def test_wrong_fields_of_documents_do_too(one: Any) -> None:
    document = one.to_json()
    for key in document:
        try_wrong_values(
            f"{type(one).__name__}.from_json", key, lambda value, key=key: one.from_json({**document, key: value})
        )


@pytest.mark.parametrize("imaginary", [np.array([1 + 5j]), [np.complex128(1 + 5j)], [np.complex64(1 + 5j)], [1 + 5j]])
def test_no_imaginary_part_is_dropped(imaginary: Any) -> None:
    with pytest.raises(ms.InvalidInputError, match=r"forward_time\[0\] is .*; it must be a number"):
        ms.Chain(imaginary, [1], [4, 4], [0, 4])
    with pytest.raises(ms.InvalidInputError, match=r"activation\[0\] is "):
        ms.Chain([1], [1], [*imaginary, 4], [0, 4])


def test_the_unit_of_a_duration_is_not_dropped() -> None:
    """10,000 nanoseconds were 10,000 seconds."""
    some = np.array([10_000], "timedelta64[ns]")
    for call in (
        lambda: ms.Chain(some, [1], [4, 4], [0, 4]),
        lambda: ms.Chain([1], [1], [4, 4], [0, 4], saved=some),
        lambda: ms.Device(30, 4, latency=some[0]),
        lambda: ms.Device(some[0], 4),
        lambda: ms.Buffer(0, 2, some[0]),
        lambda: ms.dynprog(CHAIN, some[0], 4),
        lambda: ms.plan(CHAIN, 30, 4, time_limit=some[0]),
        lambda: ms.place(BUFFERS, time_limit=np.timedelta64(5, "ms")),
    ):
        with pytest.raises(ms.InvalidInputError, match=r"must be|is not a whole number of bytes"):
            call()


@pytest.mark.parametrize(
    "given",
    [
        {"beta": np.array([[4.0, 5.0]])},
        {"beta": [np.array([4.0, 5.0])]},
        {"beta": [object()]},
        {"memory": [Fraction(10**400)]},
        {"memory": [np.timedelta64(5, "ns")]},
        {"options": {object(): {}}},
        {"options": {"greedy": {"chunk": "\0the memory\0"}}},
    ],
)
def test_odd_values_in_sweeps_are_refused_or_fail_by_name(given: dict[str, Any]) -> None:
    arguments = {"memory": [30], "beta": [4.0], **given}
    with contextlib.suppress(ms.InvalidInputError):
        assert {row["status"] for row in ms.sweep(CHAIN, ["greedy"], **arguments)} <= {"failed"}


def test_numbers_without_a_text_are_named() -> None:
    huge, buffer = 10**5000, ms.Buffer(0, 2, 3)
    for call in (
        lambda: ms.Buffer(huge, 2, 3),
        lambda: ms.Buffer(0, -huge, 3),
        lambda: ms.validate_placement([buffer], [0], capacity=-huge),
    ):
        with pytest.raises(ms.MemschedError, match="cannot be shown"):
            call()
    assert ms.validate_placement([buffer], [huge]) == huge + 3


def test_no_text_of_an_error_is_endless() -> None:
    for make in (lambda: ms.Chain.from_json("[" * 100_000), lambda: ms.Schedule([], budget=5, memory="q" * 10**6)):
        with pytest.raises(ms.InvalidInputError) as caught:
            make()
        assert len(str(caught.value)) < 8100


def test_the_walk_reaches_the_functions() -> None:
    assert {"greedy", "pofo", "frontier", "validate", "place", "Result", "feature_map_classes"} <= set(functions())
    assert {"Graph.from_json", "Schedule.with_steps", "GraphFamily.to_json", "Sweep.to_parquet"} <= set(methods())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: ms.sweep(CHAIN, memory=[30], bandwidth=[8.0]),
            "sweep has no argument 'bandwidth'; did you mean 'beta'?",
        ),
        (lambda: ms.plan(CHAIN, memory=30), "plan has no argument 'memory'; did you mean 'M'?"),
        (lambda: ms.frontier(CHAIN, bandwidth=8.0), "frontier has no argument 'bandwidth'; did you mean 'beta'?"),
        (lambda: ms.frontier(CHAIN, 8.0, M=[30]), "frontier has no argument 'M'; did you mean 'memory'?"),
        (lambda: ms.compare(CHAIN, 30, planner=["x"]), "compare has no argument 'planner'; did you mean 'planners'?"),
        (lambda: ms.dynprog(CHAIN, 30, 8.0, slot=3), "dynprog has no argument 'slot'; did you mean 'slots'?"),
        (
            lambda: ms.plan(CHAIN, 30, 8.0, frobnicate=1),
            "plan has no argument 'frobnicate'; plan takes problem, M, beta,",
        ),
        (lambda: ms.plan(CHAIN, 30, 8.0, "greedy"), "plan takes 3 positional arguments (problem, M, beta), not 4"),
        (lambda: ms.plan(CHAIN, 30, M=30), "plan is given 'M' twice"),
        (lambda: ms.validate(RESULT, plan=3), "validate has no argument 'plan'; did you mean"),
        (lambda: ms.validate(), "validate needs"),
        (lambda: ms.validate_placement(BUFFERS), "validate_placement needs 'offsets'"),
        (lambda: ms.validate_placement(BUFFERS, [0, 3], memory=3), "did you mean 'capacity'?"),
        (lambda: ms.read_snapshot(file="x"), "read_snapshot has no argument 'file'; did you mean 'path'?"),
        (lambda: ms.sweep(CHAIN), "sweep needs 'memory'; sweep takes problems, planners, memory, beta,"),
        (lambda: ms.Device("16GiB", beta=3), "Device has no argument 'beta'; did you mean 'bandwidth'?"),
        (lambda: ms.Chain([1], [1], activations=[4, 4]), "no argument 'activations'; did you mean 'activation'?"),
        (lambda: ms.Schedule([]), "Schedule needs 'budget'; Schedule takes steps, budget,"),
        (
            lambda: ms.Graph([], [], "name"),
            "Graph takes 2 positional arguments (tensors, ops), not 3; name the others",
        ),
        (lambda: ms.Graph(ops=[]), "Graph needs 'tensors'; Graph takes tensors, ops, name, batch, resident"),
    ],
)
def test_wrong_names_of_arguments_are_a_type_error_with_a_remedy(call: Callable[[], Any], said: str) -> None:
    for kind in (TypeError, ms.InvalidInputError):
        with pytest.raises(kind) as caught:
            call()
        assert said in str(caught.value)


def test_a_type_error_of_what_is_called_stays_what_it_is() -> None:
    def progress() -> None:  # it takes no argument
        raise AssertionError

    with pytest.raises(TypeError) as caught:
        ms.plan(CHAIN, 30, 8.0, progress=progress)
    assert not isinstance(caught.value, ms.MemschedError)


@pytest.mark.parametrize("name", [name for name in functions() if inspect.isfunction(attrgetter(name)(ms))])
def test_public_functions_are_what_they_were(name: str) -> None:
    """Signature, documentation and pickling see through the wrapper, and doctest finds whose it is."""
    call = attrgetter(name)(ms)
    inner = inspect.unwrap(call)
    assert inspect.signature(call) == inspect.signature(inner)
    assert (call.__doc__, call.__name__, call.__qualname__) == (inner.__doc__, inner.__name__, inner.__qualname__)
    assert call.__globals__ is inner.__globals__
    assert pickle.loads(pickle.dumps(call)) is call


def test_a_mistyped_word_for_what_has_another_name() -> None:
    """`memory` gave M, and `memroy` nothing."""
    call: Callable[..., object] = partial(ms.plan, CHAIN)
    with pytest.raises(ms.ArgumentError, match="did you mean 'M'"):
        call(memroy="40%")


@pytest.mark.parametrize("kind", [ms.Chain, ms.Device, ms.Graph, ms.Schedule])
@pytest.mark.parametrize("named", [{}, {"unknown": 1}, {"tensors": [], "ops": [{}]}])
def test_nobody_sees_an_object_whose_constructor_failed(kind: type, named: dict[str, Any]) -> None:
    """It has no value: pytest and debuggers, which show the variables of a traceback, read memory that nobody wrote."""
    with pytest.raises(ms.InvalidInputError) as caught:
        kind(**named)
    shown_by = [one.frame.f_locals.values() for one in caught.traceback]
    assert not [value for values in shown_by for value in values if type(value) is kind]


def test_all_keys_that_an_object_lacks_are_told_at_once() -> None:
    with pytest.raises(ms.InvalidInputError, match=r"tensors\[0\] lacks 'size', 'role'"):
        ms.Graph(tensors=[{"name": "y"}], ops=[])
    with pytest.raises(ms.InvalidInputError, match=r"ops\[0\] lacks 'phase', 'reads', 'writes', 'choices'"):
        ms.Graph(tensors=[], ops=[{"name": "f"}])
