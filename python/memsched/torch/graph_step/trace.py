"""From a model to one flat list of ATen operations that is its whole training step, without any write in place."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.capture import Autocast, CaptureError, as_in_training, check_casts
from memsched.torch.facts import attribute, fake_copy
from memsched.torch.graph_step.inputs import replaced
from memsched.torch.graph_step.layers import PLACE, Locator
from memsched.torch.leaves import distinct
from memsched.torch.module_state import named_places
from memsched.torch.premises import Premises
from memsched.torch.process_state import contained, drawn_since, python_generators, uninterrupted
from memsched.torch.witness import seeing_seeds

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A training step as a graph of fx.

    The placeholders are the parameters, the buffers and the tensors among the inputs, in this order. The output is the
    loss, then the gradient of each parameter or None, then the new value of each buffer that the step writes.

    Attributes
    ----------
    module : torch.fx.GraphModule
    parameters, buffers : tuple of str
        One name of each, in the order of the placeholders; tied ones count once.
    gradients : tuple of str or None
        The parameters that have a gradient, in the order of the output.
    written : tuple of str
        The buffers that the step writes, in the order of the output.
    partial : str or None
        An operation that computes in place on a part of a tensor. Traced, it computes something new, whose layout is
        another one, and some kernels round by layout.
    """

    module: fx.GraphModule
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    gradients: tuple[str, ...]
    written: tuple[str, ...]
    partial: str | None


def trace(
    model: nn.Module, fake: FakeTensorMode, args: Sequence[Any], loss: Loss, *, autocast: Autocast, weight: float | None
) -> Trace:
    """Record forward, loss and backward of a model; nothing is computed or allocated.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode; left as it is.
    fake : FakeTensorMode
    args : sequence
        Of the model; the tensors among them are fake ones of that mode.
    loss : callable
        From the model's output to a scalar.
    autocast : Autocast
        For forward and loss.
    weight : float, optional
        What the loss is multiplied with. None: it is left as it is.

    Raises
    ------
    CaptureError
        The model cannot be traced, or writes to its parameters or inputs.
    InvalidInputError
        The loss is no scalar, or needs no gradient.
    """
    step = _Step(model, fake, args, loss, autocast=autocast, weight=weight)
    return step.functional(step.operations())


class _Step:
    """The state of a model as a list of tensors without data, and its training step as a function of them."""

    def __init__(
        self,
        model: nn.Module,
        fake: FakeTensorMode,
        args: Sequence[Any],
        loss: Loss,
        *,
        autocast: Autocast,
        weight: float | None,
    ) -> None:
        self.model, self.fake, self.loss, self.autocast, self.weight = model, fake, loss, autocast, weight
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        place = {id(tensor): k for k, tensor in enumerate([*self.parameters.values(), *self.buffers.values()])}
        self.places = {name: place[id(tensor)] for name, tensor in named_places(model)}  # tied ones share a place
        self.args = tuple(args)
        self.inputs = distinct(pytree.tree_leaves(self.args))[0]

    def values(self, *, leaf: bool) -> list[torch.Tensor]:
        """One tensor without data a placeholder; parameters are leaves of autograd, or need no gradient."""
        needs = [parameter.requires_grad and leaf for parameter in self.parameters.values()]
        state = [
            fake_copy(self.fake, p.detach()).requires_grad_(n)
            for p, n in zip(self.parameters.values(), needs, strict=True)
        ]
        return [*state, *(fake_copy(self.fake, buffer) for buffer in self.buffers.values()), *self.inputs]

    def operations(self) -> fx.GraphModule:
        """The operations as the dispatcher sees them, those in place among them; each node's meta has its Place."""
        locator = Locator(self.model)
        caching = torch.is_autocast_cache_enabled()

        def step(*values: torch.Tensor) -> list[torch.Tensor | None]:
            torch.set_autocast_cache_enabled(caching)  # make_fx turns it off, and on again when it is done
            with locator:
                return self.run(locator, list(values))

        def seeded(what: str) -> None:
            if not locator.backward:  # where torch.utils.checkpoint does so, too
                raise CaptureError(f"a planned step would lose {what}")

        premises, generators, state = Premises(self.model), python_generators(self.model), torch.get_rng_state()
        try:
            with uninterrupted(), contained(self.model):
                with contextlib.ExitStack() as stack:
                    stack.enter_context(_quiet())
                    stack.enter_context(as_in_training())
                    stack.enter_context(locator.hooks())
                    stack.enter_context(seeing_seeds(seeded))
                    stack.enter_context(torch.autograd.set_multithreading_enabled(False))
                    stack.enter_context(self.fake)
                    recorded = make_fx(step)(*self.values(leaf=True))
                changed = premises.changed()
                check_casts(self.autocast, recorded.graph)
                self.check_constants(recorded)
                if changed is not None:
                    raise CaptureError(f"the step sets what others may read, and a planned one would not: {changed}")
                if drawn_since(generators, self.model) is not None:
                    raise CaptureError("the step draws random numbers from Python's random or NumPy: use PyTorch's")
                if not torch.equal(torch.get_rng_state(), state):  # without data nothing is drawn
                    raise CaptureError("a planned step would lose that it seeds or sets PyTorch's generator")
                return recorded
        except MemschedError:
            raise
        except Exception as error:  # the model's own code runs in there, so anything may be raised
            raise CaptureError(
                f"the training step of {type(self.model).__name__} cannot be traced: {type(error).__name__}: "
                f"{_first_sentence(error)}; its forward and loss must not depend on values of tensors"
            ) from error

    def check_constants(self, recorded: fx.GraphModule) -> None:
        """Refuse constants that need a gradient, which nobody would give them."""
        for node in recorded.graph.nodes:
            held = attribute(recorded, str(node.target)) if node.op == "get_attr" else None
            if isinstance(held, torch.Tensor) and held.requires_grad:
                raise CaptureError(
                    f"a planned step would lose the gradient of a {tuple(held.shape)} tensor that is no parameter of "
                    f"{type(self.model).__name__}, as a cache or the loss may hold one"
                )

    def run(self, locator: Locator, values: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Forward, loss and backward; the loss and the gradients."""
        args = replaced(self.args, lambda _: values[len(self.parameters) + len(self.buffers) :])
        sources = [values[k] for k, p in enumerate(self.parameters.values()) if p.requires_grad]
        whole = _Whole(self.model, self.autocast, self.loss, lambda value: self.backward(locator, value, sources))
        state = {f"model.{name}": values[place] for name, place in self.places.items()}
        with torch.enable_grad():
            return torch.func.functional_call(whole, state, args, tie_weights=False)

    def backward(self, locator: Locator, found: Any, sources: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Of what the loss gave."""
        value = _checked(found)
        if self.weight is not None:
            value = value * self.weight
        locator.backward = True
        gradients = torch.autograd.grad(value, sources, allow_unused=True)
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
            raise CaptureError("a parameter has a sparse gradient; make embeddings with sparse=False")
        return [value, *gradients]

    def functional(self, recorded: fx.GraphModule) -> Trace:
        """The same without writes in place: what is written is a new value, and state that changes is a result."""
        values = self.values(leaf=False)
        with uninterrupted(), _quiet(), torch.no_grad(), self.fake:
            run = torch.func.functionalize(lambda *given: _Tagging(recorded).run(*given), remove="mutations")
            module = make_fx(run)(*values)
        graph = module.graph
        for node in graph.nodes:
            held = attribute(module, str(node.target)) if node.op == "get_attr" else None
            if held is not None and not isinstance(held, torch.Tensor):
                kind = f"{type(held).__module__}.{type(held).__name__}".replace("torch._C.", "torch.")
                raise CaptureError(f"the step reads a {kind} of its own, which is no tensor; let it do without")
        output = next(node for node in graph.nodes if node.op == "output")
        results = pytree.tree_leaves(output.args[0], is_leaf=lambda leaf: leaf is None)
        sources = [name for name, p in self.parameters.items() if p.requires_grad]
        pairs = [(name, node) for name, node in zip(sources, results[1:], strict=True) if isinstance(node, fx.Node)]
        written = self.writes(graph)
        output.args = ([results[0], *(node for _, node in pairs), *written.values()],)
        return Trace(
            module=module,
            parameters=tuple(self.parameters),
            buffers=tuple(self.buffers),
            gradients=tuple(name for name, _ in pairs),
            written=tuple(written),
            partial=_written_in_part(recorded.graph),
        )

    def writes(self, graph: fx.Graph) -> dict[str, fx.Node]:
        """Take the writes to state off the end of the graph: buffer -> the node of its new value."""
        names = [*self.parameters, *self.buffers]
        places = {node: k for k, node in enumerate(node for node in graph.nodes if node.op == "placeholder")}
        written: dict[str, fx.Node] = {}
        for node in list(graph.nodes):
            if node.target is not torch.ops.aten.copy_.default:
                continue
            place = places.get(node.args[0], -1)
            if not len(self.parameters) <= place < len(names):
                what = "a tensor that is no buffer" if place < 0 else "its input"
                what = f"its parameter {names[place]!r}" if 0 <= place < len(self.parameters) else what
                raise CaptureError(f"the step writes to {what} in place; let the model write to a copy")
            written[names[place]] = node.args[1]
            graph.erase_node(node)
        return written


class _Whole(nn.Module):
    """A model whose forward goes on with loss and backward, so that a backward that runs modules finds their state."""

    def __init__(self, model: nn.Module, autocast: Autocast, loss: Loss, rest: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self.autocast, self.loss, self.rest = model, autocast, loss, rest

    def forward(self, *args: Any) -> Any:
        with self.autocast.whole_step():
            value = self.loss(self.model(*args))
        return self.rest(value)


class _Tagging(fx.Interpreter):
    """Runs a graph while make_fx records another, whose nodes get the places of those that they come from."""

    def run_node(self, n: fx.Node) -> Any:
        mode = torch.fx.experimental.proxy_tensor.get_proxy_mode()
        graph = mode.tracer.graph
        before = graph._root.prev
        value = super().run_node(n)
        made = graph._root.prev
        while made is not before:
            if PLACE in n.meta:
                made.meta[PLACE] = n.meta[PLACE]
            made = made.prev
        return value


def _written_in_part(graph: fx.Graph) -> str | None:
    """The first operation that computes in place on a tensor with gaps."""
    copies = (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_, torch.ops.aten.masked_fill_)
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.overloadpacket in copies:
            continue
        first = node.target._schema.arguments[:1]
        if first and first[0].alias_info is not None and first[0].alias_info.is_write:
            value = node.args[0].meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_floating_point() and _has_gaps(value):
                return str(node.target)
    return None


def _has_gaps(value: torch.Tensor) -> bool:
    dense = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1:
            if stride != dense:
                return True
            dense *= size
    return False


def _checked(value: Any) -> torch.Tensor:
    """The loss, if a backward can begin there."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidInputError(f"loss returns {found}; let it return a tensor with one element, as output.mean() is")
    if not value.requires_grad:
        raise InvalidInputError("the loss needs no gradient; let it depend on a parameter that requires_grad")
    return value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tracing warns of what it copies; the user can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _first_sentence(error: Exception) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0][:200]
