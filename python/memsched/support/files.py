"""Whole files: read under a cap, and replaced at once or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import IO, TypeAlias

from memsched.errors import InvalidInputError

MOST_BYTES = 1 << 28  # of an input file: 256 MiB, which JSON turns into gigabytes of objects

_FORMULA = tuple("=+-@\t\r")  # how a formula may begin

Name: TypeAlias = str | os.PathLike[str]


def path_of(given: object, what: str = "the path") -> str:
    """A path as a text.

    Raises
    ------
    InvalidInputError
        It is none: another type, empty, or with a NUL.
    """
    try:
        path = os.fsdecode(given)  # type: ignore[arg-type]
    except TypeError:
        path = ""
    if not path or "\0" in path:
        raise InvalidInputError(f"{what} is {given!r:.200}; it must be the path of a file")
    return path


def same_file(one: Name, other: Name) -> bool:
    """Whether two paths lead to one file, be it there or not.

    Raises
    ------
    InvalidInputError
        One of them is no path.
    """
    return os.path.realpath(path_of(one)) == os.path.realpath(path_of(other))


def check_regular(path: str) -> os.stat_result:
    """The facts of a regular file.

    Raises
    ------
    OSError
        There is none, or something else is there.
    """
    facts = os.stat(path)
    for kind, name in ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket")):
        if kind(facts.st_mode):
            raise OSError(f"it is {name}; give a regular file")
    if not stat.S_ISREG(facts.st_mode):
        raise OSError("it is a device; give a regular file")
    return facts


def read_text(path: Name, *, encoding: str = "utf-8", most: int = MOST_BYTES) -> str:
    """A whole text file of at most so many bytes; its line ends stay as they are.

    Raises
    ------
    InvalidInputError
        There is no such file, it is no regular file, larger than `most`, or no text.
    """
    name = path_of(path)
    try:
        facts = check_regular(name)  # before it is opened: to open a pipe waits for whoever writes
        if facts.st_size <= most:
            with open(name, "rb") as file:
                content = file.read(most + 1)
        if facts.st_size > most or len(content) > most:
            raise OSError(f"it has more than {most} bytes, which is the most; split it, or check what it is")
        return content.decode(encoding)
    except (OSError, ValueError, MemoryError) as error:  # ValueError: no text
        raise InvalidInputError(f"'{name}' cannot be read: {error or 'out of memory'}") from error


def read_stream(stream: IO[str], what: str, most: int = MOST_BYTES) -> str:
    """All of a text that comes, of at most so many letters.

    Raises
    ------
    InvalidInputError
        There is more, or it is no text.
    """
    try:
        text = stream.read(most + 1)
    except (OSError, ValueError, MemoryError) as error:
        raise InvalidInputError(f"{what} cannot be read: {error or 'out of memory'}") from error
    if len(text) > most:
        raise InvalidInputError(f"{what} has more than {most} letters, which is the most")
    return text


def write_bytes(path: Name, content: bytes) -> None:
    """Replace a whole file, or leave what was there, also when the power fails.

    A link is followed, only a regular file is replaced, and its permissions stay.

    Raises
    ------
    InvalidInputError
        The file cannot be written.
    """
    name = path_of(path)
    temporary: Path | None = None
    try:
        target = Path(name).resolve()
        known = check_regular(str(target)) if target.exists() else None
        beside = target.with_name(f".memsched-{secrets.token_hex(8)}")  # short, however long the name is
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if known is None else 0o600)
        temporary = beside
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if known is not None:
                os.chmod(beside, stat.S_IMODE(known.st_mode))
            os.fsync(file.fileno())
        os.replace(beside, target)
        temporary = None
        _sync_folder(target.parent)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        raise InvalidInputError(f"'{name}' cannot be written: {error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a new name last, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing
            raise
    finally:
        os.close(handle)


def plain_cell(text: str) -> str:
    """A text for a cell of a CSV file: what a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{text}" if text.lstrip("'")[:1] in _FORMULA and text else text


def read_cell(text: str) -> str:
    """What `plain_cell` was given."""
    return text[1:] if text.startswith("'") and plain_cell(text[1:]) == text else text
