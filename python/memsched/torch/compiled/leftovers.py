"""Tensors without data that a look at a step leaves behind: what keeps them would train on nothing, in silence."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from memsched.torch.compiled.private import call_for_results, is_tracing
from memsched.torch.errors import CaptureError

_CACHE = type(functools.lru_cache(len))
_DEPTH = 4  # of containers in a cache


class Leftovers:
    """The tensors without data that code makes while it runs, rather than while it is traced."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._made: list[weakref.ref[FakeTensor]] = []
        call_for_results(mode, self._note)

    def _note(self, out: Any) -> None:
        if not is_tracing():
            self._made += [weakref.ref(one) for one in pytree.tree_leaves(out) if isinstance(one, FakeTensor)]

    @contextlib.contextmanager
    def taken_back(self) -> Iterator[None]:
        """Empties caches of functions that keep such tensors afterwards.

        Raises
        ------
        CaptureError
            Something else keeps some.
        """
        try:
            yield
        except BaseException:
            self._empty_caches()
            raise
        others = self._take_back()
        if others:
            raise CaptureError(
                f"{_said(others[0])} keeps a tensor that was made while the step was looked at, when tensors have no "
                "data; run one step before, so that what is kept is there"
            )

    def _alive(self) -> list[FakeTensor]:
        return [one for made in self._made if (one := made()) is not None]

    def _empty_caches(self) -> None:
        for holders in _referrers(self._alive()):
            for one in holders:
                if isinstance(one, _CACHE):
                    one.cache_clear()

    def _take_back(self) -> list[Any]:
        """Take what is left out of caches and dicts; returns what holds some beside caches."""
        if not self._alive():
            return []
        gc.collect()  # cycles that nobody needs
        self._empty_caches()
        alive = self._alive()
        found = next(filter(None, map(_objects, _referrers(alive))), [])
        for holder in found:
            if isinstance(holder, dict):
                for key in [key for key, value in holder.items() if any(value is one for one in alive)]:
                    del holder[key]
        return found


def _referrers(level: list[Any]) -> Iterator[list[Any]]:
    """What refers to some objects; then what refers to the containers among that, and so on."""
    seen = set(map(id, level))
    for _ in range(_DEPTH):
        if not level:
            return
        found = [one for one in gc.get_referrers(*level) if id(one) not in seen and not isinstance(one, FrameType)]
        found = [one for one in found if one is not level]
        seen.update(map(id, (found, *found)))
        yield found
        level = [one for one in found if isinstance(one, tuple | list | set | dict)]
        seen.add(id(level))


def _objects(holders: list[Any]) -> list[Any]:
    return [one for one in holders if not isinstance(one, tuple | list | set)]


def _said(holder: Any) -> str:
    if isinstance(holder, GeneratorType):
        return f"the generator {holder.__name__}"
    if isinstance(holder, dict) and "__name__" in holder:
        return f"the module {holder['__name__']}"
    return f"an object of type {type(holder).__name__}"
