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
ABOUT_TORCH = re.compile(r"\btorch\b")


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


def blocks(page: Path) -> list[tuple[str, int]]:
    """The Python blocks of a page, with the lines before each."""
    text = page.read_text(encoding="utf-8")
    return [(match.group(1), text.count("\n", 0, match.start()) + 1) for match in FENCE.finditer(text)]


def is_about_torch(page: Path) -> bool:
    """Whether all of a page needs PyTorch; of other pages, only the blocks that have the word `torch` do."""
    return page.stem.startswith("pytorch")


def run_in_order(page: Path, chosen: list[tuple[str, int]]) -> None:
    """The blocks share one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block, line in chosen:
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, namespace, page.name, str(page), line)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
            runner.run(test, clear_globs=False)
            assert runner.failures == 0
            namespace.update(test.globs)
        else:
            exec(compile("\n" * line + block, str(page), "exec"), namespace)


LONG = ("guide", "cookbook")  # to run


def each_page() -> list[Any]:
    return [pytest.param(page, marks=pytest.mark.slow if page.stem in LONG else (), id=page.stem) for page in PAGES]


@pytest.mark.parametrize("page", each_page())
def test_pages(page: Path) -> None:
    if is_about_torch(page) and not TORCH:
        pytest.skip("torch is not installed; this page is about it")
    run_in_order(page, [one for one in blocks(page) if is_about_torch(page) or not ABOUT_TORCH.search(one[0])])


WITH_BOTH = [page for page in PAGES if not is_about_torch(page) and any(ABOUT_TORCH.search(b) for b, _ in blocks(page))]


@pytest.mark.skipif(not TORCH, reason="torch is not installed; these blocks are about it")
@pytest.mark.parametrize("page", WITH_BOTH, ids=[page.stem for page in WITH_BOTH])
def test_blocks_about_pytorch_on_other_pages(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", "")
    run_in_order(page, [one for one in blocks(page) if ABOUT_TORCH.search(one[0])])


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
