"""Hypothesis strategies for graphs of training steps that are not chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from memsched._core import Graph
from memsched.problems.family import GraphFamily
from memsched.testing.arguments import checked

_KINDS = ("conv", "conv", "fc", "pool", "relu")
_Numbers = Callable[[int], int]  # largest value -> a number of bytes or seconds


@checked(max_layers=1, max_bytes=1)
@st.composite
def graphs(draw: st.DrawFn, *, max_layers: int = 6, choices: bool = True, max_bytes: int = 9) -> Graph:
    """Draw the graph of a training step: layers with skips, several outputs, and gradients that are summed.

    The forward of each layer reads the output of the one before and sometimes an earlier one. The backward reads some
    of what the forward read and wrote. If a tensor has two readers, the second one's gradient op reads the first one's
    gradient and writes the sum. Some layers have a separate op for the gradient of the weights, with once=true.

    Parameters
    ----------
    max_layers
        Largest number of layers.
    choices
        Allow ops with several algorithms.
    max_bytes
        Largest size of a tensor or a workspace, in bytes.

    Examples
    --------
    >>> import memsched as ms
    >>> from hypothesis import given
    >>> @given(graphs(max_layers=3))
    ... def test_fits_at_its_peak(graph):
    ...     assert ms.min_memory(graph) <= ms.peak_memory(graph)
    >>> test_fits_at_its_peak()
    """
    return draw(families(max_layers=max_layers, choices=choices, max_bytes=max_bytes, max_batch=1)).graph


@checked(max_layers=1, max_bytes=1, max_batch=1)
@st.composite
def families(
    draw: st.DrawFn, *, max_layers: int = 6, choices: bool = True, max_bytes: int = 9, max_batch: int = 6
) -> GraphFamily:
    """Draw a training step as `graphs` does, at any batch size up to a drawn one.

    Bytes and seconds grow in proportion to the batch, some in addition to a fixed part.

    Parameters
    ----------
    max_layers, choices, max_bytes
        As in `graphs`; bytes per sample.
    max_batch
        Largest full batch.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(families(max_layers=2))
    ... def test_sizes_grow(family):
    ...     sizes = [[tensor["size"] for tensor in family.at(batch).tensors] for batch in (1, family.batch)]
    ...     assert all(a <= b for a, b in zip(*sizes))
    >>> test_sizes_grow()
    """
    parts: list[tuple[int, int]] = []  # per number that depends on the batch: the fixed part, and the part per sample

    def number(most: int) -> int:
        parts.append((draw(st.integers(0, 1)) * draw(st.integers(0, most)), draw(st.integers(0, most))))
        return len(parts) - 1

    layers = draw(st.integers(1, max_layers))
    writer = _Writer(draw, number, max_bytes, choices)
    for k in range(layers):
        writer.forward(k)
    for k in reversed(range(layers)):
        writer.backward(k)
    resident = draw(st.integers(0, max_bytes))

    def make(batch: int) -> Graph:
        values = [fixed + each * batch for fixed, each in parts]
        tensors = [{**one, "size": values[one["size"]]} for one in writer.tensors]
        ops = [
            {
                **op,
                "choices": [
                    {"alg": f"alg{n}", "time": values[time] / 4, "workspace": values[scratch] if n else 0}
                    for n, (time, scratch) in enumerate(op["choices"])
                ],
            }
            for op in writer.ops
        ]
        return Graph(tensors, ops, name="drawn", batch=batch, resident=resident)

    return GraphFamily(make, draw(st.integers(1, max_batch)))


class _Writer:
    """A random training step whose numbers are drawn later."""

    def __init__(self, draw: st.DrawFn, number: _Numbers, max_bytes: int, choices: bool) -> None:
        self.draw, self.number, self.max_bytes, self.choices = draw, number, max_bytes, choices
        self.tensors: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.layers: list[dict[str, Any]] = []
        self.gradient: dict[str, str] = {}  # the latest sum for each tensor
        self.tensor("x", "input")

    def tensor(self, name: str, role: str) -> str:
        self.tensors.append({"name": name, "size": self.number(self.max_bytes), "role": role})
        return name

    def op(self, name: str, phase: str, layer: int, kind: str, reads: list[str], writes: list[str]) -> dict[str, Any]:
        count = self.draw(st.integers(1, 3)) if self.choices else 1
        choices = [(self.number(8), self.number(self.max_bytes)) for _ in range(count)]
        made: dict[str, Any] = {"name": name, "phase": phase, "kind": kind, "layer": layer}
        made |= {"reads": list(dict.fromkeys(reads)), "writes": writes, "choices": choices}
        self.ops.append(made)
        return made

    def forward(self, k: int) -> None:
        earlier = ["x", *(f"a{j}" for j in range(k))]
        reads = [earlier[-1]]
        if k > 0 and self.draw(st.integers(0, 2)) == 0:
            reads.append(self.draw(st.sampled_from(earlier[:-1])))
        kind = self.draw(st.sampled_from(_KINDS))
        writes = [self.tensor(f"a{k}", "activation")]
        if self.draw(st.integers(0, 3)) == 0:
            writes.append(self.tensor(f"mask{k}", "activation"))
        self.op(f"F{k}", "fwd", k, kind, reads, writes)
        self.layers.append({"reads": reads, "writes": writes, "kind": kind})

    def backward(self, k: int) -> None:
        layer = self.layers[k]
        arriving = [self.gradient[name] for name in layer["writes"] if name in self.gradient]
        known = [*layer["reads"], *layer["writes"]]
        saved = [name for name in known if self.draw(st.booleans())]
        if self.draw(st.integers(0, 2)) == 0:
            self.op(f"W{k}", "bwd", k, layer["kind"], [*arriving, layer["reads"][0]], [])["once"] = True
        sums = [self.gradient[name] for name in layer["reads"] if name in self.gradient]
        writes = []
        for name in layer["reads"]:
            if name != "x":
                count = sum(one["name"].startswith(f"d{name}.") for one in self.tensors)
                self.gradient[name] = self.tensor(f"d{name}.{count}", "gradient")
                writes.append(self.gradient[name])
        self.op(f"B{k}", "bwd", k, layer["kind"], [*arriving, *saved, *sums], writes)
