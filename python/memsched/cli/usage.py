"""What is said of a command line that cannot be read: what is wrong, what was meant, and what to type."""

from __future__ import annotations

import re

import click

from memsched.errors import InvalidInputError
from memsched.planners.entry import options_of
from memsched.planners.registry import PLANNERS
from memsched.support import checks
from memsched.support.arguments import meant

_UNKNOWN = re.compile(r"No such command '(.*?)'")
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")
SIZE = re.compile(r"\d.*(%|b)", re.IGNORECASE)
_OUTPUT = ("--plot", "--picture", "--save", "--out", "--file")  # what some commands or other tools call it
_VALUE = re.compile(r".*: '?(.*?)'? is not (?:one of|in the range|a valid integer)", re.DOTALL)


def told(error: click.ClickException, group: click.Context | None = None) -> str:
    """One sentence, and where to read on; the group knows the command where the error does not."""
    context: click.Context | None = getattr(error, "ctx", None)
    if context is None and group is not None and isinstance(group.command, click.Group):
        command = group.command.get_command(group, group.invoked_subcommand or "")
        context = None if command is None else click.Context(command, parent=group, info_name=command.name)
    if context is None:
        return error.format_message().rstrip(".")
    said = _told(error, context)
    return f"{said}{' See' if said.endswith('?') else '; see'} '{context.command_path} --help'"


def _told(error: click.ClickException, context: click.Context) -> str:
    said, command = error.format_message().rstrip("."), context.command
    unknown, extra = _UNKNOWN.match(said), _EXTRA.fullmatch(said)
    if isinstance(error, click.NoSuchOption):
        return _no_option(error.option_name, command)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_named(error.param)} is missing{_stray(context, error.param) or _example(context, error.param)}"
    if isinstance(error, click.BadOptionUsage):
        option = next((one for one in command.params if error.option_name in one.opts), None)
        if option is not None and not getattr(option, "is_flag", False):
            return f"{error.option_name} needs a value, {option.make_metavar(context)}{_example(context, option)}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return _bad_value(said, error.param)
    if unknown and isinstance(command, click.Group):
        near = checks.close(unknown[1], command.commands)
        meant = f"did you mean '{near}'?" if near else f"the commands are {', '.join(command.commands)}"
        meant = "compare tells the bounds of a problem" if unknown[1].startswith("bound") else meant
        return f"there is no command '{unknown[1]}'; {meant}"
    if extra:
        takes = " ".join(_named(one) for one in command.params if isinstance(one, click.Argument))
        hint = f"; a memory is written --memory {extra[1]}" if SIZE.fullmatch(extra[1]) else ""
        said = f"{takes} and options" if takes else "options alone"
        return f"unexpected argument '{extra[1]}': {command.name} takes {said}{hint}"
    return said


def _stray(context: click.Context, missing: click.Parameter) -> str:
    """What to write with a first word that belongs to no option, of a command that takes options alone."""
    command, typed = context.command, context.meta.get("typed", ())
    if any(isinstance(one, click.Argument) for one in command.params) or command.name not in typed:
        return ""
    parser = command.make_parser(click.Context(command, info_name=command.name))
    left = parser.parse_args(list(typed[typed.index(command.name) + 1 :]))[1]
    option = "--memory" if left and SIZE.fullmatch(left[0]) else _named(missing)
    return f", and {left[0]!r} belongs to no option; write {option} {left[0]}" if left else ""


def as_typed(text: str, command: click.Command | None) -> str:
    """A message with the options of a command by the names that they have there, not in Python."""
    for one in command.params if command else ():
        if one.name and "_" in one.name and isinstance(one, click.Option):
            text = re.sub(rf"(?<![\w.'-]){one.name}(?![\w'])", _named(one), text)
    return text


def _named(parameter: click.Parameter) -> str:
    """An option by its longest name, an argument as the help writes it."""
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


def _example(context: click.Context, parameter: click.Parameter) -> str:
    """The first example in the help of the command that has the option; else its first."""
    beginning = f"{context.command_path} "
    lines = [line.strip() for line in (context.command.help or "").splitlines()]
    examples = [line.partition("  #")[0].rstrip() for line in lines if line.startswith(beginning)]
    having = [line for line in examples if not {*parameter.opts}.isdisjoint(line.split())]
    return "".join(f"; write, for example, '{line}'" for line in (*having, *examples)[:1])


def _no_option(name: str, command: click.Command) -> str:
    commands = command.commands.values() if isinstance(command, click.Group) else ()
    after = next((one.name for one in commands if any(name in option.opts for option in one.params)), None)
    if after:
        return f"the option {name} comes after the command, as in 'memsched {after} .. {name}'"
    known = [name for one in command.params for name in (*one.opts, *one.secondary_opts) if "-" in name]
    own = name.removeprefix("--").replace("-", "_")
    writes = next((one for one in command.params if "--option" in one.opts), None)
    metavar = str(getattr(writes, "metavar", ""))
    if metavar and any(own in options_of(one.plan) for one in PLANNERS.values()):
        return f"there is no option {name}, but planners have one: write -O {metavar.replace('NAME', own)}"
    alike = meant(own, [one.removeprefix("--").replace("-", "_") for one in known if one.startswith("--")])
    near = f"--{alike.replace('_', '-')}" if alike else checks.close(name, known)
    near = "--output" if name in _OUTPUT and "--output" in known else near
    return f"there is no option {name}; did you mean {near}?" if near else f"there is no option {name}"


def _bad_value(said: str, parameter: click.Parameter) -> str:
    """Of an option whose value is none of some words, or no whole number in a range."""
    found, name, kind = _VALUE.match(said), _named(parameter), parameter.type
    if found and isinstance(kind, click.Choice):
        try:
            checks.choice(name, found[1], [str(one) for one in kind.choices])
        except InvalidInputError as error:
            return str(error)
    if found and isinstance(kind, click.types.IntParamType):
        least, most = getattr(kind, "min", None), getattr(kind, "max", None)
        span = "" if least is None or most is None else f" from {least} to {most}"
        return f"{name} is {found[1]}; it must be a whole number{span}"
    return said
