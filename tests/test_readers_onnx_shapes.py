"""What is made of an ONNX model before its training step: shapes, functions in place of calls, and what is trained."""

from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched.errors import MemschedError
from memsched.readers.onnx.model import graph_from_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from test_readers_onnx import FLOAT, by_name, constant, helper, mlp, model, node, proto, sizes, touched, value  # noqa: E402  # needs onnx


def test_views_constants_and_shapes_are_no_ops() -> None:
    """A transformer's exporter computes the shape that it reshapes to."""
    nodes = [
        node("Transpose", "w", "wt", perm=[1, 0]),  # of a parameter: no op, and still one
        node("MatMul", "x wt", "h", name="mm"),
        node("Shape", "h", "dims"),
        node("Gather", "dims zero", "first"),
        node("Unsqueeze", "first axis", "batch"),
        node("Concat", "batch rest", "target", axis=0),
        node("Reshape", "h target", "v"),
        node("Identity", "v", "u"),
        node("Relu", "u", "y", name="relu"),
    ]
    constants = [
        constant("w", (6, 4)),
        constant("zero", (), proto.INT64),
        constant("axis", (1,), proto.INT64, [0]),
        constant("rest", (2,), proto.INT64, [2, 3]),
    ]
    graph = graph_from_onnx(model(nodes, [value("x", ["N", 4])], ["y"], constants), dims={"N": 5})
    assert touched(graph) == [
        ("mm", ["x"], ["h"]),
        ("relu", ["h"], ["y"]),
        ("loss", ["y"], ["y.grad"]),
        ("relu.bwd", ["y", "y.grad"], ["h.grad"]),
        ("mm.bwd", ["x", "h.grad"], []),
    ]
    small = 8 * (1 + 1 + 2) + 8 * (2 + 1 + 3)  # constants, and shapes
    assert graph.resident == 2 * 24 * FLOAT + 24 * FLOAT + small
    assert by_name(graph)["mm.bwd"]["once"] is True


def test_shapes_that_are_computed_with_numbers() -> None:
    """As exporters do for a batch of any size; ONNX alone cannot infer what Mod leads to."""
    nodes = [
        node("MatMul", "x w", "h", name="mm"),
        node("Shape", "h", "dims"),
        node("Mod", "five three", "two"),
        node("Slice", "dims two end", "none"),
        node("Slice", "dims zero two", "head"),
        node("ConstantOfShape", "one", "filled", value=constant("f", (1,), proto.INT64, [-1])),
        node("Concat", "head none filled", "target", axis=0),
        node("Reshape", "h target", "v", name="view"),
        node("Relu", "v", "y", name="relu"),
        node("MatMul", "y w3", "z", name="mm3"),
    ]
    numbers = {"five": [5], "three": [3], "end": [9], "zero": [0], "one": [1]}
    constants = [constant(name, (1,), proto.INT64, values) for name, values in numbers.items()]
    constants += [constant("w", (4, 6)), constant("w3", (1, 2))]
    made = model(nodes, [value("x", ["N", 4])], ["z"], constants)
    graph = graph_from_onnx(made, dims={"N": 5})
    assert [op["name"] for op in graph.ops if op["phase"] == "fwd"] == ["mm", "relu", "mm3"]
    assert sizes(graph)["z"] == 5 * 6 * 2 * FLOAT


def test_what_is_folded_stays_small() -> None:
    """Three small constants that broadcast to 16 million elements, of which only the product is asked for."""
    side = 256
    nodes = [
        node("Where", "c a b", "w"),
        node("ReduceProd", "w", "p", keepdims=0),
        node("Unsqueeze", "p zero", "u"),
        node("Reshape", "x u", "y"),
    ]
    constants = [
        constant("c", (side, 1, 1), proto.BOOL),
        constant("a", (1, side, 1), proto.INT64),
        constant("b", (1, 1, side), proto.INT64),
        constant("zero", (1,), proto.INT64),
    ]
    tracemalloc.start()
    try:
        with contextlib.suppress(MemschedError):
            graph_from_onnx(model(nodes, [value("x", [4])], ["y"], constants))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8 * side**3 / 10


def test_constants_in_other_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes((7).to_bytes(8, "little"))
    numbers = [constant("k", (1,), proto.INT64, [7]), constant("k", (1,), proto.INT64)]
    numbers[1].ClearField("raw_data")
    numbers[1].data_location = proto.EXTERNAL
    numbers[1].external_data.add(key="location", value="secret.bin")
    inside, outside = (
        model(
            [
                node("MatMul", "x w", "h"),
                helper.make_node("Constant", [], ["k"], value=number),
                node("Expand", "h k", "y"),
            ],
            [value("x", [1, 2])],
            ["y"],
            [constant("w", (2, 1))],
        )
        for number in numbers
    )
    assert sizes(graph_from_onnx(inside))["y"] == 7 * FLOAT
    with pytest.raises(ms.InvalidInputError, match="the shape or the type of tensor 'y' cannot be inferred"):
        graph_from_onnx(outside)


def test_a_shape_of_nothing_is_no_raw_error() -> None:
    with pytest.raises(MemschedError):
        graph_from_onnx(model([node("Shape", "", "s"), node("Relu", "x", "y")], [value("x", [4])], ["y"], []))


def test_a_dropout_of_which_only_the_mask_is_used_has_one() -> None:
    drop = node("Dropout", "h", "", name="drop")
    drop.output[:] = ["", "m"]
    made = model(
        [node("Conv", "x w", "h", name="conv"), drop, node("Cast", "m", "c", name="cast", to=proto.FLOAT)],
        [value("x", [2, 3, 4, 4])],
        ["h", "c"],
        [constant("w", (5, 3, 1, 1))],
    )
    graph = graph_from_onnx(made)
    assert by_name(graph)["drop"]["writes"] == ["m"]
    assert {name: size for name, size in sizes(graph).items() if "m" in name} == {"m": 2 * 5 * 16}


def deep(depth: int) -> Any:
    """Each block has a Reshape whose shape the model computes from the shape of what the block before it makes."""
    nodes, last = [], "x"
    for k in range(depth):
        nodes += [
            node("MatMul", f"{last} w", f"m{k}"),
            node("Shape", f"m{k}", f"s{k}"),
            node("Gather", f"s{k} zero", f"g{k}"),
            node("Concat", f"g{k} rest", f"c{k}", axis=0),
            node("Reshape", f"m{k} c{k}", f"r{k}"),
            node("Relu", f"r{k}", f"a{k}"),
        ]
        last = f"a{k}"
    numbers = [onnx.numpy_helper.from_array(np.array([one]), name) for name, one in (("zero", 0), ("rest", -1))]
    return model(nodes, [value("x", [4, 8])], [last], [constant("w", (8, 8)), *numbers])


def test_shapes_that_depend_on_each_other_take_time_linear_in_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    inferred: list[int] = []
    infer = onnx.shape_inference.infer_shapes

    def counting(one: Any, **options: Any) -> Any:
        inferred.append(len(one.graph.node))
        return infer(one, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counting)
    graph = graph_from_onnx(deep(40))
    assert sizes(graph)["a39"] == 4 * 8 * FLOAT
    assert len(graph.ops) == 4 * 40 + 1
    assert sum(inferred) <= 2 * 6 * 40


# Functions.


def calling(count: int, calls: int = 2, last: str = "Relu") -> Any:
    """A perceptron whose activation is function F{count}; each calls the one below it a few times."""
    made = mlp()
    opsets = [*made.opset_import, helper.make_opsetid("f", 1)]
    for k in range(count + 1):
        op = f"F{k - 1}" if k else last
        domain = "f" if op.startswith("F") else ""
        times = calls if k else 1
        body = [helper.make_node(op, [f"t{j}"], [f"t{j + 1}"], domain=domain) for j in range(times)]
        made.functions.append(helper.make_function("f", f"F{k}", ["t0"], [body[-1].output[0]], body, opsets))
    made.opset_import.append(helper.make_opsetid("f", 1))
    made.graph.node[1].CopyFrom(helper.make_node(f"F{count}", ["h"], ["r"], domain="f"))
    return made


def test_functions_that_call_functions() -> None:
    graph = graph_from_onnx(calling(3), dims={"N": 8})
    assert sum(op["kind"] == "relu" for op in graph.ops) == 2 * 2**3


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ((30,), "the functions of the model make more than 100000 ops of it"),
        ((1, 100_000), "the functions of the model make more than 100000 ops of it"),
        ((60, 100), "the functions of the model make more than 100000 ops of it"),
        ((150, 1), "call each other more than 100 levels deep"),
        ((2, 2, "F2"), "the function 'F2' of the model calls itself"),
        ((2, 2, "F0"), "the function 'F0' of the model calls itself"),
    ],
)
def test_functions_that_make_too_many_ops_are_refused_before(
    form: tuple[Any, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx.inliner

    monkeypatch.setattr(onnx.inliner, "inline_local_functions", pytest.fail)
    with pytest.raises(ms.InvalidInputError, match=told):
        graph_from_onnx(calling(*form), dims={"N": 8})


def test_calls_in_branches_count() -> None:
    made = calling(30)
    inner = helper.make_graph([made.graph.node[1]], "inner", [], [value("r", ["N", 5])])
    made.graph.node[1].CopyFrom(node("If", "c", "r", then_branch=inner, else_branch=inner))
    with pytest.raises(ms.InvalidInputError, match="more than 100000 ops"):
        graph_from_onnx(made, dims={"N": 8})


def test_what_the_inliner_refuses() -> None:
    twice = calling(1)
    twice.functions.append(twice.functions[0])
    many = calling(1)
    many.graph.node[1].input.append("h")
    for made in (twice, many):
        with pytest.raises(ms.InvalidInputError, match="functions of the model cannot be put in place of their calls"):
            graph_from_onnx(made, dims={"N": 8})


# Shapes that the model states.


def stating(shape: list[Any], name: str = "h", kind: int | None = None) -> Any:
    made = mlp()
    if name == "y":
        made.graph.output[0].CopyFrom(value(name, shape, kind))
    else:
        made.graph.value_info.append(value(name, shape, kind))
    return made


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (stating([1, 5]), r"states the shape \[1, 5\] and the type float of tensor 'h', which is the shape \[64, 5\]"),
        (stating([1, 2], "y"), r"states the shape \[1, 2\] and the type float of tensor 'y', which is .* \[64, 2\]"),
        (stating([5]), r"states the shape \[5\] and the type float of tensor 'h'"),
        (stating([64, 5], kind=proto.FLOAT16), r"the type float16 of tensor 'h', which is .* the type float with"),
        (stating([64, 2], "y", proto.FLOAT16), r"the type float16 of tensor 'y', which is .* the type float with"),
        (stating([1, 3], "x"), r"states the shape \[1, 3\] and the type float of tensor 'x'"),
        (
            stating(["N", 7]),
            r"states the shape \[64, 7\] and the type float of tensor 'h', which is the shape \[64, 5\]",
        ),
        (stating(["M", 7]), r"states the shape \[\?, 7\] and the type float of tensor 'h', which is .* \[64, 5\]"),
        (stating(["N", "M", 1], "y"), r"states the shape \[64, \?, 1\] and the type float of tensor 'y'"),
    ],
)
def test_stated_shapes_that_contradict_the_inputs_are_told(made: Any, told: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=told):
        graph_from_onnx(made, dims={"N": 64})


def test_stated_shapes_count_where_none_can_be_inferred() -> None:
    expected = graph_from_onnx(mlp(), dims={"N": 64})
    for made in (stating([64, 5]), stating(["N", 5]), stating(["M", None]), stating([64, 2], "y")):
        assert graph_from_onnx(made, dims={"N": 64}) == expected
    made = mlp()
    made.graph.node[1].CopyFrom(helper.make_node("Mystery", ["h"], ["r"], name="relu", domain="odd"))
    made.opset_import.append(helper.make_opsetid("odd", 1))
    with pytest.raises(ms.InvalidInputError, match="tensor 'r' cannot be inferred"):
        graph_from_onnx(made, dims={"N": 64})
    for shape in ([64, 5], ["N", 5]):
        made.graph.value_info.append(value("r", shape))
        assert sizes(graph_from_onnx(made, dims={"N": 64})) == sizes(expected)
        del made.graph.value_info[:]


@pytest.mark.parametrize("shape", [["N", 5], [64, 5]])
def test_no_stated_shape_makes_an_op_possible(shape: list[Any]) -> None:
    """Exporters state shapes with symbols, which say nothing of a sequence that is too long for its positions."""
    nodes = [node("MatMul", "x w", "h", name="mm"), node("Add", "h p", "e", name="add"), node("Relu", "e", "y")]
    made = model(nodes, [value("x", ["N", 3])], ["y"], [constant("w", (3, 5)), constant("p", (2, 5))])
    made.graph.value_info.append(value("e", shape))
    with pytest.raises(ms.InvalidInputError, match=r"op 'add' \(Add\) cannot run with these inputs: Incompatible dim"):
        graph_from_onnx(made, dims={"N": 64})


def test_a_batch_that_a_reshape_does_not_know_is_refused() -> None:
    """As of a model that was exported for batch 1: all that is behind it had the bytes of one sample."""
    nodes = [node("Reshape", "x dims", "h", name="flat"), node("MatMul", "h w", "y", name="mm")]
    constants = [constant("dims", (2,), proto.INT64, [1, 4]), constant("w", (4, 2))]
    made = model(nodes, [value("x", ["N", 2, 2])], ["y"], constants)
    assert sizes(graph_from_onnx(made, dims={"N": 1}))["y"] == 2 * FLOAT
    with pytest.raises(ms.InvalidInputError, match=r"op 'flat' reshapes \[8, 2, 2\] to \[1, 4\], which has another"):
        graph_from_onnx(made, dims={"N": 8})


def test_an_output_may_be_an_input() -> None:
    made = mlp()
    expected = graph_from_onnx(made, dims={"N": 64})
    made.graph.output.append(made.graph.input[0])
    assert sizes(graph_from_onnx(made, dims={"N": 64})) == sizes(expected)


# What is a parameter.


def masked(mask: tuple[int, ...]) -> Any:
    """A product to which a mask is added, half of it."""
    nodes = [
        node("Mul", "x half", "s", name="scale"),
        node("Add", "s mask", "t", name="add"),
        node("MatMul", "t w", "y", name="mm"),
    ]
    constants = [constant("w", (4, 2)), constant("mask", mask), constant("half", (1,))]
    return model(nodes, [value("x", [4, 4])], ["y"], constants)


def test_scalars_and_named_constants_are_not_trained() -> None:
    graph = graph_from_onnx(masked((4, 4)))
    assert [op["name"] for op in graph.ops if op["phase"] == "bwd"] == ["loss", "mm.bwd", "add.bwd"]
    fixed = graph_from_onnx(masked((4, 4)), constants=["mask"])
    assert [op["name"] for op in fixed.ops if op["phase"] == "bwd"] == ["loss", "mm.bwd"]
    assert graph.resident - fixed.resident == 16 * FLOAT
    assert graph_from_onnx(masked((1, 1)), constants=()).resident == FLOAT * (8 * 2 + 1 + 1)
    assert graph_from_onnx(masked((4, 4)), constants=("mask", "half")) == fixed
    for wrong, told in (
        (["masc"], "constants has 'masc'; initializers .* are 'w', 'mask', 'half'"),
        ("mask", "a list"),
    ):
        with pytest.raises(ms.InvalidInputError, match=told):
            graph_from_onnx(masked((4, 4)), constants=wrong)
