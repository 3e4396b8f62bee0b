"""The plan of a captured training step, as users see it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memsched.errors import visible
from memsched.result import Result
from memsched.support.documents import Document
from memsched.support.formats import exact_bytes, format_seconds, unit_written
from memsched.torch.compiled.as_graph import LEAVE
from memsched.torch.compiled.resident import Resident
from memsched.torch.report import ShowsResult, describe

_SHOWN = 4  # inputs


@dataclass(frozen=True, slots=True)
class CompiledPlan(ShowsResult):
    """How a training step that torch.compile captured fits a budget.

    Attributes
    ----------
    result : Result
        The plan of the step's graph, simulated. Budget, peak and resident bytes are those of the whole process.
    resident : Resident
        What is resident, split by what it is for.
    times : str
        Where the times come from: measured, or a model.
    checkpointed : int
        How many operations plain PyTorch runs again, since the model itself checkpoints them; this plan need not.
    compiled : int, optional
        The peak of compiled code, which may hold more than the tensors of the plan, or less.
    modules : dict
        Of operations, the module that they, or their forward, belong to, such as "blocks.0.norm".
    inputs : tuple of str
        Type and shape of each tensor that the first graph is given beside parameters and buffers: "int64 8x1024".
    """

    result: Result
    resident: Resident
    times: str
    checkpointed: int = 0
    compiled: int | None = None
    modules: Mapping[str, str] = field(default_factory=dict, repr=False)
    inputs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        held = exact_bytes(self.peak_memory, unit_written(self.result.device))
        return f"CompiledPlan({self.title}: {held}, {format_seconds(self.result.makespan)})"

    @property
    def title(self) -> str:
        """What is planned: the step, and its inputs."""
        beside = " beside gradients from before" if self.resident.gradients else ""
        return self.result.graph.name + (f" on {self.given}" if self.inputs else "") + beside

    @property
    def given(self) -> str:
        """The first of its inputs."""
        return on_inputs(self.inputs)

    def is_not_of(self, given: str) -> str:
        """What to say of another step, on such inputs."""
        why = "other shapes of inputs, another autocast or another mode may be why"
        if given and self.inputs and given != self.given:
            why = f"it is on {given}, and the plan is for {self.given}"
        return f"the step is not the one that was planned: {why}; plan it as it is now"

    @property
    def visits(self) -> int:
        """How many graphs the step has."""
        return sum(op["kind"] == LEAVE for op in self.result.graph.ops)

    @property
    def peak_memory(self) -> int:
        """Of the whole process, in bytes."""
        return self.result.peak_memory if self.compiled is None else self.compiled

    def process_bytes(self, counted: int) -> int:
        """The bytes of the whole process, of which a meter counted those that were allocated during the step."""
        held = self.resident
        return counted + held.total - held.results - held.updates - held.random - held.fused

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `result` as JSON, to be simulated, validated, drawn and reported: `Result.load` reads it."""
        self.result.save(path)

    def report(self) -> str:
        """What the plan does and what it costs, as text."""
        none = "no state of an optimizer; give optimizer=... among the options, if it has some"
        return describe(self) + ("" if self.resident.optimizer else f"\n\nnot counted\n  {none}")


def on_inputs(inputs: Sequence[str]) -> str:
    """The first of some inputs, in words."""
    return ", ".join([*map(visible, inputs[:_SHOWN]), *([".."] if len(inputs) > _SHOWN else [])])


def compiled_plan(result: Result, resident: Resident, document: Document) -> CompiledPlan:
    """With what a document of plans tells of their step."""
    modules = {str(name): str(module) for name, module in dict(document.get("modules", {})).items()}
    checkpointed = int(document.get("checkpointed", 0))
    inputs = tuple(map(str, document.get("inputs", ())))
    return CompiledPlan(result, resident, str(document["source"]), checkpointed, modules=modules, inputs=inputs)
