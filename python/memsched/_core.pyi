# Written by tools/stubs.py from the extension; do not edit.
# ruff: noqa: E501
"""
The C++ core of memsched. Import memsched instead; names here may change.
"""

from __future__ import annotations

import collections.abc
import os
import typing

import numpy
import numpy.typing
import pandas
import polars

__all__: list[str] = [
    "Chain",
    "ChainPlanner",
    "ChainPlans",
    "Device",
    "DynprogSolution",
    "FluidChain",
    "FluidSolution",
    "Graph",
    "Lifetimes",
    "RematPlan",
    "RematTable",
    "Schedule",
    "Timeline",
    "Unrolled",
    "annealed",
    "by_kind",
    "class_schedule",
    "compute_time",
    "cut_bound",
    "cut_flows",
    "dynprog",
    "feature_maps",
    "fixed_choices",
    "graph_bounds",
    "graph_min_memory",
    "graph_peak_memory",
    "hear",
    "least_budget",
    "least_memory",
    "least_memory_plan",
    "listen",
    "load",
    "modnn",
    "modnn_min_memory",
    "most_pebbles",
    "most_table_layers",
    "movable_tensors",
    "need_of_fastest",
    "offload_search",
    "offload_set_makespans",
    "offload_set_schedule",
    "op_count",
    "op_names",
    "op_seconds",
    "order",
    "order_bound",
    "order_peak",
    "order_residency",
    "order_schedule",
    "order_within",
    "pause_bound",
    "peak_of_runs",
    "place",
    "play_pebbles",
    "pooch",
    "prefix_makespans",
    "recompute_bound",
    "residency",
    "same_shape",
    "selective",
    "shrinks",
    "simulate_graph",
    "simulate_rounds",
    "stages_of_tensors",
    "steady_state",
    "survives_json",
    "swap_all",
    "tensor_bytes",
    "tensor_count",
    "tensor_names",
    "to_graph",
    "vdnn_classes",
    "vdnn_sync",
    "with_addresses",
    "with_control_edges",
    "without_host",
]
_Number = typing.SupportsFloat | typing.SupportsIndex
_Column = typing.Iterable[_Number | str]
_Flags = numpy.typing.NDArray[numpy.uint8]
_Seconds = numpy.typing.NDArray[numpy.float64]
_Bytes = numpy.typing.NDArray[numpy.int64]
_Document = dict[str, typing.Any]

class Chain:
    """A sequential model of n stages, as columns. Immutable.

    Seconds and bytes may also be texts with units, such as "2 ms" and "6MiB".

    Parameters
    ----------
    forward_time, backward_time : sequence of float, shape [n]
        Seconds of F_k and B_k (u_F, u_B).
    activation : sequence of int, shape [n + 1]
        Bytes of a^0 .. a^n: the network's input and each stage's output.
    gradient : sequence of int, shape [n + 1], optional
        Bytes of d^0 .. d^n, the gradients of the activations. Default: activation, but 0 for the input, which needs none.
    saved : sequence of int, shape [n], optional
        Bytes that F_k leaves for B_k, its output included. Default: activation[1:].
    forward_overhead, backward_overhead : sequence of int, shape [n], optional
        Bytes of scratch of a forward that saves, and of the backward. Default: 0.
    transient_overhead : sequence of int, shape [n], optional
        Bytes of scratch of a forward that saves nothing. Default: saved - activation[1:] + forward_overhead.
    names : sequence of str, shape [n], optional
    resident : int
        Bytes that never move (weights, gradients, optimiser state); they count against M everywhere.
    pieces : sequence of sequence of int, optional
        Per stage the sizes of the storages that make up saved - activation[1:], for chunk="storage".
    name, provenance : str and dict, optional

    Raises
    ------
    InvalidInputError
        Naming field, index and value: NaN, inf, negative, empty, mismatched lengths, saved < activation, overflow.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5]).n
    2
    >>> ms.Chain(["1 ms"], ["2 ms"], ["4MiB", "6MiB"], [0, "6MiB"]).activation.tolist()
    [4194304, 6291456]
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    @staticmethod
    def _columns(chain: Chain) -> dict[str, tuple[type, list[typing.Any]]]:
        """A row for each stage, after one for the input, as `Chain.from_frame` reads them.

        They hold all but the chain's name, provenance and pieces. `resident` stands in the row of the input.

        """

    @staticmethod
    def from_csv(
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        resident: _Number | str = 0,
        provenance: _Document | None = None,
    ) -> Chain:
        """Reads a CSV file: its first line names the columns, the next is the network's input, the rest are the stages.

        Columns are forward_time, backward_time and activation, and optionally name, gradient, saved, forward_overhead,
        transient_overhead, backward_overhead and resident. Cells are seconds and bytes, or texts such as 3 ms and 12MiB:

            name,forward_time,backward_time,activation
            image,,,4MiB
            conv,1 ms,2 ms,6MiB
        """

    @staticmethod
    def from_frame(
        frame: typing.Any, *, name: str | None = None, resident: _Number | str = 0, provenance: _Document | None = None
    ) -> Chain:
        """Reads a data frame of pandas or polars, or a dict of columns, as `from_csv` reads a file."""

    @staticmethod
    def from_json(source: _Document | str | os.PathLike[str]) -> Chain:
        """Reads the JSON form from a dict, a JSON text or the path of a file."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Chain:
        """Reads a file that `save` wrote."""

    def __eq__(self, other: object) -> bool: ...
    def __getstate__(self) -> _Document: ...
    def __init__(
        self,
        forward_time: _Column,
        backward_time: _Column,
        activation: _Column,
        gradient: _Column | None = None,
        saved: _Column | None = None,
        forward_overhead: _Column | None = None,
        transient_overhead: _Column | None = None,
        backward_overhead: _Column | None = None,
        names: typing.Iterable[str] | None = None,
        resident: _Number | str = 0,
        pieces: typing.Iterable[_Column] | None = None,
        name: str | None = None,
        provenance: _Document | None = None,
    ) -> None: ...
    def __len__(self) -> int:
        """Number of stages."""

    def __reduce__(self) -> tuple[typing.Any, tuple[type], typing.Any]: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, arg0: _Document) -> None: ...
    def __str__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON form to a file, which is replaced as a whole."""

    def to_json(self) -> _Document:
        """The JSON form as a dict; from_json reads it back equal."""

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas (memsched[sweep]); integers with missing values have type Int64."""

    def to_polars(self) -> polars.DataFrame:
        """The rows as a data frame of polars (memsched[polars])."""

    @property
    def activation(self) -> _Bytes:
        """Bytes, shape [n + 1]."""

    @property
    def backward_overhead(self) -> _Bytes:
        """Bytes, shape [n]."""

    @property
    def backward_time(self) -> _Seconds:
        """Seconds, shape [n]."""

    @property
    def forward_overhead(self) -> _Bytes:
        """Bytes, shape [n]."""

    @property
    def forward_time(self) -> _Seconds:
        """Seconds, shape [n]."""

    @property
    def gradient(self) -> _Bytes:
        """Bytes, shape [n + 1]."""

    @property
    def n(self) -> int:
        """Number of stages."""

    @property
    def name(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def pieces(self) -> list[list[int]] | None: ...
    @property
    def provenance(self) -> _Document | None: ...
    @property
    def resident(self) -> int:
        """Bytes that never move."""

    @property
    def saved(self) -> _Bytes:
        """Bytes, shape [n]."""

    @property
    def transient_overhead(self) -> _Bytes:
        """Bytes, shape [n]."""

class Graph:
    """One training step as ops and tensors, each tensor written once. Immutable.

    Seconds and bytes may also be texts with units, such as "2 ms" and "6MiB".

    Parameters
    ----------
    tensors : sequence of dict
        {"name", "size" (bytes), "role": "input" | "weight" | "activation" | "gradient" | "persistent"}. A persistent tensor
        exists from training step to training step, and schedules of the graph are repeated: docs/schedule.md.
    ops : sequence of dict, in a topological order
        {"name", "phase": "fwd" | "bwd", "reads", "writes", "choices": [{"alg", "time" (seconds), "workspace" (bytes)}]}, and
        optionally "kind", "layer", "once", "tape", "updates" (reads that it writes in place), "skip_workspace", "host_time"
        (seconds on the host, of an op that does nothing but update: it may run there).
    name : str
    batch : int
    resident : int
        Bytes that never move.

    Raises
    ------
    InvalidInputError
        Naming the op or tensor at fault.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    @staticmethod
    def from_json(source: _Document | str | os.PathLike[str]) -> Graph:
        """Reads the JSON form from a dict, a JSON text or the path of a file."""

    @staticmethod
    def from_networkx(
        digraph: typing.Any,
        *,
        name: str | None = None,
        batch: _Number | None = None,
        resident: _Number | str | None = None,
    ) -> Graph:
        """Makes a graph of a networkx.DiGraph, whose nodes are ops with `time` and `size`."""

    @staticmethod
    def from_onnx(
        source: typing.Any,
        *,
        device: str = "v100",
        dims: typing.Mapping[str, int] | None = None,
        times: typing.Mapping[str, typing.Any] | None = None,
        constants: typing.Iterable[str] = (),
        batch: _Number | None = None,
        name: str | None = None,
    ) -> Graph:
        """Makes the graph of a training step of an ONNX model, its backward by a stated rule."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Graph:
        """Reads a file that `save` wrote."""

    def __eq__(self, other: object) -> bool: ...
    def __getstate__(self) -> _Document: ...
    def __init__(
        self,
        tensors: typing.Iterable[_Document],
        ops: typing.Iterable[_Document],
        *,
        name: str = "graph",
        batch: _Number = 1,
        resident: _Number | str = 0,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, tuple[type], typing.Any]: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, arg0: _Document) -> None: ...
    def __str__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON form to a file, which is replaced as a whole."""

    def to_json(self) -> _Document:
        """The JSON form as a dict; from_json reads it back equal."""

    @property
    def batch(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def ops(self) -> list[_Document]:
        """Ops as dicts, as in the JSON form."""

    @property
    def persistent(self) -> tuple[str, ...]:
        """Names of the persistent tensors. Where there are some, schedules of the graph are repeated."""

    @property
    def resident(self) -> int:
        """Bytes that never move."""

    @property
    def tensors(self) -> list[_Document]:
        """Tensors as dicts, as in the JSON form."""

class Device:
    """Memory of the accelerator and its link to the host. Immutable.

    Parameters
    ----------
    memory : int or str
        Bytes, > 0; or a text such as "16GiB". So are the other quantities.
    bandwidth : float or str, optional
        Bytes per second, such as "12GB/s", in both directions; 0 means no link (the default), inf a free one.
    d2h, h2d : float or str, optional
        Bytes per second from device to host and back, instead of `bandwidth`.
    duplex : bool
        Whether both directions work at the same time; otherwise the link carries one transfer at a time.
    latency : float or str
        Seconds added to every transfer, such as "10us".
    host_memory : int or str, optional
        Bytes of host memory for offloaded tensors; None: unlimited.

    Examples
    --------
    >>> import memsched as ms
    >>> ms.Device("16GB", "12GB/s") == ms.Device(16e9, 12e9)
    True
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    @staticmethod
    def from_json(source: _Document | str | os.PathLike[str]) -> Device:
        """Reads the JSON form from a dict, a JSON text or the path of a file."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Device:
        """Reads a file that `save` wrote."""

    def __eq__(self, other: object) -> bool: ...
    def __getstate__(self) -> _Document: ...
    def __init__(
        self,
        memory: _Number | str,
        bandwidth: _Number | str | None = None,
        d2h: _Number | str | None = None,
        h2d: _Number | str | None = None,
        duplex: bool = False,
        latency: _Number | str = 0.0,
        host_memory: _Number | str | None = None,
        name: str | None = None,
    ) -> None: ...
    def __reduce__(self) -> tuple[typing.Any, tuple[type], typing.Any]: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, arg0: _Document) -> None: ...
    def __str__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON form to a file, which is replaced as a whole."""

    def to_json(self) -> _Document:
        """The JSON form as a dict; from_json reads it back equal."""

    @property
    def d2h(self) -> float:
        """Bytes per second, device to host."""

    @property
    def duplex(self) -> bool: ...
    @property
    def h2d(self) -> float:
        """Bytes per second, host to device."""

    @property
    def host_memory(self) -> int | None:
        """Bytes, or None."""

    @property
    def latency(self) -> float:
        """Seconds per transfer."""

    @property
    def memory(self) -> int:
        """Bytes."""

    @property
    def name(self) -> str | None: ...

class Schedule:
    """What happens to every tensor, as an ordered list of steps. Immutable.

    Parameters
    ----------
    steps : sequence of dict
        {"run": op}, {"offload": tensor}, {"prefetch": tensor}, {"free": tensor} or {"update": op}, on the host;
        docs/schedule.md has the options.
    budget : int or str
        Bytes, or a text such as "6GiB"; resident included.
    graph : str
        Name of the graph that it was made for.
    planner : dict, optional
        {"name": .., options}.
    chunk : None, int or "storage"
        How the chain was cut: see `to_graph`.
    rounds : list of [batch, times]
    memory : "fluid" or "contiguous"
    border : dict, optional
        Of persistent tensors, where they are before the first step and after the last: "device", "host" or "both".
        Default: "device".

    Raises
    ------
    ScheduleError
        With the index of the step to blame in `.step`.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    @staticmethod
    def from_json(source: _Document | str | os.PathLike[str]) -> Schedule:
        """Reads the JSON form from a dict, a JSON text or the path of a file."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Schedule:
        """Reads a file that `save` wrote."""

    def __eq__(self, other: object) -> bool: ...
    def __getstate__(self) -> _Document: ...
    def __init__(
        self,
        steps: typing.Iterable[_Document],
        *,
        budget: _Number,
        graph: str = "",
        planner: _Document | None = None,
        chunk: _Number | str | None = None,
        rounds: typing.Iterable[typing.Iterable[_Number]] | None = None,
        memory: str = "fluid",
        border: typing.Mapping[str, str] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple[typing.Any, tuple[type], typing.Any]: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, arg0: _Document) -> None: ...
    def __str__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the JSON form to a file, which is replaced as a whole."""

    def to_json(self) -> _Document:
        """The JSON form as a dict; from_json reads it back equal."""

    def with_budget(self, budget: _Number) -> Schedule:
        """The same steps with another budget (bytes, resident included)."""

    def with_rounds(self, rounds: typing.Iterable[typing.Iterable[_Number]]) -> Schedule:
        """The same steps with other rounds, a list of [batch, times]."""

    def with_steps(self, steps: typing.Iterable[_Document]) -> Schedule:
        """Other steps, as dicts, for the same graph, budget and rounds."""

    @property
    def border(self) -> dict[str, str]:
        """Where persistent tensors begin and end; a dict."""

    @property
    def budget(self) -> int:
        """Bytes, resident included."""

    @property
    def chunk(self) -> int | str | None: ...
    @property
    def graph(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def offloaded(self) -> tuple[typing.Any, ...]:
        """Names of the offloaded tensors, in the order of their first offload."""

    @property
    def planner(self) -> _Document: ...
    @property
    def recomputed(self) -> tuple[typing.Any, ...]:
        """Names of the ops that run more than once, in the order of their first repeat."""

    @property
    def rounds(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def steps(self) -> tuple[_Document, ...]:
        """The steps as dicts, as in the JSON form."""

class Timeline:
    """What happened when, as the simulator measured it. Immutable.

    Attributes
    ----------
    start, end : ndarray of float, one entry a step
        Seconds, of one round. A free has start == end: the moment its bytes came back.
    makespan : float
        Seconds, all rounds together.
    peak_memory : int
        Bytes, resident included.
    memory : (ndarray of float, ndarray of int)
        Times (seconds) and the bytes held from then on, resident included.
    blocks : tuple of six ndarrays, one entry a block of memory
        Tensor (its index in the graph; -1: a workspace), first step, the step from which on it is free, bytes, whether it
        is there from the beginning, address (-1: none). Empty where the timeline is that of a family, was read from a file,
        copied or pickled.
    bytes_out, bytes_in : int
        Bytes offloaded and prefetched, all rounds together.
    idle, recompute_time : float
        Seconds that the compute stream waits, and that it spends on repeated runs, all rounds together.
    """

    __hash__: typing.ClassVar[None]  # type: ignore[assignment]

    @staticmethod
    def from_json(document: typing.Any) -> Timeline:
        """Reads what to_json wrote."""

    def __eq__(self, other: object) -> bool: ...
    def __getstate__(self) -> _Document: ...
    def __reduce__(self) -> tuple[typing.Any, tuple[type], typing.Any]: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, arg0: _Document) -> None: ...
    def __str__(self) -> str: ...
    def _repr_html_(self) -> str: ...
    def to_json(self) -> _Document:
        """The timeline in its form within a memsched-result."""

    @property
    def _knows_blocks(self) -> bool:
        """Whether `blocks` are all."""

    @property
    def blocks(self) -> tuple[typing.Any, ...]:
        """(tensor, start, end, bytes, source, at): what is held from step to step, one entry a block. Not saved."""

    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def end(self) -> _Seconds:
        """Seconds, one entry per step."""

    @property
    def idle(self) -> float:
        """Seconds."""

    @property
    def makespan(self) -> float:
        """Seconds."""

    @property
    def memory(self) -> tuple[_Seconds, _Bytes]:
        """Times (seconds) and the bytes held from then on."""

    @property
    def peak_memory(self) -> int:
        """Bytes, resident included."""

    @property
    def recompute_time(self) -> float:
        """Seconds."""

    @property
    def start(self) -> _Seconds:
        """Seconds, one entry per step."""

class Lifetimes:
    def __init__(self, graph: Graph) -> None: ...
    @property
    def first_backward(self) -> list[int]: ...
    @property
    def last_forward(self) -> list[int]: ...
    @property
    def usage(self) -> list[int]: ...

class FluidChain:
    def __init__(
        self,
        forward: numpy.typing.ArrayLike,
        backward: numpy.typing.ArrayLike,
        activation: numpy.typing.ArrayLike,
        gradient: numpy.typing.ArrayLike,
        forward_overhead: numpy.typing.ArrayLike,
        backward_overhead: numpy.typing.ArrayLike,
        capacity: float,
    ) -> None: ...
    def makespan(self, offloaded: numpy.typing.ArrayLike) -> float: ...
    @property
    def min_capacity(self) -> float: ...

class DynprogSolution:
    @property
    def lower_bound(self) -> float: ...
    @property
    def makespan(self) -> float: ...
    @property
    def offloaded(self) -> _Flags: ...
    @property
    def optimal(self) -> bool: ...
    @property
    def states(self) -> int: ...

class FluidSolution:
    @property
    def lower_bound(self) -> float: ...
    @property
    def makespan(self) -> float: ...
    @property
    def offloaded(self) -> numpy.typing.NDArray[typing.Any]: ...
    @property
    def optimal(self) -> bool: ...
    @property
    def rounds(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def states(self) -> int: ...

class ChainPlanner:
    @staticmethod
    def dynprog(slots: int | None, max_rounds: int, gap: float, max_states: int, break_ties: bool) -> ChainPlanner: ...
    @staticmethod
    def greedy() -> ChainPlanner: ...

class ChainPlans:
    def __init__(self, chain: Chain, graph: Graph, cut: bool, compute: float) -> None: ...
    def choose(
        self,
        planner: ChainPlanner,
        device: Device,
        time_limit: float | None = None,
        progress: typing.Callable[[float], object] | None = None,
    ) -> tuple[numpy.typing.NDArray[numpy.uint8], FluidSolution | None]: ...
    def figures(
        self, planner: ChainPlanner, devices: collections.abc.Sequence[Device]
    ) -> list[tuple[float, float, int, float | None, int, int, float, int, float] | None]: ...
    def plan(
        self, tensors: numpy.typing.ArrayLike, device: Device, planner: _Document | None, chunk: _Number | str | None
    ) -> tuple[Schedule, Timeline, float]: ...
    def release_prefix(self, device: Device) -> numpy.typing.NDArray[numpy.uint8]: ...
    @property
    def fluid_least(self) -> int: ...

class RematPlan:
    @property
    def offloaded(self) -> numpy.typing.NDArray[typing.Any]: ...
    @property
    def ops(self) -> numpy.typing.NDArray[typing.Any]: ...
    @property
    def saved(self) -> numpy.typing.NDArray[typing.Any]: ...
    @property
    def skips(self) -> numpy.typing.NDArray[typing.Any]: ...
    @property
    def states(self) -> int: ...
    @property
    def time(self) -> float: ...

class RematTable:
    def __init__(
        self,
        chain: Chain,
        capacity: int,
        slots: int,
        threads: int,
        layers: int = 400,
        time_limit: float | None = None,
        progress: typing.Callable[[float], object] | None = None,
    ) -> None: ...
    def pofo(
        self,
        capacity: int,
        device: Device,
        exact: bool,
        beam: int,
        time_limit: float | None = None,
        progress: typing.Callable[[float], object] | None = None,
    ) -> RematPlan | None: ...
    def rotor(self, capacity: int) -> RematPlan | None: ...
    def time(self, first: int, last: int, free: int) -> float: ...
    @property
    def complete(self) -> bool: ...
    @property
    def layers(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def width(self) -> int: ...

class Unrolled:
    def __init__(
        self, graph: Graph, ops: numpy.typing.ArrayLike, skips: numpy.typing.ArrayLike, time_limit: float | None = None
    ) -> None: ...
    def rolled(self, graph: Graph, schedule: Schedule, time_limit: float | None = None) -> Schedule: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def tensors(self) -> numpy.typing.NDArray[typing.Any]: ...

def annealed(
    graph: Graph,
    device: Device,
    plan: Schedule,
    moves: int,
    seed: int,
    time_limit: float | None,
    planner: _Document | None,
    chunk: _Number | str | None = None,
    progress: typing.Callable[[float], object] | None = None,
) -> tuple[Schedule, int]: ...
def by_kind(
    graph: Graph, device: Device, workspace_limit: int, planner: _Document | None, time_limit: float | None = None
) -> Schedule | None: ...
def class_schedule(
    graph: Graph,
    device: Device,
    workspace_limit: int,
    classes: numpy.typing.ArrayLike,
    fetch: str = "eager",
    layers: int = 1,
    convolutions: bool = False,
    soft: bool = False,
    planner: _Document | None = {},
) -> Schedule | None: ...
def compute_time(graph: Graph) -> float: ...
def cut_bound(
    graph: Graph, device: Device, budget: int, time_limit: float | None = None
) -> tuple[float, int, float]: ...
def cut_flows(graph: Graph, op: int, price: float) -> tuple[float, list[tuple[int, int, float]]]: ...
def dynprog(
    chain: FluidChain,
    hash: bool = False,
    gap: float = 0.0,
    max_states: int = 40000000,
    time_limit: float | None = None,
    progress: typing.Callable[[float], object] | None = None,
) -> DynprogSolution: ...
def feature_maps(graph: Graph) -> list[int]: ...
def fixed_choices(graph: Graph, workspace_limit: int) -> Graph: ...
def graph_bounds(graph: Graph, device: Device, budget: int) -> tuple[float, float, float]: ...
def graph_min_memory(graph: Graph) -> int: ...
def graph_peak_memory(graph: Graph) -> int: ...
def hear() -> None: ...
def least_budget(graph: Graph, workspace_limit: int, classes: numpy.typing.ArrayLike) -> int: ...
def least_memory(chain: Chain) -> tuple[int, int]: ...
def least_memory_plan(
    chain: Chain, capacity: int, linked: bool, progress: typing.Callable[[float], object] | None = None
) -> RematPlan: ...
def listen(asked: typing.Any) -> None: ...
def load(
    start: collections.abc.Sequence[int], end: collections.abc.Sequence[int], bytes: collections.abc.Sequence[int]
) -> int: ...
def modnn(
    graph: Graph,
    device: Device,
    foresee: bool,
    planner: _Document | None,
    progress: typing.Callable[[float], object] | None = None,
    time_limit: float | None = None,
) -> tuple[Schedule, float]: ...
def modnn_min_memory(graph: Graph) -> int: ...
def movable_tensors(graph: Graph) -> list[int]: ...
def need_of_fastest(graph: Graph) -> int: ...
def offload_search(
    graph: Graph,
    device: Device,
    budget: int,
    starts: numpy.typing.ArrayLike,
    lower_bound: float,
    gap: float,
    seed: int,
    moves: int | None,
    time_limit: float | None,
    planner: _Document | None,
    chunk: _Number | str | None,
    progress: typing.Callable[[float], object] | None = None,
) -> tuple[Schedule, int]: ...
def offload_set_makespans(
    graph: Graph,
    device: Device,
    budget: int,
    rows: numpy.typing.ArrayLike,
    ahead: int | None = None,
    stall: bool = True,
    time_limit: float | None = None,
    progress: typing.Callable[[float], object] | None = None,
) -> list[float]: ...
def offload_set_schedule(
    graph: Graph,
    budget: int,
    travels: numpy.typing.ArrayLike,
    planner: _Document | None,
    chunk: _Number | str | None = None,
    ahead: int | None = None,
    workspace_limit: int | None = None,
) -> Schedule: ...
def op_count(graph: Graph) -> int: ...
def op_names(graph: Graph) -> list[str]: ...
def op_seconds(graph: Graph) -> numpy.typing.NDArray[numpy.float64]: ...
def order(
    graph: Graph,
    keep: collections.abc.Sequence[int],
    time_limit: float | None,
    progress: typing.Callable[[float], object] | None = None,
    ticks: int | None = None,
) -> tuple[list[int], int, int, int]: ...
def order_bound(
    graph: Graph,
    keep: collections.abc.Sequence[int],
    time_limit: float | None,
    progress: typing.Callable[[float], object] | None = None,
) -> int: ...
def order_peak(graph: Graph, keep: collections.abc.Sequence[int], order: collections.abc.Sequence[int]) -> int: ...
def order_residency(
    graph: Graph, order: collections.abc.Sequence[int], keep: collections.abc.Sequence[int], limit: int
) -> tuple[typing.Any, ...]: ...
def order_schedule(
    graph: Graph,
    order: collections.abc.Sequence[int],
    keep: collections.abc.Sequence[int],
    limit: int,
    budget: int,
    planner: _Document | None,
    addresses: collections.abc.Sequence[int] | None = None,
) -> Schedule: ...
def order_within(
    graph: Graph, keep: collections.abc.Sequence[int], limit: int, seed: int, time_limit: float | None
) -> list[int]: ...
def pause_bound(graph: Graph, device: Device, budget: int) -> tuple[float, int]: ...
def peak_of_runs(graph: Graph, ops: numpy.typing.ArrayLike, skips: numpy.typing.ArrayLike) -> int: ...
def place(
    start: collections.abc.Sequence[int],
    end: collections.abc.Sequence[int],
    bytes: collections.abc.Sequence[int],
    alignment: collections.abc.Sequence[int],
    offset: collections.abc.Sequence[int],
    capacity: int | None,
    search: bool,
    time_limit: float | None = None,
    progress: typing.Callable[[float], object] | None = None,
) -> tuple[list[int], int, int]: ...
def play_pebbles(
    graph: Graph, device: Device, most_states: int, time_limit: float | None, planner: _Document | None
) -> tuple[Schedule | None, bool, int]: ...
def pooch(
    graph: Graph,
    device: Device,
    workspace_limit: int,
    recompute: bool,
    tree: int,
    beam: int,
    fill: bool,
    threads: int,
    time_limit: float | None,
    more_seconds: float,
    seed: int,
    planner: _Document | None,
    progress: typing.Callable[[float], object] | None = None,
) -> tuple[Schedule | None, int]: ...
def prefix_makespans(
    graph: Graph,
    device: Device,
    workspace_limit: int,
    counts: collections.abc.Sequence[int],
    layers: collections.abc.Sequence[int],
    any: bool = False,
    time_limit: float | None = None,
) -> list[float]: ...
def recompute_bound(graph: Graph, device: Device, budget: int) -> float: ...
def residency(graph: Graph, schedule: Schedule) -> tuple[typing.Any, ...]: ...
def same_shape(one: Graph, other: Graph) -> bool: ...
def selective(
    graph: Graph,
    device: Device,
    moves: int,
    seed: int,
    reorder: bool,
    time_limit: float | None,
    planner: _Document | None,
    chunk: _Number | str | None = None,
    progress: typing.Callable[[float], object] | None = None,
) -> tuple[Schedule | None, int]: ...
def shrinks(small: Graph, large: Graph) -> str: ...
def simulate_graph(graph: Graph, schedule: Schedule, device: Device) -> Timeline: ...
def simulate_rounds(
    graphs: collections.abc.Mapping[int, Graph], batch: int, schedule: Schedule, device: Device
) -> Timeline: ...
def stages_of_tensors(graph: Graph) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.bool]]: ...
def steady_state(graph: Graph, schedule: Schedule, device: Device) -> tuple[float, list[float]]: ...
def survives_json(value: typing.Any) -> bool: ...
def swap_all(
    graph: Graph, device: Device, workspace_limit: int, scheduled: bool, planner: _Document | None
) -> Schedule | None: ...
def tensor_bytes(graph: Graph) -> numpy.typing.NDArray[numpy.int64]: ...
def tensor_count(graph: Graph) -> int: ...
def tensor_names(graph: Graph) -> list[str]: ...
def to_graph(chain: Chain, chunk: _Number | str | None = None) -> Graph: ...
def vdnn_classes(graph: Graph, convolutions: bool) -> list[int]: ...
def vdnn_sync(
    graph: Graph, device: Device, planner: _Document | None, stays: bool = False
) -> tuple[Schedule | None, bool]: ...
def with_addresses(graph: Graph, schedule: Schedule, addresses: collections.abc.Sequence[int]) -> Schedule: ...
def with_control_edges(graph: Graph) -> Graph: ...
def without_host(graph: Graph) -> Graph | None: ...

__version__: str
most_pebbles: int = 64
most_table_layers: int = 400
