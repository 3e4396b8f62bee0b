"""How an update of a parameter is marked in a joint graph, and what its tensors are called in a plan."""

from __future__ import annotations

from dataclasses import dataclass

UPDATE = "update"
"""Marks, in the `meta` of a node, an update by the optimiser; see `Update`."""

_GRADIENT = "gradient:"


def states_called(place: int) -> str:
    """The tensor that stands for the states of the optimiser of the parameter at a place."""
    return f"states:{place}"


def gradient_called(place: int) -> str:
    """The tensor that stands for the gradient of the parameter at a place that waits from steps before."""
    return f"{_GRADIENT}{place}"


def is_waiting_gradient(tensor: str) -> bool:
    """Whether a tensor of a graph stands for one."""
    return tensor.startswith(_GRADIENT)


@dataclass(frozen=True, slots=True)
class Update:
    """What the update of a parameter takes, or the addition of its gradient to one that waits."""

    place: int  # of the parameter among those of the optimiser
    state: int  # bytes of its states, but for single numbers
    numbers: int  # bytes of its states that do not travel, such as single numbers, if they are on the device
    workspace: int
    touched: int  # bytes that its operations read and write
    calls: int  # how many operations it has
    host_seconds: float | None = None  # on the host; None: it does not run there
    waiting: int = 0  # bytes of the gradient from before that it reads and changes, if that is a tensor of the plan
    adds: bool = False  # it does nothing but add to that gradient, and neither reads nor changes the parameter

    @property
    def states_name(self) -> str:
        """Of the tensor that stands for those states."""
        return states_called(self.place)

    @property
    def gradient_name(self) -> str:
        """Of the tensor that stands for the gradient from before."""
        return gradient_called(self.place)
