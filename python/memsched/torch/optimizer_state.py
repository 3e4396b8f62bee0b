"""How much memory the state of an optimiser takes."""

from __future__ import annotations

import copy
import inspect
import operator
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memsched.errors import InvalidInputError, shown
from memsched.problems.specs import parse_optimizer
from memsched.support import checks
from memsched.support.arguments import meant
from memsched.torch.compiled.private import optimizer_hooks_aside
from memsched.torch.module_state import generators_unchanged
from memsched.torch.nests import tensors_of


def optimizer_bytes(optimizer: torch.optim.Optimizer | int | None, device: torch.device) -> int:
    """Bytes of the optimiser's state on the device, once it has stepped all that it trains.

    What it has already is measured. For trained parameters without state, one step of its like is made on parameters
    without data. A number is taken as declared.
    """
    if optimizer is None:
        return 0
    if isinstance(optimizer, int):
        return checks.count("optimizer", optimizer, 0, 2**63 - 1)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInputError(
            f"optimizer is {shown(optimizer)}; give a torch.optim.Optimizer, such as "
            "torch.optim.AdamW(model.parameters()), or the bytes of its state as a number"
        )
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, torch.optim.Optimizer) and inner.state is optimizer.state:
        return optimizer_bytes(inner, device)  # which it wraps, as those of accelerate do
    state = [*tensors_of(dict(optimizer.state)), *_state_after_one_step(optimizer)]
    return distinct_bytes([tensor for tensor in state if tensor.device.type in (device.type, "meta")])


def check_owner(optimizer: Any, model: torch.nn.Module) -> None:
    """Refuse an optimiser that trains nothing of the model."""
    if is_strange(optimizer, model.parameters()):
        name, kind = type(model).__name__, type(optimizer).__name__
        raise InvalidInputError(
            f"optimizer is {kind}, and none of its parameters is one of {name}'s: it was built for another model; "
            "give one that was built with model.parameters(), or the bytes of its state"
        )


def is_strange(optimizer: Any, parameters: Iterable[torch.Tensor]) -> bool:
    """Whether it trains none of these parameters, of which there are some, nor what may be copies or shards of them."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    own = list(parameters)
    trained = [one for group in optimizer.param_groups for one in group["params"]]
    if not {id(one) for one in own}.isdisjoint(map(id, trained)):
        return False
    return bool(own) and not {one.shape for one in trained} <= {one.shape for one in own}


def optimizer_named(spec: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """An optimiser from a text such as "adamw" or "sgd?momentum=0.9": a class of torch.optim, with options.

    Raises
    ------
    InvalidInputError
        There is no such class, or it does not take these options.
    """
    name, options = parse_optimizer(spec)
    known = {
        one.lower(): made
        for one, made in vars(torch.optim).items()
        if isinstance(made, type) and issubclass(made, torch.optim.Optimizer) and made is not torch.optim.Optimizer
    }
    found = known[checks.choice("optimizer", name, known)]
    try:
        return found(list(parameters), **{"lr": 1e-3, **options})
    except (TypeError, ValueError) as error:
        words = [f"{key}={value}" for key, value in options.items() if isinstance(value, str)]
        takes = f"the options are those of torch.optim.{found.__name__}, such as {name}?lr=0.01"
        takes = f"{' and '.join(words)} must be a number; {takes}" if words else takes
        names = [*inspect.signature(found).parameters]
        wrong = next((key for key in options if key not in names), None)
        if wrong is not None and (close := meant(wrong, names)):
            raise InvalidInputError(f"optimizer is {spec!r}: it takes no {wrong}; did you mean {close}?") from error
        raise InvalidInputError(f"optimizer is {spec!r}, which it does not take ({error}); {takes}") from error


def kind_of_state(optimizer: torch.optim.Optimizer | int | None) -> tuple[Any, ...]:
    """What tells the state that it has, or will make, apart: whose it is, and which options are on."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return ()
    found: list[Any] = []
    for group in optimizer.param_groups:
        found += [(id(one), one.numel()) for one in group["params"] if one.requires_grad or one in optimizer.state]
        found += [name for name, one in group.items() if isinstance(one, int | float) and one and name != "lr"]
    return tuple(found)


def _state_after_one_step(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The state of the trained parameters that have none yet. The optimiser itself is left alone."""
    groups = [group["params"] for group in optimizer.param_groups]
    fresh = [[one for one in group if one.requires_grad and one not in optimizer.state] for group in groups]
    if not any(fresh):
        return []
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with generators_unchanged(), optimizer_hooks_aside():
            with fake:
                like = {id(one): torch.nn.Parameter(torch.empty_like(fake.from_tensor(one))) for one in chain(*groups)}
            # Not under the mode: what else it has, such as a learning rate, may be a tensor.
            trial = copy.deepcopy(optimizer, {**like, id(optimizer.state): defaultdict(dict)})
            if trial.state is optimizer.state or any(map(operator.is_, trial.param_groups, optimizer.param_groups)):
                raise TypeError("a copy of it shares its state")
            for group, parameters in zip(trial.param_groups, fresh, strict=True):
                group["params"] = [like[id(one)] for one in parameters]
            with fake:
                for parameter in chain(*(group["params"] for group in trial.param_groups)):
                    parameter.grad = torch.empty_like(parameter)
                type(trial).step(trial)  # its own `step` may be one that a scheduler has bound to the original
    except Exception as error:
        first = "" if optimizer.state else "step it once, or "
        raise InvalidInputError(
            f"the state of {type(optimizer).__name__} cannot be measured before it has stepped all "
            f"parameters ({error}); {first}give its bytes as a number: optimizer=..."
        ) from error
    return tensors_of(dict(trial.state))


def distinct_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the storages under some tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)}
    return sum(storage.nbytes() for storage in storages.values())
