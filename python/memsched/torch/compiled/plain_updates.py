"""What a training loop of plain PyTorch does with gradients, for plans to be compared with."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from memsched.torch.compiled.host_updates import Stepper
from memsched.torch.compiled.updates import Updates
from memsched.torch.nests import with_tensors

OTHER_KERNELS = ("cuda",)
"""Types of devices whose kernels may round otherwise than those of the host."""


def plain_step(updates: Updates, model: torch.nn.Module) -> None:
    """What a training loop does after its backward. What the plan updates on the host, the host updates here, too."""
    scaler = None if updates.scaling is None else updates.scaling.scaler
    optimizer = updates.optimizer
    if updates.how.max_norm is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        updates.norm = torch.nn.utils.clip_grad_norm_(model.parameters(), updates.how.max_norm)
    with _hosted(updates):
        if scaler is None:
            optimizer.step()
            return
        scaler.step(optimizer)
        scaler.update()


@contextlib.contextmanager
def _hosted(updates: Updates) -> Iterator[None]:
    """A step of the optimiser is one on the host for some parameters."""
    places = [place for place in updates.hosted if updates.parameter(place).device.type in OTHER_KERNELS]

    def step_on_host(*_: Any) -> None:
        for place in places:
            one, state = updates.parameter(place), updates.optimizer.state
            if one.grad is None:
                continue
            twin = torch.nn.Parameter(one.detach().to("cpu", copy=True))
            twin.grad = one.grad.to("cpu", copy=True)
            known = with_tensors(state[one], lambda it: it.to("cpu", copy=True)) if one in state else None
            made = Stepper(updates.optimizer).step(twin, updates.group(place), known)
            one.data.copy_(twin.data)
            one.grad = None
            if made is not None:
                state[one] = with_tensors(made, functools.partial(_large_on, one.device))

    handle = updates.optimizer.register_step_pre_hook(step_on_host)
    try:
        yield
    finally:
        handle.remove()


def _large_on(device: torch.device, one: torch.Tensor) -> torch.Tensor:
    return one.to(device) if one.dim() else one


def after_step(updates: Updates, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters and of their states as they are, by names of both."""
    found: dict[str, torch.Tensor] = {} if updates.norm is None else {"norm of gradients": updates.norm}
    if updates.scaling is not None:
        found["scale of the loss"] = torch.tensor(updates.scaling.scaler.get_scale())
    updates.lasting.states.home()
    for name, one in model.named_parameters():
        if id(one) in updates.trained:
            found[f"parameter {name}"] = one.detach().clone()
            state = updates.optimizer.state.get(one, {})
            found |= {f"{k} of {name}": v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}
    return found
