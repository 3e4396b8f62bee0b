"""A program as a graph that planners take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsched._core import Graph
from memsched.torch.graph_step.program import Operation, Program
from memsched.torch.recorder.assemble import unique

_KINDS = {
    "convolution": "conv",
    "convolution_backward": "conv",
    "cudnn_convolution": "conv",
    "mm": "fc",
    "addmm": "fc",
    "linear": "fc",
    "linear_backward": "fc",
}


def op_names(program: Program) -> list[str]:
    """One a operation, such as "layer1.0.conv1/convolution"; the second of a name is name#2."""
    labels = []
    for operation in program.operations:
        path, name = operation.place.path, operation_name(operation)
        labels.append(f"{path}/{name}" if path else name)
    return list(unique(labels))


def tensor_names(program: Program, ops: Sequence[str]) -> dict[int, str]:
    """Of the blocks that are tensors of the graph."""
    names = {source.block: f"input:{k}" for k, source in enumerate(program.inputs)}
    for name, operation in zip(ops, program.operations, strict=True):
        read = [number for number in operation.makes if program.blocks[number].role in ("activation", "gradient")]
        names.update({number: f"{name}:{k}" for k, number in enumerate(read)})
    return names


def turn_names(program: Program, ops: Sequence[str]) -> dict[int, str]:
    """Of the operations that others must follow, the tensor without bytes that says that they have run."""
    return {k: f"{ops[k]}:done" for k in sorted({k for operation in program.operations for k in operation.after})}


def operation_name(operation: Operation) -> str:
    """Without namespace and overload."""
    target: Any = operation.node.target
    name = getattr(target, "__name__", str(target))
    if name in ("drawn", "with_statistics"):
        target = operation.node.args[4 if name == "drawn" else 0]
        name = target.__name__
    return name.split(".")[0].rstrip("_")


def kind_of(name: str) -> str:
    """What planners call an operation."""
    if name in _KINDS:
        return _KINDS[name]
    for part, kind in (("batch_norm", "bn"), ("pool", "pool"), ("loss", "loss")):
        if part in name:
            return kind
    return name


def as_graph(
    program: Program,
    *,
    name: str,
    times: Sequence[float] | None = None,
    workspaces: Sequence[int] | None = None,
    extra: int = 0,
    adding: bool = False,
) -> Graph:
    """The graph of a program.

    Tensors are storages. Parameters, buffers and results are resident: the loss, the gradients of the parameters and
    the new values of buffers, which stay until the step ends. What a run makes of results a second time, or makes and
    nobody reads, is workspace. Where an operation must follow another of which it reads nothing, as those do that draw
    random numbers, it reads a tensor of no bytes that the other writes.

    Parameters
    ----------
    program : Program
    name : str
    times : sequence of float, optional
        Seconds of each operation; 1 each by default.
    workspaces : sequence of int, optional
        Bytes that each operation needs for itself while it runs.
    extra : int
        Resident bytes that the program does not know of.
    adding : bool
        Gradients of parameters are added to gradients that are there, so that both exist for a moment.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.graph_step.capture_step import capture_step
    >>> program = capture_step(torch.nn.Linear(3, 2), (torch.ones(4, 3),), lambda out: out.tanh().mean())
    >>> graph = as_graph(program, name="small")
    >>> [op["name"] for op in graph.ops][:3], graph.tensors[0], graph.resident
    (['addmm', 'tanh', 'mean'], {'name': 'input:0', 'size': 48, 'role': 'input'}, 68)
    """
    ops = op_names(program)
    names, turns = tensor_names(program, ops), turn_names(program, ops)
    documents = []
    for k, operation in enumerate(program.operations):
        choice = {
            "alg": "default",
            "time": 1.0 if times is None else times[k],
            "workspace": _beside(program, operation, adding) + (0 if workspaces is None else workspaces[k]),
        }
        documents.append(
            {
                "name": ops[k],
                "phase": "bwd" if operation.place.backward else "fwd",
                "kind": kind_of(operation_name(operation)),
                "layer": operation.place.layer,
                "reads": [*(names[n] for n in operation.reads), *(turns[n] for n in operation.after)],
                "writes": [*(names[n] for n in operation.makes if n in names), *([turns[k]] if k in turns else [])],
                "choices": [choice],
                "once": operation.once,
            }
        )
    tensors = _tensors(program, names, turns)
    return Graph(tensors, documents, name=name, batch=program.batch, resident=program.resident + extra)


def _beside(program: Program, operation: Operation, adding: bool) -> int:
    """Bytes that a run makes and that are no tensors of the graph: some nobody reads, some are there already."""
    dropped = ("scratch", "result") if adding or not operation.once else ("scratch",)
    made = [program.blocks[number] for number in operation.makes]
    return sum(block.bytes for block in made if block.role in dropped)


def _tensors(program: Program, names: dict[int, str], turns: dict[int, str]) -> list[dict[str, Any]]:
    blocks, operations = program.blocks, program.operations
    tensors = [{"name": name, "size": blocks[n].bytes, "role": blocks[n].role} for n, name in names.items()]
    roles = {k: "gradient" if operations[k].place.backward else "activation" for k in turns}
    return tensors + [{"name": name, "size": 0, "role": roles[k]} for k, name in turns.items()]
