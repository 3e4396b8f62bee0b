"""Models and their example inputs from a line of text, such as "transformers:gpt2?n_layer=24" or "my.module:make"."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from memsched.errors import InvalidInputError
from memsched.problems.specs import INPUT_FORMS, InputSpec, parse_input, parse_model
from memsched.support import checks
from memsched.torch import weightless
from memsched.torch.families import Parts, builder_of, failing_as, torchvision

__all__ = ["Built", "build", "parse_input", "torchvision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model ready for a training step."""

    model: Any  # in train mode
    args: tuple[Any, ...]  # to call it with, positionally: tensors, or None for an argument that is left out
    name: str  # the model's, without family and options, such as "resnet101"


def _values(given: InputSpec, parts: Parts, dtype: Any) -> Any:
    """One input of random values."""
    kind = given.kind or parts.kind
    if kind == "float":
        return torch.randn(given.shape, dtype=dtype)
    if kind == "bool":
        return torch.rand(given.shape) < 0.5
    below = given.below or parts.vocabulary
    if below is None:
        shape = "x".join(str(size) for size in given.shape)
        raise InvalidInputError(
            f"the input {shape}:int has no bound, as the model names no vocabulary; write {shape}:int:100 for "
            "numbers below 100"
        )
    ids = torch.randint(0, below, given.shape)
    # Padding makes models look for masks; another token does as well.
    padding = parts.padding
    return ids if given.below or padding is None else torch.where(ids == padding, (padding + 1) % below, ids)


def _make_args(parts: Parts, input: str | None, spec: str, dtype: Any) -> tuple[Any, ...]:
    if input is None and parts.args is not None:
        return parts.args
    text = parts.default if input is None else input
    if text is None:
        raise InvalidInputError(f"the model {spec!r} has no default input; {INPUT_FORMS}")
    values = [_values(given, parts, dtype) for given in parse_input(text)]
    if len(parts.names) == 2 and len(values) == 1:
        values.append(values[0].clone())  # the decoder reads as many tokens as the encoder
    if len(values) > len(parts.names):
        return tuple(values)
    # A decoder's tokens are not the second argument: what stands between is left out.
    order = list(inspect.signature(parts.model.forward).parameters)
    places = [order.index(name) for name in parts.names if name in order] or [0]
    by_place = dict(zip(places, values, strict=False))
    return tuple(by_place.get(place) for place in range(max(by_place) + 1))


def build(
    spec: str,
    input: str | None = None,
    *,
    seed: int = 0,
    dtype: Any = None,
    device: Any = "cpu",
    fake: Any = None,
) -> Built:
    """A model and its example inputs. Nothing is downloaded: weights are random.

    Parameters
    ----------
    spec : str
        "family:name?option=value&...", where the family is torchvision or timm (options go to the model's
        constructor) or transformers (name is a model type, options are fields of its configuration); or
        "module:function" or "file.py:function", imported from the current folder, where the function, called with the
        options, makes a module or (module, inputs).
    input : str, optional
        As `parse_input` reads it. Whole numbers are drawn below the model's vocabulary. Token models take ":int" as
        read, and an encoder-decoder takes one or two inputs. Default: what the model's family usually trains on,
        with a batch of 8, or the function's own inputs.
    seed : int
        The same seed gives the same weights and inputs, on every device. Torch's own generator is left alone.
    dtype : torch.dtype, optional
        A floating type that weights and floating inputs are converted to.
    device : str or torch.device
        Where model and inputs end up; "meta" allocates nothing.
    fake : torch._subclasses.FakeTensorMode, optional
        Weights and inputs become fake tensors of this mode that claim to be on `device`; hardly any memory is used,
        whatever the size of the model. Values are lost.

    Raises
    ------
    InvalidInputError
        A spec or an input that cannot be read, a model or an option that does not exist (with near names), a
        missing package (with the command that installs it), a function that returns no module.

    Examples
    --------
    >>> built = build("torchvision:resnet18", "2x3x64x64")  # doctest: +SKIP
    >>> built.name, built.model(*built.args).shape  # doctest: +SKIP
    ('resnet18', torch.Size([2, 1000]))
    """
    where = torch.device(device)
    if fake is not None and where.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInputError("device is 'cuda' but no GPU is here: autograd aborts on fake CUDA tensors; use 'cpu'")
    found = parse_model(spec)
    with torch.random.fork_rng(devices=[]):  # what is imported may draw
        make = builder_of(found, spec)
    light = fake is not None or where.type == "meta"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checks.count("seed", seed, 0, 2**63 - 1))
        with failing_as(f"{spec} cannot make its model"):
            parts = weightless.construct(make) if light else make()
        with fake or contextlib.nullcontext():
            args = _make_args(parts, input, spec, dtype)
    model = parts.model.train()
    if dtype is not None:
        model = model.to(dtype)
        args = tree_map_only(torch.Tensor, lambda value: value.to(dtype) if value.is_floating_point() else value, args)
    if fake is not None:
        weightless.make_fake(model, fake, where)
        args = tree_map_only(torch.Tensor, lambda value: weightless.fake_like(value, fake, where), args)
    else:
        model, args = model.to(where), tree_map_only(torch.Tensor, lambda value: value.to(where), args)
    return Built(model=model, args=args, name=found.name)
