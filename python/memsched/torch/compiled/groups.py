"""The groups of this process, and the plans that they follow."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.group import ALIVE, Group
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.unit import distinct

_GROUPS: weakref.WeakValueDictionary[Any, Group] = weakref.WeakValueDictionary()  # units keep theirs


def group_of(options: Options) -> Group:
    """The group of graphs under a budget, which is the whole process's: those of a thread with the same options."""
    return _GROUPS.setdefault((options, threading.get_ident()), Group(options))


def plans() -> list[CompiledPlan]:
    """The plans that compiled models of this process follow.

    Returns
    -------
    list of CompiledPlan
        The one that was followed last comes last. There may be several: for other sizes of inputs, such as the last
        batch of an epoch, for the first step of several graphs, and where gradients are there already; `inputs` tells
        the sizes of each. None are of models that are gone, but for graphs that PyTorch keeps: behind a graph break,
        those of a model that is gone, too.

    Examples
    --------
    >>> import torch, memsched.torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> compiled = torch.compile(model, backend="memsched", options={"budget": "60%"})
    >>> compiled(torch.randn(256, 64)).sum().backward()
    >>> plan = memsched.torch.plans()[-1]
    >>> plan.peak_memory <= plan.result.schedule.budget
    True
    """
    return distinct(unit for group in list(ALIVE) for unit in list(group.units))
