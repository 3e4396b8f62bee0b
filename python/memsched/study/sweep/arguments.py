"""The arguments of a sweep, checked before anything is planned."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from memsched._core import Chain, Device, Graph
from memsched.errors import InvalidInputError, shown
from memsched.planners.registry import PLANNERS, check_planner, planners_of
from memsched.problems.budget import parse_memory, refuse_percents, slowest, warn_if_slow
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, fields_of
from memsched.study.options import options_by_planner
from memsched.study.sources import find_problem, link_bandwidth, name_in
from memsched.study.sweep import points
from memsched.study.sweep.rows import is_option
from memsched.support import checks, quantities
from memsched.support.arguments import tell
from memsched.support.files import path_of
from memsched.support.units import parse_bandwidth

Options = Mapping[str, Any]
Given: TypeAlias = Problem | str | os.PathLike[str]  # an object, or the name or path of one


def listed_problems(problems: Sequence[Given] | Given) -> list[Given]:
    """One problem or several, as a list."""
    if isinstance(problems, str | os.PathLike | Chain | Graph | GraphFamily):
        return [problems]
    if not checks.is_list(problems) or not (listed := list(islice(problems, points.MOST_POINTS + 1))):
        raise InvalidInputError(f"problems is {shown(problems)}; give a problem, a name or a list of them")
    return listed


def read_problem(given: Given) -> points.SweptProblem:
    """A problem, given as an object or by name."""
    if isinstance(given, str | os.PathLike):
        given = path_of(given)
        return points.swept_problem(find_problem(given), name_in(given))
    if not isinstance(given, Chain | Graph | GraphFamily):
        raise InvalidInputError(f"problems has {shown(given)}; give a Chain, a Graph, a GraphFamily, a name or a path")
    return points.swept_problem(given)


def read_devices(
    problem: Problem, memory: Sequence[float | str], beta: Sequence[float | str] | None, base: Device | None
) -> list[Device]:
    """One device per memory and bandwidth."""
    if base is not None:
        checks.kind("device", base, Device)
    memories = [parse_memory(one, problem, f"memory[{at}]") for at, one in enumerate(memory)]
    refuse_percents(memories, problem)
    for wanted, one in zip(memory, memories, strict=True):
        if one == 0:
            raise InvalidInputError(f"memory has {shown(wanted)}; each must be more than 0 bytes")
    links: list[tuple[float, float]]
    if beta is not None:
        speeds = [_speed(one, problem) for one in beta]
        for speed in speeds:
            warn_if_slow(problem, speed, "a bandwidth of the sweep")
        links = [(speed, speed) for speed in speeds]
    elif base is not None:
        warn_if_slow(problem, slowest(base), "the device's link")
        links = [(base.d2h, base.h2d)]
    else:
        speed = link_bandwidth(problem)
        links = [(speed, speed)]
    shared = fields_of(base or Device(1))
    # Without the units of the memories, which do not reach other processes: errors are the same everywhere.
    each = [int(one) for one in memories]
    return [Device(**(shared | {"memory": one, "d2h": d2h, "h2d": h2d})) for one in each for d2h, h2d in links]


def _speed(given: float | str, problem: Problem) -> float:
    by_profile = isinstance(given, str) and given == "profile"
    return link_bandwidth(problem) if by_profile else parse_bandwidth(given)


def read_list(what: str, given: Sequence[float | str] | float | str) -> list[float | str]:
    """A list that is not empty; of a number or a text alone, the list of it."""
    if isinstance(given, str | int | float | np.number):
        return [given]
    listed = list(islice(given, points.MOST_POINTS + 1)) if checks.is_list(given) else []
    if not listed:
        how = ", not empty"
        if isinstance(given, Mapping):
            how = ", as in ['0%', '50%', '100%']: a range from .. to is for the file of `memsched sweep`"
        raise InvalidInputError(f"{what} is {shown(given)}; give a list{how}")
    return listed


def read_planners(given: Iterable[str] | str | None, problem: Problem, options: Mapping[str, Options]) -> list[str]:
    """The planners of one problem."""
    if given is None:
        return planners_of(problem)
    names = list(dict.fromkeys(map(check_planner, checks.names("planners", given))))
    if not names:
        raise InvalidInputError("planners is empty; name some, or leave it out to take all")
    for name in names:
        points.check_kind(problem, name)
    for name in options:
        if name != "all" and name not in names:
            raise InvalidInputError(f"options has {name!r}, which is not among the planners {', '.join(names)}")
    return names


def _ratio(name: str, given: object) -> float:
    return checks.non_negative(name, given, "units")


# Options that may be written in several ways, of which a sweep makes one.
_QUANTITIES: dict[str, Callable[[Any], Any]] = {
    "chunk": quantities.chunk,
    "time_limit": quantities.time_limit,
    "workspace_limit": partial(quantities.size, "workspace_limit"),
    "alignment": quantities.alignment,
    "memory_bandwidth": partial(quantities.bandwidth, "memory_bandwidth"),
    "gap": partial(_ratio, "gap"),
    "search": partial(quantities.seconds, "search"),
}


def read_options(given: Mapping[str, Options] | None) -> dict[str, dict[str, Any]]:
    """Options by planner, or by "all", checked as far as they can be before a planner runs."""
    found: dict[str, dict[str, Any]] = {}
    for planner, options in options_by_planner(given).items():
        if not isinstance(planner, str):
            raise InvalidInputError(f"options has the key {shown(planner)}; keys are planners, or 'all'")
        if planner != "all":
            points.check_options(planner, options)
        options = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        options |= {name: read(options[name]) for name, read in _QUANTITIES.items() if name in options}
        options = {name: "inf" if value == math.inf else value for name, value in options.items()}  # as JSON takes it
        for name, value in options.items():
            if not is_option(name, value):
                raise InvalidInputError(
                    f"option {name!r} is {shown(value)}; it must be a finite number, a text, true or false, and short"
                )
        found[planner] = options
    for name in found.get("all", {}):
        if not any(name in points.taken(planner) for planner in PLANNERS):
            raise InvalidInputError(f"no planner has the option {name!r}")
    return found


def options_of(planner: str, problem: Problem, options: Mapping[str, Options]) -> dict[str, Any]:
    """The options of a planner, including those under "all" that it takes for this problem: only a chain is cut."""
    known = points.taken(planner)
    common = {
        name: value
        for name, value in options.get("all", {}).items()
        if name in known and (name != "chunk" or isinstance(problem, Chain))
    }
    return {**common, **options.get(planner, {})}


def _tell_of_names(problems: Sequence[points.SweptProblem]) -> None:
    """Tell of problems that have one name: rows are grouped by it."""
    keys: dict[str, set[str]] = {}
    for one in problems:
        keys.setdefault(one.name, set()).add(one.key)
    for name, several in keys.items():
        if len(several) > 1:
            tell(
                f"{len(several)} problems of the sweep are called {shown(name)}; give them names, as in "
                'Chain(.., name="mine"), or tell their rows apart by problem_key'
            )


def read_groups(
    problems: Sequence[Given] | Given,
    planners: Iterable[str] | str | None,
    memory: Any,
    beta: Any,
    device: Device | None,
    options: Mapping[str, Options] | None,
    tables: tuple[bool, int | None],
    version: str,
) -> tuple[list[points.SweptProblem], list[points.Group]]:
    """The swept problems, and one group per problem and planner; LimitError for more than a million points.

    `tables` says whether points share tables, and with how many slots. `version` is memsched's; it enters the keys.
    """
    shared, wanted_slots = tables
    memory = read_list("memory", memory)
    beta = None if beta is None else read_list("beta", beta)
    if planners is not None and checks.is_list(planners):
        planners = list(islice(planners, points.MOST_POINTS + 1))
    given = listed_problems(problems)
    links = 1 if beta is None else len(beta)
    each = len(planners) if isinstance(planners, list) else 1
    points.check_count(len(given) * max(1, each), len(memory), links)
    loaded = [read_problem(one) for one in given]
    _tell_of_names(loaded)
    wanted = read_options(options)
    named = [read_planners(planners, one.problem, wanted) for one in loaded]
    points.check_count(sum(map(len, named)), len(memory), links)
    groups: list[points.Group] = []
    for one, names in zip(loaded, named, strict=True):
        devices = read_devices(one.problem, memory, beta, device)
        for planner in names:
            own = options_of(planner, one.problem, wanted)
            slots = points.table_slots(one.problem, planner, own, wanted_slots) if shared else None
            groups.append(points.group(one, planner, own, slots, devices, version))
    return loaded, groups
