"""What a file is, told by its first bytes, and what reads it."""

from __future__ import annotations

import os
import re

# Stem of a format -> what such a document is, and what reads it.
FORMATS = {
    "memsched-chain": ("a chain", "Chain.load and `memsched plan` read"),
    "memsched-graph": ("a graph", "Graph.load and `memsched plan` read"),
    "memsched-family": ("a family of graphs", "GraphFamily.load and `memsched plan` read"),
    "memsched-device": ("a device", "Device.load and the option --device read"),
    "memsched-plan": ("a bare plan", "Schedule.load and `memsched simulate --problem` read"),
    "memsched-result": ("a result", "Result.load and `memsched plot` read"),
    "memsched-placement": ("a placement", "Placement.load and `memsched place` read"),
    "memsched-torch-plan": (
        "a plan of a PyTorch model",
        "memsched.torch.TorchPlan.load, `memsched plot` and report read",
    ),
    "memsched-fit": ("what fits a device", "memsched.torch.Fit.load reads"),
    "memsched-compiled": ("a plan that torch.compile cached", "only memsched.torch reads"),
}
SQLITE = b"SQLite format 3\0"
STAGES, BUFFERS = "a table of stages", "a list of buffers"
_TABLES = {  # what has all of some columns, and what reads it
    ("forward_time", "backward_time"): f"{STAGES}, which Chain.from_csv and `memsched plan` read",
    ("problem", "planner", "memory_bytes"): (
        "the figures of a sweep or a comparison, which spreadsheets read; `memsched report` reads the store of a sweep"
    ),
    ("lower", "size"): f"{BUFFERS}, which read_buffers and `memsched place` read",
    ("start", "size"): f"{BUFFERS}, which read_buffers and `memsched place` read",
}

_PICKLE = re.compile(rb"\x80[\x01-\x05]")
_FORMAT = re.compile(rb'\s*\{\s*"format"\s*:\s*"(memsched-[a-z-]+)/')
_BEGINNINGS = (
    (SQLITE, "an SQLite database, such as the store of a sweep, which read_store and `memsched report` read"),
    (b"PK\x03\x04", "a zip archive, as torch.save writes, which memsched does not read"),
    (b"\x1f\x8b", "compressed by gzip; decompress it first"),
    (b"\x89PNG", "a picture, which memsched does not read"),
    (b"%PDF", "a picture, which memsched does not read"),
)


def told_maker(value: object) -> str:
    """What makes a chain or a graph of a name, a file or a table that was given in its place; "" of anything else.

    Examples
    --------
    >>> told_maker("mine.csv"), told_maker({"forward_time": []})
    ('Chain.from_csv(path) reads one from a file', 'Chain.from_frame(table) makes one')
    """
    if isinstance(value, str | os.PathLike):
        ending = str(os.path.splitext(os.fspath(value))[1]).lower()
        read = {".csv": "Chain.from_csv", ".tsv": "Chain.from_csv", ".onnx": "Graph.from_onnx"}.get(ending)
        return f"{read}(path) reads one from a file" if read else "profiles.load(name) and Chain.load(path) make one"
    if isinstance(value, dict) and "format" in value:
        return "Chain.from_json makes one"
    return "Chain.from_frame(table) makes one" if isinstance(value, dict) or hasattr(value, "columns") else ""


def told_kind(content: bytes | str) -> str | None:
    """What a file is that begins like this, and what reads it; None where that cannot be told.

    Examples
    --------
    >>> told_kind(b'{"format": "memsched-device/1", ...')
    'a device, which Device.load and the option --device read'
    """
    if isinstance(content, str):
        names = {name.strip(' "') for name in re.split("[,;\t]", content[:1000].lstrip().partition("\n")[0].rstrip())}
        for columns, table in _TABLES.items():
            if names.issuperset(columns):
                return table
        content = content[:200].encode(errors="replace")
    if _PICKLE.match(content):
        return "a pickle, such as a memory snapshot of PyTorch, which read_snapshot reads"
    named = _FORMAT.match(content)
    if named is not None and named[1].decode() in FORMATS:
        return ", which ".join(FORMATS[named[1].decode()])
    if content.lstrip()[:1] == b"{":
        return "a JSON document"
    return next((what for beginning, what in _BEGINNINGS if content.startswith(beginning)), None)
