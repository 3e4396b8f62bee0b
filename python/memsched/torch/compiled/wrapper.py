"""What AOTAutograd does around a graph, for memsched's own function of autograd to do. Not public in PyTorch either."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutograd, coerce_to_expected_memory_format
from torch._guards import TracingContext

from memsched.torch.compiled.joint import Joint


@dataclass(frozen=True, slots=True)
class Around:
    """What is left to be done around a graph that autograd records."""

    changed: tuple[int, ...]  # places of inputs of which the graph returns new values, before its results
    constant: tuple[int, ...]  # places of results that need no gradient
    views: tuple[int, ...]  # of those that are to count as no views
    tangents: tuple[tuple[int, Any], ...]  # of those whose gradients the backward takes, and how these are to lie
    deterministic: bool  # the traced operations are
    autocast: bool  # it was on around the graph, whose operations have its casts, and is to be off while they run

    def running(self) -> AbstractContextManager[Any]:
        """Around each run of its operations."""
        return torch._C._DisableAutocast() if self.autocast else nullcontext()


_ELSE = (  # what AOTAutograd notes of a graph around which it has more to do
    *("num_outputs_aliased", "num_intermediate_bases", "num_backward_tokens"),
    *("num_graphsafe_rng_states", "tokens", "dynamic_outputs", "is_rng_op_functionalized"),
    *("mutated_graph_handled_indices", "indices_of_inputs_that_requires_grad_with_mutations_in_bw"),
)


def around(joint: Joint, inputs: Sequence[Any], *, autocast: bool) -> Around | None:
    """What is to be done around the graph that AOTAutograd now compiles; None where AOTAutograd has to do it.

    `autocast`: it is on around the graph. AOTAutograd switches it off while it compiles, so it is not asked for here.
    """
    gradients, tangents = joint.gradients, len(joint.tangents)
    facts: Any = getattr(TracingContext.try_get(), "fw_metadata", None)
    try:
        more = [getattr(facts, name) for name in _ELSE] + [getattr(facts, "act_input_indices", ())]
        if any(more) or facts.grad_enabled_mutation is not None:
            return None
        given, made, layouts = facts.input_info, facts.output_info, facts.subclass_tangent_meta
        kinds = {one.output_type.name for one in made} | {type(one).__name__ for one in layouts}
        noted = [getattr(one, "requires_grad_for_backward", one.requires_grad) for one in made]
        changed = tuple(facts.mutated_inp_runtime_indices)
        copied = [one.mutates_data and not (one.mutates_metadata or one.requires_grad) for one in given]
        elsewhere = [one for one in getattr(facts, "mutated_inp_stream_indices", None) or () if one is not None]
    except AttributeError:  # another release
        return None
    within = torch._C._functorch.peek_interpreter_stack() is not None  # vmap, or such
    known = kinds <= {"non_alias", "unsafe_view_alias", "PlainTensorMeta"}
    if within or not known or not len(given) == len(inputs) == len(gradients):
        return None
    if any(one.requires_grad and not one.is_leaf and end is None for one, end in zip(given, gradients, strict=True)):
        return None  # what made this input would be told of a gradient
    if not all(isinstance(one, torch.Tensor | int | torch.SymInt) for one in inputs):
        return None
    if any(isinstance(one, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(one) for one in inputs):
        return None
    if elsewhere or not all(copied[k] and not given[k].mutation_inductor_storage_resize for k in changed):
        return None
    values = joint.storages_in(joint.results[: len(changed)])
    if not set(values).isdisjoint(joint.storages_in(joint.primals)):  # one input becomes another
        return None
    targets = (node.target for node in joint.module.graph.nodes)
    if any(isinstance(one, torch._ops.OpOverload) and one.namespace not in ("aten", "prims") for one in targets):
        return None  # whose first call is looked at
    tensors = [k for k, one in enumerate(made) if issubclass(one.raw_type, torch.Tensor)]
    taken = [k for k in tensors if noted[k]]
    if not len(taken) == len(layouts) == tangents:
        return None
    return Around(
        changed=changed,
        constant=tuple(k for k in tensors if not made[k].requires_grad),
        views=tuple(k for k in tensors if made[k].output_type.name == "unsafe_view_alias"),
        tangents=tuple(zip(taken, layouts, strict=True)),
        deterministic=facts.deterministic is not False,
        autocast=autocast,
    )


def laid_out(gradient: Any, layout: Any) -> Any:
    """A gradient, or a copy that lies as it was traced."""
    if type(gradient) is torch.Tensor:
        return coerce_to_expected_memory_format(gradient, layout.memory_format)
    return AOTDispatchAutograd.process_runtime_tangent(gradient, layout)[0]


def refuse_transforms(around: Around) -> None:
    """Refuse a backward where it cannot run as it was traced."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError(
            "a compiled backward is called within vmap/grad/vjp, which is not supported; put vmap inside of "
            "torch.compile, or do not compile what it is the backward of"
        )
    if not around.deterministic and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "a compiled backward is run with torch.use_deterministic_algorithms(True), and its forward was compiled "
            "with False"
        )


def keeps_graph() -> bool:
    """Whether the backward that runs may run again."""
    return torch._C._autograd._get_current_graph_task_keep_graph()
