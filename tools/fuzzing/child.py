"""A child process that feeds damaged documents to one reader, and a record of it that outlives the process."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import re
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing import corpus, readers
from fuzzing.mutate import LONGEST, mutate

MOST_SECONDS = 2.0  # of processor time that a document may take
MOST_MEMORY = 1 << 30  # bytes that a document may take, on top of what the process has
MOST_DAMAGE = 20  # defects, after which a child gives up

_HEAD = struct.Struct("<5q")


class Record:
    """Counts, and the document that is being read, in memory that parent and child share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + LONGEST)
        self.documents = self.accepted = self.refused = 0

    def begin(self, data: bytes) -> None:
        """Note a document before it is read."""
        self.documents += 1
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        self._put(len(data))

    def end(self, accepted: bool | None) -> None:
        """Note what became of it; None: it broke a promise."""
        self.accepted += accepted is True
        self.refused += accepted is False
        self._put(-1)

    def _put(self, length: int) -> None:
        _HEAD.pack_into(self._memory, 0, self.documents, self.accepted, self.refused, length, os.getpid())

    def look(self) -> bytes | None:
        """Take the counts of the child over; the document that it reads, or None between two."""
        self.documents, self.accepted, self.refused, length, _ = _HEAD.unpack_from(self._memory, 0)
        return None if length < 0 else bytes(self._memory[_HEAD.size : _HEAD.size + length])


def save(folder: Path, reader: str, kind: str, message: str, data: bytes) -> None:
    """Keep a document that breaks a promise, the first of its kind, and what it does."""
    name = f"{reader}-{hashlib.sha1(f'{reader} {kind}'.encode()).hexdigest()[:10]}"
    known = folder / f"{name}.txt"
    if not known.exists():
        (folder / name).write_bytes(data)
        known.write_text(json.dumps({"reader": reader, "message": message, "path": str(folder / name)}))


def describe(error: BaseException) -> tuple[str, str]:
    """What tells a defect from others, and a sentence about it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/memsched/" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    kind = re.sub(r"[\d'\"\[].*", "", str(error)) if isinstance(error, readers.DefectError) else where
    message = f"{type(error).__name__} in {where}: {error}"
    return f"{type(error).__name__} {kind}", message.replace("\n", " ")[:500]


def _limit_memory() -> None:
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        return  # it reserves more than there is
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    used = pages * resource.getpagesize() or (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.RLIM_INFINITY))


def run(reader: str, record: Record, folder: Path, seed: int, most: int, deadline: float, guided: Any) -> None:
    """Read documents until so many are read or it is so late; does not return. `guided` is atheris, or None."""
    _limit_memory()
    kinds: set[str] = set()

    def one(data: bytes) -> None:
        if record.documents >= most or time.monotonic() >= deadline or len(kinds) >= MOST_DAMAGE:
            sys.stderr.flush()
            os._exit(0)
        record.begin(data)
        begin = time.process_time()
        accepted: bool | None = None
        try:
            accepted = readers.accepts(reader, data)
            spent = time.process_time() - begin
            if spent > MOST_SECONDS:
                raise readers.DefectError(f"it takes more than {MOST_SECONDS} s: {spent:.1f} s")
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException as error:
            kind, message = describe(error)
            kinds.add(kind)
            save(folder, reader, kind, message, data)
            accepted = None
        record.end(accepted)

    seeds = corpus.documents()[reader]
    if guided is None:
        _plainly(reader, seeds, one, seed)
    else:
        _guided(reader, seeds, one, seed, guided)


def _plainly(reader: str, seeds: list[bytes], one: Callable[[bytes], None], seed: int) -> None:
    rnd = random.Random(seed)
    for data in seeds:
        one(data)
    while True:
        one(mutate(reader, rnd.choice(seeds), rnd.choice(seeds), rnd.getrandbits(64)))


def _guided(reader: str, seeds: list[bytes], one: Callable[[bytes], None], seed: int, guided: Any) -> None:
    folder = corpus.scratch()
    for k, data in enumerate(seeds):
        (folder / str(k)).write_bytes(data)
    rnd = random.Random(seed)

    def mutator(data: bytes, most: int, number: int) -> bytes:
        start = data if rnd.random() < 0.5 and data else rnd.choice(seeds)
        return mutate(reader, start, rnd.choice(seeds), number)[:most]

    options = [f"-seed={seed % 2**31 + 1}", f"-max_len={LONGEST}", "-timeout=600", "-rss_limit_mb=0", "-len_control=0"]
    options.append(f"-artifact_prefix={folder}/")
    guided.Setup([sys.argv[0], *options, str(folder)], one, custom_mutator=mutator)
    guided.Fuzz()
