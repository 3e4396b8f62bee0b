"""The parts of Inductor that are not public, in one place: its passes, what it fuses, and its compiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx
from torch._dynamo import compiled_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor import memory as inductor_memory
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from memsched.torch.compiled.copies import kept
from memsched.torch.compiled.kernel_order import Kernel, least_memory
from memsched.torch.compiled.private import Boxed, graph_inputs
from memsched.torch.errors import CaptureError
from memsched.torch.weightless import fake_mode_of

READS_OF_SHARED = inductor_config.realize_reads_threshold
READS_OF_ANY = inductor_config.realize_acc_reads_threshold or inductor_config.realize_cpu_acc_reads_threshold
"""A value with more reads than this is stored: one with several readers, and any."""

decompositions: Callable[[], Mapping[Any, Callable[..., Any]]] = select_decomp_table
"""The operations that Inductor traces as others."""


def prepare(joint: fx.GraphModule) -> None:
    """What Inductor does to a joint graph before it is split, in place."""
    inputs = graph_inputs(joint)
    with V.set_fake_mode(fake_mode_of(inputs)):
        compile_fx._recursive_joint_graph_passes(joint, skip_invoke_subgraph=True, input_device=_device(inputs))
    joint.graph.eliminate_dead_code()
    joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()


def with_sizes(module: fx.GraphModule, number: Callable[[Any], int]) -> fx.GraphModule:
    """A copy of a graph without symbols, given the number that each size is."""
    made = _copied(module)
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)  # loops ask for one
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    inputs = []
    with torch.no_grad(), mode:
        for one in graph_inputs(module):
            if isinstance(one, torch.Tensor):
                shape, stride = ([number(n) for n in sizes] for sizes in (one.shape, one.stride()))
                inputs.append(torch.empty_strided(shape, stride, dtype=one.dtype, device=one.device))
            else:
                inputs.append(number(one) if isinstance(one, torch.SymInt) else one)
    with torch.no_grad():
        FakeTensorProp(made, mode).propagate_dont_convert_inputs(*inputs)
    for node, one in zip(made.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["val"] = one
    _fold_numbers(made.graph)
    return made


def _fold_numbers(graph: fx.Graph) -> None:
    """Put numbers where they are read: Inductor's split can neither keep nor compute what is no tensor."""
    for node in list(graph.nodes):
        number = node.meta.get("val")
        if not isinstance(number, int | float):
            continue
        for reader in [one for one in node.users if one.op != "output"]:
            reader.args, reader.kwargs = fx.map_arg(
                (reader.args, reader.kwargs), lambda one, node=node, number=number: number if one is node else one
            )
        if node.op != "placeholder" and not node.users:
            graph.erase_node(node)


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(module.graph, copies)
    (old,) = module.graph.find_nodes(op="output")
    graph.output(output).meta = dict(old.meta)
    for node, copy in copies.items():
        copy.meta = dict(node.meta)
    return fx.GraphModule(module, graph)


def lower_copies(graph: fx.Graph) -> None:
    """Copy inputs that change as Inductor does, which chooses the strides."""
    for node in graph.find_nodes(op="call_function", target=kept):
        if node.args[1]:
            raise CaptureError("it changes an input that it reads by as_strided, which compiled code cannot keep yet")
        node.target, node.args = _aten.clone.default, node.args[:1]


def stock_saved(joint: fx.GraphModule, results: int, static: Sequence[int]) -> set[str]:
    """The names of the values that Inductor's own split of a joint graph keeps for the backward."""
    copied = _copied(joint)
    with functorch_config.patch(cse=False, activation_memory_budget=1.0):
        _, backward = partitioners.min_cut_rematerialization_partition(
            copied, (), num_fwd_outputs=results, static_lifetime_input_indices=list(static)
        )
    return {node.name for node in backward.graph.find_nodes(op="placeholder")}


def prefers_channels_last(graph: fx.GraphModule) -> bool:
    """Whether Inductor puts the channels of a graph's convolutions last."""
    return bool(GraphLowering.decide_layout_opt(graph, is_inference=False))


def is_pointwise(node: fx.Node) -> bool:
    """Whether Inductor can compute each element of a call's result where it is read."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return torch.Tag.pointwise in target.tags or target.overloadpacket in _ELEMENTS


def is_costly(node: fx.Node) -> bool:
    """Whether Inductor stores the result, rather than compute it in each of several readers."""
    return getattr(node.target, "overloadpacket", None) in _COSTLY


def is_fusible(node: fx.Node) -> bool:
    """Whether Inductor generates the code of a call itself, so that what it reads need not be stored."""
    return is_pointwise(node) or getattr(node.target, "overloadpacket", None) in _REDUCTIONS


_aten, _prims = torch.ops.aten, torch.ops.prims
_ELEMENTS = {
    *(_aten.clone, _aten._to_copy, _aten.where, _aten.full, _aten.full_like, _aten.zeros, _aten.zeros_like),
    *(_aten.ones, _aten.ones_like, _aten.scalar_tensor, _aten.arange, _aten.expand, _aten.reshape),
    *(_prims.convert_element_type, _prims.iota, _prims.broadcast_in_dim),
    *(_prims.inductor_lookup_seed, _prims.inductor_random, _prims.inductor_randint),
}
_COSTLY = {_aten.exp, _aten.log, _aten.log10, _aten.log1p, _aten.log2, _aten.sigmoid, _aten.tanh}
_REDUCTIONS = {
    *(_aten.sum, _aten.mean, _aten.amax, _aten.amin, _aten.any, _aten.argmax, _aten.argmin, _aten.prod),
    *(_aten.var, _aten.var_mean, _prims.sum, _prims.var, _prims.prepare_softmax_online),
}


# The code is Python that allocates each buffer by itself, and nothing runs while it is written.
_PLAIN = {"cpp_wrapper": False, "memory_planning": False, "max_autotune": False}


class Half:
    """A graph of a forward or a backward that Inductor compiles; its placeholders carry examples.

    The caller sees the first `results` of its outputs, so that their strides are fixed. With `reuse` a buffer may take
    the place of a freed one, though that memory is then held in between. The strides of the first placeholders are
    given where another half decides them. With `last`, convolutions have their channels last: Inductor decides that
    of a backward by the convolutions that run again in it, and without any it may copy all that their backwards read
    to an order in which these take several times as long, but have no scratch memory. `dying` are placeholders that
    end with their last reader, by name, with the storages in which they lie.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        results: int,
        *,
        backward: bool,
        reuse: bool,
        strides: Sequence[Sequence[int] | None] = (),
        last: bool = False,
        dying: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._graph, self._results, self._backward, self._reuse = graph, results, backward, reuse
        examples = graph_inputs(graph)
        known = [*strides, *[None] * (len(examples) - len(strides))]
        self._layout = {"force_layout_optimization": True} if last else {}
        self._inputs = [_laid_out(one, stride) for one, stride in zip(examples, known, strict=True)]
        named = dict(zip((one.name for one in graph.graph.find_nodes(op="placeholder")), self._inputs, strict=True))
        self._dying = {name: _Given(f"given {n}", named[name].untyped_storage().nbytes()) for name, n in dying.items()}
        self.strides: list[Sequence[int] | None] = []  # of the outputs, once its code is written

    def code(self) -> Code:
        """The code, whose kernels are not compiled yet."""
        written: list[_Module] = []

        def write(lowering: GraphLowering) -> Any:
            code, _ = lowering.codegen()
            constants = {**lowering.constants, **lowering.torchbind_constants, **lowering.opaque_value_type_classes}
            written.append(_Module(code.value, constants))
            return SimpleNamespace(call=written[0])

        with (
            compile_lock,
            mock.patch.object(GraphLowering, "compile_to_module", write),
            mock.patch.object(inductor_memory, "reorder_for_peak_memory", self._ordered),
            inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        ):
            made = self._compile()
        return Code(made, written[0] if written else None)

    def _compile(self) -> Boxed:
        _show_outputs(self._graph, self._results)
        mode = fake_mode_of(self._inputs)
        with (
            inductor_config.patch(allow_buffer_reuse=self._reuse, **_PLAIN, **self._layout),
            torch.no_grad(),
            torch._C._DisableAutocast(),
            compiled_autograd._disable(),
            V.set_fake_mode(mode),
            tracing(TracingContext(mode)),
            TracingContext.report_output_strides() as strides,
        ):
            made: Boxed = compile_fx.compile_fx_inner(
                self._graph, self._inputs, cudagraphs=BoxedBool(False), is_backward=self._backward
            )
        self.strides = list(strides or ())
        return made

    def _ordered(self, kernels: Sequence[Any], *known: Any) -> Sequence[Any]:
        """The kernels as Inductor would order them, or in an order that holds less."""
        best: Sequence[Any] = _stock_order(kernels, *known)
        if V.graph.name:  # a graph within an operation, such as a loop's
            return best
        return [best[k] for k in least_memory(*_as_kernels(best, known[-1], self._dying))]


class _Given(NamedTuple):
    """A buffer that is there before."""

    name: str
    nbytes: int


_stock_order = inductor_memory.reorder_for_peak_memory


def _has_its_turn(node: Any) -> bool:
    """Whether it may matter what runs before it, though it does not read that: it draws, communicates or is foreign."""
    called = getattr(node.node, "op_overload", None)
    if called is None:
        return bool(node.has_side_effects())
    known = isinstance(called, torch._ops.OpOverload) and called.namespace in ("aten", "prims", "mkldnn")
    return not known or torch.Tag.nondeterministic_seeded in called.tags or bool(node.has_side_effects())


def _as_kernels(
    nodes: Sequence[Any], outputs: Collection[str], dying: Mapping[str, _Given]
) -> tuple[list[Kernel], dict[str, int], set[str]]:
    """Inductor's kernels, the sizes of their buffers, and which of these stay. It knows who reads what by now."""
    place = {node: k for k, node in enumerate(nodes)}
    kernels = [Kernel(set(), set(), {place[one] for one in node.mpi_node.pred_nodes}) for node in nodes]
    in_turn = [k for k, node in enumerate(nodes) if any(map(_has_its_turn, node.get_nodes()))]
    for before, k in itertools.pairwise(in_turn):
        kernels[k].after.add(before)
    sizes = {one.name: one.nbytes for one in dying.values()}
    writers: dict[str, int] = {}
    for k, node in enumerate(nodes):
        read = {dep.name for dep in node.read_writes.reads if not getattr(dep, "is_fake", False)}
        kernels[k].reads.update(dying[name].name for name in read if name in dying)
        for buffer in node.get_outputs():
            name, known = buffer.get_name(), buffer.mpi_buffer
            within = isinstance(node, FusedSchedulerNode) and not known.succ_nodes and name not in outputs
            sizes[name] = 0 if within else known.size_free
            # One of several results is there when all are.
            of_several = known.size_alloc == 0 and known.size_free > 0
            whole = (writers[dep.name] for dep in node.unmet_dependencies if dep.name in writers)
            writers[name] = next(whole, k) if of_several else k
            kernels[writers[name]].writes.add(name)
            for one in known.succ_nodes:
                kernels[place[one]].reads.add(name)
    return kernels, sizes, {dying[name].name if name in dying else name for name in outputs}


class _Module:
    """What Inductor wrote for a graph, as a function that is there once it is loaded."""

    def __init__(self, source: str, constants: Mapping[str, Any]) -> None:
        self.source, self._constants = source, constants
        self._call: Boxed | None = None

    def load(self) -> None:
        """Compile its kernels."""
        if self._call is None:
            with compile_lock, inductor_config.patch(**_PLAIN):
                key, path = PyCodeCache.write(self.source)
                self._call = PyCodeCache.load_by_key_path(key, path, attrs=dict(self._constants)).call

    def __call__(self, args: list[Any]) -> Any:
        assert self._call is not None
        return self._call(args)


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a graph; one without calls has no module."""

    _function: Boxed
    _module: _Module | None

    def dry(self) -> Boxed:
        """What it allocates and frees, as a function of tensors without data."""
        return self._function if self._module is None else _without_kernels(self._module.source)

    def compiled(self) -> Boxed:
        """The function itself."""
        if self._module is not None:
            self._module.load()
        return self._function


def _show_outputs(graph: fx.GraphModule, results: int | None) -> None:
    """Tell Inductor that the caller sees the first outputs of a graph, or all."""
    (output,) = graph.graph.find_nodes(op="output")
    visible = enumerate(output.args[0][:results])
    output.meta["user_visible_output_idxs"] = [k for k, one in visible if isinstance(one, fx.Node)]


def _device(inputs: Sequence[Any]) -> torch.device | None:
    return next((one.device for one in inputs if isinstance(one, torch.Tensor)), None)


def _laid_out(example: Any, strides: Sequence[int] | None) -> Any:
    if strides is None or not isinstance(example, torch.Tensor) or tuple(strides) == example.stride():
        return example
    with example.fake_mode:
        return torch.empty_strided(example.shape, strides, dtype=example.dtype, device=example.device)


def inference_code(graph: fx.GraphModule) -> Boxed:
    """A graph without a backward, compiled as Inductor does."""
    inputs = graph_inputs(graph)
    with V.set_fake_mode(fake_mode_of(inputs)):
        graph = compile_fx._recursive_joint_graph_passes(graph, input_device=_device(inputs))
    _show_outputs(graph, None)
    with V.set_fake_mode(fake_mode_of(inputs)):
        return compile_fx.compile_fx_inner(graph, inputs, cudagraphs=BoxedBool(False), is_inference=True)


def _without_kernels(source: str) -> Boxed:
    """The code that Inductor wrote, such that a `Meter` sees its allocations, and that nothing is computed."""
    space: dict[str, Any] = {"__name__": "memsched_dry_run"}

    def nothing(*args: Any, **kwargs: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None

    with mock.patch.multiple(AsyncCompile, cpp_pybinding=nothing, cpp=nothing, wait=lambda self, scope: None):
        exec(compile(source, "<dry run>", "exec"), space)
    space.update(
        empty_strided_cpu=lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype),
        reinterpret_tensor=lambda tensor, shape, stride, offset=0: tensor.as_strided(shape, stride, offset),
        assert_size_stride=lambda *args, **kwargs: None,
        assert_alignment=lambda *args, **kwargs: None,
    )
    return space["call"]
