"""A planned step as a Python program that needs PyTorch alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import memsched
from memsched.errors import InvalidInputError, visible
from memsched.support.documents import Document, Source
from memsched.support.files import check_named, path_of, write_bytes
from memsched.support.formats import exact_bytes
from memsched.torch.compiled import program
from memsched.torch.compiled.as_graph import Visit
from memsched.torch.compiled.calls import cheapen
from memsched.torch.compiled.compiled_plan import CompiledPlan, on_inputs
from memsched.torch.compiled.joint import Joint, module_of
from memsched.torch.compiled.look import Look, check_model, look
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import plan_for_another
from memsched.torch.compiled.rewrite import rewrite
from memsched.torch.compiled.source import comment, literal, quoted, source_of, table
from memsched.torch.compiled.special_groups import form_in, form_of
from memsched.torch.compiled.split import steps_of
from memsched.torch.compiled.witness import BUFFER, ELSEWHERE, INPUT, PARAMETER, RESULT, End, Witness, paths_of
from memsched.torch.errors import CaptureError, told
from memsched.torch.module_state import check_same, named_places
from memsched.torch.nests import tensors_of
from memsched.torch.plan_document import read_plan
from memsched.torch.profile import named_model
from memsched.torch.verify import unit_of_budget

_SPACES = {PARAMETER: "params", BUFFER: "buffers", INPUT: "inputs"}
_HELPERS = {"offload": program.COPIES, "kept": program.KEPT, "laid": program.LAID, "random_state": program.RANDOM}


def export(
    path: str | os.PathLike[str],
    plan: CompiledPlan,
    document: Document,
    options: Options,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> None:
    """Write the step of a model that follows a plan as a program. The graph is captured anew: a plan holds none."""
    check_named(path_of(path), "a Python program", ".py")
    check_model(model)
    witness = Witness()
    with told(model, args, kwargs):
        seen = look(model, args, dict(kwargs or {}), options, witness=witness)
        try:
            visit = _checked(seen, witness)
            followed, given = _followed(seen, plan, document, options), (args, dict(kwargs or {}))
            title = _title(plan, model, given, witness.objects)  # of the plan, which knows the loss
            text = _program(visit, witness, followed, title, model, given)
        except CaptureError as error:
            raise CaptureError(f"the step of {type(model).__name__} cannot be exported: {error}") from None
    write_bytes(path, text.encode("ascii"))


def export_spec(
    path: str | os.PathLike[str], plan: Source, model: str, input: str | None = None, *, autocast: str | None = None
) -> CompiledPlan:
    """`export` of a saved plan, for a model that a line of text names, as `profile_spec` takes it. Returns the plan."""
    read = read_plan(plan)
    with named_model(model, input, where=read["device"].type, autocast=autocast) as built:
        check_same(read["parameters"], built.model)
        export(path, read["plan"], read["document"], read["options"], built.model, built.args, None)
    return read["plan"]


def _followed(seen: Look, plan: CompiledPlan, document: Document, options: Options) -> CompiledPlan:
    """The plan, simulated and validated for the captured step, whatever graph its file has."""
    if plan.visits != 1 or form_of(seen.visits[0]) != form_in(plan.result.graph, ""):
        raise InvalidInputError(plan.is_not_of(on_inputs(seen.visits[0].inputs)))
    budget = plan.result.schedule.budget  # in bytes: a percentage was one of the step with its loss
    found = plan_for_another(seen.visits, [seen.returns], plan.resident, replace(options, budget=budget), document)
    if found is None:
        raise InvalidInputError("the steps of the plan do not run the captured step within its budget; plan it again")
    return found


def _checked(seen: Look, witness: Witness) -> Visit:
    """The only graph of a step, if a program can hold what is around it."""
    if seen.unplanned:
        raise CaptureError(f"a part of it is not captured: {seen.unplanned[0]}")
    if len(seen.visits) > 1:
        raise CaptureError(
            f"it is captured in {len(seen.visits)} graphs, and a program holds one; remove the graph breaks "
            "(TORCH_LOGS=graph_breaks names them)"
        )
    if witness.changed:
        raise CaptureError(f"its forward changes the attribute {visible(witness.changed[0])}, which a program does not")
    visit, (takes,) = seen.visits[0], witness.takes
    joint = visit.joint
    if joint.device.type not in ("cpu", "cuda"):
        raise CaptureError(f"it runs on {joint.device.type}, and programs run on CPUs and CUDA's GPUs")
    if joint.sizes:
        raise CaptureError("its sizes vary; take the marks of dynamic sizes away")
    for node in (op.node for op in joint.operations):
        if not isinstance(node.target, torch._ops.OpOverload):
            called = next((one for one in node.args if isinstance(one, torch._ops.OpOverload)), node.target)
            raise CaptureError(f"it runs {called}, as a call that holds others or keeps an order ({node.target})")
    for k, end in enumerate(takes):
        if end.kind == ELSEWHERE:
            where = f" {end.name!r}" if end.name else ""
            raise CaptureError(
                f"it reads a tensor{where} that is no parameter, buffer or input; keep it by register_buffer"
            )
        if k in joint.new_values.values() and (end.kind != BUFFER or end.differentiable):
            raise CaptureError(f"its forward changes the {end} in place, and a program changes buffers alone")
    if not joint.whole.isdisjoint(joint.storages_in(joint.primals)):
        raise CaptureError("it reads the memory of a parameter, a buffer or an input by as_strided")
    return visit


def _results(joint: Joint, witness: Witness) -> list[str]:
    """The expressions of what the model returns, in a program whose graph has `found`."""
    taking, known = _tangents(joint), set(witness.hidden)
    known.update(int(end.name) for some in witness.results for end in some if end.kind == RESULT)
    outputs = [k for k in range(len(joint.results)) if k not in joint.new_values]
    beside = [k for k in outputs if isinstance(joint.results[k], torch.fx.Node) and k not in known]
    if beside:
        node = joint.results[beside[0]]
        where = f" in {module!r}" if (module := module_of(node)) else ""
        raise CaptureError(
            f"its forward computes a tensor ({node.name}{where}) that it does not return, but keeps or changes; a "
            "buffer may change by add_, copy_ and the like, and not by += or ="
        )
    found = []
    for k, some in enumerate(witness.results):
        if some[0].kind == ELSEWHERE:
            raise CaptureError(f"result {k} of the model is made outside of its graph")
        alike = [end for end in some if (end.kind == RESULT and int(end.name) in taking) == end.differentiable]
        if not alike:
            raise CaptureError(f"result {k} of the model is a view of an input, a parameter or another result")
        end = alike[0]
        found.append(f"found[{outputs.index(int(end.name))}]" if end.kind == RESULT else _expression(end))
    return found


def _tangents(joint: Joint) -> list[int]:
    """The results, by their places, whose gradients the backward takes."""
    (output,) = joint.module.graph.find_nodes(op="output")
    places = {one: k for k, one in enumerate(output.meta["desc"][: len(joint.results)])}
    made = [getattr(node.meta.get("desc"), "output", None) for node in joint.tangents]
    if not all(one in places for one in made):
        raise CaptureError("its results are views of each other or of its inputs")
    return [places[one] for one in made]


def _program(
    visit: Visit, witness: Witness, plan: CompiledPlan, title: Iterable[str], model: torch.nn.Module, given: Any
) -> str:
    """The text of the file."""
    joint, (takes,) = visit.joint, witness.takes
    ends = _results(joint, witness)
    made = rewrite(joint, *steps_of(plan.result.schedule.steps, 0, 1), visit.sizes)
    cheapen(made.forward.graph)
    cheapen(made.backward.graph)
    source = source_of(joint, made, list(map(_expression, takes)), list(map(_key, takes)))
    lines = [*title, *program.HEAD.splitlines()]
    if source.namespaces:
        lines += ["", f"# Import first what defines torch.ops.{', torch.ops.'.join(sorted(source.namespaces))}."]
    lines += ["", *_tables(joint, takes, model, given)]
    gradients = zip(_tangents(joint), joint.tangents, strict=True)
    lines += ["# Of the results that get a gradient: shape, strides, type and device."]
    lines += table(
        "GRADIENTS", {str(source.outputs.index(k)): _row(one, one.meta["val"].device) for k, one in gradients}
    )
    lines += source.constants
    lines += ["", "", "def forward(params, buffers, *inputs):"]
    lines += ['    """The results of the graph, and what `backward` needs."""']
    lines += [f"    {one}" for one in source.forward] + ["    return outputs, saved"]
    lines += ["", "", "def backward(saved, gradients):"]
    lines += ['    """The gradients of parameters, by name, and of inputs, by number. Empties both lists."""']
    lines += [f"    {one}" for one in source.backward]
    lines += ["", "", "def results(params, buffers, inputs, found):", '    """What the model returns."""']
    if len(ends) == 1:
        lines += [f"    return {ends[0]}"]
    else:
        names = map(comment, witness.names)
        lines += [
            "    return (",
            *(f"        {one},  # {name}" for one, name in zip(ends, names, strict=True)),
            "    )",
        ]
    parts = [part for name, part in _HELPERS.items() if name in source.helpers]
    return "\n".join(lines) + "\n" + "".join([program.RUN, *parts])


def _title(plan: CompiledPlan, model: torch.nn.Module, given: Any, left: Sequence[str]) -> Iterator[str]:
    """What the program is, as comments."""
    name, result = comment(type(model).__name__), plan.result
    yield f"# A training step of {name}, planned by memsched {memsched.__version__} ({comment(result.planner)})"
    budget, peak = (exact_bytes(one, unit_of_budget(plan)) for one in (result.schedule.budget, plan.peak_memory))
    yield f"# for {budget}: at most {peak} of the whole process,"
    yield f"# with what the caller holds. Made with PyTorch {comment(torch.__version__)}."
    told = [f"{name}={value!r}" for name, value in _leaves_of(given) if type(value) in (bool, int, float, str)]
    if told:
        yield f"# The model was called with {comment(', '.join(told))}, which is part of the program."
    if left:
        yield f"# The model also returns {comment(', '.join(left))}, which the program leaves out."


def _tables(joint: Joint, takes: Sequence[End], model: torch.nn.Module, given: Any) -> Iterator[str]:
    """What the program takes, and what else it knows of the model."""
    rows: dict[str, dict[str, str]] = {kind: {} for kind in _SPACES}
    for end, node in zip(takes, joint.primals, strict=True):
        if end.kind != INPUT:
            rows[end.kind][quoted(end.name)] = _row(node, node.meta["val"].device.type, end.differentiable)
    inputs = list(zip(_names_of(given), tensors_of(given), strict=True))
    rows[INPUT] = {quoted(name): _row(one, one.device.type, one.requires_grad) for name, one in inputs}
    yield "# Of each tensor: shape, strides, type, device, and whether it needs a gradient."
    for kind, name in _SPACES.items():
        yield from table(name.upper(), rows[kind])
    read, first = {end.name for end in takes}.union(f"input {name}" for name, _ in inputs), dict[int, str]()
    named = [*named_places(model), *((f"input {name}", one) for name, one in inputs)]
    same = [(name, first.setdefault(id(one), name)) for name, one in named]
    yield "# Names of the same tensor."
    yield from table("TIED", {quoted(name): quoted(one) for name, one in same if name != one and one in read})
    written = [takes[k].name for k in sorted(set(joint.new_values.values()))]
    yield "# Buffers that the step changes."
    yield from table("WRITTEN", {quoted(name): "True" for name in written})
    quiet = [quoted(name) for name, module in model.named_modules() if not module.training]
    yield f"EVAL = [{', '.join(quiet)}]  # modules in eval mode"
    yield f"COUNT = {len(list(model.parameters()))}  # of the model's parameters"
    yield f"DEVICE, DEFAULT_DTYPE = {literal(joint.device.type)}, {torch.get_default_dtype()}"


def _row(one: Any, *more: Any) -> str:
    """What a tensor, or the value of a node, must be."""
    value = one.meta["val"] if isinstance(one, torch.fx.Node) else one
    shape, stride = (repr(tuple(map(int, sizes))) for sizes in (value.shape, value.stride()))
    return f"({', '.join((shape, stride, str(value.dtype), *map(literal, more)))})"


def _expression(end: End) -> str:
    return f"{_SPACES[end.kind]}[{_key(end)}]"


def _key(end: End) -> str:
    return end.name if end.kind == INPUT else quoted(end.name)


def _leaves_of(given: Any) -> list[tuple[str, Any]]:
    """What a model is called with, by names such as "args[0]" and "labels"."""
    args, kwargs = given
    named = [*((f"args[{k}]", one) for k, one in enumerate(args)), *kwargs.items()]
    return [(name + path, one) for name, value in named for path, one in paths_of(value)]


def _names_of(given: Any) -> list[str]:
    """Those of its tensors."""
    tensors = tensors_of(given)
    found = [name for name, one in _leaves_of(given) if isinstance(one, torch.Tensor)]
    return found if len(found) == len(tensors) else [f"tensor {k}" for k in range(len(tensors))]
