"""Planning whole steps: forward, loss and backward are captured together, with the updates if asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from memsched._core import Graph
from memsched.errors import InfeasibleError, InvalidInputError, shown
from memsched.problems.budget import parse_memory, slowest, warn_if_slow
from memsched.problems.family import GraphFamily
from memsched.study.auto import plan as plan_problem
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.support.documents import Document
from memsched.torch.batches import narrowed, split_batch, told_of
from memsched.torch.compiled.how import How
from memsched.torch.compiled.look import Look, Loss, check_call, device_of, look, options_of
from memsched.torch.compiled.options import Options, device_for
from memsched.torch.compiled.parameters import as_in_a_step, bring_back, staying_in, travelling_in
from memsched.torch.compiled.plan import (
    Timed,
    adopted,
    described,
    key_of_step,
    plan_and_document,
    timed,
)
from memsched.torch.compiled.private import without_logs
from memsched.torch.compiled.scaling import Scaling
from memsched.torch.compiled.uncaptured import graph_breaks
from memsched.torch.compiled.update_checks import scaling_of, updates_of
from memsched.torch.compiled.update_costs import HostSpeed
from memsched.torch.compiled.updates import Updates
from memsched.torch.errors import CaptureError, told
from memsched.torch.step_plan import Given, StepPlan, given_to

_SLOWEST = 1e6  # bytes a second that a host reads and writes; with less, a unit is missing


@public
def plan_step(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    loss: Loss | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int,
    device: str = "here",
    planner: str = "auto",
    optimizer: torch.optim.Optimizer | int | None = None,
    bandwidth: str | float | None = None,
    host_memory: str | int | None = None,
    reserve: str | int = 0,
    rounds: bool = False,
    time_limit: float | None = None,
    update: bool | Literal["each"] = False,
    max_norm: float | None = None,
    accumulate: bool = False,
    scaler: torch.amp.GradScaler | None = None,
    offload_parameters: bool = False,
    update_on_host: bool | str | float = False,
) -> StepPlan:
    """Fit a training step, forward and loss and backward, into a memory budget.

    As `memsched.torch.plan`, but the loss is captured with the model, and the step is called as a whole. So the planner
    `olla` orders all of it, and with `rounds=True` a plan may split the batch along dimension 0 of all inputs, if the
    planner does so (modnn, vdnn_plus). The parts run one after the other, and their gradients add up. The loss is taken
    to be a mean over the batch. Batch normalisation then sees each part on its own, so that its results are not those
    of the whole batch.

    With `update=True`, the step also updates the parameters, each as soon as nothing reads it any more and its gradient
    is there. So no memory is needed for all gradients at once, and the optimiser's states may travel: where there is
    a link, the plan keeps states on the host between steps and fetches each for its update. This is the whole step of
    OLLA (section 4.3 of its paper) with offloading.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on.
    args, kwargs : sequence, mapping
        Inputs of the shapes and dtypes to train with. Call under the autocast to train with.
    loss : callable, optional
        From the model's output to a scalar. By default the model returns its loss, or has it in `.loss`, as those of
        Hugging Face do that are given labels.
    budget, device, optimizer, bandwidth, host_memory, reserve, time_limit
        As `memsched.torch.plan` takes them.
    planner : str
        "auto" or one of the planners for graphs; with `update=True` both "auto" and "selective" are `selective`.
    rounds : bool
        The batch may be split.
    update : bool or "each"
        The step updates the parameters by `optimizer`, one of torch.optim whose updates do not depend on each other.
        With "each" you say that those of another class do not, either. A copy of it is tried on a few tensors, one by
        one and all at once, and refused if that differs.
    max_norm : float, optional
        With `update=True`, gradients are clipped as `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)` does
        it. All updates then wait for the last gradient. `StepPlan.norm` is the norm of the last step.
    accumulate : bool
        With `update=True`, gradients of several micro-batches may add up: all but the last run by
        `StepPlan.accumulate`, which is planned for the same budget, and `StepPlan.step` adds to what waits. All
        gradients then count, also while none waits. With one of the next two options each may wait on the host.
    scaler : torch.amp.GradScaler, optional
        The loss is scaled by it. With `update=True`, gradients are unscaled before they are clipped, all updates wait
        to see whether each gradient is finite, and are left out if one is not; then the scaler is updated. Without,
        scaled gradients are in `.grad`, for `scaler.step(optimizer)`.
    offload_parameters : bool
        With `update=True`, the plan also decides where parameters are, trained and frozen ones: each may be on the host
        while nothing reads it, and between steps, where its values then are in host memory (`StepPlan.bring_back`
        brings all to the device). Those that share their memory with others stay.
    update_on_host : bool, str or float
        With `update=True`, the plan also decides which updates the host computes, beside the device: the gradient goes
        there, the parameter comes back, and the optimiser's states stay. With True the time of each is measured on this
        machine; give the bytes per second that the host reads and writes, such as "100 GB/s", for another. Parameters
        may be on the host, as with `offload_parameters`. What the host updates has the bits of its own kernels.

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
    given = given_to(model, args, kwargs)
    loss = own_loss if loss is None else loss
    if not isinstance(rounds, bool):
        raise InvalidInputError(f"rounds is {rounds!r}; give True or False: the planner decides how many there are")
    if update and planner == "auto":
        planner = "selective"  # which "auto" would ask, too, and for longer
    with as_in_a_step(model.parameters()):
        scaling = scaling_of(scaler, device_of(model))
        how = _how(update, max_norm, accumulate, scaled=scaling is not None)
        host = _host_speed(update_on_host)
        _check_offload("offload_parameters", offload_parameters, update)
        _check_offload("update_on_host", update_on_host, update)
        updates = None
        if not (offload_parameters or host is not None):
            bring_back(model.parameters())
        if update:
            asked: dict[str, Any] = {"update": update, "rounds": rounds, "planner": planner, "how": how}
            updates = updates_of(model, optimizer, scaling, **asked, host=host, offload_parameters=offload_parameters)
        options = options_of(
            model,
            budget=budget,
            device=device,
            planner=planner,
            bandwidth=bandwidth,
            host_memory=host_memory,
            reserve=reserve,
            time_limit=time_limit,
            optimizer=optimizer if updates is None else updates.state_bytes,
        )
        with told(model, *given, loss=loss):
            steps = _Steps(model, given, loss, options, updates, scaling)
            if rounds:
                return steps.planned_in_rounds()
            return steps.planned_to_accumulate() if how.adds else steps.planned()


def _how(update: Any, max_norm: float | None, accumulate: bool, *, scaled: bool) -> How:
    """What the step does with its gradients."""
    if not isinstance(accumulate, bool):
        raise InvalidInputError(
            f"accumulate is {shown(accumulate)}; give True or False: with True, call "
            "plan.accumulate(..) for each micro-batch but the last, and plan.step(..) for that"
        )
    if not update and (accumulate or max_norm is not None):
        option = "accumulate is True" if accumulate else f"max_norm is {shown(max_norm)}"
        raise InvalidInputError(
            f"{option}, and update is not given: gradients of a step without updates are in .grad, and add up there; "
            "clip them before optimizer.step()"
        )
    norm = None if max_norm is None else checks.as_float(max_norm)
    if norm is not None and not norm >= 0:
        raise InvalidInputError(f"max_norm is {shown(max_norm)}; it must be a number >= 0, where inf only measures")
    return How(norm, adds=accumulate, scaled=scaled)


def _check_offload(option: str, given: Any, update: Any) -> None:
    if option == "offload_parameters" and not isinstance(given, bool):
        raise InvalidInputError(f"{option} is {shown(given)}; give True or False")
    if given is not False and not update:
        raise InvalidInputError(
            f"{option} is {shown(given)} and update is not: gradients that wait for an update are on the device, and "
            "so are their parameters; plan with update=True"
        )


def _host_speed(given: Any) -> HostSpeed:
    if isinstance(given, bool):
        return "here" if given else None
    try:
        rate = quantities.bandwidth("update_on_host", given) if isinstance(given, str) else checks.as_float(given)
    except InvalidInputError:
        rate = math.nan
    if not _SLOWEST <= rate < math.inf:
        raise InvalidInputError(
            f"update_on_host is {shown(given)}; give True, or the bytes per second that the host reads and writes, "
            'with their unit, such as "100 GB/s"'
        )
    return rate


def own_loss(result: Any) -> torch.Tensor:
    """The loss that a model returns, or has in its result."""
    inner = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    found = result if isinstance(result, torch.Tensor) else inner
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise InvalidInputError("the model returns no loss, which is one number as a tensor; give loss=lambda out: ...")
    return found


class _Steps:
    """The step of a model at any size of the batch."""

    def __init__(
        self,
        model: torch.nn.Module,
        given: Given,
        loss: Loss,
        options: Options,
        updates: Updates | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        self._model, self._given, self._loss, self._options, self._updates = model, given, loss, options, updates
        self._scaling = scaling
        self._name = type(model).__name__
        self._timed: dict[int, Timed] = {}
        self._looks: dict[int, Look] = {}

    def planned_to_accumulate(self) -> StepPlan:
        """Of the whole batch at once, beside gradients from before; and of a step whose gradients wait."""
        assert self._updates is not None
        made, updates = self.planned(), self._updates
        waiting = updates.that_wait()
        for there in (made.on_host, made.states):
            held = updates.state_bytes - sum(there.values())
            options = replace(self._options, budget=made.result.schedule.budget, optimizer=held)
            try:
                steps = _Steps(self._model, self._given, self._loss, options, waiting, self._scaling)
                made.wait_by(steps.planned(), there)
                break
            except InfeasibleError:  # with all states on the host, perhaps
                if there == made.states or made.result.device.d2h == 0:
                    raise
        return made

    def planned(self) -> StepPlan:
        """Of the whole batch at once."""
        seen = self._look(self._given)
        joint = seen.visits[0].joint
        updates = [op.update for op in joint.operations if op.update is not None]
        if self._updates is not None:
            self._updates.places = {one.place for one in updates}
            self._updates.lasting.planned = {one.place for one in updates if one.state}
            self._updates.lasting.resident = {one.place for one in updates if one.numbers}
            self._updates.lasting.awaited = {one.place for one in updates if one.waiting}
            self._updates.keep(travelling_in(joint).values(), staying_in(joint))
            if not updates:
                raise InvalidInputError(
                    "the optimizer updates no parameter of the step; was it built for another model, or a copy of this?"
                )
        options = self._options
        made, document = plan_and_document(seen.visits, seen.returns, seen.resident, options, name=self._name)
        if self._updates is not None and self._updates.how.adds:  # also without gradients from before
            options = replace(options, budget=made.result.schedule.budget)
        key = key_of_step(made.result.graph, options, device_of(self._model))
        known = {key: document}
        if self._updates is not None:
            self._updates.lasting.parameters_at = made.result.schedule.border
            places = {op.node.name: op.update.place for op in joint.operations if op.update is not None}
            hosted = (step["update"] for step in made.result.schedule.steps if "update" in step)
            self._updates.hosted = frozenset(places[name] for name in hosted)
        of = self._model, self._loss, self._given, options
        return StepPlan(*of, made.result, made, known, self._updates, self._scaling)

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
        return StepPlan(self._model, self._loss, self._given, options, result, made, known, None, self._scaling)

    def _family(self) -> GraphFamily:
        """All batches; where a single sample runs other operations than many, the equal parts that run the same."""
        family = GraphFamily(self._graph_at, split_batch(self._given))
        parts = [batch for batch in range(1, family.batch + 1) if family.batch % batch == 0]
        if family.batch == 1 or _is_in(family, 1):
            return family
        graphs = [family.at(batch) for batch in parts if _is_in(family, batch)]
        document = {**family.to_json(), "graphs": [graph.to_json() for graph in reversed(graphs)]}
        return GraphFamily.from_json(document)

    def _look(self, given: Given) -> Look:
        updates, known = self._updates, graph_breaks()
        with without_logs():
            seen = look(self._model, *given, self._options, loss=self._loss, within=True, updates=updates)
        if seen.unplanned:
            raise CaptureError(f"a part of the step cannot be planned: {seen.unplanned[0]}")
        if updates is not None and len(seen.visits) > 1:
            reasons = [*(graph_breaks() - known)]
            why = f" ({reasons[0]})" if reasons else ""
            raise CaptureError(
                f"the step is captured in {len(seen.visits)} graphs, and with update=True it must be one: remove what "
                f"breaks it{why}, whose line TORCH_LOGS=graph_breaks shows, or plan with update=False"
            )
        return seen

    def _graph_at(self, batch: int) -> Graph:
        if batch not in self._timed:
            with told_of(
                f"batch {batch}", given=batch == split_batch(self._given)
            ):  # such as a normalisation of one sample
                seen = self._look(narrowed(self._given, 0, batch))
            learning = [leaf for leaf in pytree.tree_leaves(self._given) if getattr(leaf, "requires_grad", False)]
            # Beside the gradient of a whole input, that of a part is as large for a moment.
            gathered = sum(visit.gradient_bytes for visit in seen.visits) + 2 * sum(one.nbytes for one in learning)
            self._looks[batch] = replace(seen, resident=replace(seen.resident, gradients=gathered))
            held = self._looks[batch].resident
            self._timed[batch] = timed(seen.visits, seen.returns, held, self._options, self._name)
        return Graph.from_json({**self._timed[batch].graph.to_json(), "batch": batch})


def _is_in(family: GraphFamily, batch: int) -> bool:
    try:
        family.at(batch)
    except (InvalidInputError, CaptureError):
        return False
    return True
