"""What generated code calls of the updates with a serial number, for the parameter at a place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from memsched.torch.compiled.updates import KNOWN


def update(
    serial: int,
    place: int,
    parameter: torch.Tensor,
    gradient: torch.Tensor | None,
    copied: bool,
    factor: torch.Tensor | None = None,
) -> None:
    """Without a gradient, the parameter has it."""
    known = KNOWN[serial]
    if known.dry:
        return
    if gradient is not None:
        known.add(place, parameter, gradient, copied)
    if known.how.updates:
        known.update(place, factor)


def add(serial: int, place: int, parameter: torch.Tensor, gradient: torch.Tensor, copied: bool) -> torch.Tensor:
    """Returns what updates wait for of the sum."""
    known = KNOWN[serial]
    return known.seen(gradient if known.dry else known.add(place, parameter, gradient, copied), None, own=True)


def seen(serial: int, gradient: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """What updates wait for of a gradient."""
    return KNOWN[serial].seen(gradient, like)


@fx.has_side_effect
def common_factor(serial: int, figures: Sequence[torch.Tensor]) -> torch.Tensor:
    """By which all gradients are clipped."""
    return KNOWN[serial].factor(figures)


def update_on_host(
    serial: int, place: int, gradient: torch.Tensor, copied: bool, factor: torch.Tensor | None = None
) -> None:
    """By what is on the host of a gradient, and of a factor."""
    KNOWN[serial].update_on_host(place, gradient, copied, factor)


def offload(serial: int, place: int) -> None:
    KNOWN[serial].states.offload(place)


def free(serial: int, place: int) -> None:
    KNOWN[serial].states.free(place)


def prefetch(serial: int, place: int) -> None:
    KNOWN[serial].states.prefetch(place)


TRAVEL = {"offload": offload, "free": free, "prefetch": prefetch}
"""By the verb of a step, what moves states."""


def offload_parameter(serial: int, name: str) -> None:
    KNOWN[serial].parameters.offload(name)


def free_parameter(serial: int, name: str) -> None:
    KNOWN[serial].parameters.free(name)


def prefetch_parameter(serial: int, name: str) -> None:
    KNOWN[serial].parameters.prefetch(name)


@fx.has_side_effect
def arrived_parameter(serial: int, name: str) -> torch.Tensor:
    return KNOWN[serial].parameters.arrive(name)


TRAVEL_PARAMETER = {"offload": offload_parameter, "free": free_parameter, "prefetch": prefetch_parameter}
