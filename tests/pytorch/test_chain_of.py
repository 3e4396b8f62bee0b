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
from memsched.torch.compiled.as_graph import Visit, held_by_caller, no_costs, step_graph
from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.look import Look, look
from memsched.torch.compiled.options import Options
from memsched.torch.errors import CaptureError
from memsched.torch.meter import Meter
from memsched.torch.nests import tensors_of
from memsched.torch.profile import profile
from memsched.torch.substitutes import substitute_for_chains
from pytorch import handmade
from pytorch.models import CASES, Case

NAMED = {case.name: case for case in CASES}
STAGES = {
    "torchvision-resnet50": 21,
    "torchvision-resnet101": 38,
    "torchvision-resnet152": 55,
    "torchvision-densenet121": 73,
    "torchvision-densenet201": 113,
    "torchvision-googlenet": 20,
    "torchvision-inception_v3": 24,
    "torchvision-vit_b_16": 27,
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
SLOW = ((), (pytest.mark.slow,))
LONG = ("torchvision-mobilenet_v3_large", "timm-deit_tiny_patch16_224", "transformers-bert")  # to run stage by stage
QUICK = ("dict_output", "in_place_batch_norm", "shared_mask", "unet")
FEW = [
    pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow)
    for case in CASES
    if case.name not in NOT_ONE_GRAPH
]


def captured(model: nn.Module, args: Sequence[Any]) -> tuple[Look, Visit]:
    """The one graph of a step, as a profile captures it."""
    seen = look(model, args, {}, Options(budget="100%", device="v100"), prepare=substitute_for_chains)
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
    exits = [() if one.exit is None else (one.exit,) for one in stages]
    saved = [{*one, *leaving} for one, leaving in zip(found.saved, exits, strict=True)]
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


@pytest.mark.parametrize(
    "case", [pytest.param(*one.values, id=one.id, marks=[*one.marks, *SLOW[one.id in LONG]]) for one in NETWORKS]
)
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


def peaks(model: nn.Module, args: Sequence[Any]) -> tuple[ms.Chain, int, Look]:
    """A chain, and the peak of the plain step of the same graph as planners of graphs see it.

    A chain holds the gradients that a step returns from the start: here the graph does, too.
    """
    chain = profile(model, args, device="v100")
    seen = look(model, args, {}, Options(budget="100%"), prepare=partial(substitute_for_chains, capability=(7, 0)))
    (visit,) = seen.visits
    document = step_graph([visit], [0], [no_costs(visit)], resident=0).to_json()
    for tensor in document["tensors"]:
        if tensor["role"] == "gradient":
            tensor["size"] = 0
    held = held_by_caller(visit.joint, visit.sizes)
    parts = resident(chain)
    always = sum(parts.get(name, 0) for name in ("parameters", "buffers", "gradients"))
    always += seen.resident.inputs + held.results + held.updates
    return chain, ms.peak_memory(ms.Graph.from_json(document)) + always, seen


def resident(chain: ms.Chain) -> dict[str, int]:
    assert chain.provenance is not None
    found: dict[str, int] = chain.provenance["resident"]
    assert sum(found.values()) == chain.resident
    return found


@pytest.mark.parametrize("case", FEW)
def test_the_peak_of_the_chain_is_that_of_the_graph(case: Case) -> None:
    """But for what docs/profiles.md says: each bound here is one of its sentences."""
    chain, graph, _ = peaks(*case.make())
    parts, results = resident(chain), int(chain.activation[-1])
    beside = sum(parts.get(name, 0) for name in ("environment", "early_results", "repeated", "shared_gradients"))
    assert -results <= ms.peak_memory(chain) - graph <= 2 * beside + max(chain.gradient)


def feed_forward() -> handmade.Made:
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(4, 3, 16, 16),)


def test_without_anything_beside_the_chain_the_two_peaks_are_equal() -> None:
    chain, graph, _ = peaks(*feed_forward())
    assert set(resident(chain)) == {"parameters", "gradients"}
    assert ms.peak_memory(chain) == graph


def eager_saved(model: nn.Module, args: Sequence[Any]) -> int:
    """Bytes that plain autograd keeps for its backward, beside the parameters and the inputs."""
    given = {one.untyped_storage()._cdata for one in [*model.parameters(), *model.buffers(), *args]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in given:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(*args)
    results = {one.untyped_storage()._cdata for one in tensors_of(result)}
    return sum(storage.nbytes() for key, storage in kept.items() if key not in results)


@pytest.mark.parametrize(
    "name",
    [
        *("dict_output", "frozen_prefix", "in_place_batch_norm", "tied_weights", "two_outputs"),
        *(
            pytest.param(f"torchvision-{name}", marks=pytest.mark.slow)
            for name in ("resnet18", "resnet50", "resnext50_32x4d")
        ),
    ],
)
def test_stages_save_what_plain_autograd_saves(name: str) -> None:
    model, args = NAMED[name].make()
    chain = profile(model, args)
    saved = int(chain.saved.sum() - chain.activation[-1]) + resident(chain).get("environment", 0)
    assert saved == eager_saved(model, args)


@pytest.mark.parametrize("make", [feed_forward, handmade.dict_output, handmade.frozen_prefix])
def test_the_peak_is_that_of_a_plain_step(make: Callable[[], handmade.Made]) -> None:
    """Counted while plain PyTorch runs it. The chain holds all gradients from the start, and so does this step."""
    model, args = make()
    gradients = [torch.zeros_like(one) for one in model.parameters() if one.requires_grad]
    with Meter() as meter:
        found = [one for one in tensors_of(model(*args)) if one.requires_grad]
        backward = [torch.ones_like(one) for one in found]
        trained = [one for one in model.parameters() if one.requires_grad]
        torch.autograd.grad(found, trained, backward, allow_unused=True)
    held = sum(one.nbytes for one in (*model.parameters(), *args, *gradients))
    chain = profile(model, args)
    assert abs(ms.peak_memory(chain) - held - meter.peak) <= sum(one.nbytes for one in gradients)


def test_every_byte_of_three_layers() -> None:
    """A batch of 4, 8 numbers each, through Linear(8, 16), Tanh, Linear(16, 2): float32 throughout.

    The result of the first layer is nothing that the backward needs, so there is no cut behind it.
    """
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    chain = profile(model, (torch.randn(4, 8),), device="v100")
    assert chain.activation.tolist() == [128, 256, 32]
    assert chain.gradient.tolist() == [0, 256, 32]
    assert chain.saved.tolist() == [256, 32]
    assert chain.pieces == [[], []]
    assert chain.forward_overhead.tolist() == chain.transient_overhead.tolist() == [256, 0]
    assert chain.backward_overhead.tolist() == [256, 0]  # the gradient before Tanh; those of weights are resident
    weights = 4 * (8 * 16 + 16) + 4 * (16 * 2 + 2)
    assert resident(chain) == {"parameters": weights, "gradients": weights}


def test_a_mask_passes_beside_the_chain() -> None:
    model, args = handmade.shared_mask()
    _, visit = captured(model, args)
    found = Bytes(visit.joint, visit.sizes, stages_of(visit.joint))
    assert found.of(found.environment) == 6 * 6 * 4
    assert [visit.joint.storages[n].base.meta["val"].shape for n in found.environment] == [(6, 6)]


class Overwritten(nn.Module):
    """A part of a concatenation changes before it is concatenated again."""

    def __init__(self, change: bool) -> None:
        super().__init__()
        self.change = change
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.narrow, self.head = nn.Linear(16, 8), nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        a, b = self.layers[0](x), self.layers[1](x)
        both = torch.cat([a, b], dim=1)
        c = torch.tanh(self.narrow(both))
        if self.change:
            a.add_(1.0)
        return self.head(torch.cat([a, b, c, torch.relu(self.layers[2](c))], dim=1))


@pytest.mark.parametrize("change", [False, True])
def test_concatenations_are_shared_unless_a_part_changes(change: bool) -> None:
    model, args = Overwritten(change).train(), (torch.randn(3, 8),)
    _, visit = captured(model, args)
    first, second = (op for op in visit.joint.operations if op.node.target is torch.ops.aten.cat.default)
    assert (first.writes[0] in second.reads) is not change
    assert len(second.node.args[0]) == (4 if change else 3)


def test_names_are_those_of_modules() -> None:
    model, args = NAMED["dropout_mlp"].make()
    assert profile(model, args, device="v100").names == ("0..1", "2", "3..4", "5", "6..7", "8", "9")


class Summed(nn.Module):
    """Adds its input to what it computes: one gradient waits for another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        return torch.tanh(x + torch.tanh(self.second(x)))


def test_the_sum_of_gradients_belongs_to_the_stage_that_needs_it() -> None:
    _, visit = captured(Summed(), (torch.randn(4, 8),))
    first, second = stages_of(visit.joint)
    assert [op.node.target for op in second.backward][-1] is torch.ops.aten.add.Tensor
    assert first.exit is not None
    assert {op.node.target for op in first.backward} == {
        *(torch.ops.aten.tanh_backward.default, torch.ops.aten.mm.default, torch.ops.aten.sum.dim_IntList)
    }


def test_a_weight_of_two_stages_has_a_gradient_that_waits() -> None:
    """The gradient of the output projection waits for that of the embedding, and one use of the block for the other."""
    model, args = handmade.tied_weights()
    parts = resident(profile(model, args, device="v100"))
    assert parts["shared_gradients"] == 4 * (50 * 16 + 16 * 16 + 16)


def test_what_is_captured_in_pieces_is_no_chain() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    with pytest.raises(CaptureError, match=r"Looks is no chain: torch\.compile captures it in 2 graphs"):
        profile(Looks(), (torch.randn(4, 8),), device="v100")


def test_a_second_size_is_no_symbol() -> None:
    """torch.compile takes a size that it has seen change for a symbol; a profile depends on nothing before it."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    chains = [profile(model, (torch.randn(batch, 8),), device="v100") for batch in (4, 6, 4)]
    assert chains[0] == chains[2]
    assert [chain.activation.tolist() for chain in chains] == [[32 * b] * 3 for b in (4, 6, 4)]


def made_fake(model: Any, args: Any) -> Any:
    fake, here = FakeTensorMode(), torch.device("cpu")
    weightless.make_fake(model, fake, here)
    return pytree.tree_map_only(torch.Tensor, lambda tensor: weightless.fake_like(tensor, fake, here), args)


@pytest.mark.parametrize("case", FEW)
def test_without_data_the_profile_is_the_same(case: Case) -> None:
    model, args = case.make()
    real = profile(model, args, device="a100")
    args = made_fake(model, args)
    assert profile(model, args, device="a100") == real
