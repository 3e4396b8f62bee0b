"""Sweeps: many problems, planners, memories and links, in a table that survives interruptions."""

from __future__ import annotations

from memsched.study.sweep.api import plan_again, read_store, sweep
from memsched.study.sweep.table import Sweep, SweepProgress

__all__ = ["Sweep", "SweepProgress", "plan_again", "read_store", "sweep"]
