"""Training steps that leave no trace: for measuring a plan, and for comparing it with plain autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import MemschedError
from memsched.support.interrupt import Interrupts
from memsched.torch.lanes import as_bytes
from memsched.torch.module_state import generators_unchanged, gradients_aside, unchanged
from memsched.torch.nests import leaves_of, tensors_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one training step computed."""

    outputs: list[torch.Tensor | None]  # None where it is not to be compared
    gradients: dict[str, torch.Tensor | None]
    """Of the parameters that need one, and of the inputs that do ("input 0", ...)."""
    buffers: dict[str, torch.Tensor]  # after the step
    random: list[torch.Tensor]  # the states of the generators after the step
    updated: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameters, and states of the optimiser, after the step, where it updates them."""
    form: list[Any] = field(default_factory=list)
    """How the result nests; of each leaf whether it is a tensor that needs a gradient, or what it is."""

    def on_host(self) -> Step:
        """The same, where it takes no memory of the device."""
        return replace(
            self,
            outputs=[None if one is None else one.cpu() for one in self.outputs],
            gradients={name: None if one is None else one.cpu() for name, one in self.gradients.items()},
            buffers={name: one.cpu() for name, one in self.buffers.items()},
            random=[one.cpu() for one in self.random],
            updated={name: one.cpu() for name, one in self.updated.items()},
        )

    def without_noise(self, again: Step) -> Step:
        """The step less what another run of the same step computed otherwise."""
        return replace(
            self,
            outputs=[a if _identical(a, b) else None for a, b in zip(self.outputs, again.outputs, strict=True)],
            gradients={name: g for name, g in self.gradients.items() if _identical(g, again.gradients[name])},
            buffers={name: b for name, b in self.buffers.items() if _identical(b, again.buffers[name])},
            updated={name: u for name, u in self.updated.items() if _identical(u, again.updated[name])},
        )


@contextlib.contextmanager
def untouched(model: torch.nn.Module, inputs: Any = (), loss: Callable[..., Any] | None = None) -> Iterator[None]:
    """Puts model, inputs, loss, gradients and generators back at the end, and modules that the loss reaches."""
    given = tensors_of(inputs)
    originals = Originals([*model.parameters(), *model.buffers(), *given])
    data = [(parameter, parameter.data) for parameter in model.parameters()]
    learning = [*model.parameters(), *(one for one in given if one.is_leaf or one.retains_grad)]
    with generators_unchanged(), unchanged(model, loss), gradients_aside(learning):
        try:
            yield
        finally:
            with Interrupts():
                originals.put_back()
                for parameter, before in data:
                    if parameter.data_ptr() != before.data_ptr():
                        parameter.data = before


def random_state(device: torch.device) -> list[torch.Tensor]:
    """The states of the generators of random numbers that a step draws from: the CPU's, and that of its device."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


class Originals:
    """What tensors hold, so that it can be put back."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        strided = [t for t in tensors if t.layout is torch.strided]
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in strided}
        with torch.no_grad():
            self._copies = [(storage, as_bytes(storage).to("cpu", copy=True)) for storage in storages.values()]

    def put_back(self) -> None:
        """As it was."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for storage, before in self._copies:
                if storage.nbytes() != before.numel():
                    storage.resize_(before.numel())
                if not torch.equal(as_bytes(storage).cpu(), before):
                    as_bytes(storage).copy_(before)


def trial_step(
    model: torch.nn.Module,
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    device: torch.device,
) -> Step:
    """Forward and backward with random gradients of the results, the same at each call.

    `.grad` is written only by a backward that the model runs within its own; what it holds then is taken away.
    """
    returned = forward(*args, **(kwargs or {}))
    results, nest = leaves_of(returned), pytree.tree_structure(returned)
    del returned
    outputs = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
    differentiable = [value for value in outputs if value.requires_grad]
    if not differentiable:
        raise MemschedError("no result of the model needs a gradient; there is no training step to try")
    seeded = torch.Generator(device=device).manual_seed(0)
    drawn = (torch.randn(v.shape, dtype=v.dtype, device=v.device, generator=seeded) for v in differentiable)
    arriving = [torch.empty_like(v).copy_(one) for v, one in zip(differentiable, drawn, strict=True)]
    leaves = tensors_of((args, kwargs))
    sources = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sources |= {f"input {k}": leaf for k, leaf in enumerate(leaves) if leaf.requires_grad}
    try:
        # Through an operation: nobody but autograd holds the gradients that arrive, as in training.
        total = sum((value * one).sum().real for value, one in zip(differentiable, arriving, strict=True))
        arriving.clear()
        found = torch.autograd.grad(total, list(sources.values()), allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise MemschedError(f"the model's backward cannot be tried: {error}") from error
    gradients = dict(zip(sources, found, strict=True))
    for name, source in sources.items():
        if source.is_leaf and source.grad is not None:
            gradients[f"{name} by a backward within the backward"], source.grad = source.grad, None
    return Step(
        outputs=[value.detach() for value in outputs],
        gradients=gradients,
        buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        random=random_state(device),
        form=[nest, *(leaf.requires_grad if isinstance(leaf, torch.Tensor) else _plain(leaf) for leaf in results)],
    )


def _plain(leaf: Any) -> Any:
    """What is no tensor, to compare; an object of no known kind counts by its type."""
    return type(leaf), repr(leaf) if isinstance(leaf, bool | int | float | complex | str | None) else None


def first_difference(expected: Step, found: Step) -> str | None:
    """The first tensor that is not equal bit for bit, in words; None where all are."""
    groups: list[tuple[str, dict[str, torch.Tensor | None], dict[str, torch.Tensor | None]]] = [
        ("output", _numbered(expected.outputs), _numbered(found.outputs)),
        ("gradient of", expected.gradients, found.gradients),
        ("buffer", dict(expected.buffers), dict(found.buffers)),
        ("updated", dict(expected.updated), dict(found.updated)),
        ("random number generator", _numbered(expected.random), _numbered(found.random)),
    ]
    if expected.form != found.form:
        return "way in which the result nests, what of it needs a gradient, or what of it is no tensor"
    for what, wanted, got in groups:
        for name, tensor in wanted.items():
            if not _identical(tensor, got.get(name)):
                return f"{what} {name}"
    return None


def distance(expected: Step, found: Step) -> tuple[float, str]:
    """The largest difference of an output or a gradient, as a share of its norm; and which it is, in words.

    What is nothing but rounding, as the gradient of a bias before a normalisation, has no norm of its own: it counts as
    1/256 of the largest.
    """
    largest, where = 0.0, ""
    for what, wanted, got in (
        ("output", _numbered(expected.outputs), _numbered(found.outputs)),
        ("gradient of", expected.gradients, found.gradients),
        ("updated", dict(expected.updated), dict(found.updated)),
    ):
        exact = {name: _in_double(one) for name, one in wanted.items() if one is not None}
        rounding = max(map(_norm, exact.values()), default=0.0) / 256
        for name, one in exact.items():
            other = got.get(name)
            if other is None or not torch.equal(one.isfinite(), _in_double(other).isfinite()):
                return float("inf"), f"{what} {name}"
            gap = _norm(one - _in_double(other))
            if gap > largest * (size := _norm(one) + rounding):
                largest, where = gap / size, f"{what} {name}"
    return largest, where


def _in_double(one: torch.Tensor) -> torch.Tensor:
    dense = one if one.layout is torch.strided else one.to_dense()
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)


def _norm(one: torch.Tensor) -> float:
    """Of what is finite."""
    return float(one[one.isfinite()].abs().square().sum().sqrt())


def _numbered(tensors: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    return {str(k): tensor for k, tensor in enumerate(tensors) if tensor is not None}


def _identical(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equal bit for bit; NaN equals the same NaN."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    a, b = (one.resolve_conj().resolve_neg() for one in (a, b))
    if a.layout is not torch.strided:
        return _identical(a.to_dense(), b.to_dense())
    return bool(torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)))
