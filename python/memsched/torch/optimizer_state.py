"""How much memory the state of an optimiser takes."""

from __future__ import annotations

import copy
import inspect
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as _optimizers

from memsched.errors import InvalidInputError, shown
from memsched.problems.specs import parse_optimizer
from memsched.support import checks
from memsched.support.arguments import meant
from memsched.torch.compiled.private import optimizer_hooks_aside
from memsched.torch.module_state import generators_unchanged
from memsched.torch.nests import tensors_of


def optimizer_bytes(
    optimizer: torch.optim.Optimizer | int | None, device: torch.device, *, stepping: bool = False
) -> int:
    """Bytes of the optimiser's state on the device, once it has stepped all that it trains.

    What it has already is measured. For trained parameters without state, one step of its like is made on parameters
    without data. A number is taken as declared. `stepping`: it has to step tensors without data in any case.
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
        return optimizer_bytes(inner, device, stepping=stepping)  # which it wraps, as those of accelerate do
    state = [*tensors_of(dict(optimizer.state)), *_state_after_one_step(optimizer, stepping)]
    return distinct_bytes([tensor for tensor in state if tensor.device.type in (device.type, "meta")])


def state_bytes(optimizer: torch.optim.Optimizer | int | None, device: torch.device) -> int:
    """Bytes of the state that an optimiser has on the device already."""
    state = tensors_of(dict(optimizer.state)) if isinstance(optimizer, torch.optim.Optimizer) else []
    return distinct_bytes([one for one in state if one.device.type == device.type and not isinstance(one, FakeTensor)])


def check_owner(optimizer: Any, model: torch.nn.Module) -> None:
    """Refuse an optimiser that trains nothing of the model."""
    if is_strange(optimizer, model.parameters()):
        name, kind = type(model).__name__, type(optimizer).__name__
        raise InvalidInputError(
            f"optimizer is {kind}, and none of its parameters is one of {name}'s: it was built for another model, "
            "or a copy of it; give one that was built with model.parameters(), or the bytes of its state"
        )


def check_step(optimizer: torch.optim.Optimizer) -> None:
    """Refuse one whose step calls code that is not run here: the caller's hooks, or what took the place of `step`."""
    inner = (one for one in vars(optimizer).values() if isinstance(one, torch.optim.Optimizer))
    for one in (optimizer, *inner):
        if names := called_around(one):
            raise InvalidInputError(
                f"the step of {type(one).__name__} also calls {', '.join(names)}, which is not run before training, so "
                "what it holds would not count; remove the hook while you ask, and give what it holds as reserve=..."
            )


def called_around(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of what its step also calls."""
    return [str(getattr(called, "__name__", type(called).__name__)) for called in _around_step(optimizer)]


def _around_step(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What runs with each step, but for what PyTorch and we have put there."""
    hooks = [_optimizers._global_optimizer_pre_hooks, _optimizers._global_optimizer_post_hooks]
    # What wraps an optimiser, such as that of accelerate, may have none.
    hooks += [vars(optimizer).get(f"_optimizer_step_{when}_hooks", {}) for when in ("pre", "post")]
    found: list[Any] = [hook for those in hooks for hook in those.values()]
    own = vars(optimizer).get("step")  # such as a scheduler's, which wraps that of the class
    while own is not None and getattr(own, "__func__", own) is not type(optimizer).step:
        found.append(own)
        own = getattr(own, "__wrapped__", None)
    return [one for one in found if _root(one) not in ("torch", "memsched")]


def _root(called: Any) -> str:
    """The package whose code a callable is, whatever it wraps."""
    called = getattr(called, "func", getattr(called, "__func__", called))
    name = getattr(called, "__globals__", {}).get("__name__", type(called).__module__)
    return str(name).partition(".")[0]


def cannot_step(optimizer: torch.optim.Optimizer, error: Exception, *, stepping: bool) -> InvalidInputError:
    """What is told of an optimiser that does not step tensors without data; one step with data may help."""
    needed = [one for one in inspect.signature(type(optimizer).step).parameters.values() if one.default is one.empty]
    alone = all(one.name == "self" or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed)
    once = "step it once, or " if alone and not stepping and not optimizer.state else ""
    said = str(error).partition("\n")[0]
    return InvalidInputError(
        f"a copy of {type(optimizer).__name__} cannot step tensors without data ({said}); {once}give the bytes of its "
        "state as a number instead"
    )


def trained_by(optimizer: Any) -> list[torch.Tensor]:
    """Its parameters, of whichever model."""
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
    return [one for group in groups for one in group["params"]]


def bytes_beside(optimizer: Any, model: torch.nn.Module) -> int:
    """Of what it trains that is not the model's, such as a loss or another model, and of gradients that are there."""
    own = set(map(id, model.parameters()))
    others = [one for one in trained_by(optimizer) if id(one) not in own]
    return distinct_bytes([*others, *(one.grad for one in others)])


def is_strange(optimizer: Any, parameters: Iterable[torch.Tensor], *, all_of_model: bool = True) -> bool:
    """Whether it trains none of these parameters, of which there are some, nor what may be copies or shards of them."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    own, trained = list(parameters), trained_by(optimizer)
    if not {id(one) for one in own}.isdisjoint(map(id, trained)):
        return False
    if any(type(one) is torch.nn.Parameter for one in trained):  # such as those of another instance
        return bool(own)
    shapes, known = {one.shape for one in trained}, {one.shape for one in own}
    return bool(own) and (not shapes <= known if all_of_model else shapes.isdisjoint(known))


def optimizer_named(spec: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer | int:
    """An optimiser from a text such as "adamw" or "sgd?momentum=0.9": a class of torch.optim, with options; or bytes.

    Raises
    ------
    InvalidInputError
        There is no such class, or it does not take these options.
    """
    parsed = parse_optimizer(spec)
    if isinstance(parsed, int):
        return parsed
    name, options = parsed
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


def _state_after_one_step(optimizer: torch.optim.Optimizer, stepping: bool) -> list[torch.Tensor]:
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
        raise cannot_step(optimizer, error, stepping=stepping) from error
    return tensors_of(dict(trial.state))


def distinct_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the storages under some tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)}
    return sum(storage.nbytes() for storage in storages.values())


def copy_of(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """A copy with all attributes; PyTorch's own copies lose those of classes that add some."""
    made, kind = copy.deepcopy(optimizer, memo), type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is kind:  # to which others may have tied anything
        return made
    for name, one in vars(optimizer).items():
        if name not in vars(made) and name != "step":  # which a scheduler has bound to the original
            setattr(made, name, copy.deepcopy(one, memo))
    return made


def group_of_one(group: Mapping[str, Any], place: int | None) -> dict[str, Any]:
    """A group as it is for its parameter at a place alone, which is to be put in; None: for no parameter."""
    names = group.get("param_names", [])
    here = {"param_names": [] if place is None else names[place : place + 1]} if names else {}
    return {**group, **here, "params": []}


def form_of(optimizer: torch.optim.Optimizer) -> list[tuple[list[int], set[str]]]:
    """Of each group, its parameters, by identity, and which options are on."""
    return [(list(map(id, group["params"])), options_on(group)) for group in optimizer.param_groups]


def options_on(group: Mapping[str, Any]) -> set[str]:
    """The options of a group that are on. What schedulers change is not among them."""
    values = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum")
    return {name for name, one in group.items() if isinstance(one, int | float) and one and name not in values}
