"""From a model, one recorded step and a budget to a plan that offloads, and the plan itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError, MemschedError
from memsched.planners.registry import planner_named
from memsched.support.documents import Document
from memsched.support.units import parse_bytes
from memsched.torch.capture import Autocast, only_device
from memsched.torch.hooked.chain import Flow, Stages
from memsched.torch.hooked.forward import HookedForward
from memsched.torch.hooked.record import RecordedStep, record_step
from memsched.torch.lanes import Lanes
from memsched.torch.leaves import Leaf, distinct
from memsched.torch.link import measure_link
from memsched.torch.machines import machine
from memsched.torch.process_state import contained
from memsched.torch.resident import Resident, count_loss, optimizer_bytes
from memsched.torch.roofline import Roofline, describe
from memsched.torch.solve import solve
from memsched.torch.stage_bytes import distinct_bytes, needs_gradient
from memsched.torch.torch_plan import TorchPlan
from memsched.torch.trial import untouched


class HookedPlan(TorchPlan):
    """How one training step of a model fits a budget, where PyTorch cannot say beforehand what the step computes.

    Made by `plan_with_hooks`. Used as any `TorchPlan` is. A stage of its chain is a storage that autograd saves; plans
    offload, and never recompute. A step that is not like the recorded one is computed right, but may exceed the budget:
    it warns once. `backward(retain_graph=True)` works, and keeps on the device what it brings back; second derivatives
    are refused.

    Attributes
    ----------
    flow : Flow
        What the recorded step is recognised by.
    reason : str
        Why the model is not planned as others are.
    """

    KIND = "hooks"
    REPEATS = False
    KEYS = (*TorchPlan.KEYS, "flow", "reason")

    def __init__(self, *, flow: Flow, reason: str, **plan: Any) -> None:
        super().__init__(**plan)
        self.flow, self.reason = flow, reason

    def __repr__(self) -> str:
        return f"HookedPlan({self.result!r})"

    def report(self, measured: Any = None) -> str:
        """What the plan does and what it costs, as text.

        Parameters
        ----------
        measured : Timeline, optional
            From `measure`: shown beside the prediction.
        """
        return f"{super().report(measured)}\n\nplanned with hooks, offload only\n  {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON document, memsched-torch-plan/1 of kind "hooks"."""
        return {**super().to_json(), "flow": self.flow.to_json(), "reason": self.reason}

    def at(
        self,
        budget: str | int,
        *,
        planner: str = "auto",
        host_memory: str | int | None = None,
        time_limit: float | None = None,
    ) -> TorchPlan:
        """A plan of the same model for another budget, from the step that was recorded for this one.

        Parameters
        ----------
        budget, planner, host_memory, time_limit
            As `plan_with_hooks` takes them.

        Raises
        ------
        InfeasibleError
            The budget or host_memory is too small; `.min_memory` is the smallest feasible budget.
        """
        name = _offloading(planner, self.reason)
        return super().at(budget, planner=name, host_memory=host_memory, time_limit=time_limit)

    @classmethod
    def _fields(cls, document: Document) -> dict[str, Any]:
        flow, reason = Flow.from_json(document["flow"]), str(document["reason"])
        return {**super()._fields(document), "flow": flow, "reason": reason}

    def _planned(self, model: torch.nn.Module, lanes: Lanes) -> Any:
        torch.clear_autocast_cache()  # what an earlier step has cast would not be saved anew
        return HookedForward(model, self.flow, self._script(), self.device, lanes)


def plan_with_hooks(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    reason: str,
    budget: str | int,
    device: str = "here",
    planner: str = "auto",
    optimizer: torch.optim.Optimizer | int | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    host_memory: str | int | None = None,
    reserve: str | int | None = None,
    time_limit: float | None = None,
    verify: bool = True,
) -> HookedPlan:
    """Plan a training step of a model from one step that is run and recorded. Warns that nothing is recomputed.

    The recorded step needs as much device memory as the tightest plan; on CUDA everything else waits on the host. The
    model is left as it was.

    Parameters
    ----------
    reason : str
        Why the model is not planned as others are: a sentence for the warning and the report.
    planner : str
        "auto" or a planner that does not recompute.
    model, args, kwargs, budget, device, optimizer, loss, host_memory, reserve, time_limit, verify
        As `memsched.torch.plan` takes them. With the name of a machine for `device` the times are modelled; the bytes
        are those of this device's kernels.

    Raises
    ------
    InfeasibleError
        The budget or host_memory is too small; `.min_memory` is the smallest feasible budget.
    InvalidInputError
        The model is in eval mode or spread over devices, or an option cannot be right.
    MemschedError
        No result of the model needs a gradient.

    Examples
    --------
    >>> import torch, warnings
    >>> from memsched.torch.hooked.plan import plan_with_hooks
    >>> warnings.simplefilter("ignore")
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> plan = plan_with_hooks(model, (torch.randn(256, 64),), reason="a try", budget="50%", device="v100:pcie3")
    >>> model = plan.apply(model)
    >>> model(torch.randn(256, 64)).sum().backward()
    >>> plan.remove()
    """
    if not model.training:
        raise InvalidInputError("the model is in eval mode; call model.train() before it is planned for training")
    where = only_device(model, args, kwargs or {})
    leaves, inputs = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    planner = _offloading(planner, reason)
    chip, link = (None, None) if device == "here" else machine(device)
    step = _recorded(model, args, kwargs, where, Roofline(chip) if chip is not None else None, reason)
    link = measure_link(where) if link is None else link
    here = "this CPU" if where.type == "cpu" else torch.cuda.get_device_name(where)
    source = f"measured on {here}" if chip is None else describe(chip)
    stages = Stages(step)
    resident = Resident(
        parameters=distinct_bytes(list(model.parameters())),
        buffers=distinct_bytes(list(model.buffers())),
        gradients=sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad),
        optimizer=optimizer_bytes(optimizer, where),
        inputs=distinct_bytes(leaves),
        input_gradients=sum(leaf.numel() * leaf.element_size() for leaf in leaves if needs_gradient(leaf)),
        outputs=step.outputs + step.output_gradients,
        environment=stages.environment,
        loss=_loss_bytes(model, args, kwargs, loss, where),
        repeated=0,
        shared_gradients=0,
        reserve=_measured_reserve(step, where) if reserve is None else parse_bytes(reserve, "reserve"),
    )
    autocast = Autocast.ambient(where.type)
    chain = stages.chain(
        resident=resident.total,
        counted=resident.gradients + resident.input_gradients + resident.outputs + resident.environment,
        name=type(model).__name__,
        provenance={"times": source, "autocast": str(autocast)},
    )
    result = solve(chain, budget=budget, link=link, planner=planner, host_memory=host_memory, time_limit=time_limit)
    warnings.warn(
        f"{type(model).__name__} is planned with saved-tensor hooks, which offload and cannot recompute: {reason}",
        stacklevel=3,
    )
    plan = HookedPlan(
        flow=stages.flow,
        reason=reason,
        result=result,
        resident=resident,
        inputs=inputs,
        leaves=tuple(Leaf.of(leaf) for leaf in leaves),
        which=distinct(leaves)[1],
        autocast=autocast,
        device=where,
        times=source,
    )
    different = plan.check(model, args, kwargs) if verify else None
    if different is not None:
        raise MemschedError(
            f"a step of {type(model).__name__} with hooks for saved tensors changes the {different}; the model cannot "
            "be planned: either its step depends on what is no tensor, such as the time, or this is a bug to report"
        )
    return plan


def _recorded(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    device: torch.device,
    clock: Roofline | None,
    reason: str,
) -> RecordedStep:
    with contained(model):
        try:
            return record_step(model, args, kwargs, device, clock)
        except (MemschedError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the model's own code runs in there, so anything may be raised
            raise MemschedError(
                f"{type(model).__name__} cannot be planned: {reason}; and with hooks for saved tensors its step fails: "
                f"{type(error).__name__}: {error}"
            ) from error


def _loss_bytes(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    loss: Callable[[Any], torch.Tensor] | None,
    device: torch.device,
) -> int:
    """Bytes that a loss needs beside the model's results and their gradients."""
    if loss is None:
        return 0
    with untouched(model, device, (args, kwargs)):
        with torch.no_grad():
            result = type(model).forward(model, *args, **(kwargs or {}))
        return count_loss(loss, result, device)


def _offloading(planner: str, reason: str) -> str:
    """The planner to use: one that does not recompute."""
    if planner == "auto":
        return "offload"
    if planner_named(planner).recomputes:
        raise InvalidInputError(
            f"planner is {planner!r}, which recomputes, and this model cannot be recomputed ({reason}); use "
            '"offload", "greedy" or "dynprog"'
        )
    return planner


def _measured_reserve(step: RecordedStep, device: torch.device) -> int:
    """What CUDA's allocator takes beside tensors, and what the driver's context occupies; nothing on the CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return step.scratch + max(0, total - free - int(torch.cuda.memory_reserved(device)))
