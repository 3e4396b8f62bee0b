"""From the forward of a model to its training step: the backward by one rule for all ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memsched.errors import InvalidInputError
from memsched.readers.onnx import rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor of the forward: bytes that no view shares with another name."""

    name: str
    size: int
    floating: bool
    role: str = "activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op of the forward."""

    name: str
    op_type: str  # as ONNX calls it
    reads: tuple[Tensor, ...]  # without parameters and constants
    writes: tuple[Tensor, ...]
    mask: Tensor | None  # one of those that it writes
    parameters: bool  # whether it reads any
    seconds: tuple[float, float]  # of the forward and of the backward


@dataclass(slots=True)
class TrainingStep:
    """The ops and tensors of a training step, as `Graph` takes them."""

    tensors: list[dict[str, Any]] = field(default_factory=list)
    ops: list[dict[str, Any]] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _op_names: set[str] = field(default_factory=set)
    _gradients: dict[str, list[str]] = field(default_factory=dict)  # by tensor: the sums of its gradient so far

    def tensor(self, name: str, size: int, role: str) -> str:
        """Add a tensor; returns its name, which is made unique."""
        name = _unique(name, self._names)
        self.tensors.append({"name": name, "size": size, "role": role})
        return name

    def op(self, name: str, phase: str, kind: str, layer: int, seconds: float, **more: Any) -> None:
        """Add an op, with `reads`, `writes` and perhaps `once`."""
        choices = [{"alg": "default", "time": seconds, "workspace": 0}]
        name = _unique(name, self._op_names)
        self.ops.append({"name": name, "phase": phase, "kind": kind, "layer": layer, "choices": choices, **more})

    def gradient(self, tensor: Tensor) -> str | None:
        """The gradient of a tensor as it has been summed up so far; None if there is none yet."""
        sums = self._gradients.get(tensor.name)
        return sums[-1] if sums else None

    def add_gradient(self, tensor: Tensor) -> str:
        """A new tensor for the gradient of a tensor, or for its sum with what there is."""
        sums = self._gradients.setdefault(tensor.name, [])
        name = f"{tensor.name}.grad" if not sums else f"{tensor.name}.grad+{len(sums)}"
        sums.append(self.tensor(name, tensor.size, "gradient"))
        return sums[-1]


def training_step(
    inputs: Iterable[Tensor], forward: Sequence[Op], outputs: Iterable[Tensor], loss_seconds: float
) -> TrainingStep:
    """Forward, loss and backward; `Graph.from_onnx` says by which rule."""
    step = TrainingStep()
    for tensor in inputs:
        step.tensor(tensor.name, tensor.size, tensor.role)
    learning: set[str] = set()
    for layer, op in enumerate(forward, 1):
        for tensor in op.writes:
            step.tensor(tensor.name, tensor.size, tensor.role)
        reads, writes = ([tensor.name for tensor in some] for some in (op.reads, op.writes))
        step.op(op.name, "fwd", rules.kind_of(op.op_type), layer, op.seconds[0], reads=reads, writes=writes)
        if _learns(op, learning):
            learning.update(tensor.name for tensor in op.writes if tensor.floating)
    results = [tensor for tensor in dict.fromkeys(outputs) if tensor.name in learning]
    if not results:
        raise InvalidInputError(
            "no output of the model depends on a parameter, so there is nothing to train; parameters are the floating "
            "numbers among the model's initializers"
        )
    given = [step.add_gradient(tensor) for tensor in results]
    reads = [tensor.name for tensor in results]
    step.op("loss", "bwd", "loss", len(forward) + 1, loss_seconds, reads=reads, writes=given)
    for layer, op in reversed(list(enumerate(forward, 1))):
        _backward(step, op, layer, learning)
    return step


def _learns(op: Op, learning: set[str]) -> bool:
    """Whether what an op writes depends on a parameter."""
    return op.parameters or any(tensor.name in learning for tensor in op.reads)


def _backward(step: TrainingStep, op: Op, layer: int, learning: set[str]) -> None:
    """Add the backward of an op, if a gradient of what it wrote arrives."""
    arriving = [gradient for tensor in op.writes if (gradient := step.gradient(tensor)) is not None]
    if not arriving or not _learns(op, learning):
        return
    needed = [tensor.name for tensor in op.reads if rules.reads_inputs(op.op_type) or not tensor.floating]
    if rules.reads_outputs(op.op_type):
        needed += [tensor.name for tensor in op.writes]
    elif op.mask is not None:
        needed.append(op.mask.name)
    targets = [tensor for tensor in op.reads if tensor.name in learning]
    sums = [gradient for tensor in targets if (gradient := step.gradient(tensor)) is not None]
    reads = list(dict.fromkeys([*needed, *arriving, *sums]))
    writes = [step.add_gradient(tensor) for tensor in targets]
    once = {"once": True} if op.parameters else {}  # it adds to the gradients of parameters
    kind = rules.kind_of(op.op_type)
    step.op(f"{op.name}.bwd", "bwd", kind, layer, op.seconds[1], reads=reads, writes=writes, **once)


def _unique(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken."""
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}#{count}"
    taken.add(found)
    return found
