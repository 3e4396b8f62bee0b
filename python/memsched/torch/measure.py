"""What a planned step really did: the times and the bytes of every step of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memsched._core import Timeline
from memsched.torch.lanes import Lanes
from memsched.torch.meter import Meter
from memsched.torch.script import Action, Script


@dataclass(slots=True)
class _Seen:
    """The events around one step, and the bytes on the device before, at most and after."""

    start: Any
    end: Any
    copy: bool
    before: int
    most: int
    after: int


class StepRecorder:
    """An observer that writes down when each step of the schedule ran and what was on the device.

    Parameters
    ----------
    script, lanes
        Of the step.
    meter : Meter, optional
        Counts the bytes where there is no CUDA allocator to ask; without, they are not counted on the CPU.
    device : torch.device
    """

    def __init__(self, script: Script, lanes: Lanes, meter: Meter | None, device: torch.device) -> None:
        self._script, self._lanes, self._meter, self._device = script, lanes, meter, device
        self._seen: list[_Seen | None] = [None] * len(script.actions)
        self._base = int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0

    def before(self, step: int, action: Action) -> None:
        held = self._restart()
        self._seen[step] = _Seen(self._lanes.now(), None, False, held, held, held)

    def after(self, step: int, action: Action, event: Any) -> None:
        seen = self._seen[step]
        assert seen is not None
        seen.most, seen.after = self._most(), self._restart()
        seen.copy = event is not None
        seen.end = event if seen.copy else self._lanes.now()

    def _restart(self) -> int:
        """The bytes on the device now; the peak is measured from here on."""
        if self._device.type != "cuda":
            if self._meter is not None:
                self._meter.start()
            return self._most()
        torch.cuda.reset_peak_memory_stats(self._device)
        return self._most()

    def _most(self) -> int:
        if self._device.type != "cuda":
            return self._meter.peak if self._meter is not None else 0
        return int(torch.cuda.max_memory_allocated(self._device)) - self._base

    def timeline(self, resident: int, counted: StepRecorder | None = None) -> Timeline:
        """The timeline of the step, once it is done.

        Parameters
        ----------
        resident
            Bytes to add to those that were counted.
        counted
            Another step, to take the bytes from: counting costs time.
        """
        self._lanes.finish()
        seen = [one for one in self._seen if one is not None]
        assert len(seen) == len(self._seen), "the step is not done"
        zero = seen[0].start
        starts = [one.end.start if one.copy else one.start for one in seen]
        start = [max(0.0, self._lanes.seconds(zero, event)) for event in starts]
        end = [max(s, self._lanes.seconds(zero, one.end)) for s, one in zip(start, seen, strict=True)]
        actions = self._script.actions
        runs = [k for k, action in enumerate(actions) if action.kind in ("forward", "backward")]
        sizes = self._script.sizes
        moved = {kind: sum(sizes[key] for a in actions if a.kind == kind for key in a.moves) for kind in _MOVES}
        again = [k for k in runs if actions[k].kind == "forward" and not actions[k].first]
        makespan = max(end)
        bytes_of = [one for one in (counted or self)._seen if one is not None]
        times, held = _curve(start, end, bytes_of, resident)
        return Timeline.from_json(
            {
                "start": start,
                "end": end,
                "makespan": makespan,
                "peak_memory": max(one.most for one in bytes_of) + resident,
                "memory": {"times": times, "bytes": held},
                "bytes_out": moved["offload"],
                "bytes_in": moved["prefetch"],
                "idle": max(0.0, makespan - sum(end[k] - start[k] for k in runs)),
                "recompute_time": sum(end[k] - start[k] for k in again),
            }
        )


_MOVES = ("offload", "prefetch")


def _curve(
    start: Sequence[float], end: Sequence[float], seen: Sequence[_Seen], resident: int
) -> tuple[list[float], list[int]]:
    """Bytes over time: the most during a step from its start on, then what it leaves."""
    points: list[tuple[float, int]] = []
    for s, e, one in zip(start, end, seen, strict=True):
        points += [(s, one.most + resident), (e, one.after + resident)]
    times: list[float] = []
    held: list[int] = []
    for time, count in sorted(points, key=lambda point: point[0]):
        if times and time <= times[-1]:
            held[-1] = count
        else:
            times.append(time)
            held.append(count)
    return times, held
