"""What Dynamo does not capture as it was compiled, and why: a warning says so."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from memsched.torch.compiled.private import (
    Unsupported,
    any_torch_dispatch_mode_on_stack,
    callback_handler,
    counters,
    graph_break_reasons,
)
from memsched.torch.compiled.unplanned import plain_graphs, warn_unplanned
from memsched.torch.nests import tensors_of

if TYPE_CHECKING:
    from memsched.torch.compiled.unit import Unit


def graph_breaks() -> Counter[str]:
    """Why Dynamo has broken graphs so far, each reason in a line, and how often."""
    found: Counter[str] = Counter()
    for said, times in counters["graph_break"].items():
        found[_explained(said)] += times
    return found


def break_here() -> str | None:
    """Where and why PyTorch breaks the graph that it compiles now; None: it does not."""
    reasons = (one.f_locals["reason"] for one in _frames() if one.f_code.co_name == "compile_subgraph")
    return next((_told(one) for one in reasons if one.graph_break), None)


def over_budget_at_first(counted: bool, units: Sequence[Unit]) -> str:
    """What to say of the first step of several graphs, some of which PyTorch may have broken."""
    why = next((f". PyTorch {one.broken}; TORCH_LOGS=graph_breaks tells more" for one in units if one.broken), "")
    return (
        f"the last step {'exceeded' if counted else 'may have exceeded'} the budget, as its graphs were planned one by "
        f"one when they first ran together; one plan spans them from now on{why}"
    )


def _explained(reason: object) -> str:
    lines = [line.strip() for line in str(reason).splitlines()]
    told = next((line for line in lines if line.startswith("Explanation: ")), lines[0] if lines else "")
    return told.removeprefix("Explanation: ").rstrip(".")


def _told(broken: Any) -> str:
    return f"breaks the graph at {_place(broken.user_stack)}: {_explained(broken.reason)}"


def _warn(said: str) -> None:
    with contextlib.suppress(UserWarning):  # as an error, it would leave PyTorch in the middle
        warn_unplanned(f"{said}; TORCH_LOGS=graph_breaks tells more")


@dataclass(frozen=True)
class _Hearing:
    """Told of the start and the end of each compilation, it looks at the call that it is for, if it is for a backend.

    A frame below has what is compiled. Dynamo gives up a function that it would have to leave within a loop, and then
    asks no backend: while it tells of the end, the error is being handled.
    """

    backend: Callable[..., Any]

    def __call__(self, _: object) -> None:
        error = sys.exc_info()[1]
        raised = {one for one, _ in traceback.walk_tb(error.__traceback__)} if error is not None else set()
        compiling = _compiling(self.backend)
        if compiling is None:
            return
        look, where = compiling
        if isinstance(error, Unsupported) and any(
            one in raised for one in _frames()
        ):  # not one that the caller handles
            look.lost.append(f"{where} but functions that it calls, if these can be captured: {_explained(error)}")
        else:
            known = {id(one) for one in (*look.before, *look.breaks)}
            look.breaks += [one for one in graph_break_reasons[-1:] if id(one) not in known]


class _Limit(logging.Handler):
    """Told by Dynamo's log that it compiles a function no more, which then runs as it is where it has no graph."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        super().__init__(logging.WARNING)
        self.backend = backend

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        compiling = _compiling(self.backend) if "hit config." in str(record.msg) else None
        if compiling is not None:
            look, where = compiling
            told = "{} ({})".format(*record.args[:2]) if isinstance(record.args, tuple) else "a limit"
            look.lost.append(f"{where} from now on, but graphs that are there: torch._dynamo.config.{told} is reached")


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _compiling(backend: Callable[..., Any]) -> tuple[_Look, str] | None:
    """The look at the call for which PyTorch compiles for a backend now, and what it compiles.

    None where it is for another one, or errors are the caller's.
    """
    compiled: FrameType | None = None
    call: FrameType | None = None  # of what torch.compile returned
    for frame in _frames():
        name = frame.f_code.co_name
        if name == "_compile" and compiled is None:
            compiler = getattr(frame.f_locals.get("compiler_fn"), "compiler_fn", None)
            compiled = frame if compiler is backend else None
        elif name == "compile_wrapper" and frame.f_globals["__name__"] == "torch._dynamo.eval_frame":
            call = frame
    if compiled is None or call is None or compiled.f_locals.get("one_graph"):
        return None
    code, look = compiled.f_locals["code"], _Look.at(call)
    where = f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{code.co_firstlineno})"
    return None if look is None else (look, where)


class _Look:
    """At the end of a call, whether operations ran in it that no graph has and that autograd keeps something for.

    PyTorch does not capture its own modules by themselves, nor some operations and what hooks or TorchScript are in
    the way of. It calls this as one of the hooks that a call ends with, which it has in a list.
    """

    def __init__(self, call: FrameType) -> None:
        self._call: FrameType | None = call
        self._first: int = torch.autograd._get_sequence_nr()  # of the nodes that come
        self._plain = plain_graphs()
        self.before = graph_break_reasons[-1:]
        self.breaks: list[Any] = []  # of graphs, in this call
        self.lost: list[str] = []  # functions that PyTorch gave up, and why; it does not try them again

    @classmethod
    def at(cls, call: FrameType) -> _Look | None:
        """The look at this call when it ends."""
        hooks = call.f_locals.get("cleanups")
        if not isinstance(hooks, list):
            return None
        if not any(isinstance(one, cls) for one in hooks):
            hooks.append(cls(call))
        first: list[Any] = getattr(call.f_locals.get("self"), "enter_exit_hooks", [])  # with which each call begins
        if not any(isinstance(one, _UnderAMode) for one in first):
            first.append(_UnderAMode())
        return next(one for one in hooks if isinstance(one, cls))

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is None or plain_graphs() > self._plain:  # whose operations are told
            return
        found, trained = list[str](), False
        with contextlib.suppress(Exception):  # of odd results, which are the caller's: it is an error of no call
            results, given = (tensors_of([call.f_locals.get(name) for name in names]) for names in _ENDS)
            trained = any(one.requires_grad for one in results)
            found = outside_of_graphs(results, self._first, given)
        breaks = {f"it {_told(one)}": 0 for one in self.breaks}
        why = [*(f"it captures nothing of {one}" for one in self.lost), *breaks][:_NAMED]
        if found:
            names = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
            _warn("; ".join([f"PyTorch captures no graph that has {names}", *why]))
        elif self.lost and not trained:  # once they need gradients, nobody hears of it
            _warn(f"PyTorch captures nothing of {self.lost[0]}")


class _UnderAMode:
    """At the start of each call but the first, whether a mode sees all operations: PyTorch then runs none compiled."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self) -> Callable[[], None]:
        if any_torch_dispatch_mode_on_stack() and not self._told:
            self._told = True
            with contextlib.suppress(UserWarning):
                warn_unplanned(
                    "under a TorchDispatchMode, such as FlopCounterMode, PyTorch runs nothing that it compiled: a "
                    "model was called without its plan"
                )
        return lambda: None


_ENDS = ("result",), ("args", "kwargs")  # of a call, by PyTorch's names
_NAMED = 3  # operations, or breaks
_CAPTURED = ("CapturedBackward", "CompiledFunctionBackward")


def outside_of_graphs(results: Sequence[torch.Tensor], first: int = 0, given: Sequence[torch.Tensor] = ()) -> list[str]:
    """The operations, from that node of autograd on and after what is given, that made results, keep tensors for their
    backward, and are in no captured graph.
    """
    names: dict[str, None] = {}
    seen: set[Any] = {None, *(one.grad_fn for one in given)}
    left = [one.grad_fn for one in results]
    while left:
        node = left.pop()
        if node in seen or not first <= node._sequence_nr() < _LEAF:
            continue
        seen.add(node)
        left += [one for one, _ in node.next_functions]
        if node.name() not in _CAPTURED and _keeps(node):
            names[node.name().removesuffix("0").removesuffix("Backward")] = None
    return list(names)[::-1]


_LEAF = 2**63  # the nodes of leaves have larger numbers


def _keeps(node: Any) -> bool:
    """Whether it keeps a tensor for its backward, as far as can be seen without unpacking any."""
    around = [node, *(one for one, _ in node.next_functions if one is not None)]  # what it gives and is given
    counts = any(_counts(one) for each in around for one in each._input_metadata)
    return counts and any(getattr(node, name) for name in dir(node) if name.startswith("_raw_saved_"))


def _counts(like: Any) -> bool:
    try:
        return math.prod(like.shape) > 1  # a GradScaler's factor is one
    except (RuntimeError, ValueError):  # of a nested tensor
        return True


def _place(stack: Sequence[Any]) -> str:
    """The innermost line of a stack that is not PyTorch's."""
    own = [one for one in stack if not Path(one.filename).is_relative_to(_TORCH)] or stack
    return f"{own[-1].filename}:{own[-1].lineno}"


_TORCH = Path(torch.__file__).parent


class _Lasting(list[Callable[..., Any]]):
    """Callbacks, of which ours stay when torch._dynamo.reset() clears them."""

    def clear(self) -> None:
        self[:] = [one for one in self if isinstance(one, _Hearing)]


def hear_of_uncaptured(backend: Callable[..., Any]) -> None:
    """From now on, warn of what PyTorch does not capture in calls of what is compiled with this backend."""
    for name in ("start_callbacks", "end_callbacks"):
        if (hearing := _Hearing(backend)) not in getattr(callback_handler, name):
            setattr(callback_handler, name, _Lasting([*getattr(callback_handler, name), hearing]))
    log = logging.getLogger("torch._dynamo.convert_frame")
    if not any(isinstance(one, _Limit) and one.backend is backend for one in log.handlers):
        log.addHandler(_Limit(backend))


_WARNED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def warn_of_containers() -> None:
    """Warn of a module of PyTorch's own, such as a Sequential, that is compiled in place: PyTorch captures parts of it.

    It is among those that call what is being compiled.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        one: Any = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
        of_torch = isinstance(one, torch.nn.Module) and type(one).forward.__module__.startswith("torch.nn.modules.")
        if of_torch and one._compiled_call_impl is not None and one not in _WARNED:
            _WARNED.add(one)
            kind = type(one).__name__
            warn_unplanned(
                f"PyTorch gives .compile() of its own class {kind} no effect, and captures modules within it one by "
                'one; write torch.compile(model, backend="memsched", options=...), which captures all of it'
            )
        frame = frame.f_back
