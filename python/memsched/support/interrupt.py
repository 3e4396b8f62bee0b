"""Ctrl-C in a sweep, an import, or while a model is put back: where nothing is half done. In a picture: not lost."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Hold back SIGINT during work that must be completed, such as storing finished points.

    The previous handler runs inside `allowed`, also for a signal that arrived earlier. Further signals are dropped
    until the sweep has ended in order. Nothing changes in threads other than the main one, which receive no signals,
    or if SIGINT is not handled by Python.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._frame: FrameType | None = None
        self._pending = self._open = self._delivered = self._ending = False

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, self._before)
            if kind is None and self._pending and not self._delivered:
                self._deliver()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Within this context the signal may be delivered."""
        self._open = True
        try:
            if self._pending and not self._ending:
                self._delivered = False  # the exception was lost, for instance in a callback of the garbage collector
                self._deliver()
            yield
        except BaseException:
            self._ending = True
            raise
        finally:
            self._open = False

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        self._pending, self._frame = True, frame
        if self._open:
            self._deliver()

    def _deliver(self) -> None:
        if not self._delivered:
            self._delivered = True
            self._open = False
            self._before(signal.SIGINT, self._frame)
            self._delivered = self._pending = False  # the handler returned, so the sweep goes on


@contextmanager
def not_lost() -> Iterator[None]:
    """Ctrl-C within ends it, also where code of others drops the exception, or makes another error of it."""
    before, raised = signal.getsignal(signal.SIGINT), list[BaseException]()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    handler = before

    def on_signal(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    except Exception as error:  # raised again, unless Ctrl-C was turned into it
        if raised:
            raise raised[-1] from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is on_signal:
            signal.signal(signal.SIGINT, before)
    if raised:
        raise raised[-1]


def optional(module: str, missing: Exception) -> Any:
    """A module of an optional package; raises `missing` if it is not installed, and says so if it does not load."""
    try:
        with Interrupts():  # a package that is imported by half cannot be imported again
            return importlib.import_module(module)
    except ModuleNotFoundError:
        raise missing from None  # which says what to install
    except (ImportError, ValueError) as error:  # no memory to map it; or MPLBACKEND names what matplotlib does not know
        raise type(missing)(f"{module} is installed but cannot be imported: {error}") from error
