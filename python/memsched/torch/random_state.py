"""The generators of random numbers that a training step draws from: the CPU's, and that of its device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Their present states."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_state(device: torch.device, states: Sequence[torch.Tensor]) -> None:
    """Put them into states that `random_state` gave."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
