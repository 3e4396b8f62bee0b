"""Families of graphs by formula: well-known networks on GPUs of which a few figures are known."""

from __future__ import annotations

from memsched._core import Graph
from memsched.analytic.builder import Builder
from memsched.analytic.kernels import gpu_named
from memsched.analytic.networks import NETWORKS
from memsched.errors import InvalidInputError
from memsched.family import GraphFamily


def analytic(network: str, batch: int, gpu: str = "v100") -> GraphFamily:
    """A network's training step at any batch size, with times and workspaces by formula.

    Bytes are exact for a framework that keeps what these networks' maps are; times are a model and no measurement.
    docs/profiles.md has the formulas and the figures of the GPUs.

    Parameters
    ----------
    network : str
        "alexnet", "fcn", "resnet34", "resnet50", "vgg16", "vgg19" or "vgg101".
    batch : int
        The full batch.
    gpu : str
        "k40m" or "v100".

    Raises
    ------
    InvalidInputError
        A name is not known, or the batch is not >= 1.

    Examples
    --------
    >>> import memsched as ms
    >>> family = ms.profiles.analytic("vgg16", 256, gpu="k40m")
    >>> len(family.graph.ops), family.at(64).batch
    (58, 64)
    """
    machine = gpu_named(gpu)
    if network not in NETWORKS:
        raise InvalidInputError(f"network is {network!r}; it must be one of {', '.join(NETWORKS)}")

    def make(size: int) -> Graph:
        builder = Builder(machine, size)
        NETWORKS[network](builder)
        return builder.graph(f"{network}@{machine.name}")

    return GraphFamily(make, batch)
