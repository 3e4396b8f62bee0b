"""From which module an operation of a traced step comes, and whether it is a part of the backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

PLACE = "memsched_place"
"""Under this key the meta of a node has its Place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an operation stands in a step.

    Attributes
    ----------
    path : str
        The innermost module that called it, such as "layer1.0.conv1"; of a backward that of its forward.
    layer : int
        Counts the modules' turns in the forward. A backward has the layer of its forward.
    backward : bool
    """

    path: str
    layer: int
    backward: bool


class Locator(TorchDispatchMode):
    """Entered while make_fx traces, it writes a Place into the meta of every node.

    A layer begins whenever another module has its turn, so that the layers of the forward come one after the other. An
    operation of the backward belongs to the layer in which autograd made its node. One that only adds up gradients
    belongs to the layer before it.

    Parameters
    ----------
    model : torch.nn.Module
        Gives the paths.

    Attributes
    ----------
    backward : bool
        To be set when the loss is there.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backward = False
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._within: list[tuple[int, str]] = []
        self._calls = 0
        self._turn: tuple[int, str] | None = None
        self._layer = -1
        self._layers: dict[int, int] = {}  # of the nodes of autograd, by their sequence numbers
        self._layer_paths: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = get_proxy_mode()
        assert mode is not None, "a step is located while it is traced"
        graph = mode.tracer.graph
        before = _last(graph)
        out = func(*args, **(kwargs or {}))
        node = _last(graph)
        if node is not before:
            place = self._place()
            while node is not before:
                node.meta[PLACE] = place
                node = node.prev
        return out

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Says which module has its turn."""

        def enter(module: nn.Module, args: Any) -> None:
            self._calls += 1
            path = self._paths.get(id(module), self._within[-1][1] if self._within else "")
            self._within.append((self._calls, path))

        def leave(module: nn.Module, args: Any, out: Any) -> None:
            self._within.pop()

        with contextlib.ExitStack() as stack:
            stack.callback(module_hooks.register_module_forward_pre_hook(enter).remove)
            stack.callback(module_hooks.register_module_forward_hook(leave, always_call=True).remove)
            yield

    def _place(self) -> Place:
        """Of the operation that has just run."""
        if not self.backward:
            turn = self._within[-1] if self._within else (0, "")
            if turn != self._turn:
                self._turn = turn
                self._layer += 1
                self._layer_paths.append(turn[1])
            # Autograd makes its node before the operation reaches the dispatcher.
            self._layers.setdefault(torch._C._autograd._get_sequence_nr() - 1, self._layer)
        else:
            node = torch._C._current_autograd_node()
            self._layer = self._layers.get(node._sequence_nr(), self._layer) if node is not None else self._layer
        self._layer = max(self._layer, 0)
        path = self._layer_paths[self._layer] if self._layer_paths else ""
        return Place(path=path, layer=self._layer, backward=self.backward)


def _last(graph: fx.Graph) -> fx.Node:
    return graph._root.prev
