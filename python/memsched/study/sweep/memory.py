"""The points of a sweep without a store, kept in memory while it runs."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from memsched._core import Device
from memsched.problems.budget import memory_percent
from memsched.study.sweep.points import Group, SweptProblem, link_of
from memsched.study.sweep.rows import MEASURES, Row
from memsched.support.documents import Document, write_device

_NOTHING: Row = dict.fromkeys(MEASURES)


class Memory:
    """Finished points, as the rows that a store would return."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._links: dict[Hashable, Document] = {}  # which many points share

    def close(self) -> None:
        """There is nothing to close."""

    def add_problem(self, problem: SweptProblem) -> None:
        """Nothing to do: each point knows its problem."""

    def heartbeat(self) -> None:
        """Nothing to do: no other sweep can see this one."""

    def finished(self) -> set[str]:
        """The keys of all finished points, planned or not."""
        return set(self._rows)

    def claim(self, keys: Sequence[str]) -> set[str]:
        """The points that are not finished."""
        return {key for key in keys if key not in self._rows}

    def add(self, points: Sequence[tuple[Group, int, Row]]) -> None:
        """Add finished points: group, index in the group, and figures."""
        finished = time.time()
        for group, at, row in points:
            device, problem = group.devices[at], group.problem
            self._rows[group.keys[at]] = {
                "key": group.keys[at],
                "problem": problem.name,
                "planner": group.planner,
                "memory": device.memory,
                "memory_percent": memory_percent(device.memory, problem.problem),
                "bandwidth": device.d2h,
                "options": dict(group.options),
                **_NOTHING,
                **row,
                "device": self._written(device),
                "table_slots": group.table_slots,
                "version": group.version,
                "finished": finished,
                "problem_key": problem.key,
                "ideal": float(problem.ideal),
            }

    def rows(self, keys: Sequence[str]) -> list[Row]:
        """The given points that are finished, in the given order."""
        return [self._rows[key] for key in keys if key in self._rows]

    def _written(self, device: Device) -> Document:
        link = link_of(device)
        if link not in self._links:
            self._links[link] = write_device(device)
        return {**self._links[link], "memory": device.memory}
