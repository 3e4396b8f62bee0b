"""What an input of a model is like: enough to recognise another one, and to make one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from memsched.errors import InvalidInputError
from memsched.support import checks

_LARGEST = 2**62  # entries of a tensor in one direction


def has_no_data(value: Any) -> bool:
    """Whether a value is a tensor that can be computed with in shape only."""
    return isinstance(value, torch.Tensor) and (
        isinstance(value, torch._subclasses.FakeTensor) or value.device.type == "meta"
    )


def dtype_named(what: str, name: object) -> torch.dtype:
    """The dtype of PyTorch with a name such as "float32". Nothing else of PyTorch is looked up: some names import.

    Raises
    ------
    InvalidInputError
        There is none.
    """
    found = vars(torch).get(checks.text(what, name))
    if not isinstance(found, torch.dtype):
        raise InvalidInputError(f"{what} is {checks.shown(name)}, which PyTorch does not have")
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """One leaf of the arguments of a model. Equal leaves run the same kernels on the same bytes.

    The layout of whole numbers and of masks does not count: next tokens are slices, most often.

    Attributes
    ----------
    dtype : str or None
        Of a tensor, such as "float32"; None for a value that is no tensor.
    shape, strides : tuple of int
    needs_grad : bool
    value : object
        What is no tensor.
    """

    dtype: str | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    needs_grad: bool = False
    value: Any = None

    @classmethod
    def of(cls, value: Any) -> Leaf:
        """The description of a leaf."""
        if not isinstance(value, torch.Tensor):
            return cls(value=value)
        name = str(value.dtype).removeprefix("torch.")
        return cls(dtype=name, shape=tuple(value.shape), strides=value.stride(), needs_grad=value.requires_grad)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        floating = self.dtype is not None and getattr(torch, self.dtype).is_floating_point
        sized = zip(self.strides, self.shape, strict=True)
        strides = tuple(stride for stride, size in sized if size > 1) if floating else ()
        plain = (type(self.value), repr(self.value) if isinstance(self.value, float | complex) else self.value)
        return self.dtype, self.shape, strides, self.needs_grad, plain

    def example(self, device: torch.device) -> Any:
        """Such a leaf, filled with zeros."""
        if self.dtype is None:
            return self.value
        dtype = getattr(torch, self.dtype)
        made = torch.empty_strided(self.shape, self.strides, dtype=dtype, device=device)
        return made.zero_().requires_grad_(self.needs_grad)

    def __str__(self) -> str:
        if self.dtype is None:
            return repr(self.value)
        shape = "x".join(map(str, self.shape)) or "scalar"
        like = torch.empty_strided(self.shape, self.strides, device="meta")
        layout = "" if like.is_contiguous() else f" with strides {', '.join(map(str, self.strides))}"
        if layout and like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
            layout = " in channels_last"
        return f"{self.dtype} {shape}{layout}{' that needs a gradient' if self.needs_grad else ''}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object.

        Raises
        ------
        InvalidInputError
            A value that JSON does not have.
        """
        if self.dtype is not None:
            shape, strides = list(self.shape), list(self.strides)
            return {"dtype": self.dtype, "shape": shape, "strides": strides, "needs_grad": self.needs_grad}
        if not isinstance(self.value, None | bool | int | float | str):
            raise InvalidInputError(
                f"an input is a {type(self.value).__name__}, which cannot be saved; pass tensors and plain values"
            )
        return {"value": self.value}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Leaf:
        """What `to_json` wrote.

        Raises
        ------
        InvalidInputError
            It describes neither a value nor a tensor.
        """
        if "value" in document:
            value = document["value"]
            if not isinstance(value, None | bool | int | float | str):
                raise InvalidInputError(f"value of an input is {checks.shown(value)}; it must be a plain value")
            return cls(value=value)
        shape, strides = (
            tuple(checks.count(f"{key}[{k}] of an input", size, 0, _LARGEST) for k, size in enumerate(document[key]))
            for key in ("shape", "strides")
        )
        if len(shape) != len(strides):
            raise InvalidInputError(f"an input has the shape {shape} and the strides {strides}; give as many of both")
        dtype_named("dtype of an input", document["dtype"])
        needs_grad = checks.flag("needs_grad of an input", document["needs_grad"])
        return cls(dtype=document["dtype"], shape=shape, strides=strides, needs_grad=needs_grad)


def distinct(leaves: Iterable[Any]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The tensors among some values, each object once, and of each tensor leaf which one it is.

    Models look at that: attention projects once where query, key and value are one tensor.

    Examples
    --------
    >>> x, y = torch.ones(2), torch.ones(2)
    >>> distinct([x, 3, y, x])[1]
    (0, 1, 0)
    """
    tensors: list[torch.Tensor] = []
    places: dict[int, int] = {}
    which = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in places:
                places[id(leaf)] = len(tensors)
                tensors.append(leaf)
            which.append(places[id(leaf)])
    return tensors, tuple(which)
