"""Graphs by formula: the bytes and counts that the papers' networks must have, and how times behave."""

from __future__ import annotations

import pytest

import memsched as ms
from memsched.analytic.kernels import GPUS
from memsched.analytic.networks import NETWORKS


def maps(graph: ms.Graph) -> list[str]:
    return [tensor["name"] for tensor in graph.tensors if tensor["role"] == "activation"]


def seconds(graph: ms.Graph, limit: int) -> float:
    """Each op with its fastest algorithm whose workspace is within a limit, as frameworks choose it."""
    return sum(
        min(c["time"] for k, c in enumerate(op["choices"]) if k == 0 or c["workspace"] <= limit) for op in graph.ops
    )


# GB: all tensors at once, the peak of the plain run, and the least memory, at batch 1.
MEMORY = {
    ("vgg16", 256): (32.2, 16.9, 1.145),
    ("vgg19", 256): (34.9, 18.2, 1.188),
    ("vgg101", 128): (95.5, 48.9, 2.090),
    ("fcn", 128): (18.1, 10.2, 1.113),
    ("resnet34", 256): (17.3, 8.1, 0.190),
}


@pytest.mark.parametrize(("network", "batch"), MEMORY)
def test_memory_of_the_networks(network: str, batch: int) -> None:
    family = ms.profiles.analytic(network, batch, gpu="k40m")
    everything = family.graph.resident + sum(tensor["size"] for tensor in family.graph.tensors)
    found = everything / 1e9, ms.peak_memory(family) / 1e9, ms.min_memory(family) / 1e9
    assert (round(found[0], 1), round(found[1], 1), round(found[2], 3)) == MEMORY[network, batch]


@pytest.mark.parametrize(("network", "parameters"), [("vgg16", 138_357_544), ("resnet34", 21_797_672)])
def test_parameters_are_those_of_the_networks(network: str, parameters: int) -> None:
    assert ms.profiles.analytic(network, 1).graph.resident == 8 * parameters


def test_resnet50_has_the_feature_maps_of_table_3() -> None:
    """53 of convolutions, 49 of ReLUs, 2 of pooling, 1 of the last layer."""
    found = maps(ms.profiles.analytic("resnet50", 8).graph)
    assert len(found) == 105
    assert sum("relu" in name for name in found) == 49
    assert len(maps(ms.profiles.analytic("alexnet", 8).graph)) == 11


@pytest.mark.parametrize(("batch", "images"), [(128, 287), (192, 294), (256, 297), (384, 301), (512, 302), (640, 303)])
def test_resnet50_trains_at_the_speed_that_was_set(batch: int, images: float) -> None:
    """On a V100, with 8 MiB for workspaces; PoocH's authors measured 316 images a second."""
    graph = ms.profiles.analytic("resnet50", batch).graph
    assert batch / seconds(graph, 8 * 2**20) == pytest.approx(images, rel=0.011)


def test_a_convolution_by_hand() -> None:
    ops = {op["name"]: op for op in ms.profiles.analytic("vgg16", 256, gpu="K40m").graph.ops}
    implicit, gemm = ops["conv1_2.fwd"]["choices"][:2]
    assert (implicit["alg"], implicit["workspace"]) == ("implicit_gemm", 0)
    assert implicit["time"] == pytest.approx(0.7587, abs=1e-4)
    assert (gemm["alg"], gemm["workspace"]) == ("gemm", 1_849_688_064)
    assert gemm["time"] == pytest.approx(0.5463, abs=1e-4)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("network", NETWORKS)
def test_families_are_graphs_that_run(network: str, gpu: str) -> None:
    family = ms.profiles.analytic(network, 16, gpu=gpu)
    for batch in (1, 2, 7, 16):
        graph = family.at(batch)  # which checks that names stay and bytes do not fall
        assert graph.batch == batch
        assert all(op["choices"][0]["workspace"] == min(c["workspace"] for c in op["choices"]) for op in graph.ops)
        written = [name for op in graph.ops for name in op["writes"]]
        assert len(written) == len(set(written))
        assert sum(op["kind"] in ("conv", "fc") and op["phase"] == "fwd" for op in graph.ops) == sum(
            op["name"].endswith(".wgrad") and op["once"] for op in graph.ops
        )
    per_image = [sum(op["choices"][0]["time"] for op in family.at(batch).ops) / batch for batch in (1, 2, 7, 16)]
    assert per_image == sorted(per_image, reverse=True)


def test_gradients_that_meet_are_added() -> None:
    """The op that makes the second part reads the first and writes the sum."""
    graph = ms.profiles.analytic("resnet34", 2).graph
    (second,) = (op for op in graph.ops if "res2_1.relu.grad+" in op["writes"])
    assert second["name"] == "res2_2.conv1.dgrad"
    assert "res2_1.relu.grad" in second["reads"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lenet", 8), "network is 'lenet'; it must be one of alexnet, fcn"),
        (("vgg16", 0), "batch is 0"),
        (("vgg16", 8, "abacus"), "gpu is 'abacus'; it must be one of k40m, v100"),
    ],
)
def test_unknown_names(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.profiles.analytic(*arguments)
