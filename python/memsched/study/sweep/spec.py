"""The description of a sweep as a TOML file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context
from typing import Any

from memsched._core import Device
from memsched.errors import InvalidInputError, shown
from memsched.study.sources import name_in
from memsched.support import checks
from memsched.support.files import read_text
from memsched.support.units import parse_bytes, parse_seconds, parse_share

_KEYS = ("problems", "planners", "memory", "bandwidth", "shared_tables", "slots_of_tables", "device", "options")
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
    """Parse the text of such a file in this folder; errors call it `where`.

    Examples
    --------
    >>> parse_spec('problems = ["resnet18-224-b32"]\\nmemory = {from = "0%", to = "100%", points = 3}').memory
    ('0%', '50%', '100%')
    """
    document = _toml(text, where)
    _check_keys(document, where, _KEYS, ("problems", "memory"))
    problems = _texts(document, "problems", where)
    bandwidth = document.get("bandwidth")
    slots = document.get("slots_of_tables")
    return Spec(
        problems=tuple(name_in(one) or os.path.join(folder, one) for one in problems),
        planners=_texts(document, "planners", where) if "planners" in document else None,
        memory=_memory(document["memory"], where),
        bandwidth=None if bandwidth is None else _values("bandwidth", bandwidth, where),
        device=_device(document.get("device"), where),
        options=_options(document.get("options", {}), where),
        shared_tables=checks.flag(f"shared_tables of {where}", document.get("shared_tables", True)),
        slots_of_tables=None if slots is None else checks.count(f"slots_of_tables of {where}", slots, 1, 1_000_000),
    )


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
        raise InvalidInputError(f"{where} is not valid TOML: {error}") from error
    return document


def _check_keys(document: Mapping[str, Any], where: str, known: Sequence[str], needed: Sequence[str] = ()) -> None:
    for key in needed:
        if key not in document:
            raise InvalidInputError(f"{where} lacks '{key}'")
    for key in document:
        if key not in known:
            raise InvalidInputError(f"{where} has the unknown key {key!r}; there are {', '.join(known)}")


def _texts(document: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = document[key]
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise InvalidInputError(f"{key} of {where} is {shown(value)}; it must be a list of texts, not empty")
    return tuple(listed)


def _values(key: str, value: Any, where: str) -> tuple[float | str, ...]:
    listed = value if isinstance(value, list) else [value]
    good = all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in listed)
    if not listed or not good:
        raise InvalidInputError(f"{key} of {where} is {shown(value)}; give a list of numbers or texts, not empty")
    return tuple(listed)


def _memory(value: Any, where: str) -> tuple[float | str, ...]:
    """A list as it is, or a range with both ends."""
    if not isinstance(value, dict):
        return _values("memory", value, where)
    what = f"memory of {where}"
    _check_keys(value, what, _RANGE, _RANGE)
    points = checks.count(f"points of {what}", value["points"], 2, _MOST_POINTS)
    low, high = (value[end] for end in ("from", "to"))
    percent = [isinstance(end, str) and end.rstrip().endswith("%") for end in (low, high)]
    if all(percent):
        least, most = (100 * parse_share(end, f"an end of {what}") for end in (low, high))
        between = (least + (most - least) * at / (points - 1) for at in range(1, points - 1))
        return (low, *(f"{_EXACT.divide(one.numerator, one.denominator)}%" for one in between), high)
    if any(percent):
        raise InvalidInputError(f"{what} goes from {low!r} to {high!r}; both must be percentages, or both sizes")
    first, last = (parse_bytes(end, f"an end of {what}") for end in (low, high))
    return tuple(first + (last - first) * at // (points - 1) for at in range(points))


def _device(value: Any, where: str) -> Device | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidInputError(f"device of {where} is {shown(value)}; it must be a table")
    what = f"device of {where}"
    _check_keys(value, what, _DEVICE)
    latency, host = value.get("latency", 0.0), value.get("host_memory")
    return Device(
        1,
        duplex=checks.flag(f"duplex of {what}", value.get("duplex", False)),
        latency=parse_seconds(latency, f"latency of {what}") if isinstance(latency, str) else latency,
        host_memory=None if host is None else parse_bytes(host, f"host_memory of {what}"),
    )


def _options(value: Any, where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise InvalidInputError(
            f"options of {where} is {shown(value)}; write a table for each planner, such as [options.pofo]"
        )
    return value
