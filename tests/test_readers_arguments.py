"""Each argument of each reader, of a wrong kind: accepted, or refused by an error of ours."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memsched.readers.csv_files import chain_from_csv
from memsched.readers.digraph import graph_from_networkx
from memsched.readers.onnx.model import graph_from_onnx
from memsched.readers.snapshot import read_snapshot
from memsched.readers.tables import COLUMNS, chain_from_frame
from test_readers_tables import CSV, TABLE
from test_wrong_arguments import try_wrong_values

NEEDS = {graph_from_networkx: "networkx", graph_from_onnx: "onnx"}
READERS: list[Callable[..., Any]] = [
    *(chain_from_csv, chain_from_frame, graph_from_networkx, graph_from_onnx, read_snapshot),
]


def right(call: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """Arguments that the function takes."""
    path = folder / "file"
    if call is chain_from_csv:
        path.write_text(CSV)
    if call is read_snapshot:
        event = {"action": "alloc", "addr": 0, "size": 1, "frames": []}
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}))
    if call is graph_from_networkx:
        from test_readers_digraph import small

        return {"digraph": small()}
    if call is graph_from_onnx:
        from test_readers_onnx import mlp

        return {"source": mlp(), "dims": {"N": 2}}
    known = {"path": path, "frame": TABLE}
    return {name: known[name] for name in inspect.signature(call).parameters if name in known}


@pytest.mark.parametrize("call", READERS)
def test_wrong_arguments_end_in_an_error_of_ours(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if call in NEEDS and importlib.util.find_spec(NEEDS[call]) is None:
        pytest.skip(f"{NEEDS[call]} is not installed")
    monkeypatch.chdir(tmp_path)  # "x" is a path
    given = right(call, tmp_path)
    call(**given)
    for parameter in inspect.signature(call).parameters:
        name = call.__name__
        try_wrong_values(name, parameter, lambda value, parameter=parameter: call(**{**given, parameter: value}))


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", [0, 1])
def test_wrong_cells_do_too(column: str, row: int) -> None:
    def call(value: Any) -> None:
        cells = [*TABLE.get(column, [None] * 3)]
        cells[row] = value
        chain_from_frame({**TABLE, column: cells})

    try_wrong_values("chain_from_frame", column, call)


@pytest.mark.parametrize("key", ["time", "size", "workspace", "phase", "kind", "layer", "once", "role"])
def test_wrong_attributes_of_nodes_do_too(key: str) -> None:
    pytest.importorskip("networkx")
    from test_readers_digraph import small

    def call(value: Any) -> None:
        made = small()
        made.nodes["conv"][key] = value
        graph_from_networkx(made)

    try_wrong_values("graph_from_networkx", key, call)


@pytest.mark.parametrize("call", READERS)
def test_every_parameter_is_described(call: Callable[..., Any]) -> None:
    text = inspect.getdoc(call) or ""
    listed = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    for name in inspect.signature(call).parameters:
        assert f"{name} :" in listed
    assert ">>>" in text
