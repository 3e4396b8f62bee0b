"""Sweeps: many problems, planners, memories and links at once, into a table that survives interruptions."""

from __future__ import annotations

from memsched.sweep.api import plan_again, read_store, sweep
from memsched.sweep.progress import SweepProgress
from memsched.sweep.table import Sweep

__all__ = ["Sweep", "SweepProgress", "plan_again", "read_store", "sweep"]
