"""Write python/memsched/_core.pyi, the types of the C++ extension, or check that it is up to date.

    python tools/stubs.py           writes
    python tools/stubs.py --check   fails when the file is stale

pybind11-stubgen reads the names, defaults and docstrings from the installed extension. Types that a binding
cannot express (a list of numbers, an array of bytes) are in the tables below. Any other name keeps the type
that stubgen found.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import memsched
import memsched._core

STUB = Path(__file__).resolve().parent.parent / "python" / "memsched" / "_core.pyi"

HEADER = "# Written by tools/stubs.py from the extension; do not edit.\n# ruff: noqa: E501\n"

# _Number: int, float and numpy scalars; not str. _Column: lists, tuples and arrays of them, or of texts with units.
ALIASES = """
_Number = typing.SupportsFloat | typing.SupportsIndex
_Column = typing.Iterable[_Number | str]
_Flags = numpy.typing.NDArray[numpy.uint8]
_Seconds = numpy.typing.NDArray[numpy.float64]
_Bytes = numpy.typing.NDArray[numpy.int64]
_Document = dict[str, typing.Any]
"""

# Arguments that a binding takes as any object, by name, or by class or function and name.
ARGUMENTS = {
    "Graph.name": "str",
    "Schedule.graph": "str",
    "Schedule.memory": "str",
    "activation": "_Column",
    "backward_overhead": "_Column | None",
    "backward_time": "_Column",
    "bandwidth": "_Number | str | None",
    "batch": "_Number",
    "budget": "_Number",
    "border": "typing.Mapping[str, str] | None",
    "chunk": "_Number | str | None",
    "d2h": "_Number | str | None",
    "duplex": "bool",
    "forward_overhead": "_Column | None",
    "from_csv.resident": "_Number | str",
    "from_frame.resident": "_Number | str",
    "from_networkx.batch": "_Number | None",
    "from_networkx.name": "str | None",
    "from_networkx.resident": "_Number | str | None",
    "from_onnx.batch": "_Number | None",
    "from_onnx.constants": "typing.Iterable[str]",
    "from_onnx.device": "str",
    "from_onnx.dims": "typing.Mapping[str, int] | None",
    "from_onnx.name": "str | None",
    "from_onnx.source": "typing.Any",
    "from_onnx.times": "typing.Mapping[str, typing.Any] | None",
    "forward_time": "_Column",
    "gradient": "_Column | None",
    "h2d": "_Number | str | None",
    "host_memory": "_Number | str | None",
    "latency": "_Number | str",
    "memory": "_Number | str",
    "name": "str | None",
    "names": "typing.Iterable[str] | None",
    "ops": "typing.Iterable[_Document]",
    "path": "str | os.PathLike[str]",
    "pieces": "typing.Iterable[_Column] | None",
    "planner": "_Document | None",
    "progress": "typing.Callable[[float], object] | None",
    "provenance": "_Document | None",
    "resident": "_Number | str",
    "rounds": "typing.Iterable[typing.Iterable[_Number]] | None",
    "with_rounds.rounds": "typing.Iterable[typing.Iterable[_Number]]",
    "saved": "_Column | None",
    "source": "_Document | str | os.PathLike[str]",
    "steps": "typing.Iterable[_Document]",
    "tensors": "typing.Iterable[_Document]",
    "transient_overhead": "_Column | None",
}

# What properties return, where the binding returns an object, a tuple or an array.
RETURNS = {
    "Chain.activation": "_Bytes",
    "Chain.backward_overhead": "_Bytes",
    "Chain.backward_time": "_Seconds",
    "Chain.forward_overhead": "_Bytes",
    "Chain.forward_time": "_Seconds",
    "Chain.gradient": "_Bytes",
    "Chain.names": "tuple[str, ...]",
    "Chain.pieces": "list[list[int]] | None",
    "Chain.provenance": "_Document | None",
    "Chain.saved": "_Bytes",
    "Chain.transient_overhead": "_Bytes",
    "Device.name": "str | None",
    "DynprogSolution.offloaded": "_Flags",
    "Graph.ops": "list[_Document]",
    "Graph.persistent": "tuple[str, ...]",
    "Graph.tensors": "list[_Document]",
    "Schedule.border": "dict[str, str]",
    "Schedule.chunk": "int | str | None",
    "Schedule.planner": "_Document",
    "Schedule.rounds": "tuple[tuple[int, int], ...]",
    "Schedule.steps": "tuple[_Document, ...]",
    "Schedule.with_rounds": "Schedule",
    "Timeline.end": "_Seconds",
    "Timeline.memory": "tuple[_Seconds, _Bytes]",
    "Timeline.start": "_Seconds",
}

# Types without parameters, which strict type checkers refuse.
BARE = {
    "dict": "_Document",
    "list": "list[typing.Any]",
    "numpy.ndarray": "numpy.typing.NDArray[typing.Any]",
    "tuple": "tuple[typing.Any, ...]",
}


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class Parameters(ast.NodeTransformer):
    """Gives bare types their parameters."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.slice, ast.Tuple) and ast.unparse(node.value) == "typing.Annotated":
            return node.slice.elts[0]
        node.slice = self.visit(node.slice)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return expression(BARE.get(ast.unparse(node), ast.unparse(node)))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return expression(BARE.get(node.id, node.id))


def improved(annotation: ast.expr) -> ast.expr:
    text = ast.unparse(annotation)  # newer pybind11 writes plain numbers as protocols
    text = text.replace("typing.SupportsFloat | typing.SupportsIndex", "float")
    text = text.replace("typing.SupportsInt | typing.SupportsIndex", "int")
    result = Parameters().visit(expression(text))
    assert isinstance(result, ast.expr)
    return result


def improve_function(function: ast.FunctionDef, owner: str) -> None:
    for argument in function.args.args + function.args.kwonlyargs:
        if argument.annotation is not None:
            anything = ast.unparse(argument.annotation) == "typing.Any"
            names = (f"{function.name}.{argument.arg}", f"{owner}.{argument.arg}", argument.arg) if anything else ()
            known = next((ARGUMENTS[name] for name in names if name in ARGUMENTS), None)
            argument.annotation = expression(known) if known else improved(argument.annotation)
    if function.name == "__eq__":
        function.args.args[1] = ast.arg("other", expression("object"))
    if function.returns is not None:
        known = RETURNS.get(f"{owner}.{function.name}")
        function.returns = expression(known) if known else improved(function.returns)


def document(node: ast.AST, shown: bool) -> None:
    """Keep the docstrings of what users see, as the rest of the project writes them; the bindings have the others."""
    documented = (ast.FunctionDef, ast.ClassDef)
    for one in (part for part in ast.walk(node) if isinstance(part, documented)):
        text = ast.get_docstring(one)
        if text is None:
            continue
        if shown:
            one.body[0] = ast.Expr(ast.Constant(text if "\n" not in text else f"{text}\n"))
        else:
            one.body = [*one.body[1:]] or [ast.Expr(ast.Constant(...))]


def private(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and all((a.asname or a.name).startswith("_") for a in node.names)


def improve(stub: str) -> str:
    module = ast.parse(stub)
    module.body = [node for node in module.body if not private(node)]
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "__version__":
            node.value = None  # __init__.py says it, and nothing else
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            document(node, shown=getattr(memsched, node.name, None) is getattr(memsched._core, node.name))
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef):
                improve_function(member, node.name if isinstance(node, ast.ClassDef) else "")
    first = next(i for i, node in enumerate(module.body) if isinstance(node, ast.ClassDef | ast.FunctionDef))
    module.body[first:first] = ast.parse(ALIASES).body
    imports = next(i for i, node in enumerate(module.body) if isinstance(node, ast.Import))
    module.body[imports:imports] = ast.parse("import os").body
    text = ast.unparse(ast.fix_missing_locations(module))
    text = text.replace(
        "__hash__: typing.ClassVar[None] = None",
        "__hash__: typing.ClassVar[None]  # type: ignore[assignment]",
    )
    return HEADER + "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


# The package wraps constructors of the core, to name the arguments in errors; the stub has the arguments themselves.
STUBGEN = """
from memsched import _core
from pybind11_stubgen import main
for kind in vars(_core).values():
    if isinstance(kind, type) and hasattr(kind.__init__, "__wrapped__"):
        kind.__init__ = kind.__init__.__wrapped__
main()
"""


def generate() -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", STUBGEN, "memsched._core", "--exit-code", "-o", folder]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            raise SystemExit(f"pybind11-stubgen failed; install the extension and the extra 'dev' first\n{done.stderr}")
        stub = improve((Path(folder) / "memsched" / "_core.pyi").read_text(encoding="utf-8"))
    for command in (["check", "--select", "I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"]
        stub = subprocess.run(ruff, input=stub, capture_output=True, text=True, check=True).stdout
    return stub


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the types of the C++ extension.")
    parser.add_argument("--check", action="store_true", help="fail when the file is stale instead of writing it")
    check = parser.parse_args().check
    stub = generate()
    if not check:
        STUB.write_text(stub, encoding="utf-8")
    elif not STUB.exists() or STUB.read_text(encoding="utf-8") != stub:
        raise SystemExit(f"{STUB.name} is stale: the extension has changed; run: python tools/stubs.py")


if __name__ == "__main__":
    main()
