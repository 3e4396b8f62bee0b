"""Hypothesis profiles: `default`, and `nightly` (HYPOTHESIS_PROFILE=nightly) with fifty times the examples."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=20)
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests start hundreds of interpreters. Without bytecode each of them would compile all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send to themselves.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def quiet_collector() -> Iterator[None]:
    """Without hypothesis's callback of the collector, in every test: an interrupt within it is lost."""
    held = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(held)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of nightly.txt to the exhaustive ones."""
    here = Path(__file__).resolve().parent
    lines = (here / "nightly.txt").read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    files, found = set[str](), set[str]()
    for item in items:
        if item.path.is_relative_to(here):
            file = item.path.relative_to(here).as_posix()
            files.add(file)
            name = f"{file}::{item.nodeid.partition('::')[2]}"
            if known := listed & {name, name.partition("[")[0]}:
                found |= known
                item.add_marker(pytest.mark.exhaustive)
    stale = sorted(name for name in listed - found if name.partition("::")[0] in files)
    if stale and not any("::" in str(argument) for argument in config.args):
        raise pytest.UsageError(f"tests/nightly.txt has {stale[0]!r}, which is no test")
