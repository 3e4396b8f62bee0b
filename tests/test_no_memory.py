"""Each allocation of Python's that fails, in turn, ends a call in a MemoryError."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
