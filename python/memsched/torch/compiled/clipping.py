"""Gradients are clipped by their common norm as `torch.nn.utils.clip_grad_norm_` does it, in parts.

The norm of each gradient is taken once it is there. What all are multiplied with waits for the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils import clip_grads_with_norm_

_ORDER = 2.0  # of the norm


def norm_of(gradient: torch.Tensor, parameter: torch.Tensor | None) -> torch.Tensor:
    """Of a gradient, laid out as a parameter if one is given."""
    own = gradient if parameter is None else torch.empty_like(parameter).copy_(gradient)
    return torch._foreach_norm([own], _ORDER)[0]


def norm_of_all(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of all gradients, from the norm of each."""
    device = norms[0].device
    return torch.linalg.vector_norm(torch.stack([one.to(device) for one in norms]), _ORDER)


def factor_of(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """What gradients of this norm are multiplied with: PyTorch multiplies a gradient of 1 with it."""
    one = torch.nn.Parameter(torch.ones_like(norm))
    one.grad = torch.ones_like(norm)
    clip_grads_with_norm_([one], max_norm, norm)
    return one.grad
