"""GPUs and links that plans are predicted for when they are not at hand: what their vendors say of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from memsched.errors import InvalidInputError

FLOPS_SHARE = 0.6
"""The share of the peak of arithmetic that a kernel is taken to reach. An assumption of the model, not measured."""

BANDWIDTH_SHARE = 0.75
"""The share of the peak memory bandwidth that a kernel is taken to reach. An assumption of the model, not measured."""

LAUNCH_SECONDS = 4e-6
"""What the start of one kernel costs in the roofline model, on every machine. An assumption, not from a data sheet."""


@dataclass(frozen=True, slots=True)
class Link:
    """The way between the memory of a GPU and the memory of its host."""

    name: str
    bandwidth: float
    """Bytes per second one way that large copies from and to pinned memory get, below the peak of the wires."""
    duplex: bool
    """Whether both directions run at full speed at once. False in `LINKS`, whose sources have one direction alone."""
    source: str  # where the bandwidth comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A GPU as its vendor's data sheet describes it: peaks, dense (no sparsity), that no program reaches."""

    name: str
    memory: int
    """Bytes: the data sheet's GB as powers of 1000. Drivers report a little more, and keep a little for themselves."""
    memory_bandwidth: float  # bytes per second, the peak
    float32: float  # operations per second outside the tensor cores
    tf32: float | None
    """Operations per second of the tensor cores, sums in float32; None where the chip has none for that type."""
    float16: float | None
    bfloat16: float | None
    capability: tuple[int, int]  # CUDA's: which attention kernels torch chooses depends on it
    link: str  # name of the link to the host that comes with it
    source: str  # the documents that the figures are from
    launch: float = LAUNCH_SECONDS  # seconds that the start of a kernel costs

    def seconds(self, flops: int, moved: int, dtype: str, convolution: bool) -> float:
        """What a kernel takes by the roofline model: the longer of arithmetic and memory traffic, and the launch.

        float32 counts at the plain float32 rate, but in convolutions at the TF32 rate where the chip has one: the
        defaults of PyTorch. Types for which the chip has no tensor cores, float64 too, count at the float32 rate.
        """
        rates = {"float16": self.float16, "bfloat16": self.bfloat16, "float32": self.tf32 if convolution else None}
        peak = rates.get(dtype) or self.float32
        return max(flops / (FLOPS_SHARE * peak), moved / (BANDWIDTH_SHARE * self.memory_bandwidth)) + self.launch


_RATES = ("memory_bandwidth", "float32", "tf32", "float16", "bfloat16")


def _rows(table: str) -> Iterator[dict[str, str]]:
    text = (resources.files("memsched.problems") / f"{table}.csv").read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _machine(row: dict[str, str]) -> Machine:
    major, minor = row["capability"].split(".")
    texts: dict[str, Any] = {name: row[name] for name in ("name", "link", "source")}
    rates: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in _RATES}
    return Machine(memory=int(float(row["memory"])), capability=(int(major), int(minor)), **texts, **rates)


MACHINES: Mapping[str, Machine] = MappingProxyType({row["name"]: _machine(row) for row in _rows("machines")})
"""By name: V100 PCIe 16 GB, A100 SXM 80 GB, H100 SXM, H200 SXM, RTX 3090, RTX 4090, L4, T4 and K40m, all NVIDIA's."""

LINKS: Mapping[str, Link] = MappingProxyType(
    {row["name"]: Link(row["name"], float(row["bandwidth"]), False, row["source"]) for row in _rows("links")}
)
"""The links by name. "nvlink" is NVLink 2 to the host, which only POWER9 machines have, not the links between GPUs."""

DEFAULT_LINK = LINKS["pcie3"]
"""The link of problems that know none, where one is needed and none is given."""

DEFAULT_LINK_FROM = "PCIe 3.0 x16, as measured in the Euro-Par 2020 paper"


def machine(text: str) -> tuple[Machine, Link]:
    """A machine and its link to the host, from a text such as "v100" or "h100:pcie4".

    Parameters
    ----------
    text : str
        The name of a machine, then, if another link than its usual one is meant, a colon and the name of a link.
        Upper and lower case are the same.

    Returns
    -------
    Machine, Link

    Raises
    ------
    InvalidInputError
        No machine or no link has this name; the message says which there are.

    Examples
    --------
    >>> from memsched.problems.machines import machine
    >>> gpu, link = machine("V100:pcie3")
    >>> gpu.memory, link.bandwidth
    (16000000000, 12200000000.0)
    >>> machine("a100")[1].name
    'pcie4'
    """
    forms = 'write a name such as "v100", or name and link such as "v100:pcie3"'
    name, colon, link = text.strip().lower().partition(":") if isinstance(text, str) else ("", "", "")
    if not isinstance(text, str) or name in ("cuda", "cpu", "gpu"):  # as PyTorch names devices
        forms = f'"here" is the device that the model is on; to plan for another, {forms}: {", ".join(MACHINES)}'
        raise InvalidInputError(f"the device is {text!r}, which is no name of a machine; {forms}")
    if name not in MACHINES:
        raise InvalidInputError(f"no machine is named {name!r} (in {text!r}); there are {', '.join(MACHINES)}; {forms}")
    chosen = link if colon else MACHINES[name].link
    if chosen not in LINKS:
        raise InvalidInputError(f"no link is named {link!r} (in {text!r}); there are {', '.join(LINKS)}; {forms}")
    return MACHINES[name], LINKS[chosen]
