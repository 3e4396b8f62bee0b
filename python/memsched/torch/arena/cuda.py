"""The arena in place of PyTorch's allocator on CUDA devices, and what either of them tells."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from memsched.errors import MemschedError

if TYPE_CHECKING:
    from memsched.torch.arena.native import CudaNative

_TAKEN: list[CudaNative] = []  # the library, once it has taken the place


@functools.cache
def taken_over() -> CudaNative:
    """The library, which serves all that this process has on CUDA devices from now on."""
    from memsched.torch.arena import native

    if not torch.cuda.is_available():
        raise MemschedError("no GPU is there for an arena on 'cuda'")
    if torch.cuda.is_initialized():
        raise MemschedError(
            "PyTorch uses the GPU already, so that its allocator cannot be replaced; make the arena first, before "
            "anything is on the GPU"
        )
    library = native.cuda()
    library.use(ctypes.CDLL(_runtime()))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(library.path), "arena_cuda_allocate", "arena_cuda_give_back"
    )
    shared = ctypes.cast(library.library.arena_cuda_record_stream, ctypes.c_void_p).value
    allocator.allocator().set_record_stream_fn(shared)
    torch.cuda.memory.change_current_allocator(allocator)
    _TAKEN.append(library)
    return library


def _runtime() -> str:
    """The CUDA runtime that PyTorch has loaded."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.partition("/")[2]
        if "libcudart" in path.rpartition("/")[2]:
            return "/" + path
    raise MemschedError("the CUDA runtime that PyTorch uses is not found; an arena on 'cuda' needs Linux")


def begin(library: CudaNative, *, recorded: bool) -> str:
    """Serve the current stream; which that is."""
    stream = torch.cuda.current_stream()
    library.begin(stream.device.index, stream.cuda_stream, recorded=recorded)
    return f"stream {stream.cuda_stream:#x} of device {stream.device.index}"


def allocated(device: torch.device) -> int:
    """Bytes of tensors on a device."""
    return int(_TAKEN[0].library.arena_cuda_allocated()) if _TAKEN else torch.cuda.memory_allocated(device)


def peak(device: torch.device) -> int:
    """The most of them since `reset_peak`."""
    return int(_TAKEN[0].library.arena_cuda_peak()) if _TAKEN else torch.cuda.max_memory_allocated(device)


def reset_peak(device: torch.device) -> None:
    """Begin to count anew."""
    if _TAKEN:
        _TAKEN[0].library.arena_cuda_reset_peak()
    else:
        torch.cuda.reset_peak_memory_stats(device)


def reserved(device: torch.device) -> int:
    """Bytes that PyTorch's allocator has of a device, in use or not."""
    return int(_TAKEN[0].library.arena_cuda_reserved()) if _TAKEN else torch.cuda.memory_reserved(device)
