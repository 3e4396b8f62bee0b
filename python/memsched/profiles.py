"""Chains and graphs of real networks that ship with memsched, and generators of random and homogeneous chains."""

from __future__ import annotations

import gzip
import json
import os
from copy import deepcopy
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from memsched._core import Chain, Graph
from memsched.errors import InvalidInputError
from memsched.problems.analytic import analytic
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.docstrings import documented

__all__ = ["analytic", "document", "graph_names", "homogeneous", "load", "load_graph", "names", "provenance", "random"]

_FOLDER = "chains"
_GRAPHS = "graphs"
_PACKED = ".json.gz"
_READERS = {
    ".json": "Chain.load or Graph.load reads it",
    ".csv": "Chain.from_csv reads it",
    ".onnx": "Graph.from_onnx reads it",
}


@public
def names(containing: str = "") -> tuple[str, ...]:
    """Names of the shipped profiles, sorted; their form is network-image-bBATCH.

    Parameters
    ----------
    containing : str
        Only names that contain this text.

    Examples
    --------
    >>> import memsched as ms
    >>> "resnet101-224-b32" in ms.profiles.names()
    True
    """
    folder = resources.files("memsched.problems") / _FOLDER
    found = (entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".json"))
    return tuple(sorted(name for name in found if checks.text("containing", containing) in name))


@public
def graph_names() -> tuple[str, ...]:
    """Names of the shipped graphs, sorted: those of `names`, and of training steps that ship as graphs alone.

    The latter have the form network-input-bBATCH-f32 or -bf16, and an optimiser's op for each parameter.

    Examples
    --------
    >>> import memsched as ms
    >>> "llama-2048-b2-bf16" in ms.profiles.graph_names(), "llama-2048-b2-bf16" in ms.profiles.names()
    (True, False)
    """
    folder = resources.files("memsched.problems") / _GRAPHS
    stems = (entry.name.removesuffix(_PACKED) for entry in folder.iterdir() if entry.name.endswith(_PACKED))
    return tuple(sorted([*names(), *(stem for stem in stems if "-" in stem)]))


@documented
def document(name: str) -> dict[str, Any]:
    """The JSON form of a shipped profile, provenance included."""
    _check_name(name, names())
    text = (resources.files("memsched.problems") / _FOLDER / f"{name}.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@documented
def provenance(name: str) -> dict[str, Any]:
    """Where the numbers of a shipped graph come from, as a chain's `provenance` says it.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.profiles.provenance("llama-2048-b2-bf16")["precision"]
    'weights, gradients and optimiser state in bfloat16'
    """
    _check_name(name, graph_names())
    found: dict[str, Any] = deepcopy(_packed_graphs(name)["provenance"])
    return found


def _check_name(name: str, known: tuple[str, ...]) -> None:
    if checks.kind("name", name, str) in known:
        return
    prefix, _, rest = name.partition(":")
    if rest and prefix in ("graph", "analytic"):
        call = f"load_graph({rest!r}) loads" if prefix == "graph" else "analytic(network, batch, gpu) makes"
        raise InvalidInputError(f"{name!r} is a name for the command line; in Python, {call} it")
    reader = _READERS.get(os.path.splitext(name)[1])
    if reader is not None:
        raise InvalidInputError(f"no profile is named {name!r}; if it is a file, {reader}")
    if name in graph_names():
        raise InvalidInputError(f"{name!r} ships as a graph alone, without a chain; load_graph loads it")
    stem = os.path.basename(name).lower().replace("_", "-")
    joined, first = stem.replace("-", ""), stem.split("-")[0]
    near = [other for other in known if other == stem]
    for beginning in filter(None, (joined, first)):  # "resnet-18" is resnet18 before it is any resnet
        near = near or [other for other in known if other.replace("-", "").startswith(beginning)]
    near = near or [other for other in known if get_close_matches(first, [other.split("-")[0]], cutoff=0.8)]
    if stem.count("-") > 1:  # more than a family
        near.sort(key=lambda other: -SequenceMatcher(None, stem, other).ratio())
    lists = f"profiles.{'names' if known == names() else 'graph_names'}() and `memsched profiles` list them"
    hint = f"; similar names: {', '.join(near[:6])}" if near else f"; {lists}"
    raise InvalidInputError(f"no profile is named {name!r}{hint}")


@documented
def load(name: str) -> Chain:
    """A shipped profile. Bytes are exact; times are a roofline model, see docs/profiles.md and `chain.provenance`.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.profiles.load("resnet18-224-b32").n
    13
    """
    return _load(checks.kind("name", name, str))


@lru_cache(maxsize=128)
def _load(name: str) -> Chain:
    return Chain.from_json(document(name))


@documented
def load_graph(name: str) -> Graph:
    """A shipped training step as a graph: forward, loss, backward and optimiser.

    Bytes are exact; times come from a roofline model, see docs/profiles.md and `provenance`. Parameters, buffers and
    the optimiser's state are resident. Gradients of parameters are tensors, which the optimiser's ops read.

    Parameters
    ----------
    name : str
        One of `graph_names`.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.load_graph("resnet18-224-b32")
    >>> len(graph.ops), graph.ops[-2]["kind"], graph.resident
    (152, 'optimizer', 93554656)
    """
    return _load_graph(checks.kind("name", name, str))


@lru_cache(maxsize=8)
def _load_graph(name: str) -> Graph:
    _check_name(name, graph_names())
    packed = _packed_graphs(name)
    numbers = packed["graphs"][name]
    tensors = [tensor for tensor, _ in packed["tensors"]]
    return Graph(
        [
            {"name": tensor, "size": size, "role": role}
            for (tensor, role), size in zip(packed["tensors"], numbers["sizes"], strict=True)
        ],
        [
            {
                **{"name": op, "phase": phase, "kind": kind, "layer": layer, "once": once},
                "reads": [tensors[tensor] for tensor in reads],
                "writes": [tensors[tensor] for tensor in writes],
                "choices": [{"alg": "default", "time": time, "workspace": workspace}],
            }
            for (op, phase, kind, layer, once, reads, writes), time, workspace in zip(
                packed["ops"], numbers["times"], numbers["workspaces"], strict=True
            )
        ],
        name=name,
        batch=numbers["batch"],
        resident=numbers["resident"],
    )


def _packed_graphs(name: str) -> dict[str, Any]:
    """The file with the graph: of all profiles of its network, or of this training step alone."""
    return _read_packed(name.split("-")[0] if name in names() else name)


@lru_cache(maxsize=2)
def _read_packed(stem: str) -> dict[str, Any]:
    """Graphs that differ in numbers only: names stored once, numbers for each graph."""
    content = (resources.files("memsched.problems") / _GRAPHS / f"{stem}{_PACKED}").read_bytes()
    packed: dict[str, Any] = json.loads(gzip.decompress(content))
    return packed


@public
def homogeneous(n: int, *, time: float = 1.0, activation: int = 1, overhead: int = 0) -> Chain:
    """A chain of n equal stages; each backward takes twice as long as the forward.

    Parameters
    ----------
    n : int
    time : float
        Seconds of one forward.
    activation, overhead : int
        Bytes of each activation and gradient, and of the workspace of each forward and backward.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.profiles.homogeneous(3).backward_time.tolist()
    [2.0, 2.0, 2.0]
    """
    n = checks.count("n", n, 1, 10_000_000)
    time = checks.non_negative("time", time, "seconds")
    sizes = [checks.size("activation", activation, 0)] * (n + 1)
    overhead = checks.size("overhead", overhead, 0)
    return Chain(
        [time] * n,
        [2 * time] * n,
        sizes,
        sizes,
        forward_overhead=[overhead] * n,
        backward_overhead=[overhead] * n,
        name=f"homogeneous-{n}",
    )


@public
def random(n: int, seed: int, *, tape: bool = True, scale: int = 1 << 20) -> Chain:
    """A random chain of n stages: log-normal times and sizes, with a spread as in real networks.

    Parameters
    ----------
    n : int
    seed : int
        The same seed gives the same chain.
    tape : bool
        Whether stages save more than their output.
    scale : int
        Bytes of a typical activation.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.profiles.random(5, seed=1) == ms.profiles.random(5, seed=1)
    True
    """
    n, scale = checks.count("n", n, 1, 10_000_000), checks.size("scale", scale, 0)
    tape = checks.flag("tape", tape)
    generator = np.random.default_rng(checks.count("seed", seed, 0, 2**63 - 1))
    forward = generator.lognormal(-6.0, 1.0, n)
    activation = np.ceil(scale * generator.lognormal(0.0, 1.0, n + 1)).astype(np.int64)
    extra = np.ceil(scale * generator.lognormal(0.0, 1.0, n)).astype(np.int64) if tape else 0
    gradient = activation.copy()
    gradient[0] = 0
    return Chain(
        forward,
        forward * generator.uniform(1.0, 3.0, n),
        activation,
        gradient,
        saved=activation[1:] + extra,
        forward_overhead=np.ceil(scale * generator.exponential(0.3, n)).astype(np.int64),
        backward_overhead=np.ceil(scale * generator.exponential(0.6, n)).astype(np.int64),
        name=f"random-{n}-{seed}",
    )


def __getattr__(name: str) -> object:
    """Tell the names that may have been meant."""
    if name.startswith("__"):
        raise AttributeError(name)
    near = checks.close(name, __all__)
    hint = f"did you mean {near}?" if near else f"it has {', '.join(__all__)}"
    raise AttributeError(f"module 'memsched.profiles' has no attribute {name!r}; {hint}")
