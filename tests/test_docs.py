"""Every example runs: those of the docstrings, and the Python blocks of the documentation."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import memsched

ROOT = Path(memsched.__file__).parents[2]
TORCH = importlib.util.find_spec("torch") is not None
MODULES = ["memsched"] + [
    module.name
    for module in pkgutil.walk_packages(memsched.__path__, "memsched.", onerror=lambda name: None)
    if not module.name.startswith("memsched.torch") and not module.name.endswith("__main__")
]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.is_file()]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")


def test_the_core_is_among_them() -> None:
    assert {"memsched", "memsched._core", "memsched.problems.bounds", "memsched.planners.chain.dynprog"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


@pytest.mark.parametrize("name", memsched.__all__)
def test_public_functions_have_an_example(name: str) -> None:
    value = getattr(memsched, name)
    assert value.__doc__
    if callable(value) and not isinstance(value, type):
        assert ">>>" in value.__doc__


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_pages(page: Path) -> None:
    """The blocks of a page share one namespace."""
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for match in FENCE.finditer(text):
        block, line = match.group(1), text.count("\n", 0, match.start()) + 1
        if page.stem.startswith("pytorch") and not TORCH:
            pytest.skip("torch is not installed; this page is about it")
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, namespace, page.name, str(page), line)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
            runner.run(test, clear_globs=False)
            assert runner.failures == 0
            namespace.update(test.globs)
        else:
            exec(compile("\n" * line + block, str(page), "exec"), namespace)


@pytest.mark.parametrize("name", memsched.planners.__all__)
def test_planners_describe_every_parameter(name: str) -> None:
    """The shared ones, too, which `documented` fills in."""
    plan = getattr(memsched, name)
    listed = plan.__doc__.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    heads = [head.split(" :")[0] for head in re.findall(r"^\S.*$", listed, re.MULTILINE)]
    assert heads == list(inspect.signature(plan).parameters)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_marks_of_a_merge(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.match(r"(<{7}|={7}|>{7})( |$)", line)] == []
