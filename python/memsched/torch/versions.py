"""What a backward will read must stay as it is until then."""

from __future__ import annotations

import torch

from memsched.errors import MemschedError


class Versions:
    """Remembers how often tensors had been changed in place when a stage read them.

    Autograd does this for the tensors that it saves. The inputs, the outputs and the state of a planned model are read
    beside it: again by repeated runs, and through slots by backwards.
    """

    def __init__(self) -> None:
        self._noted: dict[int, list[tuple[str, torch.Tensor, int]]] = {}

    def note(self, k: int, name: str, tensor: object, version: int | None = None) -> None:
        """Stage k reads the tensor in this version; the present one by default."""
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
            self._noted.setdefault(k, []).append((name, tensor, tensor._version if version is None else version))

    def check(self, k: int) -> None:
        """Refuse to run stage k again, or backward, on other values.

        Raises
        ------
        MemschedError
            Naming the tensor that was changed.
        """
        for name, tensor, version in self._noted.get(k, ()):
            if tensor._version != version:
                raise MemschedError(
                    f"{name} was changed in place after the forward, and the backward reads it; change a copy of it, "
                    "or change it after backward()"
                )

    def clear(self) -> None:
        """Nothing will be read any more."""
        self._noted.clear()
