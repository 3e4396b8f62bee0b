"""Planned training steps against what people use today, at budgets that are enforced, on one GPU.

python -m bench.gpu --output build/bench/gpu                # ten minutes on a GPU; README.md has the rest
python -m bench.gpu --output build/bench/gpu --resume       # go on where it ended, or draw again
python -m bench.gpu --output /tmp/gpu --small               # tiny networks on the CPU: does it still run
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from bench.common import Cache, Row
from bench.gpu.points import pending, rounds
from bench.gpu.report import write

from memsched.support.formats import format_bytes

NETWORKS = "resnet152:fp32,gpt2:bf16,densenet201:fp32,vit_l_16:bf16,gpt2:fp32,resnet152:bf16"
SMALL_NETWORKS = "resnet152:fp32,gpt2:bf16"


def run_here(point: Row, limit: float) -> Row:
    """In this process: for tiny networks on the CPU."""
    from bench.gpu.measure import measure

    row: Row = json.loads(json.dumps(measure(point)))
    return row


def processes() -> Any:
    """Makes processes that have imported all they need, and nothing of CUDA."""
    # For all methods alike: less is lost between blocks, so that what is reserved is close to what is used.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # to ask CUDA itself would spoil it for processes that are forked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.gpu.measure", "torchvision", "transformers.models.gpt2.modeling_gpt2"])
    return context


def run_apart(context: Any, point: Row, limit: float) -> Row:
    """In a process of its own, so that nothing of one point is left to the next and running out of memory ends one."""
    from bench.gpu.measure import answer

    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(point, theirs))
    process.start()
    theirs.close()
    try:
        row: Row = ours.recv() if ours.poll(limit) else {}
    except EOFError:  # it died
        process.join()
        return {**point, "status": "error", "reason": f"exit status {process.exitcode}"}
    finally:
        process.kill()
        process.join()
    return row or {**point, "status": "timeout", "reason": f"more than {limit:.0f} s"}


def told(key: str, row: Row, took: float) -> str:
    """A line of progress."""
    if row["status"] != "ok":
        return f"{key}: {row['status']}: {row.get('reason', '')[:200]} ({took:.0f} s)"
    parts = [f"{row['seconds'] * 1e3:.1f} ms"] if "seconds" in row else []
    parts += [format_bytes(row["peak"])] if "peak" in row else []
    return f"{key}: {', '.join(parts) or 'ok'} ({took:.0f} s)"


def main() -> None:
    """Measure what is pending until it is done or the time is over, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of rows.jsonl, gpu.json, gpu.md, pictures")
    parser.add_argument("--small", action="store_true", help="tiny networks on the CPU, budgets not enforced")
    parser.add_argument("--resume", action="store_true", help="keep the points that are there")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no point after this")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one point")
    parser.add_argument("--networks", help=f"model:precision, with commas; on a GPU {NETWORKS}")
    parser.add_argument("--budgets", type=int, default=5, help="how many budgets of our own, 1 to 5")
    parser.add_argument("--scale", type=float, default=1.0, help="of the batches, for smaller or larger cards")
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after two that are not")
    parser.add_argument(
        "--compile", default=None, metavar="F,F", help="activation_memory_budget; default 0.3,0.6 on a GPU"
    )
    parser.add_argument(
        "--slack", type=float, help="of each budget, for gaps between the allocator's blocks; default 0.12 on a GPU"
    )
    parser.add_argument(
        "--any-release", action="store_true", help="also with a PyTorch that memsched does not know, and refuses"
    )
    given = parser.parse_args()
    if not given.small and given.minutes > 0:
        import torch

        if not torch.cuda.is_available():
            parser.error("no GPU is here; --small runs tiny networks on the CPU")
    wanted = given.networks or (SMALL_NETWORKS if given.small else NETWORKS)
    networks = [(model, precision) for model, _, precision in (one.partition(":") for one in wanted.split(","))]
    compiled = given.compile if given.compile is not None else "" if given.small else "0.3,0.6"
    labels = rounds(given.budgets, tuple(float(f) for f in compiled.split(",") if f))
    given.output.mkdir(parents=True, exist_ok=True)
    file = given.output / "rows.jsonl"
    if not given.resume:
        file.unlink(missing_ok=True)
    cache = Cache(file)
    # What failed may do better this time.
    cache.rows = {key: row for key, row in cache.rows.items() if row["status"] not in ("error", "timeout")}
    shared = {
        "small": given.small,
        "scale": given.scale,
        "steps": given.steps,
        "search": 0.05 if given.small else 2.0,  # seconds for each planner that searches
        "slack": given.slack if given.slack is not None else 0.0 if given.small else 0.12,
        "any_release": given.any_release,
        "folder": str(given.output.resolve()),
    }
    run = run_here if given.small else functools.partial(run_apart, processes())
    end = time.monotonic() + 60 * given.minutes
    while (left := end - time.monotonic()) > 0:
        following = next(pending(networks, labels, cache.rows), None)
        if following is None:
            break
        key, point = following
        began = time.monotonic()
        limit = min(given.limit, left)
        row = run({**point, **shared}, limit)
        if row["status"] == "timeout" and limit < given.limit:
            break  # the time of the whole run is over: no finding about this point
        cache.add(key, row)
        print(told(key, row, time.monotonic() - began), flush=True)
    write(list(cache.rows.values()), given.output)
    print(f"wrote {given.output / 'gpu.md'}")


if __name__ == "__main__":
    main()
