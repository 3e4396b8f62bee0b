"""The 65 networks, image sizes and batches of the shipped profiles, and how each is built."""

from __future__ import annotations

from typing import NamedTuple

from memsched.torch import zoo

MACHINE = "v100:pcie3"

_SIZES = ((224, 32), (224, 128), (500, 8), (500, 32), (1000, 2), (1000, 8))
_VISION = {
    **{f"resnet{depth}": _SIZES for depth in (18, 34, 50, 101, 152)},
    **{f"densenet{depth}": _SIZES for depth in (121, 161, 169, 201)},
    "inception_v3": ((299, 32), (299, 128), *_SIZES[2:]),
    **{f"vgg{depth}": _SIZES[:2] for depth in (16, 19)},
}
_OPTIONS = {"inception_v3": "?aux_logits=false"}  # one output, as a chain has
_CAUSAL = "memsched_causal"


class Source(NamedTuple):
    """Where a profile comes from.

    Attributes
    ----------
    network : str
    spec, input : str
        As `memsched.torch.zoo.build` takes them.
    note : str
        What the provenance adds; empty for most.
    """

    network: str
    spec: str
    input: str
    note: str = ""


def vision(network: str, side: int, batch: int) -> Source:
    """A network of torchvision on square images."""
    spec = f"torchvision:{network}{_OPTIONS.get(network, '')}"
    note = "without auxiliary classifier" if network in _OPTIONS else ""
    return Source(network, spec, f"{batch}x3x{side}x{side}", note)


def sources() -> dict[str, Source]:
    """By the name of the profile, sorted."""
    found = {
        f"{network}-{side}-b{batch}": vision(network, side, batch)
        for network, sizes in _VISION.items()
        for side, batch in sizes
    }
    found["gpt2-1024-b8"] = Source(
        "gpt2",
        f"transformers:gpt2?attn_implementation={_CAUSAL}",
        "8x1024:int",
        "causal mask by is_causal, as transformers does when it is not traced",
    )
    return dict(sorted(found.items()))


def register_causal_attention() -> None:
    """Let GPT-2 ask its attention for a causal mask instead of giving one.

    transformers does so by itself, but while torch.compile captures the model it makes the mask. A name that its table
    of masks lacks keeps it from that.
    """
    zoo.torchvision()  # transformers imports it, which needs care
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(_CAUSAL, sdpa_attention_forward)
