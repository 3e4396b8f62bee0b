"""C++ runs without the GIL, and Ctrl-C ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import memsched as ms
from memsched.testing import two_partition_chain


def hard() -> tuple[ms.Chain, int, float]:
    """2-PARTITION of 40 even numbers with an odd half: no search finishes soon."""
    values = [2 * int(v) for v in np.random.default_rng(1).integers(10**8, 10**9, 40)]
    values[0] += 2 * (1 - sum(values) // 2 % 2)
    chain, memory, beta, _ = two_partition_chain(values)
    return chain, memory, beta


def step() -> tuple[ms.Graph, int, float]:
    """A training step of 3,327 ops, in which PoocH searches for many seconds."""
    graph = ms.profiles.load_graph("densenet201-224-b32")
    least = ms.min_memory(graph, "pooch")
    return graph, int(least + 0.1 * (ms.peak_memory(graph) - least)), 12e9


def large() -> tuple[ms.Graph, int, float]:
    """The same at the least memory for moDNN."""
    graph = ms.profiles.load_graph("densenet201-224-b32")
    return graph, ms.min_memory(graph, "modnn"), 12e9


def dynprog() -> ms.Result:
    return ms.dynprog(*hard(), slots=None, time_limit=0.6)


def offload() -> ms.Result:
    return ms.offload(*hard(), time_limit=0.6)


@pytest.mark.parametrize("work", [dynprog, offload])
def test_others_run_while_a_planner_does(work: Callable[[], ms.Result]) -> None:
    """Each round of the loop below needs the GIL; one that is kept would allow two or three of them."""
    barrier, finished = threading.Barrier(2), threading.Event()
    results: list[ms.Result] = []

    def plan() -> None:
        barrier.wait()
        try:
            results.append(work())
        finally:
            finished.set()

    thread = threading.Thread(target=plan)
    thread.start()
    barrier.wait()
    rounds = 0
    while not finished.wait(0.005):
        rounds += 1
    thread.join()
    assert rounds >= 10
    ms.validate(results[0])


def test_two_planners_at_once_find_what_each_finds_alone() -> None:
    chain = ms.profiles.load("resnet101-224-b32")
    least, peak = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
    memories = [int(least + share * (peak - least)) for share in (0.2, 0.4, 0.6, 0.8)]
    alone = [ms.dynprog(chain, memory, 12.2e9).schedule for memory in memories]
    found: dict[int, ms.Schedule] = {}

    def plan(index: int) -> None:
        found[index] = ms.dynprog(chain, memories[index], 12.2e9).schedule

    threads = [threading.Thread(target=plan, args=(index,)) for index in range(len(memories))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(memories))] == alone


SCRIPT = """
import signal

import memsched as ms
from test_threads import hard, large, step

signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off for what runs in the background

def running(fraction):
    print("running", flush=True)

{call}
"""
CALLS = [
    "ms.offload(*hard(), time_limit=60, progress=running)",
    "ms.dynprog(*hard(), slots=None, time_limit=60, progress=running)",
    "ms.dynprog(*hard(), slots=None, method='hash', max_states=10**9, time_limit=60, progress=running)",
    "ms.pooch(*step(), beam=100, progress=running)",
    "ms.modnn(*large(), progress=running)",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to a child there")
@pytest.mark.parametrize("call", CALLS, ids=["offload", "dynprog", "hash", "pooch", "modnn"])
def test_ctrl_c_ends_a_planner(call: str) -> None:
    """The child reports from within C++, is interrupted there, and would otherwise run for a minute."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(call=call)],
        cwd=__file__.rpartition("/")[0],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
    assert "KeyboardInterrupt" in errors
    assert child.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
def test_an_interrupt_while_arguments_are_converted_is_neither_lost_nor_another_error() -> None:
    """pybind11 clears what is raised while it makes an array of a list, and then finds no function that fits."""
    chain = ms.Chain([1] * 5, [1] * 5, [4] * 6, [4] * 6, saved=[8] * 5)
    fired, heard = 0, 0

    def handler(number: int, frame: object) -> None:
        nonlocal fired
        fired += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for turn in range(1_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-3 * (turn * 619 % 1_000) / 1_000)
                ms.offload(chain, 40, 1.0, moves=0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                heard += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard == fired > 20


IN_HIGHS = """
import signal

import highspy
import memsched as ms
from test_limits import scattered

signal.signal(signal.SIGINT, signal.default_int_handler)
run = highspy.Highs.run

def running(solver):
    print("running", flush=True)
    return run(solver)

highspy.Highs.run = running
network = ms.profiles.analytic("fcn", 64).graph
try:
    {call}
except KeyboardInterrupt:
    print("heard", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to a child there")
@pytest.mark.parametrize(
    "call",
    [
        "ms.place(scattered(60), method='ilp', time_limit=60)",
        "ms.checkmate(network, int(0.7 * ms.peak_memory(network)), time_limit=60)",
    ],
    ids=["place", "checkmate"],
)
def test_a_process_that_ends_after_ctrl_c_in_an_integer_program_ends_in_order(call: str) -> None:
    """Python took the thread in HiGHS for ended, and the exit aborted: "terminate called", in 5 of 6."""
    pytest.importorskip("highspy")
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", IN_HIGHS.format(call=call)],
            cwd=__file__.rpartition("/")[0],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "running\n"
            child.send_signal(signal.SIGINT)
            output, errors = child.communicate(timeout=30)
        finally:
            child.kill()
            child.wait()
        assert (child.returncode, output, errors) == (0, "heard\n", "")
