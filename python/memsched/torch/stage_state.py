"""The parameters and buffers that a stage is run with, such that a repeated run leaves no second trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from memsched.torch.stages import Stage


class StageState:
    """Hands the state of a model to the stages of one training step.

    The first run of a stage writes to the model's own buffers. A repeated run must not: what it writes without reading
    it (running statistics, counters) goes to a scratch buffer, and what it reads first is given to it as it was before
    the first run.

    Parameters
    ----------
    values : mapping of str to Tensor
        The present state by name.
    repeated : iterable of Stage
        The stages that will run more than once.
    """

    def __init__(self, values: Mapping[str, torch.Tensor], repeated: Iterable[Stage]) -> None:
        self._values = values
        stages = list(repeated)
        self._before = {
            ref.name: values[ref.name].detach().clone() for stage in stages for ref in stage.state if ref.influential
        }
        self._scratch = {
            device: torch.empty(size, dtype=torch.uint8, device=device)
            for device, size in _scratch_sizes(values, stages).items()
        }

    def values(self, stage: Stage) -> list[torch.Tensor]:
        """The model's own parameters and buffers that the stage reads."""
        return [self._values[ref.name] for ref in stage.state]

    def first(self, stage: Stage) -> list[torch.Tensor]:
        """The state for the first run. What it may read and write is a clone; `keep` stores it."""
        return [
            self._values[ref.name].detach().clone() if ref.influential else self._values[ref.name]
            for ref in stage.state
        ]

    def keep(self, stage: Stage, used: list[torch.Tensor]) -> None:
        """Store what the first run wrote to its clones."""
        with torch.no_grad():
            for ref, value in zip(stage.state, used, strict=True):
                if ref.influential:
                    self._values[ref.name].copy_(value)

    def again(self, stage: Stage) -> list[torch.Tensor]:
        """The state for a repeated run."""
        return [
            self._before[ref.name].clone()
            if ref.influential
            else self._throw_away(self._values[ref.name])
            if ref.written
            else self._values[ref.name]
            for ref in stage.state
        ]

    def _throw_away(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor like `value` on the scratch buffer."""
        scratch = self._scratch[value.device].untyped_storage()
        with torch.no_grad():
            return torch.empty(0, dtype=value.dtype, device=value.device).set_(scratch, 0, value.size(), value.stride())


def scratch_bytes(values: Mapping[str, torch.Tensor], repeated: Iterable[Stage]) -> int:
    """Bytes that a `StageState` holds through the step."""
    stages = list(repeated)
    before = {ref.name for stage in stages for ref in stage.state if ref.influential}
    snapshots = sum(values[name].untyped_storage().nbytes() for name in before)
    return snapshots + sum(_scratch_sizes(values, stages).values())


def _scratch_sizes(values: Mapping[str, torch.Tensor], stages: Iterable[Stage]) -> dict[torch.device, int]:
    sizes: dict[torch.device, int] = {}
    for stage in stages:
        for ref in stage.state:
            if ref.written and not ref.influential:
                value = values[ref.name]
                sizes[value.device] = max(sizes.get(value.device, 0), value.untyped_storage().nbytes())
    return sizes
