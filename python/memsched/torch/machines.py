"""GPUs and links that plans are predicted for when they are not at hand."""

import torch

from memsched.errors import InvalidInputError
from memsched.problems.machines import LAUNCH_SECONDS, LINKS, MACHINES, Link, Machine, machine
from memsched.support.formats import Bytes

__all__ = ["LAUNCH_SECONDS", "LINKS", "MACHINES", "Link", "Machine", "machine"]


def memory_of(device: str, where: torch.device) -> int:
    """Bytes of the machine that a device names; "here" is the GPU that a model is on."""
    if device != "here":
        return Bytes(machine(device)[0].memory, "GB")  # as data sheets have it
    if where.type != "cuda":
        raise InvalidInputError(
            'memory is None and the model is on the CPU; give memory="80GiB", or the device to train on: device="h200"'
        )
    return int(torch.cuda.get_device_properties(where).total_memory)
