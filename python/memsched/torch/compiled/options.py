"""What the user of the backend says: the budget, and how to plan for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from memsched._core import Device
from memsched.errors import InfeasibleError, InvalidInputError, shown
from memsched.planners.registry import PLANNERS, check_planner
from memsched.problems.budget import read_memory
from memsched.support import checks, quantities
from memsched.support.arguments import meant
from memsched.support.formats import format_seconds
from memsched.support.units import parse_bandwidth, parse_bytes
from memsched.torch.link import default_host_memory
from memsched.torch.machines import Link, machine

_LOG = logging.getLogger("memsched.torch")
MODES = ("eager", "inductor")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the backend `memsched`, checked.

    Attributes
    ----------
    budget, device, bandwidth, host_memory, planner, time_limit, optimizer, reserve
        As `memsched.torch.plan` takes them.
    mode : str
        "eager": the operations of plain PyTorch, with the same bits. "inductor": compiled by Inductor, on the CPU,
        without offloading, and each captured graph with a plan of its own.
    profile_steps : int
        So many steps of training are timed operation by operation, in mode "eager" on the device at hand, and the step
        is planned anew by these times; again, whenever they have drifted by a fifth. 0: none. Before the first are
        known, the planner "pooch" swaps all, if not all fits.
    """

    budget: str | int
    mode: str = "eager"
    device: str = "here"
    bandwidth: str | float | None = None
    host_memory: str | int | None = None
    planner: str = "selective"
    time_limit: float | None = None
    optimizer: torch.optim.Optimizer | int | None = None
    reserve: str | int = 0
    profile_steps: int = 0


def read_options(given: Mapping[str, Any] | None) -> Options:
    """Check options as `torch.compile(options=...)` passes them on.

    Raises
    ------
    InvalidInputError
        Naming the option and its value.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise InvalidInputError(f'options is {given!r}; it must be a dict such as {{"budget": "6GiB"}}')
    known = [one.name for one in fields(Options)]
    for name in given:
        if name not in known:
            close = meant(str(name), [one for one in known if one not in given])
            hint = f"did you mean {close!r}?" if close else f"there are {', '.join(known)}"
            raise InvalidInputError(f"the backend memsched has no option {name!r}; {hint}")
    if "budget" not in given:
        raise InvalidInputError(
            'the backend "memsched" needs a budget: '
            'torch.compile(model, backend="memsched", options={"budget": "6GiB"})'
        )
    options = Options(**{name: one.item() if isinstance(one, np.generic) else one for name, one in given.items()})
    if not isinstance(options.optimizer, torch.optim.Optimizer | int | None):
        raise InvalidInputError(
            f"optimizer is {shown(options.optimizer)}; it must be an Optimizer, made before the model is compiled, "
            "such as torch.optim.AdamW(model.parameters()), or bytes of its state"
        )
    budget = read_memory(options.budget, "budget")
    written = str(options.budget).rstrip().endswith("B")
    if isinstance(budget, int) and budget < 1:
        raise InvalidInputError(f'budget is {shown(options.budget)}; give bytes above 0, such as "6GiB", or "50%"')
    if isinstance(budget, int) and 1 < budget < 1000 and not written:  # of 1 byte it is told what is the least
        percent = f' or "{budget}%"' if budget <= 100 else ""
        raise InvalidInputError(
            f"budget is {shown(options.budget)}, less than 1000 bytes; write the unit; "
            f'did you mean "{budget}GiB"{percent}?'
        )
    checks.choice("mode", options.mode, MODES)
    if options.device != "here":
        machine(options.device)
    if options.bandwidth is not None:
        parse_bandwidth(options.bandwidth, "bandwidth")
    if options.host_memory is not None:
        parse_bytes(options.host_memory, "host_memory")
    parse_bytes(options.reserve, "reserve")
    check_planner(options.planner)
    graphs = ["auto", *(name for name, one in PLANNERS.items() if one.takes_graphs)]
    if options.planner not in graphs:
        raise InvalidInputError(
            f"planner is {options.planner!r}, which plans chains, and a training step is a graph; give one of "
            f"{', '.join(graphs)}"
        )
    checks.count("profile_steps", options.profile_steps, 0, 1000)
    if options.profile_steps and (options.mode != "eager" or options.device != "here" or _with_others()):
        raise InvalidInputError(
            f'profile_steps is {options.profile_steps}, and steps are timed in mode "eager", on the device that is '
            "here, in a single process; leave it out"
        )
    return replace(options, time_limit=quantities.time_limit(options.time_limit))


def _with_others() -> bool:
    """Whether several processes train together."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def refusal(given: Mapping[str, Any] | None) -> Callable[..., Any] | None:
    """What raises the error of wrong options when the step runs; None if they are right.

    What a backend raises while it compiles, PyTorch wraps in a text of many lines.
    """
    try:
        read_options(given)
    except InvalidInputError as found:
        error = found

        def refuse(*args: Any) -> Any:
            raise error

        return refuse
    return None


def within_share(options: Options, allowed: Iterable[int], made: Callable[[Options], Made]) -> Made:
    """What is made for a budget; if that is a share of a step and too small for it, for what a step before was allowed.

    A smaller batch, such as the last of an epoch, has less to save, and may take what larger ones do.

    Raises
    ------
    InfeasibleError
        That is too little, too.
    """
    began = time.perf_counter()
    try:
        found = made(options)
    except InfeasibleError as error:
        most = max(allowed, default=0)
        if not str(options.budget).rstrip().endswith("%") or most < error.min_memory:
            raise
        found = made(replace(options, budget=most))
    _LOG.info("a step is timed and planned for %s, in %s", options.budget, format_seconds(time.perf_counter() - began))
    return found


def device_for(memory: int, link: Link | None, options: Options) -> Device:
    """The device that plans are for."""
    link = link or Link(name="", bandwidth=0.0, duplex=True, source="")
    bandwidth = link.bandwidth if options.bandwidth is None else parse_bandwidth(options.bandwidth, "bandwidth")
    hosts = default_host_memory() if options.host_memory is None else parse_bytes(options.host_memory, "host_memory")
    hosts_used = hosts if bandwidth > 0 else None
    return Device(memory, bandwidth=bandwidth, duplex=link.duplex, host_memory=hosts_used, name=link.name)
