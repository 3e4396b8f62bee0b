"""Ctrl-C that code of others drops, or makes another error of."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from memsched.support.interrupt import not_lost
from memsched.support.memo import Notes


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _dropped() -> None:
    class Gone:
        """Of what is raised in a callback of the garbage collector Python only prints that it was."""

    gone = Gone()
    kept = weakref.ref(gone, lambda _: _press())
    del gone
    assert kept() is None


def _changed() -> None:
    try:
        _press()
        signal.pause()
    except KeyboardInterrupt:
        raise ValueError("an invalid matrix") from None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [_dropped, _changed, _press])
def test_it_ends_the_work(work: Callable[[], None]) -> None:
    """Pictures were finished all the same, or ended in an error of matplotlib."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), not_lost():
        work()
    assert signal.getsignal(signal.SIGINT) is before


def test_no_code_of_python_runs_where_an_object_goes_that_has_notes() -> None:
    """A Ctrl-C in such code was lost, and the work went on."""

    class Thing:
        pass

    notes, thing, called = Notes[int](), Thing(), list[str]()
    notes.put(thing, 3)
    assert notes.get(thing) == 3
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del thing
    finally:
        sys.setprofile(None)
    assert called == []
    assert not notes._kept


def test_other_errors_and_handlers_are_as_they_were() -> None:
    with pytest.raises(ValueError, match="other"), not_lost():
        raise ValueError("other")
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with not_lost():
            _press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_other_threads_hear_no_signals() -> None:
    done: list[bool] = []

    def work() -> None:
        with not_lost():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
