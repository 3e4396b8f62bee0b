"""Models whose parameters do not fit on the device."""

from __future__ import annotations

from typing import Any

import torch

from memsched.errors import InvalidInputError, shown
from memsched.support.arguments import public
from memsched.torch.compiled.parameters import fills_memory, leave_on_host
from memsched.torch.compiled.private import holders_of


@public
def on_host(model: torch.nn.Module, device: str | torch.device) -> torch.nn.Module:
    """Leave a model's parameters in host memory, and put the rest of it on a device, to plan steps there.

    For a model that is larger than the device: `plan_step` with `offload_parameters=True` or `update_on_host=True` then
    decides where each parameter is, and its steps fetch them. On a GPU the model runs in such steps alone. Make the
    optimiser before or after.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU. Parameters that share their memory with other tensors go to the device.
    device : str or torch.device
        To train on, such as "cuda".

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    InvalidInputError
        A part of the model is not on the CPU, or has a gradient.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    >>> model = memsched.torch.on_host(model, "cpu")  # where both are the same memory
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> x, loss = torch.randn(8, 64), lambda out: out.square().mean()
    >>> options = {"optimizer": optimizer, "update": True, "offload_parameters": True}
    >>> plan = memsched.torch.plan_step(model, (x,), loss, budget="110kB", device="v100:pcie3", **options)
    >>> plan.peak_memory < sum(one.nbytes for one in model.parameters())
    True
    >>> loss = plan.step(x)
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(f"model is {shown(model)}; give a torch.nn.Module")
    there = _device_of(device)
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, one in named:
        if one.device.type != "cpu":
            raise InvalidInputError(f"{name} is on {one.device}; load the model on the CPU: .to('cpu')")
        if one.grad is not None:
            raise InvalidInputError(f"{name} has a gradient; call model.zero_grad() before")
    for one in model.parameters():
        if type(one) is torch.nn.Parameter and fills_memory(one) and holders_of(one) == 1:
            leave_on_host(one, there)
        else:
            one.data = one.data.to(there)
    moved: dict[int, torch.Tensor] = {}  # by identity of the buffer, which modules may share
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved.setdefault(id(buffer), buffer.to(there))
    return model


def _device_of(given: Any) -> torch.device:
    if not isinstance(given, str | torch.device):
        raise InvalidInputError(f'device is {shown(given)}; give one to train on, such as "cuda"')
    try:
        found = torch.empty(0, device=given).device  # with its number
    except (RuntimeError, TypeError, AssertionError) as error:
        said = str(error).partition("\n")[0]
        raise InvalidInputError(
            f'device is {shown(given)}, which is none here ({said}); give one, such as "cuda"'
        ) from error
    if found.type == "meta":
        raise InvalidInputError('device is "meta", where nothing runs; give one, such as "cuda"')
    return found
