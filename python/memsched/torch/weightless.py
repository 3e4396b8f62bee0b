"""Models without memory for their weights: built on the meta device, then made of fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.meta_utils import MetaTensorDescriber
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from memsched.errors import InvalidInputError

_Made = TypeVar("_Made")


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Every parameter moves to the meta device as a module takes it, so that no weight is ever written.

    The rest stays real while the model is built: many models compute their widths or rates with small tensors, which
    neither meta nor fake tensors allow.
    """
    known = WeakIdKeyDictionary()  # one parameter given to two modules stays one

    def move(module: Any, name: str, parameter: Any) -> Any:
        if parameter is None or parameter.device.type == "meta":
            return None
        if parameter not in known:
            if is_lazy(parameter):
                raise InvalidInputError(
                    f"the parameter {name} of a {type(module).__name__} has no shape yet; give the module its sizes"
                )
            moved = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            moved.__dict__.update(parameter.__dict__)
            known[parameter] = moved
        return known[parameter]

    handle = register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        handle.remove()


def construct(make: Callable[[], _Made]) -> _Made:
    """What make() returns, with the parameters of its modules on the meta device.

    Examples
    --------
    >>> from torch import nn
    >>> construct(lambda: nn.Linear(10**6, 10**6)).weight.device
    device(type='meta')
    """
    try:
        with _parameters_on_meta():
            return make()
    except (NotImplementedError, RuntimeError):
        # A few models mix parameters with other tensors while they are built: then all of them have to be on meta.
        with torch.device("meta"):
            return make()


def fake_mode_of(values: Iterable[Any]) -> FakeTensorMode | None:
    """In which the fake tensors among some values were made; None if there are none."""
    return next((one.fake_mode for one in values if hasattr(one, "fake_mode")), None)


def fake_like(tensor: Any, fake: Any, device: Any) -> Any:
    """A fake tensor of this one's shape, strides and dtype, that claims to be on `device` and needs a gradient alike.

    A parameter gives a parameter; a fake tensor is returned as it is.
    """
    if hasattr(tensor, "fake_mode"):
        return tensor
    with fake:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        made.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            made.__dict__.update(tensor.__dict__)
        return made


def make_fake(model: Any, fake: Any, device: Any) -> None:
    """Replace the parameters, the buffers and the tensors that are plain attributes; what is shared stays shared.

    Examples
    --------
    >>> from torch import nn
    >>> from torch._subclasses import FakeTensorMode
    >>> model = construct(lambda: nn.Linear(10**6, 10**6))
    >>> make_fake(model, FakeTensorMode(), torch.device("cpu"))
    >>> model.weight.device, model.weight.nbytes
    (device(type='cpu'), 4000000000000)
    """
    known = WeakIdKeyDictionary()

    def once(tensor: Any) -> Any:
        if tensor not in known:
            known[tensor] = fake_like(tensor, fake, device)
        return known[tensor]

    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                setattr(module, name, once(parameter))  # not into the dict: an LSTM keeps a list of them besides
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = once(buffer)
        for name, value in list(vars(module).items()):
            if type(value) is torch.Tensor:
                setattr(module, name, once(value))


@contextlib.contextmanager
def meta_as_cpu() -> Iterator[None]:
    """Fake tensors made here of tensors on the meta device claim to be on the CPU.

    PyTorch decomposes operations otherwise on meta, and the derivatives of some losses are lost.
    """
    describe = MetaTensorDescriber.describe_tensor

    def described(self: Any, tensor: torch.Tensor, **more: Any) -> Any:
        found = describe(self, tensor, **more)
        return replace(found, device=torch.device("cpu")) if found.device.type == "meta" else found

    MetaTensorDescriber.describe_tensor = described  # of the class: Dynamo makes converters of its own
    try:
        yield
    finally:
        MetaTensorDescriber.describe_tensor = describe


class Unwritten(TorchDispatchMode):
    """What operations would write to tensors with data, they write to tensors without, in place of these.

    A `FakeTensorMode` runs an operation that is given none of its own tensors. Single numbers are written: what counts
    them may decide.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._without_data, (args, kwargs))
        return func(*args, **kwargs)

    def _without_data(self, one: torch.Tensor) -> torch.Tensor:
        return one if isinstance(one, FakeTensor) or one.numel() <= 1 else self._mode.from_tensor(one)
