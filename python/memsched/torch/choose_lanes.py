"""The lanes of a device."""

from __future__ import annotations

import torch

from memsched.torch.lanes import EmulatedLanes, Lanes


def lanes_on(device: torch.device) -> Lanes:
    """CUDA's streams, or their emulation as fast as it goes."""
    if device.type == "cuda":
        from memsched.torch.cuda_lanes import CudaLanes

        return CudaLanes(device)
    return EmulatedLanes(poison=False)


def trial_lanes(device: torch.device) -> dict[str, Lanes]:
    """Those on which a plan is tried, by name: emulated copies happen as late or as early as they may."""
    if device.type == "cuda":
        return {"on their streams": lanes_on(device)}
    return {"late": EmulatedLanes(early=lambda: False, overlap=True), "early": EmulatedLanes()}
