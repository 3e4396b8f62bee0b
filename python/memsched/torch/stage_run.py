"""One forward or one backward of one stage. The profiler measures it and the executor runs it: the same code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from memsched.torch.capture import Autocast
from memsched.torch.slots import Packer, Slot, pack_nothing, unpack, unpack_nothing
from memsched.torch.stages import Stage


@dataclass(slots=True)
class Tape:
    """What a backward of a stage needs besides the storages: the way through autograd's graph.

    Attributes
    ----------
    exits : list of (int or None, GradientEdge)
        Where gradients enter: None for the activation handed to the next stage, else the position of an output.
    entry : GradientEdge or None
        Where the gradient of the entry comes out.
    leaves : list of Tensor
        The stage's own aliases of the tensors that need a gradient, one for each of its differentiable arguments.
    """

    exits: list[tuple[int | None, GradientEdge]]
    entry: GradientEdge | None
    leaves: list[torch.Tensor]

    def arrivals(self) -> list[int]:
        """How many gradients autograd adds up for each of `leaves`."""
        waiting = [edge.node for _, edge in self.exits]
        seen = set(waiting)
        found: Counter[object] = Counter(waiting)
        while waiting:
            for node, _ in waiting.pop().next_functions:
                if node is not None:
                    found[node] += 1
                    if node not in seen:
                        seen.add(node)
                        waiting.append(node)
        return [found[get_gradient_edge(leaf).node] for leaf in self.leaves]


@dataclass(slots=True)
class Forward:
    """What one forward of a stage gave.

    Attributes
    ----------
    exit : Tensor or None
        The activation for the next stage, detached.
    exports, outputs : list of Tensor
        Detached.
    needs_grad : bool
        A gradient flows to the exit.
    output_needs_grad : list of bool
    tape : Tape or None
        None where nothing was saved.
    saved : list of Slot
        The storages that the backward will read, in the order in which they were saved; without those of the entry, the
        exit, the exports and the outputs.
    exit_slot : Slot or None
    beside : list of (int, Slot)
        Exports and outputs (one numbering, exports first) that the backward will read.
    given : set of int
        The storages, by address, of the arguments that the backward will read.
    """

    exit: torch.Tensor | None
    exports: list[Any]
    outputs: list[Any]
    needs_grad: bool
    output_needs_grad: list[bool]
    tape: Tape | None
    saved: list[Slot]
    exit_slot: Slot | None
    beside: list[tuple[int, Slot]]
    given: set[int]


class _Enter(torch.autograd.Function):
    """Lets an activation into a stage as the result of an operation.

    A leaf would be held by the node that accumulates its gradient, and its bytes could not leave.
    """

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, box: list[torch.Tensor]) -> torch.Tensor:
        return box.pop()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None]:
        return None, None


def run_forward(
    stage: Stage,
    entry: Slot | None,
    entry_tensor: torch.Tensor | None,
    environment: Sequence[Any],
    state: Sequence[torch.Tensor],
    *,
    autocast: Autocast,
    entry_needs_grad: bool,
    saving: bool,
) -> Forward:
    """Run the forward of a stage.

    Parameters
    ----------
    stage
    entry, entry_tensor
        The activation of the stage before it, and the slot of its storage; None for a stage without.
    environment, state
        Its other arguments. What it writes to among the state must be given such that it may.
    autocast
        The setting of the capture.
    entry_needs_grad : bool
    saving : bool
        Keep what a backward needs. The kernels are the same either way.
    """
    entered = enter(entry_tensor) if entry_needs_grad and entry_tensor is not None else _detached(entry_tensor)
    arguments: list[Any] = [] if entered is None else [entered]
    leaves: list[torch.Tensor] = []
    for value in (*environment, *state):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = value.detach().requires_grad_()
            leaves.append(value)
        arguments.append(value)
    fixed = [*environment, *(value for ref, value in zip(stage.state, state, strict=True) if not ref.influential)]
    outside = [value for value in fixed if isinstance(value, torch.Tensor)]
    packer = Packer(outside, [entry] if entry else [], autocast.device_type)
    hooks = saved_tensors_hooks(packer.pack, unpack) if saving else saved_tensors_hooks(pack_nothing, unpack_nothing)
    with torch.enable_grad(), autocast.context(), hooks:
        results = list(stage.module(*arguments))
    exit_ = results.pop(0) if stage.exit else None
    split = len(stage.exports)
    tape = None
    if saving:
        tape = _tape(stage, entered if entry_needs_grad else None, exit_, results[split:], leaves)
    exit_slot = None if exit_ is None else packer.slot_of(exit_) or Slot(exit_.untyped_storage())
    beside = [
        (position, slot)
        for position, value in enumerate(results)
        if isinstance(value, torch.Tensor) and (slot := packer.slot_of(value)) is not None
    ]
    apart = {id(slot) for slot in (entry, exit_slot, *(slot for _, slot in beside))}
    return Forward(
        exit=exit_.detach() if exit_ is not None else None,
        exports=[_detached(value) for value in results[:split]],
        outputs=[_detached(value) for value in results[split:]],
        needs_grad=exit_ is not None and exit_.requires_grad,
        output_needs_grad=[isinstance(value, torch.Tensor) and value.requires_grad for value in results[split:]],
        tape=tape,
        saved=[slot for slot in packer.found() if id(slot) not in apart],
        exit_slot=exit_slot,
        beside=beside,
        given=packer.given,
    )


def enter(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as the result of an operation, at which a gradient arrives."""
    token = torch.empty(0, device=tensor.device, requires_grad=True)
    with torch.enable_grad():
        entered: torch.Tensor = _Enter.apply(token, [tensor.detach()])
    return entered


def run_backward(
    tape: Tape, gradients: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
    """Run the backward of a stage.

    Parameters
    ----------
    tape
        Of the last forward that saved. It can be used once.
    gradients
        One for each of `tape.exits`; None where no gradient arrives.

    Returns
    -------
    (gradient of the entry or None, gradients of tape.leaves)
        No two of them, nor any of them and an incoming gradient, share a storage.
    """
    arriving = [(edge, g) for (_, edge), g in zip(tape.exits, gradients, strict=True) if g is not None]
    sources: list[Any] = [*([tape.entry] if tape.entry else []), *tape.leaves]
    if not arriving or not sources:
        return None, [None] * len(tape.leaves)
    edges, incoming = [edge for edge, _ in arriving], [gradient for _, gradient in arriving]
    found: Sequence[torch.Tensor | None] = torch.autograd.grad(edges, sources, incoming, allow_unused=True)
    taken = {gradient.untyped_storage()._cdata for gradient in incoming}
    results: list[torch.Tensor | None] = []
    for gradient in found:
        if gradient is not None:
            if gradient.untyped_storage()._cdata in taken:
                gradient = _own_storage(gradient)
            taken.add(gradient.untyped_storage()._cdata)
        results.append(gradient)
    return (results.pop(0) if tape.entry else None), results


def _own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The same view on a copy of the whole storage: kernels choose their order of summation by strides."""
    tensor = tensor.resolve_conj().resolve_neg()
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    copy = whole.clone()
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view.set_(copy.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tape(
    stage: Stage,
    entered: torch.Tensor | None,
    exit_: torch.Tensor | None,
    outputs: Sequence[Any],
    leaves: list[torch.Tensor],
) -> Tape:
    exits: list[tuple[int | None, GradientEdge]] = []
    if exit_ is not None and exit_.requires_grad:
        exits.append((None, get_gradient_edge(exit_)))
    for position, value in zip(stage.outputs, outputs, strict=True):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            exits.append((position, get_gradient_edge(value)))
    return Tape(exits=exits, entry=get_gradient_edge(entered) if entered is not None else None, leaves=leaves)
