"""torch.compile(backend="memsched") beside torch.utils.checkpoint and stock torch.compile, at equal measured peaks.

python -m bench.compiled               # docs/results/compiled.md and compiled.csv, about ten minutes; resumes
python -m bench.compiled --quick --out /tmp/compiled
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import dataclasses
import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from bench.common import RESULTS, ROOT, Cache, Row
from bench.compiled_models import NETWORKS, SMALL, WAYS, Network, Small
from bench.compiled_report import report
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import memsched as ms
from memsched.torch.compiled import unit
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.groups import group_of
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.private import compile_joint, python_code
from memsched.torch.meter import Meter

EVERY, STOCK = (4, 2, 1), (0.3, 0.7)  # every which block is checkpointed; activation_memory_budget
CPU = torch.device("cpu")
MATRIX = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
_METERS: list[Meter] = []  # of stock's generated code, while it counts


@dataclass
class Method:
    """A way to run the step of a network.

    Attributes
    ----------
    prepare : callable
        Called before a step, outside of its time.
    at : str
        The run whose peak it was planned for; empty where it was not.
    """

    name: str
    model: nn.Module
    forward: Callable[..., Any]
    at: str = ""
    prepare: Callable[[], None] = lambda: None
    peak: int = 0
    plan: CompiledPlan | None = None
    differs: str = ""
    seconds: list[float] = field(default_factory=list)

    def step(self, inputs: dict[str, torch.Tensor], around: Callable[[], Any] = contextlib.nullcontext) -> torch.Tensor:
        """A forward and a backward; `around` is entered for the backward of compiled steps, and for all of others."""
        compiled = self.name.startswith(("ours", "stock"))
        with contextlib.nullcontext() if compiled else around():
            found = self.forward(**inputs)
            loss: torch.Tensor = found if isinstance(found, torch.Tensor) else found["loss"]
            del found
            with around() if compiled else contextlib.nullcontext():
                loss.backward()
        return loss.detach()

    def clear(self) -> None:
        """No gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None
        self.prepare()


def checkpointed(model: nn.Module, blocks: Sequence[nn.Module], every: int, *, matrix: bool = False) -> nn.Module:
    """The model, with every so-manieth of its blocks under torch.utils.checkpoint; `matrix`: but for its products."""
    options: dict[str, Any] = {"use_reentrant": False}
    if matrix:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, MATRIX)
    for block in blocks[::every]:
        block.forward = functools.partial(checkpoint, block.forward, **options)
    return model


def stock(model: nn.Module, budget: float) -> Callable[..., Any]:
    """The model compiled with the same front and the same generated code, and PyTorch's partitioner for a budget."""
    from functorch.compile import min_cut_rematerialization_partition

    halves: list[Any] = []

    def partition(joint: fx.GraphModule, results: int, static: Sequence[int]) -> tuple[fx.GraphModule, fx.GraphModule]:
        with functorch_config.patch(activation_memory_budget=budget):
            pair = min_cut_rematerialization_partition(
                joint, None, num_fwd_outputs=results, static_lifetime_input_indices=list(static)
            )
        halves.extend(pair)
        return pair

    def half(index: int) -> Callable[[list[Any]], Sequence[Any]]:
        code = python_code(halves[index])

        def call(args: list[Any]) -> Sequence[Any]:
            with _METERS[-1] if _METERS else contextlib.nullcontext():
                return code(args)

        return call

    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        forward, backward = lambda: half(0), lambda: half(1)
        return compile_joint(
            module, inputs, partition=partition, forward=forward, backward=backward, inference=python_code
        )

    return torch.compile(model, backend=compiler)


class Planned:
    """One captured step of a network, and its plans for many budgets."""

    def __init__(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        self.model = model
        self.forward = torch.compile(model, backend="memsched", options={"budget": "100GB"})
        Method("ours", model, self.forward).step(inputs)
        self.group = group_of(Options(budget="100GB"))
        (self.unit,) = (one for one in self.group.units)
        self.inputs = inputs
        self.first = self.unit.versions[0].plan
        self.spare = self.first.process_bytes(0)  # of the process, that no meter counts

    def at(self, name: str, peak: int) -> Method | None:
        """The plan for a peak over what was there before the step; None where there is none."""
        group = self.group
        fresh = vars(Group(dataclasses.replace(group.options, budget=peak + self.spare)))
        own = {one: fresh[one] for one in ("options", "_planned", "_alone_of", "_known", "_met", "_start", "_place")}

        def use() -> None:
            group._end_step()  # with what it knew until now
            vars(group).update(own)

        method = Method(f"ours at {name}", self.model, self.forward, at=name, prepare=use)
        method.clear()
        try:
            method.step(self.inputs)
        except ms.InfeasibleError:
            return None
        (version,) = own["_planned"].values()
        method.plan = self.unit.versions[version].plan
        return method

    def least(self) -> int:
        """The least peak over what was there before for which a plan is found, to one percent, by halving."""
        graph = self.first.result.problem
        low, high = ms.min_memory(graph), ms.peak_memory(graph)
        while high - low > 0.01 * (high - self.spare):
            middle = (low + high) // 2
            try:
                high = ms.selective(graph, device=ms.Device(middle, 0.0), moves=0).peak_memory
            except ms.InfeasibleError:
                low = middle
        return high - self.spare


@contextlib.contextmanager
def counting() -> Iterator[Meter]:
    """A meter for generated code, ours and stock's."""
    with unit.counted(CPU) as meter:
        _METERS.append(meter)
        try:
            yield meter
        finally:
            _METERS.pop()


def check(
    method: Method,
    inputs: dict[str, torch.Tensor],
    buffers: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor] | None,
) -> dict[str, Any]:
    """Count the bytes of a step from these buffers, and compare what it computes with plain PyTorch, bit for bit."""
    with torch.no_grad():
        for name, buffer in method.model.named_buffers():
            buffer.copy_(buffers[name])
    method.clear()
    gc.collect()
    torch.manual_seed(1)
    if method.name.startswith(("ours", "stock")):
        found = _counted_step(method, inputs)
    else:
        with Meter("cpu") as meter:
            found = method.step(inputs)
        method.peak = meter.peak
    state = {"loss": found}
    state |= {f"gradient of {n}": p.grad.clone() for n, p in method.model.named_parameters() if p.grad is not None}
    state |= {f"buffer {name}": buffer.clone() for name, buffer in method.model.named_buffers()}
    method.clear()
    if expected is not None:
        wrong = [name for name, value in expected.items() if not torch.equal(value, state[name])]
        numbers = [name for name in wrong if not name.startswith("buffer")]
        method.differs = "gradients" if numbers else "buffers" if wrong else ""
    return state


def _counted_step(method: Method, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compiled code is counted from within, for a mode around it would make Dynamo run the model itself."""
    with counting() as meter:
        found = method.forward(**inputs)
    loss: torch.Tensor = found if isinstance(found, torch.Tensor) else found["loss"]
    del found
    with meter:  # what autograd does between and after counts, too
        loss.backward()
    method.peak = meter.peak
    return loss.detach()


def measure(methods: Sequence[Method], inputs: dict[str, torch.Tensor], *, seconds: float, least: int) -> int:
    """CPU time of the steps of all methods in turn, forward and back through the list; how many rounds."""
    for method in methods:
        method.clear()
        method.step(inputs)
    gc.collect()
    gc.disable()
    began = time.monotonic()
    for count in itertools.count():
        if count >= least and time.monotonic() - began > seconds:
            gc.enable()
            return count
        turn = list(methods) if count % 2 == 0 else list(reversed(methods))
        turn[0].clear()
        turn[0].step(inputs)  # the collection has emptied the caches, and whoever comes first would pay
        for method in turn:
            method.clear()
            start = time.process_time()
            method.step(inputs)
            method.seconds.append(time.process_time() - start)
        gc.collect()
    raise AssertionError


def run(name: str, network: Network, *, quick: bool) -> list[Row]:
    """All rows of a network."""
    torch.manual_seed(0)
    plain = network.make().train()
    inputs = network.inputs()
    count = len(list(network.blocks(plain)))
    buffers = {name: buffer.clone() for name, buffer in plain.named_buffers()}

    def fresh() -> nn.Module:
        return copy.deepcopy(plain)

    others = [Method("plain", plain, plain)]
    for every in EVERY:
        model = fresh()
        checkpointed(model, list(network.blocks(model)), every)
        others.append(Method(f"checkpoint 1/{every}", model, model))
    model = fresh()
    checkpointed(model, list(network.blocks(model)), 1, matrix=True)
    others.append(Method("selective checkpoint", model, model))
    torch._dynamo.reset()
    for share in () if quick else STOCK:
        model = fresh()
        method = Method(f"stock {share:g}", model, stock(model, share))
        try:
            method.step(inputs)
        except RuntimeError as error:  # it may save running statistics, which the step then changes
            print(f"{name} {method.name}: {error}", flush=True)
            continue
        others.append(method)
    expected = check(others[0], inputs, buffers, None)
    for method in others[1:]:
        check(method, inputs, buffers, expected)
    planned = Planned(fresh(), inputs)
    least = planned.least()
    methods: list[Method] = []
    for method in others:
        methods.append(method)
        ours = planned.at(method.name, method.peak)
        if ours is not None:
            check(ours, inputs, buffers, expected)
            methods.append(ours)
    rounds = measure(methods, inputs, seconds=1 if quick else 15, least=5 if quick else 7)
    rows = [row_of(name, count, method, methods, planned, rounds) for method in methods]
    for row in rows:
        row["least"] = least
    return rows


def row_of(
    name: str, blocks: int, method: Method, methods: Sequence[Method], planned: Planned | None, rounds: int
) -> Row:
    """What was measured of a method; times in seconds, and its ratio to the run at whose peak it was planned."""
    at = next((one for one in methods if one.name == (method.at or "plain")), method)
    ratios = sorted(mine / its for mine, its in zip(method.seconds, at.seconds, strict=True))
    quarter = len(ratios) // 4
    row: Row = {
        "network": name,
        "blocks": blocks,
        "method": method.name,
        "at": method.at,
        "peak": method.peak,
        "seconds": statistics.median(method.seconds),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[quarter],
        "ratio_high": ratios[-1 - quarter],
        "rounds": rounds,
        "differs": method.differs,
        "budget": "",
        "predicted_peak": "",
        "predicted_seconds": "",
        "operations_seconds": "",
        "again": "",
    }
    if method.plan is not None and planned is not None:
        result = method.plan.result
        row["budget"] = result.schedule.budget - planned.spare
        row["predicted_peak"] = result.peak_memory - planned.spare
        row["predicted_seconds"] = result.makespan
        row["operations_seconds"] = sum(op["choices"][0]["time"] for op in result.problem.ops)
        row["again"] = len(result.recomputed)
    return row


def small(layers: int, width: int, batch: int, *, quick: bool) -> list[Row]:
    """The ways to run a small step that keeps everything, in turn: ten steps of each at a time, after one more."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(batch, width)
    methods = []
    for name, how in WAYS.items():
        model, at = Small(layers, width), "Inductor" if name == "ours, Inductor" else "plain"
        if not (quick and "Inductor" in name):
            methods.append(Method(name, model, torch.compile(model, **how) if how else model, at=at))

    def take(method: Method, steps: int) -> None:
        parameters = list(method.model.parameters())
        for _ in range(steps):
            for one in parameters:
                one.grad = None
            method.forward(x).sum().backward()

    rounds = 5 if quick else 61
    for method in methods:
        take(method, 20)
    for count in range(rounds):
        for method in methods if count % 2 == 0 else methods[::-1]:
            take(method, 1)
            start = time.process_time()
            take(method, 10)
            method.seconds.append((time.process_time() - start) / 10)
    name = f"{layers} x {width}, batch {batch}"
    return [row_of(name, layers, method, methods, None, rounds) | {"least": ""} for method in methods]


def main() -> None:
    """Measure all networks, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of compiled.md and compiled.csv")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="few repeats, without stock torch.compile")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cache = Cache(None if given.quick else ROOT / "build" / "bench" / "compiled.jsonl")
    rows: list[Row] = []
    work = {one: functools.partial(run, one, NETWORKS[one]) for one in given.networks}
    work |= {str(size): functools.partial(small, *size) for size in SMALL[: 1 if given.quick else None]}
    for name, measured in work.items():
        began = time.monotonic()
        if name not in cache.rows:
            cache.add(name, {"rows": measured(quick=given.quick)})
        rows += cache.rows[name]["rows"]
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "compiled.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (given.out / "compiled.md").write_text(report(rows), encoding="utf-8")
    print(f"wrote {given.out / 'compiled.md'}")


if __name__ == "__main__":
    main()
