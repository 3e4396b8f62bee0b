"""ONNX models from files and as objects: what is read, and what is refused by which sentence."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.cli.app import command_line
from memsched.cli.complete import complete_problems
from memsched.errors import MemschedError
from memsched.readers.onnx.model import graph_from_onnx
from memsched.study.sources import find_problem

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from test_readers_onnx import constant, helper, mlp, model, node, proto, residual, value  # noqa: E402  # needs onnx


def test_files_bytes_and_functions(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(residual(), path)
    expected = graph_from_onnx(residual(), dims={"batch": 2})
    assert graph_from_onnx(path, dims={"batch": 2}) == expected
    assert graph_from_onnx(str(path), dims={"batch": 2}) == expected
    onnx.save_model(residual(), path, save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    assert graph_from_onnx(path, dims={"batch": 2}) == expected
    made = mlp()
    before = made.SerializeToString()
    graph_from_onnx(made, dims={"N": 8})
    assert made.SerializeToString() == before
    activation = helper.make_function("mine", "Act", ["a"], ["b"], [node("Relu", "a", "b")], made.opset_import)
    made.functions.append(activation)
    made.opset_import.append(helper.make_opsetid("mine", 1))
    made.graph.node[1].CopyFrom(helper.make_node("Act", ["h"], ["r"], domain="mine"))
    assert len(graph_from_onnx(made, dims={"N": 8}).ops) == 7


def test_unnamed_dimensions_and_old_models_whose_weights_are_inputs() -> None:
    made = mlp()
    made.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    made.graph.input.append(value("w1", [3, 5]))
    with pytest.raises(ms.InvalidInputError, match=r"give Graph.from_onnx dims=\{'x\[0\]': \.\.\}"):
        graph_from_onnx(made)
    assert graph_from_onnx(made, dims={"x[0]": 8}).resident == graph_from_onnx(mlp(), dims={"N": 8}).resident


def without_dims(**options: Any) -> Any:
    return graph_from_onnx(mlp(), **options)


def of(nodes: list[Any], inputs: list[Any] | None = None, constants: list[Any] | None = None) -> Any:
    outputs = [nodes[-1].output[0]]
    weights = [constant("w", (3, 3))] if constants is None else constants
    return graph_from_onnx(model(nodes, inputs or [value("x", [3, 3])], outputs, weights))


def branch() -> Any:
    inner = helper.make_graph([node("Relu", "h", "z")], "inner", [], [value("z", [3, 3])])
    return node("If", "c", "y", name="if", then_branch=inner, else_branch=inner)


REFUSED: list[tuple[Any, str]] = [
    (lambda: graph_from_onnx(None), "source is None; give an onnx.ModelProto"),
    (lambda: graph_from_onnx(onnx.ModelProto()), "the model has no ops"),
    (lambda: without_dims(), "the dimensions 'N' of the inputs have no value; give Graph.from_onnx dims={'N': ..}"),
    (lambda: without_dims(dims={"N": 0}), "dims\\['N'\\] is 0"),
    (
        lambda: without_dims(dims={"N": 1, "M": 2}),
        "no input of the model has a dimension 'M'; those without a number are 'N'",
    ),
    (lambda: without_dims(dims={"n": 2}), "has a dimension 'n'; did you mean 'N'. those without a number are 'N'"),
    (lambda: without_dims(dims={"N": 1}, device="abacus"), "device is 'abacus'; it must be one of v100, a100"),
    (lambda: without_dims(dims={"N": 1}, device=3), "device is 3"),
    (lambda: without_dims(dims={"N": 1}, times={"fc": 1}), "times has 'fc', which are no ops; ops are 'fc1', 'relu'"),
    (lambda: without_dims(dims={"N": 1}, times={"fc1": -1}), r"times\['fc1'\] is -1"),
    (lambda: without_dims(dims={"N": 1}, times={"fc1": (1, 2, 3)}), r"times\['fc1'\] is \(1, 2, 3\); it must be"),
    (lambda: without_dims(dims={"N": 1}, batch=0), "batch is 0"),
    (lambda: without_dims(dims={"N": 1}, name=3), "name is 3"),
    (lambda: without_dims(dims={"N": 2**52}), r"must be at most 2\^53"),
    (lambda: of([node("MatMul", "x q", "y", name="mm")]), "op 'mm' reads 'q', which no op before it writes"),
    (lambda: of([node("Relu", "x", "y")]), "no output of the model depends on a parameter"),
    (
        lambda: of([node("MatMul", "x w", "h"), node("Mystery", "h", "y", name="m", domain="odd")]),
        "cannot be inferred: .*odd",
    ),
    (lambda: of([node("MatMul", "x w", "h"), node("NonZero", "h", "y")]), "of tensor 'y' cannot be inferred"),
    (
        lambda: of([node("MatMul", "x w", "h"), node("Cast", "h", "c", to=9), branch()]),
        "op '.*' is a If, which has ops",
    ),
    (lambda: of([node("Relu", "s", "y")], [value("s", [3], proto.STRING)]), "tensor 's' has the type string"),
    (
        lambda: of([node("Relu", "x", "y")], [value("x", None)]),
        "input 'x' is not a tensor with a known number of dimensions",
    ),
    (
        lambda: of([node("Relu", "x", "y")], [helper.make_tensor_sequence_value_info("x", proto.FLOAT, [3])]),
        "input 'x' is not a tensor",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED)
def test_refused(call: Any, told: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        call()


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for content in (b"", b"\x00\x01", b"hello", mlp().SerializeToString()[:-5]):
        path.write_bytes(content)
        with pytest.raises(ms.InvalidInputError, match=r"not an ONNX model|has no ops"):
            graph_from_onnx(path)
    with pytest.raises(ms.InvalidInputError, match="cannot be read"):
        graph_from_onnx(tmp_path)


@given(st.data())
def test_any_damage_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from([mlp, residual]))().SerializeToString())
    end = content.index(b"w1") if data.draw(st.booleans()) else len(content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    path.write_bytes(bytes(content))
    with contextlib.suppress(ms.InvalidInputError):
        graph_from_onnx(path, dims={"N": 2} if b"fc1" in content else {"batch": 2})


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MemschedError, match="needs the package onnx: pip install onnx"):
        graph_from_onnx("net.onnx")


def test_a_model_whose_exporter_names_all_alike_has_the_name_of_its_file(tmp_path: Path) -> None:
    """All exports of PyTorch were called main_graph."""
    for own, told in (("main_graph", "net"), ("", "net"), ("resnet", "resnet")):
        model = mlp()
        model.graph.name = own
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        assert graph_from_onnx(tmp_path / "net.onnx", dims={"N": 2}).name == told
        assert graph_from_onnx(model, dims={"N": 2}).name == (own or "graph")


def test_dimensions_are_stated_behind_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was no way to do so on the command line and in sweeps."""
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(mlp().SerializeToString())
    assert find_problem("net.onnx?N=4") == graph_from_onnx("net.onnx", dims={"N": 4})
    for typed, told in (
        ("net.onnx", r"or on the command line write 'model.onnx\?N=..'"),
        ("net.onnx?n=4", "has a dimension 'n'; did you mean 'N'"),
        ("net.onnx?N=many", r"'N=many' of 'net.onnx\?N=many' is no dimension with a size"),
        ("net.onnx?N=4&N=8", r"'net.onnx\?N=4&N=8', which gives dimension 'N' twice"),
        ("net.onnx?", "'' of 'net.onnx.' is no dimension with a size"),
    ):
        with pytest.raises(ms.InvalidInputError, match=told):
            find_problem(typed)
    outcome = CliRunner().invoke(command_line, ["order", "net.onnx?N=4", "--json"], prog_name="memsched")
    assert json.loads(outcome.stdout)["problem"] == "net"
    outcome = CliRunner().invoke(command_line, ["order", "net.onnx?N=4", "-o", "net.onnx"], prog_name="memsched")
    assert outcome.exit_code == 2
    assert [
        one.value for one in complete_problems(click.Context(command_line), command_line.params[0], "net.onnx?")
    ] == ["net.onnx?N="]
    [row] = ms.sweep("net.onnx?N=4", "selective", memory=["100%"], beta=["12GB/s"])
    assert (row["problem"], row["status"]) == ("net", "planned")
