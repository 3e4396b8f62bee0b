"""How long each operation of a captured step takes: measured on its device, or modelled for another machine."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from memsched.torch.arena import cuda
from memsched.torch.compiled import clock, private
from memsched.torch.compiled.as_graph import Cost
from memsched.torch.compiled.calls import bound
from memsched.torch.compiled.joint import Joint, Operation, is_foreign
from memsched.torch.compiled.layouts import otherwise
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.compiled.update_mark import UPDATE
from memsched.torch.machines import Machine
from memsched.torch.meter import with_workspace
from memsched.torch.module_state import generators_unchanged
from memsched.torch.nests import tensors_of
from memsched.torch.roofline import Roofline

_REPEATS = 4
_ENOUGH = 0.02  # seconds of repeats, after which one operation has been timed enough
_CACHES = 16 * 2**20  # bytes that push what an operation reads out of a core's own caches, where a step rarely has it
_TOUCHED = 10e9  # bytes a second, where an operation cannot be tried alone on a CPU

_COPIED = 256 * 2**20  # bytes, to learn what a CUDA device touches in a second
_CYCLES = 2e9  # of a CUDA device in a second, or fewer
_LONGEST = 0.1  # seconds that it is kept waiting

_TRAINING = ", as it trains"
_DISTURBED = ", too long: the thread waited"
_BUSY = 0.8  # of its time a thread computes that nobody disturbs


class _Tried(NamedTuple):
    seconds: float
    running: float  # of these, what the thread ran
    otherwise: int | None = None  # bytes of results that lie otherwise than traced; None: nobody knows
    workspace: int = 0
    issued: float = 0.0  # seconds that the host takes to issue it, where another device runs it


_measured: dict[Any, _Tried] = {}  # by operation, shapes and devices: models repeat theirs, and so do plans


def measured_costs(joint: Joint, sizes: Sizes) -> tuple[list[Cost], str]:
    """Of each operation, on made-up values on its device; operations that are alike are timed once. And a warning.

    An operation that cannot, or should not, run on made-up values counts as one pass over the bytes that it touches. A
    call that is folded into its readers adds to each only what it takes beyond such a pass. The warning is empty where
    the thread that measured ran all the while: else others had the cores that PyTorch's threads need. Operations that
    were timed in training have those times.

    On CUDA the times are those of the device, or of the host that issues the operations: of both that which takes
    longer for all of them. What kernels allocate within is known there, from the allocator, and counted nowhere else.
    """
    all_tried, more = list[_Tried](), list[float]()
    with torch.no_grad(), generators_unchanged():
        for op in joint.operations:
            tried = _passed(op.node, sizes) if op.once else _tried(op.node, sizes)
            if joint.looked_at is not None:  # with other sizes than before, perhaps
                (joint.looked_at.discard if tried.otherwise == 0 else joint.looked_at.add)(op.node)
                # While a result is laid out anew, it is there twice.
                tried = tried._replace(workspace=tried.workspace + (tried.otherwise or 0))
            all_tried.append(tried)
            more.append(_of_folded(joint, op, sizes))
    by_host = sum(one.issued for one in all_tried) > sum(one.seconds for one in all_tried)
    times = [one.issued or one.seconds if by_host else one.seconds for one in all_tried]
    found = [Cost(a + b, one.workspace) for a, b, one in zip(times, more, all_tried, strict=True)]
    if joint.lapped is not None:
        known = zip(joint.operations, found, strict=True)
        return [Cost(joint.lapped.get(op.node.name, cost.seconds), cost.workspace) for op, cost in known], _TRAINING
    share = sum(one.running for one in all_tried) / (sum(one.seconds for one in all_tried) or 1.0)
    waited = f"{_DISTURBED} {1 - share:.0%} of the time, as where others take the cores; set OMP_NUM_THREADS=1"
    return found, waited if all_tried and share < _BUSY else ""


def disturbed(source: str) -> bool:
    """Whether what tells where times come from says that they are for this process alone."""
    return _DISTURBED in source or _TRAINING in source


def _passed(node: fx.Node, sizes: Sizes) -> _Tried:
    seconds = _one_pass(node, sizes)
    return _Tried(seconds, seconds)


def _tried(node: fx.Node, sizes: Sizes) -> _Tried:
    if not _can_be_tried(node):
        return _passed(node, sizes)
    key = described(node, sizes)
    if key not in _measured:
        try:
            _measured[key] = _time(node, sizes)
        except Exception:  # of any kind, as values may be out of a range
            _measured[key] = _passed(node, sizes)
    return _measured[key]


def _can_be_tried(node: fx.Node) -> bool:
    """Whether made-up values do no harm: some kernels trust what they read, and nobody knows those of users."""
    if is_foreign(node.target):
        read = [one for source in node.all_input_nodes for one in tensors_of(source.meta.get("val"))]
        return all(one.dtype.is_floating_point for one in read)
    return all(_maker(one) is not None for one in _trusted(node))


def _trusted(node: fx.Node) -> list[fx.Node]:
    """Arguments whose content a kernel trusts, as another left it there."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    pairs = zip(node.target._schema.arguments, node.args, strict=False)
    named = [(known.name, one) for known, one in pairs] + list(node.kwargs.items())
    trusted = (one for name, one in named if "workspace" in name or "reserve" in name)
    return [one for one in trusted if isinstance(one, fx.Node)]


def _maker(value: fx.Node) -> fx.Node | None:
    """The operation whose result a value is a part of, if that trusts nothing itself."""
    maker = value.args[0] if value.target is operator.getitem else None
    return maker if isinstance(maker, fx.Node) and not _trusted(maker) and _can_be_tried(maker) else None


def _into(joint: Joint, op: Operation) -> set[fx.Node]:
    """The calls that are folded into an operation."""
    found: set[fx.Node] = set()
    front = list(op.node.all_input_nodes)
    while front:
        node = front.pop()
        if node in joint.folded and node not in found:
            found.add(node)
            front += node.all_input_nodes
    return found


def _of_folded(joint: Joint, op: Operation, sizes: Sizes) -> float:
    """Seconds that an operation takes longer as calls are folded into it: what they compute, and what it reads more."""
    folded = _into(joint, op)
    if not folded:
        return 0.0
    computed = sum(max(0.0, _tried(one, sizes).seconds - _one_pass(one, sizes)) for one in folded)
    read = sizes.total({*op.reads, *op.writes}) - _touched(op.node, sizes)
    return computed + max(0, read) / _rate(op.node)


def _one_pass(node: fx.Node, sizes: Sizes) -> float:
    """Seconds for the bytes that an operation touches."""
    return _touched(node, sizes) / _rate(node)


def _rate(node: fx.Node) -> float:
    """Bytes that an operation touches in a second."""
    on = {one.device for one in tensors_of(node.meta.get("val")) if one.device.type == "cuda"}
    return _bytes_a_second(on.pop()) if on else _TOUCHED


@functools.cache
def _bytes_a_second(device: torch.device) -> float:
    """That a CUDA device reads and writes."""
    memory = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    memory.clone()
    return 2 * _COPIED / _time_on_cuda(memory.clone, (), {}, device).seconds


def _touched(node: fx.Node, sizes: Sizes) -> int:
    if UPDATE in node.meta:
        return int(node.meta[UPDATE].touched)
    touched = (one for source in (node, *node.all_input_nodes) for one in tensors_of(source.meta.get("val")))
    return sum(sizes.number(one.numel()) * one.element_size() for one in touched)


def modelled_costs(joint: Joint, sizes: Sizes, machine: Machine) -> list[Cost]:
    """Of each operation, as a roofline model of a machine says."""
    found = []
    with FakeTensorMode() as fake, torch.no_grad(), Roofline(machine) as model:
        for op in joint.operations:
            if not isinstance(op.node.target, torch._ops.OpOverload):  # such as one that holds graphs
                calls = op.update.calls if op.update is not None else 1
                found.append(Cost(_touched(op.node, sizes) / machine.memory_bandwidth + calls * machine.launch))
                continue
            args, kwargs = _arguments(op.node, lambda one: _empty(one, sizes), sizes)
            model.lap()
            with fake:
                op.node.target(*args, **kwargs)
            found.append(Cost(model.lap()))
    return found


def _time(node: fx.Node, sizes: Sizes) -> _Tried:
    known = {one: _part_of(one, sizes) for one in _trusted(node)}
    args, kwargs = _arguments(node, lambda one: _filled(one, sizes), sizes, known)
    call = bound(node)
    found = call(*args, **kwargs)
    laid_anew = otherwise(node.meta["val"], found)
    on = {one.device for one in tensors_of((found, args, kwargs)) if one.device.type == "cuda"}
    del found
    if on:
        return _time_on_cuda(call, args, kwargs, on.pop())._replace(otherwise=laid_anew)
    return _Tried(*_time_on_cpu(call, args, kwargs), laid_anew)


def _time_on_cpu(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[float, float]:
    best, spent = (float("inf"), 0.0), 0.0
    other = torch.zeros(_CACHES, dtype=torch.uint8, device="cpu")
    for _ in range(_REPEATS):
        other.add_(1)
        taken = _once(call, args, kwargs)
        best, spent = min(best, taken), spent + taken[0]
        if spent > _ENOUGH:
            break
    return best


def alone(node: fx.Node, sizes: Sizes, change: Callable[[Any], Callable[..., Any]]) -> tuple[float, int]:
    """Seconds and workspace of an operation on made-up values, where its call is changed.

    Workspace is what it allocates and gives back, as PyTorch's allocators tell it.
    """
    args, kwargs = _arguments(node, lambda one: _filled(one, sizes), sizes)
    call = change(bound(node))
    kept = call(*args, **kwargs)
    on = next(one.device for one in tensors_of(args))
    if on.type == "cuda":
        del kept
        tried = _time_on_cuda(call, args, kwargs, on)
        return tried.seconds, tried.workspace
    kept, workspace = with_workspace(lambda: call(*args, **kwargs))
    return _time_on_cpu(call, args, kwargs)[0], workspace


def _time_on_cuda(call: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> _Tried:
    """Of an operation that has run before: kernels are loaded, and libraries have their memory.

    What is measured waits behind an operation that only waits, so that the host is ahead, as it is in training.
    """
    cuda.reset_peak(device)
    began = time.perf_counter()
    kept = call(*args, **kwargs)
    issued = time.perf_counter() - began
    workspace = cuda.peak(device) - cuda.allocated(device)
    del kept
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(_REPEATS)]
    private.wait_on_cuda(int(min(2 * _REPEATS * issued, _LONGEST) * _CYCLES))
    for first, last in marks:
        first.record()
        began = time.perf_counter()
        call(*args, **kwargs)
        issued = min(issued, time.perf_counter() - began)
        last.record()
    torch.cuda.synchronize(device)
    seconds = min(float(first.elapsed_time(last)) for first, last in marks) / 1000
    return _Tried(seconds, seconds, workspace=max(0, workspace), issued=issued)


def _once(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[float, float]:
    """Seconds on the CPU, and how many of them this thread ran."""
    began, ran = time.perf_counter(), time.thread_time()
    call(*args, **kwargs)
    running, seconds = time.thread_time() - ran, time.perf_counter() - began
    if not clock.threads_are_timed():
        return seconds, seconds
    # With one thread, what other processes do to the machine meanwhile need not count.
    return running if torch.get_num_threads() == 1 else max(seconds, running), running


def _arguments(
    node: fx.Node,
    make: Callable[[torch.Tensor], torch.Tensor],
    sizes: Sizes,
    known: Mapping[fx.Node, Any] = MappingProxyType({}),
) -> tuple[Any, Any]:
    """The arguments of a call, made from their examples if they are not known; one that occurs twice is made once."""
    made = dict(known)

    def argument(one: fx.Node) -> Any:
        if one not in made:
            example = one.meta.get("val")
            made[one] = make(example) if isinstance(example, torch.Tensor) else plain(example)
        return made[one]

    def plain(value: Any) -> Any:  # no `int`, which would bind the symbol to its hint for all plans to come
        return sizes.number(value) if isinstance(value, torch.SymInt) else value

    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
    return args, kwargs


def _part_of(value: fx.Node, sizes: Sizes) -> Any:
    """A part of a result, as the operation leaves it that makes it from made-up values."""
    maker, part = value.args
    args, kwargs = _arguments(maker, lambda one: _filled(one, sizes), sizes)
    return bound(maker)(*args, **kwargs)[part]


def _shape(example: torch.Tensor, sizes: Sizes) -> tuple[list[int], list[int]]:
    return [sizes.number(n) for n in example.shape], [sizes.number(n) for n in example.stride()]


def _empty(example: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    shape, stride = _shape(example, sizes)
    return torch.empty_strided(shape, stride, dtype=example.dtype, device=example.device)


def _filled(example: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    shape, stride = _shape(example, sizes)
    span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    if example.dtype.is_floating_point or example.dtype.is_complex:
        flat = torch.rand(span, dtype=torch.float32, device=example.device).add_(0.5).to(example.dtype)
    else:
        flat = torch.zeros(span, dtype=example.dtype, device=example.device)
    return flat.as_strided(shape, stride)


def described(node: fx.Node, sizes: Sizes) -> Any:
    """An operation and what it is given, the same for operations that take as long."""

    def argument(one: fx.Node) -> Any:
        example = one.meta.get("val")
        if isinstance(example, torch.Tensor):
            return (*map(tuple, _shape(example, sizes)), str(example.dtype), str(example.device))
        return str(example)

    return str(node.target), repr(fx.map_arg((node.args, node.kwargs), lambda one: _Told(repr(argument(one)))))


class _Told(str):
    """A description in place of a node; `map_arg` takes it for a value."""

    __slots__ = ()
