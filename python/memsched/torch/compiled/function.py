"""A captured graph as a function of autograd, where AOTAutograd has nothing else to do around it.

What AOTAutograd does on each call, for results that are views of each other and tensors that consist of others, takes
a third of a small step. Most graphs have none of these. Inputs that change are given their new values in the forward.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.private import is_batched
from memsched.torch.compiled.unit import Unit
from memsched.torch.compiled.wrapper import Around, keeps_graph, laid_out, refuse_transforms

_CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: "
    "a result of the compiled model that is a view of it"
)


def function_of(unit: Unit, around: Around) -> Callable[..., Any]:
    """What calls a graph, and shows it to autograd as AOTAutograd would."""
    changed, results, last = len(around.changed), len(unit.joint.results), -len(unit.joint.sizes) or None
    several = len(around.tangents) > 1  # then a backward may be given no gradient of some
    depends: list[int] = []

    class Captured(torch.autograd.Function):
        boxed_grads_call = True  # so that gradients can be freed while the backward runs, where PyTorch knows it

        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            asked = [one for one in args if isinstance(one, torch.Tensor) and one.requires_grad]
            ctx.linked = [one if one.is_leaf else _link(one) for one in asked]
            with around.running():
                ctx.due, found = unit.begin(list(args))
            returned = list(found[changed:results])
            if changed:
                torch._foreach_copy_([args[k] for k in around.changed], list(found[:changed]))
            # A saved view of a result would keep the node that keeps it.
            ctx.save_for_backward(*[one.detach() if one._is_view() else one for one in found[results:last]])
            ctx.sizes = found[last:] if last is not None else ()
            if several:
                ctx.set_materialize_grads(False)
                ctx.like = [(returned[k].shape, returned[k].dtype, returned[k].device) for k, _ in around.tangents]
            if around.constant:
                ctx.mark_non_differentiable(*[returned[k] for k in around.constant])
                ctx._materialize_non_diff_grads = False
            saved = {one.untyped_storage()._cdata for one in found[results:last]} if around.views else ()
            ctx.views = []
            for k in around.views:
                returned[k] = torch.ops.aten._unsafe_view(returned[k], returned[k].shape)
                if returned[k].untyped_storage()._cdata in saved:
                    ctx.views.append((returned[k].detach(), returned[k]._version))
            return tuple(returned)

        @staticmethod
        @torch._dynamo.disable  # in a step that is compiled, too
        def backward(ctx: Any, *boxed: Any) -> Any:
            refuse_transforms(around)
            gradients = boxed[0] if isinstance(boxed[0], list) else list(boxed)
            del boxed
            given = _given(around, gradients, ctx.like) if several else None
            arriving, beside = _arriving(unit, around, gradients)
            args = [*ctx.sizes, *ctx.saved_tensors, *arriving]
            if any(one._version != version for one, version in ctx.views):
                raise RuntimeError(_CHANGED)
            del gradients[:], arriving
            ctx.maybe_clear_saved_tensors()
            if not keeps_graph():
                ctx.views.clear()

            def ended() -> tuple[Any, ...]:
                found = _run(unit, around, ctx, args, beside)
                if given is None:
                    return found
                depends[:] = depends or _depends(unit.joint)
                return tuple(None if on and not on & given else one for one, on in zip(found, depends, strict=True))

            if not torch.is_grad_enabled():
                return ended()
            others = set(map(id, args))  # of these autograd would make results of its own

            def run() -> tuple[Any, ...]:
                found = ended()
                return tuple(one.detach() if id(one) in others and one is not None else one for one in found)

            # Whoever derives it once more is told, whatever the derivative is of: all that it and the forward read.
            return _Once.apply(run, torch.empty(0, requires_grad=True), *args, *ctx.linked)

    # Not its own `apply`: that asks of each input whether it is left over from vmap or grad, as none of these is.
    return super(torch.autograd.Function, Captured).apply


def _run(unit: Unit, around: Around, ctx: Any, args: list[Any], beside: int) -> tuple[Any, ...]:
    try:
        with around.running():
            return tuple(unit.end(ctx.due.call.version, ctx.due.call.serial, args, beside))
    finally:
        if not keeps_graph():
            ctx.due.over()


def _given(around: Around, gradients: list[Any], like: Sequence[Any]) -> int | None:
    """Which gradients the backward is given, a bit each, if not all; zeros take the place of others."""
    absent = [n for n, (k, _) in enumerate(around.tangents) if gradients[k] is None]
    for n in absent:
        shape, dtype, device = like[n]
        gradients[around.tangents[n][0]] = torch.zeros((), dtype=dtype, device=device).expand(shape)
    return (1 << len(like)) - 1 - sum(1 << n for n in absent) if absent else None


def _depends(joint: Joint) -> list[int]:
    """Of each gradient, on which that the backward is given it depends: a bit each.

    Plain PyTorch has None for what depends on none that was given, such as the weights of a head that nobody uses.
    """
    found: dict[fx.Node, int] = {node: 1 << n for n, node in enumerate(joint.tangents)}
    for node in joint.module.graph.nodes:
        if node not in found:
            found[node] = functools.reduce(operator.or_, (found[one] for one in node.all_input_nodes), 0)
    return [found[one] if isinstance(one, fx.Node) else 0 for one in joint.gradients]


def _arriving(unit: Unit, around: Around, gradients: list[Any]) -> tuple[list[Any], int]:
    """The gradients that the backward takes, laid out as they were traced; the bytes of those that are copied for it.

    Copies of what repeats one number are none that count.
    """
    found: list[Any] = []
    copied: dict[int, int] = {}
    for k, layout in around.tangents:
        one = gradients[k]
        made = laid_out(one, layout)
        found.append(made)
        if made is not one and one.device == unit.joint.device and not is_batched(one):
            storage = one.untyped_storage()
            if storage.nbytes() > one.element_size() and storage._cdata != made.untyped_storage()._cdata:
                copied[storage._cdata] = storage.nbytes()
    return found, sum(copied.values())


@torch.enable_grad()
def _link(given: torch.Tensor) -> torch.Tensor:
    """A tensor that depends on a given one, and keeps none of its bytes that would not be there without it."""
    return (given if given.dim() else given[None]).narrow(0, 0, 0).clone()


class _Once(torch.autograd.Function):
    """A backward that has none of its own."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], Any], *read: Any) -> Any:
        return run()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a step that torch.compile captured does not currently support double backward")
