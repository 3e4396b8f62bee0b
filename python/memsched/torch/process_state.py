"""The state of the process that running a model's code may leave behind, put back as it was.

What fails half-way may leave PyTorch inside of vmap, under a mode or with another dispatch: then all that runs later in
the process goes wrong.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from memsched.torch.module_state import gradients_aside, unchanged

_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def contained(model: nn.Module) -> Iterator[None]:
    """Whatever runs here, and however it ends: generators, modes, settings and the model's attributes are as before.

    So are gradients: a custom backward may run a backward of its own, which writes to `.grad`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchanged(model))
        stack.enter_context(gradients_aside(model))
        include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        stack.enter_context(torch._C._ForceDispatchKeyGuard(include, exclude))
        stack.callback(_setter_of_generators(model))
        stack.callback(_setter_of_autocast())
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(torch._C._set_fwd_grad_enabled, torch._C._is_fwd_grad_enabled())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(_leave_modes, *_modes())
        stack.callback(setattr, eager_transforms, "JVP_NESTING", eager_transforms.JVP_NESTING)
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C is heard at the end of what runs here: PyTorch's tracing calls Python from C++ that ends the process then.

    In other threads than the main one, which get no signals, and where Python does not handle them, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])


def python_generators(model: nn.Module) -> dict[str, Any]:
    """The states of the generators that are not PyTorch's: of Python, of NumPy, and objects of theirs that a model has.

    It has what its modules have as attributes, and what the globals beside their forwards are.
    """
    states: dict[str, Any] = {"random": random.getstate()}
    kinds: list[type] = [random.Random]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        name, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (name, keys.tobytes(), *rest)
        kinds += [numpy.random.Generator, numpy.random.RandomState]
    places = {id(place): place for module in model.modules() for place in _names_of(module)}
    for one in [value for place in places.values() for value in list(place.values())]:
        if issubclass(type(one), tuple(kinds)) and not isinstance(one, random.SystemRandom):
            state = one.getstate() if isinstance(one, random.Random) else pickle.dumps(_bits(one).state)
            states[f"{type(one).__name__} at {id(one):x}"] = _Own(one, state)
    return states


def _names_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes of a module, and the globals of its forward, unless they are PyTorch's."""
    own: dict[str, Any] = getattr(type(module).forward, "__globals__", {})
    return vars(module), {} if str(own.get("__name__", "")).split(".")[0] == "torch" else own


def drawn_since(before: dict[str, Any], model: nn.Module) -> str | None:
    """The first of these generators that goes on otherwise than it would have."""
    now = python_generators(model)
    return next((name for name, state in before.items() if name in now and now[name] != state), None)


@dataclass(frozen=True, slots=True)
class _Own:
    """A generator that somebody made; equal where it would go on alike."""

    generator: Any
    state: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and self.generator is other.generator and bool(self.state == other.state)


def _bits(generator: Any) -> Any:
    """NumPy's generator beneath."""
    return getattr(generator, "bit_generator", None) or generator._bit_generator


def set_python_generators(states: dict[str, Any]) -> None:
    """Put them into states that `python_generators` gave."""
    for own in (one for one in states.values() if isinstance(one, _Own)):
        if isinstance(own.generator, random.Random):
            own.generator.setstate(own.state)
        else:
            _bits(own.generator).state = pickle.loads(own.state)
    random.setstate(states["random"])
    if "numpy.random" in states:
        numpy = sys.modules["numpy"]
        name, keys, *rest = states["numpy.random"]
        numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def _setter_of_generators(model: nn.Module) -> Callable[[], None]:
    python, cpu = python_generators(model), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []

    def put_back() -> None:
        set_python_generators(python)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return put_back


def _setter_of_autocast() -> Callable[[], None]:
    known = [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _DEVICES]
    cache = torch.is_autocast_cache_enabled()

    def put_back() -> None:
        for name, enabled, dtype in known:
            torch.set_autocast_enabled(name, enabled)
            torch.set_autocast_dtype(name, dtype)
        torch.set_autocast_cache_enabled(cache)

    return put_back


def _modes() -> tuple[bool, int, int, int]:
    """Whether forward AD is on; how deep the process is in vmap and the like, in modes of dispatch and of functions."""
    return (
        forward_ad._current_level >= 0,
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
    )


def _leave_modes(dual: bool, layers: int, dispatch: int, function: int) -> None:
    """Leave those that were entered since."""
    if not dual:  # operations of a captured graph enter it beside Python's count, and there is one level at most
        forward_ad._current_level = -1
        with contextlib.suppress(RuntimeError):
            torch._C._enter_dual_level()
        torch._C._exit_dual_level(level=0)
    if torch._C._functorch.get_dynamic_layer_stack_depth() > layers:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(layers)
    while torch._C._len_torch_dispatch_stack() > dispatch:
        torch._C._pop_torch_dispatch_stack(None)
    while torch._C._len_torch_function_stack() > function:
        torch._C._pop_torch_function_stack()
