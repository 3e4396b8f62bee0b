"""memsched: plans what happens to every activation of a training step, so that it fits a memory budget."""

import dataclasses
import importlib
import sys
from typing import TYPE_CHECKING

try:
    importlib.import_module("memsched._core")
except ImportError as error:
    if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while it was loaded
        raise error.__cause__ from None
    raise ImportError(
        f"memsched's compiled extension cannot be loaded ({error}); install memsched again: "
        "pip install --force-reinstall memsched, or pip install -e . in a checkout"
    ) from error

from memsched import planners, profiles
from memsched._core import Chain, Device, Graph, Schedule, Timeline
from memsched.arena.buffers import Buffer, read_buffers
from memsched.arena.order import Order, order
from memsched.arena.placement import Placement, validate_placement, write_placement
from memsched.errors import (
    ArgumentError,
    InfeasibleError,
    InvalidInputError,
    LimitError,
    MemschedError,
    ScheduleError,
    StoreError,
)
from memsched.planners import *  # noqa: F403
from memsched.planners.registry import min_memory, not_asked
from memsched.problems.bounds import Bounds, bounds
from memsched.problems.chain_updates import update_in_backward, whole_step
from memsched.problems.family import GraphFamily
from memsched.problems.host_updates import with_host_updates
from memsched.problems.problem import peak_memory, simulate, to_graph
from memsched.result import Result
from memsched.show.frames import chain_columns, placement_columns
from memsched.study.addresses import place, with_addresses
from memsched.study.auto import plan
from memsched.study.compare import compare
from memsched.study.comparison import Comparison
from memsched.study.evaluate import evaluate
from memsched.study.feature_maps import feature_map_classes
from memsched.study.frontier import Frontier, frontier
from memsched.study.sweep.api import plan_again, read_store, sweep
from memsched.study.sweep.table import Sweep, SweepProgress
from memsched.support.arguments import explain_dataclass, public
from memsched.support.values import immutable
from memsched.support.views import Shown, Tabular
from memsched.validation.plan import ValidationReport, validate

if TYPE_CHECKING:
    from memsched.readers.snapshot import read_snapshot
    from memsched.show.plots.addresses import plot_addresses
    from memsched.show.plots.classes import plot_classes
    from memsched.show.plots.frontier import plot_frontier
    from memsched.show.plots.plan import plot
    from memsched.show.plots.sweep import plot_sweep
    from memsched.show.report import write_report, write_sweep_report
    from memsched.show.trace import trace

__version__ = "0.2.0"

# The validator and the core know nothing of the package, so what they lack is added here.
sys.modules[validate.__module__].__dict__["validate"] = validate = public(validate)
_table: dict[str, object] = {"_repr_html_": Shown._repr_html_, "__str__": Shown.__str__}
_frames: dict[str, object] = {"to_pandas": Tabular.to_pandas, "to_polars": Tabular.to_polars}
for _class, _views in (
    (Chain, {**_table, **_frames, "_columns": chain_columns}),
    (Graph, _table),
    (Placement, {**_frames, "_columns": placement_columns}),
    (Schedule, _table),
    (Device, _table),
    (Timeline, _table),
    (ValidationReport, _table),
):
    for _name, _view in _views.items():
        setattr(_class, _name, _view)

__all__ = [
    "ArgumentError",
    "Bounds",
    "Buffer",
    "Chain",
    "Comparison",
    "Device",
    "Frontier",
    "Graph",
    "GraphFamily",
    "InfeasibleError",
    "InvalidInputError",
    "LimitError",
    "MemschedError",
    "Order",
    "Placement",
    "Result",
    "Schedule",
    "ScheduleError",
    "StoreError",
    "Sweep",
    "SweepProgress",
    "Timeline",
    "ValidationReport",
    "bounds",
    "compare",
    "evaluate",
    "feature_map_classes",
    "frontier",
    "min_memory",
    "not_asked",
    "order",
    "peak_memory",
    "place",
    "plan",
    "plan_again",
    "plot",
    "plot_addresses",
    "plot_classes",
    "plot_frontier",
    "plot_sweep",
    "profiles",
    "read_buffers",
    "read_snapshot",
    "read_store",
    "simulate",
    "sweep",
    "to_graph",
    "trace",
    "update_in_backward",
    "validate",
    "validate_placement",
    "whole_step",
    "with_addresses",
    "with_host_updates",
    "write_placement",
    "write_report",
    "write_sweep_report",
]
__all__ += planners.__all__

for _value in list(globals().values()):
    if isinstance(_value, type) and dataclasses.is_dataclass(_value):
        immutable(_value)
        explain_dataclass(_value)

_PLOTS = "memsched.show.plots"
_AT_FIRST_USE = {
    "plot": f"{_PLOTS}.plan",
    "plot_addresses": f"{_PLOTS}.addresses",
    "plot_classes": f"{_PLOTS}.classes",
    "plot_frontier": f"{_PLOTS}.frontier",
    "plot_sweep": f"{_PLOTS}.sweep",
    "read_snapshot": "memsched.readers.snapshot",
    "trace": "memsched.show.trace",
    "write_report": "memsched.show.report",
    "write_sweep_report": "memsched.show.report",
}
_OF_TORCH = (
    "algorithms",
    "fit",
    "on_host",
    "plan_step",
    "plans",
    "profile",
)  # of memsched.torch, which is not imported to ask


def __getattr__(name: str) -> object:
    """Import views of plans when first used, and `memsched.torch`, which alone needs PyTorch."""
    if name == "torch":
        return importlib.import_module("memsched.torch")
    if name in _AT_FIRST_USE:
        return getattr(importlib.import_module(_AT_FIRST_USE[name]), name)
    near = [one for one in __all__ if name.strip("_") and name in one.split("_")]  # "report" is "write_report"
    where = f"; did you mean {' or '.join(near)}?" if near else ""
    where = "; memsched.torch has it" if name in _OF_TORCH else where
    raise AttributeError(f"module 'memsched' has no attribute {name!r}{where}")


def __dir__() -> list[str]:
    return sorted({*__all__, "torch", *(name for name in globals() if name.startswith("__"))})
