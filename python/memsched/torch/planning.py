"""From a model and a budget to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from memsched._core import Chain
from memsched.errors import InvalidInputError, MemschedError
from memsched.support.units import parse_bytes
from memsched.torch.capture import CaptureError, without_data
from memsched.torch.hooked.plan import plan_with_hooks
from memsched.torch.link import measure_link
from memsched.torch.machines import machine
from memsched.torch.process_state import contained
from memsched.torch.resident import Resident, loss_bytes, optimizer_bytes, resident_of
from memsched.torch.roofline import describe
from memsched.torch.scratch import kernel_scratch
from memsched.torch.solve import solve
from memsched.torch.stage_bytes import ModelBytes, measure_bytes
from memsched.torch.stage_times import StageTimes, measure_times, model_times
from memsched.torch.stages import StagedModel, stage
from memsched.torch.torch_plan import TorchPlan


def plan(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int,
    device: str = "here",
    planner: str = "auto",
    optimizer: torch.optim.Optimizer | int | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    host_memory: str | int | None = None,
    reserve: str | int | None = None,
    time_limit: float | None = None,
    verify: bool = True,
) -> TorchPlan:
    """Plan a training step of a model so that the process fits a budget of device memory.

    A model that torch.export cannot capture, for example because it branches on values of tensors, is planned with
    hooks for saved tensors instead: they offload and cannot recompute. One warning says so.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on.
    args, kwargs
        Inputs of the shapes and dtypes to train with. Call under the autocast to train with.
    budget : str or int
        Device memory of the whole process: "6GiB", a number of bytes, or "50%": half of the way from the least that any
        plan without recomputation needs to the peak of the plain step.
    device : str
        "here": times and bandwidths are measured on the model's device. A machine such as "v100:pcie3": they are
        modelled (a roofline, never a measurement).
    planner : str
        "auto" or one of the planners for chains.
    optimizer : torch.optim.Optimizer or int, optional
        Its state occupies memory: measured, or declared in bytes.
    loss : callable, optional
        Takes the model's result and returns a scalar. What it needs for itself is measured and reserved. A loss that is
        part of the model is planned with it.
    host_memory : str or int, optional
        The most host memory for what is offloaded; half of the machine's by default.
    reserve : str or int, optional
        Device memory for workspaces of libraries and for what the allocator loses; by default measured on CUDA, and 0
        on the CPU.
    time_limit : float, optional
        Seconds for each planner that takes a limit.
    verify : bool
        Run one planned step and one plain step on the given inputs, and compare outputs, gradients, buffers and random
        numbers before the plan is returned; what differs is planned with hooks, with a warning. The model is left as it
        was. On CUDA, what a plain step saves waits on the host where it would not fit the budget; where it does not fit
        even so, a warning says that nothing was compared.

    Returns
    -------
    TorchPlan

    Raises
    ------
    InfeasibleError
        The budget is too small; `.min_memory` is the smallest feasible one.
    InvalidInputError
        The model is in eval mode or spread over devices, or an option cannot be right.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> plan = memsched.torch.plan(model, (torch.randn(256, 64),), budget="50%", device="v100:pcie3")
    >>> model = plan.apply(model)
    >>> model(torch.randn(256, 64)).sum().backward()
    >>> plan.remove()
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(args, torch.Tensor):
        raise InvalidInputError("args is a tensor; give the arguments as a tuple: (x,)")
    if "forward" in model.__dict__:
        raise MemschedError("the model has a plan already, or another forward of its own; call remove() on it first")
    options: dict[str, Any] = {
        "budget": budget,
        "device": device,
        "planner": planner,
        "optimizer": optimizer,
        "loss": loss,
        "host_memory": host_memory,
        "reserve": reserve,
        "time_limit": time_limit,
    }
    with contained(model):
        try:
            made = _plan_stages(model, args, kwargs, **options)
            different = made.check(model, args, kwargs) if verify else None
        except CaptureError as error:
            reason = str(error)
        else:
            if different is None:
                return made
            reason = (
                f"a planned step of {type(model).__name__} changes the {different}: the model depends on what a "
                "capture does not see"
            )
            if different.startswith("gradient"):
                reason += ", or a plan adds up its gradients in another order"
        return plan_with_hooks(model, args, kwargs, reason=reason, verify=verify, **options)


def _plan_stages(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    *,
    budget: str | int,
    device: str,
    planner: str,
    optimizer: torch.optim.Optimizer | int | None,
    loss: Callable[[Any], torch.Tensor] | None,
    host_memory: str | int | None,
    reserve: str | int | None,
    time_limit: float | None,
) -> TorchPlan:
    """The plan of a model that can be captured."""
    staged = stage(model, args, kwargs)
    with without_data(model):
        found = measure_bytes(staged, model, args, kwargs, on_device=True)
    if found.reordered is not None:
        raise CaptureError(
            f"stages of {type(model).__name__} would add up the gradients of {found.reordered!r} in another order"
        )
    if device == "here":
        times = measure_times(staged, model, args, kwargs)
        link = measure_link(staged.device)
        source = f"measured on {_device_name(staged.device)}"
    else:
        chip, link = machine(device)
        times = model_times(staged, model, args, kwargs, machine=chip)
        source = describe(chip)
    resident = resident_of(
        found,
        optimizer=optimizer_bytes(optimizer, staged.device),
        loss=loss_bytes(loss, staged, model, args, kwargs),
        reserve=_reserve(staged, model, args, kwargs) if reserve is None else parse_bytes(reserve, "reserve"),
    )
    chain = executable_chain(staged, found, times, resident, name=type(model).__name__, source=source)
    result = solve(chain, budget=budget, link=link, planner=planner, host_memory=host_memory, time_limit=time_limit)
    return TorchPlan(
        result=result,
        resident=resident,
        inputs=staged.inputs,
        leaves=staged.leaves,
        which=staged.which,
        autocast=staged.autocast,
        device=staged.device,
        times=source,
        operations=staged.operations,
        captured=(model, staged),
    )


def executable_chain(
    staged: StagedModel, found: ModelBytes, times: StageTimes, resident: Resident, *, name: str, source: str
) -> Chain:
    """The chain whose plans can be run. The caller holds inputs, results and the results' gradients: they are resident,
    and have no bytes in the columns.
    """
    stages = found.stages
    return Chain(
        times.forward,
        times.backward,
        [0, *(one.activation for one in stages)],
        [0, *(one.gradient for one in stages)],
        saved=[one.activation + sum(one.pieces) for one in stages],
        forward_overhead=[one.forward_overhead for one in stages],
        transient_overhead=[one.transient_overhead for one in stages],
        backward_overhead=[one.backward_overhead for one in stages],
        pieces=[[size for size in one.pieces if size] for one in stages],
        names=[one.name for one in staged.stages],
        resident=resident.total,
        name=name,
        provenance={"times": source, "autocast": str(staged.autocast)},
    )


def _reserve(staged: StagedModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> int:
    """What CUDA's allocator takes beside the tensors of a stage, and what the driver's context occupies.

    Nothing on the CPU, where a budget is a rehearsal.
    """
    if staged.device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(staged.device)
    return kernel_scratch(staged, model, args, kwargs).most + max(
        0, total - free - torch.cuda.memory_reserved(staged.device)
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
