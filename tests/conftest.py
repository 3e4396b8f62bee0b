"""Hypothesis profiles: `default`, and `nightly` (HYPOTHESIS_PROFILE=nightly) with ten times the examples."""

from __future__ import annotations

import os
import signal
import threading

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send to themselves.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
