"""Families of graphs by formula: well-known networks on GPUs of which a few figures are known."""

from __future__ import annotations

from memsched._core import Graph
from memsched.errors import InvalidInputError
from memsched.problems.analytic.builder import Builder
from memsched.problems.analytic.kernels import gpu_named
from memsched.problems.analytic.networks import CLIPS, NETWORKS
from memsched.problems.family import GraphFamily

_LEAST = 16  # frames and pixels, which five halvings leave something of


def analytic(network: str, batch: int, gpu: str = "v100", *, clip: tuple[int, int] | None = None) -> GraphFamily:
    """A network's training step at any batch size, with times and workspaces by formula.

    Bytes are exact for a framework that keeps what these networks' maps are; times are a model and no measurement.
    docs/profiles.md has the formulas and the figures of the GPUs.

    Parameters
    ----------
    network : str
        "alexnet", "fcn", "resnet34", "resnet50", "resnext101_3d", "vgg16", "vgg19" or "vgg101".
    batch : int
        The full batch.
    gpu : str
        "k40m" or "v100".
    clip : (int, int), optional
        Frames of a clip and the side of its pictures, each at least 16, for "resnext101_3d". By default 16 and 112.

    Raises
    ------
    InvalidInputError
        A name is not known, the batch is not >= 1, or a clip is too small or for a network of pictures.

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

    sides = _sides(network, clip)
    name = "-".join([network, *map(str, sides)])

    def make(size: int) -> Graph:
        builder = Builder(machine, size)
        NETWORKS[network](builder, *sides)
        return builder.graph(f"{name}@{machine.name}")

    return GraphFamily(make, batch)


def _sides(network: str, clip: tuple[int, int] | None) -> tuple[int, ...]:
    """Frames and side of networks that take clips."""
    if clip is None:
        return (16, 112) if network in CLIPS else ()
    if network not in CLIPS:
        raise InvalidInputError(f"clip is {clip!r}, but {network} takes pictures; only {', '.join(CLIPS)} takes clips")
    frames, side = clip
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= _LEAST for one in clip):
        raise InvalidInputError(f"clip is {clip!r}; frames and side must be whole numbers >= {_LEAST}")
    return frames, side
