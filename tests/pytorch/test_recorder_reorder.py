"""Graphs whose ops may be reordered: tensors without bytes keep in order what must be, and no more."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import memsched as ms
from memsched.torch.recorder.record import graph, record, record_all
from pytorch.recorder_oracle import Script, edges, reachable, shuffled, watched
from pytorch.recorder_steps import ADAMW, SGD, Loop, Residual

PLAIN = functools.partial(torch.optim.SGD, lr=0.1, foreach=False)


def check(step: Any, resident: list[Any]) -> ms.Graph:
    """Every order of the graph keeps all conflicts in order, and every tensor without bytes is needed for that."""
    made, watcher, home = watched(step, resident)
    count, pairs = len(made.ops), edges(made)
    assert all(i < j for i, j in pairs)
    wanted = {(home[i], home[j]) for i, j in watcher.conflicts()}
    assert all(i <= j for i, j in wanted)
    wanted = {(i, j) for i, j in wanted if i < j}
    if made.ops[-1]["name"] == "end":
        wanted |= {(i, count - 1) for i in range(count - 1)}
    before = reachable(count, pairs)
    assert [(i, j) for i, j in wanted if i not in before[j]] == []
    for pair in [pair for pair, has_bytes in pairs.items() if not has_bytes]:
        less = reachable(count, set(pairs) - {pair})
        assert any(i not in less[j] for i, j in wanted), pair
    return made


def without_control(made: ms.Graph) -> dict[str, Any]:
    document = made.to_json()
    sizes = {tensor["name"]: tensor["size"] for tensor in document["tensors"]}
    document["tensors"] = [tensor for tensor in document["tensors"] if tensor["size"]]
    for op in document["ops"]:
        for key in ("reads", "writes"):
            op[key] = [tensor for tensor in op[key] if sizes[tensor]]
    return document


ACTION = st.tuples(
    st.sampled_from(["add", "add_", "relu_", "half_", "fixed", "fixed_", "random", "random_", "drop", "norm"]),
    st.integers(0, 9),
    st.integers(0, 9),
)


@settings(deadline=None)
@given(st.lists(ACTION, max_size=20))
def test_random_programs_keep_what_must_be(actions: list[tuple[str, int, int]]) -> None:
    def step() -> object:
        live = [inputs.clone(), torch.randn(4, 2)]
        for verb, i, j in actions:
            a, b, weight = live[i % len(live)], live[j % len(live)], fixed[j % len(fixed)]
            if verb == "drop" and len(live) > 1:
                live.pop(i % len(live))
            elif verb == "relu_":
                a.relu_()
            elif verb == "half_":
                a[:2].mul_(1.5)
            elif verb == "add_":
                a.add_(b)
            elif verb == "add":
                live.append(a + b)
            elif verb == "fixed":
                live.append(a * weight)
            elif verb == "fixed_":
                weight[j % 2 :].add_(a[j % 2 :])
            elif verb == "random":
                live.append(nn.functional.dropout(a, 0.5))
            elif verb == "random_":
                weight.normal_()
            elif verb == "norm":
                live.append(nn.functional.batch_norm(a, *statistics, training=True))
            del a, b, weight
        return live

    torch.manual_seed(0)
    inputs = torch.randn(4, 2)
    fixed = [torch.randn(4, 2) for _ in range(3)]
    statistics = [torch.zeros(2), torch.ones(2)]
    check(step, [inputs, *fixed, *statistics])


class Net(nn.Module):
    """Statistics, random numbers, a weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        x = self.drop(self.norm(self.first(x)).relu())
        return self.drop(self.norm(self.first(x)))


@pytest.mark.parametrize("optimizer", [PLAIN, SGD, ADAMW, functools.partial(ADAMW, foreach=True)])
@pytest.mark.parametrize(
    ("build", "micro"),
    [
        (Net, 1),
        (functools.partial(Loop, 4), 2),
        pytest.param(Net, 2, marks=pytest.mark.slow),
        pytest.param(functools.partial(Loop, 4), 1, marks=pytest.mark.slow),
    ],
)
def test_training_steps_keep_what_must_be(build: Any, optimizer: Any, micro: int) -> None:
    torch.manual_seed(0)
    model = build()
    updates = optimizer(model.parameters())
    batches = [torch.randn(8, 4) if isinstance(model, Net) else torch.randn(2, 3, 4) for _ in range(micro)]

    def step() -> object:
        for x in batches:
            loss = model(x).square().sum()
            loss.backward()
        updates.step()
        updates.zero_grad()
        return loss

    step()
    state = [value for values in updates.state.values() for value in values.values() if torch.is_tensor(value)]
    check(step, [*model.parameters(), *model.buffers(), *batches, *state])


@pytest.mark.parametrize("optimizer", [PLAIN, SGD, ADAMW])
def test_steps_in_another_order_give_the_same_bits(optimizer: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Net(), Residual(2, 4)), torch.randn(8, 4)
    updates = optimizer(model.parameters())

    def step() -> object:
        loss = model(x).square().sum()
        loss.backward()
        updates.step()
        updates.zero_grad()
        return loss

    step()
    state = [value for values in updates.state.values() for value in values.values() if torch.is_tensor(value)]
    resident = [*model.parameters(), *model.buffers(), x, *state]
    made, _, home = watched(step, resident)
    script = Script(resident)
    record_all(step, resident=resident, times=script, reorderable=True)
    want = {script.number(tensor): tensor.untyped_storage().tolist() for tensor in resident}
    assert len(script.lines) == len(home)
    pairs = edges(made)
    for seed in range(10):
        order = shuffled(len(made.ops), pairs, seed)
        found = script.run([line for op in order for line in range(len(home)) if home[line] == op])
        assert {number: storage.tolist() for number, storage in found.items()} == want, seed


def test_the_tensors_with_bytes_are_as_before() -> None:
    model, x = Net(), torch.randn(8, 4)

    def step() -> object:
        loss = model(x).sum()
        loss.backward()
        return loss

    resident = [*model.parameters(), *model.buffers(), x]
    before = record_all(step, resident=resident)
    model.zero_grad()
    after = record_all(step, resident=resident, reorderable=True)
    assert without_control(after.graph) == before.graph.to_json()
    assert any(tensor["size"] == 0 for tensor in after.graph.tensors)
    assert ms.peak_memory(after.graph) == ms.peak_memory(before.graph)
    assert (after.eager_peak, after.doubled) == (before.eager_peak, before.doubled)


def test_weights_change_once_nobody_reads_them_and_gradients_die_with_it() -> None:
    made = graph(Residual(2, 8), (torch.randn(4, 8),), optimizer=PLAIN, reorderable=True)
    updates = [position for position, op in enumerate(made.ops) if op["kind"] == "optimizer"]
    assert len(updates) == 2
    before = reachable(len(made.ops), edges(made))
    # The last block's update need not wait for the first block's gradient, only for the backward through its weight.
    last = min(updates, key=lambda position: len(before[position]))
    readers = [position for position, op in enumerate(made.ops) if op["name"].startswith("blocks.1/mm")]
    assert len(readers) == 3  # forward, and two in the backward
    assert set(readers) <= before[last]
    assert not [p for p, op in enumerate(made.ops) if op["name"].startswith("blocks.0/mm#") and p in before[last]]
    end = made.ops[-1]
    assert end["name"] == "end"
    sizes = {tensor["name"]: tensor["size"] for tensor in made.tensors}
    assert [sizes[tensor] for tensor in end["reads"] if sizes[tensor]] == [4]  # the loss
    assert before[len(made.ops) - 1] == set(range(len(made.ops) - 1))


def test_random_numbers_are_drawn_in_order() -> None:
    made = record(lambda: (torch.rand(2), torch.rand(3), torch.ones(1)), reorderable=True)
    assert [(op["name"], op["reads"], op["writes"]) for op in made.ops] == [
        ("rand", [], ["rand:0", "rand:done"]),
        ("rand#2", ["rand:done"], ["rand#2:0"]),
        ("ones", [], ["ones:0"]),
        ("end", ["rand:0", "rand#2:0", "ones:0"], []),
    ]


def test_what_an_optimiser_changes_can_be_persistent() -> None:
    """Weight, momentum and update of each parameter; the rest is as without."""
    with torch.device("meta"):
        model, x = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)), torch.empty(3, 8)
    options = {
        "optimizer": lambda all_: torch.optim.SGD(all_, lr=0.1, momentum=0.9, foreach=False),
        "reorderable": True,
    }
    plain, whole = graph(model, (x,), **options), graph(model, (x,), **options, persistent=True)
    sizes = {one["name"]: one["size"] for one in whole.tensors if one["role"] == "persistent"}
    assert sorted(sizes.values()) == sorted(2 * [4 * 8 * 4, 4 * 4, 2 * 4 * 4, 2 * 4])
    assert plain.resident == whole.resident + sum(sizes.values())
    assert [one["name"] for one in whole.ops] == [one["name"] for one in plain.ops]
    updated = [name for one in whole.ops for name in one.get("updates", ())]
    assert set(updated) == set(sizes)
    assert all(one["once"] and one["kind"] == "optimizer" for one in whole.ops if "updates" in one)
    first = next(one for one in whole.ops if one["kind"] == "addmm")
    assert [sizes[name] for name in first["reads"] if name in sizes] in ([128, 16], [16, 128])
    tight = ms.min_memory(whole)
    assert ms.validate(ms.selective(whole, tight, 1e3, moves=0)).peak_memory <= tight
