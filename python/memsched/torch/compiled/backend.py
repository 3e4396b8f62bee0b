"""The backend `memsched` of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from memsched.torch.capture import CaptureError
from memsched.torch.compiled.group import group_of
from memsched.torch.compiled.joint import check_casts
from memsched.torch.compiled.options import read_options
from memsched.torch.compiled.private import Boxed, DynamoSignal, compile_joint, python_code, under_autocast
from memsched.torch.compiled.unit import Unit
from memsched.torch.compiled.unplanned import Guarded, unplanned


def memsched(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a captured graph so that its training step fits a budget.

    torch.compile finds it by its name:

    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    >>> step = torch.compile(model, backend="memsched", options={"budget": "50%"})
    >>> step(torch.randn(256, 64)).sum().backward()

    What cannot be captured runs without a plan, and a warning says why.

    Parameters
    ----------
    module, inputs
        As Dynamo gives them to a backend.
    options : dict
        See `Options`.
    """
    asked = read_options(options)
    group = group_of(asked)
    casts = under_autocast(module)
    units: list[Unit] = []
    prepare: Callable[[fx.GraphModule], None] | None = None
    inference: Callable[[fx.GraphModule], Boxed] = python_code
    decompositions: Mapping[Any, Callable[..., Any]] | None = None
    if asked.mode == "inductor":
        from memsched.torch.compiled import inductor  # which takes seconds to import

        prepare, inference, decompositions = inductor.prepare, inductor.inference_code, inductor.decompositions()

    def partition(joint: fx.GraphModule, results: int, static: Sequence[int]) -> tuple[fx.GraphModule, fx.GraphModule]:
        if casts:
            check_casts(joint)
        if prepare is not None:
            prepare(joint)
        unit = Unit(joint, results, static, group)
        units.append(unit)
        group.units.add(unit)
        example = unit.example()
        return example.forward, example.backward

    try:
        planned = compile_joint(
            module,
            inputs,
            partition=partition,
            forward=lambda: units[0].forward,
            backward=lambda: units[0].backward,
            inference=inference,
            decompositions=decompositions,
        )
    except DynamoSignal:
        raise
    except (CaptureError, AssertionError, NotImplementedError, RuntimeError) as error:  # of AOTAutograd, too
        return unplanned(module, error)
    return Guarded(module, planned)
