"""Whether an optimiser of any class updates each parameter by itself, tried on a few tensors like its own."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.torch.compiled.private import optimizer_hooks_aside
from memsched.torch.module_state import generators_unchanged
from memsched.torch.optimizer_state import copy_of, group_of_one, trained_by

_MOST = 2**16  # elements of a tensor that is tried; of a larger parameter it is a part
_OF_GROUP = 3  # parameters of a group
_GRADIENTS = (1.0, 1e-3, 30.0, 0.1, 3.0, 1.0, 0.0, math.inf)  # how large they are, by step; not finite: the first alone


def check_independent(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimiser that does not do one parameter after another what it does with all at once, bit for bit.

    What it would do after more steps than are tried, or to the fourth parameter of a group alone, is not seen.

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
    """What differs, in words; nothing if nothing does."""
    groups = [_some(group["params"]) for group in optimizer.param_groups]
    if not any(groups):
        return ""
    random = torch.Generator(device="cpu").manual_seed(0)
    together, apart = (_Trial(optimizer, groups) for _ in range(2))
    for turn, size in enumerate(_GRADIENTS):
        gradients = [torch.randn(one.shape, generator=random, dtype=torch.float64) for one in together.all]
        gradients = [one * (size if k == 0 or math.isfinite(size) else 1.0) for k, one in enumerate(gradients)]
        together.step(gradients, together.at_once)
        apart.step(gradients, apart.one_by_one)
        for k, (one, other) in enumerate(zip(together.all, apart.all, strict=True)):
            states = [trial.optimizer.state.get(trial.all[k], {}) for trial in (together, apart)]
            for what, pair in (("a parameter", (one, other)), ("the state of a parameter", states)):
                if not _same(*pair):
                    return f"{what} of shape {tuple(one.shape)} differs after step {turn + 1}"
        if not _same(together.rest, apart.rest):
            return f"its groups, or what else it keeps, differ after step {turn + 1}"
    return ""


def _same(one: Any, other: Any) -> bool:
    """Whether all numbers in two nests are the same, bit for bit but for those of NaN."""
    (ones, form), (others, second) = (pytree.tree_flatten(it) for it in (one, other))
    return bool(form == second) and all(map(_alike, ones, others))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(torch.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True).all())
    return type(one) is type(other) and (not isinstance(one, int | float | str) or one == other or one != one)


def _some(parameters: list[torch.Tensor]) -> list[int]:
    """The places of a few of different shapes, if there are."""
    trained = [place for place, one in enumerate(parameters) if one.requires_grad]
    by_shape = {tuple(parameters[place].shape): place for place in trained}
    first = [*by_shape.values()][:_OF_GROUP]
    return first + [place for place in trained if place not in first][: _OF_GROUP - len(first)]


def _like(parameter: torch.Tensor) -> torch.Tensor:
    shape = list(parameter.shape)
    if parameter.numel() > _MOST:
        shape[0] = max(1, _MOST * shape[0] // parameter.numel())
    random = torch.Generator(device="cpu").manual_seed(parameter.numel())
    return torch.randn(shape, generator=random).to(device=parameter.device, dtype=parameter.dtype)


class _Trial:
    """A copy of an optimiser for tensors of its own, in place of the parameters at some places of each group."""

    def __init__(self, optimizer: torch.optim.Optimizer, places: list[list[int]]) -> None:
        memo: dict[int, Any] = {id(optimizer.state): defaultdict(dict)}
        for group, tried in zip(optimizer.param_groups, places, strict=True):
            for place, one in enumerate(group["params"]):  # wherever it has them
                like = _like(one) if place in tried else torch.empty(0, dtype=one.dtype, device=one.device)
                memo[id(one)] = torch.nn.Parameter(like, requires_grad=place in tried)
        self.optimizer: Any = copy_of(optimizer, memo)
        if self.optimizer.state is optimizer.state:
            raise TypeError("a copy of it shares its state")
        for group, tried in zip(self.optimizer.param_groups, places, strict=True):
            names = group.get("param_names")
            group["params"] = [group["params"][place] for place in tried]
            if names is not None:
                group["param_names"] = [names[place] for place in tried]
        self.all = trained_by(self.optimizer)
        self._step, self._turns = inspect.unwrap(type(optimizer).step), 0

    @property
    def rest(self) -> Any:
        """All that it has beside its parameters and their states."""
        own = {name: one for name, one in vars(self.optimizer).items() if not name.startswith("_")}
        state = [one for key, one in self.optimizer.state.items() if all(key is not known for known in self.all)]
        groups = [{name: one for name, one in group.items() if name != "params"} for group in own.pop("param_groups")]
        return groups, state, {name: one for name, one in own.items() if name != "state"}

    def step(self, gradients: list[torch.Tensor], update: Callable[[], None]) -> None:
        for one, gradient in zip(self.all, gradients, strict=True):
            one.grad = gradient.to(device=one.device, dtype=one.dtype)
        update()

    def at_once(self) -> None:
        type(self.optimizer).step(self.optimizer)

    def one_by_one(self) -> None:
        """As planned steps do it, from the last to the first, perhaps after one for none, so that schedulers see it."""
        groups, told = self.optimizer.param_groups, self._turns % 2 == 1
        self._turns += 1
        try:
            if told:
                self.optimizer.param_groups = [group_of_one(one, None) for one in groups]
                type(self.optimizer).step(self.optimizer)
            for group in reversed(groups):
                for rank in reversed(range(len(group["params"]))):
                    self.optimizer.param_groups = [{**group_of_one(group, rank), "params": [group["params"][rank]]}]
                    with torch.no_grad():
                        self._step(self.optimizer) if told else type(self.optimizer).step(self.optimizer)
                    told = True
        finally:
            self.optimizer.param_groups = groups
