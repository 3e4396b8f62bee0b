"""From a module to one flat list of ATen operations that share its parameters."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.errors import CaptureError
from memsched.torch.leaves import has_no_data
from memsched.torch.premises import Premises
from memsched.torch.process_state import contained, uninterrupted
from memsched.torch.trial import untouched
from memsched.torch.witness import Witness, hooks_lost

# Their kernels multiply matrices, which autocast casts in training, but not where an operation is run by itself.
_CAST_WITHIN = {
    torch.ops.aten.affine_grid_generator.default,
    torch.ops.aten.linalg_pinv.atol_rtol_tensor,
    torch.ops.aten._trilinear.default,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """The autocast setting under which a module was captured, and must be run."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def ambient(cls, device_type: str) -> Autocast:
        """The setting of the calling thread."""
        return cls(
            device_type=device_type,
            enabled=torch.is_autocast_enabled(device_type),
            dtype=torch.get_autocast_dtype(device_type),
        )

    def __eq__(self, other: object) -> bool:
        """Equal where they have the same effect: the dtype counts only where autocast is on."""
        if not isinstance(other, Autocast):
            return NotImplemented
        same = self.device_type == other.device_type and self.enabled == other.enabled
        return same and (not self.enabled or self.dtype == other.dtype)

    def __hash__(self) -> int:
        return hash((self.device_type, self.enabled, self.dtype if self.enabled else None))

    def context(self) -> torch.autocast:
        """Enters it again. Casts of weights are not cached: a cache outlives the stage that filled it."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled, cache_enabled=False)

    @contextlib.contextmanager
    def whole_step(self) -> Iterator[None]:
        """Enters it again for forward and loss of a whole step, as a caller does who trains without a plan.

        Casts of weights are cached as there: a weight that is used twice is cast once, and its gradients add up before
        they are cast back. Where autocast is off nothing is entered, for the model's own autocast inside of another
        one would keep its cache for longer.
        """
        if not self.enabled and not torch.is_autocast_enabled(self.device_type):
            yield
            return
        torch.clear_autocast_cache()
        try:
            with torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled):
                yield
        finally:
            torch.clear_autocast_cache()

    def __str__(self) -> str:
        return f"autocast to {str(self.dtype).removeprefix('torch.')}" if self.enabled else "no autocast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The operations of one training forward of a module, for inputs of one shape.

    Attributes
    ----------
    graph_module : torch.fx.GraphModule
        Placeholders, get_attr nodes (parameters, buffers, constants) and calls of ATen operations, in order.
    inputs, outputs : TreeSpec
        How (args, kwargs) and the result nest.
    autocast : Autocast
    device : torch.device
        Where the module and its inputs were.
    premises : Premises
        What must still hold of the model where the program is run.
    """

    graph_module: fx.GraphModule
    inputs: pytree.TreeSpec
    outputs: pytree.TreeSpec
    autocast: Autocast
    device: torch.device
    premises: Premises


def capture(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Program:
    """Record what one training forward of `model` computes.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode. Its parameters stay its own: the program refers to them.
    args, kwargs
        Inputs of the shapes, dtypes and device to train with. Capture under the autocast to train with.

    Returns
    -------
    Program

    Raises
    ------
    CaptureError
        torch.export cannot record it, for example because what it does depends on values of tensors; or a part of
        it would be lost: a custom autograd.Function's own backward, a hook, an attribute that the forward sets.
    InvalidInputError
        The module is not in training mode, or module and inputs are spread over several devices.
    """
    if not model.training:
        raise InvalidInputError("the model is in eval mode; call model.train() before it is captured for training")
    device = only_device(model, args, kwargs or {})
    hook = hooks_lost(model)
    if hook is not None:
        raise CaptureError(f"{type(model).__name__} has {hook}, which would not run at every step")
    fill_caches(model, args, kwargs or {}, device)
    premises = Premises(model)
    with _in_silence(), contained(model), torch.enable_grad():
        exported = _export(model, tuple(args), dict(kwargs or {}))
        module = exported.module(check_guards=False)
    autocast = Autocast.ambient(device.type)
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            check_casts(autocast, part.graph)
            _drop_checks(part.graph)
            _name_state_directly(part.graph)
            part.recompile()
    return Program(
        graph_module=module,
        inputs=exported.call_spec.in_spec,
        outputs=exported.call_spec.out_spec,
        autocast=autocast,
        device=device,
        premises=premises,
    )


def _export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """What the model computes in training."""
    witness = Witness(model)
    try:
        with uninterrupted(), contained(model), as_in_training(), witness.watching():
            exported = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:  # the model's own code runs in there, so anything may be raised
        message = f"torch.export cannot capture {type(model).__name__}: {type(error).__name__}: {_reason(error)}"
        raise CaptureError(message) from error
    if witness.lost is not None:
        raise CaptureError(f"a plan of operations for {type(model).__name__} would lose {witness.lost}")
    if witness.draws_again and any(map(is_random, exported.graph.nodes)):
        raise CaptureError(
            f"{type(model).__name__} draws random numbers and uses torch.utils.checkpoint with "
            "preserve_rng_state=False: a plain step draws others when a part runs again"
        )
    return exported


def _forget(_: torch.Tensor) -> None:
    """Nobody runs a backward of what fills caches, so that it needs no more memory than without gradients."""


def _forgotten(_: None) -> torch.Tensor:
    raise MemschedError(
        "the model keeps what it computed from a parameter when it was called the last time, as a plan was made; empty "
        "its caches before each step, and do without a plan"
    )


def fill_caches(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    loss: Callable[[Any], Any] = lambda result: result,
) -> None:
    """Run a forward and a loss, of which nothing stays but what they keep beside the model, such as tables.

    Else these would be filled while the model is captured, with tensors without data, for all that run after it. A
    forward that fails is left to the capture, which says why.
    """
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(map(has_no_data, (*model.parameters(), *model.buffers(), *tensors))):
        return
    attributes = vars(model)
    forward = attributes.pop("forward", None)  # that of a plan
    try:
        with (
            untouched(model, device, leaves),
            contextlib.suppress(Exception),
            torch.enable_grad(),  # what is computed from parameters must not look like a constant
            saved_tensors_hooks(_forget, _forgotten),
        ):
            loss(model(*args, **kwargs))
    finally:
        if forward is not None:
            attributes["forward"] = forward


def check_casts(autocast: Autocast, graph: fx.Graph) -> None:
    """Refuse what autocast changes within an operation.

    Raises
    ------
    CaptureError
    """
    for node in graph.nodes if autocast.enabled else ():
        if node.target in _CAST_WITHIN:
            raise CaptureError(
                f"under autocast {node.target} computes otherwise when it is run by itself; turn it off there"
            )


@contextlib.contextmanager
def without_data(model: torch.nn.Module) -> Iterator[None]:
    """The operations of a model run here on tensors without data, which some of them refuse.

    Raises
    ------
    CaptureError
        An operation did, for example because the shape of its result depends on values.
    """
    with contained(model):
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            message = f"the operations of {type(model).__name__} cannot be followed: {type(error).__name__}"
            raise CaptureError(f"{message}: {_reason(error)}") from error


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """Let transformers make no masks that it makes for compilers only.

    Where nothing is masked it hands attention a mask while `is_torchdynamo_compiling()` is true, for tensors without
    data, or where it cannot see that positions count from 0, and none in training. That costs memory, and differs in
    the last bits. Here it looks at the values of a mask that it is given, as in training, and such a model cannot be
    captured. The flags of torch itself must stay: other code keeps what it computes from one call to the next where
    they are down, and would keep tensors without data.
    """
    packed: Any = getattr(sys.modules.get("transformers.masking_utils"), "find_packed_sequence_indices", None)

    def sequences(positions: torch.Tensor) -> Any:
        return packed(positions) if _depends_on_inputs(positions) else None  # others count from 0

    answers: dict[tuple[str, str], Callable[..., Any]] = {
        ("transformers.utils.import_utils", "is_torchdynamo_compiling"): lambda: False,
        ("transformers.utils.import_utils", "is_fake_tensor"): lambda tensor: False,
        ("transformers.masking_utils", "find_packed_sequence_indices"): sequences,
    }
    with contextlib.ExitStack() as stack:
        for (place, name), answer in answers.items():
            module = sys.modules.get(place)
            if module is not None and hasattr(module, name):
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, answer)
        yield


def _depends_on_inputs(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the forward that is being captured is made of more than numbers."""
    mode = get_proxy_mode()
    if mode is None:
        return True
    waiting = [get_proxy_slot(tensor, mode.tracer).proxy.node]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.op != "call_function":
            return True
        waiting += [before for before in node.all_input_nodes if before not in seen]
        seen.update(waiting)
    return False


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Mutes torch.export: it warns of what it is still to become, and prints the whole graph where it fails."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def only_device(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """The one device of the parameters, the buffers and the inputs.

    Raises
    ------
    InvalidInputError
        There are several.
    """
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin):
            raise InvalidInputError(f"{name!r} has no shape yet; run the model once before it is planned")
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [*model.parameters(), *model.buffers(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
    devices = sorted({str(t.device) for t in tensors})
    if len(devices) > 1:
        raise InvalidInputError(f"model and inputs are on {', '.join(devices)}; put all of them on one device")
    return torch.device(devices[0] if devices else "cpu")


def _drop_checks(graph: fx.Graph) -> None:
    """Drop the checks of metadata: they hold values alive, and say nothing that the capture did not settle."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)


def _name_state_directly(graph: fx.Graph) -> None:
    """Let what reads a buffer after a write in place read the buffer, and not the result of the write: they are one.

    The counter of a batch normalisation that is used twice would otherwise travel from the first use to the second.
    """
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        source = node.args[0] if node.args else None
        if schema is None or not isinstance(source, fx.Node) or source.op != "get_attr":
            continue
        written = schema.arguments[0].alias_info
        returned = schema.returns[0].alias_info if len(schema.returns) == 1 else None
        if written is not None and written.is_write and returned is not None and returned.is_write:
            node.replace_all_uses_with(source)


def _reason(error: Exception) -> str:
    """The first sentence of an error of torch.export, and what to do where that is known."""
    text = str(error).strip()
    first = text.split("\n")[0].split(". ")[0][:200]
    return f"{first}; set model.config.use_cache = False" if "DynamicCache" in text else first


def is_random(node: fx.Node) -> bool:
    """Whether a node draws from the generator of random numbers; operations unknown to ATen may."""
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags
    return False


def is_getitem(node: fx.Node) -> bool:
    """Whether a node only takes one result of an operation that has several."""
    return node.op == "call_function" and node.target is operator.getitem
