"""The backend `memsched` of torch.compile."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from memsched.support.units import parse_bandwidth
from memsched.torch.compiled.function import function_of
from memsched.torch.compiled.gradients import check_gradients
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.groups import group_of
from memsched.torch.compiled.joint import check_casts, give_memory
from memsched.torch.compiled.layouts import AS_KERNELS
from memsched.torch.compiled.options import Options, read_options, refusal
from memsched.torch.compiled.private import (
    Boxed,
    DynamoSignal,
    backward_is_compiled,
    check_release,
    compile_joint,
    inline_regions,
    is_autocast_on,
    note_fused_steps,
    python_code,
    saving_is_hooked,
    saving_is_rewritten,
    under_autocast,
    watch_gradients,
    without_new_guards,
    wrapper_among,
)
from memsched.torch.compiled.uncaptured import break_here, hear_of_uncaptured, warn_of_containers
from memsched.torch.compiled.unit import Unit
from memsched.torch.compiled.unplanned import Guarded, unplanned, warn_unplanned
from memsched.torch.compiled.update_writing import write_updates
from memsched.torch.compiled.wrapper import around
from memsched.torch.errors import CaptureError
from memsched.torch.optimizer_state import is_strange

_TRAINING: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # those that train something that is compiled


def memsched(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a captured graph so that its training step fits a budget.

    torch.compile finds it by its name:

    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> step = torch.compile(model, backend="memsched", options={"budget": "50%"})
    >>> step(torch.randn(256, 64)).sum().backward()

    What cannot be captured runs without a plan, and a warning says why.

    Parameters
    ----------
    module, inputs
        As Dynamo gives them to a backend.
    options : dict
        See `Options`.
    """
    warn_of_containers()
    hear_of_uncaptured(memsched)
    return refusal(options) or backend_of(group_of(read_options(options)))(module, inputs)


hear_of_uncaptured(memsched)


def backend_of(
    group: Group, prepare: Callable[[fx.GraphModule], None] | None = None
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for torch.compile whose graphs are all in one group; `prepare` changes them before they are traced."""

    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if prepare is not None:
            prepare(module)
        return _compile(module, inputs, group)

    return backend


def _compile(module: fx.GraphModule, inputs: Sequence[Any], group: Group) -> Callable[..., Any]:
    check_release()
    note_fused_steps()
    inline_regions(module)
    casts, autocast = under_autocast(module), is_autocast_on()
    if (kind := wrapper_among(inputs)) is not None:
        error = CaptureError(f"it has tensors of the class {kind}, whose memory no plan knows")
        return unplanned(module, error, offload=_offloads(group.options))
    if saving_is_rewritten():
        error = CaptureError("saved_tensors_hooks around it are graphs (fx.GraphModule), which no plan knows")
        return unplanned(module, error)
    if backward_is_compiled():
        return unplanned(module, CaptureError("compiled autograd, which traces backwards once more, knows no plans"))
    units: list[Unit] = []
    direct: list[Callable[..., Any]] = []  # instead of what AOTAutograd makes, if it can be called
    examples = list(inputs)  # until it is compiled: AOTAutograd keeps the functions below
    prepare: Callable[[fx.GraphModule], None] | None = None
    inference: Callable[[fx.GraphModule], Boxed] = python_code
    decompositions: Mapping[Any, Callable[..., Any]] = AS_KERNELS
    if group.options.mode == "inductor":
        from memsched.torch.compiled import inductor  # which takes seconds to import

        prepare, inference, decompositions = inductor.prepare, inductor.inference_code, inductor.decompositions()

    def partition(joint: fx.GraphModule, results: int, static: Sequence[int]) -> tuple[fx.GraphModule, fx.GraphModule]:
        if casts:
            check_casts(joint)
        give_memory(joint)
        if prepare is not None:
            prepare(joint)
        if group.updates is not None:
            write_updates(joint, results, examples, group.updates)
        with without_new_guards(joint):
            unit = Unit(joint, results, static, group)
            unit.broken = break_here()
            check_gradients(module, unit.joint)
            units.append(unit)
            group.units.add(unit)
            example = unit.example()
        return example.forward, example.backward

    def forward() -> Boxed:
        (unit,) = units
        left = around(unit.joint, examples, autocast=autocast)
        unit.marked = left is None and group.options.mode == "inductor"
        direct.extend([function_of(unit, left)] if left is not None else [])
        return unit.forward

    def without_backward(graph: fx.GraphModule) -> Boxed:
        if torch.is_grad_enabled():  # else it is no part of training
            warn_unplanned(
                "nothing in it needs a gradient, so it is captured without a backward; what it holds is not counted, "
                "and neither are weights that only it reads: give them as reserve"
            )
        return inference(graph)

    try:
        with warnings.catch_warnings():
            # PyTorch looks for the forward of an operation whose backward it cannot trace: it is no error of the model.
            warnings.filterwarnings("ignore", "Error detected in", UserWarning)
            planned = compile_joint(
                module,
                inputs,
                partition=partition,
                forward=forward,
                backward=lambda: units[0].backward,
                inference=without_backward,
                decompositions=decompositions,
            )
    except DynamoSignal:
        raise
    except (CaptureError, AssertionError, NotImplementedError, RuntimeError) as error:  # of AOTAutograd, too
        return unplanned(module, error, offload=_offloads(group.options))
    examples.clear()
    run = _called(planned, direct, units, group.options.optimizer)
    return Guarded(module, run, planned, offload=_offloads(group.options))


def _called(
    planned: Callable[..., Any], direct: Sequence[Callable[..., Any]], units: Sequence[Unit], optimizer: Any
) -> Callable[..., Any]:
    """What runs a graph: the direct call, where there is one and nothing is around it that it does not know."""

    checked = not isinstance(optimizer, torch.optim.Optimizer)

    def call(*args: Any) -> Any:
        nonlocal checked
        if direct and torch.is_grad_enabled() and not saving_is_hooked():
            results = direct[0](*args)
        else:
            results = planned(*args)
            for unit in units:
                watch_gradients(results, unit.arriving)
        if not checked:  # the parameters are known now
            checked = _check_optimizer(optimizer, args, results)
        return results

    return call


def _check_optimizer(optimizer: torch.optim.Optimizer, args: Sequence[Any], results: Sequence[Any]) -> bool:
    """Once all graphs of a step have run, and a backward begins, tell that the optimiser trains nothing of any.

    Returns whether it is known that it does, or told that it does not.
    """
    own = [one for one in args if isinstance(one, torch.nn.Parameter) and one.requires_grad]
    if not is_strange(optimizer, own, all_of_model=False):
        _TRAINING.add(optimizer)

    def tell(_: Sequence[Any]) -> None:
        if optimizer in _TRAINING:
            return
        _TRAINING.add(optimizer)  # told once
        warnings.warn(
            f"optimizer is {type(optimizer).__name__}, which trains no parameter of what is compiled: was it built for "
            "another model, or a copy of it? Its state is counted",
            UserWarning,
            stacklevel=2,
        )

    nodes = [one.grad_fn for one in results if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    known = optimizer in _TRAINING
    for node in nodes[: 0 if known else 1]:
        node.register_prehook(tell)
    return known


def _offloads(options: Options) -> bool:
    """Whether there is a link to the host."""
    if options.bandwidth is not None:
        return parse_bandwidth(options.bandwidth, "bandwidth") > 0
    return options.device != "here" or torch.cuda.is_available()
