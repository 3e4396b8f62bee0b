"""Plans of captured steps, kept on disk and shared between processes, found by what they were made for."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from memsched._core import Graph, __version__
from memsched.errors import MemschedError
from memsched.support.documents import Document, check_keys, read_document, write_document

FORMAT = "memsched-compiled/2"
_UNUSABLE = (MemschedError, OSError, ValueError)  # of a folder or a file; the last, if its name cannot be encoded
_LEFT = 3600.0  # seconds after which a file that is being written is one that nobody writes
_KEYS = ("costs", "source", "device", "planner", "params", "steps")
_OPTIONAL = ("checkpointed", "modules", "inputs", "strides_differ")  # some versions lack them; the last is of no use


def folder() -> Path | None:
    """Where plans are kept: $MEMSCHED_CACHE, or memsched/plans among the user's caches.

    None if it is set and empty, or if the user has no home.
    """
    given = os.environ.get("MEMSCHED_CACHE")
    if given is not None:
        return Path(given) if given else None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsched" / "plans"
    except RuntimeError:
        return None


def key_of(graph: Graph, asked: Mapping[str, Any], *, exact: bool) -> str:
    """What a plan was made for, as a digest: the graph without times, and what was asked, in plain values.

    If it is exact, resident bytes count, too. Processes that train together differ in them and still follow one plan.
    """
    document = {**graph.to_json(), "name": "step"}  # whatever it is called
    for op in document["ops"]:
        for choice in op["choices"]:
            choice["time"] = 0.0
        if "host_time" in op:
            op["host_time"] = 0.0
    if not exact:
        document["resident"] = 0
    known = {"memsched": __version__, "torch": torch.__version__, "asked": dict(asked), "graph": document}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def find(key: str) -> Document | None:
    """The plan of this key on disk; None if there is none that can be read."""
    place = folder()
    if place is None:
        return None
    try:
        path = place / f"{key}.json"
        found = checked(read_document(path, FORMAT)) if path.is_file() else None
    except _UNUSABLE:
        return None
    measured = found is not None and str(found["source"]).startswith("measured")
    return {**found, "source": f"{found['source']}, for an earlier plan that was kept"} if found and measured else found


def keep(key: str, document: Document) -> None:
    """Keep a plan on disk, if that is possible."""
    place = folder()
    if place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_document(place / f"{key}.json", document)
        for left in place.glob(".memsched-*"):  # by a process that was killed while it wrote
            if time.time() - left.stat().st_mtime > _LEFT:
                left.unlink(missing_ok=True)
    except _UNUSABLE:
        return  # a cache that cannot be written is none


def agreed(key: str, document: Document) -> Document:
    """The plan of the process that was first with this key, among all that train together."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return document
    store = distributed.distributed_c10d._get_default_store()
    text = store.compare_set(f"memsched/{key}", "", json.dumps(document))
    return checked(json.loads(text))


def checked(document: Document) -> Document:
    """A document of this format, as far as its keys go; its plan is simulated before it is used."""
    check_keys(document, "a cached plan", _KEYS, _OPTIONAL)
    return document
