"""Hypothesis profiles: `default`, and `nightly` (HYPOTHESIS_PROFILE=nightly) with fifty times the examples."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator

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


@pytest.fixture
def quiet_collector() -> Iterator[None]:
    """Without hypothesis's callback of the collector: an interrupt within it is lost."""
    held = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(held)
