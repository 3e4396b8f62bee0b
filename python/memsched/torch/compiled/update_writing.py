"""Updates by the optimiser are written into a joint graph, each after the last use of its parameter."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from memsched.torch.compiled.clipping import norm_of_all
from memsched.torch.compiled.joint import address
from memsched.torch.compiled.parameters import STAYS, TRAVELS, WAITS
from memsched.torch.compiled.private import grouped_by_type
from memsched.torch.compiled.sizes import WORKSPACE
from memsched.torch.compiled.update_calls import add, common_factor, seen, update
from memsched.torch.compiled.update_mark import UPDATE
from memsched.torch.compiled.updates import Updates
from memsched.torch.errors import CaptureError
from memsched.torch.nests import tensors_of

_NUMBERS = 4  # that are made on the way to the figures of a scaled gradient, or from norms to the factor


@dataclass(frozen=True, slots=True)
class _Gradient:
    """Of a parameter, in a joint graph."""

    place: int  # of the parameter among those of the optimiser
    node: fx.Node
    parameter: fx.Node
    nbytes: int  # of the parameter
    last: list[fx.Node]  # what its update comes after
    laid_out: bool  # as its parameter is; else autograd lays it out so
    copied: bool

    @property
    def waits(self) -> bool:
        """Whether one from before may travel."""
        return WAITS in self.parameter.meta


def write_updates(joint: fx.GraphModule, results: int, inputs: Sequence[Any], updates: Updates) -> None:
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
    _mark(pairs, [node for node in returned if isinstance(node, fx.Node)], updates)
    readers = _readers(graph)
    given = {address(one) for node in placeholders for one in _examples(node)}
    ends = Counter(address(one) for node in returned[results:] if node is not None for one in _examples(node))
    found: dict[int, _Gradient] = {}
    for at, (node, parameter) in enumerate(pairs, results):
        gradient = returned[at] if at < len(returned) else None
        place = updates.place_of(parameter)
        if place is None or not isinstance(gradient, fx.Node):
            continue
        if place in found:
            raise CaptureError(
                "the loss reads a parameter of the model, which would be updated twice; read it within the model, "
                "and let that return its loss"
            )
        using = [reader for known in _examples(node) for reader in readers[address(known)]]
        (storage,) = map(address, _examples(gradient))
        # As autograd does: a copy, if others read it, who would see what the optimiser writes there, as with
        # foreach=True and nesterov=True; or if it lies otherwise than the parameter.
        others = storage in given or ends[storage] > 1 or bool(readers[storage])
        laid_out = gradient.meta["val"].stride() == node.meta["val"].stride()
        last = [placeholders[-1], gradient, *using]
        found[place] = _Gradient(place, gradient, node, parameter.nbytes, last, laid_out, others or not laid_out)
        if updates.how.adds and TRAVELS in node.meta and parameter.numel() > 1:
            node.meta[WAITS] = True
        returned[at] = None
    factor = None
    if updates.how.waits and found:
        factor = _common_factor(graph, updates, [found[place] for place in updates.in_model(found)])
        if updates.how.max_norm is not None:
            updates.note_norm(factor.meta["val"])
    order = {node: k for k, node in enumerate(graph.nodes)}
    added = factor is not None and updates.how.adds
    for place, one in found.items():
        waited = [factor] if factor is not None else []
        last = max([*one.last, *waited], key=order.__getitem__)
        cost, copied = updates.cost(place), one.copied and not added
        adds = one.waits and not updates.how.updates
        with graph.inserting_after(last):
            parameter = None if adds else one.parameter
            args = updates.serial, place, parameter, None if added else one.node, copied, *waited
            made = _call(graph, update, args, f"update_{place}", like=one.node)
        # With gradients from before no copy is made, or it is resident as they are.
        copy = one.nbytes if copied and not updates.how.adds else 0
        travels = one.waits if updates.how.adds else TRAVELS in one.parameter.meta
        seconds = cost.host_seconds if travels else None
        if seconds is not None and updates.how.adds and updates.how.updates and not added:
            seconds += updates.cost_of_adding(place).host_seconds or 0.0
        made.meta[UPDATE] = replace(
            cost,
            place=place,
            workspace=cost.workspace + copy,
            host_seconds=seconds,
            waiting=one.nbytes if one.waits else 0,
            adds=adds,
        )
        order[made] = order[last]
    output.args = (tuple(returned),)


def _mark(pairs: Sequence[tuple[fx.Node, Any]], returned: Sequence[fx.Node], updates: Updates) -> None:
    """Note which primals are parameters that may travel.

    Not those of whose memory the caller gets a part, which another primal reads, too, or which the forward writes.
    """
    others = Counter(address(one) for node, _ in pairs for one in _examples(node))
    others.update(address(one) for node in returned for one in _examples(node))
    (output,) = returned[0].graph.find_nodes(op="output") if returned else (None,)
    written = {getattr(one, "mutated_input", None) for one in output.meta.get("desc", ())} if output else set()
    for node, one in pairs:
        name = updates.names_of.get(id(one))
        alone = all(others[address(example)] == 1 for example in _examples(node))
        if name is not None:
            node.meta[TRAVELS if alone and node.meta.get("desc") not in written - {None} else STAYS] = name


def _common_factor(graph: fx.Graph, updates: Updates, gradients: Sequence[_Gradient]) -> fx.Node:
    """Add what is seen of each gradient after it, such as its norm, and what all are clipped by, after all of these."""
    norms, order = [], {node: k for k, node in enumerate(graph.nodes)}
    copied = updates.how.scaled and updates.how.max_norm is not None  # before it is unscaled
    for one in gradients:
        if updates.how.adds:
            last = max(one.last, key=order.__getitem__)
            with graph.inserting_after(last):
                args = updates.serial, one.place, None if one.waits else one.parameter, one.node, one.copied
                made = _call(graph, add, args, f"add_{one.place}", like=one.node)
            cost, waiting = updates.cost_of_adding(one.place, calls=2), one.nbytes if one.waits else 0
            numbers = _NUMBERS * one.node.meta["val"].element_size() if updates.how.scaled else 0
            made.meta[UPDATE] = replace(cost, workspace=numbers, host_seconds=None, waiting=waiting, adds=one.waits)
        else:
            with graph.inserting_after(one.node):
                alike = updates.serial, one.node, None if one.laid_out else one.parameter
                made = _call(graph, seen, alike, f"norm_of_{one.node.name}", like=one.node)
            made.meta[WORKSPACE] = 0 if one.laid_out and not copied else one.nbytes
        made.meta["val"] = found = updates.example(one.node.meta["val"])
        if updates.how.scaled and not updates.how.adds:
            made.meta[WORKSPACE] += _NUMBERS * found.element_size()
        norms.append(made)
    order = {node: k for k, node in enumerate(graph.nodes)}
    norms = [norms[k] for k in grouped_by_type([one.node.meta["val"] for one in gradients])]
    with graph.inserting_after(max(norms, key=order.__getitem__)):
        found = graph.create_node("call_function", common_factor, (updates.serial, norms), name="clip_factor")
    examples = [node.meta["val"] for node in norms]
    found.meta["val"] = norm_of_all([one.flatten()[0] for one in examples])
    found.meta[WORKSPACE] = (examples[0].numel() * len(norms) + _NUMBERS) * found.meta["val"].nbytes
    return found


def _call(graph: fx.Graph, target: Any, args: tuple[Any, ...], name: str, *, like: fx.Node) -> fx.Node:
    """A new call, in the module of another."""
    made = graph.create_node("call_function", target, args, name=name)
    made.meta |= {key: one for key, one in like.meta.items() if key.endswith("nn_module_stack")}
    return made


def _readers(graph: fx.Graph) -> Mapping[int, list[fx.Node]]:
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
