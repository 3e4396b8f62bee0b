"""A training step as a list of operations on storages, ready to be planned and to be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from memsched.torch.capture import Autocast
from memsched.torch.facts import attribute
from memsched.torch.graph_step.layers import PLACE, Place
from memsched.torch.premises import Premises

Role = Literal["input", "activation", "gradient", "result", "scratch"]
START = Place(path="", layer=0, backward=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A storage that the step makes, or that one of its inputs has.

    Attributes
    ----------
    bytes : int
    writer : int
        The operation that makes it; -1 for an input.
    role : str
        Tensors of the graph are inputs, activations and gradients. A result stays: the loss, the gradient of a
        parameter, the new value of a buffer. Scratch is made and never read.
    """

    bytes: int
    writer: int
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One node that makes new storages.

    Attributes
    ----------
    node : torch.fx.Node
    views : tuple of torch.fx.Node
        Nodes that only look at what it makes in other ways: views, aliases, single results.
    reads, makes : tuple of int
        Blocks, each once; `makes` in the order of the node's results.
    after : tuple of int
        Operations that must have run before, beside those that make what it reads.
    results : tuple of (str, str, torch.fx.Node)
        What it gives out of the step: ("loss" | "gradient" | "buffer", name of the parameter or buffer, node).
    random, once : bool
        Whether it draws random numbers, and whether it must not be repeated.
    """

    node: fx.Node
    views: tuple[fx.Node, ...]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    after: tuple[int, ...]
    results: tuple[tuple[str, str, fx.Node], ...]
    random: bool
    once: bool

    @property
    def place(self) -> Place:
        """Its module, layer and phase."""
        return self.node.meta.get(PLACE, START)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A value that is there before the step.

    Attributes
    ----------
    node : torch.fx.Node
    views : tuple of torch.fx.Node
    block : int
        Of an input; -1 of what is resident.
    """

    node: fx.Node
    views: tuple[fx.Node, ...]
    block: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A training step of one model at one batch size.

    Attributes
    ----------
    module : torch.fx.GraphModule
    parameters, buffers : tuple of str
        One name of each; tied ones count once.
    state : tuple of Source
        Of the parameters, then of the buffers.
    inputs : tuple of Source
        Of the arguments that are tensors.
    constants : tuple of Source
        Of tensors that the model or the loss refers to without being state.
    operations : tuple of Operation
        In the order in which autograd would run them.
    blocks : tuple of Block
    kept : frozenset of torch.fx.Node
        What operations read.
    examples : dict of torch.fx.Node to object
        What operations read, and the inputs, as tensors without data.
    resident : int
        Bytes of parameters, buffers, constants and results.
    autocast : Autocast
    device : torch.device
    premises : Premises
        What the trace depends on besides the inputs.
    batch : int
    partial : str or None
        An operation that computes in place on a part of a tensor; planned, it may round otherwise.
    """

    module: fx.GraphModule
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    state: tuple[Source, ...]
    inputs: tuple[Source, ...]
    constants: tuple[Source, ...]
    operations: tuple[Operation, ...]
    blocks: tuple[Block, ...]
    kept: frozenset[fx.Node]
    examples: dict[fx.Node, Any]
    resident: int
    autocast: Autocast
    device: torch.device
    premises: Premises
    batch: int
    partial: str | None

    def constant(self, source: Source) -> torch.Tensor:
        """The tensor behind one of `constants`."""
        return attribute(self.module, str(source.node.target))
