"""What surrounds the call of a compiled model, and what PyTorch does within operations."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from memsched.errors import MemschedError
from memsched.result import Result
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.compiled.wrapper import Around
from pytorch.compiled_models import layers
from pytorch.test_compiled_models import Residual, compared, gradients

CPU = torch.device("cpu")


def x(rows: int = 64, width: int = 32) -> torch.Tensor:
    return torch.randn(rows, width)


# Around the call


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "transform",
    [
        lambda run, given: torch.vmap(run)(torch.stack([given, given])),
        lambda run, given: torch.func.grad(lambda one: run(one).sum())(given),
        lambda run, given: torch.func.jvp(run, (given,), (given,))[1],
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_transforms_of_functions(transform: Any) -> None:
    """PyTorch runs a compiled model under them plainly, or refuses it; the steps after are planned."""

    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given = x()
        try:
            found = transform(run, given)
        except RuntimeError:
            found = transform(model, given)
        run(given).square().sum().backward()
        return [found.detach(), *gradients(model)]

    compared(scenario, lambda: layers(4))


def test_the_plan_that_was_followed_last_comes_last(tmp_path: Path) -> None:
    """Of batches that come in turns; each plan says what it is for."""
    model = layers(3)
    run = torch.compile(model, backend="memsched", dynamic=False, options={"budget": "1GB"})
    before = set(map(id, plans()))
    for rows in (64, 48, 64, 48, 48, 64):
        run(x(rows)).square().sum().backward()
        last = plans()[-1]
        assert last.inputs == (f"float32 {rows}x32",)
        assert last.report().startswith(f"step on float32 {rows}x32")
    assert len([one for one in plans() if id(one) not in before]) <= 4  # with and without gradients
    assert "all is kept: the budget is enough for that" in last.report()
    last.save(tmp_path / "plan.json")
    assert Result.load(tmp_path / "plan.json").makespan == last.result.makespan
    tight = torch.compile(layers(3), backend="memsched", options={"budget": "80%"})
    tight(x()).square().sum().backward()
    assert "all is kept" not in plans()[-1].report()


def test_the_log_tells_when_a_step_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    run = torch.compile(layers(3), backend="memsched", dynamic=False, options={"budget": "1GB"})
    with caplog.at_level("INFO", "memsched.torch"):
        for rows in (64, 64, 48):
            run(x(rows)).square().sum().backward()
            for parameter in run.parameters():
                parameter.grad = None
    told = [one.getMessage() for one in caplog.records if one.name == "memsched.torch"]
    assert len(told) == 2
    assert all(one.startswith("a step is timed and planned for 1GB, in ") for one in told)


class Counted(torch.autograd.Function):
    """So that hooks for saved tensors have something to keep outside the model."""

    @staticmethod
    def forward(ctx: Any, given: Any) -> Any:
        ctx.save_for_backward(given)
        return given.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.saved_tensors[0].exp()


@pytest.mark.parametrize("around", ["save_on_cpu", "keep"])
def test_hooks_of_the_caller_for_saved_tensors(around: str) -> None:
    kept: list[torch.Size] = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        kept.append(value.shape)
        return value

    def scenario(model: nn.Module, run: Any) -> list[Any]:
        with save_on_cpu() if around == "save_on_cpu" else saved_tensors_hooks(pack, lambda value: value):
            loss = Counted.apply(run(x()) * 0.1).square().sum()
        loss.backward()
        return gradients(model)

    compared(scenario, Residual)
    assert bool(kept) == (around == "keep")


def test_what_runs_again_draws_the_same_numbers_beside_a_thread_that_draws() -> None:
    scale = nn.Parameter(torch.rand(64, dtype=torch.float64) + 0.5)

    def sixfold(one: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            one = one * (scale * (torch.rand(2048, 64, dtype=torch.float64) + 0.5))
        return one

    run, one = torch.compile(sixfold, backend="memsched", options={"budget": "30%"}), torch.ones(2048, 64).double()
    run(one).mean().backward()
    plan = plans()[-1]
    assert plan.result.recomputed
    stop = threading.Event()
    other = threading.Thread(target=lambda: [torch.rand(100) for _ in iter(stop.is_set, True)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    other.start()
    try:
        for _ in range(20):
            scale.grad = None
            loss = run(one).mean()
            loss.backward()
            # The loss is homogeneous of degree six in `scale`, whatever was drawn.
            torch.testing.assert_close(scale @ scale.grad, 6 * loss, rtol=1e-12, atol=0)
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)


def test_what_runs_again_has_the_type_that_was_the_default_in_the_forward() -> None:
    scale = nn.Parameter(torch.rand(64, dtype=torch.float64))

    def drawn(one: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            one = torch.tanh(one * scale) * torch.rand(256, 64) * 2
        return one

    found = []
    for backend, options in (("aot_eager", None), ("memsched", {"budget": "60%"})):
        torch._dynamo.reset()
        run = torch.compile(drawn, backend=backend, options=options)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        try:
            loss = run(torch.randn(256, 64)).square().mean()
        finally:
            torch.set_default_dtype(torch.float32)
        scale.grad = None
        loss.backward()
        assert torch.get_default_dtype() is torch.float32
        found.append(scale.grad)
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore::memsched.torch.compiled.unplanned.UnplannedWarning")
@pytest.mark.parametrize("inside", [True, False], ids=["torch.func", "disabled"])
def test_what_runs_without_a_plan_needs_no_hooks(inside: bool) -> None:
    layer, embed = nn.Linear(3, 3), nn.Embedding(5, 3, sparse=True)

    def step(given: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        more = torch.func.grad(lambda one: layer(one).sin().sum())(given).sum() if inside else 0.0
        return layer(given).sum() + more + embed(ids).sum()

    args, found = (torch.randn(2, 3), torch.tensor([1, 2])), []
    for run in (step, torch.compile(step, backend="memsched", options={"budget": "100%", "bandwidth": "12GB/s"})):
        off = torch.autograd.graph.disable_saved_tensors_hooks("no hooks")
        with contextlib.nullcontext() if inside else off:
            loss = run(*args)
        layer.zero_grad()
        loss.backward()
        found.append([loss.detach(), layer.weight.grad])
    assert all(map(torch.equal, *found))


def test_hooks_that_change_the_type_of_whole_numbers_are_refused_by_name() -> None:
    run = torch.compile(layers(2), backend="memsched", options={"budget": "100%"})
    with saved_tensors_hooks(lambda value: value.double(), lambda value: value.float()):
        loss = run(x()).sum()
    with pytest.raises(MemschedError, match=r"saved_tensors_hooks, made torch\.float32 of a saved torch\.int64"):
        loss.backward()


def test_hooks_that_keep_copies_of_saved_tensors_are_refused_where_tensors_travel() -> None:
    torch.manual_seed(0)
    plain, given = layers(6), x(256)
    for options, refused in (({"budget": "80%"}, False), ({"budget": "30%", "bandwidth": "1GB/s"}, True)):
        torch._dynamo.reset()
        plain.zero_grad()
        planned = copy.deepcopy(plain)
        run = torch.compile(planned, backend="memsched", options=options)
        with saved_tensors_hooks(torch.Tensor.clone, lambda value: value):
            loss = run(given).square().sum()
        if refused:
            with pytest.raises(MemschedError, match="saved_tensors_hooks"):
                loss.backward()
            del loss
            run(given).square().sum().backward()
        else:
            loss.backward()
        plain(given).square().sum().backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_checkpoint_around_the_model(reentrant: bool) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given = x().requires_grad_()
        checkpoint(run, given, use_reentrant=reentrant).square().sum().backward()
        return [given.grad, *gradients(model), torch.get_rng_state()]

    compared(scenario, Residual)


class Doubled(TorchFunctionMode):
    """Linear layers give twice what they gave."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = function(*args, **(kwargs or {}))
        return value * 2 if function is torch.nn.functional.linear else value


@pytest.mark.slow
def test_a_mode_that_changes_functions_counts() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given = x()
        run(given).sum().backward()
        with Doubled():
            run(given).sum().backward()
        run(given).sum().backward()
        return gradients(model)

    compared(scenario, lambda: layers(4))


@pytest.mark.parametrize("batchnorm", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_backward_within_autocast(batchnorm: bool) -> None:
    """It casts what the backward itself computes; what ran again was cast, too, though its forward had not been."""

    def trained(options: dict[str, Any] | None) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        norm = [nn.BatchNorm1d(64)] if batchnorm else []
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), *norm, nn.Tanh()) for _ in range(8)))
        run = torch.compile(model, backend="memsched", options=options) if options is not None else model
        for within in (True, False, True):
            loss = run(x(256, 64) * 3).square().mean()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within):
                loss.backward()
        return gradients(model)

    wanted = trained(None)
    found = trained({"budget": "30%", "bandwidth": 0})
    assert any(one.startswith("addmm") for one in plans()[-1].result.recomputed)
    assert all(map(torch.equal, wanted, found))


class PartlyUncast(nn.Module):
    """Its own part in float32, as rotary embeddings have one, and attention, which casts nothing within its kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.layers = nn.Linear(32, 96), nn.Linear(32, 32, bias=False), layers(2)

    def forward(self, given: Any) -> Any:
        q, k, v = self.first(given).view(4, 12, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        made = self.layers(mixed.transpose(1, 2).reshape(48, 32)).float()
        with torch.autocast("cpu", enabled=False):
            return (made.tanh() @ self.second.weight).sigmoid()


@pytest.mark.parametrize("outside", [False, True], ids=["backward outside", "backward inside"])
@pytest.mark.parametrize("options", [{"budget": "100%"}, {"budget": "40%", "bandwidth": "1GB/s"}, {"budget": "60%"}])
def test_autocast_around_the_call_is_as_with_aot_eager(options: dict[str, Any], outside: bool) -> None:
    def trained(**how: Any) -> list[Any]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = PartlyUncast()
        run, found = torch.compile(model, **how), []
        for step in range(3):
            torch.manual_seed(step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = run(x(48))
                if outside:
                    result.square().mean().backward()
            if not outside:
                result.square().mean().backward()
            found += [result.detach(), *gradients(model)]
        return [*found, torch.get_rng_state()]

    wanted, found = trained(backend="aot_eager"), trained(backend="memsched", options=options)
    assert [one.dtype for one in found] == [one.dtype for one in wanted]
    assert all(map(torch.equal, wanted, found))


def test_where_backwards_are_compiled_nothing_is_planned_and_a_warning_says_so() -> None:
    model, given = layers(2), x()
    model(given).square().mean().backward()
    wanted = gradients(model)
    model.zero_grad()

    def step() -> None:
        model(given).square().mean().backward()

    with torch._dynamo.config.patch(compiled_autograd=True), pytest.warns(UnplannedWarning, match="compiled autograd"):
        torch.compile(step, backend="memsched", options={"budget": "100%"})()
    assert all(map(torch.equal, wanted, gradients(model)))


def test_a_result_of_another_type_than_was_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were autocast left on while the operations run, nothing else would notice."""
    monkeypatch.setattr(Around, "running", lambda _: contextlib.nullcontext())
    run = torch.compile(PartlyUncast(), backend="memsched", options={"budget": "100%"})
    with (
        pytest.raises(MemschedError, match=r"is torch\.bfloat16 and was traced as torch\.float32"),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        run(x(48))


@pytest.mark.slow
def test_autocast_and_other_states_that_come_and_go() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        found = []
        for enabled, dtype in ((True, torch.bfloat16), (False, torch.bfloat16), (True, torch.float16)):
            with torch.autocast("cpu", dtype=dtype, enabled=enabled):
                result = run(x())
            result.float().square().mean().backward()
            found.append(result.detach())
        return [*found, *gradients(model)]

    compared(scenario, lambda: layers(4))


# Within operations


class Warp(nn.Module):
    """The kernel of `affine_grid` multiplies matrices, which autocast casts."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(1, 2, 3))
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, given: Any) -> Any:
        grid = functional.affine_grid(self.theta.expand(2, 2, 3), list(given.shape), align_corners=False)
        return self.layer(functional.grid_sample(given, grid, align_corners=False))


class Pseudoinverse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layers = nn.Parameter(torch.randn(6, 4)), layers(3)

    def forward(self, given: Any) -> Any:
        return self.layers(given * torch.linalg.pinv(self.weight).sum())


class Softplus(nn.Module):
    """Its backward lays its result out in another way than PyTorch says of tensors without data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(16, 4), nn.Parameter(torch.randn(2, 4, 8))

    def forward(self, given: Any) -> Any:
        return functional.softplus(self.layer(given)).transpose(-1, -2) * self.scale


class Conjugated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, given: Any) -> Any:
        return (given * self.scale.conj()).conj()


class Bins(nn.Module):
    """Takes numbers from 0 to 1; of others no bin exists."""

    def __init__(self) -> None:
        super().__init__()
        self.bins, self.layers = nn.Embedding(10, 32), layers(3)

    def forward(self, given: Any) -> Any:
        return self.layers(self.bins((given * 9).long()))


@functools.cache
def table(length: int) -> torch.Tensor:
    return torch.arange(length).float()


class Cached(nn.Module):
    """What its first call computes serves all others."""

    known: ClassVar[dict[int, torch.Tensor]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(3)

    def forward(self, given: Any) -> Any:
        length = given.shape[-1]
        if length not in self.known:
            self.known[length] = torch.ones(length)
        return self.layers(given) + table(length) * self.known[length]


class CastTwice(nn.Module):
    """A part runs with autocast, a part of it without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = layers(1), nn.Linear(32, 32), layers(2)

    def forward(self, given: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            given = self.first(given)
            with torch.autocast("cpu", enabled=False):
                given = self.second(given.float()) @ self.second.weight
            return self.third(given).float()


WITHIN: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "warp": (Warp, lambda: torch.randn(2, 3, 8, 8)),
    "pseudoinverse": (Pseudoinverse, x),
    "softplus": (Softplus, lambda: torch.randn(2, 8, 16)),
    "conjugated": (Conjugated, lambda: torch.randn(4, 8)),
    "bins": (Bins, lambda: torch.rand(16, 4)),
    "cached": (Cached, x),
    "cast_twice": (CastTwice, x),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(32), layers(3)), x),
    "transformer": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), lambda: torch.randn(4, 8, 32)),
    "instance_norm": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.InstanceNorm2d(4, True, True), nn.Dropout2d(0.3)),
        lambda: torch.randn(3, 3, 7, 7),
    ),
    "bilinear": (lambda: nn.Sequential(layers(3), Paired()), x),
}


class Paired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(32, 32, 4)

    def forward(self, given: Any) -> Any:
        return self.layer(given, given)


def two_steps(given: Callable[[], torch.Tensor]) -> Callable[[nn.Module, Any], list[Any]]:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        Cached.known.clear()
        found = []
        for step in range(2):
            torch.manual_seed(step)  # what a first call draws for lazy parameters, Dynamo takes back
            result = run(given())
            result.abs().square().sum().backward()
            found.append(result.detach())
        assert all(type(one) is torch.Tensor for one in Cached.known.values())
        return [*found, *gradients(model), *model.buffers(), torch.get_rng_state()]

    return scenario


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [n if n in ("softplus", "conjugated", "cast_twice") else pytest.param(n, marks=pytest.mark.slow) for n in WITHIN],
)
def test_what_operations_do_within(name: str) -> None:
    build, given = WITHIN[name]
    compared(two_steps(given), build)


@pytest.mark.parametrize("within", [False, True])
def test_a_kernel_that_autocast_changes_within_runs_plainly_and_a_warning_says_so(within: bool) -> None:
    class Casting(Warp):
        def forward(self, given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within or torch.is_autocast_enabled("cpu")):
                return super().forward(given)

    torch.manual_seed(0)
    plain, given = Casting(), torch.randn(2, 3, 8, 8)
    planned = copy.deepcopy(plain)
    run = torch.compile(planned, backend="memsched", options={"budget": "100%"})
    results = []
    for call in (plain, run):
        around = pytest.warns(UnplannedWarning, match="under autocast") if call is run else contextlib.nullcontext()
        with around, torch.autocast("cpu", dtype=torch.bfloat16, enabled=not within):
            results.append(call(given))
        results[-1].float().square().sum().backward()
    assert torch.equal(*results)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))


def test_an_index_that_is_out_of_range_is_an_error() -> None:
    model = Bins()
    run = torch.compile(model, backend="memsched", options={"budget": "100%"})
    for _ in range(2):
        run(torch.rand(16, 4)).sum().backward()
        with pytest.raises((IndexError, RuntimeError), match="out of range"):
            run(torch.rand(16, 4) + 5)
