"""Worker processes of a sweep. They stop on request, and end when their parent does."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from memsched.study.sweep import work

_GRACE = 5.0  # seconds that workers have to end on request


class Processes(ProcessPoolExecutor):
    """Workers that leave Ctrl-C to their parent."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of running threads
        theirs, self._ours = context.Pipe(duplex=False)
        self._told, telling = context.Pipe(duplex=False)
        super().__init__(workers, mp_context=context, initializer=_begin, initargs=(theirs, telling))
        self._theirs = theirs, telling

    def submit(self, what: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Submit work. This starts the processes, with SIGINT blocked from the start."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(what, *arguments, **named)
        resource_tracker.ensure_running()  # otherwise it would unblock signals later
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(what, *arguments, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers. Those that have not ended after a while are killed; if stopped, also those that never began.

        A worker that is killed from outside while it waits for work keeps the lock of the queue; the others would wait
        for that lock, and we for them, forever.
        """
        workers = list((self._processes or {}).values())
        manager: Any = self._executor_manager_thread
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if wait and manager is not None:
            if self._ours.closed:
                begun = self._begun()
                for worker in workers:
                    if worker.pid not in begun:  # it imports, and does not listen yet
                        worker.kill()
            left, until = {worker.sentinel: worker for worker in workers}, time.monotonic() + _GRACE
            while left and (rest := until - time.monotonic()) > 0:
                ended = multiprocessing.connection.wait(list(left), rest)
                left = {sentinel: worker for sentinel, worker in left.items() if sentinel not in ended}
            for worker in left.values():
                with suppress(OSError):
                    worker.kill()
            if manager.is_alive():  # it may not have begun, for want of memory
                manager.join()

    def stop(self) -> None:
        """Ask the workers to drop the point in progress. Finished points are still returned."""
        self._ours.close()

    def check(self) -> None:
        """RuntimeError if the thread that hands out work has died, for want of memory: then no future ever ends."""
        manager: Any = self._executor_manager_thread
        if manager is not None and not manager.is_alive():
            raise RuntimeError("the thread that hands out work has died, as when memory runs out")

    def _begun(self) -> set[int]:
        """The workers that watch the pipe to their parent."""
        pids: set[int] = set()
        with suppress(OSError, EOFError):
            while self._told.poll():
                pids.add(int(self._told.recv_bytes()))
        return pids


def _begin(parent: Connection, telling: Connection) -> None:
    """In a new worker: watch the pipe to the parent, which closes when the parent says stop or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with suppress(OSError):
        telling.send_bytes(str(os.getpid()).encode())


def _watch(parent: Connection) -> None:
    with suppress(OSError, EOFError):
        parent.poll(None)
    work.STOP.set()
    begun = multiprocessing.parent_process()
    if begun is not None:
        begun.join()
    os._exit(1)  # the parent is gone, so nothing would take the results
