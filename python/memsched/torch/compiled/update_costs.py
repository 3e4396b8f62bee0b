"""What the update of a parameter takes: bytes of its states, workspace, and what it reads and writes."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from memsched.errors import InvalidInputError
from memsched.support.formats import format_bandwidth
from memsched.torch.compiled import clock
from memsched.torch.compiled.private import optimizer_hooks_aside, unset_fake_temporarily
from memsched.torch.compiled.states import states_in
from memsched.torch.compiled.update_mark import Update
from memsched.torch.meter import Meter
from memsched.torch.module_state import generators_unchanged
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import copy_of, distinct_bytes, options_on, trained_by

SMALL = 1e-3  # a gradient
_LATER = 1000  # steps, after which an optimiser may do more: RAdam does from its sixth on
_MOST = 2**22  # elements of a parameter whose update is timed; a larger one takes as much longer
_REPEATS, _ENOUGH = 20, 0.02  # of such an update, and seconds after which there were enough

HostSpeed = float | Literal["here"] | None
"""Bytes a second that the host reads and writes as it updates; "here": as measured; None: it updates nothing."""


class UpdateCosts:
    """Of an optimiser, by parameters that are alike."""

    def __init__(self, optimizer: torch.optim.Optimizer, clipped: bool, host: HostSpeed = None) -> None:
        self._optimizer, self._clipped, self.host = optimizer, clipped, host
        self._known: dict[Any, Update] = {}
        self._added: dict[Any, float] = {}
        self.failed = ""  # what was said where an update could not be timed on the host

    @property
    def host_times(self) -> str:
        """Where the times on the host come from."""
        if isinstance(self.host, float):
            return f"which is taken to read and write {format_bandwidth(self.host)} as it updates"
        return "whose times were measured here"

    def of(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> Update:
        """Of the update of a parameter, whose place is left open."""
        tensors = {name for name, one in group.items() if isinstance(one, torch.Tensor)}
        options = sorted(options_on(group) | tensors)
        key = parameter.shape, parameter.stride(), parameter.dtype, parameter.device, str(options)
        if key not in self._known:
            found = self._looked_at(parameter, group)
            self._known[key] = replace(found, host_seconds=self._on_host(parameter, group, found))
        return self._known[key]

    def on_host_adding(self, parameter: torch.Tensor) -> float | None:
        """Seconds of adding a gradient to another on the host; None where nothing is computed there."""
        if self.host is None or parameter.is_complex():
            return None
        if isinstance(self.host, float):
            return 3 * parameter.nbytes / self.host
        key = "addition", parameter.dtype, parameter.shape
        if key not in self._added:
            with unset_fake_temporarily():
                rows = [
                    torch.ones(min(parameter.numel(), _MOST), dtype=parameter.dtype, device="cpu") for _ in range(2)
                ]
                self._added[key] = _least_time(lambda: rows[0].add_(rows[1])) * parameter.numel() / len(rows[0])
        return self._added[key]

    def _on_host(self, parameter: torch.Tensor, group: Mapping[str, Any], update: Update) -> float | None:
        """Seconds of an update on the host; None where none can run there."""
        apart = parameter.device.type != "cpu"
        numbers = any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in group.values())
        if self.host is None or parameter.is_complex() or (apart and (update.numbers or numbers)):
            return None
        if any(group.get(name) for name in ("fused", "capturable")):  # as they are for the device
            return None
        if isinstance(self.host, float):
            return update.touched / self.host
        try:
            return self._timed(parameter, group)
        except Exception as error:  # of any kind: what the device does may not be there
            self.failed = str(error).partition("\n")[0] or type(error).__name__
            return None

    def _timed(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> float:
        rows = max(1, _MOST * len(parameter) // parameter.numel()) if parameter.numel() > _MOST else None
        shape = (rows, *parameter.shape[1:]) if rows is not None else parameter.shape
        like = torch.nn.Parameter(torch.ones(shape, dtype=parameter.dtype, device="cpu"))
        with self._trial(like, group) as trial:
            like.grad = torch.full_like(like, SMALL)
            return _least_time(lambda: type(trial).step(trial)) * parameter.numel() / like.numel()

    @contextmanager
    def _trial(self, like: torch.Tensor, group: Mapping[str, Any]) -> Iterator[Any]:
        """A copy of the optimiser that updates one parameter."""
        with unset_fake_temporarily(), optimizer_hooks_aside(), generators_unchanged():
            memo: dict[int, Any] = {id(one): one for one in trained_by(self._optimizer)}
            trial: Any = copy_of(self._optimizer, {**memo, id(self._optimizer.state): defaultdict(dict)})
            own = copy.deepcopy(
                {name: one for name, one in group.items() if name != "params"}
            )  # may be changed in place
            trial.param_groups = [{**own, "params": [like]}]
            yield trial

    def _looked_at(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> Update:
        """From updates of its like without data: the first makes the state, and the last is one of long after."""
        try:
            return self._stepped(parameter, group, FakeTensorMode(allow_non_fake_inputs=True))
        except Exception:  # of any kind: it asks for values, as Adafactor does, or mixes such tensors with others
            pass
        try:
            return self._stepped(parameter, group, nullcontext())
        except Exception as error:
            said, kind = str(error).partition("\n")[0], type(self._optimizer).__name__
            raise InvalidInputError(
                f"a copy of {kind} cannot update a parameter by itself ({said}); plan with update=False"
            ) from error

    def _stepped(self, parameter: torch.Tensor, group: Mapping[str, Any], mode: AbstractContextManager[Any]) -> Update:
        size, stride = parameter.shape, parameter.stride()
        kind: Any = {"dtype": parameter.dtype, "device": parameter.device}
        with unset_fake_temporarily(), mode:
            like = torch.nn.Parameter(torch.empty_strided(size, stride, **kind).fill_(1.0))
        with self._trial(like, group) as trial, mode:
            workspace = 0
            for turn in range(3):
                if turn == 2 and isinstance(count := trial.state[like].get("step"), torch.Tensor):
                    count.add_(_LATER)
                like.grad = torch.empty_strided(size, stride, **kind).fill_(SMALL)
                held = [like, like.grad, *states_in(trial.state[like])]
                with Meter(parameter.device.type) as meter, _Touched() as touched:
                    meter.count(held)
                    before = meter.live
                    if self._clipped:
                        total = torch.ones((), dtype=parameter.real.dtype, device=parameter.device)
                        like.grad.mul_(total)
                    type(trial).step(trial)
                workspace = max(workspace, meter.peak - before if turn else 0)
            state = trial.state[like]
            large = states_in(state)
            # Single numbers, and what lies deeper, such as in lists: these do not travel.
            others = [one for one in tensors_of(state) if all(one is not known for known in large)]
            numbers = distinct_bytes([one for one in others if one.device.type == parameter.device.type])
            return Update(0, distinct_bytes(large), numbers, workspace + numbers, touched.nbytes, touched.calls)


def _least_time(work: Callable[[], object]) -> float:
    """Of several turns, after a first that makes what is needed."""
    best, spent = float("inf"), 0.0
    for turn in range(1 + _REPEATS):
        began = clock.now()
        work()
        taken = clock.now() - began
        if turn > 0:
            best, spent = min(best, taken), spent + taken
        if spent > _ENOUGH:
            break
    return best


class _Touched(TorchDispatchMode):
    """Counts operations, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = pytree.tree_leaves((args, kwargs, out))
        self.nbytes += sum(one.nbytes for one in found if isinstance(one, torch.Tensor))
        self.calls += 1
        return out
