"""The command line: `memsched compare`, `plan`, `frontier`, `order`, `place`, `simulate`, `validate`, `plot`, ..."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `memsched` command. Needs the extra memsched[cli]."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        print(f"error: the command line needs {error.name}; install memsched[cli]", file=sys.stderr)
        sys.exit(1)
    from memsched.cli.app import program

    program(prog_name="memsched")
