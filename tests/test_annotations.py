"""What signatures say of quantities: wherever a call takes a text, type checkers allow it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import memsched as ms
from memsched.planners.registry import PLANNERS

TEXTS = ("M", "beta", "capacity", "alignment", "workspace_limit", "time_limit", "memory_bandwidth", "chunk")
VERBS = [
    ms.plan,
    ms.compare,
    ms.bounds,
    ms.frontier,
    ms.order,
    ms.place,
    ms.with_addresses,
    ms.write_report,
    ms.to_graph,
]
CALLS = """
import memsched as ms
buffer = ms.Buffer(0, 2, "4KiB", "1KiB", "2KiB")
size: int = buffer.size
alignment: int = buffer.alignment
offset: int | None = buffer.offset
chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
plan = ms.pooch(chain, "50%", "12GB/s", workspace_limit="1MiB", time_limit="1 ms")
ms.with_addresses(plan, time_limit="1 s", alignment="4KiB")
ms.place(plan, "1GiB", alignment="4KiB", time_limit="1 s")
"""
WRONG = 'ms.place(plan, alignment=2.5)\nms.Buffer(0, 2, b"4KiB")\n'


@pytest.mark.parametrize("verb", [*VERBS, *(known.plan for known in PLANNERS.values())], ids=lambda one: one.__name__)
def test_texts_are_in_the_signatures(verb: typing.Callable[..., object]) -> None:
    known = inspect.signature(verb).parameters
    wanted = [name for name in TEXTS if name in known]
    assert wanted
    function = inspect.unwrap(verb)
    for name in wanted:
        annotation = known[name].annotation
        hint = eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation
        assert str in typing.get_args(hint), f"{name}: {annotation}"


@pytest.mark.slow
def test_a_type_checker_allows_texts_and_knows_that_fields_are_numbers(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "calls.py"
    script.write_text(CALLS + WRONG)
    package = Path(__file__).parents[1] / "python"
    call = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)]
    done = subprocess.run(
        call, text=True, capture_output=True, check=False, env={"MYPYPATH": str(package)}, cwd=tmp_path
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("calls.py")]
    first = CALLS.count("\n") + 1
    assert [line.split(":")[1] for line in lines] == [str(first), str(first + 1)], done.stdout
