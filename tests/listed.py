"""The registered planners, by what they are listed for."""

from __future__ import annotations

from memsched.planners.registry import PLANNERS

CHAIN_PLANNERS = [name for name, entry in PLANNERS.items() if "chain" in entry.problems]
GRAPH_PLANNERS = [name for name, entry in PLANNERS.items() if "graph" in entry.problems]
