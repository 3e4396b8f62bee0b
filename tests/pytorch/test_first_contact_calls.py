"""What a new user of memsched.torch mistypes, and the sentence that each mistake ends in."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memsched as ms
import memsched.torch
from memsched.torch.compiled.options import read_options
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.errors import CallError, told

V100 = "v100:pcie3"


def blocks(depth: int = 6, width: int = 64) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))


def batch(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (256, 64))


class Two(nn.Linear):
    """It takes two arguments."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # on purpose
        return super().forward(x) * scale


class Wrong(nn.Linear):
    """It multiplies what cannot be multiplied."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ x


class Picky(nn.Linear):
    """It refuses short batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) < 100:
            raise ValueError("give a hundred samples")
        assert x.shape[1] == 64, "not so wide"
        return super().forward(x)


def plan(model: Any, args: Any, kwargs: Any = None, **more: Any) -> object:
    return memsched.torch.plan(model, args, kwargs, **{"budget": "60%", "device": V100} | more)


def fit(model: Any, args: Any, kwargs: Any = None, **more: Any) -> object:
    return memsched.torch.fit(model, args, kwargs, **{"memory": "6MB", "device": V100, "largest": False} | more)


def profile(model: Any, args: Any, kwargs: Any = None) -> object:
    return memsched.torch.profile(model, args, kwargs, device=V100)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return blocks()


CALLS = [  # model, args, kwargs, what is said
    (blocks, batch(), None, r"args is a tensor; give the arguments as a tuple: \(x,\)"),
    (blocks, {"x": batch()}, None, "args is a dict; Sequential is called with"),
    (blocks, 3, None, r"args is 3; give what Sequential is called with as a tuple: \(x,\)"),
    (blocks, (batch(),), batch(), "kwargs is a tensor; it must be a dict of named arguments"),
    (blocks, ((batch(),),), None, r"must be Tensor, not tuple; args\[0\] is a tuple: args is what stands in model"),
    (blocks, (batch(), batch()), None, r"Sequential\.forward takes \(input\): too many positional arguments"),
    (lambda: Two(64, 64), (batch(),), None, r"Two\.forward takes \(x, scale\): missing a required argument: 'scale'"),
    (blocks, (batch(4, 32),), None, r"Sequential cannot run on float32 4x32: .*\[4, 32\] X \[64, 64\]; check that"),
    (
        lambda: Wrong(64, 64),
        (batch(4, 64),),
        None,
        r"test_first_contact_calls\.py, line \d+: return super\(\)\.forward\(x\) @ x",
    ),
    (lambda: Picky(64, 64), (batch(4, 64),), None, "Picky cannot run on float32 4x64: give a hundred samples"),
    (lambda: Picky(32, 32), (batch(128, 32),), None, "Picky cannot run on float32 128x32: not so wide"),
    (lambda: nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8)), (batch(4, 8),), None, r"dtype=torch\.long"),
    (on_meta, (batch(),), None, "model and inputs are on cpu and meta: put them on one device"),
    (lambda: nn.Sequential(nn.Tanh()), (batch(),), None, "Sequential trains nothing: it has no parameters"),
    (
        lambda: blocks().requires_grad_(False),
        (batch(),),
        None,
        r"all its parameters are frozen; call requires_grad_\(\)",
    ),
]


LOOKS = [
    pytest.param(look, *call, id=f"{look.__name__}-{call[-1][:30]}", marks=() if k % often == 0 else pytest.mark.slow)
    for look, often in ((plan, 1), (fit, 5), (profile, 5))
    for k, call in enumerate(CALLS)
]


@pytest.mark.parametrize(("look", "model", "args", "kwargs", "words"), LOOKS)
def test_a_wrong_call_is_a_sentence(
    look: Callable[..., object], model: Callable[[], nn.Module], args: Any, kwargs: Any, words: str, caplog: Any
) -> None:
    """Most ended in TypeErrors of Python's and in pages of Dynamo's."""
    with pytest.raises(ms.InvalidInputError, match=words) as caught:
        look(model(), args, kwargs)
    assert "\n" not in str(caught.value)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]  # PyTorch logs each traceback


@pytest.mark.parametrize(
    "look", [plan, fit, lambda model, args, loss: memsched.torch.plan_step(model, args, loss, budget="60%")]
)
def test_a_wrong_loss_is_a_sentence(look: Callable[..., object]) -> None:
    with pytest.raises(ms.InvalidInputError, match=r"loss takes the model's result alone \(missing .*'target'\); bind"):
        look(blocks(), (batch(),), loss=nn.MSELoss())
    with pytest.raises(ms.InvalidInputError, match="loss is a tensor; it must be a function"):
        look(blocks(), (batch(),), loss=batch())


def test_an_error_of_ours_is_no_error_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> object:
        raise TypeError("ours")

    broken.__code__ = broken.__code__.replace(co_filename=ms.torch.errors.__file__)
    with pytest.raises(TypeError, match="ours"), told(blocks(), (batch(),)):
        broken()
    with pytest.raises(CallError, match=r"cannot run on float32 256x64: theirs"), told(blocks(), (batch(),)):
        raise ValueError("theirs")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: memsched.torch.plan(blocks(), (batch(),), memory="6GB"),
            "plan has no argument 'memory'; did you mean 'budget'?",
        ),
        (
            lambda: memsched.torch.fit(blocks(), (batch(),), budget="6GB"),
            "fit has no argument 'budget'; did you mean 'memory'?",
        ),
        (
            lambda: memsched.torch.plan_step(blocks(), (batch(),), budget="6GB"),
            "the model returns no loss, which is one number as a tensor; give loss=lambda out: ...",
        ),
        (lambda: memsched.torch.profile(blocks()), " 'args'; profile takes model, args"),  # type: ignore[call-arg]  # wrong on purpose
        (lambda: plan(blocks(), (batch(),), budget=0.4), 'budget is 0.4, less than a byte; did you mean "40%"?'),
        (
            lambda: plan(blocks(), (batch(),), device="cuda"),
            "the device is 'cuda', which is no name of a machine; \"here\" is the device",
        ),
        (
            lambda: fit(blocks(), (batch(),), device=torch.device("cpu")),
            '"here" is the device that the model is on; to plan for another, write',
        ),
        (
            lambda: fit(blocks(), (batch(),), memory="40%"),
            "memory is '40%', but it is the device's, which has no share",
        ),
        (
            lambda: plan(blocks(), (batch(),), budget="40"),
            'budget is \'40\', less than 1000 bytes; write the unit; did you mean "40GiB" or "40%"?',
        ),
        (
            lambda: fit(blocks(), (batch(),), memory=40),
            "memory is 40, less than 1000 bytes; write the unit; did you mean 40GiB?",
        ),
        (
            lambda: plan(blocks(), (batch(),), optimizer="adam"),
            "give a torch.optim.Optimizer, such as torch.optim.AdamW(",
        ),
    ],
)
def test_a_wrong_argument_names_the_right_one(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ms.InvalidInputError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "6GiB"}, "no option 'memory'; did you mean 'budget'?"),
        ({"M": "6GiB"}, "no option 'M'; did you mean 'budget'?"),
        ({"budget": "6GiB", "link": "12GB/s"}, "no option 'link'; did you mean 'bandwidth'?"),
        ({"budget": "6GiB", "memory": "6GiB"}, "no option 'memory'; did you mean 'host_memory'?"),
        ({"budget": "6GiB", "xyz": 1}, "no option 'xyz'; there are budget, mode"),
        ({"budget": 0.5}, 'did you mean "50%"?'),
    ],
)
def test_a_wrong_option_of_the_backend_names_the_right_one(options: dict[str, Any], words: str) -> None:
    """PyTorch wrapped the sentence in a BackendCompilerFailed."""
    with pytest.raises(ms.InvalidInputError) as caught:
        read_options(options)
    assert words in str(caught.value)
    step = torch.compile(lambda x: blocks(1)(x), backend="memsched", options=options)
    with pytest.raises(ms.InvalidInputError) as caught:
        step(batch())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("budget", "told_as", "unit"),
    [
        ("200kB", "200 kB (200,000 bytes)", "kB"),
        ("0.25MiB", "0.25 MiB (262,144 bytes)", "MiB"),
    ],
)
def test_a_budget_that_is_too_small_is_told_in_its_unit(budget: Any, told_as: str, unit: str) -> None:
    """All bytes of the error are in it, what is needed is beside, and a plan for that much is found."""
    model, args = blocks(), (batch(),)
    made = plan(model, args, bandwidth=0)
    assert isinstance(made, memsched.torch.TorchPlan)
    for call in (lambda: plan(model, args, budget=budget, bandwidth=0), lambda: made.at(budget)):
        with pytest.raises(ms.InfeasibleError) as caught:
            call()
        said = str(caught.value)
        assert said.count("too small") == 1
        assert said.count("did you mean") == (budget == 40)
        assert f"the budget of {told_as}" in said
        assert f" {unit if unit != 'MiB' else 'KiB'} of it resident; give that or more, a smaller" in said
        assert f"{unit} ({caught.value.min_memory:,} bytes), " in said
        assert plan(model, args, budget=caught.value.min_memory, bandwidth=0)


def test_a_budget_in_percent_is_told_in_percent() -> None:
    with pytest.raises(ms.InfeasibleError, match=r"the budget of 0% .* selective needs \d+% \(.* bytes\)"):
        plan(blocks(), (batch(),), budget="0%", bandwidth=0)


def test_a_link_that_takes_hours_is_told() -> None:
    model, args = blocks(), (batch(4096, 64),)
    with pytest.warns(
        UserWarning, match=r"bandwidth is 12 B/s, which takes .* hours .*; write the unit, such as 12GB/s"
    ):
        plan(model, args, bandwidth=12)
    step = torch.compile(model, backend="memsched", options={"budget": "100%", "bandwidth": 12})
    with pytest.warns(UserWarning, match="bandwidth is 12 B/s"):
        step(*args)


def test_more_tokens_than_positions_are_told() -> None:
    """No tensor without data tells: fit said that it fits, and verify ended in an IndexError."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.inner = nn.Embedding(90, 16), nn.Embedding(32, 16), blocks(2, 16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(self.words(ids) + self.places(torch.arange(ids.shape[1])))

    short, long = (torch.randint(0, 90, (2, length)) for length in (32, 33))
    made = plan(Tokens(), (short,))
    for look in (plan, fit, profile):
        with pytest.raises(
            ms.InvalidInputError,
            match=r"cannot run on int64 2x33: an embedding of 32 rows is asked for row 32.*shorter",
        ):
            look(Tokens(), (long,))
    assert isinstance(made, memsched.torch.TorchPlan)
    outside = torch.full((2, 32), 90)
    with pytest.raises(
        ms.InvalidInputError, match=r"out of range in self \(.*test_first_contact_calls\.py, line .* other tokens"
    ):
        made.verify(Tokens(), (outside,))


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


def test_a_container_that_is_compiled_in_place_is_told() -> None:
    """PyTorch leaves it out, and its blocks were planned alone, without a word."""
    options: dict[str, Any] = {"budget": "1GiB"}
    model = nn.Sequential(nn.Linear(64, 64), Block(), Block())
    model.compile(backend="memsched", options=options)
    with pytest.warns(
        UnplannedWarning, match=r"gives \.compile\(\) of its own class Sequential no effect.*write torch"
    ) as said:
        model(batch()).sum().backward()
    assert len(said) == 1
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in (nn.Sequential(Block(), Block()), nn.Sequential(nn.Linear(64, 64), Block())):
            torch.compile(other, backend="memsched", options=options)(batch()).sum().backward()
        own = Block()
        own.compile(backend="memsched", options=options)
        own(batch()).sum().backward()


def test_a_model_given_to_memsched_itself_is_told_where_to_go() -> None:
    """`ms.fit` and `ms.plan(model)` did not name memsched.torch."""
    model: Any = blocks()
    for call in (ms.plan, ms.compare, ms.simulate):
        with pytest.raises(ms.InvalidInputError, match=r"; memsched.torch.plan plans a model of PyTorch$"):
            call(model, "40%", "12GB/s")
    there = {name for name in memsched.torch.__all__ if name.islower()} - {*ms.__all__}
    for name, where in [*((name, "; memsched.torch has it") for name in there), ("fits", "")]:
        with pytest.raises(AttributeError, match=rf"'memsched' has no attribute '{name}'{where}$"):
            getattr(ms, name)


def test_a_report_is_in_the_unit_of_the_budget() -> None:
    """A budget of 300MB was told as 286 MiB."""
    said = memsched.torch.plan(blocks(), (batch(),), budget="30MB").report()
    assert "budget           30 MB\n" in said
    assert "iB" not in said


MISTAKES = [  # of `memsched fit`, and what is said
    ("--model gpt2 --device v100", "has no family"),
    ("--model gone:make --device v100", "no module 'gone'"),
    ("--model gone.py:make --device v100", "the file 'gone.py', which is not here"),
    ("--model os:getcwd --device v101", "no machine is named 'v101'"),
    ("--model os:getcwd --device v100 -m 40", "did you mean 40GiB?"),
    ("--model os:getcwd --device v100 -m 40%", "--memory is '40%'; give a size"),
    ("--model os:getcwd --device v100 -b 12GB", "is not bytes per second"),
    ("--model os:getcwd --device v100 --input 4xx8", "the input is '4xx8'"),
    ("--model os:getcwd --device v100 --autocast fp8", "it must be bf16 or fp16"),
    ("--model os:getcwd --device v100 --time-limit fast", "--time-limit is 'fast'"),
    ("--model os:getcwd --device v100 --optimizer adamm", "did you mean 'adam'?"),
    (
        "--model os:getcwd --device v100 --optimizer sgd?momentum=0,9",
        "a decimal comma; write momentum=0.9",
    ),
    ("--model os:getcwd --device v100 -o a.jpg", "a picture ends in .png"),
]


def test_cheap_mistakes_are_told_before_torch_is_imported() -> None:
    code = """
import sys
from click.testing import CliRunner
from memsched.cli.app import command_line
for line in sys.argv[1:]:
    done = CliRunner().invoke(command_line, ["fit", *line.split()])
    assert done.exit_code == 2, done.output
    assert "torch" not in sys.modules, line
    print(" ".join(done.output.split()))
"""
    lines = [line for line, _ in MISTAKES]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said, (line, words) in zip(done.stdout.splitlines(), MISTAKES, strict=True):
        assert words in said, line


def test_here_is_this_gpu() -> None:
    from memsched.torch.preflight import fit_spec

    if torch.cuda.is_available():
        assert fit_spec("torchvision:resnet18", "2x3x64x64", device="here", largest=False).fits
    else:
        with pytest.raises(ms.InvalidInputError, match="there is no GPU here; name the one to train on: v100, "):
            fit_spec("os:getcwd", device="here")


def test_a_model_without_data_is_told_likewise() -> None:
    with FakeTensorMode():
        model, args = blocks(), (batch(4, 32),)
    with pytest.raises(CallError, match="Sequential cannot run on float32 4x32"):
        plan(model, args)


def test_a_step_that_is_called_wrongly_says_how() -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.randn(8, 16)
    plan = memsched.torch.plan_step(model, (x,), lambda out: out.square().mean(), budget="100%")
    with pytest.raises(
        ms.InvalidInputError, match="the inputs are a ndarray, which is no tensor, and the plan is for float"
    ):
        plan.step(x.numpy())
    with pytest.raises(ms.InvalidInputError, match="is taken under no_grad or inference_mode"), torch.no_grad():
        plan.step(x)
    with pytest.raises(ms.InvalidInputError, match="loss returns a number that needs no gradient: it detaches"):
        memsched.torch.plan_step(model, (x,), lambda out: out.detach().mean(), budget="100%")
    with pytest.raises(ms.InvalidInputError, match='budget is 0; give bytes above 0, such as "6GiB"'):
        memsched.torch.plan(model, (x,), budget=0)
