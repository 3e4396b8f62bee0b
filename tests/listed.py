"""The registered planners, by what they are listed for; without those whose packages are missing."""

from __future__ import annotations

from importlib.util import find_spec

from memsched.planners.registry import PLANNERS

_HERE = {name: entry for name, entry in PLANNERS.items() if name != "checkmate" or find_spec("highspy")}
CHAIN_PLANNERS = [name for name, entry in _HERE.items() if "chain" in entry.problems]
GRAPH_PLANNERS = [name for name, entry in _HERE.items() if "graph" in entry.problems]
