"""What steps leave behind when they are done, dropped or interrupted: nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from memsched.torch.lanes import EmulatedLanes
from memsched.torch.planned import PlannedForward
from pytorch.models import CASES
from pytorch.steps import (
    Noting,
    Observed,
    Prepared,
    copies,
    differences,
    installed,
    own,
    plain_step,
    prepared,
    sum_of_squares,
    tight,
    train_step,
)

NAMED = {case.name: case for case in CASES}


@pytest.fixture(params=["rotor", "greedy"])
def planner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def mlp() -> Prepared:
    return prepared(NAMED["dropout_mlp"])


def tensors() -> int:
    """Tensors that Python knows and that are alive."""
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class AccidentError(Exception):
    pass


def test_no_step_leaves_anything(planner: str, no_collector: None) -> None:
    p = mlp()
    with installed(p, tight(p, planner), early=copies(9)) as forward:
        counts = []
        for seed in range(100):
            train_step(p, seed=seed)
            assert forward._active() is None
            if seed % 45 == 9:
                counts.append(tensors())
        p.model.zero_grad()
    assert len(counts) == 3
    assert len(set(counts)) == 1


def test_forwards_without_backward_leave_nothing(planner: str, no_collector: None) -> None:
    p = mlp()
    with installed(p, tight(p, planner), early=copies(1)) as forward:
        counts = []
        for number in range(100):
            p.model(*p.args)
            assert forward._active() is None
            if number % 45 == 9:
                counts.append(tensors())
    assert len(set(counts)) == 1


def raising(at: int) -> Observed:
    def before(step: int, kind: str) -> None:
        if step == at:
            raise AccidentError

    return before


@pytest.mark.parametrize("name", ["dropout_mlp", "tied_weights"])
def test_steps_that_fail_leave_the_model_usable(name: str, planner: str, no_collector: None) -> None:
    """Every third step of the schedule fails once, in forward and in backward."""
    p = prepared(NAMED[name])
    want, schedule = plain_step(p), tight(p, planner)
    with installed(p, schedule, early=copies(1)) as forward:
        counts = []
        steps = range(0, len(forward.script.actions), 3)
        for at in steps:
            forward.observe = lambda at=at: Noting(raising(at))
            with pytest.raises(AccidentError):
                train_step(p)
            forward.observe = lambda: None
            assert differences(want, train_step(p)) == [], at
            if at in (steps[1], steps[-1]):
                counts.append(tensors())
        assert forward._active() is None
        p.model.zero_grad()
    assert len(set(counts)) == 1


def test_hooks_that_fail_leave_the_model_usable(planner: str) -> None:
    p = mlp()
    want = plain_step(p)

    def fail(gradient: Any) -> None:
        raise AccidentError

    with installed(p, tight(p, planner), early=copies(1)):
        for parameter in p.model.parameters():
            torch.manual_seed(0)
            loss = sum_of_squares(p.model(*p.args))
            handle = parameter.register_hook(fail)
            with pytest.raises(AccidentError):
                loss.backward()
            handle.remove()
            assert differences(want, train_step(p)) == []  # though `loss` is still there
            del loss


def test_a_model_that_is_dropped_is_gone(planner: str, no_collector: None) -> None:
    p = own(mlp())
    schedule = tight(p, planner)
    model = copy.deepcopy(p.model)
    model.forward = PlannedForward(model, p.staged, p.script(schedule), EmulatedLanes())
    sum_of_squares(model(*p.args)).backward()
    gone = weakref.ref(model)
    del model
    assert gone() is None
