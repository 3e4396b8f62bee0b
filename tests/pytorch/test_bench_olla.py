"""What the bench of OLLA counts: orders by Inductor's own rules, the allocator against a slow one, and its report."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "bench" / "papers").is_dir(), reason="the benchmarks are not here")
needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
)


def module(part: str = "") -> Any:
    return importlib.import_module(f"bench.papers.olla2022{part}")


@st.composite
def flows(draw: st.DrawFn) -> Any:
    """Small graphs with inputs, workspaces, tensors without bytes, and tensors that several ops read."""
    count = draw(st.integers(1, 9))
    sizes = st.integers(0, 6)
    tensors = [{"name": "x", "size": draw(sizes), "role": "input"}]
    ops: list[dict[str, Any]] = []
    for number in range(count):
        reads = draw(st.lists(st.sampled_from([t["name"] for t in tensors]), max_size=3, unique=True))
        writes = [f"{number}.{k}" for k in range(draw(st.integers(0, 2)))]
        tensors += [{"name": name, "size": draw(sizes), "role": "activation"} for name in writes]
        choices = [{"alg": "default", "time": 0.0, "workspace": draw(st.sampled_from([0, 0, 5]))}]
        ops.append({"name": str(number), "phase": "fwd", "reads": reads, "writes": writes, "choices": choices})
    used = {name for op in ops for name in op["reads"]}
    for op in ops:
        op["writes"] = [name for name in op["writes"] if name in used]
    tensors = [tensor for tensor in tensors if tensor["name"] in used]
    return module("_orders").Flow(ms.Graph(tensors, ops, resident=draw(sizes)))


def shuffled(flow: Any, seed: int) -> list[int]:
    """A random topological order."""
    choose, done = random.Random(seed), dict[int, None]()
    while len(done) < len(flow.names):
        ready = [op for op in flow.listed() if op not in done and all(other in done for other in flow.before[op])]
        done[choose.choice(ready)] = None
    return list(done)


@given(flows(), st.integers(0, 99))
def test_the_peak_of_an_order_is_that_of_the_graph_so_listed(flow: Any, seed: int) -> None:
    order = shuffled(flow, seed)
    document = flow.graph.to_json()
    document["ops"] = [document["ops"][op] for op in order]
    assert flow.peak(order) == ms.peak_memory(ms.Graph.from_json(document))
    assert flow.peak(flow.listed()) == ms.peak_memory(flow.graph)
    assert flow.numbers([flow.names[op] for op in order]) == order


class Node:
    """What torch._inductor.memory wants to know of an op."""

    def __init__(self, flow: Any, index: int, buffers: list[Any]) -> None:
        self.outputs = [buffers[tensor] for tensor in [*flow.writes[index], len(flow.bytes) + index]]
        self.unmet_dependencies = [
            SimpleNamespace(name=str(tensor)) for tensor in flow.reads[index] if flow.writer[tensor] >= 0
        ]
        reads = [buffers[tensor] for tensor in flow.reads[index]]
        self.mpi_node = SimpleNamespace(index=index, size=flow.made(index), pred_buffers=reads)

    def get_outputs(self) -> Any:
        return self.outputs

    def get_buffer_names(self) -> Any:
        return [buffer.get_name() for buffer in self.outputs]


class Held:
    """What it wants to know of a buffer."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.mpi_buffer = SimpleNamespace(size_alloc=count, size_free=count, succ_nodes=[])

    def get_name(self) -> str:
        return str(self.number)


def as_inductor(flow: Any) -> tuple[list[Node], list[Any]]:
    """The same graph; workspaces are buffers that nobody reads."""
    buffers = [Held(number, count) for number, count in enumerate([*flow.bytes, *flow.workspace])]
    nodes = [Node(flow, index, buffers) for index in flow.listed()]
    for tensor, readers in enumerate(flow.readers):
        buffers[tensor].mpi_buffer.succ_nodes = [nodes[op] for op in readers]
    for index, node in enumerate(nodes):
        node.mpi_node.pred_nodes = [nodes[op] for op in flow.before[index]]
        node.mpi_node.succ_nodes = [nodes[op] for op in flow.after[index]]
    return nodes, buffers


@given(flows())
def test_the_rules_are_inductors(flow: Any) -> None:
    memory = importlib.import_module("torch._inductor.memory")
    nodes, buffers = as_inductor(flow)
    inputs = {b.get_name(): b for b, writer in zip(buffers, flow.writer, strict=False) if writer < 0}
    made = {b.get_name(): b for b in buffers if b.get_name() not in inputs}
    theirs = {
        "LPMF": memory.topological_sort_lpmf(nodes, inputs, made, set()),
        "BFS": memory.topological_sort_bfs(nodes),
        "DFS": memory.topological_sort_dfs(nodes),
    }
    orders = module("_orders")
    for name, rule in orders.RULES.items():
        order = rule(flow)
        assert order == [node.mpi_node.index for node in theirs[name]], name
        flow.peak(order)  # a topological order
    assert flow.peak(orders.inductor(flow)) <= flow.peak(flow.listed())


class SlowAllocator:
    """Segments as lists of [address, bytes, small, free], searched from end to end."""

    def __init__(self, expandable: bool) -> None:
        self.blocks: list[list[Any]] = []
        self.reserved = 0
        self.expandable = expandable

    def malloc(self, count: int) -> int:
        size = -(-max(count, 1) // 512) * 512
        small = size <= 2**20
        fits = [b for b in self.blocks if b[3] and b[2] == small and b[1] >= size]
        if not fits and self.expandable:
            fits = [self.grow(size, small)]
        if not fits:
            new = 2**21 if small else 20 * 2**20 if size < 10 * 2**20 else -(-size // 2**21) * 2**21
            fits = [[(self.reserved, 0), new, small, True]]
            self.blocks += fits
            self.reserved += new
        block = min(fits, key=lambda b: (b[1], b[0]))
        rest = block[1] - size
        if ((small or self.expandable) and rest >= 512) or rest > 2**20:
            place = self.blocks.index(block)
            self.blocks.insert(place + 1, [(block[0][0], block[0][1] + size), rest, small, True])
            block[1] = size
        block[3] = False
        return self.address(block)

    def address(self, block: list[Any]) -> int:
        return block[0][1] if self.expandable else sum(block[0])

    def grow(self, size: int, small: bool) -> list[Any]:
        """One segment a pool, by whole pages; what is free at its end is a part of what is asked for."""
        own = [b for b in self.blocks if b[2] == small]
        page = 2**21 if small else 20 * 2**20
        if not own or not own[-1][3]:
            start = ("small" if small else "large", sum(b[1] for b in own))
            own.append([start, 0, small, True])
            self.blocks = sorted([*self.blocks, own[-1]], key=lambda b: b[0])
        while own[-1][1] < size:
            own[-1][1] += page
            self.reserved += page
        return own[-1]

    def free(self, address: int, small: bool) -> None:
        next(b for b in self.blocks if (self.address(b), b[2]) == (address, small) and not b[3])[3] = True
        joined: list[list[Any]] = []
        for block in self.blocks:
            if joined and joined[-1][3] and block[3] and joined[-1][0][0] == block[0][0]:
                joined[-1][1] += block[1]
            else:
                joined.append(block)
        self.blocks = joined

    def used(self) -> int:
        return sum(b[1] for b in self.blocks if not b[3])


BYTES = st.one_of(st.integers(1, 3000), st.integers(2**19, 2**21), st.integers(2**21, 3 * 2**24))


@given(st.lists(st.tuples(st.booleans(), BYTES), max_size=40), st.booleans())
def test_the_allocator_is_as_a_slow_one(actions: list[tuple[bool, int]], expandable: bool) -> None:
    fast, slow, held = module("_allocator").CachingAllocator(expandable=expandable), SlowAllocator(expandable), []
    for take, count in actions:
        if take or not held:
            block = fast.malloc(count)
            assert block.address == slow.malloc(count)
            held.append((block, count))
        else:
            block, _ = held.pop(count % len(held))
            slow.free(block.address, block.small)
            fast.free(block)
        assert (fast.reserved, fast.allocated) == (slow.reserved, slow.used())
        assert fast.requested == sum(count for _, count in held)


def test_a_step_that_repeats_reserves_no_more() -> None:
    orders, allocator = module("_orders"), module("_allocator")
    lifetimes = [
        orders.Lifetime(start=0, end=2, bytes=30 * 2**20),
        orders.Lifetime(start=1, end=3, bytes=2 * 2**20),
        orders.Lifetime(start=2, end=3, bytes=31 * 2**20),
    ]
    found = allocator.replay([512], lifetimes)
    # A small segment, 30 MiB, one of 20 MiB for 2 MiB, and 32 MiB for 31 MiB, which do not fit where 30 MiB were.
    assert found.reserved == (2 + 30 + 20 + 32) * 2**20
    assert found.resident_set == found.peak == 512 + 33 * 2**20
    assert found.fragmentation == found.overhead == pytest.approx(1 - found.peak / found.reserved)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 9)), max_size=15))
def test_the_largest_first_lies_as_low_as_it_fits(given_: list[tuple[int, int, int]]) -> None:
    bench, allocator = module(), module("_allocator")
    lifetimes = [module("_orders").Lifetime(start=a, end=a + n, bytes=b) for a, n, b in given_]
    offsets = allocator.largest_first(lifetimes)
    height = bench.height_of(lifetimes, offsets)  # which raises where two overlap
    assert bench.load_of(lifetimes) <= height <= sum(one.bytes for one in lifetimes)
    for (one, a), (other, b) in itertools.combinations(zip(lifetimes, offsets, strict=True), 2):
        if one.start < other.end and other.start < one.end:
            assert a + one.bytes <= b or b + other.bytes <= a
            with pytest.raises(ValueError, match="overlaps"):
                bench.height_of([one, other], [a, a])


@needs_torchvision
def test_a_captured_step_has_an_update_a_parameter() -> None:
    graphs = module("_graphs")
    step = graphs.capture("alexnet", 1)
    assert sum(step.resident) == step.graph.resident == 244403360
    updates = [op for op in step.graph.ops if op["kind"] == "optimizer"]
    assert len(updates) == 16
    assert set(graphs.NETWORKS) >= {"alexnet", "efficientnet", "xlmr"}


@needs_torchvision
def test_captured_steps_are_kept(tmp_path: Path) -> None:
    graphs = module("_graphs")
    made = graphs.captured("transformer", 1, "adam", tmp_path)
    again = graphs.captured("transformer", 1, "adam", tmp_path)
    assert again == made
    assert len(made.resident) == 4 * sum(
        op["name"].endswith("addcdiv_") or "addcdiv_#" in op["name"] for op in made.graph.ops
    )


@pytest.mark.slow
@needs_torchvision
def test_the_report(tmp_path: Path) -> None:
    module().main(["--quick", "--out", str(tmp_path), "--graphs", str(tmp_path / "graphs")])
    text = (tmp_path / "olla2022.md").read_text(encoding="utf-8")
    pictures = sorted((tmp_path / "olla2022").glob("*.png"))
    assert len(pictures) == 5
    assert all(f"olla2022/{path.name}" in text and path.stat().st_size > 2000 for path in pictures)
    claims = [line for line in text.split("## Claims\n")[1].split("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert len(claims) == 15
    assert all(line.split(" | ")[3] in ("confirmed", "changed", "refuted", "not comparable") for line in claims)
    (row,) = text.split("## Time in the allocator (Figure 14)\n")[1].split("\n\n")[1].splitlines()[2:]
    _, network, batch, optimizer, requests, planned, *_ = (cell.strip() for cell in row.split("|"))
    assert (network, batch, optimizer) == ("Transformer, 1+1 layers", "2", "adam")
    assert int(planned) == int(requests) > 100
