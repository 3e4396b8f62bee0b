"""A step as a chain: its stages run with nothing but what the chain says they hold, and its bytes are counted anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

import memsched as ms
from memsched.torch import weightless
from memsched.torch.chain_of import Bytes, Stage, stages_of
from memsched.torch.compiled.as_graph import Visit, held_by_caller, step_graph
from memsched.torch.compiled.joint import Joint, tensors
from memsched.torch.compiled.look import Look, look
from memsched.torch.compiled.options import Options
from memsched.torch.errors import CaptureError
from memsched.torch.meter import Meter
from memsched.torch.profile import profile
from memsched.torch.substitutes import substitute
from pytorch import handmade
from pytorch.models import CASES, Case

NAMED = {case.name: case for case in CASES}
STAGES = {
    "torchvision-resnet50": 21,
    "torchvision-resnet101": 38,
    "torchvision-resnet152": 55,
    "torchvision-small_densenet": 15,
    "transformers-gpt2": 7,
    "transformers-llama": 8,
    "dropout_mlp": 7,
    "in_place_batch_norm": 7,
    "position_bias": 1,
    "shared_mask": 5,
    "unet": 8,
}
NOT_ONE_GRAPH = ("data_dependent", "lstm", "transformers-opt")
NETWORKS = [
    pytest.param(case, id=case.name, marks=() if case.fast else pytest.mark.slow)
    for case in CASES
    if case.name not in NOT_ONE_GRAPH
]


def captured(model: nn.Module, args: Sequence[Any]) -> tuple[Look, Visit]:
    """The one graph of a step, as a profile captures it."""
    seen = look(model, args, {}, Options(budget="100%", device="v100"), prepare=substitute, dynamic=False)
    (visit,) = seen.visits
    return seen, visit


class Held:
    """Runs operations of a joint graph on real data, and forgets what it is told not to hold."""

    def __init__(self, joint: Joint, given: dict[fx.Node, Any]) -> None:
        self.joint = joint
        self.values = dict(given)
        self.holding: set[int] | None = None

    def value(self, node: fx.Node) -> Any:
        """Of a node that is held; what is no operation is computed anew from what it reads."""
        if node in self.values:
            return self.values[node]
        assert self.joint.operation_of(node) is None, f"{node} is not held"
        return self.call(node)

    def call(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return getattr(self.joint.module, str(node.target))
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.value)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def run(self, node: fx.Node) -> None:
        self.values[node] = self.call(node)

    def hold(self, storages: Iterable[int]) -> None:
        """Forget all other tensors."""
        kept = set(storages)
        for node, value in list(self.values.items()):
            leaves, spec = pytree.tree_flatten(value)
            examples = pytree.tree_leaves(node.meta["val"])
            where = iter(self.joint.storages_of(node))
            places = [next(where) if isinstance(one, torch.Tensor) else None for one in examples]
            left = [leaf if at is None or at in kept else None for leaf, at in zip(leaves, places, strict=True)]
            self.values[node] = pytree.tree_unflatten(left, spec)


def data_like(node: fx.Node) -> Any:
    example = node.meta["val"]
    if not isinstance(example, torch.Tensor):
        return example
    span = 1 + sum((n - 1) * step for n, step in zip(example.shape, example.stride(), strict=True))
    made = torch.rand(span) + 0.5 if example.dtype.is_floating_point else torch.zeros(span)
    return made.to(example.dtype).as_strided(example.shape, example.stride())


def outputs(held: Held, nodes: Sequence[Any]) -> list[Any]:
    return [held.value(node) if isinstance(node, fx.Node) else node for node in nodes]


def run_whole(joint: Joint, given: dict[fx.Node, Any]) -> list[Any]:
    held = Held(joint, given)
    torch.manual_seed(3)
    for op in joint.operations:
        held.run(op.node)
    return outputs(held, [*joint.results, *joint.gradients])


def run_stages(joint: Joint, stages: Sequence[Stage], found: Bytes, given: dict[fx.Node, Any]) -> list[Any]:
    """All stages forward, then backward. Each holds what the columns of the chain count, and nothing else."""
    held = Held(joint, given)
    tangents = {n for node in joint.tangents for n in joint.storages_of(node)}
    always = {s.number for s in joint.storages if s.writer is None} - tangents
    always |= found.environment | found.early_results | found.updates | found.gradients | found.shared_gradients
    last = set(found.results)
    saved = [{*one, *([] if stage.exit is None else [stage.exit])} for one, stage in zip(found.saved, stages, strict=True)]
    torch.manual_seed(3)
    for k, stage in enumerate(stages):
        for op in stage.forward:
            held.run(op.node)
        held.hold(always.union(*saved[: k + 1]) | tangents | (last if k == len(stages) - 1 else set()))
    results = outputs(held, joint.results)
    for k in reversed(range(len(stages))):
        arriving = found.arriving if k == len(stages) - 1 else found.handed[k]
        held.hold(always.union(*saved[: k + 1], arriving, last if k == len(stages) - 1 else ()))
        for op in stages[k].backward:
            held.run(op.node)
    held.hold(always)
    return [*results, *outputs(held, joint.gradients)]


@pytest.mark.parametrize("case", NETWORKS)
def test_stages_need_nothing_but_what_the_chain_says(case: Case) -> None:
    model, args = case.make()
    _, visit = captured(model, args)
    joint = visit.joint
    stages = stages_of(joint)
    assert len(stages) == STAGES.get(case.name, len(stages))
    assert [op for one in stages for op in one.forward] == [op for op in joint.operations if not op.backward]
    assert [op for one in stages[::-1] for op in one.backward] == [op for op in joint.operations if op.backward]
    found = Bytes(joint, visit.sizes, stages)
    given = {node: data_like(node) for node in (*joint.primals, *joint.tangents)}
    expected, staged = run_whole(joint, given), run_stages(joint, stages, found, given)
    for ours, theirs in zip(staged, expected, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours.nan_to_num(), theirs.nan_to_num())
