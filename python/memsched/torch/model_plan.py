"""The look before training: plan a model's step for a budget, read the plan, apply it, prove it, save it."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from memsched._core import Graph
from memsched.errors import InfeasibleError, MemschedError
from memsched.planners.registry import min_memory
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.documents import Document, Source, fields, write_document
from memsched.torch.compiled.backend import backend_of
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.look import Loss, check_model, device_of, forward_of, look, options_of
from memsched.torch.compiled.options import Options, read_options
from memsched.torch.compiled.plan import plan_again, plan_and_document
from memsched.torch.compiled.private import compiled_apart
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import LossBytes
from memsched.torch.compiled.special_groups import Expecting
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.errors import told
from memsched.torch.export import export
from memsched.torch.module_state import check_same, parameters_of
from memsched.torch.optimizer_state import check_owner
from memsched.torch.plan_document import FORMAT, SAVED, read_plan
from memsched.torch.report import NO_OPTIMIZER, ShowsResult, describe
from memsched.torch.trial import trial_step, untouched
from memsched.torch.verify import Verified, verified


class TorchPlan(ShowsResult):
    """How a training step of a model fits a budget. Made by `memsched.torch.plan`, or read by `TorchPlan.load`.

    Attributes
    ----------
    plan : CompiledPlan
    document : dict
        The plan as the cache keeps it.
    options : Options
    device : torch.device
        Where the model was.
    unplanned : tuple of str
        Why parts of the step are not planned.
    """

    def __init__(
        self,
        plan: CompiledPlan,
        document: Document,
        options: Options,
        *,
        loss: LossBytes,
        device: torch.device,
        unplanned: Sequence[str] = (),
        parameters: Document | None = None,
    ) -> None:
        self.plan, self.document, self.options, self.device = plan, document, options, device
        self._loss = loss
        self.unplanned = tuple(unplanned)
        self._parameters = parameters  # of the model, by name; None in plans saved by 0.1.0
        self._applied: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        """All but the models that it was applied to: a copy was applied to none."""
        return {name: value for name, value in vars(self).items() if name != "_applied"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _applied=weakref.WeakSet())

    def __repr__(self) -> str:
        return f"TorchPlan({self.result!r})"

    @property
    def loss(self) -> int:
        """The most bytes that a loss outside the model needs."""
        return self._loss.most

    @property
    def result(self) -> Result:
        """The plan of the step's graph, simulated. Budget, peak and resident bytes are those of the whole process."""
        return self.plan.result

    @property
    def resident(self) -> Resident:
        """What no plan moves, split by what it is for."""
        return self.plan.resident

    @property
    def graph(self) -> Graph:
        """The training step, one op an operation, one tensor a storage."""
        assert isinstance(self.result.problem, Graph)
        return self.result.problem

    @property
    def peak_memory(self) -> int:
        """Of the whole process, in bytes."""
        return self.plan.peak_memory

    def report(self) -> str:
        """What the plan does and what it costs, as text."""
        told = [f"\nnot planned\n  {reason}" for reason in self.unplanned]
        told += [f"\nnot counted\n  {NO_OPTIMIZER}"] if self.options.optimizer is None else []
        return "\n".join([describe(self.plan), *told])

    def at(
        self,
        budget: str | int,
        *,
        planner: str | None = None,
        host_memory: str | int | None = None,
        time_limit: float | None = None,
    ) -> TorchPlan:
        """A plan of the same step for another budget, from the same times.

        Parameters
        ----------
        budget, planner, host_memory, time_limit
            As `memsched.torch.plan` takes them; what is not given stays.

        Raises
        ------
        InfeasibleError
            The budget is too small; `.min_memory` is one that is enough.
        """
        given = {"budget": budget, "planner": planner, "host_memory": host_memory, "time_limit": time_limit}
        changed = {name: value for name, value in given.items() if value is not None}
        options = read_options({**fields(self.options, *SAVED), **changed})
        plan, document = plan_again(self.plan, self.document, options)
        more: dict[str, Any] = {"unplanned": self.unplanned, "parameters": self._parameters}
        return TorchPlan(plan, document, options, loss=self._loss, device=self.device, **more)

    def frontier(self, points: int = 8, *, time_limit: float | None = None) -> list[TorchPlan]:
        """Plans at budgets from about the least memory for one to that which keeps everything, evenly spread.

        Parameters
        ----------
        points : int
            How many budgets.
        time_limit : float, optional
            Seconds for each.

        Returns
        -------
        list of TorchPlan
            From the smallest budget to the largest; fewer than asked where the planner has no plan for one between, or
            they are less than a byte apart. `.result` has peak, makespan and lower bound.
        """
        points = checks.count("points", points, 2, 10_000)
        least, most = min_memory(self.graph), peak_memory(self.graph)
        try:
            self.at(least, time_limit=time_limit)
        except InfeasibleError as error:
            least = min(error.min_memory, most)
        budgets = [least + (most - least) * k // (points - 1) for k in range(points)]
        plans = []
        for budget in dict.fromkeys(budgets):
            with contextlib.suppress(InfeasibleError):
                plans.append(self.at(budget, time_limit=time_limit))
        return plans

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """Let the training steps of a model follow the plan, from the next one on.

        The model stays the same object: parameters, state_dict, optimisers and hooks are untouched. It is compiled in
        place, as by `model.compile(backend="memsched")`: the first step captures it again. A step that is not the one
        that was planned, for example of another batch size, gets a plan of its own for the same budget.

        Returns
        -------
        torch.nn.Module
            The same model.

        Raises
        ------
        MemschedError
            The model is compiled already.
        InvalidInputError
            Its parameters are not those of the model that was planned.
        """
        check_model(model)
        check_same(self._parameters, model)
        if model._compiled_call_impl is not None:
            raise MemschedError("the model has a plan already, or is compiled; call remove() on its plan first")
        model._compiled_call_impl = _compiled(model, self._group())
        self._applied.add(model)
        return model

    def remove(self) -> None:
        """Let the models to which the plan was applied compute as before."""
        for model in list(self._applied):
            model._compiled_call_impl = None
        self._applied.clear()

    def verify(self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Verified:
        """Compare a planned step with a plain one: results, gradients, buffers and random numbers, bit for bit.

        On CUDA, tensors that differ between two plain steps are left out: atomic additions make them differ. On the CPU
        all count, and the step runs with all copies at the earliest and at the latest legal moment, and with NaN in
        memory that holds nothing. The model is left as it was. The plain step must fit the device. The results are
        summed up, without the `loss` that the plan counts. It takes the time of several steps, captured anew.

        Parameters
        ----------
        model, args, kwargs
            As they were planned; the plan may be applied or not.

        Raises
        ------
        MemschedError
            Naming the first tensor that differs, the bytes that exceed the budget, or another step than was planned.
        """
        check_model(model)
        with told(model, args, kwargs):
            return verified(
                lambda step: trial_step(model, step, args, kwargs, self.device),
                model._call_impl,
                lambda group: _compiled(model, group),
                start=lambda: untouched(model, (args, kwargs)),
                group=self._group,
                plan=self.plan,
                device=self.device,
                without_loss=self._loss.most > 0,
            )

    def export(
        self, path: str | Path, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Write the planned step as a Python program to read, to change and to run: it needs PyTorch alone.

        The step is captured again, as a plan holds no operations. The program's `step(model, *inputs)` trains as the
        model does once the plan is applied, with the same bits, from the tensors among the inputs.

        Parameters
        ----------
        path : str or Path
            Of a file that ends in .py.
        model, args, kwargs
            As they were planned; the plan may be applied or not.

        Raises
        ------
        CaptureError
            Naming what no program can hold, such as a graph break. Nothing is written.
        InvalidInputError
            The step is not the one that was planned, or the file cannot be written.

        Examples
        --------
        >>> import torch, memsched.torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> plan = memsched.torch.plan(model, (torch.ones(4, 8),), budget="100%", device="v100")
        >>> plan.export("step.py", model, (torch.ones(4, 8),))  # doctest: +SKIP
        """
        check_same(self._parameters, model)
        export(path, self.plan, self.document, self.options, model, args, kwargs)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. `load` reads it, on this machine or another with the same kind of device."""
        write_document(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON document, memsched-torch-plan/2."""
        return {
            "format": FORMAT,
            "options": fields(self.options, *SAVED),
            "loss": dataclasses.asdict(self._loss),
            "on": self.device.type,
            "unplanned": list(self.unplanned),
            **({} if self._parameters is None else {"parameters": self._parameters}),
            "resident": self.resident.parts(),
            "plan": self.document,
            "result": self.result.to_json(),
        }

    @classmethod
    def load(cls, source: Source) -> TorchPlan:
        """Read what `save` wrote.

        Raises
        ------
        InvalidInputError
            It is not a plan, or one of another version.
        """
        return cls(**read_plan(source))

    def _group(self) -> Group:
        return Expecting(self.options, self.plan, self.document, self.device, loss=self._loss)


@public
def plan(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int,
    device: str = "here",
    planner: str = "selective",
    optimizer: torch.optim.Optimizer | int | None = None,
    loss: Loss | None = None,
    bandwidth: str | float | None = None,
    host_memory: str | int | None = None,
    reserve: str | int = 0,
    time_limit: float | None = None,
) -> TorchPlan:
    """Plan a training step of a model so that the process fits a budget of device memory.

    The step is captured by torch.compile on a copy of the model without data: nothing is computed, and it may be
    larger than the device. `apply` lets the model follow the plan. Without a look before, `model.compile(
    backend="memsched", options={"budget": ...})` does the same in the first training step.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on.
    args, kwargs
        Inputs of the shapes and dtypes to train with. Call under the autocast to train with.
    budget : str or int
        Device memory of the whole process: "6GiB", a number of bytes, or "50%": half of the way from the least that any
        plan without recomputation needs to the peak of the step that keeps everything.
    device : str
        "here": operations are timed on the model's device. A machine such as "v100:pcie3": their times are modelled
        (a roofline, never a measurement).
    planner : str
        A planner for graphs, or "auto".
    optimizer : torch.optim.Optimizer or int, optional
        Its state occupies memory: measured, or declared in bytes.
    loss : callable, optional
        Takes the model's result and returns a scalar. What it needs for itself is counted. A loss that is part of the
        model is planned with it.
    bandwidth : str or float, optional
        Of the link to the host, such as "12GB/s"; 0 means that nothing is offloaded. By default that of the machine, or
        measured on CUDA, and 0 on the CPU.
    host_memory : str or int, optional
        The most host memory for what is offloaded; half of the machine's by default.
    reserve : str or int
        Device memory for what no capture sees, such as workspaces of libraries.
    time_limit : float, optional
        Seconds for the planner.

    Returns
    -------
    TorchPlan

    Raises
    ------
    InfeasibleError
        The budget is too small; `.min_memory` is one that is enough.
    CaptureError
        The step looks at values of tensors, or nothing of it can be captured.
    InvalidInputError
        The model is in eval mode, or an option cannot be right.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> plan = memsched.torch.plan(model, (torch.randn(256, 64),), budget="50%", device="v100:pcie3")
    >>> model = plan.apply(model)
    >>> model(torch.randn(256, 64)).sum().backward()
    >>> plan.remove()
    """
    check_model(model)
    if isinstance(optimizer, torch.optim.Optimizer):
        check_owner(optimizer, model)
    options = options_of(
        model,
        budget=budget,
        device=device,
        planner=planner,
        bandwidth=bandwidth,
        host_memory=host_memory,
        reserve=reserve,
        time_limit=time_limit,
        optimizer=optimizer,
    )
    with told(model, args, kwargs, loss):
        seen = look(model, args, dict(kwargs or {}), options, loss=loss)
    if seen.unplanned:
        warnings.warn(seen.unplanned[0], UnplannedWarning, stacklevel=2)
    made, document = plan_and_document(seen.visits, seen.returns, seen.resident, options, name=type(model).__name__)
    more: dict[str, Any] = {"unplanned": seen.unplanned, "parameters": parameters_of(model)}
    return TorchPlan(made, document, options, loss=seen.loss, device=device_of(model), **more)


def _compiled(model: torch.nn.Module, group: Group) -> Callable[..., Any]:
    return compiled_apart(forward_of(model), backend_of(group))
