"""A model's training step at any batch size: programs and graphs, captured when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from memsched._core import Graph
from memsched.errors import InvalidInputError
from memsched.problems.family import GraphFamily
from memsched.problems.problem import peak_memory
from memsched.torch.capture import Autocast, CaptureError, fill_caches, only_device
from memsched.torch.choose_lanes import lanes_on
from memsched.torch.facts import fake_copy, fake_mode, tensors_of
from memsched.torch.graph_step.as_graph import as_graph, op_names
from memsched.torch.graph_step.capture_step import capture_step
from memsched.torch.graph_step.inputs import replaced
from memsched.torch.graph_step.op_times import measure_operations, model_operations, with_real_bytes
from memsched.torch.graph_step.program import Program
from memsched.torch.graph_step.trace import Loss
from memsched.torch.leaves import Leaf, distinct, has_no_data
from memsched.torch.machines import Machine

Times = Machine | Literal["measured"] | None
_REPEAT = 3  # timed runs of each operation


class CapturedStep:
    """The training step of one model.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on. It is not changed.
    args : sequence
        Inputs of one full batch.
    loss : callable
        From the model's output to a scalar.
    times : Machine, "measured" or None
        Where the times of operations come from: the roofline model of a machine, this device, or nowhere: 1 second
        each. In the first two cases the step runs on this device, so that the bytes are those that it makes here.
    rounds : bool
        The batch may be split along dimension 0 of all inputs. Then the loss of a part of b samples out of B is
        multiplied with b / B, so that a mean over the batch stays one. Batch normalisation sees each part on its own.
    extra : int
        Resident bytes beside the model's, its inputs' and its gradients'.

    Attributes
    ----------
    batch : int
        Samples of the full batch; without rounds the first dimension of the first input.
    spec : TreeSpec
    leaves : tuple of Leaf
        How the inputs nest, and what their leaves are like.
    which : tuple of int
        Of each leaf that is a tensor, which of the distinct tensors it is.

    Raises
    ------
    CaptureError
        The step cannot be traced.
    InvalidInputError
        rounds=True, and the inputs do not agree on a batch.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.graph_step.captured import CapturedStep
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    >>> family = CapturedStep(model, (x,), lambda out: out.mean(), rounds=True).family()
    >>> family.batch, family.at(2).tensors[0]["size"]
    (4, 24)
    """

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        loss: Loss,
        *,
        times: Times = None,
        rounds: bool = False,
        extra: int = 0,
    ) -> None:
        self.model, self.loss, self.rounds = model, loss, rounds
        leaves, self.spec = pytree.tree_flatten(tuple(args))
        self.leaves = tuple(Leaf.of(leaf) for leaf in leaves)
        self._autocast = Autocast.ambient(only_device(model, args, {}).type)
        fill_caches(model, args, {}, only_device(model, args, {}), loss)
        fake = fake_mode([*model.parameters(), *model.buffers(), *leaves])
        self._args = replaced(tuple(args), lambda tensors: [fake_copy(fake, x) for x in tensors])  # holds no bytes
        self.which = distinct(leaves)[1]
        self._times = times
        tensors = list(tensors_of(self._args))
        self._full = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
        if rounds:
            _check_batch(tensors)
            extra += sum(tensor.numel() * tensor.itemsize for tensor in tensors)  # the caller's, beside the parts
        self._programs: dict[int, Program] = {}
        self._graphs: dict[int, Graph] = {}
        first = self._capture(self._full if rounds else None, distinct(leaves)[0])
        self.batch = first[0].batch
        self._extra = extra + _lonely_gradients(model, first[0])
        self._programs[self.batch], _, self._workspaces = first
        self._graphs[self.batch] = self._as_graph(*first)

    @property
    def program(self) -> Program:
        """At the full batch."""
        return self.program_at(self.batch)

    @property
    def graph(self) -> Graph:
        """At the full batch."""
        return self.graph_at(self.batch)

    def family(self) -> GraphFamily:
        """The graphs at all batch sizes up to the full one; each is captured when it is first asked for.

        Raises
        ------
        InvalidInputError
            The step was captured without rounds. Asked for a batch, the family raises this where the model runs other
            operations on it than on the full one.
        """
        if not self.rounds:
            raise InvalidInputError("the step was captured with rounds=False; capture it with rounds=True")
        return GraphFamily(self.graph_at, self.batch)

    def program_at(self, batch: int) -> Program:
        """The step on `batch` samples."""
        self.graph_at(batch)
        return self._programs[batch]

    def graph_at(self, batch: int) -> Graph:
        """The graph of the step on `batch` samples."""
        if batch not in self._graphs:
            program, times, workspaces = self._capture(batch)
            if op_names(program) != op_names(self.program):
                raise InvalidInputError(
                    f"the step runs other operations at batch {batch} than at batch {self.batch}, so that no list of "
                    "steps fits both; plan with rounds=False"
                )
            if workspaces is not None and self._workspaces is not None:
                # A library may take less for a larger batch; the bytes of a family must not fall.
                workspaces = [min(pair) for pair in zip(workspaces, self._workspaces, strict=True)]
            self._programs[batch] = program
            self._graphs[batch] = self._as_graph(program, times, workspaces)
        return self._graphs[batch]

    def parts(self, args: Sequence[Any], start: int, batch: int) -> tuple[Any, ...]:
        """`batch` samples of the inputs, from sample `start` on."""
        if not self.rounds:
            return tuple(args)
        return replaced(tuple(args), lambda tensors: [tensor.narrow(0, start, batch) for tensor in tensors])

    def weight(self, batch: int) -> float | None:
        """What the loss of a part is multiplied with."""
        return batch / self._full if self.rounds else None

    def _capture(
        self, batch: int | None, given: Sequence[torch.Tensor] = ()
    ) -> tuple[Program, list[float] | None, list[int] | None]:
        """A program, and the seconds and workspaces of its operations."""
        with self._autocast.whole_step():  # the same at every batch, whenever it is asked for
            if batch is None:
                program = capture_step(self.model, self._args, self.loss)
            else:
                args = self.parts(self._args, 0, batch)
                try:
                    program = capture_step(self.model, args, self.loss, weight=self.weight(batch))
                except CaptureError as error:
                    raise CaptureError(f"at batch {batch}: {error}") from error
        if self._times is None:
            return program, None, None
        state = [*self.model.parameters(), *self.model.buffers()]
        if any(map(has_no_data, state)):
            raise InvalidInputError("the model is on the meta device, or fake; a step that is to run needs its data")
        chip = self._times if isinstance(self._times, Machine) else None
        lanes, offload = lanes_on(program.device), not _fits(program)
        repeat = _REPEAT if chip is None else 0
        found = measure_operations(program, state, lanes, given=given, offload=offload, repeat=repeat)
        seconds = [one.seconds for one in found] if chip is None else model_operations(program, chip)
        return with_real_bytes(program, found), seconds, [one.workspace for one in found]

    def _as_graph(self, program: Program, times: list[float] | None, workspaces: list[int] | None) -> Graph:
        name = type(self.model).__name__
        return as_graph(program, name=name, times=times, workspaces=workspaces, extra=self._extra, adding=self.rounds)


def _check_batch(tensors: Sequence[torch.Tensor]) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise InvalidInputError(
            f"rounds is True and the inputs have the shapes {', '.join(map(str, shapes)) or '(none)'}; all must have "
            "the batch as their dimension 0, or plan with rounds=False"
        )


def _fits(program: Program) -> bool:
    """Whether the device has memory for a plain step."""
    if program.device.type != "cuda":
        return True
    graph = as_graph(program, name="plain")
    return 2 * (peak_memory(graph) - graph.resident) < torch.cuda.mem_get_info(program.device)[0]


def _lonely_gradients(model: nn.Module, program: Program) -> int:
    """Bytes of the gradients that are there and to which the step adds nothing."""
    added = {name for operation in program.operations for kind, name, _ in operation.results if kind == "gradient"}
    gradients = [p.grad for name, p in model.named_parameters() if name not in added and p.grad is not None]
    return sum(gradient.numel() * gradient.itemsize for gradient in gradients)
