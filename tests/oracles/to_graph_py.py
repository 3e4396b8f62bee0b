"""A chain's graph as memsched-graph/1, from the chain's JSON, in whole tensors or in pieces."""

from __future__ import annotations

from typing import Any

Tensor = tuple[str, int]


def to_graph_py(chain: dict[str, Any], chunk: int | str | None = None) -> dict[str, Any]:
    """The memsched-graph/1 dict of a memsched-chain/1 dict; chunk is None, a number of bytes or "storage"."""
    n = len(chain["forward_time"])
    activation, gradient = chain["activation"], chain["gradient"]
    saved = _column(chain, "saved", activation[1:])
    forward_overhead = _column(chain, "forward_overhead", [0] * n)
    backward_overhead = _column(chain, "backward_overhead", [0] * n)
    tape_bytes = [saved[k] - activation[k + 1] for k in range(n)]
    all_temporary = [tape_bytes[k] + forward_overhead[k] for k in range(n)]
    transient = _column(chain, "transient_overhead", all_temporary)

    a = [_cut(f"a{k}", activation[k], chunk, None) for k in range(n + 1)]
    storages = chain.get("pieces") or [None] * n
    tape = [[t for t in _cut(f"tape{k + 1}", tape_bytes[k], chunk, storages[k]) if t[1] > 0] for k in range(n)]

    tensors = [_tensor(t, "input") for t in a[0]]
    for k in range(1, n + 1):
        tensors += [_tensor(t, "activation") for t in a[k] + tape[k - 1]]
    tensors += [_tensor((f"d{k}", gradient[k]), "gradient") for k in range(n, -1, -1)]

    ops = []
    for k in range(1, n + 1):
        op = _op(f"F{k}", "fwd", "stage", k, _names(a[k - 1]), _names(a[k] + tape[k - 1]))
        if tape[k - 1]:
            op["tape"] = _names(tape[k - 1])
            op["skip_workspace"] = int(transient[k - 1])
        ops.append(_with_choice(op, chain["forward_time"][k - 1], forward_overhead[k - 1]))
    ops.append(_with_choice(_op("loss", "bwd", "loss", n + 1, _names(a[n]), [f"d{n}"]), 0, 0))
    for k in range(n, 0, -1):
        reads = [*_names(a[k - 1] + a[k] + tape[k - 1]), f"d{k}"]
        op = _op(f"B{k}", "bwd", "stage", k, reads, [f"d{k - 1}"])
        op["once"] = True
        ops.append(_with_choice(op, chain["backward_time"][k - 1], backward_overhead[k - 1]))
    resident = chain.get("resident")
    return {
        "format": "memsched-graph/1",
        "name": chain.get("name") or "chain",
        "batch": 1,
        "resident": int(2 * chain.get("parameters", 0) if resident is None else resident),
        "tensors": tensors,
        "ops": ops,
    }


def _column(chain: dict[str, Any], key: str, default: list[int]) -> list[int]:
    given = chain.get(key)
    return list(default if given is None else given)


def _cut(name: str, total: int, chunk: int | str | None, storages: list[int] | None) -> list[Tensor]:
    """One tensor, or its pieces name/0, name/1, ... in the order in which they lie."""
    if chunk == "storage":
        parts = [total]
        if storages is not None and len(storages) > 1:
            return [(f"{name}/{i}", int(part)) for i, part in enumerate(p for p in storages if p > 0)]
    elif chunk is None:
        parts = [total]
    else:
        piece = int(chunk)
        parts = [total]
        while parts[-1] > piece:
            parts[-1:] = [piece, parts[-1] - piece]
    if len(parts) == 1:
        return [(name, int(parts[0]))]
    return [(f"{name}/{i}", int(part)) for i, part in enumerate(parts)]


def _names(tensors: list[Tensor]) -> list[str]:
    return [name for name, _ in tensors]


def _tensor(tensor: Tensor, role: str) -> dict[str, Any]:
    return {"name": tensor[0], "size": int(tensor[1]), "role": role}


def _op(name: str, phase: str, kind: str, layer: int, reads: list[str], writes: list[str]) -> dict[str, Any]:
    return {"name": name, "phase": phase, "kind": kind, "layer": layer, "reads": reads, "writes": writes}


def _with_choice(op: dict[str, Any], time: float, workspace: int) -> dict[str, Any]:
    return {**op, "choices": [{"alg": "default", "time": float(time), "workspace": int(workspace)}]}
