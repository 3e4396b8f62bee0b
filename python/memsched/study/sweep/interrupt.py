"""Ctrl-C in a sweep: it comes through where nothing is half done, and only once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Holds SIGINT back from what must not be cut in two, such as finished points on their way into the store.

    Whatever would handle the signal does so inside `allowed`, also when it came before. After the first, further ones
    are dropped until the sweep has ended in order. In other threads than the main one, which get no signals, and where
    SIGINT is not handled by Python, nothing changes.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._frame: FrameType | None = None
        self._came = self._open = self._told = self._ending = False

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._hear:
            signal.signal(signal.SIGINT, self._before)
            if kind is None and self._came and not self._told:
                self._tell()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Here the signal may come through."""
        self._open = True
        try:
            if self._came and not self._ending:
                self._told = False  # the sweep goes on, so what was raised was lost, as in a callback of the collector
                self._tell()
            yield
        except BaseException:
            self._ending = True
            raise
        finally:
            self._open = False

    def _hear(self, _: int, frame: FrameType | None) -> None:
        self._came, self._frame = True, frame
        if self._open:
            self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._open = False
            self._before(signal.SIGINT, self._frame)
            self._told = self._came = False  # its handler lets the sweep go on
