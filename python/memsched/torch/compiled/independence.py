"""Whether an optimiser of any class updates each parameter by itself, tried on a few tensors like its own."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from memsched.errors import InvalidInputError
from memsched.torch.compiled.private import optimizer_hooks_aside
from memsched.torch.compiled.states import states_in
from memsched.torch.module_state import generators_unchanged
from memsched.torch.optimizer_state import trained_by

_MOST = 2**16  # elements of a tensor that is tried; of a larger parameter it is a part
_OF_GROUP = 3  # parameters of a group
_GRADIENTS = (1.0, 1e-3, 30.0, 0.0, 0.1, 3.0)  # how large they are, by step


def check_independent(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimiser that does not do one parameter after another what it does with all at once, bit for bit.

    Raises
    ------
    InvalidInputError
        Naming what differs, or the error.
    """
    kind = type(optimizer).__name__
    try:
        with torch.enable_grad(), generators_unchanged(), optimizer_hooks_aside():
            differs = _difference(optimizer)
    except Exception as error:  # of any kind: it is the user's code
        said = str(error).partition("\n")[0]
        raise InvalidInputError(
            f"update is 'each', and a copy of {kind} cannot update a few parameters one by one ({said}); plan with "
            "update=False"
        ) from error
    if differs:
        raise InvalidInputError(
            f"update is 'each', and {kind} does otherwise with a few parameters one by one than with all at once: "
            f"{differs}. Its updates depend on each other, or on what it keeps in its groups or in itself; plan with "
            "update=False"
        )


def _difference(optimizer: torch.optim.Optimizer) -> str:
    groups = [[_like(one) for one in _some(group["params"])] for group in optimizer.param_groups]
    if not any(groups):
        return ""
    random = torch.Generator(device="cpu").manual_seed(0)
    together, apart = (_Trial(optimizer, groups) for _ in range(2))
    for turn, size in enumerate(_GRADIENTS):
        gradients = [size * torch.randn(one.shape, generator=random, dtype=torch.float64) for one in together.all]
        together.step(gradients, together.at_once)
        apart.step(gradients, apart.one_by_one)
        for k, (one, other) in enumerate(zip(together.all, apart.all, strict=True)):
            shape = tuple(one.shape)
            if not _same(one, other):
                return f"a parameter of shape {shape} differs after step {turn + 1}"
            states = [states_in(trial.optimizer.state.get(trial.all[k], {})) for trial in (together, apart)]
            if len(states[0]) != len(states[1]) or not all(map(_same, *states)):
                return f"the state of a parameter of shape {shape} differs after step {turn + 1}"
    return ""


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _some(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """A few of different shapes, if there are."""
    trained = [one for one in parameters if one.requires_grad]
    by_shape = {tuple(one.shape): one for one in trained}
    first = [*by_shape.values()][:_OF_GROUP]
    return first + [one for one in trained if all(one is not known for known in first)][: _OF_GROUP - len(first)]


def _like(parameter: torch.Tensor) -> torch.Tensor:
    shape = list(parameter.shape)
    if parameter.numel() > _MOST:
        shape[0] = max(1, _MOST * shape[0] // parameter.numel())
    random = torch.Generator(device="cpu").manual_seed(parameter.numel())
    return torch.randn(shape, generator=random).to(device=parameter.device, dtype=parameter.dtype)


class _Trial:
    """A copy of an optimiser for tensors of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer, groups: list[list[torch.Tensor]]) -> None:
        memo: dict[int, Any] = {id(one): one for one in trained_by(optimizer)}
        self.optimizer: Any = copy.deepcopy(optimizer, {**memo, id(optimizer.state): defaultdict(dict)})
        if self.optimizer.state is optimizer.state:
            raise TypeError("a copy of it shares its state")
        for group, values in zip(self.optimizer.param_groups, groups, strict=True):
            group["params"] = [torch.nn.Parameter(one.clone()) for one in values]
        self.all = trained_by(self.optimizer)
        self._alone = inspect.unwrap(type(optimizer).step)

    def step(self, gradients: list[torch.Tensor], update: Callable[[], None]) -> None:
        for one, gradient in zip(self.all, gradients, strict=True):
            one.grad = gradient.to(device=one.device, dtype=one.dtype)
        update()

    def at_once(self) -> None:
        type(self.optimizer).step(self.optimizer)

    def one_by_one(self) -> None:
        """As planned steps do it, from the last to the first."""
        groups, told = self.optimizer.param_groups, False
        try:
            for group in reversed(groups):
                for one in reversed(group["params"]):
                    self.optimizer.param_groups = [{**group, "params": [one]}]
                    with torch.no_grad():
                        self._alone(self.optimizer) if told else type(self.optimizer).step(self.optimizer)
                    told = True
        finally:
            self.optimizer.param_groups = groups
