"""Read whole files up to a limit, and replace them atomically; InvalidInputError says why that is not possible."""

from __future__ import annotations

import difflib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import IO, TypeAlias

from memsched.errors import InvalidInputError, shown
from memsched.support.kinds import told_kind

MOST_BYTES = 1 << 28  # limit of an input file, 256 MiB; as JSON it becomes gigabytes of objects

_NAMED = {
    **dict.fromkeys((".png", ".svg", ".pdf", ".jpg", ".html", ".htm"), "a picture"),
    **dict.fromkeys((".tsv", ".xlsx"), "a table"),
    **{
        ".csv": "CSV",
        ".parquet": "Parquet",
        ".json": "JSON",
        ".toml": "TOML",
        ".onnx": "a model",
        ".sqlite": "a database",
        ".db": "a database",
    },
    **dict.fromkeys((".pickle", ".pkl", ".pt", ".gz", ".zip"), "a binary file"),
}  # what a file is that ends like this
_FORMULA = tuple("=+-@\t\r")  # first characters of a formula

Name: TypeAlias = str | os.PathLike[str]


def path_of(given: object, what: str = "the path") -> str:
    """A path as a string; refuses another type, an empty path, and one with a NUL."""
    try:
        path = os.fsdecode(given)  # type: ignore[arg-type]
    except TypeError:
        path = ""
    if not path or "\0" in path:
        raise InvalidInputError(f"{what} is {shown(given):.200}; it must be the path of a file")
    return path


def why(error: Exception) -> str:
    """What an error of the system says, without its number and the path, which the message names already."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or "out of memory"


def named_as(path: str) -> str | None:
    """What a file is by the end of its name; None where that says nothing."""
    return _NAMED.get(Path(path).suffix.lower())


def check_named(path: str, what: str, *endings: str, hint: str = "") -> str:
    """The path of a file that will hold this, whose name must not say that it is something else."""
    ending = Path(path).suffix.lower()
    if ending in _NAMED and ending not in endings:
        raise InvalidInputError(
            f"'{path}' would hold {what}, but is named as {_NAMED[ending]}; let it end in {' or '.join(endings)}{hint}"
        )
    return path


def same_file(one: Name, other: Name) -> bool:
    """Whether two paths lead to the same file, which need not exist."""
    return os.path.realpath(path_of(one)) == os.path.realpath(path_of(other))


def check_regular(path: str) -> os.stat_result:
    """The stat result of a regular file; OSError if there is none or it is not regular."""
    facts = os.stat(path)
    for kind, name in ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket")):
        if kind(facts.st_mode):
            raise OSError(f"it is {name}; give a regular file")
    if not stat.S_ISREG(facts.st_mode):
        raise OSError("it is a device; give a regular file")
    return facts


def read_bytes(path: Name, most: int = MOST_BYTES, remedy: str = "split it, or check what it is") -> bytes:
    """Read a whole file of at most `most` bytes; the error of one that has more says the remedy."""
    name = path_of(path)
    try:
        facts = check_regular(name)  # before it is opened, since opening a pipe waits for its writer
        if facts.st_size <= most:
            with open(name, "rb") as file:
                content = file.read(facts.st_size + 1)  # Python takes the memory for as many bytes as are asked for
                if len(content) > facts.st_size:  # it grows, or is one of /proc, which have no size
                    content += file.read(most + 1 - len(content))
        if facts.st_size > most or len(content) > most:
            raise OSError(f"it has more than {most} bytes, the limit; {remedy}")
        return content
    except (OSError, ValueError, MemoryError) as error:
        raise InvalidInputError(f"'{name}' cannot be read: {why(error)}{_of_tilde(name)}{_alike(name)}") from error


def _alike(name: str) -> str:
    """What to add to the error of a file that is not there, where one of nearly that name is."""
    folder, file = os.path.split(name)
    try:
        known = [] if os.path.lexists(name) else os.listdir(folder or ".")
    except (OSError, ValueError):
        known = []
    near = difflib.get_close_matches(file, known[:10_000], n=1, cutoff=0.8)
    return f"; did you mean '{os.path.join(folder, near[0])}'?" if near else ""


def _of_tilde(name: str) -> str:
    """What to add to the error of a path that only a shell understands."""
    return "; only a shell knows '~', so write the path in full" if name.startswith("~") else ""


def read_text(path: Name, *, most: int = MOST_BYTES) -> str:
    """Read a whole text file of at most `most` bytes; line ends are kept, a byte order mark is not."""
    content = read_bytes(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = told_kind(content)
        raise InvalidInputError(f"'{path_of(path)}' is {kind or f'not UTF-8 text (byte {error.start})'}") from error
    except (ValueError, MemoryError) as error:
        raise InvalidInputError(f"'{path_of(path)}' cannot be read: {why(error)}") from error


def read_stream(stream: IO[str] | None, what: str, most: int = MOST_BYTES) -> str:
    """Read all text from a stream, at most `most` characters; None is one that is closed."""
    try:
        if stream is None:
            raise OSError("it is closed")
        text = stream.read(most + 1)
    except (OSError, ValueError, MemoryError) as error:
        raise InvalidInputError(f"{what} cannot be read: {why(error)}") from error
    if len(text) > most:
        raise InvalidInputError(f"{what} has more than {most} characters, the limit")
    return text


def write_bytes(path: Name, content: bytes) -> None:
    """Replace a whole file atomically, even if the power fails.

    Links are followed, only regular files are replaced, and permissions are kept.
    """
    name = path_of(path)
    temporary: Path | None = None
    try:
        target = Path(name).resolve()
        known = check_regular(str(target)) if target.exists() else None
        if known is None and not target.parent.is_dir():
            raise OSError(f"'{Path(name).parent}' is not a directory")
        beside = target.with_name(f".memsched-{secrets.token_hex(8)}")  # a short name, however long the target's is
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
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise InvalidInputError(f"'{name}' cannot be written: {why(error)}{_of_tilde(name)}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a new name durable, if the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by some file systems
            raise
    finally:
        os.close(handle)


def plain_cell(text: str) -> str:
    """A text as a CSV cell: an apostrophe is put before what a spreadsheet would take for a formula."""
    return f"'{text}" if text.lstrip("'")[:1] in _FORMULA and text else text


def read_cell(text: str) -> str:
    """The inverse of `plain_cell`."""
    return text[1:] if text.startswith("'") and plain_cell(text[1:]) == text else text
