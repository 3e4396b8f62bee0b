"""Parameters that travel in a planned step, and are on the device or on the host between steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from memsched.errors import InvalidInputError
from memsched.torch.compiled.copies import traffic_on
from memsched.torch.compiled.joint import Joint

TRAVELS = "travels"
"""Has, in the `meta` of a primal, the name of the parameter in the model, if it may travel."""


def parameter_called(name: str) -> str:
    """The tensor that stands for a parameter which may travel."""
    return f"parameter:{name}"


def is_parameter(tensor: str) -> bool:
    """Whether a tensor of a graph stands for one."""
    return tensor.startswith(parameter_called(""))


def travelling_in(joint: Joint) -> dict[int, str]:
    """The storages of parameters that may travel, with their names in the model."""
    marked = [node for node in joint.primals if TRAVELS in node.meta]
    return {n: node.meta[TRAVELS] for node in marked for n in joint.storages_of(node)}


def may_travel(
    model: torch.nn.Module, device: torch.device, others: Iterable[torch.Tensor]
) -> dict[str, torch.nn.Parameter]:
    """The parameters that are on the device, in memory that no other tensor of the model or the others has."""
    named = dict(model.named_parameters())
    tensors = {id(one): one for one in (*named.values(), *model.buffers(), *others)}.values()
    strided = [one for one in tensors if one.layout is torch.strided]
    owners = Counter(one.untyped_storage()._cdata for one in strided)
    return {
        name: one
        for name, one in named.items()
        if type(one) is torch.nn.Parameter and one.device.type in (device.type, "meta") and fills_memory(one)
        if owners[one.untyped_storage()._cdata] == 1
    }


def fills_memory(one: torch.Tensor) -> bool:
    """Whether a tensor is all that lies in its memory."""
    if one.layout is not torch.strided or one.numel() == 0 or one.is_conj() or one.is_neg():
        return False
    steps = sorted((step, size) for step, size in zip(one.stride(), one.shape, strict=True) if size > 1)
    dense = 1
    for step, size in steps:
        if step != dense:
            return False
        dense *= size
    return one.storage_offset() == 0 and one.untyped_storage().nbytes() == one.nbytes


class Parameters:
    """Of a model, those that may travel in a planned step. All plans of a model share where they are."""

    def __init__(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self.named = dict(named)
        for one in self.named.values():
            if one not in _COPIES:
                _COPIES[one] = _Copies(one)

    def names_in(self, model: torch.nn.Module) -> dict[int, str]:
        """By identity, the names of the parameters of a model, or a copy of it, that may travel."""
        return {id(one): name for name, one in model.named_parameters() if name in self.named}

    def keep(self, names: Iterable[str]) -> None:
        """The others stay where they are: the step does not read them, or hands them on."""
        self.named = {name: self.named[name] for name in names}

    def follow(self, border: Mapping[str, str]) -> None:
        """Bring each to where it is between two steps of a plan."""
        for name, one in self.named.items():
            copies = _COPIES[one]
            if not copies.knows(one):
                raise InvalidInputError(
                    f"{name} has another shape, type or layout than when the step was planned, or shares its memory; "
                    "plan the step as it is"
                )
            copies.follow(one, border.get(parameter_called(name)) != "host")

    def rest(self) -> None:
        """A step is over, or has failed: each has its values where others can read them."""
        for one in self.named.values():
            _COPIES[one].rest(one)

    def home(self) -> None:
        """Bring all to the device."""
        self.follow({})

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

    def updated(self, parameter: torch.Tensor) -> None:
        """One was changed: what is on the host is of before."""
        if parameter in _COPIES:
            _COPIES[parameter].updated()


def bring_back(parameters: Iterable[torch.Tensor]) -> None:
    """Bring those that travel to the device."""
    for one in parameters:
        if one in _COPIES:
            _COPIES[one].follow(one, True)


class _Copies:
    """Where the values of one parameter are.

    Between steps its `data` is on the device or on the host, and holds the values, whoever has written there. In a step
    it is on the device, or stands for a tensor without memory there, so that whoever looks at it finds what was
    planned.
    """

    def __init__(self, parameter: torch.Tensor) -> None:
        self.device = parameter.device
        self._hollow = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        self._hollow.untyped_storage().resize_(0)
        self._host: torch.Tensor | None = None  # a good copy, as copies know it
        self._leaving: torch.Tensor | None = None
        self._coming: torch.Tensor | None = None

    def knows(self, parameter: torch.Tensor) -> bool:
        """Whether it is as it was, wherever it is."""
        now, then = ((one.shape, one.stride(), one.dtype) for one in (parameter, self._hollow))
        return now == then and (self.is_away(parameter) or fills_memory(parameter))

    def is_away(self, parameter: torch.Tensor) -> bool:
        """Whether it has no memory on the device."""
        return _lie_together(parameter, self._hollow) or self._shows_host(parameter)

    def _shows_host(self, parameter: torch.Tensor) -> bool:
        return self._host is not None and _lie_together(parameter, self._host)

    def follow(self, parameter: torch.Tensor, here: bool) -> None:
        """Between two steps: bring it to the device, or let it be on the host alone."""
        if self.is_away(parameter):
            if here:
                self.prefetch()
                self.arrive(parameter)
                self._host = None
            else:
                parameter.data = self._hollow
            return
        self._host = None  # it may have changed since it was copied
        if parameter.device != self.device:  # somebody else has put it there
            parameter.data = parameter.data.to(self.device)
        if not here:
            self.offload(parameter)
            self.free(parameter)

    def rest(self, parameter: torch.Tensor) -> None:
        """After a step, complete or not."""
        self._coming = None
        self._left()
        if self._host is not None and _lie_together(parameter, self._hollow):
            like = self._hollow
            parameter.data = self._host.view(like.dtype).as_strided(like.shape, like.stride())

    def offload(self, parameter: torch.Tensor) -> None:
        value = parameter.data
        self._host = traffic_on(self.device).offload(value)
        self._leaving = value

    def free(self, parameter: torch.Tensor) -> None:
        self._left()
        parameter.data = self._hollow

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
