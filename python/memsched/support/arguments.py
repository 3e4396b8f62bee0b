"""Calls with arguments that a function does not take: the error names those that it takes."""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from memsched._core import Chain, Device, Graph, Schedule
from memsched.errors import ArgumentError, shown
from memsched.support.formats import WRITTEN, unit_written
from memsched.support.kinds import told_maker
from memsched.support.units import parse_bytes

Function = TypeVar("Function", bound=Callable[..., Any])

# What is called by several names, here and elsewhere.
_ALIKE = (
    ("M", "memory", "memories", "budget", "budgets", "memory_budget", "capacity", "mem", "size", "limit"),
    ("beta", "bandwidth", "bandwidths", "link", "link_bandwidth", "bw", "rate"),
    ("planner", "planners", "algorithm", "strategy", "solver", "method"),
    ("problem", "problems", "chain", "graph", "model", "profile", "network", "source"),
    ("path", "file", "filename", "output", "out"),
    ("time_limit", "timeout", "limit", "seconds"),
    ("jobs", "threads", "workers", "n_jobs", "num_workers", "max_workers"),
    ("points", "n", "count", "num"),
    ("chunk", "chunk_size", "piece", "pieces"),
    ("forward_time", "forward", "fwd", "forward_times"),
    ("backward_time", "backward", "bwd", "backward_times"),
    ("activation", "activations", "act", "acts", "sizes", "memory"),
    ("gradient", "gradients", "grad"),
    ("result", "results", "plan", "schedule"),
    ("resident", "parameters", "weights"),
    ("name", "layer", "stage", "module", "id"),
    ("start", "begin", "lower"),
    ("end", "stop", "upper"),
    ("size", "bytes", "nbytes"),
    ("max_norm", "clip", "clip_norm", "clip_grad_norm", "max_grad_norm"),
    ("accumulate", "accumulation", "accumulation_steps", "gradient_accumulation_steps", "micro_batches"),
    ("scaler", "grad_scaler", "amp"),
    ("options", "time_limit", "timeout", "chunk", "slots"),
)


def public(function: Function) -> Function:
    """The function; where it is called with arguments that it does not take, the error names those that it takes.

    The error is an InvalidInputError, and a TypeError as in all of Python. Signature and docstring are those of the
    function, and so are the globals, by which doctest tells whose it is.
    """
    refused, swapped = _refused, _swapped  # in cells of `call`, which has the globals of another module

    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except ValueError as error:
            order = swapped(function, args)
            if order is None:
                raise
            raise order from error
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # of the function itself
                raise
            raise refused(function, args, named, error) from None

    made = types.FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(made, name, getattr(function, name))
    made.__dict__.update(function.__dict__, __wrapped__=function)
    return cast("Function", made)


_CALL = ("call", public.__code__.co_filename)  # of the function that stands before each public one


def asked_by_user() -> bool:
    """Whether the `public` function that is running was called from outside the package."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != _CALL:
        frame = frame.f_back
    return frame is not None and frame.f_back is not None and not _ours(frame.f_back)


def _ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("memsched.")


def _explain_core_class(kind: type) -> None:
    """The same for the constructor of a class of the core, which names its arguments in the error that it raises."""
    construct = kind.__init__  # type: ignore[misc]  # of this very class, to be called from its replacement

    def init(self: Any, *args: Any, **named: Any) -> None:
        try:
            construct(self, *args, **named)
        except Exception as error:
            del self  # it has no value: whoever shows the variables of a traceback would read memory that nobody wrote
            known, places, needed = _of_core(str(error)) if isinstance(error, TypeError) else ([], [], [])
            if not known:
                raise
            raise _wrong(kind.__name__, known, places, needed, args, named, str(error)) from None
        if kind is Device:
            memory = args[0] if args else named["memory"]
            unit = unit_written(parse_bytes(memory) if isinstance(memory, str) else memory)
            if unit:
                WRITTEN.put(self, unit)

    init.__doc__ = construct.__doc__
    init.__dict__["__wrapped__"] = construct
    kind.__init__ = init  # type: ignore[misc]  # of this very class, as above


def explain_dataclass(kind: type) -> None:
    """The same for the constructor of a dataclass."""
    made = kind.__init__  # type: ignore[misc]  # of this very class, as above

    @wraps(made)
    def init(self: Any, *args: Any, **named: Any) -> None:
        try:
            made(self, *args, **named)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # of the constructor's own code
                raise
            raise _refused(kind, args, named, error) from None

    kind.__init__ = init  # type: ignore[misc]  # of this very class, as above


def _of_core(said: str) -> tuple[list[str], list[str], list[str]]:
    """The arguments of a constructor as the core lists them: all, those that need no name, and those that it needs."""
    listed = re.search(r"incompatible constructor arguments.*?\((.*?)\)\n", said, re.DOTALL)
    found = re.findall(r"(\*)|(\w+): \w+( = )?", listed[1] if listed else "")
    star = next((at for at, (star, _, _) in enumerate(found) if star), len(found))
    known = [name for _, name, _ in found if name]
    return known, known[:star], [name for _, name, default in found if name and not default]


def _refused(
    function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], error: TypeError
) -> ArgumentError:
    known = inspect.signature(function).parameters
    places = [name for name, one in known.items() if one.kind is not one.KEYWORD_ONLY]
    needed = [name for name, one in known.items() if one.default is one.empty]
    what = function.__qualname__.split(".")[-2] if function.__name__ == "__init__" else function.__name__
    return _wrong(what, list(known), places, needed, args, named, str(error))


def _swapped(function: Callable[..., Any], args: Sequence[Any]) -> ArgumentError | None:
    """The error of a call that failed, where a path and what to write or draw stand in each other's place."""
    places = [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.KEYWORD_ONLY]
    if len(args) < 2 or "path" not in places[:2]:
        return None
    at = places.index("path")
    if isinstance(args[at], str | os.PathLike) or not isinstance(args[1 - at], str | os.PathLike):
        return None
    given = f"{shown(args[1 - at])} as {places[1 - at]}"
    return ArgumentError(f"{function.__name__} takes {places[0]}, then {places[1]}; it is given {given}")


def _wrong(
    what: str,
    known: Sequence[str],
    places: Sequence[str],
    needed: Sequence[str],
    args: Sequence[Any],
    named: Mapping[str, Any],
    said: str,
) -> ArgumentError:
    """The error of a call with these arguments: of one that is unknown, one too many, given twice or missing."""
    known = [name for name in known if name != "self"]
    takes = f"{what} takes {', '.join(known) or 'no arguments'}"
    unknown = [name for name in named if name not in known]
    if unknown:
        guess = meant(unknown[0], [name for name in known if name not in (*named, *places[: len(args)])])
        ask = f"did you mean '{guess}'? " if guess else ""
        if what == "plan" and guess == "options":  # of a planner
            ask = f'a planner\'s own are options={{"{unknown[0]}": ..}}; '
        return ArgumentError(f"{what} has no argument {unknown[0]!r}; {ask}{takes}")
    if len(args) > len(places):
        only = ", ".join(places) or "none"
        rest = [name for name in known if name not in places]
        remedy = f"; name the others: {', '.join(f'{name}=' for name in rest)}" if rest else ""
        return ArgumentError(f"{what} takes {len(places)} positional arguments ({only}), not {len(args)}{remedy}")
    twice = [name for name in places[: len(args)] if name in named]
    if twice:
        return ArgumentError(f"{what} is given {twice[0]!r} twice, by position and by name; {takes}")
    missing = [name for name in needed if name not in (*named, *places[: len(args)])]
    if missing:
        made = told_maker(args[0]) if what == "Chain" and len(args) == 1 else ""
        if made:
            return ArgumentError(f"{what} is given a {type(args[0]).__name__} alone; {made}")
        whole = next((one for one in args if all(hasattr(one, name) for name in needed)), None)
        if whole is not None and not isinstance(whole, type):  # what has all that is needed, as a result
            held = ", ".join(f".{name}" for name in needed)
            return ArgumentError(f"{what} needs {', '.join(needed)}; give {held} of the {type(whole).__name__}")
        if places[len(args) - 1 : len(args)] == ["kwargs"] and isinstance(args[-1], str):
            return ArgumentError(f"kwargs is {shown(args[-1])}; did you mean {missing[0]}={args[-1]!r}? {takes}")
        return ArgumentError(f"{what} needs {', '.join(repr(name) for name in missing)}; {takes}")
    return ArgumentError(said)


def meant(name: str, free: Collection[str]) -> str | None:
    """The argument or column that somebody meant who wrote this name."""
    for alike in _ALIKE:
        if name.lower() in map(str.lower, alike):
            for other in alike:
                if other in free:
                    return other
    if close := get_close_matches(name, free, n=1):
        return close[0]
    known = get_close_matches(name, [one for alike in _ALIKE for one in alike], n=1, cutoff=0.75)
    return meant(known[0], free) if known and known[0] != name else None


for _kind in (Chain, Device, Graph, Schedule):
    _explain_core_class(_kind)


def tell(told: str) -> None:
    """Warn the caller of the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("memsched."):
        level, frame = level + 1, frame.f_back
    warnings.warn(told, stacklevel=level)
