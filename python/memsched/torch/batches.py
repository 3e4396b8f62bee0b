"""A step at other sizes of its inputs than those it is given with: what they need, and the largest that fits."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memsched._core import Device, Graph
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.planners.graph.selective import is_planned
from memsched.planners.registry import PLANNERS
from memsched.problems.problem import altered, least_memory, peak_memory
from memsched.result import Result
from memsched.torch.compiled.as_graph import LEAVE
from memsched.torch.errors import CaptureError, said
from memsched.torch.nests import tensors_of, with_tensors
from memsched.torch.weightless import fake_mode_of


class OtherSizeError(InvalidInputError):
    """The model does not run with inputs of that size."""


class Size(NamedTuple):
    """What inputs have in common, which a step may have more of or less.

    Attributes
    ----------
    batch : int
        In dimension 0 of all tensors: samples.
    length : int
        In dimension 1 of all tensors that have one: of the sequences.
    """

    batch: int
    length: int


def size_of(given: Any) -> Size:
    """0 if the tensors have no such dimension in common."""
    shapes = [tuple(one.shape) for one in tensors_of(given)]
    batches = {shape[0] if shape else 0 for shape in shapes}
    lengths = {shape[1] for shape in shapes if len(shape) > 1}
    return Size(*(int(found.pop()) if len(found) == 1 else 0 for found in (batches, lengths)))


def split_batch(args: Any) -> int:
    """The batch of inputs that are to be split along it."""
    found = size_of(args).batch
    if found == 0:
        shapes = ", ".join(str(tuple(one.shape)) for one in tensors_of(args)) or "(none)"
        raise InvalidInputError(
            f"rounds is True and the inputs have the shapes {shapes}; all must have the batch as their dimension 0, or "
            "plan with rounds=False"
        )
    return found


def narrowed(given: Any, start: int, batch: int) -> Any:
    """Some samples of all inputs."""
    return with_tensors(given, lambda one: one.narrow(0, start, batch))


def parts_in(rounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The first sample and the size of every part of a batch."""
    start = 0
    for batch, times in rounds:
        for _ in range(times):
            yield start, batch
            start += batch


def with_size(given: Any, size: Size) -> Any:
    """Inputs of that size, without data; what they do not have in common stays."""
    mode = fake_mode_of(tensors_of(given)) or FakeTensorMode(allow_non_fake_inputs=True)
    common = size_of(given)

    def resized(one: torch.Tensor) -> torch.Tensor:
        shape = [new if old else whole for new, old, whole in zip(size, common, one.shape, strict=False)]
        with mode:
            made = torch.empty((*shape, *one.shape[len(shape) :]), dtype=one.dtype, device=one.device)
        return made.requires_grad_(one.requires_grad)

    return with_tensors(given, resized)


@contextlib.contextmanager
def told_of(what: str, *, given: bool) -> Iterator[None]:
    """What fails at another size than the one that was given is told with it, but for what cannot be captured."""
    try:
        yield
    except (AssertionError, CaptureError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of any kind: the model's own
        if given:
            raise
        raise OtherSizeError(f"at {what} the model cannot run: {said(error)}") from error


def plan_within(graph: Graph, device: Device, time_limit: float | None, **more: Any) -> Result:
    """By `selective`; the order in which several graphs run is the caller's."""
    reorder = _may_reorder(graph)
    return PLANNERS["selective"].plan(graph, device=device, reorder=reorder, time_limit=time_limit, **more)


def _may_reorder(graph: Graph) -> bool:
    return any(op["name"] == LEAVE for op in graph.ops)


def least(graph: Graph, device: Device) -> int:
    """About the least memory for which there is a plan: there is one, and none was found for 1 % less."""
    low, high = least_memory(graph), peak_memory(graph)
    while high - low > high // 100:
        middle = (low + high) // 2
        try:
            high = min(middle, plan_within(graph, altered(device, memory=middle), None, moves=0).peak_memory)
        except InfeasibleError:
            low = middle
    return high


def largest_size(
    fits: Callable[[int], bool], start: int, guess: Callable[[], float] = lambda: math.nan, low: int = 0
) -> int:
    """The largest size that fits, if all that are smaller do; `low`, which does, if none above it does.

    Tried is what the guess says, where that lies between what fits and what does not; every fourth size halves what is
    left, whatever it says.
    """
    high, size = math.inf, start
    for tried in itertools.count(1):
        low, high = (size, high) if fits(size) else (low, size)
        if high - low <= 1:
            break
        size = 2 * low if high == math.inf else (low + int(high)) // 2
        if tried % 4 and math.isfinite(guessed := guess()):
            size = int(min(max(guessed, low + 1), high - 1))
    return low


def largest_within(need: Callable[[int], float], most: int, start: int, fixed: int, low: int = 0) -> int:
    """The largest size that needs no more than so much; what sizes need is about linear in them, from what is fixed.

    `low` is known to need no more.
    """
    known: dict[int, float] = {0: fixed}
    last: float = fixed

    def fits(size: int) -> bool:
        nonlocal last
        last = need(size)
        if math.isfinite(last):
            known[size] = last
        return last <= most

    def guess() -> float:
        if not math.isfinite(last):  # the model does not run with it
            return math.nan
        near = sorted(known, key=lambda size: abs(known[size] - most))[:2]
        more = known[near[-1]] - known[near[0]]
        return near[0] + (near[-1] - near[0]) * (most - known[near[0]]) / more if more else math.nan

    return largest_size(fits, start, guess, low)


_SEARCHES = 6  # of multiples and of all sizes in turn, until one finds nothing larger


def largest_aligned(search: Callable[[int, int, int], int | None], start: int, unit: int) -> int | None:
    """The largest size where multiples of a unit may run by other operations; None if it is not found.

    `search` finds the largest multiple of a step that fits, divided by it: from the step, the multiple to begin with,
    and one that is known to fit. Neither the next size than the one that is found fits, nor the next multiple.
    """
    size = 0
    for tried, step in enumerate(itertools.islice(itertools.cycle((unit, 1)), _SEARCHES)):
        known = size // step
        found = search(step, known + 1 if tried else max(1, start // step), known)
        if found is None:
            return None
        if tried and found * step <= size:
            return size
        size = found * step
        if unit == 1:
            return size
    return None


def form_of(graph: Graph) -> object:
    """All of a graph but its bytes and seconds."""
    return [(op["name"], op["phase"], op["reads"], op["writes"], len(op["choices"])) for op in graph.ops]


def scaled(one: tuple[int, Graph], other: tuple[int, Graph], size: int) -> Graph:
    """The graph of a size, from those of two others of the same form, if all bytes and seconds are linear in it."""
    (first, near), (second, far) = one, other

    def between(a: Any, b: Any) -> Any:
        if isinstance(a, dict):
            return {key: between(value, b[key]) for key, value in a.items()}
        if isinstance(a, list):
            return [between(x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, bool) or not isinstance(a, int | float) or a == b:
            return a
        exact = a + (b - a) * (size - first) / (second - first)
        return max(0, math.ceil(exact)) if isinstance(a, int) else max(0.0, exact)

    return Graph.from_json(between(near.to_json(), far.to_json()))


_CAPTURES = 12  # of a step, until the largest size is found
_WALKED = 8  # sizes, one by one, where no two are alike
_FAILED = 3  # sizes in a row with which the model does not run, after which it is asked how far it does


class PlannedSizes:
    """Plans of a step at other sizes than the one that it is given with: other batches, or other lengths.

    `at` captures the step of a size; `known` are those that were captured. `runs` tells whether the model does with a
    size, `fits` of what is in no plan.
    """

    def __init__(
        self,
        at: Callable[[int], Graph],
        size: int,
        device: Device,
        *,
        known: Iterable[int],
        runs: Callable[[int], bool],
        fits: Callable[[int], bool],
        say: Callable[[str, int], None],
    ) -> None:
        self._at, self._size, self._device = at, size, device
        self._known, self._runs, self._fits, self._say = known, runs, fits, say

    def largest(self, low: int = 0) -> int | None:
        """The size for which there is a plan, and none for the next; None if it is not found in some captures.

        For `low` there is a plan; if it is not 0, the first that is tried is the next.

        The bytes of most tensors are linear in it. So the graph of any size follows from those of two that are
        captured and run by the same operations; those of the size that is found, and of the next, are captured, too,
        and decide. Until there are two such, sizes go down in growing steps from one that has no plan; if the model
        runs with none of some in a row, from the largest with which it does.
        """
        size = self._size
        if low and not self._is_planned(low + 1):
            return low
        low += 1 if low else 0
        others = dict.fromkeys([*self._known, size // 2, 2 * size, size - 1, size + 2])  # captured ones first
        near = [size, *itertools.islice((one for one in others if one != size and self._are_alike(one, size)), 1)]
        high, captured, found, failed = math.inf, near, 0, 0  # a plan for `low`, and none for `high`
        for tried in range(_CAPTURES if len(near) == 2 else 0):
            if near:
                found = largest_size(functools.partial(self._fits_between, near[0], near[1]), near[0])
            if found >= high:
                step = max(1, int(high) >> max(0, 7 - tried))
                found = (low + int(high)) // 2 if low else int(high) - step
            found = max(found, low + 1)
            if failed == _FAILED:
                found = largest_size(functools.partial(self._runs_below, high), max(low, 1), low=low)
                if found == low:
                    return low
                high = found + 1
            failed = 0 if self._runs(found) else failed + 1
            if self._is_planned(found):
                low = found
            else:
                high = found
            if high - low <= 1:
                return low
            captured = sorted({*captured, found}, key=lambda one: abs(one - found))
            near = next(([found, one] for one in captured[1:] if self._are_alike(found, one)), [])
        if low or self._is_planned(size):
            low = max(low, size)
            for found in range(low, low + _WALKED):
                if not self._is_planned(found + 1):
                    return found
        return None

    def _runs_below(self, end: float, size: int) -> bool:
        return size < end and self._runs(size)

    def _are_alike(self, one: int, other: int) -> bool:
        """Whether the model runs with both sizes, and by the same operations."""
        with contextlib.suppress(OtherSizeError):
            return min(one, other) >= 1 and form_of(self._at(one)) == form_of(self._at(other))
        return False

    def _is_planned(self, size: int) -> bool:
        with contextlib.suppress(OtherSizeError):
            return self._there_is_a_plan(size, self._at(size))
        return False

    def _fits_between(self, one: int, other: int, size: int) -> bool:
        self._say("planning a step", size)
        return self._there_is_a_plan(size, scaled((one, self._at(one)), (other, self._at(other)), size))

    def _there_is_a_plan(self, size: int, graph: Graph) -> bool:
        return self._fits(size) and is_planned(graph, self._device, reorder=_may_reorder(graph))
