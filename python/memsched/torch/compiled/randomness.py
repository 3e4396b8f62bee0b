"""Random operations that run again draw the same numbers: the state of their generator is kept and put back.

Operations that take a generator are given one of their own, in that state. So they draw the same numbers whatever other
threads draw meanwhile. Other operations draw from the generator that all threads share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from memsched.torch.compiled.calls import dropout


def state(device: torch.device) -> torch.Tensor:
    """The state of the generator that operations on a device draw from."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def first(before: torch.Tensor, device: torch.device, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operation that will run again; the generator that all share goes on as if it alone had been used."""
    own = _taking_generator(operation, device)
    if own is None or "generator" in kwargs:
        return operation(*args, **kwargs)
    generator = _generator(before, device)
    found = own(*args, generator=generator, **kwargs)
    _set(device, generator.get_state())
    return found


def again(before: torch.Tensor, device: torch.device, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operation once more, from the state before its first run; the shared generator is left as it is."""
    own = _taking_generator(operation, device)
    if own is not None and "generator" not in kwargs:
        return own(*args, generator=_generator(before, device), **kwargs)
    now = state(device)
    _set(device, before)
    try:
        return operation(*args, **kwargs)
    finally:
        _set(device, now)


@lru_cache
def _taking_generator(operation: Any, device: torch.device) -> Callable[..., Any] | None:
    """An operation that computes the same, and takes a `generator`; None if there is none."""
    if operation is torch.ops.aten.native_dropout.default:
        return dropout if device.type == "cpu" else None
    if not isinstance(operation, torch._ops.OpOverload):
        return None
    packet = operation.overloadpacket
    for other in (operation, *(getattr(packet, name) for name in packet.overloads())):
        names = [one.name for one in other._schema.arguments]
        if "generator" in names and _signature(other) == _signature(operation):
            return other
    return None


def _signature(operation: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in operation._schema.arguments if one.name != "generator"]


def _generator(state: torch.Tensor, device: torch.device) -> torch.Generator:
    found = torch.Generator(device)
    found.set_state(state)
    return found


def _set(device: torch.device, wanted: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(wanted)
    else:
        torch.get_device_module(device).set_rng_state(wanted, device)
