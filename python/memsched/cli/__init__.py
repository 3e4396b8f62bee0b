"""The command line: `memsched compare`, `plan`, `frontier`, `order`, `place`, `simulate`, `validate`, `plot`, ..."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C ends the command. Further signals are ignored, so that it can end in order."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the `memsched` command. Needs the extra memsched[cli]."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller: discard the output
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(getattr(sys, stream), io.TextIOWrapper):  # names may have what the terminal lacks
            getattr(sys, stream).reconfigure(errors="backslashreplace")
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        print(f"error: the command line needs {error.name}; pip install 'memsched[cli]'", file=sys.stderr)
        sys.exit(1)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from memsched.cli.app import command_line

        command_line(prog_name="memsched")
    except (ValueError, LookupError, OSError):
        if "_MEMSCHED_COMPLETE" not in os.environ:
            raise
        sys.exit(1)  # a shell that completes a word has nobody to read an error
    except (KeyboardInterrupt, RuntimeError) as error:  # before the command began
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise  # Python before 3.12 makes a RuntimeError of what happens while a class is made
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        exec("")  # after an interrupt in code that dataclasses compile, CPython would end by the signal, not the status
