"""The plan of a model's chain for a budget."""

from __future__ import annotations

import os
from pathlib import Path

from memsched._core import Chain, Device
from memsched.errors import InfeasibleError
from memsched.planners.registry import check_planner, min_memory, planners_of
from memsched.problems.budget import parse_memory
from memsched.result import Result
from memsched.study.compare import plan as plan_chain
from memsched.support import checks
from memsched.support.units import format_bytes, parse_bytes
from memsched.torch.machines import Link


def solve(
    chain: Chain,
    *,
    budget: str | int,
    link: Link,
    planner: str = "auto",
    host_memory: str | int | None = None,
    time_limit: float | None = None,
) -> Result:
    """Plan a chain whose storages move whole.

    Parameters
    ----------
    chain : Chain
        Its resident bytes are those of the whole process.
    budget : str or int
        Bytes, or a percentage as everywhere.
    link : Link
    planner : str
        "auto" or a planner's name.
    host_memory : str or int, optional
        Half of the machine's by default.
    time_limit : float, optional
        Seconds for each planner that takes a limit.

    Raises
    ------
    InfeasibleError
        `.min_memory` is the smallest feasible budget.
    InvalidInputError
        An option cannot be right.
    """
    check_planner(planner)
    if time_limit is not None:
        checks.non_negative("time_limit", time_limit, "seconds")
    limit = parse_memory(budget, chain, "the budget")
    hosts = parse_bytes(host_memory, "host_memory") if host_memory is not None else default_host_memory()
    device = Device(limit, bandwidth=link.bandwidth, duplex=link.duplex, host_memory=hosts, name=link.name)
    try:
        return plan_chain(chain, device=device, planner=planner, chunk="storage", time_limit=time_limit)
    except InfeasibleError as error:
        names = planners_of(chain) if planner == "auto" else [planner]
        if any(min_memory(chain, name) <= limit for name in names):  # it is the host's memory that lacks
            raise
        raise InfeasibleError(
            f"the budget of {format_bytes(limit)} is too small: {format_bytes(chain.resident)} are resident, and the "
            f"smallest feasible budget is {error.min_memory} bytes ({format_bytes(error.min_memory)})",
            error.min_memory,
        ) from None


_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # versions 2 and 1


def default_host_memory() -> int:
    """Half of the memory of this machine, or of the container that this process is in, bytes."""
    machine = int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
    texts = [path.read_text(encoding="ascii").strip() for path in map(Path, _CGROUP_LIMITS) if path.is_file()]
    return min([machine, *(int(text) for text in texts if text.isdigit())]) // 2
