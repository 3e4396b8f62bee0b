"""What generated code calls of the updates with a serial number, for the parameter at a place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from memsched.torch.compiled.updates import KNOWN


def update(
    serial: int,
    place: int,
    parameter: torch.Tensor | None,
    gradient: torch.Tensor | None,
    copied: bool,
    factor: torch.Tensor | None = None,
) -> None:
    """Without a gradient, the parameter has it. Where that may travel, what only adds to it is not given it."""
    known = KNOWN[serial]
    if known.dry:
        return
    if gradient is not None:
        known.add(place, parameter, gradient, copied)
    if known.how.updates:
        known.update(place, factor)


def add(serial: int, place: int, parameter: torch.Tensor | None, gradient: torch.Tensor, copied: bool) -> torch.Tensor:
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
    serial: int, place: int, gradient: torch.Tensor | None, copied: bool, factor: torch.Tensor | None = None
) -> None:
    """By what is on the host of a gradient, and of a factor."""
    known = KNOWN[serial]
    if gradient is not None and known.how.adds:
        known.add_on_host(place, gradient)
    if known.how.updates:
        known.update_on_host(place, None if known.how.adds else gradient, copied and not known.how.adds, factor)


# What moves the parameters, the optimiser's states or the gradients that wait: `kind` is the attribute of `Lasting`.


def offload(serial: int, kind: str, which: int | str) -> None:
    getattr(KNOWN[serial].lasting, kind).offload(which)


def free(serial: int, kind: str, which: int | str) -> None:
    getattr(KNOWN[serial].lasting, kind).free(which)


def prefetch(serial: int, kind: str, which: int | str) -> None:
    getattr(KNOWN[serial].lasting, kind).prefetch(which)


TRAVEL = {"offload": offload, "free": free, "prefetch": prefetch}
"""By the verb of a step."""


@fx.has_side_effect
def arrived_parameter(serial: int, name: str) -> torch.Tensor:
    return KNOWN[serial].lasting.parameters.arrive(name)
