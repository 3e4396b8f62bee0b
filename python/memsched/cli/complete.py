"""Completion in a shell: names of problems, files, and words that bash has taken apart at their colons."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from memsched import profiles
from memsched.errors import MemschedError
from memsched.problems.analytic.kernels import GPUS
from memsched.problems.analytic.networks import NETWORKS
from memsched.problems.machines import LINKS, MACHINES
from memsched.readers.onnx.model import dimensions

_INPUTS = (".json", ".csv", ".tsv", ".onnx")
_BATCH = 32  # of a network by formula, where none is typed yet


def complete_files(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """The shell's own names of files."""
    return [CompletionItem(typed if typed.isprintable() else "", type="file")]


def complete_problems(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of what is shipped, of networks by formula, and of files here; else the shell's own names of files."""
    found = [CompletionItem(name) for name in dict.fromkeys(_problems(typed)) if name.startswith(typed)]
    return found or complete_files(context, option, typed)


def complete_machines(context: click.Context, option: click.Parameter, typed: str) -> list[str]:
    """Names of machines, and behind a colon those of their links."""
    name, colon, _ = typed.partition(":")
    known = [f"{name}:{link}" for link in LINKS] if colon else ["here", *MACHINES]
    return [one for one in known if one.startswith(typed)]


def complete_words(known: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """A completion by some words."""
    return lambda context, option, typed: [word for word in known() if word.startswith(typed)]


def _problems(typed: str) -> Iterator[str]:
    yield from (*profiles.names(), *profiles.graph_names())
    if typed[:2] == "gr":
        yield from (f"graph:{name}" for name in profiles.graph_names())
    if typed[:2] == "an":
        yield from (f"analytic:{name}:{_BATCH}" for name in NETWORKS)
        if typed.count(":") == 3:
            yield from (f"{typed.rpartition(':')[0]}:{gpu}" for gpu in GPUS)
    path, mark, _ = typed.partition("?")
    if mark and path.endswith(".onnx"):
        before = typed[: max(typed.rfind("?"), typed.rfind("&")) + 1]
        with suppress(MemschedError):
            yield from (f"{before}{name}=" for name in dimensions(path))
    elif os.sep not in typed:
        yield from sorted(name for name in os.listdir() if name.endswith(_INPUTS) and name.isprintable())


class _Bash(BashComplete):
    """Bash, whose words end at colons; what stands before the last one is left out of the answers, as it expects."""

    _before = 0  # letters

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is typed, and that one."""
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for part in (*args, incomplete):
            if words and (part.startswith(":") or words[-1].endswith(":")):
                words[-1] += part
            else:
                words.append(part)
        if words[-1] != incomplete:
            self._before = words[-1].rindex(":") + 1
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """One line of the answer."""
        return f"{item.type},{item.value[self._before :]}"


add_completion_class(_Bash)
