"""GPUs and links that plans are predicted for when they are not at hand."""

from memsched.problems.machines import LAUNCH_SECONDS, LINKS, MACHINES, Link, Machine, machine

__all__ = ["LAUNCH_SECONDS", "LINKS", "MACHINES", "Link", "Machine", "machine"]
