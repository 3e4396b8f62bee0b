"""Training steps with and without a plan, on models that are captured and measured once."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import memsched as ms
from memsched.planners import registry
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.planned import PlannedForward
from memsched.torch.script import Script, compile_schedule
from memsched.torch.stage_bytes import ModelBytes, measure_bytes
from memsched.torch.stages import StagedModel, stage
from pytorch.models import CASES, Case

Loss = Callable[[Any], Any]
Observed = Callable[[int, str], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """A model, its stages, and the chain that stands for them. `autocast` is None or the dtype to compute in."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None
    staged: StagedModel
    bytes: ModelBytes
    chain: ms.Chain

    @property
    def pieces(self) -> list[list[int]]:
        return [found.pieces for found in self.bytes.stages]

    def script(self, schedule: ms.Schedule) -> Script:
        return compile_schedule(self.chain, schedule, self.pieces)


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """All that a training step leaves behind."""

    outputs: dict[int, Any]
    gradients: dict[str, Any]
    buffers: dict[str, Any]
    random: dict[str, Any]


def chain_of(found: ModelBytes) -> ms.Chain:
    """The chain of a measured model, where each forward takes 1 s and each backward 2 s; nothing is resident."""
    stages = found.stages
    return ms.Chain(
        [1.0] * len(stages),
        [2.0] * len(stages),
        [0, *(s.activation for s in stages)],
        [0, *(s.gradient for s in stages)],
        saved=[s.activation + sum(s.pieces) for s in stages],
        forward_overhead=[s.forward_overhead for s in stages],
        transient_overhead=[s.transient_overhead for s in stages],
        backward_overhead=[s.backward_overhead for s in stages],
        pieces=[[size for size in s.pieces if size] for s in stages],
    )


def casting(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Autocast as a plan runs it: without the cache of casts, whose sums of gradients are others."""
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=dtype, cache_enabled=False)


def prepare(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, autocast: torch.dtype | None = None
) -> Prepared:
    """Capture, cut and measure a model in train mode."""
    kwargs = dict(kwargs or {})
    with casting(autocast):
        staged = stage(model, args, kwargs)
        found = measure_bytes(staged, model, args, kwargs, on_device=True)
    return Prepared(
        model=model,
        args=tuple(args),
        kwargs=kwargs,
        autocast=autocast,
        staged=staged,
        bytes=found,
        chain=chain_of(found),
    )


@functools.lru_cache(maxsize=8)
def prepared(case: Case, autocast: torch.dtype | None = None) -> Prepared:
    """A case of the model zoo, prepared. Tests share it: they leave the model as they found it."""
    return prepare(*case.make(), autocast=autocast)


def sum_of_squares(result: Any) -> Any:
    """A loss in which every floating leaf of the result that needs a gradient counts, each a little differently."""
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return sum((k + 1) * leaf.float().square().mean() for k, leaf in enumerate(leaves))


def train_step(p: Prepared, *, model: Any = None, loss: Loss = sum_of_squares, seed: int = 0) -> Outcome:
    """One forward and backward from a fixed seed; gradients are None before."""
    model = p.model if model is None else model
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    with casting(p.autocast):
        result = model(*p.args, **p.kwargs)
        value = loss(result)
    value.backward()
    return outcome(model, result)


def outcome(model: Any, result: Any) -> Outcome:
    """What is there after a step."""
    leaves = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone(), pytree.tree_leaves(result))
    return Outcome(
        outputs=dict(enumerate(leaves)),
        gradients={name: p.grad for name, p in model.named_parameters()},
        buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        random={"state": torch.get_rng_state()},
    )


@contextlib.contextmanager
def buffers_restored(model: Any) -> Iterator[None]:
    """Running statistics and the like are afterwards what they were before, and there are no gradients."""
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


@contextlib.contextmanager
def installed(
    p: Prepared, schedule: ms.Schedule, *, early: Callable[[], bool] = lambda: True, overlap: bool = False
) -> Iterator[PlannedForward]:
    """The model's forward follows a schedule meanwhile."""
    lanes = EmulatedLanes(early=early, overlap=overlap)
    forward = PlannedForward(p.model, p.staged, p.script(schedule), lanes)
    p.model.forward = forward
    try:
        yield forward
    finally:
        del p.model.forward


def mlp() -> Prepared:
    """A small network with dropout."""
    return prepared(next(case for case in CASES if case.name == "dropout_mlp"))


def plain_step(p: Prepared, **options: Any) -> Outcome:
    """The step without a plan. The model is as before afterwards."""
    with buffers_restored(p.model):
        return train_step(p, **options)


def planned_step(
    p: Prepared,
    schedule: ms.Schedule,
    *,
    early: Callable[[], bool] = lambda: True,
    overlap: bool = False,
    **options: Any,
) -> Outcome:
    """The same step under a schedule. The model is as before afterwards."""
    with buffers_restored(p.model), installed(p, schedule, early=early, overlap=overlap):
        return train_step(p, **options)


def differences(want: Outcome, got: Outcome) -> list[str]:
    """The names of all that is not bit for bit the same; None and a tensor of zeros differ."""
    found = []
    for kind in ("outputs", "gradients", "buffers", "random"):
        one, other = getattr(want, kind), getattr(got, kind)
        if list(one) != list(other):
            found.append(f"{kind}: {list(one)} and {list(other)}")
            continue
        found += [f"{kind}[{name}]" for name in one if not identical(one[name], other[name])]
    return found


def identical(a: Any, b: Any) -> bool:
    """Equal bit for bit, of the same type, and in the same order in memory."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b) and a == b
    return a.dtype == b.dtype and torch.equal(a, b) and strides(a) == strides(b)


def strides(tensor: Any) -> list[int]:
    """Those that matter: a dimension of one element may have any."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def copies(seed: int) -> Callable[[], bool]:
    """When copies happen: for 0 all early, for 1 all late, else at random."""
    if seed < 2:
        return lambda: seed == 0
    generator = random.Random(seed)
    return lambda: generator.random() < 0.5


PLANNERS = ("rotor", "pofo", "offload", "greedy", "dynprog")


EVERY_PLANNER = ("auto", *registry.PLANNERS)
LINK = 1e12  # with stages of a second, transfers take next to no time


def planner_schedules(
    p: Prepared, planners: Sequence[str] = PLANNERS, budgets: Sequence[float] = (0.05, 0.5)
) -> Iterator[tuple[str, ms.Schedule]]:
    """Plans, each with a name, at budgets between what the planner needs (0) and what the step takes unplanned (1)."""
    for planner in planners:
        least = ms.min_memory(p.chain, None if planner == "auto" else planner)
        most = max(least, ms.peak_memory(p.chain))
        for part in budgets:
            memory = least + int(part * (most - least))
            chunk = "storage" if planner in ("offload", "pofo", "auto") else None
            limit = 0.05 if planner in ("offload", "auto") else None
            options: dict[str, Any] = {"planner": planner, "chunk": chunk, "time_limit": limit}
            try:
                result = ms.plan(p.chain, memory, LINK, **options)
            except ms.InfeasibleError as error:  # superneurons can fail with more memory than its least
                result = ms.plan(p.chain, error.min_memory, LINK, **options)
            yield f"{planner} at {part:g}", result.schedule


def tight(p: Prepared, planner: str) -> ms.Schedule:
    """With rotor all that can be is computed again, with greedy all that can be is offloaded."""
    return next(iter(planner_schedules(p, (planner,), (0.0,))))[1]


def own(p: Prepared) -> Prepared:
    """The same on a model of its own, which may be changed."""
    return prepare(copy.deepcopy(p.model), p.args, p.kwargs, p.autocast)


class Noting:
    """An observer that calls a function before every step."""

    def __init__(self, before: Observed) -> None:
        self.call = before

    def before(self, step: int, action: Any) -> None:
        self.call(step, action.kind)

    def after(self, step: int, action: Any, event: Any) -> None: ...
