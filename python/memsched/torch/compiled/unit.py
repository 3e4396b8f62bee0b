"""One captured graph of a step: the forward and the backward that follow its plans."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from memsched._core import Graph
from memsched.errors import InternalError, MemschedError
from memsched.result import Result
from memsched.torch.compiled.as_graph import LEAVE, RETURN, Step, Visit, prefix
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.copies import expect
from memsched.torch.compiled.joint import Joint, read_joint
from memsched.torch.compiled.laps import Laps
from memsched.torch.compiled.parameters import TRAVELS, WAITS
from memsched.torch.compiled.private import Boxed, backward_code, is_batched, python_code, saving_is_hooked
from memsched.torch.compiled.rewrite import Rewritten, rewrite
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.compiled.split import lasting_in, steps_of
from memsched.torch.meter import Meter

if TYPE_CHECKING:
    from memsched.torch.compiled.group import Group
    from memsched.torch.compiled.halves import Halves, Way
    from memsched.torch.compiled.held import Due, Key

SERIAL = itertools.count()
_ONCE = (
    "a gradient of a compiled part is made with create_graph=True: what is derived from it once more may lack terms, "
    "as PyTorch derives no compiled code twice; run that part without torch.compile"
)
_MOST_SHAPES = 8  # that have a plan of their own, before others follow one of these


@dataclass(frozen=True, slots=True)
class Version:
    """Code that follows a plan."""

    plan: CompiledPlan | None
    kept: int  # bytes that it has on the device between its forward and its backward
    room: float  # bytes of gradients that may arrive otherwise than traced
    serial: int  # later versions have larger ones
    forward: Boxed
    backward: Boxed
    forward_steps: Sequence[Step] = ()
    backward_steps: Sequence[Step] = ()
    reuse: bool = False  # compiled code: as of its `Way`
    last: bool = False
    timed: tuple[Boxed, Boxed] | None = None  # forward and backward that tell how long each operation takes


class Unit:
    """A joint graph, as AOTAutograd gives it to its partitioner, and code for each plan that it is a part of.

    The group chooses the plan of each call.
    """

    broken: str | None = None  # where and why PyTorch breaks the function after this graph

    def __init__(self, module: fx.GraphModule, results: int, static: Sequence[int], group: Group) -> None:
        self.joint: Joint = read_joint(module, results)
        tokens = self.joint.tokens
        if group.options.mode == "eager":  # code of Inductor lays out itself what it reads
            self.joint.looked_at = {op.node for op in self.joint.operations}
        self.static = frozenset(k + tokens for k in static if k + tokens < len(self.joint.primals))
        self.serial = next(SERIAL)
        self.versions: list[Version] = []
        self.followed: dict[int, int] = {}  # by version, when that was: later ones have larger numbers
        self._group = group
        self._code: dict[tuple[str, int | None], tuple[Boxed, Boxed]] = {}  # by plan, and by what times it
        self._general: dict[int, int] = {}
        self._plain: int | None = None
        self._halves: dict[Any, Halves] = {}
        self.laps = Laps(self.joint.device) if group.options.profile_steps else None
        self.marked = False  # the marker of a call counts: AOTAutograd saves it
        loose = self.joint.loose if group.options.mode == "eager" else ()  # compiled code is for all its numbers
        self._loose = [node.meta["val"].node.expr in loose for node in self.joint.sizes]
        self._numbers = [
            k for k, node in enumerate(self.joint.primals) if isinstance(node.meta.get("val"), torch.SymInt)
        ]
        self.fixed = sorted(self.static)
        self.travelling = {k for k, node in enumerate(self.joint.primals) if TRAVELS in node.meta}
        self.waiting = {k for k, node in enumerate(self.joint.primals) if WAITS in node.meta}
        self.inputs = [
            k
            for k, node in enumerate(self.joint.primals)
            if k >= tokens
            and k not in self.static
            and isinstance(one := node.meta.get("val"), torch.Tensor)
            and one.device == self.joint.device
        ]
        self.itself = weakref.ref(self)
        self.returned = [
            (k, node) for k, node in enumerate(self.joint.results) if k >= tokens and self._is_returned(node)
        ]
        """Tensors that the caller gets, by their places among the results, of which tokens come first."""
        self.beside: dict[tuple[int, ...], int] = {}
        """By its numbers, the most bytes of gradients that arrived otherwise than traced, beside PyTorch's copies."""
        self._arriving: dict[int, int] = {}  # bytes by storage, of the gradients of the backward that begins
        self._first: tuple[int, ...] = ()
        self._type = torch.get_default_dtype()
        whole = self.joint.whole
        self._whole = {k: n for k in self.inputs for n in self.joint.storages_of(self.joint.primals[k]) if n in whole}

    def _is_returned(self, node: Any) -> bool:
        made = node.meta.get("val") if isinstance(node, fx.Node) and node not in self.joint.copied else None
        return isinstance(made, torch.Tensor)

    def numbers(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The whole numbers that a forward is given; of those that are part of no size, what the first was given."""
        if not self._numbers:
            return ()
        found = tuple(args[k] for k in self._numbers)
        if not any(self._loose):
            return found
        self._first = self._first or found
        return tuple(a if any_value else b for any_value, a, b in zip(self._loose, self._first, found, strict=True))

    def whole(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The bytes of the memory in which inputs lie that operations copy with all that lies there."""
        return tuple(args[k].untyped_storage().nbytes() for k in self._whole) if self._whole else ()

    def sizes(self, numbers: Sequence[int], whole: Sequence[int]) -> Sizes:
        """The bytes of its storages in a call with such numbers, and such memory of inputs."""
        return Sizes(self.joint, numbers, dict(zip(self._whole.values(), whole, strict=True)))

    def example(self) -> Rewritten:
        """Forward and backward that keep everything, for AOTAutograd to read how they are called.

        It hands on whatever tensors a forward saves. What it would note of each, at its place, is left out: the places
        differ from plan to plan.
        """
        made = self._traced()
        (output,) = made.forward.graph.find_nodes(op="output")
        results, returned = len(self.joint.results), output.args[0]
        output.args = ((*returned[:results], *returned[results + made.saved :]),)
        return made

    def as_traced(self) -> int:
        """The version that keeps everything."""
        if self._plain is None:
            made = self._traced()
            self.versions.append(
                Version(None, 0, math.inf, next(SERIAL), python_code(made.forward), backward_code(made.backward))
            )
            self._plain = len(self.versions) - 1
        return self._plain

    def _traced(self) -> Rewritten:
        forward, backward = (
            [{"run": op.node.name} for op in self.joint.operations if op.backward is late] for late in (False, True)
        )
        return rewrite(self.joint, [*forward, {"run": LEAVE}], backward)

    def begin(self, args: list[Any]) -> tuple[Due, Sequence[Any]]:
        """Run the forward of the plan that the group chooses, which is told when its backward can run no more."""
        with self._group.entering:
            due = self._group.enter(self, args)
        changed = {k: args[place] for k, place in self.joint.new_values.items()} if saving_is_hooked() else {}
        with _counting(), self._group.watch.within(), torch._C.DisableTorchFunction():  # what modes do was traced
            found = self._code_of(due.call.version)[0](args)
            for k, one in changed.items():
                one.copy_(found[k])  # AOTAutograd does so later: checkpoint ends its second run before
        if self._group.watch.counts:
            self._check_types(found)
        self._group.left(self, found)
        return due, found

    def _code_of(self, number: int) -> tuple[Boxed, Boxed]:
        """Forward and backward of a version, which are timed where operations are."""
        version = self.versions[number]
        if self.laps is None or version.timed is None or not self.laps.on:
            return version.forward, version.backward
        self.laps.lap("")
        return version.timed

    def _check_types(self, found: Sequence[Any]) -> None:
        for k, node in self.returned:
            if (made := found[k].dtype) is not (traced := node.meta["val"].dtype):
                raise MemschedError(
                    f"result {k} of the compiled model is {made} and was traced as {traced}: something around "
                    "the call changes its operations; leave it out, or compile the model with another backend"
                )

    def forward(self, args: list[Any]) -> Sequence[Any]:
        """The same, with a marker among what is saved, by which AOTAutograd's backward is found."""
        due, found = self.begin(args)
        results = len(self.joint.results)
        return [*found[:results], self._group.marker(due), *found[results:]]

    @torch._dynamo.disable  # in a step that is compiled, too
    def arriving(self, gradients: Sequence[Any]) -> None:
        """Note where gradients lie that arrive; not those that repeat one number."""
        if torch.is_grad_enabled():  # create_graph
            warnings.warn(_ONCE, UserWarning, stacklevel=2)
        strided = (one for one in gradients if isinstance(one, torch.Tensor) and one.layout is torch.strided)
        own = (one for one in strided if one.device == self.joint.device and not is_batched(one))
        large = (one.untyped_storage() for one in own if one.untyped_storage().nbytes() > one.element_size())
        self._arriving = {storage._cdata: storage.nbytes() for storage in large}

    def _copied(self, arriving: Sequence[Any]) -> int:
        """Bytes of the gradients that arrived, and of which the backward is given copies."""
        found, self._arriving = self._arriving, {}
        given = {one.untyped_storage()._cdata for one in arriving if isinstance(one, torch.Tensor)} if found else ()
        return sum(nbytes for storage, nbytes in found.items() if storage not in given)

    def backward(self, args: list[Any]) -> Sequence[Any]:
        """Run the backward of the plan that the forward followed."""
        sizes = next(k for k, one in enumerate(args) if isinstance(one, torch.Tensor))
        marker = args.pop(sizes)
        if marker.dtype is not torch.int64:
            raise MemschedError(
                f"hooks around the call, such as saved_tensors_hooks, made {marker.dtype} of a saved torch.int64; let "
                "them leave tensors of whole numbers as they are, or compile the model with another backend"
            )
        number, serial = marker.tolist()
        return self.end(number, serial, args, self._copied(args[len(args) - len(self.joint.tangents) :]))

    def end(self, number: int, serial: int, args: list[Any], beside: int) -> Sequence[Any]:
        """Run the backward of a version, of whose gradients so many bytes were copied; it empties its arguments."""
        arriving = args[len(args) - len(self.joint.tangents) :]
        batched = any(map(is_batched, arriving))
        self._group.returned(serial, beside)
        for meter in _METERS[-1:]:
            meter.count((one for one in arriving if isinstance(one, torch.Tensor)), beside)
        watch = self._group.watch
        watch.arriving(arriving, beside)
        del arriving
        now = torch.get_default_dtype()
        try:
            with _counting(), watch.within(), torch._C.DisableTorchFunction():
                if now is self._type:
                    return self._code_of(number)[1](args)
                torch.set_default_dtype(self._type)  # what the forward was traced with holds for what runs again, too
                try:
                    return self._code_of(number)[1](args)
                finally:
                    torch.set_default_dtype(now)
        except RuntimeError as error:  # from what writes in place, or travels
            if not batched:
                raise
            raise MemschedError(
                "this backward follows a plan that takes one gradient at a time: do without is_grads_batched, "
                f"vectorize and vmap around it, or compile the model with another backend ({error})"
            ) from error

    def larger(self, key: Key, known: Mapping[Key, Sequence[int]]) -> int | None:
        """If it has met many sizes, a version of a plan for larger ones, if one is known.

        No tensor may be larger: some have the difference of two sizes.
        """
        alike = key._replace(numbers=(), whole=(), given=0, owner=0)
        met = [
            ((*other.numbers, *other.whole, other.given), other, versions[0])
            for other, versions in known.items()
            if versions and other._replace(numbers=(), whole=(), given=0, owner=0) == alike
        ]
        if len(met) < _MOST_SHAPES:
            return None
        least = (*key.numbers, *key.whole, key.given)
        fit = sorted(one for one in met if all(a >= b for a, b in zip(one[0], least, strict=True)))
        # What is given counts by the memory in which it lies, whose size may be a symbol of its own.
        storages = [one.number for one in self.joint.storages if one.writer is not None]
        own, beside = self.sizes(key.numbers, key.whole), self.beside.get(key.numbers, 0)
        for _, other, version in fit:
            larger = self.sizes(other.numbers, other.whole)
            roomy = self.versions[version].room >= beside
            if roomy and all(own.bytes_of(n) <= larger.bytes_of(n) for n in storages):
                return self.for_all_sizes(version)
        return None

    def for_all_sizes(self, version: int) -> int | None:
        """The version that follows the same plan with any sizes; None where sizes are asked of what may be gone."""
        if self.joint.asks_for_sizes:
            return None
        if version not in self._general:
            plan = self.versions[version].plan
            assert plan is not None
            self._general[version] = made = self.add(plan, 0, 1, None)
            self.versions[made] = replace(self.versions[made], room=self.versions[version].room)
        return self._general[version]

    def add(self, plan: CompiledPlan, visit: int, visits: int, sizes: Sizes | None, beside: int = 0) -> int:
        """Write the code of a visit of a plan, for some sizes or for all; its number among the versions.

        So many bytes of gradients that arrive otherwise than traced are planned.
        """
        expect(self.joint.device, plan.result.timeline.bytes_out)
        forward, backward = steps_of(plan.result.schedule.steps, visit, visits, lasting_in(self.joint))
        key = str((sizes and sizes.values, forward, backward))
        if (key, None) not in self._code:
            for serial in (None, self.laps.serial) if self.laps is not None else (None,):
                made = rewrite(self.joint, forward, backward, sizes, serial)
                self._code[key, serial] = python_code(made.forward), backward_code(made.backward)
        own = prefix(visit, visits)
        kept, room = _bytes_left(plan.result, own), beside + _room_at_return(plan.result, own)
        self.versions.append(Version(plan, kept, room, next(SERIAL), *self._code[key, None], forward, backward))
        if self.laps is not None:
            self.versions[-1] = replace(self.versions[-1], timed=self._code[key, self.laps.serial])
        return len(self.versions) - 1

    def halves(self, visit: Visit) -> Halves:
        """The graph as Inductor sees it, for the sizes of a visit."""
        from memsched.torch.compiled.halves import Halves  # Inductor takes seconds to import

        key = visit.sizes.values, tuple(visit.static)
        if key not in self._halves:
            self._halves[key] = Halves(visit)
        return self._halves[key]

    def add_code(self, plan: CompiledPlan, visit: Visit, way: Way, kept: int, own: str = "") -> int:
        """Compile a visit of a plan, whose names begin with `own`, that keeps so many bytes for its backward."""
        room = visit.beside + _room_at_return(plan.result, own)
        code = self.halves(visit).compiled(way)
        self.versions.append(
            Version(plan, kept, room, next(SERIAL), *code, way.forward, way.backward, way.reuse, way.last)
        )
        return len(self.versions) - 1


def distinct(units: Iterable[Unit]) -> list[CompiledPlan]:
    """The plans of some graphs, each once; the one that was followed last comes last."""
    versions = [(unit.followed.get(at, one.serial), one.plan) for unit in units for at, one in enumerate(unit.versions)]
    last: dict[int, tuple[int, CompiledPlan]] = {}
    for serial, plan in versions:
        if plan is not None and serial > last.get(id(plan), (-1, plan))[0]:
            last[id(plan)] = serial, plan
    return [plan for _, plan in sorted(last.values(), key=lambda one: one[0])]


_METERS: list[Meter] = []
_NOTHING = contextlib.nullcontext()


def _counting() -> contextlib.AbstractContextManager[object]:
    return _METERS[-1] if _METERS else _NOTHING


def count(tensors: Iterable[torch.Tensor]) -> None:
    """Count these as well, from now on, where somebody counts."""
    for meter in _METERS[-1:]:
        meter.count(tensors)


@contextlib.contextmanager
def counted(device: torch.device) -> Iterator[Meter]:
    """Count the bytes that planned forwards and backwards hold on a device while they run.

    What the caller holds from before counts nothing: see `CompiledPlan.process_bytes`.
    """
    meter = Meter(device.type)
    _METERS.append(meter)
    try:
        yield meter
    finally:
        _METERS.remove(meter)


def _bytes_left(result: Result, own: str) -> int:
    """Bytes that a visit has on the device when its forward returns, besides what the caller holds.

    The names of the visit begin with `own`.
    """
    _, here = _held_at(result, own + LEAVE)
    return sum(size for name, size in here.items() if name.startswith(own))


def _room_at_return(result: Result, own: str) -> int:
    """Bytes of the budget that are free where the gradients of a visit arrive."""
    op, here = _held_at(result, own + RETURN)
    return result.schedule.budget - result.graph.resident - int(op["choices"][0]["workspace"]) - sum(here.values())


def _held_at(result: Result, name: str) -> tuple[Any, dict[str, int]]:
    """An op of a plan, and the bytes of the tensors that are on the device while it runs."""
    graph = result.problem
    assert isinstance(graph, Graph)
    size = {one["name"]: one["size"] for one in graph.tensors}
    ops = {op["name"]: op for op in graph.ops}
    border = result.schedule.border
    persistent = [one["name"] for one in graph.tensors if one["role"] == "persistent"]
    here = {name: size[name] for name in persistent if border.get(name, "device") != "host"}
    for step in result.schedule.steps:
        op = ops.get(step.get("run", ""))
        arriving = op["writes"] if op is not None else [step["prefetch"]] if "prefetch" in step else []
        here.update((one, size[one]) for one in arriving)
        if op is not None and op["name"] == name:
            return op, here
        here.pop(step.get("free", ""), None)
    raise InternalError(f"a plan of a captured step has no {name}")
