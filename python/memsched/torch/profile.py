"""A model as a chain that can be planned: the bytes and the seconds of each of its stages."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memsched._core import Chain
from memsched.errors import InvalidInputError
from memsched.problems.chain_updates import STAGE_GRADIENTS
from memsched.problems.specs import parse_autocast
from memsched.support.arguments import public
from memsched.torch import zoo
from memsched.torch.chain_of import Bytes, stages_of
from memsched.torch.compiled.as_graph import Visit, held_by_caller
from memsched.torch.compiled.look import Look, look
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.times import measured_costs, modelled_costs
from memsched.torch.errors import CallError, CaptureError, told
from memsched.torch.link import measure_link
from memsched.torch.machines import Machine, machine
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import distinct_bytes
from memsched.torch.roofline import describe
from memsched.torch.substitutes import substitute_for_chains


@public
def profile(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "here",
    name: str | None = None,
) -> Chain:
    """Profile one training step of a model.

    The step is captured by torch.compile on a copy of the model without data: nothing is computed, and it may be larger
    than the device. Bytes are exact for what PyTorch's operators allocate in the captured step. Scratch inside a kernel
    (cuDNN's workspace) counts where it is seen, on a GPU that is `here`. A loss outside the model, the state of the
    optimiser and the rounding of the allocator are not counted. docs/profiles.md says what the columns hold.
    `resident` is all that stays through the step: parameters, their gradients, buffers, and what passes beside the
    chain, such as masks.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode. It is left as it was.
    args, kwargs
        Inputs of the shapes, dtypes and device to train with. Profile under the autocast to train with.
    device : str
        "here": each operation is timed on the model's device, and bytes are those that its kernels save. A machine such
        as "v100" or "v100:pcie3": bytes are those that CUDA's kernels save, and times are a roofline model, never a
        measurement. Model and inputs may be fake tensors, of any size.
    name : str, optional
        Of the chain. Default: the name of the model's class.

    Returns
    -------
    Chain
        Its `provenance` says where bytes, times and link_bandwidth come from, what is resident, and how much of it are
        the gradients of each stage, which `memsched.whole_step` reads. It does not say so if a
        parameter has no stage of its own.

    Raises
    ------
    CaptureError
        torch.compile does not capture the model in one graph.
    InvalidInputError
        An unknown machine, a model in eval mode, or one that does not run on these inputs.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.profile import profile
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256))
    >>> chain = profile(model, (torch.ones(64, 256),), device="v100:pcie3")
    >>> chain.n, chain.activation.tolist(), chain.resident
    (2, [65536, 65536, 65536], 1052672)
    >>> print(chain.provenance["times"].split(":")[0])
    roofline model of v100, not a measurement
    """
    chip, link = (None, None) if device == "here" else machine(device)
    prepare = functools.partial(substitute_for_chains, capability=chip.capability if chip else None)
    options = Options(budget="100%", device=device)
    with told(model, args, kwargs):
        seen = look(model, args, dict(kwargs or {}), options, prepare=prepare)
    visit = _only_graph(seen, model)
    joint, sizes = visit.joint, visit.sizes
    costs, busy = (modelled_costs(joint, sizes, chip), "") if chip else measured_costs(joint, sizes)
    link = link or measure_link(joint.device)
    found = Bytes(joint, sizes, stages_of(joint))
    resident = _resident(found, seen, model, modelled=chip is not None)
    provenance = {
        "source": _source(model, joint.device, chip),
        "times": describe(chip) if chip else f"measured on {_here(joint.device)}, operation by operation{busy}",
        "machine": chip.name if chip else _here(joint.device),
        "link": f"{link.name}: {link.source}",
        "link_bandwidth": link.bandwidth,
        "resident": resident,
    }
    learning_inputs = any(one.requires_grad for one in tensors_of((args, kwargs)))  # their gradients are among these
    if found.learning is not None and not learning_inputs:
        provenance[STAGE_GRADIENTS] = found.learning
    return found.chain(seen.resident.inputs, costs, resident, name or type(model).__name__, provenance)


def profile_spec(
    model: str,
    input: str | None = None,
    *,
    device: str = "here",
    autocast: str | None = None,
    seed: int = 0,
) -> Chain:
    """Profile a model that a line of text names, such as "torchvision:resnet101".

    Model, input and seed are as `zoo.build` takes them; the model is built without memory for its weights. The device
    is as in `profile`, where "here" is the GPU if there is one. Autocast is to "bf16" or "fp16".
    """
    if device != "here":
        machine(device)  # before the work
    where = "cuda" if device == "here" and torch.cuda.is_available() else "cpu"
    with named_model(model, input, where=where, autocast=autocast, seed=seed) as built:
        shapes = ["x".join(map(str, arg.shape)) for arg in built.args if isinstance(arg, torch.Tensor)]
        return profile(built.model, built.args, device=device, name="-".join([built.name, *shapes]))


@contextlib.contextmanager
def named_model(
    model: str, input: str | None, *, where: str = "cpu", autocast: str | None = None, seed: int = 0
) -> Iterator[zoo.Built]:
    """A model that a line of text names, without memory for its weights, under autocast."""
    kind = parse_autocast(autocast)
    casting = torch.autocast(where, dtype=getattr(torch, kind)) if kind else contextlib.nullcontext()
    built = zoo.build(model, input, seed=seed, device=where, fake=FakeTensorMode(allow_non_fake_inputs=True))
    try:
        with casting:
            yield built
    except CallError as error:
        written = "sizes are written as in 32x3x224x224, and a comma stands between inputs"
        raise InvalidInputError(f"{model}: {error}; {written}") from error


def _only_graph(seen: Look, model: torch.nn.Module) -> Visit:
    """The one graph of a step; an error if there are several, or a part of the step is in none."""
    if len(seen.visits) > 1 or seen.unplanned:
        reasons = seen.unplanned or (f"torch.compile captures it in {len(seen.visits)} graphs",)
        raise CaptureError(f"{type(model).__name__} is no chain: {reasons[0]}")
    return seen.visits[0]


def _resident(found: Bytes, seen: Look, model: torch.nn.Module, *, modelled: bool) -> dict[str, int]:
    """Bytes that stay through the step, by what they are for."""
    visit = seen.visits[0]
    parts = {
        "parameters": distinct_bytes(model.parameters()),
        "gradients": found.of(found.gradients),
        "buffers": distinct_bytes(model.buffers()) + held_by_caller(visit.joint, visit.sizes).parameters,
        "environment": found.of(found.environment),
        "early_results": found.of(found.early_results),
        "repeated": seen.resident.updates + found.of(found.updates),
        "random": 0 if modelled else seen.resident.random,
        "shared_gradients": found.of(found.shared_gradients),
    }
    return {part: size for part, size in parts.items() if size}


def _source(model: torch.nn.Module, device: torch.device, chip: Machine | None) -> str:
    """Which packages, and how the bytes were counted."""
    package = type(model).__module__.partition(".")[0]
    packages = [f"torch {torch.__version__}"]
    if package not in ("torch", "__main__"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages.insert(0, f"{package} {importlib.metadata.version(package)}")
    casts = "no autocast"
    if torch.is_autocast_enabled(device.type):
        casts = f"autocast to {str(torch.get_autocast_dtype(device.type)).removeprefix('torch.')}"
    kernels = "as the kernels of this device save them"
    if chip is not None:
        major, minor = chip.capability
        kernels = f"attention saved as by the CUDA kernels of compute capability {major}.{minor}"
    seen = chip is None and device.type == "cuda"
    left_out = f"{'' if seen else 'workspace inside kernels, '}loss and optimiser"
    return (
        f"{' / '.join(packages)}, captured with torch.compile, {casts}; bytes exact on tensors without data, "
        f"{kernels}; {left_out} not included"
    )


def _here(device: torch.device) -> str:
    """The device of the model, by name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"this {device.type.upper()} ({platform.machine()}, threads: {torch.get_num_threads()})"
