"""What the docstrings of many functions would repeat, described once: `documented` fills it in."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from textwrap import fill
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

# The standard library alone: tools/api_docs.py loads this file without memsched.
PARAMETERS = {
    "problem : Chain, Graph or GraphFamily": "For a family: its graph at full batch.",
    "chain : Chain": "",
    "M : int": "Memory budget in bytes, resident included.",
    "beta : float": "Bytes per second; 0 means no link, inf a free one.",
    "device : Device, optional": "Instead of M and beta, which override its memory and bandwidth.",
    'chunk : None, int or "storage"': "How a chain's tensors travel: whole, in pieces of at most this many bytes, or "
    "as single storages.",
    "workspace_limit : int": "For graphs, bytes: each op uses the fastest algorithm with at most this much workspace.",
    "tree : int": "Up to this many maps are searched exhaustively, from 0 to 20.",
    "beam : int": "With more maps, this many states are kept.",
    "threads : int": "0: one per core. The result does not depend on it.",
    "seed : int": "Seed of the search.",
    "progress : callable, optional": "Called with a fraction from 0 to 1 as the work goes on.",
    "result : Result": "From any planner, simulated.",
    "path : str or path, optional": "File to save the picture to: .png, .svg or .pdf.",
}
RAISES = {"InvalidInputError": "An argument is not what it must be; the message says which and why."}


def documented(function: Function) -> Function:
    """Complete the docstring of a function with the parameters that it does not describe itself."""
    code = function.__code__
    if function.__doc__:  # none under python -OO
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        function.__doc__ = completed(inspect.cleandoc(function.__doc__), names)
    return function


def completed(docstring: str, parameters: Iterable[str]) -> str:
    """A docstring in numpy's form, with every shared parameter among those named, in their order."""
    text, *parts = re.split(r"^(\w+)\n-+\n", docstring, flags=re.MULTILINE)
    sections = dict.fromkeys(("Parameters", "Returns", "Raises"), "") | dict(zip(parts[::2], parts[1::2], strict=True))
    own, shared = _items(sections["Parameters"]), _items(_listed(PARAMETERS))
    blocks = [own.get(name) or shared.get(name, "") for name in parameters]
    sections["Parameters"] = "".join(dict.fromkeys(blocks))
    raised = _items(sections["Raises"])
    sections["Raises"] = "".join((raised | (_items(_listed(RAISES)) | raised)).values())
    written = (f"{title}\n{'-' * len(title)}\n{body.strip()}" for title, body in sections.items() if body)
    return "\n\n".join([text.strip(), *written])


def _listed(items: dict[str, str]) -> str:
    indent = "    "
    texts = (fill(text, 110, initial_indent=indent, subsequent_indent=indent) for text in items.values())
    return "".join(f"{head}\n{text}\n" for head, text in zip(items, texts, strict=True))


def _items(body: str) -> dict[str, str]:
    """The entries of a section by name; several names may share one."""
    blocks = [block.strip() + "\n" for block in re.split(r"^(?=\S)", body, flags=re.MULTILINE) if block.strip()]
    return {name: block for block in blocks for name in re.split(r" :|\n", block)[0].split(", ")}
