"""C and C++ that only benchmarks need, compiled when one asks for it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"


def load(source: str) -> ctypes.CDLL:
    """The library of one source of this folder, compiled for this machine where it is missing or older."""
    path = Path(__file__).with_name(source)
    library = BUILD / f"{path.stem}.so"
    if not library.exists() or library.stat().st_mtime < path.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        plus = path.suffix == ".cpp"
        compiler = os.environ.get("CXX", "c++") if plus else os.environ.get("CC", "cc")
        made = library.with_suffix(f".{os.getpid()}")  # two processes may compile at once
        flags = ["-std=c++20"] if plus else []
        subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", *flags, "-o", made, path], check=True)
        made.replace(library)
    return ctypes.CDLL(str(library))
