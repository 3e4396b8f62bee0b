"""A model's forward that follows a schedule, and gives autograd one node a stage."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.capture import Autocast, CaptureError
from memsched.torch.lanes import Lanes
from memsched.torch.leaves import Leaf, distinct
from memsched.torch.nesting import nesting
from memsched.torch.run import Run
from memsched.torch.script import Script
from memsched.torch.stages import StagedModel, stage
from memsched.torch.stand_in import StandIn, waiting_for_backward


class PlannedForward(StandIn):
    """Stands in for the `forward` of a model that was captured.

    Parameters
    ----------
    model
        The model that was captured, or one with the same state.
    staged, script, lanes
    """

    def __init__(self, model: torch.nn.Module, staged: StagedModel, script: Script, lanes: Lanes) -> None:
        super().__init__(model)
        self._host = lanes.host_memory(script.host_bytes)
        self._active: weakref.ref[Run] | None = None
        self.staged, self.script, self.lanes = staged, script, lanes

    def _step(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_run()
        self._check_model(model, args, kwargs)
        leaves = self._check_inputs(args, kwargs)
        state = self.staged.fetch_state(model)
        run = Run(self.staged, self.script, state, leaves, self.lanes, self._host, self.observe())
        self._active = weakref.ref(run)
        return self.staged.result(self._forward(run), run.environment, state)

    def _forward(self, run: Run) -> dict[int, Any]:
        outputs: dict[int, Any] = {}
        token = torch.empty(0, device=self.staged.device)
        try:
            for k, stage in enumerate(self.staged.stages):
                token, *results = _StageFunction.apply(run, k, token, *run.differentiable(k))
                outputs.update(zip(stage.outputs, results, strict=True))
        except BaseException:
            run.give_up()
            raise
        return outputs

    def _check_model(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What was captured must still be what the model computes. Where in doubt, it is captured again to compare."""
        changed = self.staged.premises.changed()
        if changed is not None:
            leaves = self._check_inputs(args, kwargs)
            args, kwargs = pytree.tree_unflatten(leaves, self.staged.inputs)
            try:
                same = self.staged.same_program(stage(model, args, kwargs))
            except (CaptureError, InvalidInputError):
                same = False
            if not same:
                raise MemschedError(
                    f"the model has changed since it was planned: {changed}; call remove() and plan it again"
                )
            self.staged.premises.accept()

    def _check_run(self) -> None:
        ambient = Autocast.ambient(self.staged.device.type)
        if ambient != self.staged.autocast:
            raise MemschedError(
                f"the model was planned with {self.staged.autocast} and runs with {ambient}; plan it under the "
                "autocast that it trains with"
            )
        active = self._active() if self._active is not None else None
        if active is not None and active.returning:
            active.give_up()  # an error has ended its backward, or only some gradients were asked for
        if active is not None and not active.done:
            raise waiting_for_backward()

    def _check_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of the inputs, which must be like those of the capture."""
        names = self.staged.inputs.children()[1].context or []
        if set(names) == set(kwargs):
            kwargs = {name: kwargs[name] for name in names}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.staged.inputs:
            raise InvalidInputError(
                f"the model was planned for (args, kwargs) nested as {nesting(self.staged.inputs)} and got "
                f"{nesting(spec)}; pass them alike"
            )
        for name, leaf, expected in zip(self.staged.input_names, leaves, self.staged.leaves, strict=True):
            found = Leaf.of(leaf)
            if found != expected:
                layout_only = dataclasses.replace(found, strides=expected.strides) == expected
                remedy = (
                    "lay it out alike, by x.contiguous() for instance, or plan for this layout"
                    if layout_only
                    else "plan for this input too, drop a smaller last batch (drop_last=True), or call remove() before"
                )
                raise InvalidInputError(f"input {name!r} is {found}, and the plan is for {expected}; {remedy}")
        if distinct(leaves)[1] != self.staged.which:
            raise InvalidInputError(
                "some inputs are one tensor here and were several when the model was planned, or the other way; pass "
                "them alike"
            )
        return leaves


class _StageFunction(torch.autograd.Function):
    """One stage as a node of autograd. Activations and their gradients pass beside it; a token carries the order."""

    @staticmethod
    def forward(ctx: Any, run: Run, k: int, token: torch.Tensor, *leaves: torch.Tensor) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.run, ctx.k = run, k
        run.advance(run.script.forward_end[k])
        # Fresh aliases: autograd writes their history into them, and the run must not refer to its own graph.
        results = [value.detach() if isinstance(value, torch.Tensor) else value for value in run.results(k)]
        fixed = [
            value
            for value, needs in zip(results, run.result_needs_grad[k], strict=True)
            if isinstance(value, torch.Tensor) and not needs
        ]
        ctx.mark_non_differentiable(*fixed)
        return (torch.empty(0, device=token.device), *results)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        run, k = ctx.run, ctx.k
        if torch.is_grad_enabled():
            run.give_up()
            raise MemschedError("a planned model has no second derivatives: call backward() without create_graph=True")
        leaves = run.backward(k, gradients, last=not ctx.needs_input_grad[2])
        carried = torch.empty(0, device=run.staged.device) if ctx.needs_input_grad[2] else None
        return (None, None, carried, *leaves)
