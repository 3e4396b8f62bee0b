"""Before training: does a step fit, the largest batch that does, and what each way to make it fit costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from memsched.errors import InvalidInputError
from memsched.problems.specs import OWN_FORMS, parse_loss
from memsched.study.auto import Say
from memsched.study.fit import Fit, check_asked, device_memory
from memsched.support import checks, quantities
from memsched.support.arguments import public
from memsched.torch.batches import size_of
from memsched.torch.compiled.look import Loss, check_inputs, check_model, device_of, options_of
from memsched.torch.errors import CallError, told
from memsched.torch.families import own_function
from memsched.torch.machines import MACHINES, memory_of
from memsched.torch.module_state import gradients_aside
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import check_owner, optimizer_bytes, optimizer_named
from memsched.torch.profile import named_model
from memsched.torch.ways import GIVE, Asked

PLANNER_SECONDS = 5.0
_EVERY = 15.0  # seconds between lines about the work


@public
def fit(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: str | int | None = None,
    device: str = "here",
    optimizer: torch.optim.Optimizer | int | None = None,
    loss: Loss | None = None,
    bandwidth: str | float | None = None,
    host_memory: str | int | None = None,
    reserve: str | int = 0,
    time_limit: str | float = PLANNER_SECONDS,
    largest: bool | str = True,
    search_limit: str | float | None = None,
    progress: Say = None,
) -> Fit:
    """Say before training whether a step fits the device, and what each way to make it fit costs.

    Nothing is computed, and the model may be larger than this machine: its tensors may be without data.

    Parameters
    ----------
    model, args, kwargs, device, loss, bandwidth, host_memory, reserve
        As `memsched.torch.plan` takes them.
    memory : str or int, optional
        Bytes of the device. By default those of the machine that `device` names, or of this GPU.
    optimizer : torch.optim.Optimizer or int, optional
        Its state counts, and what it needs while it steps; of a number, the state alone.
    time_limit : float
        Seconds of the planner for each way.
    largest : bool or str
        Search for the largest batches, too: it takes several times as long. "length" searches for the largest length of
        sequences instead, in dimension 1 of all inputs that have one.
    search_limit : float or str, optional
        Seconds for all searches of largest sizes together: what was not found by then is left open, and told by name.
        A step that is being captured or planned meanwhile is brought to its end.
    progress : callable, optional
        Called with a line about the work: what runs, and for how many samples. By default such a line goes to stderr
        every 15 seconds.

    Returns
    -------
    Fit

    Raises
    ------
    CaptureError
        The step looks at values of tensors, or nothing of it can be captured.
    InvalidInputError
        The model is in eval mode, or an option cannot be right.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> adam = torch.optim.AdamW(model.parameters())
    >>> found = memsched.torch.fit(model, (torch.randn(256, 64),), optimizer=adam, memory="1MB", device="v100")
    >>> found.fits
    False
    >>> found.ways[0].largest_batch < 256
    True
    """
    check_model(model)
    check_inputs(model, args, kwargs)
    check_owner(optimizer, model)
    searched = _searched(largest, (args, kwargs))
    checks.progress(progress)
    limit = None if search_limit is None else quantities.seconds("search_limit", search_limit)
    bytes_ = device_memory(memory) if memory is not None else memory_of(device, device_of(model))
    options = options_of(
        model,
        budget=bytes_,
        device=device,
        planner="selective",
        bandwidth=bandwidth,
        host_memory=host_memory,
        reserve=reserve,
        time_limit=time_limit,
        optimizer=None if optimizer is None else optimizer_bytes(optimizer, device_of(model), stepping=True),
    )
    leaves = (one for one in (*model.parameters(), *tensors_of((args, kwargs))) if one.is_leaf)
    with told(model, args, kwargs, loss), gradients_aside(leaves):  # a step releases them before it computes others
        more = (options, bytes_, progress or _now_and_then(), searched, limit)
        return Asked(model, tuple(args), dict(kwargs or {}), optimizer, loss, *more).answered()


def _now_and_then() -> Say:
    """Tells on stderr how far a long search is."""
    told_at = time.monotonic()

    def say(line: str) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _EVERY:
            told_at = time.monotonic()
            print(f"memsched: {line}", file=sys.stderr)

    return say


def _searched(largest: object, given: Any) -> str | None:
    """What the largest of is sought."""
    if isinstance(largest, str):
        checks.choice("largest", largest, ("batch", "length"))
        if largest == "length" and not size_of(given).length:
            shapes = ", ".join(str(tuple(one.shape)) for one in tensors_of(given)) or "(none)"
            raise InvalidInputError(
                f"largest is 'length' and the inputs have the shapes {shapes}; all that have a dimension 1 must have "
                "the same there, which is the length"
            )
        return largest
    return "batch" if checks.flag("largest", largest) else None


def fit_spec(
    model: str,
    input: str | None = None,
    *,
    device: str,
    memory: str | int | None = None,
    optimizer: str | None = None,
    loss: str | None = None,
    autocast: str | None = None,
    bandwidth: str | None = None,
    time_limit: str | float = PLANNER_SECONDS,
    largest: bool | str = True,
    search_limit: str | float | None = None,
    progress: Say = None,
) -> Fit:
    """`fit` for a model that a line of text names, an optimiser such as "adamw" and a loss such as "nets.py:loss"."""
    asked: dict[str, Any] = {"device": device, "memory": memory, "optimizer": optimizer, "bandwidth": bandwidth}
    asked["loss"] = loss
    check_asked(model, input, **asked, autocast=autocast, time_limit=time_limit, search_limit=search_limit)
    device = device.strip().lower()
    if device == "here" and not torch.cuda.is_available():
        raise InvalidInputError(
            f"device is 'here', and there is no GPU here; name the one to train on: {', '.join(MACHINES)}"
        )
    with named_model(model, input, where="cuda" if device == "here" else "cpu", autocast=autocast) as built:
        stepping = None if optimizer is None else optimizer_named(optimizer, built.model.parameters())
        of_results = None if loss is None else own_function(parse_loss(loss), f"the loss {loss!r}", OWN_FORMS)
        try:
            found = fit(
                built.model,
                built.args,
                memory=memory,
                device=device,
                optimizer=stepping,
                loss=of_results,
                bandwidth=bandwidth,
                time_limit=time_limit,
                largest=largest,
                search_limit=search_limit,
                progress=progress,
            )
        except CallError as error:  # in the words of who wrote Python; here a text was given
            written = (
                f"input={input}:int:100 for numbers below 100, or {input}:int where the model names its vocabulary"
            )
            raise CallError(str(error).replace("dtype=torch.long", written)) from error
    words = {GIVE["loss"]: "give --loss FILE.py:FUNCTION, or a model that returns it", "optimizer=": "--optimizer "}
    said = "\n".join(found.assumed)
    for python, text in words.items():
        said = said.replace(python, text)
    return replace(found, assumed=tuple(said.splitlines()))
