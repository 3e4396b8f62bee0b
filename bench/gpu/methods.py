"""The ways to save memory that are compared: each changes a task so that its step runs in that way."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench.common import Row
from bench.gpu.models import Task
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from memsched.torch import TorchPlan


class SkippedError(Exception):
    """This method does not exist for this network, or not here."""


class Way:
    """How a step runs: a callable in place of the model, and a context around the forward."""

    def __init__(self, forward: Callable[..., Any], around: Callable[[], Any] = contextlib.nullcontext) -> None:
        self.forward, self.around = forward, around
        self.compiled = False  # by our backend, or as a plan of ours says


def planned_for(point: Row) -> int:
    """Bytes that a plan may use: the budget less what the allocator is left for gaps."""
    return int((1 - point["slack"]) * point["budget"])


def prepare(task: Task, point: Row, plan_file: Path) -> Way:
    """Change a task to run in the way of a method.

    Raises
    ------
    SkippedError
    InfeasibleError
        No plan has so small a budget.
    """
    match point["method"]:
        case "plain":
            pass
        case "checkpoint":
            for block in task.blocks:
                # An attribute of the object hides the method of its class; modules do not mind.
                block.forward = _checkpointed(block.forward)
        case "checkpoint_sequential":
            _checkpoint_sequential(task)
        case "save_on_cpu":
            pinned = task.args[0].device.type == "cuda"
            return Way(task.model, lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned))
        case "compile":
            torch._functorch.config.activation_memory_budget = float(point["setting"])
            return Way(torch.compile(task.model))
        case "plan":
            plan = TorchPlan.load(plan_file).at(planned_for(point), time_limit=point["search"])
            way = Way(plan.apply(task.model))
            way.compiled = True
            return way
        case "backend":
            options = {"budget": planned_for(point), "optimizer": task.optimizer, "time_limit": point["search"]}
            way = Way(torch.compile(task.model, backend="memsched", options=options))
            way.compiled = True
            return way
        case method:
            raise ValueError(method)
    return Way(task.model)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that is computed again in the backward."""

    def again(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], list):  # DenseNet's blocks: the list grows before it is read again
            return checkpoint(lambda *given: forward([*given]), *args[0], use_reentrant=False)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return functools.wraps(forward)(again)


def _checkpoint_sequential(task: Task) -> None:
    if task.sequential is None:
        raise SkippedError("its blocks are no nn.Sequential")
    owner, parts = task.sequential
    # As many segments as parts a segment: the memory of both is then about the same. A plain function, so that the
    # parts are called and not the owner, which may be the sequential itself.
    functions = list(parts)
    segments = max(1, round(math.sqrt(len(functions))))
    owner.forward = lambda x: checkpoint_sequential(functions, segments, x, use_reentrant=False)
