"""Short ONNX models that say they are large: refused or read, and never computed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched.errors import MemschedError
from memsched.readers.onnx.model import graph_from_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from test_readers_onnx import FLOAT, constant, helper, mlp, model, node, proto, sizes, value  # noqa: E402  # needs onnx

HUGE = 2**40
NO_NUMBERS = ("UNDEFINED", "STRING", "FLOAT6")  # or of a type that memsched refuses where it is used
KINDS = {number: name for name, number in proto.DataType.items() if not name.startswith(NO_NUMBERS)}


def whole(name: str, numbers: Any) -> Any:
    return onnx.numpy_helper.from_array(np.array(numbers), name)


def with_constants(*constants: Any, nodes: list[Any] | None = None) -> Any:
    """A product, and constants that nothing needs."""
    return model(
        [node("MatMul", "x w", "y"), *(nodes or [])], [value("x", [2, 4])], ["y"], [constant("w", (4, 2)), *constants]
    )


def saying(one: Any, *dims: int) -> Any:
    """The constant with other dimensions than its numbers have."""
    changed = proto.FromString(one.SerializeToString())
    changed.dims[:] = dims
    return changed


def in_another_file(length: str | None) -> Any:
    one = saying(constant("k", (1,)), 8)
    one.ClearField("raw_data")
    one.data_location = proto.EXTERNAL
    one.external_data.add(key="location", value="weights")
    if length is not None:
        one.external_data.add(key="length", value=length)
    return one


# Constants with other numbers than their dimensions say.


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=KINDS.get)
def test_constants_of_every_type_have_the_numbers_of_their_dimensions(kind: int, raw: bool) -> None:
    """Sixteen and five elements, so that those of a few bits fill bytes, or do not."""
    for elements in (16, 5):
        numbers = np.zeros(elements, helper.tensor_dtype_to_np_dtype(kind))
        one = onnx.numpy_helper.from_array(numbers, "k")
        if not raw:
            one = helper.make_tensor("k", kind, [elements], numbers)
        assert one.HasField("raw_data") == raw
        graph_from_onnx(with_constants(one))
        for dims in ([elements + 8], [HUGE], [1], []):
            with pytest.raises(ms.InvalidInputError, match=r"initializer 'k' has \d+ .*, but its dimensions .* need"):
                graph_from_onnx(with_constants(saying(one, *dims)))


def test_constants_in_another_file_have_the_bytes_of_their_dimensions() -> None:
    for length in (None, "32"):
        graph_from_onnx(with_constants(in_another_file(length)))
    with pytest.raises(ms.InvalidInputError, match=r"has 8 bytes in another file, but its dimensions .* need 32"):
        graph_from_onnx(with_constants(in_another_file("8")))


def test_texts_and_dimensions_below_zero() -> None:
    text = helper.make_tensor("k", proto.STRING, [2], ["a", "b"])
    with pytest.raises(ms.InvalidInputError, match=r"has 2 numbers in string_data, but its dimensions .* need 3"):
        graph_from_onnx(with_constants(saying(text, 3)))
    with pytest.raises(
        ms.InvalidInputError, match=r"initializer 'k' has the dimensions .*, which must not be negative"
    ):
        graph_from_onnx(with_constants(saying(constant("k", (2, 2)), -2, -2)))


def in_a_node() -> Any:
    return with_constants(nodes=[helper.make_node("Constant", [], ["q"], value=saying(whole("", [0]), HUGE))])


def in_a_branch() -> Any:
    inner = helper.make_graph(
        [node("Identity", "k", "z")], "inner", [], [value("z", [1])], [saying(whole("k", 0), HUGE)]
    )
    return with_constants(nodes=[node("If", "c", "q", then_branch=inner, else_branch=inner)])


def in_a_function(branch: bool = False) -> Any:
    made = in_a_branch() if branch else in_a_node()
    body, opsets = [node("Relu", "a", "b"), made.graph.node[1]], [*made.opset_import]
    made.functions.append(helper.make_function("mine", "Act", ["a"], ["b"], body, opsets))
    made.opset_import.append(helper.make_opsetid("mine", 1))
    made.graph.node[1].CopyFrom(helper.make_node("Act", ["y"], ["q"], domain="mine"))
    return made


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (in_a_node, "attribute 'value' of op 'q' has 8 bytes"),
        (in_a_branch, "initializer 'k' has 8 bytes"),
        (in_a_function, "attribute 'value' of op 'q' has 8 bytes"),
        (lambda: in_a_function(branch=True), "initializer 'k' has 8 bytes"),
    ],
)
def test_constants_that_say_they_are_large_wherever_they_stand(
    made: Callable[[], Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", pytest.fail)
    with pytest.raises(ms.InvalidInputError, match=told):
        graph_from_onnx(made())


def test_models_without_their_weights_are_read() -> None:
    made = mlp()
    for one in made.graph.initializer:
        one.ClearField("raw_data")
    assert graph_from_onnx(made, dims={"N": 8}) == graph_from_onnx(mlp(), dims={"N": 8})


# Tensors that say they are large, and inference.


def huge_index(op: str) -> Any:
    """An input of 2^40 whole numbers, which a shape is indexed with, or cut by, or added to."""
    parts = {
        "Gather": [node("Shape", "h", "s"), node("Gather", "s e", "q")],
        "Slice": [node("Slice", "x e e", "q")],
        "Add": [node("Add", "e e", "q")],
    }[op]
    inputs = [value("x", [2, 4]), value("e", [HUGE], proto.INT64)]
    return model([node("MatMul", "x w", "h"), *parts], inputs, ["h"], [constant("w", (4, 2))])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory in this way")
@pytest.mark.parametrize("op", ["Gather", "Slice", "Add"])
def test_huge_inputs_take_no_memory(op: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(huge_index(op), path)
    program = (
        "import resource, sys, memsched, onnx.shape_inference\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)\n"
        "try: memsched.Graph.from_onnx(sys.argv[1])\n"
        "except memsched.MemschedError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert "alloc" not in done.stdout


def test_parts_of_a_split_are_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", pytest.fail)
    split = node("Split", "y", "a b", name="split", num_outputs=HUGE)
    with pytest.raises(ms.InvalidInputError, match="op 'split' has num_outputs 1099511627776, but 2 outputs"):
        graph_from_onnx(with_constants(nodes=[split]))


# Small constants that make large ones.

SPREAD: dict[str, list[Any]] = {
    "Concat": [node("Concat", "v " * 16_384, "q", axis=0)],
    "Mul": [node("Unsqueeze", "v last", "u"), node("Unsqueeze", "u last", "t"), node("Mul", "w1 t", "q")],
    "Gather": [node("Unsqueeze", "v first", "u"), node("Gather", "u v", "g"), node("Gather", "g v", "q", axis=1)],
    "ConstantOfShape": [node("ConstantOfShape", "big", "q")],
    "Expand": [node("Expand", "one big", "q")],
    "Slice": [node("ConstantOfShape", "big", "b"), node("Slice", "b first one", "q")],
}


@pytest.mark.parametrize("op", SPREAD)
def test_what_is_folded_is_known_to_be_small_before(op: str) -> None:
    large = 2**24
    numbers = {"v": [0] * 1024, "w1": [0] * 1024, "last": [-1], "first": [0], "one": [1], "big": [large]}
    nodes = [*SPREAD[op], node("ReduceSum", "q", "k", keepdims=1), node("Reshape", "y k", "z")]
    made = with_constants(*(whole(name, one) for name, one in numbers.items()), nodes=nodes)
    tracemalloc.start()
    try:
        with contextlib.suppress(MemschedError):
            graph_from_onnx(made)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**22


def test_texts_are_not_added() -> None:
    """Each is as long as the two before."""
    doubled = [node("Add", f"t{k} t{k}", f"t{k + 1}") for k in range(24)]
    made = with_constants(
        helper.make_tensor("t0", proto.STRING, [1], ["ab"]), nodes=[*doubled, node("Mystery", "t24", "q")]
    )
    tracemalloc.start()
    try:
        with pytest.raises(MemschedError):
            graph_from_onnx(made)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**23


def test_small_constants_are_still_folded() -> None:
    nodes = [node("Concat", "two " * 3, "c", axis=0), node("ReduceSum", "c", "k"), node("Expand", "one k", "q")]
    nodes.append(node("MatMul", "y q", "z"))
    numbers = [whole("two", [2]), constant("one", (2, 1)), whole("k1", [1])]
    made = with_constants(*numbers, nodes=nodes)
    made.graph.output[0].name = "z"
    assert sizes(graph_from_onnx(made))["z"] == 2 * 6 * FLOAT


def test_functions_that_make_too_many_bytes_are_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx.inliner

    monkeypatch.setattr(onnx.inliner, "inline_local_functions", pytest.fail)
    made, calls = mlp(), 2000
    large = helper.make_node("Constant", [], ["k"], value_ints=list(range(100_000)))
    made.functions.append(
        helper.make_function("f", "F", ["a"], ["b"], [large, node("Relu", "a", "b")], made.opset_import)
    )
    made.opset_import.append(helper.make_opsetid("f", 1))
    made.graph.node.extend(helper.make_node("F", ["y"], [f"z{k}"], domain="f") for k in range(calls))
    with pytest.raises(ms.InvalidInputError, match="functions of the model make more than 268435456 bytes of it"):
        graph_from_onnx(made, dims={"N": 8})
