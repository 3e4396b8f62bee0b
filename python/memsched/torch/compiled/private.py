"""The parts of PyTorch that are not public, in one place: AOTAutograd, and how code is made of graphs."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import callback_handler
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException as DynamoSignal  # such as a demand to trace once more
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters, graph_break_reasons
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import saved_tensors_hooks_are_inlineable, top_saved_tensors_hooks
from torch._guards import TracingContext, active_fake_mode
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.graph import _BoxedCodeGen
from torch.optim import optimizer as _optimizers
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype
from torch.utils._python_dispatch import any_torch_dispatch_mode_on_stack, is_traceable_wrapper_subclass
from torch.utils.checkpoint import checkpoint

from memsched.errors import MemschedError
from memsched.torch.compiled.calls import cheapen

__all__ = [  # of PyTorch, for others to import
    "DynamoSignal",
    "Unsupported",
    "active_fake_mode",
    "any_torch_dispatch_mode_on_stack",
    "callback_handler",
    "counters",
    "graph_break_reasons",
    "unset_fake_temporarily",
]

Boxed = Callable[[list[Any]], Sequence[Any]]
"""A function of one list of arguments, which it empties, so that they can be freed while it runs."""

Partition = Callable[[fx.GraphModule, int, Sequence[int]], tuple[fx.GraphModule, fx.GraphModule]]
"""From a joint graph, how many results the forward has, and which inputs last, to examples of forward and backward."""

RELEASES = ("2.12", "2.13", "2.14")
"""Of PyTorch, that this module is known to work with."""

FREED = hasattr(torch.autograd.Function, "boxed_grads_call")
"""Whether a backward can free the gradients that it is given; before 2.13, PyTorch holds them until it ends."""


def check_release(release: str = torch.__version__) -> None:
    """Refuse a PyTorch whose insides nobody has tried."""
    if ".".join(release.split(".")[:2]) not in RELEASES:
        raise MemschedError(
            f"this memsched plans for PyTorch {RELEASES[0]} to {RELEASES[-1]}, and here is {release}; install one of "
            "them, or another memsched"
        )


def holders_of(one: torch.Tensor) -> int:
    """How many tensors lie in the memory of one, itself included."""
    storage = one.untyped_storage()  # one more that has it
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def hint_of(size: Any) -> Any:
    """The size that was traced, without making it the only one; None where none is known."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def grouped_by_type(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The places of tensors in the order in which PyTorch goes through them by device and type."""
    like = [torch.empty(0, dtype=one.dtype, device=one.device) for one in tensors]
    groups = _group_tensors_by_device_and_dtype([like], with_indices=True)
    return [k for _, places in groups.values() for k in places]


def without_new_guards(joint: fx.GraphModule) -> contextlib.AbstractContextManager[object]:
    """Sizes that vary stay so: to compare one with a number would make it that number, for all sizes to come."""
    examples = [node.meta.get("val") for node in joint.graph.find_nodes(op="placeholder")]
    sizes = [one for one in examples if isinstance(one, torch.SymInt)]
    refuse = getattr(sizes[0].node.shape_env, "error_on_new_guards", None) if sizes else None
    return contextlib.nullcontext() if refuse is None else refuse()


@contextlib.contextmanager
def optimizer_hooks_aside() -> Iterator[None]:
    """Steps of optimisers call none of the hooks that all optimisers share."""
    shared = (_optimizers._global_optimizer_pre_hooks, _optimizers._global_optimizer_post_hooks)
    before = [dict(hooks) for hooks in shared]
    for hooks in shared:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, those in zip(shared, before, strict=True):
            hooks.update(those)


def _changed(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([one for one in group["params"] if one.grad is not None])


def note_fused_steps() -> None:
    """From now on autograd sees that optimisers with fused=True change parameters, as it does of others."""
    if _changed not in _optimizers._global_optimizer_post_hooks.values():
        _optimizers.register_optimizer_step_post_hook(_changed)


_LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_LOGS_ONCE = tuple(f"{level}_{how}" for level in ("info", "warning") for how in ("once", "advice"))  # of transformers


def without_logs() -> contextlib.AbstractContextManager[Any]:
    """What PyTorch captures here has none of the calls of loggers, which would break it in two."""
    calls = {getattr(logging.Logger, name) for name in (*_LOGS, *_LOGS_ONCE) if hasattr(logging.Logger, name)}
    name = "ignore_logging_functions" if hasattr(dynamo_config, "ignore_logging_functions") else "ignore_logger_methods"
    patch: Callable[..., contextlib.AbstractContextManager[Any]] = dynamo_config.patch
    return patch({name: getattr(dynamo_config, name) | calls})


def compiled_apart(function: Callable[..., Any], backend: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """A function compiled as if nothing else were: others of the same code do not count for PyTorch's limit.

    PyTorch compiles the code of a function some eight times (`torch._dynamo.config.recompile_limit`), and then runs it
    as it is, without a plan. Before 2.13 all count.
    """
    known = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    compiled: Callable[..., Any] = torch.compile(
        function, backend=backend, **({"isolate_recompiles": True} if known else {}), **more
    )
    return compiled


def without_limits() -> contextlib.AbstractContextManager[Any]:
    """PyTorch compiles what runs here however often it has compiled the same code."""
    patch: Callable[..., contextlib.AbstractContextManager[Any]] = dynamo_config.patch
    return patch(recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize)


def inline_regions(module: fx.GraphModule) -> None:
    """Let the regions of `torch.compiler.nested_compile_region` run as calls of the graph that holds them."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            regions = part.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
            for node in regions:
                node.target = _run_region
            if regions:
                part.recompile()


def _run_region(region: Callable[..., Any], _: str | None, *operands: Any) -> Any:
    return region(*operands)


def compile_joint(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    partition: Partition,
    forward: Callable[[], Boxed],
    backward: Callable[[], Boxed],
    inference: Callable[[fx.GraphModule], Boxed],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured: AOTAutograd traces forward and backward, and calls what runs them.

    `partition` is called once with the joint graph; `forward` and `backward` give the functions that run in place of
    the examples which it returned, `inference` that for a graph without a backward. `decompositions` are operations
    that are traced as others.
    """
    joints: list[fx.GraphModule] = []
    given = len(inputs)  # AOTAutograd keeps the functions below: they hold no inputs

    def split(
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **rest: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joints.append(joint)
        return partition(joint, num_fwd_outputs, static_lifetime_input_indices or ())

    def compile_forward(graph: fx.GraphModule, example: Any) -> Boxed:
        _let_save(given + sum(len(part.graph.nodes) for part in joints))
        return boxed(forward())

    backend = aot_autograd(
        fw_compiler=compile_forward,
        bw_compiler=lambda graph, example: boxed(backward()),
        inference_compiler=lambda graph, example: boxed(inference(graph)),
        partition_fn=split,
        decompositions=decompositions,
    )
    with functorch_config.patch(donated_buffer=False):
        return backend(module, inputs)


def _let_save(most: int) -> None:
    """Let forwards save up to so many tensors: from 2.14 on, PyTorch has a note for each that the example saves.

    And let backwards run twice: none of these tensors is given away.
    """
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    noted = getattr(facts, "saved_tensor_is_graph_input", None)
    if isinstance(noted, list):
        noted.extend([False] * most)
    if facts is not None:
        facts.bw_donated_idxs = []


def boxed(function: Boxed) -> Boxed:
    """Tell AOTAutograd that a function empties its list of arguments."""

    def call(args: list[Any]) -> Sequence[Any]:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def python_code(module: fx.GraphModule) -> Boxed:
    """The graph as generated Python that frees each value after its last reader.

    Operations are called as C++ has them, without the function of Python around each.
    """
    cheapen(module.graph)
    targets = {node.target for node in module.graph.nodes if type(node.target) is torch._ops.OpOverload}
    calls = {f"torch.ops.{one}(": (f"_{str(one).replace('.', '_')}", one._op) for one in targets}

    def bound(line: str) -> str:
        for text, (name, _) in calls.items():
            line = line.replace(text, f"{name}(")
        return line

    module.graph.set_codegen(_BoxedCodeGen())
    module.graph.on_generate_code(lambda _: lambda body: list(map(bound, body)))
    module.recompile()
    real_recompile = getattr(module, "real_recompile", None)
    if real_recompile is not None:
        real_recompile()
    code = type(module).forward
    code.__globals__.update(calls.values())
    return code.__get__(module)


RUNS_AGAIN = "runs again"
"""Marks, in the `meta` of a node of a backward, an operation of the forward."""


def backward_code(module: fx.GraphModule) -> Boxed:
    """The code of a backward. Within autocast, which casts operations there, too, what runs again is not cast.

    A forward has been traced, with the casts that it needs, and ran without autocast.
    """
    plain, within = python_code(module), list[Boxed]()

    def call(args: list[Any]) -> Sequence[Any]:
        if not torch._C._is_any_autocast_enabled():
            return plain(args)
        if not within:
            for node in module.graph.nodes:
                if RUNS_AGAIN in node.meta and node.op == "call_function":
                    node.target = _without_casts(node.target)
            within.append(python_code(module))
        return within[0](args)

    return call


def _without_casts(operation: Callable[..., Any]) -> Callable[..., Any]:
    def not_cast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableAutocast():
            return operation(*args, **kwargs)

    return not_cast


def is_batched(value: object) -> bool:
    """Whether a value is a tensor that vmap computes many of at once."""
    known = torch._C._functorch.is_batchedtensor, torch._C._functorch.is_legacy_batchedtensor
    return isinstance(value, torch.Tensor) and any(one(value) for one in known)


def saving_is_hooked() -> bool:
    """Whether what autograd saves goes through hooks, as under `torch.utils.checkpoint`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def backward_is_compiled() -> bool:
    """Whether PyTorch compiles backwards, too, when they run."""
    return bool(dynamo_config.compiled_autograd)


_COMPILED = "CompiledFunctionBackward"
_VIEWS = 4  # that AOTAutograd makes of a result after the graph


def watch_gradients(results: Iterable[Any], note: Callable[[Sequence[Any]], None]) -> None:
    """Show the gradients of a compiled graph's results as they arrive: AOTAutograd copies those that lie otherwise."""
    nodes = {one.grad_fn for one in results if isinstance(one, torch.Tensor)}
    for _ in range(_VIEWS):
        for node in nodes:
            if node is not None and node.name() == _COMPILED:
                node.register_prehook(note)
        others = (one for one in nodes if one is not None and one.name() != _COMPILED and one.next_functions)
        nodes = {one.next_functions[0][0] for one in others}


def saving_is_rewritten() -> bool:
    """Whether these hooks are graphs, which AOTAutograd writes into the graphs that it captures."""
    return bool(saved_tensors_hooks_are_inlineable(top_saved_tensors_hooks()))


def takes_no_hooks(module: fx.GraphModule | None = None) -> bool:
    """Whether hooks for saved tensors are an error, now or within a captured graph, as under `torch.func.grad`."""
    if module is None:
        return not torch._C._autograd._saved_tensors_hooks_is_enabled()
    graphs = [one.graph for one in module.modules() if isinstance(one, fx.GraphModule)]
    return any(node.target is torch._C._autograd._saved_tensors_hooks_disable for one in graphs for node in one.nodes)


def with_plain_checkpoints(module: fx.GraphModule) -> fx.GraphModule:
    """Let checkpoints in a captured graph draw the same numbers twice, which PyTorch leaves to what compiles it."""
    for part in module.modules():
        found = part.graph.nodes if isinstance(part, fx.GraphModule) else ()
        tagged = [node for node in found if node.target is tag_activation_checkpoint]
        for node in tagged:
            node.target = _checkpointed
        if tagged:
            part.recompile()
    return module


def _checkpointed(body: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    given, more = tag_activation_checkpoint.divide_kwargs(kwargs)
    chosen = body.meta.get("_checkpoint_context_fn")
    options = {**given, "use_reentrant": False, **({} if chosen is None else {"context_fn": chosen})}
    return checkpoint(body, *args, **options, **more)


def call_for_results(mode: FakeTensorMode, note: Callable[[Any], None]) -> None:
    """Call a function with the results of all operations on tensors without data. A subclass would know no loops."""
    dispatch = mode.dispatch

    def noted(*args: Any, **kwargs: Any) -> Any:
        out = dispatch(*args, **kwargs)
        note(out)
        return out

    mode.dispatch = noted


def wait_on_cuda(cycles: int) -> None:
    """Let the current stream do nothing for so many cycles."""
    torch.cuda._sleep(cycles)


def is_tracing() -> bool:
    """Whether Dynamo or AOTAutograd captures code now."""
    return TracingContext.try_get() is not None


def in_backward() -> bool:
    """Whether autograd is at work."""
    return torch._C._current_graph_task_id() != -1


def wrapper_among(values: Iterable[Any]) -> str | None:
    """The class of a tensor that consists of others; None if there is none."""
    return next((type(one).__name__ for one in values if is_traceable_wrapper_subclass(one)), None)


def is_autocast_on() -> bool:
    """Whether any device's operations are cast."""
    return torch._C._is_any_autocast_enabled()


def under_autocast(module: fx.GraphModule) -> bool:
    """Whether some of what Dynamo captured runs under autocast: around it, or within."""
    return is_autocast_on() or any(
        node.target is torch.amp.autocast_mode._enter_autocast for node in module.graph.nodes
    )


def graph_inputs(module: fx.GraphModule) -> list[Any]:
    """Examples of the placeholders of a graph."""
    return [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
