"""The bytes that kernels allocate for their results where PyTorch traces fewer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from memsched.torch.nests import tensors_of

_aten = torch.ops.aten
COPY_OF_STORAGE = (
    _aten.copy.default,
    _aten.slice_scatter.default,
    _aten.select_scatter.default,
    _aten.diagonal_scatter.default,
)  # they copy all the memory in which their first argument lies
_AS_LARGE_AS_INPUT = (
    _aten.mse_loss.default,
    _aten.smooth_l1_loss.default,
    _aten.soft_margin_loss.default,
    _aten.binary_cross_entropy.default,
    _aten.col2im.default,
    _aten.im2col.default,
)  # their result is written where something as large as an input was
_EXPONENTIAL = 13  # matrices that `matrix_exp` holds at once, at most
_ONE_MORE = (_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default)


def kernel_bytes(target: Any, args: Any, result: torch.Tensor, place: int, bytes_of: Callable[[Any], int]) -> int:
    """What a result of an operation takes at least; 0 where that is what PyTorch traces.

    Arguments and result are examples; `place` is that of the result among all. `bytes_of` tells the bytes of the memory
    in which an argument lies (given the example), or of a tensor by itself (given its number of elements, which may be
    a symbol).
    """
    if target in COPY_OF_STORAGE:
        return bytes_of(args[0])
    read = tensors_of(args)
    if target in _AS_LARGE_AS_INPUT:
        return max(bytes_of(one.numel()) for one in read) * result.element_size()
    if target in _ONE_MORE and place > 0:
        return bytes_of(result.numel() + 1) * result.element_size()
    widths = {one.element_size() for one in read if one.dtype.is_floating_point}
    if place > 0 and result.dtype.is_floating_point and len(widths) > 1:
        # Statistics of a normalisation on the CPU whose input is narrower than its parameters, as under autocast.
        return bytes_of(result.numel()) * max(widths)
    return 0


def scratch_bytes(target: Any, args: Any, kwargs: Mapping[str, Any], bytes_of: Callable[[Any], int]) -> int:
    """What an operation allocates and gives back beside its results, where that is several times what it reads.

    As `kernel_bytes`; other kernels give back at most about as much as they read, and nothing is told of it.
    """
    if target is _aten.gelu_backward.default and kwargs.get("approximate", "none") == "none":
        return _contiguous_copies(*args[:2]) * bytes_of(args[0].numel()) * int(args[0].element_size())
    if target is _aten.linalg_matrix_exp.default:
        return _EXPONENTIAL * bytes_of(args[0].numel()) * int(args[0].element_size())
    if target is _aten.native_group_norm_backward.default:  # two sums over each channel of each sample
        samples, channels = args[5:7]
        return 2 * bytes_of(samples * channels) * max(4, *(int(one.element_size()) for one in tensors_of(args)))
    if target is _aten._trilinear.default:  # one slice: of the product of two, summed where the third has no dimension
        expands, sums, unrolled = args[3:6], args[6], args[7] if len(args) > 7 else 1
        first, second, third = (
            [bytes_of(size) for size in _expanded(one, where)] for one, where in zip(args[:3], expands, strict=True)
        )
        product = result = int(args[0].element_size())
        for at, sizes in enumerate(zip(first, second, third, strict=True)):
            summed = at == unrolled or (at in sums and at in expands[2])
            product *= 1 if summed else max(sizes[:2])
            result *= 1 if at == unrolled or at in sums else max(sizes)
        return product + result
    return 0


def _contiguous_copies(gradient: torch.Tensor, given: torch.Tensor) -> int:
    """How many oneDNN makes for the backward of GELU: of the gradient, and of a result that is to lie as that does."""
    ours = given.device.type == "cpu" and given.dtype in (torch.float32, torch.bfloat16)
    if not ours or not given.is_contiguous() or gradient.is_contiguous():
        return 0
    pairs = zip(gradient.shape, gradient.stride(), strict=True)
    strides = [stride for size, stride in pairs if size != 1 and stride != 0]
    return 1 if strides == sorted(strides, reverse=True) else 2


def _expanded(one: torch.Tensor, where: Any) -> list[Any]:
    shape = list(one.shape)
    for at in sorted(where):
        shape.insert(at, 1)
    return shape
