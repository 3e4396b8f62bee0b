"""Whether a captured step has every gradient that autograd has, by the values with which Dynamo traced it."""

from __future__ import annotations

import contextlib

import torch
from torch import fx

from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.parameters import WAITS
from memsched.torch.compiled.private import unset_fake_temporarily
from memsched.torch.errors import CaptureError
from memsched.torch.module_state import leaves_behind
from memsched.torch.nests import tensors_of
from memsched.torch.weightless import fake_mode_of


def check_gradients(module: fx.GraphModule, joint: Joint) -> None:
    """Refuse a joint graph without the gradient of an input that, by autograd's own graph, has one.

    Dynamo ran each operation on tensors without data, with autograd. So its results know what their backward reaches.

    Raises
    ------
    CaptureError
        Naming the inputs.
    """
    given = list(module.graph.find_nodes(op="placeholder"))
    if len(given) != len(joint.gradients):  # AOTAutograd has merged some
        return
    places = {node: k for k, node in enumerate(joint.primals, -joint.tokens)}
    updated = {places[op.node.args[2]] for op in joint.operations if op.update is not None and not op.update.adds}
    updated.update(places[node] for node in joint.primals if WAITS in node.meta)
    pairs = enumerate(zip(given, joint.gradients, strict=True))
    lacking = [node for k, (node, end) in pairs if end is None and k not in updated]
    (output,) = module.graph.find_nodes(op="output")
    results = tensors_of([node.meta.get("example_value") for node in output.all_input_nodes])
    results = [one for one in results if one.requires_grad]
    behind = {id(leaf) for leaf in leaves_behind(results)}
    found = [(node, one) for node in lacking if id(one := node.meta.get("example_value")) in behind]
    if not found:
        return
    mode = fake_mode_of(results) or contextlib.nullcontext()
    with unset_fake_temporarily(), mode, torch.enable_grad():
        ends = [torch.empty_like(one) for one in results]
        have = torch.autograd.grad(results, [one for _, one in found], ends, retain_graph=True, allow_unused=True)
    lost = _lacks_a_derivative(results)
    names = [node.name for (node, _), end in zip(found, have, strict=True) if end is not None or lost]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        why = "an operation on the way has no derivative" if lost else "autograd has one"
        raise CaptureError(f"PyTorch's trace of it has no gradient of {names[0]}{more}, which the result needs: {why}")


def _lacks_a_derivative(results: list[torch.Tensor]) -> bool:
    """Whether some operation behind the results has none, so that gradients end there with a warning at most."""
    nodes = [one.grad_fn for one in results if one.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name().endswith("NotImplemented"):
            return True
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        nodes += following
    return False
