"""One measurement; on a GPU in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench.common import Row, environment
from bench.gpu.methods import SkippedError, Way, planned_for, prepare
from bench.gpu.models import PRECISIONS, Task, make

import memsched as ms
import memsched.torch
from memsched.errors import InfeasibleError, LimitError
from memsched.torch.compiled import private
from memsched.torch.compiled.unit import counted
from memsched.torch.meter import Meter

WARM_UP = 2


def measure(point: Row) -> Row:
    """The row of a point; what goes wrong is written into it."""
    device = torch.device("cpu" if point["small"] else "cuda")
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    row = {**point, **_where(device), "status": "ok"}
    if point["any_release"]:
        private.RELEASES = (*private.RELEASES, ".".join(torch.__version__.split(".")[:2]))
    try:
        task = make(point["model"], small=point["small"], device=device, scale=point["scale"])
        work = {"profile": _profile, "verify": _verify}.get(point["method"], _train)
        with _autocast(point, device):
            row |= work(point, task, device)
    except SkippedError as error:
        row |= {"status": "skipped", "reason": str(error)}
    except InfeasibleError as error:
        row |= {"status": "infeasible", "reason": str(error), "min_memory": error.min_memory}
    except LimitError as error:
        row |= {"status": "limit", "reason": str(error)}
    except torch.OutOfMemoryError as error:
        row |= {"status": "oom", "reason": str(error).split(". ")[0]}
    except Exception as error:  # one point must not end the others
        row |= {"status": "error", "reason": f"{type(error).__name__}: {error}"[:2000]}
    if device.type == "cuda":
        row |= _cuda_peaks(device)
    return row


def _where(device: torch.device) -> Row:
    found = environment()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else found["cpu"]
    return {"date": found["date"], "device": name, "torch": torch.__version__, "memsched": found["memsched"]}


def _autocast(point: Row, device: torch.device) -> Any:
    dtype = PRECISIONS[point["precision"]]
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def context_bytes(device: torch.device) -> int:
    """What the driver and other processes hold on the card: it should be this process's CUDA context only."""
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def _cuda_peaks(device: torch.device) -> Row:
    """Bytes since the budget was enforced. The peak of the process is what PyTorch reserved, and the context."""
    reserved, context = torch.cuda.max_memory_reserved(device), context_bytes(device)
    return {
        "peak": reserved + context,
        "reserved": reserved,
        "allocated": torch.cuda.max_memory_allocated(device),
        "context": context,
    }


def _plan_file(point: Row) -> Path:
    return Path(point["folder"]) / f"{point['model']}-{point['precision']}.plan.json"


def _profile(point: Row, task: Task, device: torch.device) -> Row:
    """Capture and time the step once; all plans of this network start from it."""
    began = time.perf_counter()
    plan = memsched.torch.plan(task.model, task.args, budget="100%", optimizer=task.optimizer)
    seconds = time.perf_counter() - began
    plan.save(_plan_file(point))
    graph = plan.graph
    return {
        "operations": len(graph.ops),
        "planning_seconds": seconds,
        "min_memory": ms.min_memory(graph),
        "predicted_peak": ms.peak_memory(graph),
        "predicted_seconds": sum(op["choices"][0]["time"] for op in graph.ops),
        "link": plan.result.device.d2h,
        "duplex": plan.result.device.duplex,
        "resident": plan.resident.parts(),
        **({"context": context_bytes(device)} if device.type == "cuda" else {}),
    }


def _verify(point: Row, task: Task, device: torch.device) -> Row:
    """Bit for bit against plain autograd, without an enforced budget: the plain step must fit."""
    plan = memsched.torch.TorchPlan.load(_plan_file(point)).at(planned_for(point), time_limit=point["search"])
    counted_peak = plan.verify(task.model, task.args).peak_memory
    return {"counted_peak": counted_peak, "predicted_peak": plan.result.timeline.peak_memory}


def _train(point: Row, task: Task, device: torch.device) -> Row:
    """Steps in the way of the method: median seconds of forward and backward, and of the whole step."""
    way = prepare(task, point, _plan_file(point))
    found: Row = {}
    if device.type == "cuda" and point["budget"] is not None:  # what the allocator does when nobody limits it
        free = _timed(task, way, device, point["steps"])
        found = {
            "free_seconds": median(one for one, _ in free),
            "free_reserved": torch.cuda.max_memory_reserved(device),
        }
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        if point["budget"] is not None:
            _enforce(point["budget"] - point["context"], device)
        before = _retries(device)
    seconds = _timed(task, way, device, point["steps"])
    if device.type == "cuda":
        found["retries"] = (_retries(device) - before) / (WARM_UP + point["steps"])
    if way.compiled:
        found |= _prediction(memsched.torch.plans()[-1])
    if device.type == "cpu":
        found["peak"] = _counted_peak(task, way, device)
    return {
        **found,
        "seconds": median(one for one, _ in seconds),
        "step_seconds": median(both for _, both in seconds),
        "all_seconds": [one for one, _ in seconds],
    }


def _timed(task: Task, way: Way, device: torch.device, steps: int) -> list[list[float]]:
    """Seconds of some steps, each without the optimiser's and with it, after two that do not count."""
    times = [_step(task, way, device) for _ in range(WARM_UP + steps)][WARM_UP:]
    return [[read() for read in pair] for pair in times]


def _retries(device: torch.device) -> int:
    """How often PyTorch's allocator had to give back what it kept, and to ask again."""
    return int(torch.cuda.memory_stats(device)["num_alloc_retries"])


def _enforce(nbytes: int, device: torch.device) -> None:
    """From here on PyTorch's allocator fails rather than reserve more."""
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0, nbytes) / total), device)


def _prediction(plan: Any) -> Row:
    timeline = plan.result.timeline
    return {
        "predicted_peak": timeline.peak_memory,
        "predicted_seconds": timeline.makespan,
        "lower_bound": plan.result.lower_bound,
        "planner": plan.result.planner,
        "bytes_out": timeline.bytes_out,
        "recomputed": len(plan.result.recomputed),
    }


def _step(task: Task, way: Way, device: torch.device) -> tuple[Any, Any]:
    """One training step; what reads its seconds without and with the optimiser, once it is over."""
    marks = [_mark(device)]
    task.optimizer.zero_grad()
    with way.around():
        loss = way.forward(*task.args)
    loss.backward()
    marks.append(_mark(device))
    task.optimizer.step()
    marks.append(_mark(device))
    return (lambda: _between(marks[0], marks[1])), (lambda: _between(marks[0], marks[2]))


def _mark(device: torch.device) -> Any:
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(first: Any, second: Any) -> float:
    if isinstance(first, float):
        return float(second - first)
    second.synchronize()
    return float(first.elapsed_time(second)) / 1e3


def _counted_peak(task: Task, way: Way, device: torch.device) -> int:
    """Of one more step, op by op: the stand-in for the allocator's peak where there is no GPU."""
    task.optimizer.zero_grad()
    state = (value for one in task.optimizer.state.values() for value in one.values() if value is not None)
    there = sum(t.nbytes for t in itertools.chain(task.model.parameters(), task.model.buffers(), state, task.args))
    if way.compiled:  # under a mode, torch.compile runs what is not compiled
        with counted(device) as inside:
            _step(task, way, device)
        return memsched.torch.plans()[-1].process_bytes(inside.peak)
    with Meter() as meter:
        _step(task, way, device)
    return int(there + meter.peak)


def answer(point: Row, ends: Any) -> None:
    """In a process of its own: the row of a point, into a pipe."""
    ends.send(json.loads(json.dumps(measure(point))))
