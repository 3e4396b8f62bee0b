"""A planned step as a program: read, run without memsched, and compared bit by bit with the step that it is of."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import memsched.torch
from memsched.errors import InvalidInputError, MemschedError
from memsched.support.formats import exact_bytes
from memsched.torch import CaptureError, TorchPlan
from memsched.torch.meter import Meter
from memsched.torch.nests import tensors_of
from memsched.torch.trial import Step, first_difference, trial_step, untouched

CPU = torch.device("cpu")
PLANS = {"recompute only": 0, "with a link": "12GB/s"}


class Program:
    """An exported program, run in a namespace of its own; its planned functions are counted as those of memsched."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="ascii")
        self.names: dict[str, Any] = {"__name__": "exported"}
        exec(compile(self.text, str(path), "exec"), self.names)
        self.peak = 0
        meter = Meter("cpu")
        forward, backward = self.names["forward"], self.names["backward"]

        def counted_forward(params: Any, buffers: Any, *inputs: Any) -> Any:
            with meter:
                found = forward(params, buffers, *inputs)
            self.peak = max(self.peak, meter.peak)
            return found

        def counted_backward(saved: Any, gradients: Any) -> Any:
            meter.count(gradients)
            with meter:
                found = backward(saved, gradients)
            self.peak = max(self.peak, meter.peak)
            return found

        self.names.update(forward=counted_forward, backward=counted_backward)

    def run(self, model: nn.Module, *inputs: torch.Tensor) -> Any:
        return self.names["run"](model, *inputs)

    def step(self, model: nn.Module, *inputs: torch.Tensor, **more: Any) -> Any:
        return self.names["step"](model, *inputs, **more)


def tried(model: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Step:
    with untouched(model, (args, kwargs)):
        torch.manual_seed(5)
        found = trial_step(model, forward, args, kwargs, CPU)
    return Step(outputs=found.outputs, gradients=found.gradients, buffers=found.buffers, random=found.random)


def check(
    model: nn.Module,
    args: Sequence[Any],
    folder: Path,
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str = "60%",
    bandwidth: str | float = "12GB/s",
    plain: bool = True,
    applied: bool = False,
) -> Program:
    """The program computes what plain PyTorch does, or the applied plan, and holds no more than that."""
    plan = memsched.torch.plan(model, args, kwargs, budget=budget, bandwidth=bandwidth, device="v100:pcie3")
    plan.export(folder / "step.py", model, args, kwargs)
    program = Program(folder / "step.py")
    found = tried(model, lambda *a, **k: program.run(model, *tensors_of((a, k))), args, kwargs)
    assert not plain or first_difference(tried(model, model, args, kwargs), found) is None
    most = plan.verify(model, args, kwargs).peak_memory if applied else plan.peak_memory
    assert plan.plan.process_bytes(program.peak) <= most
    if applied:
        plan.apply(model)
        try:
            assert first_difference(tried(model, model, args, kwargs), found) is None
        finally:
            plan.remove()
    return program


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        out = self.head(x)
        return out if y is None else (nn.functional.cross_entropy(out, y), out)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.stem(x)))
        return self.head((x + self.body(x)).mean((2, 3)))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.5)) for _ in range(4))
        self.noise = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.noise(x * torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.again = self.body

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.body(self.embedding(tokens))))))


class Two(nn.Module):
    """Two results, and an input that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        h = torch.sigmoid(self.first(x)) * scale
        return {"h": h, "out": self.second(torch.sigmoid(h)).exp()}


def models() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return {
        "mlp": (Mlp(), (torch.randn(64, 32),)),
        "mlp with its loss": (Mlp(), (torch.randn(64, 32), torch.randint(0, 5, (64,)))),
        "cnn": (Cnn(), (torch.randn(4, 3, 12, 12),)),
        "channels last": (
            Cnn().to(memory_format=torch.channels_last),
            (torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last),),
        ),
        "dropout": (Dropping(), (torch.randn(48, 32),)),
        "tied": (Tied(), (torch.randint(0, 20, (4, 9)),)),
        "two results": (Two(), (torch.randn(32, 16, requires_grad=True),)),
    }


def transformer(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from memsched.torch import zoo

    transformers = pytest.importorskip("transformers")
    zoo.torchvision()
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
    if name == "llama":
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
        config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, **heads, **sizes)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes)
        model = transformers.GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # else it warns once, which breaks the graph
    tokens, mask = torch.randint(0, 50, (3, 16)), torch.ones(3, 16, dtype=torch.long)
    mask[1, :5] = 0
    return model.train(), {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


@pytest.mark.parametrize("name", list(models()))
def test_the_program_has_the_bits_of_the_step(name: str, tmp_path: Path) -> None:
    model, args = models()[name]
    check(model, args, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["30%", "60%", "100%"])
@pytest.mark.parametrize("link", PLANS)
@pytest.mark.parametrize("name", list(models()))
def test_so_it_has_at_all_budgets(name: str, link: str, budget: str, tmp_path: Path) -> None:
    model, args = models()[name]
    try:
        check(model, args, tmp_path, budget=budget, bandwidth=PLANS[link], applied=True)
    except memsched.InfeasibleError:
        assert link == "recompute only"


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["30%", "60%", "100%"])
@pytest.mark.parametrize("link", PLANS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_so_it_has_of_language_models(name: str, link: str, budget: str, tmp_path: Path) -> None:
    model, kwargs = transformer(name)
    program = check(model, (), tmp_path, kwargs, budget=budget, bandwidth=PLANS[link], applied=True)
    assert "# model.layers.1.self_attn" in program.text or "# transformer.h.1.attn" in program.text
    words = {"recompute only": "  # recomputed", "with a link": "  # from the host"}
    assert (words[link] in program.text) is (budget != "100%")
    found = copy.deepcopy(model)
    torch.manual_seed(3)
    loss = program.step(found, kwargs["input_ids"], kwargs["attention_mask"], kwargs["input_ids"])
    torch.manual_seed(3)
    result = model(**kwargs)
    result.loss.backward()
    torch.testing.assert_close(loss, result.loss.detach(), rtol=0, atol=0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(found.parameters(), model.parameters(), strict=True))


def planned(model: nn.Module, args: Any, budget: str = "60%", **more: Any) -> TorchPlan:
    return memsched.torch.plan(model, args, budget=budget, device="v100:pcie3", **more)


def test_a_step_trains_as_the_model_does(tmp_path: Path) -> None:
    """Several steps with an optimiser, gradients that add up, and buffers that change."""
    model, (x,) = models()["cnn"]
    planned(model, (x,), "30%").export(tmp_path / "step.py", model, (x,))
    program, other = Program(tmp_path / "step.py"), copy.deepcopy(model)
    sides: list[list[torch.Tensor]] = []
    for one in (model, other):
        sgd = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for k in range(4):
            y = x + k
            if one is model:
                loss = program.step(one, y, loss=lambda out: out.square().mean())
            else:
                loss = one(y).square().mean()
                loss.backward()
            losses.append(loss.detach())
            if k % 2:
                sgd.step()
                sgd.zero_grad()
        sides.append([*losses, *one.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*sides, strict=True))


@pytest.mark.parametrize("budget", ["1%", "30%"])
def test_a_share_is_that_of_the_step_with_its_loss(budget: str, tmp_path: Path) -> None:
    """It was one of the step without, so that a plan did not fit what it was made for, sometimes."""

    def wide(out: torch.Tensor) -> torch.Tensor:
        return sum((out.expand(8, -1, -1) * k).sin().exp().sum() for k in range(3))

    model, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()), torch.randn(64, 16)
    plan = memsched.torch.plan(model, (x,), budget="100%", bandwidth=0, loss=wide).at(budget)
    plan.export(tmp_path / "step.py", model, (x,))
    program = Program(tmp_path / "step.py")
    assert f"at most {exact_bytes(plan.peak_memory)}" in program.text
    model(x).sum().backward()
    expected = [one.grad for one in model.parameters()]
    model.zero_grad()
    program.step(model, x, loss=torch.sum)
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), expected, strict=True))


def test_it_runs_where_there_is_no_memsched(tmp_path: Path) -> None:
    """The same file in a process that cannot import memsched, with a loss of the model."""
    model, args = models()["mlp with its loss"]
    planned(model, args, "30%").export(tmp_path / "exported_step.py", model, args)
    loss, _ = model(*args)
    loss.backward()
    torch.save((args, model.state_dict(), [one.grad for one in model.parameters()], loss.detach()), tmp_path / "all.pt")
    code = f"""
import sys
sys.modules["memsched"] = None
sys.path.insert(0, {str(tmp_path)!r})
import torch, exported_step as step
from torch import nn
args, state, gradients, loss = torch.load({str(tmp_path / "all.pt")!r})
model = nn.Module()
model.layers, model.head = nn.ModuleList(nn.Linear(32, 32) for _ in range(6)), nn.Linear(32, 5)
model.load_state_dict(state)
assert torch.equal(step.step(model, *args), loss)
assert all(torch.equal(a.grad, b) for a, b in zip(model.parameters(), gradients))
assert not any(name.startswith("memsched.") for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_text_is_the_same_each_time_and_fits_a_page(tmp_path: Path) -> None:
    model, args = models()["cnn"]
    plan = planned(model, args, "30%", bandwidth="12GB/s")
    plan.save(tmp_path / "plan.json")
    for name, one in (("a.py", plan), ("b.py", TorchPlan.load(tmp_path / "plan.json"))):
        one.export(tmp_path / name, model, args)
    text = (tmp_path / "a.py").read_text()
    assert text == (tmp_path / "b.py").read_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "    # body.1\n" in text
    assert "offload(" in text
    assert "del " in text
    assert 'params["stem.weight"]' in text


HOSTILE = 'a"""\nraise SystemExit(3)\n#'


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.ModuleDict()
        for name in (HOSTILE, "b'\\", "é\u2028x", "class", "torch", "}]) or exit() #"):
            self.part.add_module(name, nn.Linear(8, 8))
        self.part[HOSTILE].register_buffer("x\r\ny", torch.ones(8))

    def forward(self, x: torch.Tensor, *, flag: str = "") -> torch.Tensor:
        for layer in self.part.values():
            x = torch.tanh(layer(x))
        return x * self.part[HOSTILE].get_buffer("x\r\ny")


def test_names_are_no_code(tmp_path: Path) -> None:
    Hostile.__name__ = "A\nraise SystemExit(4)"
    program = check(Hostile(), (torch.randn(8, 8),), tmp_path, {"flag": 'b"""\nraise SystemExit(5)'})
    assert "\nraise" not in program.text
    assert program.text.isascii()


def test_a_plan_from_a_stranger_is_no_code(tmp_path: Path) -> None:
    """What a file says of modules and costs is in no program, and neither are steps that do not fit the model."""
    model, args = models()["mlp"]
    plan = planned(model, args)
    document = plan.to_json()
    document["plan"]["modules"] = dict.fromkeys(document["plan"]["modules"], "x\nraise SystemExit(3)")
    document["plan"]["source"] = "x\nraise SystemExit(3)"
    TorchPlan.load(document).export(tmp_path / "step.py", model, args)
    assert "SystemExit" not in (tmp_path / "step.py").read_text()
    steps = document["plan"]["steps"]
    document["plan"]["steps"] = [*steps[:3], *steps[4:]]
    with pytest.raises(InvalidInputError, match="the steps of the plan do not run the captured step"):
        TorchPlan.load(document).export(tmp_path / "other.py", model, args)
    assert not (tmp_path / "other.py").exists()


class Calls(nn.Module):
    """A layer, and a function of it and of the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))
        self.kept: Any = torch.ones(8)
        self.count = 0
        self.told: list[int] = []
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def _breaks(one: Any, x: torch.Tensor) -> Any:
    h = one.layer(x)
    torch._dynamo.graph_break()
    return one.layer(h)


def _changes(one: Any, x: torch.Tensor) -> Any:
    x.mul_(2)
    return one.layer(x)


def _clamps(one: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        one.layer.weight.clamp_(-1, 1)
    return one.layer(x)


def _counts(one: Any, x: torch.Tensor) -> Any:
    one.count += 1
    return one.layer(x)


def _keeps(one: Any, x: torch.Tensor) -> Any:
    one.kept = one.layer(x)
    return one.kept * 2


def _appends(one: Any, x: torch.Tensor) -> Any:
    one.told.append(len(one.told))
    return one.layer(x) * len(one.told)


def _replaces(one: Any, x: torch.Tensor) -> Any:
    one.scale = one.layer(x).mean(0)
    return one.layer(x)


def _views(one: Any, x: torch.Tensor) -> Any:
    h = one.layer(x)
    return h, h.t()


NUMBERS = [float(k) for k in range(2000)]
REFUSED: dict[str, Callable[..., Any]] = {
    "it is captured in 2 graphs, and a program holds one": _breaks,
    "its forward changes the input 0 in place": _changes,
    "its forward changes the parameter layer.weight in place": _clamps,
    "its forward changes the attribute count": _counts,
    "its forward changes the attribute kept": _keeps,
    "its forward changes the attribute told": _appends,
    "its forward computes a tensor that it does not return": _replaces,
    "result 1 of the model is a view of": _views,
    "it reads a tensor 'kept' that is no parameter, buffer or input": lambda one, x: one.layer(x) * one.kept,
    "makes a tensor of 2000 numbers": lambda one, x: one.layer(x).sum() * torch.tensor(NUMBERS),
    "it runs cond": lambda one, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (one.layer(x),)),
    "by as_strided": lambda one, x: one.layer(x.as_strided((2, 8), (8, 1), 8)),
    "result 1 of the model is a view": lambda one, x: (one.layer(x), one.layer.weight),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_no_program_holds_is_refused_by_name(said: str, tmp_path: Path) -> None:
    model, args = Calls(REFUSED[said]), (torch.randn(4, 8),)
    plan = planned(model, args, "100%")
    with pytest.raises(CaptureError, match=f"the step of Calls cannot be exported: .*{said}"):
        plan.export(tmp_path / "step.py", model, args)
    assert not list(tmp_path.iterdir())


@torch.compiler.disable
def apart(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def test_what_is_not_captured_is_refused(tmp_path: Path) -> None:
    model, args = Calls(lambda one, x: one.layer(apart(one.layer(x)))), (torch.randn(4, 8),)
    with pytest.warns(UserWarning, match="PyTorch captures no"):
        plan = planned(model, args, "100%")
    with pytest.raises(CaptureError, match="a part of it is not captured: PyTorch captures no"):
        plan.export(tmp_path / "step.py", model, args)
    assert not list(tmp_path.iterdir())


def test_another_model_or_file_is_refused(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    plan = planned(model, args)
    with pytest.raises(InvalidInputError, match="the plan is for another model"):
        plan.export(tmp_path / "step.py", nn.Linear(32, 5), args)
    with pytest.raises(InvalidInputError, match="the step is not the one that was planned"):
        plan.export(tmp_path / "step.py", model, (torch.randn(65, 32),))
    with pytest.raises(InvalidInputError, match="would hold a Python program, but is named as JSON"):
        plan.export(tmp_path / "step.json", model, args)
    with pytest.raises(MemschedError, match="cannot be written"):
        plan.export(tmp_path / "nowhere" / "step.py", model, args)
    assert not list(tmp_path.iterdir())


def test_a_program_refuses_what_it_was_not_made_for(tmp_path: Path) -> None:
    model, (tokens,) = models()["tied"]
    planned(model, (tokens,)).export(tmp_path / "step.py", model, (tokens,))
    program = Program(tmp_path / "step.py")
    program.step(model, tokens, loss=lambda out: out.sum())
    for said, given in {
        r"the input args\[0\] is \(3, 9\)": (tokens[:3],),
        "is .*torch.int32": (tokens.int(),),
        "takes 1 tensors, not 2": (tokens, tokens),
        "has strides": (tokens.t().contiguous().t(),),
    }.items():
        with pytest.raises(ValueError, match=said):
            program.run(model, *given)
    with pytest.raises(ValueError, match="not one number: give loss="):
        program.step(model, tokens)
    model.body.eval()
    with pytest.raises(ValueError, match="the module 'body' is in eval mode"):
        program.run(model, tokens)
    model.train()
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(ValueError, match="the model has 4 parameters, and the one that was planned 3"):
        program.run(model, tokens)
    model.body.bias = None
    with pytest.raises(ValueError, match=r"head.weight and embedding.weight must be one tensor"):
        program.run(model, tokens)


def test_backward_is_told_what_it_cannot_do(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    planned(model, args).export(tmp_path / "step.py", model, args)
    program = Program(tmp_path / "step.py")
    out = program.run(model, *args).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        out.backward()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(program.run(model, *args).sum(), model.head.weight, create_graph=True)
    out = program.run(model, *args).sum()
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.backward()


@torch.library.custom_op("exported::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


square.register_fake(torch.empty_like)
square.register_autograd(
    lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_operators_of_others_are_noted(tmp_path: Path) -> None:
    program = check(Calls(lambda one, x: one.layer(square(one.layer(x)))), (torch.randn(4, 8),), tmp_path)
    assert "# Import first what defines torch.ops.exported." in program.text


def autocast(one: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.tanh(one.layer(x)).float()


def spectrum(one: Any, x: torch.Tensor) -> torch.Tensor:
    return (torch.fft.rfft(one.layer(x)).conj() * torch.fft.rfft(x)).abs()


def both(one: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    h = torch.tanh(one.layer(x))
    return {"h": h, "same": h, "without": h.detach(), "given": y, "best": h.argmax(1)}


class Cache:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.layers = [{"keys": one} for one in tensors]


def cached(one: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(one.layer(x))
    return one.layer(h), Cache([h])


def updated(one: Any, x: torch.Tensor) -> torch.Tensor:
    h = one.layer(x) + one.scale
    one.scale.mul_(2)
    return torch.tanh(h) * one.scale


ODD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "autocast": (autocast, (torch.randn(4, 8),)),
    "complex numbers": (spectrum, (torch.randn(4, 8),)),
    "many results": (both, (torch.randn(4, 8), torch.ones(3))),
    "a buffer that is read and changed": (updated, (torch.randn(4, 8),)),
    "constants": (
        lambda one, x: one.layer(x) * torch.tensor([float("inf"), -0.0] * 4).nan_to_num(),
        (torch.randn(4, 8),),
    ),
    "an input twice": (lambda one, x, y: one.layer(x) * y, (torch.randn(4, 8),) * 2),
    "a view": (lambda one, x: one.layer(x).view(2, 16), (torch.randn(4, 8),)),
    "an input that needs a gradient alone": (lambda one, x: x * one.scale, (torch.randn(4, 8, requires_grad=True),)),
}


class Named:
    def __init__(self, out: torch.Tensor) -> None:
        self.out = out


def test_a_container_without_names_is_counted(tmp_path: Path) -> None:
    pytree.register_pytree_node(Named, lambda one: ([one.out], None), lambda parts, _: Named(*parts))
    try:
        model, args = Calls(lambda one, x: Named(one.layer(x))), (torch.randn(4, 8),)
        planned(model, args, "100%").export(tmp_path / "step.py", model, args)
        assert torch.equal(Program(tmp_path / "step.py").run(model, *args), model(*args).out)
    finally:
        pytree._deregister_pytree_node(Named)


def test_an_object_among_the_results_is_left_out(tmp_path: Path) -> None:
    model, args = Calls(cached), (torch.randn(4, 8),)
    planned(model, args).export(tmp_path / "step.py", model, args)
    program = Program(tmp_path / "step.py")
    assert "# The model also returns Cache, which the program leaves out." in program.text
    found = program.run(model, *args)
    found.sum().backward()
    gradient, model.layer.weight.grad = model.layer.weight.grad, None
    expected = model(*args)[0]
    expected.sum().backward()
    assert torch.equal(found, expected)
    assert torch.equal(gradient, model.layer.weight.grad)


@pytest.mark.parametrize("name", ODD)
def test_odd_steps_have_the_same_bits(name: str, tmp_path: Path) -> None:
    function, args = ODD[name]
    check(Calls(function), args, tmp_path, budget="50%")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_have_the_same_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    check(Mlp().to(dtype), (torch.randn(64, 32, dtype=dtype),), tmp_path)


def test_frozen_parameters_get_no_gradient(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    model.layers[:3].requires_grad_(False)
    program = check(model, args, tmp_path)
    program.step(model, *args, loss=lambda out: out.sum())
    assert model.layers[2].weight.grad is None
    assert model.layers[3].weight.grad is not None
