"""The inputs of the commands: problems, devices, results and plans; and whether outputs can be written."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from memsched import profiles
from memsched._core import Chain, Device, Graph, Schedule
from memsched.cli.complete import complete_files, complete_problems
from memsched.cli.show import Built, warn
from memsched.cli.usage import SIZE
from memsched.errors import InvalidInputError, ScheduleError, shown
from memsched.planners.registry import PLANNERS, planners_of
from memsched.problems.budget import parse_memory, slowest, told_bytes, told_if_late, told_if_slow
from memsched.problems.machines import DEFAULT_LINK, DEFAULT_LINK_FROM, MACHINES
from memsched.problems.modules import in_modules
from memsched.problems.problem import Problem, altered, problem_from, simulate
from memsched.result import Result
from memsched.study.evaluate import bounded_anew, evaluated
from memsched.study.sources import PROBLEMS, imported_problem, known_bandwidth, named_problem, path_in
from memsched.support.documents import Document, read_device, read_document, read_plan
from memsched.support.files import check_regular, read_stream, same_file
from memsched.support.formats import unit_written
from memsched.support.kinds import told_kind
from memsched.support.units import parse_bandwidth, parse_bytes, parse_seconds
from memsched.validation.plan import validate as check_plan

RESULTS, PLAN = ("memsched-result/1", "memsched-result/2"), "memsched-plan/1"
TORCH = "memsched-torch-plan/2"  # has a result, which is all that commands need


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The options that describe a device, as typed."""

    memory: str | None = None
    bandwidth: str | None = None
    duplex: bool | None = None
    latency: str | None = None
    host_memory: str | None = None
    device: str | None = None

    @property
    def given(self) -> bool:
        """Whether any was given."""
        return self != Machine()

    def build(self, problem: Problem, base: Device | None = None, origin: str = "", memory: int | None = None) -> Built:
        """The device. Options that are not given come from `base`, which is from `origin`, then from the others."""
        if self.device is not None:
            if self.device != "-" and not os.path.exists(self.device):
                raise InvalidInputError(f"--device is {self.device!r}, which is no file{_no_device(self.device)}")
            base, origin = read_device(read_text(self.device)), f"'{self.device}'"
        if self.memory is not None:
            memory = parse_memory(self.memory, problem, "--memory")
        elif base is not None:
            memory = base.memory
        if memory is None:
            context = click.get_current_context()
            raise click.MissingParameter(
                ctx=context, param=next(one for one in context.command.params if one.name == "memory")
            )
        if memory == 0:
            raise InvalidInputError(f"--memory is {self.memory!r}; it must be more than 0 bytes")
        changes: dict[str, Any] = {"memory": memory}
        if self.bandwidth is not None:
            changes["d2h"] = changes["h2d"] = bandwidth = parse_bandwidth(self.bandwidth, "--bandwidth")
            origin = origin if base else "--bandwidth"
            warn(told_if_slow(problem, bandwidth, "--bandwidth"))
        elif self.device is not None and base is not None:
            warn(told_if_slow(problem, slowest(base), f"the link of '{self.device}'"))
            warn(told_if_late(problem, base.latency, f"the latency of '{self.device}'"))
        elif base is None:
            known = known_bandwidth(problem)
            changes["d2h"] = changes["h2d"] = DEFAULT_LINK.bandwidth if known is None else known
            origin = f"default: {DEFAULT_LINK_FROM}" if known is None else "the profile's link_bandwidth"
        if self.host_memory is not None:
            changes["host_memory"] = parse_bytes(self.host_memory, "--host-memory")
        if self.latency is not None:
            changes["latency"] = latency = parse_seconds(self.latency, "--latency")
            warn(told_if_late(problem, latency, "--latency"))
        if self.duplex is not None:
            changes["duplex"] = self.duplex
        given = {name: getattr(self, name) for name in ("bandwidth", "duplex", "latency", "host_memory")}
        own = [f"--{'no-' * (value is False)}{name}" for name, value in given.items() if value is not None]
        if base is not None and own:
            origin = f"{', '.join(own).replace('_', '-')}; the rest: {origin}"
        return Built(altered(base or Device(memory), **changes), origin, unit_written(memory))


def _no_device(text: str) -> str:
    """What to write instead of what is no file of a device."""
    if text.lower().partition(":")[0] in MACHINES:
        return "; names of machines are for 'memsched fit' and 'memsched profile'; here, give --memory and --bandwidth"
    hint = f"; a memory is written --memory {text}" if SIZE.fullmatch(text) else ""
    return f"; Device.save writes one{hint}"


def check_takes(names: Sequence[str], problem: Problem) -> None:
    """Refuse planners none of which plans such a problem."""
    if isinstance(problem, Chain) or not names or any(PLANNERS[name].takes_graphs for name in names):
        return
    one = "a graph" if isinstance(problem, Graph) else "a family of graphs"
    chain = isinstance(problem, Graph) and problem.name in profiles.names()
    remedy = "leave 'graph:' out for the chain" if chain else f"{', '.join(planners_of(problem))} plan graphs"
    raise click.UsageError(f"{' and '.join(names)} plan{'' if names[1:] else 's'} chains, and this is {one}; {remedy}")


problem_argument = click.argument("problem", shell_complete=complete_problems)


def single_option(*names: str, several: str, remedy: str, read: Callable[[str], str] = str, **more: Any) -> Any:
    """An option for one value; of several, click would take the last. Errors tell the remedy.

    A value that fits the pattern `several` is a list of values.
    """

    def one(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str | None:
        if len(given) > 1:
            raise click.UsageError(f"{names[-1]} is given {len(given)} times, {' and '.join(given)}; {remedy}")
        if given and re.fullmatch(several, given[0]):
            raise click.UsageError(f"{names[-1]} is {given[0]}; {remedy}")
        return read(given[0]) if given else None

    return click.option(*names, multiple=True, callback=one, **more)


_MEMORY_OPTION = single_option(
    *("-m", "--memory"),
    several=r"[^,]*[%bB],.*",
    remedy="a plan is for one memory, and 'memsched frontier' plans for many",
    metavar="SIZE|PERCENT",
    help="M, resident included: 8GiB, 40%, ...",
)
_LINK_OPTIONS = (
    single_option(
        *("-b", "--bandwidth"),
        several=r".*[sS] *,.*",
        remedy="a plan is for one link, and 'memsched sweep' plans for many",
        metavar="RATE",
        help="Bandwidth of the link, each way: 12GB/s, inf, 0. By default the profile's, or 12.2GB/s.",
    ),
    click.option("--duplex/--no-duplex", default=None, help="Whether both directions can be used at the same time."),
    click.option("--latency", metavar="SECONDS", help="Of each transfer: 0.00001 or 10us."),
    click.option("--host-memory", metavar="SIZE", help="The most bytes on the host at once."),
    click.option(
        "--device",
        metavar="DEVICE",
        shell_complete=complete_files,
        help="A memsched-device/1 file; the other options override it.",
    ),
)


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Machine`, which the command takes as `machine`."""
    decorated: Callable[..., Any] = _MEMORY_OPTION(link_options(command))
    return decorated


def link_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same without a memory."""

    @wraps(command)
    def gathered(**arguments: Any) -> Any:
        taken = {name: arguments.pop(name, None) for name in Machine.__dataclass_fields__}
        return command(machine=Machine(**taken), **arguments)

    decorated: Callable[..., Any] = gathered
    for option in reversed(_LINK_OPTIONS):
        decorated = option(decorated)
    return decorated


def _one_form(context: click.Context, option: click.Parameter, value: bool) -> bool:
    if value and context.meta.setdefault("memsched.form", option.name) != option.name:
        raise click.UsageError("give --json or --csv, not both")
    return value


def _remember_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta["memsched.quiet"] = value


def quiet_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --quiet, after the options of the forms that it leaves."""
    known = [name for option in getattr(command, "__click_params__", ()) for name in option.opts]
    forms = " or ".join(name for name in ("--json", "--csv") if name in known)
    help = "Print nothing but errors" + (f", and what {forms} asks for." if forms else ".")
    option = click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_remember_quiet, help=help)
    return option(command)


json_option = click.option("--json", "as_json", is_flag=True, callback=_one_form, help="Print JSON and nothing else.")
csv_option = click.option("--csv", "as_csv", is_flag=True, callback=_one_form, help="Print the table as CSV.")


def check_input(path: str) -> str:
    """A path unchanged, which must not be one of the files to write."""
    context = click.get_current_context(silent=True)
    outputs = context.meta.get("memsched.outputs", ()) if context is not None else ()
    if any(same_file(path, output) for output in outputs):
        raise click.UsageError(f"'{path}' is an input, and would be replaced; write to another file")
    return path


def read_text(source: str) -> str:
    """The path of an input unchanged; for "-", the text of the standard input."""
    if source != "-":
        return check_input(source)
    text = read_stream(sys.stdin, "the standard input").removeprefix("\ufeff")
    if not text.lstrip().startswith("{"):
        kind = told_kind(text)
        said = "not a JSON object" if kind is None else f"{kind} from a file"
        raise InvalidInputError(f"the standard input is {said}; '-' takes JSON alone")
    return text


def first_bytes(path: str) -> bytes:
    """Of a file, to tell its format; none of what is no file, or cannot be read."""
    try:
        check_regular(path)  # before it is opened, since opening a pipe waits for its writer
        with open(path, "rb") as file:
            return file.read(64)
    except (OSError, ValueError):
        return b""


def read_target(source: str, *formats: str) -> Document:
    """The JSON form of a shipped profile by name, or of a file in one of the formats.

    `made_problem` has refused names of nothing.
    """
    if not os.path.exists(source) and Path(source).suffix == ".json" and Path(source).stem in profiles.graph_names():
        raise InvalidInputError(f"there is no file '{source}'; the shipped profile is {Path(source).stem}")
    return profiles.document(source) if source in profiles.names() else read_saved(source, *formats)


def read_saved(source: str, *formats: str) -> Document:
    """A document from a file or the standard input; of a plan of a PyTorch model, its result."""
    if source in profiles.graph_names() and not os.path.exists(source):
        line = f"memsched plan {source} -m 40% -o plan.json"
        raise InvalidInputError(
            f"'{source}' is a shipped profile, and this takes what a command saved, as '{line}' does"
        )
    if not set(RESULTS) <= set(formats):
        return read_document(read_text(source), *formats)
    document = read_document(read_text(source), *formats, TORCH)
    if document["format"] != TORCH:
        return document
    inner = document.get("result")
    if not isinstance(inner, dict):  # a text would be the path of another file
        raise InvalidInputError(f"result of '{source}' is {shown(inner)}; it must be an object")
    plan = document.get("plan")
    modules = plan.get("modules") if isinstance(plan, dict) else None
    try:
        found = read_document(inner, *RESULTS)
    except InvalidInputError as error:
        raise InvalidInputError(f"result of '{source}': {error}") from error
    try:
        return in_modules(found, modules) if isinstance(modules, dict) else found
    except (AttributeError, LookupError, TypeError):
        return found  # it is damaged: who reads it says how


def load_problem(source: str) -> Problem:
    """A problem by name, or from a file."""
    return made_problem(source) or problem_from(read_target(source, *PROBLEMS))


def made_problem(source: str) -> Problem | None:
    """A graph or a family by its name, or a problem from a .csv or .onnx file; None if it is neither."""
    named = named_problem(source)
    if named is not None:
        return named
    found = imported_problem(source)
    if found is not None:
        check_input(path_in(source))
    return found


def open_result(document: Document, problem: str | None, machine: Machine) -> tuple[Result, Built]:
    """A saved result or plan, simulated on its own device or the given one, and that device."""
    if document["format"] in RESULTS:
        saved, built = open_saved(document, problem, machine)
        if not machine.given:
            return saved, built
        device = built.device
        with told_of_memory(saved.problem, saved.schedule, built):
            timeline = simulate(saved.problem, saved.schedule, device)
        made = replace(saved, device=device, timeline=timeline, lower_bound=0.0, estimate=None)
    else:
        loaded, schedule, built = open_plan(document, problem, machine)
        device = built.device
        with told_of_memory(loaded, schedule, built):
            return evaluated(loaded, schedule, device), built
    return bounded_anew(made), built


@contextmanager
def told_of_memory(problem: Problem, schedule: Schedule, built: Built) -> Iterator[None]:
    """Where a plan does not run in a memory below its own budget, the error says what it needs."""
    try:
        yield
    except ScheduleError as error:
        device = built.device
        if device.memory >= schedule.budget:
            raise
        try:
            needed = check_plan(problem, schedule, altered(device, memory=schedule.budget)).logical_peak
        except ScheduleError:  # it does not run in its own budget either
            raise error from None
        has, needs = told_bytes(device.memory, built.unit, problem), told_bytes(needed, built.unit, problem, up=True)
        said = f"the plan needs {needs}, more than {has}; give it that, or plan again for less"
        raise ScheduleError(said, error.step) from error


def open_saved(document: Document, problem: str | None, machine: Machine) -> tuple[Result, Built]:
    """A saved result as it is, and its own device or the given one."""
    if problem is not None:
        raise click.UsageError("a result has its own problem; leave --problem out")
    saved = Result.from_json(document)
    return saved, machine.build(saved.problem, saved.device, "the result's")


def open_plan(document: Document, problem: str | None, machine: Machine) -> tuple[Problem, Schedule, Built]:
    """A bare plan with its problem and device; the memory is the plan's budget unless given."""
    if problem is None:
        raise click.UsageError("a plan does not include its problem; give --problem")
    schedule = read_plan(document)
    loaded = load_problem(problem)
    return loaded, schedule, machine.build(loaded, memory=schedule.budget)


def parsed(parse: Callable[[Any], Any]) -> Callable[..., Any]:
    """A callback for an option: its value as this function reads it, or None if it is not given."""
    return lambda context, option, value: None if value is None else parse(value)


def time_limit_option(help: str, **more: Any) -> Callable[..., Any]:
    """The option --time-limit, which commands take in seconds."""
    seconds = parsed(lambda text: parse_seconds(text, "--time-limit"))
    return click.option("--time-limit", metavar="SECONDS", callback=seconds, help=help, **more)


SEARCH_LIMIT = time_limit_option("For the search.", default="10", show_default=True)
