"""Graphs by formula: the bytes and counts that the papers' networks must have, and how times behave."""

from __future__ import annotations

import pytest

import memsched as ms
from memsched.problems.analytic.kernels import GPUS
from memsched.problems.analytic.networks import NETWORKS


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


def parameters_of_resnext(widths: tuple[int, ...], counts: tuple[int, ...], groups: int, classes: int) -> int:
    """Convolutions without bias, two for each channel that is normalised, and the last layer."""
    found, before = 3 * 64 * 7**3 + 2 * 64, 64
    for width, count in zip(widths, counts, strict=True):
        found += before * 2 * width + 2 * 2 * width  # the shortcut of the first block
        for _ in range(count):
            found += before * width + width * width // groups * 27 + width * 2 * width + 2 * (width + width + 2 * width)
            before = 2 * width
    return found + (before + 1) * classes


def test_resnext101_3d_has_the_layers_of_the_network() -> None:
    """33 blocks of 3 convolutions, 4 shortcuts and the first; ReLUs behind all but those; 48.34 million parameters."""
    graph = ms.profiles.analytic("resnext101_3d", 2).graph
    found = maps(graph)
    assert len(found) == 207
    assert sum("conv" in name or "shortcut" in name for name in found) == 33 * 3 + 4 + 1
    assert sum("relu" in name for name in found) == 33 * 3 + 1
    expected = parameters_of_resnext((128, 256, 512, 1024), (3, 4, 23, 3), 32, 400)
    assert (graph.resident, expected) == (8 * expected, 48_340_816)
    assert {c["alg"] for op in graph.ops if op["kind"] == "conv" for c in op["choices"]} == {"implicit_gemm", "gemm"}


def test_a_convolution_of_three_dimensions_by_hand() -> None:
    """256 channels in 32 groups, from 8 x 28 x 28 to 4 x 14 x 14 with kernels of 3 x 3 x 3."""
    graph = ms.profiles.analytic("resnext101_3d", 1).graph
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    assert (sizes["res3_1.relu1"], sizes["res3_1.conv2"]) == (6_422_528, 802_816)
    (op,) = (op for op in graph.ops if op["name"] == "res3_1.conv2.fwd")
    implicit, gemm = op["choices"]
    assert (implicit["workspace"], gemm["workspace"]) == (0, 4 * 256 * 27 * 784)
    operations = 2 * 256 * 784 * (8 * 27)
    share = 200_704 / (200_704 + 8e5) * 216 / (216 + 24) * 8 / (8 + 12)
    assert implicit["time"] == pytest.approx(1e-5 + operations / (15.7e12 * 0.72 * share), rel=1e-9)


def test_clips_have_frames_and_sides() -> None:
    """Twice the frames and twice the side: all maps but the last three are eight times larger."""
    assert ms.profiles.analytic("resnext101_3d", 1) == ms.profiles.analytic("resnext101_3d", 1, clip=(16, 112))
    small, large = (ms.profiles.analytic("resnext101_3d", 1, clip=clip).graph for clip in ((32, 224), (64, 448)))
    assert (small.resident, small.name) == (large.resident, "resnext101_3d-32-224@v100")
    for a, b in zip(small.tensors, large.tensors, strict=True):
        assert b["size"] == (1 if a["name"].startswith(("pool5", "fc")) else 8) * a["size"]


@pytest.mark.parametrize(
    ("network", "clip", "words"),
    [
        ("resnet50", (16, 112), "resnet50 takes images; only resnext101_3d takes clips"),
        ("resnext101_3d", (8, 112), "whole numbers >= 16"),
        ("resnext101_3d", (16, 112.5), "whole numbers >= 16"),
    ],
)
def test_clips_are_checked(network: str, clip: tuple[int, int], words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.profiles.analytic(network, 1, clip=clip)


def test_gradients_that_meet_are_added() -> None:
    """The op that makes the second part reads the first and writes the sum."""
    graph = ms.profiles.analytic("resnet34", 2).graph
    (second,) = (op for op in graph.ops if "res2_1.relu.grad+" in op["writes"])
    assert second["name"] == "res2_2.conv1.dgrad"
    assert "res2_1.relu.grad" in second["reads"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lenet", 8), "network is 'lenet'; did you mean 'alexnet'. It must be one of alexnet, fcn"),
        (("vgg16", 0), "batch is 0"),
        (("vgg16", 8, "abacus"), "gpu is 'abacus'; it must be one of k40m, v100"),
    ],
)
def test_unknown_names(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.profiles.analytic(*arguments)
