"""A loss that is scaled, as `torch.amp.GradScaler` does it: where a gradient is not finite, nothing is updated."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch.amp.grad_scaler import GradScaler

from memsched.torch.compiled.clipping import norm_of

FIGURES = 2  # that a gradient is told by: its norm, and its largest number while it is scaled
SCALE_BYTES = 16  # of the scale, its inverse, and what counts steps


class Scaling:
    """A scaler and what it says of the present step."""

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self.skips = False  # whether a gradient of the present step is not finite
        self._inverses: dict[str, torch.Tensor] = {}  # of the scale, by type of device

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the scale."""
        found: torch.Tensor = self.scaler.scale(loss)
        return found

    def begin(self, device: torch.device) -> None:
        """A step begins."""
        self.skips = False
        scale = torch.tensor(self.scaler.get_scale(), dtype=torch.float32, device="cpu")
        inverse = scale.double().reciprocal().float()
        self._inverses = {one.type: inverse.to(one) for one in (torch.device("cpu"), device)}

    def figures(self, gradient: torch.Tensor, like: torch.Tensor | None, *, measured: bool, own: bool) -> torch.Tensor:
        """What a scaled gradient is told by.

        The norm is that after it is unscaled: itself if it is the step's own, else a copy, laid out as another tensor
        if one is given. Where no norm is needed, it is 0.
        """
        largest = torch.linalg.vector_norm(gradient, math.inf) if gradient.numel() else norm_of(gradient, None)
        if measured and not own:
            gradient = torch.empty_like(gradient if like is None else like).copy_(gradient)
        if measured or own:
            self.unscale(gradient)
        norm = norm_of(gradient, None) if measured else torch.zeros_like(largest)
        return torch.stack([norm, largest.to(norm.dtype)])

    def unscale(self, gradient: torch.Tensor) -> None:
        """In place."""
        alone = {"dtype": torch.float32, "device": gradient.device}
        known = self._inverses.get(gradient.device.type)
        inverse = torch.ones((), **alone) if known is None else known.to(gradient.device)
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], torch.zeros((), **alone), inverse)

    def decide(self, figures: Sequence[torch.Tensor]) -> None:
        """Whether there will be updates, once all gradients are there."""
        device = figures[0].device
        self.skips = not bool(torch.stack([torch.isfinite(one[1]).to(device) for one in figures]).all())

    def end(self, device: torch.device) -> None:
        """Tell the scaler of the step: it takes an update of a number with a gradient like those of the step."""
        number = torch.nn.Parameter(torch.zeros((), device=device))
        number.grad = torch.full_like(number, math.inf if self.skips else 0.0)
        self.scaler.step(torch.optim.SGD([number], lr=0.0))
        self.scaler.update()

    def copy(self, device: torch.device) -> Scaling:
        """With a scaler of its own, that begins as this one is now."""
        made = Scaling(copy.deepcopy(self.scaler))
        made.scaled(torch.ones((), device=device))  # before, it has no scale
        return made
