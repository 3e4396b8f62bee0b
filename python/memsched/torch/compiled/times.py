"""How long each operation of a captured step takes: measured on its device, or modelled for another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from memsched.torch.compiled.calls import bound
from memsched.torch.compiled.joint import Joint, Operation, is_foreign
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.machines import Machine
from memsched.torch.module_state import generators_unchanged
from memsched.torch.nests import tensors_of
from memsched.torch.roofline import Roofline

_REPEATS = 4
_ENOUGH = 0.02  # seconds of repeats, after which one operation has been timed enough
_CACHES = 16 * 2**20  # bytes that push what an operation reads out of a core's own caches, where a step rarely has it
_TOUCHED = 10e9  # bytes a second, where an operation cannot be tried alone

_BUSY = 0.8  # of its time a thread computes that nobody disturbs


class _Tried(NamedTuple):
    seconds: float
    running: float  # of these, what the thread ran
    differs: bool  # results lie otherwise than traced


_measured: dict[Any, _Tried] = {}  # by operation, shapes and devices: models repeat theirs, and so do plans


def measured_seconds(joint: Joint, sizes: Sizes) -> tuple[list[float], str]:
    """Of each operation, on made-up values on its device; operations that are alike are timed once. And a warning.

    An operation that cannot, or should not, run on made-up values counts as one pass over the bytes that it touches. A
    call that is folded into its readers adds to each only what it takes beyond such a pass. The warning is empty where
    the thread that measured ran all the while: else others had the cores that PyTorch's threads need.
    """
    found, all_tried = [], []
    with torch.no_grad(), generators_unchanged():
        for op in joint.operations:
            tried = _passed(op.node, sizes) if op.once else _tried(op.node, sizes)
            found.append(tried.seconds + sum(_beyond_a_pass(one, sizes) for one in _into(joint, op)))
            joint.strides_differ |= tried.differs
            all_tried.append(tried)
    share = sum(one.running for one in all_tried) / (sum(one.seconds for one in all_tried) or 1.0)
    waited = f"too long: the thread waited {1 - share:.0%} of the time, as where others take the cores"
    return found, f", {waited}; set OMP_NUM_THREADS=1" if all_tried and share < _BUSY else ""


def _passed(node: fx.Node, sizes: Sizes) -> _Tried:
    seconds = _one_pass(node, sizes)
    return _Tried(seconds, seconds, False)


def _tried(node: fx.Node, sizes: Sizes) -> _Tried:
    if not _can_be_tried(node):
        return _passed(node, sizes)
    key = _key(node, sizes)
    if key not in _measured:
        try:
            _measured[key] = _time(node, sizes)
        except Exception:  # of any kind, as values may be out of a range
            _measured[key] = _passed(node, sizes)
    return _measured[key]


def _can_be_tried(node: fx.Node) -> bool:
    """Whether made-up values do no harm: some kernels trust what they read, and nobody knows those of users."""
    target = node.target
    if is_foreign(target):
        read = [one for source in node.all_input_nodes for one in tensors_of(source.meta.get("val"))]
        return all(one.dtype.is_floating_point for one in read)
    names = [one.name for one in target._schema.arguments] if isinstance(target, torch._ops.OpOverload) else []
    return not any("workspace" in name or "reserve" in name for name in names)


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


def _beyond_a_pass(node: fx.Node, sizes: Sizes) -> float:
    return max(0.0, _tried(node, sizes).seconds - _one_pass(node, sizes))


def _one_pass(node: fx.Node, sizes: Sizes) -> float:
    """Seconds for the bytes that an operation touches."""
    return _touched(node, sizes) / _TOUCHED


def _touched(node: fx.Node, sizes: Sizes) -> int:
    touched = (one for source in (node, *node.all_input_nodes) for one in tensors_of(source.meta.get("val")))
    return sum(sizes.number(one.numel()) * one.element_size() for one in touched)


def modelled_seconds(joint: Joint, sizes: Sizes, machine: Machine) -> list[float]:
    """Of each operation, as a roofline model of a machine says."""
    found = []
    with FakeTensorMode() as fake, torch.no_grad(), Roofline(machine) as model:
        for op in joint.operations:
            if not isinstance(op.node.target, torch._ops.OpOverload):  # such as one that holds graphs
                found.append(_touched(op.node, sizes) / machine.memory_bandwidth + machine.launch)
                continue
            args, kwargs = _arguments(op.node, lambda one: _empty(one, sizes), sizes)
            model.lap()
            with fake:
                op.node.target(*args, **kwargs)
            found.append(model.lap())
    return found


def _time(node: fx.Node, sizes: Sizes) -> _Tried:
    args, kwargs = _arguments(node, lambda one: _filled(one, sizes), sizes)
    call = bound(node)
    device = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))
    differs = _differs(node, call(*args, **kwargs), sizes)
    best, spent = (float("inf"), 0.0), 0.0
    other = torch.zeros(_CACHES, dtype=torch.uint8, device="cpu") if device.type == "cpu" else None
    for _ in range(_REPEATS):
        if other is not None:
            other.add_(1)
        taken = _once(call, args, kwargs, device)
        best, spent = min(best, taken), spent + taken[0]
        if spent > _ENOUGH:
            break
    return _Tried(*best, differs)


def _differs(node: fx.Node, found: Any, sizes: Sizes) -> bool:
    """Whether the results of an operation lie otherwise than PyTorch traced; views after it may then fail."""
    for traced, real in zip(tensors_of(node.meta["val"]), tensors_of(found), strict=False):
        shape, strides = _shape(traced, sizes)
        promised = [step for n, step in zip(shape, strides, strict=True) if n > 1]
        kept = [step for n, step in zip(real.shape, real.stride(), strict=True) if n > 1]
        if promised != kept and real.numel() > 0:
            return True
    return False


def _once(call: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> tuple[float, float]:
    """Seconds, and how many of them this thread ran."""
    if device.type == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call(*args, **kwargs)
        last.record()
        last.synchronize()
        seconds = float(first.elapsed_time(last)) / 1000
        return seconds, seconds
    began, ran = time.perf_counter(), time.thread_time()
    call(*args, **kwargs)
    running, seconds = time.thread_time() - ran, time.perf_counter() - began
    # With one thread, what other processes do to the machine meanwhile need not count.
    return running if torch.get_num_threads() == 1 else max(seconds, running), running


def _arguments(node: fx.Node, make: Callable[[torch.Tensor], torch.Tensor], sizes: Sizes) -> tuple[Any, Any]:
    """The arguments of a call, made from their examples; one that occurs twice is made once."""
    made: dict[fx.Node, Any] = {}

    def argument(one: fx.Node) -> Any:
        if one not in made:
            example = one.meta.get("val")
            made[one] = make(example) if isinstance(example, torch.Tensor) else plain(example)
        return made[one]

    def plain(value: Any) -> Any:  # no `int`, which would bind the symbol to its hint for all plans to come
        return sizes.number(value) if isinstance(value, torch.SymInt) else value

    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
    return args, kwargs


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


def _key(node: fx.Node, sizes: Sizes) -> Any:
    def described(one: fx.Node) -> Any:
        example = one.meta.get("val")
        if isinstance(example, torch.Tensor):
            return (*map(tuple, _shape(example, sizes)), str(example.dtype), str(example.device))
        return str(example)

    return str(node.target), repr(fx.map_arg((node.args, node.kwargs), lambda one: _Told(repr(described(one)))))


class _Told(str):
    """A description in place of a node; `map_arg` takes it for a value."""

    __slots__ = ()
