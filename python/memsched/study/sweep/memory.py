"""The points of a sweep that is kept nowhere: what a store does, for one sweep and as long as it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from memsched.study.sweep.points import Group, SweptProblem
from memsched.study.sweep.rows import MEASURES, Row

_NOTHING: Row = dict.fromkeys(MEASURES)


class Memory:
    """Finished points, as the rows that a store would hand out."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def close(self) -> None:
        """There is nothing to close."""

    def add_problem(self, problem: SweptProblem) -> None:
        """Each point knows its own."""

    def alive(self) -> None:
        """Nobody else waits for it."""

    def finished(self) -> set[str]:
        """The keys of all points that are there, planned or not."""
        return set(self._rows)

    def claim(self, keys: Sequence[str]) -> set[str]:
        """Those of the points that are not finished."""
        return {key for key in keys if key not in self._rows}

    def add(self, points: Sequence[tuple[Group, int, Row]]) -> None:
        """Finished points: their group, their place in it, and their measures."""
        finished = time.time()
        for group, at, row in points:
            device, problem = group.devices[at], group.problem
            self._rows[group.keys[at]] = {
                "key": group.keys[at],
                "problem": problem.name,
                "planner": group.planner,
                "memory": device.memory,
                "bandwidth": device.d2h,
                "options": dict(group.options),
                **_NOTHING,
                **row,
                "device": group.document(at),
                "table_slots": group.table_slots,
                "version": group.version,
                "finished": finished,
                "problem_key": problem.key,
                "ideal": float(problem.ideal),
            }

    def rows(self, keys: Sequence[str]) -> list[Row]:
        """The given points that are there, in that order."""
        return [self._rows[key] for key in keys if key in self._rows]
