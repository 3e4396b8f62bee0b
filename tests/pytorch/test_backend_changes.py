"""What is changed after a model was compiled counts from the next step on, as in plain training."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from memsched.errors import InfeasibleError
from memsched.torch.compiled.groups import plans
from pytorch.changing_models import ERRORS, HONOURED, STRICT, Changing, restored
from pytorch.odd_models import Case, inputs
from pytorch.test_backend_odd import built, same, some_slow, train
from pytorch.test_compiled_models import made_since

CPU = torch.device("cpu")
CHANGING = Case(make=Changing)
BUDGETS = ("50%", "80%", "100%")
RAISES = {"constant": "same dtype", "double": "same dtype", "default_dtype": "same dtype", "default_device": "device"}
CHANGES = {
    name: change
    for name, change in (ERRORS | STRICT | HONOURED).items()
    if name not in RAISES and name != "hook_on_all"  # which Dynamo never looks for
}
HOOKS = {
    *("forward_hook", "forward_pre_hook", "backward_hook", "backward_pre_hook", "hook_on_the_model"),
}
"""Dynamo looks for new hooks of modules only if told: else it runs a model without them, with any backend."""
IN_VAIN = {"type_of_number"}
"""A change that computes the same."""
STOCK = {"dropout_true"}
"""Dropout of everything divides by zero in the backward of AOTAutograd."""
QUICK = {"dropout", "submodule", "forward_hook", "frozen", "loaded", "constant_in_place"}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with restored():
        yield


def changed(change: Callable[[Any], object], backend: str | None) -> list[Any]:
    """Two steps, a change, and one more step."""
    for budget in BUDGETS if backend == "memsched" else ("",):
        with restored():
            model: Any = built(CHANGING)
            run = model
            if backend is not None:
                options = {"options": {"budget": budget}} if budget else {}
                run = torch.compile(model, backend=backend, **options)
            try:
                return train(model, run, CHANGING, 3, change)
            except InfeasibleError:
                continue
    raise AssertionError("the plain step does not fit its own peak")


@pytest.mark.parametrize("name", some_slow([n for n in CHANGES if n not in HOOKS | STOCK], QUICK))
def test_a_change_counts(name: str) -> None:
    wanted = changed(CHANGES[name], None)
    assert same(changed(CHANGES[name], "memsched"), wanted)
    if name not in {*HONOURED, *STRICT, *IN_VAIN}:
        assert not same(changed(lambda model: None, None), wanted)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own
@pytest.mark.parametrize("name", some_slow(sorted(HOOKS), QUICK))
def test_hooks_that_dynamo_looks_for_if_told(name: str) -> None:
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        found = changed(CHANGES[name], "memsched")
    assert same(found, changed(CHANGES[name], None))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(STOCK))
def test_a_change_that_aotautograd_computes_otherwise(name: str) -> None:
    stock = changed(CHANGES[name], "aot_eager")
    assert not same(changed(CHANGES[name], None), stock)
    assert same(changed(CHANGES[name], "memsched"), stock)


@pytest.mark.parametrize("name", some_slow(RAISES, ("double",)))
def test_a_change_that_plain_training_refuses_is_refused(name: str) -> None:
    change = (ERRORS | STRICT)[name]
    for backend in (None, "memsched"):
        with pytest.raises(RuntimeError, match=RAISES[name]):
            changed(change, backend)


@pytest.mark.parametrize("value", [pytest.param(True, marks=pytest.mark.slow), 1.0, *some_slow([2, None, "1"], ())])
def test_a_plain_input_of_another_type_or_value_counts(value: Any) -> None:
    torch.manual_seed(0)
    plain = Changing()
    planned = copy.deepcopy(plain)
    run = torch.compile(planned, backend="memsched", options={"budget": "100%"})
    for given in (1, value, 1):
        results = []
        for model, call in ((plain, plain), (planned, run)):
            torch.manual_seed(1)
            try:
                result = call(inputs(), given)
                result.square().sum().backward()
                results.append([result.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]])
            except (TypeError, torch._dynamo.exc.TorchRuntimeError):
                results.append([given])
        assert same(*results), given


def test_inputs_that_were_one_tensor_need_not_be_one_again() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Any, y: Any) -> Any:
            return self.layer(x) * (y.tanh() if x is y else y.sin())

    plain, x = Same(), torch.randn(64, 8)
    planned = copy.deepcopy(plain)
    run = torch.compile(planned, backend="memsched", options={"budget": "100%"})
    for args in ((x, x), (x, x.clone()), (x[:32], x[32:]), (x, x)):
        for call in (plain, run):
            call(*args).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))


class Wrapped(nn.Module):
    """PyTorch does not compile its own containers in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def test_copies_pickles_and_states_are_those_of_the_model() -> None:
    model = Wrapped()
    names, parameters, known = list(model.state_dict()), list(model.parameters()), plans()
    model.compile(backend="memsched", options={"budget": "100%"})
    model(inputs()).sum().backward()
    assert len(made_since(known)) == 1
    assert type(model) is Wrapped
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    before = [p.grad.clone() for p in parameters if p.grad is not None]
    loaded = Wrapped()
    loaded.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        torch.manual_seed(3)
        want = model(inputs())
        torch.manual_seed(3)
        found = other(inputs())
        assert torch.equal(found, want)
        found.sum().backward()
    assert all(torch.equal(g, p.grad) for g, p in zip(before, parameters, strict=True) if p.grad is not None)
