"""The calls of planned graphs, and what their caller holds: storages told apart, gradients, and memory of others."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memsched.support.units import parse_bandwidth, parse_bytes
from memsched.torch.arena import cuda
from memsched.torch.compiled.as_graph import Visit, held_by_caller
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.private import unset_fake_temporarily
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import LossBytes
from memsched.torch.compiled.times import measured_costs
from memsched.torch.compiled.unit import Unit
from memsched.torch.optimizer_state import optimizer_bytes, state_bytes

if TYPE_CHECKING:
    from memsched.torch.compiled.group import Group


class Key(NamedTuple):
    """What tells the calls apart that are planned apart."""

    unit: int
    numbers: tuple[int, ...]  # the sizes that it is called with
    whole: tuple[int, ...]  # bytes of the memory of inputs that it copies with all that lies there
    gradients: int  # bytes of gradients beside which it is planned
    given: int  # bytes of the memory of its inputs that no call before was given, or returned
    owner: int  # whose parameters it has: the same number for calls of a step that have the same
    state: int  # which kind of state the optimiser has, by number
    leaves: tuple[int, ...]  # places of its inputs whose gradients autograd keeps


Path = tuple[Key, ...]  # the calls of a step up to one of them
_MOST_AFTER = 32
_MARKER = 16  # bytes of what tells AOTAutograd's graphs which plan to follow


@dataclass(slots=True, eq=False)
class Place:
    """A place in a step: the calls up to it."""

    path: Path
    version: int = 0  # that the last of them follows
    known: bool = False  # it need not be looked at again
    after: dict[Key, Place] = field(default_factory=dict)
    """By what a call asks for, where the step is after it. Nothing of that is looked up again until plans change."""

    def lead(self, asked: Key, place: Place) -> None:
        """Note where the step is after a call."""
        if len(self.after) == _MOST_AFTER:
            self.after.clear()
        self.after[asked] = place


@dataclass(slots=True)
class Call:
    """A forward of the present step, and what it was seen to be given and to return."""

    unit: weakref.ref[Unit]
    key: Key
    serial: int
    version: int = 0
    due: bool = True  # its backward may still run
    again: tuple[Any, ...] = ()  # what tells it, if it runs again in a backward, as under `torch.utils.checkpoint`
    recorded: bool = False
    given: dict[int, tuple[int, bool]] = field(default_factory=dict)  # by storage: bytes, and whether it lasts
    travelling: int = 0  # bytes that parameters and gradients which may travel have on the device
    gradients: dict[int, int] = field(default_factory=dict)  # bytes by storage, of those that parameters had before
    results: dict[int, int] = field(default_factory=dict)  # bytes by storage

    def record(self, args: Sequence[Any], unit: Unit, identities: Identities) -> None:
        """Note what it is given."""
        self.recorded = True
        for k, one in enumerate(args):
            if isinstance(one, torch.Tensor) and one.device == unit.joint.device:
                storage, gradient = one.untyped_storage(), gradient_of(one)
                if k in unit.travelling:
                    self.travelling += storage.nbytes()
                else:
                    self.given[identities.of(storage)] = storage.nbytes(), k in unit.static
                if gradient is not None and k in unit.waiting:
                    self.travelling += gradient.untyped_storage().nbytes()
                elif gradient is not None:
                    storage = gradient.untyped_storage()
                    self.gradients[identities.of(storage)] = storage.nbytes()


class Due:
    """While it lives, and is not over, the backward of a call may still run."""

    __slots__ = ("_group", "call")

    def __init__(self, group: Group, call: Call) -> None:
        self._group, self.call = group, call
        group.due.add(call.serial)

    def over(self) -> None:
        """It runs no more."""
        self._group.due.discard(self.call.serial)  # at once, so that Ctrl-C comes before or after it
        self.call.due = False

    __del__ = over


def order_of(calls: Sequence[Call], returns: Sequence[int]) -> list[int]:
    """The calls of a step in the order of their backwards, by serial number; those that none was seen of come last."""
    places = {call.serial: k for k, call in enumerate(calls)}
    seen = [places[serial] for serial in returns if serial in places]
    return list(dict.fromkeys([*seen, *reversed(range(len(calls)))]))


def kept_by(calls: Sequence[Call]) -> int:
    """Bytes that the plans of these forwards keep for their backwards."""
    return sum(unit.versions[call.version].kept for call in calls if (unit := call.unit()) is not None)


def visits_of(units: Sequence[Unit], calls: Sequence[Call], loss: LossBytes) -> list[Visit]:
    """Of these calls; the caller's loss runs after the last of them."""
    found = [
        Visit(
            unit.joint,
            unit.sizes(call.key.numbers, call.key.whole),
            static=sorted(unit.static),
            parameters=frozenset(key for key, (_, lasts) in call.given.items() if lasts),
            leaves=call.key.leaves,
            beside=unit.beside.get(call.key.numbers, 0),
        )
        for unit, call in zip(units, calls, strict=True)
    ]
    results = held_by_caller(found[-1].joint, found[-1].sizes).results
    return [*found[:-1], replace(found[-1], loss=loss.with_results(results))]


def held_in_step(calls: Sequence[Call], visits: Sequence[Visit], options: Options) -> Resident:
    """What is resident in a step of these calls, of which the last ones are these visits."""
    given: dict[int, tuple[int, bool]] = {}
    results: dict[int, int] = {}
    gradients: dict[int, int] = {}
    for call in calls:
        given |= call.given
        results |= call.results
        gradients |= call.gradients
    own = [held_by_caller(visit.joint, visit.sizes) for visit in visits]
    device = visits[0].joint.device
    others = 0
    if calls[-1].results:
        results[-1] = sum(visit.loss_gradients for visit in visits)
    else:  # they are not there yet; those of the calls before are inputs, or none of this visit's
        others = sum(size for key, size in results.items() if key not in given)
        results = {-1: own[-1].results}
    others += _MARKER * sum(unit.marked for call in calls if (unit := call.unit()) is not None)
    if device.type == "cuda":
        _run_once(visits, options)
        known = sum(size for size, _ in given.values()) + sum(gradients.values()) + calls[-1].travelling
        others = others_on(device, known + state_bytes(options.optimizer, device))
    return Resident(
        parameters=sum(size for size, lasts in given.values() if lasts) + sum(one.parameters for one in own),
        inputs=sum(size for key, (size, lasts) in given.items() if not lasts and key not in results),
        results=sum(size for key, size in results.items() if key not in given or not given[key][1]),
        updates=sum(one.updates for one in own),
        random=sum(one.random for one in own),
        gradients=sum(gradients.values()),
        others=others,
        optimizer=max(0, optimizer_bytes(options.optimizer, device) - sum(one.travelling for one in visits)),
        reserve=parse_bytes(options.reserve, "reserve"),
    )


def gradient_of(value: Any) -> torch.Tensor | None:
    """The gradient that a parameter or an input has."""
    return value.grad if isinstance(value, torch.Tensor) and value.is_leaf else None


def gradient_bytes(values: Iterable[torch.Tensor]) -> int:
    """Bytes of the memory of the gradients that parameters and inputs have."""
    found = [one for value in values if value.is_leaf and (one := value.grad) is not None]
    return sum([one.untyped_storage().nbytes() for one in found]) if found else 0


def _run_once(visits: Sequence[Visit], options: Options) -> None:
    """Let a CUDA device have in memory what it will: code is loaded when it first runs, and libraries allocate then.

    cuBLAS has a workspace for each thread that multiplies, so that autograd's has one, too. With its first stream
    PyTorch makes all that it has.
    """
    if options.bandwidth is None or parse_bandwidth(options.bandwidth, "bandwidth") > 0:
        torch.cuda.Stream(visits[0].joint.device)
    with unset_fake_temporarily(), torch.enable_grad():
        a = torch.ones(16, 16, device=visits[0].joint.device, requires_grad=True)
        torch.autograd.grad(torch.addmm(a[0], a, a).sum(), a)
        for visit in visits:
            measured_costs(visit.joint, visit.sizes)


def others_on(device: torch.device, known: int) -> int:
    """Bytes that are occupied on a CUDA device beside those that are known: the context, and tensors of others."""
    return max(0, cuda.allocated(device) - known) + context_bytes(device)


def context_bytes(device: torch.device) -> int:
    """What is occupied beside PyTorch's own memory: the driver's context, and other processes."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - cuda.reserved(device))


class Identities:
    """A number for each storage that is alive; addresses are used again."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._next = itertools.count()

    def of(self, storage: torch.UntypedStorage) -> int:
        """The number of a storage."""
        key = storage._cdata
        if key not in self._numbers:
            self._numbers[key] = next(self._next)
            weakref.finalize(storage, self._numbers.pop, key, None).atexit = False
        return self._numbers[key]


class Memory:
    """The memory in which some tensors lie, or lay."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}  # by storage
        self._known: list[StorageWeakRef] = []  # while one is here, no other storage gets its address

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """These tensors, too."""
        for one in tensors:
            storage = one.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._bytes:
                self._known.append(StorageWeakRef(storage))
            self._bytes[key] = max(size, self._bytes.get(key, 0))

    def bytes_beside(self, tensors: Iterable[torch.Tensor]) -> int:
        """The bytes of the memory of other tensors that it has not."""
        found = {storage._cdata: storage.nbytes() for one in tensors for storage in (one.untyped_storage(),)}
        if not self._bytes:
            return sum(found.values())
        return sum(max(0, size - self._bytes.get(key, 0)) for key, size in found.items())
