"""How much memory the state of an optimiser takes."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.support import checks


def optimizer_bytes(optimizer: torch.optim.Optimizer | int | None, device: torch.device) -> int:
    """Bytes of the optimiser's state on the device.

    Parameters
    ----------
    optimizer
        Its state is measured if it has stepped already; else one step of its like is made on parameters without data.
        A number is taken as declared; None means no optimiser.

    Raises
    ------
    InvalidInputError
        A number that is no number of bytes, or an optimiser that cannot be tried.
    """
    if optimizer is None:
        return 0
    if not isinstance(optimizer, torch.optim.Optimizer | int):
        raise InvalidInputError(
            f"optimizer is {optimizer!r}; give a torch.optim.Optimizer, or the bytes of its state as a number"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        return checks.count("optimizer", optimizer, 0, 2**63 - 1)
    state = [leaf for leaf in pytree.tree_leaves(dict(optimizer.state)) if isinstance(leaf, torch.Tensor)]
    if not state:
        state = _state_after_one_step(optimizer)
    return distinct_bytes([tensor for tensor in state if tensor.device.type == device.type])


def _state_after_one_step(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake:
            groups = []
            for group in optimizer.param_groups:
                like = [torch.nn.Parameter(torch.empty_like(fake.from_tensor(p))) for p in group["params"]]
                for parameter in like:
                    parameter.grad = torch.empty_like(parameter)
                groups.append({**group, "params": like})
            trial = copy.copy(optimizer)
            trial.param_groups, trial.state = groups, defaultdict(dict)
            trial.step()
    except Exception as error:
        raise InvalidInputError(
            f"the state of {type(optimizer).__name__} cannot be measured before its first step ({error}); "
            "step it once, or give its bytes as a number: optimizer=..."
        ) from error
    return [leaf for leaf in pytree.tree_leaves(dict(trial.state)) if isinstance(leaf, torch.Tensor)]


def distinct_bytes(tensors: Sequence[Any]) -> int:
    """Bytes of the storages under some tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)}
    return sum(storage.nbytes() for storage in storages.values())
