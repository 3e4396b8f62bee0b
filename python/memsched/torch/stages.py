"""The stages of a captured model as programs that can be run one at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from memsched.torch.capture import Autocast, Program, capture, without_data
from memsched.torch.errors import CaptureError
from memsched.torch.facts import Facts, attribute, facts, fake_copy, fake_mode
from memsched.torch.leaves import Leaf, distinct
from memsched.torch.linearize import Cut, linearize, share_concatenations, sink_parameter_arithmetic
from memsched.torch.premises import Premises


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A parameter, buffer or constant that a stage reads.

    Attributes
    ----------
    name : str
        Its path in the model.
    written : bool
        The stage writes to it (a buffer).
    influential : bool
        It is written, and what the stage computes may depend on what it held before: all but running statistics.
    """

    name: str
    written: bool = False
    influential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of the chain.

    `module(*[entry], *environment, *state)` returns `(*[exit], *exports, *outputs)`.

    Attributes
    ----------
    name : str
    module : torch.fx.GraphModule
    entry, exit : bool
        Whether it takes an activation from the stage before it, and hands one to the next.
    environment : tuple of str
        Names of the values that it reads beside the chain.
    state : tuple of State
        In the order of its arguments; a parameter that several stages share stands once for each use.
    exports : tuple of str
        Names of the values that it adds to the environment.
    outputs : tuple of int
        Positions in the model's flat result that it computes.
    random : bool
        It draws random numbers.
    """

    name: str
    module: fx.GraphModule
    entry: bool
    exit: bool
    environment: tuple[str, ...]
    state: tuple[State, ...]
    exports: tuple[str, ...]
    outputs: tuple[int, ...]
    random: bool

    def said(self) -> tuple[Any, ...]:
        """All that it computes, as text and names."""
        inner = [part.code for part in self.module.modules() if isinstance(part, fx.GraphModule)]
        return inner, self.entry, self.exit, self.environment, self.state, self.exports, self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedModel:
    """A model as a chain of stages, for inputs of one shape.

    Attributes
    ----------
    stages : tuple of Stage
    inputs, outputs : TreeSpec
        How (args, kwargs) and the result nest.
    input_names : tuple of str
        The name in the environment of each leaf of the inputs.
    leaves : tuple of Leaf
        What each leaf of the inputs is like.
    results : tuple
        Of each leaf of the result: ("computed", position) where a stage computes it, for the first leaf that is this
        tensor; else ("environment", name), ("state", name) or ("constant", value).
    premises : Premises
        What the capture depends on besides the inputs.
    which : tuple of int
        Of each leaf of the inputs that is a tensor, which of the distinct tensors it is.
    operations : tuple of str
        A short hash of the operations of each stage.
    kinds : tuple
        What the state was like: name, dtype, shape, strides, and whether it needs a gradient.
    constants : dict
        Tensors of the program that are not state of the model, by name.
    autocast : Autocast
    device : torch.device
    """

    stages: tuple[Stage, ...]
    inputs: pytree.TreeSpec
    outputs: pytree.TreeSpec
    input_names: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    results: tuple[tuple[str, Any], ...]
    premises: Premises
    which: tuple[int, ...]
    operations: tuple[str, ...]
    kinds: tuple[Any, ...]
    constants: dict[str, torch.Tensor]
    autocast: Autocast
    device: torch.device

    def fetch_state(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The present parameters, buffers and constants by name: `.to()` and others replace them between steps."""
        names = dict.fromkeys(ref.name for stage in self.stages for ref in stage.state)
        names.update(dict.fromkeys(result[1] for result in self.results if result[0] == "state"))
        return {name: self.constants[name] if name in self.constants else attribute(model, name) for name in names}

    def same_program(self, other: StagedModel) -> bool:
        """Whether another capture for the same inputs computes the same from the same state."""
        mine, theirs = ([stage.said() for stage in one.stages] for one in (self, other))
        return (
            mine == theirs
            and self.kinds == other.kinds
            and repr((self.inputs, self.outputs, self.results)) == repr((other.inputs, other.outputs, other.results))
            and list(self.constants) == list(other.constants)
            and all(map(_same_tensor, self.constants.values(), other.constants.values()))
        )

    def result(
        self, computed: Mapping[int, Any], environment: Mapping[str, Any], state: Mapping[str, torch.Tensor]
    ) -> Any:
        """The model's result, nested as the model nests it.

        Parameters
        ----------
        computed
            The leaves that stages compute, by position.
        environment, state
            Where the other leaves come from.
        """
        sources: dict[str, Mapping[Any, Any]] = {"computed": computed, "environment": environment, "state": state}
        leaves = [sources[kind][key] if kind in sources else key for kind, key in self.results]
        return pytree.tree_unflatten(leaves, self.outputs)


def stage(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    rewrite: Callable[[fx.GraphModule], object] | None = None,
) -> StagedModel:
    """Capture a model and cut it into a chain of stages.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode.
    args, kwargs
        Inputs of the shapes, dtypes and device to train with.
    rewrite : callable, optional
        Changes the captured operations before they are cut.

    Returns
    -------
    StagedModel

    Raises
    ------
    CaptureError
        torch.export cannot capture the model.
    InvalidInputError
        The model is in eval mode, or spread over devices.

    Examples
    --------
    >>> import torch
    >>> from memsched.torch.stages import stage
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> [stage.name for stage in stage(model, (torch.ones(2, 8),)).stages]
    ['0', '1', '2']
    """
    with without_data(model):
        return _staged(model, capture(model, args, kwargs), args, kwargs, rewrite)


def _staged(
    model: torch.nn.Module,
    program: Program,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    rewrite: Callable[[fx.GraphModule], object] | None,
) -> StagedModel:
    if rewrite is not None:
        rewrite(program.graph_module)
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
    fake = fake_mode([*leaves, *model.parameters(), *model.buffers()])
    flat = [fake_copy(fake, leaf) for leaf in leaves]
    graph = program.graph_module.graph
    known = facts(program, fake, flat)
    _refuse_objects(program.graph_module)
    _refuse_writes(graph, known)
    if share_concatenations(graph, known):
        known = facts(program, fake, flat)
    sink_parameter_arithmetic(graph, known)
    cuts = linearize(graph, known)
    _refuse_shared_writes(cuts, known)
    output = next(node for node in graph.nodes if node.op == "output")
    returned = pytree.tree_leaves(output.args[0])
    shared = _shared_state(cuts)
    stages = tuple(_build(program, cut, known, returned, shared) for cut in cuts)
    constants = _constants(model, program, stages)
    results = tuple(_result(leaf, returned.index(leaf)) for leaf in returned)
    names = dict.fromkeys(ref.name for stage in stages for ref in stage.state)
    names |= dict.fromkeys(name for kind, name in results if kind == "state")
    state = ((name, constants[name] if name in constants else attribute(model, name)) for name in names)
    return StagedModel(
        stages=stages,
        inputs=program.inputs,
        outputs=program.outputs,
        input_names=tuple(node.name for node in graph.nodes if node.op == "placeholder"),
        leaves=tuple(Leaf.of(leaf) for leaf in leaves),
        results=results,
        premises=program.premises,
        which=distinct(leaves)[1],
        operations=tuple(_hash_of(cut) for cut in cuts),
        kinds=tuple((name, t.dtype, t.shape, t.stride(), t.requires_grad) for name, t in state),
        constants=constants,
        autocast=program.autocast,
        device=program.device,
    )


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b))


def _hash_of(cut: Cut) -> str:
    return hashlib.sha256("\n".join(str(node.target) for node in cut.nodes).encode()).hexdigest()[:12]


def _refuse_objects(module: fx.GraphModule) -> None:
    """State that is no tensor, such as a generator of random numbers: a repeated run would find it changed."""
    for node in module.graph.nodes:
        value = attribute(module, str(node.target)) if node.op == "get_attr" else None
        if value is not None and not isinstance(value, torch.Tensor | fx.GraphModule):
            raise CaptureError(f"the model computes with a {type(value).__name__}, which changes as it is used")


def _refuse_writes(graph: fx.Graph, known: dict[fx.Node, Facts]) -> None:
    """Writes that a repeated run could not take back: to inputs, and to parameters that need a gradient."""
    written = frozenset(s for fact in known.values() for s in fact.writes)
    for node in graph.nodes:
        if node in known and known[node].storages & written:
            if node.op == "placeholder":
                raise CaptureError(f"the model writes to its input {node.name!r} in place; let it write to a copy")
            if node.op == "get_attr" and known[node].requires_grad:
                raise CaptureError(f"the model writes to its parameter {str(node.target)!r} in its forward")


def _refuse_shared_writes(cuts: Sequence[Cut], known: dict[fx.Node, Facts]) -> None:
    """State that one stage writes and another one reads: a repeated run would read what came later.

    Running statistics and counters that only count themselves are not read.
    """
    names = {s: str(node.target) for cut in cuts for node in cut.state for s in known[node].storages}
    written = frozenset(s for cut in cuts for node in cut.nodes for s in known[node].writes) & frozenset(names)
    stages: dict[int, set[int]] = {s: set() for s in written}
    read: set[int] = set()
    for k, cut in enumerate(cuts):
        for node in cut.nodes:
            fact = known[node]
            touched = fact.writes.union(*(known[source].storages for source in node.all_input_nodes)) & written
            for storage in touched:
                stages[storage].add(k)
            counts_itself = not node.users and len(fact.writes) == 1
            read |= touched - fact.statistics - (fact.writes if counts_itself else frozenset())
    for storage in sorted(read):
        if len(stages[storage]) > 1:
            raise CaptureError(f"the model's buffer {names[storage]!r} is changed in one stage and used in another")


def _result(leaf: Any, position: int) -> tuple[str, Any]:
    if not isinstance(leaf, fx.Node):
        return ("constant", leaf)
    if leaf.op == "placeholder":
        return ("environment", leaf.name)
    return ("state", str(leaf.target)) if leaf.op == "get_attr" else ("computed", position)


def _shared_state(cuts: Sequence[Cut]) -> frozenset[str]:
    """The state that several stages read, such as tied weights."""
    readers: dict[str, int] = {}
    for cut in cuts:
        for name in {str(node.target) for node in cut.state}:
            readers[name] = readers.get(name, 0) + 1
    return frozenset(name for name, number in readers.items() if number > 1)


def _constants(model: torch.nn.Module, program: Program, stages: Sequence[Stage]) -> dict[str, torch.Tensor]:
    """What the stages read as state and the model does not have under that name: tensors made while capturing."""
    found = {}
    for name in dict.fromkeys(ref.name for stage in stages for ref in stage.state):
        try:
            missing = not isinstance(attribute(model, name), torch.Tensor)
        except AttributeError:
            missing = True
        if missing:
            found[name] = attribute(program.graph_module, name)
    return found


def _build(
    program: Program, cut: Cut, known: dict[fx.Node, Facts], returned: Sequence[Any], shared: frozenset[str]
) -> Stage:
    """Copy the nodes of a cut into a graph of their own."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in ([cut.entry] if cut.entry else []) + list(cut.environment):
        values[node] = graph.placeholder(node.name)
    arguments = _StateArguments(program.graph_module, graph, cut, known, shared)
    for node in cut.nodes:
        values[node] = graph.node_copy(node, lambda read, node=node: values.get(read) or arguments.of(read, node))
    own = set(cut.nodes)
    first = {leaf: position for position, leaf in reversed(list(enumerate(returned))) if isinstance(leaf, fx.Node)}
    outputs = sorted(position for leaf, position in first.items() if leaf in own)
    leaving = [cut.exit] if cut.exit else []
    graph.output(tuple(values[node] for node in [*leaving, *cut.exports, *(returned[p] for p in outputs)]))
    graph.lint()
    return Stage(
        name=cut.name,
        module=fx.GraphModule(program.graph_module, graph),
        entry=cut.entry is not None,
        exit=cut.exit is not None,
        environment=tuple(node.name for node in cut.environment),
        state=tuple(arguments.refs),
        exports=tuple(node.name for node in cut.exports),
        outputs=tuple(outputs),
        random=any(known[node].random for node in cut.nodes),
    )


class _StateArguments:
    """The arguments of a stage that stand for parameters, buffers and constants."""

    def __init__(
        self, module: fx.GraphModule, graph: fx.Graph, cut: Cut, known: dict[fx.Node, Facts], shared: frozenset[str]
    ) -> None:
        self.module, self.graph, self.shared = module, graph, shared
        self.refs: list[State] = []
        self.made: dict[fx.Node, fx.Node] = {}
        self.last = self._mark()
        written = frozenset(s for node in cut.nodes for s in known[node].writes)
        influential = _influential(cut, known)
        for node in cut.state:
            if not isinstance(attribute(module, str(node.target)), torch.Tensor):
                continue
            storages = known[node].storages
            ref = State(
                name=str(node.target),
                written=bool(storages & written),
                influential=bool(storages & written) and bool(storages & influential),
            )
            if ref.name not in self.shared or ref.written:
                self.made[node] = self._argument(ref)

    def _mark(self) -> fx.Node | None:
        nodes = list(self.graph.nodes)
        return nodes[-1] if nodes else None

    def _argument(self, ref: State) -> fx.Node:
        """A new argument behind those that exist."""
        point = self.graph.inserting_after(self.last) if self.last else self.graph.inserting_before()
        with point:
            self.last = self.graph.placeholder(f"state_{len(self.refs)}_" + re.sub(r"\W", "_", ref.name))
        self.refs.append(ref)
        return self.last

    def of(self, node: fx.Node, user: fx.Node) -> fx.Node:
        """The argument through which `user` reads this state.

        A tensor shared between stages has one argument for each use, so that its gradients are summed in the same order
        as without stages.
        """
        if node in self.made:
            return self.made[node]
        if not isinstance(attribute(self.module, str(node.target)), torch.Tensor):
            return self.graph.get_attr(str(node.target))
        return self._argument(State(name=str(node.target)))


def _influential(cut: Cut, known: dict[fx.Node, Facts]) -> frozenset[int]:
    """The storages that the stage writes and from which its results may follow.

    Running statistics do not count, nor does a counter that only counts itself.
    """
    found: set[int] = set()
    for node in cut.nodes:
        fact = known[node]
        counts_itself = not node.users and len({*fact.writes}) == 1
        read = {s for argument in node.all_input_nodes for s in known[argument].storages}
        found |= read - fact.statistics - (fact.writes if counts_itself else frozenset())
    return frozenset(found)
