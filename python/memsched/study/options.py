"""Options of planners, given by name to something that runs planners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsched.errors import InvalidInputError, shown
from memsched.planners.entry import options_of
from memsched.result import Result
from memsched.support import checks

OURS = ("planner", "progress", "options")  # arguments of `plan` that are no options of a planner


def names_of(run: Callable[..., Result], *ours: str) -> list[str]:
    """The options of what `plan_of` gave, without those that the caller sets itself."""
    return [name for name in options_of(run) if name not in (*OURS, *ours)]


def refuse_unknown(planner: str, run: Callable[..., Result], given: Mapping[str, Any], *ours: str) -> None:
    """Refuse options that the planner does not take; the error lists those that it takes."""
    known = names_of(run, *ours)
    for name in given:
        if name not in known:
            near = checks.close(name, known) if isinstance(name, str) else None
            meant = f"did you mean {near!r}? " if near else ""
            listed = ", ".join(known) if known else "no options"
            raise InvalidInputError(f"{planner} has no option {shown(name)}; {meant}it takes {listed}")


def refuse_twice(given: Mapping[str, Any], **arguments: object) -> None:
    """Refuse an option that is also an argument of its own, which was given, too."""
    for name, value in arguments.items():
        if value is not None and name in given:
            raise InvalidInputError(
                f"{name} is given twice, as {shown(value)} and as {shown(given[name])} among the options; leave one out"
            )


def mapping(what: str, given: object, pairs: str) -> Mapping[Any, Any]:
    """A mapping; empty if None is given."""
    if not isinstance(given, Mapping | None):
        raise InvalidInputError(f"{what} is {shown(given)}; it must be a mapping: {pairs}")
    return given or {}


def options_by_planner(given: object) -> Mapping[str, Mapping[Any, Any]]:
    """Options of several planners: of what form they are, not whether the planners take them."""
    found = mapping("options", given, "planner -> its options")
    return {name: mapping(f"options of {shown(name)}", own, "option -> value") for name, own in found.items()}
