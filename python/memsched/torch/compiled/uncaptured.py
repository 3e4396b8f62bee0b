"""What Dynamo does not capture as it was compiled, and why: a warning says so."""

from __future__ import annotations

import contextlib
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from memsched.torch.compiled.private import Unsupported, callback_handler, counters, graph_break_reasons
from memsched.torch.compiled.unplanned import warn_unplanned


def graph_breaks() -> Counter[str]:
    """Why Dynamo has broken graphs so far, each reason in a line, and how often."""
    found: Counter[str] = Counter()
    for said, times in counters["graph_break"].items():
        found[_explained(said)] += times
    return found


def over_budget_at_first() -> str:
    """What to say of the first step of several graphs, and why there are several."""
    reasons = [*graph_breaks()][:1]
    why = "".join(f" (PyTorch breaks it: {one})" for one in reasons)
    return (
        "the last step exceeded the budget, as its graphs were planned one by one when they first ran together; one "
        "plan spans them from now on. The model is captured in several graphs"
        f"{why}; TORCH_LOGS=graph_breaks tells where"
    )


def _explained(reason: object) -> str:
    lines = [line.strip() for line in str(reason).splitlines()]
    told = next((line for line in lines if line.startswith("Explanation: ")), lines[0] if lines else "")
    return told.removeprefix("Explanation: ").rstrip(".")


def _warn(said: str, reason: object) -> None:
    with contextlib.suppress(UserWarning):  # as an error, it would leave PyTorch in the middle
        warn_unplanned(f"{said}{_explained(reason)}; TORCH_LOGS=graph_breaks tells more")


@dataclass(frozen=True)
class _Hearing:
    """Told of the end of each compilation, it warns if that captured nothing, and was for this backend.

    Dynamo gives up a function that it would have to leave within a loop, and then asks no backend. While the callbacks
    run, the error is being handled, and a frame below has what was compiled. Where it leaves a module of PyTorch's own,
    such as a Sequential, it captures none of those in it by themselves.
    """

    backend: Callable[..., Any]

    def __call__(self, _: object) -> None:
        error, frame = sys.exc_info()[1], sys._getframe()
        if not isinstance(error, Unsupported):
            self._hear_of_breaks(frame)
            return
        raised = {one for one, _ in traceback.walk_tb(error.__traceback__)}
        here = False  # whether it was raised here, and is not one that whoever called handles
        while (below := frame.f_back) is not None:
            frame = below
            here = here or frame in raised
            known = frame.f_locals if here and frame.f_code.co_name == "_compile" else {}
            if known.get("one_graph"):  # the error is the caller's
                return
            if getattr(known.get("compiler_fn"), "compiler_fn", None) is self.backend:
                code = known["code"]
                where = f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{code.co_firstlineno})"
                said = f"PyTorch captures nothing of {where} but functions that it calls, if these can be captured: "
                _warn(said, error)
                return

    def _hear_of_breaks(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name != "_compile":
            frame = frame.f_back
        if frame is None or getattr(frame.f_locals.get("compiler_fn"), "compiler_fn", None) is not self.backend:
            return
        for broken in graph_break_reasons[-1:]:
            stack = broken.user_stack
            own = [one.filename for k, one in enumerate(stack[:-1]) if _of_torch(one.filename, outer=k == 0)]
            if own and not any(broken is one for one in _TOLD):
                _TOLD[:] = [broken]
                said = (
                    f"PyTorch breaks the graph at {stack[-1].filename}:{stack[-1].lineno}, within a module of its own "
                    f"({Path(own[-1]).name}), and does not capture such modules by themselves, so those of PyTorch "
                    "that are in it have no plan: "
                )
                _warn(said, broken.reason)


_TOLD: list[object] = []  # the last break that a warning has named


def _of_torch(filename: str, *, outer: bool) -> bool:
    """Whether the frame is of a module of PyTorch's own, of which Dynamo captures nothing once it has left it.

    outer: it is what is compiled. Then that is so if it goes on in a loop, as containers do.
    """
    path = Path(filename)
    inside = path.parent.parts[-3:] == ("torch", "nn", "modules") and path.name != "module.py"
    return inside and (not outer or path.name == "container.py")


class _Lasting(list[Callable[..., Any]]):
    """The callbacks, of which ours stay when torch._dynamo.reset() clears them."""

    def clear(self) -> None:
        self[:] = [one for one in self if isinstance(one, _Hearing)]


def hear_of_uncaptured(backend: Callable[..., Any]) -> None:
    """From now on, warn where PyTorch captures nothing of a function that is compiled with this backend."""
    if (hearing := _Hearing(backend)) not in callback_handler.end_callbacks:
        callback_handler.end_callbacks = _Lasting([*callback_handler.end_callbacks, hearing])


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
