"""Parameters that travel in a planned step, and are on the device or on the host between steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from memsched.errors import InvalidInputError
from memsched.torch.compiled.copies import traffic_on
from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.private import holders_of

HOLLOW = ("cuda",)
"""Types of devices whose tensors cannot lie on the host: what stands for one there has no memory."""

TRAVELS = "travels"
"""Has, in the `meta` of a primal, the name of the parameter in the model, if it may travel."""

STAYS = "stays"
"""Has its name if it might, and the step hands it on or writes it."""

WAITS = "waits"
"""Marks, in the `meta` of a primal, a parameter whose gradient from before may travel, too."""


def parameter_called(name: str) -> str:
    """The tensor that stands for a parameter which may travel."""
    return f"parameter:{name}"


def is_parameter(tensor: str) -> bool:
    """Whether a tensor of a graph stands for one."""
    return tensor.startswith(parameter_called(""))


def staying_in(joint: Joint) -> list[str]:
    """The names of parameters that might travel, but that the step hands on or writes."""
    return [node.meta[STAYS] for node in joint.primals if STAYS in node.meta]


def travelling_in(joint: Joint) -> dict[int, str]:
    """The storages of parameters that may travel, with their names in the model."""
    marked = [node for node in joint.primals if TRAVELS in node.meta]
    return {n: node.meta[TRAVELS] for node in marked for n in joint.storages_of(node)}


def may_travel(model: torch.nn.Module, device: torch.device) -> dict[str, torch.nn.Parameter]:
    """The parameters that are on the device, each in memory that nothing else has."""
    kinds = torch.nn.Parameter, FakeTensor  # with the latter a model is only looked at
    ours = {name: one for name, one in model.named_parameters() if type(one) in kinds}
    there = {n: one for n, one in ours.items() if one.device.type in (device.type, "meta")}
    return {n: one for n, one in there.items() if _is_away(one) or (fills_memory(one) and holders_of(one) == 1)}


def fills_memory(one: torch.Tensor) -> bool:
    """Whether a tensor is all that lies in its memory, which other processes do not have."""
    if one.layout is not torch.strided or one.numel() == 0 or one.is_conj() or one.is_neg():
        return False
    steps = sorted((step, size) for step, size in zip(one.stride(), one.shape, strict=True) if size > 1)
    dense = 1
    for step, size in steps:
        if step != dense:
            return False
        dense *= size
    own = one.device.type != "cpu" or not one.is_shared()
    return own and one.storage_offset() == 0 and one.untyped_storage().nbytes() == one.nbytes


class Parameters:
    """Of a model, those that may travel in a planned step. All plans of a model share where they are."""

    def __init__(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self.named = dict(named)
        for one in self.named.values():
            if one not in _COPIES or not _COPIES[one].knows(one):
                _COPIES[one] = _Copies(one)

    def names_in(self, model: torch.nn.Module) -> dict[int, str]:
        """By identity, the names of the parameters of a model, or a copy of it, that may travel."""
        return {id(one): name for name, one in model.named_parameters() if name in self.named}

    def keep(self, names: Iterable[str], staying: Iterable[str]) -> None:
        """A step moves these alone, and hands on or writes those that are `staying`; it does not read the others."""
        bring_back(self.named[name] for name in staying)
        self.named = {name: self.named[name] for name in names}

    def check(self) -> None:
        """Refuse what has changed, or what others hold, between two steps."""
        for name, one in self.named.items():
            copies = _COPIES[one]
            if not copies.knows(one):
                raise InvalidInputError(
                    f"{name} has another shape, type, layout or device than when the step was planned, or is a part of "
                    "a larger tensor, or is shared with other processes; plan the step as it is"
                )
            if copies.is_held(one):
                raise InvalidInputError(
                    f"{name} shares its memory with another tensor, such as a detached one, an array or a state_dict: "
                    "that would not follow what the step writes; drop it (del), or plan without offload_parameters "
                    "and update_on_host"
                )

    def leave(self, border: Mapping[str, str]) -> None:
        """Between two steps of a plan: let those be on the host alone that are to be there.

        Those that are to come look as if they were on the device.
        """
        for name, one in self.named.items():
            if border.get(parameter_called(name)) == "host":
                _COPIES[one].follow(one, False)
            elif _is_away(one):
                one.data = _COPIES[one].stand_in()

    def come(self, border: Mapping[str, str]) -> None:
        """Between two steps of a plan: bring the others to the device."""
        for name, one in self.named.items():
            if border.get(parameter_called(name)) != "host":
                _COPIES[one].follow(one, True)

    def rest(self) -> None:
        """A step is over, or has failed: each has its values where others can read them."""
        for one in self.named.values():
            _COPIES[one].rest(one)

    def home(self) -> None:
        """Bring all to the device."""
        self.check()
        self.come({})

    def renew(self) -> None:
        """Give each that is on the device other memory, so that nobody else has what a plan frees."""
        for one in self.named.values():
            one.data = one.data.clone()

    def on_device(self) -> Iterator[torch.Tensor]:
        """What has memory there."""
        for one in self.named.values():
            if not _COPIES[one].is_away(one):
                yield one.data

    # What generated code calls, by names.

    def offload(self, name: str) -> None:
        """Begin to copy one to the host."""
        _COPIES[self.named[name]].offload(self.named[name])

    def free(self, name: str) -> None:
        """From now on one is on the host alone."""
        _COPIES[self.named[name]].free(self.named[name])

    def prefetch(self, name: str) -> None:
        """Begin to copy one back."""
        _COPIES[self.named[name]].prefetch()

    def arrive(self, name: str) -> torch.Tensor:
        """One is on the device again; returns it."""
        return _COPIES[self.named[name]].arrive(self.named[name])

    def on_host(self, parameter: torch.Tensor) -> torch.Tensor:
        """What is on the host of one that is there alone."""
        return _COPIES[parameter].there()

    def updated(self, parameter: torch.Tensor) -> None:
        """One was changed: what is on the host is of before."""
        if parameter in _COPIES:
            _COPIES[parameter].updated()


def bring_back(parameters: Iterable[torch.Tensor]) -> None:
    """Bring those that are on the host to the device."""
    with torch.inference_mode(False):
        for one in parameters:
            if _is_away(one):
                _COPIES[one].follow(one, True)


@contextlib.contextmanager
def as_in_a_step(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let those that are on the host alone look as if they were on the device."""
    away = [one for one in parameters if _is_away(one)]
    for one in away:
        one.data = _COPIES[one].stand_in()
    try:
        yield
    finally:
        for one in away:
            _COPIES[one].rest(one)


def leave_on_host(parameter: torch.nn.Parameter, device: torch.device) -> None:
    """Let a parameter that is on the CPU be one of a device, whose values are on the host."""
    _COPIES[parameter] = copies = _Copies(parameter, device)
    copies.begin_on_host(parameter)


def _is_away(parameter: torch.Tensor) -> bool:
    return parameter in _COPIES and bool(_COPIES[parameter].is_away(parameter))


class _Copies:
    """Where the values of one parameter are.

    Between steps its `data` is on the device or on the host, and holds the values, whoever has written there. In a step
    it is on the device, or a stand-in: what whoever looks at it expects there, and on the CPU the values, too.
    """

    def __init__(self, parameter: torch.Tensor, device: torch.device | None = None) -> None:
        self.device = device or parameter.device
        self._shape, self._stride, self._dtype = parameter.shape, parameter.stride(), parameter.dtype
        self._hollow: torch.Tensor | None = None
        self._host: torch.Tensor | None = None  # a good copy, as copies know it
        self._leaving: torch.Tensor | None = None
        self._coming: torch.Tensor | None = None

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether it is as it was, wherever it is."""
        then = self._shape, self._stride, self._dtype
        return (parameter.shape, parameter.stride(), parameter.dtype) == then and (
            self.is_away(parameter) or (fills_memory(parameter) and parameter.device == self.device)
        )

    def is_held(self, parameter: torch.Tensor) -> bool:
        """Whether somebody else has its memory, between two steps."""
        return not self._is_hollow(parameter) and holders_of(parameter) > 1 + self._shows_host(parameter)

    def is_away(self, parameter: torch.Tensor) -> bool:
        """Whether it has no memory on the device."""
        return self._is_hollow(parameter) or self._shows_host(parameter)

    def _is_hollow(self, parameter: torch.Tensor) -> bool:
        return self._hollow is not None and _lie_together(parameter, self._hollow)

    def _shows_host(self, parameter: torch.Tensor) -> bool:
        return self._host is not None and _lie_together(parameter, self._host) and not parameter.is_shared()

    def stand_in(self) -> torch.Tensor:
        """For a tensor of the device that has no memory there."""
        if self.device.type not in HOLLOW:
            return self._on_host()
        if self._hollow is None:
            size, stride = self._shape, self._stride
            self._hollow = torch.empty_strided(size, stride, dtype=self._dtype, device=self.device)
            self._hollow.untyped_storage().resize_(0)
        return self._hollow

    def _on_host(self) -> torch.Tensor:
        assert self._host is not None
        return self._host.view(self._dtype).as_strided(self._shape, self._stride)

    def begin_on_host(self, parameter: torch.Tensor) -> None:
        self._host = traffic_on(self.device).adopt(parameter.data)
        if self.device.type in HOLLOW:
            self.stand_in()  # made now, while there is room for it
        parameter.data = self._on_host()

    def there(self) -> torch.Tensor:
        assert self._leaving is None
        return self._on_host()

    def follow(self, parameter: torch.Tensor, here: bool) -> None:
        """Between two steps: bring it to the device, or let it be on the host alone."""
        if self.device.type in HOLLOW:
            self.stand_in()  # which for a moment has memory, for which a step may have no room
        if not self.is_away(parameter):
            self._host = None  # it may have changed since it was copied
            if not here:
                self.offload(parameter)
                self.free(parameter)
        elif here:
            self.prefetch()
            self.arrive(parameter)
            self._host = None
        else:
            parameter.data = self.stand_in()

    def rest(self, parameter: torch.Tensor) -> None:
        """After a step, complete or not."""
        self._coming = None
        self._left()
        if self._is_hollow(parameter):
            parameter.data = self._on_host()

    def offload(self, parameter: torch.Tensor) -> None:
        value = parameter.data
        self._host = traffic_on(self.device).offload(value)
        self._leaving = value

    def free(self, parameter: torch.Tensor) -> None:
        self._left()
        parameter.data = self.stand_in()

    def _left(self) -> None:
        if self._leaving is not None and self._host is not None:
            traffic_on(self.device).gone(self._leaving, self._host, False)
        self._leaving = None

    def prefetch(self) -> None:
        assert self._host is not None
        self._coming = traffic_on(self.device).prefetch(self._host)

    def arrive(self, parameter: torch.Tensor) -> torch.Tensor:
        assert self._host is not None
        assert self._coming is not None
        value = traffic_on(self.device).arrived(self._coming, self._host)
        parameter.data, self._coming = value, None
        return value

    def updated(self) -> None:
        self._left()
        self._host = None


def _lie_together(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


_COPIES: Any = WeakIdKeyDictionary()  # of each parameter that may travel
