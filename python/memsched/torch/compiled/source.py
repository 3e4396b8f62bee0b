"""The graphs of a planned step as the source of two Python functions."""

from __future__ import annotations

import builtins
import itertools
import keyword
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from memsched.torch.compiled import calls, copies, layouts, randomness
from memsched.torch.compiled.joint import Joint, module_of
from memsched.torch.compiled.layouts import lies_in
from memsched.torch.compiled.private import RUNS_AGAIN
from memsched.torch.compiled.rewrite import Rewritten
from memsched.torch.errors import CaptureError
from memsched.torch.nests import tensors_of

WIDTH, _INDENT = 100, "    "
_MOST = 1024  # elements of a constant that is written out
_OWN = """
    torch aten contextlib params buffers inputs outputs saved gradients results found model loss forward backward run
    step Host Program offload offloaded prefetch arrived laid kept random_state again
"""
RESERVED = frozenset([*keyword.kwlist, *dir(builtins), *_OWN.split()])
"""Names that no variable of a program gets."""

_aten = torch.ops.aten
_BACK = {function: op for op, function in calls._ON_CPU.items()}  # the program has no memsched
_ROW_MAJOR = {"mm", "addmm", "bmm", "baddbmm"}  # write so whatever they read
_AS_READ = {"embedding", "cat", "sum", "mean", "clone", "_to_copy", "native_dropout", "native_dropout_backward"} | {
    *("native_layer_norm", "native_layer_norm_backward", "_softmax", "_softmax_backward_data", "_log_softmax"),
    *("_log_softmax_backward_data", "embedding_dense_backward", "nll_loss_backward", "constant_pad_nd", "full"),
}
"""Write rows one after another where they read such, as operations on single elements do."""


@dataclass(slots=True)
class Source:
    """Two functions as text, and what else their module needs."""

    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    """The results of the graph that the forward returns; the others are new values of buffers."""
    constants: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    """Functions that the two call: offload, laid, kept, again."""
    namespaces: set[str] = field(default_factory=set)
    """Of operators that are none of PyTorch's own."""


def source_of(joint: Joint, made: Rewritten, takes: Sequence[str], keys: Sequence[str]) -> Source:
    """Write forward and backward, whose primals are these expressions, and have their gradients under these keys.

    Raises
    ------
    CaptureError
        Something of the step has no source, named in the message.
    """
    found = Source()
    forward = _Printer(joint, made.forward, found)
    for node, expression, primal in zip(_placeholders(made.forward), takes, joint.primals, strict=True):
        forward.names[node] = forward.new(re.sub(r"^(params|buffers)\W+", "", expression))
        if primal.users or primal in joint.results:
            forward.lines += _assigned(forward.names[node], expression)
    forward.given = set(forward.names.values())
    returned = forward.write()
    results, saved = returned[: len(joint.results)], returned[len(joint.results) :]
    for k, place in joint.new_values.items():
        forward.lines.append(f"{forward.names[_placeholders(made.forward)[place]]}.copy_({forward.text(results[k])})")
    found.outputs = [k for k in range(len(results)) if k not in joint.new_values]
    forward.lines += _listed("outputs = ", [forward.text(results[k]) for k in found.outputs], "()")
    forward.lines += _listed("saved = ", [forward.text(one) for one in saved], "[]")

    backward = _Printer(joint, made.backward, found)
    placeholders = _placeholders(made.backward)
    kept, arriving = placeholders[: len(saved)], placeholders[len(saved) :]
    for node, one in zip(kept, saved, strict=True):
        backward.names[node] = backward.new(forward.text(one))
        backward.seen.update({id(one.meta["val"])} if "val" in one.meta else ())
    for node in arriving:
        backward.names[node] = backward.new("gradient")
    for text, nodes in (("saved", kept), ("gradients", arriving)):
        if nodes:
            backward.lines += _listed("", [backward.names[one] for one in nodes], "()", f" = {text}")
            backward.lines.append(f"{text}.clear()")
    unread = [backward.names[one] for one in placeholders if not one.users]
    backward.lines += _listed("del ", unread, "") if unread else []
    pairs = [(key, one) for key, one in zip(keys, backward.write(), strict=True) if one is not None]
    if len(dict(pairs)) < len(pairs):
        raise CaptureError("it reads a parameter or an input in two ways that share memory")
    backward.lines += _listed("return ", [f"{key}: {backward.text(one)}" for key, one in pairs], "{}")
    found.forward, found.backward = forward.lines, backward.lines
    return found


def literal(value: Any) -> str:
    """The source of what an operation is given beside tensors."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, torch.SymInt):
        return int.__repr__(value)
    if isinstance(value, float):
        text = float.__repr__(value)
        return text if text[-1].isdigit() else f'float("{text}")'
    if isinstance(value, complex):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    raise CaptureError(f"a {type(value).__name__} among the arguments of an operation cannot be written as source")


def quoted(text: str) -> str:
    """A string as source."""
    written = ascii(str(text))
    return written if '"' in written or "\\" in written else f'"{written[1:-1]}"'


def row_major(one: torch.Tensor) -> bool:
    """Whether the elements of a traced tensor lie row after row."""
    return lies_in(range(one.dim()), one.shape, one.stride())


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _listed(start: str, parts: Sequence[str], brackets: str, end: str = "") -> list[str]:
    """A list as a line, or as several where it is long."""
    left, right = brackets[:1], brackets[1:]
    comma = "," if left == "(" and len(parts) == 1 else ""
    line = f"{start}{left}{', '.join(parts)}{comma}{right}{end}"
    if len(_INDENT + line) <= WIDTH:
        return [line]
    return [f"{start}{left or '('}", *(f"{_INDENT}{one}," for one in parts), f"{right or ')'}{end}"]


def _assigned(name: str, expression: str) -> list[str]:
    if len(line := f"{name} = {expression}") <= WIDTH - len(_INDENT):
        return [line]
    return [f"{name} = (", f"{_INDENT}{expression}", ")"]


class _Printer:
    """Writes one of the two functions."""

    def __init__(self, joint: Joint, module: fx.GraphModule, found: Source) -> None:
        self._joint, self._module, self._found = joint, module, found
        values = [(op.node.meta.get("val"), op.node) for op in joint.operations]
        self._operations = {id(value): node for value, node in values if value is not None}
        self.lines: list[str] = []
        self.names: dict[fx.Node, str] = {}
        self.given = set[str]()  # variables that stay
        self.seen = set[int]()  # what ran already
        self._taken = set(RESERVED)
        self._at = ""  # the module of the last line
        self._order: list[fx.Node] = list(module.graph.nodes)

    def new(self, text: str) -> str:
        """A name for a variable."""
        words = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:60] or "value"
        words = re.sub(r"^(?=\d)", "v_", words)
        tries = (words if k == 0 else f"{words}_{k}" for k in itertools.count())
        found = next(one for one in tries if one not in self._taken)
        self._taken.add(found)
        return found

    def text(self, value: Any) -> str:
        """The source of an argument."""
        if isinstance(value, fx.Node):
            return self.names[value]
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.text, value))}]"
        return literal(value)

    def write(self) -> list[Any]:
        """Write all operations; returns what the graph returns."""
        (output,) = self._module.graph.find_nodes(op="output")
        for node in self._order:
            self._name(node)
        last: dict[str, int] = {}
        for k, node in enumerate(self._order):
            last.update({self.names[one]: k for one in (node, *node.all_input_nodes) if one in self.names})
        ends: dict[int, list[str]] = {}
        for name, k in last.items():
            if name not in self.given:
                ends.setdefault(k, []).append(name)
        for k, node in enumerate(self._order):
            if node.op in ("call_function", "call_method"):
                unread = self._statement(node)
                if gone := [*unread, *ends.get(k, ())]:
                    self.lines += _listed("del ", gone, "")
        return list(output.args[0])

    def _name(self, node: fx.Node) -> None:
        """Choose the variable in which the value of a node lies."""
        target: Any = node.target
        if node.op in ("placeholder", "output") or target is copies.gone:
            return
        source: Any = node.args[0] if node.args else None
        if node.op == "get_attr":
            self.names[node] = self._constant(str(target))
        elif target is copies.arrived or (target is layouts.laid and len(source.users) == 1):
            self.names[node] = self.names[source]
        elif target is copies.offload:
            self.names[node] = self.new(f"{self.names[source]}_host")
        elif target is copies.prefetch:
            self.names[node] = self.new(re.sub(r"_host(_\d+)?$", "", self.names[source]))
        elif target is operator.getitem:
            self.names[node] = self.new(f"{self._word(source)}_{node.args[1]}")
        elif not self._is_taken_apart(node):
            self.names[node] = self.new(self._word(node))

    def _is_taken_apart(self, node: fx.Node) -> bool:
        """Whether all that reads a call takes one of its results."""
        several = isinstance(node.meta.get("val"), list | tuple)
        return several and all(one.target is operator.getitem for one in node.users)

    def _word(self, node: fx.Node) -> str:
        """What an operation does."""
        target: Any = node.args[2] if node.target in (randomness.first, randomness.again) else node.target
        target = _BACK.get(target, target)
        if isinstance(target, str):
            return target
        name = target._opname if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "value")
        return re.sub(r"^_*native_|_legit|_functional$|^_scaled_", "", name)

    def _constant(self, name: str) -> str:
        value: Any = getattr(self._module, name, None)
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            raise CaptureError(f"it reads {name}, which is {type(value).__name__} and cannot be written as source")
        if value.numel() > _MOST:
            raise CaptureError(
                f"its forward makes a tensor of {value.numel()} numbers from values of Python ({name}), and a program "
                f"holds at most {_MOST}: keep it as a buffer (register_buffer)"
            )
        made = torch.tensor(value.tolist(), dtype=value.dtype)
        if not row_major(value) or not torch.equal(_bits(made), _bits(value)):
            raise CaptureError(f"the bits of {name}, a constant, cannot be written as numbers; keep it as a buffer")
        written = f"{name.upper().lstrip('_')}"
        device = "" if value.device.type == "cpu" else f", device={literal(value.device)}"
        self.given.add(written)
        line = f"{written} = torch.tensor({literal(value.tolist())}, dtype={value.dtype}{device})"
        if line not in self._found.constants:
            self._found.constants.append(line)
        return written

    def _statement(self, node: fx.Node) -> list[str]:
        """Write a call; returns variables that nobody reads."""
        target, args = node.target, node.args
        if target is operator.getitem and self._is_taken_apart(args[0]):
            return []
        if target is copies.offload:
            return self._call(node, "offload", [self.text(args[0])], note="to the host")
        elif target is copies.gone:
            return self._call(node, "offloaded", [self.text(args[1])])
        elif target is copies.prefetch:
            return self._call(node, "prefetch", [self.text(args[0])], note="from the host")
        elif target is copies.arrived:
            return self._call(None, "arrived", [self.text(args[1])])
        elif target is copies.kept:
            return self._call(node, "kept", [self.text(args[0])], note="as it is before the step changes it")
        elif target is layouts.laid:
            if not self._lies_so(node):
                return self._call(node, "laid", [self.text(args[0]), self.text(node.meta["val"].stride())])
        elif target is randomness.state:
            return self._call(node, "random_state", [literal(args[0])])
        elif target is randomness.first:
            return self._run(node, self._operator(args[2], node), args[3:])
        elif target is randomness.again:
            first = [self.text(args[0]), literal(args[1]), self._operator(args[2], node)]
            return self._run(node, f"again({', '.join(first)}", args[3:])
        elif node.op == "call_method":
            return self._run(node, f"{self.text(args[0])}.{target}", args[1:])
        elif target is operator.getitem:
            self.lines.append(f"{self.names[node]} = {self.text(args[0])}[{self.text(args[1])}]")
        else:
            return self._run(node, self._operator(target, node), args)
        return []

    def _run(self, node: fx.Node, function: str, args: Sequence[Any]) -> list[str]:
        """Write an operation of the step."""
        module, value = module_of(node), node.meta.get("val")
        if module and module != self._at:
            self.lines.append(f"# {comment(module)}")
            self._at = module
        known = id(value) in self._operations
        note = "recomputed" if known and (RUNS_AGAIN in node.meta or id(value) in self.seen) else ""
        self.seen.add(id(value))
        given = [*map(self.text, args), *(f"{name}={self.text(one)}" for name, one in node.kwargs.items())]
        if "(" in function:  # called by another
            function, first = function.split("(", 1)
            given = [first, *given]
        return self._call(node, function, given, note)

    def _call(self, node: fx.Node | None, function: str, given: Sequence[str], note: str = "") -> list[str]:
        if function in ("offload", "offloaded", "prefetch", "arrived", "laid", "kept", "again", "random_state"):
            self._found.helpers.add(function)
        targets, unread = [], []
        if node is not None and node in self.names:
            targets = [self.names[node]]
        elif node is not None and self._is_taken_apart(node):
            taken = {one.args[1]: self.names[one] for one in node.users}
            targets = [taken.get(k, "_") for k in range(len(node.meta["val"]))]
            unread = ["_"] if len(taken) < len(targets) else []
        target = ", ".join(targets) + ("," if targets and node not in self.names and len(targets) == 1 else "")
        said = f"  # {note}" if note else ""
        line = f"{target} = {function}(" if targets else f"{function}("
        if len(f"{_INDENT}{line}{', '.join(given)}){said}") <= WIDTH:
            self.lines.append(f"{line}{', '.join(given)}){said}")
            return unread
        if len(_INDENT + line + said) > WIDTH and node not in self.names:
            self.lines += ["(", *(f"{_INDENT}{one}," for one in targets)]
            line = f") = {function}("
        self.lines += [line + said, *(f"{_INDENT}{one}," for one in given), ")"]
        return unread

    def _operator(self, target: Any, node: fx.Node) -> str:
        """What calls an operation."""
        target = _BACK.get(target, target)
        if isinstance(target, torch._ops.OpOverload):
            parts = target.namespace, target._opname, target._overloadname
            if not all(map(str.isidentifier, parts)) or target.namespace in ("_c10d_functional", "c10d"):
                raise CaptureError(f"it runs {target}, which a program by itself cannot call")
            if target.namespace not in ("aten", "prims"):
                self._found.namespaces.add(target.namespace)
            return ("aten." if parts[0] == "aten" else f"torch.ops.{parts[0]}.") + ".".join(parts[1:])
        name = getattr(target, "__name__", "")
        if target is torch._C._nn.linear or target in calls._FUNCTIONS.values():
            return f"torch.{name}" if getattr(torch, name, None) is target else f"torch.nn.functional.{name}"
        raise CaptureError(f"it runs {name or target}, which holds graphs or is PyTorch's own, and has no source")

    def _lies_so(self, node: fx.Node) -> bool:
        """Whether the result of an operation surely lies as it was traced, so that the program need not look."""
        source: Any = node.args[0]
        if node.meta["val"].dim() <= 1:
            return True
        if source.target is operator.getitem:
            source = source.args[0]
        known = self._operations.get(id(source.meta.get("val")))
        target: Any = known.target if known is not None else None
        if known is None or not isinstance(target, torch._ops.OpOverload) or not row_major(node.meta["val"]):
            return False
        reads = [one for read in known.all_input_nodes for one in tensors_of(read.meta.get("val"))]
        plain = torch.Tag.pointwise in target.tags or target._opname in _AS_READ
        return target._opname in _ROW_MAJOR or (plain and all(map(row_major, reads)))


def comment(text: str) -> str:
    """A text that cannot end a comment."""
    return text.encode("unicode_escape").decode("ascii")


def _bits(one: torch.Tensor) -> torch.Tensor:
    return one.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def table(name: str, rows: Mapping[str, str]) -> list[str]:
    """A dict of the program, from the source of its keys and values."""
    inner = [f"{_INDENT}{key}: {row}," for key, row in rows.items()]
    return [f"{name} = {{", *inner, "}"] if inner else [f"{name} = {{}}"]
