"""However planning ends, the process is as it was: what is trained afterwards gives the numbers of a fresh process."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import memsched as ms
from memsched.errors import MemschedError
from memsched.torch.capture import CaptureError, capture
from pytorch.odd_models import CASES, Odd, inputs, lin

FOLDER = Path(__file__).resolve().parents[1]


def vmapped(self: Any, x: Any) -> Any:
    return torch.vmap(lambda row: self.second(row).tanh())(x)


def vmapped_twice(self: Any, x: Any) -> Any:
    return torch.vmap(lambda row: torch.vmap(torch.sin)(row[None])[0])(x)


def differentiated(self: Any, x: Any) -> Any:
    return torch.func.grad(lambda y: self.second(y).sin().sum())(x) + x


def forward_differentiated(self: Any, x: Any) -> Any:
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


def dual(self: Any, x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x)).primal * 2


def functional(self: Any, x: Any) -> Any:
    return torch.func.functionalize(lambda y: y.add_(1))(x.clone())


def data_dependent(self: Any, x: Any) -> Any:
    return x[torch.nonzero(x[:, 0] > 0).flatten()]


def branches(self: Any, x: Any) -> Any:
    return x if x.sum() > 0 else -x


def leaves_grad_off(self: Any, x: Any) -> Any:
    torch.set_grad_enabled(False)
    return x[x > 0] if x.sum() > 0 else x


def leaves_default_dtype(self: Any, x: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    raise ValueError("as if the user had made a mistake")


def leaves_autocast(self: Any, x: Any) -> Any:
    torch.set_autocast_enabled("cpu", True)
    raise KeyError("as if the user had made a mistake")


def seeds(self: Any, x: Any) -> Any:
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    raise IndexError("as if the user had made a mistake")


def half_set(self: Any, x: Any) -> Any:
    self.aux, self.second = x, None
    raise NotImplementedError


def enters_mode(self: Any, x: Any) -> Any:
    torch._C._functorch._vmap_increment_nesting(3, "error")
    raise RuntimeError("in the midst of vmap")


FAILING = (
    *(vmapped, vmapped_twice, differentiated, forward_differentiated, dual, functional, data_dependent, branches),
    *(leaves_grad_off, leaves_default_dtype, leaves_autocast, seeds, half_set, enters_mode),
)


def trained() -> list[torch.Tensor]:
    """Another model, trained plainly, with random numbers of all kinds that nobody seeds but the test."""
    model = nn.Sequential(lin(), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.GELU(), lin())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(inputs()) * random.random() * float(np.random.rand())).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def seeded() -> None:
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)


@functools.cache
def in_a_fresh_process() -> list[torch.Tensor]:
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\nfrom pytorch.test_process_state import *\n"
        "torch.set_num_threads(1)\n"
        "seeded()\nprint([t.double().tolist() for t in trained()])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [torch.tensor(one, dtype=torch.float64) for one in eval(run.stdout)]  # printed by ourselves


def state() -> list[Any]:
    return [
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        str(torch._C._dispatch_tls_local_include_set()),
        str(torch._C._dispatch_tls_local_exclude_set()),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        forward_ad._current_level,
        torch.compiler.is_exporting(),
        torch.compiler.is_compiling(),
        len(nn.modules.module._global_forward_hooks),
        str(torch.Tensor.register_hook),
        str(torch.autograd.grad),
    ]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("middle", FAILING, ids=lambda middle: middle.__name__)
@pytest.mark.parametrize("entry", [pytest.param("plan", marks=SLOW), pytest.param("plan_step", marks=SLOW), "capture"])
def test_after_a_failed_capture_the_process_is_a_fresh_one(middle: Any, entry: str) -> None:
    torch.manual_seed(0)
    model = Odd(middle).train()
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    tensors = [p.detach().clone() for p in model.parameters()]
    seeded()
    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if entry == "plan":
                ms.torch.plan(model, (inputs(),), budget="100%", device="v100:pcie3")
            elif entry == "plan_step":
                ms.torch.plan_step(model, (inputs(),), lambda out: out.square().mean(), budget="100%", device="v100")
            else:
                capture(model, (inputs(),))
        except MemschedError:
            pass  # refused, by an error of ours
    assert state() == before
    found = trained()
    assert all(torch.equal(a.double(), b) for a, b in zip(found, in_a_fresh_process(), strict=True))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes
    assert all(torch.equal(p, before) for p, before in zip(model.parameters(), tensors, strict=True))


def test_what_cannot_be_captured_is_named() -> None:
    with pytest.raises(CaptureError, match="Odd"):
        capture(Odd(leaves_default_dtype).train(), (inputs(),))


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.filterwarnings("ignore:.*saved-tensor hooks:UserWarning")
def test_a_backward_within_the_backward_leaves_no_gradients_behind(there: bool) -> None:
    model = CASES["backward_within"].make().train()
    if there:
        model(inputs()).sum().backward()
    held = [p.grad for p in model.parameters()]
    values = [g.clone() for g in held if g is not None]
    plan = ms.torch.plan(model, (inputs(),), budget="50%", device="v100:pcie3")
    plan.verify(model, (inputs(),))
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), held, strict=True))
    assert all(torch.equal(*pair) for pair in zip(values, [g for g in held if g is not None], strict=True))
