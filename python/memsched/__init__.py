"""memsched: plans what happens to every activation of a training step, so that it fits a memory budget."""

import importlib

try:
    importlib.import_module("memsched._core")
except ImportError as error:
    raise ImportError(
        f"memsched's compiled extension cannot be loaded ({error}); install memsched again: "
        "pip install --force-reinstall memsched, or pip install -e . in a checkout"
    ) from error

from memsched import profiles
from memsched._core import Chain, Device, Graph, Schedule, Timeline, to_graph
from memsched.addresses import place, with_addresses
from memsched.bounds import Bounds, bounds
from memsched.buffers import Buffer, read_buffers
from memsched.classes import feature_map_classes
from memsched.compare import compare, plan
from memsched.errors import InfeasibleError, InvalidInputError, LimitError, MemschedError, ScheduleError, StoreError
from memsched.family import GraphFamily
from memsched.frontier import Frontier, frontier
from memsched.order import Order, order
from memsched.place import Placement, write_placement
from memsched.planners.autoswap import autoswap
from memsched.planners.dynprog import dynprog
from memsched.planners.greedy import greedy
from memsched.planners.modnn import modnn
from memsched.planners.offload import offload
from memsched.planners.olla import olla
from memsched.planners.pofo import pofo
from memsched.planners.pooch import pooch
from memsched.planners.registry import min_memory
from memsched.planners.rotor import rotor
from memsched.planners.superneurons import superneurons
from memsched.planners.swap_all import swap_all
from memsched.planners.swap_opt import swap_opt
from memsched.planners.tflms import tflms
from memsched.planners.vdnn import vdnn
from memsched.planners.vdnn_plus import vdnn_plus
from memsched.planners.vdnn_sync import vdnn_sync
from memsched.problem import peak_memory, simulate
from memsched.result import Result
from memsched.sweep.api import plan_again, read_store, sweep
from memsched.sweep.progress import SweepProgress
from memsched.sweep.table import Sweep
from memsched.validate import ValidationReport, validate
from memsched.validate_placement import validate_placement

__version__ = "0.1.0"

__all__ = [
    "Bounds",
    "Buffer",
    "Chain",
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
    "autoswap",
    "bounds",
    "compare",
    "dynprog",
    "feature_map_classes",
    "frontier",
    "greedy",
    "min_memory",
    "modnn",
    "offload",
    "olla",
    "order",
    "peak_memory",
    "place",
    "plan",
    "plan_again",
    "pofo",
    "pooch",
    "profiles",
    "read_buffers",
    "read_store",
    "rotor",
    "simulate",
    "superneurons",
    "swap_all",
    "swap_opt",
    "sweep",
    "tflms",
    "to_graph",
    "validate",
    "validate_placement",
    "vdnn",
    "vdnn_plus",
    "vdnn_sync",
    "with_addresses",
    "write_placement",
]


def __getattr__(name: str) -> object:
    """`memsched.torch` is imported when it is first used: it needs PyTorch, which nothing else here does."""
    if name == "torch":
        return importlib.import_module("memsched.torch")
    raise AttributeError(f"module 'memsched' has no attribute {name!r}")
