"""The examples in the docstrings of memsched.torch run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import memsched.torch

MODULES = [module.name for module in pkgutil.iter_modules(memsched.torch.__path__, "memsched.torch.")]


@pytest.mark.parametrize("name", ["memsched.torch", *MODULES])
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


@pytest.mark.parametrize("name", memsched.torch.__all__)
def test_public_names_are_documented(name: str) -> None:
    value = getattr(memsched.torch, name)
    assert value.__doc__
    if not isinstance(value, type):
        assert ">>>" in value.__doc__
