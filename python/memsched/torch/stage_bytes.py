"""The bytes that each stage keeps, hands over and needs for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.torch.facts import fake_copy, fake_mode
from memsched.torch.meter import Meter
from memsched.torch.stage_run import Forward, Tape, run_backward
from memsched.torch.stage_state import scratch_bytes
from memsched.torch.stage_walk import Walk, arriving_gradients
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
    input_gradients : int
        Of the inputs that need one.
    shared_gradients : int
        Gradients of parameters that several stages share: autograd holds the first while it waits for the last.
    reordered : str or None
        The first tensor whose gradient would be added up in another order than without stages: one operation gives
        several of its gradients, and a later stage gives one, too.
    """

    stages: list[StageBytes]
    inputs: int
    parameters: int
    buffers: int
    gradients: int
    scratch: int
    input_gradients: int
    shared_gradients: int
    reordered: str | None


def needs_gradient(value: Any) -> bool:
    """Whether a value is a tensor that needs a gradient."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def distinct_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the storages under some tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)}
    return sum(storage.nbytes() for storage in storages.values())


def measure_bytes(
    staged: StagedModel, model: torch.nn.Module, args: Sequence[Any], kwargs: Any = None, *, on_device: bool = False
) -> ModelBytes:
    """Run every stage once, forward and backward, and count.

    Parameters
    ----------
    staged
        The stages of `model`.
    model, args, kwargs
        As they were captured.
    on_device : bool
        Count on tensors with data, one stage after the other: some kernels keep other storages than PyTorch says of
        them where there is no data (recurrent layers, and normalisation in bfloat16 on the CPU). Otherwise nothing is
        allocated. Buffers and the generators of random numbers are as before when it returns.
    """
    leaves, state = pytree.tree_leaves((tuple(args), dict(kwargs or {}))), staged.fetch_state(model)
    fake = fake_mode([*leaves, *state.values()])
    fake_leaves = [fake_copy(fake, leaf) for leaf in leaves]
    fake_state = {name: fake_copy(fake, value) for name, value in state.items()}
    with fake, Meter(staged.device.type) as meter:
        stages, gradients, reordered = _dry(staged, Walk(staged, fake_leaves, fake_state), meter)
        scratch = scratch_bytes(fake_state, staged.stages)
    if on_device:
        devices = [staged.device] if staged.device.type == "cuda" else []
        with torch.random.fork_rng(devices), Meter(staged.device.type) as meter:
            for _ in range(_LAYOUTS):
                stages, found = _one_by_one(staged, Walk(staged, leaves, state), gradients, meter)
                if _layouts(found) == _layouts(gradients):
                    break
                gradients = _laid_out_alike(gradients, found)
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
        input_gradients=sum(t.numel() * t.element_size() for t in leaves if needs_gradient(t)),
        shared_gradients=sum(p.numel() * p.element_size() for p in shared),
        reordered=reordered,
    )


_Gradients = list[torch.Tensor | None]
_LAYOUTS = 6  # rounds at most until the strides of all gradients are known; most models need one


def _dry(staged: StagedModel, walk: Walk, meter: Meter) -> tuple[list[StageBytes], list[_Gradients], str | None]:
    """All forwards, then all backwards; also the gradients that arrive at each stage, and `ModelBytes.reordered`."""
    found, runs = [], []
    summed: set[str] = set()  # what one operation of a stage so far gives several gradients
    reordered: str | None = None
    for stage in staged.stages:
        counted, forward = _forward(walk, stage, meter)
        assert forward.tape is not None
        arrivals = list(zip(walk.differentiable(stage), forward.tape.arrivals(), strict=True))
        reordered = reordered or next((name for name, _ in arrivals if name in summed), None)
        summed.update(name for name, many in arrivals if many > 1)
        walk.leave(stage, forward)
        found.append(counted)
        runs.append(forward)
    gradients: list[_Gradients] = [[] for _ in runs]
    gradient: torch.Tensor | None = None
    for k in range(len(runs) - 1, -1, -1):
        gradients[k] = arriving_gradients(staged.stages[k], runs[k], gradient)
        gradient = _backward(_take_tape(runs[k]), gradients[k], found[k], meter)
    return found, gradients, reordered


def _one_by_one(
    staged: StagedModel, walk: Walk, like: list[_Gradients], meter: Meter
) -> tuple[list[StageBytes], list[_Gradients]]:
    """The backward of each stage right after its forward, on gradients of zeros.

    Also the gradients that arrive at each stage as this device's kernels lay them out, without data: PyTorch may say
    something else of them where there is no data.
    """
    found: list[StageBytes] = []
    arriving = [list(gradients) for gradients in like]
    for k, (stage, gradients) in enumerate(zip(staged.stages, like, strict=True)):
        counted, forward = _forward(walk, stage, meter)
        zeros = [_zeros(gradient, staged.device) for gradient in gradients]
        handed_on = _backward(_take_tape(forward), zeros, counted, meter)
        if found:
            found[-1].gradient = distinct_bytes([handed_on])
        if k and handed_on is not None:  # the exit's gradient comes first
            arriving[k - 1][0] = torch.empty_strided(
                handed_on.shape, handed_on.stride(), dtype=handed_on.dtype, device="meta"
            )
        found.append(counted)
        walk.leave(stage, forward)
        del zeros, handed_on, forward
    return found, arriving


def _laid_out_alike(known: list[_Gradients], found: list[_Gradients]) -> list[_Gradients]:
    """The gradients found, and those of earlier stages laid out like them where the same was expected of both.

    A layout passes from stage to stage, and each round finds one more; this finds a run of them at once.
    """
    laid_out = [list(stage) for stage in found]
    for k, (before, after) in enumerate(zip(known, found, strict=True)):
        for a, b in zip(before, after, strict=True):
            if a is None or b is None or a.stride() == b.stride():
                continue
            for stage in laid_out[:k]:
                stage[:] = [b if g is not None and (g.shape, g.stride()) == (a.shape, a.stride()) else g for g in stage]
    return laid_out


def _layouts(gradients: list[_Gradients]) -> list[list[tuple[int, ...] | None]]:
    return [[None if one is None else one.stride() for one in stage] for stage in gradients]


def _zeros(like: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    if like is None:
        return None
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device).zero_()


def _take_tape(forward: Forward) -> Tape:
    tape, forward.tape = forward.tape, None
    assert tape is not None
    return tape


def _forward(walk: Walk, stage: Stage, meter: Meter) -> tuple[StageBytes, Forward]:
    start = meter.live
    meter.start()
    forward = walk.forward(stage, saving=False)
    transient = meter.peak - start - _kept(walk, stage, forward)
    del forward
    start = meter.live
    meter.start()
    forward = walk.forward(stage)
    pieces = [slot.nbytes for slot in forward.saved]
    overhead = meter.peak - start - _kept(walk, stage, forward) - sum(pieces)
    found = StageBytes(
        activation=forward.exit_slot.nbytes if forward.exit_slot else 0,
        pieces=pieces,
        forward_overhead=overhead,
        transient_overhead=transient,
        exports=distinct_bytes(forward.exports),
        outputs=distinct_bytes(walk.own(forward.outputs)),
    )
    return found, forward


def _kept(walk: Walk, stage: Stage, forward: Forward) -> int:
    """Bytes of what a forward gives out that are counted elsewhere: its exit, or the results of the last stage.

    Results that are given out on the way are not among them. The caller holds those of the first run, and a repeated
    run makes them once more.
    """
    return distinct_bytes([forward.exit] if stage.exit else walk.own(forward.outputs))


def _backward(tape: Tape, gradients: _Gradients, found: StageBytes, meter: Meter) -> torch.Tensor | None:
    own = [gradient for (at, _), gradient in zip(tape.exits, gradients, strict=True) if at is None]
    found.gradient = distinct_bytes(own)
    found.output_gradients = distinct_bytes(gradients) - found.gradient
    start = meter.live
    meter.start()
    handed_on, leaves = run_backward(tape, gradients)
    found.backward_overhead = meter.peak - start - distinct_bytes([handed_on])
    del leaves
    return handed_on
