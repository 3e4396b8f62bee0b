"""The public entry: plan a training step as a graph, and run it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched._core import Chain, Device
from memsched.errors import InvalidInputError, MemschedError
from memsched.planners.registry import PLANNERS
from memsched.problems.budget import parse_memory
from memsched.problems.problem import Problem, peak_memory
from memsched.result import Result
from memsched.study.compare import plan as plan_problem
from memsched.support import checks
from memsched.support.units import parse_bandwidth
from memsched.torch.capture import Autocast, CaptureError, only_device
from memsched.torch.check import saving_on_host
from memsched.torch.choose_lanes import lanes_on, trial_lanes
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.describe import describe_step
from memsched.torch.graph_step.runner import StepRunner
from memsched.torch.lanes import Lanes
from memsched.torch.leaves import has_no_data
from memsched.torch.link import measure_link
from memsched.torch.machines import machine
from memsched.torch.random_state import random_state
from memsched.torch.roofline import describe
from memsched.torch.solve import default_host_memory
from memsched.torch.trial import Step, first_difference, untouched

Loss = Callable[[Any], torch.Tensor]


class StepPlan:
    """How one training step of a model fits a budget, operation by operation. Made by `memsched.torch.plan_step`.

    Attributes
    ----------
    result : Result
        The plan of the step's graph, simulated. Budget, peak and resident bytes are those of the whole process.
    """

    def __init__(self, captured: CapturedStep, result: Result, times: str) -> None:
        self.result = result
        self._captured, self._times = captured, times
        self._runner = self._runner_on(lanes_on(captured.program.device))

    def __repr__(self) -> str:
        return f"StepPlan({self.result!r})"

    @property
    def problem(self) -> Problem:
        """The step as a graph, or as a family of graphs."""
        return self.result.problem

    def report(self) -> str:
        """What the plan does and what it costs, as text."""
        return describe_step(self.result, self._times)

    def step(self, *args: Any) -> torch.Tensor:
        """One training step as planned: forward, loss and backward.

        Gradients are added to `.grad` of the parameters, as `backward()` does, and buffers such as running statistics
        are updated. Hooks of modules and parameters do not run: what hooks of modules did while the step was planned is
        a part of it. An input that the plan drops is gone only if the caller does not hold it either. A step that fails
        leaves no gradient where there was none; in rounds buffers have seen the parts that came before.

        Parameters
        ----------
        *args
            Inputs like those that were planned for.

        Returns
        -------
        torch.Tensor
            The loss, without a history. In rounds it is the sum of the parts' losses, each weighted with its share of
            the batch.

        Raises
        ------
        InvalidInputError
            The inputs have other shapes, types or layouts.
        MemschedError
            The model has changed since it was planned.
        """
        given = list(args)
        del args  # nobody here holds an input that the plan drops
        return self._runner.take(given)

    def verify(self, *args: Any) -> None:
        """Compare a planned step with plain autograd: loss, gradients, buffers and random numbers, bit for bit.

        In rounds the plain step accumulates the gradients of the same parts. On CUDA, tensors that differ between two
        plain steps are left out: atomic additions make them differ. On the CPU all count, and the step runs with all
        copies at the earliest and at the latest legal moment, and with NaN in memory that holds nothing. The model is
        left as it was. The plain step must fit the device.

        Raises
        ------
        MemschedError
            Naming the first tensor that differs.
        """
        device = self._captured.program.device
        runners = {name: self._runner_on(lanes) for name, lanes in trial_lanes(device).items()}
        expected = self._trial(lambda: self._plain_step(args))
        if device.type == "cuda":  # some of its kernels add in any order
            expected = expected.without_noise(self._trial(lambda: self._plain_step(args)))
        for name, runner in runners.items():
            different = first_difference(expected, self._trial(functools.partial(runner.step, *args)))
            if different is not None:
                raise self._lie(f"{different} (copies {name})")

    def check(self, *args: Any) -> None:
        """A part of `verify`: one planned step against a plain one, copies at any time.

        On CUDA, where the plain step does not fit the budget, what it saves waits on the host.

        Raises
        ------
        MemschedError
            Naming the first tensor that differs.
        """
        cuda = self._captured.program.device.type == "cuda"
        full = cuda and peak_memory(self.problem) > self.result.schedule.budget
        with saving_on_host() if full else contextlib.nullcontext():
            expected = self._trial(lambda: self._plain_step(args))
        found = self._trial(lambda: self._runner.step(*args))
        different = first_difference(expected, found)
        if different is not None and cuda:
            with saving_on_host() if full else contextlib.nullcontext():
                expected = expected.without_noise(self._trial(lambda: self._plain_step(args)))
            different = first_difference(expected, found)
        if different is not None:
            raise self._lie(different)

    def _lie(self, different: str) -> MemschedError:
        return MemschedError(
            f"the planned step of {type(self._captured.model).__name__} changes the {different}: either the forward "
            "depends on what is no tensor, such as a file or the time; or an operation rounds otherwise by itself, "
            "as one does that wrote to a part of a tensor in place; or this is a bug to report"
        )

    def _runner_on(self, lanes: Lanes) -> StepRunner:
        result = self.result
        assert not isinstance(result.problem, Chain)
        return StepRunner(self._captured, result.problem, result.schedule, result.device, lanes)

    def _trial(self, step: Callable[[], torch.Tensor]) -> Step:
        """What a step gives, from gradients of None; the model is as before afterwards."""
        model, device = self._captured.model, self._captured.program.device
        before = [(parameter, parameter.grad) for parameter in model.parameters()]
        with untouched(model, device):
            try:
                model.zero_grad(set_to_none=True)
                loss = step().detach()
                return Step(
                    outputs=[loss],
                    gradients={name: parameter.grad for name, parameter in model.named_parameters()},
                    buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
                    random=random_state(device),
                )
            finally:
                for parameter, gradient in before:
                    parameter.grad = gradient

    def _plain_step(self, args: Sequence[Any]) -> torch.Tensor:
        """The same step by autograd alone."""
        captured = self._captured
        total: torch.Tensor | None = None
        for start, batch in _parts(self.result.schedule.rounds):
            with Autocast.ambient(captured.program.device.type).whole_step():
                loss = captured.loss(captured.model(*captured.parts(args, start, batch)))
            weight = captured.weight(batch)
            loss = loss if weight is None else loss * weight
            with torch.autocast(captured.program.device.type, enabled=False):  # as the caller of a backward has it
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total


def _parts(rounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The first sample and the size of every part."""
    start = 0
    for batch, times in rounds:
        for _ in range(times):
            yield start, batch
            start += batch


def plan_step(
    model: torch.nn.Module,
    args: Sequence[Any],
    loss: Loss,
    *,
    budget: str | int,
    device: str = "here",
    planner: str = "auto",
    bandwidth: str | float | None = None,
    rounds: bool = False,
    time_limit: float | None = None,
    verify: bool = True,
) -> StepPlan:
    """Fit the training step of a model into a memory budget, operation by operation.

    The step is traced into the list of all its operations, forward, loss and backward. Their results may be offloaded
    to the host, or dropped and computed again, and the plan says when. Parameters, buffers and gradients stay on the
    device. With `memsched.torch.plan` a model stays as it is and its forward and backward follow a plan; here the step
    is called as a whole, and more of it can be planned: any operation, the loss, and the size of the batch.

    With `rounds=True` a plan may split the batch along dimension 0 of all inputs, if the planner does so (modnn,
    vdnn_plus). The parts run one after the other, and their gradients add up. The loss is taken to be a mean over the
    batch. Batch normalisation then sees each part on its own, so that its results are not those of the whole batch.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on.
    args : sequence
        Inputs of the shapes and dtypes to train with. Call under the autocast to train with.
    loss : callable
        From the model's output to a scalar. What else it needs, such as labels, must be among the model's inputs and
        outputs: a tensor that it refers to is the same in every step.
    budget : str or int
        Device memory of the whole process, without the optimiser's state: "6GiB", a number of bytes, or "50%": half of
        the way from the least that any plan without recomputation needs to the peak of the plain step.
    device : str
        "here": times and bandwidths are measured on the model's device. A machine such as "v100:pcie3": they are
        modelled (a roofline, never a measurement).
    planner : str
        "auto" or one of the planners for graphs.
    bandwidth : str or float, optional
        Of the link to the host, such as "12GB/s", instead of what is measured or modelled; 0 means no link.
    rounds : bool
        The batch may be split.
    time_limit : float, optional
        Seconds for each planner that takes a limit.
    verify : bool
        Run one planned step and one plain step on the given inputs, and compare loss, gradients, buffers and random
        numbers before the plan is returned. The model is left as it was. On CUDA, what the plain step saves waits on
        the host where it would not fit the budget.

    Returns
    -------
    StepPlan

    Raises
    ------
    InfeasibleError
        The budget is too small; `.min_memory` is the smallest feasible one.
    CaptureError
        The step cannot be traced, for example because it depends on values of tensors.
    InvalidInputError
        The model is in eval mode or spread over devices, or an option cannot be right.
    MemschedError
        A planned step does not compute what a plain one does.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> x = torch.randn(256, 64)
    >>> plan = memsched.torch.plan_step(
    ...     model, (x,), lambda out: out.square().mean(), budget="50%", device="v100:pcie3", planner="swap_opt"
    ... )
    >>> plan.result.peak_memory <= plan.result.schedule.budget
    True
    >>> loss = plan.step(x)
    >>> plan.verify(x)
    """
    _check_call(model, args, loss, rounds)
    known = [name for name, entry in PLANNERS.items() if "graph" in entry.problems]
    if planner != "auto" and planner not in known:
        raise InvalidInputError(f"planner is {planner!r}; a step as a graph takes auto or one of {', '.join(known)}")
    limit = checks.time_limit(time_limit)
    speed = None if bandwidth is None else parse_bandwidth(bandwidth, "bandwidth")
    chip, link = (None, None) if device == "here" else machine(device)
    here = only_device(model, args, {})
    captured = CapturedStep(
        model,
        args,
        loss,
        times="measured" if chip is None else chip,
        rounds=rounds,
        extra=_occupied(here),
    )
    if captured.program.partial is not None and not verify:
        raise CaptureError(
            f"{captured.program.partial} writes to a part of a tensor in place, and by itself it may round otherwise, "
            "which only a comparison can tell; plan with verify=True"
        )
    problem = captured.family() if rounds else captured.graph
    link = measure_link(here) if link is None else link
    target = Device(
        parse_memory(budget, problem, "the budget"),
        bandwidth=link.bandwidth if speed is None else speed,
        duplex=link.duplex,
        host_memory=default_host_memory(),
        name=link.name,
    )
    result = plan_problem(problem, device=target, planner=planner, time_limit=limit)
    name = torch.cuda.get_device_name(here) if here.type == "cuda" else "this CPU"
    made = StepPlan(captured, result, f"measured on {name}" if chip is None else describe(chip))
    tensors = [leaf for leaf in pytree.tree_leaves(tuple(args)) if isinstance(leaf, torch.Tensor)]
    if verify and not any(map(has_no_data, [*model.parameters(), *model.buffers(), *tensors])):
        made.check(*args)
    return made


def _check_call(model: object, args: object, loss: object, rounds: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(args, torch.Tensor):
        raise InvalidInputError("args is a tensor; give the arguments as a tuple: (x,)")
    if not callable(loss):
        raise InvalidInputError(f"loss is {loss!r}; give a function from the model's output to a scalar")
    if not isinstance(rounds, bool):
        raise InvalidInputError(f"rounds is {rounds!r}; give True or False: the planner decides how many there are")


def _occupied(device: torch.device) -> int:
    """What the driver's context occupies beside PyTorch's own memory; nothing on the CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))
