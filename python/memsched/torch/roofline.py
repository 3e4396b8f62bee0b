"""How long operations would take on a machine that is not here: a model of every kernel, never a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from memsched.problems.machines import BANDWIDTH_SHARE, FLOPS_SHARE, Machine
from memsched.torch.nests import memory_of, tensors_of

aten = torch.ops.aten

_CONVOLUTIONS = {aten.convolution, aten.convolution_backward, aten._convolution, aten.cudnn_convolution}

# They take memory and run no kernel. No schema tells: the results are new, like those of any other operation.
_EMPTY = {
    *(aten.empty, aten.empty_like, aten.empty_permuted, aten.empty_strided),
    *(aten.new_empty, aten.new_empty_strided),
}


def _convolution_backward_flops(grad: Any, inputs: Any, weight: Any, *rest: Any, out_val: Any) -> int:
    """Each gradient costs what the forward costs. torch's own count of the weight's multiplies it by the groups."""
    transposed, output_mask = rest[4], rest[7]
    return (output_mask[0] + output_mask[1]) * conv_flop_count(inputs.shape, weight.shape, grad.shape, transposed)


# In place of, or besides, torch's formulas.
_FLOPS: dict[Any, Callable[..., int]] = {
    aten.convolution_backward: _convolution_backward_flops,
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(
        q.shape, k.shape, v.shape
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(
        grad.shape, q.shape, k.shape, v.shape
    ),
}


def describe(machine: Machine) -> str:
    """One sentence that says where predicted times come from, for the provenance of a profile."""
    return (
        f"roofline model of {machine.name}, not a measurement: per ATen kernel max(flops / ({FLOPS_SHARE:g} x peak), "
        f"bytes / ({BANDWIDTH_SHARE:g} x {machine.memory_bandwidth / 1e9:g} GB/s)) + {machine.launch * 1e6:g} us launch"
    )


class Roofline(TorchDispatchMode):
    """Adds up what every operation under it would take on a machine, as a roofline model says.

    Enter it inside a FakeTensorMode: then nothing is computed and nothing allocated. Each operation that reaches the
    dispatcher counts as one kernel of max(flops / (FLOPS_SHARE x peak), bytes / (BANDWIDTH_SHARE x memory_bandwidth))
    + launch seconds. That is a model, never a measurement.

    * Flops are those of matrix products, convolutions and attention (torch.utils.flop_counter); 0 for all else.
    * Bytes are read and written: of each storage among the arguments and the results the parts that are seen, but
      never more than the storage has. What is written in place is read too.
    * Operations that write nothing and whose results are all views of arguments cost nothing; neither does memory
      that is only allocated, nor a question about a tensor.
    * The peak is that of the first argument's type. float32 counts at the plain float32 rate in matrix products and
      attention, and at the TF32 rate in convolutions where the chip has one: torch's defaults. Types for which the
      chip has no tensor cores, float64 too, count at the float32 rate.

    `seconds` are those of all operations since it was made; `kernels` of them cost time.

    Examples
    --------
    >>> import torch
    >>> from torch._subclasses import FakeTensorMode
    >>> from memsched.torch.machines import MACHINES
    >>> from memsched.torch.roofline import Roofline
    >>> with FakeTensorMode(), Roofline(MACHINES["v100"]) as model:
    ...     product = torch.empty(4096, 4096) @ torch.empty(4096, 4096)
    >>> print(f"{model.seconds * 1e3:.1f} ms, {model.kernels} kernel")
    16.4 ms, 1 kernel
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.seconds = 0.0
        self.kernels = 0
        self._mark = 0.0

    def lap(self) -> float:
        """Seconds since the last lap, or since the beginning where there was none."""
        passed = self.seconds - self._mark
        self._mark = self.seconds
        return passed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if _runs_a_kernel(func, (args, kwargs), out):
            first = next(iter(tensors_of((args, kwargs))), None)
            self.seconds += self.machine.seconds(
                _flops(func, args, kwargs, out),
                _touched_bytes((args, kwargs), out, func),
                "" if first is None else str(first.dtype).removeprefix("torch."),
                func.overloadpacket in _CONVOLUTIONS,
            )
            self.kernels += 1
        return out


def _runs_a_kernel(func: Any, arguments: Any, out: Any) -> bool:
    """Whether an operation writes anything, to its arguments or to memory of its own."""
    if func._schema.is_mutable:
        return torch.Tag.inplace_view not in func.tags  # t_(), squeeze_(), ... change no byte
    if func.overloadpacket in _EMPTY:
        return False
    known = {memory_of(tensor) for tensor in tensors_of(arguments)}
    return any(memory_of(tensor) not in known for tensor in tensors_of(out))


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Operations of arithmetic, 0 where no formula is known."""
    formula = _FLOPS.get(func.overloadpacket) or flop_registry.get(func.overloadpacket)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


def _touched_bytes(arguments: Any, out: Any, func: Any) -> int:
    """Bytes read, and bytes written: results that are new, and arguments that the schema says are changed."""
    named = dict(zip((argument.name for argument in func._schema.arguments), arguments[0], strict=False))
    named.update(arguments[1])
    changed = [named.get(a.name) for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    read = {memory_of(tensor) for tensor in tensors_of(arguments)}
    new = [tensor for tensor in tensors_of(out) if memory_of(tensor) not in read]
    return _seen_bytes(tensors_of(arguments)) + _seen_bytes(tensors_of((changed, new)))


def _seen_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes under some tensors: each different view counts, each storage at most once over."""
    views: dict[Any, dict[Any, int]] = {}
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        dense = tensor.layout is torch.strided
        place = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride()) if dense else ()
        views.setdefault(memory_of(tensor), {})[place] = tensor.numel() * tensor.itemsize
        sizes[memory_of(tensor)] = tensor.untyped_storage().nbytes() if dense else tensor.numel() * tensor.itemsize
    return sum(min(sum(seen.values()), sizes[key]) for key, seen in views.items())
