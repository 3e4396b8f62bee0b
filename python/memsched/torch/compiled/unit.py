"""One captured graph of a step: its plans, and the forward and backward that follow them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memsched.torch.compiled.as_graph import Sizes
from memsched.torch.compiled.joint import Joint, read_joint
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import CompiledPlan, plan_joint
from memsched.torch.compiled.private import Boxed, python_code
from memsched.torch.compiled.rewrite import Rewritten, everything_kept, rewrite
from memsched.torch.meter import Meter


@dataclass(frozen=True, slots=True)
class Version:
    """Code that follows one plan.

    Attributes
    ----------
    plan : CompiledPlan
    forward, backward : callable
    marker : Tensor
        Saved for the backward, which finds the version by it.
    """

    plan: CompiledPlan
    forward: Boxed
    backward: Boxed
    marker: torch.Tensor


class Unit:
    """A joint graph with a plan for each set of sizes that it meets.

    Parameters
    ----------
    module, results, static
        As AOTAutograd gives them to its partitioner.
    options : Options
    """

    def __init__(self, module: fx.GraphModule, results: int, static: Sequence[int], options: Options) -> None:
        self.joint: Joint = read_joint(module, results)
        self.static = tuple(static)
        self.options = options
        if options.mode == "inductor":
            from memsched.torch.compiled.fit import check_compiled  # Inductor takes seconds to import

            check_compiled(options, self.joint.device)
        self.versions: list[Version] = []
        self._found: dict[Any, Version] = {}

    @property
    def plans(self) -> list[CompiledPlan]:
        """One for each set of sizes that it has met."""
        return [version.plan for version in self.versions]

    def example(self) -> Rewritten:
        """Forward and backward that keep everything, for AOTAutograd to read how they are called.

        It hands on whatever tensors a forward saves. What it would note of each, at its place, is left out: the places
        differ from plan to plan.
        """
        made = rewrite(self.joint, everything_kept(self.joint))
        (output,) = made.forward.graph.find_nodes(op="output")
        results, returned = len(self.joint.results), output.args[0]
        output.args = ((*returned[:results], *returned[results + made.saved :]),)
        return made

    def forward(self, args: list[Any]) -> Sequence[Any]:
        """Run the forward of the plan for these sizes."""
        version = self._version(args)
        results = len(self.joint.results)
        with _counting():
            found = version.forward(args)
        return [*found[:results], version.marker, *found[results:]]

    def backward(self, args: list[Any]) -> Sequence[Any]:
        """Run the backward of the plan that the forward followed."""
        sizes = sum(1 for one in args if not isinstance(one, torch.Tensor))
        version = self.versions[int(args.pop(sizes))]
        with _counting():
            return version.backward(args)

    def _version(self, args: Sequence[Any]) -> Version:
        values = tuple(one for one in args if isinstance(one, int))
        gradients = sum(_gradient_bytes(one) for one in args)
        key = values, gradients > 0
        if key not in self._found:
            plan, forward, backward = self._code(args, values, gradients)
            version = Version(plan, forward, backward, torch.tensor(len(self.versions)))
            self._found[key] = version
            self.versions.append(version)
        return self._found[key]

    def _code(self, args: Sequence[Any], values: Sequence[int], gradients: int) -> tuple[CompiledPlan, Boxed, Boxed]:
        others = self._others(args, gradients)
        if self.options.mode == "inductor":
            from memsched.torch.compiled.fit import fit  # Inductor takes seconds to import

            fitted = fit(
                self.joint.module,
                len(self.joint.results),
                values,
                self.static,
                self.options,
                gradients=gradients,
                others=others,
            )
            return fitted.plan, fitted.forward, fitted.backward
        sizes = Sizes(self.joint, values)
        plan = plan_joint(self.joint, sizes, self.static, self.options, gradients=gradients, others=others)
        made = rewrite(self.joint, plan.result.schedule.steps, sizes)
        return plan, python_code(made.forward), python_code(made.backward)

    def _others(self, args: Sequence[Any], gradients: int) -> int:
        """Bytes on the device that are none of this graph's."""
        device = self.joint.device
        if device.type == "cuda":
            storages = {
                one.untyped_storage()._cdata: one.untyped_storage().nbytes()
                for one in args
                if isinstance(one, torch.Tensor) and one.device == device
            }
            return max(0, torch.cuda.memory_allocated(device) - sum(storages.values()) - gradients)
        return 0


_METERS: list[Meter] = []


def _counting() -> contextlib.AbstractContextManager[object]:
    return _METERS[-1] if _METERS else contextlib.nullcontext()


@contextlib.contextmanager
def counted(device: torch.device) -> Iterator[Meter]:
    """Count the bytes that planned forwards and backwards hold on a device while they run.

    What the caller holds from before counts nothing: see `CompiledPlan.process_bytes`.
    """
    meter = Meter(device.type)
    _METERS.append(meter)
    try:
        yield meter
    finally:
        _METERS.remove(meter)


def _gradient_bytes(value: Any) -> int:
    """Bytes of the gradient that a parameter has."""
    if not isinstance(value, torch.Tensor) or not value.is_leaf or value.grad is None:
        return 0
    return int(value.grad.untyped_storage().nbytes())
