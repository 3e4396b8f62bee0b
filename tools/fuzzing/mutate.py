"""Damage to documents: to their structure where they have one, else to their letters. As the seed says."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any

from memsched.errors import InvalidInputError
from memsched.readers.plain_pickle import plain_data

LONGEST = 200_000  # bytes of a damaged document
_NODES = 400  # that are listed of one document

STRANGE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 1.5, -0.0, 0.1, 1e-320, 1e308, -1e308, 1e19, 4.0),
    *(2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**9, 10**12, 10**400),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "inf", "nan", "storage", "contiguous", "default", "\ud800", "\x00", "a\x00b", "é", "\u202e", "😀", "{}"),
    *("/dev/null", "1e999", "9" * 400, "ä" * 1000, "{" * 50),
    *([], [[]], [None], [0], [1, 1], [1, 10**12], ["a"], [""], {}, {"a": 1}, {"": 0}, {"format": "x"}),
]
_NUMBERS = [b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity", b"-0.0", b"-0", b"9" * 5000, b"1e-400", b"1E5"]
_LETTERS = [
    "\x00",
    "\ud83d",
    "\udc00",
    "\ufeff",
    "\u2028",
    "é",
    "İ",
    "٣",
    "😀",
    "\\",
    '"',
    ",",
    "%",
    "_",
    ".",
    "e",
    " ",
]
_NUMERIC = [
    "nan",
    "inf",
    "1e400",
    "9" * 30,
    "9" * 4400,
    "-1",
    "-0.0",
    "1_0",
    "",
    "٣",
    "0x10",
    "1.5",
    "2147483648",
    "1e3",
]


def mutate(reader: str, data: bytes, other: bytes, seed: int) -> bytes:
    """The data with a few changes; some of them take parts from another document."""
    rnd = random.Random(seed)
    if reader in ("csv", "chain_csv"):
        return _table(data, other, rnd)[:LONGEST]
    if reader == "snapshot":
        return _pickle(data, other, rnd)[:LONGEST]
    if reader == "onnx":
        return _model(data, other, rnd)[:LONGEST]
    if reader == "store":
        return _bytes(data, rnd)[:LONGEST]
    if reader == "spec":
        return _lines(data, other, rnd)[:LONGEST]
    if reader == "units":
        return _text(data, other, rnd)[:LONGEST]
    if rnd.random() < 0.08:
        return _letters(data, rnd)[:LONGEST]
    try:
        document, donor = json.loads(data), json.loads(other)
        for _ in range(rnd.choice((1, 1, 1, 2, 2, 3, 5))):
            document = _change(document, donor, rnd)
        text = json.dumps(document, ensure_ascii=rnd.random() < 0.8).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # of documents that are damaged already, or too deep
        return _letters(other, rnd)[:LONGEST]
    return _letters(text, rnd)[:LONGEST] if rnd.random() < 0.05 else text[:LONGEST]


def _nodes(document: Any, rnd: random.Random) -> list[tuple[Any, Any]]:
    """Places of values, as container and key: all of them, or some where there are many."""
    found: list[tuple[Any, Any]] = []
    level = [document]
    while level and len(found) < _NODES:
        deeper: list[Any] = []
        for container in level:
            keys = list(container) if isinstance(container, dict) else list(range(len(container)))
            if len(keys) > 50:
                keys = rnd.sample(keys, 50)
            found += [(container, key) for key in keys]
            deeper += [container[key] for key in keys if isinstance(container[key], dict | list)]
        level = deeper
    return found


def _change(document: Any, donor: Any, rnd: random.Random) -> Any:
    """One change to a document of its own; returns it, for the whole may be replaced."""
    if not isinstance(document, dict | list) or not document or rnd.random() < 0.002:
        return _strange(rnd)
    container, key = rnd.choice(_nodes(document, rnd))
    value = container[key]
    kind = rnd.randrange(10)
    if kind == 0:
        del container[key]
    elif kind == 1:
        _rename_or_repeat(container, key, rnd)
    elif kind in (2, 3):
        container[key] = _strange(rnd)
    elif kind == 4:
        nodes = _nodes(rnd.choice((document, donor)), rnd) if isinstance(donor, dict | list) else []
        if nodes:
            giver, taken = rnd.choice(nodes)
            container[key] = json.loads(json.dumps(giver[taken]))
    elif kind == 5 and isinstance(donor, dict) and key in donor:
        container[key] = json.loads(json.dumps(donor[key]))
    elif kind == 6 and isinstance(container, list):
        _reorder(container, rnd)
    elif kind == 7 and rnd.random() < 0.1:
        container[key] = _wrapped(value, rnd)
    else:
        container[key] = _tweaked(value, rnd)
    return document


def _strange(rnd: random.Random) -> Any:
    return copy.deepcopy(rnd.choice(STRANGE))


def _rename_or_repeat(container: Any, key: Any, rnd: random.Random) -> None:
    if isinstance(container, list):
        container[key:key] = [container[key]] * rnd.choice((1, 1, 2, 30))
    else:
        name = rnd.choice([key + "x", key.upper(), "", "format", *container, "a\x00", "\ud800"])
        container[name] = container.pop(key)


def _reorder(values: list[Any], rnd: random.Random) -> None:
    kind = rnd.randrange(3)
    if kind == 0:
        rnd.shuffle(values)
    elif kind == 1:
        del values[rnd.randrange(len(values)) :]
    else:
        a, b = rnd.randrange(len(values)), rnd.randrange(len(values))
        values[a], values[b] = values[b], values[a]


def _wrapped(value: Any, rnd: random.Random) -> Any:
    for _ in range(rnd.choice((1, 2, 90, 300, 880, 930))):
        value = [value] if rnd.random() < 0.5 else {"a": value}
    return value


def _tweaked(value: Any, rnd: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return rnd.choice(
            (
                value + 1,
                value - 1,
                -value,
                value * 2,
                value * 2**40,
                float(max(-(2**60), min(value, 2**60))),
                bool(value),
            )
        )
    if isinstance(value, float):
        return rnd.choice((-value, value / 3, value * 1e30, value * 1e-30, value + 1, str(value), 0.0))
    if isinstance(value, str):
        place = rnd.randint(0, len(value))
        return rnd.choice((value + "x", value[:place] + rnd.choice(_LETTERS) + value[place:], value[:-1], value * 3))
    if isinstance(value, list):
        return rnd.choice((value * 2, value[:-1], [*value, None], [value], dict.fromkeys(map(str, value), 1)))
    if not isinstance(value, dict):
        return value
    return rnd.choice(([value], {**value, "x": 1}, {}, [[*pair] for pair in value.items()]))


def _letters(data: bytes, rnd: random.Random) -> bytes:
    """Changes that no structure survives."""
    place = rnd.randint(0, len(data))
    kind = rnd.randrange(7)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([rnd.randrange(256)]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + rnd.choice(_LETTERS).encode("utf-8", "surrogatepass") + data[place:]
    if kind == 3:
        return b"\xef\xbb\xbf" + data
    if kind == 4:  # a key twice
        return data.replace(b"{", b'{"format": "memsched-plan/1", "format": 1, "name": 2, ', 1)
    if kind == 5:
        depth = rnd.choice((100, 900, 5000))
        opened, closed = rnd.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return data[:place] + opened * depth + b"1" + closed * depth + data[place:]
    digits = [k for k in range(len(data)) if data[k : k + 1].isdigit()][:2000]
    if not digits:
        return data + rnd.choice(_NUMBERS)
    place = rnd.choice(digits)
    end = place
    while end < len(data) and data[end : end + 1].isdigit():
        end += 1
    return data[:place] + rnd.choice(_NUMBERS) + data[end:]


_COLUMNS = ["id", "lower", "upper", "size", "alignment", "offset", "hint", "gaps", "end", "x"]
_COLUMNS += ["name", "forward_time", "backward_time", "activation", "gradient", "saved", "transient_overhead"]


def _table(data: bytes, other: bytes, rnd: random.Random) -> bytes:
    """Changes to a CSV file."""
    rows = [line.split(",") for line in data.decode("utf-8", "surrogateescape").split("\n")]
    for _ in range(rnd.choice((1, 1, 2, 4))):
        kind, row = rnd.randrange(7), rnd.choice(rows)
        column = rnd.randrange(len(row))
        if kind == 0:
            rows.remove(row)
            rows = rows or [[""]]
        elif kind == 1:
            rows.insert(rnd.randrange(len(rows) + 1), list(row))
        elif kind in (2, 3):
            row[column] = rnd.choice(_NUMERIC)
        elif kind == 4:
            row[column] = rnd.choice(_COLUMNS)
        elif kind == 5:
            row.insert(column, rnd.choice((row[column], "", "1", '"')))
        else:
            row[column] = str(rnd.choice(STRANGE))
    text = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
    return _letters(text, rnd) if rnd.random() < 0.1 else text + (other if rnd.random() < 0.05 else b"")


def _text(data: bytes, other: bytes, rnd: random.Random) -> bytes:
    """Changes to one short text."""
    text = data.decode("utf-8", "surrogateescape")
    donor = other.decode("utf-8", "surrogateescape")
    for _ in range(rnd.choice((1, 1, 2, 3))):
        place = rnd.randint(0, len(text))
        text = rnd.choice(
            (
                text[:place] + rnd.choice(_LETTERS) + text[place:],
                text[:place] + donor[rnd.randint(0, len(donor)) :],
                text[:place] + text[place + 1 :],
                text[:place] + str(rnd.choice(STRANGE)) + text[place:],
                text[:place] + rnd.choice(_NUMERIC) + text[place:],
                text[:place] + rnd.choice((" ", "1", "0")) * rnd.choice((1, 3, 300)) + text[place:],
                text.swapcase(),
            )
        )
    return text.encode("utf-8", "surrogatepass")[:LONGEST]


_TOML = [
    "1",
    "-1",
    "1.5",
    "true",
    "nan",
    "inf",
    "-inf",
    "1e400",
    '"50%"',
    '"x"',
    "''",
    "[]",
    "[[]]",
    "{}",
    "1979-05-27",
]
_TOML += [
    "9" * 30,
    "9" * 4400,
    "0x" + "f" * 4000,
    '"' + "a" * 300 + '"',
    '"a\\u0000b"',
    "[1, '2%']",
    "{from = 1}",
    "07:32:00",
]
_TOML += ["[" * 400 + "]" * 400, "{a = " * 400 + "1" + "}" * 400, '"""', '"1e999%"', '"nan%"', "100001", '"\\ud800"']


def _lines(data: bytes, other: bytes, rnd: random.Random) -> bytes:
    """Changes to a TOML file."""
    if rnd.random() < 0.3:
        return _text(data, other, rnd)
    lines, donor = (text.decode("utf-8", "surrogateescape").split("\n") for text in (data, other))
    for _ in range(rnd.choice((1, 1, 2, 3))):
        place = rnd.randrange(len(lines))
        key, equals, _ = lines[place].partition("=")
        kind = rnd.randrange(6)
        if kind == 0:
            del lines[place]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(place, rnd.choice(donor))
        elif kind == 2:
            lines.insert(place, "a." * rnd.choice((1, 50, 400)) + "b = 1")
        elif equals:
            lines[place] = f"{key}= {rnd.choice(_TOML)}"
        else:
            lines[place] = lines[place][: rnd.randint(0, len(lines[place]))]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _bytes(data: bytes, rnd: random.Random) -> bytes:
    """Changes to a binary file: single bytes, numbers at the begin of pages, texts, whole pages."""
    changed = bytearray(data)
    for _ in range(rnd.choice((1, 1, 2, 4, 16))):
        place = rnd.randrange(len(changed) or 1)
        kind = rnd.randrange(6)
        if kind == 0:
            changed[place : place + 1] = bytes([rnd.randrange(256)])
        elif kind == 1:
            start = place - place % 4096 + rnd.randrange(110)
            changed[start : start + 2] = rnd.choice((b"\0\0", b"\xff\xff", b"\0\x01", b"\x7f\xff"))
        elif kind == 2:
            word = rnd.choice((b"planned", b"greedy", b"{", b'"', b"format", b"default", b"2.0", b"B2"))
            at = changed.find(word, place)
            if at >= 0:
                changed[at : at + len(word)] = bytes(rnd.choice((0, 255, 91, 49)) for _ in word)
        elif kind == 3:
            start = place - place % 4096
            changed[start : start + 4096] = changed[:4096] if rnd.random() < 0.5 else bytes(4096)
        elif kind == 4:
            del changed[place:]
        else:
            changed[place:place] = bytes(rnd.randrange(256) for _ in range(rnd.choice((1, 8, 4096))))
    return bytes(changed)


def _pickle(data: bytes, other: bytes, rnd: random.Random) -> bytes:
    """Changes to a pickle of plain data: to what is in it, where parts may be shared, or to its bytes."""
    if rnd.random() < 0.3:
        return _bytes(data, rnd)
    try:
        document, donor = plain_data(data, "data"), plain_data(other, "other")
        return pickle.dumps(_change(document, donor, rnd), rnd.choice((2, 3, 4, 5)))
    except (InvalidInputError, TypeError, ValueError, RecursionError):  # of what is damaged already
        return _bytes(other, rnd)


def _model(data: bytes, other: bytes, rnd: random.Random) -> bytes:
    """Changes to an ONNX model: to its fields, as JSON has them, or to its bytes."""
    from google.protobuf import json_format, message
    from onnx import ModelProto

    if rnd.random() < 0.3:
        return _bytes(data, rnd)
    try:
        document, donor = (json_format.MessageToDict(ModelProto.FromString(one)) for one in (data, other))
        changed = json_format.ParseDict(_change(document, donor, rnd), ModelProto())
        return bytes(changed.SerializeToString(deterministic=True))
    except SystemError:  # what protobuf raises of keys that UTF-8 cannot encode
        return _bytes(data, rnd)
    except (message.Error, json_format.Error, AttributeError, TypeError, ValueError, RecursionError):
        return _bytes(data, rnd)
