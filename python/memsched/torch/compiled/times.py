"""How long each operation of a captured step takes: measured on its device, or modelled for another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from memsched.torch.compiled.as_graph import Sizes
from memsched.torch.compiled.joint import Joint, Operation, tensors
from memsched.torch.machines import Machine
from memsched.torch.roofline import Roofline

_REPEATS = 5
_ENOUGH = 0.02  # seconds of repeats, after which one operation has been timed enough
_TOUCHED = 10e9  # bytes a second, where an operation cannot be tried alone

_measured: dict[Any, float] = {}  # by operation, shapes and devices: models repeat theirs, and so do plans


def measured_seconds(joint: Joint, sizes: Sizes) -> list[float]:
    """Of each operation, on made-up values on its device; operations that are alike are timed once.

    An operation that cannot run on made-up values counts as one pass over the bytes that it touches. A call that is
    folded into its readers adds to each only what it takes beyond such a pass.
    """
    found = []
    devices = [joint.device] if joint.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        for op in joint.operations:
            found.append(_seconds_of(op.node, sizes) + sum(_beyond_a_pass(one, sizes) for one in _into(joint, op)))
    return found


def _seconds_of(node: fx.Node, sizes: Sizes) -> float:
    key = _key(node, sizes)
    if key not in _measured:
        try:
            _measured[key] = _time(node, sizes)
        except Exception:  # of any kind: values may be out of a range, a process group may be missing
            _measured[key] = _bytes_touched(node, sizes) / _TOUCHED
    return _measured[key]


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
    return max(0.0, _seconds_of(node, sizes) - _bytes_touched(node, sizes) / _TOUCHED)


def _bytes_touched(node: fx.Node, sizes: Sizes) -> int:
    touched = (one for source in (node, *node.all_input_nodes) for one in tensors(source.meta.get("val")))
    return sum(sizes.number(one.numel()) * one.element_size() for one in touched)


def modelled_seconds(joint: Joint, sizes: Sizes, machine: Machine) -> list[float]:
    """Of each operation, as a roofline model of a machine says."""
    found = []
    with FakeTensorMode() as fake, torch.no_grad(), Roofline(machine) as model:
        for op in joint.operations:
            args, kwargs = _arguments(op.node, lambda one: _empty(one, sizes))
            model.lap()
            with fake:
                op.node.target(*args, **kwargs)
            found.append(model.lap())
    return found


def _time(node: fx.Node, sizes: Sizes) -> float:
    args, kwargs = _arguments(node, lambda one: _filled(one, sizes))
    call: Callable[..., Any] = node.target
    device = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))
    call(*args, **kwargs)
    best, spent = float("inf"), 0.0
    for _ in range(_REPEATS):
        seconds = _once(call, args, kwargs, device)
        best, spent = min(best, seconds), spent + seconds
        if spent > _ENOUGH:
            break
    return best


def _once(call: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> float:
    if device.type == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call(*args, **kwargs)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
    began = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - began


def _arguments(node: fx.Node, make: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, Any]:
    """The arguments of a call, made from their examples; one that occurs twice is made once."""
    made: dict[fx.Node, Any] = {}

    def argument(one: fx.Node) -> Any:
        if one not in made:
            example = one.meta.get("val")
            made[one] = make(example) if isinstance(example, torch.Tensor) else _plain(example)
        return made[one]

    def _plain(value: Any) -> Any:
        return int(value) if isinstance(value, torch.SymInt) else value

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
