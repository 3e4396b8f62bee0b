"""Any training step as a `Graph`: its operations are recorded as they reach torch's dispatcher."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from memsched._core import Graph
from memsched.errors import InvalidInputError
from memsched.support import checks
from memsched.torch.module_state import generators_unchanged, named_places, unchanged
from memsched.torch.nests import tensors_of
from memsched.torch.recorder.assemble import assemble
from memsched.torch.recorder.tape import Recorder, sum_in_place
from memsched.torch.weightless import fake_like, fake_mode_of

_P = ParamSpec("_P")

__all__ = ["Recording", "graph", "graph_all", "record", "record_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded step.

    Attributes
    ----------
    graph : Graph
    eager_peak : int
        Bytes, resident included: the largest sum of the storages that were alive when an operation had just run. Where
        `doubled` is empty, `memsched.peak_memory(graph)` is at most this. It is less only where the step kept a tensor
        beyond its last use, in a variable for instance, while memory was at its highest.
    doubled : tuple of str
        The ops while which the graph counts more than there was: they wrote in place what others had read before. The
        graph then has the old and the new bytes side by side while such an op runs.
    """

    graph: Graph
    eager_peak: int
    doubled: tuple[str, ...]


def _graph_of(recorded: Callable[_P, Recording]) -> Callable[_P, Graph]:
    """The same function, but without what was measured meanwhile."""

    @functools.wraps(recorded)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> Graph:
        return recorded(*args, **kwargs).graph

    return alone


def record_all(
    step: Callable[[], object],
    *,
    resident: Iterable[torch.Tensor] = (),
    times: Any = None,
    name: str | None = None,
    batch: int = 1,
    paths: Mapping[nn.Module, str] | None = None,
    reorderable: bool = False,
    repeatable: bool = False,
    persistent: bool = False,
) -> Recording:
    """Run a training step once and write down what it did as a graph.

    The step is any Python: forward, loss, backward, optimiser; on real tensors, or on fake ones under a FakeTensorMode
    that is entered around this call. A tensor of the graph is a storage, whatever views it has; views are no ops. What
    is written in place belongs to the op that made it, or that made what is added to it, wherever nobody read it in
    between; `Recording.doubled` has the exceptions. Gradients that meet are added in place where autograd does so when
    nobody watches. Scratch memory inside one operation is not seen.

    Parameters
    ----------
    step : callable
        Called once, without arguments. What it makes and leaves alive, such as the tensors that it returns and the
        gradients of parameters, is read by a last op named "end".
    resident : iterable of torch.Tensor
        Parameters, buffers, gradients and optimiser state that exist before the step: their bytes stay for good.
        Other tensors that exist before the step have the role input, and are freed after their last use.
    times : callable or dispatch mode, optional
        Seconds of one operation: times(func, args, kwargs, out) -> float, or a mode with `lap()`, such as a Roofline,
        which is entered under the recorder. Default: no operation takes time.
    name : str, optional
        Of the graph. Default: "step".
    batch : int
        Samples per step.
    paths : mapping of torch.nn.Module to str, optional
        An op that runs within such a module has this in front of its name, as in "layer1.0.conv1/convolution".
    reorderable : bool
        Whether the ops may run in another order. Tensors without bytes then keep in order what no other tensor does:
        who reads and who changes resident bytes, random numbers, and the end after everything. Numbers that the step
        took out of tensors, as item() does, count as constants.
    repeatable : bool
        Whether ops that draw random numbers or update running statistics may run again, as `memsched.torch.plan_step`
        lets them: the same numbers are drawn, and the second statistics are workspace, which each run is given.
        The graph does not say that an op must not run again once another has changed resident bytes that it reads.
    persistent : bool
        What an optimiser changes (parameters, its state) are persistent tensors, which plans may send to the host,
        and not resident: schedules are then repeated (docs/schedule.md).

    Returns
    -------
    Recording
        `record` returns its graph alone. Phase is fwd until the first backward begins, then bwd. Kind is the
        operation's name in ATen, such as "convolution", or "optimizer". Ops share a layer with the backward that
        autograd made for them; those of all optimisers are one more layer. Ops that draw random numbers or write
        resident bytes have once=true, but for those that `repeatable` names.

    Raises
    ------
    InvalidInputError
        An option that cannot be right, a step without operations, or an operation on tensors that are not dense.

    Examples
    --------
    >>> import memsched, torch
    >>> from memsched.torch.recorder.record import record
    >>> model, x = torch.nn.Linear(256, 64), torch.ones(16, 256)
    >>> step = record(lambda: model(x).relu().sum().backward(), resident=model.parameters())
    >>> [op["name"] for op in step.ops][:3], step.resident, memsched.peak_memory(step)
    (['addmm', 'relu', 'sum'], 65792, 151808)
    """
    count = checks.count("batch", batch, 1, 2**31 - 1)
    lap = getattr(times, "lap", None)
    cost = (lambda *_: lap()) if lap is not None else times
    if cost is not None and not callable(cost):
        raise InvalidInputError(
            f"times is {times!r}; give a callable times(func, args, kwargs, out), or a mode with lap()"
        )
    recorder = Recorder(resident, cost, {} if paths is None else paths, repeatable=repeatable)
    with contextlib.ExitStack() as stack:
        if lap is not None:
            stack.enter_context(times)
            lap()
        stack.enter_context(recorder.hooks())
        with recorder:
            kept = step()
        tape = recorder.close()
        del kept
    if not tape.events:
        raise InvalidInputError("the step ran no operation of torch; let it call the model on the tensors of one batch")
    sum_in_place(tape)
    made, doubled = assemble(
        tape, "step" if name is None else name, count, reorderable=reorderable, persistent=persistent
    )
    return Recording(graph=made, eager_peak=tape.eager_peak(), doubled=doubled)


record = _graph_of(record_all)


def graph_all(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | None = None,
    autocast: torch.dtype | None = None,
    times: Any = None,
    name: str | None = None,
    reorderable: bool = False,
    repeatable: bool = False,
    persistent: bool = False,
) -> Recording:
    """The training step of a model as a graph, found on fake tensors: nothing is computed or allocated.

    The step is the forward, the loss, the backward and, if there is one, the optimiser's step, with gradients that do
    not exist before (zero_grad sets them to None). The outputs are dropped once the loss is there. CPU operations are
    recorded whatever the model's device; a model on the meta device will do. The model is as before afterwards.

    Parameters
    ----------
    model : torch.nn.Module
    args : tuple
        What the model is called with, positionally. The first tensor's first dimension is the graph's batch.
    loss : callable, optional
        From the model's output to a scalar. Default: the sum of all floating tensors in the output.
    optimizer : callable, optional
        From the list of parameters to an optimiser, such as functools.partial(torch.optim.SGD, lr=0.1). It takes one
        step before the recorded one, so that its state exists, and is resident. Default: gradients are results.
    autocast : torch.dtype, optional
        Forward and loss run under torch.autocast with this type.
    times : callable or dispatch mode, optional
        As in `record`.
    name : str, optional
        Of the graph. Default: the model's class.
    reorderable : bool
        As in `record`. The step then clears the gradients when the optimiser is done, so that each lives until its
        last use. Give the optimiser foreach=False: then each parameter has updates of its own, which can run early.
    repeatable : bool
        As in `record`.
    persistent : bool
        As in `record`.

    Returns
    -------
    Recording
        `graph` returns its graph alone, which is as `record` describes it. Resident are parameters, buffers and the
        optimiser's state. The names of ops begin with the module that ran them.

    Raises
    ------
    InvalidInputError
        An argument that cannot be right, a loss that is no scalar or needs no gradient, or a step that depends on the
        values of its tensors.

    Examples
    --------
    >>> import functools, torch
    >>> from memsched.torch.recorder.record import graph
    >>> with torch.device("meta"):  # weights that would take 4 TB
    ...     model, x = torch.nn.Linear(10**6, 10**6), torch.empty(8, 10**6)
    >>> step = graph(model, (x,), optimizer=functools.partial(torch.optim.SGD, lr=0.1))
    >>> [op["name"] for op in step.ops]
    ['addmm', 'sum', 'ones_like', 'mm', 'sum#2', 'optimizer/add_', 'optimizer/add_#2', 'end']
    """
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"model is of type {type(model).__name__}; give a torch.nn.Module")
    if not isinstance(args, tuple):
        raise InvalidInputError(f"args is of type {type(args).__name__}; give a tuple, such as (x,) for one input")
    known = [*model.parameters(), *model.buffers(), *tensors_of(args)]
    fake = fake_mode_of(known) or FakeTensorMode(allow_non_fake_inputs=True)
    memo = WeakIdKeyDictionary()  # tied weights stay tied

    def faked(tensor: torch.Tensor) -> Any:
        if tensor not in memo:
            memo[tensor] = fake_like(tensor, fake, torch.device("cpu")).requires_grad_(tensor.requires_grad)
        return memo[tensor]

    state = {path: faked(tensor) for path, tensor in named_places(model)}
    inputs = pytree.tree_map_only(torch.Tensor, faked, args)
    parameters = [faked(parameter) for parameter in model.parameters()]
    first = next(iter(tensors_of(args)), None)
    with generators_unchanged(), fake, unchanged(model), _values_needed(), contextlib.ExitStack() as stack:
        updates = None if optimizer is None else optimizer(parameters)
        mixed = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)

        def step() -> object:
            with mixed:
                outputs = torch.func.functional_call(model, state, inputs, tie_weights=False)
                value = _sum_of_floats(outputs) if loss is None else _checked(loss(outputs))
            del outputs
            value.backward()
            if updates is not None:
                updates.step()
                if reorderable:
                    updates.zero_grad(set_to_none=True)
            return value

        if updates is not None:
            stack.callback(updates.zero_grad)
            step()
            updates.zero_grad(set_to_none=True)
        return record_all(
            step,
            resident=[*state.values(), *tensors_of(updates.state if updates is not None else {})],
            times=times,
            name=type(model).__name__ if name is None else name,
            batch=max(1, first.shape[0]) if first is not None and first.dim() > 0 else 1,
            paths={module: path for path, module in model.named_modules()},
            reorderable=reorderable,
            repeatable=repeatable,
            persistent=persistent,
        )


graph = _graph_of(graph_all)


def _checked(value: Any) -> torch.Tensor:
    """The loss, if backward() can begin there."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidInputError(f"the loss is {shape}; it must be a tensor with one element, such as output.mean()")
    if not value.requires_grad:
        raise InvalidInputError("the loss needs no gradient; let it depend on a parameter that requires_grad")
    return value


def _sum_of_floats(outputs: Any) -> torch.Tensor:
    """The default loss."""
    floats = [tensor.sum() for tensor in tensors_of(outputs) if tensor.is_floating_point()]
    if not floats:
        raise InvalidInputError("the model returns no floating tensor; give a loss: from its output to a scalar")
    return _checked(functools.reduce(operator.add, floats))


@contextlib.contextmanager
def _values_needed() -> Iterator[None]:
    """Says what to do where a step asks fake tensors for their values."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InvalidInputError(
            f"the step depends on the values of its tensors ({error.func}), which a step without data does not have; "
            "run it on real tensors with record()"
        ) from error
