"""The command that makes the shipped profiles: it always makes the same bytes, and sees a changed number."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import memsched as ms

ROOT = Path(__file__).parents[2]
SMALL = "resnet18-224-b32"

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"),
    pytest.mark.skipif(not (ROOT / "bench" / "profiles").is_dir(), reason="the benchmarks are not here"),
]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command's function."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("bench.profiles.__main__").main


def in_folder(folder: Path, *names: str, part: str = "chains") -> list[str]:
    return ["--only", *names, "--parts", part, "--chains", str(folder), "--graphs", str(folder)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [SMALL, "densenet121-224-b32"])
def test_the_same_bytes_every_time(name: str, command: Any, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        assert command(in_folder(tmp_path / folder, name)) == 0
    assert files(tmp_path / "first") == files(tmp_path / "second")
    made, shipped = ms.Chain.from_json(tmp_path / "first" / f"{name}.json"), ms.profiles.load(name)
    assert set(made.activation.tolist()) <= set(shipped.activation.tolist())
    assert made.n in (shipped.n, shipped.n - 4)  # a dense block begins where the pooling before it ends


@pytest.mark.slow
def test_a_changed_number_is_found(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{SMALL}.json"
    command(in_folder(tmp_path, SMALL))
    assert command([*in_folder(tmp_path, SMALL), "--check"]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    document["saved"][3] += 1
    path.write_text(json.dumps(document), encoding="utf-8")
    capsys.readouterr()
    assert command([*in_folder(tmp_path, SMALL), "--check"]) == 1
    assert f"{SMALL}.json: saved (1 of 13" in capsys.readouterr().out
    assert json.loads(path.read_text(encoding="utf-8")) == document


@pytest.mark.slow
def test_the_graphs_are_the_shipped_ones(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(in_folder(tmp_path, SMALL, part="graphs"))
    shipped = ROOT / "python" / "memsched" / "problems" / "graphs" / "resnet18.json.gz"
    (made,) = tmp_path.iterdir()
    assert gzip.decompress(made.read_bytes()) == gzip.decompress(shipped.read_bytes())
    assert command([*in_folder(tmp_path, SMALL, part="graphs"), "--check"]) == 0


def test_unknown_names(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(in_folder(tmp_path, "resnet19-224-b32"))
    assert "no profile is named resnet19-224-b32" in capsys.readouterr().err


def test_the_names_are_the_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    assert tuple(importlib.import_module("bench.profiles.networks").sources()) == ms.profiles.names()
