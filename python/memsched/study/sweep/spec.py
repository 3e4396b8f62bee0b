"""The description of a sweep as a TOML file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context
from typing import Any

from memsched._core import Device
from memsched.errors import InvalidInputError, shown
from memsched.planners.registry import check_planner
from memsched.problems.budget import read_memory
from memsched.study.sources import name_in
from memsched.study.sweep.points import check_options
from memsched.study.sweep.rows import MOST_SLOTS
from memsched.support import checks
from memsched.support.files import read_text
from memsched.support.kinds import told_kind
from memsched.support.units import parse_bandwidth, parse_bytes, parse_seconds, parse_share

_DEVICE = ("duplex", "latency", "host_memory")
_RANGE = ("from", "to", "points")
_MOST_POINTS = 100_000  # of one range
_EXACT = Context(prec=60, rounding=ROUND_CEILING)  # of percentages: too high by far less than a byte, never too low
_MOST_LETTERS = 20_000  # tomllib takes time quadratic in the length of a dotted key


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What to sweep: the arguments of `sweep`."""

    problems: tuple[str, ...]  # names and paths
    memory: tuple[float | str, ...]
    planners: tuple[str, ...] | None = None
    bandwidth: tuple[float | str, ...] | None = None
    device: Device | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    shared_tables: bool = True
    slots_of_tables: int | None = None


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read a TOML file.

    It has problems and memory, and optionally planners, bandwidth, shared_tables, slots_of_tables, and the tables
    device (duplex, latency, host_memory) and options (by planner, or all). Memory is a list, or a range
    {from = "0%", to = "100%", points = 50}.
    """
    return parse_spec(read_text(path), f"'{os.fspath(path)}'", os.path.dirname(path))


def parse_spec(text: str, where: str = "the sweep", folder: str = "") -> Spec:
    """Parse the text of such a file in this folder; the error, which calls it `where`, has all faults in its order.

    Examples
    --------
    >>> parse_spec('problems = ["resnet18-224-b32"]\\nmemory = {from = "0%", to = "100%", points = 3}').memory
    ('0%', '50%', '100%')
    """
    document, found, faults = _toml(text, where), dict[str, Any](), list[str]()
    readers: dict[str, Callable[[Any], Any]] = {
        "problems": lambda value: tuple(name_in(one) or os.path.join(folder, one) for one in _texts("problems", value)),
        "planners": lambda value: tuple(map(check_planner, checks.names("planners", _texts("planners", value)))),
        "memory": _memory,
        "bandwidth": lambda value: _values("bandwidth", value, _speed),
        "device": _device,
        "options": _options,
        "shared_tables": lambda value: checks.flag("shared_tables", value),
        "slots_of_tables": lambda value: checks.count("slots_of_tables", value, 1, MOST_SLOTS),
    }
    for key, value in document.items():
        try:
            found[key] = checks.known(key, readers, "key")(value)
        except InvalidInputError as error:
            faults.append(str(error))
    faults += _percents(found.get("problems", ()), found.get("memory", ()))
    faults += [f"it lacks {key!r}" for key in ("problems", "memory") if key not in document]
    if faults:
        several = (f"({number}) {fault}" for number, fault in enumerate(faults, 1))
        raise InvalidInputError(f"{where}: {'; '.join(several) if len(faults) > 1 else faults[0]}")
    return Spec(**found)


def _toml(text: str, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise InvalidInputError(f"{where} needs tomli with Python 3.10; pip install 'memsched[sweep]'") from error
    if len(text) > _MOST_LETTERS:
        raise InvalidInputError(
            f"{where} has {len(text)} characters, and a description has at most {_MOST_LETTERS}; "
            "write several, and sweep them into one store"
        )
    try:
        document: dict[str, Any] = tomllib.loads(text)
        repr(document)  # fails for integers of thousands of digits, which TOML allows in hexadecimal
    except (ValueError, RecursionError) as error:
        kind = told_kind(text) or f"not valid TOML: {error}"
        raise InvalidInputError(f"{where} is {kind}; `memsched sweep --help` shows a description of a sweep") from error
    return document


def _check_keys(document: Mapping[str, Any], where: str, known: Sequence[str], needed: Sequence[str] = ()) -> None:
    for key in document:
        checks.known(key, dict.fromkeys(known), "key", where)
    for key in needed:
        if key not in document:
            raise InvalidInputError(f"{where} lacks {key!r}")


def _texts(what: str, value: Any) -> list[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise InvalidInputError(f"{what} is {shown(value)}; give a list of names that is not empty")
    return listed


def _values(what: str, value: Any, read: Callable[[Any, str], object]) -> tuple[float | str, ...]:
    """A list of quantities, or one; each as it is written, if it can be read."""
    listed = value if isinstance(value, list) else [value]
    good = all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in listed)
    if not listed or not good:
        raise InvalidInputError(f"{what} is {shown(value)}; give a list of numbers or texts that is not empty")
    faults = []
    for at, one in enumerate(listed):
        try:
            read(one, f"{what}[{at}]")
        except InvalidInputError as error:
            faults.append(str(error))
    if faults:
        raise InvalidInputError("; ".join(faults))
    return tuple(listed)


def _speed(value: Any, what: str) -> object:
    return value == "profile" or parse_bandwidth(value, what)


def _memory(value: Any) -> tuple[float | str, ...]:
    """A list as it is, or a range with both ends."""
    if not isinstance(value, dict):
        return _values("memory", value, read_memory)
    _check_keys(value, "memory", _RANGE, _RANGE)
    points = checks.count("points of memory", value["points"], 2, _MOST_POINTS)
    low, high = (value[end] for end in ("from", "to"))
    percent = [isinstance(end, str) and end.rstrip().endswith("%") for end in (low, high)]
    if all(percent):
        least, most = (100 * parse_share(end, "an end of memory") for end in (low, high))
        between = (least + (most - least) * at / (points - 1) for at in range(1, points - 1))
        return (low, *(f"{_EXACT.divide(one.numerator, one.denominator)}%" for one in between), high)
    if any(percent):
        raise InvalidInputError(f"memory goes from {low!r} to {high!r}; both must be percentages, or both sizes")
    first, last = (parse_bytes(end, "an end of memory") for end in (low, high))
    return tuple(first + (last - first) * at // (points - 1) for at in range(points))


def _percents(problems: tuple[str, ...], memory: tuple[float | str, ...]) -> Iterator[str]:
    """What to say of numbers that were meant as percentages: shipped problems need more than a few bytes."""
    for one in memory if any(map(name_in, problems)) else ():
        if isinstance(one, int | float) and 0 < one <= 100:
            yield f'memory has {one}, which is {one} bytes; did you mean "{one}%"?'
            return


def _device(value: Any) -> Device:
    if not isinstance(value, dict):
        raise InvalidInputError(f"device is {shown(value)}; it must be a table")
    _check_keys(value, "device", _DEVICE)
    latency, host = value.get("latency", 0.0), value.get("host_memory")
    return Device(
        1,
        duplex=checks.flag("duplex of device", value.get("duplex", False)),
        latency=parse_seconds(latency, "latency of device") if isinstance(latency, str) else latency,
        host_memory=None if host is None else parse_bytes(host, "host_memory of device"),
    )


def _options(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise InvalidInputError(f"options is {shown(value)}; write a table for each planner, such as [options.pofo]")
    for planner, options in value.items():
        if planner != "all":
            check_options(planner, options)
    return value
