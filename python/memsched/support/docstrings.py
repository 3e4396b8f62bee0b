"""What the docstrings of many functions would repeat, described once: `documented` fills it in."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import cache
from textwrap import fill, indent
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

# The standard library alone: tools/api_docs.py loads this file without memsched.
PARAMETERS = {
    "problem : Chain, Graph or GraphFamily": "For a family: its graph at full batch.",
    "chain : Chain": "",
    "M : int or str": 'Memory budget, resident included: bytes, "6GiB", or "40%" of the way from min_memory to '
    "peak_memory.",
    "beta : float or str": 'Bytes per second, or "12GB/s"; 0 means no link, inf a free one. By default none, where '
    "the command line takes the link of the profile.",
    "device : Device, optional": "Memory, link and host memory in one. M or beta, where given too, replaces "
    "its memory or its bandwidth, whether smaller or larger.",
    "chunk : None, int or str": 'How a chain\'s tensors travel: whole, in pieces of at most this many bytes ("16MiB"), '
    'or as single storages ("storage"). Planners that do not take it move whole tensors.',
    "workspace_limit : int or str": "For graphs: each op uses the fastest algorithm with at most this much workspace.",
    "tree : int": "Up to this many maps are searched exhaustively, from 0 to 20.",
    "beam : int": "With more maps, this many states are kept.",
    "threads : int": "0: one per core. The result does not depend on it.",
    "seed : int": "Seed of the search.",
    "time_limit : float or str, optional": 'Seconds, or "500ms"; when they are over, the best plan so far. 0 or None: '
    "no limit.",
    "progress : callable, optional": "Called with a fraction from 0 to 1 as the work goes on.",
    "result : Result": "From any planner, simulated.",
    "path : str or path, optional": "File to save the picture to: .png, .svg or .pdf.",
}
RAISES = {
    "InfeasibleError": "M is below the least memory of the planner, min_memory(problem, planner).",
    "MemschedError": "matplotlib is not installed.",
    "InvalidInputError": "An argument is not what it must be; the message says which and why.",
}
RAISED_BY = {  # decorator -> what the functions that it decorates raise
    "documented": ("InvalidInputError",),
    "picture": ("MemschedError", "InvalidInputError"),
    "Planner": ("InfeasibleError", "InvalidInputError"),
}


def documented(function: Function, decorator: str = "documented") -> Function:
    """Complete the docstring of a function with the parameters and errors that it does not describe itself.

    It is also `public`, as is all that has a documentation.
    """
    from memsched.support.arguments import public

    code = function.__code__
    if function.__doc__:  # none under python -OO
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        function.__doc__ = completed(inspect.cleandoc(function.__doc__), names, decorator)
    return public(function)


def picture(function: Function) -> Function:
    """The same for a function that draws."""
    return documented(function, "picture")


def completed(docstring: str, parameters: Iterable[str], decorator: str) -> str:
    """A docstring in numpy's form, with every shared parameter among those named, in their order, and the errors."""
    text, *parts = re.split(r"^(\w+)\n-+\n", docstring, flags=re.MULTILINE)
    sections = dict.fromkeys(("Parameters", "Returns", "Raises"), "") | dict(zip(parts[::2], parts[1::2], strict=True))
    own, raised = _items(sections["Parameters"]), _items(sections["Raises"])
    blocks = [own.get(name) or _shared().get(name, "") for name in parameters]
    sections["Parameters"] = "".join(dict.fromkeys(blocks))
    sections["Raises"] = "".join((raised | {name: _shared()[name] for name in RAISED_BY[decorator]} | raised).values())
    written = (f"{title}\n{'-' * len(title)}\n{body.strip()}" for title, body in sections.items() if body)
    return "\n\n".join([text.strip(), *written])


@cache
def _shared() -> dict[str, str]:
    """The entries of all shared parameters and errors."""
    texts = (f"{head}\n{indent(fill(text, 106), '    ')}\n" for head, text in (PARAMETERS | RAISES).items())
    return _items("".join(texts))


def _items(body: str) -> dict[str, str]:
    """The entries of a section by name; several names may share one."""
    blocks = [block.strip() + "\n" for block in re.split(r"^(?=\S)", body, flags=re.MULTILINE) if block.strip()]
    return {name: block for block in blocks for name in re.split(r" :|\n", block)[0].split(", ")}
