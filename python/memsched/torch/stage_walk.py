"""Runs the stages of a model one by one, beside any training, for those who measure them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memsched.torch.slots import Slot
from memsched.torch.stage_run import Forward, run_forward
from memsched.torch.stage_state import StageState
from memsched.torch.stages import Stage, StagedModel


class Walk:
    """Hands each stage what the stages before it gave. A stage may run as often as the caller likes.

    The model is not changed: what its forward would write goes to scratch buffers and clones.

    Parameters
    ----------
    staged
    leaves : sequence
        The leaves of the inputs, with data or without.
    state : mapping of str to Tensor
        The parameters, buffers and constants by name, alike.
    """

    def __init__(self, staged: StagedModel, leaves: Sequence[Any], state: Mapping[str, torch.Tensor]) -> None:
        self._staged = staged
        self._inherited = state
        self._computed: dict[int, Any] = {}
        self._environment = dict(zip(staged.input_names, leaves, strict=True))
        self._state = StageState(state, staged.stages)
        self._entry: torch.Tensor | None = None
        self._slot: Slot | None = None
        self._needs_grad = False

    def own(self, values: Sequence[Any]) -> list[Any]:
        """Those of some values that stages made: not on storages of the inputs or of the state."""
        given = [*self._inherited.values(), *(self._environment[name] for name in self._staged.input_names)]
        storages = {value.untyped_storage()._cdata for value in given if isinstance(value, torch.Tensor)}
        return [v for v in values if isinstance(v, torch.Tensor) and v.untyped_storage()._cdata not in storages]

    def differentiable(self, stage: Stage) -> list[str]:
        """The names of what reaches a stage beside the chain and needs a gradient, in the order of its leaves."""
        values = [*((name, self._environment[name]) for name in stage.environment)]
        values += [(ref.name, self._inherited[ref.name]) for ref in stage.state]
        return [name for name, value in values if isinstance(value, torch.Tensor) and value.requires_grad]

    def forward(self, stage: Stage, *, saving: bool = True) -> Forward:
        """Run the forward of a stage on the exit of the stage before it."""
        return run_forward(
            stage,
            self._slot if stage.entry else None,
            self._entry if stage.entry else None,
            [self._environment[name] for name in stage.environment],
            self._state.again(stage),
            autocast=self._staged.autocast,
            entry_needs_grad=self._needs_grad,
            saving=saving,
        )

    def leave(self, stage: Stage, forward: Forward) -> None:
        """Give what a forward of `stage` computed to the stages behind it. What was saved is not held."""
        self._computed.update(zip(stage.outputs, forward.outputs, strict=True))
        self._environment.update(zip(stage.exports, forward.exports, strict=True))
        self._entry, self._slot, self._needs_grad = forward.exit, forward.exit_slot, forward.needs_grad

    def result(self) -> Any:
        """The model's result, after the last stage."""
        return self._staged.result(self._computed, self._environment, self._inherited)


def arriving_gradients(stage: Stage, forward: Forward, gradient: torch.Tensor | None) -> list[torch.Tensor | None]:
    """One gradient for each of `forward.tape.exits`: the one of the exit as given, new ones of the outputs."""
    assert forward.tape is not None
    outputs = dict(zip(stage.outputs, forward.outputs, strict=True))
    return [gradient if at is None else torch.empty_like(outputs[at]) for at, _ in forward.tape.exits]


def filled(like: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """A gradient of this shape and these strides. Not constant: the clock of a GPU depends on what it computes with."""
    if like is None:
        return None
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
    return made.normal_(0.0, 1e-2)
