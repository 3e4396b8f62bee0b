"""Random operations that run again draw the same numbers: the state of their generator is kept and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def state(device: torch.device) -> torch.Tensor:
    """The state of the generator that operations on a device draw from."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def replay(
    before: torch.Tensor, device: torch.device, operation: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Run an operation with the state that its generator had; the generator is left as it is."""
    now = state(device)
    _set(device, before)
    try:
        return operation(*args, **kwargs)
    finally:
        _set(device, now)


def _set(device: torch.device, wanted: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(wanted)
    else:
        torch.get_device_module(device).set_rng_state(wanted, device)
