"""What is read again must stay as it is until then."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import torch

from memsched.errors import MemschedError


@dataclass(slots=True)
class _Reading:
    name: str
    tensor: torch.Tensor
    version: int
    saved: bool = False


class Versions:
    """Remembers how often tensors that others hold, too, had been changed in place when a stage first read them.

    Autograd does this for the tensors that it saves. The inputs, the outputs and the state of a planned model are read
    beside it: by repeated runs, and through slots by backwards.
    """

    def __init__(self) -> None:
        self._read: dict[int, list[_Reading]] = {}
        self._given: dict[int, tuple[str, torch.Tensor, int]] = {}  # results, by the address of their storage

    def gave_out(self, position: int, result: object) -> None:
        """The caller holds this leaf of the result from now on."""
        if isinstance(result, torch.Tensor):
            name = f"output {position} of the model"
            self._given[result.untyped_storage()._cdata] = name, result, result._version

    def note_if_given(self, k: int, tensor: torch.Tensor, *, saved: bool = False) -> None:
        """Stage k reads the tensor; it matters where the caller holds its storage."""
        if (given := self._given.get(tensor.untyped_storage()._cdata)) is not None:
            self.note(k, *given, saved=saved)

    def note(self, k: int, name: str, tensor: object, version: int | None = None, *, saved: bool = False) -> None:
        """Stage k reads the tensor in this version; the present one by default. `saved`: its backward does."""
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
            known = tensor._version if version is None else version
            self._read.setdefault(k, []).append(_Reading(name, tensor, known, saved))

    def keep(self, k: int, storages: Set[int]) -> None:
        """A forward of stage k saved tensors on these storages, given by address, for its backward."""
        for reading in self._read.get(k, ()):
            reading.saved = reading.saved or reading.tensor.untyped_storage()._cdata in storages

    def check(self, k: int, *, backward: bool) -> None:
        """Refuse to run stage k again, or backward, on other values.

        Raises
        ------
        MemschedError
            Naming the tensor that was changed.
        """
        for reading in self._read.get(k, ()):
            if reading.tensor._version != reading.version and (reading.saved or not backward):
                raise MemschedError(
                    f"{reading.name} was changed in place after the forward, and "
                    f"{'the backward' if backward else 'the forward that the plan repeats'} reads it; change a copy of "
                    "it, or change it after backward()"
                )

    def clear(self) -> None:
        """Nothing will be read any more."""
        self._read.clear()
        self._given.clear()
