"""Models from a line of text, and the networks that the other tests capture and run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from memsched.errors import InvalidInputError
from memsched.torch import zoo
from pytorch.models import CASES, PARAMETERS, Case


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


torchvision = needs("torchvision")
timm = needs("timm")
transformers = needs("transformers")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    name = "models_of_a_user"
    source = """
        import torch
        from torch import nn

        def plain():
            return nn.Linear(4, 2)

        def with_args():
            return nn.Linear(4, 2), (torch.ones(3, 4),)

        def tied():
            weight = nn.Parameter(torch.ones(4, 4))
            first, second = nn.Linear(4, 4), nn.Linear(4, 4)
            weight.kept = True
            first.weight, second.weight = weight, weight
            return nn.Sequential(first, second, nn.LSTM(4, 4)), (torch.ones(3, 4),)

        def mixed():
            layer = nn.Linear(4, 4)
            layer.register_buffer("start", layer.weight.detach() + torch.ones(4, 4))
            return layer

        def number():
            return 3

        def needy(width):
            return nn.Linear(width, 2)

        class Net(nn.Linear):
            def __init__(self, width=4):
                super().__init__(width, 2)

        made = nn.Linear(4, 2)
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


@pytest.mark.parametrize("form", ["{module}", "{module}.py", "./{module}.py"])
@pytest.mark.parametrize(
    ("name", "width"), [("plain", 4), ("needy?width=3", 3), ("Net", 4), ("Net?width=5", 5), ("made", 4)]
)
def test_a_function_a_class_and_a_model_of_a_file_or_module(module: str, form: str, name: str, width: int) -> None:
    """`nets.py:resnet` named no module, and a model in place of a function ended in a raw TypeError."""
    spec = f"{form.format(module=module)}:{name}"
    for _ in range(2):  # a model that is there already is left as it was
        built = zoo.build(spec, f"6x{width}", fake=FakeTensorMode())
        assert built.model(*built.args).shape == (6, 2)
    assert type(sys.modules[module].made.weight) is torch.nn.Parameter


@torchvision
def test_a_model_of_torchvision() -> None:
    built = zoo.build("torchvision:resnet18?num_classes=10", "2x3x32x32")
    assert built.name == "resnet18"
    assert built.model.training
    assert built.model(*built.args).shape == (2, 10)


@timm
def test_a_model_of_timm_with_its_own_image() -> None:
    built = zoo.build("timm:deit_tiny_patch16_224?num_classes=10&img_size=32")
    assert built.args[0].shape == (8, 3, 32, 32)
    assert built.model(*built.args).shape == (8, 10)


@transformers
def test_token_models_get_ids_below_their_vocabulary() -> None:
    built = zoo.build(
        "transformers:gpt2?n_layer=1&n_embd=8&n_head=2&vocab_size=5&bos_token_id=0&eos_token_id=0", "64x8"
    )
    (ids,) = built.args
    assert ids.dtype == torch.int64
    assert set(ids.unique().tolist()) == {0, 1, 2, 3, 4}
    assert built.model(*built.args).logits.shape == (64, 8, 5)


@transformers
def test_random_ids_are_never_padding() -> None:
    options = "num_hidden_layers=1&hidden_size=8&num_attention_heads=1&intermediate_size=8&vocab_size=5&pad_token_id=2"
    (ids,) = zoo.build(f"transformers:bert?{options}", "64x8").args
    assert set(ids.unique().tolist()) == {0, 1, 3, 4}


@transformers
@pytest.mark.parametrize(("text", "decoder"), [("2x6", (2, 6)), ("2x6:int,2x3:int", (2, 3))])
def test_the_tokens_of_a_decoder_find_their_place(text: str, decoder: tuple[int, ...]) -> None:
    small = "num_layers=1&d_model=8&num_heads=2&d_kv=4&d_ff=8&vocab_size=9"
    built = zoo.build(f"transformers:t5?{small}", text)
    assert [value if value is None else value.shape for value in built.args] == [(2, 6), None, decoder]
    assert built.model(*built.args).logits.shape == (*decoder, 9)


@transformers
@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("gpt2", "GPT2LMHeadModel"),
        ("bert", "BertForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("vit", "ViTForImageClassification"),
    ],
)
def test_the_head_suits_the_model_type(kind: str, head: str) -> None:
    built = zoo.build(f"transformers:{kind}", device="meta")
    assert type(built.model).__name__ == head
    assert not getattr(built.model.config, "use_cache", False)
    assert built.model.config._attn_implementation == "sdpa"


def test_a_function_of_the_user(module: str) -> None:
    built = zoo.build(f"{module}:plain", "5x4")
    assert (built.name, built.model(*built.args).shape) == ("plain", (5, 2))
    assert zoo.build(f"{module}:with_args").args[0].shape == (3, 4)
    assert zoo.build(f"{module}:with_args", "7x4").args[0].shape == (7, 4)
    assert str(Path.cwd()) not in sys.path


def test_seeds(module: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, same, other = (zoo.build(f"{module}:plain", "5x4", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.model.weight, same.model.weight)
    assert torch.equal(first.args[0], same.args[0])
    assert not torch.equal(first.model.weight, other.model.weight)
    assert not torch.equal(first.args[0], other.args[0])


def test_dtype_spares_whole_numbers(module: str) -> None:
    built = zoo.build(f"{module}:plain", "5x4,3:int:7,2:bool", dtype=torch.bfloat16)
    assert built.model.weight.dtype == torch.bfloat16
    assert [value.dtype for value in built.args] == [torch.bfloat16, torch.int64, torch.bool]


def test_fake_models_keep_what_is_shared(module: str) -> None:
    fake = FakeTensorMode()
    built = zoo.build(f"{module}:tied", fake=fake)
    tensors = [*built.model.parameters(), *built.args]
    assert all(value.fake_mode is fake and value.device.type == "cpu" for value in tensors)
    assert built.model[0].weight is built.model[1].weight
    assert built.model[0].weight.kept
    with fake:
        built.model(*built.args)[0].sum().backward()
    assert all(value.grad is not None for value in built.model.parameters())
    real = zoo.build(f"{module}:tied")
    assert [p.shape for p in real.model.parameters()] == [p.shape for p in built.model.parameters()]


def test_fake_models_that_mix_parameters_with_tensors(module: str) -> None:
    built = zoo.build(f"{module}:mixed", "2x4", fake=FakeTensorMode())
    assert built.model.start.device.type == "cpu"
    assert built.model.start.fake_mode is built.args[0].fake_mode


@torchvision
@transformers
@pytest.mark.parametrize(
    ("spec", "text", "parameters"),
    [("torchvision:resnet152", "8x3x1000x1000", 60_192_808), ("transformers:llama", "1x2048", 6_738_415_616)],
)
def test_fake_models_of_any_size(spec: str, text: str, parameters: int) -> None:
    fake = FakeTensorMode()
    built = zoo.build(spec, text, fake=fake)
    assert sum(value.numel() for value in built.model.parameters()) == parameters
    with fake:
        outputs = tree_leaves(built.model(*built.args))
        sum(value.sum() for value in outputs).backward()
    assert all(value.grad.shape == value.shape for value in built.model.parameters())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_fake_cuda_needs_a_gpu(module: str) -> None:
    with pytest.raises(InvalidInputError, match="autograd aborts on fake CUDA tensors"):
        zoo.build(f"{module}:with_args", fake=FakeTensorMode(), device="cuda")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param("resnet18", "has no family; did you mean torchvision:resnet18 or timm:resnet18", marks=timm),
        pytest.param("gpt2", "has no family; did you mean transformers:gpt2", marks=transformers),
        pytest.param("hf:gpt2", "no module 'hf'; did you mean transformers:gpt2", marks=transformers),
        ("nothing_like_it", "the model is 'nothing_like_it', which has no family; write torchvision:resnet101"),
        ("transformers:", "which has no family"),
        (":", "is empty"),
        ("a-b:make", "is in a module that cannot be imported by this name"),
        ("{module}:make it", "ends in 'make it', which is no name of a function"),
        ("a/b.py:make", "names the file 'a/b.py', which is not here"),
        ("torchvison:resnet18", "no module 'torchvison'; near: torchvision; "),
        ("{module}.deeper:make", "no module '{module}.deeper'"),
        ("{module}:plane", "the module '{module}' has no function 'plane'; near: plain"),
        ("{module}:number", "returned int; it must return a torch.nn.Module"),
        ("{module}:needy", "cannot be called so: missing a required argument: 'width'; give arguments as in"),
        (
            "{module}:plain?width=3",
            "cannot be called so: got an unexpected keyword argument 'width'; give arguments as in",
        ),
        ("{module}:made?width=3", "gives options to a model that is made already"),
        ("{module}:plain?width=0,9", r"with a decimal comma; write width=0\.9"),
        pytest.param("torchvision:resnet1", "near: resnet18,", marks=torchvision),
        pytest.param("torchvision:resnet18?classes=3", "unexpected keyword argument 'classes'", marks=torchvision),
        pytest.param("torchvision:resnet18?classes", "the option 'classes'; write key=value", marks=torchvision),
        pytest.param("timm:deit_tiny_patch", "timm has no model 'deit_tiny_patch'; near: deit", marks=timm),
        pytest.param("transformers:gtp2", "near: gpt2", marks=transformers),
        pytest.param(
            "transformers:openai/gpt2-medium", "no model type 'openai/gpt2-medium'; near: gpt2", marks=transformers
        ),
        pytest.param("transformers:gpt2?n_layers=3", "no field 'n_layers'; near: n_layer", marks=transformers),
        pytest.param("transformers:gpt2?n_layer=few", "cannot be built: .*expected int", marks=transformers),
        pytest.param("transformers:llama?hidden_size=65", "not a multiple", marks=transformers),
    ],
)
def test_what_cannot_be_a_model(module: str, spec: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message.format(module=module)):
        zoo.build(spec.format(module=module), device="meta")


@pytest.mark.parametrize("text", ["", "x", "2x", "2x-3", "0x3", "2,", "2:long", "2:float:3", "2:int:0", "9" * 20])
def test_what_cannot_be_an_input(text: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape("which is not a shape of sizes >= 1; write 32x3x224x224")):
        zoo.parse_input(text)


def test_inputs_that_are_missing(module: str) -> None:
    with pytest.raises(InvalidInputError, match="no default input"):
        zoo.build(f"{module}:plain")
    with pytest.raises(InvalidInputError, match="the input 5x4:int has no bound"):
        zoo.build(f"{module}:plain", "5x4:int")


SHAPES = st.lists(st.integers(1, 999), min_size=1, max_size=5)
KINDS = st.sampled_from([("", None, None), (":float", "float", None), (":bool", "bool", None), (":int", "int", None)])


@given(st.lists(st.tuples(SHAPES, KINDS | st.integers(1, 99).map(lambda n: (f":int:{n}", "int", n))), min_size=1))
def test_inputs_read_back(parts: list[tuple[list[int], tuple[str, str | None, int | None]]]) -> None:
    text = ", ".join("x".join(map(str, shape)) + suffix for shape, (suffix, _, _) in parts)
    assert [tuple(part) for part in zoo.parse_input(text)] == [(tuple(s), kind, below) for s, (_, kind, below) in parts]


@pytest.mark.parametrize("family", ["torchvision", "timm", "transformers"])
def test_a_missing_package_says_how_to_install_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, family, None)
    with pytest.raises(InvalidInputError, match=f"needs the package {family}.*; pip install .*{family}=="):
        zoo.build(f"{family}:resnet18")


@torchvision
def test_torchvision_can_be_imported_first_and_twice() -> None:
    code = "from memsched.torch import zoo; assert zoo.torchvision() is zoo.torchvision(); zoo.torchvision().ops.nms"
    subprocess.run([sys.executable, "-c", code], check=True)


def total(outputs: Any) -> Any:
    """A loss that every output takes part in."""
    return sum(value.float().sum() for value in tree_leaves(outputs) if value.requires_grad)


def step(run: Any, model: Any, args: tuple[Any, ...]) -> list[Any]:
    """Outputs and gradients of one training step, of a fixed seed."""
    torch.manual_seed(1)
    outputs = run(*args)
    total(outputs).backward()
    gradients = [value.grad for value in model.parameters() if value.requires_grad]
    return [*tree_leaves(outputs), *gradients, *model.buffers()]


def test_the_cases_are_many_and_named_apart() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len([case for case in CASES if case.family is not None]) >= 37


# Export compares what a module holds before and after, and finds the list of an LSTM's weights made anew.
@pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm._flat_weights:UserWarning")
@pytest.mark.parametrize("case", PARAMETERS)
def test_a_case_trains_and_exports(case: Case) -> None:
    """What torch.export captures in train mode gives the same bits: outputs, gradients, buffers."""
    model, args = case.make()
    expected = step(model, model, args)
    model, args = case.make()
    if not case.exportable:
        with pytest.raises(GuardOnDataDependentSymNode):
            torch.export.export(model, args, strict=False)
        return
    exported = torch.export.export(model, args, strict=False).module(check_guards=False)
    assert {id(value) for value in exported.parameters()} == {id(value) for value in model.parameters()}
    found = step(exported, model, args)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
