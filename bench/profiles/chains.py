"""One shipped chain: the profile of a network as a document, and as bytes."""

from __future__ import annotations

import json
from typing import Any

import torch
from bench.profiles.networks import MACHINE, Source

import memsched as ms
from memsched.problems.chain_updates import STAGE_GRADIENTS
from memsched.torch.machines import machine
from memsched.torch.profile import profile_spec

VERSION = torch.__version__.partition("+")[0]  # what it was built for makes no difference
COLUMNS = (
    *("forward_time", "backward_time", "activation", "saved", "gradient"),
    *("forward_overhead", "transient_overhead", "backward_overhead"),
)


def chain_document(name: str, source: Source) -> dict[str, Any]:
    """The JSON form of a chain, with seconds of six digits."""
    chain = profile_spec(source.spec, source.input, device=MACHINE)
    found = dict(chain.provenance or {})
    gpu, _ = machine(MACHINE)
    return {
        "format": "memsched-chain/1",
        "name": name,
        "n": chain.n,
        "names": list(chain.names),
        **{column: _plain(chain, column) for column in COLUMNS},
        "pieces": chain.pieces,
        "parameters": found["resident"]["parameters"],
        "resident": chain.resident,
        "provenance": {
            "source": "; ".join(
                part for part in (found["source"].replace(torch.__version__, VERSION), source.note) if part
            ),
            "times": f"{found['times']}; float32; loss, and adding to gradients that are there already, not included",
            "gpu": f"{gpu.name} ({gpu.source})",
            "link": found["link"],
            "link_bandwidth": found["link_bandwidth"],
            "resident": found["resident"],
            **{key: found[key] for key in (STAGE_GRADIENTS,) if key in found},
        },
    }


def rounded(seconds: float) -> float:
    """To six digits: more would be noise of the summation, and a model of machines is not that precise."""
    return float(f"{seconds:.6g}")


def _plain(chain: ms.Chain, column: str) -> list[Any]:
    values: list[Any] = getattr(chain, column).tolist()
    return [rounded(value) for value in values] if column.endswith("_time") else values


def to_bytes(document: dict[str, Any]) -> bytes:
    """The bytes of a file: compact JSON that is the same on every machine."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
