"""A whole step at a time: forward and loss are captured together, and the batch may be split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched._core import Graph
from memsched.errors import InvalidInputError
from memsched.problems.budget import parse_memory, slowest, warn_if_slow
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.study.auto import plan as plan_problem
from memsched.support.arguments import public
from memsched.support.documents import Document
from memsched.torch.batches import told_of
from memsched.torch.compiled.backend import backend_of
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.look import Look, Loss, check_call, device_of, forward_of, look, options_of, then
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import (
    CompiledPlan,
    Timed,
    adopted,
    described,
    device_for,
    key_of_step,
    plan_and_document,
    timed,
)
from memsched.torch.errors import CaptureError, told
from memsched.torch.module_state import backward_aside
from memsched.torch.nests import tensors_of
from memsched.torch.report import NO_OPTIMIZER, ShowsResult
from memsched.torch.trial import Step, random_state, untouched
from memsched.torch.verify import Verified, verified


class StepPlan(ShowsResult):
    """How one training step of a model, with its loss, fits a budget. Made by `memsched.torch.plan_step`.

    Attributes
    ----------
    plan : CompiledPlan
        Of the step, or of one of its rounds.
    result : Result
        The plan of the step's graph, or of a family of graphs, simulated. Budget, peak and resident bytes are those of
        the whole process.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        args: Sequence[Any],
        options: Options,
        result: Result,
        plan: CompiledPlan,
        known: dict[str, Document],
    ) -> None:
        self.result, self.plan = result, plan
        self._model, self._loss, self._options, self._known = model, loss, options, known
        self._device, self._rounds = device_of(model), isinstance(result.problem, GraphFamily)
        self._like = [_described(leaf) for leaf in pytree.tree_leaves(tuple(args))]
        self._step = self._compiled(Group(options, known=known))

    def __repr__(self) -> str:
        return f"StepPlan({self.result!r})"

    @property
    def problem(self) -> Problem:
        """The step as a graph, or as a family of graphs."""
        return self.result.problem

    @property
    def peak_memory(self) -> int:
        """Of the whole process, in bytes."""
        return self.result.peak_memory

    def report(self) -> str:
        """What the plan does and what it costs, as text."""
        told = [f"\nnot counted\n  {NO_OPTIMIZER}"] if self._options.optimizer is None else []
        return "\n".join([replace(self.plan, result=self.result).report(), *told])

    def step(self, *args: Any) -> torch.Tensor:
        """One training step as planned: forward, loss and backward.

        Gradients are added to `.grad` of the parameters, as `backward()` does, and buffers such as running statistics
        are updated.

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
        """
        return self._take(self._step, args)

    def verify(self, *args: Any) -> Verified:
        """Compare a planned step with plain autograd: loss, gradients, buffers and random numbers, bit for bit.

        In rounds the plain step accumulates the gradients of the same parts. Else as `TorchPlan.verify`.

        Raises
        ------
        MemschedError
            Naming the first tensor that differs, or the bytes that exceed the budget.
        """
        model, loss = self._model, self._loss

        def trial(step: Callable[..., Any]) -> Step:
            learning = dict(model.named_parameters())
            learning |= {f"input {k}": one for k, one in enumerate(tensors_of(args)) if one.requires_grad}
            value = self._take(step, args, own=set(map(id, learning.values())))
            gradients = {name: one.grad for name, one in learning.items()}
            for one in learning.values():
                one.grad = None
            return Step(
                outputs=[value],
                gradients=gradients,
                buffers={name: one.detach().clone() for name, one in model.named_buffers()},
                random=random_state(self._device),
            )

        # What parts add to each other's gradients is counted as they run.
        counting = replace(self.plan, resident=replace(self.plan.resident, gradients=0))
        with told(model, args, loss=loss):
            return verified(
                trial,
                then(model._call_impl, loss),
                self._compiled,
                start=lambda: untouched(model, args, loss),
                group=lambda: Group(self._options, known=self._known),
                plan=counting if self._rounds else self.plan,
                device=self._device,
            )

    def _compiled(self, group: Group) -> Callable[..., Any]:
        step = then(forward_of(self._model), self._loss)
        return torch.compile(step, backend=backend_of(group), dynamic=False)

    def _take(self, step: Callable[..., Any], args: Sequence[Any], own: set[int] | None = None) -> torch.Tensor:
        """`own`: what gets gradients; None: all does."""
        given = [_described(leaf) for leaf in pytree.tree_leaves(tuple(args))]
        if given != self._like:
            raise InvalidInputError(
                f"the inputs are {', '.join(given)}, and the plan is for {', '.join(self._like)}; plan for them, too"
            )
        check_call(self._model, args)
        rounds = self.result.schedule.rounds
        whole = sum(batch * times for batch, times in rounds)
        total: torch.Tensor | None = None
        for start, batch in _parts(rounds):
            value = step(*(_narrowed(tuple(args), start, batch) if self._rounds else args))
            if self._rounds:
                value = value * (batch / whole)
            if own is None:
                value.backward()
            else:
                backward_aside([value], None, own=lambda leaf: id(leaf) in own)
            total = value.detach() if total is None else total + value.detach()
            del value
        assert total is not None
        return total


@public
def plan_step(
    model: torch.nn.Module,
    args: Sequence[Any],
    loss: Loss | None = None,
    *,
    budget: str | int,
    device: str = "here",
    planner: str = "auto",
    optimizer: torch.optim.Optimizer | int | None = None,
    bandwidth: str | float | None = None,
    host_memory: str | int | None = None,
    reserve: str | int = 0,
    rounds: bool = False,
    time_limit: float | None = None,
) -> StepPlan:
    """Fit a training step, forward and loss and backward, into a memory budget.

    As `memsched.torch.plan`, but the loss is captured with the model, and the step is called as a whole. So the planner
    `olla` orders all of it, and with `rounds=True` a plan may split the batch along dimension 0 of all inputs, if the
    planner does so (modnn, vdnn_plus). The parts run one after the other, and their gradients add up. The loss is taken
    to be a mean over the batch. Batch normalisation then sees each part on its own, so that its results are not those
    of the whole batch.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on.
    args : sequence
        Inputs of the shapes and dtypes to train with. Call under the autocast to train with.
    loss : callable, optional
        From the model's output to a scalar. By default the model returns its loss.
    budget, device, optimizer, bandwidth, host_memory, reserve, time_limit
        As `memsched.torch.plan` takes them.
    planner : str
        "auto" or one of the planners for graphs.
    rounds : bool
        The batch may be split.

    Returns
    -------
    StepPlan

    Raises
    ------
    InfeasibleError
        The budget is too small; `.min_memory` is the smallest feasible one.
    CaptureError
        The step looks at values of tensors, or a part of it cannot be captured.
    InvalidInputError
        The model is in eval mode, or an option cannot be right.

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
    >>> plan.verify(x).peak_memory <= plan.result.schedule.budget
    True
    """
    check_call(model, args)
    loss = _own_loss if loss is None else loss
    if not isinstance(rounds, bool):
        raise InvalidInputError(f"rounds is {rounds!r}; give True or False: the planner decides how many there are")
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
    with told(model, args, loss=loss):
        steps = _Steps(model, tuple(args), loss, options)
        return steps.planned_in_rounds() if rounds else steps.planned()


def _own_loss(result: Any) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        raise InvalidInputError("the model returns no loss, which is one number as a tensor; give loss=lambda out: ...")
    return result


class _Steps:
    """The step of a model at any size of the batch."""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], loss: Loss, options: Options) -> None:
        self._model, self._args, self._loss, self._options = model, args, loss, options
        self._name = type(model).__name__
        self._timed: dict[int, Timed] = {}
        self._looks: dict[int, Look] = {}

    def planned(self) -> StepPlan:
        """Of the whole batch at once."""
        seen = self._look(self._args)
        made, document = plan_and_document(seen.visits, seen.returns, seen.resident, self._options, name=self._name)
        key = key_of_step(made.result.graph, self._options, device_of(self._model))
        return StepPlan(self._model, self._loss, self._args, self._options, made.result, made, {key: document})

    def planned_in_rounds(self) -> StepPlan:
        """Of a batch that may be split."""
        family = self._family()
        memory = parse_memory(self._options.budget, family, "the budget")
        options = replace(self._options, budget=memory)
        device = device_for(memory, self._timed[family.batch].link, options)
        warn_if_slow(family, slowest(device), "bandwidth")
        result = plan_problem(family, device=device, planner=options.planner, time_limit=options.time_limit)
        known: dict[str, Document] = {}
        for batch, _ in result.schedule.rounds:
            found = self._timed[batch]
            document = {**found.facts, **described(result)}
            known[key_of_step(found.graph, options, device_of(self._model))] = document
            made = adopted(found.graph, document, memory, self._looks[batch].resident)
        return StepPlan(self._model, self._loss, self._args, options, result, made, known)

    def _family(self) -> GraphFamily:
        """All batches; where a single sample runs other operations than many, the equal parts that run the same."""
        family = GraphFamily(self._graph_at, _batch(self._args))
        parts = [batch for batch in range(1, family.batch + 1) if family.batch % batch == 0]
        if family.batch == 1 or _is_in(family, 1):
            return family
        graphs = [family.at(batch) for batch in parts if _is_in(family, batch)]
        document = {**family.to_json(), "graphs": [graph.to_json() for graph in reversed(graphs)]}
        return GraphFamily.from_json(document)

    def _look(self, args: tuple[Any, ...]) -> Look:
        seen = look(self._model, args, {}, self._options, loss=self._loss, within=True)
        if seen.unplanned:
            raise CaptureError(f"a part of the step cannot be planned: {seen.unplanned[0]}")
        return seen

    def _graph_at(self, batch: int) -> Graph:
        if batch not in self._timed:
            with told_of(batch, _batch(self._args)):  # such as a normalisation of one sample
                seen = self._look(_narrowed(self._args, 0, batch))
            learning = [leaf for leaf in pytree.tree_leaves(self._args) if getattr(leaf, "requires_grad", False)]
            # Beside the gradient of a whole input, that of a part is as large for a moment.
            gathered = sum(visit.gradient_bytes for visit in seen.visits) + 2 * sum(one.nbytes for one in learning)
            self._looks[batch] = replace(seen, resident=replace(seen.resident, gradients=gathered))
            held = self._looks[batch].resident
            self._timed[batch] = timed(seen.visits, seen.returns, held, self._options, self._name)
        return Graph.from_json({**self._timed[batch].graph.to_json(), "batch": batch})


def _batch(args: tuple[Any, ...]) -> int:
    shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise InvalidInputError(
            f"rounds is True and the inputs have the shapes {', '.join(map(str, shapes)) or '(none)'}; all must have "
            "the batch as their dimension 0, or plan with rounds=False"
        )
    return int(shapes[0][0])


def _is_in(family: GraphFamily, batch: int) -> bool:
    try:
        family.at(batch)
    except (InvalidInputError, CaptureError):
        return False
    return True


def _narrowed(args: tuple[Any, ...], start: int, batch: int) -> tuple[Any, ...]:
    """Some samples of all inputs."""
    return pytree.tree_map_only(torch.Tensor, lambda one: one.narrow(0, start, batch), args)


def _parts(rounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The first sample and the size of every part."""
    start = 0
    for batch, times in rounds:
        for _ in range(times):
            yield start, batch
            start += batch


def _described(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)} with strides {leaf.stride()}"
