"""Each allocation of Python's that fails, in turn, ends a call in a MemoryError."""

from __future__ import annotations

import subprocess
import sys

import pytest

from marks import nightly

WITHOUT_MEMORY = """
import sys
import _testcapi
import memsched as ms

graph = ms.to_graph(ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4]))
buffers = [ms.Buffer(0, 3, 5), ms.Buffer(1, 2, 7), ms.Buffer(2, 5, 3)]
work = {"order": lambda: ms.order(graph), "place": lambda: ms.place(buffers)}[sys.argv[1]]
work()
failed = 0
for allocation in range(200):
    _testcapi.set_nomemory(allocation, allocation + 1)
    try:
        work()
    except MemoryError:
        failed += 1
    finally:
        _testcapi.remove_mem_hooks()
print(failed)
"""


@pytest.mark.parametrize("name", ["order", "place"])
def test_an_allocation_that_fails_is_a_memory_error(name: str) -> None:
    """Each of Python's in turn; lists that did not fit were a RuntimeError of the bindings."""
    pytest.importorskip("_testcapi")
    ended = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY, name], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 10


STARVED_HIGHS = """
import resource
import memsched as ms
if {imported}:
    import highspy, numpy
sizes = [(1, 2, 1, 1), (2, 3, 4, 3), (1, 3, 5, 2), (2, 3, 4, 3), (2, 3, 6, 2), (1, 4, 5, 5), (2, 3, 2, 2)]
buffers = [ms.Buffer(start, end, size, alignment=step) for start, end, size, step in sizes]
graph = ms.to_graph(ms.Chain([1] * 8, [1] * 8, [3] * 9, [3] * 9))
work = [lambda: ms.place(buffers, method="ilp"), lambda: ms.min_memory(graph, "checkmate")][{work}]
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held + ({more} << 20), hard))
try:
    work()
except (MemoryError, ms.MemschedError) as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
assert ms.min_memory(graph, "checkmate") == 15
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the cap on memory is read from /proc")
@pytest.mark.parametrize("work", [0, 1])
@pytest.mark.parametrize("more", [4, 24, *nightly(16, 40, 64)])
@pytest.mark.parametrize("imported", [True, False])
def test_an_integer_program_under_a_cap_on_memory_is_an_error(work: int, more: int, imported: bool) -> None:
    """HiGHS ended the process where there was no memory for the data of its threads."""
    pytest.importorskip("highspy")
    code = STARVED_HIGHS.format(work=work, more=more, imported=imported)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert "pip install" not in ended.stdout


STARVED_ALGEBRA = """
import resource
import numpy.random
import memsched as ms
graph = ms.profiles.load_graph("resnet50-224-b32")
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held + (15 << 20), hard))
try:
    ms.autoswap(graph, "60%", "12GB/s", time_limit=1)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
ms.autoswap(graph, "60%", "12GB/s", time_limit=1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the cap on memory is read from /proc")
def test_linear_algebra_under_a_cap_on_memory_is_an_error() -> None:
    """OpenBLAS ended the process where there was no memory for its buffers."""
    ended = subprocess.run([sys.executable, "-c", STARVED_ALGEBRA], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("linear algebra does not fit into the memory")
