"""The package stands beside memsched, and only there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import memsched


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_memsched_does_not_import_torch() -> None:
    assert run("import sys, memsched; assert 'torch' not in sys.modules").returncode == 0


def test_it_is_there_when_it_is_used() -> None:
    assert run("import memsched as ms; ms.torch.plan").returncode == 0


def test_without_torch_one_sentence_says_what_to_do() -> None:
    done = run("import sys; sys.modules['torch'] = None; import memsched as ms; ms.torch.plan")
    assert done.returncode == 1
    last = done.stderr.strip().split("\n")[-1]
    assert last == "ModuleNotFoundError: memsched.torch needs PyTorch: pip install 'memsched[torch]'"


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'flax'"):
        memsched.flax  # noqa: B018
