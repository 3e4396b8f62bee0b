"""On a real GPU, for those who have one: bits, budgets that the allocator enforces, copies on their streams.

What no GPU is needed for is in test_cuda_lanes and test_compiled_cuda, on a stand-in.
"""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
import memsched.torch
from memsched.errors import InfeasibleError
from memsched.torch.compiled import copies
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.held import context_bytes
from memsched.torch.lanes import lanes_on
from memsched.torch.link import measure_link
from memsched.torch.meter import Meter
from memsched.torch.trial import Step, first_difference, trial_step
from pytorch.test_compiled import CASES, Block

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
    pytest.mark.filterwarnings("ignore:a plan offloads on a GPU"),
]
MB = 1 << 20
QUICK: dict[str, Any] = {"time_limit": 1.0}


@pytest.fixture(autouse=True)
def cuda() -> Iterator[torch.device]:
    """The device, with kernels that give the same bits each time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    copies.use(torch.device("cuda", torch.cuda.current_device()), lanes_on(torch.device("cuda", 0)))
    gc.collect()
    torch.cuda.empty_cache()
    torch.backends.cudnn.benchmark = False
    try:
        yield torch.device("cuda", torch.cuda.current_device())
    finally:
        torch.use_deterministic_algorithms(False)
        torch.cuda.set_per_process_memory_fraction(1.0)


def wide(width: int = 512, blocks: int = 6) -> nn.Module:
    """Activations beside which the allocator's rounding is small."""
    return nn.Sequential(*(Block(width) for _ in range(blocks))).cuda()


def tokens(batch: int = 16, length: int = 256, width: int = 512) -> torch.Tensor:
    return torch.randn(batch, length, width, device="cuda")


def least(model: nn.Module, *args: torch.Tensor, **options: Any) -> int:
    """Bytes of about the smallest budget that there is a plan for, now."""
    with pytest.raises(InfeasibleError) as error:
        memsched.torch.plan(model, args, budget=1, **options)
    return int(1.02 * error.value.min_memory) + MB


def steps_of(model: nn.Module, run: Any, args: Any, cuda: torch.device, count: int = 3) -> list[Step]:
    found = []
    for step in range(count):
        torch.manual_seed(step)
        found.append(trial_step(model, run, args, {}, cuda))
    return found


@pytest.mark.parametrize("budget", ["60%", "least"])
@pytest.mark.parametrize("case", CASES)
def test_a_planned_step_has_the_bits_of_one_that_keeps_all(case: str, budget: str, cuda: torch.device) -> None:
    build, inputs = CASES[case]
    model, args = build().cuda(), [one.cuda() for one in inputs()]
    other = copy.deepcopy(model)
    all_kept = torch.compile(other, backend="memsched", options={"budget": "100%", **QUICK})
    expected = steps_of(other, all_kept, args, cuda)
    given = least(model, *args) if budget == "least" else budget
    planned = torch.compile(model, backend="memsched", options={"budget": given, **QUICK})
    for one, wanted in zip(steps_of(model, planned, args, cuda), expected, strict=True):
        assert first_difference(wanted, one) is None


def test_copies_are_right_hundreds_of_times(cuda: torch.device) -> None:
    """Told that the link is free, a plan offloads what it can; each of the copies must be waited for.

    Attention is that of matrix products, as the backward of other kernels adds in any order.
    """
    model, x = wide(), tokens()
    other = copy.deepcopy(model)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        all_kept = torch.compile(other, backend="memsched", options={"budget": "100%", **QUICK})
        expected = steps_of(other, all_kept, (x,), cuda, 1)
        options = {"budget": least(model, x, bandwidth="10TB/s"), "bandwidth": "10TB/s", **QUICK}
        planned = torch.compile(model, backend="memsched", options=options)
        for _ in range(30):
            (found,) = steps_of(model, planned, (x,), cuda, 1)
            assert first_difference(expected[0], found) is None
    assert plans()[-1].result.timeline.bytes_out > 100 * MB


@pytest.mark.parametrize("link", ["free", "measured"])
@pytest.mark.parametrize("budget", ["100%", "60%", "least"])
def test_the_allocator_holds_what_was_planned(budget: str, link: str, cuda: torch.device) -> None:
    model, x = wide(), tokens()
    options: dict[str, Any] = {**QUICK, **({"bandwidth": "10TB/s"} if link == "free" else {})}
    options["budget"] = least(model, x, **options) if budget == "least" else budget
    run = torch.compile(model, backend="memsched", options=options)
    for _ in range(2):
        run(x).sum().backward()
        model.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run(x).sum().backward()
    torch.cuda.synchronize()
    plan = plans()[-1]
    measured = torch.cuda.max_memory_allocated() + context_bytes(cuda)
    print(
        f"{budget} {link}: planned {plan.result.peak_memory}, allocated {measured}, budget "
        f"{plan.result.schedule.budget}, {plan.result}"
    )
    assert measured <= plan.result.schedule.budget + MB
    assert measured >= 0.95 * plan.result.peak_memory


def test_a_budget_that_the_allocator_enforces(cuda: torch.device) -> None:
    model, x = wide(), tokens()
    seen = memsched.torch.plan(model, (x,), budget="100%", **QUICK)
    start = least(model, x)
    plan = seen.at(start + (ms.peak_memory(seen.graph) - start) // 5, **QUICK)
    run = plan.apply(model)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(cuda).total_memory
    allowed = plan.result.schedule.budget - context_bytes(cuda)
    torch.cuda.set_per_process_memory_fraction(1.25 * allowed / total)  # what the allocator's blocks lose
    for _ in range(3):
        run(x).sum().backward()
        model.zero_grad()
    with pytest.raises(torch.OutOfMemoryError):
        copy.deepcopy(model)(x).sum().backward()


def test_a_plan_is_verified(cuda: torch.device) -> None:
    model, x = wide(256, 3), tokens(4, 128, 256)
    plan = memsched.torch.plan(model, (x,), budget=least(model, x), **QUICK)
    assert plan.verify(model, (x,)).peak_memory <= plan.result.schedule.budget


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("budget", ["5%", "40%"])
def test_a_step_with_updates(parameters: bool, budget: str, cuda: torch.device) -> None:
    """States travel, and parameters, too."""
    model, x = wide(256, 4), tokens(4, 128, 256)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.AdamW(one.parameters(), foreach=False) for one in (model, other))
    more: dict[str, Any] = {"optimizer": optimizer, "update": True, "offload_parameters": parameters, **QUICK}
    plan = memsched.torch.plan_step(model, (x,), lambda out: out.square().mean(), budget=budget, **more)
    for _ in range(4):
        plan.step(x)
        held = {name: one.to("cpu", copy=True) for name, one in model.state_dict().items()}  # as soon as it returns
        other(x).square().mean().backward()
        plain.step()
        plain.zero_grad()
        assert all(torch.equal(held[name], one.cpu()) for name, one in other.state_dict().items())
    print(f"{budget} {parameters}: planned {plan.peak_memory}, {plan.result.schedule.border}")
    plan.bring_back()
    assert all(one.is_cuda for one in model.parameters())
    assert plan.verify(x).peak_memory <= plan.result.schedule.budget


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_under_autocast_with_a_scaler(dtype: torch.dtype, cuda: torch.device) -> None:
    losses = []
    for budget in ("100%", "least"):
        torch.manual_seed(0)
        model, x = wide(256, 3), tokens(8, 128, 256)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        options: dict[str, Any] = {"optimizer": optimizer, **QUICK}
        with torch.autocast("cuda", dtype=dtype):
            given = least(model, x, **options) if budget == "least" else budget
        run = torch.compile(model, backend="memsched", options={"budget": given, **options})
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        seen = []
        for _ in range(5):
            with torch.autocast("cuda", dtype=dtype):
                loss = run(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen.append(loss.item())
        losses.append(seen)
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_training_on_a_stream_of_ones_own(cuda: torch.device) -> None:
    model, x = wide(256, 3), tokens(4, 128, 256)
    options = {"budget": least(model, x, bandwidth="10TB/s"), "bandwidth": "10TB/s", **QUICK}
    run = torch.compile(model, backend="memsched", options=options)
    (first,) = steps_of(model, run, (x,), cuda, 1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(10):
            (found,) = steps_of(model, run, (x,), cuda, 1)
            assert first_difference(first, found) is None


def test_a_link_that_was_measured(cuda: torch.device) -> None:
    link = measure_link(cuda)
    print(link)
    assert 1e9 < link.bandwidth < 1e12


def test_the_meter_counts_what_the_allocator_does(cuda: torch.device) -> None:
    model, x = wide(256, 3), tokens(4, 128, 256)
    model(x).sum().backward()
    model.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with Meter() as meter:
        model(x).sum().backward()
    taken = torch.cuda.max_memory_allocated() - before
    print(f"meter {meter.peak}, allocator {taken}")
    assert abs(meter.peak - taken) <= 0.01 * taken + MB


def test_fit_says_what_this_gpu_holds(cuda: torch.device) -> None:
    model, x = wide(), tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    found = memsched.torch.fit(model, (x,), optimizer=optimizer, time_limit=1, largest=False)
    print(found)
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    model(x).sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
    measured = torch.cuda.max_memory_allocated()
    print(f"fit {found.peak_memory}, allocated {measured}, context {context_bytes(cuda)}")
    assert abs(found.peak_memory - measured - context_bytes(cuda)) <= 0.05 * measured


@pytest.mark.parametrize("budget", ["100%", "50%"])
def test_inductor_on_cuda(budget: str, cuda: torch.device) -> None:
    model, x = wide(512, 4), tokens(8)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
    plain = copy.deepcopy(model)
    expected = trial_step(plain, plain, (x,), {}, cuda)
    run = torch.compile(model, backend="memsched", options={"budget": budget, "mode": "inductor", **QUICK})
    for _ in range(2):
        found = trial_step(model, run, (x,), {}, cuda)
    for name, wanted in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], wanted, rtol=1e-3, atol=1e-3)
    torch.cuda.reset_peak_memory_stats()
    run(x).sum().backward()
    plan = plans()[-1]
    measured = torch.cuda.max_memory_allocated() + context_bytes(cuda)
    print(f"{budget}: planned {plan.result.peak_memory}, measured {measured}, budget {plan.result.schedule.budget}")
    assert measured <= plan.result.schedule.budget + MB


def test_pinned_memory_is_given_back(cuda: torch.device) -> None:
    model, x = wide(256, 3), tokens(16, 256, 256)
    options = {"budget": least(model, x, bandwidth="10TB/s"), "bandwidth": "10TB/s", **QUICK}
    run = torch.compile(model, backend="memsched", options=options)
    for _ in range(3):
        run(x).sum().backward()
        model.zero_grad()
    traffic = copies.traffic_on(cuda)
    assert traffic.spare_bytes <= 2 * plans()[-1].result.timeline.bytes_out


IN_AN_ARENA = """
import json, sys, torch, memsched.torch
from torch import nn

device, budget = sys.argv[1:]
arena = memsched.torch.Arena(device) if device != "none" else None
torch.use_deterministic_algorithms(True, warn_only=True)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)]
model, x = nn.Sequential(*layers).cuda(), torch.randn(64, 128, 512, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = model
if budget != "none":
    options = {"budget": budget, "time_limit": 1.0, "optimizer": optimizer}
    run = torch.compile(model, backend="memsched", options=options)
losses, start, end = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def step():
    optimizer.zero_grad()
    loss = run(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))


for k in range(20):
    if k == 10:
        start.record()
    if arena is None:
        step()
    else:
        with arena:
            step()
end.record()
torch.cuda.synchronize()
told = {"losses": losses, "ms": start.elapsed_time(end) / 10}
if arena is not None:
    from memsched.torch.arena import cuda

    told["counts"] = [arena.counts.planned, arena.counts.strange, arena.counts.blocked]
    told["height"], told["load"] = arena.placement.height, arena.placement.load
    told["reserved"], told["peak"] = cuda.reserved(x.device), cuda.peak(x.device)
else:
    told["reserved"], told["peak"] = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
print(json.dumps(told))
"""


@pytest.mark.parametrize("budget", ["none", "60%"])
def test_a_step_in_an_arena(budget: str) -> None:
    """Each run is a process of its own: the arena comes before anything is on the device."""
    found = []
    for device in ("none", "cuda"):
        command = [sys.executable, "-c", IN_AN_ARENA, device, budget]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(device, budget, {**found[-1], "losses": found[-1]["losses"][-1]})
    plain, served = found
    assert served["losses"] == plain["losses"]
    (planned, strange, blocked) = served["counts"]
    assert planned[0] > 0
    assert strange[0] + blocked[0] == 0
    assert served["reserved"] <= plain["reserved"]
