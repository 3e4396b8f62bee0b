"""Graphs of training steps from ONNX models."""

from __future__ import annotations

import csv
import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched.readers.onnx.model import graph_from_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
helper, proto = onnx.helper, onnx.TensorProto
FLOAT = 4
MACHINES = Path(ms.__file__).parent / "problems" / "machines.csv"


def value(name: str, shape: Any, kind: int | None = None) -> Any:
    return helper.make_tensor_value_info(name, proto.FLOAT if kind is None else kind, shape)


def constant(name: str, shape: tuple[int, ...], kind: int | None = None, values: list[int] | None = None) -> Any:
    kind = proto.FLOAT if kind is None else kind
    numbers = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind))
    if values is not None:
        numbers[...] = values
    return onnx.numpy_helper.from_array(numbers, name)


def model(nodes: list[Any], inputs: list[Any], outputs: list[str], constants: list[Any], **options: Any) -> Any:
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    made = helper.make_graph(nodes, "net", inputs, results, constants)
    return helper.make_model(made, **{"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8} | options)


def node(op: str, reads: str, writes: str, **attributes: Any) -> Any:
    return helper.make_node(op, reads.split(), writes.split(), **attributes)


def mlp() -> Any:
    nodes = [
        node("Gemm", "x w1 b1", "h", name="fc1"),
        node("Relu", "h", "r", name="relu"),
        node("Gemm", "r w2 b2", "y", name="fc2"),
    ]
    weights = [constant("w1", (3, 5)), constant("b1", (5,)), constant("w2", (5, 2)), constant("b2", (2,))]
    return model(nodes, [value("x", ["N", 3])], ["y"], weights)


def residual() -> Any:
    """A convolution, a block of two with a shortcut around it, and a classifier."""
    nodes = [
        node("Conv", "x w0", "a", name="conv0", pads=[1, 1, 1, 1]),
        node("Conv", "a w1", "c", name="conv1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale bias mean var", "n", name="bn"),
        node("Relu", "n", "r", name="relu"),
        node("Add", "r a", "s", name="add"),
        node("MaxPool", "s", "p", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f", name="flatten"),
        node("Gemm", "f w2", "y", name="fc"),
    ]
    four = [constant(name, (4,)) for name in ("scale", "bias", "mean", "var")]
    weights = [constant("w0", (4, 3, 3, 3)), constant("w1", (4, 4, 3, 3)), *four, constant("w2", (64, 10))]
    return model(nodes, [value("x", ["batch", 3, 8, 8])], ["y"], weights)


def by_name(graph: ms.Graph) -> dict[str, dict[str, Any]]:
    return {op["name"]: op for op in graph.ops}


def touched(graph: ms.Graph) -> list[tuple[str, list[str], list[str]]]:
    return [(op["name"], op["reads"], op["writes"]) for op in graph.ops]


def sizes(graph: ms.Graph) -> dict[str, int]:
    return {tensor["name"]: tensor["size"] for tensor in graph.tensors}


def test_a_perceptron() -> None:
    graph = graph_from_onnx(mlp(), dims={"N": 8})
    assert touched(graph) == [
        ("fc1", ["x"], ["h"]),
        ("relu", ["h"], ["r"]),
        ("fc2", ["r"], ["y"]),
        ("loss", ["y"], ["y.grad"]),
        ("fc2.bwd", ["r", "y.grad"], ["r.grad"]),
        ("relu.bwd", ["r", "r.grad"], ["h.grad"]),
        ("fc1.bwd", ["x", "h.grad"], []),
    ]
    x, h, y = 8 * 3 * FLOAT, 8 * 5 * FLOAT, 8 * 2 * FLOAT
    assert sizes(graph) == {"x": x, "h": h, "r": h, "y": y, "y.grad": y, "r.grad": h, "h.grad": h}
    assert graph.resident == 2 * FLOAT * (15 + 5 + 10 + 2)
    assert graph.batch == 8
    assert graph.name == "net"
    assert [op["layer"] for op in graph.ops] == [1, 2, 3, 4, 3, 2, 1]
    assert [op["kind"] for op in graph.ops] == ["fc", "relu", "fc", "loss", "fc", "relu", "fc"]
    assert [op["phase"] for op in graph.ops] == ["fwd"] * 3 + ["bwd"] * 4
    assert [op.get("once", False) for op in graph.ops] == [False] * 4 + [True, False, True]
    # x stays for the last backward. The most is held in the backward of the ReLU: r, its gradient and that of h.
    assert ms.peak_memory(graph) == graph.resident + x + 3 * h


def test_a_network_with_a_shortcut() -> None:
    graph = graph_from_onnx(residual(), dims={"batch": 2}, name="res")
    assert touched(graph) == [
        ("conv0", ["x"], ["a"]),
        ("conv1", ["a"], ["c"]),
        ("bn", ["c"], ["n"]),
        ("relu", ["n"], ["r"]),
        ("add", ["r", "a"], ["s"]),
        ("pool", ["s"], ["p"]),
        ("fc", ["p"], ["y"]),
        ("loss", ["y"], ["y.grad"]),
        ("fc.bwd", ["p", "y.grad"], ["p.grad"]),
        ("pool.bwd", ["s", "p", "p.grad"], ["s.grad"]),
        ("add.bwd", ["s.grad"], ["r.grad", "a.grad"]),
        ("relu.bwd", ["r", "r.grad"], ["n.grad"]),
        ("bn.bwd", ["c", "n.grad"], ["c.grad"]),
        ("conv1.bwd", ["a", "c.grad", "a.grad"], ["a.grad+1"]),
        ("conv0.bwd", ["x", "a.grad+1"], []),
    ]
    x, a, p, y = (FLOAT * 2 * count for count in (3 * 64, 4 * 64, 4 * 16, 10))
    assert {sizes(graph)[name] for name in ("a", "c", "n", "r", "s", "s.grad", "a.grad+1", "c.grad")} == {a}
    assert graph.resident == FLOAT * (2 * (108 + 144 + 8 + 640) + 8)
    # Held in the backward of the pool: x, a, c, r, s and p, which are read there or later, and two gradients.
    peaks = {"pool.bwd": x + 4 * a + 2 * p + a, "add.bwd": x + 3 * a + 3 * a, "fc.bwd": x + 4 * a + 2 * p + y}
    assert ms.peak_memory(graph) - graph.resident == max(peaks.values()) == x + 6 * a
    assert (graph.name, graph.batch) == ("res", 2)
    memory = (ms.min_memory(graph) + ms.peak_memory(graph)) // 2
    assert ms.validate(ms.pooch(graph, memory, 1e9)).peak_memory <= memory


def test_times_follow_the_roofline() -> None:
    graph = graph_from_onnx(residual(), dims={"batch": 512}, device="a100")
    ops = by_name(graph)
    rows = {row["name"]: row for row in csv.DictReader(MACHINES.read_text().splitlines())}
    row = rows["a100"]
    moved = FLOAT * (512 * 64 * (3 + 4) + 108)
    flops = 2 * 512 * 64 * 4 * 27
    forward = max(flops / (0.6 * float(row["tf32"])), moved / (0.75 * float(row["memory_bandwidth"]))) + 4e-6
    assert ops["conv0"]["choices"] == [{"alg": "default", "time": pytest.approx(forward), "workspace": 0}]
    for name, op in ops.items():
        if name.endswith(".bwd"):
            assert op["choices"][0]["time"] == 2 * ops[name[:-4]]["choices"][0]["time"]
    slow = graph_from_onnx(residual(), dims={"batch": 512}, device="K40M:pcie3")
    assert by_name(slow)["conv0"]["choices"][0]["time"] > 1.5 * forward


def test_large_products_take_the_time_of_their_arithmetic() -> None:
    made = model(
        [node("MatMul", "x w", "y", name="mm")], [value("x", [4096, 4096])], ["y"], [constant("w", (4096, 4096))]
    )
    made.graph.initializer[0].ClearField("raw_data")  # without its numbers, which are not needed
    graph = graph_from_onnx(made)
    assert by_name(graph)["mm"]["choices"][0]["time"] == pytest.approx(2 * 4096**3 / (0.6 * 14e12) + 4e-6)
    assert graph.resident == 2 * FLOAT * 4096**2
    half = model([node("MatMul", "x w", "y", name="mm")], [value("x", [4096, 4096], proto.FLOAT16)], ["y"], [])
    half.graph.initializer.extend([constant("w", (4096, 4096), proto.FLOAT16)])
    graph = graph_from_onnx(half)
    assert by_name(graph)["mm"]["choices"][0]["time"] == pytest.approx(2 * 4096**3 / (0.6 * 112e12) + 4e-6)
    assert sizes(graph)["y"] == 2 * 4096**2


@pytest.mark.parametrize(
    ("op", "attributes", "reads"),
    [
        ("Sigmoid", {}, ["y", "y.grad"]),
        ("Tanh", {}, ["y", "y.grad"]),
        ("Softmax", {}, ["y", "y.grad"]),
        ("Exp", {}, ["y", "y.grad"]),
        ("Erf", {}, ["h", "y.grad"]),
        ("Log", {}, ["h", "y.grad"]),
        ("Neg", {}, ["y.grad"]),
        ("Transpose", {}, ["y.grad"]),
        ("GlobalAveragePool", {}, ["y.grad"]),
        ("ReduceMean", {}, ["y.grad"]),
        ("ReduceMax", {}, ["h", "y", "y.grad"]),
        ("GlobalMaxPool", {}, ["h", "y", "y.grad"]),
        ("Dropout", {}, ["y.mask", "y.grad"]),
    ],
)
def test_what_derivatives_read(op: str, attributes: dict[str, Any], reads: list[str]) -> None:
    made = model(
        [node("Conv", "x w", "h", name="conv"), node(op, "h", "y", name="op", **attributes)],
        [value("x", [2, 3, 4, 4])],
        ["y"],
        [constant("w", (5, 3, 1, 1))],
    )
    graph = graph_from_onnx(made)
    assert by_name(graph)["op.bwd"]["reads"] == reads
    assert by_name(graph)["op.bwd"]["writes"] == ["h.grad"]
    if op == "Dropout":
        assert sizes(graph)["y.mask"] == 2 * 5 * 16  # one byte per element


def test_an_op_with_a_tensor_twice_and_a_product() -> None:
    made = model(
        [
            node("MatMul", "x w", "h", name="mm"),
            node("Mul", "h h", "s", name="sq"),
            node("Mul", "s x", "y", name="mul"),
        ],
        [value("x", [3, 3])],
        ["y", "h"],
        [constant("w", (3, 3))],
    )
    assert touched(graph_from_onnx(made))[3:] == [
        ("loss", ["y", "h"], ["y.grad", "h.grad"]),
        ("mul.bwd", ["s", "x", "y.grad"], ["s.grad"]),
        ("sq.bwd", ["h", "s.grad", "h.grad"], ["h.grad+1"]),
        ("mm.bwd", ["x", "h.grad+1"], []),
    ]


def test_an_embedding_reads_its_indices_in_the_backward() -> None:
    made = model(
        [node("Gather", "table ids", "e", name="embed"), node("MatMul", "e w", "y", name="mm")],
        [value("ids", ["N", 7], proto.INT64)],
        ["y"],
        [constant("table", (1000, 16)), constant("w", (16, 2))],
    )
    graph = graph_from_onnx(made, dims={"N": 3}, batch=21)
    ops = by_name(graph)
    assert ops["embed.bwd"]["reads"] == ["ids", "e.grad"]
    assert ops["embed.bwd"]["writes"] == []
    assert sizes(graph)["ids"] == 3 * 7 * 8
    assert graph.batch == 21
    moved = 3 * 7 * (16 * FLOAT * 2 + 8)  # not the whole table
    assert ops["embed"]["choices"][0]["time"] == pytest.approx(moved / (0.75 * 900e9) + 4e-6)


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light(name: str) -> Any:
    """A network that comes with onnx, for any batch; its weights are filled in by ops, from their shapes."""
    made = onnx.load_model(LIGHT / f"light_{name}.onnx")
    shapes = {one.name: onnx.numpy_helper.to_array(one).tolist() for one in made.graph.initializer}
    rest = onnx.GraphProto()
    for one in made.graph.node:
        if one.op_type == "ConstantOfShape":
            dims = shapes.pop(one.input[0])
            made.graph.initializer.append(proto(name=one.output[0], data_type=proto.FLOAT, dims=dims))
        else:
            rest.node.append(one)
    made.graph.ClearField("node")
    made.graph.node.extend(rest.node)
    reshaped = {one.input[1] for one in rest.node if one.op_type == "Reshape"}
    for one in made.graph.initializer:
        if one.name in reshaped:
            dims = onnx.numpy_helper.to_array(one).copy()
            dims[0] = 0 if dims[0] == 1 else dims[0]  # 0: as many as before
            one.CopyFrom(onnx.numpy_helper.from_array(dims, one.name))
    constants = {one.name for one in made.graph.initializer}
    data = next(one for one in made.graph.input if one.name not in constants)
    data.type.tensor_type.shape.dim[0].dim_param = "N"
    for one in made.graph.output:
        one.type.tensor_type.shape.dim[0].dim_param = "N"  # it was 1
    return made


@pytest.mark.skipif(not (LIGHT / "light_resnet50.onnx").is_file(), reason="onnx has come without its networks")
def test_resnet_50_is_close_to_the_shipped_graph() -> None:
    """Which was recorded from torchvision's network in PyTorch, with the roofline model of the same machine."""
    found = graph_from_onnx(light("resnet50"), dims={"N": 32})
    shipped = ms.profiles.load_graph("resnet50-224-b32")
    # With a softmax, without the optimiser, whose state has as many bytes as the gradients here.
    assert found.resident == pytest.approx(shipped.resident, rel=1e-4)
    assert ms.peak_memory(found) == pytest.approx(ms.peak_memory(shipped), rel=0.03)
    assert ms.min_memory(found) == pytest.approx(ms.min_memory(shipped), rel=0.03)
    seconds = [sum(op["choices"][0]["time"] for op in graph.ops if op["phase"] == "fwd") for graph in (found, shipped)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.03)


@pytest.mark.skipif(not LIGHT.is_dir(), reason="onnx has come without its networks")
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_networks_that_come_with_onnx(path: Path) -> None:
    graph = graph_from_onnx(light(path.stem.removeprefix("light_")), dims={"N": 1})
    assert len(graph.ops) > 30
    assert graph.resident < ms.min_memory(graph) <= ms.peak_memory(graph)


def test_what_does_not_learn_has_no_backward() -> None:
    nodes = [
        node("Transpose", "x", "t", name="prepare"),
        node("Cast", "t", "i", name="cast", to=proto.INT32),
        node("MatMul", "t w", "y", name="mm"),
        node("ArgMax", "y", "best", name="argmax"),
        node("Relu", "y", "unused", name="dead"),
    ]
    graph = graph_from_onnx(model(nodes, [value("x", [3, 3])], ["y", "best", "i"], [constant("w", (3, 3))]))
    assert [op["name"] for op in graph.ops] == ["prepare", "cast", "mm", "argmax", "dead", "loss", "mm.bwd"]
    assert by_name(graph)["loss"]["reads"] == ["y"]


def test_names_that_are_missing_or_taken() -> None:
    nodes = [
        node("MatMul", "x w", "y.grad", name="loss"),
        node("Relu", "y.grad", "r", name="loss"),
        node("Relu", "r", "y"),
    ]
    graph = graph_from_onnx(model(nodes, [value("x", [3, 3])], ["y"], [constant("w", (3, 3))]))
    assert [op["name"] for op in graph.ops][:4] == ["loss", "loss_1", "Relu_2", "loss#2"]
    assert by_name(graph)["loss#2"]["writes"] == ["y.grad#2"]


@pytest.mark.parametrize("op", ["Reshape", "Identity", "Shape", "Dropout", "Upscale"])
def test_ops_of_other_domains_are_not_those_of_onnx(op: str) -> None:
    """What was called like a view vanished with its tensor, and what was called like Shape with all before it."""
    foreign = helper.make_node(op, ["a"], ["b"], name="foreign", domain="my")
    nodes = [node("MatMul", "x w", "a"), foreign, node("Relu", "b", "y")]
    made = model(
        nodes,
        [value("x", [2, 4])],
        ["y"],
        [constant("w", (4, 4))],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)],
    )
    made.graph.value_info.append(value("b", [20, 4]))
    graph = graph_from_onnx(made)
    assert (by_name(graph)["foreign"]["reads"], by_name(graph)["foreign"]["writes"]) == (["a"], ["b"])
    assert by_name(graph)["foreign.bwd"]["reads"] == ["a", "b.grad"]
    assert sizes(graph)["b"] == sizes(graph)["b.grad"] == 320


def test_the_domain_of_onnx_has_two_names() -> None:
    nodes = [node("Shape", "x", "s"), node("MatMul", "x w", "a"), node("Reshape", "a s", "y")]
    weights = [constant("w", (4, 4))]
    for domain in ("", "ai.onnx"):
        made = model(nodes, [value("x", [2, 4])], ["y"], weights, opset_imports=[helper.make_opsetid(domain, 17)])
        assert [op["name"] for op in graph_from_onnx(made).ops] == ["MatMul_1", "loss", "MatMul_1.bwd"]


def test_statistics_may_be_read_through_views_and_weights_may_be_statistics() -> None:
    four = [constant(name, (4,)) for name in ("one", "zero", "mean", "var")]
    inputs = [value("x", [2, 4])]
    shared = model([node("BatchNormalization", "x one zero zero one", "y")], inputs, ["y"], four[:2])
    assert graph_from_onnx(shared).resident == 2 * (16 + 16)
    nodes = [
        node("Identity", "mean", "m"),
        node("Identity", "m", "n"),
        node("BatchNormalization", "x one zero n var", "y"),
    ]
    assert graph_from_onnx(model(nodes, inputs, ["y"], four)).resident == 2 * (16 + 16) + 16 + 16


@pytest.mark.parametrize(
    "second", [("Identity", "w2"), ("Identity", "a"), ("Constant", ""), ("Relu", "a")], ids=lambda pair: "".join(pair)
)
@pytest.mark.parametrize("name", ["x", "a", "b", "w2"])
def test_a_tensor_that_is_written_twice_is_refused(second: tuple[str, str], name: str) -> None:
    more = {"value": constant("", (2, 4))} if second[0] == "Constant" else {}
    nodes = [
        *(node("MatMul", "x w", "a"), node("Identity", "a", "b")),
        node(*second, name, **more),
        node("Relu", "a", "y"),
    ]
    with pytest.raises(ms.InvalidInputError, match=f"tensor '{name}' twice; each|cannot be inferred"):
        graph_from_onnx(model(nodes, [value("x", [2, 4])], ["y"], [constant("w", (4, 4)), constant("w2", (2, 4))]))


def test_the_mask_that_is_added_has_a_name_of_its_own() -> None:
    masked = [node("MatMul", "x w", "a"), node("Dropout", "a", "d")]
    for more in ("Relu", "Neg"):
        nodes = [*masked, node(more, "d", "d.mask"), node("Add", "d d.mask", "y")]
        graph = graph_from_onnx(model(nodes, [value("x", [2, 4])], ["y"], [constant("w", (4, 4))]))
        assert (sizes(graph)["d.mask"], sizes(graph)["d.mask_"]) == (32, 8)


def test_times_can_be_given() -> None:
    graph = graph_from_onnx(mlp(), dims={"N": 8}, times={"fc1": 3, "fc2": ("1 ms", 5e-3)})
    found = {op["name"]: op["choices"][0]["time"] for op in graph.ops}
    assert (found["fc1"], found["fc1.bwd"], found["fc2"], found["fc2.bwd"]) == (3, 6, 0.001, 0.005)


def test_the_example_of_the_docstring() -> None:
    text = (graph_from_onnx.__doc__ or "").replace("# doctest: +SKIP", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "example", None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_backward_agrees_with_a_trace_by_torch() -> None:
    """What autograd keeps of the network with a shortcut, apart from the parameters: an oracle of another kind."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv0 = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False)
            self.conv1 = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.bn = torch.nn.BatchNorm2d(4)
            self.fc = torch.nn.Linear(64, 10, bias=False)

        def forward(self, x: Any) -> Any:
            a = self.conv0(x)
            s = torch.relu(self.bn(self.conv1(a))) + a
            return self.fc(torch.nn.functional.max_pool2d(s, 2).flatten(1))

    net, kept = Net(), {}
    parameters = {one.untyped_storage().data_ptr() for one in net.parameters()}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and tensor.dtype == torch.float32 and storage.nbytes() > 100:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(torch.ones(2, 3, 8, 8))
    graph = graph_from_onnx(residual(), dims={"batch": 2})
    forward = {"x"} | {name for op in graph.ops if op["phase"] == "fwd" for name in op["writes"]}
    late = {name for op in graph.ops if op["phase"] == "bwd" and op["name"] != "loss" for name in op["reads"]}
    ours = {name: sizes(graph)[name] for name in forward & late}
    assert ours.keys() == {"x", "a", "c", "r", "s", "p"}
    assert sorted(one.nbytes() for one in kept.values()) == sorted(ours.values())


@pytest.mark.exhaustive
def test_a_hundred_thousand_ops() -> None:
    nodes = []
    for k in range(50_000):
        nodes.append(node("MatMul" if k % 2 else "Relu", f"t{k} w" if k % 2 else f"t{k}", f"t{k + 1}"))
    made = model(nodes, [value("t0", ["N", 8])], ["t50000"], [constant("w", (8, 8))])
    graph = graph_from_onnx(made, dims={"N": 4})
    assert len(graph.ops) == 100_000  # the first ReLU has no backward; the loss is one
