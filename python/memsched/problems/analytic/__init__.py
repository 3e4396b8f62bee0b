"""Families of graphs by formula: well-known networks on GPUs described by a few figures."""

from __future__ import annotations

from dataclasses import dataclass

from memsched._core import Graph
from memsched.errors import InvalidInputError, shown
from memsched.problems.analytic.builder import Builder
from memsched.problems.analytic.kernels import Gpu, gpu_named
from memsched.problems.analytic.networks import CLIPS, NETWORKS
from memsched.problems.family import GraphFamily
from memsched.support import checks
from memsched.support.arguments import public

_LEAST = 16  # frames and pixels; at least one is left after five halvings


@public
def analytic(network: str, batch: int, gpu: str = "v100", *, clip: tuple[int, int] | None = None) -> GraphFamily:
    """A network's training step at any batch size, with times and workspaces by formula.

    Bytes are exact for a framework that keeps these feature maps. Times come from a model, not from measurements.
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
        Frames per clip and side of the images, each at least 16, for "resnext101_3d". By default 16 and 112.

    Raises
    ------
    InvalidInputError
        An unknown name, a batch below 1, or a clip that is too small or given for a network of images.

    Examples
    --------
    >>> import memsched as ms
    >>> family = ms.profiles.analytic("vgg16", 256, gpu="k40m")
    >>> len(family.graph.ops), family.at(64).batch
    (58, 64)
    """
    machine = gpu_named(gpu)
    network = checks.choice("network", network, NETWORKS)
    return GraphFamily(_Step(network, _sides(network, clip), machine), batch)


@dataclass(frozen=True, slots=True)
class _Step:
    """The function of a family, which can be compared and pickled."""

    network: str
    sides: tuple[int, ...]
    gpu: Gpu

    def __call__(self, batch: int) -> Graph:
        builder = Builder(self.gpu, batch)
        NETWORKS[self.network](builder, *self.sides)
        return builder.graph(f"{'-'.join([self.network, *map(str, self.sides)])}@{self.gpu.name}")


def _sides(network: str, clip: tuple[int, int] | None) -> tuple[int, ...]:
    """Frames and side of networks that take clips."""
    if clip is None:
        return (16, 112) if network in CLIPS else ()
    if network not in CLIPS:
        with_clips = ", ".join(CLIPS)
        raise InvalidInputError(f"clip is {shown(clip)}, but {network} takes images; only {with_clips} takes clips")
    if (
        not checks.is_list(clip)
        or len(clip) != 2
        or not all(isinstance(one, int) and not isinstance(one, bool) and one >= _LEAST for one in clip)
    ):
        raise InvalidInputError(f"clip is {shown(clip)}; frames and side must be whole numbers >= {_LEAST}")
    frames, side = clip
    return frames, side
