"""Build the graph of a training step layer by layer: forward ops as they are called, backward ops in reverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memsched._core import Graph
from memsched.problems.analytic.kernels import FLOAT, Conv, Gpu, moving


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A feature map: its tensor, channels and sides, and whether a ReLU made it (then it masks its gradient)."""

    name: str
    channels: int
    height: int
    width: int
    depth: int = 1
    relu: bool = False

    @property
    def elements(self) -> int:
        return self.channels * self.depth * self.height * self.width


Along = tuple[int, int, int]  # a kernel, its stride and its padding in depth


class Builder:
    """One training step at one batch size."""

    def __init__(self, gpu: Gpu, batch: int) -> None:
        self.gpu, self.batch = gpu, batch
        self.parameters = 0
        self.layer = 0
        self._inputs: set[str] = set()
        self._tensors: list[dict[str, Any]] = []
        self._ops: list[dict[str, Any]] = []
        self._backward: list[Callable[[], None]] = []
        self._gradient: dict[str, str] = {}  # the latest sum of each map's gradient

    def input(self, name: str, channels: int, side: int, depth: int = 1) -> Map:
        """The input batch."""
        made = Map(name=name, channels=channels, depth=depth, height=side, width=side)
        self._inputs.add(name)
        self._tensor(name, made, "input")
        return made

    def conv(
        self,
        name: str,
        x: Map,
        filters: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int = 0,
        along: Along = (1, 1, 0),
        groups: int = 1,
        relu: bool = False,
    ) -> Map:
        """A convolution; with `relu`, bias and ReLU are fused into it."""
        height, width = ((side + 2 * pad - kernel) // stride + 1 for side in (x.height, x.width))
        depth = (x.depth + 2 * along[2] - along[0]) // along[1] + 1
        y = Map(name=name, channels=filters, depth=depth, height=height, width=width, relu=relu)
        shape = Conv(
            batch=self.batch,
            channels=x.channels,
            filters=filters,
            kernel=kernel,
            stride=stride,
            height=x.height,
            width=x.width,
            out_height=height,
            out_width=width,
            depth=x.depth,
            out_depth=depth,
            kernel_depth=along[0],
            groups=groups,
        )
        self.parameters += filters * (shape.patch + (1 if relu else 0))
        return self._product(y, x, "conv", shape)

    def linear(self, name: str, x: Map, filters: int, *, relu: bool = False) -> Map:
        """A fully connected layer: a convolution on one pixel."""
        y = Map(name=name, channels=filters, height=1, width=1, relu=relu)
        shape = Conv(batch=self.batch, channels=x.elements, filters=filters)
        self.parameters += filters * (x.elements + 1)
        return self._product(y, x, "fc", shape)

    def _product(self, y: Map, x: Map, kind: str, shape: Conv) -> Map:
        layer = self._forward(y, kind, [x], shape.choices(self.gpu, "fwd"))

        def backward() -> None:
            arriving = self._gradient[y.name]
            wgrad = shape.choices(self.gpu, "wgrad")
            self._op(f"{y.name}.wgrad", "bwd", kind, layer, [x.name, arriving], [], wgrad, once=True)
            if x.name in self._inputs:
                return
            mask = [x.name] if x.relu else []
            dgrad = shape.choices(self.gpu, "dgrad", mask=x.relu)
            self._give(f"{y.name}.dgrad", kind, layer, [arriving, *mask], x, dgrad)

        self._backward.append(backward)
        return y

    def pool(self, name: str, x: Map, kernel: int, stride: int, along: Along = (1, 1, 0)) -> Map:
        """Max pooling; kernel 0 means the average over all pixels."""

        def pooled(side: int, kernel: int, stride: int, pad: int = 0) -> int:
            return (side + 2 * pad - kernel + stride - 1) // stride + 1

        height, width, depth = 1, 1, 1
        if kernel:
            height, width = (pooled(side, kernel, stride) for side in (x.height, x.width))
            depth = pooled(x.depth, *along)
        y = Map(name=name, channels=x.channels, depth=depth, height=height, width=width)
        return self._resized(y, "pool", x, largest=kernel > 0)

    def upsample(self, name: str, x: Map, side: int) -> Map:
        """Bilinear upsampling to a square."""
        y = Map(name=name, channels=x.channels, height=side, width=side)
        return self._resized(y, "upsample", x, largest=False)

    def _resized(self, y: Map, kind: str, x: Map, *, largest: bool) -> Map:
        """A map with other sides; if its elements are the largest of some, the backward looks for them in both maps."""
        both = self._bytes(x) + self._bytes(y)
        layer = self._forward(y, kind, [x], moving(self.gpu, both))

        def backward() -> None:
            reads = [*([x.name, y.name] if largest else []), self._gradient[y.name]]
            self._give(f"{y.name}.bwd", kind, layer, reads, x, moving(self.gpu, 2 * both if largest else both))

        self._backward.append(backward)
        return y

    def norm_relu(self, name: str, c: Map) -> Map:
        """Batch normalisation and ReLU, not fused; the normalised map is a temporary."""
        return self._norm(name, [c], [c], moved=(5, 8), temporaries=1)

    def norm_add_relu(self, name: str, c: Map, shortcut: Map, *, norm: bool) -> Map:
        """Batch normalisation of a block's last convolution (and of its shortcut), addition and ReLU."""
        if norm:
            return self._norm(name, [c, shortcut], [c, shortcut], moved=(9, 13), temporaries=3)
        return self._norm(name, [c, shortcut], [c], moved=(7, 10), temporaries=2)

    def _norm(self, name: str, maps: list[Map], normed: list[Map], *, moved: tuple[int, int], temporaries: int) -> Map:
        """`moved` (by forward and backward) and `temporaries` (of the forward) are multiples of the result's size."""
        first = maps[0]
        r = Map(name=name, channels=first.channels, depth=first.depth, height=first.height, width=first.width)
        size = self._bytes(r)
        self.parameters += 2 * len(normed) * first.channels
        layer = self._forward(r, "bn", maps, moving(self.gpu, moved[0] * size, temporaries * size))

        def backward() -> None:
            choices = moving(self.gpu, moved[1] * size, size)
            reads = [*(one.name for one in normed), r.name, self._gradient[r.name]]
            self._give(f"{name}.bwd", "bn", layer, reads, first, choices, *maps[1:])

        self._backward.append(backward)
        return r

    def loss(self, x: Map) -> None:
        """The loss: forward and backward in one op."""
        self.layer += 1
        self._give("loss", "loss", self.layer, [x.name], x, moving(self.gpu, 3 * self._bytes(x)))
        while self._backward:
            self._backward.pop()()

    def graph(self, name: str) -> Graph:
        """The graph of the training step. Weights and their gradients are resident."""
        return Graph(self._tensors, self._ops, resident=2 * FLOAT * self.parameters, name=name, batch=self.batch)

    def _bytes(self, x: Map) -> int:
        return FLOAT * self.batch * x.elements

    def _tensor(self, name: str, like: Map, role: str) -> None:
        self._tensors.append({"name": name, "size": self._bytes(like), "role": role})

    def _forward(self, y: Map, kind: str, reads: list[Map], choices: list[dict[str, Any]]) -> int:
        """Add the op that makes a map, on a layer of its own; returns the layer."""
        self.layer += 1
        self._tensor(y.name, y, "activation")
        self._op(f"{y.name}.fwd", "fwd", kind, self.layer, [x.name for x in reads], [y.name], choices)
        return self.layer

    def _give(
        self, name: str, kind: str, layer: int, reads: list[str], x: Map, choices: list[dict[str, Any]], *others: Map
    ) -> None:
        """Add an op that computes gradients of maps, added to those computed before."""
        reads, writes = list(reads), []
        for one in (x, *others):
            known = self._gradient.get(one.name)
            if known is not None:
                reads.append(known)
            made = f"{one.name}.grad" if known is None else f"{known}+"
            self._tensor(made, one, "gradient")
            self._gradient[one.name] = made
            writes.append(made)
        self._op(name, "bwd", kind, layer, reads, writes, choices, once=kind == "bn")

    def _op(
        self,
        name: str,
        phase: str,
        kind: str,
        layer: int,
        reads: list[str],
        writes: list[str],
        choices: list[dict[str, Any]],
        once: bool = False,
    ) -> None:
        op: dict[str, Any] = {"name": name, "phase": phase, "kind": kind, "layer": layer, "reads": reads}
        self._ops.append({**op, "writes": writes, "choices": choices, **({"once": True} if once else {})})
