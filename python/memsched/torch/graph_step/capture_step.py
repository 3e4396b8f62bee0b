"""From a model to a program: trace its training step, and find out which operation makes and reads which storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.torch.capture import Autocast, CaptureError, only_device, without_data
from memsched.torch.facts import fake_copy, fake_mode
from memsched.torch.graph_step.inputs import own_inputs, replaced
from memsched.torch.graph_step.kernels import laid_out
from memsched.torch.graph_step.layers import PLACE
from memsched.torch.graph_step.order import Turns
from memsched.torch.graph_step.program import START, Block, Operation, Program, Role, Source
from memsched.torch.graph_step.rewrite import drop_unread, is_random, name_statistics, read_less
from memsched.torch.graph_step.trace import Loss, Trace, trace
from memsched.torch.graph_step.watch import Watched
from memsched.torch.leaves import distinct
from memsched.torch.premises import Premises


def capture_step(model: nn.Module, args: Sequence[Any], loss: Loss, *, weight: float | None = None) -> Program:
    """Record a training step of `model`. Nothing is computed and nothing allocated; the model is as before afterwards.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, on the device to train on.
    args : sequence
        Inputs of the shapes, strides and dtypes to train with. Capture under the autocast to train with.
    loss : callable
        From the model's output to a scalar.
    weight : float, optional
        What the loss is multiplied with.

    Raises
    ------
    CaptureError
        The step cannot be traced.
    InvalidInputError
        The model is in eval mode or on several devices, an input needs a gradient, or the loss is no scalar.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.graph_step.capture_step import capture_step
    >>> program = capture_step(torch.nn.Linear(3, 2), (torch.ones(4, 3),), lambda out: out.tanh().mean())
    >>> [str(operation.node.target) for operation in program.operations][:3]
    ['aten.addmm.default', 'aten.tanh.default', 'aten.mean.default']
    """
    if not model.training:
        raise InvalidInputError("the model is in eval mode; call model.train() before it is captured for training")
    device = only_device(model, args, {})
    leaves = pytree.tree_leaves(tuple(args))
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        raise InvalidInputError("an input needs a gradient, which a planned step does not give; pass x.detach()")
    premises = Premises(model, loss)
    fake = fake_mode([*model.parameters(), *model.buffers(), *leaves])
    given = replaced(tuple(args), lambda tensors: own_inputs([fake_copy(fake, tensor) for tensor in tensors]))
    inputs = distinct(pytree.tree_leaves(given))[0]
    autocast = Autocast.ambient(device.type)
    with without_data(model):
        torch.set_autocast_enabled(device.type, False)  # but for forward and loss: casts are operations from here on
        traced = trace(model, fake, given, loss, autocast=autocast, weight=weight)
        values = [*(fake_copy(fake, t.detach()) for t in (*model.parameters(), *model.buffers())), *inputs]
        traced = _settled(traced, fake, values, device)
        sizes = [tensor.shape[0] for tensor in inputs if tensor.dim()]
        return _Builder(traced, Watched(traced.module, fake, values, device)).program(
            autocast=autocast,
            device=device,
            premises=premises,
            batch=max(1, sizes[0]) if sizes else 1,
        )


def _settled(traced: Trace, fake: FakeTensorMode, values: list[torch.Tensor], device: torch.device) -> Trace:
    """The trace with running statistics as results, and with results that have storages of their own."""
    graph = traced.module.graph
    output = graph.output_node()
    results = list(output.args[0])
    gradients = results[1 : 1 + len(traced.gradients)]
    written = dict(zip(traced.written, results[1 + len(gradients) :], strict=True))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written |= name_statistics(graph, dict(zip(traced.buffers, placeholders[len(traced.parameters) :], strict=False)))
    output.args = ([results[0], *gradients, *written.values()],)
    read_less(graph)
    drop_unread(graph)
    watched = Watched(traced.module, fake, values, device)
    like = dict(zip(traced.parameters, values, strict=False))
    laid = [None, *(like[name] for name in traced.gradients), *(None for _ in written)]
    output.args = ([_own(watched, node, want) for node, want in zip(watched.results, laid, strict=True)],)
    graph.lint()
    return dataclasses.replace(traced, written=tuple(written))


def _own(watched: Watched, node: fx.Node, like: torch.Tensor | None) -> fx.Node:
    """A node for a result that has a storage of its own, laid out as autograd lays out the gradient of `like`."""
    value = watched.values[node]
    storage = value.untyped_storage()._cdata
    dense = is_non_overlapping_and_dense_or_false
    if like is not None and dense(like):
        strides = like.stride()
    else:
        strides = value.stride() if dense(value) else torch.empty(value.shape, device="meta").stride()
    shared = sum(storage in watched.storages[other] for other in watched.results) > 1
    own = watched.makers[storage].op == "call_function" and storage not in watched.readers and not shared
    if own and value.untyped_storage().nbytes() == value.numel() * value.itemsize and _alike(value, strides):
        return node
    with node.graph.inserting_after(node):
        made = node.graph.call_function(laid_out, (node, tuple(strides)))
    made.meta[PLACE] = node.meta.get(PLACE, START)
    return made


def _alike(value: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides, as far as they matter."""
    return all(a == b for a, b, size in zip(value.stride(), strides, value.shape, strict=True) if size > 1)


class _Builder:
    """From nodes and storages to operations and blocks."""

    def __init__(self, traced: Trace, watched: Watched) -> None:
        self.traced, self.watched = traced, watched
        self.nodes = watched.operations()
        self.views: dict[fx.Node, list[fx.Node]] = {}
        self.bases = watched.bases()
        for node, base in self.bases.items():
            if node is not base:
                self.views.setdefault(base, []).append(node)
            elif node.op == "call_function" and is_random(node) and node.meta.get(PLACE, START).backward:
                raise CaptureError(
                    f"the backward draws random numbers ({node.target}), as torch.utils.checkpoint lets it; leave it "
                    "out: the plan says what is computed again"
                )
            elif node.op == "call_function" and not watched.computes(node):
                raise CaptureError(
                    f"the step asks for a value that is no tensor on its device ({node.target}); its forward and loss "
                    "must not depend on values of tensors"
                )
        kinds = ["loss", *("gradient" for _ in traced.gradients), *("buffer" for _ in traced.written)]
        names = ["", *traced.gradients, *traced.written]
        self.results = list(zip(kinds, names, watched.results, strict=True))
        self.blocks: list[Block] = []
        self.numbers: dict[int, int] = {}  # of the blocks, by storage
        self.turns = Turns(self.bases)

    def program(self, **known: Any) -> Program:
        traced, watched = self.traced, self.watched
        placeholders = [node for node in watched.values if node.op == "placeholder"]
        many = len(traced.parameters) + len(traced.buffers)
        state = tuple(Source(node=node, views=self.looks(node)) for node in placeholders[:many])
        inputs = tuple(
            Source(node=node, views=self.looks(node), block=self.block(watched.storages[node][0], -1, "input"))
            for node in placeholders[many:]
        )
        constants = tuple(Source(node=n, views=self.looks(n)) for n in watched.values if n.op == "get_attr")
        operations = tuple(self.operation(k, node) for k, node in enumerate(self.nodes))
        there = {s for source in (*state, *constants) for s in watched.storages[source.node]}
        results = sum(block.bytes for block in self.blocks if block.role == "result")
        read = frozenset(argument for node in self.nodes for argument in node.all_input_nodes)
        return Program(
            module=traced.module,
            parameters=traced.parameters,
            buffers=traced.buffers,
            state=state,
            inputs=inputs,
            constants=constants,
            operations=operations,
            blocks=tuple(self.blocks),
            kept=read,
            examples={node: watched.values[node] for node in (*read, *placeholders[many:])},
            resident=sum(watched.sizes[storage] for storage in there) + results,
            partial=traced.partial,
            **known,
        )

    def looks(self, node: fx.Node) -> tuple[fx.Node, ...]:
        return tuple(self.views.get(node, ()))

    def block(self, storage: int, writer: int, role: Role) -> int:
        self.numbers[storage] = len(self.blocks)
        self.blocks.append(Block(bytes=self.watched.sizes[storage], writer=writer, role=role))
        return self.numbers[storage]

    def operation(self, position: int, node: fx.Node) -> Operation:
        watched = self.watched
        given = [one for one in self.results if self.bases[one[2]] is node]
        named = {storage for _, _, result in given for storage in watched.storages[result]}
        backward = node.meta.get(PLACE, START).backward
        makes = []
        for storage in watched.makes(node):
            read = storage in watched.readers
            role: Role = "result" if storage in named else "scratch"
            if read:
                role = "gradient" if backward else "activation"
            makes.append(self.block(storage, position, role))
        storages = [s for argument in node.all_input_nodes for s in watched.storages[argument]]
        reads = tuple(dict.fromkeys(self.numbers[s] for s in storages if s in self.numbers))
        return Operation(
            node=node,
            views=self.looks(node),
            reads=reads,
            makes=tuple(makes),
            after=self.turns.next(node, {self.blocks[number].writer for number in reads}),
            results=tuple(given),
            random=is_random(node),
            once=any(kind == "gradient" for kind, _, _ in given),
        )
