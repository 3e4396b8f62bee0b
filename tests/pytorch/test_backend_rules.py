"""The rules of training, of autograd and of modules that a compiled model keeps."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unplanned import UnplannedWarning
from pytorch.compiled_models import Tied, UNet, layers
from pytorch.test_compiled_models import WithStatistics, compared, gradients, made_since

CPU = torch.device("cpu")


def x() -> torch.Tensor:
    return torch.randn(64, 32)


def state(model: nn.Module) -> list[torch.Tensor]:
    return [one.detach().clone() for one in (*model.parameters(), *model.buffers())]


# Steps in a row


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_five_steps_of_training(optimizer: str) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        stepped = OPTIMIZERS[optimizer](model.parameters())
        for _ in range(5):
            stepped.zero_grad()
            run(x()).square().mean().backward()
            stepped.step()
        return [*state(model), torch.get_rng_state()]

    compared(scenario, WithStatistics)


@pytest.mark.slow
def test_gradients_of_tied_weights_accumulate() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        for _ in range(3):
            (run(torch.randint(0, 50, (8, 16))) / 3).backward()
        return gradients(model)

    compared(scenario, Tied)


@pytest.mark.slow
def test_a_scale_that_is_too_large_skips_the_step() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
        norms = []
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(run(x()).square().sum()).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01).nan_to_num(-1.0))
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() < 2.0**126
        return [*norms, *state(model)]

    compared(scenario, WithStatistics)


# What stays as it is


@pytest.mark.slow
def test_no_plan_runs_without_gradients_and_in_eval_mode() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        with torch.no_grad():
            found = [run(x())]
        model.eval()
        with torch.inference_mode():
            found.append(run(x()).clone())
        result = run(torch.randn(7, 32))
        assert result.requires_grad
        found.append(result.detach())
        model.train()
        run(x()).sum().backward()
        return [*found, *gradients(model), *state(model)]

    made = compared(scenario, WithStatistics)
    assert len(made) <= 2


@pytest.mark.parametrize("accumulating", [pytest.param(False, marks=pytest.mark.slow), True])
def test_hooks_of_parameters_fire_once(accumulating: bool) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        found: dict[str, torch.Tensor] = {}

        def noted(name: str, value: torch.Tensor) -> None:
            assert name not in found
            found[name] = value.clone()

        for name, parameter in model.named_parameters():
            if accumulating:
                parameter.register_post_accumulate_grad_hook(lambda p, name=name: noted(name, p.grad))
            else:
                parameter.register_hook(lambda g, name=name: noted(name, g))
        run(torch.randint(0, 50, (8, 16))).backward()
        return [found[name] for name, _ in model.named_parameters()]

    compared(scenario, Tied)


@pytest.mark.slow
def test_a_hook_may_change_the_gradient() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        next(model.parameters()).register_hook(lambda g: g * 2)
        run(x()).square().mean().backward()
        return gradients(model)

    compared(scenario, WithStatistics)


@pytest.mark.filterwarnings("ignore:the last step exceeded the budget")  # by what three backwards leave
def test_gradients_of_some_parameters_and_of_inputs() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given, parameters = x().requires_grad_(), list(model.parameters())
        loss = run(given).square().mean()
        found = [*torch.autograd.grad(loss, parameters[-1:], retain_graph=True)]
        found += torch.autograd.grad(loss, [given, parameters[0]], retain_graph=True)
        loss.backward(inputs=parameters[2:4])
        return [*found, *gradients(model)]

    compared(scenario, WithStatistics)


@pytest.mark.slow
def test_a_second_backward_without_a_kept_graph_is_an_error_of_pytorch() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        loss = run(x()).square().mean()
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        before = gradients(model)
        run(x()).square().mean().backward()
        return [*before, *gradients(model)]

    compared(scenario, WithStatistics)


def test_second_derivatives_are_an_error_of_pytorch() -> None:
    model = layers()
    run = torch.compile(model, backend="memsched", options={"budget": "100%"})
    loss = run(x()).square().mean()
    gradient, *_ = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()
    run(x()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


class Plainly(nn.Module):
    """Its backward reads what was computed, and neither its input nor its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(32))

    def forward(self, given: Any) -> Any:
        return (given * 1.0 + self.shift).tanh().sin()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
@pytest.mark.parametrize("build", [layers, Plainly])
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize(
    "derive",
    [
        lambda total, given, parameters: torch.autograd.grad(total, parameters),
        lambda total, given, parameters: torch.autograd.grad(total, given),
        lambda total, given, parameters: total.backward(inputs=parameters),
        lambda total, given, parameters: total.backward(),
    ],
    ids=["of parameters", "of the input", "into parameters", "of all"],
)
def test_a_gradient_of_a_gradient_never_lacks_a_term_in_silence(
    derive: Callable[[Any, Any, Any], Any], leaf: bool, build: Callable[[], nn.Module]
) -> None:
    """A penalty on the gradient beside the loss: where only some derivatives are asked for, autograd runs few nodes."""
    model, start = build(), x().requires_grad_()
    given = start if leaf else start * 2
    out = torch.compile(model, backend="memsched", options={"budget": "100%"})(given)
    (gradient,) = torch.autograd.grad(out.sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        derive(out.mean() + gradient.square().sum(), start, list(model.parameters()))


class WithView(Plainly):
    """AOTAutograd wraps a graph that returns a view of what it is given."""

    def forward(self, given: Any) -> Any:
        return super().forward(given), given.view(-1)


def test_where_autograd_would_leave_terms_out_a_warning_says_so() -> None:
    model, given = WithView(), x().requires_grad_()
    out, _ = torch.compile(model, backend="memsched", options={"budget": "100%"})(given)
    with pytest.warns(UserWarning, match="may lack terms"):
        torch.autograd.grad(out.sum(), given, create_graph=True)


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = layers(3), layers(1), layers(1)

    def forward(self, given: Any, scale: float = 1.0, *, shift: Any = None) -> dict[str, Any]:
        hidden = self.body(given) * scale
        one = self.one(hidden)
        return {"one": one if shift is None else one + shift, "two": self.two(hidden), "hidden": hidden}


@pytest.mark.parametrize("used", ["one", *(pytest.param(n, marks=pytest.mark.slow) for n in ("two", "hidden"))])
def test_only_one_of_the_results_is_used(used: str) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        result = run(x())
        assert list(result) == ["one", "two", "hidden"]
        result[used].square().sum().backward()
        found = gradients(model)
        assert used == "hidden" or any(g is not None for g in found)
        return [one if one is None else one.abs() for one in found if one is not None and one.any()]

    compared(scenario, TwoResults)


@pytest.mark.slow
def test_arguments_by_name() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        shift, given = x(), x()
        found = []
        for arguments in ({"scale": 2.0}, {"scale": 2.0, "shift": shift}, {"shift": shift}, {}, {"scale": 3.0}):
            result = run(given, **arguments)
            result["one"].sum().backward()
            found.append(result["one"].detach())
        return [*found, *(g for g in gradients(model) if g is not None and g.any())]

    compared(scenario, TwoResults)


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one number, expanded": lambda y: y.sum(),
    "a row, expanded": lambda y: (y * torch.arange(32)).sum(),
    "a part of a larger tensor": lambda y: torch.stack([y, y.detach()]).square().sum(),
    "transposed": lambda y: (y.t() * torch.arange(64.0)).square().sum(),
    "negated": lambda y: (-y).square().sum(),
}


class Handed(nn.Module):
    """The gradient that arrives is handed on as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(4)

    def forward(self, given: Any) -> Any:
        return self.layers(given) + 1 + given


@pytest.mark.parametrize(
    "loss",
    [pytest.param(f, id=n, marks=() if n.startswith("one") else pytest.mark.slow) for n, f in LOSSES.items()],
)
def test_a_gradient_may_arrive_in_any_form(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given = x().requires_grad_()
        loss(run(given)).backward()
        return [given.grad, *gradients(model)]

    compared(scenario, Handed)


@pytest.mark.slow
def test_channels_last_and_other_layouts() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given = torch.randn(2, 3, 16, 16)
        found = []
        for layout in (given, given.to(memory_format=torch.channels_last), given.transpose(2, 3), given[:, :, ::2]):
            result = run(layout)
            result.square().sum().backward()
            found += [result.detach(), torch.tensor(result.stride())]
        return [*found, *gradients(model)]

    compared(scenario, UNet)


# Changes in place between forward and backward


@pytest.mark.parametrize("what", ["input", *(pytest.param(n, marks=pytest.mark.slow) for n in ("parameter", "result"))])
def test_changes_of_what_the_backward_reads_are_errors_as_in_autograd(what: str) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        given = x()
        result = run(given)
        changed = {"input": given, "parameter": list(model.parameters())[-2], "result": result}[what]
        with torch.no_grad():
            changed.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        model.zero_grad()  # plain autograd gets as far as the first layer that reads it
        run(given).sum().backward()
        return gradients(model)

    compared(scenario, lambda: layers(4))


@pytest.mark.slow
def test_a_result_that_no_backward_reads_may_change() -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        result = run(x())
        arriving = result.detach().square()
        result.detach().zero_()
        result.backward(arriving)
        return gradients(model)

    compared(scenario, lambda: nn.Sequential(layers(3), nn.Linear(32, 32)))


class Partly(nn.Module):
    """Only its first layer is trained, of which plain autograd needs no value in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(32, 128), layers(4, 128).requires_grad_(False)

    def forward(self, given: Any) -> Any:
        return self.rest(torch.tanh(self.first(given)))


@pytest.mark.parametrize("kind", ["fused", "foreach"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_of_any_optimiser_between_forward_and_backward_is_an_error(optimizer: Any, kind: str) -> None:
    """With fused=True, parameters change without a new version, and what ran again read the new ones."""
    model = Partly()
    stepping = optimizer(model.first.parameters(), lr=0.1, **{kind: True})
    run = torch.compile(model, backend="memsched", options={"budget": "30%"})
    early, late = (run(torch.randn(256, 32)).square().sum() for _ in range(2))
    early.backward()
    stepping.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


def test_hooks_that_are_graphs_run_and_a_warning_says_that_nothing_is_planned() -> None:
    """AOTAutograd writes them into its graphs; they were left out of the planned ones, in silence."""
    pack, unpack = torch.fx.symbolic_trace(lambda one: one * 2), torch.fx.symbolic_trace(lambda one: one * 0.25)
    torch.manual_seed(0)
    plain = layers(4)
    planned, given = copy.deepcopy(plain), x()
    run = torch.compile(planned, backend="memsched", options={"budget": "60%", "bandwidth": "20GB/s"})
    for hooked in (False, True, False):
        for call in (plain, run):
            told = pytest.warns(UnplannedWarning, match="saved_tensors_hooks around it are graphs")
            with contextlib.ExitStack() as around:
                if hooked and call is run:
                    around.enter_context(told)
                if hooked:
                    around.enter_context(saved_tensors_hooks(pack, unpack))
                loss = call(given).sum()
            loss.backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))


# Several models and processes


def test_two_models_take_turns() -> None:
    torch.manual_seed(0)
    plain = [WithStatistics(), WithStatistics()]
    planned = copy.deepcopy(plain)
    runs = [torch.compile(model, backend="memsched", options={"budget": "80%"}) for model in planned]
    for calls in (plain, runs):
        torch.manual_seed(1)
        for _ in range(3):
            results = [call(x()) for call in calls]
            for result in results:
                result.square().sum().backward()
    for a, b in zip(plain, planned, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(gradients(a), gradients(b), strict=True) if p is not None)
        assert all(torch.equal(p, q) for p, q in zip(a.buffers(), b.buffers(), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.parametrize("outside", [True, False], ids=["the wrapped model", "the model within"])
def test_distributed_data_parallel(outside: bool, tmp_path: Any) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:

        def scenario(model: nn.Module, run: Any) -> list[Any]:
            parallel: Any = nn.parallel.DistributedDataParallel(model)
            if run is not model and outside:
                parallel = torch.compile(parallel, backend="memsched", options={"budget": "80%"})
            elif run is not model:
                model.compile(backend="memsched", options={"budget": "80%"})
            known, found = plans(), []
            for _ in range(2):
                loss = parallel(x()).square().mean()
                loss.backward()
                found.append(loss.detach())
            assert run is model or made_since(known)
            del parallel  # the process group must outlive its users
            gc.collect()
            return [*found, *gradients(model), *model.buffers()]

        compared(scenario, WithStatistics)
    finally:
        torch.distributed.destroy_process_group()


class Wide(nn.Module):
    """Of more than one bucket of a megabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 400), nn.Linear(400, 800), nn.Linear(800, 400))

    def forward(self, given: Any) -> Any:
        return self.layers(given).relu()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by Inductor's own import
@pytest.mark.parametrize("mode", ["eager", "inductor"])
def test_buckets_of_distributed_data_parallel(mode: str, tmp_path: Any) -> None:
    """Dynamo calls the graph of each bucket without data first: "inductor" failed, and the optimizer seemed strange."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:

        def trained(options: dict[str, Any] | None) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model = Wide()
            parallel: Any = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
            optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
            given = {**(options or {}), "optimizer": optimizer}
            run = parallel if options is None else torch.compile(parallel, backend="memsched", options=given)
            known = plans()
            torch.manual_seed(1)
            for _ in range(3):
                optimizer.zero_grad()
                run(x()).square().mean().backward()
                optimizer.step()
            found = state(model)
            assert options is None or len(made_since(known)) > 1
            del parallel, run
            gc.collect()
            return found

        wanted, found = trained(None), trained({"budget": "100%", "mode": mode})
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, other, **({"rtol": 0, "atol": 0} if mode == "eager" else {}))
    finally:
        torch.distributed.destroy_process_group()
