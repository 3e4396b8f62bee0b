"""The code that Inductor makes of one captured graph, and what it holds, counted without data."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException

from memsched.torch.compiled.as_graph import Step, Visit, constants, returned
from memsched.torch.compiled.fused import folded_calls
from memsched.torch.compiled.inductor import Code, Half, lower_copies, prefers_channels_last, stock_saved, with_sizes
from memsched.torch.compiled.joint import read_joint
from memsched.torch.compiled.private import FREED, Boxed
from memsched.torch.compiled.rewrite import Rewritten, rewrite
from memsched.torch.compiled.scratch import CodeMeter, Scratch, told
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.errors import CaptureError
from memsched.torch.weightless import fake_mode_of


@dataclass(frozen=True, slots=True)
class Way:
    """How a graph runs: the steps of its forward and its backward, and in which style.

    With `reuse`, buffers take the place of freed ones; with `last`, backwards of convolutions have their channels last.
    """

    forward: Sequence[Step]
    backward: Sequence[Step]
    reuse: bool
    last: bool = False

    @property
    def key(self) -> str:
        """What tells it."""
        return repr((self.forward, self.backward, self.reuse, self.last))


class Halves:
    """A joint graph for one set of sizes, as Inductor sees it, and its code. It went through `inductor.prepare`."""

    def __init__(self, given: Visit) -> None:
        joint, sizes = given.joint, given.sizes
        self._values = list(sizes.values)
        sized = with_sizes(joint.module, sizes.number)
        saved = stock_saved(sized, len(joint.results), sorted(k - joint.tokens for k in given.static))
        self.joint = read_joint(sized, len(joint.results), folded_calls(sized, saved))
        self.sizes = Sizes(self.joint, ())
        self.prefers_channels_last = prefers_channels_last(sized)
        self._dry: dict[str, tuple[Boxed, Boxed]] = {}
        self._forwards: dict[str, tuple[Code, Sequence[Any]]] = {}
        self._code: dict[str, tuple[Code, Code]] = {}

    def visit(self, given: Visit, scratch: Scratch = MappingProxyType({})) -> Visit:
        """The same run of it, of the operations that Inductor sees, with what convolutions hold within."""
        kinds = ((op.node, told(op.node.target, _examples(op.node))) for op in self.joint.operations)
        held = {node: scratch[kind] for node, kind in kinds if kind in scratch}
        return replace(given, joint=self.joint, sizes=Sizes(self.joint, (), scratch=held))

    def within(self) -> contextlib.AbstractContextManager[object]:
        """Around what runs without data."""
        return fake_mode_of(self.given) or fake_mode_of(self.tangents) or contextlib.nullcontext()

    @property
    def given(self) -> list[Any]:
        """Examples of what the forward takes."""
        return [node.meta["val"] for node in self.joint.primals]

    @property
    def tangents(self) -> list[Any]:
        """Examples of the gradients that arrive."""
        return [node.meta["val"] for node in self.joint.tangents]

    def dry(self, way: Way) -> tuple[Boxed, Boxed]:
        """What the code of forward and backward allocates and frees."""
        if way.key not in self._dry:
            forward, backward = self._written(way)
            self._dry[way.key] = forward.dry(), backward.dry()
        return self._dry[way.key]

    def compiled(self, way: Way) -> tuple[Boxed, Boxed]:
        """The code of forward and backward."""
        forward, backward = (one.compiled() for one in self._written(way))
        sizes = self._values

        def first(args: list[Any]) -> Sequence[Any]:
            return [*forward(args), *sizes]

        def second(args: list[Any]) -> Sequence[Any]:
            del args[: len(sizes)]
            return backward(args)

        return first, second

    def _written(self, way: Way) -> tuple[Code, Code]:
        if way.key not in self._code:
            made = rewrite(self.joint, way.forward, way.backward)
            of_forward = replace(way, last=False).key
            if of_forward not in self._forwards:
                self._forwards[of_forward] = self._forward(made, way)
            forward, strides = self._forwards[of_forward]
            self._code[way.key] = forward, self._backward(made, strides, way)
        return self._code[way.key]

    def _forward(self, made: Rewritten, way: Way) -> tuple[Code, Sequence[Any]]:
        lower_copies(made.forward.graph)
        half = Half(made.forward, len(self.joint.results), backward=False, reuse=way.reuse)
        return half.code(), half.strides  # it knows the strides of what it saves once it is written

    def _backward(self, made: Rewritten, strides: Sequence[Any], way: Way) -> Code:
        saved, count = strides[len(self.joint.results) :], len(self.joint.gradients)
        graph, dying = made.backward, made.dying
        return Half(graph, count, strides=saved, backward=True, reuse=way.reuse, last=way.last, dying=dying).code()


def _examples(node: fx.Node) -> Any:
    return fx.map_arg(node.args, lambda one: one.meta.get("val"))


class Count:
    """What the code of the graphs of one step holds: forwards one after another, then backwards in some order.

    `kept` are, by visit, the bytes between its forward and its backward beside its results, and `scratch` what
    convolutions hold within.
    """

    def __init__(self, halves: Sequence[Halves], visits: Sequence[Visit], ways: Sequence[Way]) -> None:
        self._halves, self._visits = halves, visits
        self._code = [one.dry(way) for one, way in zip(halves, ways, strict=True)]
        self._meter = CodeMeter()
        self._saved: list[Any] = []
        self._held: list[Any] = []  # results, gradients of losses, and gradients that stay
        self._summed = set[tuple[int, frozenset[int]]]()
        self.kept: list[int] = []

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes that are allocated at a time, if the backwards run in this order."""
        try:
            with torch.no_grad():
                for k in range(len(self._visits)):
                    self._forward(k)
                for k in order:
                    self._backward(k)
        except DataDependentOutputException:
            raise CaptureError(
                "its compiled code looks at values, as a loop does that they end, so that its bytes cannot be counted; "
                'say {"mode": "eager"}'
            ) from None
        return self._meter.peak

    @property
    def scratch(self) -> Scratch:
        """Of what ran so far."""
        return self._meter.found

    def _forward(self, k: int) -> None:
        halves, before = self._halves[k], self._meter.live
        joint = halves.joint
        with halves.within(), self._meter:
            out = list(self._code[k][0](halves.given))
        # New values of inputs are dropped once they are copied.
        self._held += [one for one, node in zip(out, joint.results, strict=False) if node not in joint.copied]
        self._saved.append(out[len(joint.results) :])
        del out
        made = set(joint.storages_in(returned(joint))).difference(joint.storages_in(joint.primals), constants(joint))
        self.kept.append(self._meter.live - before - halves.sizes.total(made))

    def _backward(self, k: int) -> None:
        halves, visit, meter = self._halves[k], self._visits[k], self._meter
        with halves.within(), meter:
            arriving = [torch.empty_like(one) for one in halves.tangents]
            self._held += [one for one in arriving if one.dim() == 0]
            arriving += [] if FREED else [torch.empty(visit.beside, dtype=torch.uint8, device=halves.joint.device)]
            meter.count((), visit.beside if FREED else 0)
            args = [*self._saved[k], *arriving[: len(halves.tangents)]]
            self._saved[k] = None
            if FREED:
                arriving.clear()
            gradients = list(self._code[k][1](args))
            arriving.clear()
        key = id(visit.joint), visit.parameters
        again = bool(visit.parameters) and key in self._summed  # added to what an earlier call has returned
        self._summed.add(key)
        summed = max(visit.parameter_gradients, default=0) if again else 0
        copies = visit.copies - (visit.copies_of(visit.static) if again else 0)
        with halves.within(), meter:  # they stay
            self._held.append(torch.empty(copies, dtype=torch.uint8, device=halves.joint.device))
        meter.count((), max(visit.laid_out_anew, summed))
        for place, one in enumerate(gradients, halves.joint.tokens):
            if one is not None and not (again and place in visit.static):
                self._held.append(one)
