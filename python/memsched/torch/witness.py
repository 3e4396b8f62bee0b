"""What a captured list of operations would lose of a forward without a word, by name.

A capture sees operations. It does not see that a custom function has a backward of its own, that a hook waits for the
gradient of an activation, that a hook of a module only looks, or that an attribute is set for others to read.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from memsched.torch.premises import Premises
from memsched.torch.process_state import drawn_since, python_generators

_HOOKS = {
    "_forward_hooks": "a forward hook",
    "_forward_pre_hooks": "a forward pre-hook",
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward pre-hook",
}
_ON_TENSORS = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
_OF_GENERATORS = ("manual_seed", "seed", "initial_seed", "set_rng_state")
_HARMLESS = (save_on_cpu, checkpoint._checkpoint_hook)  # what they save comes back as it was


def hooks_lost(model: nn.Module) -> str | None:
    """The first hook of a submodule, or of all modules, in words. Those of the model itself run around any forward."""
    everywhere = vars(torch.nn.modules.module)
    for name, what in _HOOKS.items():
        if everywhere.get(f"_global{name}"):
            return f"{what} on all modules ({_called(everywhere[f'_global{name}'])})"
    for path, module in model.named_modules():
        for name, what in _HOOKS.items():
            if path and vars(module).get(name):
                return f"{what} on {path!r} ({_called(vars(module)[name])})"
    return None


def _called(hooks: dict[Any, Any]) -> str:
    hook = next(iter(hooks.values()))
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


class _Writes(TorchFunctionMode):
    """Notices whether what runs under it writes to some tensors."""

    def __init__(self, state: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._state, self._versions = state, [tensor._version for tensor in state]
        self._statistics = False  # those of normalisations, whose versions tensors without data do not count

    def found(self) -> bool:
        return self._statistics or self._versions != [tensor._version for tensor in self._state]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.batch_norm, torch.instance_norm):
            self._statistics |= args[3] is not None and bool(args[5])
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def seeing(owner: Any, name: str, note: Callable[[], None]) -> Iterator[None]:
    """Notes calls of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    def seen(*args: Any, **kwargs: Any) -> Any:
        note()
        return function(*args, **kwargs)

    own = name in vars(owner)
    setattr(owner, name, seen)
    try:
        yield
    finally:
        setattr(owner, name, function) if own else delattr(owner, name)


@contextlib.contextmanager
def seeing_seeds(note: Callable[[str], None]) -> Iterator[None]:
    """Notes, in words, where PyTorch's generator is seeded or set: a list of operations does not do it again."""
    with contextlib.ExitStack() as stack:
        for owner, name in itertools.product((torch, torch.random), _OF_GENERATORS):
            what = f"torch.{name}() in its forward: other random numbers would be drawn"
            stack.enter_context(seeing(owner, name, functools.partial(note, what)))
        yield


class Witness:
    """Watches one forward of a model.

    Attributes
    ----------
    lost : str or None
        The first thing that a capture of this forward would lose, in words.
    draws_again : bool
        Whether a part of it under `torch.utils.checkpoint` would draw other random numbers when it runs once more.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.lost: str | None = None
        self.draws_again = False
        self._premises: Premises | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The forward runs meanwhile, without the hooks of the model itself, which run around any forward."""
        self.lost, self.draws_again = None, False
        generators = python_generators(self._model)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._own_hooks_aside())
            for name in _ON_TENSORS:
                stack.enter_context(self._seeing(torch.Tensor, name, "Tensor"))
            for owner, name in ((torch.autograd.graph, "register_multi_grad_hook"), (torch.autograd, "grad")):
                stack.enter_context(self._seeing(owner, name, owner.__name__))
            stack.enter_context(seeing_seeds(self._note))
            stack.enter_context(self._seeing_packers())
            stack.enter_context(self._seeing_checkpoints())
            yield
        drawn = drawn_since(generators, self._model)
        if drawn is not None:
            self._note(f"the random numbers that its forward draws from Python's {drawn}")

    def _seeing(self, owner: Any, name: str, place: str) -> contextlib.AbstractContextManager[None]:
        return seeing(owner, name, functools.partial(self._note, f"{place}.{name}() in its forward"))

    def _note(self, what: str) -> None:
        self.lost = self.lost or what

    @contextlib.contextmanager
    def _own_hooks_aside(self) -> Iterator[None]:
        attributes = vars(self._model)
        before = {name: held for name, held in attributes.items() if "_hooks" in name and isinstance(held, dict)}
        forward = attributes.pop("forward", None)  # that of a plan
        attributes.update({name: OrderedDict() for name in before})
        self._model.register_forward_pre_hook(self._begin)
        self._model.register_forward_hook(self._look, with_kwargs=True)
        try:
            yield
        finally:
            attributes.update(before)
            if forward is not None:
                attributes["forward"] = forward

    @contextlib.contextmanager
    def _seeing_packers(self) -> Iterator[None]:
        enter = saved_tensors_hooks.__enter__

        def seen(hooks: saved_tensors_hooks) -> None:
            if not isinstance(hooks, _HARMLESS):
                self._note(f"{type(hooks).__name__} in its forward: what is saved may come back changed")
            enter(hooks)

        saved_tensors_hooks.__enter__ = seen
        try:
            yield
        finally:
            saved_tensors_hooks.__enter__ = enter

    @contextlib.contextmanager
    def _seeing_checkpoints(self) -> Iterator[None]:
        """Notes what a part under `checkpoint` would do twice: in a plain step it runs again in the backward."""
        begin, parts = checkpoint._checkpoint_without_reentrant_generator, checkpoint._checkpoint_hook
        inside: list[_Writes] = []

        def begun(function: Callable[..., Any], preserve_rng_state: bool = True, *args: Any, **kwargs: Any) -> Any:
            self.draws_again |= not preserve_rng_state
            return begin(function, preserve_rng_state, *args, **kwargs)

        def enter(part: saved_tensors_hooks) -> None:
            saved_tensors_hooks.__enter__(part)
            if inside:  # torch.export would record all that follows as if it were under torch.no_grad()
                self._note("the gradients of what runs under torch.utils.checkpoint within torch.utils.checkpoint")
            inside.append(_Writes((*self._model.buffers(), *self._model.parameters())))
            inside[-1].__enter__()

        def leave(part: saved_tensors_hooks, *error: Any) -> None:
            writes = inside.pop()
            writes.__exit__(*error)
            saved_tensors_hooks.__exit__(part, *error)
            if writes.found():
                self._note("that a part under torch.utils.checkpoint writes to a buffer once more in the backward")

        checkpoint._checkpoint_without_reentrant_generator = begun
        parts.__enter__, parts.__exit__ = enter, leave
        try:
            yield
        finally:
            checkpoint._checkpoint_without_reentrant_generator = begin
            del parts.__enter__, parts.__exit__

    def _begin(self, model: nn.Module, args: Any) -> None:
        self._premises = Premises(model)  # of the parameters without data that stand in for its own

    def _look(self, model: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """What the forward has changed, and autograd's graph of its result."""
        changed = self._premises.changed() if self._premises is not None else None
        if changed is not None:
            self._note(f"what its forward sets, and others may read: {changed}")
        known = {id(tensor) for tensor in (*model.parameters(), *pytree.tree_leaves((args, kwargs)))}
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        waiting = [leaf.grad_fn for leaf in leaves if leaf.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                cls = node._forward_cls
                advice = "; use_reentrant=False keeps it" if cls is checkpoint.CheckpointFunction else ""
                self._note(f"the backward of the autograd.Function {cls.__module__}.{cls.__qualname__}{advice}")
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in known:
                self._note(f"the gradient of a {tuple(variable.shape)} tensor that is no parameter of it")
            following = [after for after, _ in node.next_functions if after is not None and after not in seen]
            seen.update(following)
            waiting += following
