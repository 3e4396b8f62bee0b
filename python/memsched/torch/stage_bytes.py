"""The bytes that each stage keeps, hands over and needs for itself, without allocating any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from memsched.torch.facts import fake_copy
from memsched.torch.meter import Meter
from memsched.torch.stage_run import Forward, run_backward, run_forward
from memsched.torch.stage_state import StageState, scratch_bytes
from memsched.torch.stages import Stage, StagedModel


@dataclass(slots=True, kw_only=True)
class StageBytes:
    """What one stage needs, in bytes. The names are those of `memsched.Chain`.

    Attributes
    ----------
    activation : int
        Of its exit; 0 for the last stage, whose results the caller holds.
    pieces : list of int
        The storages that its forward keeps for its backward, beside the entry and the exit.
    gradient : int
        Of the gradient of its exit.
    forward_overhead, transient_overhead, backward_overhead : int
        The most that a forward that saves, a forward that does not, and a backward need beside all this.
    exports, outputs, output_gradients : int
        Of what it adds to the environment, of the results of the model and of their gradients.
    """

    activation: int = 0
    pieces: list[int] = field(default_factory=list)
    gradient: int = 0
    forward_overhead: int = 0
    transient_overhead: int = 0
    backward_overhead: int = 0
    exports: int = 0
    outputs: int = 0
    output_gradients: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBytes:
    """What a training step of a staged model needs, in bytes.

    Attributes
    ----------
    stages : list of StageBytes
    inputs, parameters, buffers, gradients : int
        Of the inputs, of all parameters and buffers of the model, and of the gradients of the parameters that have one.
    scratch : int
        Where repeated runs put what they would write twice.
    shared_gradients : int
        Gradients of parameters that several stages share: autograd holds the first while it waits for the last.
    """

    stages: list[StageBytes]
    inputs: int
    parameters: int
    buffers: int
    gradients: int
    scratch: int
    shared_gradients: int


def distinct_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the storages under some tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)}
    return sum(storage.nbytes() for storage in storages.values())


def measure_bytes(staged: StagedModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Any = None) -> ModelBytes:
    """Run every stage once, forward and backward, on tensors without data, and count.

    Parameters
    ----------
    staged
        The stages of `model`.
    model, args, kwargs
        As they were captured.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    leaves = [fake_copy(fake, leaf) for leaf in pytree.tree_leaves((tuple(args), dict(kwargs or {})))]
    state = {name: fake_copy(fake, value) for name, value in staged.fetch_state(model).items()}
    with fake, Meter() as meter:
        walk = _Walk(staged, dict(zip(staged.input_names, leaves, strict=True)), state, meter)
        stages = walk.run()
        scratch = scratch_bytes(state, staged.stages)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    uses = [{ref.name for ref in stage.state} for stage in staged.stages]
    shared = [p for name, p in trained.items() if sum(name in names for names in uses) > 1]
    return ModelBytes(
        stages=stages,
        inputs=distinct_bytes(leaves),
        parameters=distinct_bytes(list(model.parameters())),
        buffers=distinct_bytes([*model.buffers(), *staged.constants.values()]),
        gradients=sum(p.numel() * p.element_size() for p in trained.values()),
        scratch=scratch,
        shared_gradients=sum(p.numel() * p.element_size() for p in shared),
    )


class _Walk:
    """Runs the stages one after the other as the executor does, and reads the meter."""

    def __init__(
        self, staged: StagedModel, environment: dict[str, Any], state: dict[str, torch.Tensor], meter: Meter
    ) -> None:
        self.staged, self.environment, self.meter = staged, environment, meter
        self.state = StageState(state, staged.stages)
        self.forwards: list[Forward] = []

    def run(self) -> list[StageBytes]:
        found = [self.forward(k, stage) for k, stage in enumerate(self.staged.stages)]
        gradient: torch.Tensor | None = None
        for k in range(len(found) - 1, -1, -1):
            gradient = self.backward(k, found[k], gradient)
        return found

    def once(self, k: int, stage: Stage, *, saving: bool) -> Forward:
        before = self.forwards[k - 1] if k else None
        return run_forward(
            stage,
            before.exit_slot if before and stage.entry else None,
            before.exit if before and stage.entry else None,
            [self.environment[name] for name in stage.environment],
            self.state.again(stage),
            autocast=self.staged.autocast,
            entry_needs_grad=before is not None and before.needs_grad,
            saving=saving,
        )

    def forward(self, k: int, stage: Stage) -> StageBytes:
        start = self.meter.live
        self.meter.start()
        forward = self.once(k, stage, saving=False)
        transient = self.meter.peak - start - distinct_bytes([forward.exit, *forward.outputs])
        del forward
        start = self.meter.live
        self.meter.start()
        forward = self.once(k, stage, saving=True)
        self.forwards.append(forward)
        pieces = [slot.nbytes for slot in forward.saved]
        results = distinct_bytes([forward.exit, *forward.outputs])
        overhead = self.meter.peak - start - results - sum(pieces)
        self.environment.update(zip(stage.exports, forward.exports, strict=True))
        return StageBytes(
            activation=forward.exit_slot.nbytes if forward.exit_slot else 0,
            pieces=pieces,
            forward_overhead=overhead,
            transient_overhead=transient,
            exports=distinct_bytes(forward.exports),
            outputs=distinct_bytes(forward.outputs),
        )

    def backward(self, k: int, found: StageBytes, gradient: torch.Tensor | None) -> torch.Tensor | None:
        forward = self.forwards[k]
        tape = forward.tape
        assert tape is not None
        results = dict(zip(self.staged.stages[k].outputs, forward.outputs, strict=True))
        arriving = [gradient if at is None else torch.empty_like(results[at]) for at, _ in tape.exits]
        found.gradient = distinct_bytes([gradient])
        found.output_gradients = distinct_bytes(arriving) - found.gradient
        start = self.meter.live
        self.meter.start()
        handed_on, own = run_backward(tape, arriving)
        found.backward_overhead = self.meter.peak - start - distinct_bytes([handed_on])
        del own
        forward.tape = None
        return handed_on
