"""Where captured models are cut: known numbers of stages, and every cut looked at by running the graph on real data."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.torch.capture import CaptureError, capture
from memsched.torch.facts import facts, fake_copy, fake_mode
from memsched.torch.graph_step.capture_step import capture_step
from memsched.torch.linearize import Cut, linearize, share_concatenations, sink_parameter_arithmetic
from memsched.torch.stages import stage
from pytorch.models import CASES
from pytorch.steps import differences, plain_step, planned_step, planner_schedules, prepare

NAMED = {case.name: case for case in CASES}
STAGES = {
    "torchvision-resnet50": 21,
    "torchvision-resnet101": 38,
    "torchvision-resnet152": 55,
    "torchvision-densenet121": 77,
    "torchvision-densenet201": 117,
    "torchvision-vit_b_16": 29,
    "torchvision-inception_v3": 26,
    "torchvision-small_densenet": 17,
    "transformers-gpt2": 9,
    "transformers-llama": 8,
    "dropout_mlp": 10,
    "in_place_batch_norm": 7,
    "position_bias": 2,
    "shared_mask": 6,
    "unet": 8,
}
# Of models with few blocks the number of stages is not remarkable; their cuts are looked at all the same.
OTHERS = (
    "timm-xcit_nano_12_p16_224",
    "torchvision-googlenet",
    "torchvision-mobilenet_v3_large",
    "torchvision-swin_t",
    "transformers-bert",
    "transformers-t5",
)


def cut(model: Any, args: tuple[Any, ...]) -> tuple[Any, list[Cut]]:
    """The captured graph module, after its rewrites, and its cuts."""
    program = capture(model, args)
    leaves = pytree.tree_leaves((args, {}))
    fake = fake_mode(leaves)
    flat = [fake_copy(fake, leaf) for leaf in leaves]
    graph = program.graph_module.graph
    known = facts(program, fake, flat)
    if share_concatenations(graph, known):
        known = facts(program, fake, flat)
    sink_parameter_arithmetic(graph, known)
    program.graph_module.recompile()
    return program.graph_module, linearize(graph, known)


class Kept(fx.Interpreter):
    """Runs a graph on real data and keeps every value, and the bytes of some just after a given node."""

    def __init__(self, module: Any, look: dict[fx.Node, list[fx.Node]]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.look = look
        self.values: dict[fx.Node, Any] = {}
        self.then: dict[tuple[fx.Node, fx.Node], list[Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        for node in self.look.get(n, []):
            self.then[n, node] = contents(self.values[node])
        return self.values[n]


def tensors(value: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def contents(value: Any) -> list[Any]:
    return [tensor.detach().clone() for tensor in tensors(value)]


def places(value: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(value) if tensor.untyped_storage().nbytes()}


def reached(graph: Any, starts: set[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on some nodes."""
    found = set(starts)
    for node in graph.nodes:
        if found & set(node.all_input_nodes):
            found.add(node)
    return found


def check_cuts(model: Any, args: tuple[Any, ...]) -> int:
    """Exactly one activation crosses each cut; what crosses is never written again and stands alone.

    Returns the number of stages.
    """
    module, cuts = cut(model, args)
    graph = module.graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert [node for one in cuts for node in one.nodes] == calls
    at = {node: k for k, one in enumerate(cuts) for node in one.nodes}
    crossing = [
        [node for node in calls if at[node] <= k and any(at.get(user, -1) > k for user in node.users)]
        for k in range(len(cuts) - 1)
    ]
    last = [one.nodes[-1] for one in cuts]
    run = Kept(module, {last[k]: nodes for k, nodes in enumerate(crossing)})
    run.run(*pytree.tree_leaves((args, {})))
    given = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    parameters = {node for node in given if isinstance(run.values[node], nn.Parameter)}
    of_batch = reached(graph, {node for node in given if node.op == "placeholder"})
    of_state = reached(graph, parameters)
    fixed = set().union(*(places(run.values[node]) for node in given if tensors(run.values[node])))

    def activation(node: fx.Node) -> bool:
        floating = [tensor for tensor in tensors(run.values[node]) if tensor.is_floating_point()]
        return any(tensor.requires_grad for tensor in floating) or bool(floating and node in of_batch & of_state)

    for k, nodes in enumerate(crossing):
        assert cuts[k].exit is cuts[k + 1].entry
        assert [node for node in nodes if activation(node)] == [cuts[k].exit]
        own = places(run.values[cuts[k].exit])
        assert len(own) == 1
        assert not own & fixed
        for node in nodes:
            assert node is cuts[k].exit or not own & places(run.values[node])
            now = contents(run.values[node])
            assert all(torch.equal(a, b) for a, b in zip(run.then[last[k], node], now, strict=True)), (k, node)
    for one in cuts:
        own_nodes = set(one.nodes)
        read = {source for node in one.nodes for source in node.all_input_nodes} - own_nodes
        assert read == {*one.environment, *one.state} | ({one.entry} if one.entry else set())
        assert set(one.exports) == {
            node for node in one.nodes if node is not one.exit and any(at.get(u, -1) > at[node] for u in node.users)
        }
    return len(cuts)


@pytest.mark.parametrize(
    "name",
    [
        *(case.name for case in CASES if case.exportable and case.family is None),
        "torchvision-small_densenet",
        *(pytest.param(n, marks=pytest.mark.slow) for n in (*STAGES, *OTHERS) if "-" in n and "small" not in n),
    ],
)
def test_one_activation_crosses_each_cut(name: str) -> None:
    model, args = NAMED[name].make()
    number = check_cuts(model, args)
    assert number == STAGES.get(name, number)


def test_a_bias_from_a_parameter_is_one_activation_too_many() -> None:
    _, cuts = cut(*NAMED["position_bias"].make())
    assert [bool(one.exit) for one in cuts] == [True, False]
    assert sum("scaled_dot_product" in str(node.target) for node in cuts[1].nodes) == 3


def test_a_mask_passes_beside_the_chain() -> None:
    _, cuts = cut(*NAMED["shared_mask"].make())
    readers = [k for k, one in enumerate(cuts) if any("triu" in node.name for node in one.environment)]
    (maker,) = [k for k, one in enumerate(cuts) if any("triu" in node.name for node in one.exports)]
    assert len(readers) >= 2
    assert min(readers) > maker


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
    module, _ = cut(model, args)
    cats = [node for node in module.graph.nodes if "cat" in str(node.target)]
    assert (cats[0] in cats[1].all_input_nodes) is not change
    p = prepare(model, args)
    for _, schedule in planner_schedules(p, ("rotor",)):
        assert differences(plain_step(p), planned_step(p, schedule)) == []


def test_names_are_those_of_modules() -> None:
    model, args = NAMED["dropout_mlp"].make()
    assert [one.name for one in stage(model, args).stages] == [str(k) for k in range(10)]


def test_a_model_that_looks_at_values_is_refused() -> None:
    model, args = NAMED["data_dependent"].make()
    with pytest.raises(CaptureError, match=r"torch\.export cannot capture DataDependent: .+"):
        stage(model, args)


class AsksTransformers(nn.Module):
    """Computes otherwise for compilers, by what transformers answers. `strict` ones look at values if for none."""

    def __init__(self, asks: Any, *, strict: bool) -> None:
        super().__init__()
        self.asks, self.strict = asks, strict
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if self.asks.is_torchdynamo_compiling() or self.asks.is_fake_tensor(x):
            return self.layer(x).sin()
        if self.strict and bool((x > 100).any()):
            return self.layer(x)
        return self.layer(x).cos()


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What stands in for the questions of transformers."""
    found = types.SimpleNamespace(
        is_torchdynamo_compiling=torch.compiler.is_compiling, is_fake_tensor=lambda x: isinstance(x, FakeTensor)
    )
    monkeypatch.setitem(sys.modules, "transformers.utils.import_utils", found)
    return found


def test_what_is_captured_is_what_training_computes(asks: types.SimpleNamespace) -> None:
    before = dict(vars(asks))
    model, args = AsksTransformers(asks, strict=False), (torch.ones(2, 4),)
    assert "aten.cos." in capture(model, args).graph_module.code
    step = capture_step(model, args, lambda out: out.sum())
    assert any("aten.cos." in str(operation.node.target) for operation in step.operations)
    assert vars(asks) == before


def test_what_looks_at_values_in_training_only_is_refused(asks: types.SimpleNamespace) -> None:
    model, args = AsksTransformers(asks, strict=True), (torch.ones(2, 4),)
    with pytest.raises(CaptureError, match="cannot capture AsksTransformers"):
        capture(model, args)
    with pytest.raises(CaptureError, match="must not depend on values of tensors"):
        capture_step(model, args, lambda out: out.sum())


class AsksForPacking(nn.Module):
    """Computes otherwise where positions may be those of several sequences, as decoders of transformers do."""

    __module__ = "transformers.models.stub"

    def __init__(self, masks: Any) -> None:
        super().__init__()
        self.masks = masks
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, position_ids: Any = None) -> Any:
        packed = self.masks.find_packed_sequence_indices(torch.arange(4) if position_ids is None else position_ids)
        return self.layer(x).cos() if packed is None else self.layer(x).sin()


@pytest.mark.parametrize(("given", "kind"), [(False, "cos"), (True, "sin")])
def test_positions_that_are_not_given_count_from_0(given: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = types.SimpleNamespace(find_packed_sequence_indices=lambda positions: positions)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masks)
    args = (torch.ones(2, 4), *([torch.arange(4)] if given else []))
    assert f"aten.{kind}." in capture(AsksForPacking(masks), args).graph_module.code
    assert masks.find_packed_sequence_indices(3) == 3


KEPT: dict[int, torch.Tensor] = {}


class KeepsPositions(nn.Module):
    """Keeps what it computed once in a place that torch.export does not know, unless it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        positions = torch.arange(4.0)
        if not torch.compiler.is_compiling():
            positions = KEPT.setdefault(4, positions)
        return self.layer(x + positions)


def test_capturing_leaves_no_tensors_without_data_behind() -> None:
    KEPT.clear()
    capture(KeepsPositions(), (torch.ones(2, 4),))
    assert KEPT
    assert all(type(one) is torch.Tensor for one in KEPT.values())


def test_a_model_in_eval_mode_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"call model\.train\(\)"):
        stage(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
