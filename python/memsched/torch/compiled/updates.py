"""Updates by the optimiser as operations of a captured step: each runs once its gradient is there.

What an operation of the graph calls is the optimiser's own `step`, for one parameter. So lr schedulers, `state_dict`
and parameter groups work as ever. The states of a parameter travel together, where a plan says so: on the host they
are tensors of the optimiser, too, so that it can be saved at any time between two steps.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from memsched.errors import MemschedError
from memsched.torch.compiled.joint import UPDATE, Update, address
from memsched.torch.compiled.private import is_autocast_on
from memsched.torch.compiled.states import Travelling, states_in
from memsched.torch.compiled.update_costs import SMALL, UpdateCosts
from memsched.torch.errors import CaptureError
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import distinct_bytes, trained_by

_SERIAL = itertools.count()
_KNOWN: weakref.WeakValueDictionary[int, Updates]  # by serial number
_TRAVELS: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[int, Travelling]]
# Of each optimiser, by place: what has a good copy on the host. All plans of an optimiser share it.


class Updates:
    """An optimiser whose updates are operations of a step.

    With what is `looked_at` the optimiser is a copy of that one, without data, and updates nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, looked_at: Updates | None = None) -> None:
        self.optimizer = optimizer
        self._dry = looked_at is not None
        groups = enumerate(optimizer.param_groups)
        self._trained = [(k, one) for k, group in groups for one in group["params"]]  # with the numbers of their groups
        self._places = {id(one): place for place, (_, one) in enumerate(self._trained)}
        self.names: dict[str, int] = {}  # of the model, and which tensors they were
        self.form = form_of(optimizer)
        self.count = 0  # of the updates in the step
        self.planned: set[int] = set()  # places whose states are tensors of the plan
        self._travels = _TRAVELS.setdefault(optimizer, {})
        self._costs = UpdateCosts(optimizer)
        self._original = looked_at or self
        if looked_at is not None:  # a loss that is no part of the model has its parameters in their place
            self._places |= looked_at._places
        # PyTorch's own wrappers take longer than the update of a small parameter. The first of a step goes through
        # them, so that a scheduler sees that there was one.
        self._step, self._told = inspect.unwrap(type(optimizer).step), False
        self._entered = 0  # forwards in the present step
        self._serial = next(_SERIAL)
        _KNOWN[self._serial] = self

    def write_into(self, joint: fx.GraphModule, results: int, inputs: Sequence[Any]) -> None:
        """Add an update after the last use of each parameter that gets a gradient, which the graph no longer returns.

        The joint graph takes `inputs` after its tokens; of its outputs, the first `results` are the forward's.
        """
        graph = joint.graph
        (output,) = graph.find_nodes(op="output")
        placeholders = list(graph.find_nodes(op="placeholder"))
        taken = [node for node in placeholders if "tangents" not in str(node.target)]
        primals, returned = taken[len(taken) - len(inputs) :], list(output.args[0])
        pairs = list(zip(primals, inputs, strict=False))
        if len(primals) != len(inputs) or any(_shape(one) != _shape(node.meta.get("val")) for node, one in pairs):
            raise CaptureError("AOTAutograd has merged its inputs, and no update would know its parameter")
        place = {node: k for k, node in enumerate(graph.nodes)}
        readers, written = _readers(graph), set[int]()
        given = {address(one) for node in placeholders for one in _examples(node)}
        ends = Counter(address(one) for node in returned[results:] if node is not None for one in _examples(node))
        for at, (node, parameter) in enumerate(pairs, results):
            gradient = returned[at] if at < len(returned) else None
            if id(parameter) not in self._places or not isinstance(gradient, fx.Node):
                continue
            (example,) = _examples(gradient)
            storage, number = address(example), self._places[id(parameter)]
            if number in written:
                raise CaptureError(
                    "the loss reads a parameter of the model, which would be updated twice; read it within the model, "
                    "and let that return its loss"
                )
            written.add(number)
            using = [reader for one in _examples(node) for reader in readers[address(one)]]
            last = max([placeholders[-1], gradient, *using], key=place.__getitem__)
            # As autograd does: a copy, if others read it, who would see what the optimiser writes there, as with
            # foreach=True and nesterov=True; or if it lies otherwise than the parameter.
            others = storage in given or ends[storage] > 1 or bool(readers[storage])
            copied = others or example.stride() != parameter.stride()
            seen = self._original.cost(number)
            workspace = seen.workspace + (parameter.nbytes if copied else 0)
            with graph.inserting_after(last):
                args = self._serial, number, node, gradient, copied
                made = graph.create_node("call_function", update, args, name=f"update_{number}")
            made.meta |= {name: one for name, one in gradient.meta.items() if name.endswith("nn_module_stack")}
            made.meta[UPDATE] = replace(seen, place=number, workspace=workspace)
            place[made] = place[last]
            returned[at] = None
        output.args = (tuple(returned),)

    def _parameter(self, place: int) -> tuple[torch.Tensor, dict[str, Any]]:
        number, parameter = self._trained[place]
        return parameter, self.optimizer.param_groups[number]

    # What generated code calls, and what is called around it.

    @property
    def parameters(self) -> set[int]:
        """What it updates, by identity."""
        return set(self._places)

    @property
    def settled(self) -> bool:
        """Whether all states in the plan are there: the first step makes them."""
        return all(states_in(self._state(place)) for place in self.planned)

    def cost(self, place: int) -> Update:
        """Of an update, whose place is left open."""
        return self._costs.of(*self._parameter(place))

    @property
    def state_bytes(self) -> int:
        """Of the states of all parameters, once they are there."""
        found = 0
        for place, one in enumerate(trained_by(self.optimizer)):
            if (state := self._state(place)) or not one.requires_grad:
                there = (k for k in tensors_of(state) if k.dim() > 0 or k.device.type == one.device.type)
                found += distinct_bytes(there)
            else:
                update = self.cost(place)
                found += update.state + update.numbers
        return found

    def copy(self) -> Updates:
        """Of a copy of the optimiser for the same parameters, with states of its own, all on the device.

        Parameters that have none get those of a first step.
        """
        memo: dict[int, Any] = {id(one): one for one in trained_by(self.optimizer)}
        made = Updates(copy.deepcopy(self.optimizer, memo))
        made.planned, made.names, made._costs = self.planned, self.names, self._costs
        groups = made.optimizer.param_groups
        for place, one in enumerate(trained_by(self.optimizer)):
            state = made.optimizer.state
            if place in self._travels:
                large = ((name, k) for name, k in state[one].items() if isinstance(k, torch.Tensor) and k.dim() > 0)
                state[one] |= {name: k.to(one.device) for name, k in large}
            elif place in self.planned and not state.get(one):  # as after a step
                like = torch.nn.Parameter(one.detach().clone())
                like.grad = torch.full_like(like, SMALL)
                made.optimizer.param_groups = [{**self._parameter(place)[1], "params": [like]}]
                made.optimizer.step()
                state[one] = state.pop(like, {})
        made.optimizer.param_groups = groups
        return made

    def after(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Copies of the parameters and of their states as they are, by names of both."""
        found: dict[str, torch.Tensor] = {}
        self.home()
        for name, one in model.named_parameters():
            if id(one) in self._places:
                found[f"parameter {name}"] = one.detach().clone()
                state = self.optimizer.state.get(one, {})
                found |= {f"{k} of {name}": v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}
        return found

    def begin(self, border: Mapping[int, str]) -> None:
        """Before a step: bring states to where they are between two steps of a plan."""
        self._told, self._entered = False, 0
        for place, travelling in [*self._travels.items()]:
            if border.get(place, "device") == "device" or not travelling.settle(self._state(place)):
                self.home(place)
            elif border[place] == "both":
                travelling.prefetch()
            else:
                travelling.free(self._state(place))
        for place, where in border.items():
            if where == "host" and place not in self._travels:
                self.offload(place)
                self.free(place)
        if _bring_back not in self.optimizer._optimizer_step_pre_hooks.values():
            self.optimizer.register_step_pre_hook(_bring_back)

    def entered(self) -> None:
        """A forward begins: in a step of several, a parameter might be updated before its gradient is complete."""
        self._entered += 1
        if self._entered > 1 and not self._dry:  # a look goes on, and counts them
            raise MemschedError(
                "the step runs several graphs, and with update=True it was planned as one; plan with update=False"
            )

    def ended(self, model: torch.nn.Module) -> None:
        """After a step: whatever has a gradient of its own now was not updated, or not with all of its gradient."""
        trained = set(map(id, trained_by(self.optimizer)))
        for name, one in model.named_parameters():
            if one.grad is not None and id(one) in trained:
                raise MemschedError(
                    f"{name} got a gradient that no update of the plan has seen: the step is not the one that was "
                    "planned, as where a parameter is trained or added to the optimizer later; plan it as it is now"
                )

    def home(self, place: int | None = None) -> None:
        """Bring states back to the device: of one parameter, or all."""
        for one in [*self._travels] if place is None else [place]:
            self._travels.pop(one).home(self._state(one))

    def on_device(self) -> Iterator[torch.Tensor]:
        """The states in the plan that are on the device."""
        for place in self.planned:
            if place in self._travels:
                yield from self._travels[place].on_device()
            else:
                yield from states_in(self._state(place))

    def _state(self, place: int) -> dict[str, Any]:
        return self.optimizer.state.get(self._parameter(place)[0], {})

    def update(self, place: int, given: torch.Tensor, gradient: torch.Tensor) -> None:
        """Let the optimiser step one parameter, whose memory the step was given."""
        if self._dry:
            return
        if given.data_ptr() != self._parameter(place)[0].data_ptr():
            raise MemschedError(
                f"parameter {place} of the optimizer is no longer the one that the step trains; plan the step as it is"
            )
        if (travelling := self._travels.get(place)) is not None:
            travelling.arrive(self._state(place))
            del self._travels[place]
        parameter, group = self._parameter(place)
        groups = self.optimizer.param_groups
        cast = torch.autocast(parameter.device.type, enabled=False) if is_autocast_on() else nullcontext()
        try:
            _AT_WORK.add(id(self.optimizer))
            self.optimizer.param_groups = [{**group, "params": [parameter]}]
            parameter.grad = gradient
            with cast, torch.no_grad():
                if self._told and not group.get("fused"):
                    self._step(self.optimizer)
                else:
                    self._told = True
                    self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
            parameter.grad = None
            _AT_WORK.discard(id(self.optimizer))

    def offload(self, place: int) -> None:
        """Begin to copy states to the host."""
        state = self._state(place)
        if not self._dry and states_in(state):
            self._travels[place] = travelling = Travelling(self._parameter(place)[0].device)
            travelling.offload(state)

    def free(self, place: int) -> None:
        """From now on states are on the host alone."""
        if place in self._travels:
            self._travels[place].free(self._state(place))

    def prefetch(self, place: int) -> None:
        """Begin to copy states back."""
        if place in self._travels:
            self._travels[place].prefetch()


_KNOWN = weakref.WeakValueDictionary()
_AT_WORK = set[int]()  # optimisers that update by a plan, by identity


def _bring_back(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step of the optimiser that is none of a plan's: its states come to the device."""
    if id(optimizer) not in _AT_WORK and _TRAVELS.get(optimizer):
        Updates(optimizer).home()


_TRAVELS = weakref.WeakKeyDictionary()


# What generated code calls, of the optimiser with a serial number, for the parameter at a place.


def update(serial: int, place: int, parameter: torch.Tensor, gradient: torch.Tensor, copied: bool) -> None:
    own = torch.empty_like(parameter).copy_(gradient) if copied else gradient
    _KNOWN[serial].update(place, parameter, own)


def offload(serial: int, place: int) -> None:
    _KNOWN[serial].offload(place)


def free(serial: int, place: int) -> None:
    _KNOWN[serial].free(place)


def prefetch(serial: int, place: int) -> None:
    _KNOWN[serial].prefetch(place)


TRAVEL = {"offload": offload, "free": free, "prefetch": prefetch}
"""By the verb of a step, what moves states."""


def form_of(optimizer: torch.optim.Optimizer) -> list[tuple[list[int], set[str]]]:
    """Of each group, its parameters, by identity, and which options are on."""
    values = ("lr", "initial_lr")
    return [
        (
            list(map(id, group["params"])),
            {name for name, one in group.items() if isinstance(one, int | float) and one and name not in values},
        )
        for group in optimizer.param_groups
    ]


def _readers(graph: fx.Graph) -> defaultdict[int, list[fx.Node]]:
    """By storage, what reads it; views of it read nothing."""
    found: defaultdict[int, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "output" or node.target is operator.getitem:
            continue
        own = set(map(address, _examples(node)))
        for storage in {address(one) for by in node.all_input_nodes for one in _examples(by)} - own:
            found[storage].append(node)
    return found


def _shape(one: Any) -> Any:
    return (tuple(one.shape), one.dtype) if isinstance(one, torch.Tensor) else None


def _examples(node: fx.Node) -> list[torch.Tensor]:
    return tensors_of(node.meta.get("val"))
