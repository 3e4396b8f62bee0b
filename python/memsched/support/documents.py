"""Read the JSON forms, with every key checked, and write them. The schemas are in `memsched/support/schemas`."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memsched import _core
from memsched._core import Chain, Device, Graph, Schedule
from memsched.errors import InvalidInputError, shown
from memsched.support.files import check_named, path_of, read_text, write_bytes
from memsched.support.kinds import FORMATS, STAGES, told_kind

if TYPE_CHECKING:
    from typing_extensions import Self

_PLAIN = (dict, list, tuple, str, int, float, np.number, type(None))  # of Python and, as numbers, of numpy
_GONE = "memsched-torch-plan/1"
_DEEPEST = 100  # levels of lists and objects in a document

_TABLES = (".csv", ".tsv")
_READERS = {
    _TABLES: "Chain.from_csv and `memsched plan` read stages, read_buffers and `memsched place` buffers",
    (".toml",): "`memsched sweep` reads TOML",
}

Document = dict[str, Any]
Source = Document | str | os.PathLike[str]

_CHAIN_REQUIRED = ("forward_time", "backward_time", "activation", "gradient")
_CHAIN_COLUMNS = ("saved", "forward_overhead", "transient_overhead", "backward_overhead", "names", "pieces")
_CHAIN_OPTIONAL = (*_CHAIN_COLUMNS, "n", "name", "parameters", "provenance", "resident")
_GRAPH_REQUIRED = ("name", "batch", "resident", "tensors", "ops")
_DEVICE_OPTIONAL = ("d2h", "h2d", "duplex", "latency", "host_memory", "name")
_PLAN_REQUIRED = ("planner", "graph", "chunk", "rounds", "budget", "memory", "steps")


def read_document(source: Source, *formats: str) -> Document:
    """Read a JSON object from a dict, a JSON text or a file, and check that its `format` is one of those given.

    A string that starts with "{", or with a byte order mark before it, is JSON text; any other is the path of a file.
    """
    where = "the document"
    if isinstance(source, dict):
        document: Any = source
    elif not isinstance(source, str | os.PathLike):
        raise InvalidInputError(f"{where} is {shown(source)}; give a dict, a JSON text or the path of a file")
    else:
        text = source.removeprefix("\ufeff") if isinstance(source, str) else source
        if not (isinstance(text, str) and text.lstrip().startswith("{")):
            where, text = f"'{os.fspath(source)}'", read_text(source)
        document = _parse(text, where, formats)
    if not isinstance(document, dict):
        raise InvalidInputError(f"{where} is not a JSON object, but a {type(document).__name__}{_own(formats)}")
    for key, value in document.items():
        if not isinstance(value, _PLAIN):
            known = "objects, lists, texts, numbers, true, false and null"
            raise InvalidInputError(f"{shown(key)} of {where} is {shown(value)}; documents have {known}")
    if document.get("format") not in formats:
        raise InvalidInputError(f"{where} {_unexpected(document.get('format'), formats)}")
    return document


def _unexpected(found: object, formats: tuple[str, ...]) -> str:
    """What to say of a document of another format: what it is, what reads it, and what is expected."""
    wanted = " or ".join(f"'{name}'" for name in formats)
    if found is None:
        return f"has no format; expected {wanted}{_own(formats)}"
    stem = found.partition("/")[0] if isinstance(found, str) else ""
    if found == _GONE:
        return f"has the format {found!r}, for an executor that left with version 0.1.0; plan the model again"
    if stem in [name.partition("/")[0] for name in formats]:
        return f"has the format {shown(found)}, of another version of memsched; expected {wanted}"
    if stem not in FORMATS:
        return f"has the format {shown(found)}, which is none of memsched's; expected {wanted}"
    kind, readers = FORMATS[stem]
    return f"is {kind} (format {shown(found)}), which {readers}; expected {_expected(formats)}"


def _expected(formats: tuple[str, ...]) -> str:
    """The documents of these formats in words."""
    *others, last = dict.fromkeys(FORMATS[name.partition("/")[0]][0] for name in formats)
    return f"{', '.join(others)} or {last}" if others else last


def _foreign(text: str, where: str, formats: tuple[str, ...]) -> str:
    """What to say of a file that is no JSON: what it is, and what reads it."""
    kind, name = told_kind(text), where.lower().removesuffix("'")
    if kind is None:
        named = next((f"; {readers}" for endings, readers in _READERS.items() if name.endswith(endings)), "")
        return f"not JSON: it begins with {text.lstrip()[:20]!r}{named}"
    if kind.startswith(STAGES) and "memsched-chain/1" in formats and not name.endswith(_TABLES):
        return f"{kind}; let its name end in .csv"
    return f"{kind}; expected {_expected(formats)}"


def _own(formats: tuple[str, ...]) -> str:
    """What reads figures of one's own, which are in no format of memsched."""
    tables = any(name.startswith("memsched-chain/") for name in formats)
    return "; for figures of your own, Chain.from_frame takes columns, and Chain.from_csv a file" if tables else ""


def _without_doubles(pairs: list[tuple[str, Any]]) -> Document:
    """The object of these pairs; JSON leaves open which of two values of a key counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise InvalidInputError(f"has the key {shown(doubled)} twice in one object; drop one")
    return found


def _parse(text: str, where: str, formats: tuple[str, ...]) -> Any:
    """Parse a JSON text; refuses NaN, lone surrogates and nesting too deep for Python."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where} {error}") from error
    except (ValueError, RecursionError) as error:
        start = text.lstrip()[:20]
        if not start:
            raise InvalidInputError(f"{where} is empty") from error
        if start[0] not in "{[":
            raise InvalidInputError(f"{where} is {_foreign(text, where, formats)}") from error
        raise InvalidInputError(f"{where} is not valid JSON ({error}); is it truncated?") from error
    except MemoryError as error:
        raise InvalidInputError(f"{where} does not fit in memory ({len(text)} characters); split it") from error
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise InvalidInputError(f"{where} nests deeper than {_DEEPEST} levels, which no format of memsched does")
    try:
        text.encode()
        if "\\ud" in text or "\\uD" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{where} has a string that UTF-8 cannot encode: {error.reason}") from error
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def write_document(path: str | os.PathLike[str], document: Document) -> None:
    """Write a JSON object to a file as a whole: a reader never sees half of it. Its name must not say otherwise."""
    check_named(path_of(path), "JSON", ".json")
    try:
        text = json.dumps(document, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the document for '{path}' cannot be written as JSON: {error}") from error
    write_bytes(path, text.encode())


def file_of(path: object) -> Path:
    """The path of a file, for what may not be a JSON text."""
    return Path(path_of(path))


class Saved(ABC):
    """A class with a JSON form, which a file can hold."""

    __slots__ = ()

    @abstractmethod
    def to_json(self) -> Document:
        """The JSON form."""

    @classmethod
    @abstractmethod
    def from_json(cls, source: Source) -> Self:
        """Read the JSON form from a dict, a JSON text or the path of a file."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON form to a file, which is replaced as a whole."""
        write_document(file_of(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` wrote."""
        return cls.from_json(file_of(path))


def check_keys(document: Document, what: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Refuse missing and unknown keys; `format` is always accepted."""
    missing = ", ".join(f"'{key}'" for key in required if key not in document)
    if missing:
        raise InvalidInputError(f"{what} lacks {missing}")
    for key in document:
        if key != "format" and key not in required and key not in optional:
            raise InvalidInputError(f"{what} has the unknown key {key!r}; remove it or fix its spelling")


def fields(one: object, *names: str) -> Document:
    """Attributes of an object, by name."""
    return {name: getattr(one, name) for name in names}


def plain(value: Any) -> Any:
    """A value that JSON can hold: "inf" for infinity, null for NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def check_plain(what: str, value: Any) -> None:
    """Refuse what JSON cannot write: NaN, infinity, objects, endless nesting, lone surrogates, keys but text."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        if not _core.survives_json(value):
            raise TypeError("a key is no text, or it nests deeper than 96 levels")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{what} cannot be written as JSON: {error}") from error


def bandwidth_from_json(value: Any) -> Any:
    """A bandwidth from its JSON form: a number, or "inf"."""
    if isinstance(value, str) and value != "inf":
        raise InvalidInputError(f"a bandwidth is {shown(value)}; it must be a number of bytes per second, or 'inf'")
    return math.inf if value == "inf" else value


def bandwidth_to_json(value: float) -> float | str:
    """The JSON form of a bandwidth: "inf" for infinity, which JSON lacks."""
    return "inf" if math.isinf(value) else value


def read_chain(source: Source) -> Chain:
    """Read `memsched-chain/1`. Without `resident`, it is 2 x `parameters`: weights and their gradients."""
    document = read_document(source, "memsched-chain/1")
    check_keys(document, "the chain", _CHAIN_REQUIRED, _CHAIN_OPTIONAL)
    parameters = document.get("parameters", 0)
    if isinstance(parameters, bool) or not isinstance(parameters, int) or parameters < 0:
        raise InvalidInputError(f"parameters is {shown(parameters)}; it must be a number of bytes >= 0")
    arguments: Document = {key: document.get(key) for key in (*_CHAIN_REQUIRED, *_CHAIN_COLUMNS)}
    arguments |= {key: document.get(key) for key in ("name", "provenance")}
    chain = Chain(**arguments, resident=document.get("resident", 2 * parameters))
    if isinstance(document.get("n"), bool) or document.get("n", chain.n) != chain.n:
        raise InvalidInputError(f"n is {shown(document['n'])}, but the columns have {chain.n} stages")
    return chain


def write_chain(chain: Chain) -> Document:
    """The form `memsched-chain/1`, with every default spelled out."""
    document: Document = {"format": "memsched-chain/1", "name": chain.name, "n": chain.n}
    document["names"] = list(chain.names)
    for key in (*_CHAIN_REQUIRED, "saved", "forward_overhead", "transient_overhead", "backward_overhead"):
        document[key] = getattr(chain, key).tolist()
    document["resident"] = chain.resident
    if chain.pieces is not None:
        document["pieces"] = chain.pieces
    if chain.provenance is not None:
        document["provenance"] = chain.provenance
    return document


def read_graph(source: Source) -> Graph:
    """Read `memsched-graph/1`."""
    document = read_document(source, "memsched-graph/1")
    check_keys(document, "the graph", _GRAPH_REQUIRED)
    for key in ("tensors", "ops"):
        if not isinstance(document[key], list):
            raise InvalidInputError(f"{key} of the graph is not a list")
    if not isinstance(document["name"], str):
        raise InvalidInputError(f"name of the graph is {shown(document['name'])}; it must be a string")
    return Graph(**{key: document[key] for key in _GRAPH_REQUIRED})


def write_graph(graph: Graph) -> Document:
    """The form `memsched-graph/1`."""
    return {"format": "memsched-graph/1", **fields(graph, *_GRAPH_REQUIRED)}


def read_device(source: Source) -> Device:
    """Read `memsched-device/1`."""
    document = read_document(source, "memsched-device/1")
    check_keys(document, "the device", ("memory",), _DEVICE_OPTIONAL)
    duplex = document.get("duplex", False)
    if not isinstance(duplex, bool):
        raise InvalidInputError(f"duplex is {shown(duplex)}; it must be true or false")
    for key in ("memory", "latency", "host_memory"):  # calls take texts such as "16GiB", documents do not
        if isinstance(document.get(key), str):
            raise InvalidInputError(f"{key} of the device is {shown(document[key])}; it must be a number")
    given = {key: document[key] for key in _DEVICE_OPTIONAL if key in document}
    given |= {key: bandwidth_from_json(document.get(key, 0.0)) for key in ("d2h", "h2d")}
    return Device(document["memory"], **given)


def write_device(device: Device) -> Document:
    """The form `memsched-device/1`."""
    document: Document = {"format": "memsched-device/1", **fields(device, "memory", *_DEVICE_OPTIONAL)}
    return document | {key: bandwidth_to_json(document[key]) for key in ("d2h", "h2d")}


def read_plan(source: Source) -> Schedule:
    """Read `memsched-plan/1`."""
    document = read_document(source, "memsched-plan/1")
    check_keys(document, "the plan", _PLAN_REQUIRED, ("border",))
    for key, kind in (("planner", dict), ("graph", str), ("rounds", list), ("steps", list), ("memory", str)):
        if not isinstance(document[key], kind):
            raise InvalidInputError(f"{key} of the plan is {shown(document[key])}; it must be a {kind.__name__}")
    return Schedule(**{key: document[key] for key in _PLAN_REQUIRED}, border=document.get("border"))


def write_plan(schedule: Schedule) -> Document:
    """The form `memsched-plan/1`."""
    optional = ("border",) if schedule.border else ()
    document: Document = {"format": "memsched-plan/1", **fields(schedule, *_PLAN_REQUIRED, *optional)}
    return document | {"rounds": list(map(list, document["rounds"])), "steps": list(document["steps"])}
