"""What the tests of sweeps run in other processes."""

from __future__ import annotations

import os
import threading

from memsched.study.sweep.rows import Row
from memsched.study.sweep.work import STOP, Work, run

DEADLY = 700_000_007  # bytes


def run_or_die(work: Work, seconds: float, stop: threading.Event = STOP) -> list[Row]:
    """As a worker does, until it meets the deadly memory."""
    rows = run(work, seconds, stop)
    if any(device.memory == DEADLY for device in work.devices[: len(rows)]):
        os._exit(13)
    return rows


# A sweep of some seconds that says how far it is. Arguments: the store, and which share of the memories comes first.
SWEEP = """
import sys
import memsched as ms

def say(progress):
    print(progress.kept, progress.finished, flush=True)

memory = [f"{share}%" for share in range(2, 100)]
first = int(sys.argv[2])
memory = memory[first:] + memory[:first]
table = ms.sweep(["resnet50-224-b32", "resnet34-224-b32"], ["pofo", "greedy"], memory=memory, beta=[6e9, 12e9],
                 options={"pofo": {"labels": "real", "slots": 300}}, store=sys.argv[1], jobs=1, progress=say)
print("done", len(table), flush=True)
"""
POINTS = 2 * 2 * 98 * 2
