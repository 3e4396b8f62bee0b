"""The files that commands write: whether they can be written, and by what names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from memsched.cli.complete import complete_files
from memsched.errors import InvalidInputError
from memsched.show.plots.figure import check_suffix
from memsched.support.files import check_named, named_as, same_file


def check_writable(path: str) -> str:
    """Refuse a file that cannot be written, before the work rather than after it; the write itself checks again."""
    target = Path(path)
    if not path:
        raise InvalidInputError("the name of the file to write is empty")
    if path == "-":
        raise InvalidInputError("'-' cannot be written: no option writes to standard output; name a file")
    try:
        is_folder = target.is_dir()
    except OSError as error:  # a name of too many letters
        raise InvalidInputError(f"'{path}' cannot be written: {error.strerror}") from error
    if is_folder:
        raise InvalidInputError(f"'{path}' cannot be written: it is a directory")
    if path.endswith(("/", os.sep)):
        raise InvalidInputError(f"'{path}' cannot be written: '{target}' is not a directory")
    if target.exists() and not target.is_file():
        raise InvalidInputError(f"'{path}' cannot be written: it is not a regular file")
    if not target.parent.is_dir():
        raise InvalidInputError(f"'{path}' cannot be written: '{target.parent}' is not a directory")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"'{path}' cannot be written: no permission in '{target.parent}'")
    return path


def check_json(path: str) -> str:
    """The same for a document."""
    hint = "; plot and report draw a saved plan" if named_as(path) == "a picture" else ""
    return check_writable(check_named(path, "JSON", ".json", hint=hint))


def check_ending(path: str, *endings: str) -> str:
    """The same for a file whose ending decides what it holds."""
    if Path(check_writable(path)).suffix.lower() not in endings:
        raise InvalidInputError(f"'{path}' must end in {' or '.join(endings)}, which decides what it holds")
    return path


def check_json_or_csv(path: str) -> str:
    """The same for what is a document or a table."""
    return check_ending(check_named(path, "JSON", ".json", ".csv"), ".json", ".csv")


def check_store(path: str) -> str:
    """The same for the store of a sweep."""
    return check_writable(check_named(path, "an SQLite database", ".sqlite", ".db"))


def check_picture(path: str) -> str:
    """The same for a picture, whose suffix must be known."""
    if path.lower().endswith(".csv") and any("--csv" in one.opts for one in click.get_current_context().command.params):
        raise InvalidInputError(f"'{path}' ends in '.csv', and -o draws a picture; --csv prints the table: > {path}")
    check_suffix(path)
    return check_writable(path)


def file_option(*names: str, check: Callable[[str], str] = check_writable, **more: Any) -> Callable[..., Any]:
    """An option for a file to write, which is checked before any work."""

    def checked(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return None
        path = check(value)
        outputs = context.meta.setdefault("memsched.outputs", [])
        if any(same_file(path, other) for other in outputs):
            raise click.UsageError(f"'{path}' is given twice; give two files")
        outputs.append(path)
        return path

    return click.option(*names, metavar="FILE", callback=checked, shell_complete=complete_files, **more)
