"""A model as a chain that can be planned: the bytes and the seconds of each of its stages."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from memsched._core import Chain
from memsched.errors import InvalidInputError, MemschedError
from memsched.support import checks
from memsched.torch import zoo
from memsched.torch.cuda_like import cuda_like
from memsched.torch.leaves import has_no_data
from memsched.torch.link import measure_link
from memsched.torch.machines import Link, Machine, machine
from memsched.torch.roofline import describe
from memsched.torch.stage_bytes import ModelBytes, measure_bytes
from memsched.torch.stage_times import StageTimes, measure_times, model_times
from memsched.torch.stages import StagedModel, stage

AUTOCASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def profile(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "here",
    repeat: int = 5,
    name: str | None = None,
) -> Chain:
    """Profile one training step of a model.

    Bytes are exact for what PyTorch's operators allocate. Unless the device is "here" they are counted on tensors
    without data, and nothing is allocated. Scratch inside a kernel (cuDNN's workspace), the loss, the state of the
    optimiser and the rounding of the allocator are not counted. docs/profiles.md says what the columns hold. `resident`
    is all that stays through the step: parameters, their gradients, buffers, values that pass beside the chain such as
    masks, results that are ready before the last stage, gradients of inputs that need one, and what repeated runs need
    for running statistics.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode. It is left as it was.
    args, kwargs
        Inputs of the shapes, dtypes and device to train with. Profile under the autocast to train with.
    device : str
        "here": times are measured on the model's device, and bytes are those that its kernels save. A machine such as
        "v100" or "v100:pcie3": bytes are those that CUDA's kernels save, and times are a roofline model, never a
        measurement. Model and inputs may then be fake tensors, of any size.
    repeat : int
        How often each stage runs where times are measured; the median counts.
    name : str, optional
        Of the chain. Default: the name of the model's class.

    Returns
    -------
    Chain
        Its `provenance` says where bytes, times and link_bandwidth come from, and what is resident.

    Raises
    ------
    CaptureError
        torch.export cannot capture the model.
    InvalidInputError
        An unknown machine, a model in eval mode or spread over devices, or times to be measured of tensors without
        data.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.profile import profile
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256))
    >>> chain = profile(model, (torch.ones(64, 256),), device="v100:pcie3")
    >>> chain.n, chain.activation.tolist(), chain.resident
    (3, [65536, 65536, 65536, 65536], 1052672)
    >>> print(chain.provenance["times"].split(":")[0])
    roofline model of v100, not a measurement
    """
    repeat = checks.count("repeat", repeat, 1, 10**6)
    chip, link = (None, None) if device == "here" else machine(device)
    if chip is None:
        _check_data(model, args, kwargs)
    staged = stage(model, args, kwargs, rewrite=_rewrite(chip))
    found = measure_bytes(staged, model, args, kwargs, on_device=chip is None)
    if chip is not None:
        times = model_times(staged, model, args, kwargs, machine=chip)
    else:
        times = measure_times(staged, model, args, kwargs, repeat=repeat)
        link = measure_link(staged.device)
    assert link is not None
    resident = _resident(found)
    provenance = {
        "source": _source(model, staged, chip),
        "times": describe(chip) if chip else f"measured on {_here(staged.device)}, the median of {repeat} runs a stage",
        "machine": chip.name if chip else _here(staged.device),
        "link": _describe_link(link),
        "link_bandwidth": link.bandwidth,
        "resident": resident,
    }
    return _chain(staged, found, times, sum(resident.values()), name or type(model).__name__, provenance)


def profile_spec(
    model: str,
    input: str | None = None,
    *,
    device: str = "here",
    autocast: str | None = None,
    seed: int = 0,
) -> Chain:
    """Profile a model that a line of text names, such as "torchvision:resnet101".

    Parameters
    ----------
    model, input, seed
        As `zoo.build` takes them. Unless the device is "here" the model is built without memory for its weights.
    device : str
        As in `profile`. "here" is the GPU where there is one.
    autocast : str, optional
        "bf16" or "fp16".

    Raises
    ------
    InvalidInputError, CaptureError
        As `zoo.build` and `profile` do.
    MemschedError
        There is not enough memory here to measure.

    Examples
    --------
    >>> profile_spec("torchvision:resnet18", "32x3x224x224", device="v100").n  # doctest: +SKIP
    13
    """
    if autocast is not None and autocast not in AUTOCASTS:
        raise InvalidInputError(f"autocast is {autocast!r}; it must be {' or '.join(AUTOCASTS)}")
    where = "cuda" if device == "here" and torch.cuda.is_available() else "cpu"
    fake = None
    if device != "here":
        machine(device)  # complains before the work
        fake = FakeTensorMode(allow_non_fake_inputs=True)
    casting = torch.autocast(where, dtype=AUTOCASTS[autocast]) if autocast else contextlib.nullcontext()
    try:
        built = zoo.build(model, input, seed=seed, device=where, fake=fake)
        shapes = ["x".join(map(str, arg.shape)) for arg in built.args if isinstance(arg, torch.Tensor)]
        with casting:
            return profile(built.model, built.args, device=device, name="-".join([built.name, *shapes]))
    except RuntimeError as error:
        if fake is None and "memory" in str(error):
            raise MemschedError(
                f"a stage of {model} does not fit the memory of this {where.upper()}; make the batch smaller, or name "
                'a machine to model, such as device="v100"'
            ) from error
        raise


def _check_data(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
    if any(has_no_data(value) for value in (*model.parameters(), *model.buffers(), *leaves)):
        raise InvalidInputError(
            'device is "here", but the model or an input is a fake or meta tensor and cannot be timed; give tensors '
            'with data, or name a machine to model, such as device="v100"'
        )


def _rewrite(chip: Machine | None) -> Any:
    """What makes a captured program save what CUDA's kernels save."""
    return None if chip is None else functools.partial(cuda_like, capability=chip.capability)


def _resident(found: ModelBytes) -> dict[str, int]:
    """Bytes that stay through the step, by what they are for."""
    early = found.stages[:-1]
    parts = {
        "parameters": found.parameters,
        "gradients": found.gradients,
        "buffers": found.buffers,
        "environment": sum(one.exports for one in found.stages),
        "early_results": sum(one.outputs + one.output_gradients for one in early),
        "input_gradients": found.input_gradients,
        "repeated": found.scratch,
        "shared_gradients": found.shared_gradients,
    }
    return {part: size for part, size in parts.items() if size}


def _chain(
    staged: StagedModel, found: ModelBytes, times: StageTimes, resident: int, name: str, provenance: dict[str, Any]
) -> Chain:
    """The columns. The results of the last stage stand at the end of the chain."""
    stages, last = found.stages, found.stages[-1]
    activation = [found.inputs, *(one.activation for one in stages[:-1]), last.outputs]
    gradient = [0, *(one.gradient for one in stages[:-1]), last.output_gradients]
    return Chain(
        times.forward,
        times.backward,
        activation,
        gradient,
        saved=[size + sum(one.pieces) for size, one in zip(activation[1:], stages, strict=True)],
        forward_overhead=[one.forward_overhead for one in stages],
        transient_overhead=[one.transient_overhead for one in stages],
        backward_overhead=[one.backward_overhead for one in stages],
        pieces=[[size for size in one.pieces if size] for one in stages],
        names=[one.name for one in staged.stages],
        resident=resident,
        name=name,
        provenance=provenance,
    )


def _source(model: torch.nn.Module, staged: StagedModel, chip: Machine | None) -> str:
    """Which packages, and how the bytes were counted."""
    package = type(model).__module__.partition(".")[0]
    packages = [f"torch {torch.__version__}"]
    if package not in ("torch", "__main__"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages.insert(0, f"{package} {importlib.metadata.version(package)}")
    kernels = "as the kernels of this device save them"
    if chip is not None:
        major, minor = chip.capability
        kernels = f"dropout and attention saved as by the CUDA kernels of compute capability {major}.{minor}"
    return (
        f"{' / '.join(packages)}, captured with torch.export, {staged.autocast}; bytes exact on tensors without data, "
        f"{kernels}; workspace inside kernels, loss and optimiser not included"
    )


def _here(device: torch.device) -> str:
    """The device of the model, by name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"this {device.type.upper()} ({platform.machine()}, threads: {torch.get_num_threads()})"


def _describe_link(link: Link) -> str:
    return f"{link.name}: {link.source}"
