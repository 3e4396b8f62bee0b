"""The command line: its commands, and how errors are reported."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from contextlib import suppress
from typing import Any

import click

import memsched
from memsched.cli.check import simulate, validate
from memsched.cli.compare import compare
from memsched.cli.doctor import doctor
from memsched.cli.draw import plot, trace
from memsched.cli.export import export
from memsched.cli.fit import fit
from memsched.cli.frontier import frontier
from memsched.cli.order import order
from memsched.cli.place import place
from memsched.cli.plan import plan
from memsched.cli.planners import planners
from memsched.cli.profile import profile
from memsched.cli.profiles import profiles
from memsched.cli.report import report
from memsched.cli.show import ILLEGAL, INFEASIBLE, INTERRUPTED, OTHER, USAGE, complain, print_json, warn
from memsched.cli.sweep import sweep
from memsched.cli.usage import as_typed
from memsched.cli.usage import told as told_usage
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError, ScheduleError
from memsched.support.units import BYTES_FORMS, PERCENT_ENDS

_HELP = f"""Plan what happens to every activation of a training step (keep, offload or recompute), so that it fits a
memory budget.

PROBLEM is the name of a shipped profile, such as resnet101-224-b32, the graph of its step, such as
graph:resnet101-224-b32, a network by formula, such as analytic:resnet50:512, a memsched-chain/1,
memsched-graph/1 or memsched-family/1 file, a table of stages (.csv) or a model (.onnx). FILE is a result or a
plan that `memsched plan` saved, or a plan of memsched.torch. "-" reads the standard input.

Sizes: {BYTES_FORMS}. A memory may also be 40% ({PERCENT_ENDS};
min_memory is the least that any plan needs). Bandwidths: 12GB/s, 12.2e9, inf (a free link), 0 (no link).
"""

_EPILOG = """Exit status: 0 success, 1 other error, 2 bad usage or input, 3 no plan fits the memory, 4 a schedule
that cannot run or a result that does not hold, 130 interrupted."""


def _message(error: MemschedError) -> str:
    text = str(error)
    step = getattr(error, "step", None)
    return text if step is None or f"step {step}" in text.lower() else f"step {step}: {text}"


def _status(error: MemschedError) -> int:
    if isinstance(error, InfeasibleError):
        return INFEASIBLE
    if isinstance(error, ScheduleError):
        return ILLEGAL
    return USAGE if isinstance(error, InvalidInputError) else OTHER


def _told(error: OSError) -> str:
    """The text of an error on stdout; errors of other files are raised by us and name the file."""
    if error.errno == errno.ENOENT and error.filename is None:  # of os.getcwd
        return "the current folder is not there any more; change to one that is"
    unwritten = error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return f"the standard output cannot be written: {error.strerror}" if unwritten else str(error)


def _complain_of_usage(error: click.ClickException, as_json: bool, group: click.Context | None = None) -> None:
    text = told_usage(error, group)
    if as_json:
        _say_json({"kind": "UsageError", "message": text})
    complain(text)


def _say_json(error: dict[str, Any]) -> None:
    """An error on stdout; where that cannot be written, stderr and the exit status still tell it."""
    with suppress(OSError):
        print_json({"error": error})


class CommandGroup(click.Group):
    """A group of commands that reports errors as one line and an exit status, never as a traceback."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options before the command."""
        as_json = "--json" in args  # also where the other options cannot be parsed
        typed = list(args)
        if "help" in args and (args[0] == "help" or {*args} <= {"help", *self.commands}):  # as in `memsched help plan`
            args = [*(name for name in args if name != "help"), "--help"]
        try:
            context = super().make_context(info_name, args, parent, **extra)
            context.meta["json"], context.meta["typed"] = as_json, typed
            return context
        except click.UsageError as error:
            _complain_of_usage(error, as_json)
            sys.exit(USAGE)
        except KeyboardInterrupt:  # which click takes for another error
            complain("interrupted")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:  # of --help and --version
            complain(_told(error))
            sys.exit(OTHER)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Warnings become lines of ours."""
        try:
            return self._run(ctx)
        except (KeyboardInterrupt, click.Abort):  # also while an error was told
            complain("interrupted")
            ctx.exit(INTERRUPTED)

    def _run(self, ctx: click.Context) -> Any:
        """Run a command and tell its errors."""
        try:
            with warnings.catch_warnings():
                for told in ("write the unit, such as 12GB/s", "give a bandwidth for another"):
                    warnings.filterwarnings("always", message=f".*{told}")
                warnings.showwarning = lambda message, *_, **__: warn(str(message))
                return super().invoke(ctx)
        except click.ClickException as error:
            _complain_of_usage(error, ctx.meta["json"], ctx)
            ctx.exit(USAGE)
        except MemschedError as error:
            self._fail(ctx, error)
        except BrokenPipeError:  # as in `memsched profiles | head`: the reader is done
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except OSError as error:
            complain(_told(error))
            ctx.exit(OTHER)
        except MemoryError:
            complain("out of memory")
            ctx.exit(OTHER)
        except ImportError as error:  # for instance, there was no memory to map it
            complain(f"a module cannot be loaded: {error}")
            ctx.exit(OTHER)

    def _fail(self, ctx: click.Context, error: MemschedError) -> None:
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        if ctx.meta["json"]:
            facts = {name: getattr(error, name) for name in ("min_memory", "step") if hasattr(error, name)}
            _say_json({"kind": type(error).__name__, "message": as_typed(str(error), command), **facts})
        complain(as_typed(_message(error), command))
        ctx.exit(_status(error))


@click.group(
    cls=CommandGroup,
    help=_HELP,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(memsched.__version__, prog_name="memsched", message="%(prog)s %(version)s")
@click.pass_context
def command_line(context: click.Context) -> None:
    """Show the help if there is no command."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


_COMMANDS = (
    *(compare, plan, frontier, sweep, order, place, simulate, validate),
    *(fit, profile, export, profiles, planners, plot, trace, report, doctor),
)
for _command in _COMMANDS:
    command_line.add_command(_command)
