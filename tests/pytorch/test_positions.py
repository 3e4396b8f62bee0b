"""Indices that follow from sizes: refused without data exactly where PyTorch refuses them with data."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from memsched.torch.positions import Positions, check_positions

Program = Callable[[torch.Tensor], torch.Tensor]


def _put(i: torch.Tensor, value: int) -> torch.Tensor:
    i = i.clone()
    i[0] = value
    return i


def _first_half(i: torch.Tensor, value: int) -> torch.Tensor:
    i = i.clone()
    i[: 1 + i.shape[0] // 2].add_(value)
    return i


_CHANGES: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda i, k: i + k,
    lambda i, k: i * abs(k),
    lambda i, k: i % max(1, abs(k)),
    lambda i, k: i.clamp(0, max(0, k + 4)),
    lambda i, k: i.flip(0),
    lambda i, k: i[: max(1, i.shape[0] - 1)],
    lambda i, k: i.unsqueeze(0).expand(2, -1).reshape(-1),
    lambda i, k: i.clone().add_(k),
    lambda i, k: torch.cat([i, i + 1]),
    lambda i, k: torch.where(i > k, i, i - i),
    lambda i, k: i.masked_fill(i > k, k),
    lambda i, k: i.to(torch.int32).long(),
    lambda i, k: (i.float() * 1.5).long(),
    lambda i, k: i.sort(descending=True)[0],
    lambda i, k: i.sort(descending=True)[1],
    lambda i, k: i + torch.tensor(k),
    lambda i, k: torch.ones(i.shape[0]).cumsum(0).long() + i,
    lambda i, k: torch.stack(i.chunk(1)).view(-1),
    lambda i, k: i.clone().copy_(torch.full_like(i, k)),
    _put,
    _first_half,
]

_READS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda w, i: torch.nn.functional.embedding(i, w),
    lambda w, i: w[i],
    lambda w, i: w.index_select(0, i),
    lambda w, i: w.gather(0, i[:, None].expand(-1, 3)),
    lambda w, i: w.index_put((i,), torch.zeros(())),
    lambda w, i: w.scatter(0, i[:, None].expand(-1, 3), 1.0),
    lambda w, i: w.scatter_add(0, i[:, None].expand(-1, 3), torch.ones(i.shape[0], 3)),
]


def _program(seed: int) -> Program:
    chance = random.Random(seed)
    positions, rows = chance.randint(1, 14), chance.randint(1, 14)
    changes = [(chance.choice(_CHANGES), chance.randint(-3, 5)) for _ in range(chance.randint(0, 6))]
    read = chance.choice(_READS)

    def run(given: torch.Tensor) -> torch.Tensor:
        index = torch.arange(positions)
        for change, number in changes:
            index = change(index, number)
        return read(given.new_ones(rows, 3), index)

    return run


def _refused(run: Callable[[Any], object], given: Any) -> bool:
    try:
        run(given)
    except (IndexError, RuntimeError):
        return True
    return False


def _without_data(program: Program) -> object:
    with FakeTensorMode():
        given = torch.ones(1)
        with Positions():
            return program(given)


def _captured(program: Program) -> None:
    check_positions(make_fx(torch.func.functionalize(program), tracing_mode="fake")(torch.ones(1)).graph)


@pytest.mark.parametrize("how", [_without_data, _captured])
def test_refused_exactly_where_pytorch_refuses(how: Callable[[Program], object]) -> None:
    refused = 0
    for seed in range(150):
        program = _program(seed)
        expected = _refused(program, torch.ones(1))
        refused += expected
        assert _refused(how, program) == expected, seed
    assert 30 < refused < 120


def test_results_of_which_parts_are_read_or_none() -> None:
    """Where nobody read any part, there was an error of our own."""

    def program(given: torch.Tensor) -> torch.Tensor:
        return given.new_ones(5, 3)[torch.arange(6).split(2)[2]]

    graph = make_fx(program, tracing_mode="fake")(torch.ones(1)).graph
    (made,) = graph.find_nodes(op="call_function", target=torch.ops.aten.arange.default)
    with graph.inserting_after(made):
        graph.call_function(torch.ops.aten.sort.default, (made,)).meta["val"] = torch.arange(6).sort()
    with pytest.raises(IndexError, match="of 5 rows is asked for row 5"):
        check_positions(graph)


def test_positions_that_depend_on_data_are_not_judged() -> None:
    rows = torch.nn.Embedding(4, 2)
    with FakeTensorMode(allow_non_fake_inputs=True), Positions():
        index = torch.arange(4)
        index += torch.randint(0, 9, (4,))
        assert rows(index).shape == (4, 2)
        view = torch.arange(9)[5:]
        view.copy_(torch.randint(0, 4, (4,)))
        assert rows(view).shape == (4, 2)
