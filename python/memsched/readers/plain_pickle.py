"""Data in a pickle, read without running what a pickle may ask for: no class is looked up and nothing is called.

A pickle is a program for a small stack machine. Python's own reader runs all of it; this one knows only the
instructions that build dicts, lists, tuples, texts, numbers, True, False and None, as protocols 2 to 5 write them, and
refuses the others. Each instruction costs a bounded time and at most the bytes that stand in the file, so a short file
cannot fill the memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from memsched.errors import InvalidInputError, shown

MOST_CONTAINERS = 5_000_000
_DEEPEST = 100  # marks that are open at once, and so nested dicts and lists of more than one entry
_CLASSES = frozenset(b"ciobRPQ\x81\x82\x83\x84\x92\x93")  # what looks up a class or calls something
_RECALL = ord("j")
_RECALLS = re.compile(rb"(?:j.{4})+", re.DOTALL)
_LONGEST_INT = 16  # bytes; addresses have 8


class _RefusedError(Exception):
    """What is wrong with a pickle."""


def plain_data(content: bytes, where: str) -> Any:
    """The object in a pickle that consists of plain data; errors call the file `where`.

    Raises
    ------
    InvalidInputError
        It is no pickle, asks for a class, has keys that are no texts, or builds too much.

    Examples
    --------
    >>> import pickle
    >>> plain_data(pickle.dumps({"a": [1, 2.5, None], "b": ("x", True)}), "it")
    {'a': [1, 2.5, None], 'b': ('x', True)}
    >>> plain_data(pickle.dumps(print), "it")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    memsched.errors.InvalidInputError: it asks for the class 'builtins.print', which plain data does not need; ...
    """
    machine = _Machine(content)
    try:
        return machine.run()
    except _RefusedError as error:
        raise InvalidInputError(f"{where} {error}") from error
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{where} is not a pickle of plain data, or is truncated, at byte {machine.at}"
        ) from error
    except MemoryError as error:
        raise InvalidInputError(f"{where} does not fit in memory ({len(content)} bytes)") from error


class _Machine:
    """The stack, the memo and the place in the file."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.marks: list[int] = []
        self.containers = 0

    def run(self) -> Any:
        content, memo, stack, steps = self.content, self.memo, self.stack, _STEPS
        while True:
            code = content[self.at]
            if code == _RECALL:  # most of a snapshot: the lines of stack traces
                found = _RECALLS.match(content, self.at)
                if found is not None:
                    stack.extend([memo[place] for (place,) in struct.iter_unpack("<xI", found[0])])
                    self.at = found.end()
                    continue
            self.at += 1
            step = steps.get(code)
            if step is None:
                if code == ord("."):
                    return stack.pop()
                raise _RefusedError(self.why(code))
            step(self)

    def why(self, code: int) -> str:
        if code not in _CLASSES:
            return f"is not a pickle of plain data: byte {self.at - 1} is {shown(bytes([code]))}"
        found = ""
        if code == ord("c"):
            found = ".".join(part.decode("utf-8", "replace") for part in self.content[self.at :].split(b"\n", 2)[:2])
        elif code == 0x93 and len(self.stack) > 1:
            found = ".".join(one for one in self.stack[-2:] if isinstance(one, str))
        named = f"the class '{found[:200]}'" if found else "a class or a function"
        return f"asks for {named}, which plain data does not need; nothing of it was run"

    def take(self, count: int) -> bytes:
        """The next bytes."""
        part = self.content[self.at : self.at + count]
        if len(part) < count:
            raise IndexError
        self.at += count
        return part

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def text(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)).decode("utf-8", "surrogatepass"))

    def raw(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)))

    def integer(self, width: int) -> None:
        count = self.number(width)
        if count > _LONGEST_INT:
            raise _RefusedError(f"has an integer of {count} bytes, at byte {self.at}; no size or address is so long")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def made(self, container: Any) -> None:
        """Push a new container."""
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise _RefusedError(
                f"has more than {MOST_CONTAINERS} dicts, lists and tuples, the limit; record fewer events"
            )
        self.stack.append(container)

    def mark(self) -> None:
        if len(self.marks) >= _DEEPEST:
            raise _RefusedError(f"nests deeper than {_DEEPEST} levels, which no snapshot does")
        self.marks.append(len(self.stack))

    def marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def last(self, count: int) -> list[Any]:
        """The last values, taken off the stack."""
        if len(self.stack) < count:
            raise IndexError
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def remember(self, place: int) -> None:
        """Python numbers what it remembers without a gap."""
        if place == len(self.memo):
            self.memo.append(self.stack[-1])
        elif place < len(self.memo):
            self.memo[place] = self.stack[-1]
        else:
            raise _RefusedError(f"is not a pickle of plain data: it leaves out places of its memo, at byte {self.at}")

    def recall(self, width: int) -> None:
        self.stack.append(self.memo[self.number(width)])

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise IndexError
        target.extend(values)

    def update(self, values: list[Any]) -> None:
        """Put pairs into a dict. Keys are texts: the hash of a nested tuple can take for ever."""
        target, keys = self.stack[-1], values[::2]
        if type(target) is not dict or len(values) % 2:
            raise IndexError
        if not all(type(key) is str for key in keys):
            raise _RefusedError(f"has a dict with a key that is no text, at byte {self.at}; a snapshot has none")
        target.update(zip(keys, values[1::2], strict=True))


_Step = Callable[[_Machine], object]


def _push(value: object) -> _Step:
    return lambda machine: machine.stack.append(value)


_M = _Machine
_STEPS: dict[int, _Step] = {
    0x80: lambda m: m.take(1),  # the protocol
    0x95: lambda m: m.take(8),  # how long a part of the file is
    ord("("): _M.mark,
    ord("}"): lambda m: m.made({}),
    ord("]"): lambda m: m.made([]),
    ord(")"): lambda m: m.made(()),
    ord("t"): lambda m: m.made(tuple(m.marked())),
    0x85: lambda m: m.made(tuple(m.last(1))),
    0x86: lambda m: m.made(tuple(m.last(2))),
    0x87: lambda m: m.made(tuple(m.last(3))),
    ord("a"): lambda m: m.extend(m.last(1)),
    ord("e"): lambda m: m.extend(m.marked()),
    ord("s"): lambda m: m.update(m.last(2)),
    ord("u"): lambda m: m.update(m.marked()),
    ord("N"): _push(None),
    0x88: _push(True),
    0x89: _push(False),
    ord("K"): lambda m: m.stack.append(m.number(1)),
    ord("M"): lambda m: m.stack.append(m.number(2)),
    ord("J"): lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),
    0x8A: lambda m: m.integer(1),
    0x8B: lambda m: m.integer(4),
    ord("G"): lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    0x8C: lambda m: m.text(1),
    ord("X"): lambda m: m.text(4),
    0x8D: lambda m: m.text(8),
    ord("C"): lambda m: m.raw(1),
    ord("B"): lambda m: m.raw(4),
    0x8E: lambda m: m.raw(8),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("q"): lambda m: m.remember(m.number(1)),
    ord("r"): lambda m: m.remember(m.number(4)),
    ord("h"): lambda m: m.recall(1),
    ord("j"): lambda m: m.recall(4),
}
