"""Every dotted name of memsched that a message, a docstring or a page mentions can be reached as it is written."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import memsched

PACKAGE = Path(memsched.__file__).parent
ROOT = PACKAGE.parents[1]
NAME = re.compile(r"(?<![\w./@-])(?:memsched|ms)(?:\.[A-Za-z_]\w*)+(?![\w/-]|\.(?:md|json|toml|sqlite|html)\b)")
PAGES = [
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name not in ("CHANGELOG.md", "migration.md")
]
NOT_OURS = {
    "memsched.form",
    "memsched.json",
    "memsched.outputs",
    "memsched.quiet",
}  # keys of the command line's context


def texts(path: Path) -> Iterator[str]:
    """What people read: a page, or the docstrings and messages of a module."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield source
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def mentioned(path: Path) -> Iterator[str]:
    for text in texts(path):
        for line in text.splitlines():
            if not re.search(r"\b(from|import) memsched\b|python -m memsched", line):
                yield from (found.group() for found in NAME.finditer(line))


def reached(name: str) -> bool:
    """By attributes; a submodule may have to be imported first, where nothing else has its name."""
    parts = name.split(".")[1:]
    if parts[0] == "torch" and importlib.util.find_spec("torch") is None:
        return True  # the names of this package are looked at where PyTorch is
    known: object = memsched
    for k, part in enumerate(parts):
        if not hasattr(known, part):
            try:
                importlib.import_module(".".join(["memsched", *parts[: k + 1]]))
            except ModuleNotFoundError as error:
                return error.name is not None and not error.name.startswith("memsched")  # needs what is not here
        if not hasattr(known, part):
            return False
        known = getattr(known, part)
    return True


def test_names_that_are_mentioned_can_be_reached() -> None:
    paths = [*sorted(PACKAGE.rglob("*.py")), *sorted(PAGES)]
    found = {(path.relative_to(ROOT).as_posix(), name) for path in paths for name in mentioned(path)}
    assert [(path, name) for path, name in sorted(found) if name not in NOT_OURS and not reached(name)] == []


def test_the_reader_of_names_tells_what_is_not_there() -> None:
    assert reached("memsched.read_store")
    assert reached("memsched.show.report.write_report")
    assert not reached("memsched.sweep.read_store")
    assert not reached("memsched.nothing")
