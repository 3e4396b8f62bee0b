"""The chains of the Euro-Par paper's figures: its networks and image sizes, and batches by powers of two."""

from __future__ import annotations

from functools import cache

from bench.common import ROOT

import memsched as ms
from memsched.support.documents import write_bytes

NETWORKS = (
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    "inception_v3",
)
_BATCHES = {224: (16, 32, 64, 128), 500: (4, 8, 16, 32), 1000: (1, 2, 4, 8)}
_SMALL = {"inception_v3": 299}  # it takes no smaller images
_FOLDER = ROOT / "build" / "bench" / "chains"


def parts_of(name: str) -> tuple[str, int, int]:
    """Network, image size and batch size."""
    network, image, batch = name.rsplit("-", 2)
    return network, int(image), int(batch[1:])


def names() -> tuple[str, ...]:
    """Of all chains, such as resnet50-224-b32."""
    return tuple(
        f"{network}-{_SMALL.get(network, image) if image == 224 else image}-b{batch}"
        for network in NETWORKS
        for image, batches in _BATCHES.items()
        for batch in batches
    )


@cache
def captured(name: str) -> ms.Chain:
    """A chain as `memsched profile` captures it, for the machine of the shipped ones; kept in build/bench/chains."""
    path = _FOLDER / f"{name}.json"
    if not path.exists():
        from bench.profiles.chains import chain_document, to_bytes
        from bench.profiles.networks import vision

        content = to_bytes(chain_document(name, vision(*parts_of(name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    return ms.Chain.load(path)
