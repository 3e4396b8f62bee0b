"""Which optimisers and parameters a step can update by its plan; what it cannot is refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from memsched.errors import InvalidInputError, shown
from memsched.torch.compiled.how import How
from memsched.torch.compiled.independence import check_independent
from memsched.torch.compiled.look import device_of
from memsched.torch.compiled.parameters import Parameters, fills_memory, may_travel
from memsched.torch.compiled.scaling import Scaling
from memsched.torch.compiled.update_costs import HostSpeed
from memsched.torch.compiled.updates import Updates
from memsched.torch.optimizer_state import called_around, check_owner, form_of, trained_by

_OF_SCALER = ("scale", "unscale_", "step", "update", "get_scale", "_unscale_grads_", "_maybe_opt_step")
_TOGETHER = (torch.optim.LBFGS, torch.optim.SparseAdam)  # whose step needs all gradients, or sparse ones


def scaling_of(scaler: Any, device: torch.device) -> Scaling | None:
    """What scales a loss on a device; None if nothing does.

    Raises
    ------
    InvalidInputError
        It is no scaler of PyTorch's.
    """
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        raise InvalidInputError(f"scaler is {shown(scaler)}; give a torch.amp.GradScaler, or leave it out")
    if any(getattr(type(scaler), name) is not getattr(torch.amp.GradScaler, name) for name in _OF_SCALER):
        kind = type(scaler).__name__
        raise InvalidInputError(f"scaler is a {kind}, which does otherwise than torch.amp.GradScaler; give one of that")
    if not scaler.is_enabled():
        return None
    if (planned := torch.device(getattr(scaler, "_device", device)).type) != device.type:
        raise InvalidInputError(
            f"scaler is one for {planned}, and the model is on {device.type}; make it for {device.type!r}"
        )
    return Scaling(scaler)


def updates_of(
    model: torch.nn.Module,
    optimizer: Any,
    scaling: Scaling | None = None,
    *,
    update: Any,
    rounds: bool,
    planner: str,
    how: How,
    offload_parameters: bool = False,
    host: HostSpeed = None,
) -> Updates:
    """The updates of a step that is to be planned with them.

    Raises
    ------
    InvalidInputError
        They cannot be a part of it; named in the message.
    """
    if update is not True and update != "each":
        raise InvalidInputError(f"update is {shown(update)}; give True or False, or 'each'")
    asked = f"update is {shown(update)}"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInputError(
            f"{asked} and optimizer is {shown(optimizer)}; give the torch.optim.Optimizer that updates"
        )
    kind = type(optimizer)
    if update is True and (getattr(torch.optim, kind.__name__, None) is not kind or kind in _TOGETHER):
        raise InvalidInputError(
            f"{asked} and optimizer is {kind.__name__}, whose updates may depend on each other; give one of "
            f"torch.optim other than {' and '.join(one.__name__ for one in _TOGETHER)}, update='each' if you know that "
            "they do not, or update=False"
        )
    if rounds or planner not in ("auto", "selective"):
        wrong = "rounds is True" if rounds else f"planner is {planner!r}"
        raise InvalidInputError(f"{asked} and {wrong}; whole steps are planned by selective, without rounds")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise InvalidInputError(f"{asked} and the optimizer is differentiable; make it with differentiable=False")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise InvalidInputError(
            f"{asked} and the model is under DistributedDataParallel, which adds up gradients after the step has used "
            "them; plan with update=False"
        )
    check_owner(optimizer, model)
    if update == "each":
        check_independent(optimizer)
    if scaling is not None:
        _check_scaled(optimizer)
    travels = offload_parameters or host is not None
    parameters = Parameters(may_travel(model, device_of(model)) if travels else {})
    updates = Updates(optimizer, how=how, scaling=scaling, parameters=parameters, host=host)
    if how.adds and travels:
        updates.lasting.waiting.prepare()
    updates.names_of = parameters.names_in(model)
    updates.names = {name: (id(one), one.requires_grad) for name, one in model.named_parameters()}
    check_parameters(model, updates)
    for place, one in enumerate(trained_by(optimizer)):
        if one.requires_grad:
            updates.cost(place)  # now: while PyTorch compiles, optimisers take other formulas
    return updates


def _check_scaled(optimizer: torch.optim.Optimizer) -> None:
    """Refuse what a GradScaler does not unscale, or lets the optimiser unscale by itself."""
    if any(group.get("fused") for group in optimizer.param_groups):
        raise InvalidInputError("scaler is given and the optimizer is fused, which unscales by itself; make it without")
    for one in trained_by(optimizer):
        if one.dtype == torch.float16 or not one.dtype.is_floating_point:
            raise InvalidInputError(
                f"scaler is given and a parameter of shape {tuple(one.shape)} is {one.dtype}, whose gradients it does "
                "not unscale; train float32 under torch.autocast, or leave the scaler out"
            )


def check_parameters(model: torch.nn.Module, updates: Updates) -> None:
    """Refuse gradients from before, which updates would not see, and hooks, which would not see gradients.

    And other parameters and options than those that were planned.
    """
    now = dict(model.named_parameters())
    for name, (known, trained) in updates.names.items():
        if name not in now or id(now[name]) != known:
            raise InvalidInputError(f"{name} is another tensor than when the step was planned; plan it as it is now")
        if now[name].requires_grad is not trained:
            frozen = "is trained now, and was frozen" if now[name].requires_grad else "is frozen now, and was trained"
            raise InvalidInputError(f"{name} {frozen} when the step was planned; plan it as it is now")
    if form_of(updates.optimizer) != updates.form:
        raise InvalidInputError(
            "the optimizer has other groups, or other options that are 0 (such as momentum, which was 0, or a "
            "weight_decay that was not), than when the step was planned; plan it as it is now"
        )
    if called := called_around(updates.optimizer):
        raise InvalidInputError(
            f"the step of {type(updates.optimizer).__name__} also calls {', '.join(called)}, which a step with "
            "update=True would call between updates; remove the hook, or plan with update=False"
        )
    if updates.how.max_norm is not None:
        _check_all_updated(now, updates)
    if updates.how.max_norm is not None or updates.how.adds:
        _check_all_in_model(now, updates)
    _check_memory(now, updates)
    for name, one in now.items():
        if id(one) not in updates.trained and not updates.lasting.waiting.is_here(one):
            raise InvalidInputError(
                f"{name} has a gradient on the host that waits for the step of another plan; take that first, or call "
                "its bring_back()"
            )
        if id(one) in updates.trained:
            if one.grad is not None and not updates.how.adds:
                raise InvalidInputError(
                    f"{name} has a gradient from before, which a step with update=True does not add to; call "
                    "optimizer.zero_grad() first, or plan with accumulate=True"
                )
            if one.grad is not None and updates.places and not updates.are_of(one):
                raise InvalidInputError(
                    f"{name} has a gradient from before, and the step gives it none and does not update it; set its "
                    ".grad to None"
                )
            travels = updates.place_of(one) in updates.lasting.awaited and updates.lasting.waiting.is_here(one)
            if travels and one.grad is not None and not fills_memory(one.grad):
                raise InvalidInputError(
                    f"the gradient of {name} lies in a larger tensor, with which it cannot travel; give it memory of "
                    f"its own, {name}.grad = {name}.grad.clone(), or drop it"
                )
            if one._backward_hooks or one._post_accumulate_grad_hooks:
                raise InvalidInputError(
                    f"{name} has a hook for its gradient, which a step with update=True does not call; remove it, or "
                    "plan with update=False"
                )


def _check_memory(named: Mapping[str, torch.Tensor], updates: Updates) -> None:
    """Refuse what an update would change beside its own parameter, and gradients that are not dense."""
    names = {id(one): name for name, one in named.items()}
    owners = [(names.get(id(one), "a parameter of the loss"), one) for one in trained_by(updates.optimizer)]
    spans = [(name, "", one) for name, one in {id(one): (name, one) for name, one in owners}.values()]
    for name, one in owners if updates.how.adds else ():
        if one.grad is not None and not updates.lasting.waiting.is_here(one):
            continue
        if one.grad is not None and one.grad.layout is not torch.strided:
            raise InvalidInputError(f"{name} has a gradient that is not dense; give it one that is: .grad.to_dense()")
        spans += [(name, "the gradient of ", one.grad)] if one.grad is not None else []
    found = sorted((_span(one), what + name) for name, what, one in spans if one.numel())
    for ((storage, _, end), name), ((other, start, _), second) in itertools.pairwise(found):
        if storage == other and start < end:
            raise InvalidInputError(
                f"{name} and {second} lie in the same memory, and an update of one would change the other; give each "
                "memory of its own, make them one parameter, or plan with update=False"
            )


def _span(one: torch.Tensor) -> tuple[int, int, int]:
    """The storage of a tensor, and the bytes of it from its first element to its last."""
    start = int(one.storage_offset())
    last = start + sum((size - 1) * step for size, step in zip(one.shape, one.stride(), strict=True))
    return one.untyped_storage()._cdata, start * one.element_size(), (last + 1) * one.element_size()


def _check_all_updated(trained: Mapping[str, torch.Tensor], updates: Updates) -> None:
    """Refuse gradients that would be in the norm of a plain step."""
    for name, one in trained.items():
        if one.requires_grad and id(one) not in updates.trained:
            raise InvalidInputError(
                f"{name} needs a gradient and is not updated, so that max_norm would not know its norm; freeze it "
                "(requires_grad_(False)), or give it to the optimizer"
            )


def _check_all_in_model(trained: Mapping[str, torch.Tensor], updates: Updates) -> None:
    own = set(map(id, trained.values()))
    others = [one for one in trained_by(updates.optimizer) if id(one) not in own]
    if others:
        option = "accumulate" if updates.how.adds else "max_norm"
        raise InvalidInputError(
            f"the optimizer also updates a parameter of shape {tuple(others[0].shape)} that is not the model's, and "
            f"{option} is for the gradients of the model; make it a part of the model, or plan without {option}"
        )
