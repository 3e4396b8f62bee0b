"""What an input of a model is like: enough to recognise another one, and to make one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memsched.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of the arguments of a model.

    Attributes
    ----------
    dtype : str or None
        Of a tensor, such as "float32"; None for a value that is no tensor.
    shape : tuple of int
    needs_grad : bool
    value : object
        What is no tensor.
    """

    dtype: str | None = None
    shape: tuple[int, ...] = ()
    needs_grad: bool = False
    value: Any = None

    @classmethod
    def of(cls, value: Any) -> Leaf:
        """The description of a leaf."""
        if not isinstance(value, torch.Tensor):
            return cls(value=value)
        name = str(value.dtype).removeprefix("torch.")
        return cls(dtype=name, shape=tuple(value.shape), needs_grad=value.requires_grad)

    def example(self, device: torch.device) -> Any:
        """Such a leaf, filled with zeros."""
        if self.dtype is None:
            return self.value
        dtype = getattr(torch, self.dtype)
        return torch.zeros(self.shape, dtype=dtype, device=device, requires_grad=self.needs_grad)

    def __str__(self) -> str:
        if self.dtype is None:
            return repr(self.value)
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype} {shape}{' that needs a gradient' if self.needs_grad else ''}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object.

        Raises
        ------
        InvalidInputError
            A value that JSON does not have.
        """
        if self.dtype is not None:
            return {"dtype": self.dtype, "shape": list(self.shape), "needs_grad": self.needs_grad}
        if not isinstance(self.value, None | bool | int | float | str):
            raise InvalidInputError(
                f"an input is a {type(self.value).__name__}, which cannot be saved; pass tensors and plain values"
            )
        return {"value": self.value}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Leaf:
        """What `to_json` wrote."""
        if "value" in document:
            return cls(value=document["value"])
        return cls(
            dtype=str(document["dtype"]), shape=tuple(document["shape"]), needs_grad=bool(document["needs_grad"])
        )
