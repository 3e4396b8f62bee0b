"""`fit` of models that checkpoint by themselves, and of models whose gradients are left from a step before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memsched.torch
from memsched.torch.meter import Meter
from memsched.torch.preflight import fit
from memsched.torch.steady import steady

pytestmark = pytest.mark.usefixtures("few_moves")

Body = Callable[[torch.Tensor], torch.Tensor]
efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


BODIES: dict[str, tuple[Body, Body]] = {  # as a model has it, and by the kernel of a GPU
    "gelu": (functional.gelu, functional.gelu),
    "dropout": (lambda x: functional.dropout(x, 0.1), lambda x: torch.native_dropout(x, 0.1, True)[0]),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(*[heads(x)] * 3, is_causal=True).transpose(1, 2).flatten(2),
        lambda x: efficient(*[heads(x)] * 3, None, True, 0.0, True)[0].transpose(1, 2).flatten(2),
    ),
}


class Blocks(nn.Module):
    """Layers with a residual connection; `reentrant` is None where they are not checkpointed."""

    def __init__(self, body: Body, reentrant: bool | None, depth: int = 3) -> None:
        super().__init__()
        self.body, self.reentrant = body, reentrant
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(depth)
        )

    def block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(layer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            run = (
                self.block
                if self.reentrant is None
                else lambda *xs: checkpoint(self.block, *xs, use_reentrant=self.reentrant)
            )
            x = run(layer, x)
        return x


def given() -> torch.Tensor:
    return torch.randn(4, 32, 64, requires_grad=True)


def counted(model: nn.Module, x: torch.Tensor) -> int:
    """The peak of a real step."""

    def step() -> None:
        for one in (x, *model.parameters()):
            one.grad = None
        out = model(x)
        out.backward(torch.empty_like(out))

    step()
    for one in (x, *model.parameters()):
        one.grad = None
    with Meter() as meter:
        meter.count([x, *model.parameters()])
        step()
    return meter.peak


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", ["t4", "v100", "h200", "here"])
@pytest.mark.parametrize("body", BODIES)
def test_the_peak_is_that_of_a_step_with_checkpoints(body: str, device: str, reentrant: bool) -> None:
    """What ran again saved by the CPU's kernels: an error, or, with reentrance, other bytes."""
    own, kernels = BODIES[body]
    x = given()
    found = fit(Blocks(own, reentrant), (x,), memory="1GB", device=device, largest=False).peak_memory
    if device == "here":
        assert found == pytest.approx(counted(Blocks(own, reentrant), x), rel=0.01)
    else:
        assert found == steady(Blocks(kernels, reentrant), (x,), {}, None, None).peak_memory
    assert found < steady(Blocks(own, None), (x,), {}, None, None).peak_memory


def test_plain_has_the_time_of_what_runs_again() -> None:
    """It was that of a step that keeps everything, beside the peak of one that does not."""
    x, body = given(), BODIES["gelu"][0]
    asked: dict[str, Any] = {"memory": "1GB", "device": "t4", "largest": False}
    kept, again = (fit(Blocks(body, reentrant), (x,), **asked).ways[0] for reentrant in (None, False))
    graph = memsched.torch.plan(Blocks(body, None), (x,), budget="1GB", device="t4").graph
    forward = [op for op in graph.ops if op["phase"] == "fwd" and op["choices"][0]["time"] > 0]
    names = [op["name"].partition("_")[0] for op in forward]
    assert names == ["addmm", "tanh", "addmm", "gelu", "add"] * 3
    # Gelu's backward reads its input, and nobody what comes after it.
    seconds = sum(op["choices"][0]["time"] for k, op in enumerate(forward) if k % 5 < 3)
    assert kept.makespan is not None
    assert again.makespan == pytest.approx(kept.makespan + seconds)
    assert again.note.startswith("under the model's own checkpoints")
    assert not kept.note


def test_what_a_policy_keeps_does_not_run_again() -> None:
    """Selective checkpoints."""

    def policy(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        addmm = function is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if addmm else CheckpointPolicy.PREFER_RECOMPUTE

    class Kept(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(
                    self.block,
                    layer,
                    x,
                    use_reentrant=False,
                    context_fn=partial(create_selective_checkpoint_contexts, policy),
                )
            return x

    asked: dict[str, Any] = {"memory": "1GB", "device": "t4", "largest": False}
    body, x = BODIES["gelu"][0], given()
    none, some, all_ = (
        fit(one, (x,), **asked).ways[0].makespan for one in (Blocks(body, None), Kept(body, None), Blocks(body, False))
    )
    assert none is not None
    assert some is not None
    assert all_ is not None
    assert none < some < all_


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


LEARNERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one layer": (lambda: nn.Linear(32, 8), (8, 32)),
    "layers": (lambda: nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4))), (8, 32)),
    "loss within": (WithLoss, (4, 3, 8, 8)),
    "checkpoints": (lambda: Blocks(functional.gelu, False), (2, 8, 64)),
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("share", [0.8, pytest.param(1.3, marks=pytest.mark.slow)])
def test_gradients_from_before_count_in_no_way(name: str, share: float) -> None:
    """They counted in some: a plan, which may keep everything, had a smaller largest batch than the plain step."""
    make, shape = LEARNERS[name]
    model, x = make(), torch.randn(shape)
    asked: dict[str, Any] = {"device": "v100", "time_limit": 1}
    asked["memory"] = int(share * fit(model, (x,), memory="1GB", device="v100", largest=False).peak_memory)
    without = fit(model, (x,), **asked)
    model(x).sum().backward()
    held = [one.grad for one in model.parameters()]
    left = fit(model, (x,), **asked)
    assert [one.grad is kept for one, kept in zip(model.parameters(), held, strict=True)] == [True] * len(held)
    largest = {one.name: one.largest_batch for one in without.ways}
    assert largest == {one.name: one.largest_batch for one in left.ways}
    assert without.steady == left.steady
    plain = largest.pop("plain")
    assert plain if share > 1 else plain is not None
    assert all(batch is None or batch >= plain for batch in largest.values())


@pytest.mark.parametrize("reentrant", [None, False])
def test_a_plan_says_that_the_checkpoints_of_the_model_do_not_count(reentrant: bool | None, tmp_path: Path) -> None:
    model = Blocks(functional.gelu, reentrant)
    plan = memsched.torch.plan(model, (given(),), budget="80%", device="v100", bandwidth=0)
    told = "without the model's own checkpoints, which make plain PyTorch run 9 operations again"
    path = tmp_path / "plan.json"
    plan.save(path)
    for one in (plan, plan.at("90%"), memsched.torch.TorchPlan.load(path)):
        assert (told in one.report()) is (reentrant is not None)


def test_where_results_count_longer_a_note_says_so() -> None:
    """A plan holds them as its caller may, so that its largest batch can be smaller."""
    model, x = nn.Linear(32, 8), torch.randn(8, 32)
    asked: dict[str, Any] = {"device": "v100", "loss": lambda out: out.square().mean()}
    memory = fit(model, (x,), memory="1GB", largest=False, **asked).peak_memory
    found = fit(model, (x,), memory=memory, **asked)
    assert [one.name for one in found.ways] == ["plain"]  # the others were listed with fewer samples
    assert any("the model's results count until the step ends" in one for one in found.assumed)


def test_where_checkpoints_fit_a_plan_that_keeps_more_is_told() -> None:
    """All ways had the time of the checkpointed step, and "train as it is" was all that was said."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.back = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.back(nn.functional.gelu(self.wide(x)))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(6))

        def forward(self, x: torch.Tensor) -> Any:
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    model, asked = Checkpointed(), {"device": "v100", "largest": False}
    found = fit(model, (torch.randn(4096, 64),), memory="1GB", loss=torch.sum, **asked)  # type: ignore[arg-type]
    plain, planned, _ = found.ways
    assert plain.makespan is not None
    assert planned.makespan is not None
    assert planned.makespan < 0.9 * plain.makespan
    assert planned.peak_memory > plain.peak_memory
    assert found.next_step.startswith("train as it is; or, without the model's own checkpoints, recompute: ")
