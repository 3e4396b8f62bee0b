"""Gradients are clipped by their common norm as `torch.nn.utils.clip_grad_norm_` does it, in parts.

The norm of each gradient is taken once it is there. What they have in common waits for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ORDER = 2.0  # of the norm


def norm_of(gradient: torch.Tensor, parameter: torch.Tensor | None) -> torch.Tensor:
    """Of a gradient, laid out as a parameter if one is given."""
    own = gradient if parameter is None else torch.empty_like(parameter).copy_(gradient)
    return torch._foreach_norm([own], _ORDER)[0]


def norm_of_all(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of all gradients, from the norm of each."""
    device = norms[0].device
    return torch.linalg.vector_norm(torch.stack([one.to(device) for one in norms]), _ORDER)
