"""The order in which compiled kernels run: beside all orders of few kernels, and in the code of whole steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import torch
from allocator import allocator_peak
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memsched.torch.compiled import kernel_order
from memsched.torch.compiled.kernel_order import Kernel, least_memory

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # as Inductor is imported


def peak(
    kernels: Sequence[Kernel], order: Sequence[int], sizes: Mapping[str, int], stay: Collection[str]
) -> int | None:
    """The most bytes of buffers at a time; None if a kernel runs too early."""
    written = {name for kernel in kernels for name in kernel.writes}
    there = {name for name in sizes if name not in written}
    done = set[int]()
    most = 0
    for k, number in enumerate(order):
        kernel = kernels[number]
        if not kernel.reads <= there or not kernel.after <= done:
            return None
        there |= kernel.writes
        most = max(most, sum(sizes[name] for name in there))
        done.add(number)
        later = set(stay).union(*(kernels[one].reads for one in order[k + 1 :]))
        there &= later
    return most


@st.composite
def made(draw: st.DrawFn) -> tuple[list[Kernel], dict[str, int], set[str]]:
    count = draw(st.integers(1, 6))
    sizes = {f"given {k}": draw(st.integers(0, 9)) for k in range(draw(st.integers(0, 3)))}
    read = set[str]()
    kernels: list[Kernel] = []
    for k in range(count):
        reads = draw(st.sets(st.sampled_from(sorted(sizes)), max_size=3)) if sizes else set()
        writes = {f"{k} {n}" for n in range(draw(st.integers(0, 2)))}
        sizes |= {name: draw(st.integers(0, 9)) for name in writes}
        after = draw(st.sets(st.integers(0, k - 1), max_size=2)) if k else set()
        kernels.append(Kernel(reads, writes, after))
        read |= reads
    for name in [one for one in sizes if one.startswith("given") and one not in read]:  # what is there is read
        kernels[-1].reads.add(name)
    return kernels, sizes, draw(st.sets(st.sampled_from(sorted(sizes)))) if sizes else set()


@given(made())
def test_no_order_holds_less(problem: tuple[list[Kernel], dict[str, int], set[str]]) -> None:
    kernels, sizes, stay = problem
    found = least_memory(kernels, sizes, stay)
    orders = itertools.permutations(range(len(kernels)))
    peaks = [one for one in (peak(kernels, order, sizes, stay) for order in orders) if one is not None]
    assert peak(kernels, found, sizes, stay) == min(peaks)
    listed = peak(kernels, range(len(kernels)), sizes, stay)
    assert found == list(range(len(kernels))) or (listed is not None and min(peaks) < listed)


def test_an_order_takes_as_many_ticks_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 pairs of kernels, whose best order takes longer than one tick: it is no worse than what was given."""
    kernels = [Kernel(set(), {f"large {k}"}, set()) for k in range(300)]
    kernels += [Kernel({f"large {k}", f"large {(7 * k + 1) % 300}"}, {f"small {k}"}, set()) for k in range(300)]
    sizes = {name: 100 + k % 17 if "large" in name else 1 for k, one in enumerate(kernels) for name in one.writes}
    stay = {f"small {k}" for k in range(300)}
    monkeypatch.setattr(kernel_order, "_TICKS", 1)
    short = [least_memory(kernels, sizes, stay) for _ in range(2)]
    assert short[0] == short[1]
    monkeypatch.undo()
    peaks = [peak(kernels, one, sizes, stay) for one in (range(600), short[0], least_memory(kernels, sizes, stay))]
    assert None not in peaks
    assert peaks == sorted(peaks, key=int, reverse=True)


class Branches(nn.Module):
    """Values of many widths, each made of two earlier ones."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw, widths = random.Random(seed), [32]
        self.pairs, self.weights = list[tuple[int, int]](), nn.ParameterList()
        for _ in range(10):
            pair, width = (draw.randrange(len(widths)), draw.randrange(len(widths))), draw.choice([8, 16, 64, 256, 512])
            self.weights.extend(nn.Parameter(torch.randn(widths[one], width) * 0.1) for one in pair)
            self.pairs.append(pair)
            widths.append(width)

    def forward(self, x: torch.Tensor) -> Any:
        values, weights = [x], list(self.weights)
        for one, other in self.pairs:
            values.append(values[one] @ weights.pop(0) + values[other] @ weights.pop(0))
        return sum(value.sum() for value in values)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 9])
def test_the_code_of_a_step_holds_less_than_in_inductors_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from memsched.torch.compiled import inductor

    x = torch.randn(1024, 32)

    def least(ordered: Any) -> tuple[int, torch.Tensor]:
        monkeypatch.setattr(inductor, "least_memory", ordered)
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Branches(seed)
        run = torch.compile(model, backend="memsched", options={"budget": "1GB", "mode": "inductor"})

        def step() -> None:
            model.zero_grad()
            run(x).backward()

        step()
        return allocator_peak(step), model.weights[0].grad

    ours, gradient = least(least_memory)
    theirs, expected = least(lambda kernels, sizes, stay: list(range(len(kernels))))
    assert torch.equal(gradient, expected)
    assert ours < 0.9 * theirs


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 9])
def test_what_draws_or_is_foreign_has_its_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order that holds least, others would be drawn, and foreign operators would run when others have."""
    from memsched.torch.compiled import inductor

    heard: list[int] = []

    @torch.library.custom_op("memsched_tests::heard", mutates_args=())
    def heard_of(x: torch.Tensor) -> torch.Tensor:
        heard.append(x.shape[1])
        return x.clone()

    @torch.library.custom_op("memsched_tests::drawn", mutates_args=(), tags=[torch.Tag.nondeterministic_seeded])
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x)

    for one in (heard_of, drawn):
        one.register_fake(torch.empty_like)
    heard_of.register_autograd(lambda ctx, gradient: gradient)
    drawn.register_autograd(lambda ctx, gradient: gradient * 0)

    class Calling(Branches):
        def forward(self, x: torch.Tensor) -> Any:
            values, weights = [x], list(self.weights)
            for k, (one, other) in enumerate(self.pairs):
                call = drawn if k % 2 else heard_of
                values.append(call(values[one] @ weights.pop(0)) + values[other] @ weights.pop(0))
            return sum(value.sum() for value in values)

    moved: list[bool] = []

    def noted(kernels: Sequence[Kernel], *known: Any) -> list[int]:
        found = least_memory(kernels, *known)
        moved.append(found != list(range(len(kernels))))
        return found

    def told(ordered: Any) -> tuple[list[int], torch.Tensor]:
        monkeypatch.setattr(inductor, "least_memory", ordered)
        torch._dynamo.reset()
        torch.manual_seed(0)
        run = torch.compile(Calling(seed), backend="memsched", options={"budget": "1GB", "mode": "inductor"})
        heard.clear()
        found = run(torch.randn(64, 32))
        found.backward()
        return list(heard), found.detach()

    calls, value = told(noted)
    expected, same = told(lambda kernels, *known: list(range(len(kernels))))
    assert any(moved)
    assert calls == expected
    assert torch.equal(value, same)
